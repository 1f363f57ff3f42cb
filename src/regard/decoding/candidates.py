"""Which continuations of the hypotheses of a row are the best.

Of equal ones the earlier hypothesis goes first, and then the lower token, so that a result never depends on how a
device sorts. It knows no models, and not what is done with the best.

Legend: R hypotheses of all rows, B rows, K hypotheses of a row, V vocabulary, M tokens considered of one hypothesis,
C = K·M candidates of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


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
    found, places = _sorted(*values.topk(count + 1, dim=-1))
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
    def of(totals: Tensor, logs: Tensor, count: int, find: Find) -> "tuple[Candidates, Tensor]":
        """From totals (B, K) and log-probabilities (B, K, V), of each hypothesis its `count` best; and whether unsure.

        Tokens of one hypothesis are compared before its total is added, because the sum may round two of them to one.
        """
        B, K, V = logs.shape
        values, tokens, unsure = find(logs.reshape(B * K, V), min(count, V))
        values_BKM, tokens_BC = values.view(B, K, -1), tokens.reshape(B, -1)
        totals_BKM = totals.unsqueeze(-1) + values_BKM
        totals_BC, order_BC = totals_BKM.reshape(B, -1).sort(dim=-1, descending=True, stable=True)
        parents_BC = order_BC // values_BKM.shape[-1]
        return Candidates(totals_BC, parents_BC, tokens_BC.gather(-1, order_BC),
                          values_BKM.reshape(B, -1).gather(-1, order_BC)), unsure

    def first(self, count: int) -> "Candidates":
        """The best `count` of each row."""
        return Candidates(*(part[:, :count] for part in (self.totals, self.parents, self.tokens, self.logs)))

    def without(self, dropped: Tensor, count: int) -> "Candidates":
        """The best `count` of each row that are not `dropped` (B, C); where there are fewer, totals of −∞."""
        behind, order = dropped.long().sort(dim=-1, stable=True)
        kept = Candidates(*(part.gather(-1, order) for part in (self.totals, self.parents, self.tokens, self.logs)))
        totals = kept.totals.masked_fill(behind.bool(), -torch.inf)
        return Candidates(totals, kept.parents, kept.tokens, kept.logs).first(count)
