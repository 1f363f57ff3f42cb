"""Attention of many rows that share one bias, in Triton: softmax(q·k + bias) v, with the gradient of the bias.

Triangle attention has N rows of N queries and N keys, and one bias (H, N, N) for all rows. Here the bias is read where
it lies, never repeated for the rows, and the N · H · N² weights exist only a tile at a time, forward and backward:

    forward    a program has a row, a head and a block of queries, and goes through the keys; the softmax is made online
               (Milakov and Gimelshein 2018; Dao et al. 2022)
    ∂query     the same program again, with δ = Σ ∂o o;   ∂s = p (∂o·v − δ),   ∂q = scale Σ ∂s k
    ∂key, ∂value   a program has a row, a head and a block of keys, and goes through the queries
    ∂bias      a program has a head, a block of queries and a block of keys, and goes through the rows: ∂b = Σ_rows ∂s

Consecutive programs have consecutive rows of the same tile of the bias, which therefore stays in the cache. No two
programs add to the same number, so results are the same every time; where tiles are too few for a GPU, the rows are
split and the parts of ∂bias are added afterwards.

Keys that are not present are read as zeros, so NaN there changes nothing. A query that may attend to nothing gets zeros
and zero gradients. Sums are in float32. Triton's interpreter runs the same code on a CPU, for tests.

Legend: G groups of rows (each has a bias of its own), R rows of a group, H heads, Q queries, K keys, D width, E width
of the values; in kernels i queries, j keys.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.launch import once_differentiable
from regard.kernels.linear import empty_like_parts
from regard.kernels.rows import LOG2_E, contiguous_features, load_rows, store_rows, width_constants

INTERPRETED: bool = triton.knobs.runtime.interpret
WIDENED = tl.constexpr(INTERPRETED)
BIAS_PROGRAMS = 1024
"""Programs for the gradient of the bias: enough to fill a GPU. With fewer tiles the rows are split."""
Blocks = tuple[int, int, int, int]
"""Queries and keys of a block, warps, and stages."""
BLOCKS: dict[str, dict[int, tuple[tuple[int, Blocks], ...]]] = {
    "forward": {2: ((32, (128, 64, 8, 3)), (64, (64, 64, 4, 3)), (128, (64, 64, 4, 2))),
                4: ((32, (64, 32, 4, 2)), (64, (64, 32, 4, 1)), (128, (32, 32, 8, 1)))},
    "query": {2: ((64, (64, 64, 4, 3)), (128, (64, 64, 8, 1))),
              4: ((32, (64, 32, 4, 2)), (64, (64, 32, 8, 1)), (128, (32, 32, 8, 1)))},
    "key": {2: ((64, (64, 64, 4, 3)), (128, (64, 64, 8, 1))),
            4: ((32, (64, 64, 8, 2)), (64, (32, 32, 8, 1)), (128, (32, 32, 8, 1)))},
    "bias": {2: ((64, (64, 64, 4, 3)), (128, (64, 64, 8, 1))),
             4: ((32, (64, 32, 4, 2)), (64, (64, 32, 8, 1)), (128, (16, 32, 4, 1)))},
}
"""The blocks of each kernel, by the bytes of a number, for heads of at most so many features: what registers hold."""


@triton.jit
def _dot(a, b):
    """a b, summed in float32. The interpreter reads the bits of bfloat16 as integers: there it is widened first."""
    if WIDENED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision="tf32x3")  # for float32: three products, as exact as one in float32


@triton.jit
def _present_keys(present, row, j, n_keys, with_present: tl.constexpr):
    """Which of the keys j of a row exist; present is (G · R, K)."""
    valid = j < n_keys
    if with_present:
        valid = valid & (tl.load(present + row * n_keys + j, mask=valid, other=0) != 0)
    return valid


@triton.jit
def _scores(a, b, bias, at, valid, scale):
    """scale · a b + bias in units of log 2, and −∞ where a pair is not valid."""
    s = _dot(a, b) * (scale * LOG2_E) + tl.load(bias + at, mask=valid, other=0.0).to(tl.float32) * LOG2_E
    return tl.where(valid, s, -float("inf"))


@triton.jit
def _forward(query, key, value, bias, present, output, logs, q_g, q_r, q_h, q_n, k_g, k_r, k_h, k_n, v_g, v_r, v_h, v_n,
             o_g, o_r, o_h, o_n, rows, heads, n_queries, n_keys, scale, D: tl.constexpr, padded_d: tl.constexpr,
             E: tl.constexpr, padded_e: tl.constexpr, with_present: tl.constexpr, size_q: tl.constexpr,
             size_k: tl.constexpr):
    """output (G, R, H, Q, E), and logs (G, R, H, Q): log2 of the sums of 2^score."""
    r, g, h = tl.program_id(0).to(tl.int64), (tl.program_id(2) // heads).to(tl.int64), tl.program_id(2) % heads
    i = tl.program_id(1) * size_q + tl.arange(0, size_q)
    valid_i = i < n_queries
    q = load_rows(query + g * q_g + r * q_r + h * q_h, i, valid_i, D, padded_d, q_n)
    k_at, v_at = key + g * k_g + r * k_r + h * k_h, value + g * v_g + r * v_r + h * v_h
    bias_at = bias + (g * heads + h) * n_queries * n_keys
    peak = tl.full((size_q,), -float("inf"), tl.float32)
    total = tl.zeros((size_q,), tl.float32)
    acc = tl.zeros((size_q, padded_e), tl.float32)
    for start in range(0, n_keys, size_k):
        j = start + tl.arange(0, size_k)
        there = _present_keys(present, g * rows + r, j, n_keys, with_present)
        k = load_rows(k_at, j, there, D, padded_d, k_n)
        v = load_rows(v_at, j, there, E, padded_e, v_n)
        s = _scores(q, tl.trans(k), bias_at, i[:, None] * n_keys + j[None, :], valid_i[:, None] & there[None, :], scale)
        highest = tl.maximum(peak, tl.max(s, 1))
        shift = tl.where(highest == -float("inf"), 0.0, highest)  # −∞ − (−∞) would be NaN
        p = tl.exp2(s - shift[:, None])
        shrunk = tl.exp2(peak - shift)
        total = total * shrunk + tl.sum(p, 1)
        acc = acc * shrunk[:, None] + _dot(p.to(v.dtype), v)
        peak = highest
    some = total > 0.0
    inverse = tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0)
    store_rows(output + g * o_g + r * o_r + h * o_h, i, valid_i, E, padded_e, o_n, acc * inverse[:, None])
    log = tl.where(some, peak + tl.log2(tl.where(some, total, 1.0)), 0.0)
    tl.store(logs + ((g * rows + r) * heads + h) * n_queries + i, log, mask=valid_i)


@triton.jit
def _query_gradient(query, key, value, bias, present, output, d_output, logs, deltas, d_query, q_g, q_r, q_h, q_n, k_g,
                    k_r, k_h, k_n, v_g, v_r, v_h, v_n, o_g, o_r, o_h, o_n, u_g, u_r, u_h, u_n, dq_g, dq_r, dq_h, dq_n,
                    rows, heads, n_queries, n_keys, scale, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                    padded_e: tl.constexpr, with_present: tl.constexpr, size_q: tl.constexpr, size_k: tl.constexpr):
    """d_query (G, R, H, Q, D), and deltas (G, R, H, Q): δ = Σ ∂o o."""
    r, g, h = tl.program_id(0).to(tl.int64), (tl.program_id(2) // heads).to(tl.int64), tl.program_id(2) % heads
    i = tl.program_id(1) * size_q + tl.arange(0, size_q)
    valid_i = i < n_queries
    q = load_rows(query + g * q_g + r * q_r + h * q_h, i, valid_i, D, padded_d, q_n)
    o = load_rows(output + g * o_g + r * o_r + h * o_h, i, valid_i, E, padded_e, o_n)
    u = load_rows(d_output + g * u_g + r * u_r + h * u_h, i, valid_i, E, padded_e, u_n)
    number = ((g * rows + r) * heads + h) * n_queries + i
    log = tl.load(logs + number, mask=valid_i, other=0.0)
    delta = tl.sum(o.to(tl.float32) * u.to(tl.float32), 1)
    tl.store(deltas + number, delta, mask=valid_i)
    k_at, v_at = key + g * k_g + r * k_r + h * k_h, value + g * v_g + r * v_r + h * v_h
    bias_at = bias + (g * heads + h) * n_queries * n_keys
    acc = tl.zeros((size_q, padded_d), tl.float32)
    for start in range(0, n_keys, size_k):
        j = start + tl.arange(0, size_k)
        there = _present_keys(present, g * rows + r, j, n_keys, with_present)
        k = load_rows(k_at, j, there, D, padded_d, k_n)
        v = load_rows(v_at, j, there, E, padded_e, v_n)
        s = _scores(q, tl.trans(k), bias_at, i[:, None] * n_keys + j[None, :], valid_i[:, None] & there[None, :], scale)
        ds = tl.exp2(s - log[:, None]) * (_dot(u, tl.trans(v)) - delta[:, None])
        acc += _dot(ds.to(k.dtype), k)
    store_rows(d_query + g * dq_g + r * dq_r + h * dq_h, i, valid_i, D, padded_d, dq_n, acc * scale)


@triton.jit
def _key_gradient(query, key, value, turned, present, d_output, logs, deltas, d_key, d_value, q_g, q_r, q_h, q_n, k_g,
                  k_r, k_h, k_n, v_g, v_r, v_h, v_n, u_g, u_r, u_h, u_n, dk_g, dk_r, dk_h, dk_n, dv_g, dv_r, dv_h, dv_n,
                  rows, heads, n_queries, n_keys, scale, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                  padded_e: tl.constexpr, with_present: tl.constexpr, size_q: tl.constexpr, size_k: tl.constexpr):
    """d_key (G, R, H, K, D) and d_value (G, R, H, K, E). Tiles are (keys, queries) here, and `turned` is biasᵀ."""
    r, g, h = tl.program_id(0).to(tl.int64), (tl.program_id(2) // heads).to(tl.int64), tl.program_id(2) % heads
    j = tl.program_id(1) * size_k + tl.arange(0, size_k)
    there = _present_keys(present, g * rows + r, j, n_keys, with_present)
    k = load_rows(key + g * k_g + r * k_r + h * k_h, j, there, D, padded_d, k_n)
    v = load_rows(value + g * v_g + r * v_r + h * v_h, j, there, E, padded_e, v_n)
    q_at, u_at = query + g * q_g + r * q_r + h * q_h, d_output + g * u_g + r * u_r + h * u_h
    bias_at = turned + (g * heads + h) * n_queries * n_keys
    first = ((g * rows + r) * heads + h) * n_queries
    acc_k, acc_v = tl.zeros((size_k, padded_d), tl.float32), tl.zeros((size_k, padded_e), tl.float32)
    for start in range(0, n_queries, size_q):
        i = start + tl.arange(0, size_q)
        valid_i = i < n_queries
        q = load_rows(q_at, i, valid_i, D, padded_d, q_n)
        u = load_rows(u_at, i, valid_i, E, padded_e, u_n)
        log = tl.load(logs + first + i, mask=valid_i, other=0.0)
        delta = tl.load(deltas + first + i, mask=valid_i, other=0.0)
        s = _scores(k, tl.trans(q), bias_at, j[:, None] * n_queries + i[None, :], there[:, None] & valid_i[None, :],
                    scale)
        p = tl.exp2(s - log[None, :])
        acc_v += _dot(p.to(u.dtype), u)
        ds = p * (_dot(v, tl.trans(u)) - delta[None, :])
        acc_k += _dot(ds.to(q.dtype), q)
    valid_j = j < n_keys
    acc_k, acc_v = tl.where(there[:, None], acc_k * scale, 0.0), tl.where(there[:, None], acc_v, 0.0)
    store_rows(d_key + g * dk_g + r * dk_r + h * dk_h, j, valid_j, D, padded_d, dk_n, acc_k)
    store_rows(d_value + g * dv_g + r * dv_r + h * dv_h, j, valid_j, E, padded_e, dv_n, acc_v)


@triton.jit
def _bias_gradient(query, key, value, bias, present, d_output, logs, deltas, d_bias, q_g, q_r, q_h, q_n, k_g, k_r, k_h,
                   k_n, v_g, v_r, v_h, v_n, u_g, u_r, u_h, u_n, rows, heads, n_queries, n_keys, scale, share,
                   D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
                   with_present: tl.constexpr, size_q: tl.constexpr, size_k: tl.constexpr):
    """d_bias (splits, G, H, Q, K): the sum over the rows of each split, `share` rows."""
    across = tl.cdiv(n_keys, size_k)
    i = tl.program_id(0) // across * size_q + tl.arange(0, size_q)
    j = tl.program_id(0) % across * size_k + tl.arange(0, size_k)
    g, h = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    valid_i, valid_j = i < n_queries, j < n_keys
    at, valid = i[:, None] * n_keys + j[None, :], valid_i[:, None] & valid_j[None, :]
    added = tl.load(bias + (g * heads + h) * n_queries * n_keys + at, mask=valid, other=0.0).to(tl.float32) * LOG2_E
    acc = tl.zeros((size_q, size_k), tl.float32)
    first = (tl.program_id(2) * share).to(tl.int64)
    for step in range(0, tl.minimum(share, rows - tl.program_id(2) * share)):
        r = first + step
        there = _present_keys(present, g * rows + r, j, n_keys, with_present)
        q = load_rows(query + g * q_g + r * q_r + h * q_h, i, valid_i, D, padded_d, q_n)
        k = load_rows(key + g * k_g + r * k_r + h * k_h, j, there, D, padded_d, k_n)
        v = load_rows(value + g * v_g + r * v_r + h * v_h, j, there, E, padded_e, v_n)
        u = load_rows(d_output + g * u_g + r * u_r + h * u_h, i, valid_i, E, padded_e, u_n)
        number = ((g * rows + r) * heads + h) * n_queries + i
        log = tl.load(logs + number, mask=valid_i, other=0.0)
        delta = tl.load(deltas + number, mask=valid_i, other=0.0)
        s = tl.where(valid & there[None, :], _dot(q, tl.trans(k)) * (scale * LOG2_E) + added, -float("inf"))
        acc += tl.exp2(s - log[:, None]) * (_dot(u, tl.trans(v)) - delta[:, None])
    split = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(d_bias + split * n_queries * n_keys + at, acc, mask=valid)


class SharedBiasAttention(torch.autograd.Function):
    """o (G, R, H, Q, E) of query (G, R, H, Q, D), key (G, R, H, K, D), value (G, R, H, K, E) and bias (G, H, Q, K).

    present is (G, R, K), bool, or None: which keys exist.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, present: Tensor | None,
                scale: float) -> Tensor:
        query, key, value = (contiguous_features(tensor) for tensor in (query, key, value))
        bias = bias.contiguous()
        present = None if present is None else present.contiguous()
        (G, R, H, Q, D), K, E = query.shape, key.shape[3], value.shape[-1]
        output = (empty_like_parts((query,), 1)[0] if E == D
                  else query.new_empty(G, R, Q, H, E).transpose(2, 3))
        logs = torch.empty(G, R, H, Q, dtype=torch.float32, device=query.device)
        options = _block_options("forward", query, value)
        launch.launch(_forward, (R, triton.cdiv(Q, options["size_q"]), G * H), query, key, value, bias,
                      _flags(present, query), output, logs, *_strides(query, key, value, output), R, H, Q, K, scale,
                      **_constants(query, value, present), **options)
        ctx.save_for_backward(query, key, value, bias, present, output, logs)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, present, output, logs = ctx.saved_tensors
        d_output = contiguous_features(upstream[0].to(query.dtype))
        (G, R, H, Q, _), K = query.shape, key.shape[3]
        flags, constants, sizes = _flags(present, query), _constants(query, value, present), (R, H, Q, K, ctx.scale)
        d_query, d_key, d_value = (empty_like_parts((tensor,), 1)[0] for tensor in (query, key, value))
        deltas = torch.empty_like(logs)
        options = _block_options("query", query, value)
        launch.launch(_query_gradient, (R, triton.cdiv(Q, options["size_q"]), G * H), query, key, value, bias, flags,
                      output, d_output, logs, deltas, d_query, *_strides(query, key, value, output, d_output, d_query),
                      *sizes, **constants, **options)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            options = _block_options("key", query, value)
            turned = bias.mT.contiguous()
            launch.launch(_key_gradient, (R, triton.cdiv(K, options["size_k"]), G * H), query, key, value, turned,
                          flags, d_output, logs, deltas, d_key, d_value,
                          *_strides(query, key, value, d_output, d_key, d_value), *sizes, **constants, **options)
        d_bias = None
        if ctx.needs_input_grad[3]:
            options = _block_options("bias", query, value)
            tiles = triton.cdiv(Q, options["size_q"]) * triton.cdiv(K, options["size_k"])
            share = triton.cdiv(R, min(R, triton.cdiv(BIAS_PROGRAMS, tiles * G * H)))
            splits = triton.cdiv(R, share)
            parts = torch.empty(splits, G, H, Q, K, dtype=torch.float32, device=query.device)
            launch.launch(_bias_gradient, (tiles, G * H, splits), query, key, value, bias, flags, d_output, logs,
                          deltas, parts, *_strides(query, key, value, d_output), *sizes, share, **constants, **options)
            d_bias = (parts[0] if splits == 1 else parts.sum(0)).to(bias.dtype)
        return d_query, d_key, d_value, d_bias, None, None


def _block_options(kernel: str, query: Tensor, value: Tensor) -> dict[str, int]:
    """The block sizes of a kernel for these widths."""
    if INTERPRETED:
        return {"size_q": 16, "size_k": 16}
    width = max(query.shape[-1], value.shape[-1])
    blocks = next(blocks for bound, blocks in BLOCKS[kernel][query.element_size()] if width <= bound)
    return dict(zip(("size_q", "size_k", "num_warps", "num_stages"), blocks, strict=True))


def _constants(query: Tensor, value: Tensor, present: Tensor | None) -> dict[str, Any]:
    """The compile-time arguments of the kernels."""
    return {**width_constants(query, value), "with_present": present is not None}


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """The strides of all dimensions but the last, which is contiguous."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:-1])


def _flags(present: Tensor | None, query: Tensor) -> Tensor:
    """The flags of the keys as bytes; where there are none, a tensor that is not read."""
    return query if present is None else present.view(torch.uint8)
