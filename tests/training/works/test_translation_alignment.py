"""A training chooses where its model reads which words belong together, and stores it with the model."""

import os
from dataclasses import replace

import pytest
import trained
from trained import request

import regard
from regard.data import phrasebook
from regard.training import train

RECURRENT = {"attention": "seq2seq-attention-tiny", "none": "seq2seq-tiny"}


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.parametrize("kind", ["transformer", "attention", "none"])
def test_the_choice_is_in_the_folder(kind, tmp_path):
    data, held = trained.pairs(tmp_path / "pairs.tsv"), trained.pairs(tmp_path / "held.tsv", 12, split="validation")
    asked = request(data, tmp_path / "model", {"training.validation.max_examples": 10}, validation=(held,))
    if kind != "transformer":
        tiny = {key: value for key, value in asked.changes.items() if not key.startswith("model.")}
        asked = replace(asked, recipe=RECURRENT[kind], changes={**tiny, "model.width": 16})
    train.train(asked)
    task = regard.load(tmp_path / "model")
    judged = [(pair.source, pair.target) for pair in phrasebook.pairs(10, split="validation", max_words=6)]
    assert task.attends == (kind != "none")
    assert task.aligned_by == (task.choose_alignment(judged) if task.attends else None)
