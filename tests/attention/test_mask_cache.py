"""Masks as cached matrices, bands and ranges of keys: each is the mask it was made of."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import masks, moving_masks, normal, some_masks

import regard
from regard import Causal, Packed, Padding, Window
from regard.attention import fused, mask_cache
from regard.attention.mask import Placed
from regard.attention.mask_cache import (
    Band,
    CachedMask,
    CachedPacked,
    CachedPadding,
    band_in_segments,
    band_of,
    is_band,
)
from regard.attention.problem import build_problem
from regard.reference import attention as oracle

PADDED = torch.tensor([3, 0, 4])


def test_what_was_found_out_is_the_masks():
    allowed = regard.Padding(PADDED).matrix(1, 4, leading=2)
    mask = CachedMask(allowed)
    assert mask.tensor is allowed
    assert mask.blind.flatten().tolist() == [False, True, False]
    assert mask.opened[:, 0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert CachedMask(allowed, "any").blind is None
    assert CachedMask(allowed[::2]).blind is None  # all rows see something
    assert CachedMask(allowed[::2]).opened is not None
    assert mask.pick(torch.tensor([1, 1])).blind.flatten().tolist() == [True, True]


@pytest.mark.parametrize("backend", ["sdpa", "exact", "tiled"])
@pytest.mark.parametrize("bias", [None, regard.ALiBi.for_heads(2)], ids=["", "alibi"])
def test_attention_is_the_same(backend, bias):
    torch.manual_seed(1)
    query, key, value = (torch.randn(3, 2, n, 5, dtype=torch.double) for n in (2, 4, 4))
    mask = regard.Padding(PADDED)
    want = regard.attend(query, key, value, mask=mask, bias=bias, backend="exact")
    got = regard.attend(query, key, value, mask=CachedMask(mask.matrix(1, 4, leading=2)), bias=bias, backend=backend)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("own", [None, regard.Causal(), regard.Causal() & regard.Window(1, 1)], ids=str)
def test_a_pass_looks_up_each_mask_once(side, own):
    padding = regard.Padding(PADDED, side)
    shared = CachedPadding(padding)
    there = shared.present(4, torch.device("cpu"))
    assert torch.equal(there, padding.matrix(1, 4).squeeze(-2))
    assert shared.present(4, torch.device("cpu")) is there
    looked = shared.under(own, 4, torch.device("cpu"))
    both = padding if own is None else own & padding
    assert torch.equal(looked.tensor.expand(3, 1, 4, 4), both.matrix(4, 4, leading=2).expand(3, 1, 4, 4))
    assert looked.opened.expand(3, 1, 4, 4).any(-1).all()
    assert shared.under(own, 4, torch.device("cpu")) is looked
    other = shared.under(regard.Window(0, 2), 4, torch.device("cpu"))
    assert other is not looked


def test_equal_masks_are_looked_up_once_and_equal_names_are_not_equal_masks():
    shared, device = CachedPadding(regard.Padding(PADDED)), torch.device("cpu")
    first, second = (regard.Causal() & flags for flags in (torch.eye(4).bool(), torch.ones(4, 4).bool()))
    assert repr(first) == repr(second)
    assert not torch.equal(shared.under(first, 4, device).tensor, shared.under(second, 4, device).tensor)
    assert shared.under(first, 4, device) is shared.under(first, 4, device)
    assert shared.under(regard.Causal(), 4, device) is shared.under(regard.Causal(), 4, device)


def test_a_matrix_that_is_too_large_is_not_written_out(monkeypatch):
    assert fused.MAX_MATRIX_ENTRIES == mask_cache.MAX_MATRIX_ENTRIES
    monkeypatch.setattr(mask_cache, "MAX_MATRIX_ENTRIES", 3 * 4 * 4 - 1)
    shared, device = CachedPadding(regard.Padding(PADDED)), torch.device("cpu")
    assert repr(shared.under(regard.Causal(), 4, device)) == repr(regard.Causal() & regard.Padding(PADDED))
    alone = shared.under(None, 4, device)  # a row of keys for each sequence, however many queries there are
    assert alone.tensor.shape == (3, 1, 1, 4)
    assert not alone.is_matrix


LENGTHS = st.lists(st.integers(0, 4), max_size=4)


def band_made_of(mask, n_queries, n_keys, leading=2):
    ready = None if mask is None else mask.prepare(n_queries, n_keys, torch.device("cpu"))
    return ready, band_of(ready, n_queries, n_keys, leading=leading, device=torch.device("cpu"))


def assert_same(mask, n_queries, n_keys):
    ready, band = band_made_of(mask, n_queries, n_keys)
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
        ready, band = band_made_of(regard.attention.mask.as_mask(mask), 3, 3)
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


@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 3, 4), (3, 1), (1, 4), (0, 4), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("dim", [-1, -2])
def test_any_along_is_torchs_any(shape, dim):
    for likely in (0.0, 0.3, 1.0):
        flags = torch.rand(shape) < likely
        assert torch.equal(mask_cache.any_along(flags, dim), flags.any(dim, keepdim=True))


def test_any_along_takes_what_was_expanded_or_turned():
    flags = torch.rand(3, 1, 4) < 0.3
    for view in (flags.expand(3, 5, 4), flags.mT, flags.expand(3, 5, 4)[:, ::2, 1:]):
        for dim in (-1, -2):
            assert torch.equal(mask_cache.any_along(view, dim), view.any(dim, keepdim=True))


def tensors(filler, dtype=torch.float32):
    """Queries, keys and values of which the last key is unused and holds `filler`, and who may attend."""
    query, key, value = (torch.randn(2, n, 3, dtype=dtype) for n in (4, 5, 5))
    key[:, -1], value[:, -1] = filler, filler
    allowed = torch.ones(4, 5, dtype=torch.bool)
    allowed[:, -1] = False
    return query, key, value, allowed


@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf, 3e38])
def test_what_could_do_harm_is_hidden(filler):
    query, key, value, allowed = tensors(filler)
    query *= 100  # 3e38 is finite, and its product with the query is not
    _, *both = mask_cache.hide(query, key, value, allowed, bounded=True)
    for hidden, before in zip(both, (key, value), strict=True):
        assert torch.equal(hidden[:, -1], torch.zeros(2, 3))
        assert torch.equal(hidden[:, :-1], before[:, :-1])


def test_in_half_precision_smaller_numbers_do_harm():
    query, key, value, allowed = tensors(60000.0, torch.float16)
    assert (mask_cache.hide(query, key, value, allowed, bounded=True)[1][:, -1] == 0).all()


def test_a_score_that_norms_do_not_bound_is_always_guarded():
    """It may be undefined at 0: the first visible key takes the place of the hidden one."""
    query, key, value, allowed = tensors(7.0)
    _, hidden, weighed = mask_cache.hide(query, key, value, allowed, bounded=False)
    assert torch.equal(hidden[:, -1], key[:, 0])
    assert torch.equal(hidden[:, :-1], key[:, :-1])
    assert (weighed[:, -1] == 0).all()


def test_queries_that_see_nothing_are_hidden_too():
    query, key, value, allowed = tensors(0.0)
    allowed[1] = False
    query[:, 1] = math.nan
    hidden, *_ = mask_cache.hide(query, key, value, allowed, bounded=True)
    assert (hidden[:, 1] == 0).all()
    assert torch.equal(hidden[:, [0, 2, 3]], query[:, [0, 2, 3]])


def test_what_can_do_no_harm_is_left_where_it_is():
    query, key, value, allowed = tensors(7.0)
    assert mask_cache.hide(query, key, value, allowed, bounded=True) == (query, key, value)
    allowed[0, -1] = True
    query, key, value, _ = tensors(math.nan)
    assert mask_cache.hide(query, key, value, allowed, bounded=True) == (query, key, value)  # it is used


def test_while_compiling_nothing_is_looked_at():
    query, key, value, allowed = tensors(math.nan)
    compiled = torch.compile(mask_cache.hide, backend="eager", fullgraph=True)
    for hidden in compiled(query, key, value, allowed, bounded=True):
        assert torch.isfinite(hidden).all()


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
