"""Triton kernels for training blocks: residual, dropout and norm in one; activation and dropout in one.

    s = x + dropout(part)
    y = (s - μ) / √(σ² + ε) ⊙ gain + shift       LayerNorm, over the features of a token
    y = s / √(mean of s² + ε) ⊙ gain             RMSNorm: without μ and shift
    y = dropout(f(x))                            f: ReLU, GELU, GELU by tanh, SiLU

**Norms.** Statistics and s are float32; s is never stored: the backward pass computes it again from x, part and the
seed of the dropout. With ŝ = (s - μ) r, r = 1/√(σ² + ε), h = ∂y ⊙ gain

    ∂s = r (h - mean(h) - ŝ mean(h ⊙ ŝ))       (RMSNorm: without mean(h));    ∂x = ∂s,   ∂part = ∂s ⊙ mask · scale
    ∂gain = Σ over tokens of ∂y ⊙ ŝ,   ∂shift = Σ ∂y

Each program sums over its own tokens, and these sums are added at the end in a fixed order.

**Activations.** ∂x = ∂y ⊙ mask · scale ⊙ f'(x). For ReLU only the result is kept for the backward pass, which the
next layer keeps anyway: it is positive exactly where x was positive and not dropped. For the others x is kept, and
the mask is drawn again.

The sum of ∂part or ∂x over tokens, which is the gradient of the preceding bias, is computed on the way and noted for
the linear layer that needs it.

**Dropout.** A mask is not stored: the backward pass draws it again from the same seed. The generator is Philox with
seven rounds (Salmon et al. 2011); one call gives 128 bits and serves a group of eight features. The probability is a
multiple of 1/65536, and the scale 1 / (1 - p) matches it exactly. torch draws the seed on the device, so it follows
torch's random state and differs at each replay of a CUDA graph. Which features are dropped depends only on their
position in memory, not on how programs share the work.

These kernels know numbers, not modules. Needs Triton.

Legend: T tokens, D width or columns, P programs, R rows of a tile, G groups of eight columns.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.column_sums import column_sums, note_column_sums
from regard.kernels.launch import launch, once_differentiable

PROBABILITY_STEPS = 1 << 16
"""The number of different dropout probabilities."""
FEATURES_PER_DRAW = 8
"""The number of features that one call of the generator serves; blocks of columns are multiples of it."""


class DropoutSeed(NamedTuple):
    """The seed and the probability of one dropout."""

    seed: Tensor | None
    """One int64 on the device; None where nothing is dropped."""
    dropped: int
    """p · 65536."""
    scale: float
    """The factor of the features that are kept, 1 / (1 - p)."""


def draw_seed(probability: float, like: Tensor) -> DropoutSeed:
    """Draw a new seed for a dropout of this probability."""
    dropped = min(round(probability * PROBABILITY_STEPS), PROBABILITY_STEPS - 1)
    seed = torch.empty(1, dtype=torch.int64, device=like.device).random_() if dropped else None
    return DropoutSeed(seed, dropped, PROBABILITY_STEPS / (PROBABILITY_STEPS - dropped))


@triton.jit
def _keep_halves(bits: tl.tensor, dropped: tl.tensor) -> tl.tensor:
    """(R, G) of 32 bits -> (R, G, 2): whether each half keeps its feature."""
    return tl.join(((bits & 0xFFFF) >= dropped).to(tl.int8), ((bits >> 16) >= dropped).to(tl.int8))


@triton.jit
def keep_mask(seed: tl.tensor, row: tl.tensor, group: tl.tensor, groups: tl.tensor, dropped: tl.tensor,
              rows: tl.constexpr, block: tl.constexpr) -> tl.tensor:
    """(R, D) bool: whether a feature is kept, for rows (R,) and groups (G,) of the `groups` in a row."""
    place = row[:, None].to(tl.int64) * groups + group[None, :]
    a, b, c, d = tl.randint4x(seed, place, 7)
    first = tl.join(_keep_halves(a, dropped), _keep_halves(b, dropped))
    second = tl.join(_keep_halves(c, dropped), _keep_halves(d, dropped))
    return tl.reshape(tl.join(first, second), (rows, block)) != 0


NORM_TILE_ELEMENTS = 512
"""The number of features that a program holds at a time, at least those of one token."""
NORM_BACKWARD_PROGRAMS = 2112
"""The largest number of programs of a norm's backward pass, each of which keeps sums over its tokens."""


class NormParameters(NamedTuple):
    """The kind of norm, and its parameters."""

    centred: bool
    """Whether the mean is subtracted: LayerNorm; otherwise RMSNorm."""
    gain: Tensor | None
    shift: Tensor | None
    epsilon: float


@triton.jit
def _residual_sum(x: tl.tensor, part: tl.tensor, seed: tl.tensor, row: tl.tensor, column: tl.tensor, height: tl.tensor,
                  width: tl.tensor, dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr,
                  adding: tl.constexpr, dropping: tl.constexpr) -> tl.tensor:
    """x + dropout(part) of a tile, in float32, and the factors of the dropout where features are dropped."""
    mask = (row < height)[:, None] & (column < width)[None, :]
    offsets = row[:, None].to(tl.int64) * width + column[None, :]
    s = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    factor = s
    if adding:
        p = tl.load(part + offsets, mask=mask, other=0.0).to(tl.float32)
        if dropping:
            factor = _dropout_factor(seed, row, width, dropped, scale, rows, block)
            p *= factor
        s += p
    return s, factor


@triton.jit
def _dropout_factor(seed: tl.tensor, row: tl.tensor, width: tl.tensor, dropped: tl.tensor, scale: tl.tensor,
                    rows: tl.constexpr, block: tl.constexpr) -> tl.tensor:
    """The factors of dropout for a tile: 0, or the scale."""
    group = tl.arange(0, block // 8)
    return tl.where(keep_mask(tl.load(seed), row, group, tl.cdiv(width, 8), dropped, rows, block), scale, 0.0)


@triton.jit
def _add_kernel(x: tl.tensor, part: tl.tensor, seed: tl.tensor, out: tl.tensor, height: tl.tensor, width: tl.tensor,
                dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr,
                dropping: tl.constexpr) -> None:
    """out = x + dropout(part)."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    s, _ = _residual_sum(x, part, seed, row, column, height, width, dropped, scale, rows, block, True, dropping)
    mask = (row < height)[:, None] & (column < width)[None, :]
    tl.store(out + row[:, None].to(tl.int64) * width + column[None, :], s.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _dropout_kernel(grad_output: tl.tensor, seed: tl.tensor, out: tl.tensor, height: tl.tensor, width: tl.tensor,
                    dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr) -> None:
    """out = dropout(grad_output)."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    mask = (row < height)[:, None] & (column < width)[None, :]
    offsets = row[:, None].to(tl.int64) * width + column[None, :]
    g = tl.load(grad_output + offsets, mask=mask, other=0.0).to(tl.float32)
    g *= _dropout_factor(seed, row, width, dropped, scale, rows, block)
    tl.store(out + offsets, g.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _norm_kernel(x: tl.tensor, part: tl.tensor, gain: tl.tensor, shift: tl.tensor, seed: tl.tensor, out: tl.tensor,
                 means: tl.tensor, inverses: tl.tensor, height: tl.tensor, width: tl.tensor, epsilon: tl.tensor,
                 dropped: tl.tensor, scale: tl.tensor, rows: tl.constexpr, block: tl.constexpr, adding: tl.constexpr,
                 dropping: tl.constexpr, centred: tl.constexpr, gained: tl.constexpr, shifted: tl.constexpr) -> None:
    """out = norm(x + dropout(part)); means and inverses (T,): μ and r."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    inside = (column < width)[None, :]
    mask = (row < height)[:, None] & inside
    s, _ = _residual_sum(x, part, seed, row, column, height, width, dropped, scale, rows, block, adding, dropping)
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
    tl.store(out + row[:, None].to(tl.int64) * width + column[None, :], y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _norm_backward_kernel(grad_output: tl.tensor, x: tl.tensor, part: tl.tensor, gain: tl.tensor, seed: tl.tensor,
                          means: tl.tensor, inverses: tl.tensor, grad_x: tl.tensor, grad_part: tl.tensor,
                          sums: tl.tensor, height: tl.tensor, width: tl.tensor, dropped: tl.tensor, scale: tl.tensor,
                          rows_per_program: tl.tensor, rows: tl.constexpr, block: tl.constexpr, adding: tl.constexpr,
                          dropping: tl.constexpr, centred: tl.constexpr, gained: tl.constexpr) -> None:
    """grad_x, grad_part (T, D), and sums (P, 2 or 3, D) over the tokens of each program: ∂gain, ∂shift, and those of
    ∂part where there is one."""
    column = tl.arange(0, block)
    inside = column < width
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, height)
    grad_gain = tl.zeros((rows, block), tl.float32)
    grad_shift = tl.zeros((rows, block), tl.float32)
    grad_bias = tl.zeros((rows, block), tl.float32)
    for start in range(first, last, rows):
        row = start + tl.arange(0, rows)
        mask = (row < last)[:, None] & inside[None, :]
        offsets = row[:, None].to(tl.int64) * width + column[None, :]
        s, factor = _residual_sum(x, part, seed, row, column, last, width, dropped, scale, rows, block, adding,
                                  dropping)
        g = tl.load(grad_output + offsets, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row, mask=row < last, other=0.0)[:, None]
        if centred:
            s -= tl.load(means + row, mask=row < last, other=0.0)[:, None]
        hat = tl.where(mask, s * inverse, 0.0)
        grad_gain += g * hat
        grad_shift += g
        if gained:
            g *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        gradient = g - hat * (tl.sum(g * hat, 1) / width)[:, None]
        if centred:
            gradient -= (tl.sum(g, 1) / width)[:, None]
        gradient *= inverse
        tl.store(grad_x + offsets, gradient.to(grad_x.dtype.element_ty), mask=mask)
        if dropping:
            gradient *= factor
            tl.store(grad_part + offsets, gradient.to(grad_part.dtype.element_ty), mask=mask)
        if adding:
            grad_bias += gradient
    kinds: tl.constexpr = 3 if adding else 2
    sums_offsets = sums + tl.program_id(0).to(tl.int64) * kinds * width + column
    tl.store(sums_offsets, tl.sum(grad_gain, 0), mask=inside)
    tl.store(sums_offsets + width, tl.sum(grad_shift, 0), mask=inside)
    if adding:
        tl.store(sums_offsets + 2 * width, tl.sum(grad_bias, 0), mask=inside)


class NormTile(NamedTuple):
    """The tile of a program: its tokens, their features rounded up to a power of two, and its warps."""

    rows: int
    block: int
    warps: int


def norm_tile(width: int) -> NormTile:
    """The tile for tokens of this width."""
    block = max(2 * FEATURES_PER_DRAW, triton.next_power_of_2(width))
    return NormTile(max(1, NORM_TILE_ELEMENTS // block), block, max(1, block // 512))


def add_dropout(x: Tensor, part: Tensor, dropout: float) -> Tensor:
    """x + dropout(part), both (..., D)."""
    y: Tensor = _AddDropout.apply(x, part, draw_seed(dropout, x))
    return y


def add_dropout_norm(x: Tensor, part: Tensor, dropout: float, norm: NormParameters, dtype: torch.dtype) -> Tensor:
    """norm(x + dropout(part)), both (..., D), in this dtype."""
    y: Tensor = _AddDropoutNorm.apply(x, part, norm.gain, norm.shift, norm, draw_seed(dropout, x), dtype)
    return y


def fused_norm(x: Tensor, norm: NormParameters, dtype: torch.dtype) -> Tensor:
    """norm(x), (..., D), in this dtype."""
    y: Tensor = _AddDropoutNorm.apply(x, None, norm.gain, norm.shift, norm, draw_seed(0.0, x), dtype)
    return y


class _AddDropout(torch.autograd.Function):
    """∂x = ∂y, ∂part = ∂y ⊙ mask · scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, dropout: DropoutSeed) -> Tensor:
        ctx.dropout, ctx.dtypes = dropout, (x.dtype, part.dtype)
        x, part, width = x.contiguous(), part.contiguous(), x.shape[-1]
        out, height = _empty_like(x, torch.promote_types(*ctx.dtypes)), x.numel() // width
        rows, block, warps = norm_tile(width)
        launch(_add_kernel, (triton.cdiv(height, rows),), x, part, _or_unused(dropout.seed, x), out, height, width,
               dropout.dropped, dropout.scale, rows, block, dropout.seed is not None, num_warps=warps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Any, ...]:
        g, dropout = grad_output[0], ctx.dropout
        if dropout.seed is None:
            return g.to(ctx.dtypes[0]), g.to(ctx.dtypes[1]), None
        g, width = g.contiguous(), g.shape[-1]
        grad_part, height, (rows, block, warps) = _empty_like(g, ctx.dtypes[1]), g.numel() // width, norm_tile(width)
        launch(_dropout_kernel, (triton.cdiv(height, rows),), g, dropout.seed, grad_part, height, width,
               dropout.dropped, dropout.scale, rows, block, num_warps=warps)
        return g.to(ctx.dtypes[0]), grad_part, None


class _AddDropoutNorm(torch.autograd.Function):
    """The equations of norms at the top of this file."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor | None, gain: Tensor | None, shift: Tensor | None,
                norm: NormParameters, dropout: DropoutSeed, dtype: torch.dtype) -> Tensor:
        x, part, width = x.contiguous(), None if part is None else part.contiguous(), x.shape[-1]
        out, height, (rows, block, warps) = _empty_like(x, dtype), x.numel() // width, norm_tile(width)
        inverses = x.new_empty(height, dtype=torch.float32)
        means = torch.empty_like(inverses) if norm.centred else inverses
        launch(_norm_kernel, (triton.cdiv(height, rows),), x, _or_unused(part, x), _or_unused(gain, x),
               _or_unused(shift, x), _or_unused(dropout.seed, x), out, means, inverses, height, width, norm.epsilon,
               dropout.dropped, dropout.scale, rows, block, part is not None, dropout.seed is not None, norm.centred,
               gain is not None, shift is not None, num_warps=warps)
        ctx.save_for_backward(x, part, gain, means, inverses, dropout.seed)
        ctx.centred, ctx.dropout, ctx.grad_shift = norm.centred, dropout, None if shift is None else shift.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Any, ...]:
        x, part, gain, means, inverses, seed = ctx.saved_tensors
        g, width, dropping = grad_output[0].contiguous(), x.shape[-1], seed is not None
        height, (rows, block, warps) = x.numel() // width, norm_tile(width)
        rows_per_program = triton.cdiv(triton.cdiv(height, rows), NORM_BACKWARD_PROGRAMS) * rows
        programs = triton.cdiv(height, rows_per_program)
        grad_x = _empty_like(x, x.dtype)
        grad_part = _empty_like(x, part.dtype) if dropping else grad_x
        sums = x.new_empty(programs, width * (2 if part is None else 3), dtype=torch.float32)
        launch(_norm_backward_kernel, (programs,), g, x, _or_unused(part, x), _or_unused(gain, x), _or_unused(seed, x),
               means, inverses, grad_x, grad_part, sums, height, width, ctx.dropout.dropped, ctx.dropout.scale,
               rows_per_program, rows, block, part is not None, dropping, ctx.centred, gain is not None,
               num_warps=warps)
        wanted = {tensor.dtype for tensor in (gain, part) if tensor is not None} | {ctx.grad_shift} - {None}
        totals = column_sums(sums, wanted.pop() if len(wanted) == 1 else torch.float32)
        grad_gain, grad_shift, *grad_bias = totals.split(width)
        if part is not None:
            grad_part = grad_part.to(part.dtype)
            note_column_sums(grad_part, *grad_bias)
        return (grad_x, None if part is None else grad_part, None if gain is None else grad_gain.to(gain.dtype),
                None if ctx.grad_shift is None else grad_shift.to(ctx.grad_shift), None, None, None)


def _empty_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _or_unused(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or where it is None another one, as an argument that the kernel does not use."""
    return other if tensor is None else tensor


TILE_ROWS, TILE_COLUMNS, TILE_WARPS = 2, 1024, 4
"""The tile of a program."""
ACTIVATION_BACKWARD_PROGRAMS, MIN_TILES = 1056, 4
"""Backward passes that sum have this many programs (eight for each multiprocessor of a large GPU), and each of them at
least this many tiles."""


@triton.jit
def _normal_cdf_pdf(x: tl.tensor) -> tl.tensor:
    """Φ(x) and φ(x) of the normal distribution."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476), tl.exp(-0.5 * x * x) * 0.3989422804014327


@triton.jit
def _sigmoid_both(x: tl.tensor) -> tl.tensor:
    """σ(x) = 1 / (1 + exp(-x)) and σ(-x), from exp(-|x|), so that no exponential overflows and no digits are lost."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e), tl.where(x < 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def _gelu_tanh_gate(x: tl.tensor) -> tl.tensor:
    """½ (1 + tanh u), the factor of x in GPT-2's GELU, and its derivative; u = √(2/π) (x + 0.044715 x³)."""
    inner = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)  # 2u, for ½ (1 + tanh u) = σ(2u)
    opened, closed = _sigmoid_both(inner)
    return opened, opened * closed * 1.5957691216057308 * (1.0 + 0.134145 * x * x)


@triton.jit
def _tile_offsets(count: tl.tensor, rows: tl.constexpr, block: tl.constexpr) -> tl.tensor:
    """The rows of this program, their offsets in memory, and which of these are inside."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    offsets = row[:, None].to(tl.int64) * block + tl.arange(0, block)[None, :]
    return row, offsets, offsets < count


@triton.jit
def _activation_kernel(x: tl.tensor, seed: tl.tensor, out: tl.tensor, count: tl.tensor, dropped: tl.tensor,
                       scale: tl.tensor, name: tl.constexpr, dropping: tl.constexpr, rows: tl.constexpr,
                       block: tl.constexpr) -> None:
    """out = dropout(f(x))."""
    row, offsets, mask = _tile_offsets(count, rows, block)
    v = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    if name == "relu":
        v = tl.where(v <= 0.0, 0.0, v)
    if name == "gelu":
        below, _ = _normal_cdf_pdf(v)
        v *= below
    if name == "gelu_tanh":
        opened, _ = _gelu_tanh_gate(v)
        v *= opened
    if name == "silu":
        opened, _ = _sigmoid_both(v)
        v *= opened
    if dropping:
        v = tl.where(keep_mask(tl.load(seed), row, tl.arange(0, block // 8), block // 8, dropped, rows, block),
                     v * scale, 0.0)
    tl.store(out + offsets, v.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _activation_backward_kernel(grad_output: tl.tensor, saved: tl.tensor, seed: tl.tensor, out: tl.tensor,
                                sums: tl.tensor, count: tl.tensor, width: tl.tensor, rows_per_program: tl.tensor,
                                dropped: tl.tensor, scale: tl.tensor, name: tl.constexpr, dropping: tl.constexpr,
                                summing: tl.constexpr, rows: tl.constexpr, block: tl.constexpr) -> None:
    """out (T, D) = ∂x, and sums (P, D) over the rows of each program; `saved` is y for ReLU, x for the others."""
    column = tl.program_id(1) * block + tl.arange(0, block)
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, tl.cdiv(count, width))
    total = tl.zeros((rows, block), tl.float32)
    for start in range(first, last, rows):
        row = start + tl.arange(0, rows)
        offsets = row[:, None].to(tl.int64) * width + column[None, :]
        mask = (row < last)[:, None] & (column < width)[None, :] & (offsets < count)
        g = _activation_gradient(grad_output, saved, offsets, mask, scale, name)
        if dropping and name != "relu":
            group = tl.program_id(1) * (block // 8) + tl.arange(0, block // 8)
            g = tl.where(keep_mask(tl.load(seed), row, group, width // 8, dropped, rows, block), g, 0.0)
        tl.store(out + offsets, g.to(out.dtype.element_ty), mask=mask)
        if summing:
            total += g
    if summing:
        sums_offsets = sums + tl.program_id(0).to(tl.int64) * width + column
        tl.store(sums_offsets, tl.sum(total, 0), mask=column < width)


@triton.jit
def _activation_gradient(grad_output: tl.tensor, saved: tl.tensor, offsets: tl.tensor, mask: tl.tensor,
                         scale: tl.tensor, name: tl.constexpr) -> tl.tensor:
    """∂y · scale ⊙ f'(x); zeros outside of the mask."""
    g = tl.load(grad_output + offsets, mask=mask, other=0.0).to(tl.float32) * scale
    v = tl.load(saved + offsets, mask=mask, other=0.0).to(tl.float32)
    if name == "relu":
        g = tl.where(v <= 0.0, 0.0, g)
    if name == "gelu":
        below, density = _normal_cdf_pdf(v)
        g *= below + v * density
    if name == "gelu_tanh":
        opened, gradient = _gelu_tanh_gate(v)
        g *= opened + v * gradient
    if name == "silu":
        opened, closed = _sigmoid_both(v)
        g *= opened * (1.0 + v * closed)
    return g


def activate_dropout(x: Tensor, name: str, dropout: float) -> Tensor:
    """dropout(f(x)), f "relu", "gelu", "gelu_tanh" or "silu"."""
    y: Tensor = _ActivateDropout.apply(x, name, draw_seed(dropout, x))
    return y


class _ActivateDropout(torch.autograd.Function):
    """The equations of activations at the top of this file."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, dropout: DropoutSeed) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        launch(_activation_kernel, (triton.cdiv(out.numel(), TILE_ROWS * TILE_COLUMNS),), x,
               _or_unused(dropout.seed, out), out, out.numel(), dropout.dropped, dropout.scale, name,
               dropout.seed is not None, TILE_ROWS, TILE_COLUMNS, num_warps=TILE_WARPS)
        ctx.save_for_backward(out if name == "relu" else x)
        ctx.name, ctx.dropout = name, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Any, ...]:
        (saved,) = ctx.saved_tensors
        g, out, dropout = grad_output[0].contiguous(), torch.empty_like(saved), ctx.dropout
        summing = out.shape[-1] % FEATURES_PER_DRAW == 0  # otherwise a group of features is in two rows
        width, rows, block, rows_per_program = _column_tiles(out) if summing else (TILE_COLUMNS, TILE_ROWS,
                                                                                   TILE_COLUMNS, TILE_ROWS)
        shares = triton.cdiv(triton.cdiv(out.numel(), width), rows_per_program)
        sums = out.new_empty(shares if summing else 0, width, dtype=torch.float32)
        launch(_activation_backward_kernel, (shares, triton.cdiv(width, block)), g, saved,
               _or_unused(dropout.seed, out), out, sums, out.numel(), width, rows_per_program, dropout.dropped,
               dropout.scale, ctx.name, dropout.seed is not None, summing, rows, block, num_warps=TILE_WARPS)
        if summing:
            note_column_sums(out, sums)
        return out, None, None


def _column_tiles(out: Tensor) -> tuple[int, int, int, int]:
    """The width of a row, rows and columns of a tile, and rows of a program, where columns are summed."""
    width = out.shape[-1]
    block = min(TILE_COLUMNS, max(2 * FEATURES_PER_DRAW, triton.next_power_of_2(width)))
    rows = TILE_ROWS * TILE_COLUMNS // block
    tiles, programs = triton.cdiv(out.numel() // width,
                                  rows), max(1, ACTIVATION_BACKWARD_PROGRAMS // triton.cdiv(width, block))
    return width, rows, block, max(MIN_TILES, triton.cdiv(tiles, programs)) * rows
