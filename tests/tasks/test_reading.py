"""Fillers, classifiers and embedders on ids and images."""

import pytest
import torch
from tiny import READING, VISION, built

from regard.special_tokens import SpecialTokens
from regard.tasks.load import make_task
from regard.tokens import Tokens

ROWS = [[4, 5, 9, 6], [9, 7], [3, 8, 9, 9, 4]]


def test_hidden_tokens_are_named():
    config = READING["masked"]
    filler = make_task(built(config), config, SpecialTokens(mask=9, padding=0))
    found = filler.fill_ids(ROWS, top_k=3)
    assert [len(row) for row in found] == [1, 1, 2]
    for row, guesses in zip(ROWS, found, strict=True):
        want = torch.softmax(filler.model(Tokens(torch.tensor([row])))[0].float(), -1)
        for place, guess in zip([n for n, id_ in enumerate(row) if id_ == 9], guesses, strict=True):
            best = want[place].topk(3)
            assert [each.id for each in guess] == best.indices.tolist()
            torch.testing.assert_close(torch.tensor([each.probability for each in guess]), best.values)
    with pytest.raises(ValueError, match=r"`special\.mask` must be an id"):
        make_task(built(config), config).fill_ids(ROWS)


@pytest.mark.parametrize("name", ["first", "last", "mean", "tagger"])
def test_sequences_and_tokens_are_labelled(name):
    classifier = make_task(built(READING[name]), READING[name])
    for row, found in zip(ROWS, classifier.label_ids(ROWS), strict=True):
        want = torch.softmax(classifier.model(Tokens(torch.tensor([row])))[0].float(), -1)
        torch.testing.assert_close(found, want)
    with pytest.raises(ValueError, match="`images` must be ids"):
        classifier.label_images(torch.zeros(1, 1, 8, 8))


def test_images_are_labelled():
    classifier = make_task(built(VISION["class"]).float(), VISION["class"])
    found = classifier.label_images(torch.randn(4, 3, 8, 12))
    assert found.shape == (4, 5)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))
    with pytest.raises(ValueError, match="`rows` must be images"):
        classifier.label_ids(ROWS)


def test_vectors_have_length_one_and_do_not_depend_on_others():
    embedder = make_task(built(READING["encoder"]), READING["encoder"])
    together = embedder.embed_ids(ROWS)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(3).double())
    for b, row in enumerate(ROWS):
        torch.testing.assert_close(embedder.embed_ids([row])[0], together[b])


@pytest.mark.parametrize(("rows", "said"), [
    ([5, 6], "sequences of ids, .* 5 in row 0"), ("text", "a str"), (["text"], "'text' in row 0"),
    (torch.tensor([[5, 6]]), "a Tensor"), ([[5], [1.5]], "whole numbers .* 1.5"), ([[True]], "whole numbers .* True"),
])
def test_what_is_no_rows_of_ids(rows, said):
    embedder = make_task(built(READING["encoder"]), READING["encoder"])
    with pytest.raises(ValueError, match=f"`rows` must be .*{said}"):
        embedder.embed_ids(rows)


def test_as_many_guesses_as_there_are():
    config = READING["masked"]
    filler = make_task(built(config), config, SpecialTokens(mask=9))
    ((guesses,),) = filler.fill_ids([[9]], top_k=50)
    assert sorted(guess.id for guess in guesses) == list(range(config.vocab_size))
    for count in (0, -1, 1.5):
        with pytest.raises(ValueError, match="`top_k` must be a whole number, at least 1"):
            filler.fill_ids([[9]], top_k=count)


def test_images_of_any_precision_and_nothing_else():
    classifier = make_task(built(VISION["class"]).float(), VISION["class"])
    images = torch.randn(2, 3, 8, 12)
    assert torch.equal(classifier.label_images(images.double()), classifier.label_images(images))
    for wrong in (images.byte(), images.tolist()):
        with pytest.raises(ValueError, match="`images` must be a tensor of floating-point numbers"):
            classifier.label_images(wrong)


def test_a_model_in_training_mode_is_refused():
    for config in (READING["first"], VISION["class"]):
        classifier = make_task(built(config).float(), config)
        classifier.model.train()
        with pytest.raises(ValueError, match="`model` must be in evaluation mode"):
            classifier.label_ids(ROWS) if config.kind == "classifier" else classifier.label_images(
                torch.zeros(1, 3, 8, 12))
