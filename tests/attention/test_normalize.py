"""Normalisers: each against the oracle row by row; what the weights sum to; what -inf does."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import NORMALIZERS, ORACLE_NORMALIZERS, Sparsemax, assert_close, normal, normalizer, softmax_one

from regard.attention import normalize as module
from regard.attention.normalize import Normalizer, as_normalizer

SCORE = st.floats(-30, 30).map(lambda x: 0.0 if abs(x) < 1e-6 else x)


@pytest.mark.parametrize("name", NORMALIZERS)
@given(st.lists(st.none() | SCORE, min_size=1, max_size=6))
@settings(suppress_health_check=list(HealthCheck))
def test_every_normaliser_is_the_oracles(name, row):
    """None is a key that may not be attended to: the normaliser sees -inf. At least one key is allowed."""
    row = [*row, 0.5]
    allowed = np.array([score is not None for score in row])
    scores = np.array([-np.inf if score is None else score for score in row])
    got = as_normalizer(normalizer(name))(torch.tensor(scores)[None])[0]
    # sparsemax loses the digits that its threshold, up to 30, has in front of weights of 1
    assert_close(got, ORACLE_NORMALIZERS[name](scores, allowed), tolerance=1e-12 if name != "sparsemax" else 1e-10)
    assert (got[~torch.tensor(allowed)] == 0).all()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_rows_are_normalised_one_by_one(name):
    function, scores = as_normalizer(normalizer(name)), normal(2, 3, 4, 5)
    whole = function(scores)
    for index in np.ndindex(2, 3, 4):
        assert_close(whole[index], function(scores[index][None])[0])


def test_what_weights_sum_to():
    scores = normal(6, 5)
    scores[0] = -1.0  # no score is positive
    for name, sums in (("softmax", 1.0), ("sparsemax", 1.0), ("relu_sum", 1.0)):
        total = as_normalizer(normalizer(name))(scores).sum(-1)
        assert (total[1:] - sums).abs().max() < 1e-12
    assert (as_normalizer("relu_sum")(scores)[0] == 0).all()


def test_relu_divides_by_the_keys_that_may_be_attended_to():
    scores = torch.tensor([[2.0, 4.0, -6.0, -torch.inf], [2.0, -torch.inf, -torch.inf, -torch.inf]])
    got = as_normalizer("relu")(scores)
    assert torch.allclose(got, torch.tensor([[2 / 3, 4 / 3, 0, 0], [2.0, 0, 0, 0]]))


def test_softmax_of_large_scores_does_not_overflow():
    got = as_normalizer("softmax")(torch.tensor([[1e4, 1e4, -1e4]]))
    assert torch.equal(got, torch.tensor([[0.5, 0.5, 0.0]]))


@pytest.mark.parametrize("name", ["softmax", "relu", "relu_sum", "sigmoid"])
def test_names_mean_themselves(name):
    function = as_normalizer(name)
    assert repr(function) == name
    assert function is module.NORMALIZERS[name]


def test_normalisers_of_ones_own():
    assert repr(as_normalizer(softmax_one)) == "softmax_one"
    own = Sparsemax()
    assert as_normalizer(own) is own
    with pytest.raises(TypeError):
        Normalizer()


@pytest.mark.parametrize(("wrong", "words"), [
    ("sofmax", r'`normalize` must be one of "softmax".*"sofmax".*Did you mean "softmax"\?'),
    ("relusum", r'Did you mean "relu_sum"\?'), (3, "`normalize` must be a name, a Normalizer or a function.*int"),
])
def test_what_is_no_normaliser(wrong, words):
    with pytest.raises(ValueError, match=words):
        as_normalizer(wrong)
