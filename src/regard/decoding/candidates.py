"""Which continuations of the hypotheses of a row are the best.

Of equal ones the earlier hypothesis goes first, and then the lower token, so that a result never depends on how a
device sorts. It knows no models, and not what is done with the best.

Legend: R hypotheses of all rows, B rows, K hypotheses of a row, V vocabulary, M tokens considered of one hypothesis,
C = K·M candidates of a row, J some of them, W tokens that are wanted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

PIECE = 128
"""Values of a row that are looked through together on a CPU."""


class Highest(NamedTuple):
    """The highest values of each row (R, M), highest first, and where they stand."""

    values: Tensor
    places: Tensor
    unsure: Tensor
    """A bool: whether a value just as high as the last one of a row was left out, and maybe stood before it."""


Find = Callable[[Tensor, int], Highest]


def quick(values: Tensor, count: int) -> Highest:
    """The `count` highest values of each row of (R, V), lower places first among equals, where that is for sure.

    topk keeps no order among equals. What it has found can be sorted; what it has left out cannot be known, but where
    one more value is lower than the last, it has left out none that is equal. To look at `unsure` asks the device.
    """
    if count >= values.shape[-1]:
        sure = torch.zeros((), dtype=torch.bool, device=values.device)
        return Highest(*values.sort(dim=-1, descending=True, stable=True), sure)
    found, places = _sorted(*_highest(values, count + 1))
    last = found[:, count - 1]
    unsure = (last == found[:, count]) & (last > -torch.inf)  # what is forbidden needs no order
    return Highest(found[:, :count], places[:, :count], unsure.any())


def exact(values: Tensor, count: int) -> Highest:
    """As `quick`, and for sure, in a few times the time: it looks for the first of those that equal the last."""
    found, places, unsure = quick(values, count)
    last = found[:, -1:]
    every = torch.arange(values.shape[-1], device=values.device)
    equal = torch.where(values == last, every, values.shape[-1]).topk(count, dim=-1, largest=False).values.sort().values
    above = (found > last).sum(dim=-1, keepdim=True)
    rank = torch.arange(count, device=values.device)
    places = torch.where(rank < above, places, equal.gather(-1, (rank - above).clamp(min=0)))
    return Highest(found, places, torch.zeros_like(unsure))


def _highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row, and where they stand; which of equal ones is for the device to say.

    A CPU finds the maximum of a piece many times as fast as the highest few of as many values: those are looked for in
    the pieces with the highest maxima alone, of which `count` are enough.
    """
    R, V = values.shape
    pieces = V // PIECE
    if values.device.type != "cpu" or pieces < 4 * count:
        return tuple(values.topk(count, dim=-1))  # type: ignore[return-value]
    whole = values[:, :pieces * PIECE].unflatten(-1, (pieces, PIECE))
    best = whole.amax(-1).topk(count, dim=-1).indices.unsqueeze(-1)
    inside = torch.arange(PIECE, device=values.device)
    places = (best * PIECE + inside).flatten(1)
    if V % PIECE:
        rest = torch.arange(pieces * PIECE, V, device=values.device)
        places = torch.cat([places, rest.expand(R, -1)], dim=-1)
    found, order = values.gather(-1, places).topk(count, dim=-1)
    return found, places.gather(-1, order)


def _sorted(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
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
    def of(totals: Tensor, logs: Tensor, count: int, find: Find, handicap: Tensor | None = None,
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
            values_BKM, tokens_BKM = _with(wanted, compared, values_BKM, tokens_BKM)
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


def _with(wanted: Tensor, compared: Tensor, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Values and tokens (B, K, M), and the wanted ones (B, K, W) behind them that are not among them."""
    more = compared.gather(-1, wanted.clamp(min=0))
    there = (wanted.unsqueeze(-1) == tokens.unsqueeze(-2)).any(-1) | (wanted < 0)
    return torch.cat([values, more.masked_fill(there, -torch.inf)], -1), torch.cat([tokens, wanted.clamp(min=0)], -1)
