"""Attention within parts of a band: softmax(q·k) v for the queries and keys of sequences that are longer than a tile.

A program has as many queries and as many keys as a tile. It goes through the blocks of keys that its queries see, with
the softmax made as it goes (Milakov and Gimelshein 2018; Dao et al. 2022). The backward pass makes the weights once
more: it goes through these blocks again for the gradients of its queries, and through the blocks of queries that see
its keys for those of keys and values. No sum is made by several programs, so results are the same every time.

What nobody in a block sees is read as zero, so that NaN there changes nothing. It does not know how tiles come about
(`band_tiles`); where they are whole, `band_whole` needs less.

Legend: B rows, H heads, N queries, M keys, D width, E width of the values.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

import triton
import triton.language as tl

from regard.attention.kernels.band_rows import LOG2_E, ends, kept, put, rows, share


@triton.jit
def forward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed,
            q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group,
            slots, room, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
            padded_e: tl.constexpr, size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """output (B, N, H, E) and logs (B, H, N): log2 of the sums of 2^score."""
    b, h, slot = share(heads, slots)
    head = b * heads + h
    k_at, v_at = key + b * k_b + (h // group) * k_h, value + b * v_b + (h // group) * v_h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i = tl.load(tile) + tl.arange(0, size)
        there = i < tl.load(tile + 1)
        low, high = ends(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, there)
        sees = high > low
        q = rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
        most = tl.full((size,), -float("inf"), tl.float32)
        total = tl.zeros((size,), tl.float32)
        sums = tl.zeros((size, padded_e), tl.float32)
        for start in range(tl.min(tl.where(sees, low, n_keys)), tl.max(tl.where(sees, high, 0)), size):
            j = start + tl.arange(0, size)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            seen = tl.max(allowed.to(tl.int32), 0) > 0
            k = rows(k_at, j, seen, D, padded_d, k_n)
            v = rows(v_at, j, seen, E, padded_e, v_n)
            s = tl.where(allowed, tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E), -float("inf"))
            new = tl.maximum(most, tl.max(s, 1))
            shift = tl.where(new == -float("inf"), 0.0, new)
            p = tl.exp2(s - shift[:, None])
            fade = tl.exp2(most - shift)
            total = total * fade + tl.sum(p, 1)
            if drops:
                p = tl.where(kept(seed, head, i, j, n_keys, dropout), p, 0.0)
            sums = sums * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
            most = new
        total = tl.where(sees, total, 1.0)  # where nothing is seen, the sums are zeros
        part = 1.0 / total
        if drops:
            part = part / (1.0 - dropout)
        put(output + (b * n_queries * heads + h) * E, i, there, E, padded_e, heads * E, sums * part[:, None])
        tl.store(logs + head * n_queries + i, tl.where(sees, most + tl.log2(total), 0.0), mask=there)


@triton.jit
def backward(query, key, value, output, upstream, logs, of_query, of_key, of_value, first, last, from_query, to_query,
             tiles, counts, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, gq_b, gq_h, gq_n, gk_b,
             gk_h, gk_n, gv_b, gv_h, gv_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group, slots, room,
             scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
             size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """of_query (B, H, N, D); of_key (B, key heads, M, D) and of_value (B, key heads, M, E), summed over the heads that
    share them."""
    key_heads = heads // group
    b, kh, slot = share(key_heads, slots)
    k_at, v_at = key + b * k_b + kh * k_h, value + b * v_b + kh * v_h
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
        there, inside = i < tl.load(tile + 1), j < tl.load(tile + 3)
        for member in range(group):
            h = kh * group + member
            of_q = _of_queries(query + b * q_b + h * q_h, k_at, v_at, output + (b * n_queries * heads + h) * E,
                               upstream + b * u_b + h * u_h, logs + (b * heads + h) * n_queries,
                               first + b * e_b + h * e_h, last + b * e_b + h * e_h, seed, i, there, b * heads + h,
                               q_n, k_n, v_n, u_n, n_keys, heads, scale, dropout, D, padded_d, E, padded_e, size,
                               drops, precision)
            put(of_query + b * gq_b + h * gq_h, i, there, D, padded_d, gq_n, of_q * scale)
        of_k, of_v = tl.zeros((size, padded_d), tl.float32), tl.zeros((size, padded_e), tl.float32)
        for member in range(group):
            h = kh * group + member
            begin, end = ends(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, inside)
            seen = end > begin
            k = rows(k_at, j, seen, D, padded_d, k_n)
            v = rows(v_at, j, seen, E, padded_e, v_n)
            for start in range(tl.min(tl.where(seen, begin, n_queries)), tl.max(tl.where(seen, end, 0)), size):
                n = start + tl.arange(0, size)
                low, high = ends(first + b * e_b + h * e_h, last + b * e_b + h * e_h, n, n < n_queries)
                q, u, log, own = _of_above(query + b * q_b + h * q_h, output + (b * n_queries * heads + h) * E,
                                           upstream + b * u_b + h * u_h, logs + (b * heads + h) * n_queries, n,
                                           high > low, q_n, u_n, heads, D, padded_d, E, padded_e)
                allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
                s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
                p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
                of_p = tl.dot(u, tl.trans(v), input_precision=precision)
                left = p
                if drops:
                    keep = kept(seed, b * heads + h, n, j, n_keys, dropout)
                    left = tl.where(keep, p / (1.0 - dropout), 0.0)
                    of_p = tl.where(keep, of_p / (1.0 - dropout), 0.0)
                of_v += tl.dot(tl.trans(left.to(u.dtype)), u, input_precision=precision)
                of_s = (p * (of_p - own[:, None])).to(q.dtype)
                of_k += tl.dot(tl.trans(of_s), q, input_precision=precision)
        put(of_key + b * gk_b + kh * gk_h, j, inside, D, padded_d, gk_n, of_k * scale)
        put(of_value + b * gv_b + kh * gv_h, j, inside, E, padded_e, gv_n, of_v)


@triton.jit
def _of_above(query, output, upstream, logs, i, sees, q_n, u_n, heads, D: tl.constexpr, padded_d: tl.constexpr,
              E: tl.constexpr, padded_e: tl.constexpr):
    """What the backward pass needs of queries: themselves, what comes from above, and of that its inner product with
    the outputs."""
    q = rows(query, i, sees, D, padded_d, q_n)
    u = rows(upstream, i, sees, E, padded_e, u_n)
    o = rows(output, i, sees, E, padded_e, heads * E)
    log = tl.load(logs + i, mask=sees, other=0.0)
    return q, u, log, tl.sum(o.to(tl.float32) * u.to(tl.float32), 1)


@triton.jit
def _of_queries(query, key, value, output, upstream, logs, first, last, seed, i, there, head, q_n, k_n, v_n, u_n,
                n_keys, heads, scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr,
                padded_e: tl.constexpr, size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """The gradients of the queries of a tile, (size, padded_d), not yet scaled."""
    low, high = ends(first, last, i, there)
    sees = high > low
    q, u, log, own = _of_above(query, output, upstream, logs, i, sees, q_n, u_n, heads, D, padded_d, E, padded_e)
    sums = tl.zeros((size, padded_d), tl.float32)
    for start in range(tl.min(tl.where(sees, low, n_keys)), tl.max(tl.where(sees, high, 0)), size):
        j = start + tl.arange(0, size)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        seen = tl.max(allowed.to(tl.int32), 0) > 0
        k = rows(key, j, seen, D, padded_d, k_n)
        v = rows(value, j, seen, E, padded_e, v_n)
        s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
        p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
        of_p = tl.dot(u, tl.trans(v), input_precision=precision)
        if drops:
            of_p = tl.where(kept(seed, head, i, j, n_keys, dropout), of_p / (1.0 - dropout), 0.0)
        of_s = (p * (of_p - own[:, None])).to(k.dtype)
        sums += tl.dot(of_s, k, input_precision=precision)
    return sums
