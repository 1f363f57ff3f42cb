"""Evaluation: BLEU, chrF, losses and accuracy."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
import texting
import torch
from texting import LABELS
from tiny import LANGUAGE, built

from regard.data.batches.batch import MaskingConfig
from regard.tasks import evaluation
from regard.tasks import task as batching
from regard.tasks.evaluation import (
    bleu,
    chrf,
    corpus_scores,
    evaluate_classifier,
    evaluate_translator,
    scores_by_length,
    translation_loss,
)
from regard.tasks.load import make_task
from regard.tokens import Tokens


@pytest.mark.thorough
def test_a_translator():
    task, pairs = texting.translator(), texting.pairs()[:8]
    found = evaluate_translator(task, pairs, beams=2, lowercase=True)
    sources, targets = zip(*pairs, strict=True)
    made = [one.text for one in task.translate(sources, beams=2, length_penalty="mean")]
    assert found.hypotheses == tuple(made)
    assert found.scores == corpus_scores(made, targets, lowercase=True, draws=1000)
    assert found.by_length == tuple(scores_by_length(sources, made, targets, lowercase=True))
    assert found.loss.tokens == evaluation.translation_loss(task, pairs).tokens
    assert 0 <= found.cut <= len(pairs)
    with pytest.raises(ValueError, match="`pairs` must be at least one text"):
        evaluate_translator(task, [])


def test_a_classifier():
    task = texting.classifier()
    texts = [source for source, _ in texting.pairs()[:9]]
    best = [labels[0] for labels in task.classify(texts)]
    right = evaluate_classifier(task, texts, [label.name for label in best])
    assert (right.examples, right.correct, right.accuracy) == (9, 9, 1.0)
    assert right.loss == pytest.approx(-sum(math.log(label.probability) for label in best) / 9)
    wrong = [LABELS[(LABELS.index(label.name) + 1) % 3] for label in best]
    assert evaluate_classifier(task, texts, wrong).accuracy == 0.0
    with pytest.raises(ValueError, match="`labels` must be labels of the model, cold, hot, warm, but is 'tepid'"):
        evaluate_classifier(task, texts, ["tepid"] * 9)
    for texts_, names in ((texts, ["hot"]), ([], [])):
        with pytest.raises(ValueError, match="`labels` must be one for each"):
            evaluate_classifier(task, texts_, names)


def test_images():
    task, images = texting.seer(), torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8)
    names = [labels[0].name for labels in task.classify(images)]
    assert evaluate_classifier(task, images, names).correct == 6


REFERENCES = ["The big dog sleeps .", "Emma sees a cat .", "We sing in the rain and the dogs bark at the moon", "No ."]
HYPOTHESES = ["The big cat sleeps .", "Emma sees the cat .", "we sing in the rain while dogs bark at the moon", "No ."]


@pytest.mark.parametrize(("options", "words"), [
    ({}, ["case:mixed", "tok:13a"]), ({"lowercase": True}, ["case:lc"]), ({"tokenize": "none"}, ["tok:none"]),
    ({"tokenize": "intl"}, ["tok:intl"]),
])
def test_the_numbers_are_those_of_sacrebleu(options, words):
    found = corpus_scores(HYPOTHESES, REFERENCES, **options)
    want = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], force=True, **options)
    assert found.bleu == pytest.approx(want.score)
    assert 10 < found.bleu < 90
    lower = [{True: str.lower, False: str}["lowercase" in options](text) for text in HYPOTHESES + REFERENCES]
    assert found.chrf == pytest.approx(sacrebleu.corpus_chrf(lower[:4], [lower[4:]]).score)
    for word in ("nrefs:1", f"version:{sacrebleu.__version__}", *words):
        assert word in found.bleu_signature
    assert "nc:6" in found.chrf_signature
    assert bleu(HYPOTHESES, REFERENCES, **options) == (found.bleu, found.bleu_signature)


def test_the_command_of_sacrebleu_says_the_same(tmp_path):
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-m", "bleu", "-b", "-w", "6"]
    said = subprocess.run(command, input="\n".join(HYPOTHESES) + "\n", capture_output=True, text=True, timeout=60)
    assert float(said.stdout) == pytest.approx(bleu(HYPOTHESES, REFERENCES).value, abs=1e-5)


def test_unequal_counts_are_refused():
    assert sacrebleu.corpus_bleu(["a b c d", "nothing"], [["a b c d"]]).score == pytest.approx(100)  # what is avoided
    for score in (bleu, chrf, corpus_scores):
        with pytest.raises(ValueError, match="`hypotheses` must be as many as the 1 references, but is 2 of them"):
            score(["a b c d", "nothing"], ["a b c d"])
        with pytest.raises(ValueError, match="`hypotheses` must be at least one text, but is none"):
            score([], [])
        with pytest.raises(ValueError, match="`references` must be a list of texts, but is one text"):
            score(["a"], "a")
    with pytest.raises(ValueError, match="`sources` must be as many as the 2 hypotheses"):
        scores_by_length(["a"], ["a", "b"], ["a", "b"])


def test_no_tokenizer_that_needs_a_network():
    with pytest.raises(ValueError, match=r'`tokenize` must be one of "13a", .* but is "spm"'):
        bleu(["a"], ["a"], tokenize="spm")


def test_scores_by_the_length_of_the_source():
    sources = ["one two", "w " * 10, "w " * 11, "w " * 51, "", "w " * 20]
    texts = [source for source, _ in texting.pairs()[:6]]
    made = [*texts[:2], "nothing alike", *texts[3:]]
    found = scores_by_length(sources, made, texts)
    assert [(bucket.least, bucket.most, bucket.pairs) for bucket in found] == [(0, 10, 3), (11, 20, 2), (51, None, 1)]
    assert found[0].bleu == pytest.approx(100)
    assert found[1].chrf == pytest.approx(chrf([made[2], made[5]], [texts[2], texts[5]]).value)
    assert found[1].bleu < 100
    assert [bucket.pairs for bucket in scores_by_length(sources, made, texts, edges=(2, 4))] == [2, 4]


def test_a_hundred_tokenised_lines_are_not_remarked_upon(caplog):
    bleu(["a b c d ."] * 120, ["a b c d ."] * 120)
    assert caplog.text == ""


@pytest.fixture
def small(monkeypatch):
    """Batches of few tokens, and few logits held at a time."""
    monkeypatch.setattr(batching, "MAX_BATCH_TOKENS", 60)
    monkeypatch.setattr(evaluation, "MAX_LOGITS", 3000)


def nll(logits, labels):
    """The sum of -log p, plainly."""
    return -sum(float(row.log_softmax(-1)[label]) for row, label in zip(logits, labels, strict=True))


@torch.no_grad()
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pair", [texting.joint, texting.separate])
def test_pairs(pair):
    task = texting.translator(pair=pair)
    pairs = [*texting.pairs()[:12], ("the dog", ""), ("", "le chien")]
    total, count = 0.0, 0
    for source, target in pairs:
        ids = task.tokenizer.target.encode(target)
        memory = task.model.encode(Tokens(torch.tensor([[*task.tokenizer.source.encode(source), 3]])))
        total += nll(task.model.decode(Tokens(torch.tensor([[2, *ids]])), memory)[0], [*ids, 3])
        count += len(ids) + 1
    found = evaluation.translation_loss(task, iter(pairs))
    assert found.tokens == count
    assert found.nll == pytest.approx(total, rel=1e-6)
    assert translation_loss(task, pairs).mean == pytest.approx(total / count, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-6)


@torch.no_grad()
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [None, 7, 1])
def test_a_text_in_windows(length):
    task = texting.completer(embedding="learned")  # 12 positions
    text = "the big dog sleeps.\nWe sing."
    ids, total = task.tokenizer.encode(text), 0.0
    for start in range(0, len(ids) - 1, length or 12):
        window = ids[start:start + (length or 12) + 1]
        total += nll(task.model(Tokens(torch.tensor([window[:-1]])))[0], window[1:])
    found = evaluation.text_loss(task, text, window=length)
    assert (found.tokens, found.nll) == (len(ids) - 1, pytest.approx(total, rel=1e-6))


@torch.no_grad()
@pytest.mark.parametrize("name", ["old", "old mut2"])
def test_a_recurrent_model_keeps_its_state_over_windows(name):
    config = replace(LANGUAGE[name], vocab_size=texting.characters().size)
    task = make_task(built(config), config, tokenizer=texting.characters())
    ids = task.tokenizer.encode("the big dog sleeps. We sing.")
    whole = nll(task.model(Tokens(torch.tensor([ids[:-1]])))[0], ids[1:])
    for length in (5, 300):
        assert evaluation.text_loss(task, "the big dog sleeps. We sing.", window=length).nll == pytest.approx(whole,
                                                                                                              rel=1e-6)


def test_windows_and_texts_that_cannot_be():
    task = texting.completer(embedding="learned")
    with pytest.raises(ValueError, match=r"`window` must be at most 12, .*but is 13"):
        evaluation.text_loss(task, "the big dog", window=13)
    with pytest.raises(ValueError, match=r"`ids` must be at least two, .*but is 1"):
        evaluation.text_loss(task, "a")


@torch.no_grad()
@pytest.mark.usefixtures("small")
def test_hidden_tokens():
    task = texting.filler()
    texts = [source for source, _ in texting.pairs()[:30]]
    masking = MaskingConfig(mlm_probability=0.3, mask_replace_prob=1.0, random_replace_prob=0.0)
    found = evaluation.masked_loss(task, texts, masking=masking, seed=5)
    again = evaluation.masked_loss(task, texts, masking=masking, seed=5)
    other = evaluation.masked_loss(task, texts, masking=masking, seed=6)
    assert found == again
    assert found != other
    every = sum(len(task.tokenizer.encode(text)) for text in texts)
    assert 0.2 * every < found.tokens < 0.4 * every
    ids = task.tokenizer.encode(texts[0])
    masking = MaskingConfig(mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
    all_hidden = evaluation.masked_loss(task, texts[:1], masking=masking)
    want = nll(task.model(Tokens(torch.full((1, len(ids)), task.special.mask)))[0], ids)
    assert (all_hidden.tokens, all_hidden.nll) == (len(ids), pytest.approx(want, rel=1e-6))
    np.testing.assert_allclose(evaluation.TokenLoss(0.0, 0).mean, 0.0)


def test_a_model_in_training_mode_is_refused():
    task = texting.translator(order="post")
    task.model.train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        translation_loss(task, [("a", "b")])
