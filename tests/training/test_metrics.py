"""metrics.jsonl: every step once, however often a training is killed, and nothing in it that is not JSON."""

import json
import math
import os
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.storage import folder as folders
from regard.training.logging import (
    CheckpointSaved,
    LoggerCollection,
    MetricsLogger,
    Note,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    Validated,
)

STEPS, EVERY = 12, 4  # of a training, and between two checkpoints


def progress(step, loss=2.5):
    return TrainingProgress(step, STEPS, step / 5, loss, 2.0, 1e-3, 1.5, 100 * step, 0.5 * step, 200.0, None)


def judged(step, bleu=30.0):
    return Validated(step, {"bleu": bleu, "loss": 2.0}, True, {"bleu": bleu, "loss": 2.0}, (("a", "b", "c"),), 1.0)


def started(first=1):
    return TrainingStarted("translation", 1000, STEPS, first, 500, "cpu")


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def untimed(path):
    return [{key: value for key, value in line.items() if key != "time"} for line in lines(path)]


def train(metrics, first=1, until=STEPS):
    """A training from a step on: what it tells, in the order of the loop."""
    metrics(started(first))
    for step in range(first, until + 1):
        metrics(progress(step))
        if step % EVERY == 0:
            metrics(judged(step))
            metrics(CheckpointSaved(step, 0.1))
    if until == STEPS:
        metrics(TrainingEnded("all steps are done", STEPS, 4, {"bleu": 30.0}, 6.0))


def test_a_line_for_each_event_with_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsLogger(path)
    assert metrics.name == "metrics.jsonl"
    for event in (started(), progress(1), judged(1), Note("a"), CheckpointSaved(1, 0.1), TrainingEnded("done", 1, 1, {"bleu": 30.0}, 2)):
        metrics(event)
    metrics.close()
    first, second, third = lines(path)
    assert datetime.fromisoformat(first.pop("time")).utcoffset().total_seconds() == 0
    assert first == {"event": "progress", "step": 1, "steps": STEPS, "epoch": 0.2, "loss": 2.5, "nll": 2.0,
                     "rate": 1e-3, "gradient_norm": 1.5, "tokens": 100, "seconds": 0.5,
                     "tokens_per_second": 200.0, "memory": None}
    assert second["event"] == "judged"
    assert second["scores"] == second["best"] == {"bleu": 30.0, "loss": 2.0}
    assert second["better"] is True
    assert (third["event"], third["reason"], third["best_step"]) == ("ended", "done", 1)


def test_sentences_of_the_data_are_not_written(tmp_path):
    metrics = MetricsLogger(tmp_path / "m.jsonl")
    metrics(Validated(1, {"loss": 1.0}, True, {}, (("given", "wanted", "made"),), 1.0))
    assert "wanted" not in (tmp_path / "m.jsonl").read_text()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_null(tmp_path, value):
    path = tmp_path / "m.jsonl"
    MetricsLogger(path)(progress(1, value))
    MetricsLogger(path)(judged(1, value))
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()
    assert lines(path)[0]["loss"] is None
    assert lines(path)[1]["scores"] == {"bleu": None, "loss": 2.0}


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    path = tmp_path / "m.jsonl"
    MetricsLogger(path)(progress(1, numpy.float32(0.5)))
    MetricsLogger(path)(judged(1, torch.tensor(0.25)))
    assert lines(path)[0]["loss"] == 0.5
    assert lines(path)[1]["scores"]["bleu"] == 0.25


def test_each_line_is_on_the_disk_at_once(tmp_path):
    metrics = MetricsLogger(tmp_path / "m.jsonl")
    for step in (1, 2):
        metrics(progress(step))
        assert [line["step"] for line in lines(tmp_path / "m.jsonl")] == list(range(1, step + 1))


@given(st.lists(st.tuples(st.integers(1, STEPS), st.integers(0, 200)), max_size=4))
def test_killed_and_resumed_is_as_never_killed(tmp_path_factory, kills):
    """Each time it comes to a step, and is killed in the middle of a later line, of which some bytes are written."""
    folder = tmp_path_factory.mktemp("killed")
    train(MetricsLogger(folder / "whole.jsonl"))
    metrics, first = MetricsLogger(folder / "m.jsonl"), 1
    for until, torn in kills:
        until = max(first, until)
        train(metrics, first, until)
        with (folder / "m.jsonl").open("ab") as file:
            file.write(json.dumps({"event": "progress", "step": until + 1, "loss": 1.0}).encode()[:torn])
        first = until // EVERY * EVERY + 1  # behind the last checkpoint
        if first > STEPS:
            break
    train(metrics, first)
    assert untimed(folder / "m.jsonl") == untimed(folder / "whole.jsonl")


def test_a_training_that_goes_on_has_not_ended(tmp_path):
    """It was asked to end at a step, and stored it."""
    path = tmp_path / "m.jsonl"
    metrics = MetricsLogger(path)
    train(metrics, until=6)
    metrics(TrainingEnded("interrupted by the user", 6, 4, {"bleu": 30.0}, 3.0))
    train(metrics, first=7)
    assert [line["step"] for line in lines(path) if line["event"] == "progress"] == list(range(1, STEPS + 1))
    assert [line["reason"] for line in lines(path) if line["event"] == "ended"] == ["all steps are done"]


def test_a_whole_line_without_its_end_is_torn_too(tmp_path):
    """Otherwise the next line would be written behind it."""
    path = tmp_path / "m.jsonl"
    metrics = MetricsLogger(path)
    metrics(progress(1))
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    metrics.resume(1)
    metrics(progress(1))
    assert [line["step"] for line in lines(path)] == [1]


@pytest.mark.parametrize("junk", [b"\x00\x00\x00\n", b"\xff\n", b"[1]\n", b'{"event": "progress"}\n', b"\n"])
def test_what_is_no_line_of_ours_is_cut_and_what_follows_stays(tmp_path, junk):
    path = tmp_path / "m.jsonl"
    metrics = MetricsLogger(path)
    metrics(progress(1))
    before = path.read_bytes()
    metrics(progress(2))
    path.write_bytes(before + junk + path.read_bytes()[len(before):])
    metrics.resume(2)
    assert [line["step"] for line in lines(path)] == [1, 2]


def test_nothing_to_cut_leaves_the_file_alone(tmp_path):
    path = tmp_path / "m.jsonl"
    metrics = MetricsLogger(path)
    metrics.resume(0)
    assert not path.exists()
    metrics(progress(1))
    inode = path.stat().st_ino
    metrics.resume(1)
    assert path.stat().st_ino == inode
    assert os.listdir(tmp_path) == ["m.jsonl"]


def test_killed_while_cutting_the_old_lines_are_there(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    metrics = MetricsLogger(path)
    train(metrics, until=6)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            metrics.resume(4)
    assert path.read_bytes() == before
    metrics.resume(4)
    assert {line["step"] for line in lines(path)} == {1, 2, 3, 4}
    assert os.listdir(tmp_path) == ["m.jsonl"]


def test_lines_go_on_when_the_folder_around_the_file_is_replaced(tmp_path):
    """As it is whenever a better model is saved."""
    model = tmp_path / "model"
    folders.save(model, {"weights": b"1"})
    metrics = MetricsLogger(model / "metrics.jsonl")
    for step in (1, 2, 3):
        metrics(progress(step))
        folders.save(model, {"weights": str(step).encode()})
    assert [line["step"] for line in lines(model / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_ends_the_log_and_not_the_training(capsys):
    with LoggerCollection([MetricsLogger("/dev/full")]) as report:
        report(progress(1))
        report(progress(2))
    assert capsys.readouterr().err == "full: could not write: No space left on device; continuing without it\n"
