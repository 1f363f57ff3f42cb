"""Coverage: a hypothesis that leaves part of its source unseen scores lower.

    β · Σ_i log(min(Σ_j a_ij, 1))        Wu et al. 2016, equation 14

a_ij is the weight of state i of the source in the look from which token j was predicted, the end among them; of several
layers and heads, their mean. The sum is at most 0, where every state was looked at with a weight of 1 in all: what a
search may still reach is 0. It knows neither models nor searches.

Legend: B rows, K hypotheses of a row, R = B·K, L layers, H heads, N states of the source.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from regard import checks
from regard.decoding.rules import whole

UNSEEN = 1e-10
"""The least that a state counts as seen: the logarithm of nothing would forbid a hypothesis."""


@dataclass(frozen=True)
class Coverage:
    """How much coverage counts, and in which layer of the decoder, from 0; in all of them where None."""

    weight: float
    layer: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 <= self.weight < math.inf:
            raise checks.wrong("weight", "a number, at least 0", repr(self.weight))
        if self.layer is not None:
            whole("layer", self.layer)

    def look(self, cross: Tensor) -> Tensor:
        """The weights of one step (R, L, H, N) to one for each state, (R, N)."""
        if self.layer is None:
            return cross.mean(dim=(1, 2))
        if self.layer >= cross.shape[1]:
            raise checks.wrong("layer", f"one of the decoder's {cross.shape[1]}, below {cross.shape[1]}", self.layer)
        return cross[:, self.layer].mean(dim=1)

    def score(self, seen: Tensor) -> Tensor:
        """From how much each state was looked at, (B, K, N), what is added to the score, (B, K)."""
        return self.weight * seen.clamp(min=UNSEEN, max=1.0).log().sum(dim=-1)


def unseen(present: Tensor, beams: int, like: Tensor) -> Tensor:
    """(B, K, N) before the first look, from which states are there, (B, N): what is not there need not be looked at."""
    return (~present).to(like.dtype).unsqueeze(1).repeat(1, beams, 1)


def as_coverage(coverage: "float | Coverage | None") -> Coverage | None:
    """The one of this weight, or the one that was given; None for none."""
    if coverage is None or isinstance(coverage, Coverage):
        return coverage
    if isinstance(coverage, bool) or not isinstance(coverage, int | float):
        raise checks.wrong("coverage", "a number β, a Coverage, or None", *checks.kind(coverage))
    return Coverage(coverage)
