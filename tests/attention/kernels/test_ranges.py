"""Masks as ranges: what they allow, according to the oracle, where they say all of it; never less."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import masks, moving_masks, some_masks

import regard
from regard.attention import mask_cache
from regard.attention.mask_cache import is_band
from regard.attention.problem import build_problem
from regard.reference import attention as oracle


def stated(n_queries, n_keys, mask, leading=(2, 3)):
    query, key = (torch.zeros(*leading, n, 1) for n in (n_queries, n_keys))
    return build_problem(query, key, key, score="dot", normalize="relu", mask=mask, bias=None, dropout=0.0)


def opened(limits, n_keys):
    """The matrix of ranges."""
    column = torch.arange(n_keys)
    return ((column >= limits.low.unsqueeze(-1)) & (column < limits.high.unsqueeze(-1))).numpy()


@given(st.data(), st.integers(0, 6), st.integers(0, 6))
@settings(suppress_health_check=list(HealthCheck))
def test_ranges_are_the_mask_where_they_say_all_of_it_and_hold_it_where_not(data, n_queries, n_keys):
    kind = data.draw(st.sampled_from((some_masks, moving_masks, masks)))
    known = data.draw(kind((2, 3), n_queries, n_keys))
    problem = stated(n_queries, n_keys, known.mask)
    limits = mask_cache.key_ranges(problem)
    assert limits.low.dtype == limits.high.dtype == torch.int32
    shape = (2, 3, n_queries, n_keys)
    got, want = (np.broadcast_to(matrix, shape) for matrix in (opened(limits, n_keys), known.matrix))
    if is_band(problem.mask):
        assert np.array_equal(got, want)
        seen = limits.used_keys(n_keys).numpy()
        assert np.array_equal(np.broadcast_to(seen, (2, 3, n_keys)), want.any(-2))
    else:
        assert not (want & ~got).any()


@pytest.mark.parametrize(("mask", "matrix"), [
    (None, np.ones((6, 8), dtype=bool)),
    (regard.Causal(), oracle.causal(6, 8)),
    (regard.Window(2, 1), oracle.window(6, 8, 2, 1)),
    (regard.Window(None, 0), oracle.window(6, 8, None, 0)),
    (regard.Window(1, None), oracle.window(6, 8, 1, None)),
    (regard.Padding([3, 8]), oracle.padding([3, 8], 6, 8, "right")[:, None]),
    (regard.Padding([3, 0], side="left"), oracle.padding([3, 0], 6, 8, "left")[:, None]),
    (regard.Placed(1), oracle.placed(1, 6, 8)),
    (regard.Placed(1) & regard.Window(2, 0), oracle.placed_window(1, 6, 8, 2, 0) & oracle.placed(1, 6, 8)),
    (regard.Packed([2, 3], [4, 2]), oracle.packed([2, 3], [4, 2], 6, 8)),
    (regard.Packed([2, 3], [4, 2]) & regard.Causal(), oracle.packed_causal([2, 3], [4, 2], 6, 8)),
    (regard.Causal() & regard.Padding([3, 8]),
     oracle.causal(6, 8) & oracle.padding([3, 8], 6, 8, "right")[:, None]),
], ids=str)
def test_each_kind_of_mask(mask, matrix):
    limits = mask_cache.key_ranges(stated(6, 8, mask))
    assert np.array_equal(np.broadcast_to(opened(limits, 8), (2, 3, 6, 8)), np.broadcast_to(matrix, (2, 3, 6, 8)))
    assert np.array_equal(np.broadcast_to(limits.used_keys(8).numpy(), (2, 3, 8)),
                          np.broadcast_to(matrix.any(-2), (2, 3, 8)))


def test_which_masks_are_ranges():
    size = (4, 5)
    for mask in (None, regard.Causal(), regard.Window(2, 1), regard.Padding([3, 4]), regard.Packed([2, 2], [3, 1]),
                 regard.Placed(1) & regard.Causal(), regard.Causal() & regard.Padding([5, 0], side="left")):
        assert is_band(stated(*size, mask).mask)
    for mask in (torch.ones(size, dtype=torch.bool), ~regard.Causal(), regard.Causal() | regard.Padding([3, 4]),
                 regard.Causal() & torch.ones(size, dtype=torch.bool)):
        assert not is_band(stated(*size, mask).mask)


def test_empty_ranges_stand_outside():
    limits = mask_cache.key_ranges(stated(4, 2, regard.Causal()))  # the first two queries stand before the first key
    assert limits.low.tolist() == [2, 2, 0, 0]
    assert limits.high.tolist() == [0, 0, 1, 2]
