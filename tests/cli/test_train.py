"""`regard train`: exit codes, what goes to which stream, and mistakes that are told before anything is begun."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
import trained
from calling import call

import regard
from regard.cli import train as cli_train
from regard.cli.train import resume_command
from regard.training import logging
from regard.training import train as run
from regard.training.loop import TrainingError, TrainingState

HELP = ("--task", "--validation", "--recipe", "--set", "--resume", "--time", "--quiet", "--tensorboard",
        "--device", "-o", "130")


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
    for choice in ("Model", "Vocabulary", "Batch", "Learning rate", "Schedule", "Regularization", "Epochs",
                   "Validation"):
        assert re.search(rf"^  {choice} +\S", said, re.MULTILINE), choice
    assert all(part in said for part in ("Finished 2 steps", "CPU core", f"regard translate {tmp_path / 'model'} "))
    assert call("translate", tmp_path / "model", stdin="They are here.\n")[0] == 0
    code, out, said = call(*short(data, tmp_path / "model"))
    assert (code, out) == (2, "")
    assert said.startswith(f"Error: {tmp_path / 'model'}: There is a training in this folder already.")
    assert "--resume" in said
    code, out, said = call(*short(data, tmp_path / "model", "--resume"))
    assert (code, out) == (0, f"{tmp_path / 'model'}\n")
    assert "There is nothing left to do" in said


def test_languages(data, tmp_path):
    code, _, said = call(*short(data, tmp_path / "model", "--languages", "pt-BR-en", training__schedule__max_steps=1))
    assert code == 0
    assert "pairs.tsv (pt-BR-en)" in said
    translator = regard.load(tmp_path / "model")
    assert (translator.source_lang, translator.target_lang) == ("pt-BR", "en")
    assert '- "pt-BR"' in (tmp_path / "model" / "README.md").read_text()
    translator.target_lang = "en-GB"
    translator.save(tmp_path / "other")
    again = regard.load(tmp_path / "other")
    assert (again.source_lang, again.target_lang) == ("pt-BR", "en-GB")
    with pytest.raises(ValueError, match=r"`target_lang` must be .*pt-BR"):
        again.target_lang = "english"


@pytest.mark.parametrize(("arguments", "parts"), [
    (["--languages", "english"], ["--languages", "en-fr"]),
    (["--languages", "en-fr", "--set", "data.target_lang=de"], ["--languages en-fr", "data.target_lang=de"]),
    (["--set", "data.target_lang=english"], ["target_lang", '"pt-BR"']),
    (["--languages", "en-fr", "--task", "masked"], ["data.source_lang", "masked"])])
def test_languages_that_are_refused(data, tmp_path, arguments, parts):
    said = wrong(tmp_path, data, *arguments)
    assert all(part in said for part in parts)


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
    (["--set", "nonsense"], ['--set "nonsense"', "such as model.width=512"]),
    (["--recipe", "transfromer"], ['Did you mean "transformer"?']),
    (["--recipe", "nowhere.toml"], ["nowhere.toml: there is no such file"]),
    (["--recipe", "gpt"], ["recipe gpt", "--task seq2seq", "transformer"]),
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
    ({"en.txt": "a\n"}, ["en.txt"], ["en.txt: Pairs in plain text need two files"]),
    ({"a.tsv": "one\tun\n", "b.tsv": " \t \n"}, ["a.tsv", "--validation", "b.tsv"],
     ["b.tsv: The filters keep none of these pairs"]),
    ({"a.tsv": " \t \n"}, ["a.tsv"], ["a.tsv: The only pair is skipped. There is nothing to train on."]),
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
    assert "no training to resume. Leave out --resume" in wrong(tmp_path, data, "--resume")


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
    (OSError(28, "No space left on device", "model/x"), 1,
     "Error: model/x: No space left on device. Free some space, or choose another disk.\n"),
    (OSError(28, "No space left on device"), 1, "Error: model: No space left on device\n"),
    (run.TrainingResult(TrainingState(), Path("model"), True, True), 0, ""),
    (run.TrainingResult(TrainingState(), Path("model"), False, True), 130,
     "A checkpoint was saved in model. To resume:\n  regard train 'a b.tsv' -o model --resume\n"),
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
    monkeypatch.setattr(sys, "argv", ["/usr/bin/regard", "train", "a b.tsv", "-o", "model"])
    found, out, said = call("train", "a.tsv", "b.tsv", "-o", "model", "--task", "masked", "--validation", "c.tsv",
                            "--validation", "d.tsv", "--set", "a.b=1", "--set", 'c="x=y"', "--resume", "--source", "en")
    assert (found, said) == (code, shown)
    assert out == ("model\n" if isinstance(result, run.TrainingResult) and result.main else "")
    request = asked[0]
    assert (request.task, request.data, request.validation) == ("masked", ("a.tsv", "b.tsv"), ("c.tsv", "d.tsv"))
    assert (request.changes, request.resume) == ({"a.b": 1, "c": "x=y"}, True)
    assert (request.source, request.target, request.device) == ("en", None, "auto")


def test_the_command_to_resume():
    assert resume_command(["train", "a", "-o", "b"]) == ["regard", "train", "a", "-o", "b", "--resume"]
    assert resume_command(["train", "a", "--resume", "-o", "b"]) == ["regard", "train", "a", "--resume", "-o", "b"]


def test_quiet(data, tmp_path):
    """Only the folder, on stdout; but a warning is shown."""
    code, out, said = call(*short(data, tmp_path / "model", "--quiet"))
    assert (code, out, said) == (0, f"{tmp_path / 'model'}\n", "")
    code, out, said = call(*short(data, tmp_path / "other", "-q", "--validation", data))
    assert (code, out) == (0, f"{tmp_path / 'other'}\n")
    assert "validation data" in said
    assert not any(part in said for part in ("Settings", "step", "Finished", "regard translate"))
    code, out, said = call(*short("nowhere.tsv", tmp_path / "third", "-q"))
    assert (code, out) == (2, "")
    assert "nowhere.tsv" in said


@pytest.mark.parametrize("time", ["30 minutes", "0", "-5m", "", "1d"])
def test_what_is_no_duration(tmp_path, time):
    said = wrong(tmp_path, "nowhere.tsv", "--time", time)
    assert all(part in said for part in ("--time", repr(time), "90s", "1h30m"))
    assert not (tmp_path / "model").exists()


def test_the_time_is_given_once(tmp_path):
    said = wrong(tmp_path, "nowhere.tsv", "--time", "30m", "--set", "training.max_time=5")
    assert "--time" in said
    assert "training.max_time" in said


def test_a_real_training_of_a_few_seconds(data, tmp_path):
    """Ended by its time limit, and its config has that; a second try has nothing left to do."""
    arguments = trained.arguments(data, tmp_path / "model", "--time", "3s", training__schedule__max_steps=10**6,
                                  training__validation__every=10**5, training__checkpoints__every=10**5)
    start = monotonic()
    code, out, said = call(*arguments)
    assert monotonic() - start < 60
    assert (code, out) == (0, f"{tmp_path / 'model'}\n")
    assert "1,000,000 steps fit into the time limit of 3 seconds" in " ".join(said.split())
    assert re.search(r"Finished [\d,]+ steps? in 0:[0-5]\d, within the time limit", " ".join(said.split()))
    assert "max_time = 3.0" in (tmp_path / "model" / "config.toml").read_text()
    code, out, said = call(*arguments, "--resume")
    assert code == 0
    assert "There is nothing left to do" in " ".join(said.split())


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


@pytest.mark.parametrize(("hours", "answer", "asked", "started"), [
    (23, "", False, True), (25, "y\n", True, True), (25, "n\n", True, False)])
def test_a_long_training_is_asked_about(monkeypatch, hours, answer, asked, started):
    """With no it is interrupted, before the folder is kept."""
    questions = []
    monkeypatch.setattr(cli_train.typer, "confirm", lambda text, err: questions.append(text) or answer == "y\n")
    event = logging.TimeEstimated(hours * 3600.0, 10**6, 0.1, 1.0, "2 CPU cores")
    question = cli_train.LongTrainingQuestion()
    if started:
        question(event)
    else:
        with pytest.raises(KeyboardInterrupt):
            question(event)
    assert bool(questions) is asked
    assert all("25 hours" in text for text in questions)


def test_scripts_are_not_asked(data, tmp_path, monkeypatch):
    """Without a terminal nobody could answer."""
    monkeypatch.setattr(cli_train, "LONG_SECONDS", -1.0)
    monkeypatch.setattr(cli_train.typer, "confirm", lambda *given, **named: pytest.fail("asked"))
    assert call(*short(data, tmp_path / "model"))[0] == 0
    assert call(*short(data, tmp_path / "other", "--yes"))[0] == 0
