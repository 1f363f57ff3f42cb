"""The score by which a beam search ranks hypotheses: length penalties and the coverage penalty.

    "none"   log p                           longer hypotheses score lower
    "mean"   log p / n
    α        log p / ((5 + n) / 6)^α         Wu et al. 2016, equation 14; α = 0 is "none"

n counts the generated tokens including the end token, not the prompt. A length penalty also bounds the score that an
unfinished hypothesis can still reach, so that a search knows when to stop.

The coverage penalty lowers the score of a hypothesis that leaves part of its source unattended:

    β · Σ_i log(min(Σ_j a_ij, 1))            Wu et al. 2016, equation 14

a_ij is the cross-attention weight of source state i when token j was predicted, averaged over layers and heads; the
end token counts as a token. The penalty is at most 0. This module knows neither models nor searches.

Legend: B rows, K hypotheses of a row, R = B·K, L layers, H heads, N states of the source.
"""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number

MAX_PENALTY = 1e30
"""The largest weight that a penalty is computed with: it outweighs every log-probability, and fits into float32."""


def check_weight(argument: str, weight: float) -> float:
    """Refuse what is not a finite number of at least 0."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= sys.float_info.max:
        raise checks.wrong(argument, "a number, at least 0", repr(weight))
    return weight


class LengthPenalty(ABC):
    """How the log-probability and the length of a hypothesis give its score; the highest score is the best."""

    @abstractmethod
    def score(self, total: Tensor, length: Tensor) -> Tensor:
        """The score of hypotheses of `length` tokens whose log-probabilities add up to `total`; −∞ stays −∞."""

    @abstractmethod
    def attainable(self, total: Tensor, length: Tensor, longest: Tensor) -> Tensor:
        """An upper bound of the final score of hypotheses of `length` tokens that may grow to `longest` tokens.

        No continuation may score higher; the bound need not be reached. A further token adds at most 0 to `total`.
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
        """The score if all further tokens were certain: total ≤ 0 divided by the largest divisor."""
        return total / self.divisor(longest)


class NoLengthPenalty(DividingPenalty):
    """log p."""

    def divisor(self, length: Tensor) -> Tensor:
        """1 for every length."""
        return torch.ones_like(length)


class MeanLengthPenalty(DividingPenalty):
    """log p / n."""

    def divisor(self, length: Tensor) -> Tensor:
        """n, and 1 for an empty hypothesis."""
        return length.clamp(min=1)


class PowerLengthPenalty(DividingPenalty):
    """log p / ((5 + n) / 6)^α."""

    def __init__(self, alpha: float) -> None:
        self.alpha = float(check_weight("alpha", alpha))

    def divisor(self, length: Tensor) -> Tensor:
        """((5 + n) / 6)^α, for a very large α the nearest number that is not ∞ or near 0: −∞ / ∞ is NaN."""
        power = ((5 + length) / 6) ** self.alpha
        return power.clamp(1 / MAX_PENALTY, torch.finfo(power.dtype).max)


LENGTH_PENALTIES: dict[str, type[LengthPenalty]] = {"none": NoLengthPenalty, "mean": MeanLengthPenalty}


def as_length_penalty(length_penalty: "str | float | LengthPenalty") -> LengthPenalty:
    """The length penalty of this name or α; a LengthPenalty is returned as it is."""
    if isinstance(length_penalty, LengthPenalty):
        return length_penalty
    if isinstance(length_penalty, str):
        return checks.pick("length_penalty", length_penalty, LENGTH_PENALTIES)()
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
        expected = '"none", "mean", a number α, or a LengthPenalty'
        raise checks.wrong("length_penalty", expected, *checks.kind(length_penalty))
    check_weight("length_penalty", length_penalty)
    return PowerLengthPenalty(length_penalty)


MIN_COVERAGE = 1e-10
"""The least coverage of a state: log 0 would forbid a hypothesis."""


@dataclass(frozen=True)
class CoveragePenalty:
    """The weight β of the coverage penalty, and the decoder layer that it reads, from 0; None averages all layers."""

    weight: float
    layer: int | None = None

    def __post_init__(self) -> None:
        check_weight("weight", self.weight)
        if self.layer is not None:
            whole_number("layer", self.layer)

    def attended(self, cross: Tensor) -> Tensor:
        """The weight of each state in one step, (R, N), from the weights of all layers and heads (R, L, H, N)."""
        if self.layer is None:
            return cross.mean(dim=(1, 2))
        if self.layer >= cross.shape[1]:
            raise checks.wrong("layer", f"a layer of the decoder, from 0 to {cross.shape[1] - 1}", self.layer)
        return cross[:, self.layer].mean(dim=1)

    def score(self, coverage: Tensor) -> Tensor:
        """The number to add to the score, (B, K), from the summed weights of each state, (B, K, N)."""
        return min(self.weight, MAX_PENALTY) * coverage.clamp(min=MIN_COVERAGE, max=1.0).log().sum(dim=-1)


def initial_coverage(present: Tensor, beams: int, like: Tensor) -> Tensor:
    """The coverage (B, K, N) before the first step: 0 for states that are `present` (B, N), 1 for padding."""
    return (~present).to(like.dtype).unsqueeze(1).repeat(1, beams, 1)


def as_coverage_penalty(coverage_penalty: "float | CoveragePenalty | None") -> CoveragePenalty | None:
    """The coverage penalty of this weight; a CoveragePenalty or None is returned as it is."""
    if coverage_penalty is None or isinstance(coverage_penalty, CoveragePenalty):
        return coverage_penalty
    if isinstance(coverage_penalty, bool) or not isinstance(coverage_penalty, int | float):
        raise checks.wrong("coverage_penalty", "a number β, a CoveragePenalty, or None", *checks.kind(coverage_penalty))
    check_weight("coverage_penalty", coverage_penalty)
    return CoveragePenalty(coverage_penalty)
