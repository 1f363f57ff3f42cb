"""Statistics of attention weights in Triton: passes over the tiles of Q·Kᵀ that never write a weight.

    entropy, row_max    one pass over every row, with an online softmax
    column_sums         a pass for the normalisers of rows, then one in which a program has a tile of keys
    top_k               a pass that finds the tiles with the largest scores, then one over those tiles
    block_sums          a pass for the normalisers of rows, then one that sums the weights of blocks of a map

A query attends to the keys from `first` to below `last`. Tiles outside of all ranges are skipped, and tiles inside of
all ranges are not masked. Scores are accumulated in float32 and taken to the base of 2: a weight is 2^(score · factor -
peak) · inverse, where peak and inverse belong to the row, and factor = scale · log₂ e > 0.

Every program owns what it writes and sums in a fixed order, so results are the same every time, bit for bit. It knows
neither problems nor masks.

Legend: Q rows of a tile, K keys of a tile, D width up to a power of two, M blocks of a map in a tile.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: N803
# (the arguments of kernels have the types of Triton; sizes that are known when they are compiled are in capitals)

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from regard.kernels import launch

NO_SCORE = tl.constexpr(-(1 << 63))
"""Below every packed score."""
INT32_MAX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head):
    """The tile and the sequence of a program, and the offsets of its queries and keys.

    Later tiles come first: under causal masks they have the most work.
    """
    program = tl.program_id(0)
    tile, sequence = tiles - 1 - program % tiles, (program // tiles).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    return tile, sequence, batch * query_batch + head * query_head, batch * key_batch + head // group * key_head


@triton.jit
def _load_rows(tensor, start, count, stride, inside_D, at_D, ROWS: tl.constexpr):
    """ROWS tokens from `start` on, (ROWS, D), with zeros after the last."""
    token = start + tl.arange(0, ROWS)
    valid = (token < count)[:, None] & inside_D[None, :]
    return tl.load(tensor + (token.to(tl.int64) * stride)[:, None] + at_D[None, :], mask=valid, other=0.0)


@triton.jit
def _load_transposed(tensor, start, count, stride, inside_D, at_D, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    """The same transposed, (D, ROWS). WHOLE: all tokens and all features are valid."""
    token = start + tl.arange(0, ROWS)
    where_DK = tensor + (token.to(tl.int64) * stride)[None, :] + at_D[:, None]
    if WHOLE:
        return tl.load(where_DK)
    return tl.load(where_DK, mask=(token < count)[None, :] & inside_D[:, None], other=0.0)


@triton.jit
def _load_ranges(first, last, offset, row_Q, valid_Q):
    """Where the ranges of keys begin and end; both are 0 for rows that are not valid."""
    return tl.load(first + offset + row_Q, mask=valid_Q, other=0), tl.load(last + offset + row_Q, mask=valid_Q, other=0)


@triton.jit
def _key_tiles(first_Q, last_Q, KEYS: tl.constexpr):
    """The tiles of keys that the rows attend to: begin ≤ tile < end; from full to until no pair is masked."""
    nonempty_Q = first_Q < last_Q
    begin = tl.min(tl.where(nonempty_Q, first_Q, 0x7FFFFFFF), 0) // KEYS
    end = tl.cdiv(tl.max(last_Q, 0), KEYS)
    begin = tl.minimum(begin, end)
    full = tl.minimum(tl.maximum(tl.cdiv(tl.max(first_Q, 0), KEYS), begin), end)
    until = tl.minimum(tl.maximum(tl.min(last_Q, 0) // KEYS, full), end)
    return begin, full, until, end


@triton.jit
def _tiles_of_part(part: tl.constexpr, begin, full, until, end):
    """The tiles of each of the three parts of `_key_tiles`: lower ≤ tile < upper. Part 1 is not masked."""
    if part == 0:
        return begin, full
    elif part == 1:
        return full, until
    else:
        return until, end


@triton.jit
def _store_normalisers(peaks, inverses, out_Q, peak_Q, total_Q, factor, valid_Q):
    """Store peak and inverse of each row, and return the inverse; both are 0 for a row that attends to nothing."""
    empty_Q = total_Q == 0.0
    inverse_Q = tl.where(empty_Q, 0.0, 1.0 / tl.where(empty_Q, 1.0, total_Q))
    tl.store(peaks + out_Q, tl.where(empty_Q, 0.0, peak_Q * factor), mask=valid_Q)
    tl.store(inverses + out_Q, inverse_Q, mask=valid_Q)
    return inverse_Q


@triton.jit
def _pack_score(score, index):
    """A score and its index as one integer: higher scores are larger, and of equal scores the lower index."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # -0 becomes 0
    ordered = bits ^ ((bits >> 31) & INT32_MAX)
    number = (ordered.to(tl.int64) << 32) | (index ^ INT32_MAX).to(tl.int64)
    return tl.where(score == float("-inf"), NO_SCORE, number)


@triton.jit
def _unpack_score(number):
    """The score and the index of a packed integer; NO_SCORE gives no valid score."""
    ordered = (number >> 32).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & INT32_MAX)
    return bits.to(tl.float32, bitcast=True), (number & INT32_MAX).to(tl.int32) ^ INT32_MAX


@triton.jit
def _row_pass(query, key, first, last, peaks, inverses, entropies, argmaxes, n_queries, n_keys, tiles, heads, group,
              factor, query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
              WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STATISTIC: tl.constexpr,
              PRECISION: tl.constexpr):
    """The normaliser of every row, and its entropy or argmax: STATISTIC is "normaliser", "entropy" or "argmax"."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    valid_Q = row_Q < n_queries
    first_Q, last_Q = _load_ranges(first, last, sequence * range_stride, row_Q, valid_Q)
    query_QD = _load_rows(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
    peak_Q = tl.full([QUERIES], float("-inf"), tl.float32)
    total_Q = tl.zeros([QUERIES], tl.float32)
    moment_Q = tl.zeros([QUERIES], tl.float32)  # Σ e z, where e = 2^z and z = score - peak, for the entropy
    argmax_Q = tl.zeros([QUERIES], tl.int32)
    for part in tl.static_range(3):
        lower, upper = _tiles_of_part(part, begin, full, until, end)
        for t in range(lower, upper):
            key_DK = _load_transposed(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
                                      part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            column_K = t * KEYS + tl.arange(0, KEYS)
            if part != 1:
                allowed_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < last_Q[:, None])
                score_QK = tl.where(allowed_QK, score_QK, float("-inf"))
            highest_Q = tl.max(score_QK, 1)
            new_Q = tl.maximum(peak_Q, highest_Q)
            base_Q = new_Q * factor
            if part != 1:
                base_Q = tl.where(new_Q == float("-inf"), 0.0, base_Q)
            z_QK = score_QK * factor - base_Q[:, None]
            e_QK = tl.exp2(z_QK)
            shift_Q = peak_Q * factor - base_Q
            rescale_Q = tl.exp2(shift_Q)
            if STATISTIC == "entropy":
                if part != 1:
                    z_QK = tl.where(allowed_QK, z_QK, 0.0)  # 0 · -inf would be NaN
                moved_Q = tl.where(peak_Q == float("-inf"), 0.0, shift_Q) * total_Q
                moment_Q = (moment_Q + moved_Q) * rescale_Q + tl.sum(e_QK * z_QK, 1)
            if STATISTIC == "argmax":
                here_Q = tl.min(tl.where(score_QK == highest_Q[:, None], column_K[None, :], INT32_MAX), 1)
                argmax_Q = tl.where(highest_Q > peak_Q, here_Q, argmax_Q)
            total_Q = total_Q * rescale_Q + tl.sum(e_QK, 1)
            peak_Q = new_Q
    out_Q = sequence * n_queries + row_Q
    inverse_Q = _store_normalisers(peaks, inverses, out_Q, peak_Q, total_Q, factor, valid_Q)
    if STATISTIC == "entropy":
        entropy_Q = 0.6931471805599453 * (tl.log2(tl.where(total_Q == 0.0, 1.0, total_Q)) - moment_Q * inverse_Q)
        tl.store(entropies + out_Q, tl.where(entropy_Q < 0.0, 0.0, entropy_Q), mask=valid_Q)
    if STATISTIC == "argmax":
        tl.store(argmaxes + out_Q, argmax_Q, mask=valid_Q)


@triton.jit
def _leader_pass(query, key, first, last, peaks, inverses, lead, n_queries, n_keys, tiles, heads, group, factor,
                 query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
                 WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, COUNT: tl.constexpr,
                 PRECISION: tl.constexpr):
    """The COUNT tiles with the largest maximal scores, which hold the COUNT largest weights of a row."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    valid_Q = row_Q < n_queries
    first_Q, last_Q = _load_ranges(first, last, sequence * range_stride, row_Q, valid_Q)
    query_QD = _load_rows(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
    peak_Q = tl.full([QUERIES], float("-inf"), tl.float32)
    total_Q = tl.zeros([QUERIES], tl.float32)
    # A different NO_SCORE in every slot, because one slot is replaced at a time.
    slot_N = tl.arange(0, COUNT)
    lead_QN = tl.zeros([QUERIES, COUNT], tl.int64) + (slot_N.to(tl.int64) + NO_SCORE)[None, :]
    for part in tl.static_range(3):
        lower, upper = _tiles_of_part(part, begin, full, until, end)
        for t in range(lower, upper):
            key_DK = _load_transposed(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
                                      part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            if part != 1:
                column_K = t * KEYS + tl.arange(0, KEYS)
                allowed_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < last_Q[:, None])
                score_QK = tl.where(allowed_QK, score_QK, float("-inf"))
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
    out_Q = sequence * n_queries + row_Q
    _store_normalisers(peaks, inverses, out_Q, peak_Q, total_Q, factor, valid_Q)
    tl.store(lead + out_Q[:, None] * COUNT + slot_N[None, :], lead_QN, mask=valid_Q[:, None])


@triton.jit
def _top_k_pass(query, key, first, last, peaks, inverses, lead, values, positions, n_queries, n_keys, tiles, heads,
                group, factor, query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
                WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, COUNT: tl.constexpr, ASKED: tl.constexpr):
    """The ASKED largest weights of a row, largest first. Masked keys have weight 0 and come last, in order."""
    row, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    slot_N = tl.arange(0, COUNT)
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
        allowed_K = known & (column_K >= start) & (column_K < stop)
        at_K = column_K.to(tl.int64) * key_token
        key_KD = tl.load(key + at_key + at_K[:, None] + at_D[None, :], mask=allowed_K[:, None] & inside_D[None, :],
                         other=0.0)
        score_K = tl.sum(key_KD.to(tl.float32) * query_D[None, :], 1)
        number_K = _pack_score(tl.where(allowed_K, score_K, float("-inf")), column_K)
        found_NK = tl.where(slot_N[:, None] == n, number_K[None, :], found_NK)
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
def _column_pass(query, key, first, last, peaks, inverses, schedule, sums, n_queries, n_keys, tiles, heads, group,
                 factor, query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride,
                 schedule_stride, WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
                 PRECISION: tl.constexpr):
    """The sum of every column: a program has a tile of keys and goes through the queries; weights are (K, Q)."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * KEYS
    column_K = start + tl.arange(0, KEYS)
    key_KD = _load_rows(key + at_key, start, n_keys, key_token, inside_D, at_D, KEYS)
    schedule += sequence * schedule_stride + tile * 4
    sum_K = tl.zeros([KEYS], tl.float32)
    for part in tl.static_range(3):
        lower, upper = tl.load(schedule + part), tl.load(schedule + part + 1)
        for t in range(lower, upper):
            row_Q = t * QUERIES + tl.arange(0, QUERIES)
            valid_Q = row_Q < n_queries
            peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=valid_Q, other=0.0)
            inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=valid_Q, other=0.0)
            query_DQ = _load_transposed(query + at_query, t * QUERIES, n_queries, query_token, inside_D, at_D, QUERIES,
                                        False)
            score_KQ = tl.dot(key_KD, query_DQ, input_precision=PRECISION)
            weight_KQ = tl.exp2(score_KQ * factor - peak_Q[None, :]) * inverse_Q[None, :]
            if part != 1:
                first_Q, last_Q = _load_ranges(first, last, sequence * range_stride, row_Q, valid_Q)
                allowed_KQ = (column_K[:, None] >= first_Q[None, :]) & (column_K[:, None] < last_Q[None, :])
                weight_KQ = tl.where(allowed_KQ, weight_KQ, 0.0)
            sum_K += tl.sum(weight_KQ, 1)
    tl.store(sums + sequence * n_keys + column_K, sum_K, mask=column_K < n_keys)


@triton.jit
def _coarse_map_pass(query, key, first, last, peaks, inverses, sums, n_queries, n_keys, tiles, heads, group, factor,
                     query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride, size, down,
                     across, pieces, WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
                     EVEN: tl.constexpr, PRECISION: tl.constexpr):
    """Sums of blocks larger than a tile, (sequences, tiles, across): `pieces` tiles make the rows of a block.

    EVEN: blocks are whole tiles of keys.
    """
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile // pieces * size + tile % pieces * QUERIES
    stop = tl.minimum(n_queries, (tile // pieces + 1) * size)
    row_Q = start + tl.arange(0, QUERIES)
    valid_Q = row_Q < stop
    first_Q, last_Q = _load_ranges(first, last, sequence * range_stride, row_Q, valid_Q)
    peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=valid_Q, other=0.0)
    inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=valid_Q, other=0.0)
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
        lower, upper = _tiles_of_part(part, begin, full, until, end)
        for t in range(lower, upper):
            column, step = t // steps, t % steps
            left = column * size + step * KEYS
            key_DK = _load_transposed(key + at_key, left, n_keys, key_token, inside_D, at_D, KEYS,
                                      part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            e_QK = tl.exp2(score_QK * factor - peak_Q[:, None])
            if part != 1:
                column_K = left + tl.arange(0, KEYS)
                right_Q = tl.minimum(last_Q, (column + 1) * size)
                allowed_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < right_Q[:, None])
                e_QK = tl.where(allowed_QK, e_QK, 0.0)
            # The sum so far is stored at every step; the last step of a block stores the final one.
            block = tl.where(step == 0, 0.0, block) + tl.sum(tl.sum(e_QK, 1) * inverse_Q, 0)
            tl.store(sums + column, block)


@triton.jit
def _fine_map_pass(query, key, first, last, peaks, inverses, sums, n_queries, n_keys, tiles, heads, group, factor,
                   query_batch, query_head, query_token, key_batch, key_head, key_token, range_stride, down, across,
                   WIDTH: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
                   PRECISION: tl.constexpr):
    """Sums of blocks of SIZE, a power of two that is at most a tile, (sequences, down, across)."""
    tile, sequence, at_query, at_key = _locate_tile(tiles, heads, group, query_batch, query_head, key_batch, key_head)
    at_D = tl.arange(0, D)
    inside_D = at_D < WIDTH
    start = tile * QUERIES
    row_Q = start + tl.arange(0, QUERIES)
    valid_Q = row_Q < n_queries
    first_Q, last_Q = _load_ranges(first, last, sequence * range_stride, row_Q, valid_Q)
    peak_Q = tl.load(peaks + sequence * n_queries + row_Q, mask=valid_Q, other=0.0)
    inverse_Q = tl.load(inverses + sequence * n_queries + row_Q, mask=valid_Q, other=0.0)
    query_QD = _load_rows(query + at_query, start, n_queries, query_token, inside_D, at_D, QUERIES)
    begin, full, until, end = _key_tiles(first_Q, last_Q, KEYS)
    high: tl.constexpr = QUERIES // SIZE
    wide: tl.constexpr = KEYS // SIZE
    row_M = tile * high + tl.arange(0, high)
    for part in tl.static_range(3):
        lower, upper = _tiles_of_part(part, begin, full, until, end)
        for t in range(lower, upper):
            key_DK = _load_transposed(key + at_key, t * KEYS, n_keys, key_token, inside_D, at_D, KEYS,
                                      part == 1 and WIDTH == D)
            score_QK = tl.dot(query_QD, key_DK, input_precision=PRECISION)
            weight_QK = tl.exp2(score_QK * factor - peak_Q[:, None]) * inverse_Q[:, None]
            if part != 1:
                column_K = t * KEYS + tl.arange(0, KEYS)
                allowed_QK = (column_K[None, :] >= first_Q[:, None]) & (column_K[None, :] < last_Q[:, None])
                weight_QK = tl.where(allowed_QK, weight_QK, 0.0)
            sum_QM = tl.sum(tl.reshape(weight_QK, [QUERIES, wide, SIZE]), 2)
            sum_MM = tl.sum(tl.reshape(sum_QM, [high, SIZE, wide]), 1)
            column_M = t * wide + tl.arange(0, wide)
            at_MM = (sequence * down + row_M[:, None]) * across + column_M[None, :]
            tl.store(sums + at_MM, sum_MM, mask=(row_M[:, None] < down) & (column_M[None, :] < across))

class TileSizes(NamedTuple):
    """Queries and keys of a tile, how a program works on it, and how it multiplies float32 (Triton's
    `input_precision`).

    "tf32x3" makes three products of fewer digits from one, on the tensor cores; "ieee" uses none of these.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    precision: str = "tf32x3"


@dataclass(frozen=True)
class SoftmaxWeights:
    """What the weights are made of: softmax over low ≤ key < high of 2^(factor · query · key)."""

    query: Tensor
    """(B, H, Q, D), with the features of a token contiguous."""
    key: Tensor
    """(B, H or fewer, K, D), likewise."""
    low: Tensor
    """(..., Q) of all sequences, or (Q,) where all have the same ranges; int32. An empty range has low K and high 0."""
    high: Tensor
    factor: float

    @property
    def sequences(self) -> int:
        return self.query.shape[0] * self.query.shape[1]

    @property
    def n_queries(self) -> int:
        return self.query.shape[-2]

    @property
    def n_keys(self) -> int:
        return self.key.shape[-2]

    @property
    def own_ranges(self) -> bool:
        """Whether every sequence has ranges of its own."""
        return self.low.dim() > 1

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that every pass reads, in order."""
        return self.query, self.key, self.low, self.high

    def sizes(self, tiles: int) -> tuple[int | float, ...]:
        """The numbers that every pass takes, in order."""
        heads = self.query.shape[1]
        return (self.n_queries, self.n_keys, tiles, heads, heads // self.key.shape[1], self.factor,
                *self.query.stride()[:3], *self.key.stride()[:3], self.n_queries if self.own_ranges else 0)

    def constants(self) -> dict[str, Any]:
        """What the passes are compiled for."""
        width = self.query.shape[-1]
        return {"WIDTH": width, "D": max(16, 1 << (width - 1).bit_length())}

    def default_tiles(self) -> TileSizes:
        """The tiles for the width and the type, within the memory of a multiprocessor."""
        width = self.query.shape[-1]
        if self.query.dtype == torch.float32:
            return TileSizes(64, 64, 4, 2) if width <= 64 else TileSizes(64, 32, 4, 2 if width <= 128 else 1)
        # Several programs on a multiprocessor: while one waits for its product, another takes exponentials.
        if width <= 64:
            return TileSizes(128, 128, 4, 2)
        return TileSizes(128, 64, 4, 2) if width <= 128 else TileSizes(128, 64, 8, 2)


class _RowNormalisers(NamedTuple):
    """(S, Q) each: the peak of every row in powers of two, one over its sum, and the requested statistic."""

    peak: Tensor
    inverse: Tensor
    statistic: Tensor


def entropy(weights: SoftmaxWeights, tiles: TileSizes | None = None) -> Tensor:
    """-Σ w log w of every row, (S, Q)."""
    return _row_statistic(weights, tiles, "entropy").statistic


def row_max(weights: SoftmaxWeights, tiles: TileSizes | None = None) -> tuple[Tensor, Tensor]:
    """The largest weight of every row and the first key that has it, (S, Q) each."""
    rows = _row_statistic(weights, tiles, "argmax")
    return rows.inverse, rows.statistic.long()


def column_sums(weights: SoftmaxWeights, tiles: TileSizes | None = None) -> Tensor:
    """The sum of every column, (S, K)."""
    rows = _row_statistic(weights, tiles, "normaliser")
    chosen = tiles or weights.default_tiles()
    chosen = chosen._replace(queries=chosen.keys, keys=chosen.queries)  # the keys stay, and the queries go by
    schedule = tile_schedule(weights.low, weights.high, weights.n_keys, chosen.queries, chosen.keys)
    schedule = schedule.reshape(-1, *schedule.shape[-2:])
    sums_SK = torch.empty(weights.sequences, weights.n_keys, device=weights.query.device)
    count = -(-weights.n_keys // chosen.keys)
    launch.launch(_column_pass, (count * weights.sequences,), *weights.tensors(), rows.peak, rows.inverse, schedule,
                  sums_SK, *weights.sizes(count), schedule.stride(0) if weights.own_ranges else 0,
                  **weights.constants(), QUERIES=chosen.queries, KEYS=chosen.keys, **_launch_options(chosen))
    return sums_SK


def top_k(weights: SoftmaxWeights, count: int, tiles: TileSizes | None = None) -> tuple[Tensor, Tensor]:
    """The `count` largest weights of every row, largest first, and their keys, (S, Q, count) each."""
    chosen = tiles or weights.default_tiles()
    room = 1 << (count - 1).bit_length()
    peak, inverse = (torch.empty(weights.sequences, weights.n_queries, device=weights.query.device) for _ in range(2))
    lead = torch.empty(*peak.shape, room, dtype=torch.int64, device=peak.device)
    number = -(-weights.n_queries // chosen.queries)
    launch.launch(_leader_pass, (number * weights.sequences,), *weights.tensors(), peak, inverse, lead,
                  *weights.sizes(number), **weights.constants(), QUERIES=chosen.queries, KEYS=chosen.keys, COUNT=room,
                  **_launch_options(chosen))
    value = torch.empty(*peak.shape, count, device=peak.device)
    position = torch.empty(*peak.shape, count, dtype=torch.int64, device=peak.device)
    launch.launch(_top_k_pass, (weights.n_queries * weights.sequences,), *weights.tensors(), peak, inverse, lead,
                  value, position, *weights.sizes(weights.n_queries), **weights.constants(), KEYS=chosen.keys,
                  COUNT=room, ASKED=count, num_warps=4)
    return value, position


def block_sums(weights: SoftmaxWeights, size: int, tiles: TileSizes | None = None) -> Tensor:
    """The sum of every size × size block, (S, M queries, M keys)."""
    rows = _row_statistic(weights, tiles, "normaliser")
    chosen = tiles or weights.default_tiles()
    fine = size & (size - 1) == 0 and size <= min(chosen.queries, chosen.keys)
    return (_fine_block_sums if fine else _coarse_block_sums)(weights, rows, size, chosen)


def _row_statistic(weights: SoftmaxWeights, tiles: TileSizes | None, statistic: str) -> _RowNormalisers:
    """The normaliser of every row, and its "entropy" or the "argmax" of its scores where that is wanted."""
    chosen = tiles or weights.default_tiles()
    peak, inverse = (torch.empty(weights.sequences, weights.n_queries, device=weights.query.device) for _ in range(2))
    found = {"normaliser": peak, "entropy": torch.empty_like(peak), "argmax": torch.empty_like(peak, dtype=torch.int32)}
    count = -(-weights.n_queries // chosen.queries)
    launch.launch(_row_pass, (count * weights.sequences,), *weights.tensors(), peak, inverse, found["entropy"],
                  found["argmax"], *weights.sizes(count), **weights.constants(), QUERIES=chosen.queries,
                  KEYS=chosen.keys, STATISTIC=statistic, **_launch_options(chosen))
    return _RowNormalisers(peak, inverse, found[statistic])


def _coarse_block_sums(weights: SoftmaxWeights, rows: _RowNormalisers, size: int, tiles: TileSizes) -> Tensor:
    """The sums of blocks of any size, (S, M, M)."""
    down, across = (-(-n // size) for n in (weights.n_queries, weights.n_keys))
    pieces = -(-size // tiles.queries)
    count = down * pieces
    sums = torch.zeros(weights.sequences, count, across, device=weights.query.device)
    launch.launch(_coarse_map_pass, (count * weights.sequences,), *weights.tensors(), rows.peak, rows.inverse, sums,
                  *weights.sizes(count), size, down, across, pieces, **weights.constants(), QUERIES=tiles.queries,
                  KEYS=tiles.keys, EVEN=size % tiles.keys == 0, **_launch_options(tiles))
    return sums.unflatten(1, (down, pieces)).sum(2)


def _fine_block_sums(weights: SoftmaxWeights, rows: _RowNormalisers, size: int, tiles: TileSizes) -> Tensor:
    """The sums of blocks of a power of two that is at most a tile, (S, M, M)."""
    down, across = (-(-n // size) for n in (weights.n_queries, weights.n_keys))
    count = -(-weights.n_queries // tiles.queries)
    sums = torch.zeros(weights.sequences, down, across, device=weights.query.device)
    launch.launch(_fine_map_pass, (count * weights.sequences,), *weights.tensors(), rows.peak, rows.inverse, sums,
                  *weights.sizes(count), down, across, **weights.constants(), QUERIES=tiles.queries, KEYS=tiles.keys,
                  SIZE=size, **_launch_options(tiles))
    return sums


def _launch_options(tiles: TileSizes) -> dict[str, Any]:
    return {"PRECISION": tiles.precision, "num_warps": tiles.warps, "num_stages": tiles.stages}


def tile_schedule(low: Tensor, high: Tensor, n_keys: int, rows: int, columns: int) -> Tensor:
    """The tiles of `rows` queries that each tile of `columns` keys must visit: int32, (..., tiles of keys, 4).

    Only the tiles from the first number to the last attend to these keys; those from the second to the third attend to
    all of them with each of their queries, and need no mask.
    """
    spare = -low.shape[-1] % rows

    def tiles(bound: Tensor, filler: int) -> Tensor:
        return pad(bound, (0, spare), value=filler).unflatten(-1, (-1, rows))

    lowest, highest = tiles(low, n_keys).amin(-1), tiles(high, 0).amax(-1)
    highest_low, lowest_high = tiles(low, 0).amax(-1), tiles(high, n_keys).amin(-1)
    start = torch.arange(0, n_keys, columns, device=low.device, dtype=torch.int32).expand(*lowest.shape[:-1], -1)
    stop = (start + columns).clamp(max=n_keys).contiguous()
    start = start.contiguous()
    # Running maxima and minima are in order for any ranges.
    begin = torch.searchsorted(highest.cummax(-1).values, start, right=True)
    end = torch.searchsorted(_backward_minima(lowest), stop)
    full = torch.searchsorted(_backward_minima(lowest_high), stop)
    until = torch.searchsorted(highest_low.cummax(-1).values, start, right=True)
    end = torch.maximum(begin, end)
    full = torch.minimum(torch.maximum(full, begin), end)
    until = torch.minimum(torch.maximum(until, full), end)
    return torch.stack([begin, full, until, end], dim=-1).to(torch.int32)


def _backward_minima(numbers: Tensor) -> Tensor:
    """The minimum of each number and all that follow."""
    return numbers.flip(-1).cummin(-1).values.flip(-1).contiguous()
