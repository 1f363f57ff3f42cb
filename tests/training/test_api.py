"""`regard.train`: data in files and in memory, settings by name, callbacks, resuming, history and logging."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
import trained

import regard
from regard.data import phrasebook
from regard.data.sources.text import DataError
from regard.storage.filesystem import FolderError
from regard.training import api
from regard.training.api import config_leaves, split_settings

TEXTS = [f"the {noun} {verb} number {number}." for number, (noun, verb) in
         enumerate((noun, verb) for noun in ("cat", "dog", "bird") for verb in ("sleeps", "eats", "runs"))]
SMALL = {"tokenizer.vocab_size": 300, "model.width": 16, "model.stack.layers": 1, "model.stack.mixer.heads": 2,
         "training.schedule.max_steps": 4, "training.validation.every": 2, "training.log_every": 1}
"""Settings of a small model with one stack."""


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def pairs():
    return [(pair.source, pair.target) for pair in phrasebook.pairs(60, seed=0, split="train", max_words=6)]


@pytest.fixture(scope="module")
def finished(pairs, tmp_path_factory):
    """A training from pairs in memory: its folder, the translator, and the events of its callback."""
    output, events = tmp_path_factory.mktemp("finished") / "model", []
    return output, regard.train(pairs, output, settings=trained.TINY, device="cpu", callbacks=[events.append]), events


def train(data, output, **options):
    return regard.train(data, output, **{"settings": trained.TINY, "device": "cpu", **options})


def weights(task):
    return torch.cat([tensor.flatten() for tensor in task.model.state_dict().values()])


def test_a_translator_comes_back_ready_to_use(finished):
    output, translator, _ = finished
    assert isinstance(translator, regard.Translator)
    assert not translator.model.training
    found = translator("They are here.", max_length=5)
    assert isinstance(found, regard.Translation)
    assert str(found) == found.text == regard.load(output).translate("They are here.", max_length=5).text
    assert [one.text for one in translator(["Yes.", "No."], max_length=5)] == [
        translator(text, max_length=5).text for text in ("Yes.", "No.")]


def test_no_sentence_stays_in_the_folder(finished, pairs):
    output, _, _ = finished
    assert not (output / "data").exists()
    for path in output.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(text.encode() in content for pair in pairs for text in pair), path


@pytest.mark.thorough
def test_memory_and_files_give_the_same_model(finished, pairs, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"
                            for source, target in pairs))
    for number, data in enumerate((path, [str(path)], ({"source": one, "target": other} for one, other in pairs))):
        assert torch.equal(weights(train(data, tmp_path / str(number))), weights(finished[1]))


def test_the_history_is_that_of_the_callbacks_and_of_the_folder(finished):
    output, translator, events = finished
    assert regard.load(output).history == translator.history
    assert [(row["step"], "scores" in row) for row in translator.history] == [
        (1, False), (2, False), (3, False), (3, True), (4, False), (5, False), (6, False), (6, True)]
    for row, event in zip(translator.history, events, strict=True):
        assert row["step"] == event.step
        if "scores" in row:
            assert (row["scores"], row["best"]) == (event.scores, event.best)
            assert set(row["scores"]) == {"loss", "bleu", "chrf"}
        else:
            assert (row["loss"], row["learning_rate"]) == (event.loss, event.learning_rate)
            assert event.scores == {}
    assert {event.steps for event in events} == {6}


def test_a_folder_without_metrics_has_no_history(finished, tmp_path):
    finished[1].save(tmp_path / "copy")
    assert regard.load(tmp_path / "copy").history == []
    (tmp_path / "copy" / "metrics.jsonl").write_text('{"event": "progress", "step": 1, "loss": null}\nnonsense\n{"ev')
    assert regard.load(tmp_path / "copy").history == [{"step": 1, "loss": None}]


# Callbacks

def stop_at(step, error=regard.StopTraining):
    def callback(event):
        if event.step == step:
            raise error

    return callback


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1, 3, 4])
def test_stop_training_validates_saves_and_returns(pairs, finished, tmp_path, step):
    output = tmp_path / "model"
    translator = train(pairs, output, callbacks=[stop_at(step)])
    assert translator.history[-1]["step"] == step
    assert translator.history[-1]["scores"]["loss"] > 0
    assert not (output / "data").exists()
    steps = [row["step"] for row in translator.history if "loss" in row]
    assert steps == list(range(1, step + 1))
    resumed = train(pairs, output, resume=True)
    assert torch.equal(weights(resumed), weights(finished[1]))


def test_stop_training_after_a_validation_keeps_that_model(pairs, tmp_path):
    def callback(event):
        if "bleu" in event.scores:
            raise regard.StopTraining

    translator = train(pairs, tmp_path / "model", callbacks=[callback])
    assert [row["step"] for row in translator.history if "scores" in row] == [3]


@pytest.mark.parametrize("error", [RuntimeError("mine"), ValueError("mine"), OSError("mine"), KeyError("mine")])
def test_another_exception_saves_a_checkpoint_and_is_raised(pairs, tmp_path, error):
    output, later = tmp_path / "model", []
    with pytest.raises(type(error), match="mine") as raised:
        train(pairs, output, callbacks=[stop_at(5, error), later.append])
    assert raised.value is error
    assert [event.step for event in later][-1] == 4  # a callback after the one that failed is not called
    assert sorted(path.name for path in (output / "checkpoints").iterdir() if path.is_dir())[-1].endswith("5")
    assert trained.metrics(output)[-1]["event"] == "ended"


@pytest.mark.thorough
def test_after_an_exception_it_is_resumed(pairs, finished, tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(pairs, tmp_path / "model", callbacks=[stop_at(4, ZeroDivisionError())])
    events = []
    resumed = train(iter(pairs), tmp_path / "model", resume=True, callbacks=[events.append])
    assert [event.step for event in events] == [5, 6, 6]
    assert torch.equal(weights(resumed), weights(finished[1]))
    assert [row["step"] for row in resumed.history] == [row["step"] for row in finished[1].history]


def test_what_is_no_function_is_refused_before_anything_is_written(pairs, tmp_path):
    with pytest.raises(ValueError, match=r"`callbacks` must be functions.* a str at 1"):
        train(pairs, tmp_path / "model", callbacks=[print, "no"])
    assert list(tmp_path.iterdir()) == []


# Interruption and resuming

INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, {shared!r})
import regard, trained
from regard.data import phrasebook

pairs = [(pair.source, pair.target) for pair in phrasebook.pairs(60, seed=0, split="train", max_words=6)]
def interrupt(event):
    if event.step == 4:
        os.kill(os.getpid(), signal.SIGINT)
try:
    regard.train(pairs, {output!r}, settings=trained.TINY, device="cpu", callbacks=[interrupt])
except KeyboardInterrupt as error:
    print(error)
"""


@pytest.mark.thorough
def test_ctrl_c_saves_and_raises_keyboard_interrupt(pairs, finished, tmp_path):
    output = tmp_path / "model"
    code = INTERRUPTED.format(shared=str(Path(trained.__file__).parent), output=str(output))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{output} was interrupted after step" in done.stdout
    assert "resume=True" in done.stdout
    assert done.stderr == ""
    assert torch.equal(weights(train(pairs, output, resume=True)), weights(finished[1]))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_resuming_needs_the_same_data(pairs, tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(pairs, tmp_path / "model", callbacks=[stop_at(2, ZeroDivisionError())])
    with pytest.raises(DataError, match=r"data\.jsonl .*sha256 is \w{64}, and was \w{64}"):
        train(pairs[1:], tmp_path / "model", resume=True)
    with pytest.raises(FolderError, match="already"):
        train(pairs, tmp_path / "model")


def test_a_training_that_ended_does_not_read_its_data_again(finished):
    def unread():
        pytest.fail("read")
        yield

    translator = train(unread(), finished[0], resume=True)
    assert torch.equal(weights(translator), weights(finished[1]))


# Data

def test_validation_data_may_be_in_memory_too(pairs, tmp_path):
    rows = [{"en": source, "fr": target} for source, target in pairs]
    translator = train(rows[10:], tmp_path / "model", validation=iter(rows[:2]), source="en", target="fr")
    names = [name.split()[0] for name in translator.record["data"]["files"]]
    assert names == ["data.jsonl", "validation.jsonl"]
    file = tmp_path / "valid.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    with_file = train(rows[10:], tmp_path / "other", validation=file, source="en", target="fr")
    assert torch.equal(weights(with_file), weights(translator))


@pytest.mark.thorough
@pytest.mark.parametrize(("task", "data", "kind", "use"), [
    ("language", "\n".join(TEXTS * 3), regard.Completer, "the cat"),
    ("language", TEXTS * 3, regard.Completer, "the cat"),
    ("masked", [f"{text} {number}" for number in range(4) for text in TEXTS], regard.Filler, "the ___ sleeps."),
    ("masked", {"text": [f"{text} {number}" for number in range(4) for text in TEXTS]}, regard.Filler, "the ___."),
    ("classify", [(text, text.split()[1]) for text in TEXTS * 3], regard.Classifier, "the cat"),
    ("classify", {"review": TEXTS * 3, "stars": [len(text) % 2 for text in TEXTS * 3]}, regard.Classifier, "the cat"),
])
def test_every_task(task, data, kind, use, tmp_path):
    kinds = {"tokenizer.kind": "unigram"} if task == "classify" else {}  # its default depends on the data
    made = regard.train(data, tmp_path / "model", task=task, settings={**SMALL, **kinds}, device="cpu")
    assert type(made) is kind
    assert made.history[-1]["step"] == 4
    made(use)
    assert made.load(tmp_path / "model").history == made.history
    if task == "classify":
        assert len(made.labels) in (2, 3)


def test_paths_and_texts_are_told_apart(tmp_path):
    existing = tmp_path / "a text.dat"
    existing.write_text("x")
    cases = {"corpus.txt": True, "my corpus.txt": True, str(existing): True, "corpus": True, "The cat sleeps.": False,
             "line\nline": False, "": False, "a\0 b": False}
    for given, is_path in cases.items():
        assert (api._as_paths(given, "language") is not None) == is_path, given
        assert api._as_paths(given, "seq2seq") == (given,)
    assert api._as_paths(["Yes.", "The cat sleeps."], "masked") is None
    assert api._as_paths(["a.txt", Path("b c")], "masked") == ("a.txt", "b c")
    assert api._as_paths([("a", "b")], "seq2seq") is None


@pytest.mark.parametrize("argument", ["teacher", "reverse"])
def test_another_model_is_named_by_its_folder(finished, pairs, tmp_path, argument):
    """One in memory might have changed when the training is resumed."""
    _, translator, _ = finished
    for given, words in ((translator, rf"a Translator .*{argument}\.save"), (3, "an int"), (b"model", "a bytes")):
        with pytest.raises(ValueError, match=f"`{argument}` must be the folder of a model, but is {words}"):
            train(pairs, tmp_path / "new", **{"monolingual": ["Bonjour."] if argument == "reverse" else None,
                                              argument: given})
    assert not (tmp_path / "new").exists()


def test_wrong_data_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.tsv"):
        train(tmp_path / "nowhere.tsv", tmp_path / "model")
    with pytest.raises(ValueError, match="`data` must be"):
        train([], tmp_path / "other")
    with pytest.raises(ValueError, match="`format` must be left out"):
        train([("a", "b")], tmp_path / "other", format="tsv")
    with pytest.raises(ValueError, match=r'`task` must be one of .*"seq2seq"'):
        train([("a", "b")], tmp_path / "other", task="translate")
    assert not (tmp_path / "other").exists()
    with pytest.raises(DataError, match='`validation`, row 1, column "target"'):
        train([("a", "b")], tmp_path / "more", validation=[("a", "b"), ("c", None)])
    labelled = [("a", "cold"), ("b", "warm")]
    for data, options, said in (
            ([("", "")], {}, "`data`: "), ([("a", "b")], {"validation": [("", "")]}, "`validation`: "),
            ([("a", "cold")], {"task": "classify", "settings": SMALL}, "`data`: "),
            (labelled, {"task": "classify", "settings": SMALL, "validation": [*labelled, ("c", "hot")]},
             '`validation`, row 2: The label "hot"'),
            ([""], {"task": "masked", "settings": SMALL}, "`data`: ")):
        with pytest.raises(DataError) as error:
            train(data, tmp_path / "more", **options)
        assert str(error.value).startswith(said)
        assert str(tmp_path) not in str(error.value)
    assert list(tmp_path.iterdir()) == []  # a call that fails leaves nothing behind


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode,
                                  lambda: torch.autocast("cpu", dtype=torch.float16)])
def test_the_modes_of_the_caller_change_nothing(finished, pairs, tmp_path, mode):
    with mode():
        made = train(pairs, tmp_path / "model")
    assert torch.equal(weights(made), weights(finished[1]))


def test_the_default_dtype_of_the_caller_changes_nothing(finished, pairs, tmp_path):
    torch.set_default_dtype(torch.float64)
    assert torch.equal(weights(train(pairs, tmp_path / "model")), weights(finished[1]))
    assert torch.get_default_dtype() == torch.float64


# Settings

def test_settings_by_their_last_part_and_by_short_names():
    short, changes = split_settings("seq2seq", None, {"training.schedule.warmup_steps": 5}, {
        "label_smoothing": 0.1, "lr": 1e-3, "layers": 2, "beta2": 0.98, "epochs": None, "training.log_every": 3})
    assert short == {"lr": 1e-3, "layers": 2}
    assert changes == {"training.schedule.warmup_steps": 5, "training.label_smoothing": 0.1,
                       "training.optimizer.beta2": 0.98, "training.log_every": 3}
    assert type(split_settings("seq2seq", None, {}, {"lr": numpy.float32(0.5)})[0]["lr"]) is float


def test_an_ambiguous_name_lists_its_keys():
    with pytest.raises(ValueError, match=r"`every` .* 2 keys.*validation\.every, training\.checkpoints\.every"):
        split_settings("seq2seq", None, {}, {"every": 100})
    with pytest.raises(ValueError, match=r"`heads` .*model\.encoder\.mixer\.heads, .*model\.decoder\.cross\.heads"):
        split_settings("seq2seq", "transformer", {}, {"heads": 4})


def test_a_misspelt_name_offers_the_nearest():
    with pytest.raises(ValueError, match=r'`learning_rat` .*"learning_rate"'):
        split_settings("seq2seq", None, {}, {"learning_rat": 1})
    with pytest.raises(ValueError, match=r'`epoch` .*"epochs"'):
        split_settings("seq2seq", None, {}, {"epoch": 1})


def test_a_key_that_is_set_twice_is_refused(pairs, tmp_path):
    with pytest.raises(ValueError, match=r"lr=1\.0 .*training\.schedule\.learning_rate"):
        regard.train(pairs, tmp_path / "model", lr=1.0, learning_rate=2.0)
    with pytest.raises(ValueError, match=r"`label_smoothing` .*training\.label_smoothing"):
        regard.train(pairs, tmp_path / "model", label_smoothing=0.1, settings={"training.label_smoothing": 0.2})


def test_short_names_reach_the_model(pairs, tmp_path):
    translator = regard.train(pairs, tmp_path / "model", recipe="transformer-tiny", layers=1, width=32, steps=2,
                              vocab_size=330, batch_tokens=300, dropout=0.2, seed=5, device="cpu", max_examples=2)
    config, training = translator.config, translator.record["training"]
    assert (config.width, config.encoder.layers, config.decoder.layers, config.encoder.dropout) == (32, 1, 1, 0.2)
    assert (training["schedule"]["max_steps"], training["seed"]) == (2, 5)
    assert translator.tokenizer.source.size == 330


def test_a_time_limit(pairs, tmp_path):
    settings = {key: value for key, value in trained.TINY.items() if not key.endswith("max_steps")}
    translator = train(pairs, tmp_path / "model", settings=settings, steps=100_000, time="2s")
    assert translator.record["training"]["max_time"] == 2.0
    assert 1 <= translator.history[-1]["step"] < 100_000
    assert "scores" in translator.history[-1]
    with pytest.raises(ValueError, match="time"):
        train(pairs, tmp_path / "other", time="30 minutes")


def test_names_depend_on_task_and_recipe():
    assert config_leaves("seq2seq")["batch_size"] == ["training.batches.batch_size"]
    assert "mlm_probability" not in config_leaves("seq2seq")
    assert config_leaves("masked")["mlm_probability"] == ["training.masking.mlm_probability"]
    assert config_leaves("seq2seq", "seq2seq-attention")["cell"] == ["model.cell"]
    assert len(config_leaves("seq2seq")["cell"]) > 1


def test_a_wrong_value_names_its_key(pairs, tmp_path):
    with pytest.raises(regard.ConfigError, match=r"label_smoothing.* 2\.0"):
        regard.train(pairs, tmp_path / "model", label_smoothing=2.0)
    assert list(tmp_path.iterdir()) == []


# What is shown

def test_nothing_is_printed_and_everything_is_logged(pairs, tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO, "regard"):
        train(pairs, tmp_path / "model", progress=False)
    assert capfd.readouterr() == ("", "")
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("regard")]
    assert any("step 6/6" in message for message in messages)
    assert any("validation at step 3" in message and "bleu" in message for message in messages)


def test_progress_is_shown_where_it_is_wanted(pairs, tmp_path, capfd):
    train(pairs, tmp_path / "quiet")  # stderr is no terminal here
    assert capfd.readouterr() == ("", "")
    train(pairs, tmp_path / "shown", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "step 6" in err
