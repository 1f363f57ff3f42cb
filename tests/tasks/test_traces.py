"""Traces of tasks, and what a watched task tells."""

import copy
import functools
import math
import pickle
from dataclasses import replace

import pytest
import texting
import torch
from refusals import assert_named
from tiny import Seq2SeqAttentionConfig, built, seq2seq

import regard
from regard.attention.look import find_taps
from regard.decoding.forced import with_cross
from regard.decoding.request import Hypothesis
from regard.inspection.trace import Trace
from regard.inspection.watch import NotRecordedError
from regard.tasks import traces
from regard.tasks.alignment import AlignmentConfig
from regard.tasks.load import make_task
from regard.tokens import Tokens

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
    assert_named(lambda: traces.trace_translation(texting.translator(), TEXT, beams=2, choice=2), ["`choice`",
                                                                                                   "2 results"])


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


def test_a_result_is_chosen_by_its_text():
    task = texting.translator()
    best = task.translate(TEXT, beams=4, nbest=4)
    texts = [best.text, *(one.text for one in best.alternatives)]
    assert len({*texts}) > 1
    for number in map(texts.index, {*texts}):
        trace = traces.trace_translation(task, TEXT, beams=4, translation=f" {texts[number]}\n")
        want = traces.trace_translation(task, TEXT, beams=4, choice=number)
        assert trace.sides["target"] == want.sides["target"]
        assert len(trace.search.nodes) == len(want.search.nodes)
    other = traces.trace_translation(task, TEXT, beams=4, translation="le grand chat dort.")
    assert other.sides["target"] == traces.trace_forced(task, TEXT, "le grand chat dort.").sides["target"]
    assert other.search is None


def test_a_translation_that_is_too_long_is_refused():
    task = texting.translator("learned")
    with pytest.raises(ValueError, match="`translation`"):
        traces.trace_forced(task, "a", "le chat " * 200)
    with pytest.raises(ValueError, match="`text`"):
        traces.trace_forced(task, "the cat " * 200, "le chat")


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


def by_sorting(logs, count, never=()):
    """The most probable ids of a row of log-probabilities, the best first."""
    order = sorted((id_ for id_ in range(len(logs)) if id_ not in never), key=lambda id_: -logs[id_])
    return order[:count]


@pytest.mark.parametrize("mixer", ["attention", "rwkv7"])
@pytest.mark.parametrize("limit", [0, 5])
def test_a_language_model_says_what_it_predicted_at_each_place(mixer, limit, tmp_path):
    task = texting.completer(mixer)
    made = traces.trace_completion(task, "the dog sees", max_length=limit)
    found, tokenizer = made.predictions, task.text_tokenizer()
    [ids] = task.encode_prompts(["the dog sees"])
    if limit:
        ids = [*ids, *task.complete("the dog sees", max_length=limit).ids]
    with torch.no_grad():
        logs = task.model(Tokens(torch.tensor([ids])))[0].log_softmax(-1).tolist()
    assert found.side == "text"
    assert found.log_probabilities[0] is None
    want = [row[id_] for row, id_ in zip(logs, ids[1:], strict=False)]
    assert found.log_probabilities[1:] == pytest.approx(want, abs=1e-4)
    assert found.candidates[0] == ()
    assert len(found.candidates) == len(ids) + 1  # the last are those of the next token
    never = traces.ids_without_token(tokenizer, task.vocabularies[-1])
    for place, row in enumerate(logs):
        best = by_sorting(row, traces.CANDIDATES, never)
        assert found.candidates[place + 1] == tuple(tokenizer.pieces(best))
        assert found.candidate_log_probabilities[place + 1] == pytest.approx([row[id_] for id_ in best], abs=1e-4)
    made.save(tmp_path / "a.safetensors")
    assert Trace.load(tmp_path / "a.safetensors").predictions == found


def test_predictions_are_the_same_in_chunks(monkeypatch):
    task, text = texting.completer(), "the dog sees a cat"
    want = traces.trace_completion(task, text).predictions
    monkeypatch.setattr("regard.decoding.forced.PREFILL_CHUNK", 3)
    found = traces.trace_completion(task, text).predictions
    assert found.candidates == want.candidates
    assert found.log_probabilities[1:] == pytest.approx(want.log_probabilities[1:], abs=2e-4)
    monkeypatch.setattr(traces, "MAX_RANKED_TOKENS", 4)
    short = traces.trace_completion(task, text).predictions
    assert short.log_probabilities == found.log_probabilities
    assert short.candidates == ((),) * len(short.log_probabilities) + want.candidates[-1:]


def test_a_classifier_has_the_probabilities_of_its_labels():
    task = texting.classifier()
    made = traces.trace_input(task, TEXT, influence_limit=1)  # there are more words, and a label all the same
    assert made.influence is None
    best = task(TEXT)
    assert made.sides["label"].tokens == (best[0].name,)
    assert made.predictions.candidates == (tuple(label.name for label in best),)
    found = torch.tensor(made.predictions.candidate_log_probabilities[0]).exp()
    torch.testing.assert_close(found, torch.tensor([label.probability for label in best]), rtol=0, atol=1e-4)
    assert traces.trace_input(task, TEXT).predictions is None


def test_a_labeller_has_the_probabilities_of_its_labels():
    task = texting.tagger()
    made = traces.trace_input(task, "the dog sleeps")
    labelled = task.label("the dog sleeps")
    probabilities = task.label_probabilities([["the", "dog", "sleeps"]])[0].tolist()
    firsts = [word.first_token for word in made.sides["labels"].words]
    known = [place for place, one in enumerate(made.predictions.log_probabilities) if one is not None]
    assert known == firsts
    for place, one, row in zip(firsts, labelled.tokens, probabilities, strict=True):
        assert math.exp(made.predictions.log_probabilities[place]) == pytest.approx(one.probability, abs=1e-4)
        want = [task.label_names()[number] for number in by_sorting(row, traces.CANDIDATES)]
        assert made.predictions.candidates[place] == tuple(want)


def test_a_blank_has_what_fills_it():
    task = texting.filler()
    made = traces.trace_input(task, "the ___ sleeps.")
    [blank] = [place for place, row in enumerate(made.predictions.candidates) if row]
    assert made.sides["text"].tokens[blank] == task.tokenizer.pieces([task.mask_id()])[0]
    want = task.fill("the ___ sleeps.", top_k=traces.CANDIDATES).blanks[0]
    assert made.predictions.candidates[blank] == tuple(task.tokenizer.pieces([one.id for one in want]))
    found = [math.exp(one) for one in made.predictions.candidate_log_probabilities[blank]]
    assert found == pytest.approx([one.probability for one in want], abs=1e-4)
    assert traces.trace_input(task, "the dog sleeps.").predictions is None


@pytest.mark.parametrize("make", [texting.filler, texting.classifier])
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
    with pytest.raises(ValueError, match="`given"), regard.watch(task) as outer:
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
