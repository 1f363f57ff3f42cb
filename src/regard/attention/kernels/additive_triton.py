"""Additive scores on a GPU: w · tanh(q + k), and its gradients, without a number for every pair and feature.

A tanh costs one of the few special-function units, and there is one for every pair and feature. With u = exp(2q) and
v = exp(2k), made once for each token,

    tanh(q + k) = 1 - 2s     s = 1 / (1 + u·v)     d tanh / dq = 4 s (1 - s)

and two of these fractions share one reciprocal: w/a + w'/b = (w·b + w'·a) / (a·b), 1/a = b · 1/(a·b). So a pass takes
half as many special functions as tanh would. The product of two denominators must not overflow: where a |q| or |k| is
beyond `LARGE`, exp(2(q + k)) is computed for every pair instead.

    scores      a program has a block of queries and a block of keys, and goes through the features, two at a time
    gradients   a program has a block of tokens and a block of features, and goes through the tokens of the other side,
                two at a time: sums stay in its registers, in one order, so that results are the same every time

What two pairs-and-features cost, in instructions: scores 6 multiply-adds and 1 reciprocal; the queries' gradient 9 and
1; the keys' and the weight's 11 and 1. A Hopper multiprocessor starts 128 instructions a clock and has 16 special
functions a clock, so a reciprocal takes as long as 8 others: scores wait for the reciprocals (8 slots of time, 7
instructions), the gradients for the multiply-adds (10 and 12). For 2^33 pairs-and-features on 132 of them at 1.95 GHz
that is at least 1.0 ms + 1.3 ms + 1.6 ms. Everything else (loads, conversions) must be shared by many pairs: hence the
sizes of the blocks.

The scores are written out: one number for the work of D, which is little beside it. So masks, normalisers and values
can be left to torch, and this file does not know them. Triton's interpreter runs the same code on a CPU, for tests.

Legend: L leading dimensions in one, H heads, Q queries, K keys, D width. T is a number or a block of them in a kernel.
"""

from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor
from triton.language import tensor as T  # type: ignore[import-untyped, unused-ignore]

from regard import kernels
from regard.kernels import once_differentiable

LARGE = 10.0
"""exp(2 · (10 + 10))² is 6e34, and float32 goes to 3e38."""
FAR = tl.constexpr(80.0)
"""exp(80) is 6e34: beyond it a fraction is 0, and below it nothing overflows."""
INTERPRETED: bool = triton.knobs.runtime.interpret
ROWS, COLUMNS, WARPS = (16, 16, 4) if INTERPRETED else (64, 64, 4)
"""Of a block of scores. Each side is shorter than the threads are many: then a load of one side goes to the threads
that need it, and not through shared memory, with a barrier, in every turn of the loop."""
TOKENS, FEATURES, GRADIENT_WARPS = (16, 16, 4) if INTERPRETED else (32, 32, 4)
"""Of a block of gradients."""


class Scores(torch.autograd.Function):
    """e (..., Q, K) of query (..., Q, D), key (..., K, D) and weight (D,) or (H, D), whose leading sizes broadcast."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, weight)
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], weight.shape[:-1])
        out = scores(_flat(query, leading), _flat(key, leading), weight.view(-1, weight.shape[-1]))
        return out.view(*leading, *out.shape[-2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight = ctx.saved_tensors
        leading = upstream[0].shape[:-2]
        given, q_LQD, k_LKD = (_flat(tensor, leading) for tensor in (upstream[0], query, key))
        d_query, d_key, d_weight = gradients(given, q_LQD, k_LKD, weight.view(-1, weight.shape[-1]))
        return (d_query.view(*leading, *query.shape[-2:]).sum_to_size(query.shape).to(query.dtype),
                d_key.view(*leading, *key.shape[-2:]).sum_to_size(key.shape).to(key.dtype),
                d_weight.view(weight.shape).to(weight.dtype))


def scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """(L, Q, K) of query (L, Q, D), key (L, K, D), weight (H, D): row l has the weight of head l modulo H."""
    (L, Q, D), K = query.shape, key.shape[1]
    out = query.new_empty(L, Q, K)
    if out.numel():
        u_LQD, v_LKD, large = _exponentials(query, key)
        grid = (L * triton.cdiv(Q, ROWS) * triton.cdiv(K, COLUMNS),)
        kernels.launch(_scores, grid, u_LQD.mT.contiguous(), v_LKD.mT.contiguous(), weight.contiguous(), large, out, Q,
                       K, D, weight.shape[0], ROWS, COLUMNS, not INTERPRETED, num_warps=WARPS)
    return out


def gradients(upstream: Tensor, query: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of query (L, Q, D), key (L, K, D) and weight (H, D), in float32, for the gradient (L, Q, K) of the scores."""
    (L, Q, D), K = query.shape, key.shape[1]
    blocks = triton.cdiv(K, TOKENS)
    d_query, d_key, sums = (upstream.new_zeros(L, n, D, dtype=torch.float32) for n in (Q, K, blocks))
    if upstream.numel():
        u_LQD, v_LKD, large = _exponentials(query, key)
        weight, programs = weight.contiguous(), L * triton.cdiv(D, FEATURES)
        options = {"tokens": TOKENS, "features": FEATURES, "approximate": not INTERPRETED, "num_warps": GRADIENT_WARPS}
        kernels.launch(_gradient, (programs * blocks,), v_LKD, u_LQD, weight, upstream.contiguous(), large, d_key, sums,
                       K, Q, D, weight.shape[0], with_sums=True, **options)
        kernels.launch(_gradient, (programs * triton.cdiv(Q, TOKENS),), u_LQD, v_LKD, weight, upstream.mT.contiguous(),
                       large, d_query, sums, Q, K, D, weight.shape[0], with_sums=False, **options)
    of_rows = upstream.sum((1, 2), dtype=torch.float32).unsqueeze(-1) - 2.0 * sums.sum(1)  # Σ g tanh = Σ g - 2 Σ g s
    return d_query, d_key, of_rows.view(L // weight.shape[0], *weight.shape).sum(0)


def _flat(tensor: Tensor, leading: torch.Size) -> Tensor:
    """(L, N, D) of (..., N, D)."""
    return tensor.expand(*leading, *tensor.shape[-2:]).reshape(leading.numel(), *tensor.shape[-2:])


def _exponentials(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(2q) and exp(2k), in float32, and 0; or 2q, 2k and 1 where they are too large for two to share a reciprocal.

    The flag is an int32 on the device: nobody waits for it.
    """
    double_q, double_k = (2.0 * tensor.detach().float() for tensor in (query, key))
    large = torch.maximum(double_q.abs().amax(), double_k.abs().amax()) > 2.0 * LARGE
    u, v = (torch.where(large, x, x.exp()).contiguous() for x in (double_q, double_k))
    return u, v, large.to(torch.int32).view(1)


@triton.jit
def _reciprocal(x: T, approximate: tl.constexpr) -> T:
    """1 / x; with one instruction where compiled, which errs by one unit in the last place."""
    if approximate:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True,
                                         pack=1)
    else:
        return 1.0 / x


@triton.jit
def _scores(u: T, v: T, weight: T, large: T, out: T, n_queries: T, n_keys: T, width: T, heads: T,
            rows: tl.constexpr, columns: tl.constexpr, approximate: tl.constexpr) -> None:
    """out (L, Q, K) of u (L, D, Q), v (L, D, K), weight (heads, D)."""
    across, down = tl.cdiv(n_keys, columns), tl.cdiv(n_queries, rows)
    program = tl.program_id(0)
    leading = (program // (across * down)).to(tl.int64)
    i = (program // across % down) * rows + tl.arange(0, rows)
    j = (program % across) * columns + tl.arange(0, columns)
    there_i, there_j = i < n_queries, j < n_keys
    u_at = u + leading * width * n_queries + i
    v_at = v + leading * width * n_keys + j
    w_at = weight + leading % heads * width
    out_at = out + leading * n_queries * n_keys + i[:, None].to(tl.int64) * n_keys + j[None, :]
    # Zeros, by a load that no thread makes: so the sums are laid out over the threads as the stores need it, a few rows
    # and a few neighbouring columns each, which share their loads. Plain zeros would get a column each, and many rows.
    total = tl.load(out_at, mask=(i < 0)[:, None] & (j < 0)[None, :], other=0.0).to(tl.float32)
    whole = 0.0
    if tl.load(large) == 0:
        for _ in range(width // 2):
            w = tl.load(w_at).to(tl.float32)
            w2 = tl.load(w_at + 1).to(tl.float32)
            a = tl.load(u_at, mask=there_i, other=0.0)[:, None] * tl.load(v_at, mask=there_j, other=0.0)[None, :] + 1.0
            b = (tl.load(u_at + n_queries, mask=there_i, other=0.0)[:, None]
                 * tl.load(v_at + n_keys, mask=there_j, other=0.0)[None, :] + 1.0)
            total += (w * b + w2 * a) * _reciprocal(a * b, approximate)
            whole += w + w2
            w_at += 2
            u_at += 2 * n_queries
            v_at += 2 * n_keys
        if width % 2 == 1:
            w = tl.load(w_at).to(tl.float32)
            a = tl.load(u_at, mask=there_i, other=0.0)[:, None] * tl.load(v_at, mask=there_j, other=0.0)[None, :] + 1.0
            total += w * _reciprocal(a, approximate)
            whole += w
    else:
        for _ in range(width):
            w = tl.load(w_at).to(tl.float32)
            both = tl.load(u_at, mask=there_i, other=0.0)[:, None] + tl.load(v_at, mask=there_j, other=0.0)[None, :]
            total += w / (1.0 + tl.exp(tl.where(both > FAR, FAR, both)))
            whole += w
            w_at += 1
            u_at += n_queries
            v_at += n_keys
    tl.store(out_at, (whole - 2.0 * total).to(out.dtype.element_ty), mask=there_i[:, None] & there_j[None, :])


@triton.jit
def _gradient(own: T, other: T, weight: T, upstream: T, large: T, out: T, sums: T, n_own: T,
              n_other: T, width: T, heads: T, tokens: tl.constexpr, features: tl.constexpr,
              with_sums: tl.constexpr, approximate: tl.constexpr) -> None:
    """out (L, n_own, D): 4 w Σ g s (1 - s) over the others. sums (L, blocks of own tokens, D): Σ g s over both.

    own (L, n_own, D) and other (L, n_other, D) are exponentials; upstream g is (L, n_other, n_own).
    """
    across, down = tl.cdiv(width, features), tl.cdiv(n_own, tokens)
    program = tl.program_id(0)
    leading = (program // (across * down)).to(tl.int64)
    block = program // across % down
    i = block * tokens + tl.arange(0, tokens)
    d = (program % across) * features + tl.arange(0, features)
    there_i, there_d = i < n_own, d < width
    there = there_i[:, None] & there_d[None, :]
    own_at = leading * n_own * width + i[:, None].to(tl.int64) * width + d[None, :]
    x = tl.load(own + own_at, mask=there, other=0.0)
    o_at = other + leading * n_other * width + d
    g_at = upstream + leading * n_own * n_other + i
    slopes = tl.zeros((tokens, features), tl.float32)
    fractions = tl.zeros((tokens, features), tl.float32)
    if tl.load(large) == 0:
        for _ in range(n_other // 2):
            g = tl.load(g_at, mask=there_i, other=0.0).to(tl.float32)[:, None]
            g2 = tl.load(g_at + n_own, mask=there_i, other=0.0).to(tl.float32)[:, None]
            a = x * tl.load(o_at, mask=there_d, other=0.0)[None, :] + 1.0
            b = x * tl.load(o_at + width, mask=there_d, other=0.0)[None, :] + 1.0
            both = _reciprocal(a * b, approximate)
            s = b * both
            s2 = a * both
            slopes += g * (s - s * s)
            slopes += g2 * (s2 - s2 * s2)
            if with_sums:
                fractions += g * s
                fractions += g2 * s2
            g_at += 2 * n_own
            o_at += 2 * width
        if n_other % 2 == 1:
            g = tl.load(g_at, mask=there_i, other=0.0).to(tl.float32)[:, None]
            s = _reciprocal(x * tl.load(o_at, mask=there_d, other=0.0)[None, :] + 1.0, approximate)
            slopes += g * (s - s * s)
            if with_sums:
                fractions += g * s
    else:
        for _ in range(n_other):
            g = tl.load(g_at, mask=there_i, other=0.0).to(tl.float32)[:, None]
            both = x + tl.load(o_at, mask=there_d, other=0.0)[None, :]
            s = 1.0 / (1.0 + tl.exp(tl.where(both > FAR, FAR, both)))
            slopes += g * (s - s * s)
            if with_sums:
                fractions += g * s
            g_at += n_own
            o_at += width
    w = tl.load(weight + leading % heads * width + d, mask=there_d, other=0.0).to(tl.float32)
    tl.store(out + own_at, 4.0 * w[None, :] * slopes, mask=there)
    if with_sums:
        tl.store(sums + (leading * down + block) * width + d, tl.sum(fractions, axis=0), mask=there_d)
