"""Scores: each against the oracle pair by pair, on any block, and what they say of themselves to kernels."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import DOTS, SCORES, assert_close, nearness, normal, scorer
from torch import nn

import regard
from regard.attention import score as module
from regard.attention.score import Additive, Bilinear, as_score


def by_pairs(query, key, known):
    """The oracle's score of every pair, head by head."""
    query, key = query.detach().numpy(), key.detach().numpy()
    functions = known if isinstance(known, list) else [known] * len(query)
    return np.array([[[functions[h](q, k) for k in key[h]] for q in query[h]] for h in range(len(query))]).reshape(
        len(query), query.shape[1], key.shape[1])


@pytest.mark.parametrize("name", SCORES)
@given(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.integers(1, 4), st.integers(1, 4))
@settings(suppress_health_check=list(HealthCheck))
def test_every_score_is_the_oracles(name, heads, n_queries, n_keys, width, key_width):
    key_width = key_width if name.startswith("bilinear") else width
    given_score, known = scorer(name, heads, width, key_width)
    query, key = normal(heads, n_queries, width, seed=1), normal(heads, n_keys, key_width, seed=2)
    score = as_score(given_score)
    score.check(width, key_width, heads)
    assert_close(score(query, key), by_pairs(query, key, known), floor=1.0)


@pytest.mark.parametrize("name", SCORES)
def test_a_block_of_scores_is_cut_from_the_whole(name):
    score = as_score(scorer(name, 2, 3)[0])
    query, key = normal(4, 2, 6, 3, seed=1), normal(2, 7, 3, seed=2)
    whole = score(query, key)
    assert whole.shape == (4, 2, 6, 7)
    assert_close(score(query[..., 2:5, :], key[..., 1:6, :]), whole[..., 2:5, 1:6], floor=1.0)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_that_says_it_is_a_dot_product_is_that_one(name):
    score = as_score(scorer(name, 2, 3, 3)[0])
    query, key = normal(2, 5, 3, seed=1), normal(2, 6, 3, seed=2)
    answer = score.as_dot(query)
    assert (answer is not None) == (name in DOTS)
    if answer is not None:
        projected, scale = answer
        assert_close(scale * (projected @ key.mT), score(query, key), floor=1.0)


@pytest.mark.parametrize("name", SCORES)
def test_how_many_numbers_a_pair_takes(name):
    """Dot products hold the score alone; the others hold a vector for every pair, and kernels must know it."""
    assert as_score(scorer(name, 2, 3)[0]).numbers_per_pair(12) == (1 if name in DOTS else 12)


def test_scales():
    """D = 4: the root is 2."""
    query, key = torch.ones(1, 4), torch.ones(1, 4)
    got = [as_score(name)(query, key).item() for name in ("dot", "scaled_dot", "scaled_dot_d")]
    assert got == [4.0, 2.0, 1.0]


def test_the_additive_score_is_the_mlp_of_bahdanau_on_projections():
    from regard.reference import attention as oracle

    query, key, first, second = normal(3, 5), normal(4, 6, seed=1), normal(2, 5, seed=2), normal(2, 6, seed=3)
    weight, bias = normal(2, seed=4), normal(2, seed=5)
    want = [[oracle.mlp_score(q, k, first, second, weight, bias) for k in key.numpy()] for q in query.numpy()]
    assert_close(regard.Additive(weight, bias)(query @ first.T, key @ second.T), np.array(want))


class Odd(nn.Module):
    def forward(self, query, key):
        return nearness(query, key)


@pytest.mark.parametrize(("score", "words"), [
    ("dot", "dot"), ("scaled_dot", "scaled_dot"), ("scaled_dot_d", "scaled_dot_d"), (nearness, "nearness"),
    (Odd(), "Odd"), (regard.Additive(torch.zeros(3)), "Additive(weight (3,))"),
    (regard.Additive(torch.zeros(2, 3), torch.zeros(2, 3)), "Additive(weight (2, 3), bias)"),
    (regard.Bilinear(torch.zeros(3, 4)), "Bilinear(weight (3, 4))"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_a_score_says_what_it_is(score, words):
    assert repr(as_score(score)) == words


def test_a_score_of_ones_own_as_a_class():
    class Near(regard.Score):
        def __call__(self, query, key):
            return nearness(query, key)

    score = Near()
    assert as_score(score) is score
    query, key, value = normal(2, 4, 3), normal(2, 5, 3, seed=1), normal(2, 5, 2, seed=2)
    assert_close(regard.attend(query, key, value, score=score), regard.attend(query, key, value, score=nearness))


def test_every_name_is_in_the_table_and_means_itself():
    assert {name: repr(score) for name, score in module.SCORES.items()} == {n: n for n in module.SCORES}
    for name in module.NEED_PARAMETERS:
        with pytest.raises(ValueError, match=f'"{name}".*It has parameters: pass score=regard'):
            as_score(name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_of_another_precision_serve(dtype):
    query, key = torch.randn(2, 3, 4, dtype=dtype), torch.randn(2, 5, 4, dtype=dtype)
    for weight, make in ((torch.randn(4), Additive), (torch.randn(4, 4), Bilinear)):
        for other in (torch.float32, torch.float64):
            assert make(weight.to(other))(query, key).dtype == dtype
