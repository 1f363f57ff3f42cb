"""Tensors that lie beside each other in memory, taken as one without a copy.

    whole(parts, dim)      the tensor whose slices along `dim` they are, one after another; None where they are not
    joined(parts, dim)     the same, by a copy where there is no such tensor
    room(parts, dim)       new memory for each of them; where they are slices of one, slices of one again

So layers that read one input can be one product, and its gradient needs no copy either, while each keeps a tensor of
its own. What lies where is looked up, never assumed. It knows neither layers nor gradients.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def whole(parts: Sequence[Tensor], dim: int) -> Tensor | None:
    """The tensor of which these are slices along a dimension, in this order, with nothing between; None if there is
    none. It shares their memory, and has no gradient."""
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


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """These side by side. Where a gradient of the result is wanted it is a copy, which has one."""
    found = None if torch.is_grad_enabled() else whole(parts, dim)
    return torch.cat([*parts], dim) if found is None else found


def room(parts: Sequence[Tensor], dim: int) -> tuple[Tensor, ...]:
    """Memory that is not filled, of the shapes of these. Neighbours among them are neighbours again, with nothing else
    between: what is whole is contiguous, but for the order of dimensions, which stays."""
    found = whole(parts, dim)
    if found is None:
        return tuple(_room(part) for part in parts)
    return _room(found).split([part.shape[dim] for part in parts], dim)


def _room(like: Tensor) -> Tensor:
    """Dense, with the dimensions in the order in which those of `like` lie in memory; what is the same for many there
    comes first."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda at: (strides[at] != 0, -strides[at], at))
    dense = like.new_empty([like.shape[at] for at in order])
    return dense.permute([order.index(at) for at in range(like.dim())])
