"""Influence: leaving out every word at once equals a literal loop, for every task; and what is said about it."""

import functools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import texting
import theirs
import torch
from asking import without_attention
from calling import call, tables
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named
from tiny import TRANSLATING, VISION, built

import regard
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TraceSide
from regard.reference import statistics as reference
from regard.tasks import influence as module
from regard.tasks import traces
from regard.tasks.filler import encode_with_blanks, spans_with_blanks
from regard.tasks.influence import MAX_GROUPS, MIN_EFFECT, MIN_ROW_SUM, Influence, traced_influence, word_groups
from regard.tasks.load import make_task
from regard.tokens import Tokens

BLANK = "the ___ sleeps"
TEXT, TRANSLATED = "the big dog sleeps.", "le gros chien dort."
LONG = " ".join(["the big dog sees a small cat"] * 12)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """What is not trained hardly ends by itself."""
    monkeypatch.setattr("regard.tasks.translator.EXTRA_LENGTH", 2)
    monkeypatch.setattr("regard.tasks.translator.LENGTH_FACTOR", 1)


@functools.cache
def of_kind(name):
    """An untrained translator of this kind, in double precision."""
    both = texting.joint()
    config = replace(TRANSLATING[name], source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config).double(), config, tokenizer=both)


def alone(logits, ids):
    """The log-probability of each id, from the logits (n, V) that predict them."""
    return [float(row.log_softmax(-1)[id_]) for row, id_ in zip(logits, ids, strict=True)]


def by_loop(task, source, words, target):
    """The definition: a pass for the whole source and one without each word, each source by itself."""
    def logs(ids):
        with torch.no_grad():
            memory = task.model.encode(Tokens(torch.tensor([ids])))
            return alone(task.model.decode(Tokens(torch.tensor([[task.start_id(), *target[:-1]]])), memory)[0], target)

    return reference.influence(logs, source, [range(word.first_token, word.last_token + 1) for word in words])


def in_words(values, words, count):
    """Sums over the tokens of each word, and the rest by itself."""
    rows = [sum(values[at] for at in range(word.first_token, word.last_token + 1)) for word in words]
    last = max((word.last_token for word in words), default=-1)
    return np.stack([*rows, *(values[at] for at in range(last + 1, count))])


@pytest.mark.parametrize("name", ["attention", "convolution", "recurrence", "rwkv7", "seq2seq", "seq2seq-attention"])
def test_translations_as_a_loop_finds_them(name):
    task = of_kind(name)
    both = task.pair_tokenizer()
    [source], target = both.encode_sources([TEXT]), [*both.target.encode(TRANSLATED), task.end_ids()[0]]
    want = by_loop(task, source, both.source_words(TEXT), target)
    found = task.influence(TEXT, TRANSLATED)
    assert found.words == ("the", "big", "dog", "sleeps", ".")
    assert found.targets == ("le", "gros", "chien", "dort", ".", both.target.pieces(target[-1:])[0])
    assert [TEXT[span.start:span.end] for span in found.word_spans] == [*found.words]
    assert [TRANSLATED[span.start:span.end] for span in found.target_spans[:-1]] == [*found.targets[:-1]]
    rows = in_words(want, both.target.decoded_words(target[:-1]), len(target))
    np.testing.assert_allclose(found.values.numpy(), rows, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.totals.numpy(), want.sum(0), rtol=0, atol=1e-12)


def test_what_the_translator_wrote_and_a_result_of_it():
    task = of_kind("attention")
    best = task.translate(TEXT, beams=3, nbest=2)
    for one in (best, best.alternatives[0]):
        found = task.influence(TEXT, one)
        both = task.pair_tokenizer()
        target = [*one.ids, *([] if one.cut else task.end_ids()[:1])]
        want = by_loop(task, both.encode_sources([TEXT])[0], both.source_words(TEXT), target)
        np.testing.assert_allclose(found.totals.numpy(), want.sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(task.influence(TEXT).values, task.influence(TEXT, task.translate(TEXT)).values)


def test_a_model_for_several_languages_keeps_its_control_token():
    both = texting.several()
    config = replace(TRANSLATING["attention"], source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    task = make_task(built(config).double(), config, tokenizer=both)
    for code in ("fr", "de"):
        own = task.into(code)
        [source], words = own.tokenizer.encode_sources([TEXT]), own.tokenizer.source_words(TEXT)
        assert source[0] == both.source.control_id(f"<2{code}>")
        want = by_loop(own, source, words, [*both.target.encode(TRANSLATED), task.end_ids()[0]])
        np.testing.assert_allclose(task.influence(TEXT, TRANSLATED, to=code).totals.numpy(), want.sum(0), atol=1e-12)
    with pytest.raises(ValueError, match="--to"):
        task.influence(TEXT, TRANSLATED)


def test_a_long_text_is_left_out_in_groups_that_can_be_refined():
    task = of_kind("attention")
    both, count = task.pair_tokenizer(), len(LONG.split())
    found = task.influence(LONG, TRANSLATED)
    assert len(found.words) <= MAX_GROUPS < count
    assert [number for group in found.groups for number in group] == [*range(count)]
    assert found.words[1] == " ".join(LONG.split()[number] for number in found.groups[1])
    [source], words = both.encode_sources([LONG]), both.source_words(LONG)
    target = [*both.target.encode(TRANSLATED), task.end_ids()[0]]
    group = [words[number] for number in found.groups[5]]
    joined = [group[0]._replace(last_token=group[-1].last_token)]
    np.testing.assert_allclose(found.totals[5].item(), by_loop(task, source, joined, target).sum(), atol=1e-12)
    fine = task.influence(LONG, TRANSLATED, words=found.groups[5])
    assert fine.groups == tuple((number,) for number in found.groups[5])
    np.testing.assert_allclose(fine.totals.numpy(), by_loop(task, source, group, target).sum(0), atol=1e-12)


def test_words_are_left_out_together_on_request():
    task = of_kind("attention")
    both = task.pair_tokenizer()
    [source], words = both.encode_sources([TEXT]), both.source_words(TEXT)
    target = [*both.target.encode(TRANSLATED), task.end_ids()[0]]
    found = task.influence(TEXT, TRANSLATED, words=[(0, 1), 2, (1, 3)])
    assert found.groups == ((0, 1), (2,), (1, 3))
    assert found.words == ("the big", "dog", "big … sleeps")

    def logs(ids):
        with torch.no_grad():
            memory = task.model.encode(Tokens(torch.tensor([ids])))
            return alone(task.model.decode(Tokens(torch.tensor([[task.start_id(), *target[:-1]]])), memory)[0], target)

    tokens = [[at for number in group for at in range(words[number].first_token, words[number].last_token + 1)]
              for group in found.groups]
    np.testing.assert_allclose(found.totals.numpy(), reference.influence(logs, source, tokens).sum(0), atol=1e-12)


@given(st.integers(0, 1000))
def test_groups_are_even_neighbours(count):
    groups = word_groups(count)
    assert [number for group in groups for number in group] == [*range(count)]
    assert len(groups) == count <= MAX_GROUPS or len(groups) <= MAX_GROUPS < count
    assert len({len(group) for group in groups[:-1]}) <= 1


def test_batches_change_nothing(monkeypatch):
    task = of_kind("seq2seq-attention")
    want = task.influence(TEXT, TRANSLATED).values
    monkeypatch.setattr(module, "MAX_LOGITS", 20 * task.vocabularies[-1])
    torch.testing.assert_close(task.influence(TEXT, TRANSLATED).values, want, rtol=0, atol=1e-12)


def test_nothing_to_leave_out():
    task = of_kind("attention")
    found = task.influence("", TRANSLATED)
    assert (found.words, found.without_effect, found.values.shape) == ((), (), (6, 0))
    assert found.strongest() == (None,) * 6
    assert task.influence("dog", "").values.shape == (1, 1)


@functools.cache
def completer():
    task = texting.completer()
    return make_task(built(task.config).double(), task.config, tokenizer=task.tokenizer)


def test_a_text_that_a_language_model_reads():
    """Each token after a word, predicted once with the word and once without it."""
    task, text = completer(), "a dog sees a cat"
    tokenizer = task.text_tokenizer()
    [ids], words = task.encode_prompts([text]), module.row_words(task, text, task.encode_prompts([text])[0])
    found = module.text_tokens(task, ids, words)

    def logs(row):
        with torch.no_grad():
            return [math.nan, *alone(task.model(Tokens(torch.tensor([row])))[0, :-1], row[1:])]

    whole = logs(ids)
    for column, word in enumerate(words):
        first, last = word.first_token, word.last_token
        without = logs(ids[:first] + ids[last + 1:])
        for at in range(len(ids)):
            value = float(found.values[at, column])
            if at <= last or at == last + 1 == last - first + 1:  # not after it, or with nothing before it
                assert math.isnan(value)
            else:
                assert value == pytest.approx(whole[at] - without[at - (last - first + 1)], abs=1e-12)
    made = task.influence(text)
    assert made.words == ("a", "dog", "sees", "a", "cat")
    assert made.targets[-4:] == ("dog", "sees", "a", "cat")
    assert "cat" not in made.without_effect  # nothing comes after it
    assert len(tokenizer.pieces(ids)) == len(ids)


def test_a_continuation_that_a_language_model_wrote():
    task = completer()
    one = task.complete("a dog sees", max_length=6)
    prompt, target = [*one.prompt_ids], [*one.ids, *([] if one.cut else task.end_ids()[:1])]

    def logs(row):
        with torch.no_grad():
            return alone(task.model(Tokens(torch.tensor([[*row, *target[:-1]]])))[0, len(row) - 1:], target)

    words = task.text_tokenizer().decoded_words(prompt)
    want = reference.influence(logs, prompt, [range(word.first_token, word.last_token + 1) for word in words])
    found = task.influence(one)
    assert found.words == ("a", "dog", "sees")
    np.testing.assert_allclose(found.totals.numpy(), want.sum(0), rtol=0, atol=1e-12)


def test_a_prompt_of_one_word_cannot_be_empty():
    task = completer()
    assert task.special.cls is None
    found = task.influence(task.complete("dog", max_length=3))
    assert bool(found.values.isnan().all()) or not found.targets
    assert found.without_effect == ()


@pytest.mark.parametrize("label", [None, "cold"])
def test_the_label_of_a_text(label):
    task = texting.classifier()
    names, tokenizer = task.label_names(), task.text_tokenizer()
    [row] = task.encode_texts([TEXT])
    number = names.index(label) if label else names.index(str(task(TEXT)[0]))

    def logs(ids):
        with torch.no_grad():
            return [float(task.model(Tokens(torch.tensor([ids])))[0].log_softmax(-1)[number])]

    before = 0 if task.special.cls is None else 1
    words = [range(word.first_token + before, word.last_token + before + 1) for word in tokenizer.words(TEXT)]
    found = task.influence(TEXT, label)
    assert found.targets == (names[number],)
    np.testing.assert_allclose(found.values.numpy(), reference.influence(logs, row, words), rtol=0, atol=2e-6)
    assert_named(lambda: task.influence(TEXT, "warmer"), ["`label`", '"warm"'])
    with pytest.raises(ValueError, match="images"):
        texting.seer().influence(TEXT)


@pytest.mark.parametrize("name", sorted(VISION))
def test_patches_become_grey(name):
    config = VISION[name]
    task = make_task(built(config).double(), config)
    image = torch.rand(config.channels, config.image_height, config.image_width, dtype=torch.float64) * 2 - 1
    found, size = task.influence(image), config.patch_size
    with torch.no_grad():
        whole = task.model(image.unsqueeze(0))[0].log_softmax(-1)
        number = int(whole.argmax())
        want = []
        for top in range(0, config.image_height, size):
            for left in range(0, config.image_width, size):
                other = image.clone()
                other[:, top:top + size, left:left + size] = 0.0
                want.append(float(whole[number] - task.model(other.unsqueeze(0))[0].log_softmax(-1)[number]))
    assert found.targets == (task.label_names()[number],)
    assert (found.words[0], found.words[-1]) == ("1,1", f"{config.image_height // size},{config.image_width // size}")
    np.testing.assert_allclose(found.values[0].numpy(), want, rtol=0, atol=1e-12)
    last = task.influence(image, words=[len(want) - 1])
    np.testing.assert_allclose(last.values.numpy(), [want[-1:]], rtol=0, atol=1e-12)


def test_many_patches_become_grey_in_blocks():
    groups = module.block_groups((14, 13))
    assert len(groups) == 49
    assert sorted(patch for group in groups for patch in group) == [*range(14 * 13)]
    assert groups[0] == (0, 1, 13, 14)
    assert module.block_groups((8, 8)) == tuple((patch,) for patch in range(64))
    assert len(module.block_groups((1, 1000))) <= MAX_GROUPS


@pytest.mark.parametrize(("make", "text"), [(texting.tagger, TEXT), (texting.character_tagger, "MKVLA")])
def test_the_labels_of_the_other_tokens(make, text):
    task = make()
    labelled = task.label(text)
    tokens = [one.token for one in labelled.tokens]
    found = task.influence(text)
    assert found.words == tuple(tokens)
    assert found.targets == tuple(f"{one.token}/{one.label}" for one in labelled.tokens)
    whole = task.label_probabilities([tokens])[0].log()
    for s in range(len(tokens)):
        without = task.label_probabilities([[*tokens[:s], *tokens[s + 1:]]])[0].log()
        for t in range(len(tokens)):
            label = task.label_names().index(labelled.labels[t])
            value = float(found.values[t, s])
            if s == t:
                assert math.isnan(value)
            else:
                assert value == pytest.approx(float(whole[t, label] - without[t - (t > s), label]), abs=5e-6)


BLANKS = {"the big ___ sleeps.": ("the", "big", "___", "sleeps", "."), "  the ____.": ("the", "____", "."),
          "___ sees the ___": ("___", "sees", "the", "___"), "dogs, ___, cats": ("dogs", ",", "___", ",", "cats")}


@pytest.mark.parametrize("text", sorted(BLANKS))
def test_what_fills_a_blank(text):
    task = texting.filler()
    found, ids, mask = task.influence(text), task.encode_blanks(text), task.mask_id()
    assert found.words == BLANKS[text]
    best = [blank[0] for blank in task.fill(text).blanks]
    assert found.targets == tuple(one.text for one in best)
    assert [text[span.start:span.end] for span in found.target_spans] == [word for word in found.words if "_" in word]
    places = [at for at, id_ in enumerate(ids) if id_ == mask]

    def logs(kept):
        with torch.no_grad():
            rows = task.model(Tokens(torch.tensor([[ids[at] for at in kept]])))[0].log_softmax(-1)
        return {at: rows[number] for number, at in enumerate(kept) if at in places}

    whole = logs(range(len(ids)))
    for column, word in enumerate(task.blank_words(text, ids)):
        tokens = range(word.first_token, word.last_token + 1)
        without = logs([at for at in range(len(ids)) if at not in tokens])
        for row, (at, one) in enumerate(zip(places, best, strict=True)):
            want = float(whole[at][one.id] - without[at][one.id]) if at in without else math.nan
            assert float(found.values[row, column]) == pytest.approx(want, abs=5e-6, nan_ok=True)


@pytest.mark.parametrize("of", [texting.tokenizer, texting.characters, ByteTokenizer])
@pytest.mark.parametrize("text", [*sorted(BLANKS), "a  ___ é ____ ___", "___", "the ___, the", " ___"])
def test_words_of_a_text_with_blanks_have_the_ids_of_the_text(of, text):
    task = texting.filler(of)
    ids, end, tokenizer = task.encode_blanks(text), 0, task.text_tokenizer()
    words = task.blank_words(text, ids)
    assert [text[word.start:word.end] for word in words] == re.findall(r"_+|[^\W_]+|[.,]", text)
    for word in words:
        assert word.first_token == end  # each id is in one word
        end = word.last_token + 1
        own, name = ids[word.first_token:end], text[word.start:word.end]
        assert tokenizer.decode([id_ for id_ in own if id_ != task.mask_id()]).strip() == name.strip("_")
        assert (task.mask_id() in own) == ("_" in name)
    assert end == len(ids)


@pytest.mark.parametrize("text", sorted(BLANKS))
def test_blanks_of_a_tokenizer_of_another_program_have_their_characters(text):
    tokenizer, mask = theirs.byte_level(), 9999
    ids = encode_with_blanks(tokenizer, text, mask)
    spans = spans_with_blanks(tokenizer, text, ids, mask)
    for id_, span in zip(ids, spans, strict=True):
        name = text[span.start:span.end]
        assert set(name) == {"_"} if id_ == mask else tokenizer.decode([id_]) == name


def of_values(values, words=None):
    values = torch.as_tensor(values, dtype=torch.float64)
    names = tuple(f"w{number}" for number in range(values.shape[1])) if words is None else words
    return Influence(tuple(f"t{number}" for number in range(values.shape[0])), names, values,
                     tuple((number,) for number in range(values.shape[1])), (None,) * values.shape[0],
                     (None,) * values.shape[1])


def test_shares_and_words_without_effect_are_those_of_the_definition():
    for _ in range(50):
        values = torch.randn(3, 5, dtype=torch.float64) * torch.tensor([0.05, 0.1, 0.2, 0.5, 2.0], dtype=torch.float64)
        found = of_values(values)
        np.testing.assert_allclose(found.shares().numpy(), reference.influence_shares(values.numpy(), MIN_ROW_SUM))
        assert found.without_effect == tuple(f"w{s}" for s in reference.without_effect(values.numpy(), MIN_EFFECT))
        best = reference.influence_shares(values.numpy(), MIN_ROW_SUM)
        assert found.strongest() == tuple(int(row.argmax()) if row.any() else None for row in best)


def test_thresholds_punctuation_and_what_is_not_defined():
    nan = math.nan
    found = of_values([[0.149, -0.15, 0.0, nan, 0.0, 0.1], [-0.149, 0.0, 0.0, nan, nan, 0.0]],
                      ("a", "b", ".", "c", "two", "«»"))
    assert found.without_effect == ("a", "two")
    assert found.table()["without_effect"] == [0, 4]
    assert found.table()["values"][1][3] is None
    json.dumps(found.table(), allow_nan=False)
    torch.testing.assert_close(found.shares(), torch.zeros(2, 6, dtype=torch.float64))  # sums of 0.249 and 0
    assert "without effect: a, two" in repr(found)
    assert "<svg" in found._repr_html_()
    assert found.totals.tolist() == pytest.approx([0.0, -0.15, 0.0, 0.0, 0.0, 0.1])


@pytest.mark.parametrize(("ask", "parts"), [
    (lambda: of_kind("attention").influence(["a"]), ["`text`", "a list"]),
    (lambda: of_kind("attention").influence(TEXT, 3), ["`translation`"]),
    (lambda: of_kind("attention").influence(TEXT, TRANSLATED, words=[5]), ["`words`", "5 words"]),
    (lambda: of_kind("attention").influence(TEXT, TRANSLATED, words=[-1]), ["`words`", "-1"]),
    (lambda: of_kind("attention").influence(TEXT, TRANSLATED, words=[(0, 5)]), ["`words`", "5 words"]),
    (lambda: of_kind("attention").influence(TEXT, TRANSLATED, words=[()]), ["`words`", "an empty group"]),
    (lambda: of_kind("attention").influence(TEXT, TRANSLATED, words="the"), ["`words`", "'t'"]),
    (lambda: of_kind("attention").influence("a \ud800", TRANSLATED), ["`text`", "U+D800"]),
    (lambda: of_kind("attention").influence(TEXT, "\ud800"), ["`translation`", "U+D800"]),
    (lambda: completer().influence("\ud800"), ["`given`", "U+D800"]),
    (lambda: texting.classifier().influence("\ud800"), ["`given`", "U+D800"]),
    (lambda: texting.tagger().influence("\ud800"), ["`text`", "U+D800"]),
    (lambda: of_kind("untied").influence(LONG, TRANSLATED), ["`text`", "12 tokens"]),
    (lambda: completer().influence(3), ["`given`"]),
    (lambda: texting.classifier().influence(3), ["`given`"]),
    (lambda: texting.seer().influence(torch.zeros(8, 8)), ["`given`", "(C, H, W)"]),
    (lambda: texting.tagger().influence(["a"]), ["`text`"]),
])
def test_what_is_wrong_is_named(ask, parts):
    assert_named(ask, parts)


# Traces, and the commands

TRACED = {
    "translator": (texting.translator, lambda task, limit: traces.trace_translation(task, TEXT, influence_limit=limit),
                   lambda task: task.influence(TEXT), ("target", "source")),
    "forced": (texting.translator, lambda task, limit: traces.trace_forced(task, TEXT, TRANSLATED,
                                                                           influence_limit=limit),
               lambda task: task.influence(TEXT, TRANSLATED), ("target", "source")),
    "text": (texting.completer, lambda task, limit: traces.trace_completion(task, "a dog", influence_limit=limit),
             lambda task: task.influence("a dog"), ("text", "text")),
    "classifier": (texting.classifier, lambda task, limit: traces.trace_input(task, TEXT, influence_limit=limit),
                   lambda task: task.influence(TEXT), ("label", "text")),
    "filler": (texting.filler, lambda task, limit: traces.trace_input(task, BLANK, influence_limit=limit), None,
               ("text", "text")),
    "labeller": (texting.tagger, lambda task, limit: traces.trace_input(task, TEXT, influence_limit=limit),
                 lambda task: task.influence(TEXT), ("labels", "text")),
}


@pytest.mark.parametrize("name", sorted({*TRACED} - {"filler"}))
def test_a_trace_has_the_influence_that_the_task_says(name, tmp_path):
    make, trace, ask, sides = TRACED[name]
    task = make()
    assert trace(task, 0).influence is None
    assert trace(task, 1).influence is None  # there are more words
    made = trace(task, 64)
    assert (made.influence.rows, made.influence.columns) == sides
    made.save(tmp_path / "a.safetensors")
    read, want = traced_influence(Trace.load(tmp_path / "a.safetensors")), ask(task)
    assert (read.targets, read.words, read.groups) == (want.targets, want.words, want.groups)
    torch.testing.assert_close(read.values, want.values, rtol=0, atol=4e-4, equal_nan=True)  # rounded sums
    assert traced_influence(trace(task, 0)) is None


def test_the_trace_of_a_text_with_a_blank_has_one_row():
    task = texting.filler()
    made = traces.trace_input(task, BLANK, influence_limit=64)
    assert [BLANK[word.start:word.end] for word in made.sides["text"].words] == ["the", "___", "sleeps"]
    [row] = [row for row in made.influence.values if any(value is not None for value in row)]
    assert row[1] is None  # the blank itself
    assert [row[0], row[2]] == pytest.approx(task.influence(BLANK).values[0, [0, 2]].tolist(), abs=1e-4)
    assert traces.trace_input(task, "the dog sleeps", influence_limit=64).influence is None


REFINED = {**TRACED, "long translator": (
    texting.translator, lambda task, limit: traces.trace_forced(task, LONG, TRANSLATED, influence_limit=limit), None,
    ("target", "source"))}


@pytest.mark.parametrize("name", sorted(REFINED))
def test_a_trace_computes_the_influence_of_words_while_its_model_is_there(name, tmp_path):
    """What it says of some words is what it says of them among all words."""
    make, trace, _, sides = REFINED[name]
    task = make()
    made = trace(task, 1)
    assert made.influence is None  # there are more words
    count = len(made.sides[sides[1]].words)
    whole, some = made.leave_out(None), made.leave_out([count - 1, 0])
    assert (some.rows, some.columns) == sides
    for column, number in enumerate((count - 1, 0)):
        word = made.sides[sides[1]].words[number]
        assert some.tokens[column] == tuple(range(word.first_token, word.last_token + 1))
    if count <= MAX_GROUPS:
        for row, all_of_them in zip(some.values, whole.values, strict=True):
            want = [math.nan if value is None else value for value in (all_of_them[-1], all_of_them[0])]
            got = [math.nan if value is None else value for value in row]
            assert got == pytest.approx(want, abs=2e-4, nan_ok=True)
    else:  # the groups of a long text are refined to what the task itself says of their words
        assert len(whole.tokens) <= MAX_GROUPS
        fine = task.influence(LONG, TRANSLATED, words=[count - 1, 0])
        assert [sum(row[column] for row in some.values) for column in (0, 1)] == pytest.approx(fine.totals.tolist(),
                                                                                               abs=2e-3)
    with pytest.raises(ValueError, match="`words`"):
        made.leave_out([count])
    made.save(tmp_path / "a.safetensors")
    assert Trace.load(tmp_path / "a.safetensors").leave_out is None


def test_the_words_of_a_large_group_are_left_out_in_smaller_ones():
    task = texting.completer()
    made = traces.trace_completion(task, LONG)
    found = made.leave_out(range(1, 80))
    assert len(found.tokens) == 40
    words = made.sides["text"].words
    assert found.tokens[0] == (*range(words[1].first_token, words[1].last_token + 1),
                               *range(words[2].first_token, words[2].last_token + 1))


def test_the_trace_of_a_completion():
    task = texting.completer()
    made = traces.trace_completion(task, "a dog", max_length=4, influence_limit=64)
    found = task.search(["a dog"], regard.Beam(beams=1, length_penalty="none", max_length=4))[0]
    assert (made.influence.rows, made.influence.columns) == ("written", "text")
    want = task.influence(found)
    torch.testing.assert_close(traced_influence(made).totals, want.totals, rtol=0, atol=3e-4)


def test_the_trace_of_an_image_has_its_pixels():
    task = texting.seer()
    config = task.config
    pixels = torch.randint(0, 256, (config.channels, config.image_height, config.image_width), dtype=torch.uint8)
    from regard.data.images import scale_pixels

    image = scale_pixels(pixels)
    made = traces.trace_image(task, image, influence_limit=64)
    kept = made.sides["image"].image
    assert (kept.height, kept.width, kept.channels) == (config.image_height, config.image_width, config.channels)
    assert kept.pixels == pixels.permute(1, 2, 0).numpy().tobytes()
    want = task.influence(pixels)
    torch.testing.assert_close(traced_influence(made).values, want.values, rtol=0, atol=6e-5)
    assert made.sides["label"] == TraceSide(want.targets, want.targets[0], ((0, len(want.targets[0]), 0, 0),))
    with regard.watch(task) as records:
        task.classify(pixels.unsqueeze(0))
    assert records.trace().sides["image"].image == kept


def test_the_search_says_what_it_ranks_by():
    task = texting.translator()
    for beams, name in ((1, "total"), (3, "mean")):
        made = traces.trace_translation(task, TEXT, beams=beams, prefix="le")
        assert made.search.ranked_by == name
        scores = [made.search.nodes[place].score for place in made.search.best]
        want = task.translate(TEXT, beams=beams, nbest=beams, prefix="le",
                              length_penalty="mean" if beams > 1 else "none")
        assert scores == pytest.approx([one.score for one in (want, *want.alternatives)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for name, make in {"translator": texting.translator, "completer": texting.completer, "tagger": texting.tagger,
                       "plain": without_attention}.items():
        make().save(place / name)
    return place


def test_the_terminal_names_words_without_effect(folders, monkeypatch):
    code, out, _ = call("look", folders / "translator", TEXT, "--terminal")
    assert code == 0
    found = regard.load(folders / "translator").influence(TEXT)
    assert ("No effect: " + ", ".join(found.without_effect) if found.without_effect else "Every word") in out
    assert "Influence" not in call("look", folders / "translator", TEXT, "--terminal", "--no-influence")[1]
    monkeypatch.setattr(module, "MIN_EFFECT", 1e9)
    monkeypatch.setattr(module, "MIN_ROW_SUM", -1.0)
    out = " ".join(call("look", folders / "translator", TEXT, "--terminal")[1].split())
    assert "No effect: the, big, dog, sleeps." in out
    assert "depends most on" in out


def test_long_texts_have_it_on_request_only(folders, tmp_path):
    for text, options, there in ((" ".join([LONG] * 4), [], False), (LONG, ["--influence"], True), (LONG, [], True)):
        path = tmp_path / f"{there}{len(options)}.safetensors"
        assert call("look", folders / "completer", text, "-o", path, *options)[0] == 0
        found = Trace.load(path).influence
        assert (found is not None) is there
        assert found is None or len(found.tokens) <= MAX_GROUPS
    code, _, said = call("look", tmp_path / "True0.safetensors", "--no-influence")
    assert (code, "--influence" in said) == (2, True)


@pytest.mark.parametrize("name", ["translator", "plain"])
def test_translate_writes_it_as_json(folders, name):
    task = regard.load(folders / name)
    [found, blank] = tables("translate", folders / name, TEXT, "", "--influence", "-n", "2")
    best = task.translate(TEXT, nbest=2)
    for table, one in zip((found, *found["alternatives"]), (best, *best.alternatives), strict=True):
        want = task.influence(TEXT, one)
        assert [word["text"] for word in table["influence"]["words"]] == [*want.words]
        assert [word["text"] for word in table["influence"]["targets"]] == [*want.targets]
        np.testing.assert_allclose(table["influence"]["values"], want.values.numpy(), atol=1e-5)
    assert blank["influence"]["words"] == []


def test_translate_needs_json_and_torch_for_it(folders):
    assert "--json" in call("translate", folders / "translator", TEXT, "--influence")[2]
    assert "--influence" in call("translate", folders / "translator", TEXT, "--influence", "--json", "--engine",
                                 "ctranslate2")[2]
