"""Sampling: filters, random numbers by seed, and samples that do not depend on their batch."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import Moving
from refusals import assert_named
from tiny import LANGUAGE, TRANSLATING, built
from writers import Table, drawn, keyed, logs_of

from regard.decoding import sampling
from regard.decoding.constraints import ForbiddenTokens
from regard.decoding.sampling import (
    FilteredTokens,
    SamplingFilters,
    greedy,
    row_seeds,
    sample,
    seed_tensor,
    splitmix64,
    uniform_numbers,
)
from regard.tokens import Tokens

INF = math.inf


def of(model, keys=(0,), **options):
    options = {"end": 0, "max_length": 5, "seed": 1} | options
    return sample(model, keyed(keys), prompts=[[1]] * len(keys), **options)


def test_tokens_come_as_often_as_the_model_says():
    function = drawn(4, seed=3)
    [got] = of(Table(function), num_samples=6000, max_length=2)
    counts = Counter((*one.ids, one.end) for one in got)
    for first in range(1, 4):
        log = logs_of(function, 0, (1,))[first]
        for second in range(4):
            share = math.exp(log + logs_of(function, 0, (1, first))[second])
            seen = sum(count for text, count in counts.items() if text[:2] == (first, second))
            assert abs(seen / 6000 - share) < 4 * math.sqrt(share * (1 - share) / 6000)


def test_scores_are_those_of_the_model_whatever_was_filtered():
    function = drawn(5, seed=2)
    for rows in of(Table(function), [0, 1], num_samples=8, temperature=2.0, top_k=3, min_p=0.01):
        for one in rows:
            text = [*one.ids, *([] if one.cut else [one.end])]
            assert len(one.log_probabilities) == len(text)
    for key, rows in enumerate(of(Table(function), [0, 1], num_samples=8, temperature=2.0, top_k=3)):
        for one in rows:
            text = [*one.ids, *([] if one.cut else [one.end])]
            want = [logs_of(function, key, (1, *text[:place]))[token] for place, token in enumerate(text)]
            assert one.log_probabilities == pytest.approx(want, rel=1e-12)
            assert one.score == pytest.approx(sum(want), rel=1e-12)


def test_the_same_seed_gives_the_same_and_another_gives_others():
    model = Table(drawn(6, seed=4))
    first = of(model, [0, 0, 1], num_samples=3, max_length=8)
    assert first == of(model, [0, 0, 1], num_samples=3, max_length=8)
    assert first != of(model, [0, 0, 1], num_samples=3, max_length=8, seed=2)
    assert first[0] != first[1], "rows with one source and one prompt are drawn apart"
    assert len({tuple(one.ids) for one in first[0]}) > 1, "and so are the samples of one"
    assert [row[:2] for row in first] == of(model, [0, 0, 1], num_samples=2, max_length=8)


def test_samples_do_not_depend_on_their_batch():
    model, keys, seeds = Moving(drawn(6, seed=4)), [5, 3, 8, 1, 0, 2, 9], row_seeds(11, range(7))
    together = of(model, keys, seed=11, num_samples=2, max_length=7)
    for row, key in enumerate(keys):
        assert of(model, [key], seed=[seeds[row]], num_samples=2, max_length=7) == [together[row]]
    for token_budget in (1, 20, 33):
        assert of(model, keys, seed=11, num_samples=2, max_length=7, token_budget=token_budget) == together


def test_a_prompt_is_read_once_for_all_its_samples():
    model = Table(drawn(5, seed=1))
    of(model, [0, 1], num_samples=4)
    assert [rows for rows, _ in model.batches][:2] == [2, 8]


def test_the_most_probable_token_alone_is_greedy_search():
    model, keys = Table(drawn(6, seed=7)), [0, 1, 2]
    want = greedy(model, keyed(keys), prompts=[[1]] * 3, end=0, max_length=5)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-9}):
        assert [one for [one] in of(model, keys, **options)] == want


@torch.no_grad()
@pytest.mark.parametrize("config", [TRANSLATING["attention"], TRANSLATING["seq2seq-attention"], LANGUAGE["rotary"]])
def test_models_of_every_kind(config):
    model, sources = built(config), [[1, 2, 3, 4], [5], [6, 1], [2, 2, 2]]
    prompts, options = [[1], [1, 3, 4], [2], [4, 4]], {"end": 0, "max_length": 6, "num_samples": 3, "temperature": 1.5}

    def memory_of(order):
        return model.encode(Tokens.of([sources[row] for row in order])) if hasattr(model, "encode") else None

    seeds = row_seeds(3, range(4))
    together = sample(model, memory_of(range(4)), prompts=prompts, seed=3, **options)
    for order in ([0], [3, 1], [2, 0, 3]):
        got = sample(model, memory_of(order), prompts=[prompts[row] for row in order],
                     seed=[seeds[row] for row in order], **options)
        assert [[one.ids for one in row] for row in got] == [[one.ids for one in together[row]] for row in order]


def test_constraints_hold_and_truncate_where_they_leave_no_token():
    [got] = of(Table(drawn(4, seed=1)), num_samples=50, constraints=[ForbiddenTokens([2])], min_length=1)
    assert all(one.ids and 2 not in one.ids for one in got)
    [got] = of(Table(lambda key, text: [-INF, 0.0, 0.0]), num_samples=3, constraints=[ForbiddenTokens([1, 2])], top_k=2)
    assert all((one.ids, one.cut) == ([], True) for one in got)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5},
                                     {"constraints": [ForbiddenTokens([0])]}], ids=lambda options: " ".join(options))
def test_a_model_without_numbers_is_named(options):
    def function(key, text):
        return [math.nan] * 3 if key == 7 and len(text) == 3 else [-9.0, 1.0, 0.0]

    with pytest.raises(ValueError, match=r"NaN.* row 1 after 2 tokens"):
        of(Table(function), [1, 7], num_samples=2, **options)


def test_the_last_of_a_sum_that_rounds():
    shares = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64)
    for chance, token in ((0.0, 0), (0.29, 0), (0.31, 1), (1 - 2 ** -53, 1), (1.0, 1)):
        got = sampling.sample_tokens(FilteredTokens(shares, None), torch.tensor([chance], dtype=torch.float64))
        assert got.tolist() == [token]
        got = sampling.sample_tokens(FilteredTokens(shares, torch.tensor([[9, 8, 7]])),
                                     torch.tensor([chance], dtype=torch.float64))
        assert got.tolist() == [9 - token]


@pytest.mark.parametrize(("options", "parts"), [
    ({"seed": [1]}, ["`seed`", "2 in all", "1 number"]), ({"seed": "ab"}, ["`seed`", "a str"]),
    ({"seed": -1}, ["`seed`", "-1"]), ({"seed": None}, ["`seed`", "NoneType"]),
    ({"num_samples": 0}, ["`num_samples`", "at least 1"]),
    ({"temperature": 0}, ["greedy"]), ({"token_budget": 0}, ["`token_budget`", "at least 1"]),
])
def test_what_is_refused(options, parts):
    assert_named(lambda: of(Table(drawn(3)), [0, 1], **options), parts)


def test_no_rows_at_all():
    assert sample(Table(drawn(3)), prompts=[], end=0, max_length=3, seed=0) == []


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


CPU, WORD = torch.device("cpu"), 1 << 64


def splitmix(state):
    """The word at a state, once more, with Python's numbers."""
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


def test_the_words_are_those_of_splitmix64():
    seeds = [0, 1, 2, 1234567, WORD // 2, WORD - 1, 0x9E3779B97F4A7C15]
    assert [word % WORD for word in splitmix64(seed_tensor(seeds, CPU)).tolist()] == [splitmix(seed) for seed in seeds]
    # Published with the algorithm: what a generator with the seed 1234567 gives first.
    assert splitmix(1234567) == 6457827717110365317


def test_random_numbers_follow_from_seed_sample_and_position():
    got = uniform_numbers(seed_tensor([7, 7, 7, 8], CPU), torch.tensor([0, 0, 1, 0]),
                          torch.tensor([0, 1, 0, 0])).tolist()
    assert len(set(got)) == 4
    word = splitmix((splitmix((splitmix(7) + 0) % WORD) + 1) % WORD)
    assert got[1] == (word >> 11) / 2 ** 53


def test_numbers_are_spread_evenly():
    count = 100_000
    got = uniform_numbers(torch.full((count,), 3), torch.arange(count) % 100, torch.arange(count) // 100)
    assert 0 <= got.min() < got.max() < 1
    shares = torch.histc(got, 10, 0, 1) / count
    torch.testing.assert_close(shares, torch.full((10,), 0.1, dtype=torch.float64), rtol=0, atol=0.005)
    assert abs(torch.corrcoef(torch.stack([got[:-1], got[1:]]))[0, 1]) < 0.015
    assert abs(torch.corrcoef(torch.stack([got[:-100], got[100:]]))[0, 1]) < 0.015


def test_every_row_has_a_seed_of_its_own_by_its_number():
    whole = row_seeds(5, range(100))
    assert len(set(whole)) == 100
    assert row_seeds(5, [7, 3]) == [whole[7], whole[3]]
    assert row_seeds(6, [7]) != [whole[7]]
    assert seed_tensor(whole, CPU).dtype == torch.long


@pytest.mark.parametrize("seed", [-1, 0.5, True, "1"])
def test_what_is_no_seed(seed):
    assert_named(lambda: row_seeds(seed, [0]), ["`seed`", "at least 0", repr(seed)])
    assert_named(lambda: seed_tensor([seed], CPU), ["`seed`", "at least 0", repr(seed)])
