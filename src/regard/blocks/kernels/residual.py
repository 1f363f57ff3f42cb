"""The residual of a part, with dropout and norm, each way in one kernel.

    s = x + dropout(part)
    y = (s - μ) / √(σ² + ε) ⊙ gain + shift       LayerNorm, over the features of a token
    y = s / √(mean of s² + ε) ⊙ gain             RMSNorm: without μ and shift

The statistics are in float32, and so is s, which is never stored: the backward pass makes it again from x, part and the
seed of the dropout. With ŝ = (s - μ) r, r = 1/√(σ² + ε), h = ∂y ⊙ gain

    ∂s = r (h - mean(h) - ŝ mean(h ⊙ ŝ))       (RMSNorm: without mean(h));    ∂x = ∂s,   ∂part = ∂s ⊙ mask · scale
    ∂gain = Σ over tokens of ∂y ⊙ ŝ,   ∂shift = Σ ∂y

where each program keeps sums over its own tokens, which are added up at the end in one order. The sum of ∂part, which
is the gradient of the bias that a part ends with, is made on the way, and noted (`regard.attention.kernels.columns`).
It knows numbers, not modules.

Legend: T tokens, D width, P programs.
"""

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels
from regard.attention.kernels.columns import column_sums, note
from regard.blocks.kernels.drawing import GROUP, Chance, drawn, kept
from regard.kernels import once_differentiable

ELEMENTS = 512
"""Numbers that a program holds at a time, at least those of one token."""
PROGRAMS = 2112
"""Of the backward pass of a norm, each of which keeps sums over its tokens."""


class Form(NamedTuple):
    """Which norm, and its parameters."""

    centred: bool
    """Whether the mean is taken out: LayerNorm; otherwise RMSNorm."""
    gain: Tensor | None
    shift: Tensor | None
    epsilon: float


@triton.jit
def _sum(x: tl.tensor, part: tl.tensor, seed: tl.tensor, row: tl.tensor, column: tl.tensor, height: tl.tensor,
         width: tl.tensor, dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr,
         adding: tl.constexpr, dropping: tl.constexpr) -> tl.tensor:
    """x + dropout(part) of a tile, in float32, and what part was multiplied by, where features are dropped."""
    there = (row < height)[:, None] & (column < width)[None, :]
    at = row[:, None].to(tl.int64) * width + column[None, :]
    s = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    factor = s
    if adding:
        p = tl.load(part + at, mask=there, other=0.0).to(tl.float32)
        if dropping:
            factor = _factor(seed, row, width, dropped, scale, rows, block)
            p *= factor
        s += p
    return s, factor


@triton.jit
def _factor(seed: tl.tensor, row: tl.tensor, width: tl.tensor, dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr,
            block: tl.constexpr) -> tl.tensor:
    """What dropout multiplies a tile by: 0, or the scale."""
    group = tl.arange(0, block // 8)
    return tl.where(kept(tl.load(seed), row, group, tl.cdiv(width, 8), dropped, rows, block), scale, 0.0)


@triton.jit
def _add(x: tl.tensor, part: tl.tensor, seed: tl.tensor, out: tl.tensor, height: tl.tensor, width: tl.tensor,
         dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr) -> None:
    """out = x + dropout(part)."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    s, _ = _sum(x, part, seed, row, column, height, width, dropped, scale, rows, block, True, dropping)
    there = (row < height)[:, None] & (column < width)[None, :]
    tl.store(out + row[:, None].to(tl.int64) * width + column[None, :], s.to(out.dtype.element_ty), mask=there)


@triton.jit
def _drop(upstream: tl.tensor, seed: tl.tensor, out: tl.tensor, height: tl.tensor, width: tl.tensor, dropped: tl.tensor,
          scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr) -> None:
    """out = dropout(upstream)."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    there = (row < height)[:, None] & (column < width)[None, :]
    at = row[:, None].to(tl.int64) * width + column[None, :]
    g = tl.load(upstream + at, mask=there, other=0.0).to(tl.float32)
    g *= _factor(seed, row, width, dropped, scale, rows, block)
    tl.store(out + at, g.to(out.dtype.element_ty), mask=there)


@triton.jit
def _norm(x: tl.tensor, part: tl.tensor, gain: tl.tensor, shift: tl.tensor, seed: tl.tensor, out: tl.tensor,
          means: tl.tensor, inverses: tl.tensor, height: tl.tensor, width: tl.tensor, epsilon: tl.tensor,
          dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr, adding: tl.constexpr,
          dropping: tl.constexpr, centred: tl.constexpr, gained: tl.constexpr, shifted: tl.constexpr) -> None:
    """out = norm(x + dropout(part)); means and inverses (T,): μ and r."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    inside = (column < width)[None, :]
    there = (row < height)[:, None] & inside
    s, _ = _sum(x, part, seed, row, column, height, width, dropped, scale, rows, block, adding, dropping)
    if centred:
        mean = tl.sum(s, 1) / width
        s = tl.where(inside, s - mean[:, None], 0.0)
        tl.store(means + row, mean, mask=row < height)
    inverse = 1.0 / tl.sqrt(tl.sum(s * s, 1) / width + epsilon)
    tl.store(inverses + row, inverse, mask=row < height)
    y = s * inverse[:, None]
    if gained:
        y *= tl.load(gain + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if shifted:
        y += tl.load(shift + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(out + row[:, None].to(tl.int64) * width + column[None, :], y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _norm_gradient(upstream: tl.tensor, x: tl.tensor, part: tl.tensor, gain: tl.tensor, seed: tl.tensor,
                   means: tl.tensor, inverses: tl.tensor, of_x: tl.tensor, of_part: tl.tensor, sums: tl.tensor,
                   height: tl.tensor, width: tl.tensor, dropped: tl.tensor, scale: tl.tensor, share: tl.tensor,
                   rows: tl.constexpr, block: tl.constexpr, adding: tl.constexpr, dropping: tl.constexpr,
                   centred: tl.constexpr, gained: tl.constexpr) -> None:
    """of_x, of_part (T, D), and sums (P, 2 or 3, D) over the `share` tokens of each program: ∂gain, ∂shift, and of
    ∂part where there is one."""
    column = tl.arange(0, block)
    inside = column < width
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, height)
    of_gain = tl.zeros((rows, block), tl.float32)
    of_shift = tl.zeros((rows, block), tl.float32)
    of_bias = tl.zeros((rows, block), tl.float32)
    for start in range(first, last, rows):
        row = start + tl.arange(0, rows)
        there = (row < last)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * width + column[None, :]
        s, factor = _sum(x, part, seed, row, column, last, width, dropped, scale, rows, block, adding, dropping)
        g = tl.load(upstream + at, mask=there, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row, mask=row < last, other=0.0)[:, None]
        if centred:
            s -= tl.load(means + row, mask=row < last, other=0.0)[:, None]
        hat = tl.where(there, s * inverse, 0.0)
        of_gain += g * hat
        of_shift += g
        if gained:
            g *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        slope = g - hat * (tl.sum(g * hat, 1) / width)[:, None]
        if centred:
            slope -= (tl.sum(g, 1) / width)[:, None]
        slope *= inverse
        tl.store(of_x + at, slope.to(of_x.dtype.element_ty), mask=there)
        if dropping:
            slope *= factor
            tl.store(of_part + at, slope.to(of_part.dtype.element_ty), mask=there)
        if adding:
            of_bias += slope
    kinds: tl.constexpr = 3 if adding else 2
    sums_at = sums + tl.program_id(0).to(tl.int64) * kinds * width + column
    tl.store(sums_at, tl.sum(of_gain, 0), mask=inside)
    tl.store(sums_at + width, tl.sum(of_shift, 0), mask=inside)
    if adding:
        tl.store(sums_at + 2 * width, tl.sum(of_bias, 0), mask=inside)


class Tile(NamedTuple):
    """What a program holds: so many tokens, and features rounded up to a power of two."""

    rows: int
    block: int
    warps: int


def tile(width: int) -> Tile:
    """The tile for tokens of this width."""
    block = max(2 * GROUP, triton.next_power_of_2(width))
    return Tile(max(1, ELEMENTS // block), block, max(1, block // 512))


def added(x: Tensor, part: Tensor, dropout: float) -> Tensor:
    """x + dropout(part), both (..., D)."""
    y: Tensor = _Added.apply(x, part, drawn(dropout, x))
    return y


def normed(x: Tensor, part: Tensor, dropout: float, form: Form, dtype: torch.dtype) -> Tensor:
    """norm(x + dropout(part)), both (..., D), in this dtype."""
    y: Tensor = _Normed.apply(x, part, form.gain, form.shift, form, drawn(dropout, x), dtype)
    return y


def normed_alone(x: Tensor, form: Form, dtype: torch.dtype) -> Tensor:
    """norm(x), (..., D), in this dtype."""
    y: Tensor = _Normed.apply(x, None, form.gain, form.shift, form, drawn(0.0, x), dtype)
    return y


class _Added(torch.autograd.Function):
    """∂x = ∂y, ∂part = ∂y ⊙ mask · scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, chance: Chance) -> Tensor:
        ctx.chance, ctx.dtypes = chance, (x.dtype, part.dtype)
        x, part, width = x.contiguous(), part.contiguous(), x.shape[-1]
        out, height, (rows, block, warps) = _like(x, torch.promote_types(*ctx.dtypes)), x.numel() // width, tile(width)
        kernels.launch(_add, (triton.cdiv(height, rows),), x, part, _or(chance.seed, x), out, height, width,
                       chance.dropped, chance.scale, rows, block, chance.seed is not None, num_warps=warps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        g, chance = upstream[0], ctx.chance
        if chance.seed is None:
            return g.to(ctx.dtypes[0]), g.to(ctx.dtypes[1]), None
        g, width = g.contiguous(), g.shape[-1]
        of_part, height, (rows, block, warps) = _like(g, ctx.dtypes[1]), g.numel() // width, tile(width)
        kernels.launch(_drop, (triton.cdiv(height, rows),), g, chance.seed, of_part, height, width, chance.dropped,
                       chance.scale, rows, block, num_warps=warps)
        return g.to(ctx.dtypes[0]), of_part, None


class _Normed(torch.autograd.Function):
    """The gradients of the head of this file."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor | None, gain: Tensor | None, shift: Tensor | None, form: Form,
                chance: Chance, dtype: torch.dtype) -> Tensor:
        x, part, width = x.contiguous(), None if part is None else part.contiguous(), x.shape[-1]
        out, height, (rows, block, warps) = _like(x, dtype), x.numel() // width, tile(width)
        inverses = x.new_empty(height, dtype=torch.float32)
        means = torch.empty_like(inverses) if form.centred else inverses
        kernels.launch(_norm, (triton.cdiv(height, rows),), x, _or(part, x), _or(gain, x), _or(shift, x),
                       _or(chance.seed, x), out, means, inverses, height, width, form.epsilon, chance.dropped,
                       chance.scale, rows, block, part is not None, chance.seed is not None, form.centred,
                       gain is not None, shift is not None, num_warps=warps)
        ctx.save_for_backward(x, part, gain, means, inverses, chance.seed)
        ctx.centred, ctx.chance, ctx.of_shift = form.centred, chance, None if shift is None else shift.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        x, part, gain, means, inverses, seed = ctx.saved_tensors
        g, width, dropping = upstream[0].contiguous(), x.shape[-1], seed is not None
        height, (rows, block, warps) = x.numel() // width, tile(width)
        share = triton.cdiv(triton.cdiv(height, rows), PROGRAMS) * rows
        programs = triton.cdiv(height, share)
        of_x = _like(x, x.dtype)
        of_part = _like(x, part.dtype) if dropping else of_x
        sums = x.new_empty(programs, width * (2 if part is None else 3), dtype=torch.float32)
        kernels.launch(_norm_gradient, (programs,), g, x, _or(part, x), _or(gain, x), _or(seed, x), means, inverses,
                       of_x, of_part, sums, height, width, ctx.chance.dropped, ctx.chance.scale, share, rows, block,
                       part is not None, dropping, ctx.centred, gain is not None, num_warps=warps)
        wanted = {tensor.dtype for tensor in (gain, part) if tensor is not None} | {ctx.of_shift} - {None}
        found = column_sums(sums, wanted.pop() if len(wanted) == 1 else torch.float32)
        of_gain, of_shift, *of_bias = found.split(width)
        if part is not None:
            of_part = of_part.to(part.dtype)
            note(of_part, *of_bias)
        return (of_x, None if part is None else of_part, None if gain is None else of_gain.to(gain.dtype),
                None if ctx.of_shift is None else of_shift.to(ctx.of_shift), None, None, None)


def _like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """What a kernel gets in the place of a tensor that it does not read."""
    return other if tensor is None else tensor
