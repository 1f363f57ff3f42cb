"""A task that is watched does its work as always, and what it read and wrote is looked at afterwards."""

import copy
import pickle
from dataclasses import replace

import pytest
import texting
import torch

import regard
from regard.attention.look import find_taps
from regard.inspection.watch import NotRecordedError
from regard.tasks.alignment import AlignmentConfig
from regard.tasks.load import make_task
from regard.tokens import Tokens

TEXTS = ["the dog sleeps.", "Emma sees a big cat.", "no"]


def direct(model, *given):
    """The looks of a model itself, watched while it reads one row."""
    with torch.no_grad(), regard.watch(model) as seen:
        model(*(Tokens(torch.tensor([row])) for row in given))
    return seen.row(0)


def assert_alike(trace, looks):
    assert [one.name for one in trace.attentions] == [*looks]
    for one in trace.attentions:
        torch.testing.assert_close(one.look.weights(), looks[one.name].weights(), rtol=1e-9, atol=1e-12)


def assert_silent(task):
    """Nobody listens any more."""
    assert task.observers == []
    assert not any(tap.listeners for tap in find_taps(task.model).values())


def test_a_translator(tmp_path):
    task = texting.translator()
    plain = task.translate(TEXTS, beams=3, max_length=5)
    with regard.watch(task) as seen:
        found = task.translate(TEXTS, beams=3, max_length=5)
        assert not any(tap.listeners for tap in find_taps(task.model).values())  # the search runs as always
    assert_silent(task)
    assert found == plain
    assert len(seen.calls) == len(TEXTS)
    both, start, end = task.tokenizer, task.special.start, task.special.end[0]
    for call, text, one in zip(seen.calls, TEXTS, found, strict=True):
        written = [*one.ids, *([] if one.cut else [end])]
        trace = call.trace()
        assert_alike(trace, direct(task.model, both.encode_sources([text])[0], [start, *written[:-1]]))
        assert trace.title == trace.sides["source"].text == text
        assert trace.sides["source"].words == tuple(both.source.words(text))
        assert trace.sides["target"].text == one.text
        assert trace.sides["target"].tokens == tuple(both.target.pieces(written))
        assert trace.sides["read"].tokens == tuple(both.target.pieces([start, *written[:-1]]))
        assert trace.written.log_probabilities == one.log_probabilities
        assert {(place.name.split(".")[0], place.kind): (place.queries, place.keys) for place in trace.attentions} == {
            ("encoder", "self"): ("source", "source"), ("decoder", "self"): ("target", "read"),
            ("decoder", "cross"): ("target", "source")}
    seen.save(tmp_path / "a.safetensors")
    assert regard.Trace.load(tmp_path / "a.safetensors").title == TEXTS[-1]


@pytest.mark.parametrize(("layer", "expected"), [(0, 3), (-1, 5), (7, None)])
def test_the_stored_choice_of_a_translator_is_told(layer, expected):
    made = texting.translator()
    task = make_task(made.model, made.config, tokenizer=made.tokenizer)
    task.aligned_by = AlignmentConfig(layer=layer, head=1, offset=1)
    with regard.watch(task) as seen:
        task.translate(TEXTS[0], max_length=4)
    pointer = seen.trace().alignment
    assert (None if pointer is None else (pointer.attention, pointer.head, pointer.offset)) == (
        None if expected is None else (expected, 1, 1))


def test_samples_prefixes_and_blank_texts_of_a_translator():
    task = texting.translator()
    with regard.watch(task) as seen:
        task.sample("the dog", num_samples=2, max_length=4)
        task.translate(["", "  "])
        found = task.translate(TEXTS[0], prefix="a", max_length=6)
    assert len(seen.calls) == 2
    assert seen.calls[1].trace().sides["target"].text == found.text


def test_ids_of_a_translator_without_a_tokenizer():
    made = texting.translator()
    task = make_task(made.model, made.config, made.special)
    with regard.watch(task) as seen:
        [[one]] = task.translate_ids([[5, 6, 7]], max_length=3)
    assert seen.trace().sides["source"].tokens == ("5", "6", "7")
    assert len(seen.trace().sides["target"].tokens) == len(one.log_probabilities)


def test_of_several_samples_the_one_is_told_that_was_chosen():
    task = texting.translator()
    with regard.watch(task) as seen:
        found = task.mbr(TEXTS, regard.Sampling(num_samples=4, max_length=5))
    assert [call.trace().sides["target"].text for call in seen.calls] == [one.text for one in found]
    assert [call.trace().written.score for call in seen.calls] == [one.score for one in found]


def test_nothing_was_written():
    task = texting.translator()
    with regard.watch(task) as seen:
        found = task.translate(TEXTS[0], max_length=0)
    assert found.ids == ()
    assert seen.trace().attentions[-1].rows == 1


def test_a_completer():
    task = texting.completer()
    plain = task.complete(TEXTS, max_length=4)
    with regard.watch(task) as seen:
        found = task.complete(TEXTS, max_length=4)
    assert found == plain
    assert_silent(task)
    for call, one in zip(seen.calls, found, strict=True):
        trace = call.trace()
        assert_alike(trace, direct(task.model, [*one.prompt_ids, *one.ids]))
        assert trace.sides["text"].text == one.prompt + one.text
        assert trace.written.log_probabilities == one.log_probabilities
        assert len(trace.sides["written"].tokens) == len(one.log_probabilities)


def test_a_filler():
    task = texting.filler()
    blanks = ["the ___ sleeps.", "___"]
    with regard.watch(task) as seen:
        assert task.fill(blanks) == task.fill(blanks)
    assert_silent(task)
    assert len(seen.calls) == 4
    trace = seen.calls[0].trace()
    assert torch.equal(seen.calls[0]["encoder.1.self"].weights(), trace.attentions[1].look.weights())
    assert trace.title == blanks[0]
    assert task.tokenizer.pieces([task.special.mask])[0] in trace.sides["text"].tokens
    assert [one.name for one in trace.attentions] == ["encoder.0.self", "encoder.1.self"]


@pytest.mark.parametrize("use", ["classify", "label_ids", "embed"])
def test_readers_of_texts(use):
    task = texting.classifier()
    rows = task.encode_texts(TEXTS)
    if use == "embed":
        config = replace(texting.filler().config)
        encoder = texting.filler().model.encoder
        task = regard.Embedder(encoder, config, task.special, tokenizer=task.tokenizer)
        rows = task.encode_texts(TEXTS)
    with regard.watch(task) as seen:
        getattr(task, use)(rows if use == "label_ids" else TEXTS)
    assert_silent(task)
    for call, text, row in zip(seen.calls, TEXTS, rows, strict=True):
        trace = call.trace()
        assert_alike(trace, direct(task.model, row))
        side = trace.sides["text"]
        assert side.tokens == tuple(task.tokenizer.pieces(row))
        assert side.text == (None if use == "label_ids" else text)
        for word in side.words:
            joined = "".join(side.tokens[word.first_token:word.last_token + 1]).replace("▁", "")
            assert side.text[word.start:word.end] in joined


def test_a_classifier_of_images():
    task, images = texting.seer(), torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    with regard.watch(task) as seen:
        task.classify(images)
        task.label_images(images.double())
    assert len(seen.calls) == 6
    trace = seen.calls[4].trace()
    assert trace.sides["image"].grid == (4, 4)
    with torch.no_grad(), regard.watch(task.model) as whole:
        task.model(images.double())
    assert_alike(trace, whole.row(1))


def test_nothing_is_made_where_nobody_watches(monkeypatch):
    task = texting.classifier()
    made = []
    monkeypatch.setattr("regard.tasks.traces.SequenceInfo", lambda *parts: made.append(parts))
    task.classify(TEXTS)
    assert not made


def test_two_watches_an_exception_and_a_save(tmp_path):
    task = texting.classifier()
    with pytest.raises(ValueError, match="`given`"), regard.watch(task) as outer:
        task.classify([task.classify(TEXTS[0]) and 1])
    with regard.watch(task) as outer, regard.watch(task) as inner:
        task.classify(TEXTS[0])
        task.save(tmp_path / "model")
    assert_silent(task)
    assert len(outer.calls) == len(inner.calls) == 1
    assert regard.load(tmp_path / "model").observers == []


def test_a_copy_of_a_watched_task_is_not_watched():
    task = texting.classifier()
    with regard.watch(task) as seen:
        for other in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
            assert other.observers == []
            other.classify(TEXTS)
    assert not seen.calls


def test_what_does_not_fit_the_limit_is_told_when_it_is_asked_for():
    task = texting.classifier()
    with regard.watch(task, limit=100) as seen:
        task.classify(TEXTS)
    with pytest.raises(NotRecordedError, match="exceeds the limit of 100 bytes"):
        seen["encoder.0.self"]


def test_texts_are_read_again_only_as_often_as_memory_asks_for():
    task, rows = texting.classifier(), []
    with regard.watch(task) as seen:
        task.classify(TEXTS)
    handle = task.model.register_forward_hook(lambda *_: rows.append(1))
    for _ in range(2):
        for call in seen.calls:
            for look in call.values():
                look.weights()
    handle.remove()
    assert len(rows) == len(TEXTS)


def test_a_task_that_was_not_used_says_so():
    with regard.watch(texting.classifier()) as seen:
        assert seen.names() == []
    with pytest.raises(NotRecordedError, match="the task ran no text inside the `with` block"):
        seen["encoder.0.self"]
