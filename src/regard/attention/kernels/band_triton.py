"""Attention over bands in Triton: softmax(q·k) v, where query i sees the keys first[i] ≤ j < last[i].

A program has a block of queries and goes through the blocks of keys that some of them see, with the softmax made as it
goes (Milakov and Gimelshein 2018; Dao et al. 2022). The backward pass makes the weights once more: one kernel for the
gradients of the queries, one for those of keys and values, which goes through the run of queries that see its keys; no
sum is made by several programs, so results are the same every time. Weights that are dropped are drawn from a counter
and the seed, a number on the device, so a recorded graph draws anew each time.

A query that sees nothing gets zeros. What nobody in a block sees is read as zero, so that NaN there changes nothing. It
does not know how bands come about. Triton's interpreter runs the same code on a CPU, for tests.

Legend: B rows, H heads, G heads that share a key head, N queries, M keys, D width, E width of the values.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard import kernels
from regard.attention.adjacent import room, whole
from regard.kernels import once_differentiable

INTERPRETED: bool = triton.knobs.runtime.interpret
BLOCK = 16 if INTERPRETED else 64
"""Queries, and keys, of a block: short sequences fill no more."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(base, index, there, width: tl.constexpr, padded: tl.constexpr, stride):
    """(rows, padded) numbers; zeros where there is none."""
    feature = tl.arange(0, padded)
    where = there[:, None] & (feature < width)[None, :]
    return tl.load(base + index.to(tl.int64)[:, None] * stride + feature[None, :], mask=where, other=0.0)


@triton.jit
def _put(base, index, there, width: tl.constexpr, padded: tl.constexpr, stride, value):
    feature = tl.arange(0, padded)
    where = there[:, None] & (feature < width)[None, :]
    place = base + index.to(tl.int64)[:, None] * stride + feature[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=where)


@triton.jit
def _place(count, block: tl.constexpr):
    """The block of tokens of a program, out of those of `count`, and its head among all rows: a number of 64 bits, so
    that where a head begins is one too. Blocks of one head follow each other."""
    tiles = tl.cdiv(count, block)
    return tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)


@triton.jit
def _kept(seed, head, i, j, n_keys, dropout):
    """Which weights are not dropped."""
    place = i.to(tl.int64)[:, None] * n_keys + j[None, :]
    return tl.rand(seed + head, place) >= dropout


@triton.jit
def _forward(query, key, value, output, logs, first, last, seed,
             q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n,
             e_b, e_h, e_n, n_queries, n_keys, heads, group, scale,
             dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
             block: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """output (B, N, H, E) and logs (B, H, N): log2 of the sums of 2^score."""
    tile, head = _place(n_queries, block)
    b, h = head // heads, head % heads
    i = tile * block + tl.arange(0, block)
    there = i < n_queries
    low = tl.load(first + b * e_b + h * e_h + i * e_n, mask=there, other=0)
    high = tl.load(last + b * e_b + h * e_h + i * e_n, mask=there, other=0)
    sees = high > low
    q = _rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
    k_at, v_at = key + b * k_b + (h // group) * k_h, value + b * v_b + (h // group) * v_h
    most = tl.full((block,), -float("inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    sums = tl.zeros((block, padded_e), tl.float32)
    start = tl.min(tl.where(sees, low, n_keys)) // block * block
    stop = tl.max(tl.where(sees, high, 0))
    for n in range(start, stop, block):
        j = n + tl.arange(0, block)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        seen = tl.max(allowed.to(tl.int32), 0) > 0
        k = _rows(k_at, j, seen, D, padded_d, k_n)
        v = _rows(v_at, j, seen, E, padded_e, v_n)
        s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
        s = tl.where(allowed, s, -float("inf"))
        new = tl.maximum(most, tl.max(s, 1))
        shift = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(s - shift[:, None])
        fade = tl.exp2(most - shift)
        total = total * fade + tl.sum(p, 1)
        if drops:
            p = tl.where(_kept(tl.load(seed), head, i, j, n_keys, dropout), p, 0.0)
        sums = sums * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
        most = new
    filled = tl.where(total > 0.0, total, 1.0)  # where nothing is seen, the sums are zeros
    share = 1.0 / filled
    if drops:
        share = share / (1.0 - dropout)
    _put(output + (b * n_queries * heads + h) * E, i, there, E, padded_e, heads * E, sums * share[:, None])
    tl.store(logs + head * n_queries + i, tl.where(sees, most + tl.log2(filled), 0.0), mask=there)


@triton.jit
def _inner(output, upstream, inner, n_queries, heads, u_b, u_h, u_n,
           E: tl.constexpr, padded_e: tl.constexpr, block: tl.constexpr):
    """inner (B, H, N): Σ of output · upstream over the features."""
    tile, head = _place(n_queries, block)
    b, h = head // heads, head % heads
    i = tile * block + tl.arange(0, block)
    there = i < n_queries
    o = _rows(output + (b * n_queries * heads + h) * E, i, there, E, padded_e, heads * E).to(tl.float32)
    u = _rows(upstream + b * u_b + h * u_h, i, there, E, padded_e, u_n).to(tl.float32)
    tl.store(inner + head * n_queries + i, tl.sum(o * u, 1), mask=there)


@triton.jit
def _of_queries(query, key, value, upstream, logs, inner, gradient, first,
                last, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h,
                v_n, u_b, u_h, u_n, e_b, e_h, e_n, g_b, g_h, g_n, n_queries, n_keys,
                heads, group, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr,
                E: tl.constexpr, padded_e: tl.constexpr, block: tl.constexpr, drops: tl.constexpr,
                precision: tl.constexpr):
    """gradient (B, H, N, D) of the queries."""
    tile, head = _place(n_queries, block)
    b, h = head // heads, head % heads
    i = tile * block + tl.arange(0, block)
    there = i < n_queries
    low = tl.load(first + b * e_b + h * e_h + i * e_n, mask=there, other=0)
    high = tl.load(last + b * e_b + h * e_h + i * e_n, mask=there, other=0)
    sees = high > low
    q = _rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
    u = _rows(upstream + b * u_b + h * u_h, i, sees, E, padded_e, u_n)
    log = tl.load(logs + head * n_queries + i, mask=sees, other=0.0)
    own = tl.load(inner + head * n_queries + i, mask=sees, other=0.0)
    k_at, v_at = key + b * k_b + (h // group) * k_h, value + b * v_b + (h // group) * v_h
    sums = tl.zeros((block, padded_d), tl.float32)
    start = tl.min(tl.where(sees, low, n_keys)) // block * block
    stop = tl.max(tl.where(sees, high, 0))
    for n in range(start, stop, block):
        j = n + tl.arange(0, block)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        seen = tl.max(allowed.to(tl.int32), 0) > 0
        k = _rows(k_at, j, seen, D, padded_d, k_n)
        v = _rows(v_at, j, seen, E, padded_e, v_n)
        s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
        p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
        of_p = tl.dot(u, tl.trans(v), input_precision=precision)
        if drops:
            of_p = tl.where(_kept(tl.load(seed), head, i, j, n_keys, dropout), of_p / (1.0 - dropout), 0.0)
        of_s = p * (of_p - own[:, None])
        sums += tl.dot(of_s.to(k.dtype), k, input_precision=precision)
    _put(gradient + b * g_b + h * g_h, i, there, D, padded_d, g_n, sums * scale)


@triton.jit
def _of_keys(query, key, value, upstream, logs, inner, of_key, of_value,
             first, last, from_query, to_query, seed, q_b, q_h, q_n, k_b,
             k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, e_b, e_h,
             e_n, gk_b, gk_h, gk_n, gv_b, gv_h, gv_n, r_b, r_h, r_n, n_queries, n_keys, heads, group, scale,
             dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
             block: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """of_key (B, key heads, M, D) and of_value (B, key heads, M, E), summed over the heads that share them."""
    key_heads = heads // group
    tile, head = _place(n_keys, block)
    b, kh = head // key_heads, head % key_heads
    j = tile * block + tl.arange(0, block)
    there = j < n_keys
    of_k, of_v = tl.zeros((block, padded_d), tl.float32), tl.zeros((block, padded_e), tl.float32)
    for one in range(group):
        h = kh * group + one
        head = b * heads + h
        begin = tl.load(from_query + b * r_b + h * r_h + j * r_n, mask=there, other=0)
        end = tl.load(to_query + b * r_b + h * r_h + j * r_n, mask=there, other=0)
        used = end > begin
        k = _rows(key + b * k_b + kh * k_h, j, used, D, padded_d, k_n)
        v = _rows(value + b * v_b + kh * v_h, j, used, E, padded_e, v_n)
        start = tl.min(tl.where(used, begin, n_queries)) // block * block
        stop = tl.max(tl.where(used, end, 0))
        for n in range(start, stop, block):
            i = n + tl.arange(0, block)
            inside = i < n_queries
            low = tl.load(first + b * e_b + h * e_h + i * e_n, mask=inside, other=0)
            high = tl.load(last + b * e_b + h * e_h + i * e_n, mask=inside, other=0)
            sees = high > low
            q = _rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
            u = _rows(upstream + b * u_b + h * u_h, i, sees, E, padded_e, u_n)
            log = tl.load(logs + head * n_queries + i, mask=sees, other=0.0)
            own = tl.load(inner + head * n_queries + i, mask=sees, other=0.0)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
            p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
            of_p = tl.dot(u, tl.trans(v), input_precision=precision)
            kept = p
            if drops:
                keep = _kept(tl.load(seed), head, i, j, n_keys, dropout)
                kept = tl.where(keep, p / (1.0 - dropout), 0.0)
                of_p = tl.where(keep, of_p / (1.0 - dropout), 0.0)
            of_v += tl.dot(tl.trans(kept).to(u.dtype), u, input_precision=precision)
            of_s = p * (of_p - own[:, None])
            of_k += tl.dot(tl.trans(of_s).to(q.dtype), q, input_precision=precision)
    _put(of_key + b * gk_b + kh * gk_h, j, there, D, padded_d, gk_n, of_k * scale)
    _put(of_value + b * gv_b + kh * gv_h, j, there, E, padded_e, gv_n, of_v)


def attend(query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, from_query: Tensor,
           to_query: Tensor, *, scale: float, dropout: float) -> Tensor:
    """(B, H, N, E) of query (B, H, N, D), key (B, key heads, M, D) and value (B, key heads, M, E).

    Args:
        first, last: (B, H, N), the keys that a query sees.
        from_query, to_query: (B, H, M), the queries that see a key.
    """
    drawn = torch.randint(1 << 31, (1,), device=query.device) if dropout else first.flatten()[:1]
    output: Tensor = _Bands.apply(query, key, value, first, last, from_query, to_query, drawn, scale, dropout)
    return output


class _Bands(torch.autograd.Function):
    """The output, and the gradients of query, key and value."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, from_query: Tensor,
                to_query: Tensor, seed: Tensor, scale: float, dropout: float) -> Tensor:
        query, key, value = _last_first(query), _last_first(key), _last_first(value)
        B, H, N, _ = query.shape
        M, E = value.shape[-2:]
        output = query.new_empty(B, N, H, E)
        logs = query.new_empty(B, H, N, dtype=torch.float32)
        group = H // key.shape[1]
        kernels.launch(_forward, (triton.cdiv(N, BLOCK) * B * H,), query, key, value, output, logs, first, last, seed,
                       *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *first.stride(), N, M, H, group,
                       scale, dropout, **_sizes(query, value, dropout))
        ctx.save_for_backward(query, key, value, output, logs, first, last, from_query, to_query, seed)
        ctx.scale, ctx.dropout = scale, dropout
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        query, key, value, output, logs, first, last, from_query, to_query, seed = ctx.saved_tensors
        above = _last_first(upstream[0])
        B, H, N, _ = query.shape
        key_heads, M, E = value.shape[1:]
        inner = torch.empty_like(logs)
        sizes, shared = _sizes(query, value, ctx.dropout), (N, M, H, H // key_heads, ctx.scale, ctx.dropout)
        strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *above.stride()[:3], *first.stride())
        kernels.launch(_inner, (triton.cdiv(N, BLOCK) * B * H,), output, above, inner, N, H, *above.stride()[:3], E,
                       sizes["padded_e"], BLOCK)
        of_query, of_key, of_value = _room(query, key, value)
        kernels.launch(_of_queries, (triton.cdiv(N, BLOCK) * B * H,), query, key, value, above, logs, inner, of_query,
                       first, last, seed, *strides, *of_query.stride()[:3], *shared, **sizes)
        kernels.launch(_of_keys, (triton.cdiv(M, BLOCK) * B * key_heads,), query, key, value, above, logs, inner,
                       of_key, of_value, first, last, from_query, to_query, seed, *strides, *of_key.stride()[:3],
                       *of_value.stride()[:3], *from_query.stride(), *shared, **sizes)
        return (of_query, of_key, of_value, *[None] * 7)


def _room(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for the gradients, laid out as their tensors are: where one product made several of them, what it has to
    read in its turn lies beside each other again."""
    if whole((query, key, value), 1) is not None:
        return room((query, key, value), 1)
    return (*room((query,), 1), *room((key, value), 1))


def _sizes(query: Tensor, value: Tensor, dropout: float) -> dict[str, Any]:
    """What the kernels are compiled for."""
    width, value_width = query.shape[-1], value.shape[-1]
    return {"D": width, "padded_d": max(16, triton.next_power_of_2(width)), "E": value_width,
            "padded_e": max(16, triton.next_power_of_2(value_width)), "block": BLOCK, "drops": dropout > 0.0,
            "precision": "ieee", "num_warps": 4}


def _last_first(tensor: Tensor) -> Tensor:
    """The features of a token side by side in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
