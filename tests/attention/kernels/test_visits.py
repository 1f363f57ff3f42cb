"""Visits: the keys that a query sees are those that the oracle's matrix of the mask allows; no tile is missed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.attention.mask_cache import KeyRanges, is_band, key_ranges
from regard.attention.problem import build_problem
from regard.reference import attention as oracle

pytest.importorskip("triton")

from regard.kernels.statistics import tile_schedule  # noqa: E402


def problem_of(mask, n_queries, n_keys, leading=(2, 3)):
    query, key = torch.zeros(*leading, n_queries, 1), torch.zeros(*leading, n_keys, 1)
    return build_problem(query, key, key, score="dot", normalize="softmax", mask=mask, bias=None, dropout=0.0)


def written_out(found, n_keys):
    """The matrix of which these are the visits."""
    column = torch.arange(n_keys)
    return ((column >= found.low.unsqueeze(-1)) & (column < found.high.unsqueeze(-1))).numpy()


@st.composite
def masks(draw):
    """A conjunction of masks that are ranges, the sizes, and its matrix for two sequences, made of the oracle's."""
    n_queries, n_keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    size = (n_queries, n_keys)
    parts, matrix = [], np.ones((2, *size), dtype=bool)
    lengths = draw(st.lists(st.integers(0, n_keys), min_size=2, max_size=2))
    if draw(st.booleans()):
        side = draw(st.sampled_from(("left", "right")))
        parts.append(regard.Padding(lengths, side=side))
        matrix = matrix & oracle.padding(lengths, *size, side)
    left, right = (draw(st.none() | st.integers(0, 4)) for _ in range(2))
    if draw(st.booleans()):
        parts.append(regard.Window(left, right))
        matrix = matrix & oracle.window(*size, left, right)
    if draw(st.booleans()):
        parts.append(regard.Causal())
        matrix = matrix & oracle.causal(*size)
    mask = None
    for part in draw(st.permutations(parts)):
        mask = part if mask is None else mask & part
    return mask, n_queries, n_keys, matrix


@given(masks())
def test_ranges_are_the_mask(case):
    mask, n_queries, n_keys, matrix = case
    problem = problem_of(mask, n_queries, n_keys)
    assert is_band(problem.mask)
    found = key_ranges(problem)
    assert found.low.dtype == found.high.dtype == torch.int32
    got = written_out(found, n_keys)
    assert np.array_equal(np.broadcast_to(got, (2, 3, n_queries, n_keys)),
                          np.broadcast_to(matrix[:, None], (2, 3, n_queries, n_keys)))


@pytest.mark.parametrize(("mask", "matrix"), [
    (regard.Packed([2, 0, 3], [4, 1, 2]), oracle.packed([2, 0, 3], [4, 1, 2], 7, 9)),
    (regard.Packed([2, 0, 3], [4, 1, 2]) & regard.Causal(), oracle.packed_causal([2, 0, 3], [4, 1, 2], 7, 9)),
    (regard.Placed(2) & regard.Causal(), oracle.placed_causal(2, 7, 9) & oracle.placed(2, 7, 9)),
    (regard.Placed(1), oracle.placed(1, 7, 9)),
], ids=repr)
def test_masks_that_say_where_queries_stand(mask, matrix):
    got = written_out(key_ranges(problem_of(mask, 7, 9)), 9)
    assert np.array_equal(np.broadcast_to(got, (2, 3, 7, 9)), np.broadcast_to(matrix, (2, 3, 7, 9)))


def test_one_mask_for_all_sequences_is_kept_once():
    assert key_ranges(problem_of(regard.Causal(), 4, 5)).low.shape == (4,)
    assert key_ranges(problem_of(regard.Padding([3, 5]), 4, 5)).low.shape == (2, 1, 4)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 6), st.integers(1, 6), st.data())
def test_every_tile_that_sees_a_key_is_visited(n_queries, n_keys, rows, columns, data):
    """For any ranges, ordered or not; those in the middle see all keys of the tile."""
    bounds = st.tuples(st.integers(0, n_keys), st.integers(0, n_keys)).map(sorted).map(
        lambda pair: pair if pair[0] < pair[1] else (n_keys, 0))
    first, last = zip(*data.draw(st.lists(bounds, min_size=n_queries, max_size=n_queries)), strict=True)
    found = KeyRanges(*(torch.tensor(side, dtype=torch.int32) for side in (first, last)))
    visited = tile_schedule(*found, n_keys, rows, columns)
    seen = written_out(found, n_keys)
    tiles = -(-n_queries // rows)
    assert visited.shape == (-(-n_keys // columns), 4)
    for number, (begin, full, until, end) in enumerate(visited.tolist()):
        assert 0 <= begin <= full <= until <= end <= tiles
        for tile in range(tiles):
            block = seen[tile * rows:(tile + 1) * rows, number * columns:(number + 1) * columns]
            assert begin <= tile < end or not block.any()
            assert not full <= tile < until or block.all()


def test_causal_tiles_are_skipped_and_left_unmasked():
    found = key_ranges(problem_of(regard.Causal(), 64, 64))
    assert tile_schedule(*found, 64, 16, 16).tolist() == [[0, 1, 4, 4], [1, 2, 4, 4], [2, 3, 4, 4], [3, 4, 4, 4]]


@pytest.mark.parametrize("mask", [torch.ones(3, 4) > 0, ~regard.Causal(), regard.Causal() | regard.Window(1, 1),
                                  regard.Causal() & (torch.ones(3, 4) > 0)], ids=["tensor", "not", "or", "and"])
def test_other_masks_are_no_ranges(mask):
    assert not is_band(problem_of(mask, 3, 4).mask)
