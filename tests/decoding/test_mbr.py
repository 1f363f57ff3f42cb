"""Minimum Bayes risk: chrF as sacrebleu has it, and expectations that can be added up by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named
from sacrebleu.metrics import CHRF

from regard.decoding.mbr import MbrResult, chrf, mbr, pairwise

TEXTS = st.text(alphabet="ab cé 日", max_size=12)


@given(candidates=st.lists(TEXTS, min_size=1, max_size=4), references=st.lists(TEXTS, min_size=1, max_size=4),
       order=st.sampled_from([1, 3, 6]), beta=st.sampled_from([1, 2, 3]))
def test_chrf_is_that_of_sacrebleu(candidates, references, order, beta):
    got, metric = chrf(candidates, references, order, beta), CHRF(char_order=order, beta=beta)
    want = [[metric.sentence_score(one, [other]).score for other in references] for one in candidates]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_chrf_of_sentences():
    texts = ["The house is small.", "The house is tiny!", "A little house", "Das Haus ist klein.", ""]
    got = chrf(texts, texts)
    assert got.diagonal().tolist() == pytest.approx([100, 100, 100, 100, 0])
    assert got[0, 1] > got[0, 2] > got[0, 3] > got[0, 4] == 0
    for row, one in enumerate(texts):
        for column, other in enumerate(texts):
            assert got[row, column].item() == pytest.approx(CHRF().sentence_score(one, [other]).score, rel=1e-12)


@given(candidates=st.lists(TEXTS, min_size=1, max_size=6))
def test_the_expected_utility_is_a_mean_over_all(candidates):
    judged = mbr(candidates)
    metric = CHRF()
    for number, utility in judged:
        want = sum(metric.sentence_score(candidates[number], [other]).score for other in candidates) / len(candidates)
        assert utility == pytest.approx(want, rel=1e-9, abs=1e-9)
    assert sorted(one.number for one in judged) == list(range(len(candidates)))
    assert judged == sorted(judged, key=lambda one: (-one.utility, one.number))


def test_the_text_that_is_most_like_the_others_wins_over_an_odd_one():
    texts = ["a house that is old", "an old house", "an old house here", "qqqq"]
    assert mbr(texts)[0].number == 2
    assert mbr(texts)[-1].number == 3
    assert mbr(texts, weights=[0, 0, 0, 1])[0] == MbrResult(3, 100.0)


def test_references_and_weights_of_ones_own():
    exact = pairwise(lambda one, other: float(one == other))
    assert mbr(["a", "b"], exact, references=["b", "c", "b"]) == [MbrResult(1, 2 / 3), MbrResult(0, 0.0)]
    assert mbr(["a", "b"], exact, references=["a", "b"], weights=[3, 1]) == [MbrResult(0, 0.75), MbrResult(1, 0.25)]
    assert mbr(["b", "a", "b"], exact) == [MbrResult(0, 2 / 3), MbrResult(2, 2 / 3), MbrResult(1, 1 / 3)]


def test_what_is_there_twice_is_judged_once():
    calls = []

    def count(one, other):
        calls.append((one, other))
        return 0.0

    mbr(["a", "b", "a"], pairwise(count))
    assert len(calls) == 4


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: mbr([]), ["`candidates`", "at least one"]), (lambda: mbr(["a"], references=[]), ["`references`"]),
    (lambda: mbr("ab"), ["`candidates`", "a list of texts"]),
    (lambda: mbr(["a"], weights=[1, 2]), ["`weights`", "1 in all", "2 numbers"]),
    (lambda: mbr(["a"], weights=[-1]), ["`weights`", "at least 0"]), (lambda: mbr(["a"], weights=[0]), ["`weights`"]),
    (lambda: mbr(["a"], lambda one, other: torch.zeros(2, 2)), ["`utility`", "(1, 1)", "(2, 2)"]),
    (lambda: chrf(["a"], ["b"], 0), ["`order`", "at least 1"]),
])
def test_what_is_refused(call, parts):
    assert_named(call, parts)
