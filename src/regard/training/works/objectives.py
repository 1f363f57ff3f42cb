"""The loss of models whose features follow from what they read: texts, texts with hidden tokens, texts and images with
a label.

    features(inputs) ── output ── -log p of the labels, with smoothing; with a consistency, of two passes that agree

It does not know where batches come from.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.images.scaling import scaled
from regard.training.consistency import agreement_loss
from regard.training.loss import Loss, token_loss
from regard.training.work import Objective


class ReadingObjective(Objective):
    """The loss of a model that has `features` and `output`, on batches that have `inputs` and `labels`."""

    def __init__(self, model: nn.Module, smoothing: float, consistency: float) -> None:
        super().__init__(model)
        self.smoothing, self.consistency = smoothing, consistency

    def forward(self, batch: Any) -> Loss:
        """The sums over the labels."""
        features: Callable[[Any], Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        inputs = as_read(batch.inputs)
        if not self.consistency or not self.training:
            return token_loss(features(inputs), output, batch.labels, self.smoothing)
        states = torch.stack([features(inputs), features(inputs)])
        return agreement_loss(states, output, batch.labels, self.smoothing, self.consistency)


def as_read(inputs: Any) -> Any:
    """What a model is given: the bytes of images are scaled, all else is as it is."""
    return scaled(inputs) if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 else inputs
