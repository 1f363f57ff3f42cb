"""What our attention kernels have in common: rows of a (tokens, features) matrix, loaded and stored by their indices.

The features of a row are adjacent in memory; `stride` is the distance between two rows. A kernel works on a power of 2
of features, `padded`, of which the first `width` exist.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
"""Factor of scores whose softmax is made of powers of 2, which GPUs compute faster than those of e."""


@triton.jit
def load_rows(base, index, valid, width: tl.constexpr, padded: tl.constexpr, stride):
    """Load (rows, padded) numbers, with zeros where a row or a feature is not valid."""
    feature = tl.arange(0, padded)
    where = valid[:, None] & (feature < width)[None, :]
    return tl.load(base + index.to(tl.int64)[:, None] * stride + feature[None, :], mask=where, other=0.0)


@triton.jit
def store_rows(base, index, valid, width: tl.constexpr, padded: tl.constexpr, stride, value):
    """Store (rows, padded) numbers where rows and features are valid."""
    feature = tl.arange(0, padded)
    where = valid[:, None] & (feature < width)[None, :]
    place = base + index.to(tl.int64)[:, None] * stride + feature[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=where)


def width_constants(query: Tensor, value: Tensor) -> dict[str, int]:
    """The compile-time widths of a kernel: D of queries and keys, E of values, and both padded."""
    D, E = query.shape[-1], value.shape[-1]
    return {"D": D, "padded_d": _padded(D), "E": E, "padded_e": _padded(E)}


def _padded(width: int) -> int:
    return max(16, triton.next_power_of_2(width))  # 16 is the least that tensor cores multiply


def contiguous_features(tensor: Tensor) -> Tensor:
    """The tensor with the features of each token contiguous in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
