"""Short segments of nearly one length, all in one product: how `segments` computes a batch of sentences on a CPU.

    scores = scale · Q_s K_sᵀ,   output = softmax(scores) V_s,     for all segments s and heads at once

A segment by itself is so little work that asking for it costs more than doing it: a step of training on 160 packed
sentences asked torch 900 times. Here the tokens of every segment are copied into a row of their own, as long as the
longest (a shorter segment repeats its last token, which nobody then sees), and each product is one batch of small
matrices. Gradients are written out: the copying is undone by copying back, where torch would add up. The weights are
kept for the backward pass, so it is only for few of them.

It takes scores that are dot products, softmax, and no mask inside of the segments but a causal one. Measured on one
thread, forward and backward, 2,048 tokens, 4 heads of 32: segments of 12 to 16 tokens 4.8 ms, one by one 17.3; of 24 to
32 tokens 5.0 and 10.0; of 48 to 64 tokens 8.4 and 10.7; of 96 to 128 tokens 11.2 and 11.6.

Legend: S segments (of each head, where there is no H), H heads, T tokens of all segments, n queries and m keys of a
row, D width.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.mask import Causal, Mask
from regard.attention.normalize import Softmax
from regard.attention.problem import AttentionProblem
from regard.kernels.launch import once_differentiable

HELD = 1 << 22
"""Weights that are kept at most: 16 MiB in float32."""
LONGEST = 64
"""Tokens of a segment: of longer ones torch's fused kernel is as fast, and keeps no weights."""
FILLED = 0.4
"""Which share of the weights must be between tokens that are there."""
FEWEST = 4
"""Segments: fewer are not worth the copying."""
SHORTEST = 16
"""Keys of a row, at least: torch's softmax of fewer than a vector register holds is ten times as slow."""


class SegmentLayout(NamedTuple):
    """Where tokens go. A token of a head is a row: of T·H in packed order, and of S·H·n (or m) when levelled."""

    query: Tensor
    """(S·H·n,): the packed row of each levelled one."""
    key: Tensor
    """(S·H·m,)"""
    query_back: Tensor
    """(T·H,): the levelled row of each packed one."""
    key_back: Tensor
    hidden: Tensor
    """(S·H, n, m): 0 where a query sees a key, -inf where not; 0 for all of a query that sees nothing."""
    seen: Tensor | None
    """(S·H, n, m): 1 and 0; None where every query sees something."""


def fits(problem: AttentionProblem, queries: list[int], keys: list[int], inside: list[Mask]) -> bool:
    """Whether segments of these lengths, under these masks, are computed here."""
    if not (problem.query.dtype == problem.key.dtype == problem.value.dtype in (torch.float32, torch.float64)
            and problem.query.device.type == "cpu" and not torch.is_autocast_enabled("cpu")):
        return False
    if not (isinstance(problem.normalize, Softmax) and problem.score.as_dot(problem.query[..., :0, :]) is not None
            and problem.bias is None and all(isinstance(part, Causal) for part in inside)):
        return False
    if (len(problem.leading) < 1 or any(size != 1 for size in problem.leading[:-1])
            or any(tensor.dim() < 3 or tensor.shape[-3] != problem.heads
                   for tensor in (problem.query, problem.key, problem.value))):
        return False
    if (len(queries) < FEWEST or not (all(queries) and all(keys)) or max(*queries, *keys) > LONGEST
            or (sum(queries), sum(keys)) != (problem.n_queries, problem.n_keys)):
        return False
    levelled = len(queries) * max(queries) * max(keys)
    there = sum(n * m for n, m in zip(queries, keys, strict=True))
    return there >= FILLED * levelled and levelled * problem.heads <= HELD


def run(problem: AttentionProblem, queries: list[int], keys: list[int], inside: list[Mask]) -> Tensor:
    """The output (*leading, T, D of the values)."""
    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "fits() was not asked"
    query, scale = dot
    layout = _layout(tuple(queries), tuple(keys), problem.heads, bool(inside), problem.query.dtype)
    rows = [_rows(tensor) for tensor in (query, problem.key, problem.value)]
    output: Tensor = _BatchedSegments.apply(*rows, layout, scale, problem.dropout)
    return output.view(problem.n_queries, problem.heads, -1).transpose(0, 1).reshape(
        *problem.leading, problem.n_queries, -1)


class _BatchedSegments(torch.autograd.Function):
    """Rows (T·H, D) of queries, keys and values -> rows of the output."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, scale: float,
                dropout: float) -> Tensor:
        (_, n, m) = layout.hidden.shape
        q_SnD = query.index_select(0, layout.query).view(-1, n, query.shape[-1])
        k_SmD, v_SmD = (each.index_select(0, layout.key).view(-1, m, each.shape[-1]) for each in (key, value))
        weights_Snm = torch.baddbmm(layout.hidden, q_SnD, k_SmD.mT, alpha=scale).softmax(-1)
        if layout.seen is not None:
            weights_Snm.mul_(layout.seen)
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
        # A query that is not there repeats one that is; its weights are 0, so that its gradient counts nothing.
        g_SnD = upstream[0].index_select(0, layout.query).view(*q_SnD.shape[:2], -1)
        of_weights_Snm = torch.bmm(g_SnD, v_SmD.mT)
        dropped_Snm = weights_Snm
        if kept_Snm is not None:
            of_weights_Snm.mul_(kept_Snm)
            dropped_Snm = weights_Snm * kept_Snm
        of_value = torch.bmm(dropped_Snm.mT, g_SnD)
        of_scores_Snm = torch._softmax_backward_data(of_weights_Snm, weights_Snm, -1, weights_Snm.dtype)
        of_scores_Snm.mul_(ctx.scale)
        of_query, of_key = torch.bmm(of_scores_Snm, k_SmD), torch.bmm(of_scores_Snm.mT, q_SnD)
        return (of_query.flatten(0, 1).index_select(0, layout.query_back),
                *(each.flatten(0, 1).index_select(0, layout.key_back) for each in (of_key, of_value)), None, None, None)


def _rows(tensor: Tensor) -> Tensor:
    """(..., H, T, D) -> (T·H, D): a view where heads are beside each other in a token, as projections give them."""
    return tensor.reshape(*tensor.shape[-3:]).transpose(0, 1).reshape(-1, tensor.shape[-1])


@lru_cache(maxsize=8)
def _layout(queries: tuple[int, ...], keys: tuple[int, ...], heads: int, causal: bool, dtype: torch.dtype) -> SegmentLayout:
    """The layout of such segments. All layers of a pass ask for the same ones."""
    query, query_back, there_Sn = _places(queries, heads, max(queries))
    key, key_back, there_Sm = _places(keys, heads, max(SHORTEST, -(-max(keys) // 4) * 4))
    allowed_Snm = there_Sn.unsqueeze(2) & there_Sm.unsqueeze(1)
    if causal:  # the last query of a segment stands at its last key
        shift_S = torch.tensor(keys) - torch.tensor(queries)
        position_Sn = torch.arange(there_Sn.shape[1]) + shift_S.unsqueeze(1)
        allowed_Snm &= torch.arange(there_Sm.shape[1]) <= position_Sn.unsqueeze(2)
    blind_Sn1 = ~allowed_Snm.any(-1, keepdim=True)
    hidden_Snm = torch.zeros(allowed_Snm.shape, dtype=dtype).masked_fill_(~(allowed_Snm | blind_Sn1), -torch.inf)
    seen_Snm = allowed_Snm.to(dtype).repeat_interleave(heads, 0) if bool(blind_Sn1.any()) else None
    return SegmentLayout(query, key, query_back, key_back, hidden_Snm.repeat_interleave(heads, 0), seen_Snm)


def _places(lengths: tuple[int, ...], heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """The packed row of each levelled one, the levelled row of each packed one, and which tokens are there (S, n)."""
    length_S = torch.tensor(lengths)
    start_S = length_S.cumsum(0) - length_S
    place_n, head_H = torch.arange(length), torch.arange(heads)
    token_Sn = start_S.unsqueeze(1) + torch.minimum(place_n, length_S.unsqueeze(1) - 1)
    row_SHn = token_Sn.unsqueeze(1) * heads + head_H.unsqueeze(1)
    there_Sn = place_n < length_S.unsqueeze(1)
    levelled_SHn = torch.arange(row_SHn.numel()).view(row_SHn.shape)
    back_TH = levelled_SHn.transpose(1, 2)[there_Sn]
    return row_SHn.flatten(), back_TH.flatten(), there_Sn
