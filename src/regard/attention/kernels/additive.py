"""Additive scores a piece at a time: w · tanh(q + k) without ever holding a number for every pair and every feature.

The literal score holds Q·K·D numbers, and so does its backward pass. This one goes through them in a workspace as large
as a cache, keeps only the Q·K scores, and computes each piece once more in the backward pass. On a GPU fused kernels
take its place (`additive_triton`), which have no workspace at all. It is the score of `Additive`, for `tiled`; it does
not know masks, normalisers or values.

Legend: ... leading dimensions, Q queries, K keys, D width; P and C are the queries and keys of a piece.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.problem import AttentionProblem
from regard.attention.score import Additive, Score
from regard.kernels import launch

PIECE = 1 << 20
PIECE_GPU = 1 << 26
"""Numbers in the workspace: 4 MiB in float32 on a CPU, about its cache; on a GPU enough to fill it."""


def has_fused_scores(problem: AttentionProblem) -> bool:
    """Whether fused kernels compute the scores: additive ones, on CUDA, where triton is installed."""
    additive = isinstance(problem.score, Additive | TiledAdditive)
    return additive and _takes(problem.query)


def with_tiled_score(problem: AttentionProblem) -> AttentionProblem:
    """The same problem, its score computed a piece at a time where that is known how."""
    return replace(problem, score=TiledAdditive(problem.score)) if isinstance(problem.score, Additive) else problem


@dataclass(frozen=True, eq=False)
class TiledAdditive(Score):
    """`Additive`, computed a piece at a time."""

    score: Additive
    bounded = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        if self.score.bias is not None:
            query = query + self.score.bias.to(query.dtype).unsqueeze(-2)
        weight = self.score.weight.to(query.dtype)
        if _takes(query):
            from regard.kernels import additive as additive_triton

            return additive_triton.AdditiveScores.apply(query, key, weight)
        scores: Tensor = _TiledScores.apply(query, key, weight)
        return scores

    def numbers_per_pair(self, query_width: int) -> int:
        return 1

    def __repr__(self) -> str:
        return repr(self.score)


class _TiledScores(torch.autograd.Function):
    """e = w · tanh(q + k);  de/dw = tanh,  de/dq = de/dk = w (1 - tanh²)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, weight)
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], weight.shape[:-1])
        scores = query.new_empty(*leading, query.shape[-2], key.shape[-2])
        for rows, columns, hidden_PCD in _pieces(query, key, leading):
            scores[..., rows, columns] = (hidden_PCD @ _column(weight)).squeeze(-1)
        return scores

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (g_QK,) = upstream
        query, key, weight = ctx.saved_tensors
        leading = g_QK.shape[:-2]
        wide = torch.promote_types(query.dtype, torch.float32)  # sums over many pieces need the digits
        d_query, d_key = (g_QK.new_zeros(*leading, *t.shape[-2:], dtype=wide) for t in (query, key))
        d_weight = g_QK.new_zeros(*leading, weight.shape[-1], dtype=wide)
        for rows, columns, hidden_PCD in _pieces(query, key, leading):
            g_PC1 = g_QK[..., rows, columns].unsqueeze(-1)
            d_weight += (g_PC1.flatten(-3, -2).transpose(-2, -1) @ hidden_PCD.flatten(-3, -2)).squeeze(-2)
            slope_PCD = hidden_PCD.square_().neg_().add_(1.0).mul_(g_PC1)
            d_query[..., rows, :] += slope_PCD.sum(-2, dtype=wide)
            d_key[..., columns, :] += slope_PCD.sum(-3, dtype=wide)
        w_D = weight.unsqueeze(-2)
        return ((d_query * w_D).sum_to_size(query.shape).to(query.dtype),
                (d_key * w_D).sum_to_size(key.shape).to(key.dtype),
                d_weight.sum_to_size(weight.shape).to(weight.dtype))


def _takes(query: Tensor) -> bool:
    """Whether fused kernels take such numbers. A compiler gets torch's own operations, to fuse with others."""
    if torch.compiler.is_compiling() or query.device.type != "cuda" or query.dtype == torch.float64:
        return False
    return launch.installed()


def _pieces(query: Tensor, key: Tensor, leading: torch.Size) -> Iterator[tuple[slice, slice, Tensor]]:
    """tanh(q + k) of every piece, in a workspace that the next piece writes over."""
    n_queries, n_keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    room = max(1, (PIECE if query.device.type == "cpu" else PIECE_GPU) // max(1, leading.numel() * width))
    columns = max(1, min(n_keys, room))
    rows = max(1, min(n_queries, room // columns))
    workspace = query.new_empty(leading.numel() * rows * columns * width)
    for first in range(0, n_queries, rows):
        row = slice(first, min(first + rows, n_queries))
        for start in range(0, n_keys, columns):
            column = slice(start, min(start + columns, n_keys))
            shape = (*leading, row.stop - row.start, column.stop - column.start, width)
            hidden = workspace[:torch.Size(shape).numel()].view(shape)
            torch.add(query[..., row, :].unsqueeze(-2), key[..., column, :].unsqueeze(-3), out=hidden)
            yield row, column, hidden.tanh_()


def _column(weight: Tensor) -> Tensor:
    """(D,) or (H, D) -> what a product with (..., H, P, C, D) takes."""
    return weight.unsqueeze(-1) if weight.dim() == 1 else weight[:, None, :, None]
