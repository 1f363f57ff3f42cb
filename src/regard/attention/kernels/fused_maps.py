"""Passes over the tiles of Q·Kᵀ in Triton that sum the weights of blocks, the second of two: rows are normalised.

    coarse     blocks that are larger than a tile: a program has a part of the rows of one row of blocks
    fine       blocks of which a tile holds several, in both directions

What is said in `fused_passes` of tiles, ranges and order holds here too.

Legend: Q rows of a tile, K keys of a tile, D width up to a power of two, M blocks of a tile.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, ignore-errors
# ruff: noqa: N803
import triton
import triton.language as tl

from regard.attention.kernels.fused_passes import place, rows_of, turned, visits


@triton.jit
def coarse(query, key, first, last, peaks, inverses, sums,
           n_queries, n_keys, tiles, heads, group, factor,
           query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
           size, down, across, pieces,
           WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, EVEN: tl.constexpr,
           PRECISION: tl.constexpr):
    """Sums (sequences, tiles, across): `pieces` tiles make the rows of a block. EVEN: tiles of keys fill blocks."""
    tile, sequence, at_query, at_key = place(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile // pieces * size + tile % pieces * QUERIES
    stop = tl.minimum(n_queries, (tile // pieces + 1) * size)
    row_Q = start + tl.arange(0, QUERIES)
    there_Q = row_Q < stop
    first_Q = tl.load(first + sequence * range_stride + row_Q, mask=there_Q, other=0)
    last_Q = tl.load(last + sequence * range_stride + row_Q, mask=there_Q, other=0)
    peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
    inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
    query_QD = rows_of(query + at_query, start, stop, query_token, inside_D, at_D, QUERIES)
    if EVEN:
        begin, full, until, end = visits(first_Q, last_Q, KEYS)
    else:
        begin, full, until, end = visits(first_Q, last_Q, 1)
        begin, end = begin // size * tl.cdiv(size, KEYS), tl.cdiv(end, size) * tl.cdiv(size, KEYS)
        full, until = end, end
    steps = tl.cdiv(size, KEYS)
    sums += (sequence * tiles + tile) * across
    block = 0.0
    for part in tl.static_range(3):
        if part == 0:
            lower, upper = begin, full
        elif part == 1:
            lower, upper = full, until
        else:
            lower, upper = until, end
        for t in range(lower, upper):
            column, step = t // steps, t % steps
            left = column * size + step * KEYS
            key_DK = turned(key + at_key, left, n_keys, key_token, inside_D, at_D, KEYS, part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            e_QK = tl.exp2(score_QK * factor - peak_Q[:, None])
            if part != 1:
                column_K = left + tl.arange(0, KEYS)
                right_Q = tl.minimum(last_Q, (column + 1) * size)
                seen_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < right_Q[:, None])
                e_QK = tl.where(seen_QK, e_QK, 0.0)
            # The sum so far is written at every step: the last step of a block has the last word.
            block = tl.where(step == 0, 0.0, block) + tl.sum(tl.sum(e_QK, 1) * inverse_Q, 0)
            tl.store(sums + column, block)


@triton.jit
def fine(query, key, first, last, peaks, inverses, sums,
         n_queries, n_keys, tiles, heads, group, factor,
         query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride, down, across,
         WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
         PRECISION: tl.constexpr):
    """Sums (sequences, down, across) of blocks of SIZE, a power of two that is at most a tile."""
    tile, sequence, at_query, at_key = place(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    there_Q = row_Q < n_queries
    first_Q = tl.load(first + sequence * range_stride + row_Q, mask=there_Q, other=0)
    last_Q = tl.load(last + sequence * range_stride + row_Q, mask=there_Q, other=0)
    peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
    inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
    query_QD = rows_of(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = visits(first_Q, last_Q, KEYS)
    high: tl.constexpr = QUERIES // SIZE
    wide: tl.constexpr = KEYS // SIZE
    row_M = tile * high + tl.arange(0, high)
    for part in tl.static_range(3):
        if part == 0:
            lower, upper = begin, full
        elif part == 1:
            lower, upper = full, until
        else:
            lower, upper = until, end
        for t in range(lower, upper):
            key_DK = turned(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
                            part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            weight_QK = tl.exp2(score_QK * factor - peak_Q[:, None]) * inverse_Q[:, None]
            if part != 1:
                column_K = t * KEYS + tl.arange(0, KEYS)
                seen_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < last_Q[:, None])
                weight_QK = tl.where(seen_QK, weight_QK, 0.0)
            sum_QM = tl.sum(tl.reshape(weight_QK, [QUERIES, wide, SIZE]), 2)
            sum_MM = tl.sum(tl.reshape(sum_QM, [high, SIZE, wide]), 1)
            column_M = t * wide + tl.arange(0, wide)
            at_MM = (sequence * down + row_M[:, None]) * across + column_M[None, :]
            tl.store(sums + at_MM, sum_MM, mask=(row_M[:, None] < down) & (column_M[None, :] < across))
