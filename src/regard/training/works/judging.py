"""What all judgements share: the model as it is when it is used, and sums over the labels of many batches.

It does not know what is judged.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.models.contract import IGNORED
from regard.training.loss import Loss, plain_loss


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode and makes no gradients; afterwards every part is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class Sums:
    """Losses and right answers, summed over the labels of batches. They stay on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._nll, self._right, self._tokens = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(3))

    def add(self, loss: Loss) -> None:
        """The loss of a batch."""
        self._nll += loss.nll
        self._tokens += loss.tokens

    def judge(self, features: Tensor, output: nn.Linear, labels: Tensor) -> None:
        """The loss of features (..., D), and how many of the labels (...) the model finds. Those IGNORED count not."""
        counted = labels != IGNORED
        logits, labels = output(features[counted]), labels[counted]
        self.add(plain_loss(logits, labels))
        self._right += (logits.argmax(-1) == labels).sum()

    @property
    def loss(self) -> float:
        """The mean of -log p."""
        return float(self._nll / self._tokens)

    @property
    def accuracy(self) -> float:
        """The share of labels to which the model gives most; of those that were judged one by one."""
        return float(self._right / self._tokens)
