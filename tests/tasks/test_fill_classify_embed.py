"""Filler, Classifier and Embedder: ids, texts, images and blanks."""

import re
from dataclasses import replace

import pytest
import texting
import torch
from hypothesis import given
from hypothesis import strategies as st
from texting import LABELS
from tiny import READING, VISION, built

from regard.data.images import scale_pixels
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import CharactersConfig, train_tokenizer
from regard.models.encoder_decoder import EncoderConfig
from regard.special_tokens import SpecialTokens
from regard.tasks.filler import encode_with_blanks
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
    with pytest.raises(ValueError, match=r"`special\.mask`"):
        make_task(built(config), config).fill_ids(ROWS)


@pytest.mark.parametrize("name", ["first", "last", "mean", "tagger"])
def test_sequences_and_tokens_are_labelled(name):
    classifier = make_task(built(READING[name]), READING[name])
    for row, found in zip(ROWS, classifier.label_ids(ROWS), strict=True):
        want = torch.softmax(classifier.model(Tokens(torch.tensor([row])))[0].float(), -1)
        torch.testing.assert_close(found, want)
    if name != "tagger":
        with pytest.raises(ValueError, match="reads text, not images"):
            classifier.label_images(torch.zeros(1, 1, 8, 8))


def test_images_are_labelled():
    classifier = make_task(built(VISION["class"]).float(), VISION["class"])
    found = classifier.label_images(torch.randn(4, 3, 8, 12))
    assert found.shape == (4, 5)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))
    with pytest.raises(ValueError, match="reads images, but `rows` is ids"):
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
        with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
            classifier.label_ids(ROWS) if config.kind == "classifier" else classifier.label_images(
                torch.zeros(1, 3, 8, 12))


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
    with pytest.raises(ValueError, match=r"`texts\[1\]` .*___"):
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
def test_labels_of_texts():
    task = texting.classifier()
    found = task.classify(TEXTS, batch_tokens=8)
    for text, labels in zip(TEXTS, found, strict=True):
        ids = torch.tensor([task.tokenizer.encode(text)], dtype=torch.long)
        want = torch.softmax(task.model(Tokens(ids))[0], -1)
        assert [label.name for label in labels] == [LABELS[index] for index in want.argsort(descending=True).tolist()]
        assert [label.probability for label in labels] == pytest.approx(want.sort(descending=True).values.tolist())
    assert [label.name for label in task.classify(TEXTS[0])] == [label.name for label in found[0]]
    with pytest.raises(ValueError, match="reads images, but `given` is text"):
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
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be at most 12 tokens long"):
        filler.fill(["___", long + "___"])


MASK = 4


@pytest.mark.parametrize("number", range(0, 200, 20))
def test_a_hidden_token_leaves_the_others_as_they_were(number):
    """The text of one token in the middle is taken out, space and all, and the ids around it stay."""
    tokenizer = texting.tokenizer()
    text = texting.pairs()[number][0]
    ids, spans, count = tokenizer.encode(text), tokenizer.spans(text), 0
    for place, span in enumerate(spans):
        if not text[span.start:span.end].strip() or text[:span.start].endswith(" "):
            continue  # a space that is a token of its own belongs to the blank behind it
        count += 1
        space = " " if text[span.start] == " " else ""
        holed = text[:span.start] + space + "___" + text[span.end:]
        found = encode_with_blanks(tokenizer, holed, MASK)
        at = found.index(MASK)
        assert tokenizer.decode(found[:at]) == tokenizer.decode(ids[:place])
        assert b"".join(tokenizer.surfaces[id_] for id_ in found[at + 1:]) == b"".join(
            tokenizer.surfaces[id_] for id_ in ids[place + 1:])
    assert count > 3


def test_a_point_behind_a_blank_has_no_space_before_it():
    tokenizer = texting.tokenizer()
    (*_, point) = tokenizer.encode("the dog.")
    assert encode_with_blanks(tokenizer, "the ___.", MASK) == [*tokenizer.encode("the"), MASK, point]
    assert encode_with_blanks(tokenizer, "___ the", MASK) == [MASK, *tokenizer.encode("the")]
    assert encode_with_blanks(tokenizer, "___", MASK) == [MASK]
    assert encode_with_blanks(tokenizer, "___ _____", MASK) == [MASK, MASK]
    assert encode_with_blanks(tokenizer, "the __ dog", MASK) == tokenizer.encode("the __ dog")


def test_characters_keep_their_spaces():
    tokenizer = texting.characters()
    the, dog = tokenizer.encode("the "), tokenizer.encode("og")
    assert encode_with_blanks(tokenizer, "the ___og", MASK) == [*the, MASK, *dog]
    line = train_tokenizer(["the dog"], CharactersConfig(normalization="line")).tokenizer
    assert encode_with_blanks(line, "  the  ___og ", MASK) == [*line.encode("the"),
                                                               *line.encode_batch(["a b"])[0][1:2], MASK,
                                                       *line.encode("og")]


@given(st.text(alphabet="ab_ <mask>\u00e9\u0301▁", max_size=20))
def test_no_text_gives_a_mask_but_by_a_blank(text):
    for tokenizer in (texting.tokenizer(), texting.characters()):
        assert encode_with_blanks(tokenizer, text, MASK).count(MASK) == len(re.findall("_{3,}",
                                                                                       tokenizer.normalize(text)))
