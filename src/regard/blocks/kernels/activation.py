"""An activation with dropout, each way in one kernel.

    y = dropout(f(x)),      ∂x = ∂y ⊙ mask · scale ⊙ f'(x)

Of ReLU the result alone is kept for the backward pass, which the layer after it keeps anyway: it is above 0 where x was
and where nothing was dropped. Of the others x is kept, and the mask drawn again. The sum of ∂x over tokens, which is
the gradient of the bias that x was made with, is made on the way, and noted (`regard.attention.kernels.columns`).

Which features are dropped follows from the place of a number in memory alone, not from how programs share the work. It
knows numbers, not modules.

Legend: R rows of a tile, D columns: numbers in the order of memory, D in a row; T tokens, P shares of them.
"""

from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels
from regard.attention.kernels.columns import note
from regard.blocks.kernels.drawing import GROUP, Chance, drawn, kept
from regard.kernels import once_differentiable

ROWS, BLOCK, WARPS = 2, 1024, 4
"""Numbers that a program has at a time."""
PROGRAMS, LEAST = 1056, 4
"""Programs of a backward pass that sums, eight for each part of a large GPU; tiles that each of them has at least."""


@triton.jit
def _bell(x: tl.tensor) -> tl.tensor:
    """Φ(x) and φ(x) of the normal distribution."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476), tl.exp(-0.5 * x * x) * 0.3989422804014327


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    """σ(x) = 1 / (1 + exp(-x)) and σ(-x); of -|x|, so that no exponential overflows, and no digits are lost."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e), tl.where(x < 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def _opening(x: tl.tensor) -> tl.tensor:
    """½ (1 + tanh u), which GPT-2's GELU multiplies x by, and its slope; u = √(2/π) (x + 0.044715 x³)."""
    inner = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)  # 2u, for ½ (1 + tanh u) = σ(2u)
    opened, closed = _sigmoid(inner)
    return opened, opened * closed * 1.5957691216057308 * (1.0 + 0.134145 * x * x)


@triton.jit
def _places(count: tl.tensor, rows: tl.constexpr, block: tl.constexpr) -> tl.tensor:
    """The rows of this program, where in memory they stand, and whether anything does."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    at = row[:, None].to(tl.int64) * block + tl.arange(0, block)[None, :]
    return row, at, at < count


@triton.jit
def _activate(x: tl.tensor, seed: tl.tensor, out: tl.tensor, count: tl.tensor, dropped: tl.tensor, scale: tl.tensor,
              name: tl.constexpr, dropping: tl.constexpr, rows: tl.constexpr, block: tl.constexpr) -> None:
    """out = dropout(f(x))."""
    row, at, there = _places(count, rows, block)
    v = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if name == "relu":
        v = tl.where(v <= 0.0, 0.0, v)
    if name == "gelu":
        below, _ = _bell(v)
        v *= below
    if name == "gelu_tanh":
        opened, _ = _opening(v)
        v *= opened
    if name == "silu":
        opened, _ = _sigmoid(v)
        v *= opened
    if dropping:
        v = tl.where(kept(tl.load(seed), row, tl.arange(0, block // 8), block // 8, dropped, rows, block), v * scale,
                     0.0)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=there)


@triton.jit
def _slope(upstream: tl.tensor, held: tl.tensor, seed: tl.tensor, out: tl.tensor, sums: tl.tensor, count: tl.tensor,
           width: tl.tensor, share: tl.tensor, dropped: tl.tensor, scale: tl.tensor, name: tl.constexpr,
           dropping: tl.constexpr, summing: tl.constexpr, rows: tl.constexpr, block: tl.constexpr) -> None:
    """out (T, D) = ∂x, and sums (P, D) over the `share` rows of each program; `held` is y of ReLU, x of the others."""
    column = tl.program_id(1) * block + tl.arange(0, block)
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, tl.cdiv(count, width))
    total = tl.zeros((rows, block), tl.float32)
    for start in range(first, last, rows):
        row = start + tl.arange(0, rows)
        at = row[:, None].to(tl.int64) * width + column[None, :]
        there = (row < last)[:, None] & (column < width)[None, :] & (at < count)
        g = _inward(upstream, held, at, there, scale, name)
        if dropping and name != "relu":
            group = tl.program_id(1) * (block // 8) + tl.arange(0, block // 8)
            g = tl.where(kept(tl.load(seed), row, group, width // 8, dropped, rows, block), g, 0.0)
        tl.store(out + at, g.to(out.dtype.element_ty), mask=there)
        if summing:
            total += g
    if summing:
        sums_at = sums + tl.program_id(0).to(tl.int64) * width + column
        tl.store(sums_at, tl.sum(total, 0), mask=column < width)


@triton.jit
def _inward(upstream: tl.tensor, held: tl.tensor, at: tl.tensor, there: tl.tensor, scale: tl.tensor,
            name: tl.constexpr) -> tl.tensor:
    """∂y · scale ⊙ f'(x); zeros where there is nothing."""
    g = tl.load(upstream + at, mask=there, other=0.0).to(tl.float32) * scale
    v = tl.load(held + at, mask=there, other=0.0).to(tl.float32)
    if name == "relu":
        g = tl.where(v <= 0.0, 0.0, g)
    if name == "gelu":
        below, density = _bell(v)
        g *= below + v * density
    if name == "gelu_tanh":
        opened, slope = _opening(v)
        g *= opened + v * slope
    if name == "silu":
        opened, closed = _sigmoid(v)
        g *= opened * (1.0 + v * closed)
    return g


def activated(x: Tensor, name: str, dropout: float) -> Tensor:
    """dropout(f(x)), f "relu", "gelu", "gelu_tanh" or "silu"."""
    y: Tensor = _Activated.apply(x, name, drawn(dropout, x))
    return y


class _Activated(torch.autograd.Function):
    """The equations of the head of this file."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, chance: Chance) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels.launch(_activate, (triton.cdiv(out.numel(), ROWS * BLOCK),), x, _seed(chance, out), out, out.numel(),
                       chance.dropped, chance.scale, name, chance.seed is not None, ROWS, BLOCK, num_warps=WARPS)
        ctx.save_for_backward(out if name == "relu" else x)
        ctx.name, ctx.chance = name, chance
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        (held,) = ctx.saved_tensors
        g, out, chance = upstream[0].contiguous(), torch.empty_like(held), ctx.chance
        summing = out.shape[-1] % GROUP == 0  # elsewhere features that are drawn together stand in two rows
        width, rows, block, share = _shares(out) if summing else (BLOCK, ROWS, BLOCK, ROWS)
        shares = triton.cdiv(triton.cdiv(out.numel(), width), share)
        sums = out.new_empty(shares if summing else 0, width, dtype=torch.float32)
        kernels.launch(_slope, (shares, triton.cdiv(width, block)), g, held, _seed(chance, out), out, sums, out.numel(),
                       width, share, chance.dropped, chance.scale, ctx.name, chance.seed is not None, summing, rows,
                       block, num_warps=WARPS)
        if summing:
            note(out, sums)
        return out, None, None


def _shares(out: Tensor) -> tuple[int, int, int, int]:
    """Width of a row, rows and columns of a tile, and rows of a program, where columns are summed."""
    width = out.shape[-1]
    block = min(BLOCK, max(2 * GROUP, triton.next_power_of_2(width)))
    rows = ROWS * BLOCK // block
    tiles, programs = triton.cdiv(out.numel() // width, rows), max(1, PROGRAMS // triton.cdiv(width, block))
    return width, rows, block, max(LEAST, triton.cdiv(tiles, programs)) * rows


def _seed(chance: Chance, other: Tensor) -> Tensor:
    """The seed; what a kernel gets in its place where nothing is dropped, and does not read."""
    return other if chance.seed is None else chance.seed
