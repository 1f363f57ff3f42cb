"""Losses: sums of -log p, one text and one token at a time, as the oracle."""

import math
from dataclasses import replace

import numpy as np
import pytest
import texting
import torch
from tiny import LANGUAGE, built

from regard.data.batches.batch import MaskingConfig
from regard.tasks import evaluation
from regard.tasks import task as batching
from regard.tasks.evaluation import translation_loss
from regard.tasks.load import make_task
from regard.tokens import Tokens


@pytest.fixture
def small(monkeypatch):
    """Batches of few tokens, and few logits held at a time."""
    monkeypatch.setattr(batching.length_batches, "__defaults__", (60,))
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
        assert evaluation.text_loss(task, "the big dog sleeps. We sing.", window=length).nll == pytest.approx(whole, rel=1e-6)


def test_windows_and_texts_that_cannot_be():
    task = texting.completer(embedding="learned")
    with pytest.raises(ValueError, match="`window` must be at most 12, .*but is 13"):
        evaluation.text_loss(task, "the big dog", window=13)
    with pytest.raises(ValueError, match="`ids` must be at least two, .*but is 1"):
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
    all_hidden = evaluation.masked_loss(task, texts[:1], masking=MaskingConfig(mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0))
    want = nll(task.model(Tokens(torch.full((1, len(ids)), task.special.mask)))[0], ids)
    assert (all_hidden.tokens, all_hidden.nll) == (len(ids), pytest.approx(want, rel=1e-6))
    np.testing.assert_allclose(evaluation.TokenLoss(0.0, 0).mean, 0.0)


def test_a_model_in_training_mode_is_refused():
    task = texting.translator(order="post")
    task.model.train()
    with pytest.raises(ValueError, match="`model` must be in evaluation mode"):
        translation_loss(task, [("a", "b")])
