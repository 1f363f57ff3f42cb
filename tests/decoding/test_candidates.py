"""The best continuations, with an order among equals that no device changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.beam_state import Candidates, exact_topk, quick_topk

INF = float("inf")
FEW = st.sampled_from([-INF, -3.0, -2.0, -1.0])  # so few values that most are equal to others


def first_of(row, count):
    """Places by value, then by place."""
    return sorted(range(len(row)), key=lambda place: (-row[place], place))[:count]


@given(values=st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(FEW, min_size=n, max_size=n), min_size=1)),
       count=st.integers(1, 6))
def test_the_highest_and_the_lower_places_first(values, count):
    count = min(count, len(values[0]))
    tensor = torch.tensor(values)
    for find in (quick_topk, exact_topk):
        found, places, unsure = find(tensor, count)
        assert torch.equal(tensor.gather(-1, places), found)
        assert found.tolist() == [sorted(row, reverse=True)[:count] for row in values]
        assert found.shape[-1] == count
        for row, got, number in zip(values, places.tolist(), found.tolist(), strict=True):
            assert len(set(got)) == count
            if find is exact_topk or not unsure:  # what is forbidden needs no order
                finite = sum(value > -INF for value in number)
                assert got[:finite] == first_of(row, count)[:finite]
        assert find is quick_topk or not unsure


@pytest.mark.parametrize(("row", "unsure"), [
    ([-1, -2, -2, -3], True), ([-1, -2, -3, -3], False), ([-1, -1, -2, -2], False), ([-1, -INF, -INF, -INF], False),
])
def test_it_is_known_when_an_equal_one_was_left_out(row, unsure):
    assert bool(quick_topk(torch.tensor([[-1.0, -2, -3, -4], row]), 2).ambiguous) is unsure


def test_as_many_as_there_are_or_more():
    for find in (quick_topk, exact_topk):
        found, places, unsure = find(torch.tensor([[-2.0, -1, -2]]), 3)
        assert (found.tolist(), places.tolist(), bool(unsure)) == ([[-1, -2, -2]], [[1, 0, 2]], False)


def test_many_equals_in_a_wide_row():
    values = torch.zeros(2, 40_000)  # so wide that topk takes another way than for a few
    values[1, 30_000] = 1.0
    assert exact_topk(values, 4).places.tolist() == [[0, 1, 2, 3], [30_000, 0, 1, 2]]
    assert bool(quick_topk(values, 4).ambiguous)


def test_continuations_are_ordered_by_their_sum_then_by_hypothesis_then_by_token():
    totals = torch.tensor([[-1.0, -2.0], [-1.0, -INF]])
    logs = torch.tensor([[[-3.0, -2.0, -9.0], [-9.0, -1.0, -1.0]], [[-1.0, -2.0, -1.0], [0.0, -1.0, -2.0]]])
    candidates, unsure = Candidates.of(totals, logs, 2, quick_topk)
    assert not unsure
    assert candidates.totals.tolist() == [[-3, -3, -3, -4], [-2, -2, -INF, -INF]]
    assert candidates.parents.tolist()[0] == [0, 1, 1, 0]
    assert candidates.tokens.tolist()[0] == [1, 1, 2, 0]
    assert candidates.logs.tolist()[0] == [-2, -1, -1, -3]
    assert candidates.parents.tolist()[1][:2] == [0, 0]
    assert candidates.tokens.tolist()[1][:2] == [0, 2]
    assert candidates.first(1).tokens.tolist() == [[1], [0]]


def test_two_tokens_keep_their_order_where_the_sum_rounds_them_to_one():
    logs = torch.tensor([[[-2e-8, -1e-8]]])
    candidates, _ = Candidates.of(torch.tensor([[-1e3]]), logs, 2, quick_topk)
    assert candidates.totals[0, 0] == candidates.totals[0, 1]
    assert candidates.tokens.tolist() == [[1, 0]]


def test_what_is_dropped_goes_behind_and_has_no_total():
    part = torch.arange(4).expand(2, 4)
    candidates = Candidates(-part.float(), part, part + 10, part - 10)
    kept = candidates.without(torch.tensor([[True, False, True, False], [True, True, True, False]]), 2)
    assert kept.totals.tolist() == [[-1, -3], [-3, -INF]]
    assert kept.parents.tolist()[0] == [1, 3]
    assert kept.tokens.tolist()[0] == [11, 13]
    assert kept.logs.tolist()[0] == [-9, -7]


def test_a_handicap_changes_the_order_and_nothing_else():
    totals, logs = torch.tensor([[-1.0, -2.0]]), torch.tensor([[[-3.0, -2.0, -9.0], [-9.0, -1.0, -4.0]]])
    candidates, _ = Candidates.of(totals, logs, 2, quick_topk, torch.tensor([[0.0, 5.0, 0.0]]))
    assert list(zip(candidates.parents.tolist()[0], candidates.tokens.tolist()[0], strict=True)) == [
        (0, 0), (1, 2), (0, 1), (1, 1)]
    assert candidates.totals.tolist() == [[-4, -6, -3, -3]]
    assert candidates.logs.tolist() == [[-3, -4, -2, -1]]


@pytest.mark.parametrize("handicap", [None, torch.tensor([[0.0, 0.5, 0.0, 0.0]])])
def test_what_is_wanted_is_a_candidate_once(handicap):
    totals, logs = torch.tensor([[-1.0, -2.0]]), torch.tensor([[[-3.0, -2.0, -9.0, -8.0], [-9.0, -1.0, -4.0, -5.0]]])
    wanted = torch.tensor([[[1, 2, -1], [0, -1, -1]]])
    candidates, _ = Candidates.of(totals, logs, 2, quick_topk, handicap, wanted)
    parts = (part.tolist()[0] for part in (candidates.parents, candidates.tokens, candidates.totals))
    there = [one for one in zip(*parts, strict=True) if one[2] > -INF]
    assert sorted(there) == [(0, 0, -4), (0, 1, -3), (0, 2, -10), (1, 0, -11), (1, 1, -3), (1, 2, -6)]


@pytest.mark.parametrize("width", [4096, 5000, 128 * 33 + 1])
@pytest.mark.parametrize("kind", ["numbers", "few kinds of numbers", "mostly forbidden", "rising"])
def test_the_highest_of_wide_rows_are_those_of_a_sort(width, kind):
    values = torch.randn(3, width)
    if kind == "few kinds of numbers":
        values = torch.randint(0, 50, (3, width)).float()
    if kind == "mostly forbidden":
        values = values.masked_fill(torch.rand(3, width) < 0.9995, -torch.inf)
    if kind == "rising":
        values = values.sort().values  # all of the highest stand in the last piece, or behind it
    sorted_values, places = values.sort(dim=-1, descending=True, stable=True)
    found = exact_topk(values, 6)
    assert torch.equal(found.values, sorted_values[:, :6])
    there = found.values > -torch.inf
    assert torch.equal(found.places[there], places[:, :6][there])
    first = quick_topk(values, 6)
    assert torch.equal(first.values, sorted_values[:, :6])
    last = sorted_values[:, 5]
    assert bool(first.ambiguous) == bool(((last == sorted_values[:, 6]) & (last > -torch.inf)).any())
