"""Events, metrics.jsonl and TensorBoard."""

import errno
import io
import json
import logging
import math
import os
import subprocess
import sys
from datetime import datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.storage import folder as folders
from regard.training.logging import (
    PROGRESS_SCALARS,
    CheckpointSaved,
    LoggerCollection,
    MetricsLogger,
    Note,
    TensorBoardLogger,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    Validated,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
EVENTS = [Note("a"), CheckpointSaved(1, 0.5), Note("b")]


class Kept:
    """A logger that keeps what it is told, and raises what it is given, at one event or at the end."""

    def __init__(self, name="kept", fault=None, at=None, at_close=None):
        self.name, self.fault, self.at, self.at_close = name, fault, at, at_close
        self.told, self.closed = [], 0

    def __call__(self, event, /):
        if event == self.at:
            raise self.fault
        self.told.append(event)

    def close(self):
        self.closed += 1
        if self.at_close is not None:
            raise self.at_close


def tell(report):
    for event in EVENTS:
        report(event)


def test_every_logger_is_told_everything_in_order(capsys):
    first, second = Kept(), Kept()
    with LoggerCollection([first, second]) as report:
        tell(report)
        assert not first.closed
    assert first.told == second.told == EVENTS
    assert first.closed == second.closed == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (FULL, "No space left on device"),
        (ValueError("I/O operation on closed file"), "I/O operation on closed file"),
        (RuntimeError("cannot schedule new futures"), "cannot schedule new futures"),
        (BrokenPipeError(), "BrokenPipeError"),
        (UnicodeEncodeError("ascii", "ü", 0, 1, "no"), "ascii"),
    ],
)
def test_one_that_fails_is_told_of_once_and_left_out(capsys, caplog, fault, said):
    bad, good = Kept("metrics.jsonl", fault, EVENTS[1]), Kept()
    with LoggerCollection([bad, good]) as report:
        tell(report)
        tell(report)
    assert bad.told == EVENTS[:1]
    assert bad.closed == 1
    assert good.told == EVENTS * 2
    assert capsys.readouterr().out == ""
    ((name, level, told),) = caplog.record_tuples
    assert (name, level) == ("regard.training", logging.WARNING)
    assert told.startswith("metrics.jsonl: could not write: ")
    assert said in told


def test_one_that_cannot_even_be_closed(caplog):
    bad, good = Kept("bad", FULL, EVENTS[0], at_close=FULL), Kept()
    with LoggerCollection([bad, good]) as report:
        tell(report)
    assert good.told == EVENTS
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("stream", [None, "closed", "full"])
def test_stderr_may_be_what_failed(monkeypatch, stream):
    class Full(io.StringIO):
        def write(self, text):
            raise FULL

    monkeypatch.setattr(logging.getLogger("regard"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("regard"), "handlers", [logging.lastResort])
    replaced = None if stream is None else Full()
    if stream == "closed":
        replaced.close()
    monkeypatch.setattr(sys, "stderr", replaced)
    bad, good = Kept("bad", FULL, EVENTS[0]), Kept()
    with LoggerCollection([bad, good]) as report:
        tell(report)
    assert good.told == EVENTS


def test_nothing_goes_to_stdout_where_there_is_no_stderr(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with LoggerCollection([Kept("bad", FULL, EVENTS[0])]) as report:
        tell(report)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("fault", [KeyboardInterrupt, SystemExit, TypeError])
def test_interruptions_and_mistakes_pass(fault):
    stopped, good = Kept("bar", fault, EVENTS[1]), Kept()
    with pytest.raises(fault), LoggerCollection([stopped, good]) as report:
        tell(report)
    assert stopped.closed == good.closed == 1


def test_after_an_interruption_events_are_told_as_before():
    stopped = Kept("bar", KeyboardInterrupt, EVENTS[1])
    report = LoggerCollection([stopped])
    with pytest.raises(KeyboardInterrupt):
        tell(report)
    report(EVENTS[2])
    assert stopped.told == [EVENTS[0], EVENTS[2]]


def test_what_a_signal_tells_in_the_middle_of_an_event_comes_after_it():
    class Interrupted(Kept):
        def __call__(self, event, /):
            if event == EVENTS[0]:
                report(Note("Ending after this step."))  # as from a handler, while a stream is being written to
            super().__call__(event)

    first, second = Interrupted(), Kept()
    report = LoggerCollection([first, second])
    tell(report)
    expected = [EVENTS[0], Note("Ending after this step."), *EVENTS[1:]]
    assert first.told == second.told == expected


def test_all_are_closed_whatever_becomes_of_one(caplog):
    loggers = [Kept("a"), Kept("b", at_close=FULL), Kept("c")]
    report = LoggerCollection(loggers)
    report.close()
    report.close()
    assert [logger.closed for logger in loggers] == [1, 1, 1]
    assert [message.split(". ")[0] for message in caplog.messages] == ["b: could not write: No space left on device"]
    interrupted = [Kept("a", at_close=KeyboardInterrupt), Kept("b")]
    with pytest.raises(KeyboardInterrupt):
        LoggerCollection(interrupted).close()
    assert [logger.closed for logger in interrupted] == [1, 1]


def test_an_event_cannot_be_changed():
    event = TrainingProgress(1, 2, 0.5, 1.0, 1.0, 1e-3, 1.0, 10, 1.0, 10.0, None)
    with pytest.raises(AttributeError):
        event.step = 2


def test_torch_is_not_needed_to_tell():
    code = "import sys, regard.training.logging, regard.training.logging; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


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
    for event in (started(), progress(1), judged(1), Note("a"), CheckpointSaved(1, 0.1),
                  TrainingEnded("done", 1, 1, {"bleu": 30.0}, 2)):
        metrics(event)
    metrics.close()
    first, second, third = lines(path)
    assert datetime.fromisoformat(first.pop("time")).utcoffset().total_seconds() == 0
    assert first == {"event": "progress", "step": 1, "steps": STEPS, "epoch": 0.2, "loss": 2.5, "nll": 2.0,
                     "rate": 1e-3, "gradient_norm": 1.5, "tokens": 100, "seconds": 0.5,
                     "tokens_per_second": 200.0, "memory": None}
    assert second["event"] == "validation"
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


def test_a_log_of_an_earlier_version_gets_the_names_of_today(tmp_path):
    """Validations were called "judged". Nothing else in the lines changes."""
    path = tmp_path / "m.jsonl"
    metrics = MetricsLogger(path)
    for event in (progress(1), judged(1), progress(2), judged(2), progress(3)):
        metrics(event)
    today = lines(path)
    path.write_text(path.read_text().replace('"event": "validation"', '"event": "judged"'))
    metrics.resume(2)
    assert lines(path) == today[:-1]
    assert [line["event"] for line in today] == ["progress", "validation", "progress", "validation", "progress"]


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
def test_a_full_disk_ends_the_log_and_not_the_training(caplog):
    with LoggerCollection([MetricsLogger("/dev/full")]) as report:
        report(progress(1))
        report(progress(2))
    assert [message.split(". ")[0] for message in caplog.messages] == ["full: could not write: No space left on device"]


def started_tracking(first=1):
    return TrainingStarted("translation", 1000, 10, first, 500, "cpu")


def progress_tracking(step, loss=2.5, memory=None):
    return TrainingProgress(step, 10, step / 5, loss, 2.0, 1e-3, 1.5, 100 * step, 0.5 * step, 200.0, memory)


def judged_tracking(step):
    return Validated(step, {"bleu": 30.0, "loss": 2.0}, True, {"bleu": 30.0, "loss": 2.0}, (), 1.0)


class Writer:
    """What torch's writer is asked to do."""

    made = ()

    def __init__(self, folder, purge_step=None):
        self.folder, self.purge_step, self.scalars, self.open, self.flushed = folder, purge_step, {}, True, 0
        Writer.made = (*Writer.made, self)

    def add_scalar(self, tag, value, step):
        assert self.open
        self.scalars[tag, step] = value

    def flush(self):
        self.flushed += 1

    def close(self):
        self.open = False


@pytest.fixture
def writers(monkeypatch):
    monkeypatch.setattr(Writer, "made", ())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    return lambda: Writer.made


@pytest.mark.parametrize("missing", [None, SimpleNamespace()])
def test_not_installed_is_a_message_that_says_what_to_do(monkeypatch, tmp_path, missing):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", missing)  # None: not there; without a version: too old for torch
    assert_named(lambda: TensorBoardLogger(tmp_path), ["tensorboard", "installed", 'pip install "regard[track]"'])


def test_nothing_is_made_before_the_start(writers, tmp_path):
    TensorBoardLogger(tmp_path / "curves").close()
    assert writers() == ()
    assert not (tmp_path / "curves").exists()


def test_scalars(writers, tmp_path):
    board = TensorBoardLogger(tmp_path)
    for event in (started_tracking(), progress_tracking(1), Note("x"), judged_tracking(1),
                  progress_tracking(2, memory=7), TrainingEnded("done", 2, 1, {}, 1.0)):
        board(event)
    (writer,) = writers()
    assert (writer.folder, writer.purge_step) == (str(tmp_path), None)
    expected = {(f"training/{name}", step): getattr(progress_tracking(step, memory=7), name)
                for name in PROGRESS_SCALARS for step in (1, 2)}
    del expected["training/memory", 1]  # not known then
    expected |= {("validation/bleu", 1): 30.0, ("validation/loss", 1): 2.0}
    assert writer.scalars == expected
    assert writer.flushed == 1
    board.close()
    board.close()
    assert not writer.open


def test_a_training_that_goes_on_hides_the_steps_it_makes_again(writers, tmp_path):
    board = TensorBoardLogger(tmp_path)
    board(started_tracking())
    board(started_tracking(2))
    board(progress_tracking(2))
    first, second = writers()
    assert (first.open, second.open) == (False, True)
    assert (first.purge_step, second.purge_step) == (None, 2)


def test_without_a_start_it_writes_all_the_same(writers, tmp_path):
    board = TensorBoardLogger(tmp_path)
    board(judged_tracking(3))
    assert writers()[0].scalars == {("validation/bleu", 3): 30.0, ("validation/loss", 3): 2.0}


def test_a_dead_writer_does_not_end_the_training(writers, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Writer, "add_scalar", full)
    with LoggerCollection([TensorBoardLogger(tmp_path)]) as report:
        report(started_tracking())
        report(progress_tracking(1))
        report(progress_tracking(2))
    (message,) = caplog.messages
    assert message.startswith("TensorBoard: could not write: No space left on device")


def test_tensorboard_reads_what_was_written(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, loss in ((1, 3.0), (3, 1.0)):  # the second goes on where the first had a checkpoint
        with LoggerCollection([TensorBoardLogger(tmp_path)]) as report:
            report(started_tracking(first))
            for step in range(first, first + 4):
                report(progress_tracking(step, loss if step != 2 else math.nan))
            report(judged_tracking(first + 3))
    found = accumulators.EventAccumulator(str(tmp_path))
    found.Reload()
    losses = {scalar.step: scalar.value for scalar in found.Scalars("training/loss")}
    assert math.isnan(losses.pop(2))
    assert losses == {1: 3.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 1.0}
    assert [(scalar.step, scalar.value) for scalar in found.Scalars("validation/bleu")] == [(6, 30.0)]
