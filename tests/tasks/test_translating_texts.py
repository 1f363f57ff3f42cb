"""Translators on text: each text as it is by itself, in the order given."""

import pytest
import texting
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks import task as batching
from regard.tasks.load import make_task
from regard.tasks.translator import Translation, Translator

TEXTS = ["the big dog sleeps.", "", "Emma sees a cat.", " \u00a0\u200b\n", "no", "</s> <pad> ▁ \u2028 語",
         "we sing. " * 9]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("pair", [texting.joint, texting.separate])
def test_a_text_is_translated_as_its_ids_are(beams, pair):
    task = texting.translator(pair=pair)
    found = task.translate(TEXTS, beams=beams, max_length=6, length_penalty="none")
    for text, one in zip(TEXTS, found, strict=True):
        if not text.strip() or text.isspace() or text == TEXTS[3]:
            assert one == Translation("", 0.0, (), False)
            continue
        source = [*task.tokenizer.source.encode(text), task.tokenizer.source.special.end[0]]
        ((want,),) = task.translate_ids([source], beams=beams, max_length=6)
        assert (list(one.ids), one.text, one.cut) == (want.ids, task.tokenizer.target.decode(want.ids), want.cut)
        assert one.score == pytest.approx(want.score)
        assert task.translate(text, beams=beams, max_length=6, length_penalty="none").ids == one.ids


def test_small_batches_change_nothing(monkeypatch):
    task = texting.translator()
    sources = [source for source, _ in texting.pairs()[:40]]
    whole = task.translate(sources, beams=2, max_length=8)
    sizes = []
    real = task._hypotheses
    monkeypatch.setattr(task, "_hypotheses", lambda rows, search: sizes.append(rows) or real(rows, search))
    monkeypatch.setattr(batching.map_batches, "__defaults__", (60,))
    assert [one.ids for one in task.translate(sources, beams=2, max_length=8)] == [one.ids for one in whole]
    assert len(sizes) > 5
    assert all(len(rows) * max(len(row.source) for row in rows) <= 60 for rows in sizes if len(rows) > 1)


def test_blank_texts_ask_no_model(monkeypatch):
    task = texting.translator()
    monkeypatch.setattr(task.model, "encode", lambda tokens: pytest.fail("asked"))
    assert task.translate("") == Translation("", 0.0, (), False)
    assert [one.text for one in task.translate(["", " ", "\u3000", "\ufeff"])] == [""] * 4
    assert task.translate([]) == []


def test_the_best_has_the_others_beside_it():
    found = texting.translator().translate("the dog", beams=4, nbest=3, max_length=5)
    assert len(found.alternatives) == 2
    scores = [found.score, *(one.score for one in found.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert found.alternatives[0].alternatives == ()


def test_a_text_beyond_the_positions_is_named():
    task = texting.translator("learned", tie_word_embeddings=False)  # 12 positions
    long = "the big dog sees the big cat. " * 3
    with pytest.raises(ValueError, match=r"`texts` must be at most 12 tokens long, .* tokens long in text 1"):
        task.translate(["no", long])
    assert task.translate("no").cut in (True, False)


def test_a_model_of_more_ids_than_tokens_writes_tokens_alone():
    both = texting.joint()
    for make, use in ((lambda: texting.translating(source_vocab_size=both.source.size, tie_word_embeddings=False, output_bias=True,
                                                   target_vocab_size=both.target.size + 8), "translate"),
                      (lambda: texting.resized(texting.language(embedding="sinusoidal", tie_word_embeddings=False, output_bias=True),
                                               both.source, 8), "complete")):
        config = make()
        model = texting.built(config)
        with torch.no_grad():
            model.output.bias[both.target.size:] = 50.0
        task = make_task(model, config, tokenizer=both if use == "translate" else both.source)
        for beams in (1, 2):
            found = getattr(task, use)("the dog", max_length=4, beams=beams)
            assert max(found.ids) < both.target.size


def test_a_model_in_training_mode_is_refused():
    task = texting.translator(order="post")
    task.model.train()
    with pytest.raises(ValueError, match="`model` must be in evaluation mode"):
        task.translate("the dog")


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_any_text_is_translated_to_one_text(texts):
    found = texting.translator().translate(texts, beams=1, max_length=3, length_penalty="none")
    assert [type(one.text) for one in found] == [str] * len(texts)


def test_overloads_give_what_was_given():
    task: Translator = texting.translator()
    assert isinstance(task.translate("no", max_length=1), Translation)
    assert isinstance(task.translate(["no"], max_length=1), list)
    with pytest.raises(ValueError, match="`texts` must be a text, or a list of texts, but is a int"):
        task.translate(5)
