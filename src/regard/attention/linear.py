"""The linear layer, y = W x + b, with a gradient of b that a kernel sums; and several of one input as one product.

It is torch's in all: parameters, names, initial values, results. While training on a GPU the gradient of the bias, the
sum of the columns of a tall matrix, comes from `regard.attention.kernels.columns`; and layers that read the same input
are multiplied with it at once, where nobody listens to one of them:

    [y_1; y_2; …] = [W_1; W_2; …] x + [b_1; b_2; …];    ∂x = Σ W_iᵀ ∂y_i,   ∂W_i = ∂y_i xᵀ

with one sum inside of the product in the place of a sum of large gradients. Each layer keeps its own parameters: if
they lie beside each other in memory nothing is copied. It knows neither attention nor blocks.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.adjacent import joined
from regard.kernels import listened_to, usable


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


def together(x: Tensor, layers: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """What each layer makes of x (..., in), (..., its out) each: while training on a GPU by one product."""
    if not _joint(x, layers):
        return tuple(layer(x) for layer in layers)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    made: tuple[Tensor, ...] = _Joint.apply(x, len(layers), *(layer.weight for layer in layers), *biases)
    return made


def _joint(x: Tensor, layers: Sequence[nn.Linear]) -> bool:
    """Whether one product does the work of all: of plain layers alone, all of which learn."""
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias) if parameter is not None]
    return (torch.is_grad_enabled() and usable(x, *parameters) and not torch.is_autocast_enabled("cuda")
            and all(type(layer) is Linear and not listened_to(layer) for layer in layers)
            and len({layer.bias is None for layer in layers}) == 1
            and all(parameter.requires_grad and parameter.dtype == x.dtype for parameter in parameters))


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
                _column_sums(upstream[0]) if of_bias else None)


class _Joint(torch.autograd.Function):
    """The equations of the head of this file; `count` weights are given, then as many biases, or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.biased, ctx.sizes = bool(biases), [len(weight) for weight in weights]
        return F.linear(x, joined(weights, 0), joined(biases, 0) if biases else None).split(ctx.sizes, -1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        g = joined([part.reshape(-1, size) for part, size in zip(upstream, ctx.sizes, strict=True)], 1)
        of_x = torch.mm(g, joined(weights, 0)).view(x.shape) if ctx.needs_input_grad[0] else None
        of_weights = torch.mm(g.t(), x.reshape(-1, x.shape[-1])).split(ctx.sizes)
        return of_x, None, *of_weights, *(_column_sums(g).split(ctx.sizes) if ctx.biased else ())


def _column_sums(g: Tensor) -> Tensor:
    """Over all but the last dimension. What g itself knows of them is used: g is passed as it came."""
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted, which the kernel does not have
        return g.sum(tuple(range(g.dim() - 1)))
    from regard.attention.kernels.columns import column_sums  # imports Triton

    return column_sums(g, g.dtype)
