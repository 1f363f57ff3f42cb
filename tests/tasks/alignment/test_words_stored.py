"""Where links are read is a matter of the model: chosen from pairs, stored with it, used by all that aligns."""

import os
from dataclasses import replace

import pytest
import texting
import torch
from tiny import TRANSLATING, built

import regard
from regard.inspection.trace import word_weights
from regard.tasks.alignment import MAX_CHOICE_PAIRS, AlignmentConfig, alignment_candidates
from regard.tasks.load import make_task

WHERE = AlignmentConfig(layer=1, head=1, offset=1, rounds=3)


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def again(task, **options):
    """The same model in a task of its own."""
    return make_task(task.model, task.config, tokenizer=task.tokenizer, **options)


@pytest.mark.parametrize("where", [None, WHERE, AlignmentConfig(layer=0)])
def test_it_comes_back(where, tmp_path):
    task = again(texting.translator(), aligned_by=where)
    task.save(tmp_path / "model")
    assert ("[alignment]" in (tmp_path / "model" / "config.toml").read_text()) == (where is not None)
    found = regard.load(tmp_path / "model")
    assert found.aligned_by == where
    text, translation = "the big dog sleeps.", "le gros chien dort."
    first, second = (one.aligned(text, translation) for one in (task, found))
    assert first.rounds == second.rounds == (1 if where is None else where.rounds)
    torch.testing.assert_close(first.weights, second.weights, rtol=0, atol=1e-5)  # in float32


@pytest.mark.parametrize(("line", "said"), [("layer = -1.5", "layer"), ("layer = 0\nheads = 1", "heads"),
                                            ("head = 0", "layer")])
def test_a_table_that_says_something_else(line, said, tmp_path):
    from regard import toml
    from regard.tasks import task as description

    again(texting.translator(), aligned_by=WHERE).save(tmp_path / "model")
    text = (tmp_path / "model" / "config.toml").read_text()
    begin = text.index("[alignment]\n") + len("[alignment]\n")
    wrong = f"{text[:begin]}{line}\n{text[text.index('[', begin):]}"
    with pytest.raises(ValueError, match=said):
        description.read_description(toml.parse_document(wrong, "config.toml"))


def test_it_is_used_unless_a_layer_is_asked_for():
    task = again(texting.translator(), aligned_by=WHERE)
    text, written = "the big dog sleeps.", "le gros chien dort."
    (looked,) = task._pair_attention([(text, task.tokenizer.target.encode(written))])
    assert looked.cross.shape[-2] == len(task.tokenizer.target.encode(written)) + 1
    want = word_weights(looked.cross[1, 1], looked.source, looked.target, 1)
    torch.testing.assert_close(task.aligned(text, written).weights, want)
    (translation,) = task.translate([text], max_length=6)
    (other,) = task._pair_attention([(text, translation.ids)])
    torch.testing.assert_close(task.align([text], [translation])[0].weights,
                               word_weights(other.cross[1, 1], other.source, other.target, 1))
    mean = word_weights(looked.cross[0].mean(0), looked.source, looked.target)
    torch.testing.assert_close(task.aligned(text, written, layer=0).weights, mean)
    for wrong in ({"layer": 9}, {"layer": 0, "head": 9}):
        with pytest.raises(ValueError, match=f"`{[*wrong][-1]}` must be one of the "):
            again(task, aligned_by=AlignmentConfig(**wrong)).aligned(text, written)


def test_what_cannot_be_aligned():
    task = texting.translator(embedding="learned")  # 12 positions
    (found,) = task.translate(["no"])
    with pytest.raises(ValueError, match=r"`texts` must be at most 12 tokens long, .* in text 1"):
        task.align(["no", "no " * 12], [found, found])
    for ask in (lambda: task.aligned("no", "non " * 30), lambda: task.aligned("no " * 12, "non")):
        with pytest.raises(ValueError, match="must be at most 12 tokens long"):
            ask()
    with pytest.raises(ValueError, match="`translations` must be results of `translate`, but is a str at 1"):
        task.align(["no", "no"], [found, "non"])


def test_it_belongs_to_translators():
    with pytest.raises(ValueError, match="`aligned_by` must be None, for a Filler, but is given"):
        again(texting.filler(), aligned_by=WHERE)
    with pytest.raises(ValueError, match="`aligned_by` must be an AlignmentConfig, but is a int"):
        again(texting.translator(), aligned_by=1)


def test_the_choice_is_of_the_pairs_alone():
    task, pairs = texting.translator(), texting.pairs()
    found = task.choose_alignment(pairs[:40])
    assert found in alignment_candidates(*task._pair_attention([("a", [5])])[0].cross.shape[:2])
    assert task.aligned_by is None
    assert again(task, aligned_by=WHERE).choose_alignment([list(pair) for pair in pairs[:40]]) == found
    many = pairs[:40] * (MAX_CHOICE_PAIRS // 40 + 1)
    assert task.choose_alignment(many) == task.choose_alignment(many[:MAX_CHOICE_PAIRS])


@pytest.mark.parametrize(("pairs", "said"), [
    ([], "`pairs` must be at least one, but is none"),
    (["ab", "cd"], r"`pairs` must be pairs of texts, \(text, translation\), but is 'ab' at 0"),
    ([("a", "b"), ("a",)], r"`pairs` must be pairs .* but is \('a',\) at 1"),
    ([("a", 5)], r"`pairs` must be pairs .* but is \('a', 5\) at 0"),
])
def test_what_are_no_pairs(pairs, said):
    with pytest.raises(ValueError, match=said):
        texting.translator().choose_alignment(pairs)


def test_a_model_that_looks_at_nothing_in_particular():
    both = texting.joint()
    sizes = {"source_vocab_size": both.source.size, "target_vocab_size": both.target.size}
    made = {}
    for kind in ("seq2seq", "seq2seq-attention", "attention"):
        config = replace(TRANSLATING[kind], **sizes)
        made[kind] = make_task(built(config), config, tokenizer=both)
    assert {kind: task.attends for kind, task in made.items()} == {
        "seq2seq": False, "seq2seq-attention": True, "attention": True}
    assert made["seq2seq-attention"].choose_alignment(texting.pairs()[:9]).head is None  # it has one
    with pytest.raises(ValueError, match="`model` must be one that attends to its memory"):
        made["seq2seq"].choose_alignment([("a", "b")])
