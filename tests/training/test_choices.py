"""The eight choices of a training and its settings with reasons, for every task; comments of config.toml; resuming."""

import os
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import trained
from calling import call, idx
from trained import Recorder

import regard
from regard import toml
from regard.toml import flatten_tables
from regard.training import train
from regard.training.choices import (
    FIXED_DEFAULT,
    SET_BY_USER,
    Choice,
    config_comments,
    explain_settings,
    summarize_choices,
)
from regard.training.config_reference import read_reference
from regard.training.tasks.interface import TrainingRequest

NAMES = ("Model", "Vocabulary", "Batch", "Learning rate", "Schedule", "Regularization", "Epochs", "Validation")
KINDS = ("seq2seq", "language", "masked", "classify", "images")
OPTIONS = {"width": 16, "layers": 1, "steps": 2, "dropout": 0.0, "lr": 2e-3, "seed": 5}


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def write_data(folder, kind):
    path = folder / "data.tsv"
    if kind == "seq2seq":
        return [trained.pairs(path, 40)]
    if kind == "images":
        files = [folder / "images", folder / "labels"]
        files[0].write_bytes(idx(np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)))
        files[1].write_bytes(idx(np.arange(40, dtype=np.uint8) % 3))
        return [str(file) for file in files]
    if kind == "classify":
        path.write_text("".join(f"text number {number}\t{'odd' if number % 2 else 'even'}\n" for number in range(40)))
    else:
        path.write_text("".join(f"This is the text of line {number}, as it is.\n" for number in range(60)))
    return [str(path)]


@pytest.fixture(scope="module", params=KINDS)
def done(request, tmp_path_factory):
    """A finished training of two steps: its kind, its folder, and what it told."""
    folder = tmp_path_factory.mktemp(request.param)
    told, task = Recorder(), "classify" if request.param == "images" else request.param
    options = dict(OPTIONS) if request.param == "images" else {**OPTIONS, "batch_tokens": 300}
    asked = TrainingRequest(task, tuple(write_data(folder, request.param)), folder / "model", device="cpu",
                            options=options)
    assert train.train(asked, [told]).finished
    return request.param, folder / "model", told.of("TrainingStarted")[0], asked


def test_eight_choices_with_reasons(done):
    kind, _, started, _ = done
    assert tuple(choice.name for choice in started.choices) == NAMES
    for choice in started.choices:
        assert isinstance(choice, Choice)
        assert choice.value.strip(), choice
        assert choice.reason.strip(), choice
        assert len(choice.value) < 110
    found = {choice.name: choice for choice in started.choices}
    assert "width 16" in found["Model"].value
    assert "width and layers set by you" in found["Model"].reason
    assert (found["Learning rate"].value, found["Learning rate"].reason) == ("0.002 (AdamW)", "set by you (--lr 0.002)")
    assert (found["Epochs"].value, found["Epochs"].reason) == ("2 steps", "set by you (--steps 2)")
    assert "dropout" not in found["Regularization"].value  # it is 0
    assert found["Regularization"].reason.startswith(SET_BY_USER)
    assert found["Validation"].value.startswith({"seq2seq": "chrF", "language": "loss", "masked": "loss"}.get(
        kind, "accuracy"))
    if kind != "images":
        assert found["Batch"].reason == "set by you (--batch-tokens 300)"
        assert ("window" in found["Batch"].value) == (kind == "language")
    assert (found["Vocabulary"].value == "none") == (kind == "images")


def test_every_setting_has_a_reason(done):
    _, folder, started, _ = done
    stored = tomllib.loads((folder / "config.toml").read_text())
    settings = {one.key for one in read_reference()}  # a model also stores facts of its data
    keys = {key for key, _ in flatten_tables(stored)} & settings
    found = {setting.key: setting for setting in started.settings}
    assert keys <= set(found)
    assert all(setting.reason for setting in started.settings)
    assert found["training.seed"][1:] == ("5", "set by you (--seed 5)")
    assert found["training.max_grad_norm"].reason == FIXED_DEFAULT
    assert found["model.kind"].reason.startswith("recipe ")


def test_options_reach_the_model(done):
    kind, folder, _, _ = done
    model = regard.load(folder).config
    stacks = [model.encoder, model.decoder] if kind == "seq2seq" else [model.stack]
    assert model.width == 16
    assert [stack.layers for stack in stacks] == [1] * len(stacks)
    dropouts = {value for key, value in flatten_tables(tomllib.loads((folder / "config.toml").read_text())["model"])
                if key.split(".")[-1] == "dropout"}
    assert dropouts == {0.0}


def test_comments_of_the_stored_config(done, tmp_path):
    _, folder, started, _ = done
    text = (folder / "config.toml").read_text()
    comments = toml.read_comments(text)
    reasons = {default.key: default.reason for default in started.defaults}
    assert comments["recipe"] == reasons["recipe"]
    assert comments["training.schedule.warmup_steps"] == reasons["training.schedule.warmup_steps"]
    assert not [key for key in ("model.width", "training.seed", "training.schedule.learning_rate") if key in comments]
    assert max(map(len, text.split("\n"))) <= 120
    regard.load(folder).save(tmp_path / "again")
    again = (tmp_path / "again" / "config.toml").read_text()
    assert toml.read_comments(again) == comments
    assert tomllib.loads(again) == tomllib.loads(text)


def test_a_training_that_is_done_may_repeat_its_options(done, tmp_path):
    _, folder, _, asked = done
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    again = TrainingRequest(asked.task, asked.data, copy, device="cpu", options=asked.options, resume=True)
    assert train.train(again).finished
    other = TrainingRequest(asked.task, asked.data, copy, device="cpu", options={"width": 32}, resume=True)
    with pytest.raises(ValueError, match=r"model\.width: 16 is stored, 32 is requested"):
        train.train(other)


def test_a_resumed_training_tells_the_same(tmp_path):
    """And its config.toml has the same comments."""
    data = trained.pairs(tmp_path / "pairs.tsv", 40)
    options = {"width": 16, "layers": 1, "steps": 4}
    changes = {"training.checkpoints.every": 1, "training.validation.every": 4, "training.log_every": 1}
    whole, cut, rest = Recorder(), Recorder(stop=("TrainingProgress", 3)), Recorder()

    def run(name, logger, **more):
        train.train(TrainingRequest("seq2seq", (data,), tmp_path / name, device="cpu", options=options,
                                    changes=changes, **more), [logger])

    run("whole", whole)
    with pytest.raises(KeyboardInterrupt):
        run("cut", cut)
    run("cut", rest, resume=True)
    first, again = whole.of("TrainingStarted")[0], rest.of("TrainingStarted")[0]
    assert again.first_step > 1
    assert (again.choices, again.settings, again.defaults) == (first.choices, first.settings, ())
    assert (tmp_path / "cut" / "config.toml").read_bytes() == (tmp_path / "whole" / "config.toml").read_bytes()


def test_every_setting_on_the_command_line(tmp_path):
    data = trained.pairs(tmp_path / "pairs.tsv", 40)
    code, _, said = call("train", data, "-o", tmp_path / "model", "--device", "cpu", "--width", 16, "--layers", 1,
                         "--steps", 1, "--explain")
    assert code == 0
    for key in ("training.optimizer.beta2", "model.encoder.mixer.heads", "data.filters.max_words"):
        assert key in said
    assert "Regularization" not in said


TABLES = {"recipe": "lstm-tiny", "model": {"kind": "language", "width": 128, "vocab_size": 90, "stack": {
              "layers": 1, "dropout": 0.4, "norm_position": "none"}},
          "tokenizer": {"kind": "characters"}, "data": {"validation_fraction": 0.1},
          "training": {"epochs": 6.0, "gradient_accumulation": 2, "ema_decay": 0.99, "label_smoothing": 0.0,
                       "windows": {"length": 128, "batch_size": 16}, "optimizer": {"name": "adam", "weight_decay": 0.1},
                       "schedule": {"shape": "cosine", "learning_rate": 0.002, "warmup_steps": 0, "max_steps": 1234,
                                    "constant_fraction": 0.0, "final_fraction": 0.1},
                       "validation": {"metric": "loss", "every": 61}}}


def test_values_in_words():
    found = {choice.name: choice.value for choice in summarize_choices(TABLES, {}, 1_234_567)}
    assert found == {
        "Model": "lstm-tiny: 1 layer, width 128, 1.2 million parameters", "Vocabulary": "90 characters",
        "Batch": "16 windows of 128 tokens, 2 batches per step", "Learning rate": "0.002 (Adam)",
        "Schedule": "cosine decay to 10% of the rate", "Regularization": "dropout 0.4, weight decay 0.1, EMA 0.99",
        "Epochs": "6 (1,234 steps)", "Validation": "loss every 61 steps"}


@pytest.mark.parametrize(("limit", "reason"), [(90, "why 90"), (4000, "4,000")])
def test_a_text_with_fewer_subwords_than_allowed(limit, reason):
    """The reason for the limit is not one for the size."""
    tables = {**TABLES, "tokenizer": {"kind": "unigram", "vocab_size": limit}}
    vocabulary = summarize_choices(tables, {"tokenizer.vocab_size": "why 90"}, 1)[1]
    assert vocabulary.value == "90 subwords"
    assert reason in vocabulary.reason


@pytest.mark.parametrize(("seconds", "shown"), [(15.0, "15 seconds"), (90.0, "90 seconds"), (1800.0, "30 minutes"),
                                                (5400.0, "90 minutes"), (9000.0, "2.5 hours")])
def test_a_time_limit_in_words(seconds, shown):
    tables = {**TABLES, "training": {**TABLES["training"], "max_time": seconds}}
    reasons = {"training.max_time": "set by you (--time)", "training.epochs": "upper limit"}
    epochs = summarize_choices(tables, reasons, 1)[6]
    assert epochs == ("Epochs", f"6 (1,234 steps), at most {shown}", "upper limit; time limit set by you")


def test_settings_without_reasons():
    """As of a checkpoint that has none."""
    found = {setting.key: setting for setting in explain_settings(TABLES, {})}
    assert found["model.width"][1:] == ("128", "recipe lstm-tiny")
    assert found["model.stack.dropout"].reason == FIXED_DEFAULT  # the recipe has another
    assert found["training.windows.length"][1:] == ("128", FIXED_DEFAULT)
    assert explain_settings({**TABLES, "recipe": "no-such-recipe"}, {})
    assert config_comments({"a": "set by you (--lr 1)", "b": "few pairs"}) == {"b": "few pairs"}


def test_options_that_the_data_cannot_have(tmp_path):
    """Images have no vocabulary, and few characters need more than a tiny one: the option is named."""
    images, text = write_data(tmp_path, "images"), write_data(tmp_path, "language")
    Path(text[0]).write_text("".join(map(chr, range(0x4e00, 0x4e80))) * 20)
    for task, data, options, parts in (("classify", images, {"vocab_size": 300}, ["--vocab-size 300", "images"]),
                                       ("language", text, {"vocab_size": 300}, ["--vocab-size 300", "at least"])):
        asked = TrainingRequest(task, tuple(data), tmp_path / "model", device="cpu", options=options)
        with pytest.raises(ValueError, match=parts[0]) as error:
            train.train(asked)
        assert parts[1] in str(error.value)
        assert not (tmp_path / "model").exists()
