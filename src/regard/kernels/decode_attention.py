"""One query a row against the keys of its row: the attention of a step, in Triton.

    own(query, key, value, keys, values, table, positions, scale)      self-attention; the new key and value are kept
    context(query, keys, values, lengths, each, scale)                 cross-attention; `each` rows look at one context

Scaled dot products and softmax: each program goes through the keys of one row and one head a piece at a time, and adds
up in float32 (float64 for float64). There are no masks: a row's keys are those before its position, a context's those
before its length. Position c of row r is read in storage row table[r, c], so that rows that change places move numbers
of the table, and not keys. It knows neither layers nor what rows are.

Legend: R rows, F contexts, H heads, G key heads, C places, N places of a context, D width, E width of the values.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch

PIECE = 2048
"""Numbers of the keys that a program reads at once."""
WIDEST = 256
"""The widest head."""


@triton.jit
def _accumulate(q, keys, values, key_at, value_at, there, highest, weight, total, WIDTH: tl.constexpr,
                VALUES: tl.constexpr, WIDTH_2: tl.constexpr, VALUES_2: tl.constexpr):
    """What was added up, with a piece of keys and values more: the highest score, the sum of weights, the output."""
    d, e = tl.arange(0, WIDTH_2), tl.arange(0, VALUES_2)
    k = tl.load(keys + key_at[:, None] + d[None, :], mask=there[:, None] & (d < WIDTH)[None, :], other=0.0)
    v = tl.load(values + value_at[:, None] + e[None, :], mask=there[:, None] & (e < VALUES)[None, :], other=0.0)
    score = tl.where(there, tl.sum(k.to(q.dtype) * q[None, :], 1), float("-inf"))
    now = tl.maximum(highest, tl.max(score, 0))
    shrunk, each = tl.exp(highest - now), tl.exp(score - now)
    return now, weight * shrunk + tl.sum(each, 0), total * shrunk + tl.sum(v.to(q.dtype) * each[:, None], 0)


@triton.jit
def _self_attention_kernel(query, key, value, keys, values, table, positions, output, query_row, key_row, value_row,
                           places, SCALE: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
                           WIDTH: tl.constexpr, VALUES: tl.constexpr, WIDTH_2: tl.constexpr, VALUES_2: tl.constexpr,
                           BLOCK: tl.constexpr, PRECISE: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    shared: tl.constexpr = HEADS // KEY_HEADS
    kept = head // shared
    d, e = tl.arange(0, WIDTH_2), tl.arange(0, VALUES_2)
    here = tl.load(positions + row).to(tl.int32)
    q = tl.load(query + row * query_row + head * WIDTH + d, mask=d < WIDTH, other=0.0).to(PRECISE) * SCALE
    k = tl.load(key + row * key_row + kept * WIDTH + d, mask=d < WIDTH, other=0.0)
    v = tl.load(value + row * value_row + kept * VALUES + e, mask=e < VALUES, other=0.0)
    if head % shared == 0:  # nobody reads it in this step: whoever needs it has it here
        at = (row * KEY_HEADS + kept) * places + here
        tl.store(keys + at * WIDTH + d, k, mask=d < WIDTH)
        tl.store(values + at * VALUES + e, v, mask=e < VALUES)
    highest = tl.sum(q * k.to(PRECISE), 0)
    weight, total = tl.exp(highest - highest), v.to(PRECISE)
    for first in range(0, here, BLOCK):
        c = first + tl.arange(0, BLOCK)
        there = c < here
        source = tl.load(table + row * places + c, mask=there, other=0).to(tl.int64)
        at = (source * KEY_HEADS + kept) * places + c
        highest, weight, total = _accumulate(q, keys, values, at * WIDTH, at * VALUES, there, highest, weight, total, WIDTH,
                                             VALUES, WIDTH_2, VALUES_2)
    tl.store(output + (row * HEADS + head) * VALUES + e, total / weight, mask=e < VALUES)


@triton.jit
def _cross_attention_kernel(query, keys, values, lengths, output, query_row, each, key_context, key_place,
                            value_context, value_place, SCALE: tl.constexpr, HEADS: tl.constexpr,
                            KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, WIDTH_2: tl.constexpr,
                            VALUES_2: tl.constexpr, BLOCK: tl.constexpr, PRECISE: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kept, family = head // (HEADS // KEY_HEADS), row // each
    d, e = tl.arange(0, WIDTH_2), tl.arange(0, VALUES_2)
    count = tl.load(lengths + family).to(tl.int32)
    q = tl.load(query + row * query_row + head * WIDTH + d, mask=d < WIDTH, other=0.0).to(PRECISE) * SCALE
    highest = tl.sum(q * 0.0, 0) + float("-inf")
    weight, total = tl.sum(q * 0.0, 0), tl.zeros((VALUES_2,), PRECISE)
    for first in range(0, count, BLOCK):
        c = first + tl.arange(0, BLOCK)
        key_at = family * key_context + c.to(tl.int64) * key_place + kept * WIDTH
        value_at = family * value_context + c.to(tl.int64) * value_place + kept * VALUES
        highest, weight, total = _accumulate(q, keys, values, key_at, value_at, c < count, highest, weight, total, WIDTH,
                                             VALUES, WIDTH_2, VALUES_2)
    found = total / tl.where(weight == 0.0, 1.0, weight)  # who sees nothing gets zeros
    tl.store(output + (row * HEADS + head) * VALUES + e, found, mask=e < VALUES)


def self_attention_step(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, table: Tensor,
                        positions: Tensor, scale: float) -> Tensor:
    """Queries (R, H, D), new keys (R, G, D) and values (R, G, E) of tokens at `positions` (R,) -> (R, H, E).

    The new ones are written into storage (R, G, C, D) and (R, G, C, E), which is read through the table (R, C). Rows
    may be apart, what is in a row is not.
    """
    rows, heads, width = query.shape
    output = query.new_empty(rows, heads, values.shape[-1])
    launch.launch(_self_attention_kernel, (rows, heads), query, key, value, keys, values, table, positions, output, query.stride(0),
                  key.stride(0), value.stride(0), keys.shape[2], SCALE=scale, HEADS=heads, KEY_HEADS=keys.shape[1],
                  **_sizes(query, width, values.shape[-1]))
    return output


def cross_attention_step(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, each: int,
                         scale: float) -> Tensor:
    """Queries (R, H, D) to keys (F, N, G, D) and values (F, N, G, E) of `lengths` (F,): (R, H, E)."""
    rows, heads, width = query.shape
    output = query.new_empty(rows, heads, values.shape[-1])
    launch.launch(_cross_attention_kernel, (rows, heads), query, keys, values, lengths, output, query.stride(0), each,
                  keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), SCALE=scale, HEADS=heads,
                  KEY_HEADS=keys.shape[2], **_sizes(query, width, values.shape[-1]))
    return output


def _sizes(query: Tensor, width: int, value_width: int) -> dict[str, Any]:
    """What the kernels are made for."""
    wide, value_wide = launch.next_power_of_2(width), launch.next_power_of_2(value_width)
    return {"WIDTH": width, "VALUES": value_width, "WIDTH_2": wide, "VALUES_2": value_wide,
            "BLOCK": max(16, min(128, PIECE // max(wide, value_wide))),
            "PRECISE": tl.float64 if query.dtype == torch.float64 else tl.float32}
