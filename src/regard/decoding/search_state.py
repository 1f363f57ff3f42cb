"""The state of a search on a GPU, updated by kernels of our own.

Legend: B rows (prompts), K hypotheses of each, M tokens of each, P places of a pool, T token positions, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.decoding import beam_search as beams
from regard.decoding import token_search
from regard.decoding.beam_search import BeamSearch
from regard.decoding.beam_state import BeamBatch, HypothesisPool, LiveHypotheses, make_hypothesis
from regard.decoding.constraints import ForbiddenTokens, MinLength, check_vocabulary
from regard.decoding.cuda_graph import AsyncReadback, HostMirror
from regard.decoding.request import Hypothesis, SearchRequest, invalid_logits
from regard.decoding.scoring import DividingPenalty
from regard.decoding.token_search import TokenBatch, TokenSearch
from regard.kernels import decoding as turns
from regard.kernels.decoding import (
    MAX_BEAMS,
    MAX_CANDIDATES,
    BackPointers,
    PoolBuffers,
    RowStatus,
    TopTokens,
    find_top_tokens,
)

OldHypotheses = Callable[[int, int, int], tuple[list[int], list[float]]]
"""Of a row, the tokens and log-probabilities of a place of the pool that came in with it, so many."""


class PoolEntry(NamedTuple):
    """One place of a pool, in the order of `Ended`."""

    score: float
    cut: int
    length: int
    beam: int
    token: int
    log: float

    @property
    def behind(self) -> int:
        """How many tokens are found by steps back: not the end, and nothing of what came in."""
        return 0 if self.beam < 0 else self.length - (self.cut == 0)


def read_pool(steps: BackPointers, pool: PoolBuffers, old: OldHypotheses) -> list[list[Hypothesis]]:
    """What the pool (B, P) of each row holds, by the steps (B, K, T) of its hypotheses."""
    rows = [[PoolEntry(*one) for one in zip(*row, strict=True)]
            for row in zip(*(part.tolist() for part in pool), strict=True)]
    taken = [(row, one) for row, several in enumerate(rows) for one in several if one.score > -torch.inf]
    written, found = _follow_on_host(steps, taken), [list[Hypothesis]() for _ in rows]
    for (row, one), (ids, logs) in zip(taken, written, strict=True):
        if one.beam < 0:
            ids, logs = old(row, -1 - one.beam, one.length)
        elif not one.cut:
            ids, logs = [*ids, one.token], [*logs, one.log]
        found[row].append(make_hypothesis(one.score, bool(one.cut), one.length, ids, logs))
    return found


def _follow_on_host(steps: BackPointers, taken: list[tuple[int, PoolEntry]]) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of places in rows, the end not with them."""
    rows, beams, lengths = (np.array(some, np.int64) for some in (
        [row for row, _ in taken], [one.beam for _, one in taken], [one.behind for _, one in taken]))
    longest = int(lengths.max(initial=0))
    tokens, logs, parents = (part[:, :, :longest].numpy() for part in steps)
    ids = np.zeros((len(taken), longest), tokens.dtype)
    values = np.zeros_like(ids, logs.dtype)
    for place in range(longest - 1, -1, -1):
        there = np.flatnonzero(lengths > place)
        at = rows[there], beams[there], place
        ids[there, place], values[there, place], beams[there] = tokens[at], logs[at], parents[at]
    return [(line[:length], log[:length])
            for line, log, length in zip(ids.tolist(), values.tolist(), lengths.tolist(), strict=True)]


# ---- ledgers: Boards whose turns are kernels: what a search knows of its rows, on the device, with steps back in place of texts.
#
#     ledger = ledger_for(search, rows, places, logits)      storage, for searches of this kind
#     ledger.begin(numbers, prompts, search)                 rows come in of which nothing is written;
#     ledger.clear()                                         in a recording: the rest of it
#     ledger.load(batch, search)                             an ordinary batch comes in
#     ledger.take(other, places)                             rows of another ledger of this kind come in
#     ledger.turn(logits)                                    in a recording: the turn, whole
#     ledger.settle()                                        which rows had finished a turn ago; `settled` asks for now
#     ledger.results(places, search)                         what rows that have finished have written
#     ledger.batch(places)                                   an ordinary batch comes out
#
# As `regard.decoding.static_state`, but that nothing is set aside: a turn asks nothing, is never unsure, and a row that has
# finished stays as it is. So the next turn is asked for before it is known what became of the last one: the device never
# waits for Python, and one turn too many is what it costs. `why_not` says which searches are not kept in ledgers. It
# knows neither models nor when rows come and go.
#
# Legend: B rows (prompts), K hypotheses of each, M tokens of each, P places of a pool, T places of tokens, V vocabulary.

NEVER_ALLOWED = 2**31 - 1


def why_no_kernel_search(search: Any) -> str | None:
    """Why a search that has a kind (see `regard.decoding.static_state`) is not kept in a ledger; None where it is."""
    if not all(type(rule) in (ForbiddenTokens, MinLength) for rule in search.request.rules):
        return "a rule reads what is written"
    if isinstance(search, BeamSearch):
        if search.beams > MAX_BEAMS or search.beams * (search.beams + len(search.request.ends)) > MAX_CANDIDATES:
            return f"it follows more than {MAX_BEAMS} hypotheses, or has more than {MAX_CANDIDATES} candidates"
        if not isinstance(search.ranking, DividingPenalty):
            return "its ranking does not divide"
    return None


class SearchState(ABC):
    """What both have."""

    def __init__(self, request: SearchRequest, rows: int, width: int, places: int, each: int, logits: Tensor) -> None:
        self.numbers, self.width, self.turns, self.places = list[int](), width, 0, places
        vocabulary, device = logits.shape[1], logits.device
        check_vocabulary("end", request.ends, vocabulary)
        with torch.inference_mode(False):
            whole = torch.zeros(rows, dtype=torch.int32, device=device)
            self.status = RowStatus(whole.clone(), whole.clone(), whole.clone())
            self.ends = torch.tensor(request.ends, dtype=torch.int32, device=device)
            self.never = _min_counts(request, vocabulary, device)
            self.best = TopTokens.room(logits, min(each, vocabulary))
            self.parents = torch.arange(rows * width, dtype=torch.int32, device=device)
            self.tokens = torch.zeros(rows * width, dtype=torch.long, device=device)
            tokens = torch.zeros(rows, width, places, dtype=torch.int32, device=device)
            self.steps = BackPointers(tokens, torch.zeros_like(tokens, dtype=self.precision), tokens.clone())
            self.given = torch.zeros(3, rows, dtype=torch.int32, device=device)
            self.staged = torch.zeros(3, rows, dtype=torch.int32, pin_memory=device.type == "cuda")
            self.post, self.known = AsyncReadback(self.status.verdicts), 0

    precision: torch.dtype
    mirror: HostMirror

    def begin(self, numbers: Sequence[int], prompts: Sequence[int], search: Any) -> None:
        """Take in rows of which nothing is written, each with the token that it reads first; `clear` does the rest."""
        rows, count = len(self.status.counts), self._know(numbers, [0] * len(numbers), search)
        limits, nothing = self._limits(numbers), [0] * (rows - count)
        verdicts = [beams.RUNNING] * count + [beams.FINISHED] * (rows - count)
        self.staged.copy_(torch.tensor([[*limits, *nothing], verdicts, [*prompts, *nothing]], dtype=torch.int32))
        self.given.copy_(self.staged, non_blocking=True)

    def clear(self) -> None:
        """Nothing is written, limits and first tokens are those given."""
        limits, verdicts, prompts = self.given
        self.status.counts.zero_()
        self.status.limits.copy_(limits)
        self.status.verdicts.copy_(verdicts)
        self.tokens.view(-1, self.width).copy_(prompts.unsqueeze(-1))

    @abstractmethod
    def load(self, batch: Any, search: Any) -> None:
        """Take in a batch in which nobody has finished."""

    def take(self, other: Any, places: Sequence[int]) -> None:
        """Take in what is in these places of another ledger, none of whom has finished."""
        count = len(places)
        self.numbers, self.asking = [other.numbers[place] for place in places], other.asking
        self.turns, self.most = 0, other.most - other.turns
        index = torch.tensor(places, dtype=torch.long).to(self.ends.device, non_blocking=True)
        for mine, theirs in zip(self._rows(), other._rows(), strict=True):
            mine[:count] = theirs[index]
        self.status.verdicts[count:] = beams.FINISHED

    @abstractmethod
    def turn(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        """A turn of all rows from logits (B · K, V): which row of the state each continues, and what it reads."""

    @abstractmethod
    def batch(self, places: Sequence[int]) -> Any:
        """What is in these places, as an ordinary batch of its own."""

    @abstractmethod
    def results(self, places: Sequence[int], search: Any) -> list[tuple[int, Any]]:
        """What those in these places, who have finished, have written, with their numbers."""

    def settle(self) -> list[bool] | None:
        """Behind a turn: which places were still open before it; None where that was the first one.

        After the last turn that the limits allow, which are open now.
        """
        self.turns += 1
        self.post.send()
        if self.turns == 1 and self.turns < self.most:
            return None
        return self._asked(0 if self.turns >= self.most else 1)

    def settled(self) -> list[bool]:
        """Which places are still open after the last turn."""
        return self._asked(0)

    def _asked(self, back: int) -> list[bool]:
        verdicts = self.post.read(back)[:len(self.numbers)]
        self.known = back
        if beams.INVALID in verdicts:
            place = verdicts.index(beams.INVALID)
            raise invalid_logits(self.asking.prompt(self.numbers[place]), int(self.status.counts[place]))
        return [one == beams.RUNNING for one in verdicts]

    def _know(self, numbers: Sequence[int], counts: Sequence[int], search: Any) -> int:
        """What is known without asking; how many rows there are."""
        self.numbers, self.asking, self.turns = [*numbers], search.request, 0
        limits = self._limits(numbers)
        self.most = max(limit - before for limit, before in zip(limits, counts, strict=True)) + 1
        return len(numbers)

    def _limits(self, numbers: Sequence[int]) -> list[int]:
        return [self.asking.limit(number) for number in numbers]

    def _begin(self, batch: Any, search: Any) -> int:
        """What is known of a batch, on the device too; how many rows there are."""
        count, rows = self._know(batch.numbers, batch.counts, search), len(self.status.counts)
        filled = [[*some, *[0] * (rows - count)] for some in (batch.counts, self._limits(batch.numbers))]
        filled.append([beams.RUNNING] * count + [beams.FINISHED] * (rows - count))
        given = torch.tensor(filled, dtype=torch.int32).to(self.ends.device)
        for mine, theirs in zip(self.status, given, strict=True):
            mine.copy_(theirs)
        return count

    def _rows(self) -> list[Tensor]:
        """All that is known of rows, (B, ...)."""
        return [*self.status, *self.steps, self.tokens.view(-1, self.width)]

    def _read(self, places: Sequence[int]) -> list[Tensor]:
        """What the mirror shows of rows, as they were when they were last asked for."""
        shown = self.mirror.read(len(self.numbers), self.post.event(self.known) if self.turns else None)
        return [torch.from_numpy(part.numpy()[[*places]]) for part in shown]  # torch would wake all its threads

    def _find(self, logits: Tensor) -> None:
        find_top_tokens(logits, self.never, self.status.counts, self.width, self.best)


class GreedyState(SearchState):
    """Of greedy search."""

    def __init__(self, request: SearchRequest, rows: int, places: int, logits: Tensor) -> None:
        self.precision = torch.promote_types(logits.dtype, torch.float32)
        super().__init__(request, rows, 1, places, 1, logits)
        self.mirror = HostMirror([self.status.counts, self.status.verdicts, *self.steps[:2]])

    def load(self, batch: TokenBatch, search: TokenSearch) -> None:
        count, width = self._begin(batch, search), batch.ids.shape[1]
        self.tokens[:count] = batch.tokens
        if width:
            self.steps.tokens[:count, 0, :width] = batch.ids.int()
            self.steps.logs[:count, 0, :width] = batch.logs

    def turn(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        self._find(logits)
        turns.greedy_step(self.best, self.ends, self.status, self.tokens, self.steps)
        return None, self.tokens

    def batch(self, places: Sequence[int]) -> TokenBatch:
        index = torch.tensor(places, dtype=torch.long, device=self.ends.device)
        counts, verdicts = torch.stack([self.status.counts[index], self.status.verdicts[index]]).tolist()
        width = max(counts, default=0)
        ids, logs = self.steps.tokens[index, 0, :width].long(), self.steps.logs[index, 0, :width]
        return TokenBatch(ids, logs, [self.numbers[place] for place in places], counts, verdicts, self.tokens[index])

    def results(self, places: Sequence[int], search: TokenSearch) -> list[tuple[int, Hypothesis]]:
        counts, verdicts, ids, logs = self._read(places)
        width = int(counts.max())
        return search.results(TokenBatch(ids[:, 0, :width], logs[:, 0, :width], [self.numbers[place] for place in places],
                                    counts.tolist(), verdicts.tolist(), ids[:, 0, 0]))


class BeamState(SearchState):
    """Of beam search."""

    precision = torch.float64

    def __init__(self, search: BeamSearch, rows: int, places: int, logits: Tensor) -> None:
        each = search.beams + len(search.request.ends)
        super().__init__(search.request, rows, search.beams, places, each, logits)
        ranking, device = search.ranking, logits.device
        assert isinstance(ranking, DividingPenalty)
        with torch.inference_mode(False):
            self.totals = torch.zeros(rows, search.beams, dtype=self.precision, device=device)
            self.divisors = ranking.divisor(torch.arange(places + 2, dtype=self.precision, device=device))
            scores = torch.zeros(rows, search.nbest, dtype=self.precision, device=device)
            whole = scores.int()
            self.pool = PoolBuffers(scores, whole, whole.clone(), whole.clone(), whole.clone(), scores.clone())
            self.old_ids = torch.zeros(rows, search.nbest, places, dtype=torch.long, device=device)
            self.old_logs = torch.zeros_like(self.old_ids, dtype=self.precision)
            hypotheses = torch.arange(search.beams, dtype=torch.int32, device=device)
            self.straight = hypotheses.view(1, -1, 1)
            self.came = (-1 - torch.arange(search.nbest, dtype=torch.int32, device=device)).unsqueeze(0)
            self.mirror = HostMirror([*self.steps, *self.pool])

    def clear(self) -> None:
        super().clear()
        self.totals.fill_(-torch.inf)
        self.totals[:, 0].zero_()
        self.pool.scores.fill_(-torch.inf)
        self.pool.cut.fill_(1)
        self.pool.lengths.zero_()

    def load(self, batch: BeamBatch, search: BeamSearch) -> None:
        count = self._begin(batch, search)
        self.totals[:count], self.tokens[:count * self.width] = batch.live.totals, batch.tokens
        width, ended = batch.live.ids.shape[-1], batch.pool.ids.shape[-1]
        if width:
            self.steps.tokens[:count, :, :width] = batch.live.ids.int()
            self.steps.logs[:count, :, :width] = batch.live.logs
            self.steps.parents[:count, :, :width] = self.straight
        self.pool.scores[:count], self.pool.cut[:count] = batch.pool.scores, batch.pool.cut.int()
        self.pool.lengths[:count], self.pool.beams[:count] = batch.pool.lengths.int(), self.came
        if ended:
            self.old_ids[:count, :, :ended], self.old_logs[:count, :, :ended] = batch.pool.ids, batch.pool.logs

    def turn(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        self._find(logits)
        turns.beam_step(self.best, self.ends, self.totals, self.status, self.parents, self.tokens, self.divisors,
                   self.steps, self.pool)
        return self.parents, self.tokens

    def batch(self, places: Sequence[int]) -> BeamBatch:
        index = torch.tensor(places, dtype=torch.long, device=self.ends.device)
        counts_B, pool = self.status.counts[index], PoolBuffers(*(part[index] for part in self.pool))
        counts, longest = counts_B.tolist(), max(1, int(pool.lengths.max()))
        return BeamBatch([self.numbers[place] for place in places], counts, self._live(index, counts_B, max(counts)),
                     self._pool(index, pool, longest))

    def results(self, places: Sequence[int], search: BeamSearch) -> list[tuple[int, list[Hypothesis]]]:
        steps_and_pool = self._read(places)
        found = read_pool(BackPointers(*steps_and_pool[:3]), PoolBuffers(*steps_and_pool[3:]), self._old(places))
        return [(self.numbers[place], several) for place, several in zip(places, found, strict=True)]

    def _old(self, places: Sequence[int]) -> OldHypotheses:
        """What came in with a batch. It is read when it is asked for, which is seldom."""
        return lambda row, came, length: (self.old_ids[places[row], came, :length].tolist(),
                                          self.old_logs[places[row], came, :length].tolist())

    def _rows(self) -> list[Tensor]:
        return [*super()._rows(), self.totals, *self.pool, self.old_ids, self.old_logs]

    def _live(self, index: Tensor, counts: Tensor, width: int) -> LiveHypotheses:
        B, K = len(index), self.width
        beams_BK = self.straight.view(1, K).expand(B, K)
        ids, logs = turns.follow_back_pointers(self.steps, index, beams_BK, counts.unsqueeze(-1).expand(B, K), width)
        totals = self.totals[index]
        return LiveHypotheses(totals, ids, logs, self.tokens.view(-1, K)[index], torch.zeros_like(totals, dtype=torch.long),
                    totals.new_zeros(B, K, 0))

    def _pool(self, index: Tensor, pool: PoolBuffers, width: int) -> HypothesisPool:
        """What came in as it came, and all others by their steps back, the end behind them."""
        here = pool.beams >= 0
        ended = here & (pool.cut == 0)
        lengths = pool.lengths - ended.int()  # without the end
        ids, logs = turns.follow_back_pointers(self.steps, index, pool.beams, lengths.clamp(min=0), width)
        places = torch.arange(width, device=index.device)
        at_end = ended.unsqueeze(-1) & (places == lengths.unsqueeze(-1))
        ids = torch.where(at_end, pool.tokens.unsqueeze(-1).long(), ids)
        logs = torch.where(at_end, pool.logs.unsqueeze(-1), logs)
        old = (-1 - pool.beams).clamp(min=0).long().unsqueeze(-1).expand(-1, -1, width)
        before = here.unsqueeze(-1)
        ids = torch.where(before, ids, self.old_ids[index, :, :width].gather(1, old))
        logs = torch.where(before, logs, self.old_logs[index, :, :width].gather(1, old))
        return HypothesisPool(pool.scores, pool.cut.bool(), pool.lengths.long(), ids, logs)


def search_state_for(search: Any, rows: int, places: int, logits: Tensor) -> SearchState:
    """Storage for a search of a model whose logits are these, (rows · K, V)."""
    if isinstance(search, BeamSearch):
        return BeamState(search, rows, places, logits)
    return GreedyState(search.request, rows, places, logits)


def _min_counts(request: SearchRequest, vocabulary: int, device: torch.device) -> Tensor | None:
    """(V,), int32: how many tokens must be written before each may be; None where there are no rules."""
    if not request.rules:
        return None
    least = torch.zeros(vocabulary, dtype=torch.int32)
    for rule in request.rules:
        forbidden, count = (rule.forbidden, rule.count) if isinstance(rule, MinLength) else (rule, NEVER_ALLOWED)
        assert isinstance(forbidden, ForbiddenTokens)
        check_vocabulary("ids", forbidden.ids, vocabulary)
        least[forbidden.ids] = least[forbidden.ids].clamp(min=count)
    return least.to(device)


assert (beams.RUNNING, beams.INVALID) == (token_search.RUNNING, token_search.INVALID), "both searches speak of them alike"
