"""Fillers, classifiers and embedders on ids and images."""

import pytest
import torch
from tiny import READING, VISION, built

from regard.models.contract import Tokens
from regard.models.special import SpecialConfig
from regard.tasks.loading import fitting

ROWS = [[4, 5, 9, 6], [9, 7], [3, 8, 9, 9, 4]]


def test_hidden_tokens_are_named():
    config = READING["masked"]
    filler = fitting(built(config), config, SpecialConfig(mask=9, padding=0))
    found = filler.fill_ids(ROWS, count=3)
    assert [len(row) for row in found] == [1, 1, 2]
    for row, guesses in zip(ROWS, found, strict=True):
        want = torch.softmax(filler.model(Tokens(torch.tensor([row])))[0].float(), -1)
        for place, guess in zip([n for n, id_ in enumerate(row) if id_ == 9], guesses, strict=True):
            best = want[place].topk(3)
            assert [each.id for each in guess] == best.indices.tolist()
            torch.testing.assert_close(torch.tensor([each.probability for each in guess]), best.values)
    with pytest.raises(ValueError, match=r"`special\.mask` must be an id"):
        fitting(built(config), config).fill_ids(ROWS)


@pytest.mark.parametrize("name", ["first", "last", "mean", "tagger"])
def test_sequences_and_tokens_are_labelled(name):
    classifier = fitting(built(READING[name]), READING[name])
    for row, found in zip(ROWS, classifier.label_ids(ROWS), strict=True):
        want = torch.softmax(classifier.model(Tokens(torch.tensor([row])))[0].float(), -1)
        torch.testing.assert_close(found, want)
    with pytest.raises(ValueError, match="`images` must be ids"):
        classifier.label_images(torch.zeros(1, 1, 8, 8))


def test_images_are_labelled():
    classifier = fitting(built(VISION["class"]).float(), VISION["class"])
    found = classifier.label_images(torch.randn(4, 3, 8, 12))
    assert found.shape == (4, 5)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))
    with pytest.raises(ValueError, match="`rows` must be images"):
        classifier.label_ids(ROWS)


def test_vectors_have_length_one_and_do_not_depend_on_others():
    embedder = fitting(built(READING["encoder"]), READING["encoder"])
    together = embedder.embed_ids(ROWS)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(3).double())
    for b, row in enumerate(ROWS):
        torch.testing.assert_close(embedder.embed_ids([row])[0], together[b])
