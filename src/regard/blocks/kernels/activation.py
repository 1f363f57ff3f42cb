"""An activation with dropout, each way in one kernel.

    y = dropout(f(x)),      ∂x = ∂y ⊙ mask · scale ⊙ f'(x)

Of ReLU the result alone is kept for the backward pass, which the layer after it keeps anyway: it is above 0 where x was
and where nothing was dropped. Of the others x is kept, and the mask drawn again. It knows numbers, not modules.

Legend: R rows of a tile, D columns: numbers in the order of memory, D in a row.
"""

from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels
from regard.blocks.kernels.drawing import Chance, drawn, kept
from regard.kernels import once_differentiable

ROWS, BLOCK, WARPS = 2, 1024, 4
"""Numbers that a program has."""


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
def _slope(upstream: tl.tensor, held: tl.tensor, seed: tl.tensor, out: tl.tensor, count: tl.tensor, dropped: tl.tensor,
           scale: tl.tensor, name: tl.constexpr, dropping: tl.constexpr, rows: tl.constexpr,
           block: tl.constexpr) -> None:
    """out = ∂x; `held` is y of ReLU, and x of the others."""
    row, at, there = _places(count, rows, block)
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
    if dropping and name != "relu":
        g = tl.where(kept(tl.load(seed), row, tl.arange(0, block // 8), block // 8, dropped, rows, block), g, 0.0)
    tl.store(out + at, g.to(out.dtype.element_ty), mask=there)


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
        _run(_activate, x, chance=chance, name=name, out=out)
        ctx.save_for_backward(out if name == "relu" else x)
        ctx.name, ctx.chance = name, chance
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        (held,) = ctx.saved_tensors
        out = torch.empty_like(held)
        _run(_slope, upstream[0].contiguous(), held, chance=ctx.chance, name=ctx.name, out=out)
        return out, None, None


def _run(kernel: Any, *given: Tensor, chance: Chance, name: str, out: Tensor) -> None:
    seed = out if chance.seed is None else chance.seed  # which is not read then
    kernels.launch(kernel, (triton.cdiv(out.numel(), ROWS * BLOCK),), *given, seed, out, out.numel(), chance.dropped,
                   chance.scale, name, chance.seed is not None, ROWS, BLOCK, num_warps=WARPS)
