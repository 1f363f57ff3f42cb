"""`exact` takes everything, holds the whole matrix, and gives way to `tiled` where that is large."""

import torch
from problems import assert_close, normal, scorer

import regard
from regard.attention.backends import EXACT, EXACT_MAX_NUMBERS, exact_weights
from regard.attention.problem import build_problem
from regard.reference import attention as oracle


def stated(n_queries, n_keys, width, score="dot", leading=()):
    query, key = (torch.empty(1, 1).expand(*leading, n, width) for n in (n_queries, n_keys))
    return build_problem(query, key, key, score=score, normalize="softmax", mask=None, bias=None, dropout=0.0)


def test_it_holds_at_most_so_many_numbers():
    side = int(EXACT_MAX_NUMBERS**0.5)
    assert EXACT.drawback(stated(side, side, 64)) is None
    assert f"{(side + 2) * side:,}" in EXACT.drawback(stated(side + 2, side, 64))
    assert EXACT.drawback(stated(side // 2, side // 2, 64, leading=(2, 2))) is None
    assert EXACT.drawback(stated(side // 2, side // 2, 64, leading=(2, 3))) is not None
    # An additive score holds a vector for every pair.
    additive = regard.Additive(torch.zeros(64))
    assert EXACT.drawback(stated(side // 8, side // 8, 64, score=additive)) is None
    assert EXACT.drawback(stated(side // 4, side // 4, 64, score=additive)) is not None


def test_it_refuses_nothing_and_says_what_it_does():
    problem = stated(3, 5, 4, score=scorer("module", None, 4)[0])
    assert EXACT.refusal(problem) is None
    assert "3 × 5" in EXACT.detail(problem)


def test_output_and_weights_are_the_oracles():
    query, key, value = normal(2, 4, 3, 5), normal(2, 2, 6, 5, seed=1), normal(2, 2, 6, 2, seed=2)
    problem = build_problem(query, key, value, score="scaled_dot", normalize="relu_sum", mask=regard.Causal(), bias=None,
                    dropout=0.0)
    known = {"normalize": oracle.relu_sum, "mask": oracle.causal(3, 6)}
    assert_close(EXACT.run(problem), oracle.attend_many(query, key, value, **known))
    assert_close(exact_weights(problem), oracle.weights_many(query, key, **known))
