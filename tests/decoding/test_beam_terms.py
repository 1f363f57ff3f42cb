"""Beam search with terms: they appear, in the best text that has them, and elsewhere nothing changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import Moving
from refusals import assert_named
from tiny import TRANSLATING, built
from writers import Table, drawn, every, keyed

from regard.decoding.beam import beam
from regard.decoding.constraints import ForbiddenTokens
from regard.tokens import Tokens

IDS = st.lists(st.integers(1, 3), min_size=1, max_size=2)
TERMS = st.lists(st.lists(IDS, min_size=1, max_size=2), max_size=2)


def appear(terms, text):
    return all(any(text[first:first + len(ids)] == ids for ids in term for first in range(len(text)))
               for term in terms)


@given(seed=st.integers(0, 1000), terms=TERMS, penalty=st.sampled_from(["none", "mean", 0.6]))
def test_over_everything_it_is_the_brute_force_of_what_has_the_terms(seed, terms, penalty):
    function, max_length = drawn(4, seed), 4
    if sum(min(map(len, term)) for term in terms) > max_length:
        return
    [got] = beam(Table(function), prompts=[[2]], end=0, max_length=max_length, beams=4 * 3 ** max_length, nbest=20,
                 terms=[terms],
                 length_penalty=penalty)
    want = [one for one in every(function, 0, (2,), [0], max_length, 0, penalty) if appear(terms, one[1])]
    found = [(one.score, one.ids, one.end) for one in got]
    # Terms that overlap fit where there is no room for one after another: such texts may be missing.
    if len({token for term in terms for ids in term for token in ids}) == sum(len(ids) for t in terms for ids in t):
        assert [one[1:] for one in found] == [one[1:] for one in want[:20]]
        assert [one[0] for one in found] == pytest.approx([one[0] for one in want[:20]], rel=1e-10)
    assert found
    assert all(appear(terms, one.ids) for one in got)


@given(seed=st.integers(0, 1000), terms=TERMS, beams=st.integers(1, 6), extra=st.integers(0, 4),
       spread=st.sampled_from([1.0, 6.0]))
def test_they_appear_whenever_the_limit_allows_it(seed, terms, beams, extra, spread):
    max_length = sum(min(map(len, term)) for term in terms) + extra
    rows = beam(Table(drawn(7, seed, spread=spread)), keyed([0, 1]), prompts=[[2]] * 2, end=0, max_length=max_length,
                beams=beams,
                nbest=beams, terms=[terms, []])
    assert rows[0]
    for one in rows[0]:
        assert appear(terms, one.ids)
        assert len(one.ids) <= max_length
        assert len(one.log_probabilities) == len(one.ids) + (not one.cut)


@given(seed=st.integers(0, 1000), beams=st.integers(1, 5), penalty=st.sampled_from(["none", "mean"]))
def test_rows_without_terms_are_as_ever(seed, beams, penalty):
    options = {"prompts": [[1], [1]], "end": 0, "max_length": 6, "beams": beams, "nbest": beams,
               "length_penalty": penalty}
    model, memory = Table(drawn(5, seed)), keyed([0, 1])
    got = beam(model, memory, terms=[[], [[[3, 4]]]], **options)
    assert got[0] == beam(model, memory, **options)[0]
    assert got[1] != beam(model, memory, terms=[[], []], **options)[1] or appear([[[3, 4]]], got[1][0].ids)


def test_the_text_around_a_term_is_the_models():
    def function(key, text):  # 1 2 3 4 5, then an end; 6 fits nowhere, and least badly in the place of 3
        after = text[-1] % 6 + 1 if text[-1] != 6 else 4
        logits = [-9.0] * 8
        logits[0 if text[-1] == 5 else after] = 3.0
        if text[-1] == 2:
            logits[6] = -4.0
        return logits

    options = {"prompts": [[7]], "end": 0, "max_length": 9, "beams": 4}
    [[one]] = beam(Table(lambda key, text: function(key, text[1:] or (0,))), terms=[[[[6]]]], **options)
    assert one.ids == [1, 2, 6, 4, 5]


def test_alternatives_that_fit_better_are_taken():
    def function(key, text):
        return [2.0 if len(text) > 3 else -3.0, 1.0, 0.0, -5.0, -1.0]

    [[one]] = beam(Table(function), prompts=[[1]], end=0, max_length=6, beams=5, terms=[[[[3, 3]]]])
    assert appear([[[3, 3]]], one.ids)
    [[one]] = beam(Table(function), prompts=[[1]], end=0, max_length=6, beams=5, terms=[[[[3, 3], [2]]]])
    assert 2 in one.ids
    assert 3 not in one.ids


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "seq2seq-attention"])
def test_models_of_every_kind_and_any_batch(kind):
    model, sources = built(TRANSLATING[kind]), [[1, 2, 3, 4], [5], [6, 1]]
    terms = [[[[7, 8]]], [], [[[9], [3, 3]], [[4]]]]

    def searched(order):
        memory = model.encode(Tokens.of([sources[row] for row in order]))
        return beam(model, memory, prompts=[[1]] * len(order), end=0, max_length=8, beams=4, nbest=2,
                    terms=[terms[row] for row in order])

    together = searched([0, 1, 2])
    for order in ([0], [2, 1], [1, 0]):
        for row, got in zip(order, searched(order), strict=True):
            assert [one.ids for one in got] == [one.ids for one in together[row]]
    assert all(appear(terms[row], one.ids) for row in range(3) for one in together[row])


def test_with_groups_and_places_that_are_filled_again():
    model, keys = Moving(drawn(6, seed=2)), [*range(7)]
    terms = [[[[row % 3 + 1, 4]]] if row else [] for row in range(7)]
    options = {"prompts": [[1]] * 7, "end": 0, "max_length": 6, "beams": 4, "num_beam_groups": 2, "nbest": 3,
               "terms": terms}
    together = beam(model, keyed(keys), **options)
    assert all(appear(terms[row], one.ids) for row in range(7) for one in together[row])
    assert beam(model, keyed(keys), token_budget=60, **options) == together


def test_a_rule_that_forbids_a_term_leaves_what_is_cut():
    [got] = beam(Table(drawn(4)), prompts=[[1]], end=0, max_length=4, beams=3, terms=[[[[2]]]],
                 constraints=[ForbiddenTokens([2])])
    assert all(one.cut for one in got)


def test_a_term_that_the_model_does_not_know():
    assert_named(lambda: beam(Table(drawn(4)), prompts=[[1]], end=0, max_length=4, beams=3, terms=[[[[4]]]]),
                 ["`terms`", "below 4", "is 4"])
