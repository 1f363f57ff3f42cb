"""A training as a person watches it: in a terminal of any width, in a file, and where the stream breaks."""

import io
import os
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from regard.cli.progress import (
    ProgressBar,
    ProgressLines,
    TrainingStatus,
    draw_choices,
    draw_event,
    progress_logger,
    wrap_text,
)
from regard.cli.terminal import ASCII_SHADES, Terminal
from regard.training.defaults import Default
from regard.training.logging import (
    CheckpointSaved,
    LoggerCollection,
    Note,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    Validated,
)

COMMAND = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "[/bold] [red]x[/red] :smile: \x1b[31mred\x07\u202e\r\n\u2028 {0} %s \ud800"
HARMLESS = "[/bold] [red]x[/red] :smile: \\x1b[31mred\\x07\\u202e\\r\\n\\u2028 {0} %s \\ud800"


class Stream(io.StringIO):
    """A stream that is a terminal or not, and that breaks when told to."""

    encoding = "utf-8"

    def __init__(self, tty=True):
        super().__init__()
        self.tty, self.fault = tty, None

    def isatty(self):
        return self.tty

    def write(self, text):
        if self.fault is not None:
            raise self.fault
        return super().write(text)

    @property
    def shown(self):
        """What was written, without what a terminal obeys."""
        return COMMAND.sub("", self.getvalue())


class Clock:
    """The time, moved by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch):
    for name in ("LC_ALL", "LANG", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def started(first=1, score="bleu", best=None, defaults=()):
    return TrainingStarted("translation", 9_123_456, 7000, first, "cuda", defaults, score, best or {})


def told(step, loss=2.3125):
    return TrainingProgress(step, 7000, step / 91, loss, 2.0, 1e-3, 1.0, step * 500, step * 0.1, 41_234.5, 1 << 30)


def judged(step=1000, better=True, examples=()):
    return Validated(step, {"bleu": 41.2, "loss": 1.7}, better, {"bleu": 41.2 if better else 43.0}, examples, 12.3)


def test_a_bar_where_it_can_be_drawn_and_lines_elsewhere(monkeypatch):
    assert isinstance(progress_logger(Stream()), ProgressBar)
    assert isinstance(progress_logger(Stream(tty=False)), ProgressLines)
    for term in ("dumb", "unknown"):
        monkeypatch.setenv("TERM", term)
        assert isinstance(progress_logger(Stream()), ProgressLines)


def test_lines_seldom_but_all_judgements():
    stream, clock = Stream(tty=False), Clock()
    lines = ProgressLines(stream, clock)
    lines(started())
    for step in range(1, 101):
        clock.now += 0.5
        lines(told(step))
        if step == 50:
            lines(judged(50))
            lines(CheckpointSaved(50, 1.0))
    lines(TrainingEnded("all steps are done", 100, 50, {"bleu": 41.2}, 3661))
    lines.close()
    shown = stream.getvalue().splitlines()
    assert [line.split()[1] for line in shown if line.startswith("step ") and "/" in line.split()[1]] == [
        "1/7,000", "21/7,000", "41/7,000", "61/7,000", "81/7,000"]
    assert "step 1/7,000  loss 2.312  41,234 tokens/s" in shown
    assert "step 61/7,000  loss 2.312  41,234 tokens/s  ETA 57:50  best bleu 41.20" in shown
    assert "step 50: bleu 41.20, loss 1.700, the best so far (0:12)" in shown
    assert shown[-2:] == ["Ended at step 100 after 1:01:01: all steps are done.",
                          "Best checkpoint: step 50 (bleu 41.20)."]
    assert "\x1b" not in stream.getvalue()


def test_the_bar_says_how_it_goes():
    stream, clock = Stream(), Clock()
    bar = ProgressBar(stream, clock)
    bar(started(best={"bleu": 40.0}))
    bar(told(1000))
    clock.now += 60.0
    bar(told(2000))
    bar(judged(2000))
    clock.now += 60.0
    bar(told(3000))
    bar.close()
    frames = [line for line in stream.shown.replace("\r", "\n").splitlines() if "/7,000" in line]
    assert "0/7,000  best bleu 40.00" in frames[0]
    assert "1,000/7,000  loss 2.312  41,234 tokens/s  best bleu 40.00" in frames[1]
    assert "2,000/7,000  loss 2.312  41,234 tokens/s  ETA 5:00  best bleu 40.00" in frames[2]
    assert frames[-1] == "███░░░░░  3,000/7,000  loss 2.312  41,234 tokens/s  ETA 4:00  best bleu 41.20"


def test_the_bar_is_not_drawn_for_every_step():
    stream, clock = Stream(), Clock()
    bar = ProgressBar(stream, clock)
    bar(started())
    for step in range(1, 1001):
        clock.now += 0.001
        bar(told(step))
    assert 5 <= stream.shown.count("/7,000") <= 15
    bar.close()
    assert "1,000/7,000" in stream.shown  # the last state is drawn in any case


def test_what_stays_is_above_the_bar():
    stream = Stream()
    bar = ProgressBar(stream)
    bar(started())
    bar(told(1))
    bar(judged(1))
    bar(Note("The longest batch fits."))
    bar(TrainingEnded("all steps are done", 7000, 1, {"bleu": 41.2}, 60))
    shown = stream.shown
    marks = ["9,123,456 parameters", "step 1: bleu 41.20, loss", "The longest batch", "1/7,000", "Ended at step 7,000"]
    places = [shown.rindex(mark) for mark in marks]
    assert places == sorted(places)
    assert shown.endswith("Best checkpoint: step 1 (bleu 41.20).\n")


@pytest.mark.parametrize("columns", [10, 20, 21, 40, 59, 60, 61, 80, 200])
def test_no_line_is_wider_than_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    example = ("Ein sehr langer Satz, der kein Ende hat.", "猫が好き" * 20, "a" * 500)
    choices = (Default("training.schedule.max_steps", "7000", "77 epochs of 91 batches, which is about 9 minutes"),)
    for make in (ProgressBar, ProgressLines):
        stream, clock = Stream(), Clock()
        logger = make(stream, clock)
        for event in (started(defaults=choices), told(1), judged(1, examples=(example,)), Note("word " * 50),
                      TrainingEnded("all steps are done", 7000, 1, {"bleu": 41.2}, 60)):
            clock.now += 100.0
            logger(event)
            clock.now += 100.0
            logger(told(5000))
        logger.close()
        for line in stream.shown.replace("\r", "\n").splitlines():
            assert cell_len(line) <= columns, line
        frames = [line for line in stream.shown.replace("\r", "\n").splitlines() if "5,000" in line]
        assert frames
        assert all(frame.startswith(("5,000/7,000"[:columns], "step 5,000/7,000"[:columns], "█")) for frame in frames)


def test_the_bar_follows_the_width_of_its_own_terminal():
    """Which is not the one that stdout has."""
    stream = Stream()
    bar = ProgressBar(stream)
    bar(started())
    bar._console.width = 24
    bar(judged(1, examples=(("one two three four", "a", "b"),)))
    assert "  given   one two three\n          four\n" in stream.shown
    assert stream.shown.endswith("  made    b\n0/7,000  best bleu 41.20")  # and what was judged is in it at once
    bar(told(3500))
    bar.close()
    assert stream.shown.endswith("\r3,500/7,000  loss 2.312\n")


def test_without_colour(monkeypatch):
    with_colour, without = Stream(), Stream()
    for stream in (with_colour, without):
        bar = ProgressBar(stream)
        bar(started())
        bar(told(3500))
        bar.close()
        monkeypatch.setenv("NO_COLOR", "1")
    assert COLOUR.search(with_colour.getvalue())
    assert not COLOUR.search(without.getvalue())
    assert "3,500/7,000" in without.shown


def test_only_ascii_in_the_c_locale(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    stream = Stream()
    bar = ProgressBar(stream)
    bar(started())
    bar(judged(1, examples=(("ü", "→", "猫"),)))
    bar(told(3500))
    bar.close()
    assert stream.getvalue().isascii()
    assert "####" in stream.shown


@pytest.mark.parametrize("make", [ProgressBar, ProgressLines])
def test_texts_of_the_user_are_shown_and_not_obeyed(monkeypatch, make):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Stream()
    logger = make(stream)
    logger(started(defaults=(Default(HOSTILE, "1", "because"),)))
    logger(judged(1, examples=((HOSTILE, HOSTILE, HOSTILE),)))
    logger(Note(HOSTILE.replace("\n", "")))
    logger.close()
    shown = stream.shown.replace("\n          ", " ").replace("\n", " ")
    assert shown.count(HARMLESS) >= 3
    for obeyed in ("\x1b[31m", "\x07", "\u202e", "\u2028", "\ud800"):
        assert obeyed not in stream.getvalue()


def test_others_speak_above_the_bar_and_stderr_comes_back(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    out = sys.stdout
    bar = ProgressBar(stream)
    bar(started())
    assert sys.stdout is out
    print("somebody warns: [bold]", file=sys.stderr)
    print("and asks: [red]", end="", file=sys.stderr, flush=True)
    for said in ("somebody warns: [bold]", "and asks: [red]"):
        assert stream.shown.index(said) < stream.shown.rindex("0/7,000")
    bar.close()
    bar.close()
    assert sys.stderr is stream


def test_the_cursor_is_there_even_after_a_kill():
    stream = Stream()
    bar = ProgressBar(stream)
    bar(started())
    bar(told(1))
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")
    bar.close()


def test_no_thread_draws():
    before = threading.active_count()
    bar = ProgressBar(Stream())
    bar(started())
    assert threading.active_count() == before
    bar.close()


@pytest.mark.parametrize("make", [ProgressBar, ProgressLines])
@pytest.mark.parametrize("fault", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_a_terminal_that_has_gone_does_not_end_the_training(monkeypatch, make, fault):
    stream, clock = Stream(), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    kept = []
    other = type("Other", (), {"name": "other", "close": lambda self: None, "__call__": lambda self, e: kept.append(e)})
    with LoggerCollection([make(stream, clock), other()]) as report:
        report(started())
        stream.fault = fault
        for step in (1, 2, 3):
            clock.now += 60
            report(told(step))
    assert kept == [started(), told(1), told(2), told(3)]
    assert sys.stderr is stream


def shown(event, width=80, shades=Terminal.shades):
    out = io.StringIO()
    draw_event(event, Terminal(out, width=width, shades=shades), "bleu")
    return out.getvalue().splitlines()


def test_examples_stand_below_each_other():
    examples = (("Ein Mann schläft.", "A man sleeps.", "A man is sleeping."), ("Ja.", "Yes.", ""))
    assert shown(judged(2, better=False, examples=examples)) == [
        "step 2: bleu 41.20, loss 1.700; best bleu 43.00 (0:12)",
        "  given   Ein Mann schläft.",
        "  wanted  A man sleeps.",
        "  made    A man is sleeping.",
        "  given   Ja.",
        "  wanted  Yes.",
        "  made    (empty)",
    ]


def test_a_long_sentence_is_wrapped_and_a_very_long_one_cut():
    lines = shown(judged(examples=(("one two three four five", "猫が好き" * 3, "x" * 10_000_000),)), width=22)[3:]
    assert lines[:4] == ["  given   one two", "          three four", "          five", "  wanted  猫が好き猫が"]
    assert lines[-4:] == ["  made    " + "x" * 12, *["          " + "x" * 12] * 2, "          " + "x" * 9 + "..."]
    marks = shown(judged(examples=(("a" + "\u0301" * 1000, "b", "c"),)), width=22)  # long, and one column wide
    assert marks[-3].endswith("...")


def test_no_number_is_said_to_be_none():
    (line,) = shown(Validated(1, {"bleu": float("nan"), "loss": float("inf")}, False, {}, (), float("nan")))
    assert line == "step 1: bleu nan, loss inf (?)"
    for value, text in ((12345.6, "12,346"), (999.96, "1,000"), (999.94, "999.9")):
        assert f"loss {text} (" in shown(Validated(1, {"loss": value}, False, {}, (), 1))[0]


def test_where_a_training_goes_on():
    assert "Resuming at step 501." in shown(started(501))
    assert not any("goes on" in line for line in shown(started(1)))


def test_choices_beside_or_below_each_other():
    choices = [Default("model.width", "256", "29,000 pairs: a wider one learns them by heart"),
               Default("training.seed", "1", "always")]
    wide, narrow, ascii_only = io.StringIO(), io.StringIO(), io.StringIO()
    draw_choices(choices, Terminal(wide, width=52))
    assert wide.getvalue().splitlines()[2:] == [
        "  model.width    256  29,000 pairs: a wider one",
        "                      learns them by heart",
        "  training.seed  1    always",
    ]
    draw_choices(choices, Terminal(narrow, width=20))
    assert narrow.getvalue().splitlines()[3:] == [
        "  model.width = 256", "      29,000 pairs:", "      a wider one", "      learns them by", "      heart",
        "  training.seed = 1", "      always"]
    draw_choices([Default("a", "≤ 3", "ü")], Terminal(ascii_only, shades=ASCII_SHADES))
    assert ascii_only.getvalue().splitlines()[2] == "  a  <= 3  ?"


def test_a_reason_is_told_once_for_those_that_share_it():
    out = io.StringIO()
    same = [Default("a", "1", "few"), Default("b", "2", "few"), Default("c", "3", "many"), Default("d", "4", "few")]
    draw_choices(same, Terminal(out, width=52))
    assert out.getvalue().splitlines()[2:] == ["  a  1  few", "  b  2", "  c  3  many", "  d  4  few"]
    narrow = io.StringIO()
    draw_choices(same, Terminal(narrow, width=12))
    assert narrow.getvalue().count("few") == 2


def test_no_choices_no_table():
    out = io.StringIO()
    draw_choices([], Terminal(out))
    assert out.getvalue() == ""


@example(10, 10**12, 0.5, 1.0)
@given(st.integers(10, 120), st.integers(1, 10**12), st.floats(0, 1), st.floats(allow_nan=True))
def test_how_it_goes_fits_any_width(width, steps, share, loss):
    clock = Clock()
    status = TrainingStatus(clock)
    status.update(TrainingStarted("x", 1, steps, 1, "cpu", (), "loss", {"loss": loss}))
    for done in (share / 2, share):
        clock.now += 1.0
        status.update(TrainingProgress(int(done * steps), steps, 0.0, loss, loss, 0.0, 0.0, 0, 0.0, 1e9, None))
        assert len(status.line(width)) <= width
        assert status.line(width).startswith(f"{int(done * steps):,}/{steps:,}"[:width])
    full = status.line(10_000)
    if len(full) <= width:
        assert status.line(width) == full


def test_what_matters_least_goes_first():
    clock = Clock()
    status = TrainingStatus(clock)
    for event in (started(best={"bleu": 40.0}), told(1000), told(2000)):
        clock.now += 60
        status.update(event)
    found = [status.line(width) for width in range(80, 10, -1)]
    assert list(dict.fromkeys(found)) == [
        "2,000/7,000  loss 2.312  41,234 tokens/s  ETA 5:00  best bleu 40.00",
        "2,000/7,000  loss 2.312  ETA 5:00  best bleu 40.00",
        "2,000/7,000  loss 2.312  ETA 5:00",
        "2,000/7,000  loss 2.312",
        "2,000/7,000",
    ]


@given(st.text(st.sampled_from("ab ü猫\u0301"), max_size=60), st.integers(2, 20))
def test_wrapping_loses_nothing_and_fits(text, width):
    lines = wrap_text(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_character_wider_than_the_line_has_one_of_its_own():
    assert wrap_text("a 猫猫b", 1) == ["a", "猫", "猫", "b"]


def test_neither_rich_nor_torch_is_imported_before_it_is_used():
    code = "import sys, regard.cli.progress; sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=os.environ).returncode == 0
