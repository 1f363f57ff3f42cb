"""Places: which pairs a block holds, and where its queries stand; a block is always cut from the whole."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import masks

from regard import Causal, Placed
from regard.attention.mask import BlockIndices, as_mask


def test_rows_columns_and_positions():
    """3 queries, 5 keys: the last query stands at the last key."""
    whole = BlockIndices.of(3, 5, leading=0)
    assert whole.row.tolist() == [[0], [1], [2]]
    assert whole.column.tolist() == [0, 1, 2, 3, 4]
    assert whole.position.tolist() == [[2], [3], [4]]
    part = BlockIndices.of(3, 5, leading=0, rows=slice(1, 3), columns=slice(2, 4))
    assert (part.row.tolist(), part.column.tolist(), part.position.tolist()) == ([[1], [2]], [2, 3], [[3], [4]])
    some = BlockIndices.of(3, 5, leading=0, rows=torch.tensor([2, 0]))
    assert (some.row.tolist(), some.position.tolist()) == ([[2], [0]], [[4], [2]])
    more = BlockIndices.of(4, 1, leading=0)
    assert more.position.tolist() == [[-3], [-2], [-1], [0]]


@pytest.mark.parametrize(("shape", "leading", "expected"), [
    ((), 0, (1, 1)), ((), 2, (1, 1, 1, 1)), ((2,), 1, (2, 1, 1)), ((2,), 3, (2, 1, 1, 1, 1)),
    ((2, 3), 2, (2, 3, 1, 1)), ((2, 3), 3, (2, 3, 1, 1, 1)),
])
def test_numbers_of_sequences_are_aligned_from_the_left(shape, leading, expected):
    numbers = torch.arange(6)[: torch.Size(shape).numel()].view(shape)
    got = BlockIndices.of(3, 5, leading=leading).per_sequence(numbers)
    assert got.shape == expected
    assert got.flatten().tolist() == numbers.flatten().tolist()


def test_entries_of_a_matrix():
    matrix = torch.arange(15).view(3, 5)
    place = BlockIndices.of(3, 5, leading=0, rows=slice(1, 3), columns=slice(2, 4))
    assert place.select(matrix).tolist() == [[7, 8], [12, 13]]
    assert place.select(matrix[:1]).tolist() == [[2, 3]]  # one row stands for all
    assert place.select(matrix[:, :1]).tolist() == [[5], [10]]
    assert place.select(matrix[:1, :1]).tolist() == [[0]]
    rows = BlockIndices.of(3, 5, leading=0, rows=torch.tensor([2, 0, 2]))
    assert rows.select(matrix).tolist() == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


def test_standing_elsewhere_changes_the_position_alone():
    place = BlockIndices.of(2, 4, leading=0)
    moved = place.at(place.row + 7)
    assert moved.position.tolist() == [[7], [8]]
    assert moved.row is place.row
    assert place.position.tolist() == [[2], [3]]
    assert Placed(1).aligned(place).position.tolist() == [[1], [2]]
    assert Causal().aligned(place) is place


@given(st.data(), st.integers(1, 6), st.integers(1, 6))
@settings(suppress_health_check=list(HealthCheck))
def test_a_mask_of_a_block_is_cut_from_the_mask_of_all(data, n_queries, n_keys):
    mask = as_mask(data.draw(masks((2,), n_queries, n_keys)).mask).prepare(n_queries, n_keys, None)
    whole = BlockIndices.of(n_queries, n_keys, leading=1)
    matrix = mask.allowed(mask.aligned(whole)).expand(2, n_queries, n_keys)
    first, start = data.draw(st.integers(0, n_queries)), data.draw(st.integers(0, n_keys))
    last, stop = data.draw(st.integers(first, n_queries)), data.draw(st.integers(start, n_keys))
    rows = data.draw(st.sampled_from((slice(first, last), torch.arange(first, last).flip(0))))
    block = BlockIndices.of(n_queries, n_keys, leading=1, rows=rows, columns=slice(start, stop))
    got = mask.allowed(mask.aligned(block))
    want = matrix[:, rows, start:stop]
    assert torch.equal(got.expand(want.shape), want)
