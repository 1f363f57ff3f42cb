"""Attention of many rows that share one bias, in plain torch: a chunk of rows at a time.

The same as `regard.kernels.shared_bias`, on every device and in every precision. A chunk has as many rows as keep its
weights within `chunk_numbers` (at least one row), and nothing of it is kept: the backward pass computes the weights of
each chunk once more, and adds its ∂s to the one gradient of the bias:

    p = softmax(scale q·k + bias);   ∂v = pᵀ ∂o;   ∂s = p (∂o·v − Σ p ∂o·v);   ∂b += Σ_rows ∂s;   ∂q = scale ∂s k

Legend: G groups of rows (each has a bias of its own), R rows of a group, H heads, Q queries, K keys, D width, E width
of the values; C rows of a chunk.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_NUMBERS_CPU = 1 << 19
CHUNK_NUMBERS_GPU = 1 << 26
"""The weights of a chunk: about a cache on a CPU, enough to fill the chip on a GPU."""


class ChunkedSharedBiasAttention(torch.autograd.Function):
    """o (G, R, H, Q, E) of query (G, R, H, Q, D), key (G, R, H, K, D), value (G, R, H, K, E) and bias (G, H, Q, K).

    present is (G, R, K), bool, or None: which keys exist.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, present: Tensor | None,
                scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value, bias, present)
        ctx.scale = scale
        G, R, H, Q, _ = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        output = query.new_empty(G, R, Q, H, value.shape[-1]).transpose(2, 3)
        with torch.autocast(query.device.type, enabled=False):
            for g, rows in _chunks(query, key):
                q, k, v = (tensor[g, rows].to(wide) for tensor in (query, key, value))
                one = _Chunk.of(q, k, v, bias[g].to(wide), present, g, rows)
                output[g, rows] = one.weights(scale) @ one.value
        return output

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, present = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph: the gradients need gradients of their own
            return *_literal_gradients(query, key, value, bias, present, ctx.scale, upstream[0]), None, None
        wide = torch.promote_types(query.dtype, torch.float32)  # sums over many chunks need the digits
        d_query, d_key, d_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        d_bias = torch.zeros_like(bias, dtype=wide)
        with torch.autocast(query.device.type, enabled=False):
            for g, rows in _chunks(query, key):
                q, k, v, u = (tensor[g, rows].to(wide) for tensor in (query, key, value, upstream[0]))
                one = _Chunk.of(q, k, v, bias[g].to(wide), present, g, rows)
                p = one.weights(ctx.scale)
                u = u if one.blind is None else u.masked_fill(one.blind, 0.0)
                d_value[g, rows] = p.mT @ u
                ds = u @ one.value.mT
                ds.sub_((p * ds).sum(-1, keepdim=True)).mul_(p)
                d_bias[g] += ds.sum(0)
                d_query[g, rows] = ds @ one.key * ctx.scale
                d_key[g, rows] = ds.mT @ one.query * ctx.scale
        return d_query, d_key, d_value, d_bias.to(bias.dtype), None, None


class _Chunk(NamedTuple):
    """Some rows, without the numbers of keys that do not exist and of queries without keys."""

    query: Tensor
    key: Tensor
    value: Tensor
    matrix: Tensor
    """(C or 1, H, Q, K): the bias, with −∞ for keys that do not exist. Rows that forbid everything are opened."""
    blind: Tensor | None
    """(C or 1, H, Q, 1): the rows that forbid everything; None where there are none."""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, present: Tensor | None, g: int,
           rows: slice) -> "_Chunk":
        """The chunk of query (C, H, Q, D), key and value, under the bias (H, Q, K)."""
        matrix = bias.unsqueeze(0)
        if present is not None:
            there = present[g, rows][:, None, None]
            absent = ~there.mT
            key, value = key.masked_fill(absent, 0.0), value.masked_fill(absent, 0.0)
            query = query.masked_fill(~there.any(-1, keepdim=True), 0.0)
            matrix = matrix.masked_fill(~there, -torch.inf)
        blind = matrix.amax(-1, keepdim=True) == -torch.inf
        if query.device.type == "cpu" and not bool(blind.any()):
            return cls(query, key, value, matrix, None)
        return cls(query, key, value, matrix.masked_fill(blind, 0.0), blind)

    def weights(self, scale: float) -> Tensor:
        """softmax(scale q·k + bias), (C, H, Q, K); zeros in rows that forbid everything."""
        p = torch.softmax((self.query * scale @ self.key.mT).add_(self.matrix), -1)
        return p if self.blind is None else p.masked_fill_(self.blind, 0.0)


def _chunks(query: Tensor, key: Tensor) -> Iterator[tuple[int, slice]]:
    """The group and the rows of every chunk."""
    G, R, H, Q, _ = query.shape
    most = CHUNK_NUMBERS_CPU if query.device.type == "cpu" else CHUNK_NUMBERS_GPU
    size = max(1, most // max(1, H * Q * key.shape[3]))
    for g in range(G):
        for first in range(0, R, size):
            yield g, slice(first, min(first + size, R))


def _literal_gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, present: Tensor | None, scale: float,
                       d_output: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients with all rows at once, in operations that have gradients."""
    matrix = bias.unsqueeze(1)
    if present is not None:
        there = present[:, :, None, None]
        absent = ~there.mT
        key, value = key.masked_fill(absent, 0.0), value.masked_fill(absent, 0.0)
        matrix = matrix.masked_fill(~there, -torch.inf)
    blind = matrix.amax(-1, keepdim=True) == -torch.inf
    p = torch.softmax(query * scale @ key.mT + matrix.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    dp = d_output @ value.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return ds @ key * scale, ds.mT @ query * scale, p.mT @ d_output, ds.sum(1)
