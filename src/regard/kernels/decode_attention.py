"""The attention of one decoding step in Triton: one query for each row against the keys of its row.

    self_attention_step     self-attention; the new key and value are written into storage
    cross_attention_step    cross-attention; `each` consecutive rows share one context

For scaled dot products and softmax. Each program goes through the keys of one row and one head a block at a time, and
accumulates in float32 (float64 for float64). There are no masks: a row attends to the keys before its position, and to
the keys of its context before its length. Position c of row r is read from storage row table[r, c], so that reordering
rows changes the table, and moves no keys. It knows neither layers nor what rows are.

Legend: R rows, F contexts, H heads, G key heads, C capacity, N tokens of a context, D width, E width of the values.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: N803
# (the arguments of kernels have the types of Triton; sizes that are known when they are compiled are in capitals)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch

PIECE = 2048
"""The numbers of a block of keys."""
MAX_WIDTH = 256
"""The widest head."""


@triton.jit
def _accumulate(q, keys, values, key_at, value_at, valid, highest, weight, total, WIDTH: tl.constexpr,
                VALUES: tl.constexpr, WIDTH_2: tl.constexpr, VALUES_2: tl.constexpr):
    """The highest score, the sum of weights and the weighted sum of values, with one more block of keys and values."""
    d, e = tl.arange(0, WIDTH_2), tl.arange(0, VALUES_2)
    k = tl.load(keys + key_at[:, None] + d[None, :], mask=valid[:, None] & (d < WIDTH)[None, :], other=0.0)
    v = tl.load(values + value_at[:, None] + e[None, :], mask=valid[:, None] & (e < VALUES)[None, :], other=0.0)
    score = tl.where(valid, tl.sum(k.to(q.dtype) * q[None, :], 1), float("-inf"))
    now = tl.maximum(highest, tl.max(score, 0))
    rescale, each = tl.exp(highest - now), tl.exp(score - now)
    return now, weight * rescale + tl.sum(each, 0), total * rescale + tl.sum(v.to(q.dtype) * each[:, None], 0)


@triton.jit
def _self_attention_kernel(query, key, value, keys, values, table, positions, output, query_row, key_row, value_row,
                           capacity, SCALE: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
                           WIDTH: tl.constexpr, VALUES: tl.constexpr, WIDTH_2: tl.constexpr, VALUES_2: tl.constexpr,
                           BLOCK: tl.constexpr, PRECISE: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    shared: tl.constexpr = HEADS // KEY_HEADS
    key_head = head // shared
    d, e = tl.arange(0, WIDTH_2), tl.arange(0, VALUES_2)
    position = tl.load(positions + row).to(tl.int32)
    q = tl.load(query + row * query_row + head * WIDTH + d, mask=d < WIDTH, other=0.0).to(PRECISE) * SCALE
    k = tl.load(key + row * key_row + key_head * WIDTH + d, mask=d < WIDTH, other=0.0)
    v = tl.load(value + row * value_row + key_head * VALUES + e, mask=e < VALUES, other=0.0)
    if head % shared == 0:  # one of the heads that share the key writes it; no program reads it in this step
        at = (row * KEY_HEADS + key_head) * capacity + position
        tl.store(keys + at * WIDTH + d, k, mask=d < WIDTH)
        tl.store(values + at * VALUES + e, v, mask=e < VALUES)
    highest = tl.sum(q * k.to(PRECISE), 0)
    weight, total = tl.exp(highest - highest), v.to(PRECISE)
    for first in range(0, position, BLOCK):
        c = first + tl.arange(0, BLOCK)
        valid = c < position
        source = tl.load(table + row * capacity + c, mask=valid, other=0).to(tl.int64)
        at = (source * KEY_HEADS + key_head) * capacity + c
        highest, weight, total = _accumulate(q, keys, values, at * WIDTH, at * VALUES, valid, highest, weight, total,
                                             WIDTH, VALUES, WIDTH_2, VALUES_2)
    tl.store(output + (row * HEADS + head) * VALUES + e, total / weight, mask=e < VALUES)


@triton.jit
def _cross_attention_kernel(query, keys, values, lengths, output, query_row, each, key_context, key_place,
                            value_context, value_place, SCALE: tl.constexpr, HEADS: tl.constexpr,
                            KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, WIDTH_2: tl.constexpr,
                            VALUES_2: tl.constexpr, BLOCK: tl.constexpr, PRECISE: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key_head, context = head // (HEADS // KEY_HEADS), row // each
    d, e = tl.arange(0, WIDTH_2), tl.arange(0, VALUES_2)
    count = tl.load(lengths + context).to(tl.int32)
    q = tl.load(query + row * query_row + head * WIDTH + d, mask=d < WIDTH, other=0.0).to(PRECISE) * SCALE
    highest = tl.sum(q * 0.0, 0) + float("-inf")
    weight, total = tl.sum(q * 0.0, 0), tl.zeros((VALUES_2,), PRECISE)
    for first in range(0, count, BLOCK):
        c = first + tl.arange(0, BLOCK)
        key_at = context * key_context + c.to(tl.int64) * key_place + key_head * WIDTH
        value_at = context * value_context + c.to(tl.int64) * value_place + key_head * VALUES
        highest, weight, total = _accumulate(q, keys, values, key_at, value_at, c < count, highest, weight, total,
                                             WIDTH, VALUES, WIDTH_2, VALUES_2)
    average = total / tl.where(weight == 0.0, 1.0, weight)  # a row without keys gets zeros
    tl.store(output + (row * HEADS + head) * VALUES + e, average, mask=e < VALUES)


def self_attention_step(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, table: Tensor,
                        positions: Tensor, scale: float) -> Tensor:
    """Self-attention of queries (R, H, D), with new keys (R, G, D) and values (R, G, E) at `positions` (R,): (R, H, E).

    The new keys and values are written into the storage `keys` (R, G, C, D) and `values` (R, G, C, E), which is read
    through the table (R, C). Each row must be contiguous; rows may have gaps between them.
    """
    rows, heads, width = query.shape
    output = query.new_empty(rows, heads, values.shape[-1])
    launch.launch(_self_attention_kernel, (rows, heads), query, key, value, keys, values, table, positions, output,
                  query.stride(0), key.stride(0), value.stride(0), keys.shape[2], SCALE=scale, HEADS=heads,
                  KEY_HEADS=keys.shape[1], **_constants(query, width, values.shape[-1]))
    return output


def cross_attention_step(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, each: int,
                         scale: float) -> Tensor:
    """Cross-attention of queries (R, H, D) to keys (F, N, G, D) and values (F, N, G, E) of `lengths` (F,)."""
    rows, heads, width = query.shape
    output = query.new_empty(rows, heads, values.shape[-1])
    launch.launch(_cross_attention_kernel, (rows, heads), query, keys, values, lengths, output, query.stride(0), each,
                  keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), SCALE=scale, HEADS=heads,
                  KEY_HEADS=keys.shape[2], **_constants(query, width, values.shape[-1]))
    return output


def _constants(query: Tensor, width: int, value_width: int) -> dict[str, Any]:
    """The compile-time arguments of the kernels."""
    wide, value_wide = launch.next_power_of_2(width), launch.next_power_of_2(value_width)
    return {"WIDTH": width, "VALUES": value_width, "WIDTH_2": wide, "VALUES_2": value_wide,
            "BLOCK": max(16, min(128, PIECE // max(wide, value_wide))),
            "PRECISE": tl.float64 if query.dtype == torch.float64 else tl.float32}
