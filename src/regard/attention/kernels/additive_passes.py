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
def _fractions(x: T, y: T, y2: T, large: tl.constexpr) -> tuple[T, T]:
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
def _query(words: T, x: T, next_g: T, next_u: T, out: T, y: T, y2: T, slopes: T, slopes2: T, fractions: T, more: T,
           kind: tl.constexpr, large: tl.constexpr) -> tuple[T, T, T, T, T]:
    """A query and two blocks of keys: all sums with them. In place of the query comes the next one, for the next turn.

    It is loaded before `out` is written: the compiler, which knows not that they differ, can then load it no later.
    """
    g, g2 = _halves(words, kind)
    x = x[None, :]
    s, s2 = _fractions(x, y, y2, large)
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
    tl.atomic_add(out, total, mask=more, sem="relaxed")  # nobody else adds here
    return next_words, next_x, slopes, slopes2, fractions


@triton.jit
def _gradients(u: T, v: T, upstream: T, d_query: T, d_key: T, sums: T, shift: T, n_queries: T, n_keys: T, width: T,
               q_span: T, k_span: T, tokens: tl.constexpr, features: tl.constexpr, kind: tl.constexpr,
               large: tl.constexpr) -> None:
    """See `gradients`."""
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
            step = tl.where(turn < turns - 1, 4, 0)  # behind the last there is none: it is loaded once more
            g += step * words
            u_at += step * width
            g1, x1, slopes, slopes2, fractions = _query(
                g1, x1, g, u_at, out, y, y2, slopes, slopes2, fractions, start > begin, kind, large)
            g2, x2, slopes, slopes2, fractions = _query(
                g2, x2, g + words, u_at + width, out + width, y, y2, slopes, slopes2, fractions, start > begin, kind,
                large)
            g3, x3, slopes, slopes2, fractions = _query(
                g3, x3, g + 2 * words, u_at + 2 * width, out + 2 * width, y, y2, slopes, slopes2, fractions,
                start > begin, kind, large)
            g4, x4, slopes, slopes2, fractions = _query(
                g4, x4, g + 3 * words, u_at + 3 * width, out + 3 * width, y, y2, slopes, slopes2, fractions,
                start > begin, kind, large)
            out += 4 * width
        tl.store(d_key + keys, slopes)
        tl.store(d_key + keys + width, slopes2)
        tl.debug_barrier()  # what was written is added to
    tl.store(sums + ((leading * q_blocks + q_block) * k_blocks + k_block) * width + d, fractions)


@triton.jit(do_not_specialize=["shift", "n_queries", "q_span"])
def gradients(u: T, v: T, upstream: T, ranges: T, d_query: T, d_key: T, sums: T, shift: T, n_queries: T, n_keys: T,
              width: T, q_span: T, k_span: T, tokens: tl.constexpr, features: tl.constexpr,
              kind: tl.constexpr) -> None:
    """Σ g s (1 - s) over the keys of a span and over the queries of a span, and Σ g s over both; float32: Σ g tanh.

        u (L, Q, D), v (L, K, D)       exponentials
        upstream (L, Q, K / 2)         g, as words of two neighbours, of which each is a number of this kind
        d_query (L, k_blocks, Q, D)    each program writes its own part, and adds to it
        d_key (L, q_blocks, K, D)      each program writes its own part
        sums (L, q_blocks, k_blocks, D)

    A program is one warp. It has a span of queries, a span of keys and some features. It takes a few keys into its
    registers at a time, with every other one in a block of its own, so that the two of a word share a reciprocal, and
    goes through its queries with them. With the first keys it writes their sums, with the others it adds: an addition
    in memory, for which nothing has to be loaded. A program adds to its own place, in its own order. Queries are read
    four ahead: from beyond the nearest cache a number takes as long as hundreds of instructions, and there are only
    three or four warps to wait for one another.

    A thread has all of these keys, and one, two or four features, so that no sum goes from thread to thread. That is
    what `shift` is for. It is 0, which the compiler may not know: it then loads and stores no more features in one than
    there are for each of the 32 threads, and lays the blocks out over the threads accordingly.
    """
    if _large(ranges):
        _gradients(u, v, upstream, d_query, d_key, sums, shift, n_queries, n_keys, width, q_span, k_span, tokens,
                   features, kind, large=True)
    else:
        _gradients(u, v, upstream, d_query, d_key, sums, shift, n_queries, n_keys, width, q_span, k_span, tokens,
                   features, kind, large=False)


@triton.jit(do_not_specialize=["n_parts", "first", "more"])
def summed(parts: T, weight: T, out: T, n_parts: T, n_tokens: T, width: T, first: T, heads: T, out_tokens: T,
           out_width: T, out_stride: T, more: T, tokens: tl.constexpr, features: tl.constexpr) -> None:
    """out (L, tokens, D): 4 · w times the sum of parts (L, n_parts, N, D), and what it had before if there is `more`.

    weight (heads, D): of head first + l modulo `heads`. Rows of out are `out_stride` apart.
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
