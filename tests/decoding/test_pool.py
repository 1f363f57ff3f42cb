"""The pool of a row: who comes in, in which order, and what is read out of it."""

import pytest
import torch

from regard.decoding.beam_state import HypothesisPool
from regard.decoding.request import Hypothesis

INF = float("inf")


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


def test_the_best_stay_and_the_bar_is_the_worst_of_them():
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


def test_what_was_cut_only_fills_free_places_whatever_its_score():
    pool = offer(offer(empty(), "add_finished", (-9.0, [1, 2])), "add_truncated", (-1.0, [5]), (-0.5, [6]))
    assert pool.hypotheses() == [[Hypothesis([1], [-0.1, -0.2], -9.0, 2), Hypothesis([6], [-0.6], -0.5, None)]]
    assert pool.threshold.tolist() == [-INF], "what was cut gives way to what ends"
    full = offer(offer(empty(), "add_finished", (-9.0, [1, 2]), (-8.0, [3, 2])), "add_truncated", (-1.0, [5]))
    assert [one.cut for one in full.hypotheses()[0]] == [False, False]


def test_nothing_at_all_written_and_cut():
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
