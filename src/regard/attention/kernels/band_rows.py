"""What the kernels of bands share: how rows are read and written, which tiles a program has, which weights are dropped.

They know places, not what is computed. Triton's interpreter runs them on a CPU, for tests.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows(base, index, there, width: tl.constexpr, padded: tl.constexpr, stride):
    """(rows, padded) numbers; zeros where there is none."""
    feature = tl.arange(0, padded)
    where = there[:, None] & (feature < width)[None, :]
    return tl.load(base + index.to(tl.int64)[:, None] * stride + feature[None, :], mask=where, other=0.0)


@triton.jit
def put(base, index, there, width: tl.constexpr, padded: tl.constexpr, stride, value):
    """Write (rows, padded) numbers where there is a place for them."""
    feature = tl.arange(0, padded)
    where = there[:, None] & (feature < width)[None, :]
    place = base + index.to(tl.int64)[:, None] * stride + feature[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=where)


@triton.jit
def share(heads, slots):
    """What a program has: its row, a number of 64 bits, so that where a row begins is one too; its head; and the first
    of its tiles, the others being `slots` apart. Programs that follow each other have the heads of the same tokens,
    which lie side by side."""
    number = tl.program_id(0) // heads
    return (number // slots).to(tl.int64), tl.program_id(0) % heads, number % slots


@triton.jit
def ends(first, last, index, there):
    """Where the runs of these begin and end; nowhere for those that are not there."""
    return tl.load(first + index, mask=there, other=0), tl.load(last + index, mask=there, other=0)


@triton.jit
def kept(seed, head, i, j, n_keys, dropout):
    """Which weights are not dropped."""
    place = i.to(tl.int64)[:, None] * n_keys + j[None, :]
    return tl.rand(tl.load(seed) + head, place) >= dropout
