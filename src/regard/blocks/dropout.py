"""Dropout: features set to zero at random while training, the others scaled up so that the mean stays.

    y = x ⊙ m / (1 - p),      m = 1 with probability 1 - p

As torch's, but on a CPU. There torch draws a random number of its own for every feature, on one thread, which took 16 %
of the training of a small Transformer; here one draw of 64 bits serves four features. p is then a multiple of 1/65536,
and the scale is made for that p exactly. It follows torch's random state like any other draw. It knows no layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks

STEPS = 1 << 16
"""How many values of p there are."""


def dropout(x: Tensor, probability: float) -> Tensor:
    """x with features dropped."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability)
    dropped = min(round(probability * STEPS), STEPS - 1)  # below 1, as the probability is
    drawn = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
    numbers = drawn.view(torch.int16)[:x.numel()].view(x.shape)  # -32768 to 32767, all equally often
    # Compared straight into numbers of x: by way of truth values it takes five times as long.
    kept = torch.ge(numbers, dropped - STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return x * kept.mul_(STEPS / (STEPS - dropped))


class Dropout(nn.Module):
    """Dropout while training; nothing otherwise."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        checks.probability("dropout", probability)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """x, with features dropped while training."""
        return dropout(x, self.probability) if self.training and self.probability else x

    def extra_repr(self) -> str:
        return f"{self.probability}"
