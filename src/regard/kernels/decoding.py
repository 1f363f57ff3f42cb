"""Kernels of a search on a GPU, in Triton: the most probable tokens, one search step, and back pointers.

`find_top_tokens` takes the M most probable tokens of each hypothesis from logits in three kernels, without storing
log-probabilities; of equal tokens the lower id goes first. `beam_step` and `greedy_step` do one step of a search, one
program for each row, with the same totals in float64, order among equals, pool and verdicts as the plain searches in
`regard.decoding`. Generated tokens are kept as back pointers, which `follow_back_pointers` reads. All results are
written into tensors that stay in place.

Legend: R hypotheses, B rows, K hypotheses of each, M tokens of each, C = K·M candidates, P places of a pool, T token
positions, S pieces of the vocabulary, V vocabulary.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.decoding import beam_search, token_search
from regard.kernels import launch

VOCABULARY_PIECE = 2048
"""Tokens that a program reads."""
MAX_MERGED = 8192
"""Numbers of all pieces of a hypothesis that the last program may hold."""


class TopTokens(NamedTuple):
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
    def room(logits: Tensor, count: int) -> "TopTokens":
        """For logits (R, V), and so many tokens of each."""
        rows, pieces = len(logits), -(-logits.shape[1] // piece_size(logits.shape[1], count))
        values = torch.zeros(rows, count, dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
        found = values.new_zeros(rows, pieces, count)
        return TopTokens(values, values.int(), values.new_zeros(2, rows, pieces), found, found.int())


def piece_size(vocabulary: int, count: int) -> int:
    """How many tokens a program reads: more where there would be too many pieces to put together."""
    size = min(VOCABULARY_PIECE, launch.next_power_of_2(vocabulary))
    while launch.next_power_of_2(-(-vocabulary // size)) * launch.next_power_of_2(count) > MAX_MERGED:
        size *= 2
    return size


@triton.jit
def _sums_kernel(logits, sums, vocabulary, row_stride, pieces, rows, BLOCK: tl.constexpr,
          PRECISE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_stride + token, mask=token < vocabulary, other=float("-inf")).to(PRECISE)
    highest = tl.max(x, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)  # a piece of nothing adds nothing
    tl.store(sums + row * pieces + part, highest)
    tl.store(sums + (rows + row) * pieces + part, tl.sum(tl.exp(x - base), 0))


@triton.jit
def _pieces_kernel(logits, sums, never, counts, values, tokens, vocabulary, row_stride, pieces, rows, each,
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
def _merge_kernel(piece_values, piece_tokens, values, tokens, entries, COUNT: tl.constexpr,
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


def find_top_tokens(logits: Tensor, never: Tensor | None, counts: Tensor, each: int, best: TopTokens) -> None:
    """The best tokens of hypotheses with logits (R, V) into `best`.

    `never` (V,) says of each token how many must be written before it may be; None where all may always. `counts`
    (R / each,) is how many are.
    """
    rows, vocabulary = logits.shape
    pieces, count = best.piece_values.shape[1:]
    size = piece_size(vocabulary, count)
    precise = tl.float64 if logits.dtype == torch.float64 else tl.float32
    warps: dict[str, Any] = {"num_warps": 4 if size <= VOCABULARY_PIECE else 8}
    launch.launch(_sums_kernel, (rows, pieces), logits, best.sums, vocabulary, logits.stride(0), pieces, rows, BLOCK=size,
                   PRECISE=precise, **warps)
    launch.launch(_pieces_kernel, (rows, pieces), logits, best.sums, best.piece_tokens if never is None else never, counts,
                   best.piece_values, best.piece_tokens, vocabulary, logits.stride(0), pieces, rows, each, COUNT=count,
                   BLOCK=size, SUMS=launch.next_power_of_2(pieces), NEVER=never is not None, PRECISE=precise, **warps)
    entries = pieces * count
    launch.launch(_merge_kernel, (rows,), best.piece_values, best.piece_tokens, best.values, best.tokens, entries,
                   COUNT=count, ENTRIES=launch.next_power_of_2(entries), num_warps=4 if entries <= VOCABULARY_PIECE else 8)


# ---- turn: One turn of a search for all rows at once, in Triton: one program a row, from the best tokens of its hypotheses.
#
# What becomes of a row is what `regard.decoding.beam_search` and `regard.decoding.token_search` make of it: the same totals in
# float64, the same order among equals, the same pool, the same verdicts. A row that has finished stays as it is. What
# was written is kept as steps back: at each place the token, its log-probability, and the hypothesis that it continued;
# `traced` follows them. Everything is written into tensors that stay where they are.
#
# Legend: B rows, K hypotheses of each, M tokens of each, C = K·M candidates, P places of a pool, T places of tokens.

MAX_CANDIDATES, MAX_BEAMS = 128, 16
"""Candidates of a row, and hypotheses, that one program can put in order."""
RUNNING, FINISHED, TRUNCATED, INVALID = (tl.constexpr(one) for one in (beam_search.RUNNING, beam_search.FINISHED, beam_search.TRUNCATED,
                                                               beam_search.INVALID))
LINE_GOES_ON, LINE_ENDED, LINE_CUT, LINE_BROKEN = (
    tl.constexpr(one) for one in (token_search.RUNNING, token_search.FINISHED, token_search.TRUNCATED, token_search.INVALID))


class RowStatus(NamedTuple):
    """Of each row, (B,), int32."""

    counts: Tensor
    """Tokens written."""
    limits: Tensor
    verdicts: Tensor


class BackPointers(NamedTuple):
    """What was written, (B, K, T): of the token at t after hypothesis k."""

    tokens: Tensor
    logs: Tensor
    parents: Tensor
    """Which hypothesis of the row had the tokens before it."""


class PoolBuffers(NamedTuple):
    """The pool: (B, P)."""

    scores: Tensor
    cut: Tensor
    lengths: Tensor
    beams: Tensor
    """The hypothesis whose tokens these are, the end not counted; −1 − p for place p of a pool that came in."""
    tokens: Tensor
    """The end."""
    logs: Tensor


@triton.jit
def _is_end(token, ends, ENDS: tl.constexpr):
    found = token < 0
    for number in range(ENDS):
        found = found | (token == tl.load(ends + number))
    return found


@triton.jit
def _ranks(behind, value, number):
    """The place of each in order: those not behind first, then higher values, then lower numbers."""
    mine, other = value[:, None], value[None, :]
    before = (other > mine) | ((other == mine) & (number[None, :] < number[:, None]))
    first = (behind[None, :] < behind[:, None]) | ((behind[None, :] == behind[:, None]) & before)
    return tl.sum(first.to(tl.int32), 1)


@triton.jit
def _gathered(same, value):
    """For each line of a table, the value where it says so; 0 where it never does."""
    return tl.sum(tl.where(same, value[None, :], 0), 1)


@triton.jit
def _beam_kernel(values, tokens, ends, totals, counts, limits, verdicts, parents, last, divisors, step_tokens, step_logs,
          step_parents, scores, cut, lengths, beams, end_tokens, end_logs, places, KEPT: tl.constexpr,
          EACH: tl.constexpr, POOL: tl.constexpr, ENDS: tl.constexpr, CANDIDATES: tl.constexpr,
          OFFERED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(verdicts + row) == RUNNING:
        count, limit = tl.load(counts + row), tl.load(limits + row)
        i = tl.arange(0, CANDIDATES)
        there = i < KEPT * EACH
        parent = i // EACH
        log = tl.load(values + row * KEPT * EACH + i, mask=there, other=float("-inf")).to(tl.float64)
        token = tl.load(tokens + row * KEPT * EACH + i, mask=there, other=0)
        total = tl.load(totals + row * KEPT + parent, mask=there, other=float("-inf")) + log
        is_end = _is_end(token, ends, ENDS)
        broken = tl.max((log != log).to(tl.int32), 0) > 0
        rank = _ranks(tl.where(there, 0, 1), total, i)
        going = _ranks(tl.where(there, is_end.to(tl.int32), 2), total, i)
        follows = there & (going < KEPT)
        following = tl.where(is_end, float("-inf"), total)
        best = tl.max(tl.where(follows, following, float("-inf")), 0)
        is_cut = (limit == count) | (best == float("-inf"))

        # All that may stand in the pool: what does, what ends now, and where the row is cut what was followed.
        u = tl.arange(0, OFFERED)
        old, now = u < POOL, (u >= POOL) & (u < POOL + KEPT)
        followed = (u >= POOL + KEPT) & (u < POOL + 2 * KEPT)
        same = (rank[None, :] == (u - POOL)[:, None]) & now[:, None] & there[None, :]
        ends_now = (_gathered(same, is_end.to(tl.int32)) > 0) & now
        hypothesis = tl.where(followed, u - POOL - KEPT, 0)
        offered = there & is_end & (rank < KEPT) & (total > float("-inf"))
        has_ended = tl.max((offered[None, :] & (parent[None, :] == hypothesis[:, None])).to(tl.int32), 1) > 0
        may_fill = followed & is_cut & (has_ended == 0)
        value = tl.where(ends_now, _gathered(same, total), float("-inf")) / tl.load(divisors + count + 1)
        lived = tl.load(totals + row * KEPT + hypothesis, mask=may_fill, other=float("-inf"))
        value = tl.where(may_fill, lived / tl.load(divisors + count), value)
        at = row * POOL + u
        value = tl.where(old, tl.load(scores + at, mask=old, other=0.0), value)
        open_end = tl.where(followed | (value == float("-inf")), 1, 0)
        open_end = tl.where(old, tl.load(cut + at, mask=old, other=0), open_end)
        length = tl.where(old, tl.load(lengths + at, mask=old, other=0), tl.where(followed, count, count + 1))
        beam = tl.where(old, tl.load(beams + at, mask=old, other=0), tl.where(followed, hypothesis,
                                                                             _gathered(same, parent)))
        end_token = tl.where(old, tl.load(end_tokens + at, mask=old, other=0), _gathered(same, token))
        end_log = tl.where(old, tl.load(end_logs + at, mask=old, other=0.0), _gathered(same, log))
        spot = _ranks(tl.where(old | now | followed, open_end, 2), value, u)

        bar = tl.max(tl.where((spot == POOL - 1) & (open_end == 0), value, float("-inf")), 0)
        settled = bar >= best / tl.load(divisors + limit + 1)
        verdict = tl.where(is_cut, TRUNCATED, tl.where(settled, FINISHED, RUNNING))
        verdict = tl.where(broken, INVALID, verdict)
        tl.debug_barrier()  # all is read before the first is written
        stays = (spot < POOL) & (old | now | followed) & (broken == 0)
        tl.store(scores + row * POOL + spot, value, mask=stays)
        tl.store(cut + row * POOL + spot, open_end, mask=stays)
        tl.store(lengths + row * POOL + spot, length, mask=stays)
        tl.store(beams + row * POOL + spot, beam, mask=stays)
        tl.store(end_tokens + row * POOL + spot, end_token, mask=stays)
        tl.store(end_logs + row * POOL + spot, end_log, mask=stays)
        follows = follows & (broken == 0)
        tl.store(totals + row * KEPT + going, following, mask=follows)
        tl.store(parents + row * KEPT + going, (row * KEPT).to(tl.int32) + parent, mask=follows)
        tl.store(last + row * KEPT + going, token.to(tl.int64), mask=follows)
        at = (row * KEPT + going) * places + count
        tl.store(step_tokens + at, token, mask=follows)
        tl.store(step_logs + at, log, mask=follows)
        tl.store(step_parents + at, parent, mask=follows)
        tl.store(verdicts + row, verdict)
        tl.store(counts + row, tl.where(verdict == RUNNING, count + 1, count))


@triton.jit
def _greedy_kernel(values, tokens, ends, counts, limits, verdicts, last, step_tokens, step_logs, rows, places,
          ENDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    count = tl.load(counts + row, mask=there, other=0)
    limit, before = tl.load(limits + row, mask=there, other=0), tl.load(verdicts + row, mask=there, other=LINE_ENDED)
    log, token = tl.load(values + row, mask=there, other=0.0), tl.load(tokens + row, mask=there, other=0)
    verdict = tl.where(_is_end(token, ends, ENDS), LINE_ENDED, LINE_GOES_ON)
    verdict = tl.where(log == float("-inf"), LINE_CUT, verdict)
    verdict = tl.where(log != log, LINE_BROKEN, verdict)
    verdict = tl.where((verdict == LINE_GOES_ON) & (count >= limit), LINE_CUT, verdict)
    writes = there & (before == LINE_GOES_ON) & (verdict != LINE_CUT) & (verdict != LINE_BROKEN)
    at = row.to(tl.int64) * places + count
    tl.store(step_tokens + at, token, mask=writes)
    tl.store(step_logs + at, log, mask=writes)
    tl.store(last + row, token.to(tl.int64), mask=writes)
    tl.store(counts + row, count + 1, mask=writes)
    tl.store(verdicts + row, verdict, mask=there & (before == LINE_GOES_ON))


@triton.jit
def _reorder_kernel(table, parents, positions, places, KEPT: tl.constexpr, KEPT_2: tl.constexpr,
           BLOCK: tl.constexpr):
    family, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    k, c = tl.arange(0, KEPT_2), first + tl.arange(0, BLOCK)
    row = family * KEPT + k
    here = tl.load(positions + family * KEPT).to(tl.int32)  # that of all rows of a family
    if first <= here:
        parent = tl.load(parents + row, mask=k < KEPT, other=0).to(tl.int64)
        there = (k < KEPT)[:, None] & (c <= here)[None, :]
        moved = tl.load(table + parent[:, None] * places + c[None, :], mask=there, other=0)
        moved = tl.where(c[None, :] == here, row.to(tl.int32)[:, None], moved)
        tl.debug_barrier()  # all is read before the first is written
        tl.store(table + row[:, None] * places + c[None, :], moved, mask=there)


@triton.jit
def _follow_kernel(step_tokens, step_logs, step_parents, rows, beams, lengths, ids, logs, each, kept, places, width):
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number // each).to(tl.int64)
    beam, length = tl.load(beams + number).to(tl.int32), tl.load(lengths + number).to(tl.int32)
    if beam >= 0:
        for back in range(0, length):
            place = length - 1 - back
            at = (row * kept + beam) * places + place
            tl.store(ids + number * width + place, tl.load(step_tokens + at).to(tl.int64))
            tl.store(logs + number * width + place, tl.load(step_logs + at))
            beam = tl.load(step_parents + at)


def beam_step(best: TopTokens, ends: Tensor, totals: Tensor, status: RowStatus, parents: Tensor, last: Tensor, divisors: Tensor,
         steps: BackPointers, pool: PoolBuffers) -> None:
    """A turn of a beam search from the best tokens (B · K, M).

    Args:
        ends: the tokens that end, int32.
        totals: (B, K), float64.
        parents: (B · K,), int32: which row of the state each hypothesis continues.
        last: (B · K,): the token that it reads next.
        divisors: by what the total of so many tokens is divided, from 0 on, float64.
    """
    (rows, kept), each, places = totals.shape, best.values.shape[1], pool.scores.shape[1]
    candidates, offered = launch.next_power_of_2(kept * each), launch.next_power_of_2(places + 2 * kept)
    launch.launch(_beam_kernel, (rows,), best.values, best.tokens, ends, totals, *status, parents, last, divisors, *steps,
                   *pool, steps.tokens.shape[2], KEPT=kept, EACH=each, POOL=places, ENDS=len(ends),
                   CANDIDATES=candidates, OFFERED=offered, num_warps=1 if candidates <= 32 else 4)


def greedy_step(best: TopTokens, ends: Tensor, status: RowStatus, last: Tensor, steps: BackPointers) -> None:
    """A turn of a greedy search from the best token (B, 1)."""
    rows = len(last)
    block = min(128, launch.next_power_of_2(rows))
    launch.launch(_greedy_kernel, (-(-rows // block),), best.values, best.tokens, ends, *status, last, *steps[:2], rows,
                   steps.tokens.shape[2], ENDS=len(ends), BLOCK=block, num_warps=1)


def reorder_table(table: Tensor, parents: Tensor, positions: Tensor, each: int) -> None:
    """The table (R, C) of rows that continue others of their family, `each` of one, with a place for a new token."""
    rows, places = table.shape
    block = 64
    launch.launch(_reorder_kernel, (rows // each, -(-places // block)), table, parents, positions, places, KEPT=each,
                   KEPT_2=launch.next_power_of_2(each), BLOCK=block, num_warps=1 if each <= 8 else 4)


def follow_back_pointers(steps: BackPointers, rows: Tensor, beams: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first `lengths` tokens and log-probabilities (b, J, width) of hypotheses `beams` (b, J) of rows (b,).

    Of hypotheses below 0, and behind the lengths, zeros.
    """
    logs = steps.logs.new_zeros(*beams.shape, width)
    ids = logs.long()
    _, kept, places = steps.tokens.shape
    launch.launch(_follow_kernel, (beams.numel(),), *steps, rows, beams.contiguous(), lengths.contiguous(), ids, logs,
                   beams.shape[1], kept, places, width, num_warps=1)
    return ids, logs
