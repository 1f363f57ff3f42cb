"""Tiles of a band: few queries and few keys each, which one program of a kernel has to itself.

Where sequences are short, several of them make a tile: its queries see its keys alone, and nobody else sees these. Such
a tile is whole. All that is to be known about it, the gradients too, is known within it, so that its program reads and
writes every number once. A sequence that is longer than a tile is cut into parts, each of as many queries and as many
keys, though what these see and are seen by lies in other parts too.

    last[i - 1] ≤ first[i]         between the queries i - 1 and i the band may be cut, and between the keys at first[i]

Every query and every key is in one tile: as many sequences as there is room for, one after another. Stretches of the
row are looked through at once. How many tiles there are is known only to the device, where they are found, and nobody
waits for it: programs go on to their next tile until there is none. In which order the tiles are found differs from run
to run; what is computed does not, as no tile adds to another's numbers.

It knows neither queries nor keys, only how far they see. Triton's interpreter runs it on a CPU, for tests.

Legend: B rows, N queries, M keys.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard import kernels

STRETCH = 16
"""Tiles' worth of queries that are looked through one after another."""


@triton.jit
def _next_cut(first, last, start, n_queries, lanes: tl.constexpr):
    """The first place from `start` on, which is not the first of all, where the band may be cut; the end is one too."""
    found, at = n_queries, start
    while at < found:
        i = at + tl.arange(0, lanes)
        before = tl.load(last + i - 1, mask=i < n_queries, other=0)
        here = tl.load(first + i, mask=i < n_queries, other=-1)
        found = tl.min(tl.where(before <= here, i, found))
        at += lanes
    return found


@triton.jit
def _key_at(first, i, n_queries, n_keys):
    """The first key that belongs to the queries from i on, where i is a cut."""
    key = tl.load(first + i, mask=i < n_queries, other=n_keys)
    return tl.where(i == 0, 0, tl.minimum(tl.maximum(key, 0), n_keys))


@triton.jit
def _find(first, last, tiles, counts, n_queries, n_keys, stretches, room,
          stretch: tl.constexpr, size: tl.constexpr, lanes: tl.constexpr):
    """tiles (B, 2, room, 4): first query, the one behind the last, first key, the one behind the last, of whole tiles
    and of parts; counts (B, 2): how many there are."""
    row, piece = (tl.program_id(0) // stretches).to(tl.int64), tl.program_id(0) % stretches
    first += row * n_queries
    last += row * n_queries
    query = 0
    if piece > 0:
        query = _next_cut(first, last, piece * stretch, n_queries, lanes)
    stop = n_queries
    if (piece + 1) * stretch < n_queries:
        stop = _next_cut(first, last, (piece + 1) * stretch, n_queries, lanes)
    key = _key_at(first, query, n_queries, n_keys)
    while query < stop:
        i = query + 1 + tl.arange(0, lanes)
        before = tl.load(last + i - 1, mask=i <= n_queries, other=0)
        here = tl.load(first + i, mask=i < n_queries, other=n_keys)
        behind = tl.minimum(tl.maximum(here, 0), n_keys)
        cut = (i <= stop) & ((before <= here) | (i == n_queries))
        fits = cut & (i - query <= size) & (behind - key <= size)
        end, end_key = tl.max(tl.where(fits, i, 0)), tl.max(tl.where(fits, behind, 0))
        kind, many = 0, 1
        if end == 0:
            end = _next_cut(first, last, query + 1, n_queries, lanes)
            end_key = _key_at(first, end, n_queries, n_keys)
            kind, many = 1, tl.maximum(tl.cdiv(end - query, size), tl.cdiv(end_key - key, size))
        place = tl.atomic_add(counts + row * 2 + kind, many)
        for start in range(0, many, lanes):
            t = start + tl.arange(0, lanes)
            at = tiles + ((row * 2 + kind) * room + place + t) * 4
            mine = (t < many) & (place + t < room)
            tl.store(at, tl.minimum(query + t * size, end), mask=mine)
            tl.store(at + 1, tl.minimum(query + (t + 1) * size, end), mask=mine)
            tl.store(at + 2, tl.minimum(key + t * size, end_key), mask=mine)
            tl.store(at + 3, tl.minimum(key + (t + 1) * size, end_key), mask=mine)
        query, key = end, end_key


def find(first: Tensor, last: Tensor, n_keys: int, size: int) -> tuple[Tensor, Tensor]:
    """The tiles of bands (..., N): whole ones and parts (..., 2, room, 4), and how many of each there are, (..., 2).

    A tile is first query, the one behind its last, first key, the one behind its last: at most `size` of each.
    """
    leading, n_queries = first.shape[:-1], first.shape[-1]
    rows = leading.numel()
    stretch = STRETCH * size
    stretches = triton.cdiv(n_queries, stretch)
    # Two whole tiles that follow each other have more than `size` queries or keys together, and so has a sequence that
    # is cut: no more than three times as many tiles as queries and keys would fill, but for the end of a stretch.
    room = 3 * triton.cdiv(n_queries + n_keys, size) + stretches
    tiles = first.new_empty(*leading, 2, room, 4)
    counts = torch.zeros(*leading, 2, dtype=torch.int32, device=first.device)
    kernels.launch(_find, (rows * stretches,), first.contiguous(), last.contiguous(), tiles, counts, n_queries, n_keys,
                   stretches, room, stretch, size, kernels.padded(size), num_warps=1)
    return tiles, counts
