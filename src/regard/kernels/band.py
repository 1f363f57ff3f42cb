"""Attention over bands in Triton: softmax(q·k) v, where query i attends to the keys first[i] ≤ j < last[i].

A band is cut into tiles of few queries and few keys, and one program of a kernel has a tile to itself. Where sequences
are short, several of them make a tile: its queries attend to its keys only, and no other query attends to these. Such a
tile is whole: everything about it, gradients included, is known inside it, so its program reads and writes every number
once. A sequence longer than a tile is cut into parts, each of as many queries and keys.

    last[i - 1] ≤ first[i]         the band may be cut between the queries i - 1 and i, and between the keys at first[i]

Every query and every key is in one tile. The tiles are found on the device, and the host does not wait for their number:
programs go on to their next tile until there is none. The order in which tiles are found differs from run to run; the
results do not, because no tile adds to the numbers of another.

Kernels for whole tiles and for parts run one after the other, whatever the lengths are; the one without work ends at
once. In parts the softmax is made online (Milakov and Gimelshein 2018; Dao et al. 2022), and the backward pass computes
the weights once more. Dropout draws from a counter and a seed on the device, so a CUDA graph draws anew at each replay.

A query that may attend to nothing gets zeros. Keys that no query of a block attends to are read as zeros, so NaN there
changes nothing. Triton's interpreter runs the same code on a CPU, for tests.

Legend: B rows, H heads, N queries, M keys, D width, E width of the values.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.launch import once_differentiable
from regard.kernels.linear import adjacent_tensor, empty_like_parts

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load_rows(base, index, there, width: tl.constexpr, padded: tl.constexpr, stride):
    """(rows, padded) numbers; zeros where there is none."""
    feature = tl.arange(0, padded)
    where = there[:, None] & (feature < width)[None, :]
    return tl.load(base + index.to(tl.int64)[:, None] * stride + feature[None, :], mask=where, other=0.0)


@triton.jit
def _store_rows(base, index, there, width: tl.constexpr, padded: tl.constexpr, stride, value):
    """Write (rows, padded) numbers where there is a place for them."""
    feature = tl.arange(0, padded)
    where = there[:, None] & (feature < width)[None, :]
    place = base + index.to(tl.int64)[:, None] * stride + feature[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=where)


@triton.jit
def _program_share(heads, slots):
    """What a program has: its row, a number of 64 bits, so that where a row begins is one too; its head; and the first
    of its tiles, the others being `slots` apart. Programs that follow each other have the heads of the same tokens,
    which lie side by side."""
    number = tl.program_id(0) // heads
    return (number // slots).to(tl.int64), tl.program_id(0) % heads, number % slots


@triton.jit
def _load_ranges(first, last, index, there):
    """Where the runs of these begin and end; nowhere for those that are not there."""
    return tl.load(first + index, mask=there, other=0), tl.load(last + index, mask=there, other=0)


@triton.jit
def _dropout_mask(seed, head, i, j, n_keys, dropout):
    """Which weights are not dropped."""
    place = i.to(tl.int64)[:, None] * n_keys + j[None, :]
    return tl.rand(tl.load(seed) + head, place) >= dropout


# ---- band_tiles: Tiles of a band: few queries and few keys each, which one program of a kernel has to itself.
#
# Where sequences are short, several of them make a tile: its queries see its keys alone, and nobody else sees these. Such
# a tile is whole. All that is to be known about it, the gradients too, is known within it, so that its program reads and
# writes every number once. A sequence that is longer than a tile is cut into parts, each of as many queries and as many
# keys, though what these see and are seen by lies in other parts too.
#
#     last[i - 1] ≤ first[i]         between the queries i - 1 and i the band may be cut, and between the keys at first[i]
#
# Every query and every key is in one tile: as many sequences as there is room for, one after another. Stretches of the
# row are looked through at once. How many tiles there are is known only to the device, where they are found, and nobody
# waits for it: programs go on to their next tile until there is none. In which order the tiles are found differs from run
# to run; what is computed does not, as no tile adds to another's numbers.
#
# It knows neither queries nor keys, only how far they see. Triton's interpreter runs it on a CPU, for tests.
#
# Legend: B rows, N queries, M keys.

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
def _find_tiles_kernel(first, last, tiles, counts, n_queries, n_keys, stretches, room,
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


def find_tiles(first: Tensor, last: Tensor, n_keys: int, size: int) -> tuple[Tensor, Tensor]:
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
    launch.launch(_find_tiles_kernel, (rows * stretches,), first.contiguous(), last.contiguous(), tiles, counts, n_queries, n_keys,
                   stretches, room, stretch, size, launch.next_power_of_2(size), num_warps=1)
    return tiles, counts


# ---- band_whole: Attention within whole tiles of a band: softmax(q·k) v where the queries of a tile see its keys alone.
#
# A program reads a tile's queries, keys and values once and has all weights of these queries at once. In the backward
# pass it makes them once more, and the gradients of queries, keys and values are complete in it: every number is read
# once and written once. The inner products of the gradients from above with the outputs are the sums Σ p ∂p over the keys
# of the tile, so that outputs are not read. Neither order nor number of the tiles changes a result.
#
# What nobody sees is read as zero, so that NaN there changes nothing. It does not know how tiles come about
# (`band_tiles`), nor sequences that are longer than a tile (`band_parts`).
#
# Legend: B rows, H heads, N queries, M keys, D width, E width of the values.


@triton.jit
def _whole_forward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed,
            q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group,
            slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
            padded_e: tl.constexpr, size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """output (B, N, H, E) and logs (B, H, N): log2 of the sums of 2^score."""
    b, h, slot = _program_share(heads, slots)
    head = b * heads + h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
        there, inside = i < tl.load(tile + 1), j < tl.load(tile + 3)
        low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, there)
        begin, end = _load_ranges(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, inside)
        sees, seen = high > low, end > begin
        q = _load_rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
        k = _load_rows(key + b * k_b + (h // group) * k_h, j, seen, D, padded_d, k_n)
        v = _load_rows(value + b * v_b + (h // group) * v_h, j, seen, E, padded_e, v_n)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        s = tl.where(allowed, tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E), -float("inf"))
        most = tl.where(sees, tl.max(s, 1), 0.0)
        p = tl.exp2(s - most[:, None])
        total = tl.where(sees, tl.sum(p, 1), 1.0)
        if drops:
            p = tl.where(_dropout_mask(seed, head, i, j, n_keys, dropout), p, 0.0)
        part = 1.0 / total
        if drops:
            part = part / (1.0 - dropout)
        sums = tl.dot(p.to(v.dtype), v, input_precision=precision) * part[:, None]
        _store_rows(output + (b * n_queries * heads + h) * E, i, there, E, padded_e, heads * E, sums)
        tl.store(logs + head * n_queries + i, most + tl.log2(total), mask=there)


@triton.jit
def _whole_backward(query, key, value, upstream, logs, of_query, of_key, of_value, first, last, from_query, to_query, tiles,
             counts, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, gq_b, gq_h, gq_n, gk_b, gk_h,
             gk_n, gv_b, gv_h, gv_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group, slots, room,
             scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
             size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """of_query (B, H, N, D); of_key (B, key heads, M, D) and of_value (B, key heads, M, E), summed over the heads that
    share them."""
    key_heads = heads // group
    b, kh, slot = _program_share(key_heads, slots)
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
        there, inside = i < tl.load(tile + 1), j < tl.load(tile + 3)
        of_k, of_v = tl.zeros((size, padded_d), tl.float32), tl.zeros((size, padded_e), tl.float32)
        for member in range(group):
            h = kh * group + member
            head = b * heads + h
            low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, there)
            begin, end = _load_ranges(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, inside)
            sees, seen = high > low, end > begin
            log = tl.load(logs + head * n_queries + i, mask=there, other=0.0)
            q = _load_rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
            k = _load_rows(key + b * k_b + kh * k_h, j, seen, D, padded_d, k_n)
            u = _load_rows(upstream + b * u_b + h * u_h, i, sees, E, padded_e, u_n)
            v = _load_rows(value + b * v_b + kh * v_h, j, seen, E, padded_e, v_n)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
            p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
            of_p = tl.dot(u, tl.trans(v), input_precision=precision)
            left = p
            if drops:
                keep = _dropout_mask(seed, head, i, j, n_keys, dropout)
                left = tl.where(keep, p / (1.0 - dropout), 0.0)
                of_p = tl.where(keep, of_p / (1.0 - dropout), 0.0)
            own = tl.sum(p * of_p, 1)
            of_v += tl.dot(tl.trans(left.to(u.dtype)), u, input_precision=precision)
            of_s = (p * (of_p - own[:, None])).to(k.dtype)
            of_k += tl.dot(tl.trans(of_s), q, input_precision=precision)
            of_q = tl.dot(of_s, k, input_precision=precision)
            _store_rows(of_query + b * gq_b + h * gq_h, i, there, D, padded_d, gq_n, of_q * scale)
        _store_rows(of_key + b * gk_b + kh * gk_h, j, inside, D, padded_d, gk_n, of_k * scale)
        _store_rows(of_value + b * gv_b + kh * gv_h, j, inside, E, padded_e, gv_n, of_v)


# ---- band_parts: Attention within parts of a band: softmax(q·k) v for the queries and keys of sequences that are longer than a tile.
#
# A program has as many queries and as many keys as a tile. It goes through the blocks of keys that its queries see, with
# the softmax made as it goes (Milakov and Gimelshein 2018; Dao et al. 2022). The backward pass makes the weights once
# more: it goes through these blocks again for the gradients of its queries, and through the blocks of queries that see
# its keys for those of keys and values. No sum is made by several programs, so results are the same every time.
#
# What nobody in a block sees is read as zero, so that NaN there changes nothing. It does not know how tiles come about
# (`band_tiles`); where they are whole, `band_whole` needs less.
#
# Legend: B rows, H heads, N queries, M keys, D width, E width of the values.


@triton.jit
def _part_forward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed,
            q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group,
            slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
            padded_e: tl.constexpr, size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """output (B, N, H, E) and logs (B, H, N): log2 of the sums of 2^score."""
    b, h, slot = _program_share(heads, slots)
    head = b * heads + h
    k_at, v_at = key + b * k_b + (h // group) * k_h, value + b * v_b + (h // group) * v_h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i = tl.load(tile) + tl.arange(0, size)
        there = i < tl.load(tile + 1)
        low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, there)
        sees = high > low
        q = _load_rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
        most = tl.full((size,), -float("inf"), tl.float32)
        total = tl.zeros((size,), tl.float32)
        sums = tl.zeros((size, padded_e), tl.float32)
        for start in range(tl.min(tl.where(sees, low, n_keys)), tl.max(tl.where(sees, high, 0)), size):
            j = start + tl.arange(0, size)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            seen = tl.max(allowed.to(tl.int32), 0) > 0
            k = _load_rows(k_at, j, seen, D, padded_d, k_n)
            v = _load_rows(v_at, j, seen, E, padded_e, v_n)
            s = tl.where(allowed, tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E), -float("inf"))
            new = tl.maximum(most, tl.max(s, 1))
            shift = tl.where(new == -float("inf"), 0.0, new)
            p = tl.exp2(s - shift[:, None])
            fade = tl.exp2(most - shift)
            total = total * fade + tl.sum(p, 1)
            if drops:
                p = tl.where(_dropout_mask(seed, head, i, j, n_keys, dropout), p, 0.0)
            sums = sums * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
            most = new
        total = tl.where(sees, total, 1.0)  # where nothing is seen, the sums are zeros
        part = 1.0 / total
        if drops:
            part = part / (1.0 - dropout)
        _store_rows(output + (b * n_queries * heads + h) * E, i, there, E, padded_e, heads * E, sums * part[:, None])
        tl.store(logs + head * n_queries + i, tl.where(sees, most + tl.log2(total), 0.0), mask=there)


@triton.jit
def _part_backward(query, key, value, output, upstream, logs, of_query, of_key, of_value, first, last, from_query, to_query,
             tiles, counts, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, gq_b, gq_h, gq_n, gk_b,
             gk_h, gk_n, gv_b, gv_h, gv_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group, slots, room,
             scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
             size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """of_query (B, H, N, D); of_key (B, key heads, M, D) and of_value (B, key heads, M, E), summed over the heads that
    share them."""
    key_heads = heads // group
    b, kh, slot = _program_share(key_heads, slots)
    k_at, v_at = key + b * k_b + kh * k_h, value + b * v_b + kh * v_h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
        there, inside = i < tl.load(tile + 1), j < tl.load(tile + 3)
        for member in range(group):
            h = kh * group + member
            of_q = _query_gradient(query + b * q_b + h * q_h, k_at, v_at, output + (b * n_queries * heads + h) * E,
                               upstream + b * u_b + h * u_h, logs + (b * heads + h) * n_queries,
                               first + b * e_b + h * e_h, last + b * e_b + h * e_h, seed, i, there, b * heads + h,
                               q_n, k_n, v_n, u_n, n_keys, heads, scale, dropout, D, padded_d, E, padded_e, size,
                               drops, precision)
            _store_rows(of_query + b * gq_b + h * gq_h, i, there, D, padded_d, gq_n, of_q * scale)
        of_k, of_v = tl.zeros((size, padded_d), tl.float32), tl.zeros((size, padded_e), tl.float32)
        for member in range(group):
            h = kh * group + member
            begin, end = _load_ranges(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, inside)
            seen = end > begin
            k = _load_rows(k_at, j, seen, D, padded_d, k_n)
            v = _load_rows(v_at, j, seen, E, padded_e, v_n)
            for start in range(tl.min(tl.where(seen, begin, n_queries)), tl.max(tl.where(seen, end, 0)), size):
                n = start + tl.arange(0, size)
                low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, n, n < n_queries)
                q, u, log, own = _load_for_backward(query + b * q_b + h * q_h, output + (b * n_queries * heads + h) * E,
                                           upstream + b * u_b + h * u_h, logs + (b * heads + h) * n_queries, n,
                                           high > low, q_n, u_n, heads, D, padded_d, E, padded_e)
                allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
                s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
                p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
                of_p = tl.dot(u, tl.trans(v), input_precision=precision)
                left = p
                if drops:
                    keep = _dropout_mask(seed, b * heads + h, n, j, n_keys, dropout)
                    left = tl.where(keep, p / (1.0 - dropout), 0.0)
                    of_p = tl.where(keep, of_p / (1.0 - dropout), 0.0)
                of_v += tl.dot(tl.trans(left.to(u.dtype)), u, input_precision=precision)
                of_s = (p * (of_p - own[:, None])).to(q.dtype)
                of_k += tl.dot(tl.trans(of_s), q, input_precision=precision)
        _store_rows(of_key + b * gk_b + kh * gk_h, j, inside, D, padded_d, gk_n, of_k * scale)
        _store_rows(of_value + b * gv_b + kh * gv_h, j, inside, E, padded_e, gv_n, of_v)


@triton.jit
def _load_for_backward(query, output, upstream, logs, i, sees, q_n, u_n, heads, D: tl.constexpr, padded_d: tl.constexpr,
              E: tl.constexpr, padded_e: tl.constexpr):
    """What the backward pass needs of queries: themselves, what comes from above, and of that its inner product with
    the outputs."""
    q = _load_rows(query, i, sees, D, padded_d, q_n)
    u = _load_rows(upstream, i, sees, E, padded_e, u_n)
    o = _load_rows(output, i, sees, E, padded_e, heads * E)
    log = tl.load(logs + i, mask=sees, other=0.0)
    return q, u, log, tl.sum(o.to(tl.float32) * u.to(tl.float32), 1)


@triton.jit
def _query_gradient(query, key, value, output, upstream, logs, first, last, seed, i, there, head, q_n, k_n, v_n, u_n,
                n_keys, heads, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                padded_e: tl.constexpr, size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """The gradients of the queries of a tile, (size, padded_d), not yet scaled."""
    low, high = _load_ranges(first, last, i, there)
    sees = high > low
    q, u, log, own = _load_for_backward(query, output, upstream, logs, i, sees, q_n, u_n, heads, D, padded_d, E, padded_e)
    sums = tl.zeros((size, padded_d), tl.float32)
    for start in range(tl.min(tl.where(sees, low, n_keys)), tl.max(tl.where(sees, high, 0)), size):
        j = start + tl.arange(0, size)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        seen = tl.max(allowed.to(tl.int32), 0) > 0
        k = _load_rows(key, j, seen, D, padded_d, k_n)
        v = _load_rows(value, j, seen, E, padded_e, v_n)
        s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
        p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
        of_p = tl.dot(u, tl.trans(v), input_precision=precision)
        if drops:
            of_p = tl.where(_dropout_mask(seed, head, i, j, n_keys, dropout), of_p / (1.0 - dropout), 0.0)
        of_s = (p * (of_p - own[:, None])).to(k.dtype)
        sums += tl.dot(of_s, k, input_precision=precision)
    return sums


# ---- band_triton: Attention over bands in Triton: softmax(q·k) v, where query i sees the keys first[i] ≤ j < last[i].
#
# The band is cut into tiles on the device (`band_tiles`). Kernels for whole tiles (`band_whole`) and for parts of what is
# longer (`band_parts`) run one after the other, whatever the lengths are, so that nobody waits for the device to say: the
# one that has nothing to do is done at once. Both write every number of their tiles, once, and no sum is made by several
# programs, so results are the same every time. Weights that are dropped are drawn from a counter and the seed, a number
# on the device, so a recorded graph draws anew each time.
#
# A query that sees nothing gets zeros. It does not know how bands come about. Triton's interpreter runs the same code on
# a CPU, for tests.
#
# Legend: B rows, H heads, N queries, M keys, D width, E width of the values.

INTERPRETED: bool = triton.knobs.runtime.interpret
PART_PROGRAMS = 8 if INTERPRETED else 512
"""Programs that share the parts of long sequences, or find that there are none: enough to fill a large device."""


@dataclass(frozen=True)
class BandTiles:
    """Who sees whom: the ends of the runs, (B, H, N) and (B, H, M), and the tiles that they are cut into."""

    first: Tensor
    last: Tensor
    from_query: Tensor
    to_query: Tensor
    tiles: Tensor
    """(B, 2, room, 4): whole ones and parts, as `band_tiles.find` gives them."""
    counts: Tensor
    """(B, 2)"""

    @property
    def ends(self) -> tuple[Tensor, ...]:
        return self.first, self.last, self.from_query, self.to_query

    def of(self, kind: int) -> tuple[Tensor, Tensor]:
        return self.tiles[:, kind], self.counts[:, kind]

    @property
    def room(self) -> int:
        return self.tiles.shape[2]

    @property
    def strides(self) -> tuple[int, ...]:
        return (*self.first.stride()[:2], *self.from_query.stride()[:2], self.tiles.stride(0), self.counts.stride(0))


def tile_size(query: Tensor, value: Tensor) -> int:
    """Queries, and keys, of a tile: as many as there is room for on a chip beside their weights and gradients."""
    if INTERPRETED:
        return 16
    wide = max(query.shape[-1], value.shape[-1]) > 128
    return (32 if wide else 64) if query.element_size() == 2 else 16 if wide else 32


def attend_band(query: Tensor, key: Tensor, value: Tensor, runs: BandTiles, *, scale: float, dropout: float) -> Tensor:
    """(B, H, N, E) of query (B, H, N, D), key (B, key heads, M, D) and value (B, key heads, M, E).

    The tiles are of the `tile_size` of query and value.
    """
    drawn = torch.randint(1 << 31, (1,), device=query.device) if dropout else runs.counts  # not read
    output: Tensor = _BandAttention.apply(query, key, value, *runs.ends, runs.tiles, runs.counts, drawn, scale, dropout)
    return output


class _BandAttention(torch.autograd.Function):
    """The output, and the gradients of query, key and value."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, from_query: Tensor,
                to_query: Tensor, tiles: Tensor, counts: Tensor, seed: Tensor, scale: float, dropout: float) -> Tensor:
        query, key, value = _contiguous_features(query), _contiguous_features(key), _contiguous_features(value)
        runs = BandTiles(first, last, from_query, to_query, tiles, counts)
        B, H, N, _ = query.shape
        M, E = value.shape[-2:]
        output = query.new_empty(B, N, H, E)
        logs = query.new_empty(B, H, N, dtype=torch.float32)
        strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *runs.strides)
        for kind, kernel in enumerate((_whole_forward, _part_forward)):
            slots = _tile_slots(kind, B * H, max(N, M), tile_size(query, value), runs.room)
            launch.launch(kernel, (slots * B * H,), query, key, value, output, logs, *runs.ends, *runs.of(kind), seed,
                           *strides, N, M, H, H // key.shape[1], slots, runs.room, scale, dropout,
                           **_compile_options(kind, query, value, dropout), maxnreg=_max_registers(kind, query, value))
        ctx.save_for_backward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed)
        ctx.scale, ctx.dropout = scale, dropout
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        query, key, value, output, logs, *tensors, seed = ctx.saved_tensors
        runs, above = BandTiles(*tensors), _contiguous_features(upstream[0])
        B, H, N, _ = query.shape
        key_heads, M = value.shape[1:3]
        found = _empty_gradients(query, key, value)
        strides = [stride for tensor in (query, key, value, above, *found) for stride in tensor.stride()[:3]]
        for kind, (kernel, outputs) in enumerate(((_whole_backward, ()), (_part_backward, (output,)))):
            slots = _tile_slots(kind, B * key_heads, max(N, M), tile_size(query, value), runs.room)
            launch.launch(kernel, (slots * B * key_heads,), query, key, value, *outputs, above, logs, *found,
                           *runs.ends, *runs.of(kind), seed, *strides, *runs.strides, N, M, H, H // key_heads, slots,
                           runs.room, ctx.scale, ctx.dropout, **_compile_options(kind, query, value, ctx.dropout))
        return (*found, *[None] * 9)


def _empty_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for the gradients, laid out as their tensors are: where one product made several of them, what it has to
    read in its turn lies beside each other again."""
    if adjacent_tensor((query, key, value), 1) is not None:
        return empty_like_parts((query, key, value), 1)
    return (*empty_like_parts((query,), 1), *empty_like_parts((key, value), 1))


def _tile_slots(kind: int, heads: int, tokens: int, size: int, room: int) -> int:
    """How many tiles of each head are begun at once, of as many as there may be; programs go on to the next ones.

    Where sequences are much shorter than a tile, more than three of four places in it are filled, and every tile has a
    program.
    """
    return min(room, max(1, PART_PROGRAMS // heads) if kind else triton.cdiv(4 * tokens, 3 * size) + 1)


def _compile_options(kind: int, query: Tensor, value: Tensor, dropout: float) -> dict[str, Any]:
    """What the kernels are compiled for, and how."""
    width, value_width = query.shape[-1], value.shape[-1]
    return {"D": width, "padded_d": max(16, triton.next_power_of_2(width)), "E": value_width,
            "padded_e": max(16, triton.next_power_of_2(value_width)), "size": tile_size(query, value),
            "drops": dropout > 0.0, "precision": "ieee", "num_warps": 4,
            "num_stages": 2 if kind and query.element_size() == 2 else 1}  # parts go through loops, and read ahead


def _max_registers(kind: int, query: Tensor, value: Tensor) -> int | None:
    """Of a thread of a forward pass: whole tiles mostly wait for memory, and with so few four share a processor. The
    backward pass has more to hold, and is slower with a limit."""
    narrow = query.element_size() == 2 and max(query.shape[-1], value.shape[-1]) <= 64
    return 128 if narrow and not kind else None


def _contiguous_features(tensor: Tensor) -> Tensor:
    """The features of a token side by side in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
