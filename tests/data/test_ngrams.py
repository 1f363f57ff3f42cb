"""Sentences sampled from an n-gram model: new, distinct, repeatable, and made of what was seen."""

import random
from collections import Counter

import pytest

from regard.data import ngrams, phrasebook
from regard.data.ngrams import NgramModel, sample_new_texts

CAPTIONS = ["a man rides a horse", "a man rides a bike", "a dog sees a man", "a woman sees a horse",
            "two men ride a bike", "two women see a dog"]


def test_samples_are_new_and_distinct():
    found = list(sample_new_texts(CAPTIONS, 30, seed=1))
    assert len(found) == len({*found}) == 30
    assert not {*found} & {*CAPTIONS}


def test_samples_are_made_of_known_words_and_begin_as_texts_do():
    found = list(sample_new_texts(CAPTIONS, 30, seed=1))
    assert {word for text in found for word in text.split()} <= {word for text in CAPTIONS for word in text.split()}
    longest = max(len(text.split()) for text in CAPTIONS)
    assert all(0 < len(text.split()) <= longest for text in found)


def test_the_seed_decides():
    assert list(sample_new_texts(CAPTIONS, 9, seed=3)) == list(sample_new_texts(CAPTIONS, 9, seed=3))
    assert list(sample_new_texts(CAPTIONS, 9, seed=3)) != list(sample_new_texts(CAPTIONS, 9, seed=4))


def test_words_follow_a_context_with_witten_bell_probabilities():
    model, rng = NgramModel(["x y w", "x y w", "x z w"]), random.Random(0)
    # After START START x: c = 3, T = 2. P(y | 3 words) = 2/5 + 2/5 P(y | 2 words), and so on down to single words,
    # of which y is 2 of 12, with the three ends.
    expected = 2 / 12
    for _ in range(3):
        expected = (2 + 2 * expected) / 5
    drawn = Counter(model._next(["", "", "", "x"], rng) for _ in range(20_000))
    assert drawn["y"] / 20_000 == pytest.approx(expected, abs=0.015)


def test_texts_without_spaces_are_modelled_by_characters():
    texts = ["我喜欢猫", "我喜欢狗", "他喜欢猫", "他看见狗", "我看见鸟"]
    assert NgramModel(texts).separator == ""
    assert all(" " not in text and text not in texts for text in sample_new_texts(texts, 3, seed=1))


def test_texts_that_do_not_vary_end_the_sampling():
    assert list(sample_new_texts(["one two three"], 5, seed=1)) != []  # a shorter context may end it sooner
    assert len(list(sample_new_texts(["one two three"], 5000, seed=1))) < 5000
    assert list(sample_new_texts([], 5, seed=1)) == []


def test_a_model_is_made_of_a_part_of_many_texts(monkeypatch):
    monkeypatch.setattr(ngrams, "MAX_TEXTS", 50)
    kept = []
    monkeypatch.setattr(ngrams, "NgramModel", lambda texts: kept.extend(texts) or NgramModel(texts))
    texts = [pair.source for pair in phrasebook.pairs(400, seed=2)]
    found = list(sample_new_texts(texts, 20, seed=1))
    assert len(kept) == 50
    assert not {*kept} <= {*texts[:50]}
    assert not {*found} & {*texts}  # also of those that the model has not seen
