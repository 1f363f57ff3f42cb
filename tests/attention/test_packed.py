"""Packed sequences: segments one after another in one row, drawn as matrices, and equal to each segment on its own."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import cuts, held, normal

import regard
from regard import Causal, Packed, Window


def drawn(tensor):
    """A bool matrix as it is drawn in these tests."""
    return ["".join("1" if x else "0" for x in row) for row in tensor]


# mask, queries, keys, the matrix
DRAWN = [
    (Packed([2, 3]), 5, 5, ["11000", "11000", "00111", "00111", "00111"]),
    (Packed([1, 2]), 4, 5, ["10000", "01100", "01100", "00000"]),  # room behind neither sees nor is seen
    (Packed([2, 1], [1, 3]), 3, 4, ["1000", "1000", "0111"]),
    (Packed([2, 0, 1], [0, 2, 1]), 3, 3, ["000", "000", "001"]),  # a segment without keys, and one without queries
    (Packed([]), 2, 2, ["00", "00"]),
    (Packed([0, 0]), 1, 1, ["0"]),
    (Causal() & Packed([2, 3]), 5, 5, ["10000", "11000", "00100", "00110", "00111"]),
    (Packed([1, 3], [3, 2]) & Causal(), 4, 5, ["11100", "00000", "00010", "00011"]),  # aligned per segment
    (Causal() & Packed([1, 1]), 3, 3, ["100", "010", "000"]),
    (Window(1, 0) & Packed([3, 2]), 5, 5, ["10000", "11000", "01100", "00010", "00011"]),
    (Window(0, 1) & Packed([2, 2], [3, 2]), 4, 5, ["01100", "00100", "00011", "00001"]),
    (Window(1, None) & Causal() & Packed([3]), 3, 3, ["100", "110", "011"]),
    (Packed([2]) & torch.tensor([True, False, True]), 3, 3, ["100", "100", "000"]),
    (~Packed([1, 1]), 3, 3, ["011", "101", "111"]),
    (Packed([1]) | Causal(), 2, 2, ["10", "11"]),
    ((Causal() | Window(0, 1)) & Packed([1, 2]), 3, 3, ["100", "011", "011"]),
]


@pytest.mark.parametrize(("mask", "n_queries", "n_keys", "matrix"), DRAWN, ids=[repr(case[0]) for case in DRAWN])
def test_the_matrix_of_segments(mask, n_queries, n_keys, matrix):
    assert drawn(mask.matrix(n_queries, n_keys)) == matrix


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("inner", [None, Causal(), Window(1, 2)], ids=repr)
@given(st.data(), st.integers(0, 7), st.integers(0, 7), st.integers(1, 3))
@settings(suppress_health_check=list(HealthCheck))
def test_every_segment_is_as_if_it_were_alone(inner, backend, data, n_queries, n_keys, segments):
    queries, keys = data.draw(cuts(n_queries, segments)), data.draw(cuts(n_keys, segments))
    query, key, value = normal(2, n_queries, 3, seed=1), normal(2, n_keys, 3, seed=2), normal(2, n_keys, 2, seed=3)
    mask = Packed(queries, keys) if inner is None else inner & Packed(queries, keys)
    bias = regard.ALiBi([0.5, 0.1]).double()
    with held(30):
        packed = regard.attend(query, key, value, mask=mask, bias=bias, backend=backend)
    q = k = 0
    for nq, nk in zip(queries, keys, strict=True):
        own = (query[:, q:q + nq], key[:, k:k + nk], value[:, k:k + nk])
        alone = regard.attend(*own, mask=inner, bias=bias, backend="exact")
        torch.testing.assert_close(packed[:, q:q + nq], alone, rtol=1e-12, atol=1e-14)
        q, k = q + nq, k + nk
    assert (packed[:, q:] == 0).all()


def test_what_segments_say():
    assert repr(Packed([2, 3])) == "Packed([2, 3])"
    assert repr(Packed([2, 3], [1, 4])) == "Packed([2, 3], [1, 4])"
    assert repr(Packed([2]).prepare(2, 2, None)) == "Packed([2])"
    assert Packed([2]).sets_positions
    assert (Packed([2]) & Causal()).sets_positions
    assert not (~Packed([2])).sets_positions


def test_lengths_may_be_a_tensor():
    want = Packed([2, 1]).matrix(3, 3)
    for dtype in (torch.int32, torch.int64):
        assert torch.equal(Packed(torch.tensor([2, 1], dtype=dtype)).matrix(3, 3), want)


def test_segments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"`query_lengths` must be lengths that add up to at most 3,.*add up to 4"):
        Packed([2, 2]).matrix(3, 4)
    with pytest.raises(ValueError, match=r"`key_lengths` must be lengths that add up to at most 3,.*add up to 4"):
        Packed([2, 1], [2, 2]).matrix(3, 3)
