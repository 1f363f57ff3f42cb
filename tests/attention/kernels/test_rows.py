"""Rows of weights: any rows against any run of keys are cut from the whole, as the oracle has it."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import assert_close, cases, normal

import regard
from regard.attention import backends
from regard.attention.problem import build_problem


def stated(case):
    return build_problem(*case.tensors, **case.options, dropout=0.0).repeat_key_heads()


@given(st.data(), cases(most=6))
@settings(suppress_health_check=list(HealthCheck))
def test_some_rows_are_cut_from_all_rows(data, case):
    problem, whole = stated(case), case.weights()
    n_queries, n_keys = problem.n_queries, problem.n_keys
    first = data.draw(st.integers(0, n_queries))
    last = data.draw(st.integers(first, n_queries))
    weights, value = backends.weigh(problem, slice(first, last), slice(0, n_keys))
    want, floor = whole[..., first:last, :], float(np.abs(whole).max(initial=0))
    assert_close(weights.expand(want.shape), want, floor=floor)
    assert value.shape[-2] == n_keys
    numbers = data.draw(st.lists(st.integers(0, n_queries - 1), max_size=4)) if n_queries else []
    some = torch.tensor(numbers, dtype=torch.long)
    weights, _ = backends.weigh(problem, some, slice(0, n_keys))
    want = whole[..., some.numpy(), :]
    assert_close(weights.expand(want.shape), want, floor=floor)


def test_queries_may_be_cut_out_by_the_caller():
    query, key = normal(2, 5, 3), normal(2, 6, 3, seed=1)
    problem = build_problem(query, key, key, score="dot", normalize="softmax", mask=regard.Causal(), bias=None, dropout=0.0)
    asked, given_query = slice(1, 3), query[:, 1:3]
    cut, _ = backends.weigh(problem, asked, slice(0, 6))
    assert torch.equal(cut, backends.weigh(problem, asked, slice(0, 6), given_query)[0])
    other, _ = backends.weigh(problem, asked, slice(0, 6), torch.zeros_like(given_query))
    assert not torch.equal(cut, other)


def test_a_run_of_keys_that_holds_all_that_may_be_seen_is_enough():
    query, key = normal(2, 6, 3), normal(2, 6, 3, seed=1)
    for normalize in ("softmax", "relu", "relu_sum", "sigmoid"):
        problem = build_problem(query, key, key, score="dot", normalize=normalize, mask=regard.Window(1, 0), bias=None,
                        dropout=0.0)
        whole, _ = backends.weigh(problem, slice(2, 4), slice(0, 6))
        near, value = backends.weigh(problem, slice(2, 4), slice(1, 4))
        assert_close(near, whole[..., 1:4])
        assert_close(backends._attend_rows(problem, slice(2, 4), slice(1, 4)), near @ value)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_falls_on_weights(dropout):
    query = normal(40, 3)
    eye = torch.eye(40, dtype=torch.float64)
    problem = build_problem(query, query, eye, score="dot", normalize="softmax", mask=None, bias=None, dropout=dropout)
    output = backends._attend_rows(problem, slice(0, 40), slice(0, 40))
    assert (output == 0).double().mean().item() == pytest.approx(dropout, abs=0.1)
