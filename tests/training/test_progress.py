"""A training as a person watches it: in a terminal of any width, in a file, and where the stream breaks."""

import io
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from regard.terminal import ASCII_SHADES, Terminal
from regard.training.defaults import Default
from regard.training.logging import (
    CheckpointSaved,
    LoggerCollection,
    Note,
    TimeEstimated,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    Validated,
)
from regard.training.notebook import NotebookProgress
from regard.training.progress import (
    ProgressBar,
    ProgressLines,
    WarningLines,
    draw_choices,
    draw_event,
    draw_result,
    draw_stopped,
    next_commands,
    progress_logger,
    wrap_text,
)
from regard.training.status import TrainingStatus

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


def told(step, loss=2.3125, left=None):
    return TrainingProgress(step, 7000, step / 91, loss, 2.0, 1e-3, 1.0, step * 500, step * 0.1, 41_234.5, 1 << 30,
                            left)


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
        lines(told(step, left=3470 if step == 61 else None))
        if step == 50:
            lines(judged(50))
            lines(CheckpointSaved(50, 1.0))
    lines(TrainingEnded("all steps are done", 100, 50, {"bleu": 41.2}, 3661))
    lines.close()
    shown = stream.getvalue().splitlines()
    assert [line.split()[1] for line in shown if line.startswith("step ") and "/" in line.split()[1]] == [
        "1/7,000", "21/7,000", "41/7,000", "61/7,000", "81/7,000"]
    assert "step 1/7,000  loss 2.312  41,234 tokens/s" in shown
    assert "step 61/7,000  loss 2.312  41,234 tokens/s  ETA 57:50  best BLEU 41.20" in shown
    assert "Validation at step 50: BLEU 41.20, loss 1.700 (best BLEU so far; took 0:12)" in shown
    assert shown[-1] == "Finished 100 steps in 1:01:01. Best checkpoint: step 50 (BLEU 41.20)."
    assert "\x1b" not in stream.getvalue()


def test_the_bar_says_how_it_goes():
    stream, clock = Stream(), Clock()
    bar = ProgressBar(stream, clock)
    bar(started(best={"bleu": 40.0}))
    bar(told(1000))
    clock.now += 60.0
    bar(told(2000, left=300.0))
    bar(judged(2000))
    clock.now += 60.0
    bar(told(3000, left=240.0))
    bar.close()
    frames = [line for line in stream.shown.replace("\r", "\n").splitlines() if "/7,000" in line]
    assert "0/7,000  best BLEU 40.00" in frames[0]
    assert "1,000/7,000  loss 2.312  41,234 tokens/s  best BLEU 40.00" in frames[1]
    assert "2,000/7,000  loss 2.312  41,234 tokens/s  ETA 5:00  best BLEU 40.00" in frames[2]
    assert frames[-1] == "███░░░░░  3,000/7,000  loss 2.312  41,234 tokens/s  ETA 4:00  best BLEU 41.20"


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
    marks = ["9,123,456 parameters", "step 1: BLEU 41.20, loss", "The longest batch", "1/7,000", "Finished 7,000 steps"]
    places = [shown.rindex(mark) for mark in marks]
    assert places == sorted(places)
    assert shown.endswith("Best checkpoint: step 1 (BLEU 41.20).\n")


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
    assert "  Source     one two\n             three four\n" in stream.shown
    assert stream.shown.endswith("  Model      b\n0/7,000  best BLEU 41.20")  # and what was judged is in it at once
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
    assert stream.shown.replace("\n", " ").count(HARMLESS) == 1  # the note
    assert stream.shown.count("\\x1b[31mred\\x07") == 5  # also the setting and the three cells of the table
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
    draw_event(event, Terminal(out, width=width, shades=shades), TrainingStatus(task="translation", score="bleu"))
    return out.getvalue().splitlines()


def test_examples_are_a_table():
    examples = (("Ein Mann schläft.", "A man sleeps.", "A man is sleeping."), ("猫が好き。", "I like cats.", ""))
    assert shown(judged(2, better=False, examples=examples)) == [
        "Validation at step 2: BLEU 41.20, loss 1.700 (best BLEU 43.00; took 0:12)",
        "  Source             Reference      Model",
        "  Ein Mann schläft.  A man sleeps.  A man is sleeping.",
        "  猫が好き。         I like cats.   (empty)",
    ]


def test_the_same_examples_are_not_printed_again():
    """Unless another training begins, such as that of a model after its reverse model."""
    first, second = (("a", "b", "unchanged"),), (("a", "b", "changed"),)
    for make, tty in ((ProgressLines, False), (ProgressBar, True)):
        stream = Stream(tty=tty)
        logger = make(stream, Clock())
        for number, (event, tables) in enumerate((
                (started(), 0), (judged(1, examples=first), 1), (judged(2, examples=first), 1),
                (judged(3, examples=second), 2), (judged(4), 2), (judged(5, examples=second), 2), (started(), 2),
                (judged(1, examples=second), 3))):
            logger(event)
            assert stream.shown.count("Reference") == tables, number
        logger.close()
        assert stream.shown.count("Validation at step") == 6


def test_the_columns_are_named_after_the_task():
    for task, names in (("language model", ["Prompt", "Text", "Model"]), ("another", ["Input", "Reference", "Model"])):
        out = io.StringIO()
        draw_event(judged(examples=(("a", "b", "c"),)), Terminal(out), TrainingStatus(task=task))
        assert out.getvalue().splitlines()[1].split() == names


def test_a_long_sentence_is_wrapped_in_its_column_and_a_very_long_one_cut():
    """Columns are as wide as they can be; wide characters count twice."""
    lines = shown(judged(examples=(("one two three four five", "猫が好き" * 5, "x" * 10_000_000),)), width=62)[2:]
    assert lines == [
        "  Source              Reference           Model",
        "  one two three four  猫が好き猫が好き猫  " + "x" * 18,
        "  five                が好き猫が好き猫が  " + "x" * 18,
        "                      好き                " + "x" * 18,
        "                                          " + "x" * 15 + "..."]
    assert max(map(cell_len, lines)) <= 62


def test_in_a_narrow_terminal_examples_are_blocks():
    lines = shown(judged(examples=(("one two three four five", "猫が好き" * 3, "x" * 10_000_000),)), width=25)
    del lines[:next(number for number, line in enumerate(lines) if line.startswith("  Source"))]
    assert lines[:4] == ["  Source     one two", "             three four", "             five",
                         "  Reference  猫が好き猫が"]
    assert [line.split()[-1] for line in lines[-4:]] == [*["x" * 12] * 3, "x" * 9 + "..."]
    marks = shown(judged(examples=(("a" + "\u0301" * 1000, "b", "c"),)), width=25)  # long, and one column wide
    assert marks[-3].endswith("...")


def test_no_number_is_said_to_be_none():
    (line,) = shown(Validated(1, {"bleu": float("nan"), "loss": float("inf")}, False, {}, (), float("nan")))
    assert line == "Validation at step 1: BLEU nan, loss inf (took ?)"
    for value, text in ((12345.6, "12,346"), (999.96, "1,000"), (999.94, "999.9")):
        assert f"loss {text} (" in shown(Validated(1, {"loss": value}, False, {}, (), 1))[0]


@pytest.mark.parametrize(("event", "parts"), [
    (TrainingEnded("all steps are done", 16_000, 16_000, {"loss": 1.2, "bleu": 43.4, "chrf": 65.87}, 151),
     ["Finished 16,000 steps in 2:31.", "step 16,000 (BLEU 43.40, chrF 65.87)."]),
    (TrainingEnded("all steps are done", 9, 9, {"loss": 1.2, "bleu": 43.4}, 151, intervals={"bleu": [42.1, 44.678]}),
     ["(BLEU 43.40 [42.10, 44.68])", "95%"]),
    (TrainingEnded("all steps are done", 9, 9, {"bleu": 43.4, "bleu/en-fr": 45.0}, 151,
                   intervals={"bleu/en-fr": [44.0, 46.5]}), ["(BLEU 43.40 (en-fr 45.00 [44.00, 46.50]))", "95%"]),
    (TrainingEnded("all steps are done", 1, 1, {"loss": 1.2}, 1), ["Finished 1 step in 0:01.", "(loss 1.200)"]),
    (TrainingEnded("all steps are done", 9, 9, {"loss": 1.2, "accuracy": 0.93152, "f1": 0.5}, 1),
     ["(accuracy 93.15%, F1 50.00)"]),  # as `regard evaluate` shows them
    (TrainingEnded("the time limit is reached", 420, 400, {"loss": 1.2}, 60, 420), ["420 steps", "1:00", "time limit"]),
    (TrainingEnded("the score has stopped improving", 900, 300, {"bleu": 1.0}, 60, 1600, 6),
     ["Stopped early at step 900 of 1,600 after 1:00: BLEU", "6 validations", "step 300"]),
    (TrainingEnded("interrupted by the user", 90, 0, {}, 60, 1600),
     ["Interrupted at step 90 of 1,600 after 1:00.", "No model was saved yet"]),
    (TrainingEnded("all steps are done", 90, 0, {}, 60, 90), ["Finished 90 steps", "No model was saved"]),
    (TrainingEnded("stopped by a callback", 90, 90, {}, 60, 100), ["step 90 of 100", "stopped by a callback"]),
])
def test_the_end(event, parts):
    text = " ".join(shown(event, width=500))
    assert all(part in text for part in parts), text


def estimated(seconds, steps=7000, step=0.077, **more):
    event = TimeEstimated(seconds, steps, step, 12.0, "2 CPU cores", **{"max_steps": 7000, **more})
    return " ".join(shown(event, width=500))


def test_the_estimate():
    assert estimated(540) == "About 9 minutes on 2 CPU cores (7,000 steps, 13 steps/s measured)."
    for seconds, text in ((0.3, "0.3 seconds"), (1.2, "1 second"), (40, "40 seconds"), (95, "1 minute 35 seconds"),
                          (3599, "1 hour"), (5400, "1 hour 30 minutes"), (36_000, "10 hours"), (90_000, "1 day 1 hour"),
                          (10**6, "12 days")):
        assert f"About {text} on" in estimated(seconds)
    for step, text in ((2.5, "2.5 s/step"), (0.5, "2.0 steps/s"), (0.0005, "2,000 steps/s")):
        assert f"{text} measured" in estimated(540, step=step)


def test_the_estimate_with_a_time_limit():
    assert "(7,000 steps," in estimated(540, max_time=1800.0, warmup_steps=9, validation_every=9)
    fitted = estimated(1790, steps=4200, max_time=1800.0, warmup_steps=420, validation_every=1)
    for part in ("4,200 of 7,000 steps", "30 minutes", "13 steps/s", "420 steps", "every 1 step."):
        assert part in fitted
    short = estimated(14, steps=1, step=2.0, max_time=5.0, warmup_steps=1, validation_every=1)
    for part in ("5 seconds is too short", "2 seconds", "12 seconds", "1 step,", "14 seconds"):
        assert part in short


def result(finished=True, best=7, folder="my model", **more):
    state = SimpleNamespace(best=1.0 if best else None, best_step=best)
    return SimpleNamespace(state=state, folder=Path(folder), finished=finished,
                           **{"task": "translation", "sample": "It's here.", "sample_options": (),
                              "has_attention": True, **more})


def drawn(result):
    out = io.StringIO()
    draw_result(result, Terminal(out, width=40), ["regard", "train", "a b.tsv", "--resume"])
    return out.getvalue().splitlines()


def test_what_to_try_next_can_be_copied():
    """Commands are not wrapped, and a shell reads them as they are meant."""
    lines = drawn(result())
    assert "my model" in lines[0]
    assert [shlex.split(line) for line in lines[1:]] == [
        ["regard", "translate", "my model", "It's here."], ["regard", "look", "my model", "It's here."],
        ["regard", "info", "my model"]]


def test_a_model_without_attention_has_nothing_to_look_at():
    assert [line.split()[1] for line in drawn(result(has_attention=False))[1:]] == ["translate", "info"]


def test_after_an_interruption_the_command_to_resume():
    assert drawn(result(finished=False))[-1] == "  regard train 'a b.tsv' --resume"
    assert drawn(result(best=0)) == []  # no model, nothing to try


def test_stopped_at_once(tmp_path):
    """The last checkpoint and the command to resume, if there is one."""
    command = ["regard", "train", "a b.tsv", "--resume"]
    for number, parts in ((None, ["No checkpoint"]), (7, ["step 7", "regard train 'a b.tsv' --resume"]),
                          (1200, ["step 1,200"])):
        if number is not None:
            (tmp_path / "checkpoints" / f"step-{number:08}").mkdir(parents=True)
        out = io.StringIO()
        draw_stopped(tmp_path, Terminal(out), command)
        assert all(part in out.getvalue() for part in parts), out.getvalue()


@pytest.mark.parametrize(("task", "command"), [
    ("translation", "translate"), ("language model", "complete"), ("masked language model", "fill"),
    ("text classification", "classify"), ("image classification", "classify")])
def test_commands_of_each_task(task, command):
    for sample in ("A text.", None):
        use, look, info = map(shlex.split, next_commands(task, "model", sample))
        assert use[:3] == ["regard", command, "model"]
        assert len(use) == len(look) == 4
        assert (look[1], info) == ("look", ["regard", "info", "model"])


def test_a_leading_dash_is_no_option():
    """A model in a folder `-m`, and a text like those of a dialogue."""
    use, look, info = map(shlex.split, next_commands("translation", "-m", "- Yes."))
    assert use == ["regard", "translate", "./-m", "--", "- Yes."]
    assert look == ["regard", "look", "./-m", "--", "- Yes."]
    assert info == ["regard", "info", "./-m"]


def test_quiet_is_warnings_alone():
    stream = Stream()
    logger = progress_logger(stream, quiet=True)
    assert isinstance(logger, WarningLines)
    for event in (started(), told(1), judged(1), Note("Stopping."), Note("3 pairs are in both.", warning=True),
                  TrainingEnded("all steps are done", 7000, 1, {"bleu": 41.2}, 60)):
        logger(event)
    logger.close()
    assert stream.getvalue() == "3 pairs are in both.\n"


class Notebook:
    """What IPython has: a shell with a kernel, and a display whose handle is updated."""

    def __init__(self):
        self.kernel, self.drawn = object(), []

    def display(self, drawing, *, display_id):
        assert display_id is True
        self.drawn.append(drawing._repr_html_())
        return SimpleNamespace(update=lambda drawing: self.drawn.append(drawing._repr_html_()))


@pytest.fixture
def notebook(monkeypatch):
    found = Notebook()
    modules = {"IPython": ModuleType("IPython"), "IPython.display": ModuleType("IPython.display")}
    modules["IPython"].get_ipython = lambda: found
    modules["IPython.display"].display = found.display
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_a_notebook_has_a_bar_of_its_own(notebook):
    assert isinstance(progress_logger(Stream(tty=False)), NotebookProgress)
    assert isinstance(progress_logger(Stream(tty=True)), ProgressBar)
    notebook.kernel = None  # IPython in a terminal
    assert isinstance(progress_logger(Stream(tty=False)), ProgressLines)


def test_the_bar_of_a_notebook(notebook):
    clock = Clock()
    logger = NotebookProgress(notebook.display, clock)
    logger(started())
    logger(TimeEstimated(540, 7000, 0.077, 12.0, "2 CPU cores", max_steps=7000))
    assert "About 9 minutes" in notebook.drawn[-1]
    for _ in range(100):
        clock.now += 0.01
        logger(told(3500, left=60.0))
    assert len(notebook.drawn) <= 5
    assert re.search(r'<progress [^>]*value="0\.5000"', notebook.drawn[-1])
    assert "ETA 1:00" in notebook.drawn[-1]
    logger(judged(3500, examples=(("<b>&", "<script>", "</td>"),)))
    assert "<td" in notebook.drawn[-1]
    assert "&lt;b&gt;&amp;" in notebook.drawn[-1]
    for tag in ("<b>", "<script>"):
        assert tag not in notebook.drawn[-1]
    assert "BLEU 41.20" in notebook.drawn[-1]
    logger(CheckpointSaved(3500, 1.0))
    logger(TrainingEnded("all steps are done", 7000, 3500, {"bleu": 41.2}, 60))
    logger.close()
    assert "Finished 7,000 steps in 1:00" in notebook.drawn[-1]
    assert "<progress" not in notebook.drawn[-1]


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
    status = TrainingStatus()
    for event in (started(best={"bleu": 40.0}), told(1000), told(2000, left=300)):
        status.update(event)
    found = [status.line(width) for width in range(80, 10, -1)]
    assert list(dict.fromkeys(found)) == [
        "2,000/7,000  loss 2.312  41,234 tokens/s  ETA 5:00  best BLEU 40.00",
        "2,000/7,000  loss 2.312  ETA 5:00  best BLEU 40.00",
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
    code = "import sys, regard.training.progress; sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=os.environ).returncode == 0
