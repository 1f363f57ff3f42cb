"""The state of a beam search: candidates, live hypotheses, the pool of completed ones, and the batch of them.

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

TOPK_PIECES = (64, 100)
"""Numbers of values of which a CPU takes the maximum fast: the first that divides the vocabulary, or else the first of
all. Of 80 values it takes three times as long."""
TOPK_MIN_VALUES = 1 << 15
"""With fewer values in all rows, `torch.topk` is faster than the search by pieces."""


class TopK(NamedTuple):
    """The highest values of each row (R, M), the highest first, and their indices."""

    values: Tensor
    indices: Tensor
    ambiguous: Tensor
    """A bool: whether a value equal to the last one of a row was left out, so that the order may be wrong."""


TopKFunction = Callable[[Tensor, int], TopK]


def quick_topk(values: Tensor, count: int) -> TopK:
    """The `count` highest values of each row of (R, V), lower indices first among equals, unless `ambiguous`.

    `torch.topk` keeps no order among equals. Those that it returns can be sorted; those that it leaves out are unknown.
    But if the next value is lower than the last one, it left out no equal one. Reading `ambiguous` waits for the
    device.
    """
    return _topk(values, count, _sort_if_equal if values.device.type == "cpu" else _stable_sort)


def exact_topk(values: Tensor, count: int) -> TopK:
    """The same, never ambiguous, but several times slower: it looks for the first values that equal the last one."""
    found, indices, ambiguous = _topk(values, count, _stable_sort)
    last = found[:, -1:]
    every = torch.arange(values.shape[-1], device=values.device)
    equal = torch.where(values == last, every, values.shape[-1]).topk(count, dim=-1, largest=False).values.sort().values
    above = (found > last).sum(dim=-1, keepdim=True)
    rank = torch.arange(count, device=values.device)
    indices = torch.where(rank < above, indices, equal.gather(-1, (rank - above).clamp(min=0)))
    return TopK(found, indices, torch.zeros_like(ambiguous))


def _topk(values: Tensor, count: int, sort: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> TopK:
    if count >= values.shape[-1]:
        certain = torch.zeros((), dtype=torch.bool, device=values.device)
        return TopK(*values.sort(dim=-1, descending=True, stable=True), certain)
    found, indices = sort(*_sorted_topk(values, count + 1))
    last = found[:, count - 1]
    ambiguous = (last == found[:, count]) & (last > -torch.inf)  # forbidden tokens need no order
    return TopK(found[:, :count], indices[:, :count], ambiguous.any())


def _sorted_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row, the highest first, and their indices, in any order among equals.

    A CPU finds the maximum of a piece many times faster than the highest few of as many values. So it searches only
    the `count` pieces with the highest maxima. They are copied as a whole, which is faster than value by value.
    """
    R, V = values.shape
    size = piece_size(V)
    pieces = V // size
    if values.device.type != "cpu" or pieces < 4 * count or values.numel() < TOPK_MIN_VALUES:
        return tuple(values.topk(count, dim=-1))  # type: ignore[return-value]
    split = values[:, :pieces * size].unflatten(-1, (pieces, size))
    best = split.amax(-1).topk(count, dim=-1, sorted=False).indices
    starts = torch.add(torch.arange(0, R * V, V).unsqueeze(-1), best, alpha=size)
    windows = values.flatten().unfold(0, size, 1)  # a view: all pieces that start at any value
    searched = windows.index_select(0, starts.flatten()).view(R, -1)
    if V % size:
        searched = torch.cat([searched, values[:, pieces * size:]], dim=-1)
        best = pad(best, (0, 1), value=pieces)
    found, order = searched.topk(count, dim=-1)
    piece = best.gather(-1, order.div(size, rounding_mode="floor"))
    return found, piece * size + order.remainder(size)


def piece_size(vocabulary: int) -> int:
    """The number of values of a piece."""
    return next((size for size in TOPK_PIECES if vocabulary % size == 0), TOPK_PIECES[0])


def _sort_if_equal(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The result of `_stable_sort` for sorted values. Looking for equal ones is faster, but waits for the device."""
    return _stable_sort(values, indices) if (values[:, 1:] == values[:, :-1]).any() else (values, indices)


def _stable_sort(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The highest value first, lower indices first among equals."""
    indices, order = indices.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, indices.gather(-1, order)


@dataclass(frozen=True)
class Candidates:
    """Continuations of the hypotheses of each row by one token, the best first; each tensor is (B, C)."""

    totals: Tensor
    """The log-probability of all tokens."""
    parents: Tensor
    """The hypothesis of the row that is continued."""
    tokens: Tensor
    logs: Tensor
    """The log-probability of the token."""

    @staticmethod
    def of(totals: Tensor, logs: Tensor, count: int, topk: TopKFunction, penalty: Tensor | None = None,
           wanted: Tensor | None = None) -> "tuple[Candidates, Tensor]":
        """The `count` best continuations of each hypothesis, and whether their order is ambiguous.

        Tokens of one hypothesis are compared before its total is added, because the sum may round two of them to one.

        Args:
            totals: (B, K).
            logs: the log-probabilities (B, K, V).
            penalty: (B, V), subtracted from the log-probabilities for the comparison only.
            wanted: (B, K, W), tokens that are candidates in any case; a negative id for none.
        """
        B, K, V = logs.shape
        compared = logs if penalty is None else logs - penalty.unsqueeze(1)
        values, tokens, ambiguous = topk(compared.reshape(B * K, V), min(count, V))
        values_BKM, tokens_BKM = values.view(B, K, -1), tokens.view(B, K, -1)
        if wanted is not None:
            values_BKM, tokens_BKM = _with_wanted(wanted, compared, values_BKM, tokens_BKM)
        ranks_BC = (totals.unsqueeze(-1) + values_BKM).reshape(B, -1)
        ranks_BC, order_BC = ranks_BC.sort(dim=-1, descending=True, stable=True)
        parents_BC = order_BC // values_BKM.shape[-1]
        tokens_BC = tokens_BKM.reshape(B, -1).gather(-1, order_BC)
        if penalty is None:
            logs_BC = values_BKM.reshape(B, -1).gather(-1, order_BC)
            return Candidates(ranks_BC, parents_BC, tokens_BC, logs_BC), ambiguous
        logs_BC = logs.reshape(B, -1).gather(-1, parents_BC * V + tokens_BC)
        totals_BC = (totals.gather(-1, parents_BC) + logs_BC).masked_fill(ranks_BC == -torch.inf, -torch.inf)
        return Candidates(totals_BC, parents_BC, tokens_BC, logs_BC), ambiguous

    @staticmethod
    def of_rows(totals: Tensor, logs: Tensor, count: int) -> "tuple[Candidates, Tensor] | None":
        """The `count` best continuations of all hypotheses of a row together, and whether their order is unknown.

        On a CPU this is faster than the best of each hypothesis: of the pieces into which `_sorted_topk` divides its
        tokens, only the `count` best of the whole row are searched. Equal sums leave the order unknown.

        Args:
            totals: (B, K).
            logs: the log-probabilities (B, K, V).

        Returns:
            None if there are too few values for this to be faster, or for a device other than a CPU.
        """
        B, K, V = logs.shape
        size = piece_size(V)
        pieces, taken = V // size, count + 1
        if logs.device.type != "cpu" or K * pieces < 4 * taken or logs.numel() < TOPK_MIN_VALUES:
            return None
        split_BKPn = logs[..., :pieces * size].unflatten(-1, (pieces, size))
        highest = (totals.unsqueeze(-1) + split_BKPn.amax(-1)).flatten(1).topk(taken, dim=-1, sorted=False).indices
        parents = highest.div(pieces, rounding_mode="floor")
        starts = parents * V + size * highest.remainder(pieces)  # in a row of K · V values
        places = (starts + torch.arange(0, B * K * V, K * V).unsqueeze(-1)).flatten()
        windows = logs.flatten().unfold(0, size, 1).index_select(0, places).view(B, taken, size)
        sums, rest = (totals.gather(1, parents).unsqueeze(-1) + windows).flatten(1), V - pieces * size
        if rest:
            sums = torch.cat([sums, (totals.unsqueeze(-1) + logs[..., pieces * size:]).flatten(1)], dim=-1)
            starts = torch.cat([starts, (V * torch.arange(1, K + 1) - rest).expand(B, -1)], dim=-1)
        found, order = sums.topk(taken, dim=-1)
        window, inside = order.div(size, rounding_mode="floor"), order.remainder(size)
        if rest:
            after = order - taken * size  # among the values that fill no piece
            window = torch.where(after < 0, window, taken + after.div(rest, rounding_mode="floor"))
            inside = torch.where(after < 0, inside, after.remainder(rest))
        index = starts.gather(1, window) + inside
        equal = (found[:, 1:] == found[:, :-1]) & (found[:, 1:] > -torch.inf)
        index = index[:, :count]
        return Candidates(found[:, :count], index.div(V, rounding_mode="floor"), index.remainder(V),
                          logs.flatten(1).gather(1, index)), equal.any()

    def first(self, count: int) -> "Candidates":
        """The best `count` of each row."""
        return Candidates(*(part[:, :count] for part in self._tensors()))

    def without(self, dropped: Tensor, count: int) -> "Candidates":
        """The best `count` of each row that are not `dropped` (B, C); missing ones have totals of −∞."""
        after, order = dropped.long().sort(dim=-1, stable=True)
        return self.select(order[:, :count], after[:, :count].bool())

    def select(self, index: Tensor, dropped: Tensor) -> "Candidates":
        """Those with these indices (B, J); the `dropped` ones get totals of −∞."""
        kept = Candidates(*(part.gather(-1, index) for part in self._tensors()))
        return replace(kept, totals=kept.totals.masked_fill(dropped, -torch.inf))

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.totals, self.parents, self.tokens, self.logs


def _with_wanted(wanted: Tensor, compared: Tensor, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Values and tokens (B, K, M), followed by the wanted tokens (B, K, W) that are not among them."""
    more = compared.gather(-1, wanted.clamp(min=0))
    known = (wanted.unsqueeze(-1) == tokens.unsqueeze(-2)).any(-1) | (wanted < 0)
    return torch.cat([values, more.masked_fill(known, -torch.inf)], -1), torch.cat([tokens, wanted.clamp(min=0)], -1)


@dataclass(frozen=True)
class HypothesisPool:
    """P places for completed hypotheses of each row, the best first. A score of −∞ marks a free place."""

    scores: Tensor
    """(B, P)"""
    truncated: Tensor
    """(B, P): whether no end token came; True for a free place."""
    lengths: Tensor
    """(B, P): the number of tokens including the end token."""
    ids: Tensor
    """(B, P, t), padded after the length."""
    logs: Tensor
    """(B, P, t)"""

    @staticmethod
    def empty(rows: int, places: int, totals: Tensor) -> "HypothesisPool":
        """A pool of free places, whose scores have the dtype of the totals."""
        scores = totals.new_full((rows, places), -torch.inf)
        ids = torch.zeros(rows, places, 0, dtype=torch.long, device=totals.device)
        return HypothesisPool(scores, torch.ones_like(scores, dtype=torch.bool), ids.new_zeros(rows, places), ids,
                              totals.new_zeros(rows, places, 0))

    @property
    def threshold(self) -> Tensor:
        """(B,): the score that a hypothesis must exceed to enter; −∞ unless all places hold finished hypotheses."""
        return self.scores[:, -1].masked_fill(self.truncated[:, -1], -torch.inf)

    def add_finished(self, ids: Tensor, logs: Tensor, lengths: Tensor, scores: Tensor) -> "HypothesisPool":
        """Add hypotheses (B, J, t) with an end token, of `lengths` (B,) and scores (B, J); −∞ is not added."""
        return self._add(ids, logs, lengths, scores, scores == -torch.inf)

    def add_truncated(self, ids: Tensor, logs: Tensor, lengths: Tensor, scores: Tensor) -> "HypothesisPool":
        """Add hypotheses without an end token; they take free places only."""
        return self._add(ids, logs, lengths, scores, torch.ones_like(scores, dtype=torch.bool))

    def select(self, index: Tensor | slice) -> "HypothesisPool":
        """The pool of these rows."""
        return HypothesisPool(*(part[index] for part in self.tensors()))

    def concat(self, other: "HypothesisPool") -> "HypothesisPool":
        """The pool of these rows followed by those of another pool."""
        return HypothesisPool(*(concat_rows(pair) for pair in zip(self.tensors(), other.tensors(), strict=True)))

    @staticmethod
    def interleave(pools: "Sequence[HypothesisPool]") -> "HypothesisPool":
        """The first row of each pool, then the second row of each, and so on."""
        longest = max(pool.ids.shape[-1] for pool in pools)
        padded = [replace(pool, ids=pad_tokens(pool.ids, longest), logs=pad_tokens(pool.logs, longest))
                  for pool in pools]
        return HypothesisPool(*(torch.stack(parts, 1).flatten(0, 1)
                                for parts in zip(*(pool.tensors() for pool in padded), strict=True)))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The hypotheses of each row."""
        parts = (part.tolist() for part in self.tensors())
        return [[make_hypothesis(*place) for place in zip(*row, strict=True) if place[0] > -torch.inf]
                for row in zip(*parts, strict=True)]

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in the order of the fields."""
        return self.scores, self.truncated, self.lengths, self.ids, self.logs

    def _add(self, ids: Tensor, logs: Tensor, lengths_B: Tensor, scores: Tensor, truncated: Tensor) -> "HypothesisPool":
        lengths = torch.cat([self.lengths, lengths_B.unsqueeze(-1).expand_as(truncated)], dim=-1)
        scores, places = torch.cat([self.scores, scores], dim=-1), self.scores.shape[-1]
        truncated = torch.cat([self.truncated, truncated], dim=-1)
        by_score = scores.sort(dim=-1, descending=True, stable=True).indices
        finished_first = truncated.gather(-1, by_score).long().sort(dim=-1, stable=True).indices
        order = by_score.gather(-1, finished_first)[:, :places]
        tokens = order.unsqueeze(-1).expand(-1, -1, max(self.ids.shape[-1], ids.shape[-1]))
        ids, logs = _concat_places(self.ids, ids).gather(1, tokens), _concat_places(self.logs, logs).gather(1, tokens)
        return HypothesisPool(scores.gather(-1, order), truncated.gather(-1, order), lengths.gather(-1, order), ids,
                              logs)


def pad_tokens(part: Tensor, width: int, value: float = 0) -> Tensor:
    """(..., t) padded to (..., width); the tensor itself if it is so wide."""
    return part if part.shape[-1] == width else pad(part, (0, width - part.shape[-1]), value=value)


def concat_rows(parts: Sequence[Tensor], value: float = 0) -> Tensor:
    """(B, ..., t) and (C, ..., t) -> (B + C, ..., t), the shorter ones padded."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([pad_tokens(part, longest, value) for part in parts])


def _concat_places(mine: Tensor, theirs: Tensor) -> Tensor:
    """(B, P, t) and (B, J, t) -> (B, P + J, t), the shorter ones padded."""
    longest = max(mine.shape[-1], theirs.shape[-1])
    return torch.cat([pad_tokens(part, longest) for part in (mine, theirs)], dim=1)


def make_hypothesis(score: float, truncated: bool, length: int, ids: list[int], logs: list[float]) -> Hypothesis:
    """The hypothesis in a place of a pool, from its first `length` tokens, which include the end token."""
    ids, logs = ids[:length], logs[:length]
    return Hypothesis(ids, logs, score, None) if truncated else Hypothesis(ids[:-1], logs, score, ids[-1])


@dataclass(frozen=True)
class LiveHypotheses:
    """The hypotheses that continue, the most probable first; a total of −∞ marks an empty one."""

    totals: Tensor
    """(B, K): the sum of the log-probabilities."""
    ids: Tensor
    """(B, K, t): entries after the length of a row are undefined."""
    logs: Tensor
    """(B, K, t)"""
    tokens: Tensor
    """(B, K): the last token; undefined before the first step."""
    term_states: Tensor
    """(B, K): the states of the row's `TermAutomaton`."""
    coverage: Tensor
    """(B, K, N): the summed attention weights of each source state; N is 0 without a coverage penalty."""

    @staticmethod
    def empty(totals: Tensor, coverage: Tensor) -> "LiveHypotheses":
        """Hypotheses (B, K) without tokens."""
        nothing = totals.new_zeros(*totals.shape, 0)
        zeros = torch.zeros_like(totals, dtype=torch.long)
        return LiveHypotheses(totals, nothing.long(), nothing, zeros, zeros, coverage)

    def extend(self, candidates: Candidates, lengths: Tensor, width: int,
               term_states: Tensor | None = None) -> "LiveHypotheses":
        """Append candidates (B, J) to rows of `lengths` (B,) tokens, in storage for `width` tokens."""
        index = candidates.parents.unsqueeze(-1)
        places = lengths.view(-1, 1, 1).expand(-1, candidates.tokens.shape[1], 1)
        every = index.expand(-1, -1, width)
        ids, logs = (pad_tokens(old, width).gather(1, every).scatter(-1, places, new.unsqueeze(-1))
                     for old, new in ((self.ids, candidates.tokens), (self.logs, candidates.logs.to(self.logs.dtype))))
        states = self.coverage.shape[-1]
        coverage = self.coverage.gather(1, index.expand(-1, -1, states)) if states else self.coverage
        term_states = self.term_states.gather(1, candidates.parents) if term_states is None else term_states
        return LiveHypotheses(candidates.totals, ids, logs, candidates.tokens, term_states, coverage)

    def select(self, index: Tensor | slice, width: int) -> "LiveHypotheses":
        """The hypotheses of these rows, none of which has more than `width` tokens."""
        totals, ids, logs, *others = (part[index] for part in self.tensors())
        return LiveHypotheses(totals, ids[..., :width], logs[..., :width], *others)

    def concat(self, other: "LiveHypotheses") -> "LiveHypotheses":
        """The hypotheses of these rows followed by those of others."""
        both = LiveHypotheses(*(concat_rows(pair) for pair in zip(self.tensors(), other.tensors(), strict=True)))
        # Padding of a source counts as covered.
        return replace(both, coverage=concat_rows((self.coverage, other.coverage), 1.0))

    @staticmethod
    def interleave(several: "Sequence[LiveHypotheses]") -> "LiveHypotheses":
        """The first row of each, then the second row of each, and so on."""
        same = zip(*(one.tensors() for one in several), strict=True)
        return LiveHypotheses(*(torch.stack(parts, 1).flatten(0, 1) for parts in same))

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in the order of the fields."""
        return self.totals, self.ids, self.logs, self.tokens, self.term_states, self.coverage


@dataclass(frozen=True)
class BeamBatch:
    """The batch of a beam search: the live hypotheses and the pool of each group of beams of each sequence."""

    sequences: list[int]
    lengths: list[int]
    """The number of tokens that the live hypotheses of each sequence have."""
    live: LiveHypotheses
    """One row for each group of each sequence, the groups of a sequence one after another."""
    pool: HypothesisPool

    @property
    def groups(self) -> int:
        """The number of groups of a sequence."""
        return len(self.live.totals) // max(1, len(self.sequences))

    @property
    def tokens(self) -> Tensor:
        """The last token of every live hypothesis."""
        return self.live.tokens.flatten()

    def select(self, slots: Sequence[int]) -> "BeamBatch":
        """The sequences in these slots."""
        sequences, lengths = [self.sequences[slot] for slot in slots], [self.lengths[slot] for slot in slots]
        groups = self.groups
        rows = [slot * groups + group for slot in slots for group in range(groups)]
        index = torch.tensor(rows, dtype=torch.long, device=self.live.totals.device)
        return BeamBatch(sequences, lengths, self.live.select(index, max(lengths, default=0)), self.pool.select(index))

    def with_tokens(self, tokens: Tensor) -> "BeamBatch":
        """The same hypotheses, which read these tokens (R,) next."""
        return replace(self, live=replace(self.live, tokens=tokens.view_as(self.live.tokens)))

    def concat(self, other: "BeamBatch") -> "BeamBatch":
        """These sequences followed by those of another batch."""
        return BeamBatch(self.sequences + other.sequences, self.lengths + other.lengths, self.live.concat(other.live),
                         self.pool.concat(other.pool))
