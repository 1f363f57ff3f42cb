"""One turn of a beam search: which continuations end, which go on, and who has finished.

`regard.decoding.beam` says what a beam search is, `regard.decoding.queue` leads it from turn to turn. It knows no
models: logits come in, parents and tokens come out.

Legend: B rows (each a group of a number), K live hypotheses of a row, C candidates of a row, J some of them, t tokens
written so far, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.candidates import Candidates, Find, exact, quick
from regard.decoding.choosing import Chosen, freely, with_terms
from regard.decoding.coverage import Coverage, unseen
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.live import Beams, Live
from regard.decoding.pool import Pool
from regard.decoding.queue import Turn
from regard.decoding.ranking import Ranking
from regard.decoding.request import Request, no_number
from regard.decoding.terms import Automaton

GOES_ON, SETTLED, CUT, BROKEN = range(4)


class After(NamedTuple):
    """What one turn makes of some rows."""

    live: Live
    pool: Pool
    parents: Tensor
    """(B, K): which of the hypotheses before the turn each live one continues."""
    ended: Tensor
    """(B, K): which of those were offered to the pool with an end."""
    verdict: Tensor
    """(B,)"""
    unsure: Tensor
    """A bool: whether equals were found whose order is not known."""


class Rows(NamedTuple):
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

    request: Request
    beams: int
    ranking: Ranking
    nbest: int
    groups: int = 1
    diversity: float = 0.0
    coverage: Coverage | None = None
    terms: Sequence[Automaton] | None = None
    """One for each prompt."""

    @property
    def width(self) -> int:
        """How many hypotheses of each prompt are followed."""
        return self.beams

    @property
    def watches(self) -> bool:
        """Whether it asks for the cross-attention weights."""
        return self.coverage is not None

    def first(self, numbers: Sequence[int], present: Tensor | None) -> Beams:
        """Before the first turn: one hypothesis a row, of which nothing is written."""
        rows, each, device = len(numbers) * self.groups, self.beams // self.groups, self.request.device
        totals = torch.full((rows, each), -torch.inf, dtype=precision(device), device=device)
        totals[:, 0] = 0.0
        seen = totals.new_zeros(rows, each, 0)
        if self.watches and present is not None:
            seen = unseen(present.repeat_interleave(self.groups, 0), each, totals)
        pool = Pool.empty(rows, -(-self.nbest // self.groups), totals)
        return Beams([*numbers], [0] * len(numbers), Live.first(totals, seen), pool)

    def turn(self, batch: Beams, logits: Tensor, cross: Tensor | None) -> Turn[Beams]:
        """One more token for every live hypothesis. It asks the device once, and again where equals were found."""
        B, K, t = batch.live.ids.shape
        written = self.request.written(batch.live.ids.view(B * K, t), batch.numbers, batch.counts, self.beams)
        logs_BKV = self.request.log_probabilities(logits, written).view(B, K, -1)
        before = batch.live
        if self.coverage is not None and cross is not None:
            look_BKN = self.coverage.look(cross).view(B, K, -1)
            batch = replace(batch, live=replace(before, seen=before.seen + look_BKN))
        rows = self._rows(batch, written.lengths.view(B, K)[:, 0])
        after = self._groups(batch, rows, logs_BKV, quick)
        *verdicts, unsure = torch.cat([after.verdict, after.unsure.long().unsqueeze(0)]).tolist()
        if BROKEN in verdicts:
            place = verdicts.index(BROKEN) // self.groups
            raise no_number(self.request.prompt(batch.numbers[place]), batch.counts[place])
        if unsure:
            after = self._groups(batch, rows, logs_BKV, exact)
            verdicts = after.verdict.tolist()
        pool = self.filled(before, rows, after) if CUT in verdicts else after.pool
        finished = [place for place in range(len(batch.numbers))
                    if GOES_ON not in verdicts[place * self.groups:(place + 1) * self.groups]]
        parents_BK = after.parents + K * torch.arange(B, device=logits.device).unsqueeze(-1)
        counts = [count + 1 for count in batch.counts]
        return Turn(Beams(batch.numbers, counts, after.live, pool), parents_BK.view(-1, self.beams), finished)

    def results(self, batch: Beams) -> list[tuple[int, list[Hypothesis]]]:
        """The best hypotheses of each number: of every group the best, then of every group the second, and so on."""
        pools = batch.pool.hypotheses()
        found = []
        for place, number in enumerate(batch.numbers):
            groups = pools[place * self.groups:(place + 1) * self.groups]
            found.append((number, _mixed(groups)[:self.nbest] if self.groups > 1 else groups[0]))
        return found

    def _rows(self, batch: Beams, counts: Tensor) -> Rows:
        limits = [self.request.limit(number) for number in batch.numbers for _ in range(self.groups)]
        return Rows(counts, torch.tensor(limits).to(counts.device, non_blocking=True), max(batch.counts) + 1)

    def turned(self, live: Live, pool: Pool, rows: Rows, logs: Tensor, find: Find) -> After:
        """A turn of a search without groups and terms, from log-probabilities (B, K, V). It asks nothing."""
        assert (self.groups, self.terms) == (1, None)
        return self._turn(live, pool, (), rows, logs, None, find)

    def _groups(self, batch: Beams, rows: Rows, logs: Tensor, find: Find) -> After:
        """A turn of all groups, one after another: each is told which tokens those before it have taken."""
        if self.groups == 1:
            return self._turn(batch.live, batch.pool, batch.numbers, rows, logs, None, find)
        taken_BV = logs.new_zeros(len(batch.numbers), logs.shape[-1])
        several = list[After]()
        for group in range(self.groups):
            mine = slice(group, None, self.groups)
            one = self._turn(batch.live.pick(mine, rows.width), batch.pool.pick(mine), batch.numbers,
                             Rows(rows.counts[mine], rows.limits[mine], rows.width), logs[mine],
                             self.diversity * taken_BV, find)
            several.append(one)
            there = (one.live.totals > -torch.inf).to(taken_BV.dtype)
            taken_BV = taken_BV.scatter_add(-1, one.live.tokens, there)
        same = zip(*((one.parents, one.ended, one.verdict) for one in several), strict=True)
        parents, ended, verdict = (torch.stack(parts, 1).flatten(0, 1) for parts in same)
        unsure = torch.stack([one.unsure for one in several]).any()
        return After(Live.woven([one.live for one in several]), Pool.woven([one.pool for one in several]), parents,
                     ended, verdict, unsure)

    def _turn(self, live: Live, pool: Pool, numbers: Sequence[int], rows: Rows, logs: Tensor, handicap: Tensor | None,
              find: Find) -> After:
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
        verdict_B = torch.where(pool.bar >= reach_B, SETTLED, GOES_ON)
        stuck_B = following.totals.amax(dim=-1) == -torch.inf  # no way on
        verdict_B = torch.where((rows.limits == rows.counts) | stuck_B, CUT, verdict_B)
        verdict_B = torch.where(chosen.broken, BROKEN, verdict_B)
        after = live.extended(following, rows.counts, rows.width, chosen.marks)
        return After(after, pool, following.parents, ended_BK, verdict_B, chosen.unsure)

    def _chosen(self, live: Live, numbers: Sequence[int], rows: Rows, logs: Tensor, handicap: Tensor | None,
                find: Find) -> Chosen:
        # Of one hypothesis at most all ends and as many others as are followed can be among those that matter.
        considered = live.totals.shape[1] + len(self.request.ends)
        if self.terms is None:
            candidates, unsure = Candidates.of(live.totals, logs, considered, find, handicap)
            return freely(candidates, self.request.is_end(candidates.tokens, logs.shape[-1]), live.totals.shape[1],
                          unsure)
        terms = [self.terms[self.request.prompt(number)] for number in numbers]
        left = (rows.limits - rows.counts - 1).tolist()
        return with_terms(live, logs, considered, find, handicap, terms, left, self.request)

    def _scores(self, live: Live, length: Tensor) -> Tensor:
        scores = self.ranking.score(live.totals, length)
        return scores if self.coverage is None else scores + self.coverage.score(live.seen)

    def filled(self, live: Live, rows: Rows, after: After) -> Pool:
        """The pool, with those cut that were live before a turn after which their row cannot go on."""
        scores_BK = self._scores(live, rows.counts.unsqueeze(-1).to(live.totals.dtype))
        dropped_BK = (after.verdict != CUT).unsqueeze(-1) | after.ended
        return after.pool.fill(live.ids, live.logs, rows.counts, scores_BK.masked_fill(dropped_BK, -torch.inf))


def precision(device: torch.device) -> torch.dtype:
    """In which log-probabilities are added up: float64, which rounds nothing that matters, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _mixed(groups: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """The first of every group, the best of them first, then the second; what was cut last, and nothing twice."""
    ranks = (sorted((one for one in rank if one is not None), key=lambda one: -one.score)
             for rank in zip_longest(*groups))
    unique = {(tuple(one.ids), one.end): one for one in reversed(list(chain.from_iterable(ranks)))}
    return sorted(reversed(unique.values()), key=lambda one: one.cut)
