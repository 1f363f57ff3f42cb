"""Triton kernels between the matrix products of a decoder step: residual and norm, token and position embedding.

    add_norm_rows(x, added, norm)    x + added, and its norm: LayerNorm or RMSNorm, as torch computes them
    embed_rows(...)                  the vector of a token plus that of its position

Forward passes of single rows, without gradients. Sums are float32 (float64 for float64). These kernels know neither
blocks nor models. Needs Triton.

Legend: R rows, D width.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from regard.kernels import launch


class AddNormRows(NamedTuple):
    """The sum and its norm, (R, D) each."""

    sum: Tensor
    norm: Tensor


@triton.jit
def _add_norm_kernel(x, added, weight, bias, total, output, width, EPSILON: tl.constexpr, ADDED: tl.constexpr,
                     CENTRED: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
                     PRECISE: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = d < width
    value = tl.load(x + row * width + d, mask=mask, other=0.0).to(PRECISE)
    if ADDED:
        value += tl.load(added + row * width + d, mask=mask, other=0.0).to(PRECISE)
        tl.store(total + row * width + d, value, mask=mask)
        # Norm the rounded sum: later sublayers add to that one.
        value = value.to(total.dtype.element_ty).to(PRECISE)
    if CENTRED:
        value = tl.where(mask, value - tl.sum(value, 0) / width, 0.0)
    result = value / tl.sqrt(tl.sum(value * value, 0) / width + EPSILON)
    if WEIGHT:
        result *= tl.load(weight + d, mask=mask, other=0.0).to(PRECISE)
    if BIAS:
        result += tl.load(bias + d, mask=mask, other=0.0).to(PRECISE)
    tl.store(output + row * width + d, result, mask=mask)


@triton.jit
def _embed_kernel(tokens, positions, table, position_table, output, width, FACTOR: tl.constexpr,
                  POSITIONS: tl.constexpr, BLOCK: tl.constexpr, PRECISE: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = d < width
    value = tl.load(table + tl.load(tokens + row) * width + d, mask=mask, other=0.0).to(PRECISE) * FACTOR
    if POSITIONS:
        value += tl.load(position_table + tl.load(positions + row) * width + d, mask=mask, other=0.0).to(PRECISE)
    tl.store(output + row * width + d, value, mask=mask)


def why_not_norm(norm: nn.Module) -> str | None:
    """Why these kernels cannot compute a norm; None where they can."""
    if type(norm) not in (nn.LayerNorm, nn.RMSNorm) or len(norm.normalized_shape) != 1:  # type: ignore[arg-type]
        return f"a norm is a {type(norm).__name__}"
    return None


def add_norm_rows(x: Tensor, added: Tensor | None, norm: nn.LayerNorm | nn.RMSNorm) -> AddNormRows:
    """x + added (R, D), and the norm of the sum; x itself where `added` is None."""
    rows, width = x.shape
    output = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    epsilon = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    launch.launch(_add_norm_kernel, (rows,), x, total if added is None else added,
                  x if norm.weight is None else norm.weight, x if bias is None else bias, total, output, width,
                  EPSILON=epsilon, ADDED=added is not None, CENTRED=isinstance(norm, nn.LayerNorm),
                  WEIGHT=norm.weight is not None, BIAS=bias is not None, **_launch_sizes(x, width))
    return AddNormRows(total, output)


def embed_rows(tokens: Tensor, positions: Tensor, table: Tensor, position_table: Tensor | None,
               factor: float) -> Tensor:
    """factor · table[token] + position_table[position] for tokens and positions (R,): (R, D)."""
    output = table.new_empty(len(tokens), table.shape[1])
    launch.launch(_embed_kernel, (len(tokens),), tokens, positions, table,
                  table if position_table is None else position_table, output, table.shape[1], FACTOR=factor,
                  POSITIONS=position_table is not None, **_launch_sizes(table, table.shape[1]))
    return output


def _launch_sizes(x: Tensor, width: int) -> dict[str, object]:
    block = launch.next_power_of_2(width)
    return {"BLOCK": block, "PRECISE": tl.float64 if x.dtype == torch.float64 else tl.float32,
            "num_warps": max(1, min(8, block // 256))}
