"""Who is told what, and that a logger which fails never ends a training."""

import errno
import io
import subprocess
import sys

import pytest

from regard.training.logging import CheckpointSaved, LoggerCollection, Note, TrainingProgress

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
def test_one_that_fails_is_told_of_once_and_left_out(capsys, fault, said):
    bad, good = Kept("metrics.jsonl", fault, EVENTS[1]), Kept()
    with LoggerCollection([bad, good]) as report:
        tell(report)
        tell(report)
    assert bad.told == EVENTS[:1]
    assert bad.closed == 1
    assert good.told == EVENTS * 2
    out, told = capsys.readouterr()
    assert out == ""
    assert told.startswith("metrics.jsonl: could not write: ")
    assert told.endswith("; continuing without it\n")
    assert told.count("\n") == 1
    assert said in told


def test_one_that_cannot_even_be_closed(capsys):
    bad, good = Kept("bad", FULL, EVENTS[0], at_close=FULL), Kept()
    with LoggerCollection([bad, good]) as report:
        tell(report)
    assert good.told == EVENTS
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("stream", [None, "closed", "full"])
def test_stderr_may_be_what_failed(monkeypatch, stream):
    class Full(io.StringIO):
        def write(self, text):
            raise FULL

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


def test_all_are_closed_whatever_becomes_of_one(capsys):
    loggers = [Kept("a"), Kept("b", at_close=FULL), Kept("c")]
    report = LoggerCollection(loggers)
    report.close()
    report.close()
    assert [logger.closed for logger in loggers] == [1, 1, 1]
    assert capsys.readouterr().err == "b: could not write: No space left on device; continuing without it\n"
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
