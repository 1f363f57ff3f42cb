"""The progress of a training: a live bar on a terminal, plain lines elsewhere.

    progress_logger(stream)              the one that fits the stream: a logger of `regard.training.logging`
    ProgressBar(stream)                  one line that is redrawn, and above it the events that are kept
    ProgressLines(stream)                a line every ten seconds at most, and the events that are kept
    draw_choices(choices, terminal)      the chosen settings and their reasons

The stream is stderr: stdout is for results. Control characters in texts are written out; texts are never read as
markup. rich is imported only for a bar and for wrapping.
"""

import errno
import io
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO

from regard.cli.terminal import Terminal, escape_unprintable
from regard.training.defaults import Default
from regard.training.logging import (
    CheckpointSaved,
    Logger,
    Note,
    TrainingEnded,
    TrainingEvent,
    TrainingProgress,
    TrainingStarted,
    Validated,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from regard.training.logging import ValidationExample


Clock = Callable[[], float]
REDRAW_SECONDS = 0.1
"""Minimum seconds between two redraws of the bar."""
LINE_SECONDS = 10.0
"""Seconds between two plain lines."""
MAX_BAR_WIDTH, BAR_STEP = 40, 8
MIN_REASON_WIDTH = 24
"""Columns that a reason needs beside its setting; with fewer it is printed below."""
MAX_EXAMPLE_LINES = 4
"""Lines of an example sentence."""
DUMB_TERMINALS = ("dumb", "unknown")


def progress_logger(stream: TextIO) -> "ProgressBar | ProgressLines":
    """The logger for this stream."""
    able = stream.isatty() and os.environ.get("TERM", "").lower() not in DUMB_TERMINALS
    return ProgressBar(stream) if able else ProgressLines(stream)


class ProgressLines:
    """A logger for files, pipes and simple terminals."""

    name = "progress"

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._terminal, self._status, self._clock = Terminal.of(stream), TrainingStatus(clock), clock
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._status.update(event)
        if isinstance(event, TrainingProgress):
            if self._clock() - self._last < LINE_SECONDS:
                return
            self._last = self._clock()
            self._terminal.text(self._status.line(self._terminal.width, "step "))
        else:
            draw_event(event, self._terminal, self._status.score)
        self._terminal.out.flush()

    def close(self) -> None:
        """Nothing to close."""


class ProgressBar:
    """A logger for a terminal. It owns the last line until it is closed; other output on stderr is printed above."""

    name = "progress"

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        from rich.live import Live

        self._terminal, self._status, self._clock = Terminal.of(stream), TrainingStatus(clock), clock
        self._console = _make_console(stream)
        # No refresh thread: it would draw into other output, and survive into other processes.
        self._live = Live(self, console=self._console, auto_refresh=False, redirect_stdout=False,
                          redirect_stderr=stream is sys.stderr)
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._status.update(event)
        match event:
            case TrainingProgress():
                if self._clock() - self._last >= REDRAW_SECONDS:
                    self._last = self._clock()
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
        draw_event(event, replace(self._terminal, out=out, width=width, bold=False), self._status.score)
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


@dataclass
class TrainingStatus:
    """The current status of a training, from its events."""

    clock: Clock
    score: str = "loss"
    best: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    steps: int = 0
    latest: TrainingProgress | None = None
    first: tuple[float, int] | None = None
    """Time and step of the first progress event. Earlier time, such as compilation, does not count for the speed."""
    left: float | None = None
    """Estimated seconds to the last step."""

    def update(self, event: TrainingEvent) -> None:
        """Take an event into account."""
        match event:
            case TrainingStarted():
                self.score, self.best = event.score, event.best
                self.step, self.steps = event.first_step - 1, event.steps
                self.latest = self.first = self.left = None
            case TrainingProgress():
                self.latest, self.step, self.steps = event, event.step, event.steps
                now = self.clock()
                began, at = self.first = self.first or (now, event.step)
                if event.step > at:
                    self.left = (now - began) / (event.step - at) * (event.steps - event.step)
            case Validated():
                self.best = event.best

    @property
    def fraction(self) -> float:
        """The fraction of steps that is done."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def line(self, width: int, before: str = "") -> str:
        """The status in one line; the least important parts are left out if the width is too small."""
        parts = [(0, f"{before}{self.step:,}/{self.steps:,}")]
        if self.latest is not None:
            parts.append((1, f"loss {_format_number(self.latest.loss)}"))
            parts.append((4, f"{self.latest.tokens_per_second:,.0f} tokens/s"))
        if self.left is not None:
            parts.append((2, f"ETA {_format_duration(self.left)}"))
        if self.score in self.best:
            parts.append((3, f"best {self.score} {_format_number(self.best[self.score])}"))
        while len(parts) > 1 and sum(len(part) + 2 for _, part in parts) - 2 > width:
            parts.remove(max(parts))
        return "  ".join(part for _, part in parts)[:width]


def draw_event(event: TrainingEvent, terminal: Terminal, score: str) -> None:
    """Print what is kept of an event."""
    match event:
        case TrainingStarted():
            _draw_start(event, terminal)
        case Validated():
            scores = ", ".join(f"{name} {_format_number(value)}" for name, value in event.scores.items())
            best = f"; best {score} {_format_number(event.best[score])}" if score in event.best else ""
            verdict = ", the best so far" if event.better else best
            seconds = _format_duration(event.seconds)
            terminal.text(escape_unprintable(f"step {event.step:,}: {scores}{verdict} ({seconds})"))
            for example in event.examples:
                _draw_example(example, terminal)
        case Note():
            for line in event.text.split("\n"):
                terminal.text(escape_unprintable(line))
        case TrainingEnded():
            seconds = _format_duration(event.seconds)
            terminal.text(escape_unprintable(f"Ended at step {event.step:,} after {seconds}: {event.reason}."))
            if event.best:
                scores = ", ".join(f"{name} {_format_number(value)}" for name, value in event.best.items())
                terminal.text(escape_unprintable(f"Best checkpoint: step {event.best_step:,} ({scores})."))


def draw_choices(choices: Sequence[Default], terminal: Terminal) -> None:
    """Print the chosen settings: key, value and reason side by side, or below if the width is too small.

    A reason that equals the one above is not repeated.
    """
    rows = [(escape_unprintable(key), escape_unprintable(str(value)), escape_unprintable(reason))
            for key, value, reason in choices]
    repeated = [False, *(one[2] == other[2] for one, other in pairwise(rows))]
    if not rows:
        return
    terminal.heading("Settings and their reasons")
    keys, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    room = terminal.width - keys - values - 6
    for (key, value, reason), known in zip(rows, repeated, strict=False):
        if room >= MIN_REASON_WIDTH:
            lines = [""] if known else wrap_text(reason, room)
            terminal.beside([[f"  {key.ljust(keys)}  {value.ljust(values)}"], lines], gap=2)
        else:
            terminal.text(f"{key} = {value}", "  ")
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
    draw_choices(event.defaults, terminal)
    if event.defaults:
        terminal.out.write("\n")
    terminal.text(escape_unprintable(f"{event.task}: {event.parameters:,} parameters, {event.steps:,} steps at "
                                     f"most, on {event.device}"))
    if event.first_step > 1:
        terminal.text(f"Resuming at step {event.first_step:,}.")


def _draw_example(example: "ValidationExample", terminal: Terminal) -> None:
    """Print the input, the expected text and the generated text below each other."""
    room = max(8, terminal.width - 10)
    most = room * MAX_EXAMPLE_LINES
    for name, text in zip(("given", "wanted", "made"), example, strict=True):
        lines = wrap_text(escape_unprintable(text[:most]) or "(empty)", room)
        if len(lines) > MAX_EXAMPLE_LINES or len(text) > most:
            lines = lines[:MAX_EXAMPLE_LINES]
            lines[-1] = _text_head(lines[-1], room - 3) + "..."
        terminal.beside([[f"  {name:6}"], lines], gap=2)


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


def _format_number(value: float) -> str:
    """A number with four significant digits: 41.20, 0.9912, 12,345, nan."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def _format_duration(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class BriefLogger:
    """A logger that forwards events without what is the same for every training of a comparison."""

    def __init__(self, inner: Logger) -> None:
        self.inner, self.name = inner, inner.name

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, CheckpointSaved):
            return
        if isinstance(event, TrainingStarted):
            event = replace(event, defaults=())
        if isinstance(event, Validated):
            event = replace(event, examples=())
        self.inner(event)

    def close(self) -> None:
        """Close the inner logger."""
        self.inner.close()
