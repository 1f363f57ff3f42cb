"""What a model wrote: alignments that are asked for later, and copies without the model."""

import copy
import pickle
from dataclasses import asdict

import pytest
import texting
import torch

from regard.tasks.translator import Translation

TEXTS = ["the big dog sleeps.", "", "Emma sees a cat."]


def test_an_alignment_is_that_of_the_translator():
    task = texting.translator()
    found = task.translate(TEXTS, beams=3, nbest=2, max_length=6)
    for text, best in zip(TEXTS, found, strict=True):
        for one in (best, *best.alternatives):
            (want,) = task.align([text], [one])
            assert (one.alignment.source, one.alignment.target) == (want.source, want.target)
            torch.testing.assert_close(one.alignment.weights, want.weights)
            assert one.alignment is one.alignment  # found once
    assert found[0].alignment.source == ("the", "big", "dog", "sleeps", ".")
    assert found[1].alignment.target == ()


def test_samples_and_their_alternatives_have_one_too():
    one = texting.translator().sample(TEXTS[0], num_samples=2, max_length=4)
    assert one.alternatives[0].alignment.source == one.alignment.source


def test_an_alignment_that_nobody_can_find_is_an_error():
    with pytest.raises(ValueError, match=r"translator\.align"):
        Translation("un", 0.0, (5,), False).alignment  # noqa: B018


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_leaves_the_model_behind(copied):
    one = texting.translator().translate(TEXTS[0], max_length=4)
    assert copied(one) == one
    assert copied(one).look is None
    assert copied(one).words == one.words
    known = one.alignment.pharaoh()
    assert copied(one).alignment.pharaoh() == known  # what was found is kept
    assert asdict(one)["text"] == one.text


def test_results_without_probabilities_have_no_scored_words():
    with pytest.raises(ValueError, match="no log-probabilities"):
        Translation("un", 0.0, (5,), False).words  # noqa: B018
    assert Translation("", 0.0, (), False).words == ()
