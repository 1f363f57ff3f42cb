"""The plan of translation: what is told of the data, and what follows from it."""

import os
from pathlib import Path

import pytest
import trained

from regard import toml
from regard.training.config import DataConfig
from regard.training.defaults import DeviceProperties
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.translation import TranslationSetup

CPU = DeviceProperties("cpu", 2**34, has_bfloat16=False)
PLAN = TranslationSetup()


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def data(tmp_path):
    return trained.pairs(tmp_path / "pairs.tsv", 40)


def survey(data, **options):
    return PLAN.survey(TrainingRequest("seq2seq", (str(data),), Path("model"), **options), DataConfig())


def prepared(path, place, **tables):
    config = {"data": {"validation_fraction": 0.1, "joint_tokenizer": True}, "tokenizer": {"kind": "characters"}} | tables
    return PLAN.prepare(survey(path), toml.document_of(config), place)


def test_what_is_left_out_is_told(data, tmp_path):
    path = tmp_path / "more.tsv"
    first = Path(data).read_text().splitlines()[0]
    path.write_text(f"{Path(data).read_text()}{first}\n\tx\ny\t\n")
    assert survey(path).warnings == ["Skipped 3 of 43 pairs: 2 with an empty side, 1 duplicate."]
    assert survey(data).warnings == []


def test_pairs_are_counted_as_they_are_read(data):
    seen = []

    def counted(pairs):
        for pair in pairs:
            seen.append(pair)
            yield pair

    survey(data, progress=counted)
    assert len(seen) == 40


def test_why_so_much_is_held_out(data, tmp_path):
    held = PLAN.data_defaults(survey(data), {})[0]
    assert held == ("data.validation_fraction", 0.04, "about 2 pairs for validation; no training pair shares a source with them")
    given = PLAN.data_defaults(survey(data, validation=(data,)), {})[0]
    assert given == ("data.validation_fraction", 0.0, "validation data is given")
    few = tmp_path / "few.tsv"
    few.write_text("a b\tc d\n")
    assert PLAN.data_defaults(survey(few), {})[0].reason.startswith("only 1 pair, so nothing is held out")


@pytest.mark.parametrize(("kind", "chosen"), [(None, True), ("unigram", True), ("bpe", True), ("bytes", False),
                                              ("characters", False)])
def test_only_subwords_have_a_vocabulary_to_choose(data, kind, chosen):
    asked = {} if kind is None else {"tokenizer": {"kind": kind}}
    assert ("tokenizer.vocab_size" in {choice.key for choice in PLAN.data_defaults(survey(data), asked)}) == chosen


@pytest.mark.parametrize("joint", [True, False])
def test_vocabularies_are_those_of_the_tokenizers(data, tmp_path, joint):
    made = prepared(data, tmp_path / "data", data={"validation_fraction": 0.1, "joint_tokenizer": joint})
    tables = {"model": {"kind": "encoder-decoder", "share_embeddings": True}}
    found = {choice.key: choice.value for choice in PLAN.training_defaults(made, tables, CPU)}
    assert found["model.source_vocab_size"] == made.tokenizer.source.size
    assert found["model.target_vocab_size"] == made.tokenizer.target.size
    assert found.get("model.share_embeddings") == (None if made.tokenizer.joint else False)


def test_an_epoch_has_as_many_steps_as_its_feed(data, tmp_path):
    made = prepared(data, tmp_path / "data")
    configs = [toml.document_of({"training": {"batches": {"max_tokens": tokens}}}) for tokens in (200, 400, 10**6)]
    few, fewer, one = (PLAN.steps_per_epoch(made, config) for config in configs)
    assert few > fewer > one == 1


def test_texts_are_stored_where_they_are_sampled(data, tmp_path):
    assert prepared(data, tmp_path / "a").texts is None
    assert prepared(data, tmp_path / "b", training={"subword_sampling": 0.1}).texts is not None
