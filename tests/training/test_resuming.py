"""What a training that goes on must share with what was stored, and what is said where it does not."""

import json
from pathlib import Path

import pytest

from regard import toml
from regard.data.sources.text import DataError
from regard.training.resolution import check_same_files, check_same_tokenizer, stored_config, training_identity
from regard.training.tasks.interface import TrainingRequest

CONFIG = {"recipe": "transformer-tiny", "model": {"width": 128}, "data": {"filters": {"drop": ["empty", "copy"]}},
          "training": {"seed": 1, "epochs": 60.0}}


def request(**options):
    given = {"task": "seq2seq", "data": ("/here/en.txt", "/here/fr.txt"), "output": Path("model")} | options
    return TrainingRequest(**given)


@pytest.fixture
def stored():
    """As it comes back from a checkpoint."""
    return json.loads(json.dumps(training_identity(request(), CONFIG, {"en.txt": "aa", "fr.txt": "bb"}, "cc")))


@pytest.mark.parametrize("asked", [
    {}, {"recipe": "transformer"}, {"recipe": "transformer-tiny"}, {"training": {"epochs": 60}},
    {"model": {"width": 128}, "training": {"seed": 1}}, {"data": {"filters": {"drop": ["empty", "copy"]}}},
])
def test_the_same_or_less_goes_on(stored, asked):
    found = stored_config(stored, request(data=("/there/en.txt", "/there/fr.txt")), toml.document_of(asked))
    assert found.tables == CONFIG


@pytest.mark.parametrize(("options", "asked", "lines"), [
    ({"task": "language"}, {}, ["task: seq2seq is stored, language is requested"]),
    ({"data": ("fr.txt", "en.txt")}, {}, ["DATA: en.txt fr.txt is stored, fr.txt en.txt is requested"]),
    ({"data": ("en.txt",), "validation": ("fr.txt",)}, {}, [
        "DATA: en.txt fr.txt is stored, en.txt is requested", "--validation: nothing is stored, fr.txt is requested"]),
    ({"source": "1", "target": "2"}, {}, ["--source: nothing is stored, 1 is requested",
                                          "--target: nothing is stored, 2 is requested"]),
    ({"format": "plain"}, {}, ["--format: nothing is stored, plain is requested"]),
    ({}, {"recipe": "transformer-small"}, ["recipe: transformer-tiny is stored, transformer-small is requested"]),
    ({}, {"recipe": "conv"}, ["recipe: transformer-tiny is stored, conv is requested"]),
    ({}, {"model": {"width": 64}, "training": {"seed": 1, "max_grad_norm": 0.5}}, [
        "model.width: 128 is stored, 64 is requested", "training.max_grad_norm: nothing is stored, 0.5 is requested"]),
    ({}, {"data": {"filters": {"drop": ["empty"]}}}, ["data.filters.drop: empty copy is stored, empty is requested"]),
])
def test_every_difference_is_told(stored, options, asked, lines):
    with pytest.raises(DataError) as error:
        stored_config(stored, request(**options), toml.document_of(asked))
    assert str(error.value).split("\n") == [
        "model: This training cannot be resumed with other settings.", *(f"  {line}" for line in lines),
        "Request the same, or choose another folder."]


def test_seq2seq_is_no_size_of_another_recipe(stored):
    stored["config"]["recipe"] = "seq2seq-attention"
    assert stored_config(stored, request(), toml.document_of({"recipe": "seq2seq-attention"}))
    with pytest.raises(DataError, match="recipe: seq2seq-attention is stored, seq2seq is requested"):
        stored_config(stored, request(), toml.document_of({"recipe": "seq2seq"}))


def test_files_that_are_others(stored):
    check_same_files(stored["files"], {"en.txt": "aa", "fr.txt": "bb"}, request())
    with pytest.raises(DataError) as error:
        check_same_files(stored["files"], {"en.txt": "ab", "de.txt": "cc"}, request())
    assert str(error.value).split("\n") == [
        "model: This training cannot be resumed with other data.", "  en.txt: its sha256 is ab, and was aa",
        "  fr.txt: its sha256 is missing, and was bb", "  de.txt: its sha256 is cc, and was missing",
        "Give the files as they were, or choose another folder."]


def test_another_tokenizer(stored):
    check_same_tokenizer(stored, stored, Path("model/data"))
    with pytest.raises(DataError, match=r"^model/data: This training started with another tokenizer.* is dd, and was cc\. Restore"):
        check_same_tokenizer(stored, {**stored, "tokenizer": "dd"}, Path("model/data"))
    with pytest.raises(DataError, match="is None, and was cc"):
        check_same_tokenizer(stored, {**stored, "tokenizer": None}, Path("model/data"))
