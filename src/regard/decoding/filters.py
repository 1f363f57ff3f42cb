"""Which tokens may be drawn, and with which probabilities: temperature, top-k, top-p, min-p, in this order.

    temperature   log-probabilities are divided by it: below 1 nearer to greedy search, above 1 more even
    top-k         the k most probable tokens; of equal ones those with the lowest ids
    top-p         of these the most probable ones, as few as together have the probability p (Holtzman et al. 2020)
    min-p         of these the ones that have at least p times the probability of the most probable one

It knows neither models nor how is drawn.

Legend: R rows, V vocabulary, C tokens that may be drawn.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.decoding.candidates import exact
from regard.decoding.rules import whole


class Filtered(NamedTuple):
    """What may be drawn."""

    probabilities: Tensor
    """(R, C): not normalised; 0 for what may not."""
    tokens: Tensor | None
    """(R, C): which tokens these are; None where each place is its own token."""


@dataclass(frozen=True)
class Filters:
    """How the probabilities of a model are changed before a token is drawn."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        value = self.temperature
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            remedy = "For the most probable tokens ask for greedy search." if value == 0 else ""
            raise checks.wrong("temperature", "a number above 0", repr(value), remedy)
        if self.top_k is not None:
            whole("top_k", self.top_k, 1)
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)
                                      or not 0 < share <= 1):
                raise checks.wrong(name, "a probability, above 0 and at most 1", repr(share))

    def __call__(self, log_probabilities: Tensor) -> Filtered:
        """From log-probabilities (R, V) of any sum."""
        logs = log_probabilities.to(torch.float32 if log_probabilities.device.type == "mps" else torch.float64)
        # The highest becomes 0, which a low temperature leaves as it is. Rows without a number have no order.
        values = ((logs - logs.amax(dim=-1, keepdim=True)) / self.temperature).nan_to_num(-torch.inf, neginf=-torch.inf)
        tokens = None
        if self.top_k is not None and self.top_k < values.shape[-1]:
            values, tokens, _ = exact(values, self.top_k)
        elif self.top_p is not None:
            values, tokens = values.sort(dim=-1, descending=True, stable=True)
        shares = values.softmax(dim=-1)
        if self.top_p is not None:
            before = shares.cumsum(dim=-1) - shares
            shares = shares.masked_fill(before >= self.top_p, 0.0)
        if self.min_p is not None:
            shares = shares.masked_fill(shares < self.min_p * shares.amax(dim=-1, keepdim=True), 0.0)
        return Filtered(shares, tokens)
