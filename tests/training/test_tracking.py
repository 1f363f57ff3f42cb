"""Curves in TensorBoard: what is written where, and what is said where it is not installed."""

import math
import sys
from types import SimpleNamespace

import pytest
from refusals import assert_named

from regard.training.logging import (
    PROGRESS_SCALARS,
    LoggerCollection,
    Note,
    TensorBoardLogger,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    Validated,
)


def started(first=1):
    return TrainingStarted("translation", 1000, 10, first, 500, "cpu")


def progress(step, loss=2.5, memory=None):
    return TrainingProgress(step, 10, step / 5, loss, 2.0, 1e-3, 1.5, 100 * step, 0.5 * step, 200.0, memory)


def judged(step):
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
    for event in (started(), progress(1), Note("x"), judged(1), progress(2, memory=7), TrainingEnded("done", 2, 1, {}, 1.0)):
        board(event)
    (writer,) = writers()
    assert (writer.folder, writer.purge_step) == (str(tmp_path), None)
    expected = {(f"training/{name}", step): getattr(progress(step, memory=7), name)
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
    board(started())
    board(started(2))
    board(progress(2))
    first, second = writers()
    assert (first.open, second.open) == (False, True)
    assert (first.purge_step, second.purge_step) == (None, 2)


def test_without_a_start_it_writes_all_the_same(writers, tmp_path):
    board = TensorBoardLogger(tmp_path)
    board(judged(3))
    assert writers()[0].scalars == {("validation/bleu", 3): 30.0, ("validation/loss", 3): 2.0}


def test_a_dead_writer_does_not_end_the_training(writers, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Writer, "add_scalar", full)
    with LoggerCollection([TensorBoardLogger(tmp_path)]) as report:
        report(started())
        report(progress(1))
        report(progress(2))
    assert capsys.readouterr().err == "TensorBoard: could not write: No space left on device; continuing without it\n"


def test_tensorboard_reads_what_was_written(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, loss in ((1, 3.0), (3, 1.0)):  # the second goes on where the first had a checkpoint
        with LoggerCollection([TensorBoardLogger(tmp_path)]) as report:
            report(started(first))
            for step in range(first, first + 4):
                report(progress(step, loss if step != 2 else math.nan))
            report(judged(first + 3))
    found = accumulators.EventAccumulator(str(tmp_path))
    found.Reload()
    losses = {scalar.step: scalar.value for scalar in found.Scalars("training/loss")}
    assert math.isnan(losses.pop(2))
    assert losses == {1: 3.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 1.0}
    assert [(scalar.step, scalar.value) for scalar in found.Scalars("validation/bleu")] == [(6, 30.0)]
