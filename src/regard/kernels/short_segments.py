"""Attention inside many short segments at once, on a CPU: one batch of small matrices in place of a call a segment.

    scores = scale · Q_s K_sᵀ,   output = softmax(scores) V_s,     for all segments s and heads at once

One segment is so little work that calling torch for it costs more than the work: a training step on 160 packed
sentences made 900 calls. Here the tokens of every segment are copied into a row of its own, as long as the longest (a
shorter segment repeats its last token, which the mask then hides), and each product is one batch of small matrices. The
gradients are written out: copying back undoes the copying, where torch would add up. The weights are kept for the
backward pass, so this is only for few of them.

Measured on one thread, forward and backward, 2,048 tokens, 4 heads of 32: segments of 12 to 16 tokens 4.8 ms, one by
one 17.3 ms; of 24 to 32 tokens 5.0 and 10.0; of 48 to 64 tokens 8.4 and 10.7; of 96 to 128 tokens 11.2 and 11.6.

Legend: S segments (of each head, where there is no H), H heads, T tokens of all segments, n queries and m keys of a
padded segment, D width.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels.launch import once_differentiable

MAX_WEIGHTS = 1 << 22
"""Largest number of weights that are kept: 16 MiB in float32."""
MAX_LENGTH = 64
"""Longest segment: for longer ones torch's fused kernel is as fast, and keeps no weights."""
MIN_FILLED = 0.4
"""Least share of the weights that must be between real tokens."""
MIN_SEGMENTS = 4
"""Fewer segments are not worth the copying."""
MIN_KEYS = 16
"""Keys of a padded segment: torch's softmax of fewer than a vector register holds is ten times as slow."""


class SegmentLayout(NamedTuple):
    """Where tokens go. A token of a head is a row: one of T·H in packed order, one of S·H·n (or m) in padded order."""

    query: Tensor
    """(S·H·n,): the packed row of each padded row."""
    key: Tensor
    """(S·H·m,)"""
    query_back: Tensor
    """(T·H,): the padded row of each packed row."""
    key_back: Tensor
    bias: Tensor
    """(S·H, n, m): 0 where a query may attend to a key, else -inf; 0 in all of a row that may attend to nothing."""
    allowed: Tensor | None
    """(S·H, n, m): 1 and 0; None where every query may attend to something."""
    blind: Tensor | None
    """(S·H, n, 1): the queries that may attend to nothing; None where there is none."""


def worth_batching(queries: list[int], keys: list[int], heads: int) -> bool:
    """Whether segments of these lengths are faster in one batch than one by one."""
    if len(queries) < MIN_SEGMENTS or not (all(queries) and all(keys)) or max(*queries, *keys) > MAX_LENGTH:
        return False
    padded = len(queries) * max(queries) * max(keys)
    filled = sum(n * m for n, m in zip(queries, keys, strict=True))
    return filled >= MIN_FILLED * padded and padded * heads <= MAX_WEIGHTS


def attend_segments(query: Tensor, key: Tensor, value: Tensor, queries: list[int], keys: list[int], *, causal: bool,
                    scale: float, dropout: float) -> Tensor:
    """(H, T, D of the values) of query (H, T, D), key and value (H, T of the keys, ...), cut into these lengths."""
    heads, n_queries, _ = query.shape
    layout = _layout(tuple(queries), tuple(keys), heads, causal, query.dtype)
    rows = [tensor.transpose(0, 1).reshape(-1, tensor.shape[-1]) for tensor in (query, key, value)]
    output: Tensor = _BatchedSegments.apply(*rows, layout, scale, dropout)
    return output.view(n_queries, heads, -1).transpose(0, 1)


class _BatchedSegments(torch.autograd.Function):
    """Rows (T·H, D) of queries, keys and values -> rows of the output."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, scale: float,
                dropout: float) -> Tensor:
        (_, n, m) = layout.bias.shape
        q_SnD = query.index_select(0, layout.query).view(-1, n, query.shape[-1])
        if layout.blind is not None:  # they may hold NaN, which a weight of 0 does not hide
            q_SnD = q_SnD.masked_fill(layout.blind, 0.0)
        k_SmD, v_SmD = (each.index_select(0, layout.key).view(-1, m, each.shape[-1]) for each in (key, value))
        weights_Snm = torch.baddbmm(layout.bias, q_SnD, k_SmD.mT, alpha=scale).softmax(-1)
        if layout.allowed is not None:
            weights_Snm.mul_(layout.allowed)
        kept_Snm = torch.empty_like(weights_Snm).bernoulli_(1.0 - dropout).div_(1.0 - dropout) if dropout else None
        dropped_Snm = weights_Snm if kept_Snm is None else weights_Snm * kept_Snm
        ctx.save_for_backward(q_SnD, k_SmD, v_SmD, weights_Snm, kept_Snm)
        ctx.layout, ctx.scale = layout, scale
        return torch.bmm(dropped_Snm, v_SmD).flatten(0, 1).index_select(0, layout.query_back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        q_SnD, k_SmD, v_SmD, weights_Snm, kept_Snm = ctx.saved_tensors
        layout: SegmentLayout = ctx.layout
        # A padding query repeats a real one; its weights are 0, so its gradient contributes nothing.
        d_output_SnD = upstream[0].index_select(0, layout.query).view(*q_SnD.shape[:2], -1)
        d_weights_Snm = torch.bmm(d_output_SnD, v_SmD.mT)
        dropped_Snm = weights_Snm
        if kept_Snm is not None:
            d_weights_Snm.mul_(kept_Snm)
            dropped_Snm = weights_Snm * kept_Snm
        d_value = torch.bmm(dropped_Snm.mT, d_output_SnD)
        d_scores_Snm = torch._softmax_backward_data(d_weights_Snm, weights_Snm, -1, weights_Snm.dtype)
        d_scores_Snm.mul_(ctx.scale)
        d_query, d_key = torch.bmm(d_scores_Snm, k_SmD), torch.bmm(d_scores_Snm.mT, q_SnD)
        return (d_query.flatten(0, 1).index_select(0, layout.query_back),
                *(each.flatten(0, 1).index_select(0, layout.key_back) for each in (d_key, d_value)), None, None, None)


@lru_cache(maxsize=8)
def _layout(queries: tuple[int, ...], keys: tuple[int, ...], heads: int, causal: bool,
            dtype: torch.dtype) -> SegmentLayout:
    """The layout of such segments. All layers of a forward pass need the same one."""
    query, query_back, real_Sn = _padded_order(queries, heads, max(queries))
    key, key_back, real_Sm = _padded_order(keys, heads, max(MIN_KEYS, -(-max(keys) // 4) * 4))
    allowed_Snm = real_Sn.unsqueeze(2) & real_Sm.unsqueeze(1)
    if causal:  # the last query of a segment stands at its last key
        shift_S = torch.tensor(keys) - torch.tensor(queries)
        position_Sn = torch.arange(real_Sn.shape[1]) + shift_S.unsqueeze(1)
        allowed_Snm &= torch.arange(real_Sm.shape[1]) <= position_Sn.unsqueeze(2)
    blind_Sn1 = ~allowed_Snm.any(-1, keepdim=True)
    bias_Snm = torch.zeros(allowed_Snm.shape, dtype=dtype).masked_fill_(~(allowed_Snm | blind_Sn1), -torch.inf)
    factor_Snm = blind = None
    if bool(blind_Sn1.any()):
        factor_Snm, blind = (part.repeat_interleave(heads, 0) for part in (allowed_Snm.to(dtype), blind_Sn1))
    return SegmentLayout(query, key, query_back, key_back, bias_Snm.repeat_interleave(heads, 0), factor_Snm, blind)


def _padded_order(lengths: tuple[int, ...], heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """The packed row of each padded row, the padded row of each packed row, and which tokens are real, (S, n)."""
    length_S = torch.tensor(lengths)
    start_S = length_S.cumsum(0) - length_S
    index_n, head_H = torch.arange(length), torch.arange(heads)
    token_Sn = start_S.unsqueeze(1) + torch.minimum(index_n, length_S.unsqueeze(1) - 1)
    row_SHn = token_Sn.unsqueeze(1) * heads + head_H.unsqueeze(1)
    real_Sn = index_n < length_S.unsqueeze(1)
    padded_SHn = torch.arange(row_SHn.numel()).view(row_SHn.shape)
    back_TH = padded_SHn.transpose(1, 2)[real_Sn]
    return row_SHn.flatten(), back_TH.flatten(), real_Sn
