"""A line on a terminal, plain lines elsewhere, nothing where results are seen come."""

import io

import pytest

from regard.cli.terminal import ProgressMeter


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _able(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def shown(terminal, results=None):
    """What a meter shows of ten entries, one each second, from the second of twenty on."""
    clock, stream = Clock(), Screen(terminal)
    meter = ProgressMeter(stream, results, clock)
    meter.begin(2, 20)
    for done in range(3, 13):
        clock.now += 10.0
        meter.show(done)
        meter.show(done)
    meter.clear()
    return stream.getvalue()


def test_a_terminal_has_one_line_that_is_drawn_anew():
    found = shown(True).split("\r\x1b[K")
    assert found[0] == found[-1] == ""
    assert len(found) == 12
    assert found[1] == "3 of 20, 0.1 a second, 2 min 50 s left"
    assert shown(True, Screen(False)) == shown(True)


def test_elsewhere_there_is_a_line_now_and_then():
    assert shown(False).split("\n") == ["5 of 20, 0.1 a second, 2 min 30 s left",
                                        "8 of 20, 0.1 a second, 2 min 0 s left",
                                        "11 of 20, 0.1 a second, 1 min 30 s left", ""]


def test_results_that_are_seen_come_need_no_meter(monkeypatch):
    assert shown(True, Screen(True)) == shown(False, Screen(False)) == shown(False, Screen(True)) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(True)


def test_a_total_that_is_not_known_and_long_works():
    clock, stream = Clock(), Screen(False)
    meter = ProgressMeter(stream, clock=clock)
    clock.now = 100.0
    meter.show(50)
    assert stream.getvalue() == "50 done, 0.5 a second\n"
    meter.begin(0, 10_000)
    clock.now = 200.0
    meter.show(100)
    assert stream.getvalue().endswith("100 of 10,000, 1.0 a second, 2 h 45 min left\n")
