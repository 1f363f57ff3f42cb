"""Sampling: as often as the model says, the same by seed, and the same in every batch."""

import math
from collections import Counter

import pytest
import torch
from queued import Moving
from refusals import assert_named
from tiny import LANGUAGE, TRANSLATING, built
from writers import Table, drawn, keyed, logs_of

from regard.decoding import sampling
from regard.decoding.constraints import ForbiddenTokens
from regard.decoding.sampling import FilteredTokens, greedy, row_seeds, sample
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


def test_what_is_drawn_does_not_depend_on_the_batch():
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


def test_rules_hold_and_where_they_leave_nothing_a_row_is_cut():
    [got] = of(Table(drawn(4, seed=1)), num_samples=50, constraints=[ForbiddenTokens([2])], min_length=1)
    assert all(one.ids and 2 not in one.ids for one in got)
    [got] = of(Table(lambda key, text: [-INF, 0.0, 0.0]), num_samples=3, constraints=[ForbiddenTokens([1, 2])], top_k=2)
    assert all((one.ids, one.cut) == ([], True) for one in got)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_a_model_without_numbers_is_named(options):
    def function(key, text):
        return [math.nan] * 3 if key == 7 and len(text) == 3 else [-9.0, 1.0, 0.0]

    with pytest.raises(ValueError, match=r"`model` must be one whose logits are numbers.*row 1 after 2 tokens"):
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
    ({"seed": [1]}, ["`seed`", "each of the 2 prompts", "1 of them"]), ({"seed": "ab"}, ["`seed`", "a str"]),
    ({"seed": -1}, ["`seed`", "-1"]), ({"seed": None}, ["`seed`", "NoneType"]),
    ({"num_samples": 0}, ["`num_samples`", "at least 1"]),
    ({"temperature": 0}, ["greedy"]), ({"token_budget": 0}, ["`token_budget`", "at least 1"]),
])
def test_what_is_refused(options, parts):
    assert_named(lambda: of(Table(drawn(3)), [0, 1], **options), parts)


def test_no_rows_at_all():
    assert sample(Table(drawn(3)), prompts=[], end=0, max_length=3, seed=0) == []
