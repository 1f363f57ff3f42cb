"""Candidates, the pool of hypotheses, and hypotheses themselves."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import beam_state
from regard.decoding.beam_state import Candidates, HypothesisPool, exact_topk, quick_topk
from regard.decoding.request import Hypothesis

INF = float("inf")
FEW = st.sampled_from([-INF, -3.0, -2.0, -1.0])  # so few values that most are equal to others


def first_of(row, count):
    """Places by value, then by place."""
    return sorted(range(len(row)), key=lambda place: (-row[place], place))[:count]


@given(values=st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(FEW, min_size=n, max_size=n), min_size=1)),
       count=st.integers(1, 6))
def test_the_highest_values_and_of_equal_ones_the_first(values, count):
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
    assert exact_topk(values, 4).indices.tolist() == [[0, 1, 2, 3], [30_000, 0, 1, 2]]
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


def test_dropped_candidates_come_last_with_a_total_of_minus_infinity():
    part = torch.arange(4).expand(2, 4)
    candidates = Candidates(-part.float(), part, part + 10, part - 10)
    kept = candidates.without(torch.tensor([[True, False, True, False], [True, True, True, False]]), 2)
    assert kept.totals.tolist() == [[-1, -3], [-3, -INF]]
    assert kept.parents.tolist()[0] == [1, 3]
    assert kept.tokens.tolist()[0] == [11, 13]
    assert kept.logs.tolist()[0] == [-9, -7]


def test_a_penalty_changes_the_order_and_nothing_else():
    totals, logs = torch.tensor([[-1.0, -2.0]]), torch.tensor([[[-3.0, -2.0, -9.0], [-9.0, -1.0, -4.0]]])
    candidates, _ = Candidates.of(totals, logs, 2, quick_topk, torch.tensor([[0.0, 5.0, 0.0]]))
    assert list(zip(candidates.parents.tolist()[0], candidates.tokens.tolist()[0], strict=True)) == [
        (0, 0), (1, 2), (0, 1), (1, 1)]
    assert candidates.totals.tolist() == [[-4, -6, -3, -3]]
    assert candidates.logs.tolist() == [[-3, -4, -2, -1]]


@pytest.mark.parametrize("handicap", [None, torch.tensor([[0.0, 0.5, 0.0, 0.0]])])
def test_a_wanted_token_is_a_candidate_once(handicap):
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
    assert torch.equal(found.indices[there], places[:, :6][there])
    first = quick_topk(values, 6)
    assert torch.equal(first.values, sorted_values[:, :6])
    last = sorted_values[:, 5]
    assert bool(first.ambiguous) == bool(((last == sorted_values[:, 6]) & (last > -torch.inf)).any())


@pytest.mark.parametrize("width", [64 * 28, 2000, 3001, 64 * 40 + 63])
@pytest.mark.parametrize("kind", ["numbers", "ties", "forbidden rows", "rest is highest", "not contiguous"])
@pytest.mark.parametrize("min_values", [0, 1 << 30], ids=["pieces", "topk"])
def test_a_search_by_pieces_finds_the_values_of_a_sort(width, kind, min_values, monkeypatch):
    monkeypatch.setattr(beam_state, "TOPK_MIN_VALUES", min_values)
    values = torch.randn(6, width)
    if kind == "ties":
        values = torch.randint(0, 5, (6, width)).float()
    if kind == "forbidden rows":
        values[1], values[4, 3:] = -torch.inf, -torch.inf  # a whole row, and all but three values of a row
    if kind == "rest is highest":
        values[:, -5:] += 100
    if kind == "not contiguous":
        values = torch.randn(width, 12).t()[::2]
    found, places = beam_state._sorted_topk(values, 7)
    sorted_values, order = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found, sorted_values[:, :7])
    assert torch.equal(values.gather(-1, places), found)
    assert all(len(set(row)) == 7 for row in places.tolist())
    if kind in ("numbers", "rest is highest", "not contiguous"):
        assert torch.equal(places, order[:, :7])


def logs_of_rows(kind, width):
    """Totals (4, 5) and log-probabilities (4, 5, width) of four rows with five hypotheses."""
    totals, logs = torch.randn(4, 5).double(), torch.randn(4, 5, width)
    if kind == "one hypothesis":
        totals[:, 1:] = -torch.inf
    if kind == "forbidden tokens":
        logs[0], logs[1, :, 9:] = -torch.inf, -torch.inf  # all tokens of a row, and all but nine of each hypothesis
    if kind == "rest is highest":
        logs[..., -5:] += 100
    if kind == "one piece has all":
        logs[:, 2, 64:80] += 100
    return totals, logs


@pytest.mark.parametrize("width", [64 * 12, 2000, 64 * 16 + 63])
@pytest.mark.parametrize("kind", ["numbers", "one hypothesis", "forbidden tokens", "rest is highest",
                                  "one piece has all"])
def test_the_best_of_a_row_are_the_first_of_the_best_of_each_hypothesis(width, kind, monkeypatch):
    monkeypatch.setattr(beam_state, "TOPK_MIN_VALUES", 0)
    totals, logs = logs_of_rows(kind, width)
    want, _ = Candidates.of(totals, logs, 6, exact_topk)
    found, ambiguous = Candidates.of_rows(totals, logs, 6)
    assert not ambiguous
    assert torch.equal(found.totals, want.totals[:, :6])
    there = found.totals > -torch.inf
    for name in ("parents", "tokens", "logs"):
        assert torch.equal(getattr(found, name)[there], getattr(want, name)[:, :6][there])
    for part in (found.parents, found.tokens):  # also where nothing is possible
        assert part.min() >= 0
    assert found.parents.max() < 5
    assert found.tokens.max() < width


def test_the_best_of_a_row_are_ambiguous_if_sums_are_equal(monkeypatch):
    monkeypatch.setattr(beam_state, "TOPK_MIN_VALUES", 0)
    totals, logs = torch.zeros(2, 2).double(), torch.randn(2, 2, 64 * 20)
    assert not Candidates.of_rows(totals, logs, 3)[1]
    logs[1, 0, 70], logs[1, 1, 900] = 50.0, 50.0
    assert Candidates.of_rows(totals, logs, 3)[1]
    assert not Candidates.of_rows(totals[:1], logs[:1], 3)[1]


def test_nan_comes_first_in_its_row_only(monkeypatch):
    monkeypatch.setattr(beam_state, "TOPK_MIN_VALUES", 0)
    totals, logs = torch.zeros(2, 5).double(), torch.randn(2, 5, 2000)
    logs[1, 3, 1999] = torch.nan
    found, _ = Candidates.of_rows(totals, logs, 6)
    assert found.totals[1, 0].isnan()
    assert not found.totals[0].isnan().any()


@pytest.mark.parametrize("shape", [(4, 5, 300), (4, 1, 63), (1, 5, 2000)])
def test_few_values_are_searched_hypothesis_by_hypothesis(shape):
    assert Candidates.of_rows(torch.zeros(shape[:2]).double(), torch.randn(shape), 10) is None


def offer(pool, how, *ones):
    """Offer one row hypotheses (score, ids)."""
    ids = torch.tensor([[ids for _, ids in ones]])
    logs = -ids.double() / 10
    scores = torch.tensor([[score for score, _ in ones]], dtype=torch.float64)
    return getattr(pool, how)(ids, logs, torch.tensor([ids.shape[-1]]), scores)


def empty(rows=1, places=2):
    return HypothesisPool.empty(rows, places, torch.zeros(1, dtype=torch.float64))


def test_an_empty_pool():
    pool = empty(rows=2)
    assert pool.hypotheses() == [[], []]
    assert pool.threshold.tolist() == [-INF, -INF]


def test_the_best_stay_and_the_threshold_is_the_worst_of_them():
    pool = offer(empty(), "add_finished", (-3.0, [1, 9]), (-INF, [2, 9]))
    assert pool.threshold.tolist() == [-INF], "one place is free"
    pool = offer(pool, "add_finished", (-1.0, [3, 4, 8]), (-2.0, [5, 6, 9]))
    assert pool.threshold.tolist() == [-2]
    assert pool.hypotheses() == [[Hypothesis([3, 4], [-0.3, -0.4, -0.8], -1.0, 8),
                                  Hypothesis([5, 6], [-0.5, -0.6, -0.9], -2.0, 9)]]


def test_of_equal_scores_the_first_that_came_stays():
    pool = offer(empty(), "add_finished", (-1.0, [1]), (-1.0, [2]), (-1.0, [3]))
    pool = offer(pool, "add_finished", (-1.0, [4]))
    assert [one.end for one in pool.hypotheses()[0]] == [1, 2]


def test_truncated_hypotheses_take_free_places_only():
    pool = offer(offer(empty(), "add_finished", (-9.0, [1, 2])), "add_truncated", (-1.0, [5]), (-0.5, [6]))
    assert pool.hypotheses() == [[Hypothesis([1], [-0.1, -0.2], -9.0, 2), Hypothesis([6], [-0.6], -0.5, None)]]
    assert pool.threshold.tolist() == [-INF], "what was cut gives way to what ends"
    full = offer(offer(empty(), "add_finished", (-9.0, [1, 2]), (-8.0, [3, 2])), "add_truncated", (-1.0, [5]))
    assert [one.cut for one in full.hypotheses()[0]] == [False, False]


def test_a_truncated_hypothesis_without_tokens():
    nothing = torch.zeros(1, 1, 0)
    pool = empty().add_truncated(nothing.long(), nothing, torch.tensor([0]), torch.zeros(1, 1).double())
    assert pool.hypotheses() == [[Hypothesis([], [], 0.0, None)]]


@pytest.mark.parametrize("how", ["add_finished", "add_truncated"])
def test_a_score_of_minus_infinity_is_not_taken(how):
    pool = offer(empty(), how, (-INF, [1]))
    assert pool.hypotheses() == [[]]


def test_rows_keep_to_themselves_and_can_be_picked():
    pool = empty(rows=3, places=1)
    ids = torch.tensor([[[1, 0]], [[2, 0]], [[3, 0]]])
    pool = pool.add_finished(ids, ids.double(), torch.tensor([2, 2, 2]),
                             torch.tensor([[-1.0], [-INF], [-3.0]]).double())
    picked = pool.select(torch.tensor([2, 1]))
    assert [[one.ids for one in row] for row in picked.hypotheses()] == [[[3]], []]


def test_a_hypothesis_without_an_end_is_truncated():
    assert Hypothesis([4], [-1.0], -1.0, None).cut
    assert not Hypothesis([4], [-1.0, -0.5], -1.5, 0).cut, "0 is an id like any other"


def test_weights_do_not_count_in_a_comparison():
    one, other = (Hypothesis([4], [-1.0], -1.0, None, torch.full((1, 1, 1, 2), value)) for value in (0.5, 0.25))
    assert one == other
    assert one != Hypothesis([5], [-1.0], -1.0, None)
