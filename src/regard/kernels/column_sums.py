"""The sums of the columns of a tall matrix: what the gradient of a bias is.

    out_d = Σ over t of x_td       x of low precision, the sum in float32

In two stages: many programs sum a share of the rows each, then few sum what those found. Nothing is added to by two
programs, so that the result is the same every time.

Who makes such a matrix often has its numbers at hand, and can sum them on the way:

    note(x, sums)          these are the sums of the columns of x, or of some rows of x each
    column_sums(x)         reads no more than those, once, if x is still that very tensor, and nobody wrote into it

A gradient that is passed on by autograd as it is stays that tensor; whatever is made of it knows nothing of the note,
and is read as a whole. It does not know what is summed.

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
"""Of the first stage: several for each part of a large GPU."""
NOTE = "column_sums"
"""The attribute of a tensor that holds its note."""


@triton.jit
def _column_sums_kernel(x: tl.tensor, out: tl.tensor, height: tl.tensor, width: tl.tensor, share: tl.tensor, tile: tl.constexpr,
          block: tl.constexpr) -> None:
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
    """(D,) of this dtype: the sums over all but the last dimension of x (..., D)."""
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
    found_PD = x.new_empty(shares, width, dtype=torch.float32)
    launch.launch(_column_sums_kernel, (shares, across), x_TD, found_PD, height, width, share, TILE, BLOCK)
    launch.launch(_column_sums_kernel, (1, triton.cdiv(width, LAST_BLOCK)), found_PD, out, shares, width, shares, LAST_TILE,
                   LAST_BLOCK)
    return out


def note_column_sums(x: Tensor, sums: Tensor) -> None:
    """The sums of the columns of x (..., D) are known: `sums` (D,), or what is left to be summed, (P, D) in float32."""
    vars(x)[NOTE] = x._version, sums


def _noted_sums(x: Tensor) -> Tensor | None:
    """What was noted of x, unless it was written into since. It is asked for once: a gradient that nobody else holds
    becomes that of a parameter without a copy."""
    version, sums = vars(x).pop(NOTE, (None, None))
    return sums if version == x._version else None
