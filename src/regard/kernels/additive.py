"""Additive scores on a GPU: w · tanh(q + k), and its gradients, without a number for every pair and feature.

A tanh costs one of the few special-function units, and there is one for every pair and feature. With u = exp(2q) and
v = exp(2k), made once for each token,

    tanh(q + k) = 1 - 2s = (u·v - 1) / (u·v + 1)     s = 1 / (1 + u·v)     d tanh / dq = 4 s (1 - s)

and several of these fractions share one reciprocal: w/a + w'/b = (w·b + w'·a) / (a·b), 1/a = b · 1/(a·b). So a pass
takes a half or a quarter of the special functions that tanh would. The product of denominators must not overflow: where
a |q| or |k| is larger than `LARGE`, exp(2(q + k)) is computed for every pair instead.

    scores      a program has a block of queries and a block of keys, and goes through the features, four at a time
    gradients   a program has a span of queries, a span of keys and some features, and makes the sums over both from the
                same fractions. Each program has its own place to write to, and the parts are summed in one order:
                results are the same every time. There are as many programs as run at once, with as many pairs each

In float32, 1 - 2s has too few digits of a small tanh. There scores, and the gradient of the weight, are sums of the
other form, two at a time, with reciprocals that are exact to the last digit in the scores. Where all q and k are small,
scores are sums of (tanh q + tanh k) / (1 + tanh q · tanh k).

Cost of one pair and feature in instructions: scores 3.5 and a quarter of a reciprocal; gradients 6.5 and a half. A
Hopper multiprocessor starts 128 instructions a clock and has 16 special functions a clock, so a reciprocal takes as
long as 8 other instructions. For 2^33 pairs and features on 132 multiprocessors at 1.755 GHz that is at least 1.1 ms
and 2.0 ms. The compiled kernels need 4.4 and 8.5 instructions, with loads, conversions and sums, which many pairs must
share: hence the sizes of the blocks. Such large blocks need many registers and leave room for few warps, which cannot
hide the hundreds of clocks of a load: hence gradients load ahead.

All tensors that the kernels read are padded to whole blocks, with zeros where a sum must not change: no load has a
mask. Scores are written out (one number for the work of D), so masks, normalisers and values are left to torch, and
this module does not know them. Triton's interpreter runs the same code on a CPU, for tests.

Legend: L all leading dimensions in one, H heads, Q queries, K keys, D width, all padded inside of kernels. T is a
number or a block of numbers.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor as T
from triton.language.extra import libdevice

from regard.kernels import launch
from regard.kernels.launch import once_differentiable

ON_INTERPRETER = tl.constexpr(triton.knobs.runtime.interpret)
LARGE = tl.constexpr(10.0)
"""exp(2 · (10 + 10))² is 6e34, and float32 goes to 3e38: two denominators may be multiplied."""
SMALL = tl.constexpr(0.5)
"""exp(2q) has too few digits of a small q. Where all are smaller than this, float32 uses tanh q in its place."""
FAR = tl.constexpr(80.0)
"""exp(80) is 6e34: above it a fraction is 0, and below it nothing overflows."""
SCALE = tl.constexpr(2.0**-24)
"""The scale of denominators of which four are multiplied: they are clamped at 2^24, where tanh is 1 exactly."""


@triton.jit
def _reciprocal(x: T) -> T:
    """1 / x; one instruction where compiled, with an error of one unit in the last place."""
    if ON_INTERPRETER:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True,
                                         pack=1)


@triton.jit
def _denominator(x: T, y: T) -> T:
    """SCALE · (1 + u·v), at most 1, of x = SCALE · u and y = v: one instruction, in which the bound is free."""
    if ON_INTERPRETER:
        scaled = x * y + SCALE
        return tl.where(scaled > 0.0, tl.minimum(scaled, 1.0), 0.0)  # NaN is 0, as in the instruction
    else:
        return tl.inline_asm_elementwise("fma.rn.ftz.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, y, SCALE],
                                         dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _exp(x: T, exact: tl.constexpr) -> T:
    """exp(x). The fast form multiplies by log2 e first, with an error that grows with x."""
    if ON_INTERPRETER or not exact:
        return tl.exp(x)
    else:
        return libdevice.exp(x)


@triton.jit
def _within(ranges: T, bound: tl.constexpr) -> T:
    """Whether all |q| and |k| are at most `bound`; NaN is not. ranges (4,): the smallest and largest q, and of k."""
    q_fits = (tl.load(ranges).to(tl.float32) >= -bound) & (tl.load(ranges + 1).to(tl.float32) <= bound)
    k_fits = (tl.load(ranges + 2).to(tl.float32) >= -bound) & (tl.load(ranges + 3).to(tl.float32) <= bound)
    return q_fits & k_fits


@triton.jit
def _large(ranges: T) -> T:
    """Whether a |q| or |k| is larger than LARGE, or NaN: a clamped denominator would then be 0, and not NaN."""
    return not _within(ranges, LARGE)


@triton.jit
def _exponentials_kernel(given: T, ranges: T, out: T, n_tokens: T, width: T, out_tokens: T, out_width: T,
                         token_stride: T, feature_stride: T, factor: T, tokens: tl.constexpr, features: tl.constexpr,
                         exact: tl.constexpr, with_tanh: tl.constexpr) -> None:
    """out (L, Q, D) or (L, D, Q): factor · exp(2 · given), or 2 · given where they are large; 0 in the padding.

    With `with_tanh` it is tanh(given) where all are small.
    """
    blocks = tl.cdiv(out_tokens, tokens)
    leading = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks * tokens + tl.arange(0, tokens))[:, None]
    d = (tl.program_id(1) * features + tl.arange(0, features))[None, :]
    inside = (i < n_tokens) & (d < width)
    double = 2.0 * tl.load(given + (leading * n_tokens + i) * width + d, mask=inside, other=0.0).to(tl.float32)
    small = _within(ranges, SMALL)
    if with_tanh and small:
        power = tl.exp(double.to(tl.float64))
        double = ((power - 1.0) / (power + 1.0)).to(tl.float32)
    elif not _large(ranges):
        double = factor * _exp(double, exact)
    at = leading * out_tokens * out_width + i.to(tl.int64) * token_stride + d.to(tl.int64) * feature_stride
    tl.store(out + at, tl.where(inside, double, 0.0), mask=(i < out_tokens) & (d < out_width))


@triton.jit
def _scores_kernel(u: T, v: T, weight: T, ranges: T, out: T, n_queries: T, n_keys: T, padded_queries: T, padded_keys: T,
                   width: T, heads: T, rows: tl.constexpr, columns: tl.constexpr, exact: tl.constexpr) -> None:
    """out (L, n_queries, n_keys) of u (L, D, Q), v (L, D, K), weight (heads, D); D a multiple of 4.

    `exact` computes w · tanh as w (u·v - 1) / (u·v + 1), two at a time, or, where all are small, with tanh q and tanh k
    for u and v, as w (u + v) / (u·v + 1). Otherwise it is w - 2 w / (u·v + 1), four at a time, with SCALE in u: fewer
    instructions, but a small tanh keeps only the digits that subtraction from 1 leaves.
    """
    across, down = tl.cdiv(n_keys, columns), tl.cdiv(n_queries, rows)
    program = tl.program_id(0)
    leading = (program // (across * down)).to(tl.int64)
    i = (program // across % down) * rows + tl.arange(0, rows)
    j = (program % across) * columns + tl.arange(0, columns)
    u_at = u + leading * width * padded_queries
    v_at = v + leading * width * padded_keys
    w_at = weight + leading % heads * width
    out_at = out + leading * n_queries * n_keys + i[:, None].to(tl.int64) * n_keys + j[None, :]
    # Zeros from a load that is masked everywhere: so the sums have the layout that the stores need, a few rows and a
    # few neighbouring columns for each thread, which share loads. Plain zeros would give it one column and many rows.
    total = tl.load(out_at, mask=(i < 0)[:, None] & (j < 0)[None, :], other=0.0).to(tl.float32)
    whole = 0.0
    if _large(ranges):
        for _ in range(width):
            w = tl.load(w_at)
            both = tl.load(u_at + i)[:, None] + tl.load(v_at + j)[None, :]
            p = tl.exp(tl.where(both > FAR, FAR, both))
            total += w * ((p - 1.0) / (p + 1.0))
            w_at += 1
            u_at += padded_queries
            v_at += padded_keys
    elif exact:
        small = _within(ranges, SMALL)
        for _ in range(width // 2):
            w, w2 = tl.load(w_at), tl.load(w_at + 1)
            x, x2 = tl.load(u_at + i)[:, None], tl.load(u_at + padded_queries + i)[:, None]
            y, y2 = tl.load(v_at + j)[None, :], tl.load(v_at + padded_keys + j)[None, :]
            a, b = x * y + 1.0, x2 * y2 + 1.0
            top = x * tl.where(small, 1.0, y) + tl.where(small, y, -1.0)  # selected per column, not per pair
            top2 = x2 * tl.where(small, 1.0, y2) + tl.where(small, y2, -1.0)
            shared = _reciprocal(a * b)
            shared += shared * (1.0 - a * b * shared)  # one Newton step: exact to the last digit
            total += top * b * shared * w  # in this order, as w · (u·v)² might overflow
            total += top2 * a * shared * w2
            w_at += 2
            u_at += 2 * padded_queries
            v_at += 2 * padded_keys
    else:
        for _ in range(width // 4):
            w, w2, w3, w4 = tl.load(w_at), tl.load(w_at + 1), tl.load(w_at + 2), tl.load(w_at + 3)
            u2_at, v2_at = u_at + 2 * padded_queries, v_at + 2 * padded_keys
            a = _denominator(tl.load(u_at + i)[:, None], tl.load(v_at + j)[None, :])
            b = _denominator(tl.load(u_at + padded_queries + i)[:, None], tl.load(v_at + padded_keys + j)[None, :])
            c = _denominator(tl.load(u2_at + i)[:, None], tl.load(v2_at + j)[None, :])
            d = _denominator(tl.load(u2_at + padded_queries + i)[:, None], tl.load(v2_at + padded_keys + j)[None, :])
            ab = a * b
            cd = c * d
            total += ((w * b + w2 * a) * cd + (w3 * d + w4 * c) * ab) * _reciprocal(ab * cd)
            whole += (w + w2) + (w3 + w4)
            w_at += 4
            u_at += 4 * padded_queries
            v_at += 4 * padded_keys
        total = whole - 2.0 * SCALE * total
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(i < n_queries)[:, None] & (j < n_keys)[None, :])


@triton.jit
def _pair_fractions(x: T, y: T, y2: T, large: tl.constexpr) -> tuple[T, T]:
    """1 / (1 + u·v) for a query and two blocks of keys."""
    if large:
        both, both2 = x + y, x + y2
        return (1.0 / (1.0 + tl.exp(tl.where(both > FAR, FAR, both))),
                1.0 / (1.0 + tl.exp(tl.where(both2 > FAR, FAR, both2))))
    else:
        a, b = x * y + 1.0, x * y2 + 1.0
        shared = _reciprocal(a * b)
        return b * shared, a * shared


@triton.jit
def _halves(words: T, kind: tl.constexpr) -> tuple[T, T]:
    """Words of two neighbours each, as two blocks of float32. A bfloat16 is the upper half of its float32."""
    if kind == tl.float32:
        low, high = words.to(tl.int32).to(kind, bitcast=True), (words >> 32).to(tl.int32).to(kind, bitcast=True)
    elif kind == tl.bfloat16:
        low, high = (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    else:
        low = words.to(tl.int16).to(kind, bitcast=True).to(tl.float32)
        high = (words >> 16).to(tl.int16).to(kind, bitcast=True).to(tl.float32)
    return low[:, None], high[:, None]


@triton.jit
def _query_gradients(words: T, x: T, next_g: T, next_u: T, out: T, y: T, y2: T, slopes: T, slopes2: T, fractions: T,
                     more: T, kind: tl.constexpr, large: tl.constexpr) -> tuple[T, T, T, T, T]:
    """All sums of one query with two blocks of keys. It returns the next query in place of this one.

    The next query is loaded before `out` is written: the compiler, which does not know that they do not overlap, cannot
    then move the load after the store.
    """
    g, g2 = _halves(words, kind)
    x = x[None, :]
    s, s2 = _pair_fractions(x, y, y2, large)
    slope = s - s * s
    slope2 = s2 - s2 * s2
    slopes += g * slope
    slopes2 += g2 * slope2
    if kind != tl.float32:
        fractions += tl.sum(g * s, axis=0)
        fractions += tl.sum(g2 * s2, axis=0)
    elif large:
        fractions += tl.sum(g * (1.0 - 2.0 * s) + g2 * (1.0 - 2.0 * s2), axis=0)
    else:
        fractions += tl.sum(g * ((x * y - 1.0) * s), axis=0)
        fractions += tl.sum(g2 * ((x * y2 - 1.0) * s2), axis=0)
    total = tl.sum(g * slope, axis=0) + tl.sum(g2 * slope2, axis=0)
    next_words, next_x = tl.load(next_g), tl.load(next_u)
    tl.store(out, total, mask=not more)
    tl.atomic_add(out, total, mask=more, sem="relaxed")  # no other program adds here
    return next_words, next_x, slopes, slopes2, fractions


@triton.jit
def _span_gradients(u: T, v: T, upstream: T, d_query: T, d_key: T, sums: T, shift: T, n_queries: T, n_keys: T, width: T,
                    q_span: T, k_span: T, tokens: tl.constexpr, features: tl.constexpr, kind: tl.constexpr,
                    large: tl.constexpr) -> None:
    """The body of `_gradients_kernel`."""
    across, words = width // features, n_keys // 2
    d = (tl.program_id(0) % across) * features + tl.arange(0, features)
    leading = (tl.program_id(0) // across).to(tl.int64)
    q_block, k_block = tl.program_id(1), tl.program_id(2)
    q_blocks, k_blocks = tl.num_programs(1), tl.num_programs(2)
    first, begin = q_block * q_span, k_block * k_span
    end = tl.minimum(begin + k_span, n_keys)
    pair = tl.arange(0, tokens // 2)
    inside = 2 * pair[:, None] * width + d[None, :]
    shift *= features // 32
    v += leading * n_keys * width + shift
    d_key += (leading * q_blocks + q_block) * n_keys * width + shift
    fractions = tl.zeros((features,), tl.float32)
    turns = tl.minimum(q_span, n_queries - first) // 4
    for start in range(begin, end, tokens):
        keys = tl.cast(start, tl.int64) * width + inside
        y, y2 = tl.load(v + keys), tl.load(v + keys + width)
        slopes = tl.zeros((tokens // 2, features), tl.float32)
        slopes2 = tl.zeros((tokens // 2, features), tl.float32)
        at = leading * n_queries + first
        g, u_at = upstream + at * words + start // 2 + pair, u + at * width + d
        out = d_query + ((leading * k_blocks + k_block) * n_queries + first) * width + d
        g1, x1 = tl.load(g), tl.load(u_at)
        g2, x2 = tl.load(g + words), tl.load(u_at + width)
        g3, x3 = tl.load(g + 2 * words), tl.load(u_at + 2 * width)
        g4, x4 = tl.load(g + 3 * words), tl.load(u_at + 3 * width)
        for turn in range(turns):
            step = tl.where(turn < turns - 1, 4, 0)  # the last queries are loaded once more
            g += step * words
            u_at += step * width
            g1, x1, slopes, slopes2, fractions = _query_gradients(
                g1, x1, g, u_at, out, y, y2, slopes, slopes2, fractions, start > begin, kind, large)
            g2, x2, slopes, slopes2, fractions = _query_gradients(
                g2, x2, g + words, u_at + width, out + width, y, y2, slopes, slopes2, fractions, start > begin, kind,
                large)
            g3, x3, slopes, slopes2, fractions = _query_gradients(
                g3, x3, g + 2 * words, u_at + 2 * width, out + 2 * width, y, y2, slopes, slopes2, fractions,
                start > begin, kind, large)
            g4, x4, slopes, slopes2, fractions = _query_gradients(
                g4, x4, g + 3 * words, u_at + 3 * width, out + 3 * width, y, y2, slopes, slopes2, fractions,
                start > begin, kind, large)
            out += 4 * width
        tl.store(d_key + keys, slopes)
        tl.store(d_key + keys + width, slopes2)
        tl.debug_barrier()  # the next keys add to what was written
    tl.store(sums + ((leading * q_blocks + q_block) * k_blocks + k_block) * width + d, fractions)


@triton.jit(do_not_specialize=["shift", "n_queries", "q_span"])
def _gradients_kernel(u: T, v: T, upstream: T, ranges: T, d_query: T, d_key: T, sums: T, shift: T, n_queries: T,
                      n_keys: T, width: T, q_span: T, k_span: T, tokens: tl.constexpr, features: tl.constexpr,
                      kind: tl.constexpr) -> None:
    """Σ g s (1 - s) over the keys of a span and over the queries of a span, and Σ g s over both; float32: Σ g tanh.

        u (L, Q, D), v (L, K, D)       exponentials
        upstream (L, Q, K / 2)         g, as words of two neighbouring numbers of this kind
        d_query (L, k_blocks, Q, D)    each program writes its own part, and adds to it
        d_key (L, q_blocks, K, D)      each program writes its own part
        sums (L, q_blocks, k_blocks, D)

    A program is one warp. It has a span of queries, a span of keys and some features. It loads a few keys into its
    registers at a time, even and odd ones in separate blocks, so that the two of a word share a reciprocal, and goes
    through its queries with them. With the first keys it stores the sums of queries, with further keys it adds to them
    in memory, without a load. A program adds only to its own part, in its own order. Queries are loaded four ahead: a
    load from beyond the nearest cache takes as long as hundreds of instructions, and only three or four warps can hide
    it.

    A thread has all of these keys, and one, two or four features, so that no sum crosses threads. `shift` ensures that.
    It is 0, which the compiler does not know: it then loads and stores no more features at once than there are for each
    of the 32 threads, and lays the blocks out over the threads accordingly.
    """
    if _large(ranges):
        _span_gradients(u, v, upstream, d_query, d_key, sums, shift, n_queries, n_keys, width, q_span, k_span, tokens,
                        features, kind, large=True)
    else:
        _span_gradients(u, v, upstream, d_query, d_key, sums, shift, n_queries, n_keys, width, q_span, k_span, tokens,
                        features, kind, large=False)


@triton.jit(do_not_specialize=["n_parts", "first", "more"])
def _sum_parts_kernel(parts: T, weight: T, out: T, n_parts: T, n_tokens: T, width: T, first: T, heads: T, out_tokens: T,
                      out_width: T, out_stride: T, more: T, tokens: tl.constexpr, features: tl.constexpr) -> None:
    """out (L, tokens, D): 4 · w times the sum of parts (L, n_parts, N, D), added to its old value if `more`.

    weight (heads, D): row l has the weight of head (first + l) modulo `heads`. Rows of out are `out_stride` apart.
    """
    blocks = tl.cdiv(out_tokens, tokens)
    leading = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks * tokens + tl.arange(0, tokens))[:, None]
    d = (tl.program_id(1) * features + tl.arange(0, features))[None, :]
    inside = (i < out_tokens) & (d < out_width)
    at = parts + leading * n_parts * n_tokens * width + i.to(tl.int64) * width + d
    total = tl.zeros((tokens, features), tl.float32)
    for _ in range(n_parts):
        total += tl.load(at, mask=inside, other=0.0)
        at += n_tokens * width
    w = tl.load(weight + (first + leading) % heads * out_width + d, mask=d < out_width, other=0.0).to(tl.float32)
    out += leading * out_stride + i.to(tl.int64) * out_width + d
    before = tl.load(out, mask=inside & (more > 0), other=0.0).to(tl.float32)
    tl.store(out, (before + 4.0 * w * total).to(out.dtype.element_ty), mask=inside)


INTERPRETED: bool = triton.knobs.runtime.interpret
ROWS, COLUMNS, WARPS = (16, 16, 4) if INTERPRETED else (64, 64, 4)
"""The queries, keys and warps of a block of scores.

Each side is shorter than the number of threads: then a load of one side goes directly to the threads that need it, and
not through shared memory, with a barrier, in every iteration.
"""
TOKENS, FEATURES = (8, 16) if INTERPRETED else (16, 64)
"""The keys and features that a program for gradients has in its registers at a time."""
REGISTERS = 168
"""The most registers of a thread for gradients: with these, twelve warps fit on a multiprocessor."""
PROGRAMS = 8 if INTERPRETED else 1584
"""The programs for gradients: the warps that an H200 runs at once. One more would run alone after all others."""
PAIRS = 1 << 24
"""The pairs whose gradients are computed at once. Fewer pairs need less memory for partial sums."""
WRITTEN = 8
"""The number of pairs whose gradients take as long as writing a partial sum and reading it again: 8 bytes."""
KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class AdditiveScores(torch.autograd.Function):
    """Scores (..., Q, K) of query (..., Q, D), key (..., K, D) and weight (D,) or (H, D); leading sizes broadcast."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], weight.shape[:-1])
        ranges = _value_ranges(query, key)
        ctx.save_for_backward(query, key, weight, ranges)
        out = additive_scores(_flatten_leading(query, leading), _flatten_leading(key, leading),
                              torch.atleast_2d(weight), ranges)
        return out.view(*leading, *out.shape[-2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight, ranges = ctx.saved_tensors
        leading = upstream[0].shape[:-2]
        given, q_LQD, k_LKD = (_flatten_leading(tensor, leading) for tensor in (upstream[0], query, key))
        kinds = tuple(one.dtype if one.numel() == flat.numel() else torch.float32  # broadcast ones are summed below
                      for one, flat in ((query, q_LQD), (key, k_LKD)))
        d_query, d_key, d_weight = additive_gradients(given, q_LQD, k_LKD, torch.atleast_2d(weight), ranges, *kinds)
        return (d_query.view(*leading, *query.shape[-2:]).sum_to_size(query.shape).to(query.dtype),
                d_key.view(*leading, *key.shape[-2:]).sum_to_size(key.shape).to(key.dtype),
                d_weight.view(weight.shape).to(weight.dtype))


def additive_scores(query: Tensor, key: Tensor, weight: Tensor, ranges: Tensor) -> Tensor:
    """(L, Q, K) of query (L, Q, D), key (L, K, D), weight (H, D): row l has the weight of head l modulo H."""
    (L, Q, D), K = query.shape, key.shape[1]
    out = query.new_empty(L, Q, K)
    if out.numel() and D:
        exact = query.dtype == torch.float32
        sizes = [_round_up(Q, ROWS), _round_up(K, COLUMNS), _round_up(D, 4)]
        scale = 1.0 if exact else float(SCALE.value)
        u_LDQ, v_LDK = (_exponentials(tensor, ranges, size, sizes[2], factor, across=True)
                        for tensor, size, factor in ((query, sizes[0], scale), (key, sizes[1], 1.0)))
        grid = (L * triton.cdiv(Q, ROWS) * triton.cdiv(K, COLUMNS),)
        launch.launch(_scores_kernel, grid, u_LDQ, v_LDK, _pad_to(weight.float(), sizes[2]), ranges, out, Q, K, *sizes,
                      weight.shape[0], rows=ROWS, columns=COLUMNS, exact=exact, num_warps=WARPS)
    return out if D else out.zero_()


def additive_gradients(upstream: Tensor, query: Tensor, key: Tensor, weight: Tensor, ranges: Tensor,
                       q_kind: torch.dtype, k_kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query (L, Q, D) and key (L, K, D), in these dtypes, and of weight (H, D), in float32.

    upstream (L, Q, K) is the gradient of the scores. The gradient of keys may be in float32 in place of `k_kind`.
    """
    (L, Q, D), K = query.shape, key.shape[1]
    sums = upstream.new_zeros(L, D, dtype=torch.float32)
    if not (upstream.numel() and D):
        return torch.zeros_like(query), torch.zeros_like(key), sums.view(L // weight.shape[0], *weight.shape).sum(0)
    pieces = list(_gradient_pieces(L, Q, K))
    once = pieces[0][1].stop >= Q  # otherwise the gradients of keys are summed over several pieces
    d_query = query.new_empty(L, Q, D, dtype=q_kind)
    d_key = key.new_empty(L, K, D, dtype=k_kind if once else torch.float32)
    for rows, some in pieces:
        query_parts, key_parts, weight_parts = _piece_gradients(upstream[rows, some], query[rows, some], key[rows],
                                                                ranges)
        _sum_parts(query_parts, weight, d_query[rows, some], rows.start, 0)
        _sum_parts(key_parts, weight, d_key[rows], rows.start, some.start)
        sums[rows] += weight_parts.sum(1)
        del query_parts, key_parts, weight_parts  # free them before the next piece allocates its own
    if query.dtype != torch.float32:  # then it is Σ g s, and Σ g tanh = Σ g - 2 Σ g s
        sums = upstream.sum((1, 2), dtype=torch.float32).unsqueeze(-1) - 2.0 * sums
    return d_query, d_key, sums.view(L // weight.shape[0], *weight.shape).sum(0)


def _gradient_pieces(L: int, Q: int, K: int) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and of queries with at most about `PAIRS` pairs: several rows, or some queries of one row."""
    rows, queries = max(1, PAIRS // (Q * K)), max(4, PAIRS // K)
    rows = triton.cdiv(L, triton.cdiv(L, rows))  # pieces of nearly equal size
    for first in range(0, L, rows):
        for start in range(0, Q, queries):
            yield slice(first, first + rows), slice(start, start + queries)


def _piece_gradients(upstream: Tensor, query: Tensor, key: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Partial sums: Σ g s (1 - s), (L, parts, Q, D) and (L, parts, K, D), and Σ g s or Σ g tanh, (L, parts, D)."""
    (L, Q, D), K = query.shape, key.shape[1]
    # As many features as leave the least padding.
    features = FEATURES if _round_up(D, FEATURES) == _round_up(D, FEATURES // 2) else FEATURES // 2
    queries, keys, width = _round_up(Q, 4), _round_up(K, TOKENS), _round_up(D, features)
    q_span, k_span = _spans(queries, keys, max(1, PROGRAMS // (L * (width // features))))
    q_blocks, k_blocks = triton.cdiv(queries, q_span), triton.cdiv(keys, k_span)
    u_LQD = _exponentials(query, ranges, queries, width, 1.0, across=False)
    v_LKD = _exponentials(key, ranges, keys, width, 1.0, across=False)
    d_query, d_key, sums = (u_LQD.new_empty(L, *shape, width) for shape in (
        (k_blocks, queries), (q_blocks, keys), (q_blocks * k_blocks,)))
    grid = (L * (width // features), q_blocks, k_blocks)
    launch.launch(_gradients_kernel, grid, u_LQD, v_LKD, _as_words(_pad_to(upstream, queries, keys)), ranges, d_query,
                  d_key, sums, 0, queries, keys, width, q_span, k_span, tokens=TOKENS, features=features,
                  kind=KINDS[upstream.dtype], num_warps=1, maxnreg=REGISTERS)
    return d_query, d_key, sums[..., :D]


def _spans(queries: int, keys: int, programs: int) -> tuple[int, int]:
    """The queries and the keys of a program, where at most `programs` share them.

    All wait for the one with the most pairs. A partial sum that is written and read again costs `WRITTEN` pairs.
    """
    found = []
    for q_blocks in (factor << power for power in range(min(programs, queries // 4).bit_length()) for factor in (1, 3)):
        q_span, k_span = _span(queries, q_blocks, 4), _span(keys, max(1, programs // q_blocks), TOKENS)
        written = keys * -(-queries // q_span) + queries * -(-keys // k_span)
        if q_blocks <= programs:
            found.append((q_span * k_span * programs + WRITTEN * written, q_span, k_span))
    return min(found)[1:]


def _span(count: int, parts: int, block: int) -> int:
    """The size of each of the parts, in whole blocks."""
    return _round_up(-(-count // parts), block)


def _sum_parts(parts: Tensor, weight: Tensor, out: Tensor, first: int, more: int) -> None:
    """out (L, N, D): 4 · w times the sum of parts (L, some, N, D) over `some`, added to its old value if `more`.

    `first` is the row of the batch at which out begins.
    """
    (L, some, tokens, width), (_, N, D) = parts.shape, out.shape
    grid = (L * triton.cdiv(N, 16), triton.cdiv(D, 64))
    launch.launch(_sum_parts_kernel, grid, parts, weight.detach().contiguous(), out, some, tokens, width, first,
                  weight.shape[0], N, D, out.stride(0), more, tokens=16, features=64, num_warps=4)


def _as_words(tensor: Tensor) -> Tensor:
    """The tensor with each two neighbouring numbers as one integer of twice as many bits."""
    whole = tensor.clone() if tensor.storage_offset() % 2 else tensor
    return whole.view(torch.int64 if tensor.dtype == torch.float32 else torch.int32)


def _flatten_leading(tensor: Tensor, leading: torch.Size) -> Tensor:
    """(L, N, D) of (..., N, D)."""
    return tensor.expand(*leading, *tensor.shape[-2:]).reshape(leading.numel(), *tensor.shape[-2:])


def _value_ranges(query: Tensor, key: Tensor) -> Tensor:
    """The smallest and the largest query, and of keys, (4,). Only kernels read them, so the host does not wait."""
    if not (query.numel() and key.numel()):
        return query.new_zeros(4)
    return torch.stack([*torch.aminmax(query.detach()), *torch.aminmax(key.detach())])


def _exponentials(tensor: Tensor, ranges: Tensor, tokens: int, width: int, factor: float, *, across: bool) -> Tensor:
    """factor · exp(2 · tensor) in float32, padded with zeros: (L, tokens, width), or (L, width, tokens) if `across`.

    `across`, for scores, it is tanh in place of exponentials where float32 needs it.
    """
    L, N, D = tensor.shape
    shape, strides = ((L, width, tokens), (1, tokens)) if across else ((L, tokens, width), (width, 1))
    out = tensor.new_empty(shape, dtype=torch.float32)
    exact, grid = tensor.dtype == torch.float32, (L * triton.cdiv(tokens, 32), triton.cdiv(width, 32))
    launch.launch(_exponentials_kernel, grid, tensor.detach().contiguous(), ranges, out, N, D, tokens, width, *strides,
                  factor, tokens=32, features=32, exact=exact, with_tanh=exact and across, num_warps=4)
    return out


def _pad_to(tensor: Tensor, *sizes: int) -> Tensor:
    """The tensor padded with zeros to these sizes of its last dimensions."""
    if tensor.shape[-len(sizes):] == sizes:
        return tensor.contiguous()
    padding = [(0, size - have) for size, have in zip(sizes, tensor.shape[-len(sizes):], strict=True)]
    return torch.nn.functional.pad(tensor.detach(), [number for pair in reversed(padding) for number in pair])


def _round_up(count: int, block: int) -> int:
    """The smallest multiple of `block` that is at least `count`."""
    return -(-count // block) * block
