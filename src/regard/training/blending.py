"""Blending: a fine-tuned model whose weights are interpolated with those of its start model.

    θ = θ_start + share · (θ_new - θ_start)            0 is the start model, 1 the new one

In between lie models that know most of the new domain and have forgotten little of the old one (Wortsman et al. 2022).
The share is the best of eleven on the validation data: by the score of the new data; or, with general validation data,
by the mean of that score and the same score of the general data, since the new data alone would seldom ask for less
than 1. Of equal shares the larger one is taken.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.checks import plural
from regard.training.config import GENERAL, HIGHER_IS_BETTER

BLEND_SHARES = tuple(number / 10 for number in range(11))
"""The shares of the new weights among which the best one is chosen."""
Scores = Mapping[str, float]


@dataclass(frozen=True)
class BlendChoice:
    """The chosen share of the new weights, and its scores."""

    share: float
    scores: Scores
    tried: Mapping[float, Scores]
    """The scores of all shares that were compared."""

    def describe(self, metric: str) -> str:
        """A sentence about the choice."""
        if len(self.tried) == 1:
            return f"Blended with the start model: {self.share:.0%} of the change is kept, as you have set it."
        rule = f"the mean of {metric} on new and general data" if f"{GENERAL}{metric}" in self.scores else metric
        return (f"Blended with the start model: {self.share:.0%} of the change is kept, the best of "
                f"{plural(len(self.tried), 'share')} by {rule}.")


@torch.no_grad()
def interpolate(model: nn.Module, start: Mapping[str, Tensor], new: Mapping[str, Tensor], share: float) -> None:
    """Interpolate between two sets of weights; tensors of integers are those of the new one."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        first, second = start[name].to(tensor.device), new[name].to(tensor.device)
        tensor.copy_(torch.lerp(first, second, share) if tensor.is_floating_point() else second)


def final_validations(share: float | None) -> int:
    """The most validations that blending needs: start and new model were validated already, but if one of them is
    chosen, it is validated again for its confidence intervals."""
    return 1 if share is not None else len(BLEND_SHARES) - 1


def choose_share(validate: Callable[[float], Scores], metric: str, share: float | None,
                 known: Mapping[float, Scores]) -> BlendChoice:
    """Validate models of several shares, and choose the best.

    Args:
        validate: the scores of a share.
        share: the one that the user has set; None to choose.
        known: shares that were validated already.
    """
    tried = {one: known[one] if one in known else validate(one) for one in (BLEND_SHARES if share is None else [share])}
    best = max(tried, key=lambda one: (_value(tried[one], metric), one))
    return BlendChoice(best, tried[best], tried)


def _value(scores: Scores, metric: str) -> float:
    """What is compared, the higher the better; a score that is not finite is the worst."""
    values = [scores[name] for name in (metric, f"{GENERAL}{metric}") if name in scores]
    mean = sum(values) / len(values) * (1 if HIGHER_IS_BETTER[metric] else -1)
    return mean if math.isfinite(mean) else -math.inf
