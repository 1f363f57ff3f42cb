"""Fillers, classifiers and embedders on text: each text as it is by itself, in the order given."""

from dataclasses import replace

import pytest
import texting
import torch
from texting import LABELS

from regard.data.images import scale_pixels
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.models.encoder_decoder import EncoderConfig
from regard.tasks import task as batching
from regard.tasks.filler import encode_with_blanks
from regard.tasks.load import make_task
from regard.tokens import Tokens

BLANKS = ["the ___ sleeps.", "___", "Emma sees ___ big ___."]
TEXTS = ["the dog sleeps.", "", "no", "Emma sees a big cat."]


@pytest.mark.parametrize("of", [texting.tokenizer, texting.characters])
@torch.no_grad()
def test_blanks_are_filled_with_the_most_probable_tokens(of):
    task = texting.filler(of)
    mask, apart = task.special.mask, task.special.ids()
    for text, found in zip(BLANKS, task.fill(BLANKS, top_k=3), strict=True):
        row = encode_with_blanks(task.tokenizer, text, mask)
        probabilities = torch.softmax(task.model(Tokens(torch.tensor([row])))[0], -1)
        best = []
        places = [place for place, id_ in enumerate(row) if id_ == mask]
        for place, blank in zip(places, found.blanks, strict=True):
            order = [id_ for id_ in probabilities[place].argsort(descending=True).tolist() if id_ not in apart]
            assert [each.id for each in blank] == order[:3]
            for each in blank:
                assert each.probability == pytest.approx(float(probabilities[place, each.id]), rel=1e-5)
            best.append(order[0])
        whole = iter(best)
        assert found.text == task.tokenizer.decode([next(whole) if id_ == mask else id_ for id_ in row])
    assert task.fill(BLANKS[0], top_k=3).text == task.fill(BLANKS, top_k=3)[0].text


def test_nothing_is_suggested_that_is_no_token():
    made = texting.filler()
    config = texting.resized(made.config, made.tokenizer, 8)
    task = make_task(texting.built(config), config, tokenizer=made.tokenizer)
    with torch.no_grad():
        task.model.output.bias[[*task.special.ids(), *range(made.tokenizer.size, config.vocab_size)]] = 50.0
    ((blank,),) = [task.fill("the ___").blanks]
    assert len(blank) == 5
    assert not {each.id for each in blank} & task.special.ids()
    assert max(each.id for each in blank) < made.tokenizer.size


def test_a_suggestion_that_is_no_text_is_named():
    names = {each.text for blank in texting.filler(ByteTokenizer).fill("___", top_k=256).blanks for each in blank}
    assert len(names) == 256
    assert {"a", "<0x20>", "<0xFF>"} <= names


def test_a_text_without_a_blank_is_named():
    with pytest.raises(ValueError, match="`texts` must be texts with a blank, ___, but is one without in text 1"):
        texting.filler().fill(["a ___", "a __ <mask>"])
    for count in (0, 1.5):
        with pytest.raises(ValueError, match="`top_k` must be a whole number"):
            texting.filler().fill("___", top_k=count)


def test_texts_have_what_the_model_has_around_them():
    made = texting.classifier()
    framed = make_task(made.model, made.config, replace(made.special, cls=2, separator=3), tokenizer=made.tokenizer)
    assert framed.encode_texts(["the dog", ""]) == [[2, *made.tokenizer.encode("the dog"), 3], [2, 3]]
    assert made.encode_texts(["the dog", ""]) == [made.tokenizer.encode("the dog"), []]


@torch.no_grad()
def test_labels_of_texts(monkeypatch):
    task = texting.classifier()
    monkeypatch.setattr(batching.map_batches, "__defaults__", (8,))
    found = task.classify(TEXTS)
    for text, labels in zip(TEXTS, found, strict=True):
        ids = torch.tensor([task.tokenizer.encode(text)], dtype=torch.long)
        want = torch.softmax(task.model(Tokens(ids))[0], -1)
        assert [label.name for label in labels] == [LABELS[index] for index in want.argsort(descending=True).tolist()]
        assert [label.probability for label in labels] == pytest.approx(want.sort(descending=True).values.tolist())
    assert [label.name for label in task.classify(TEXTS[0])] == [label.name for label in found[0]]
    with pytest.raises(ValueError, match="`model` must be .* a tagger"):
        texting.tagger().classify("the dog")
    with pytest.raises(ValueError, match="`given` must be images, for a model of images, but is text"):
        texting.seer().classify("the dog")


def test_labels_of_images_as_bytes_or_scaled():
    task, images = texting.seer(), torch.randint(0, 256, (300, 1, 8, 8), dtype=torch.uint8)
    found = task.classify(images)
    want = task.label_images(scale_pixels(images))
    assert len(found) == 300
    for labels, row in zip(found, want, strict=True):
        assert labels[0].name == "abcde"[int(row.argmax())]
        assert dict(labels)["c"] == pytest.approx(float(row[2]))
    assert [labels[0].name for labels in task.classify(scale_pixels(images))] == [labels[0].name for labels in found]


def test_vectors_of_texts():
    config = texting.resized(texting.reading(EncoderConfig, embedding="sinusoidal"), texting.tokenizer())
    task = make_task(texting.built(config), config, tokenizer=texting.tokenizer())
    together = task.embed(TEXTS)
    assert together.shape == (4, 8)
    for text, vector in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(task.embed(text)[0], vector)
        torch.testing.assert_close(task.embed_ids([task.tokenizer.encode(text)])[0], vector)
    none = task.embed([])
    assert (none.shape, none.dtype) == ((0, 8), together.dtype)


def test_a_text_beyond_the_positions_is_cut_but_not_where_it_has_blanks():
    tokenizer, long = texting.tokenizer(), "the big dog sees the big cat. " * 3
    config = texting.resized(texting.reading(texting.ClassifierConfig, num_labels=3), tokenizer)  # 12 positions
    task = make_task(texting.built(config), config, tokenizer=tokenizer)
    assert task.encode_texts(["no", long]) == [tokenizer.encode("no"), tokenizer.encode(long)[:12]]
    assert len(task.classify(long)) == 3
    framed = make_task(task.model, config, replace(task.special, cls=2, separator=3), tokenizer=tokenizer)
    assert framed.encode_texts([long]) == [[2, *tokenizer.encode(long)[:10], 3]]
    config = texting.resized(texting.reading(texting.MaskedModelConfig), tokenizer)
    filler = make_task(texting.built(config), config, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"`texts` must be at most 12 tokens long, .* in text 1"):
        filler.fill(["___", long + "___"])
