"""Rankings turn the log-probability of a hypothesis, which falls with every token, into the score that it is ranked by.

    "none"   log p                           the longer, the worse
    "mean"   log p / n
    α        log p / ((5 + n) / 6)^α         Wu et al. 2016, equation 14, without its coverage term; α = 0 is "none"

n counts the tokens that were written, the end token with them; prompts count for nothing. A ranking also says what a
hypothesis that goes on can still reach, so that a search knows when to stop. It knows neither models nor searches.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from regard import checks


class Ranking(ABC):
    """Scores by which hypotheses of one prompt are compared; the highest is the best."""

    @abstractmethod
    def score(self, total: Tensor, length: Tensor) -> Tensor:
        """The score of hypotheses of `length` tokens whose log-probabilities add up to `total`; −∞ stays −∞."""

    @abstractmethod
    def attainable(self, total: Tensor, length: Tensor, longest: Tensor) -> Tensor:
        """The best score that hypotheses of `length` tokens may have in the end, when they go on to at most `longest`.

        No continuation may score higher; that one reaches it is not asked. A further token adds at most 0 to `total`.
        """


class Divided(Ranking):
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


class Sum(Divided):
    """log p."""

    def divisor(self, length: Tensor) -> Tensor:
        """1 for every length."""
        return torch.ones_like(length)


class Mean(Divided):
    """log p / n."""

    def divisor(self, length: Tensor) -> Tensor:
        """n; what has no token at all is divided by 1."""
        return length.clamp(min=1)


class Power(Divided):
    """log p / ((5 + n) / 6)^α."""

    def __init__(self, alpha: float) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < math.inf:
            raise checks.wrong("alpha", "a number, at least 0", repr(alpha))
        self.alpha = float(alpha)

    def divisor(self, length: Tensor) -> Tensor:
        """((5 + n) / 6)^α."""
        return ((5 + length) / 6) ** self.alpha


NAMES: dict[str, type[Ranking]] = {"none": Sum, "mean": Mean}


def as_ranking(length_penalty: "str | float | Ranking") -> Ranking:
    """The ranking of this name, the one with this α, or the one that was given."""
    if isinstance(length_penalty, Ranking):
        return length_penalty
    if isinstance(length_penalty, str):
        return checks.pick("length_penalty", length_penalty, NAMES)()
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
        expected = '"none", "mean", a number α, or a Ranking'
        raise checks.wrong("length_penalty", expected, *checks.kind(length_penalty))
    return Power(length_penalty)
