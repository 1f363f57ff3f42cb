"""Filters: against a plain computation, one token after another."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.decoding.sampling import SamplingFilters

INF = math.inf
LOGS = st.lists(st.one_of(st.floats(-20, 0), st.sampled_from([-INF, -1.0, -2.0])), min_size=1, max_size=12).filter(
    lambda row: max(row) > -INF)


def plain(logs, temperature, top_k, top_p, min_p):
    """The probability of each token, by sorting and adding."""
    top = max(logs)
    heights = [(log - top) / temperature for log in logs]
    shares = [math.exp(height) for height in heights]
    order = sorted(range(len(logs)), key=lambda token: (-heights[token], token))
    if top_k is not None:
        order = order[:top_k]
    if top_p is not None:
        whole, nucleus, so_far = sum(shares[token] for token in order), [], 0.0
        for token in order:
            if so_far / whole >= top_p:
                break
            nucleus.append(token)
            so_far += shares[token]
        order = nucleus
    if min_p is not None:
        order = [token for token in order if shares[token] >= min_p * shares[order[0]]]
    whole = sum(shares[token] for token in order)
    return [shares[token] / whole if token in order else 0.0 for token in range(len(logs))]


def filtered(logs, **options):
    """The probability of each token, row after row."""
    logs = torch.tensor(logs, dtype=torch.float64)
    shares, tokens = SamplingFilters(**options)(logs)
    shares = shares / shares.sum(-1, keepdim=True)
    return shares if tokens is None else torch.zeros_like(logs).scatter(-1, tokens, shares)


@given(logs=LOGS, temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]), top_k=st.sampled_from([None, 1, 2, 5, 50]),
       top_p=st.sampled_from([None, 0.11, 0.53, 0.97, 1.0]), min_p=st.sampled_from([None, 0.013, 0.31]))
def test_all_filters_are_those_of_a_plain_computation(logs, temperature, top_k, top_p, min_p):
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    assert filtered([logs], **options)[0].tolist() == pytest.approx(plain(logs, **options), rel=1e-9, abs=1e-12)


def test_each_filter_on_its_own():
    logs = [[math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]]
    for options, want in (({}, [0.1, 0.4, 0.2, 0.3]), ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
                          ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7]), ({"top_p": 0.71}, [0, 4 / 9, 2 / 9, 3 / 9]),
                          ({"min_p": 0.51}, [0, 4 / 7, 0, 3 / 7]), ({"min_p": 0.49}, [0, 4 / 9, 2 / 9, 3 / 9]),
                          ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
                          # Top-p counts what top-k has left: 0.4 of 0.7 is more than half.
                          ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0])):
        assert filtered(logs, **options)[0].tolist() == pytest.approx(want, rel=1e-12), options


def test_of_equal_tokens_the_lowest():
    wide = torch.zeros(1, 40_000)
    assert filtered(wide.tolist(), top_k=2)[0].nonzero().flatten().tolist() == [0, 1]
    assert filtered([[0.0] * 10], top_p=0.25)[0].nonzero().flatten().tolist() == [0, 1, 2]


def test_a_temperature_so_low_that_numbers_end():
    assert filtered([[-900.0, -3.0, -4.0]], temperature=1e-300)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(("options", "parts"), [
    ({"temperature": 0}, ["`temperature`", "above 0", "is 0", "greedy"]), ({"temperature": 0.0}, ["greedy"]),
    ({"temperature": -1}, ["`temperature`", "-1"]), ({"temperature": math.nan}, ["`temperature`", "nan"]),
    ({"temperature": INF}, ["`temperature`", "inf"]), ({"temperature": True}, ["`temperature`", "True"]),
    ({"top_k": 0}, ["`top_k`", "at least 1", "is 0"]), ({"top_k": 1.5}, ["`top_k`", "1.5"]),
    ({"top_p": 0.0}, ["`top_p`", "above 0", "0.0"]), ({"top_p": 1.1}, ["`top_p`", "1.1"]),
    ({"min_p": -0.1}, ["`min_p`", "-0.1"]), ({"min_p": "a"}, ["`min_p`", "'a'"]),
])
def test_what_is_no_filter(options, parts):
    assert_named(lambda: SamplingFilters(**options), parts)
