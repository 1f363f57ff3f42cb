"""Bands: runs of keys that say what the masks say, both ends of which never fall."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import normal

import regard
from regard import Causal, Packed, Padding, Window
from regard.attention.mask import Placed
from regard.attention.mask_cache import Band, CachedPacked, band_in_segments, band_of, is_band

LENGTHS = st.lists(st.integers(0, 4), max_size=4)


def made(mask, n_queries, n_keys, leading=2):
    ready = None if mask is None else mask.prepare(n_queries, n_keys, torch.device("cpu"))
    return ready, band_of(ready, n_queries, n_keys, leading=leading, device=torch.device("cpu"))


def assert_same(mask, n_queries, n_keys):
    ready, band = made(mask, n_queries, n_keys)
    matrix = torch.ones(1, 1, n_queries, n_keys).bool() if ready is None else ready.matrix(n_queries, n_keys, leading=2)
    found = band.matrix(n_queries, n_keys, leading=2)
    shape = torch.broadcast_shapes(found.shape, matrix.shape)
    assert torch.equal(found.expand(shape), matrix.expand(shape))
    for ends in (band.first, band.last):
        assert (ends.diff(dim=-1) >= 0).all()
    start, stop = (ends.unsqueeze(-2) for ends in band.queries(n_keys))
    index = torch.arange(n_queries).unsqueeze(-1)
    inside = (index >= start) & (index < stop)
    assert torch.equal(inside.expand(found.shape), found)


@pytest.mark.parametrize("mask", [None, Causal(), Window(1, 2), Window(None, 0), Window(2, None), Placed([1, 0]),
                                  Padding([3, 0]), Padding([2, 4], side="left"),
                                  Causal() & Padding([2, 4], side="left"), Causal() & Placed([2, 0]),
                                  Causal() & Window(1, None) & Padding([5, 1])])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 5), (3, 6), (6, 5), (1, 5)])
def test_it_says_what_the_mask_says(mask, n_queries, n_keys):
    assert_same(mask, n_queries, n_keys)


@given(LENGTHS, st.data(), st.integers(0, 3), st.integers(0, 3), st.sampled_from([None, Causal(), Window(1, 1)]))
def test_of_packed_sequences_too(queries, data, behind, more, other):
    keys = data.draw(st.lists(st.integers(0, 4), min_size=len(queries), max_size=len(queries)))
    packed = Packed(queries, keys)
    mask = packed if other is None else other & packed
    assert_same(mask, sum(queries) + behind, sum(keys) + more)


def test_other_masks_are_none():
    for mask in (torch.ones(3, 3).bool(), Causal() | Window(1, 1), ~Causal()):
        ready, band = made(regard.attention.mask.as_mask(mask), 3, 3)
        assert band is None
        assert not is_band(ready)


def test_it_is_for_so_many_queries():
    with pytest.raises(ValueError, match="a Band of 3 queries, but is one of 2"):
        regard.attend(*(normal(3, 4) for _ in range(3)), mask=Band(torch.tensor([0, 1]), torch.tensor([1, 2])))


def test_one_pass_looks_a_band_up_once():
    present, device = CachedPacked(Packed([2, 3])), torch.device("cpu")
    first = present.under(Causal(), 5, 5, 2, device)
    assert present.under(Causal(), 5, 5, 2, device) is first
    assert torch.equal(first.matrix(5, 5), (Causal() & Packed([2, 3])).matrix(5, 5))
    other = present.under(None, 5, 5, 2, device)
    assert torch.equal(other.matrix(5, 5), Packed([2, 3]).matrix(5, 5))
    given_matrix = torch.ones(5, 5).bool()
    assert not isinstance(present.under(regard.attention.mask.as_mask(given_matrix), 5, 5, 2, device), Band)


def test_what_is_looked_up_once_is_of_these_sizes_alone():
    band = Band(torch.tensor([0, 1]), torch.tensor([2, 3]))
    assert [ends.shape[-1] for n_keys in (3, 5) for ends in band.queries(n_keys)] == [3, 3, 5, 5]
    present, device = CachedPacked(Packed([2, 3], [1, 4])), torch.device("cpu")
    present.under(None, 5, 5, 2, device)
    behind = present.under(None, 6, 5, 2, device)  # one that fills the row up
    assert torch.equal(behind.matrix(6, 5), Packed([2, 3], [1, 4]).matrix(6, 5))


@given(LENGTHS, st.data(), st.integers(0, 3), st.integers(0, 3), st.sampled_from(
    [None, Causal(), Window(1, 1), Window(0, None), Window(None, 2), Causal() & Window(2, None),
     Window(3, 0) & Causal()]))
def test_in_segments_it_is_known_without_a_search(queries, data, behind, more, other):
    keys = data.draw(st.lists(st.integers(0, 4), min_size=len(queries), max_size=len(queries)))
    packed, n_queries, n_keys = Packed(queries, keys), sum(queries) + behind, sum(keys) + more
    band = band_in_segments(packed, other, n_queries, n_keys, torch.device("cpu"))
    mask = packed if other is None else other & packed
    assert torch.equal(band.matrix(n_queries, n_keys), mask.matrix(n_queries, n_keys))
    assert (band.first <= band.last).all()
    for ends in (band.first, band.last):
        assert (ends.diff() >= 0).all()
    index = torch.arange(n_queries).unsqueeze(-1)
    start, stop = band.queries(n_keys)
    assert torch.equal((index >= start) & (index < stop), band.matrix(n_queries, n_keys))


def test_segments_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="add up to at most 4"):
        CachedPacked(Packed([2, 3])).under(Causal(), 4, 5, 2, torch.device("cpu"))
