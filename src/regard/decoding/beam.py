"""Beam search: of every prompt the most probable beginnings are followed side by side.

Each step ranks all continuations of a row's live hypotheses by one token, by their log-probability. Those among the
best K that end leave for the row's pool, where their final score ranks them; the best K of the others live on. A row
stops when no live hypothesis can still come into its pool, whatever it would go on with: what is given is what the same
search would give if it never stopped before the limit. At the limit the live ones are cut, and fill places that are
still free in the pool.

With one beam and no length penalty it is greedy search. With a length penalty it goes on behind a first end as long as
something longer could score higher; limits that fit the rows keep that short. With as many beams as there are
continuations it is exhaustive. It knows the contract of the models, and nothing else of them.

Legend: B rows in the batch, K live hypotheses of a row (1 at first), C candidates of a row, J some of them, t tokens
written so far, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import checks
from regard.decoding.candidates import Candidates, Find, exact, quick
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.pool import Pool
from regard.decoding.ranking import Ranking, as_ranking
from regard.decoding.reading import read
from regard.decoding.request import Limit, Prompts, Request, no_number
from regard.decoding.rules import Rule, Written, whole
from regard.models.contract import Memory, Writer

GOES_ON, SETTLED, CUT, BROKEN = range(4)


@torch.no_grad()
def beam(model: Writer, memory: Memory | None = None, *, prompts: Prompts, end: int | Iterable[int], limit: Limit,
         beams: int, least: int = 0, rules: Sequence[Rule] = (), length_penalty: "str | float | Ranking" = "none",
         nbest: int = 1) -> list[list[Hypothesis]]:
    """For each prompt its `nbest` hypotheses, the best first; a row's result does not depend on the others.

    Fewer come where there are fewer. One that was cut comes after all that have ended, and one of probability 0 never.

    Args:
        model: in evaluation mode.
        memory: what the model has read of a source, a row for each prompt; None for a language model.
        prompts: what each row reads first: [START] for a translation, the text so far for a completion. Rows of ids,
            of different lengths if need be.
        end: the token, or the tokens, at which a hypothesis ends. With none at all, (), all are cut at the limit.
        limit: how many tokens a hypothesis may have, the end not counted: one number, or one for each row. The model
            must have room for the longest prompt and the highest limit together.
        beams: how many hypotheses of a row are followed.
        least: how many tokens come before an end may.
        rules: further rules of what may be written.
        length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.ranking`.
        nbest: how many are given, at most `beams`.
    """
    request = Request.of(model, memory, prompts, end, limit, least, rules)
    if whole("nbest", nbest, 1) > whole("beams", beams, 1):
        raise checks.wrong("nbest", f"at most the {beams} beams", nbest)
    search = Search(request, beams, as_ranking(length_penalty))
    return search.run(model, memory, nbest) if request.prompts else []


@dataclass(frozen=True)
class Live:
    """The hypotheses that go on, the most probable first; one whose total is −∞ only keeps its place."""

    totals: Tensor
    """(B, K): the sum of the log-probabilities."""
    ids: Tensor
    """(B, K, t)"""
    logs: Tensor
    """(B, K, t)"""

    def extended(self, candidates: Candidates) -> "Live":
        """The hypotheses that these candidates (B, J) make."""
        index = candidates.parents.unsqueeze(-1).expand(-1, -1, self.ids.shape[-1])
        ids, logs = (torch.cat([old.gather(1, index), new.unsqueeze(-1)], dim=-1)
                     for old, new in ((self.ids, candidates.tokens), (self.logs, candidates.logs)))
        return Live(candidates.totals, ids, logs)

    def pick(self, index: Tensor) -> "Live":
        """The hypotheses of these rows."""
        return Live(self.totals[index], self.ids[index], self.logs[index])


@dataclass(frozen=True)
class Batch:
    """The rows that have not stopped."""

    numbers: Tensor
    """(B,): which prompt each row continues."""
    limits: Tensor
    """(B,)"""
    live: Live
    pool: Pool

    def pick(self, index: Tensor) -> "Batch":
        """These rows of the batch."""
        return Batch(self.numbers[index], self.limits[index], self.live.pick(index), self.pool.pick(index))


@dataclass(frozen=True)
class Turn:
    """What one step makes of the rows."""

    rows: Batch
    parents: Tensor
    """(B, K): which of the hypotheses before the step each live one continues."""
    ended: Tensor
    """(B, K before the step): which of those were offered to the pool with an end."""
    verdict: Tensor
    """(B,)"""
    unsure: Tensor
    """A bool: whether equals were found whose order is not known."""


@dataclass(frozen=True)
class Search:
    """A beam search, as it was asked for."""

    request: Request
    beams: int
    ranking: Ranking

    def run(self, model: Writer, memory: Memory | None, nbest: int) -> list[list[Hypothesis]]:
        """The best hypotheses of every row."""
        logits_RV, state = read(model, memory, self.request)
        is_end_V = self.request.is_end(logits_RV.shape[-1])
        rows, closed = self._first(nbest), list[tuple[Tensor, Pool]]()
        while True:  # at its limit every row leaves
            turn, verdicts = self._decided(rows, logits_RV, is_end_V)
            before, rows, parents = rows.live, turn.rows, turn.parents
            if CUT in verdicts:
                rows = replace(rows, pool=self._filled(before, turn))
            stay = [place for place, verdict in enumerate(verdicts) if verdict == GOES_ON]
            stay_B = torch.tensor(stay, dtype=torch.long, device=self.request.device)
            if len(stay) < len(verdicts):
                leave = [place for place, verdict in enumerate(verdicts) if verdict != GOES_ON]
                gone = rows.pick(torch.tensor(leave, device=self.request.device))
                closed.append((gone.numbers, gone.pool))
                rows, parents = rows.pick(stay_B), parents[stay_B]
            if not stay:
                break
            state = state.pick((stay_B.unsqueeze(-1) * before.totals.shape[1] + parents).flatten())
            logits_RnV, state, _ = model.step(state, rows.live.ids[:, :, -1].reshape(-1, 1))
            logits_RV = logits_RnV[:, -1]
        found = {number: hypotheses for numbers, pool in closed
                 for number, hypotheses in zip(numbers.tolist(), pool.hypotheses(), strict=True)}
        return [found[number] for number in range(len(found))]

    def _first(self, nbest: int) -> Batch:
        """Before the first step: one hypothesis a row, of which nothing is written."""
        rows, device = len(self.request.prompts), self.request.device
        totals = torch.zeros(rows, 1, dtype=precision(device), device=device)
        numbers = torch.arange(rows, device=device)
        limits = torch.tensor(self.request.limits, dtype=totals.dtype, device=device)
        nothing = totals.new_zeros(rows, 1, 0)
        return Batch(numbers, limits, Live(totals, nothing.long(), nothing), Pool.empty(rows, nbest, totals))

    def _decided(self, rows: Batch, logits_RV: Tensor, is_end_V: Tensor) -> tuple[Turn, list[int]]:
        """The turn, and what becomes of each row. This asks the device, once, and again where equals were found."""
        B, K, t = rows.live.ids.shape
        written = Written(rows.live.ids.view(B * K, t), rows.numbers.repeat_interleave(K))
        logs_BKV = self.request.log_probabilities(logits_RV, written).view(B, K, -1)
        turn = self._turn(rows, logs_BKV, is_end_V, quick)
        *verdicts, unsure = torch.cat([turn.verdict, turn.unsure.long().unsqueeze(0)]).tolist()
        if BROKEN in verdicts:
            raise no_number(int(rows.numbers[verdicts.index(BROKEN)]), t)
        if unsure:
            turn = self._turn(rows, logs_BKV, is_end_V, exact)
            verdicts = turn.verdict.tolist()
        return turn, verdicts

    def _turn(self, rows: Batch, logs_BKV: Tensor, is_end_V: Tensor, find: Find) -> Turn:
        """One more token for every live hypothesis. It asks nothing of the device."""
        # Of one hypothesis at most all ends and `beams` others can be among those that matter.
        considered = self.beams + len(self.request.ends)
        candidates, unsure = Candidates.of(rows.live.totals, logs_BKV, considered, find)
        is_end_BC = is_end_V[candidates.tokens]
        length = torch.full_like(rows.limits[0], rows.live.ids.shape[-1] + 1)

        best = candidates.first(self.beams)
        ended_BJ = is_end_BC[:, :self.beams] & (best.totals > -torch.inf)
        scores_BJ = self.ranking.score(best.totals, length).masked_fill(~ended_BJ, -torch.inf)
        complete = rows.live.extended(best)
        pool = rows.pool.end(complete.ids, complete.logs, scores_BJ)
        places_K = torch.arange(rows.live.totals.shape[1], device=logs_BKV.device)
        ended_BK = ((best.parents.unsqueeze(-1) == places_K) & ended_BJ.unsqueeze(-1)).any(dim=1)

        following = candidates.without(is_end_BC, self.beams)
        longest_B1 = rows.limits.unsqueeze(-1) + 1  # with an end
        reach_B = self.ranking.attainable(following.totals, length, longest_B1).amax(dim=-1)
        full_B = rows.limits == length - 1
        verdict_B = torch.where(pool.bar >= reach_B, SETTLED, GOES_ON)
        verdict_B = torch.where(full_B | (following.totals[:, 0] == -torch.inf), CUT, verdict_B)  # no way on
        verdict_B = torch.where(candidates.totals[:, 0].isnan(), BROKEN, verdict_B)  # NaN is sorted to the front
        after = Batch(rows.numbers, rows.limits, rows.live.extended(following), pool)
        return Turn(after, following.parents, ended_BK, verdict_B, unsure)

    def _filled(self, live: Live, turn: Turn) -> Pool:
        """The pool, with those cut that were live before a turn after which their row cannot go on."""
        length = torch.full_like(turn.rows.limits[0], live.ids.shape[-1])
        dropped_BK = (turn.verdict != CUT).unsqueeze(-1) | turn.ended
        scores_BK = self.ranking.score(live.totals, length).masked_fill(dropped_BK, -torch.inf)
        return turn.rows.pool.fill(live.ids, live.logs, scores_BK)


def precision(device: torch.device) -> torch.dtype:
    """In which log-probabilities are added up: float64, which rounds nothing that matters, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
