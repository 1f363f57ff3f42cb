"""Rankings: the formulas, and that what they call attainable is never exceeded."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.decoding.scoring import (
    LengthPenalty,
    MeanLengthPenalty,
    NoLengthPenalty,
    PowerLengthPenalty,
    as_length_penalty,
)


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


@pytest.mark.parametrize(("penalty", "want"), [
    ("none", lambda n: -6.0), ("mean", lambda n: -6.0 / n), (0, lambda n: -6.0),
    (0.6, lambda n: -6.0 / ((5 + n) / 6) ** 0.6), (1.0, lambda n: -36.0 / (5 + n)),
])
def test_scores_are_those_of_the_formulas(penalty, want):
    ranking = as_length_penalty(penalty)
    for length in (1, 2, 7, 100):
        assert ranking.score(number(-6), number(length)).item() == pytest.approx(want(length), rel=1e-15)


def test_one_token_has_no_penalty_and_nothing_at_all_is_no_division_by_zero():
    for ranking in (NoLengthPenalty(), MeanLengthPenalty(), PowerLengthPenalty(0.7)):
        assert ranking.score(number(-2), number(1)).item() == -2
        assert ranking.score(number(0), number(0)).item() == 0
        assert ranking.score(number(-math.inf), number(3)).item() == -math.inf


@given(penalty=st.one_of(st.sampled_from(["none", "mean"]), st.floats(0, 3)), total=st.floats(-50, 0),
       length=st.integers(1, 30), more=st.integers(0, 30), further=st.integers(0, 30), lost=st.floats(0, 5))
def test_no_continuation_scores_higher_than_what_is_attainable(penalty, total, length, more, further, lost):
    ranking = as_length_penalty(penalty)
    reach = ranking.attainable(number(total), number(length), number(length + more + further))
    assert ranking.score(number(total - lost), number(length + more)) <= reach
    # It is no looser than need be: tokens that are certain, up to the longest, reach it.
    assert ranking.score(number(total), number(length + more + further)) == reach


def test_a_ranking_of_ones_own_is_taken_as_it_is():
    class Own(LengthPenalty):
        def score(self, total, length):
            return total

        def attainable(self, total, length, longest):
            return total

    own = Own()
    assert as_length_penalty(own) is own


@pytest.mark.parametrize(("penalty", "parts"), [
    ("maen", ["`length_penalty`", '"none"', "maen", 'Did you mean "mean"?']), (True, ["`length_penalty`", "bool"]),
    (None, ["`length_penalty`", "NoneType"]), (-0.5, ["`alpha`", "at least 0", "-0.5"]),
    (math.nan, ["`alpha`", "nan"]), (math.inf, ["`alpha`", "inf"]),
    (MeanLengthPenalty, ["`length_penalty`", "Make one of it"]),
])
def test_what_is_no_length_penalty(penalty, parts):
    assert_named(lambda: as_length_penalty(penalty), parts)
