"""The score by which a beam search ranks hypotheses: length penalties and the coverage penalty.

    "none"   log p                           longer hypotheses score lower
    "mean"   log p / n
    α        log p / ((5 + n) / 6)^α         Wu et al. 2016, equation 14; α = 0 is "none"

n counts the generated tokens including the end token, not the prompt. A length penalty also bounds the score that an
unfinished hypothesis can still reach, so that a search knows when to stop.

The coverage penalty lowers the score of a hypothesis that leaves part of its source unattended:

    β · Σ_i log(min(Σ_j a_ij, 1))            Wu et al. 2016, equation 14

a_ij is the cross-attention weight of source state i when token j was predicted, averaged over layers and heads; the
end token counts as a token. The penalty is at most 0.

This module knows neither models nor searches.

Legend: B rows, K hypotheses of a row, R = B·K, L layers, H heads, N states of the source.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number


class LengthPenalty(ABC):
    """Scores by which hypotheses of one prompt are compared; the highest is the best."""

    @abstractmethod
    def score(self, total: Tensor, length: Tensor) -> Tensor:
        """The score of hypotheses of `length` tokens whose log-probabilities add up to `total`; −∞ stays −∞."""

    @abstractmethod
    def attainable(self, total: Tensor, length: Tensor, longest: Tensor) -> Tensor:
        """The best score that hypotheses of `length` tokens may have in the end, when they go on to at most `longest`.

        No continuation may score higher; that one reaches it is not asked. A further token adds at most 0 to `total`.
        """


class DividingPenalty(LengthPenalty):
    """The log-probability divided by a number that never falls with the length."""

    @abstractmethod
    def divisor(self, length: Tensor) -> Tensor:
        """A positive number for each length."""

    def score(self, total: Tensor, length: Tensor) -> Tensor:
        """total / divisor(length)."""
        return total / self.divisor(length)

    def attainable(self, total: Tensor, length: Tensor, longest: Tensor) -> Tensor:
        """All tokens to come are certain, and as many as allowed: total ≤ 0 is divided by the largest divisor."""
        return total / self.divisor(longest)


class NoLengthPenalty(DividingPenalty):
    """log p."""

    def divisor(self, length: Tensor) -> Tensor:
        """1 for every length."""
        return torch.ones_like(length)


class MeanLengthPenalty(DividingPenalty):
    """log p / n."""

    def divisor(self, length: Tensor) -> Tensor:
        """n; what has no token at all is divided by 1."""
        return length.clamp(min=1)


class PowerLengthPenalty(DividingPenalty):
    """log p / ((5 + n) / 6)^α."""

    def __init__(self, alpha: float) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < math.inf:
            raise checks.wrong("alpha", "a number, at least 0", repr(alpha))
        self.alpha = float(alpha)

    def divisor(self, length: Tensor) -> Tensor:
        """((5 + n) / 6)^α."""
        return ((5 + length) / 6) ** self.alpha


LENGTH_PENALTIES: dict[str, type[LengthPenalty]] = {"none": NoLengthPenalty, "mean": MeanLengthPenalty}


def as_length_penalty(length_penalty: "str | float | LengthPenalty") -> LengthPenalty:
    """The ranking of this name, the one with this α, or the one that was given."""
    if isinstance(length_penalty, LengthPenalty):
        return length_penalty
    if isinstance(length_penalty, str):
        return checks.pick("length_penalty", length_penalty, LENGTH_PENALTIES)()
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
        expected = '"none", "mean", a number α, or a Ranking'
        raise checks.wrong("length_penalty", expected, *checks.kind(length_penalty))
    return PowerLengthPenalty(length_penalty)


# ---- coverage: Coverage: a hypothesis that leaves part of its source unseen scores lower.
#
#     β · Σ_i log(min(Σ_j a_ij, 1))        Wu et al. 2016, equation 14
#
# a_ij is the weight of state i of the source in the look from which token j was predicted, the end among them; of several
# layers and heads, their mean. The sum is at most 0, where every state was looked at with a weight of 1 in all: what a
# search may still reach is 0. It knows neither models nor searches.
#
# Legend: B rows, K hypotheses of a row, R = B·K, L layers, H heads, N states of the source.

MIN_COVERAGE = 1e-10
"""The least that a state counts as seen: the logarithm of nothing would forbid a hypothesis."""


@dataclass(frozen=True)
class CoveragePenalty:
    """How much coverage counts, and in which layer of the decoder, from 0; in all of them where None."""

    weight: float
    layer: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 <= self.weight < math.inf:
            raise checks.wrong("weight", "a number, at least 0", repr(self.weight))
        if self.layer is not None:
            whole_number("layer", self.layer)

    def look(self, cross: Tensor) -> Tensor:
        """The weights of one step (R, L, H, N) to one for each state, (R, N)."""
        if self.layer is None:
            return cross.mean(dim=(1, 2))
        if self.layer >= cross.shape[1]:
            raise checks.wrong("layer", f"one of the decoder's {cross.shape[1]}, below {cross.shape[1]}", self.layer)
        return cross[:, self.layer].mean(dim=1)

    def score(self, seen: Tensor) -> Tensor:
        """From how much each state was looked at, (B, K, N), what is added to the score, (B, K)."""
        return self.weight * seen.clamp(min=MIN_COVERAGE, max=1.0).log().sum(dim=-1)


def initial_coverage(present: Tensor, beams: int, like: Tensor) -> Tensor:
    """(B, K, N) before the first look, from which states are there, (B, N): what is not there need not be looked at."""
    return (~present).to(like.dtype).unsqueeze(1).repeat(1, beams, 1)


def as_coverage_penalty(coverage: "float | CoveragePenalty | None") -> CoveragePenalty | None:
    """The one of this weight, or the one that was given; None for none."""
    if coverage is None or isinstance(coverage, CoveragePenalty):
        return coverage
    if isinstance(coverage, bool) or not isinstance(coverage, int | float):
        raise checks.wrong("coverage", "a number β, a Coverage, or None", *checks.kind(coverage))
    return CoveragePenalty(coverage)
