"""Kernels of a search on a GPU, in Triton: the most probable tokens, one search step, and back pointers.

`find_top_tokens` takes the M most probable tokens of each hypothesis from logits in three kernels, without storing
log-probabilities; of equal tokens the lower id goes first. `beam_step` and `greedy_step` do one step of a search, one
program for each row, with the same totals in float64, order among equals, pool and status as the plain searches in
`regard.decoding`. Rows that have finished stay as they are. Generated tokens are kept as back pointers: for each
position the token, its log-probability and the hypothesis that it continued; `follow_back_pointers` reads them. All
results are written into tensors that stay in place.

Legend: R hypotheses, B rows, K hypotheses of each, M tokens of each, C = K·M candidates, P places of a pool, T token
positions, S pieces of the vocabulary, V vocabulary.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.decoding_buffers import (
    STATUSES,
    VOCABULARY_PIECE,
    BackPointers,
    PoolBuffers,
    RowStatus,
    TopTokens,
    piece_size,
)

RUNNING, FINISHED, TRUNCATED, INVALID = (tl.constexpr(one) for one in STATUSES)


@triton.jit
def _sums_kernel(logits, sums, vocabulary, row_stride, pieces, rows, BLOCK: tl.constexpr, PRECISE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_stride + token, mask=token < vocabulary, other=float("-inf")).to(PRECISE)
    highest = tl.max(x, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)  # a piece of −∞ adds nothing
    tl.store(sums + row * pieces + part, highest)
    tl.store(sums + (rows + row) * pieces + part, tl.sum(tl.exp(x - base), 0))


@triton.jit
def _pieces_kernel(logits, sums, min_lengths, min_length_stride, lengths, values, tokens, vocabulary, row_stride,
                   pieces, rows, width, COUNT: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr,
                   MIN_LENGTHS: tl.constexpr, PRECISE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = tl.arange(0, SUMS)
    highest = tl.load(sums + row * pieces + s, mask=s < pieces, other=float("-inf"))
    parts = tl.load(sums + (rows + row) * pieces + s, mask=s < pieces, other=0.0)
    top = tl.max(highest, 0)
    parts = tl.where(highest == float("-inf"), parts, parts * tl.exp(highest - top))
    log_sum = top + tl.log(tl.sum(parts, 0))
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_stride + token, mask=token < vocabulary, other=float("-inf")).to(PRECISE)
    value = tl.where(token < vocabulary, x - log_sum, float("-inf"))
    if MIN_LENGTHS:
        length = tl.load(lengths + row // width)
        least = tl.load(min_lengths + row * min_length_stride + token, mask=token < vocabulary, other=0)
        value = tl.where(length < least, float("-inf"), value)
    invalid = tl.max((value != value).to(tl.int32), 0)
    at = (row * pieces + part) * COUNT
    left = (value == value) & (token < vocabulary)
    for rank in range(COUNT):
        best = tl.max(tl.where(left, value, float("-inf")), 0)
        first = tl.min(tl.where(left & (value == best), token, 2147483647), 0)
        tl.store(values + at + rank, tl.where(invalid > 0, float("nan"), best))
        tl.store(tokens + at + rank, first)
        left = left & (token != first)


@triton.jit
def _merge_kernel(piece_values, piece_tokens, values, tokens, entries, COUNT: tl.constexpr, ENTRIES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, ENTRIES)
    value = tl.load(piece_values + row * entries + at, mask=at < entries, other=float("-inf"))
    token = tl.load(piece_tokens + row * entries + at, mask=at < entries, other=2147483647)
    invalid = tl.max((value != value).to(tl.int32), 0)
    left = (value == value) & (token < 2147483647)
    for rank in range(COUNT):
        best = tl.max(tl.where(left, value, float("-inf")), 0)
        first = tl.min(tl.where(left & (value == best), token, 2147483647), 0)
        tl.store(values + row * COUNT + rank, tl.where(invalid > 0, float("nan"), best))
        tl.store(tokens + row * COUNT + rank, tl.where(first == 2147483647, 0, first))
        left = left & (token != first)


def find_top_tokens(logits: Tensor, min_lengths: Tensor | None, lengths: Tensor, width: int, best: TopTokens) -> None:
    """Write the best tokens of hypotheses with logits (R, V) into `best`.

    Args:
        min_lengths: (V,) or (R, V), int32: the number of tokens that must come before each token may; a forbidden token
            has a probability of 0. None if all tokens are allowed.
        lengths: (R / width,), int32: the number of tokens of each row, which has `width` hypotheses.
    """
    rows, vocabulary = logits.shape
    pieces, count = best.piece_values.shape[1:]
    size = piece_size(vocabulary, count)
    precise = tl.float64 if logits.dtype == torch.float64 else tl.float32
    warps: dict[str, Any] = {"num_warps": 4 if size <= VOCABULARY_PIECE else 8}
    launch.launch(_sums_kernel, (rows, pieces), logits, best.sums, vocabulary, logits.stride(0), pieces, rows,
                  BLOCK=size, PRECISE=precise, **warps)
    stride = 0 if min_lengths is None or min_lengths.dim() == 1 else vocabulary
    launch.launch(_pieces_kernel, (rows, pieces), logits, best.sums,
                  best.piece_tokens if min_lengths is None else min_lengths, stride, lengths, best.piece_values,
                  best.piece_tokens, vocabulary, logits.stride(0), pieces, rows, width, COUNT=count, BLOCK=size,
                  SUMS=launch.next_power_of_2(pieces), MIN_LENGTHS=min_lengths is not None, PRECISE=precise, **warps)
    entries = pieces * count
    launch.launch(_merge_kernel, (rows,), best.piece_values, best.piece_tokens, best.values, best.tokens, entries,
                  COUNT=count, ENTRIES=launch.next_power_of_2(entries),
                  num_warps=4 if entries <= VOCABULARY_PIECE else 8)


@triton.jit
def _is_end(token, ends, ENDS: tl.constexpr):
    found = token < 0
    for number in range(ENDS):
        found = found | (token == tl.load(ends + number))
    return found


@triton.jit
def _ranks(group, value, number):
    """The rank of each entry: lower groups first, then higher values, then lower numbers."""
    mine, other = value[:, None], value[None, :]
    before = (other > mine) | ((other == mine) & (number[None, :] < number[:, None]))
    first = (group[None, :] < group[:, None]) | ((group[None, :] == group[:, None]) & before)
    return tl.sum(first.to(tl.int32), 1)


@triton.jit
def _gathered(same, value):
    """For each row of a table of bools, the value where it is True; 0 where it is never True."""
    return tl.sum(tl.where(same, value[None, :], 0), 1)


@triton.jit
def _beam_kernel(values, tokens, ends, totals, lengths, max_lengths, statuses, parents, last, divisors, back_tokens,
                 back_logs, back_parents, pool_scores, pool_truncated, pool_lengths, pool_beams, pool_tokens, pool_logs,
                 capacity, BEAMS: tl.constexpr, EACH: tl.constexpr, POOL: tl.constexpr, ENDS: tl.constexpr,
                 CANDIDATES: tl.constexpr, OFFERED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(statuses + row) == RUNNING:
        length, max_length = tl.load(lengths + row), tl.load(max_lengths + row)
        i = tl.arange(0, CANDIDATES)
        there = i < BEAMS * EACH
        parent = i // EACH
        log = tl.load(values + row * BEAMS * EACH + i, mask=there, other=float("-inf")).to(tl.float64)
        token = tl.load(tokens + row * BEAMS * EACH + i, mask=there, other=0)
        total = tl.load(totals + row * BEAMS + parent, mask=there, other=float("-inf")) + log
        is_end = _is_end(token, ends, ENDS)
        invalid = tl.max((log != log).to(tl.int32), 0) > 0
        rank = _ranks(tl.where(there, 0, 1), total, i)
        beam = _ranks(tl.where(there, is_end.to(tl.int32), 2), total, i)  # the beam in which a candidate continues
        continues = there & (beam < BEAMS)
        continued = tl.where(is_end, float("-inf"), total)
        best = tl.max(tl.where(continues, continued, float("-inf")), 0)
        is_truncated = (max_length == length) | (best == float("-inf"))

        # What may stand in the pool: the old entries, the candidates that end, and in a truncated row the hypotheses
        # before this step.
        u = tl.arange(0, OFFERED)
        old, now = u < POOL, (u >= POOL) & (u < POOL + BEAMS)
        before = (u >= POOL + BEAMS) & (u < POOL + 2 * BEAMS)
        same = (rank[None, :] == (u - POOL)[:, None]) & now[:, None] & there[None, :]
        ends_now = (_gathered(same, is_end.to(tl.int32)) > 0) & now
        hypothesis = tl.where(before, u - POOL - BEAMS, 0)
        offered = there & is_end & (rank < BEAMS) & (total > float("-inf"))
        has_ended = tl.max((offered[None, :] & (parent[None, :] == hypothesis[:, None])).to(tl.int32), 1) > 0
        may_fill = before & is_truncated & (has_ended == 0)
        score = tl.where(ends_now, _gathered(same, total), float("-inf")) / tl.load(divisors + length + 1)
        total_before = tl.load(totals + row * BEAMS + hypothesis, mask=may_fill, other=float("-inf"))
        score = tl.where(may_fill, total_before / tl.load(divisors + length), score)
        at = row * POOL + u
        score = tl.where(old, tl.load(pool_scores + at, mask=old, other=0.0), score)
        truncated = tl.where(before | (score == float("-inf")), 1, 0)
        truncated = tl.where(old, tl.load(pool_truncated + at, mask=old, other=0), truncated)
        entry_length = tl.where(before, length, length + 1)
        entry_length = tl.where(old, tl.load(pool_lengths + at, mask=old, other=0), entry_length)
        entry_beam = tl.where(before, hypothesis, _gathered(same, parent))
        entry_beam = tl.where(old, tl.load(pool_beams + at, mask=old, other=0), entry_beam)
        end_token = tl.where(old, tl.load(pool_tokens + at, mask=old, other=0), _gathered(same, token))
        end_log = tl.where(old, tl.load(pool_logs + at, mask=old, other=0.0), _gathered(same, log))
        place = _ranks(tl.where(old | now | before, truncated, 2), score, u)

        threshold = tl.max(tl.where((place == POOL - 1) & (truncated == 0), score, float("-inf")), 0)
        finished = threshold >= best / tl.load(divisors + max_length + 1)
        status = tl.where(is_truncated, TRUNCATED, tl.where(finished, FINISHED, RUNNING))
        status = tl.where(invalid, INVALID, status)
        tl.debug_barrier()  # everything is read before anything is written
        kept = (place < POOL) & (old | now | before) & (invalid == 0)
        tl.store(pool_scores + row * POOL + place, score, mask=kept)
        tl.store(pool_truncated + row * POOL + place, truncated, mask=kept)
        tl.store(pool_lengths + row * POOL + place, entry_length, mask=kept)
        tl.store(pool_beams + row * POOL + place, entry_beam, mask=kept)
        tl.store(pool_tokens + row * POOL + place, end_token, mask=kept)
        tl.store(pool_logs + row * POOL + place, end_log, mask=kept)
        continues = continues & (invalid == 0)
        tl.store(totals + row * BEAMS + beam, continued, mask=continues)
        tl.store(parents + row * BEAMS + beam, (row * BEAMS).to(tl.int32) + parent, mask=continues)
        tl.store(last + row * BEAMS + beam, token.to(tl.int64), mask=continues)
        at = (row * BEAMS + beam) * capacity + length
        tl.store(back_tokens + at, token, mask=continues)
        tl.store(back_logs + at, log, mask=continues)
        tl.store(back_parents + at, parent, mask=continues)
        tl.store(statuses + row, status)
        tl.store(lengths + row, tl.where(status == RUNNING, length + 1, length))


@triton.jit
def _greedy_kernel(values, tokens, ends, lengths, max_lengths, statuses, last, back_tokens, back_logs, rows, capacity,
                   ENDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    length, max_length = tl.load(lengths + row, mask=there, other=0), tl.load(max_lengths + row, mask=there, other=0)
    running = there & (tl.load(statuses + row, mask=there, other=FINISHED) == RUNNING)
    log, token = tl.load(values + row, mask=there, other=0.0), tl.load(tokens + row, mask=there, other=0)
    status = tl.where(_is_end(token, ends, ENDS), FINISHED, RUNNING)
    status = tl.where(log == float("-inf"), TRUNCATED, status)
    status = tl.where(log != log, INVALID, status)
    status = tl.where((status == RUNNING) & (length >= max_length), TRUNCATED, status)
    writes = running & (status != TRUNCATED) & (status != INVALID)
    at = row.to(tl.int64) * capacity + length
    tl.store(back_tokens + at, token, mask=writes)
    tl.store(back_logs + at, log, mask=writes)
    tl.store(last + row, token.to(tl.int64), mask=writes)
    tl.store(lengths + row, length + 1, mask=writes)
    tl.store(statuses + row, status, mask=running)


@triton.jit
def _reorder_kernel(table, parents, positions, capacity, WIDTH: tl.constexpr, WIDTH_2: tl.constexpr,
                    BLOCK: tl.constexpr):
    group, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    k, c = tl.arange(0, WIDTH_2), first + tl.arange(0, BLOCK)
    row = group * WIDTH + k
    here = tl.load(positions + group * WIDTH).to(tl.int32)  # all rows of a group are at one position
    if first <= here:
        parent = tl.load(parents + row, mask=k < WIDTH, other=0).to(tl.int64)
        there = (k < WIDTH)[:, None] & (c <= here)[None, :]
        moved = tl.load(table + parent[:, None] * capacity + c[None, :], mask=there, other=0)
        moved = tl.where(c[None, :] == here, row.to(tl.int32)[:, None], moved)
        tl.debug_barrier()  # everything is read before anything is written
        tl.store(table + row[:, None] * capacity + c[None, :], moved, mask=there)


@triton.jit
def _follow_kernel(back_tokens, back_logs, back_parents, rows, beams, lengths, ids, logs, each, width, capacity,
                   longest):
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number // each).to(tl.int64)
    beam, length = tl.load(beams + number).to(tl.int32), tl.load(lengths + number).to(tl.int32)
    if beam >= 0:
        for back in range(0, length):
            place = length - 1 - back
            at = (row * width + beam) * capacity + place
            tl.store(ids + number * longest + place, tl.load(back_tokens + at).to(tl.int64))
            tl.store(logs + number * longest + place, tl.load(back_logs + at))
            beam = tl.load(back_parents + at)


def beam_step(best: TopTokens, ends: Tensor, totals: Tensor, status: RowStatus, parents: Tensor, last: Tensor,
              divisors: Tensor, pointers: BackPointers, pool: PoolBuffers) -> None:
    """One step of a beam search from the best tokens (B · K, M).

    Args:
        ends: the end tokens, int32.
        totals: (B, K), float64.
        parents: (B · K,), int32: the row of the decoder buffers that each hypothesis continues.
        last: (B · K,): the token that it reads next.
        divisors: the divisor of the length penalty for each length from 0 on, float64.
    """
    (rows, beams), each, places = totals.shape, best.values.shape[1], pool.scores.shape[1]
    candidates, offered = launch.next_power_of_2(beams * each), launch.next_power_of_2(places + 2 * beams)
    launch.launch(_beam_kernel, (rows,), best.values, best.tokens, ends, totals, *status, parents, last, divisors,
                  *pointers, *pool, pointers.tokens.shape[2], BEAMS=beams, EACH=each, POOL=places, ENDS=len(ends),
                  CANDIDATES=candidates, OFFERED=offered, num_warps=1 if candidates <= 32 else 4)


def greedy_step(best: TopTokens, ends: Tensor, status: RowStatus, last: Tensor, pointers: BackPointers) -> None:
    """One step of a greedy search from the best token (B, 1)."""
    rows = len(last)
    block = min(128, launch.next_power_of_2(rows))
    launch.launch(_greedy_kernel, (-(-rows // block),), best.values, best.tokens, ends, *status, last, *pointers[:2],
                  rows, pointers.tokens.shape[2], ENDS=len(ends), BLOCK=block, num_warps=1)


def reorder_table(table: Tensor, parents: Tensor, positions: Tensor, width: int) -> None:
    """Reorder the table (R, C) of rows that continue others of their group of `width`, and add the new position."""
    rows, capacity = table.shape
    block = 64
    launch.launch(_reorder_kernel, (rows // width, -(-capacity // block)), table, parents, positions, capacity,
                  WIDTH=width, WIDTH_2=launch.next_power_of_2(width), BLOCK=block, num_warps=1 if width <= 8 else 4)


def follow_back_pointers(pointers: BackPointers, rows: Tensor, beams: Tensor, lengths: Tensor,
                         longest: int) -> tuple[Tensor, Tensor]:
    """The first `lengths` tokens and log-probabilities (b, J, longest) of hypotheses `beams` (b, J) of rows (b,).

    Entries after the lengths, and of negative hypotheses, are 0.
    """
    logs = pointers.logs.new_zeros(*beams.shape, longest)
    ids = logs.long()
    _, width, capacity = pointers.tokens.shape
    launch.launch(_follow_kernel, (beams.numel(),), *pointers, rows, beams.contiguous(), lengths.contiguous(), ids,
                  logs, beams.shape[1], width, capacity, longest, num_warps=1)
    return ids, logs
