"""The state of a beam search: candidates, live hypotheses, the pool of finished ones, and the batch of them.

Candidates of equal log-probability are ordered by hypothesis and then by token id, so that a result never depends on
how a device sorts. A row has as many live hypotheses as beams from the start; a total of −∞ marks an empty one. In the
pool, finished hypotheses go before truncated ones, then higher scores go first, and of equal scores the earlier one.
All tensors stay on the device of the model. This module knows neither models nor how scores are computed.

Legend: R hypotheses of all rows, B rows, K live hypotheses of a row, V vocabulary, M tokens considered of one
hypothesis, C = K·M candidates of a row, J some of them, W wanted tokens, P places of a pool, t tokens, N source states.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.decoding.request import Hypothesis

TOPK_PIECE = 128
"""Values of a row that are looked through together on a CPU."""


class TopK(NamedTuple):
    """The highest values of each row (R, M), highest first, and where they stand."""

    values: Tensor
    places: Tensor
    unsure: Tensor
    """A bool: whether a value just as high as the last one of a row was left out, and maybe stood before it."""


TopKFunction = Callable[[Tensor, int], TopK]


def quick_topk(values: Tensor, count: int) -> TopK:
    """The `count` highest values of each row of (R, V), lower places first among equals, where that is for sure.

    topk keeps no order among equals. What it has found can be sorted; what it has left out cannot be known, but where
    one more value is lower than the last, it has left out none that is equal. To look at `unsure` asks the device.
    """
    if count >= values.shape[-1]:
        sure = torch.zeros((), dtype=torch.bool, device=values.device)
        return TopK(*values.sort(dim=-1, descending=True, stable=True), sure)
    found, places = _stable_sort(*_unordered_topk(values, count + 1))
    last = found[:, count - 1]
    unsure = (last == found[:, count]) & (last > -torch.inf)  # what is forbidden needs no order
    return TopK(found[:, :count], places[:, :count], unsure.any())


def exact_topk(values: Tensor, count: int) -> TopK:
    """As `quick`, and for sure, in a few times the time: it looks for the first of those that equal the last."""
    found, places, unsure = quick_topk(values, count)
    last = found[:, -1:]
    every = torch.arange(values.shape[-1], device=values.device)
    equal = torch.where(values == last, every, values.shape[-1]).topk(count, dim=-1, largest=False).values.sort().values
    above = (found > last).sum(dim=-1, keepdim=True)
    rank = torch.arange(count, device=values.device)
    places = torch.where(rank < above, places, equal.gather(-1, (rank - above).clamp(min=0)))
    return TopK(found, places, torch.zeros_like(unsure))


def _unordered_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row, and where they stand; which of equal ones is for the device to say.

    A CPU finds the maximum of a piece many times as fast as the highest few of as many values: those are looked for in
    the pieces with the highest maxima alone, of which `count` are enough.
    """
    R, V = values.shape
    pieces = V // TOPK_PIECE
    if values.device.type != "cpu" or pieces < 4 * count:
        return tuple(values.topk(count, dim=-1))  # type: ignore[return-value]
    whole = values[:, :pieces * TOPK_PIECE].unflatten(-1, (pieces, TOPK_PIECE))
    best = whole.amax(-1).topk(count, dim=-1).indices.unsqueeze(-1)
    inside = torch.arange(TOPK_PIECE, device=values.device)
    places = (best * TOPK_PIECE + inside).flatten(1)
    if V % TOPK_PIECE:
        rest = torch.arange(pieces * TOPK_PIECE, V, device=values.device)
        places = torch.cat([places, rest.expand(R, -1)], dim=-1)
    found, order = values.gather(-1, places).topk(count, dim=-1)
    return found, places.gather(-1, order)


def _stable_sort(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Highest first, lower places first among equals."""
    places, order = places.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, places.gather(-1, order)


@dataclass(frozen=True)
class Candidates:
    """Continuations of the hypotheses of each row by one token, the best first; each tensor is (B, C)."""

    totals: Tensor
    """The log-probability of the whole."""
    parents: Tensor
    """Which hypothesis of the row is continued."""
    tokens: Tensor
    logs: Tensor
    """The log-probability of the token."""

    @staticmethod
    def of(totals: Tensor, logs: Tensor, count: int, find: TopKFunction, handicap: Tensor | None = None,
           wanted: Tensor | None = None) -> "tuple[Candidates, Tensor]":
        """From totals (B, K) and log-probabilities (B, K, V), of each hypothesis its `count` best; and whether unsure.

        Tokens of one hypothesis are compared before its total is added, because the sum may round two of them to one.

        Args:
            handicap: (B, V), taken from the log-probabilities for the comparison, and for nothing else.
            wanted: (B, K, W), tokens that are candidates too, wherever they stand; below 0 for none.
        """
        B, K, V = logs.shape
        compared = logs if handicap is None else logs - handicap.unsqueeze(1)
        values, tokens, unsure = find(compared.reshape(B * K, V), min(count, V))
        values_BKM, tokens_BKM = values.view(B, K, -1), tokens.view(B, K, -1)
        if wanted is not None:
            values_BKM, tokens_BKM = _with_wanted(wanted, compared, values_BKM, tokens_BKM)
        ranks_BC = (totals.unsqueeze(-1) + values_BKM).reshape(B, -1)
        ranks_BC, order_BC = ranks_BC.sort(dim=-1, descending=True, stable=True)
        parents_BC = order_BC // values_BKM.shape[-1]
        tokens_BC = tokens_BKM.reshape(B, -1).gather(-1, order_BC)
        if handicap is None:
            return Candidates(ranks_BC, parents_BC, tokens_BC, values_BKM.reshape(B, -1).gather(-1, order_BC)), unsure
        own_BC = logs.reshape(B, -1).gather(-1, parents_BC * V + tokens_BC)
        totals_BC = (totals.gather(-1, parents_BC) + own_BC).masked_fill(ranks_BC == -torch.inf, -torch.inf)
        return Candidates(totals_BC, parents_BC, tokens_BC, own_BC), unsure

    def first(self, count: int) -> "Candidates":
        """The best `count` of each row."""
        return Candidates(*(part[:, :count] for part in self._parts()))

    def without(self, dropped: Tensor, count: int) -> "Candidates":
        """The best `count` of each row that are not `dropped` (B, C); where there are fewer, totals of −∞."""
        behind, order = dropped.long().sort(dim=-1, stable=True)
        return self.pick(order[:, :count], behind[:, :count].bool())

    def pick(self, index: Tensor, dropped: Tensor) -> "Candidates":
        """Those of these places (B, J); those that are dropped have totals of −∞."""
        kept = Candidates(*(part.gather(-1, index) for part in self._parts()))
        return Candidates(kept.totals.masked_fill(dropped, -torch.inf), kept.parents, kept.tokens, kept.logs)

    def _parts(self) -> tuple[Tensor, ...]:
        return self.totals, self.parents, self.tokens, self.logs


def _with_wanted(wanted: Tensor, compared: Tensor, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Values and tokens (B, K, M), and the wanted ones (B, K, W) behind them that are not among them."""
    more = compared.gather(-1, wanted.clamp(min=0))
    there = (wanted.unsqueeze(-1) == tokens.unsqueeze(-2)).any(-1) | (wanted < 0)
    return torch.cat([values, more.masked_fill(there, -torch.inf)], -1), torch.cat([tokens, wanted.clamp(min=0)], -1)


# ---- pool: The pool of a beam search: the best hypotheses of each row that need no further step.
#
# What has ended goes before what was cut, whatever their scores; among either the higher score, and among equal scores
# the one that came first. It stays on the device of the model. It knows neither models nor how scores are made.
#
# Legend: B rows, P places of a row, J hypotheses offered to a row, t tokens.


@dataclass(frozen=True)
class HypothesisPool:
    """P places for each row, the best first. A place whose score is −∞ is free."""

    scores: Tensor
    """(B, P)"""
    cut: Tensor
    """(B, P): whether no end token came; True where the place is free."""
    lengths: Tensor
    """(B, P): how many tokens there are, the end token with them."""
    ids: Tensor
    """(B, P, t), filled up behind the length."""
    logs: Tensor
    """(B, P, t)"""

    @staticmethod
    def empty(rows: int, places: int, totals: Tensor) -> "HypothesisPool":
        """All places free; scores will have the dtype of the totals."""
        scores = totals.new_full((rows, places), -torch.inf)
        ids = torch.zeros(rows, places, 0, dtype=torch.long, device=totals.device)
        return HypothesisPool(scores, torch.ones_like(scores, dtype=torch.bool), ids.new_zeros(rows, places), ids,
                    totals.new_zeros(rows, places, 0))

    @property
    def bar(self) -> Tensor:
        """(B,): the score that a hypothesis must exceed to come in; −∞ while not all places hold one that has ended."""
        return self.scores[:, -1].masked_fill(self.cut[:, -1], -torch.inf)

    def end(self, ids: Tensor, logs: Tensor, lengths: Tensor, scores: Tensor) -> "HypothesisPool":
        """Offer hypotheses (B, J, t) that have ended, `lengths` (B,) long, with scores (B, J); −∞ is not taken."""
        return self._offer(ids, logs, lengths, scores, scores == -torch.inf)

    def fill(self, ids: Tensor, logs: Tensor, lengths: Tensor, scores: Tensor) -> "HypothesisPool":
        """Offer hypotheses that were cut: they come in where places are free."""
        return self._offer(ids, logs, lengths, scores, torch.ones_like(scores, dtype=torch.bool))

    def pick(self, index: Tensor | slice) -> "HypothesisPool":
        """The pool of these rows."""
        return HypothesisPool(*(part[index] for part in self.parts()))

    def joined(self, other: "HypothesisPool") -> "HypothesisPool":
        """The pool of these rows, and of others behind them."""
        return HypothesisPool(*(concat_rows(pair) for pair in zip(self.parts(), other.parts(), strict=True)))

    @staticmethod
    def woven(pools: "Sequence[HypothesisPool]") -> "HypothesisPool":
        """Of pools of equally many rows, the first row of each, then the second of each, and so on."""
        longest = max(pool.ids.shape[-1] for pool in pools)
        filled = [replace(pool, ids=pad_tokens(pool.ids, longest), logs=pad_tokens(pool.logs, longest)) for pool in pools]
        return HypothesisPool(*(torch.stack(parts, 1).flatten(0, 1)
                      for parts in zip(*(pool.parts() for pool in filled), strict=True)))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What is in the places of each row."""
        parts = (part.tolist() for part in self.parts())
        return [[make_hypothesis(*place) for place in zip(*row, strict=True) if place[0] > -torch.inf]
                for row in zip(*parts, strict=True)]

    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, in their order."""
        return self.scores, self.cut, self.lengths, self.ids, self.logs

    def _offer(self, ids: Tensor, logs: Tensor, lengths_B: Tensor, scores: Tensor, cut: Tensor) -> "HypothesisPool":
        lengths = torch.cat([self.lengths, lengths_B.unsqueeze(-1).expand_as(cut)], dim=-1)
        scores, places = torch.cat([self.scores, scores], dim=-1), self.scores.shape[-1]
        cut = torch.cat([self.cut, cut], dim=-1)
        by_score = scores.sort(dim=-1, descending=True, stable=True).indices
        order = by_score.gather(-1, cut.gather(-1, by_score).long().sort(dim=-1, stable=True).indices)[:, :places]
        tokens = order.unsqueeze(-1).expand(-1, -1, max(self.ids.shape[-1], ids.shape[-1]))
        ids, logs = _concat_places(self.ids, ids).gather(1, tokens), _concat_places(self.logs, logs).gather(1, tokens)
        return HypothesisPool(scores.gather(-1, order), cut.gather(-1, order), lengths.gather(-1, order), ids, logs)


def pad_tokens(part: Tensor, width: int, value: float = 0) -> Tensor:
    """(..., t) filled up to (..., width)."""
    return pad(part, (0, width - part.shape[-1]), value=value)


def concat_rows(parts: Sequence[Tensor], value: float = 0) -> Tensor:
    """(B, ..., t) and (C, ..., t) -> (B + C, ..., t), the shorter ones filled up."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([pad_tokens(part, longest, value) for part in parts])


def _concat_places(mine: Tensor, theirs: Tensor) -> Tensor:
    """(B, P, t) and (B, J, t) -> (B, P + J, t), the shorter ones filled up."""
    longest = max(mine.shape[-1], theirs.shape[-1])
    return torch.cat([pad_tokens(part, longest) for part in (mine, theirs)], dim=1)


def make_hypothesis(score: float, cut: bool, length: int, ids: list[int], logs: list[float]) -> Hypothesis:
    """What a place holds, of whose tokens the first `length` count, with the end."""
    ids, logs = ids[:length], logs[:length]
    return Hypothesis(ids, logs, score, None) if cut else Hypothesis(ids[:-1], logs, score, ids[-1])


# ---- live: The hypotheses of a beam search that go on, side by side, and the batch of rows that they belong to.
#
# A row has as many of them as there are beams, from the first: those that are not there yet have a total of −∞. It knows
# neither models nor how continuations are chosen.
#
# Legend: B rows, K live hypotheses of a row, J continuations, t tokens of the longest, N states of the source.


@dataclass(frozen=True)
class LiveHypotheses:
    """The hypotheses that go on, the most probable first; one whose total is −∞ only keeps its place."""

    totals: Tensor
    """(B, K): the sum of the log-probabilities."""
    ids: Tensor
    """(B, K, t): what stands behind the count of a row means nothing."""
    logs: Tensor
    """(B, K, t)"""
    tokens: Tensor
    """(B, K): the last token; anything before the first."""
    marks: Tensor
    """(B, K): what the automaton of the row's terms has come to."""
    seen: Tensor
    """(B, K, N): how much each state of the source was looked at; N is 0 where nobody asks."""

    @staticmethod
    def first(totals: Tensor, seen: Tensor) -> "LiveHypotheses":
        """Of which nothing is written: (B, K)."""
        nothing = totals.new_zeros(*totals.shape, 0)
        zeros = torch.zeros_like(totals, dtype=torch.long)
        return LiveHypotheses(totals, nothing.long(), nothing, zeros, zeros, seen)

    def extended(self, candidates: Candidates, counts: Tensor, width: int, marks: Tensor | None = None) -> "LiveHypotheses":
        """The hypotheses that candidates (B, J) make of rows with `counts` (B,) tokens, in storage for `width`."""
        index = candidates.parents.unsqueeze(-1)
        places = counts.view(-1, 1, 1).expand(-1, candidates.tokens.shape[1], 1)
        ids, logs = (pad_tokens(old, width).gather(1, index.expand(-1, -1, width)).scatter(-1, places, new.unsqueeze(-1))
                     for old, new in ((self.ids, candidates.tokens), (self.logs, candidates.logs.to(self.logs.dtype))))
        seen = self.seen.gather(1, index.expand(-1, -1, self.seen.shape[-1]))
        marks = self.marks.gather(1, candidates.parents) if marks is None else marks
        return LiveHypotheses(candidates.totals, ids, logs, candidates.tokens, marks, seen)

    def pick(self, index: Tensor | slice, width: int) -> "LiveHypotheses":
        """The hypotheses of these rows, none of which has more than `width` tokens."""
        totals, ids, logs, *others = (part[index] for part in self.parts())
        return LiveHypotheses(totals, ids[..., :width], logs[..., :width], *others)

    def joined(self, other: "LiveHypotheses") -> "LiveHypotheses":
        """Those of these rows, and of others behind them."""
        both = LiveHypotheses(*(concat_rows(pair) for pair in zip(self.parts(), other.parts(), strict=True)))
        # What is no state of a source counts as seen: nobody need look at it.
        return replace(both, seen=concat_rows((self.seen, other.seen), 1.0))

    @staticmethod
    def woven(several: "Sequence[LiveHypotheses]") -> "LiveHypotheses":
        """Of equally many rows, the first row of each, then the second of each, and so on."""
        same = zip(*(one.parts() for one in several), strict=True)
        return LiveHypotheses(*(torch.stack(parts, 1).flatten(0, 1) for parts in same))

    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, in their order."""
        return self.totals, self.ids, self.logs, self.tokens, self.marks, self.seen


@dataclass(frozen=True)
class BeamBatch:
    """The batch: for each number its groups, each with its live hypotheses and its pool."""

    numbers: list[int]
    counts: list[int]
    """How many tokens the live hypotheses have."""
    live: LiveHypotheses
    """As many rows as there are groups of all numbers, one number after another."""
    pool: HypothesisPool

    @property
    def groups(self) -> int:
        """How many rows a number has."""
        return len(self.live.totals) // max(1, len(self.numbers))

    @property
    def tokens(self) -> Tensor:
        """The last token of every hypothesis."""
        return self.live.tokens.flatten()

    def pick(self, places: Sequence[int]) -> "BeamBatch":
        """Those in these places."""
        numbers, counts = [self.numbers[place] for place in places], [self.counts[place] for place in places]
        rows = [place * self.groups + group for place in places for group in range(self.groups)]
        index = torch.tensor(rows, dtype=torch.long, device=self.live.totals.device)
        return BeamBatch(numbers, counts, self.live.pick(index, max(counts, default=0)), self.pool.pick(index))

    def joined(self, other: "BeamBatch") -> "BeamBatch":
        """These, and others behind them."""
        return BeamBatch(self.numbers + other.numbers, self.counts + other.counts, self.live.joined(other.live),
                     self.pool.joined(other.pool))
