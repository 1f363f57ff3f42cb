# Kernels have no types, and sizes that are known when they are compiled are in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803
"""The most probable tokens of each hypothesis, from logits, in Triton: three kernels, and no log-probability is kept.

    find(logits, never, counts, each, best)

First the sum of the exponentials of each piece of the vocabulary; then, of each piece, the M highest log-probabilities;
then the M highest of all pieces. Of equal ones the lower token goes first, always: what `candidates.exact` gives. Where
a token may not be written, its log-probability is −∞. A model that gives no number gives NaN.

Legend: R hypotheses, V vocabulary, M tokens of each, S pieces.
"""

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels

PIECE = 2048
"""Tokens that a program reads."""
MERGED = 8192
"""Numbers of all pieces of a hypothesis that the last program may hold."""


class Best(NamedTuple):
    """Where results are written, and what lies between the kernels."""

    values: Tensor
    """(R, M): log-probabilities, the highest first."""
    tokens: Tensor
    """(R, M), int32."""
    sums: Tensor
    """(2, R, S): of each piece the highest logit, and the sum of exponentials."""
    piece_values: Tensor
    """(R, S, M)"""
    piece_tokens: Tensor

    @staticmethod
    def room(logits: Tensor, count: int) -> "Best":
        """For logits (R, V), and so many tokens of each."""
        rows, pieces = len(logits), -(-logits.shape[1] // piece(logits.shape[1], count))
        values = torch.zeros(rows, count, dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
        found = values.new_zeros(rows, pieces, count)
        return Best(values, values.int(), values.new_zeros(2, rows, pieces), found, found.int())


def piece(vocabulary: int, count: int) -> int:
    """How many tokens a program reads: more where there would be too many pieces to put together."""
    size = min(PIECE, kernels.padded(vocabulary))
    while kernels.padded(-(-vocabulary // size)) * kernels.padded(count) > MERGED:
        size *= 2
    return size


@triton.jit
def _sums(logits, sums, vocabulary, row_stride, pieces, rows, BLOCK: tl.constexpr,
          PRECISE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_stride + token, mask=token < vocabulary, other=float("-inf")).to(PRECISE)
    highest = tl.max(x, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)  # a piece of nothing adds nothing
    tl.store(sums + row * pieces + part, highest)
    tl.store(sums + (rows + row) * pieces + part, tl.sum(tl.exp(x - base), 0))


@triton.jit
def _pieces(logits, sums, never, counts, values, tokens, vocabulary, row_stride, pieces, rows, each,
            COUNT: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr, NEVER: tl.constexpr,
            PRECISE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = tl.arange(0, SUMS)
    highest = tl.load(sums + row * pieces + s, mask=s < pieces, other=float("-inf"))
    parts = tl.load(sums + (rows + row) * pieces + s, mask=s < pieces, other=0.0)
    top = tl.max(highest, 0)
    parts = tl.where(highest == float("-inf"), parts, parts * tl.exp(highest - top))
    whole = top + tl.log(tl.sum(parts, 0))
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_stride + token, mask=token < vocabulary, other=float("-inf")).to(PRECISE)
    value = tl.where(token < vocabulary, x - whole, float("-inf"))
    if NEVER:  # of each token, before which count it may not be written
        written = tl.load(counts + row // each)
        least = tl.load(never + token, mask=token < vocabulary, other=0)
        value = tl.where(written < least, float("-inf"), value)
    broken = tl.max((value != value).to(tl.int32), 0)
    at = (row * pieces + part) * COUNT
    left = (value == value) & (token < vocabulary)
    for rank in range(COUNT):
        best = tl.max(tl.where(left, value, float("-inf")), 0)
        first = tl.min(tl.where(left & (value == best), token, 2147483647), 0)
        tl.store(values + at + rank, tl.where(broken > 0, float("nan"), best))
        tl.store(tokens + at + rank, first)
        left = left & (token != first)


@triton.jit
def _merged(piece_values, piece_tokens, values, tokens, entries, COUNT: tl.constexpr,
            ENTRIES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, ENTRIES)
    value = tl.load(piece_values + row * entries + at, mask=at < entries, other=float("-inf"))
    token = tl.load(piece_tokens + row * entries + at, mask=at < entries, other=2147483647)
    broken = tl.max((value != value).to(tl.int32), 0)
    left = (value == value) & (token < 2147483647)
    for rank in range(COUNT):
        best = tl.max(tl.where(left, value, float("-inf")), 0)
        first = tl.min(tl.where(left & (value == best), token, 2147483647), 0)
        tl.store(values + row * COUNT + rank, tl.where(broken > 0, float("nan"), best))
        tl.store(tokens + row * COUNT + rank, tl.where(first == 2147483647, 0, first))
        left = left & (token != first)


def find(logits: Tensor, never: Tensor | None, counts: Tensor, each: int, best: Best) -> None:
    """The best tokens of hypotheses with logits (R, V) into `best`.

    `never` (V,) says of each token how many must be written before it may be; None where all may always. `counts`
    (R / each,) is how many are.
    """
    rows, vocabulary = logits.shape
    pieces, count = best.piece_values.shape[1:]
    size = piece(vocabulary, count)
    precise = tl.float64 if logits.dtype == torch.float64 else tl.float32
    warps: dict[str, Any] = {"num_warps": 4 if size <= PIECE else 8}
    kernels.launch(_sums, (rows, pieces), logits, best.sums, vocabulary, logits.stride(0), pieces, rows, BLOCK=size,
                   PRECISE=precise, **warps)
    kernels.launch(_pieces, (rows, pieces), logits, best.sums, best.piece_tokens if never is None else never, counts,
                   best.piece_values, best.piece_tokens, vocabulary, logits.stride(0), pieces, rows, each, COUNT=count,
                   BLOCK=size, SUMS=kernels.padded(pieces), NEVER=never is not None, PRECISE=precise, **warps)
    entries = pieces * count
    kernels.launch(_merged, (rows,), best.piece_values, best.piece_tokens, best.values, best.tokens, entries,
                   COUNT=count, ENTRIES=kernels.padded(entries), num_warps=4 if entries <= PIECE else 8)
