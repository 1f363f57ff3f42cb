"""Masks as bool matrices, written out cell by cell: row i is a query, column j a key, True means *may attend*.

Unless a start is given, the last query stands on the last key ("aligned to the bottom right"): query i stands at the
key position i + n_keys - n_queries. These functions know nothing of scores or values.

torch's `is_causal` is aligned to the top left instead: with fewer queries than keys it gives another matrix.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .arrays import Bools, Ints


def distances(n_queries: int, n_keys: int, start: int | None = None) -> Ints:
    """d_ij = j - p_i, key position minus query position; p_i = start + i, or i + n_keys - n_queries without start."""
    if start is None:
        start = n_keys - n_queries
    matrix = np.zeros((n_queries, n_keys), dtype=np.int64)
    for i in range(n_queries):
        for j in range(n_keys):
            matrix[i, j] = j - (start + i)
    return matrix


def _where(matrix: Ints, may_attend: Callable[[int], bool]) -> Bools:
    """The mask that asks one question of every distance."""
    mask = np.zeros(matrix.shape, dtype=np.bool_)
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            mask[i, j] = may_attend(int(matrix[i, j]))
    return mask


def _inside(distance: int, left: int | None, right: int | None) -> bool:
    """-left <= distance <= right; None is no limit."""
    return (left is None or -left <= distance) and (right is None or distance <= right)


def causal(n_queries: int, n_keys: int) -> Bools:
    """j <= i + n_keys - n_queries. With more queries than keys the first queries may attend to nothing."""
    return _where(distances(n_queries, n_keys), lambda distance: distance <= 0)


def window(n_queries: int, n_keys: int, left: int | None, right: int | None) -> Bools:
    """-left <= d_ij <= right, d_ij = j - (i + n_keys - n_queries). None on a side is no limit on that side."""
    return _where(distances(n_queries, n_keys), lambda distance: _inside(distance, left, right))


def padding(lengths: Sequence[int], n_queries: int, n_keys: int, side: str) -> Bools:
    """Key j of sequence b is real: j < lengths[b] (padding on the right), j >= n_keys - lengths[b] (on the left).

    -> (B, n_queries, n_keys). Only keys are masked: a query that is padding itself still attends.
    """
    if side not in ("left", "right"):
        raise ValueError(f"`side` must be 'left' or 'right', but is {side!r} instead.")
    mask = np.zeros((len(lengths), n_queries, n_keys), dtype=np.bool_)
    for b, length in enumerate(lengths):
        for i in range(n_queries):
            for j in range(n_keys):
                mask[b, i, j] = j < length if side == "right" else j >= n_keys - length
    return mask


def _blocks(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int] | None,
    n_queries: int | None,
    n_keys: int | None,
    block: Callable[[int, int], Bools],
) -> Bools:
    """Puts block(n_queries, n_keys) of every segment on the diagonal; everything else may not attend."""
    if key_lengths is None:
        key_lengths = query_lengths
    if len(query_lengths) != len(key_lengths):
        raise ValueError(
            "`key_lengths` must have as many segments as `query_lengths`, "
            f"but has {len(key_lengths)} instead of {len(query_lengths)}."
        )
    n_queries = sum(query_lengths) if n_queries is None else n_queries
    n_keys = sum(key_lengths) if n_keys is None else n_keys
    if n_queries < sum(query_lengths) or n_keys < sum(key_lengths):
        raise ValueError(
            f"the segments need ({sum(query_lengths)}, {sum(key_lengths)}) positions, "
            f"but `n_queries`, `n_keys` are ({n_queries}, {n_keys}) instead."
        )
    mask = np.zeros((n_queries, n_keys), dtype=np.bool_)
    first_query = first_key = 0
    for queries, keys in zip(query_lengths, key_lengths, strict=True):
        mask[first_query : first_query + queries, first_key : first_key + keys] = block(queries, keys)
        first_query += queries
        first_key += keys
    return mask


def packed(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int] | None = None,
    n_queries: int | None = None,
    n_keys: int | None = None,
) -> Bools:
    """Several sequences laid end to end: a query sees the keys of its own segment. -> (sum of queries, sum of keys).

    Without key_lengths, keys are cut like queries. What lies beyond the sums (where n_queries or n_keys is larger)
    attends to nothing, and nothing attends to it.
    """
    return _blocks(query_lengths, key_lengths, n_queries, n_keys, lambda q, k: np.ones((q, k), dtype=np.bool_))


def packed_causal(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int] | None = None,
    n_queries: int | None = None,
    n_keys: int | None = None,
) -> Bools:
    """Packed, and causal inside every segment, aligned to the bottom right of that segment."""
    return _blocks(query_lengths, key_lengths, n_queries, n_keys, causal)


def packed_window(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int] | None,
    left: int | None,
    right: int | None,
    n_queries: int | None = None,
    n_keys: int | None = None,
) -> Bools:
    """Packed, and a window inside every segment, aligned to the bottom right of that segment."""
    return _blocks(query_lengths, key_lengths, n_queries, n_keys, lambda q, k: window(q, k, left, right))


def placed(start: int, n_queries: int, n_keys: int) -> Bools:
    """Query i stands at key position start + i of a cache; keys from start + n_queries on do not exist yet."""
    mask = np.zeros((n_queries, n_keys), dtype=np.bool_)
    for i in range(n_queries):
        for j in range(n_keys):
            mask[i, j] = j < start + n_queries
    return mask


def placed_causal(start: int, n_queries: int, n_keys: int) -> Bools:
    """Query i stands at key position start + i: j <= start + i."""
    return _where(distances(n_queries, n_keys, start), lambda distance: distance <= 0)


def placed_window(start: int, n_queries: int, n_keys: int, left: int | None, right: int | None) -> Bools:
    """Query i stands at key position start + i: -left <= j - (start + i) <= right, among the keys that exist."""
    inside = _where(distances(n_queries, n_keys, start), lambda distance: _inside(distance, left, right))
    return inside & placed(start, n_queries, n_keys)
