"""The progress of a training: a live bar on a terminal or in a notebook, plain lines elsewhere; and its end.

    progress_logger(stream)              the one that fits the stream: a logger of `regard.training.logging`
    ProgressBar(stream)                  one line that is redrawn, and above it the events that are kept
    ProgressLines(stream)                a line every ten seconds at most, and the events that are kept
    WarningLines(stream)                 warnings alone, for --quiet
    draw_choices(choices, terminal)      the chosen settings and their reasons
    draw_result(result, ...)             where the model is, and commands to try next or to resume
    draw_stopped(folder, ...)            the last checkpoint of a training that was stopped at once

The stream is stderr: stdout is for results. Control characters in texts are written out; texts are never read as
markup. rich is imported only for a bar and for wrapping.
"""

import errno
import io
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from regard import checks
from regard.terminal import Terminal, escape_unprintable, path_argument
from regard.training.choices import Choice
from regard.training.defaults import Default
from regard.training.logging import (
    CheckpointSaved,
    Logger,
    Note,
    SynthesisProgress,
    TimeEstimated,
    TrainingEnded,
    TrainingEvent,
    TrainingProgress,
    TrainingStarted,
    Validated,
)
from regard.training.notebook import NotebookProgress, notebook_progress
from regard.training.status import TrainingStatus, describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from regard.training.logging import ValidationExample
    from regard.training.train import TrainingResult


Clock = Callable[[], float]
REDRAW_SECONDS = 0.1
"""Minimum seconds between two redraws of the bar."""
LINE_SECONDS = 10.0
"""Seconds between two plain lines."""
MAX_BAR_WIDTH, BAR_STEP = 40, 8
MIN_REASON_WIDTH = 24
"""Columns that a reason needs beside its setting; with fewer it is printed below."""
MAX_REASON_WIDTH = 72
"""Columns of reasons, if values need the rest of a wide terminal."""
MIN_BLOCK_WIDTH, MIN_CELL_WIDTH, MAX_EXAMPLE_LINES = 8, 18, 4
"""Columns and lines of an example sentence in a table; with fewer columns, its parts are printed below each other."""
DUMB_TERMINALS = ("dumb", "unknown")


def progress_logger(stream: TextIO, *, quiet: bool = False) -> Logger:
    """The logger for this stream.

    Args:
        quiet: whether only warnings are shown.
    """
    if quiet:
        return WarningLines(stream)
    if stream.isatty() and os.environ.get("TERM", "").lower() not in DUMB_TERMINALS:
        return ProgressBar(stream)
    notebook: NotebookProgress | None = None if stream.isatty() else notebook_progress()
    return ProgressLines(stream) if notebook is None else notebook


class WarningLines:
    """A logger that prints warnings alone."""

    name = "progress"

    def __init__(self, stream: TextIO) -> None:
        self._terminal = Terminal.of(stream)

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, Note) and event.warning:
            draw_event(event, self._terminal, TrainingStatus())
            self._terminal.out.flush()

    def close(self) -> None:
        """Nothing to close."""


class ProgressLines:
    """A logger for files, pipes and simple terminals."""

    name = "progress"

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._terminal, self._status, self._clock = Terminal.of(stream), TrainingStatus(), clock
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._status.update(event)
        if isinstance(event, TrainingProgress | SynthesisProgress):
            if self._clock() - self._last < LINE_SECONDS:
                return
            self._last = self._clock()
            self._terminal.text(self._status.line(self._terminal.width, "step "))
        else:
            draw_event(event, self._terminal, self._status)
        self._terminal.out.flush()

    def close(self) -> None:
        """Nothing to close."""


class ProgressBar:
    """A logger for a terminal. It owns the last line until it is closed; other output on stderr is printed above."""

    name = "progress"

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        from rich.live import Live

        self._terminal, self._status, self._clock = Terminal.of(stream), TrainingStatus(), clock
        self._console = _make_console(stream)
        # No refresh thread: it would draw into other output, and survive into other processes.
        self._live = Live(self, console=self._console, auto_refresh=False, redirect_stdout=False,
                          redirect_stderr=stream is sys.stderr)
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._status.update(event)
        match event:
            case SynthesisProgress(step, steps) if step == steps:
                self.close()
            case TrainingProgress() | SynthesisProgress():
                if self._clock() - self._last >= REDRAW_SECONDS:
                    self._last = self._clock()
                    self._live.start()  # it may run already
                    self._live.refresh()
            case TrainingEnded():
                self.close()
                self._draw(event)
            case TrainingStarted():
                self._draw(event)
                self._live.start(refresh=True)
                self._console.show_cursor(True)  # a killed process could not restore it
            case _:
                self._draw(event)

    def close(self) -> None:
        """Leave the bar as it is now, and the terminal as it was."""
        self._live.stop()

    def _draw(self, event: TrainingEvent) -> None:
        from rich.text import Text

        out = io.StringIO()
        width = max(10, min(self._terminal.width, self._console.width))
        draw_event(event, replace(self._terminal, out=out, width=width, bold=False), self._status)
        if out.getvalue():
            self._console.print(Text(out.getvalue().removesuffix("\n")))

    def __rich__(self) -> "Text":
        """The bar for the current width."""
        from rich.text import Text

        width = self._console.width
        line = self._status.line(width)
        # The bar grows in steps: otherwise every further digit of the line would move it.
        room = min(MAX_BAR_WIDTH, width - len(line) - 2) // BAR_STEP * BAR_STEP
        if room <= 0:
            return Text(line, no_wrap=True, overflow="crop")
        done = int(room * self._status.fraction)
        shades = self._terminal.shades
        return Text.assemble((shades[-1] * done, "cyan"), shades[1] * (room - done), f"  {line}", no_wrap=True)


def draw_event(event: TrainingEvent, terminal: Terminal, status: TrainingStatus) -> None:
    """Print what is kept of an event."""
    match event:
        case TrainingStarted():
            _draw_start(event, terminal)
        case Validated() | Note() | TimeEstimated() | TrainingEnded():
            for line in describe(event, status.score).split("\n"):
                terminal.text(escape_unprintable(line))
    if isinstance(event, Validated) and event.examples not in ((), status.shown):
        draw_examples(event.examples, status.columns, terminal)
        status.shown = event.examples


def draw_choices(choices: Sequence[Default | Choice], terminal: Terminal) -> None:
    """Print settings: name, value and reason in three columns, or below each other if the width is too small.

    A reason that equals the one above is not repeated.
    """
    rows = [(escape_unprintable(name), escape_unprintable(str(value)), escape_unprintable(reason))
            for name, value, reason in choices]
    repeated = [False, *(one[2] == other[2] for one, other in pairwise(rows))]
    if not rows:
        return
    brief = isinstance(choices[0], Choice)
    terminal.heading("Settings (--explain shows all of them)" if brief else "Settings and their reasons")
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    room = terminal.width - names - 6
    values = min(values, max(room // 2, room - MAX_REASON_WIDTH))
    for (name, value, reason), known in zip(rows, repeated, strict=False):
        if room - values >= MIN_REASON_WIDTH and values > 0:
            lines = wrap_text(value, values)
            terminal.beside([[f"  {name.ljust(names)}"], [lines[0].ljust(values), *lines[1:]],
                             [""] if known else wrap_text(reason, room - values)], gap=2)
        else:
            terminal.text(f"{name}{': ' if brief else ' = '}{value}", "  ")
            if not known:
                terminal.text(reason, "      ")


def wrap_text(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` terminal columns; a wide character has two."""
    from rich.cells import cell_len

    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        while cell_len(joined) > width:
            if line:
                lines.append(line)
            else:  # a word longer than a line
                head = _text_head(word, width)
                lines.append(head)
                word = word[len(head):]
            line, joined = "", word
        line = joined
    return [*lines, line]


def _draw_start(event: TrainingStarted, terminal: Terminal) -> None:
    choices = event.choices or event.defaults
    draw_choices(choices, terminal)
    if choices:
        terminal.out.write("\n")
    task = event.task[0].upper() + event.task[1:]
    terminal.text(escape_unprintable(f"{task}: {checks.plural(event.parameters, 'parameter')}, at most "
                                     f"{checks.plural(event.steps, 'step')}, on {event.device}."))


def draw_examples(examples: "Sequence[ValidationExample]", names: Sequence[str], terminal: Terminal) -> None:
    """Print examples as a table with a column for the input, the target and the output.

    If the terminal is too narrow for columns, each example is a block of three labelled texts.
    """
    from rich.cells import cell_len

    if not examples:
        return
    room = (terminal.width - 2 * (len(names) + 1)) // len(names)
    if room < MIN_CELL_WIDTH:
        _draw_example_blocks(examples, names, terminal)
        return
    rows = [[_example_lines(text, room) for text in example] for example in examples]
    widths = [max(cell_len(line) for row in rows for line in [*row[column], names[column]])
              for column in range(len(names))]
    lines = [_table_line(names, widths)]
    for row in rows:
        for number in range(max(map(len, row))):
            lines.append(_table_line([cell[number] if number < len(cell) else "" for cell in row], widths))
    terminal.beside([lines])


def _draw_example_blocks(examples: "Sequence[ValidationExample]", names: Sequence[str], terminal: Terminal) -> None:
    label = max(map(len, names))
    room = terminal.width - label - 4
    for name, text in (pair for example in examples for pair in zip(names, example, strict=True)):
        if room >= MIN_BLOCK_WIDTH:
            terminal.beside([[f"  {name.ljust(label)}"], _example_lines(text, room)], gap=2)
        else:
            terminal.beside([[name, *(f"  {line}" for line in _example_lines(text, terminal.width - 2))]])


def _example_lines(text: str, room: int) -> list[str]:
    """A text in a few lines of this width; the rest is cut off."""
    most = room * MAX_EXAMPLE_LINES
    lines = wrap_text(escape_unprintable(text[:most]) or "(empty)", room)
    if len(lines) > MAX_EXAMPLE_LINES or len(text) > most:
        lines = lines[:MAX_EXAMPLE_LINES]
        lines[-1] = _text_head(lines[-1], room - 3) + "..."
    return lines


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells side by side, padded to these widths in terminal columns."""
    from rich.cells import cell_len

    return "  " + "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))


def draw_result(result: "TrainingResult", terminal: Terminal, resume_command: Sequence[str]) -> None:
    """Print where the model is and commands to try next; after an interruption, the command to resume.

    Args:
        resume_command: the words of that command.
    """
    folder = escape_unprintable(str(result.folder))
    if not result.finished:
        terminal.text(f"A checkpoint was saved in {folder}. To resume:")
        draw_commands([shlex.join(resume_command)], terminal)
    elif result.state.best is not None:
        terminal.text(f"The model is in {folder}. Try:")
        draw_commands(next_commands(result.task, str(result.folder), result.sample, result.sample_options,
                                    result.has_attention), terminal)
    terminal.out.flush()


def draw_stopped(folder: Path, terminal: Terminal, resume_command: Sequence[str]) -> None:
    """Print the last checkpoint of a training that was stopped at once, and the command to resume."""
    from regard.training.checkpoints import list_steps
    from regard.training.resolution import CHECKPOINTS_FOLDER, STAGES_FILE

    steps = list_steps(folder / CHECKPOINTS_FOLDER)
    if not steps and (folder / STAGES_FILE).exists():
        terminal.text("Stopped at once. To resume:")
        draw_commands([shlex.join(resume_command)], terminal)
    elif steps:
        terminal.text(f"Stopped at once. The last checkpoint is of step {max(steps):,}. To resume:")
        draw_commands([shlex.join(resume_command)], terminal)
    else:
        terminal.text("Stopped. No checkpoint was saved.")
    terminal.out.flush()


def next_commands(task: str, folder: str, sample: str | None, options: Sequence[str] = (),
                  has_attention: bool = True) -> list[str]:
    """Commands to try with a new model.

    Args:
        task: the name of the training task, as in `TrainingStarted`.
        sample: a text for the model; None to leave that to the user.
        options: what the commands need for this text, such as the target language.
        has_attention: whether `regard look` can show the model.
    """
    command = {"translation": "translate", "language model": "complete", "masked language model": "fill",
               "text classification": "classify", "image classification": "classify",
               "token classification": "label", "forecasting of tracks": "predict"}.get(task)
    files = {"image classification": "image.png", "forecasting of tracks": "tracks.csv"}
    text = sample if sample is not None else files.get(task, "Your text")
    folder, texts = path_argument(folder), ["--", text] if text.startswith("-") else [text]
    names = [name for name in (command, "look" if has_attention else None) if name is not None]
    use = [["regard", name, folder, *options, *texts] for name in names]
    return [shlex.join(words) for words in [*use, ["regard", "info", folder]]]


def draw_commands(commands: Sequence[str], terminal: Terminal) -> None:
    """Print commands, one a line, unwrapped: they are made to be copied."""
    terminal.beside([[f"  {escape_unprintable(command)}" for command in commands]])


def _text_head(text: str, width: int) -> str:
    """The beginning of a text that fits into a width, at least one character."""
    from rich.cells import cell_len

    end, used = 0, 0
    for char in text:
        used += cell_len(char)
        if used > width and end:
            break
        end += 1
    return text[:end]


def _make_console(stream: TextIO) -> "Console":
    """A console of rich that reads no markup."""
    from rich.console import Console

    class UnhandledPipeConsole(Console):
        """Raise a broken pipe to the caller; rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return UnhandledPipeConsole(file=stream, markup=False, emoji=False, highlight=False)


class BriefLogger:
    """A logger that forwards events without what is the same for every training of a comparison."""

    def __init__(self, inner: Logger) -> None:
        self.inner, self.name = inner, inner.name

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, CheckpointSaved):
            return
        if isinstance(event, TrainingStarted):
            event = replace(event, defaults=(), choices=(), settings=())
        if isinstance(event, Validated):
            event = replace(event, examples=())
        self.inner(event)

    def close(self) -> None:
        """Close the inner logger."""
        self.inner.close()


class ExplainingLogger:
    """A logger that shows all settings of a training with their reasons, and not only the most important ones."""

    def __init__(self, inner: Logger) -> None:
        self.inner, self.name = inner, inner.name

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, TrainingStarted):
            event = replace(event, choices=(), defaults=event.settings)
        self.inner(event)

    def close(self) -> None:
        """Close the inner logger."""
        self.inner.close()
