"""Attention within whole tiles of a band: softmax(q·k) v where the queries of a tile see its keys alone.

A program reads a tile's queries, keys and values once and has all weights of these queries at once. In the backward
pass it makes them once more, and the gradients of queries, keys and values are complete in it: every number is read
once and written once. The inner products of the gradients from above with the outputs are the sums Σ p ∂p over the keys
of the tile, so that outputs are not read. Neither order nor number of the tiles changes a result.

What nobody sees is read as zero, so that NaN there changes nothing. It does not know how tiles come about
(`band_tiles`), nor sequences that are longer than a tile (`band_parts`).

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
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
        there, inside = i < tl.load(tile + 1), j < tl.load(tile + 3)
        low, high = ends(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, there)
        begin, end = ends(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, inside)
        sees, seen = high > low, end > begin
        q = rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
        k = rows(key + b * k_b + (h // group) * k_h, j, seen, D, padded_d, k_n)
        v = rows(value + b * v_b + (h // group) * v_h, j, seen, E, padded_e, v_n)
        allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
        s = tl.where(allowed, tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E), -float("inf"))
        most = tl.where(sees, tl.max(s, 1), 0.0)
        p = tl.exp2(s - most[:, None])
        total = tl.where(sees, tl.sum(p, 1), 1.0)
        if drops:
            p = tl.where(kept(seed, head, i, j, n_keys, dropout), p, 0.0)
        part = 1.0 / total
        if drops:
            part = part / (1.0 - dropout)
        sums = tl.dot(p.to(v.dtype), v, input_precision=precision) * part[:, None]
        put(output + (b * n_queries * heads + h) * E, i, there, E, padded_e, heads * E, sums)
        tl.store(logs + head * n_queries + i, most + tl.log2(total), mask=there)


@triton.jit
def backward(query, key, value, upstream, logs, of_query, of_key, of_value, first, last, from_query, to_query, tiles,
             counts, seed, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, u_b, u_h, u_n, gq_b, gq_h, gq_n, gk_b, gk_h,
             gk_n, gv_b, gv_h, gv_n, e_b, e_h, r_b, r_h, t_b, c_b, n_queries, n_keys, heads, group, slots, room,
             scale, dropout, D: tl.constexpr, padded_d: tl.constexpr, E: tl.constexpr, padded_e: tl.constexpr,
             size: tl.constexpr, drops: tl.constexpr, precision: tl.constexpr):
    """of_query (B, H, N, D); of_key (B, key heads, M, D) and of_value (B, key heads, M, E), summed over the heads that
    share them."""
    key_heads = heads // group
    b, kh, slot = share(key_heads, slots)
    for one in tl.range(slot, tl.minimum(tl.load(counts + b * c_b), room), slots, num_stages=1):
        tile = tiles + b * t_b + one * 4
        i, j = tl.load(tile) + tl.arange(0, size), tl.load(tile + 2) + tl.arange(0, size)
        there, inside = i < tl.load(tile + 1), j < tl.load(tile + 3)
        of_k, of_v = tl.zeros((size, padded_d), tl.float32), tl.zeros((size, padded_e), tl.float32)
        for member in range(group):
            h = kh * group + member
            head = b * heads + h
            low, high = ends(first + b * e_b + h * e_h, last + b * e_b + h * e_h, i, there)
            begin, end = ends(from_query + b * r_b + h * r_h, to_query + b * r_b + h * r_h, j, inside)
            sees, seen = high > low, end > begin
            log = tl.load(logs + head * n_queries + i, mask=there, other=0.0)
            q = rows(query + b * q_b + h * q_h, i, sees, D, padded_d, q_n)
            k = rows(key + b * k_b + kh * k_h, j, seen, D, padded_d, k_n)
            u = rows(upstream + b * u_b + h * u_h, i, sees, E, padded_e, u_n)
            v = rows(value + b * v_b + kh * v_h, j, seen, E, padded_e, v_n)
            allowed = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
            s = tl.dot(q, tl.trans(k), input_precision=precision) * (scale * LOG2_E)
            p = tl.where(allowed, tl.exp2(s - log[:, None]), 0.0)
            of_p = tl.dot(u, tl.trans(v), input_precision=precision)
            left = p
            if drops:
                keep = kept(seed, head, i, j, n_keys, dropout)
                left = tl.where(keep, p / (1.0 - dropout), 0.0)
                of_p = tl.where(keep, of_p / (1.0 - dropout), 0.0)
            own = tl.sum(p * of_p, 1)
            of_v += tl.dot(tl.trans(left.to(u.dtype)), u, input_precision=precision)
            of_s = (p * (of_p - own[:, None])).to(k.dtype)
            of_k += tl.dot(tl.trans(of_s), q, input_precision=precision)
            of_q = tl.dot(of_s, k, input_precision=precision)
            put(of_query + b * gq_b + h * gq_h, i, there, D, padded_d, gq_n, of_q * scale)
        put(of_key + b * gk_b + kh * gk_h, j, inside, D, padded_d, gk_n, of_k * scale)
        put(of_value + b * gv_b + kh * gv_h, j, inside, E, padded_e, gv_n, of_v)
