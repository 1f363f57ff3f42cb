"""The passes of additive scores over pairs and features, as kernels; `additive_triton` says why and calls them.

All tensors that they read are padded to whole blocks, with zeros where a sum must not notice: no load has a mask, and
no loop a rest. They know neither autograd nor the shapes before the padding, but for the scores, which they write as
they are asked for. Triton's interpreter runs the same code on a CPU, for tests; it has no instructions by name.

Legend: L leading dimensions in one, H heads, Q queries, K keys, D width, all padded. T is a number or a block of them.
"""

import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from triton.language import tensor as T  # type: ignore[import-untyped, unused-ignore]
from triton.language.extra import libdevice  # type: ignore[import-untyped, unused-ignore]

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LARGE = tl.constexpr(10.0)
"""exp(2 · (10 + 10))² is 6e34, and float32 goes to 3e38: two denominators may be multiplied."""
SMALL = tl.constexpr(0.5)
"""exp(2q) has too few digits of a small q. Where all are smaller than this, tanh q is taken for it in float32."""
FAR = tl.constexpr(80.0)
"""exp(80) is 6e34: beyond it a fraction is 0, and below it nothing overflows."""
SCALE = tl.constexpr(2.0**-24)
"""Of denominators of which four are multiplied: none counts as larger than 2^24, where tanh is 1 to the last digit."""


@triton.jit
def _reciprocal(x: T) -> T:
    """1 / x; with one instruction where compiled, which errs by one unit in the last place."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True,
                                         pack=1)


@triton.jit
def _denominator(x: T, y: T) -> T:
    """SCALE · (1 + u·v), at most 1, of x = SCALE · u and y = v: one instruction, which has the bound for nothing."""
    if INTERPRETED:
        scaled = x * y + SCALE
        return tl.where(scaled > 0.0, tl.minimum(scaled, 1.0), 0.0)  # NaN is 0, as in the instruction
    else:
        return tl.inline_asm_elementwise("fma.rn.ftz.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, y, SCALE],
                                         dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _exp(x: T, exact: tl.constexpr) -> T:
    """exp(x). The fast one multiplies by log2 e first, and errs the more the larger x is."""
    if INTERPRETED or not exact:
        return tl.exp(x)
    else:
        return libdevice.exp(x)


@triton.jit
def _within(ranges: T, bound: tl.constexpr) -> T:
    """Whether all |q| and |k| are. ranges (4,): the smallest and the largest q, and of k; NaN, where one is, is not."""
    q_fits = (tl.load(ranges).to(tl.float32) >= -bound) & (tl.load(ranges + 1).to(tl.float32) <= bound)
    k_fits = (tl.load(ranges + 2).to(tl.float32) >= -bound) & (tl.load(ranges + 3).to(tl.float32) <= bound)
    return q_fits & k_fits


@triton.jit
def _large(ranges: T) -> T:
    """Whether a |q| or |k| is beyond LARGE, or is NaN: a bounded denominator would be 0 then, and not NaN."""
    return not _within(ranges, LARGE)


@triton.jit
def exponentials(given: T, ranges: T, out: T, n_tokens: T, width: T, out_tokens: T, out_width: T, token_stride: T,
                 feature_stride: T, factor: T, tokens: tl.constexpr, features: tl.constexpr,
                 exact: tl.constexpr, with_tanh: tl.constexpr) -> None:
    """out (L, Q, D) or (L, D, Q): factor · exp(2 · given), or 2 · given where they are large; 0 beyond the edges.

    `with_tanh`: tanh(given) where they are all small.
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
def scores(u: T, v: T, weight: T, ranges: T, out: T, n_queries: T, n_keys: T, padded_queries: T, padded_keys: T,
           width: T, heads: T, rows: tl.constexpr, columns: tl.constexpr, exact: tl.constexpr) -> None:
    """out (L, n_queries, n_keys) of u (L, D, Q), v (L, D, K), weight (heads, D); D a multiple of 4.

    `exact` takes w (u·v - 1) / (u·v + 1) for w · tanh, two at a time, or with tanh q and tanh k for u and v, where all
    are small, w (u + v) / (u·v + 1). Else it is w - 2 w / (u·v + 1), four at a time, with SCALE in u: fewer
    instructions, but where tanh is small there are only the digits that are left of 1.
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
    # Zeros, by a load that no thread makes: so the sums are laid out over the threads as the stores need it, a few rows
    # and a few neighbouring columns each, which share their loads. Plain zeros would get a column each, and many rows.
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
            top = x * tl.where(small, 1.0, y) + tl.where(small, y, -1.0)  # chosen for a column, and not for a pair
            top2 = x2 * tl.where(small, 1.0, y2) + tl.where(small, y2, -1.0)
            shared = _reciprocal(a * b)
            shared += shared * (1.0 - a * b * shared)  # Newton: to the last digit
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
def _fractions(x: T, x2: T, y: T, large: tl.constexpr) -> tuple[T, T]:
    """1 / (1 + u·v) for two queries and the same keys."""
    if large:
        both, both2 = x + y, x2 + y
        return (1.0 / (1.0 + tl.exp(tl.where(both > FAR, FAR, both))),
                1.0 / (1.0 + tl.exp(tl.where(both2 > FAR, FAR, both2))))
    else:
        a, b = x * y + 1.0, x2 * y + 1.0
        shared = _reciprocal(a * b)
        return b * shared, a * shared


@triton.jit
def _gradients(u: T, v: T, upstream: T, d_query: T, d_key: T, sums: T, shift: T, n_queries: T, n_keys: T, width: T,
               span: T, tokens: tl.constexpr, features: tl.constexpr, exact: tl.constexpr, large: tl.constexpr) -> None:
    """See `gradients`."""
    across = width // features
    d = (tl.program_id(0) % across) * features + tl.arange(0, features)
    leading = (tl.program_id(0) // across).to(tl.int64)
    q_block, k_block = tl.program_id(1), tl.program_id(2)
    q_blocks, k_blocks = tl.num_programs(1), tl.num_programs(2)
    first = q_block * span
    token = tl.arange(0, tokens)
    shift *= features // 32
    fractions = tl.zeros((features,), tl.float32)
    begin = k_block * span
    for start in range(begin, tl.minimum(begin + span, n_keys), tokens):
        inside = token[:, None] * width + d[None, :]
        y = tl.load(v + shift + (leading * n_keys + start) * width + inside)
        slopes = tl.zeros((tokens, features), tl.float32)
        g_at = upstream + (leading * n_queries + first) * n_keys + start
        u_at = u + (leading * n_queries + first) * width + d
        out_at = d_query + ((leading * k_blocks + k_block) * n_queries + first) * width + d
        for _ in range(tl.minimum(span, n_queries - first) // 2):
            g = tl.load(g_at + token).to(tl.float32)[:, None]
            g2 = tl.load(g_at + n_keys + token).to(tl.float32)[:, None]
            x, x2 = tl.load(u_at)[None, :], tl.load(u_at + width)[None, :]
            s, s2 = _fractions(x, x2, y, large)
            slope = s - s * s
            slope2 = s2 - s2 * s2
            slopes += g * slope
            slopes += g2 * slope2
            if not exact:
                fractions += tl.sum(g * s + g2 * s2, axis=0)
            elif large:
                fractions += tl.sum(g * (1.0 - 2.0 * s) + g2 * (1.0 - 2.0 * s2), axis=0)
            else:
                fractions += tl.sum(g * ((x * y - 1.0) * s) + g2 * ((x2 * y - 1.0) * s2), axis=0)
            before = tl.load(out_at, mask=start > begin, other=0.0)
            before2 = tl.load(out_at + width, mask=start > begin, other=0.0)
            tl.store(out_at, before + tl.sum(g * slope, axis=0))
            tl.store(out_at + width, before2 + tl.sum(g2 * slope2, axis=0))
            g_at += 2 * n_keys
            u_at += 2 * width
            out_at += 2 * width
        tl.store(d_key + shift + ((leading * q_blocks + q_block) * n_keys + start) * width + inside, slopes)
        tl.debug_barrier()  # what was written is read in the next turn
    tl.store(sums + ((leading * q_blocks + q_block) * k_blocks + k_block) * width + d, fractions)


@triton.jit(do_not_specialize=["shift"])
def gradients(u: T, v: T, upstream: T, ranges: T, d_query: T, d_key: T, sums: T, shift: T, n_queries: T, n_keys: T,
              width: T, span: T, tokens: tl.constexpr, features: tl.constexpr, exact: tl.constexpr) -> None:
    """Σ g s (1 - s) over the keys of a span and over the queries of a span, and Σ g s over both; exact: Σ g tanh.

        u (L, Q, D), v (L, K, D)       exponentials
        upstream (L, Q, K)             g
        d_query (L, k_blocks, Q, D)    each program writes its own part, and adds to it
        d_key (L, q_blocks, K, D)      each program writes its own part
        sums (L, q_blocks, k_blocks, D)

    A program is one warp. It has a span of queries, a span of keys and some features, and takes a few keys into its
    registers at a time: a thread has all of these keys, and one, two or four features, so that no sum goes from thread
    to thread. That is what `shift` is for. It is 0, which the compiler may not know: it then loads and stores no more
    features in one than there are for each of the 32 threads, and lays the blocks out over the threads accordingly.
    """
    if _large(ranges):
        _gradients(u, v, upstream, d_query, d_key, sums, shift, n_queries, n_keys, width, span, tokens, features,
                   exact, large=True)
    else:
        _gradients(u, v, upstream, d_query, d_key, sums, shift, n_queries, n_keys, width, span, tokens, features,
                   exact, large=False)
