"""Traces of tasks: the weights that were used, the tokens that were written, and the tree of the search."""

import functools
from dataclasses import replace

import pytest
import texting
import torch
from refusals import assert_named
from tiny import Seq2SeqAttentionConfig, built, seq2seq

from regard.decoding.forced import with_cross
from regard.decoding.request import Hypothesis
from regard.inspection.trace import Trace
from regard.tasks import traces
from regard.tasks.alignment import AlignmentConfig
from regard.tasks.load import make_task

TEXT = "the big dog sleeps."


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """What is not trained hardly ends by itself."""
    monkeypatch.setattr("regard.tasks.translator.EXTRA_LENGTH", 2)
    monkeypatch.setattr("regard.tasks.translator.LENGTH_FACTOR", 1)


@functools.cache
def recurrent():
    """A recurrent translator with attention."""
    both = texting.joint()
    config = replace(seq2seq(attention=Seq2SeqAttentionConfig(), layers=2, direction="both"),
                     source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both)


TRANSLATORS = {"Transformer": texting.translator, "separate": lambda: texting.translator(pair=texting.separate),
               "recurrent": recurrent}


def written(trace):
    """The ids of a target, from what the trace says of the search."""
    nodes, found = trace.search.nodes, []
    place = trace.search.best[0]
    while place >= 0:
        found.append(nodes[place].token)
        place = nodes[place].parent
    return tuple(reversed(found))


def crosses(task, text, ids, end):
    """(layers, heads, n, N) from the decoder itself."""
    both = task.pair_tokenizer()
    memory = task.model.encode(task.tokens(both.encode_sources([text])))
    count = len(ids) + len(end)
    one = Hypothesis(list(ids), [0.0] * count, 0.0, end[0] if end else None)
    return with_cross(task.model, memory, [one], prompts=[[task.start_id()]])[0].cross


@pytest.mark.parametrize("name", sorted(TRANSLATORS))
@pytest.mark.parametrize("beams", [1, 3])
def test_a_translation_is_what_the_translator_finds(name, beams):
    task = TRANSLATORS[name]()
    trace = traces.trace_translation(task, TEXT, beams=beams, name="tiny")
    want = task.translate(TEXT, beams=beams, nbest=beams, length_penalty="mean" if beams > 1 else "none")
    end = [] if want.cut else [task.end_ids()[0]]
    target = task.pair_tokenizer().target
    assert trace.sides["target"].tokens == tuple(target.pieces([*want.ids, *end]))
    assert (trace.sides["target"].text, trace.title, trace.model) == (want.text, TEXT, "tiny")
    assert trace.sides["source"].tokens == tuple(task.pair_tokenizer().source.pieces(
        task.pair_tokenizer().encode_sources([TEXT])[0]))
    assert trace.written.log_probabilities == pytest.approx(want.log_probabilities)
    assert trace.written.score == pytest.approx(want.score)
    assert written(trace) == trace.sides["target"].tokens
    cross = crosses(task, TEXT, want.ids, end)
    maps = [one for one in trace.attentions if one.kind == "cross"]
    assert len(maps) == len(cross)
    for one, weights in zip(maps, cross, strict=True):
        assert (one.queries, one.keys) == ("target", "source")
        torch.testing.assert_close(one.look.weights(), weights, atol=1e-7, rtol=1e-5)


def test_every_attention_is_there_with_its_sides():
    trace = traces.trace_translation(texting.translator(), TEXT)
    assert [(one.name, one.layer, one.kind, one.queries, one.keys) for one in trace.attentions] == [
        ("encoder.0.self", 0, "self", "source", "source"), ("encoder.1.self", 1, "self", "source", "source"),
        ("decoder.0.self", 0, "self", "target", "read"), ("decoder.0.cross", 0, "cross", "target", "source"),
        ("decoder.1.self", 1, "self", "target", "read"), ("decoder.1.cross", 1, "cross", "target", "source")]
    weights = trace.attentions[2].look.weights()
    assert torch.equal(weights, weights.tril())
    start = texting.joint().target.pieces([texting.translator().start_id()])[0]
    assert trace.sides["read"].tokens == (start, *trace.sides["target"].tokens[:-1])


def test_words_stand_in_their_texts():
    trace = traces.trace_translation(texting.translator(), TEXT)
    side = trace.sides["source"]
    assert [side.text[word.start:word.end] for word in side.words] == ["the", "big", "dog", "sleeps", "."]


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_another_result_can_be_chosen(choice):
    task = texting.translator()
    found = task.translate(TEXT, beams=3, nbest=3)
    want = [found, *found.alternatives][choice]
    trace = traces.trace_translation(task, TEXT, beams=3, choice=choice)
    assert trace.sides["target"].text == want.text
    assert trace.written.log_probabilities == pytest.approx(want.log_probabilities)
    assert len(trace.search.best) == 3


def test_a_choice_that_is_not_there_is_named():
    assert_named(lambda: traces.trace_translation(texting.translator(), TEXT, beams=2, choice=2), ["`choice`", "2 results"])


def test_a_beginning_is_forced_and_stands_in_the_tree():
    task = texting.translator()
    trace = traces.trace_translation(task, TEXT, beams=2, prefix="le chien")
    target = task.pair_tokenizer().target
    beginning = target.pieces(target.encode("le chien"))
    assert trace.sides["target"].tokens[:len(beginning)] == tuple(beginning)
    assert trace.sides["target"].text.startswith("le chien")
    assert [node.token for node in trace.search.nodes[:len(beginning)]] == beginning
    assert written(trace) == trace.sides["target"].tokens
    for place in trace.search.best:
        node = trace.search.nodes[place]
        path = [node]
        while path[-1].parent >= 0:
            path.append(trace.search.nodes[path[-1].parent])
        assert node.total == pytest.approx(sum(one.log_probability for one in path), abs=1e-6)


@pytest.mark.parametrize("name", sorted(TRANSLATORS))
def test_a_translation_of_somebody_else(name):
    task = TRANSLATORS[name]()
    found = task.translate(TEXT, beams=2)
    trace = traces.trace_forced(task, TEXT, "le grand chat dort.")
    target = task.pair_tokenizer().target
    ids = target.encode("le grand chat dort.")
    assert trace.sides["target"].tokens == tuple(target.pieces([*ids, task.end_ids()[0]]))
    assert trace.search is None
    cross = crosses(task, TEXT, ids, [task.end_ids()[0]])
    maps = [one for one in trace.attentions if one.kind == "cross"]
    torch.testing.assert_close(torch.stack([one.look.weights() for one in maps]), cross, atol=1e-7, rtol=1e-5)
    if not found.cut and target.encode(found.text) == list(found.ids):
        same = traces.trace_forced(task, TEXT, found.text)
        assert same.written.log_probabilities == pytest.approx(found.log_probabilities, abs=1e-5)


def test_where_words_are_found_is_told():
    task = texting.translator()
    task.aligned_by = AlignmentConfig(layer=-1, head=1, offset=1)
    try:
        pointer = traces.trace_translation(task, TEXT).alignment
    finally:
        task.aligned_by = None
    assert (pointer.attention, pointer.head, pointer.offset) == (5, 1, 1)
    assert traces.trace_translation(task, TEXT).alignment is None


def test_watching_changes_nothing():
    task = texting.translator()
    before = task.translate(TEXT, beams=3)
    traces.trace_translation(task, TEXT, beams=3)
    after = task.translate(TEXT, beams=3)
    assert (before.ids, before.score) == (after.ids, after.score)
    assert not any(tap.listeners for tap in (module.tap for module in task.model.modules() if hasattr(module, "tap")))


@pytest.mark.parametrize("limit", [0, 7])
def test_a_completion(limit):
    task = texting.completer()
    trace = traces.trace_completion(task, "the do", max_length=limit, beams=2)
    want = task.complete("the do", max_length=limit, beams=2, nbest=2, length_penalty="mean")
    ids = [*want.prompt_ids, *want.ids]
    assert trace.sides["text"].tokens == tuple(task.tokenizer.pieces(ids))
    assert (trace.search is None) == (limit == 0)
    for one in trace.attentions:
        weights = one.look.weights()
        assert weights.shape[-2:] == (len(ids), len(ids))
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        assert torch.equal(weights, weights.tril())
    if limit:
        assert trace.written.log_probabilities[-len(want.ids):] == pytest.approx(want.log_probabilities[:len(want.ids)],
                                                                                 abs=1e-5)


@pytest.mark.parametrize("make", [texting.filler, texting.classifier, texting.tagger])
def test_a_text_that_is_read(make):
    task = make()
    trace = traces.trace_input(task, TEXT, name="tiny")
    [ids] = task.encode_texts([TEXT])
    assert trace.sides["text"].tokens == tuple(task.tokenizer.pieces(ids))
    assert len(trace.attentions) == 2
    assert all(one.look.weights().shape == (2, len(ids), len(ids)) for one in trace.attentions)


def test_a_blank_is_a_hidden_token():
    task = texting.filler()
    trace = traces.trace_input(task, "the ___ sleeps.")
    assert task.tokenizer.pieces([task.mask_id()])[0] in trace.sides["text"].tokens


def test_an_image():
    task = texting.seer()
    image = torch.rand(1, 8, 8)
    trace = traces.trace_image(task, image, title="one")
    side = trace.sides["image"]
    assert (side.grid, side.lead, len(side.tokens), trace.title) == ((4, 4), 0, 16, "one")
    assert [one.look.weights().shape for one in trace.attentions] == [(2, 16, 16)] * 2
    assert_named(lambda: traces.trace_image(texting.classifier(), image), ["`classifier`", "images"])


@pytest.mark.parametrize("text", ["", " ", "\u200b"])
def test_nothing_to_look_at_is_named(text):
    assert_named(lambda: traces.trace_translation(texting.translator(), text), ["`text`"])


def test_a_trace_of_everything_can_be_stored(tmp_path):
    for number, trace in enumerate([traces.trace_translation(texting.translator(), TEXT),
                                    traces.trace_completion(texting.completer(), "the", max_length=3),
                                    traces.trace_input(texting.filler(), TEXT),
                                    traces.trace_image(texting.seer(), torch.rand(1, 8, 8))]):
        path = tmp_path / f"{number}.safetensors"
        trace.save(path)
        again = Trace.load(path)
        assert again.sides == trace.sides
        for one, other in zip(trace.attentions, again.attentions, strict=True):
            torch.testing.assert_close(one.look.weights(), other.look.weights(), check_dtype=False)


def test_a_title_is_not_a_whole_book():
    text = "the big dog sleeps. " * 50
    trace = traces.trace_input(texting.filler(), text)
    assert len(trace.title) <= traces.TITLE_LENGTH
    assert trace.title.startswith(text[:60])
    assert trace.title.endswith("…")
    assert trace.sides["text"].text == text


def test_a_model_without_attention_has_nothing_to_see():
    both = texting.joint()
    config = replace(seq2seq(), source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    task = make_task(built(config), config, tokenizer=both)
    with pytest.raises(ValueError, match="no attention"):
        traces.trace_translation(task, TEXT, beams=1)
