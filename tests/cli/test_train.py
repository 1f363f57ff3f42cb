"""`regard train`: exit codes, what goes to which stream, and mistakes that are told before anything is begun."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trained
from calling import call

from regard.training import logging
from regard.training import train as run
from regard.training.loop import TrainingError, TrainingState

HELP = ("--task", "--validation", "--recipe", "--set", "--resume", "--tensorboard", "--device", "-o", "130")


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return trained.pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


def short(data, output, *more, **changes):
    """A training of two steps."""
    changes = {"training__schedule__max_steps": 2, "training__validation__every": 2} | changes
    return trained.arguments(data, output, *more, **changes)


def test_a_model_in_one_command(data, tmp_path):
    code, out, said = call(*short(data, tmp_path / "model"))
    assert (code, out) == (0, f"{tmp_path / 'model'}\n")  # the result; how it went is on stderr
    assert "Settings and their reasons" in said
    assert "Ended at step 2" in said
    assert call("translate", tmp_path / "model", stdin="They are here.\n")[0] == 0
    code, out, said = call(*short(data, tmp_path / "model"))
    assert (code, out) == (2, "")
    assert said.startswith(f"Error: {tmp_path / 'model'}: There is a training in this folder already.")
    assert "--resume" in said
    code, out, said = call(*short(data, tmp_path / "model", "--resume"))
    assert (code, out) == (0, f"{tmp_path / 'model'}\n")
    assert "There is nothing left to do" in said


def test_curves_for_tensorboard(data, tmp_path, monkeypatch):
    """Written inside the folder, which is not made before it is claimed; without the package, the remedy."""
    told = []

    class Curves(trained.Recorder):
        def __init__(self, folder):
            super().__init__()
            told.append((folder, folder.parent.exists(), self))

    monkeypatch.setattr(logging, "TensorBoardLogger", Curves)
    assert call(*short(data, tmp_path / "model", "--tensorboard"))[0] == 0
    [(folder, there, curves)] = told
    assert (folder, there) == (tmp_path / "model" / "track", False)
    assert (len(curves.of("TrainingProgress")), curves.closed) == (2, 1)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_curves_without_tensorboard(data, tmp_path):
    code, out, said = call(*short(data, tmp_path / "model", "--tensorboard"))
    assert (code, out) == (2, "")
    assert 'pip install "regard[track]"' in said
    assert not (tmp_path / "model").exists()


def wrong(tmp_path, *arguments):
    """What is said of a call that is wrong, which leaves nothing behind."""
    code, out, said = call("train", *arguments, "-o", tmp_path / "model", "--device", "cpu")
    assert (code, out) == (2, "")
    assert said.startswith("Error: ")
    assert "Traceback" not in said
    return said.removeprefix("Error: ")


@pytest.mark.parametrize(("arguments", "parts"), [
    (["--set", "training.schedule.stpes=5"], ['unknown key "stpes" in [training.schedule]; did you mean']),
    (["--set", "model.widht=5", "--set", "trainin.seed=1", "--set", "training.max_grad_norm=-1"],
     ['unknown key "widht" in [model]; did you mean "width"?', 'unknown table "trainin"; did you mean "training"?',
      '"max_grad_norm" in [training]: expected a finite number, at least 0.0, but got -1']),
    (["--set", "nonsense"], ['"nonsense": expected a key and its value, such as model.width=512']),
    (["--recipe", "transfromer"], ['Did you mean "transformer"?']),
    (["--recipe", "nowhere.toml"], ["nowhere.toml: there is no such file"]),
    (["--recipe", "gpt"], ["`model.kind` must be one for --task seq2seq"]),
    (["--task", "translate"], ['`task` must be one of "seq2seq", "language", "masked", "classify"']),
])
def test_mistakes_are_told_before_any_data_is_looked_for(tmp_path, arguments, parts):
    said = wrong(tmp_path, "nowhere.tsv", *arguments)
    for part in parts:
        assert part in said
    assert "nowhere.tsv" not in said
    assert not (tmp_path / "model").exists()


def test_mistakes_in_a_recipe_of_their_own_have_lines(tmp_path):
    recipe = tmp_path / "train.toml"
    recipe.write_text('[training]\nseed = 1\n[training.optimizer]\nlearning_rat = 3\nname = "adam"\n'
                      'weight_decay = "much"\n')
    said = wrong(tmp_path, "nowhere.tsv", "--recipe", recipe)
    assert said.split("\n")[:2] == [
        f'{recipe}:4: unknown key "learning_rat" in [training.optimizer]; expected one of "name", "beta1", "beta2", '
        '"epsilon", "weight_decay"',
        f'{recipe}:6: "weight_decay" in [training.optimizer]: expected a finite number, at least 0.0, but got "much"']


@pytest.mark.parametrize(("files", "arguments", "parts"), [
    ({}, ["nowhere.tsv"], ["nowhere.tsv: There is no such file. Check the name."]),
    ({}, ["-"], ["standard input: Training reads its data more than once"]),
    ({"en.txt": "a\nb\nc\n", "fr.txt": "x\ny\n"}, ["en.txt", "fr.txt"], ["en.txt", "fr.txt", "3", "2"]),
    ({"en.txt": "a\n"}, ["en.txt"], ["Plain files come in twos, sources and then targets"]),
    ({"a.tsv": "one\tun\n", "b.tsv": " \t \n"}, ["a.tsv", "--validation", "b.tsv"],
     ["b.tsv: The filters keep none of these pairs"]),
    ({"a.tsv": " \t \n"}, ["a.tsv"], ["a.tsv: No pair is kept. There is nothing to train on."]),
    ({"a.tsv": "one\n"}, ["a.tsv"], ["a.tsv:1"]),
    ({"a.tsv": "one\tun\n"}, ["a.tsv", "--source", "3", "--target", "1"], ["a.tsv:1"]),
    ({"a.tsv": "one\tun\n"}, ["a.tsv", "--format", "csv"], ['`format` must be one of "plain", "tsv"']),
])
def test_data_that_cannot_be_learned_from(tmp_path, monkeypatch, files, arguments, parts):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    said = wrong(tmp_path, *arguments)
    for part in parts:
        assert part in said


def test_a_folder_of_somebody_else(tmp_path, data):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("all of it")
    assert "thesis.txt" in wrong(tmp_path, data)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["thesis.txt"]


def test_no_training_to_go_on_with(tmp_path, data):
    assert "There is no training to resume. Leave out --resume to start one." in wrong(tmp_path, data, "--resume")


def test_what_failed_is_told_apart_from_what_was_asked(tmp_path, data):
    """A rate far too high is not known to be one before."""
    code, out, said = call(*trained.arguments(data, tmp_path / "model", training__schedule__learning_rate="1e30",
                                              training__schedule__warmup_steps=0))
    assert (code, out) == (1, "")
    assert "the loss is not a finite number. Its batch has the examples" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("result", "code", "shown"), [
    (TrainingError("it broke"), 1, "Error: it broke\n"),
    (ValueError("it is wrong"), 2, "Error: it is wrong\n"),
    (OSError(28, "No space left on device", "model/x"), 1, "Error: model/x: No space left on device\n"),
    (OSError(28, "No space left on device"), 1, "Error: model: No space left on device\n"),
    (run.TrainingResult(TrainingState(), Path("model"), True, True), 0, ""),
    (run.TrainingResult(TrainingState(), Path("model"), False, True), 130, ""),
    (run.TrainingResult(TrainingState(), Path("model"), True, False), 0, ""),
])
def test_how_it_ends(monkeypatch, result, code, shown):
    asked = []

    def train(request, loggers):
        asked.append(request)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(run, "train", train)
    found, out, said = call("train", "a.tsv", "b.tsv", "-o", "model", "--task", "masked", "--validation", "c.tsv",
                            "--validation", "d.tsv", "--set", "a.b=1", "--set", 'c="x=y"', "--resume", "--source", "en")
    assert (found, said) == (code, shown)
    assert out == ("model\n" if isinstance(result, run.TrainingResult) and result.main else "")
    request = asked[0]
    assert (request.task, request.data, request.validation) == ("masked", ("a.tsv", "b.tsv"), ("c.tsv", "d.tsv"))
    assert (request.changes, request.resume) == ({"a.b": 1, "c": "x=y"}, True)
    assert (request.source, request.target, request.device) == ("en", None, "auto")


def test_data_and_a_folder_must_be_named():
    assert call("train", "a.tsv")[0] == 2
    assert call("train", "-o", "model")[0] == 2


def test_the_help_names_everything_and_does_not_load_torch():
    code = "import sys; from regard.cli.main import app; app(['train', '--help'], standalone_mode=False); " \
           "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "COLUMNS": "100"})
    assert (done.returncode, done.stderr) == (0, "")
    for part in HELP:
        assert part in done.stdout
