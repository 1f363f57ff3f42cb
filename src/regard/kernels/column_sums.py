"""Column sums of a tall matrix in Triton: the gradient of a bias.

    out_d = Σ over t of x_td       x of low precision, the sum in float32

There are two stages: many programs sum a share of the rows each, then a few sum their results. No two programs add to
one number, so the result is the same every time.

A kernel that writes such a matrix has its numbers at hand, and can sum them on the way:

    note_column_sums(x, sums)    attach the column sums of x to x, complete or for shares of its rows
    column_sums(x)               uses the note, once, if x is still that very tensor and was not written into

A gradient that autograd passes on unchanged is the same tensor. Any tensor made from it has no note, and is summed as a
whole.

Legend: T rows, D columns, P shares of the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch

TILE, BLOCK = 64, 64
"""Rows and columns that a program reads at a time."""
LAST_TILE, LAST_BLOCK = 64, 32
"""The same for the sum of the shares."""
PROGRAMS = 1024
"""Programs of the first stage: several for each multiprocessor of a large GPU."""
NOTE = "column_sums"
"""The attribute of a tensor that holds its note."""


@triton.jit
def _column_sums_kernel(x: tl.tensor, out: tl.tensor, height: tl.tensor, width: tl.tensor, share: tl.tensor,
                        tile: tl.constexpr, block: tl.constexpr) -> None:
    """out (P, D): the sums of `share` rows each of x (T, D)."""
    column = tl.program_id(1) * block + tl.arange(0, block)
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, height)
    total = tl.zeros((tile, block), tl.float32)
    for start in range(first, last, tile):
        row = start + tl.arange(0, tile)
        there = (row < last)[:, None] & (column < width)[None, :]
        at = row[:, None].to(tl.int64) * width + column[None, :]
        total += tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    out_at = out + tl.program_id(0).to(tl.int64) * width + column
    tl.store(out_at, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < width)


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums of x (..., D) over all but the last dimension, (D,), in this dtype."""
    noted = _noted_sums(x)
    if noted is not None:
        return noted.to(dtype) if noted.dim() == 1 else column_sums(noted, dtype)
    width = x.shape[-1]
    x_TD = x.reshape(-1, width).contiguous()
    height, across = len(x_TD), triton.cdiv(width, BLOCK)
    share = triton.cdiv(triton.cdiv(height, max(1, PROGRAMS // across)), TILE) * TILE
    shares = triton.cdiv(height, share)
    out = x.new_empty(width, dtype=dtype)
    if shares == 1:
        launch.launch(_column_sums_kernel, (1, across), x_TD, out, height, width, share, TILE, BLOCK)
        return out
    sums_PD = x.new_empty(shares, width, dtype=torch.float32)
    launch.launch(_column_sums_kernel, (shares, across), x_TD, sums_PD, height, width, share, TILE, BLOCK)
    launch.launch(_column_sums_kernel, (1, triton.cdiv(width, LAST_BLOCK)), sums_PD, out, shares, width, shares,
                  LAST_TILE, LAST_BLOCK)
    return out


def note_column_sums(x: Tensor, sums: Tensor) -> None:
    """Attach the column sums of x (..., D) to x: `sums` is (D,), or (P, D) in float32 where shares are left to sum."""
    vars(x)[NOTE] = x._version, sums


def _noted_sums(x: Tensor) -> Tensor | None:
    """The sums that were noted for x, unless x was written into since.

    The note is removed: autograd then makes a gradient without other references that of a parameter without a copy.
    """
    version, sums = vars(x).pop(NOTE, (None, None))
    return sums if version == x._version else None
