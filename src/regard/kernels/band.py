"""Attention over bands in Triton: softmax(q·k) v, where query i attends to the keys first[i] ≤ j < last[i].

A band is cut into tiles of few queries and few keys, and one program of a kernel has a tile to itself. Where sequences
are short, several of them make a tile: its queries attend to its keys only, and no other query attends to these. Such a
tile is whole: everything about it, gradients included, is known inside it, so its program reads and writes every number
once. A sequence longer than a tile is cut into parts, each of as many queries and keys.

    last[i - 1] ≤ first[i]         the band may be cut between the queries i - 1 and i, and between the keys at first[i]

Every query and every key is in one tile. The tiles are found on the device, and the host does not wait for their
number: programs continue with their next tile until there is none. The order in which tiles are found differs from run
to run; the results do not, because no tile adds to the numbers of another.

Kernels for whole tiles and for parts run one after the other, for all lengths; the one without work ends at once. In
parts the softmax is made online (Milakov and Gimelshein 2018; Dao et al. 2022), and the backward pass computes the
weights once more. Dropout draws from a counter and a seed on the device, so a CUDA graph draws anew at each replay.

A query that may attend to nothing gets zeros. Keys that no query of a block attends to are read as zeros, so NaN there
changes nothing. Triton's interpreter runs the same code on a CPU, for tests.

Legend: B rows, H heads, N queries, M keys, D width, E width of the values.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.launch import once_differentiable
from regard.kernels.linear import adjacent_tensor, empty_like_parts
from regard.kernels.rows import LOG2_E, contiguous_features, load_rows, store_rows, width_constants


@triton.jit
def _program_share(heads, slots):
    """The row of a program (64 bits, so that offsets of rows are too), its head, and the first of its tiles.

    Its further tiles are `slots` apart. Consecutive programs have the heads of the same tokens, which are adjacent.
    """
    number = tl.program_id(0) // heads
    return (number // slots).to(tl.int64), tl.program_id(0) % heads, number % slots


@triton.jit
def _load_tile(tile, size: tl.constexpr):
    """The queries and the keys of a tile, `size` of each, and which of them are valid."""
    i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
    return i, j, i < tl.load(tile + 1), j < tl.load(tile + 3)


@triton.jit
def _load_ranges(first, last, index, valid):
    """Load where the ranges start and end; both are 0 for rows that are not valid."""
    return tl.load(first + index, mask=valid, other=0), tl.load(last + index, mask=valid, other=0)


@triton.jit
def _dropout_mask(seed, head, i, j, n_keys, dropout):
    """Which weights dropout keeps."""
    place = i.to(tl.int64)[:, None] * n_keys + j[None, :]
    return tl.rand(tl.load(seed) + head, place) >= dropout


STRETCH = 16
"""The tiles of a stretch of queries, which one program cuts into tiles, one after another."""


@triton.jit
def _next_cut(first, last, start, n_queries, lanes: tl.constexpr):
    """The first query from `start` on, at least 1, before which the band may be cut; `n_queries` if there is none."""
    cut, at = n_queries, start
    while at < cut:
        i = at + tl.arange(0, lanes)
        before = tl.load(last + i - 1, mask=i < n_queries, other=0)
        here = tl.load(first + i, mask=i < n_queries, other=-1)
        cut = tl.min(tl.where(before <= here, i, cut))
        at += lanes
    return cut


@triton.jit
def _key_at(first, i, n_queries, n_keys):
    """The first key that belongs to the queries from i on, where i is a cut."""
    key = tl.load(first + i, mask=i < n_queries, other=n_keys)
    return tl.where(i == 0, 0, tl.minimum(tl.maximum(key, 0), n_keys))


@triton.jit
def _find_tiles_kernel(first, last, tiles, counts, n_queries, n_keys, n_stretches, room, stretch: tl.constexpr,
                       size: tl.constexpr, lanes: tl.constexpr):
    """tiles (B, 2, room, 4): first query, end of the queries, first key, end of the keys, of whole tiles and of parts.

    counts (B, 2): the number of whole tiles and of parts.
    """
    row, piece = (tl.program_id(0) // n_stretches).to(tl.int64), tl.program_id(0) % n_stretches
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
        end_keys = tl.minimum(tl.maximum(here, 0), n_keys)
        cut = (i <= stop) & ((before <= here) | (i == n_queries))
        fits = cut & (i - query <= size) & (end_keys - key <= size)
        end, end_key = tl.max(tl.where(fits, i, 0)), tl.max(tl.where(fits, end_keys, 0))
        kind, count = 0, 1
        if end == 0:
            end = _next_cut(first, last, query + 1, n_queries, lanes)
            end_key = _key_at(first, end, n_queries, n_keys)
            kind, count = 1, tl.maximum(tl.cdiv(end - query, size), tl.cdiv(end_key - key, size))
        place = tl.atomic_add(counts + row * 2 + kind, count)
        for start in range(0, count, lanes):
            t = start + tl.arange(0, lanes)
            at = tiles + ((row * 2 + kind) * room + place + t) * 4
            mine = (t < count) & (place + t < room)
            tl.store(at, tl.minimum(query + t * size, end), mask=mine)
            tl.store(at + 1, tl.minimum(query + (t + 1) * size, end), mask=mine)
            tl.store(at + 2, tl.minimum(key + t * size, end_key), mask=mine)
            tl.store(at + 3, tl.minimum(key + (t + 1) * size, end_key), mask=mine)
        query, key = end, end_key


def find_tiles(first: Tensor, last: Tensor, n_keys: int, size: int) -> tuple[Tensor, Tensor]:
    """The tiles of bands (..., N): whole ones and parts (..., 2, room, 4), and the number of each, (..., 2).

    A tile is its first query, the end of its queries, its first key and the end of its keys: at most `size` of each.
    """
    leading, n_queries = first.shape[:-1], first.shape[-1]
    rows = leading.numel()
    stretch = STRETCH * size
    n_stretches = triton.cdiv(n_queries, stretch)
    # Two consecutive whole tiles have more than `size` queries or keys together, and so has a sequence that is cut: no
    # more than three times as many tiles as queries and keys would fill, except for the end of a stretch.
    room = 3 * triton.cdiv(n_queries + n_keys, size) + n_stretches
    tiles = first.new_empty(*leading, 2, room, 4)
    counts = torch.zeros(*leading, 2, dtype=torch.int32, device=first.device)
    launch.launch(_find_tiles_kernel, (rows * n_stretches,), first.contiguous(), last.contiguous(), tiles, counts,
                  n_queries, n_keys, n_stretches, room, stretch, size, launch.next_power_of_2(size), num_warps=1)
    return tiles, counts


@triton.jit
def _whole_forward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed, q_b, q_h,
                   q_n, k_b, k_h, k_n, v_b, v_h, v_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group,
                   slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                   padded_e: tl.constexpr, size: tl.constexpr, with_dropout: tl.constexpr, precision: tl.constexpr):
    """Whole tiles: output (B, N, H, E) and logs (B, H, N), log2 of the sums of 2^score."""
    b, h, slot = _program_share(heads, slots)
    head = b * heads + h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        i, j, valid, valid_key = _load_tile(tiles + b * t_b + one * 4, size)
        low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, valid)
        begin, end = _load_ranges(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, valid_key)
        attends, attended = high > low, end > begin
        q = load_rows(query + b * q_b + h * q_h, i, attends, D, padded_d, q_n)
        k = load_rows(key + b * k_b + (h // group) * k_h, j, attended, D, padded_d, k_n)
        v = load_rows(value + b * v_b + (h // group) * v_h, j, attended, E, padded_e, v_n)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        s = tl.where(allowed, tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E), -float("inf"))
        peak = tl.where(attends, tl.max(s, 1), 0.0)
        p = tl.exp2(s - peak[:, None])
        total = tl.where(attends, tl.sum(p, 1), 1.0)
        if with_dropout:
            p = tl.where(_dropout_mask(seed, head, i, j, n_keys, dropout), p, 0.0)
        inverse = 1.0 / total
        if with_dropout:
            inverse = inverse / (1.0 - dropout)
        acc = tl.dot(p.to(v.dtype), v, input_precision=precision) * inverse[:, None]
        store_rows(output + (b * n_queries * heads + h) * E, i, valid, E, padded_e, heads * E, acc)
        tl.store(logs + head * n_queries + i, peak + tl.log2(total), mask=valid)


@triton.jit
def _whole_backward(query, key, value, d_output, logs, d_query, d_key, d_value, first, last, from_query, to_query,
                    tiles, counts, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, gq_b, gq_h, gq_n,
                    gk_b, gk_h, gk_n, gv_b, gv_h, gv_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group,
                    slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                    padded_e: tl.constexpr, size: tl.constexpr, with_dropout: tl.constexpr, precision: tl.constexpr):
    """Whole tiles: d_query (B, H, N, D), d_key (B, key heads, M, D) and d_value (B, key heads, M, E).

    Gradients of keys and values are summed over the heads that share them.
    """
    key_heads = heads // group
    b, kh, slot = _program_share(key_heads, slots)
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        i, j, valid, valid_key = _load_tile(tiles + b * t_b + one * 4, size)
        dk, dv = tl.zeros((size, padded_d), tl.float32), tl.zeros((size, padded_e), tl.float32)
        for member in range(group):
            h = kh * group + member
            head = b * heads + h
            low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, valid)
            begin, end = _load_ranges(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, valid_key)
            attends, attended = high > low, end > begin
            log = tl.load(logs + head * n_queries + i, mask=valid, other=0.0)
            q = load_rows(query + b * q_b + h * q_h, i, attends, D, padded_d, q_n)
            k = load_rows(key + b * k_b + kh * k_h, j, attended, D, padded_d, k_n)
            u = load_rows(d_output + b * u_b + h * u_h, i, attends, E, padded_e, u_n)
            v = load_rows(value + b * v_b + kh * v_h, j, attended, E, padded_e, v_n)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
            p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
            dp = tl.dot(u, tl.trans(v), input_precision=precision)
            dropped = p
            if with_dropout:
                keep = _dropout_mask(seed, head, i, j, n_keys, dropout)
                dropped = tl.where(keep, p / (1.0 - dropout), 0.0)
                dp = tl.where(keep, dp / (1.0 - dropout), 0.0)
            delta = tl.sum(p * dp, 1)
            dv += tl.dot(tl.trans(dropped.to(u.dtype)), u, input_precision=precision)
            ds = (p * (dp - delta[:, None])).to(k.dtype)
            dk += tl.dot(tl.trans(ds), q, input_precision=precision)
            dq = tl.dot(ds, k, input_precision=precision)
            store_rows(d_query + b * gq_b + h * gq_h, i, valid, D, padded_d, gq_n, dq * scale)
        store_rows(d_key + b * gk_b + kh * gk_h, j, valid_key, D, padded_d, gk_n, dk * scale)
        store_rows(d_value + b * gv_b + kh * gv_h, j, valid_key, E, padded_e, gv_n, dv)


@triton.jit
def _part_forward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed, q_b, q_h,
                  q_n, k_b, k_h, k_n, v_b, v_h, v_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group,
                  slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                  padded_e: tl.constexpr, size: tl.constexpr, with_dropout: tl.constexpr, precision: tl.constexpr):
    """Parts of long sequences: output (B, N, H, E) and logs (B, H, N), log2 of the sums of 2^score."""
    b, h, slot = _program_share(heads, slots)
    head = b * heads + h
    k_at, v_at = key + b * k_b + (h // group) * k_h, value + b * v_b + (h // group) * v_h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i = tl.load(tile) + tl.arange(0, size)
        valid = i < tl.load(tile + 1)
        low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, valid)
        attends = high > low
        q = load_rows(query + b * q_b + h * q_h, i, attends, D, padded_d, q_n)
        peak = tl.full((size,), -float("inf"), tl.float32)
        total = tl.zeros((size,), tl.float32)
        acc = tl.zeros((size, padded_e), tl.float32)
        for start in range(tl.min(tl.where(attends, low, n_keys)), tl.max(tl.where(attends, high, 0)), size):
            j = start + tl.arange(0, size)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            attended = tl.max(allowed.to(tl.int32), 0) > 0
            k = load_rows(k_at, j, attended, D, padded_d, k_n)
            v = load_rows(v_at, j, attended, E, padded_e, v_n)
            s = tl.where(allowed, tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E), -float("inf"))
            new = tl.maximum(peak, tl.max(s, 1))
            shift = tl.where(new == -float("inf"), 0.0, new)
            p = tl.exp2(s - shift[:, None])
            rescale = tl.exp2(peak - shift)
            total = total * rescale + tl.sum(p, 1)
            if with_dropout:
                p = tl.where(_dropout_mask(seed, head, i, j, n_keys, dropout), p, 0.0)
            acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
            peak = new
        total = tl.where(attends, total, 1.0)  # a row that attends to nothing has only zeros in acc
        inverse = 1.0 / total
        if with_dropout:
            inverse = inverse / (1.0 - dropout)
        store_rows(output + (b * n_queries * heads + h) * E, i, valid, E, padded_e, heads * E, acc * inverse[:, None])
        tl.store(logs + head * n_queries + i, tl.where(attends, peak + tl.log2(total), 0.0), mask=valid)


@triton.jit
def _part_backward(query, key, value, output, d_output, logs, d_query, d_key, d_value, first, last, from_query,
                   to_query, tiles, counts, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, gq_b,
                   gq_h, gq_n, gk_b, gk_h, gk_n, gv_b, gv_h, gv_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys,
                   heads, group, slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr,
                   E: tl.constexpr, padded_e: tl.constexpr, size: tl.constexpr, with_dropout: tl.constexpr,
                   precision: tl.constexpr):
    """Parts of long sequences: the gradients that `_whole_backward` gives for whole tiles."""
    key_heads = heads // group
    b, kh, slot = _program_share(key_heads, slots)
    k_at, v_at = key + b * k_b + kh * k_h, value + b * v_b + kh * v_h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        i, j, valid, valid_key = _load_tile(tiles + b * t_b + one * 4, size)
        for member in range(group):
            h = kh * group + member
            dq = _query_gradient(query + b * q_b + h * q_h, k_at, v_at, output + (b * n_queries * heads + h) * E,
                                 d_output + b * u_b + h * u_h, logs + (b * heads + h) * n_queries,
                                 first + b * e_b + h * e_h, last + b * e_b + h * e_h, seed, i, valid, b * heads + h,
                                 q_n, k_n, v_n, u_n, n_keys, heads, scale, dropout, D, padded_d, E, padded_e, size,
                                 with_dropout, precision)
            store_rows(d_query + b * gq_b + h * gq_h, i, valid, D, padded_d, gq_n, dq * scale)
        dk, dv = tl.zeros((size, padded_d), tl.float32), tl.zeros((size, padded_e), tl.float32)
        for member in range(group):
            h = kh * group + member
            begin, end = _load_ranges(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, valid_key)
            attended = end > begin
            k = load_rows(k_at, j, attended, D, padded_d, k_n)
            v = load_rows(v_at, j, attended, E, padded_e, v_n)
            for start in range(tl.min(tl.where(attended, begin, n_queries)), tl.max(tl.where(attended, end, 0)), size):
                n = start + tl.arange(0, size)
                low, high = _load_ranges(first + b * e_b + h * e_h, last + b * e_b + h * e_h, n, n < n_queries)
                q, u, log, delta = _load_for_backward(
                    query + b * q_b + h * q_h, output + (b * n_queries * heads + h) * E, d_output + b * u_b + h * u_h,
                    logs + (b * heads + h) * n_queries, n, high > low, q_n, u_n, heads, D, padded_d, E, padded_e)
                allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
                s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
                p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
                dp = tl.dot(u, tl.trans(v), input_precision=precision)
                dropped = p
                if with_dropout:
                    keep = _dropout_mask(seed, b * heads + h, n, j, n_keys, dropout)
                    dropped = tl.where(keep, p / (1.0 - dropout), 0.0)
                    dp = tl.where(keep, dp / (1.0 - dropout), 0.0)
                dv += tl.dot(tl.trans(dropped.to(u.dtype)), u, input_precision=precision)
                ds = (p * (dp - delta[:, None])).to(q.dtype)
                dk += tl.dot(tl.trans(ds), q, input_precision=precision)
        store_rows(d_key + b * gk_b + kh * gk_h, j, valid_key, D, padded_d, gk_n, dk * scale)
        store_rows(d_value + b * gv_b + kh * gv_h, j, valid_key, E, padded_e, gv_n, dv)


@triton.jit
def _load_for_backward(query, output, d_output, logs, i, attends, q_n, u_n, heads, D: tl.constexpr,
                       padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr):
    """Load queries, the gradients of their outputs, their logs, and the dot products of outputs and gradients."""
    q = load_rows(query, i, attends, D, padded_d, q_n)
    u = load_rows(d_output, i, attends, E, padded_e, u_n)
    o = load_rows(output, i, attends, E, padded_e, heads * E)
    log = tl.load(logs + i, mask=attends, other=0.0)
    return q, u, log, tl.sum(o.to(tl.float32) * u.to(tl.float32), 1)


@triton.jit
def _query_gradient(query, key, value, output, d_output, logs, first, last, seed, i, valid, head, q_n, k_n, v_n, u_n,
                    n_keys, heads, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                    padded_e: tl.constexpr, size: tl.constexpr, with_dropout: tl.constexpr,
                    precision: tl.constexpr):
    """The gradients of the queries of a tile, (size, padded_d), not yet scaled."""
    low, high = _load_ranges(first, last, i, valid)
    attends = high > low
    q, u, log, delta = _load_for_backward(query, output, d_output, logs, i, attends, q_n, u_n, heads, D, padded_d, E,
                                          padded_e)
    acc = tl.zeros((size, padded_d), tl.float32)
    for start in range(tl.min(tl.where(attends, low, n_keys)), tl.max(tl.where(attends, high, 0)), size):
        j = start + tl.arange(0, size)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        attended = tl.max(allowed.to(tl.int32), 0) > 0
        k = load_rows(key, j, attended, D, padded_d, k_n)
        v = load_rows(value, j, attended, E, padded_e, v_n)
        s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
        p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
        dp = tl.dot(u, tl.trans(v), input_precision=precision)
        if with_dropout:
            dp = tl.where(_dropout_mask(seed, head, i, j, n_keys, dropout), dp / (1.0 - dropout), 0.0)
        ds = (p * (dp - delta[:, None])).to(k.dtype)
        acc += tl.dot(ds, k, input_precision=precision)
    return acc


INTERPRETED: bool = triton.knobs.runtime.interpret
PART_PROGRAMS = 8 if INTERPRETED else 512
"""Programs that share the parts of long sequences: enough to fill a large device."""


@dataclass(frozen=True)
class BandTiles:
    """A band: its ranges of keys (B, H, N) and of queries (B, H, M), and the tiles that it is cut into."""

    first: Tensor
    last: Tensor
    from_query: Tensor
    to_query: Tensor
    tiles: Tensor
    """(B, 2, room, 4): whole ones and parts, as `find_tiles` gives them."""
    counts: Tensor
    """(B, 2)"""

    @property
    def ends(self) -> tuple[Tensor, ...]:
        return self.first, self.last, self.from_query, self.to_query

    def tiles_of(self, kind: int) -> tuple[Tensor, Tensor]:
        """The whole tiles (0) or the parts (1), and their numbers."""
        return self.tiles[:, kind], self.counts[:, kind]

    @property
    def room(self) -> int:
        return self.tiles.shape[2]

    @property
    def strides(self) -> tuple[int, ...]:
        return (*self.first.stride()[:2], *self.from_query.stride()[:2], self.tiles.stride(0), self.counts.stride(0))


def tile_size(query: Tensor, value: Tensor) -> int:
    """The number of queries, and of keys, of a tile: as many as fit on the chip with their weights and gradients."""
    if INTERPRETED:
        return 16
    wide = max(query.shape[-1], value.shape[-1]) > 128
    return (32 if wide else 64) if query.element_size() == 2 else 16 if wide else 32


def attend_band(query: Tensor, key: Tensor, value: Tensor, band: BandTiles, *, scale: float, dropout: float) -> Tensor:
    """Attention of query (B, H, N, D) to key (B, key heads, M, D) and value (B, key heads, M, E): (B, H, N, E).

    The tiles must have the `tile_size` of query and value.
    """
    drawn = torch.randint(1 << 31, (1,), device=query.device) if dropout else band.counts  # not read
    output: Tensor = _BandAttention.apply(query, key, value, *band.ends, band.tiles, band.counts, drawn, scale, dropout)
    return output


class _BandAttention(torch.autograd.Function):
    """The output, and the gradients of query, key and value."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, from_query: Tensor,
                to_query: Tensor, tiles: Tensor, counts: Tensor, seed: Tensor, scale: float, dropout: float) -> Tensor:
        query, key, value = contiguous_features(query), contiguous_features(key), contiguous_features(value)
        band = BandTiles(first, last, from_query, to_query, tiles, counts)
        B, H, N, _ = query.shape
        M, E = value.shape[-2:]
        output = query.new_empty(B, N, H, E)
        logs = query.new_empty(B, H, N, dtype=torch.float32)
        strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *band.strides)
        for kind, kernel in enumerate((_whole_forward, _part_forward)):
            slots = _tile_slots(kind, B * H, max(N, M), tile_size(query, value), band.room)
            launch.launch(kernel, (slots * B * H,), query, key, value, output, logs, *band.ends, *band.tiles_of(kind),
                          seed, *strides, N, M, H, H // key.shape[1], slots, band.room, scale, dropout,
                          **_compile_options(kind, query, value, dropout), maxnreg=_max_registers(kind, query, value))
        ctx.save_for_backward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed)
        ctx.scale, ctx.dropout = scale, dropout
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        query, key, value, output, logs, *tensors, seed = ctx.saved_tensors
        band, d_output = BandTiles(*tensors), contiguous_features(upstream[0])
        B, H, N, _ = query.shape
        key_heads, M = value.shape[1:3]
        gradients = _empty_gradients(query, key, value)
        strides = [stride for tensor in (query, key, value, d_output, *gradients) for stride in tensor.stride()[:3]]
        for kind, (kernel, outputs) in enumerate(((_whole_backward, ()), (_part_backward, (output,)))):
            slots = _tile_slots(kind, B * key_heads, max(N, M), tile_size(query, value), band.room)
            launch.launch(kernel, (slots * B * key_heads,), query, key, value, *outputs, d_output, logs, *gradients,
                          *band.ends, *band.tiles_of(kind), seed, *strides, *band.strides, N, M, H, H // key_heads,
                          slots, band.room, ctx.scale, ctx.dropout, **_compile_options(kind, query, value, ctx.dropout))
        return (*gradients, *[None] * 9)


def _empty_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for the gradients, laid out as their tensors are.

    Where one product made several of them, its backward pass then reads adjacent memory again.
    """
    if adjacent_tensor((query, key, value), 1) is not None:
        return empty_like_parts((query, key, value), 1)
    return (*empty_like_parts((query,), 1), *empty_like_parts((key, value), 1))


def _tile_slots(kind: int, heads: int, tokens: int, size: int, room: int) -> int:
    """The number of programs for the tiles of each head, at most `room`; each program continues with further tiles.

    Where sequences are much shorter than a tile, more than three quarters of it are filled, and every tile has a
    program.
    """
    return min(room, max(1, PART_PROGRAMS // heads) if kind else triton.cdiv(4 * tokens, 3 * size) + 1)


def _compile_options(kind: int, query: Tensor, value: Tensor, dropout: float) -> dict[str, Any]:
    """The compile-time arguments and options of the kernels."""
    return {**width_constants(query, value), "size": tile_size(query, value), "with_dropout": dropout > 0.0,
            "precision": "ieee", "num_warps": 4,
            "num_stages": 2 if kind and query.element_size() == 2 else 1}  # parts have loops, which prefetch


def _max_registers(kind: int, query: Tensor, value: Tensor) -> int | None:
    """The limit of registers of a thread in a forward pass; None for no limit.

    Whole tiles mostly wait for memory, and with few registers four programs share a multiprocessor. The backward pass
    holds more, and is slower with a limit.
    """
    narrow = query.element_size() == 2 and max(query.shape[-1], value.shape[-1]) <= 64
    return 128 if narrow and not kind else None
