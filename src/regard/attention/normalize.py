"""Normalisers: how a row of scores becomes a row of weights.

A normaliser sees rows of scores, bias included. A score of -inf marks a key that the query may not attend to and must
get weight 0; a row in which every score is -inf never reaches a normaliser (its weights are zeros by definition). It
does not know the values, the mask, or which backend calls it.

    softmax   w_j = exp(e_j) / Σ exp(e)        sums to 1
    relu      w_j = max(e_j, 0) / n            n is the number of keys that the query may attend to, so padding
                                               changes nothing; the weights need not sum to 1
    relu_sum  w_j = max(e_j, 0) / Σ max(e, 0)  sums to 1, or is all zeros where no score is positive
    sigmoid   w_j = 1 / (1 + exp(-e_j))        each key by itself; the weights need not sum to 1
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks


class Normalizer(ABC):
    """The base of normalisers, which turn scores into weights; subclass it, or pass any function of whole rows."""

    @abstractmethod
    def __call__(self, scores: Tensor) -> Tensor:
        """Return the weights (..., queries, keys) of scores of the same shape; rows are whole."""


class Softmax(Normalizer):
    """exp(e) divided by its sum."""

    def __call__(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)

    def __repr__(self) -> str:
        return "softmax"


class ReLUKeys(Normalizer):
    """max(e, 0) divided by the number of keys that the query may attend to."""

    def __call__(self, scores: Tensor) -> Tensor:
        count = (scores != -torch.inf).sum(-1, keepdim=True)
        return torch.relu(scores) / count

    def __repr__(self) -> str:
        return "relu"


class ReLUSum(Normalizer):
    """max(e, 0) divided by its sum; zeros where no score is positive."""

    def __call__(self, scores: Tensor) -> Tensor:
        positive = torch.relu(scores)
        total = positive.sum(-1, keepdim=True)
        return positive / total.masked_fill(total == 0, 1.0)

    def __repr__(self) -> str:
        return "relu_sum"


class Sigmoid(Normalizer):
    """The logistic function of every score by itself."""

    def __call__(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)

    def __repr__(self) -> str:
        return "sigmoid"


@dataclass(frozen=True, eq=False)
class CustomNormalizer(Normalizer):
    """A user's function of whole rows of scores."""

    function: Callable[[Tensor], Tensor]

    def __call__(self, scores: Tensor) -> Tensor:
        weights = self.function(scores)
        if weights.shape != scores.shape:
            expected = f"a function whose result has the shape of the scores, {checks.shape(scores)}"
            raise checks.wrong("normalize", expected, f"of shape {checks.shape(weights)}")
        return weights

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


NormalizerLike = str | Normalizer | Callable[[Tensor], Tensor]
"""What callers may pass as a normaliser: a name, a `Normalizer`, or a function of rows of scores."""

NORMALIZERS: dict[str, Normalizer] = {
    "softmax": Softmax(), "relu": ReLUKeys(), "relu_sum": ReLUSum(), "sigmoid": Sigmoid(),
}


def as_normalizer(normalize: NormalizerLike) -> Normalizer:
    """The argument `normalize` as a normaliser; an unknown name is a ValueError that offers the nearest valid one."""
    if isinstance(normalize, Normalizer):
        return normalize
    if isinstance(normalize, str):
        return checks.pick("normalize", normalize, NORMALIZERS)
    if callable(normalize) and not isinstance(normalize, type):
        return CustomNormalizer(normalize)
    raise checks.wrong("normalize", "a name, a Normalizer or a function of scores", *checks.kind(normalize))
