"""Statistics of attention weights in Triton: passes over the tiles of Q·Kᵀ that never write a weight.

    row_pass           the normaliser of every row, with its entropy or with the first of its largest scores
    leader_pass        the normaliser of every row, and the tiles that hold its largest scores
    top_k_pass         the largest weights of a row, from the tiles that `leader_pass` found
    column_pass        the sum of every column
    coarse_map_pass    the sums of blocks larger than a tile: a program has a part of the rows of one row of blocks
    fine_map_pass      the sums of blocks of which a tile holds several, in both directions

A query attends to the keys from `first` to below `last`. Tiles outside of all ranges are skipped, and tiles inside of all
ranges are not masked. Scores are accumulated in float32 and taken to the base of 2: a weight is
2^(score · factor - peak) · inverse, where peak and inverse belong to the row, and factor = scale · log₂ e > 0.

Every program owns what it writes and sums in a fixed order, so results are the same every time, bit for bit. It knows
neither problems nor masks.

Legend: Q rows of a tile, K keys of a tile, D width up to a power of two, M blocks of a map in a tile.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators, ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

NO_SCORE = tl.constexpr(-(1 << 63))
"""Below every packed score."""
INT32_MAX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head):
    """Which tile, which sequence, and where its queries and keys begin. Later tiles go first: they may see most."""
    program = tl.program_id(0)
    tile, sequence = tiles - 1 - program % tiles, (program // tiles).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    return tile, sequence, batch * query_batch + head * query_head, batch * key_batch + head // group * key_head


@triton.jit
def _load_rows(tensor, start, count, stride, inside_D, at_D, ROWS: tl.constexpr):
    """ROWS tokens from `start` on, (ROWS, D), with zeros behind the last."""
    token = start + tl.arange(0, ROWS)
    there = (token < count)[:, None] & inside_D[None, :]
    return tl.load(tensor + (token.to(tl.int64) * stride)[:, None] + at_D[None, :], mask=there, other=0.0)


@triton.jit
def _load_transposed(tensor, start, count, stride, inside_D, at_D, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    """The same turned round, (D, ROWS). WHOLE: all of the tokens are there, and all features."""
    token = start + tl.arange(0, ROWS)
    where_DK = tensor + (token.to(tl.int64) * stride)[None, :] + at_D[:, None]
    if WHOLE:
        return tl.load(where_DK)
    return tl.load(where_DK, mask=(token < count)[None, :] & inside_D[:, None], other=0.0)


@triton.jit
def _key_tiles(first_Q, last_Q, KEYS: tl.constexpr):
    """The tiles of keys that the rows see, from the first number to the last; between the others all see all."""
    seen_Q = first_Q < last_Q
    begin = tl.min(tl.where(seen_Q, first_Q, 0x7FFFFFFF), 0) // KEYS
    end = tl.cdiv(tl.max(last_Q, 0), KEYS)
    begin = tl.minimum(begin, end)
    full = tl.minimum(tl.maximum(tl.cdiv(tl.max(first_Q, 0), KEYS), begin), end)
    until = tl.minimum(tl.maximum(tl.min(last_Q, 0) // KEYS, full), end)
    return begin, full, until, end


@triton.jit
def _pack_score(score, index):
    """One number for a score and where it is: higher scores are larger, and of equal ones the lower index."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # there is one zero
    ordered = bits ^ ((bits >> 31) & INT32_MAX)
    number = (ordered.to(tl.int64) << 32) | (index ^ INT32_MAX).to(tl.int64)
    return tl.where(score == float("-inf"), NO_SCORE, number)


@triton.jit
def _unpack_score(number):
    """The score and the index; NONE gives a score that is none."""
    ordered = (number >> 32).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & INT32_MAX)
    return bits.to(tl.float32, bitcast=True), (number & INT32_MAX).to(tl.int32) ^ INT32_MAX


@triton.jit
def row_pass(query, key, first, last, peaks, inverses, entropies, spots,
         n_queries, n_keys, tiles, heads, group, factor,
         query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
         WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, KEPT: tl.constexpr,
         PRECISION: tl.constexpr):
    """KEPT: "normaliser", "entropy" or "spot"; what is not kept is not written."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    there_Q = row_Q < n_queries
    first_Q = tl.load(first + sequence * range_stride + row_Q, mask=there_Q, other=0)
    last_Q = tl.load(last + sequence * range_stride + row_Q, mask=there_Q, other=0)
    query_QD = _load_rows(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
    peak_Q = tl.full([QUERIES], float("-inf"), tl.float32)
    total_Q = tl.zeros([QUERIES], tl.float32)
    lost_Q = tl.zeros([QUERIES], tl.float32)  # Σ e z, where e = 2^z and z = score - peak: what the entropy needs
    spot_Q = tl.zeros([QUERIES], tl.int32)
    for part in tl.static_range(3):
        if part == 0:
            lower, upper = begin, full
        elif part == 1:
            lower, upper = full, until
        else:
            lower, upper = until, end
        for t in range(lower, upper):
            key_DK = _load_transposed(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
                            part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            column_K = t * KEYS + tl.arange(0, KEYS)
            if part != 1:
                seen_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < last_Q[:, None])
                score_QK = tl.where(seen_QK, score_QK, float("-inf"))
            highest_Q = tl.max(score_QK, 1)
            new_Q = tl.maximum(peak_Q, highest_Q)
            base_Q = new_Q * factor
            if part != 1:
                base_Q = tl.where(new_Q == float("-inf"), 0.0, base_Q)
            z_QK = score_QK * factor - base_Q[:, None]
            e_QK = tl.exp2(z_QK)
            shift_Q = peak_Q * factor - base_Q
            shrunk_Q = tl.exp2(shift_Q)
            if KEPT == "entropy":
                if part != 1:
                    z_QK = tl.where(seen_QK, z_QK, 0.0)  # 0 · -inf is no number
                moved_Q = tl.where(peak_Q == float("-inf"), 0.0, shift_Q) * total_Q
                lost_Q = (lost_Q + moved_Q) * shrunk_Q + tl.sum(e_QK * z_QK, 1)
            if KEPT == "spot":
                here_Q = tl.min(tl.where(score_QK == highest_Q[:, None], column_K[None, :], INT32_MAX), 1)
                spot_Q = tl.where(highest_Q > peak_Q, here_Q, spot_Q)
            total_Q = total_Q * shrunk_Q + tl.sum(e_QK, 1)
            peak_Q = new_Q
    empty_Q = total_Q == 0.0
    inverse_Q = tl.where(empty_Q, 0.0, 1.0 / tl.where(empty_Q, 1.0, total_Q))
    out_Q = sequence * n_queries + row_Q
    tl.store(peaks + out_Q, tl.where(empty_Q, 0.0, peak_Q * factor), mask=there_Q)
    tl.store(inverses + out_Q, inverse_Q, mask=there_Q)
    if KEPT == "entropy":
        entropy_Q = 0.6931471805599453 * (tl.log2(tl.where(empty_Q, 1.0, total_Q)) - lost_Q * inverse_Q)
        tl.store(entropies + out_Q, tl.where(entropy_Q < 0.0, 0.0, entropy_Q), mask=there_Q)
    if KEPT == "spot":
        tl.store(spots + out_Q, spot_Q, mask=there_Q)


@triton.jit
def leader_pass(query, key, first, last, peaks, inverses, lead,
            n_queries, n_keys, tiles, heads, group, factor,
            query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
            WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, COUNT: tl.constexpr,
            PRECISION: tl.constexpr):
    """The COUNT tiles whose largest scores are the largest: the COUNT best keys are all in these."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    there_Q = row_Q < n_queries
    first_Q = tl.load(first + sequence * range_stride + row_Q, mask=there_Q, other=0)
    last_Q = tl.load(last + sequence * range_stride + row_Q, mask=there_Q, other=0)
    query_QD = _load_rows(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
    peak_Q = tl.full([QUERIES], float("-inf"), tl.float32)
    total_Q = tl.zeros([QUERIES], tl.float32)
    # NONE, made different in every place: one of them is replaced at a time.
    place_N = tl.arange(0, COUNT)
    lead_QN = tl.zeros([QUERIES, COUNT], tl.int64) + (place_N.to(tl.int64) + NO_SCORE)[None, :]
    for part in tl.static_range(3):
        if part == 0:
            lower, upper = begin, full
        elif part == 1:
            lower, upper = full, until
        else:
            lower, upper = until, end
        for t in range(lower, upper):
            key_DK = _load_transposed(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
                            part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            if part != 1:
                column_K = t * KEYS + tl.arange(0, KEYS)
                seen_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < last_Q[:, None])
                score_QK = tl.where(seen_QK, score_QK, float("-inf"))
            highest_Q = tl.max(score_QK, 1)
            new_Q = tl.maximum(peak_Q, highest_Q)
            base_Q = tl.where(new_Q == float("-inf"), 0.0, new_Q * factor)
            e_QK = tl.exp2(score_QK * factor - base_Q[:, None])
            total_Q = total_Q * tl.exp2(peak_Q * factor - base_Q) + tl.sum(e_QK, 1)
            peak_Q = new_Q
            number_Q = _pack_score(highest_Q, tl.zeros([QUERIES], tl.int32) + t)
            least_Q = tl.min(lead_QN, 1)
            better_QN = (lead_QN == least_Q[:, None]) & (number_Q > least_Q)[:, None]
            lead_QN = tl.where(better_QN, number_Q[:, None], lead_QN)
    empty_Q = total_Q == 0.0
    inverse_Q = tl.where(empty_Q, 0.0, 1.0 / tl.where(empty_Q, 1.0, total_Q))
    out_Q = sequence * n_queries + row_Q
    tl.store(peaks + out_Q, tl.where(empty_Q, 0.0, peak_Q * factor), mask=there_Q)
    tl.store(inverses + out_Q, inverse_Q, mask=there_Q)
    tl.store(lead + out_Q[:, None] * COUNT + place_N[None, :], lead_QN, mask=there_Q[:, None])


@triton.jit
def top_k_pass(query, key, first, last, peaks, inverses, lead, values, positions,
         n_queries, n_keys, tiles, heads, group, factor,
         query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
         WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, COUNT: tl.constexpr, ASKED: tl.constexpr):
    """One row: its ASKED largest weights, largest first. Keys that it does not see have 0, and come last, in order."""
    row, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    place_N = tl.arange(0, COUNT)
    start = tl.load(first + sequence * range_stride + row)
    stop = tl.load(last + sequence * range_stride + row)
    out = sequence * n_queries + row
    peak, inverse = tl.load(peaks + out), tl.load(inverses + out)
    query_D = tl.load(query + at_query + row.to(tl.int64) * query_token + at_D, mask=inside_D, other=0.0)
    query_D = query_D.to(tl.float32)
    found_NK = tl.full([COUNT, KEYS], NO_SCORE, tl.int64)
    for n in range(COUNT):
        number = tl.load(lead + out * COUNT + n)
        known = number >= NO_SCORE + COUNT
        _, t = _unpack_score(number)
        t = tl.where(known, t, 0)
        column_K = t * KEYS + tl.arange(0, KEYS)
        seen_K = known & (column_K >= start) & (column_K < stop)
        at_K = column_K.to(tl.int64) * key_token
        key_KD = tl.load(key + at_key + at_K[:, None] + at_D[None, :], mask=seen_K[:, None] & inside_D[None, :],
                         other=0.0)
        score_K = tl.sum(key_KD.to(tl.float32) * query_D[None, :], 1)
        number_K = _pack_score(tl.where(seen_K, score_K, float("-inf")), column_K)
        found_NK = tl.where(place_N[:, None] == n, number_K[None, :], found_NK)
    for rank in range(ASKED):
        number = tl.max(tl.max(found_NK, 1), 0)
        found_NK = tl.where(found_NK == number, NO_SCORE, found_NK)
        score, column = _unpack_score(number)
        unseen = rank - tl.maximum(stop - start, 0)
        weight = tl.exp2(score * factor - peak) * inverse
        other = tl.where(unseen < start, unseen, unseen - start + stop)
        tl.store(values + out * ASKED + rank, tl.where(unseen < 0, weight, 0.0))
        tl.store(positions + out * ASKED + rank, tl.where(unseen < 0, column, other))


@triton.jit
def column_pass(query, key, first, last, peaks, inverses, visited, sums,
            n_queries, n_keys, tiles, heads, group, factor,
            query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride, visited_stride,
            WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr):
    """The tile is one of keys, and the queries go by: weights lie turned, (K, Q)."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * KEYS
    column_K = start + tl.arange(0, KEYS)
    key_KD = _load_rows(key + at_key, start, n_keys, key_token, inside_D, at_D, KEYS)
    visited += sequence * visited_stride + tile * 4
    sum_K = tl.zeros([KEYS], tl.float32)
    for part in tl.static_range(3):
        lower, upper = tl.load(visited + part), tl.load(visited + part + 1)
        for t in range(lower, upper):
            row_Q = t * QUERIES + tl.arange(0, QUERIES)
            there_Q = row_Q < n_queries
            peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
            inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
            query_DQ = _load_transposed(query + at_query, t * QUERIES, n_queries, query_token, inside_D, at_D, QUERIES, False)
            score_KQ = tl.dot(key_KD, query_DQ, input_precision=PRECISION)
            weight_KQ = tl.exp2(score_KQ * factor - peak_Q[None, :]) * inverse_Q[None, :]
            if part != 1:
                first_Q = tl.load(first + sequence * range_stride + row_Q, mask=there_Q, other=0)
                last_Q = tl.load(last + sequence * range_stride + row_Q, mask=there_Q, other=0)
                seen_KQ = (column_K[:, None] >= first_Q[None, :]) & (column_K[:, None] < last_Q[None, :])
                weight_KQ = tl.where(seen_KQ, weight_KQ, 0.0)
            sum_K += tl.sum(weight_KQ, 1)
    tl.store(sums + sequence * n_keys + column_K, sum_K, mask=column_K < n_keys)


# ---- fused_maps: Passes over the tiles of Q·Kᵀ in Triton that sum the weights of blocks, the second of two: rows are normalised.
#
#     coarse     blocks that are larger than a tile: a program has a part of the rows of one row of blocks
#     fine       blocks of which a tile holds several, in both directions
#
# What is said in `fused_passes` of tiles, ranges and order holds here too.
#
# Legend: Q rows of a tile, K keys of a tile, D width up to a power of two, M blocks of a tile.


@triton.jit
def coarse_map_pass(query, key, first, last, peaks, inverses, sums,
           n_queries, n_keys, tiles, heads, group, factor,
           query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
           size, down, across, pieces,
           WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, EVEN: tl.constexpr,
           PRECISION: tl.constexpr):
    """Sums (sequences, tiles, across): `pieces` tiles make the rows of a block. EVEN: tiles of keys fill blocks."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
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
    query_QD = _load_rows(query + at_query, start, stop, query_token, inside_D, at_D, QUERIES)
    if EVEN:
        begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
    else:
        begin, full, until, end = _key_tiles(first_Q, last_Q, 1)
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
            key_DK = _load_transposed(key + at_key, left, n_keys, key_token, inside_D, at_D, KEYS, part == 1 and WIDTH == D)
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
def fine_map_pass(query, key, first, last, peaks, inverses, sums,
         n_queries, n_keys, tiles, heads, group, factor,
         query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride, down, across,
         WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
         PRECISION: tl.constexpr):
    """Sums (sequences, down, across) of blocks of SIZE, a power of two that is at most a tile."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    there_Q = row_Q < n_queries
    first_Q = tl.load(first + sequence * range_stride + row_Q, mask=there_Q, other=0)
    last_Q = tl.load(last + sequence * range_stride + row_Q, mask=there_Q, other=0)
    peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
    inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=there_Q, other=0.0)
    query_QD = _load_rows(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
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
            key_DK = _load_transposed(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
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
