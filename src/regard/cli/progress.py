"""How a training is shown while it runs: a live bar where a terminal can draw one, plain lines anywhere else.

    progress(stream)                     whichever of the two fits the stream: a logger of `regard.training.logging`
    Bar(stream)                          one line that is drawn anew, and above it all that is worth to stay
    Lines(stream)                        how it goes every ten seconds at most, and all that is worth to stay
    choices_table(choices, terminal)     what was chosen, and why

The stream is stderr: stdout is for results. Texts of the user are shown with everything that a terminal would obey
written out, never as markup. rich is imported only where a bar is made or a sentence is wrapped. It draws events, and
knows nothing of how they come about.
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
from regard.training.logging import (
    CheckpointSaved,
    Logger,
    Note,
    ShownDefault,
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
"""Seconds between two drawings of the bar, at least."""
LINE_SECONDS = 10.0
"""Seconds between two plain lines."""
MAX_BAR_WIDTH, BAR_STEP = 40, 8
MIN_REASON_WIDTH = 24
"""Columns of a reason beside its choice; with fewer it stands below."""
MAX_EXAMPLE_LINES = 4
"""Of a sentence that is shown."""
DUMB_TERMINALS = ("dumb", "unknown")


def progress_logger(stream: TextIO) -> "ProgressBar | ProgressLines":
    """What shows a training on this stream."""
    able = stream.isatty() and os.environ.get("TERM", "").lower() not in DUMB_TERMINALS
    return ProgressBar(stream) if able else ProgressLines(stream)


class ProgressLines:
    """A logger for files, pipes and simple terminals."""

    name = "progress"

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._terminal, self._course, self._clock = Terminal.of(stream), TrainingStatus(clock), clock
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._course.take(event)
        if isinstance(event, TrainingProgress):
            if self._clock() - self._last < LINE_SECONDS:
                return
            self._last = self._clock()
            self._terminal.text(self._course.line(self._terminal.width, "step "))
        else:
            draw_event(event, self._terminal, self._course.score)
        self._terminal.out.flush()

    def close(self) -> None:
        """Nothing is held."""


class ProgressBar:
    """A logger for a terminal. Until it is closed the last line is its own, and what others say on stderr is above."""

    name = "progress"

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        from rich.live import Live

        self._terminal, self._course, self._clock = Terminal.of(stream), TrainingStatus(clock), clock
        self._console = _console(stream)
        # No thread of its own: it would draw into whatever else is written, and survive into other processes.
        self._live = Live(self, console=self._console, auto_refresh=False, redirect_stdout=False,
                          redirect_stderr=stream is sys.stderr)
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._course.take(event)
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
                self._console.show_cursor(True)  # who is killed cannot bring it back
            case _:
                self._draw(event)

    def close(self) -> None:
        """Leave the bar as it is now, and the terminal as it was."""
        self._live.stop()

    def _draw(self, event: TrainingEvent) -> None:
        from rich.text import Text

        out = io.StringIO()
        width = max(10, min(self._terminal.width, self._console.width))
        draw_event(event, replace(self._terminal, out=out, width=width, bold=False), self._course.score)
        if out.getvalue():
            self._console.print(Text(out.getvalue().removesuffix("\n")))

    def __rich__(self) -> "Text":
        """The bar as it is now, for the width that there is now."""
        from rich.text import Text

        width = self._console.width
        line = self._course.line(width)
        room = min(MAX_BAR_WIDTH, width - len(line) - 2) // BAR_STEP * BAR_STEP  # or every digit more would move all
        if room <= 0:
            return Text(line, no_wrap=True, overflow="crop")
        done = int(room * self._course.share)
        shades = self._terminal.shades
        return Text.assemble((shades[-1] * done, "cyan"), shades[1] * (room - done), f"  {line}", no_wrap=True)


@dataclass
class TrainingStatus:
    """What of the events so far is shown again and again."""

    clock: Clock
    score: str = "loss"
    best: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    steps: int = 0
    latest: TrainingProgress | None = None
    first: tuple[float, int] | None = None
    """When the first progress was told, and of which step. What comes before, such as compiling, tells no speed."""
    left: float | None = None
    """Seconds to the last step, when it was told last."""

    def take(self, event: TrainingEvent) -> None:
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
    def share(self) -> float:
        """How much of all steps is done: 0 to 1."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def line(self, width: int, before: str = "") -> str:
        """How it goes, in one line: what matters least is left out where the width is too small."""
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
    """All that is worth to stay about an event; nothing for one that has no such thing."""
    match event:
        case TrainingStarted():
            _draw_start(event, terminal)
        case Validated():
            scores = ", ".join(f"{name} {_format_number(value)}" for name, value in event.scores.items())
            best = f"; best {score} {_format_number(event.best[score])}" if score in event.best else ""
            verdict = ", the best so far" if event.better else best
            terminal.text(escape_unprintable(f"step {event.step:,}: {scores}{verdict} ({_format_duration(event.seconds)})"))
            for example in event.examples:
                _draw_example(example, terminal)
        case Note():
            for line in event.text.split("\n"):
                terminal.text(escape_unprintable(line))
        case TrainingEnded():
            terminal.text(escape_unprintable(f"Ended at step {event.step:,} after {_format_duration(event.seconds)}: {event.reason}."))
            if event.best:
                scores = ", ".join(f"{name} {_format_number(value)}" for name, value in event.best.items())
                terminal.text(escape_unprintable(f"The best model is of step {event.best_step:,}: {scores}."))


def draw_choices(choices: Sequence[ShownDefault], terminal: Terminal) -> None:
    """What was chosen, and why: key, value and reason beside each other, or below where the width is too small.

    A reason that is the one above it is not told again.
    """
    rows = [(escape_unprintable(key), escape_unprintable(str(value)), escape_unprintable(reason)) for key, value, reason in choices]
    again = [False, *(one[2] == other[2] for one, other in pairwise(rows))]
    if not rows:
        return
    terminal.heading("What was chosen, and why")
    keys, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    room = terminal.width - keys - values - 6
    for (key, value, reason), told in zip(rows, again, strict=False):
        if room >= MIN_REASON_WIDTH:
            lines = [""] if told else wrap_text(reason, room)
            terminal.beside([[f"  {key.ljust(keys)}  {value.ljust(values)}"], lines], gap=2)
        else:
            terminal.text(f"{key} = {value}", "  ")
            if not told:
                terminal.text(reason, "      ")


def wrap_text(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` columns of the terminal, where a wide character counts two."""
    from rich.cells import cell_len

    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        while cell_len(joined) > width:
            if line:
                lines.append(line)
            else:  # a word that is longer than a line
                head = _text_head(word, width)
                lines.append(head)
                word = word[len(head):]
            line, joined = "", word
        line = joined
    return [*lines, line]


def _draw_start(event: TrainingStarted, terminal: Terminal) -> None:
    epoch = f", {event.tokens_per_epoch:,} tokens an epoch" if event.tokens_per_epoch is not None else ""
    draw_choices(event.choices, terminal)
    if event.choices:
        terminal.out.write("\n")
    terminal.text(escape_unprintable(f"{event.task}: {event.parameters:,} parameters{epoch}, {event.steps:,} steps at most, on "
                          f"{event.device}"))
    if event.first_step > 1:
        terminal.text(f"It goes on with step {event.first_step:,}.")


def _draw_example(example: "ValidationExample", terminal: Terminal) -> None:
    """What was given, what was wanted and what was made, below each other."""
    room = max(8, terminal.width - 10)
    most = room * MAX_EXAMPLE_LINES
    for name, text in zip(("given", "wanted", "made"), example, strict=True):
        lines = wrap_text(escape_unprintable(text[:most]) or "(empty)", room)
        if len(lines) > MAX_EXAMPLE_LINES or len(text) > most:
            lines = lines[:MAX_EXAMPLE_LINES]
            lines[-1] = _text_head(lines[-1], room - 3) + "..."
        terminal.beside([[f"  {name:6}"], lines], gap=2)


def _text_head(text: str, width: int) -> str:
    """As much of a text as fits into a width, and one character at least."""
    from rich.cells import cell_len

    end, used = 0, 0
    for char in text:
        used += cell_len(char)
        if used > width and end:
            break
        end += 1
    return text[:end]


def _console(stream: TextIO) -> "Console":
    """rich's console, without the marks that it would read in texts."""
    from rich.console import Console

    class Steady(Console):
        """One that leaves a reader who has gone to the caller; rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return Steady(file=stream, markup=False, emoji=False, highlight=False)


def _format_number(value: float) -> str:
    """Four digits that count: 41.20, 0.9912, 12,345; nan where it is none."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def _format_duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- compared: How `regard compare` shows what it found: tables on stdout, and on stderr how each training goes, in few words.
#
# Texts of the user are never read as markup. It knows the tables of `regard.comparison`, and does not compute anything.


class BriefLogger:
    """A logger that passes on how a training goes, without what is the same in every one of a comparison."""

    def __init__(self, inner: Logger) -> None:
        self.inner, self.name = inner, inner.name

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, CheckpointSaved):
            return
        if isinstance(event, TrainingStarted):
            event = replace(event, choices=())
        if isinstance(event, Validated):
            event = replace(event, examples=())
        self.inner(event)

    def close(self) -> None:
        """Close the one that it passes on to."""
        self.inner.close()
