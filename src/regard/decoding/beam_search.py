"""One step of a beam search: which continuations end, which live on, and which rows have finished.

Legend: B rows (each a group of a number), K live hypotheses of a row, C candidates of a row, J some of them, t tokens
written so far, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.beam_state import (
    BeamBatch,
    Candidates,
    HypothesisPool,
    LiveHypotheses,
    TopKFunction,
    exact_topk,
    quick_topk,
)
from regard.decoding.constraints import TermAutomaton, allocate_beams, check_term_vocabulary
from regard.decoding.request import Hypothesis, SearchRequest, invalid_logits
from regard.decoding.scheduler import SearchStep
from regard.decoding.scoring import CoveragePenalty, LengthPenalty, initial_coverage


class BeamSelection(NamedTuple):
    """What becomes of the candidates of each row."""

    ended: Candidates
    """(B, K): those that end and are offered to the pool; totals of −∞ in places that are none."""
    following: Candidates
    """(B, K): those that go on, the most probable first; totals of −∞ where there are fewer."""
    marks: Tensor | None
    """(B, K): what the automaton of the terms has come to in those that go on."""
    broken: Tensor
    """(B,): whether the model gave no number."""
    unsure: Tensor
    """A bool: whether equals were found whose order is not known."""


def select_candidates(candidates: Candidates, is_end: Tensor, count: int, unsure: Tensor) -> BeamSelection:
    """Those among the best `count` that end, and the best `count` of the others; `is_end` is (B, C)."""
    best = candidates.first(count)
    ended = Candidates(best.totals.masked_fill(~is_end[:, :count], -torch.inf), best.parents, best.tokens, best.logs)
    return BeamSelection(ended, candidates.without(is_end, count), None, _has_nan(candidates), unsure)


def select_with_terms(live: LiveHypotheses, logs: Tensor, considered: int, find: TopKFunction, handicap: Tensor | None,
               terms: Sequence[TermAutomaton], left: Sequence[int], request: SearchRequest) -> BeamSelection:
    """The same for rows with terms, `left` tokens before the limit after this one. It asks the device.

    Every token that brings a term nearer is a candidate. One that would leave too little room for the open terms is
    none, and an end only where none is open. Those that go on are shared out among the banks; those that end are
    those among the best K candidates that have no open term.
    """
    check_term_vocabulary(terms, logs.shape[-1])
    count, marks = live.totals.shape[1], live.marks.tolist()
    candidates, unsure = Candidates.of(live.totals, logs, considered, find, handicap,
                                       _wanted_tokens(terms, marks).to(logs.device))
    is_end = request.is_end(candidates.tokens, logs.shape[-1]).tolist()
    parts = (part.tolist() for part in (candidates.totals, candidates.parents, candidates.tokens))
    ended, going, reached = list[list[int]](), list[list[int]](), list[list[int]]()
    for row, (totals, parents, tokens) in enumerate(zip(*parts, strict=True)):
        automaton, complete = terms[row], list[int]()
        open_ways = list[tuple[int, int]]()  # place among the candidates, mark
        for place, (total, parent, token) in enumerate(zip(totals, parents, tokens, strict=True)):
            mark = marks[row][parent]
            if not total > -math.inf:
                continue
            if not is_end[row][place]:
                mark = automaton.after(mark, token)
                if automaton.needed(mark) <= left[row]:
                    open_ways.append((place, mark))
            if automaton.needed(mark) == 0:
                complete.append(place)
        kept = [open_ways[way] for way in allocate_beams([automaton.needed(mark) for _, mark in open_ways], count)]
        ended.append([place for place in complete[:count] if is_end[row][place]])
        going.append([place for place, _ in kept])
        reached.append([mark for _, mark in kept])
    device = logs.device
    return BeamSelection(candidates.pick(*_padded_index(ended, count, device)), candidates.pick(*_padded_index(going, count, device)),
                  _padded_index(reached, count, device)[0], _has_nan(candidates), unsure)


def _wanted_tokens(terms: Sequence[TermAutomaton], marks: Sequence[Sequence[int]]) -> Tensor:
    """(B, K, W): the tokens that each hypothesis may want, −1 where there are fewer."""
    wanted = [[automaton.wanted(mark) for mark in row] for automaton, row in zip(terms, marks, strict=True)]
    most = max((len(tokens) for row in wanted for tokens in row), default=0)
    return torch.tensor([[tokens + [-1] * (most - len(tokens)) for tokens in row] for row in wanted], dtype=torch.long)


def _padded_index(places: Sequence[Sequence[int]], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places of each row as (B, count), and which of them are none."""
    filled = torch.tensor([[*row, *[-1] * (count - len(row))] for row in places], dtype=torch.long).to(device)
    return filled.clamp(min=0), filled < 0


def _has_nan(candidates: Candidates) -> Tensor:
    """(B,): NaN is sorted to the front."""
    return candidates.totals[:, 0].isnan()


# ---- search: One turn of a beam search: which continuations end, which go on, and who has finished.
#
# `regard.decoding.beam` says what a beam search is, `regard.decoding.scheduler` leads it from turn to turn. It knows no
# models: logits come in, parents and tokens come out.
#
# Legend: B rows (each a group of a number), K live hypotheses of a row, C candidates of a row, J some of them, t tokens
# written so far, V vocabulary.

RUNNING, FINISHED, TRUNCATED, INVALID = range(4)


class BeamUpdate(NamedTuple):
    """What one turn makes of some rows."""

    live: LiveHypotheses
    pool: HypothesisPool
    parents: Tensor
    """(B, K): which of the hypotheses before the turn each live one continues."""
    ended: Tensor
    """(B, K): which of those were offered to the pool with an end."""
    verdict: Tensor
    """(B,)"""
    unsure: Tensor
    """A bool: whether equals were found whose order is not known."""


class RowLengths(NamedTuple):
    """What is known of the rows without asking the device, on the device."""

    counts: Tensor
    """(B,): tokens written so far."""
    limits: Tensor
    """(B,)"""
    width: int
    """Tokens of the longest after the turn."""


@dataclass(frozen=True)
class BeamSearch:
    """A beam search, as it was asked for."""

    request: SearchRequest
    beams: int
    ranking: LengthPenalty
    nbest: int
    groups: int = 1
    diversity: float = 0.0
    coverage: CoveragePenalty | None = None
    terms: Sequence[TermAutomaton] | None = None
    """One for each prompt."""

    @property
    def width(self) -> int:
        """How many hypotheses of each prompt are followed."""
        return self.beams

    @property
    def watches(self) -> bool:
        """Whether it asks for the cross-attention weights."""
        return self.coverage is not None

    def first(self, numbers: Sequence[int], present: Tensor | None) -> BeamBatch:
        """Before the first turn: one hypothesis a row, of which nothing is written."""
        rows, each, device = len(numbers) * self.groups, self.beams // self.groups, self.request.device
        totals = torch.full((rows, each), -torch.inf, dtype=total_dtype(device), device=device)
        totals[:, 0] = 0.0
        seen = totals.new_zeros(rows, each, 0)
        if self.watches and present is not None:
            seen = initial_coverage(present.repeat_interleave(self.groups, 0), each, totals)
        pool = HypothesisPool.empty(rows, -(-self.nbest // self.groups), totals)
        return BeamBatch([*numbers], [0] * len(numbers), LiveHypotheses.first(totals, seen), pool)

    def turn(self, batch: BeamBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[BeamBatch]:
        """One more token for every live hypothesis. It asks the device once, and again where equals were found."""
        B, K, t = batch.live.ids.shape
        written = self.request.written(batch.live.ids.view(B * K, t), batch.numbers, batch.counts, self.beams)
        logs_BKV = self.request.log_probabilities(logits, written).view(B, K, -1)
        before = batch.live
        if self.coverage is not None and cross is not None:
            look_BKN = self.coverage.look(cross).view(B, K, -1)
            batch = replace(batch, live=replace(before, seen=before.seen + look_BKN))
        rows = self._rows(batch, written.lengths.view(B, K)[:, 0])
        after = self._groups(batch, rows, logs_BKV, quick_topk)
        *verdicts, unsure = torch.cat([after.verdict, after.unsure.long().unsqueeze(0)]).tolist()
        if INVALID in verdicts:
            place = verdicts.index(INVALID) // self.groups
            raise invalid_logits(self.request.prompt(batch.numbers[place]), batch.counts[place])
        if unsure:
            after = self._groups(batch, rows, logs_BKV, exact_topk)
            verdicts = after.verdict.tolist()
        pool = self.filled(before, rows, after) if TRUNCATED in verdicts else after.pool
        finished = [place for place in range(len(batch.numbers))
                    if RUNNING not in verdicts[place * self.groups:(place + 1) * self.groups]]
        parents_BK = after.parents + K * torch.arange(B, device=logits.device).unsqueeze(-1)
        counts = [count + 1 for count in batch.counts]
        return SearchStep(BeamBatch(batch.numbers, counts, after.live, pool), parents_BK.view(-1, self.beams), finished)

    def results(self, batch: BeamBatch) -> list[tuple[int, list[Hypothesis]]]:
        """The best hypotheses of each number: of every group the best, then of every group the second, and so on."""
        pools = batch.pool.hypotheses()
        found = []
        for place, number in enumerate(batch.numbers):
            groups = pools[place * self.groups:(place + 1) * self.groups]
            found.append((number, _interleave_groups(groups)[:self.nbest] if self.groups > 1 else groups[0]))
        return found

    def _rows(self, batch: BeamBatch, counts: Tensor) -> RowLengths:
        limits = [self.request.limit(number) for number in batch.numbers for _ in range(self.groups)]
        return RowLengths(counts, torch.tensor(limits).to(counts.device, non_blocking=True), max(batch.counts) + 1)

    def turned(self, live: LiveHypotheses, pool: HypothesisPool, rows: RowLengths, logs: Tensor, find: TopKFunction) -> BeamUpdate:
        """A turn of a search without groups and terms, from log-probabilities (B, K, V). It asks nothing."""
        assert (self.groups, self.terms) == (1, None)
        return self._turn(live, pool, (), rows, logs, None, find)

    def _groups(self, batch: BeamBatch, rows: RowLengths, logs: Tensor, find: TopKFunction) -> BeamUpdate:
        """A turn of all groups, one after another: each is told which tokens those before it have taken."""
        if self.groups == 1:
            return self._turn(batch.live, batch.pool, batch.numbers, rows, logs, None, find)
        taken_BV = logs.new_zeros(len(batch.numbers), logs.shape[-1])
        several = list[BeamUpdate]()
        for group in range(self.groups):
            mine = slice(group, None, self.groups)
            one = self._turn(batch.live.pick(mine, rows.width), batch.pool.pick(mine), batch.numbers,
                             RowLengths(rows.counts[mine], rows.limits[mine], rows.width), logs[mine],
                             self.diversity * taken_BV, find)
            several.append(one)
            there = (one.live.totals > -torch.inf).to(taken_BV.dtype)
            taken_BV = taken_BV.scatter_add(-1, one.live.tokens, there)
        same = zip(*((one.parents, one.ended, one.verdict) for one in several), strict=True)
        parents, ended, verdict = (torch.stack(parts, 1).flatten(0, 1) for parts in same)
        unsure = torch.stack([one.unsure for one in several]).any()
        return BeamUpdate(LiveHypotheses.woven([one.live for one in several]), HypothesisPool.woven([one.pool for one in several]), parents,
                     ended, verdict, unsure)

    def _turn(self, live: LiveHypotheses, pool: HypothesisPool, numbers: Sequence[int], rows: RowLengths, logs: Tensor, handicap: Tensor | None,
              find: TopKFunction) -> BeamUpdate:
        """A turn of one group of each number. Without terms it asks nothing of the device."""
        chosen = self._chosen(live, numbers, rows, logs, handicap, find)
        length_B1 = (rows.counts + 1).unsqueeze(-1).to(live.totals.dtype)
        complete = live.extended(chosen.ended, rows.counts, rows.width)
        scores_BJ = self._scores(complete, length_B1)
        pool = pool.end(complete.ids, complete.logs, rows.counts + 1, scores_BJ)
        places_K = torch.arange(live.totals.shape[1], device=logs.device)
        offered_BJ1 = (complete.totals > -torch.inf).unsqueeze(-1)
        ended_BK = ((chosen.ended.parents.unsqueeze(-1) == places_K) & offered_BJ1).any(dim=1)

        following = chosen.following
        longest_B1 = (rows.limits + 1).unsqueeze(-1).to(length_B1.dtype)  # with an end
        reach_B = self.ranking.attainable(following.totals, length_B1, longest_B1).amax(dim=-1)  # coverage adds ≤ 0
        verdict_B = torch.where(pool.bar >= reach_B, FINISHED, RUNNING)
        stuck_B = following.totals.amax(dim=-1) == -torch.inf  # no way on
        verdict_B = torch.where((rows.limits == rows.counts) | stuck_B, TRUNCATED, verdict_B)
        verdict_B = torch.where(chosen.broken, INVALID, verdict_B)
        after = live.extended(following, rows.counts, rows.width, chosen.marks)
        return BeamUpdate(after, pool, following.parents, ended_BK, verdict_B, chosen.unsure)

    def _chosen(self, live: LiveHypotheses, numbers: Sequence[int], rows: RowLengths, logs: Tensor, handicap: Tensor | None,
                find: TopKFunction) -> BeamSelection:
        # Of one hypothesis at most all ends and as many others as are followed can be among those that matter.
        considered = live.totals.shape[1] + len(self.request.ends)
        if self.terms is None:
            candidates, unsure = Candidates.of(live.totals, logs, considered, find, handicap)
            return select_candidates(candidates, self.request.is_end(candidates.tokens, logs.shape[-1]), live.totals.shape[1],
                          unsure)
        terms = [self.terms[self.request.prompt(number)] for number in numbers]
        left = (rows.limits - rows.counts - 1).tolist()
        return select_with_terms(live, logs, considered, find, handicap, terms, left, self.request)

    def _scores(self, live: LiveHypotheses, length: Tensor) -> Tensor:
        scores = self.ranking.score(live.totals, length)
        return scores if self.coverage is None else scores + self.coverage.score(live.seen)

    def filled(self, live: LiveHypotheses, rows: RowLengths, after: BeamUpdate) -> HypothesisPool:
        """The pool, with those cut that were live before a turn after which their row cannot go on."""
        scores_BK = self._scores(live, rows.counts.unsqueeze(-1).to(live.totals.dtype))
        dropped_BK = (after.verdict != TRUNCATED).unsqueeze(-1) | after.ended
        return after.pool.fill(live.ids, live.logs, rows.counts, scores_BK.masked_fill(dropped_BK, -torch.inf))


def total_dtype(device: torch.device) -> torch.dtype:
    """In which log-probabilities are added up: float64, which rounds nothing that matters, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _interleave_groups(groups: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """The first of every group, the best of them first, then the second; what was cut last, and nothing twice."""
    ranks = (sorted((one for one in rank if one is not None), key=lambda one: -one.score)
             for rank in zip_longest(*groups))
    unique = {(tuple(one.ids), one.end): one for one in reversed(list(chain.from_iterable(ranks)))}
    return sorted(reversed(unique.values()), key=lambda one: one.cut)
