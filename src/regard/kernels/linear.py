"""The linear layer y = W x + b, with faster gradients on a GPU, and several linear layers as one product.

`Linear` is `torch.nn.Linear` in everything: parameters, names, initial values, results. During training on a GPU the
gradient of the bias, the column sums of a tall matrix, comes from `regard.kernels.column_sums`, and layers that read
the same input become one product, unless one of them has hooks:

    [y_1; y_2; …] = [W_1; W_2; …] x + [b_1; b_2; …];    ∂x = Σ W_iᵀ ∂y_i,   ∂W_i = ∂y_i xᵀ

so that a sum inside of the product replaces a sum of large gradients.

Each layer keeps its own parameters. If they are adjacent in memory nothing is copied:

    adjacent_tensor(parts, dim)     the tensor whose slices along `dim` the parts are; None where they are not
    concatenate(parts, dim)         the same, by a copy where there is no such tensor
    empty_like_parts(parts, dim)    new memory for each part; slices of one tensor where the parts are slices of one

It knows neither attention nor blocks.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.kernels.launch import has_hooks, usable


def adjacent_tensor(parts: Sequence[Tensor], dim: int) -> Tensor | None:
    """The tensor whose consecutive slices along `dim` the parts are; None if there is none.

    It shares their memory, and has no gradient.
    """
    first = parts[0]
    dim = dim % first.dim()
    offset, size = first.storage_offset(), 0
    for part in parts:
        if (part.dtype != first.dtype or part.stride() != first.stride() or part.storage_offset() != offset
            or part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or part.shape[:dim] != first.shape[:dim] or part.shape[dim + 1:] != first.shape[dim + 1:]):
            return None
        offset, size = offset + part.shape[dim] * first.stride(dim), size + part.shape[dim]
    shape = (*first.shape[:dim], size, *first.shape[dim + 1:])
    return first.detach().as_strided(shape, first.stride(), first.storage_offset())


def concatenate(parts: Sequence[Tensor], dim: int) -> Tensor:
    """The parts as one tensor; a copy where gradients are enabled, because a view of adjacent parts has none."""
    found = None if torch.is_grad_enabled() else adjacent_tensor(parts, dim)
    return torch.cat([*parts], dim) if found is None else found


def empty_like_parts(parts: Sequence[Tensor], dim: int) -> tuple[Tensor, ...]:
    """Uninitialised tensors with the shapes of the parts; adjacent parts get adjacent memory again.

    The memory is dense, and the order of dimensions in memory is kept.
    """
    found = adjacent_tensor(parts, dim)
    if found is None:
        return tuple(_empty_like(part) for part in parts)
    return _empty_like(found).split([part.shape[dim] for part in parts], dim)


def _empty_like(like: Tensor) -> Tensor:
    """A dense uninitialised tensor with the dimension order of `like` in memory; broadcast dimensions come first."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda at: (strides[at] != 0, -strides[at], at))
    dense = like.new_empty([like.shape[at] for at in order])
    return dense.permute([order.index(at) for at in range(like.dim())])


class Linear(nn.Linear):
    """`torch.nn.Linear` with a faster gradient of the bias on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (out, in) · x (..., in) + bias (out,)."""
    if bias is None or not _uses_kernel(x, weight, bias):
        return F.linear(x, weight, bias)
    y: Tensor = _LinearWithBias.apply(x, weight, bias)
    return y


def apply_jointly(x: Tensor, layers: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """The outputs of all layers for x (..., in), (..., its out) each; one product during training on a GPU."""
    if not _can_join(x, layers):
        return tuple(layer(x) for layer in layers)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    made: tuple[Tensor, ...] = _JointLinear.apply(x, len(layers), *(layer.weight for layer in layers), *biases)
    return made


def _can_join(x: Tensor, layers: Sequence[nn.Linear]) -> bool:
    """Whether one product can replace all layers: they are plain `Linear` layers, and all of them are trained."""
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias) if parameter is not None]
    return (torch.is_grad_enabled() and usable(x, *parameters) and not torch.is_autocast_enabled("cuda")
            and all(type(layer) is Linear and not has_hooks(layer) for layer in layers)
            and len({layer.bias is None for layer in layers}) == 1
            and all(parameter.requires_grad and parameter.dtype == x.dtype for parameter in parameters))


def _uses_kernel(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the gradient of the bias is needed, and the kernel can sum it."""
    return (torch.is_grad_enabled() and bias.requires_grad and usable(x, weight, bias)
            and x.dtype == weight.dtype == bias.dtype and not torch.is_autocast_enabled("cuda"))


class _LinearWithBias(torch.autograd.Function):
    """y = W x + b;  ∂x = Wᵀ ∂y,  ∂W = ∂y xᵀ,  ∂b = Σ ∂y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        g = upstream[0].reshape(-1, weight.shape[0])
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (torch.mm(g, weight).view(x.shape) if for_x else None,
                torch.mm(g.t(), x.reshape(-1, x.shape[-1])) if for_weight else None,
                _bias_gradient(upstream[0]) if for_bias else None)


class _JointLinear(torch.autograd.Function):
    """The equations at the top of this file. `parameters` are `count` weights, then as many biases, or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.biased, ctx.sizes = bool(biases), [len(weight) for weight in weights]
        return F.linear(x, concatenate(weights, 0), concatenate(biases, 0) if biases else None).split(ctx.sizes, -1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        g = concatenate([part.reshape(-1, size) for part, size in zip(upstream, ctx.sizes, strict=True)], 1)
        d_x = torch.mm(g, concatenate(weights, 0)).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weights = torch.mm(g.t(), x.reshape(-1, x.shape[-1])).split(ctx.sizes)
        return d_x, None, *d_weights, *(_bias_gradient(g).split(ctx.sizes) if ctx.biased else ())


def _bias_gradient(g: Tensor) -> Tensor:
    """The sum of g over all but the last dimension. g must be the tensor that autograd passed: it may have a note."""
    if torch.is_grad_enabled():  # second derivatives, which the kernel does not have
        return g.sum(tuple(range(g.dim() - 1)))
    from regard.kernels.column_sums import column_sums  # imports Triton

    return column_sums(g, g.dtype)
