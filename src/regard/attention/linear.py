"""The linear layer, y = W x + b, with a gradient of b that a kernel sums.

It is torch's in all: parameters, names, initial values, results. While training on a GPU the gradient of the bias, the
sum of the columns of a tall matrix, comes from `regard.attention.kernels.columns`. It knows neither attention nor
blocks.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.kernels import usable


class Linear(nn.Linear):
    """W x + b."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (out, in) · x (..., in) + bias (out,)."""
    if bias is None or not _summed(x, weight, bias):
        return F.linear(x, weight, bias)
    y: Tensor = _Biased.apply(x, weight, bias)
    return y


def _summed(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the gradient of the bias will be asked for, and is summed by the kernel."""
    return (torch.is_grad_enabled() and bias.requires_grad and usable(x, weight, bias)
            and x.dtype == weight.dtype == bias.dtype and not torch.is_autocast_enabled("cuda"))


class _Biased(torch.autograd.Function):
    """y = W x + b;  ∂x = Wᵀ ∂y,  ∂W = ∂y xᵀ,  ∂b = Σ ∂y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        g = upstream[0].reshape(-1, weight.shape[0])
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (torch.mm(g, weight).view(x.shape) if of_x else None,
                torch.mm(g.t(), x.reshape(-1, x.shape[-1])) if of_weight else None,
                _column_sums(g) if of_bias else None)


def _column_sums(g: Tensor) -> Tensor:
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted, which the kernel does not have
        return g.sum(0)
    from regard.attention.kernels.columns import column_sums  # imports Triton

    return column_sums(g, g.dtype)
