"""Output: results on stdout, messages on stderr, and what a terminal can show.

Results are UTF-8 with LF on every system. On a terminal, control characters in texts are written out (`\\x1b`); texts
are never read as markup.
"""

import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

import typer

# ---- models: What the commands that use a model share: its device, its task, texts from arguments or from standard input, results.
#
# Results go to stdout as UTF-8 with LF, whatever the system prefers; where stdout is a terminal, what it would obey is
# written out. A text that a model cannot take is named on stderr, its line is empty, and the others are done. Torch is
# imported inside the functions. It knows no command by itself.


def fail(message: str, code: int = 2) -> NoReturn:
    """Say on stderr what is wrong, and end: with 2 where the call or its input was, with 1 where the work failed."""
    say(f"Error: {message}")
    raise typer.Exit(code)


def say(message: str) -> None:
    """A message on stderr, in which nothing is obeyed by a terminal."""
    typer.echo("\n".join(map(escape_unprintable, message.split("\n"))), err=True)


def write_line(text: str) -> None:
    """A result on one line of stdout."""
    line = text.replace("\r", " ").replace("\n", " ")
    write_text(line)


def write_text(text: str) -> None:
    """A result of one line or several, and the end of the last."""
    write_part(f"{text}\n")


def write_part(text: str) -> None:
    """A part of a result, as it is."""
    if sys.stdout.isatty():
        text = "\n".join("".join(char if char >= " " and not "\x7f" <= char < "\xa0" else escape_unprintable(char)
                                 for char in line) for line in text.split("\n"))
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))


def write_json(table: Any) -> None:
    """A result as JSON on one line."""
    sys.stdout.buffer.write(json.dumps(table, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


BLOCK_SHADES = " ░▒▓█"
ASCII_SHADES = " .:+#"
# How mathematics is written where only ASCII can be printed; any other character becomes a question mark.
ASCII_SPELLING = str.maketrans({"×": "x", "·": "*", "²": "^2", "√": "sqrt ", "≤": "<=", "≥": ">=", "→": "->", "Σ": "sum "})


@dataclass(frozen=True)
class Terminal:
    """A stream and what it can show."""

    out: TextIO
    width: int = 80
    shades: str = BLOCK_SHADES
    bold: bool = False

    @classmethod
    def of(cls, out: TextIO) -> "Terminal":
        """Ask the stream and the environment."""
        # At most 100 columns: longer lines are hard to read. COLUMNS, where set, wins over the terminal's answer.
        width = max(10, min(100, shutil.get_terminal_size().columns))
        bold = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, width, BLOCK_SHADES if _can_print(BLOCK_SHADES, out) else ASCII_SHADES, bold)

    def heading(self, text: str) -> None:
        """A line that stands out, after an empty one."""
        lines = "\n".join(textwrap.wrap(self._printable(text), self.width))
        self.out.write(f"\n\x1b[1m{lines}\x1b[0m\n" if self.bold else f"\n{lines}\n")

    def text(self, text: str, indent: str = "") -> None:
        """Text, each of its lines wrapped on its own."""
        for line in self._printable(text).splitlines():
            margin = indent + line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(line.strip(), self.width, initial_indent=margin, subsequent_indent=margin)
            self.out.write("\n".join(wrapped) + "\n")

    def beside(self, blocks: Sequence[Sequence[str]], gap: int = 3) -> None:
        """Blocks of lines beside each other, as many as the width allows, the rest below."""
        row: list[Sequence[str]] = []
        for block in blocks:
            if row and _total_width([*row, block], gap) > self.width:
                self._row(row, gap)
                row = []
            row.append(block)
        self._row(row, gap)

    def shade(self, weight: float, cells: int = 1) -> str:
        """A weight between 0 and 1 as shaded cells."""
        level = int(weight * (len(self.shades) - 1) + 0.5)
        return self.shades[min(max(level, 0), len(self.shades) - 1)] * cells

    def _row(self, blocks: Sequence[Sequence[str]], gap: int) -> None:
        widths = [max(map(len, block)) for block in blocks]
        for index in range(max(map(len, blocks))):
            cells = [block[index] if index < len(block) else "" for block in blocks]
            line = (" " * gap).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            self.out.write(self._printable(line.rstrip()) + "\n")

    def _printable(self, text: str) -> str:
        return text if self.shades == BLOCK_SHADES else text.translate(ASCII_SPELLING).encode("ascii", "replace").decode("ascii")


def _total_width(blocks: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(len, block)) for block in blocks) + gap * (len(blocks) - 1)


def _can_print(text: str, out: TextIO) -> bool:
    """Whether the stream takes `text`, and the person has not asked for the C locale.

    In the C locale Python itself switches its streams to UTF-8, so the encoding alone does not tell.
    """
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in ("C", "POSIX"):
        return False
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


# ---- meter: How far a long work is, on stderr: one line that is drawn anew on a terminal, a plain line now and then elsewhere.
#
# It counts entries and time, and knows nothing of the work.

REDRAW_SECONDS, LINE_SECONDS = 0.2, 30.0
"""Seconds between two drawings on a terminal, and between two plain lines."""
NEVER = math.inf
CLEAR_LINE = "\r\x1b[K"


class ProgressMeter:
    """Shows how many of how many entries are done; a total of None is not known.

    Args:
        results: where results go. Where that is a terminal, they are what is seen; a stream that is no file, such as a
            pipe, has a reader who sees them come, so that only a terminal is told.
    """

    def __init__(self, stream: TextIO, results: TextIO | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        drawing = stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        self.drawn = drawing and not (results is not None and results.isatty())
        self.pause = REDRAW_SECONDS if self.drawn else LINE_SECONDS if results is None else NEVER
        self.begin(0, None)

    def begin(self, done: int, total: int | None) -> None:
        """From here time and entries are counted."""
        self.first, self.total, self.begun = done, total, self.clock()
        self.last = -math.inf if self.drawn else self.begun

    def show(self, done: int) -> None:
        """So many are done; shown where it is time."""
        now = self.clock()
        if now - self.last < self.pause:
            return
        self.last = now
        self.stream.write(f"{CLEAR_LINE}{self._line(done, now)}" if self.drawn else f"{self._line(done, now)}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Make room for something else."""
        if self.drawn and self.last > -math.inf:
            self.stream.write(CLEAR_LINE)
            self.stream.flush()

    def _line(self, done: int, now: float) -> str:
        rate = (done - self.first) / max(now - self.begun, 1e-9)
        if self.total is None:
            return f"{done:,} done, {rate:,.1f} a second"
        left = f", {_format_duration((self.total - done) / rate)} left" if rate > 0 else ""
        return f"{done:,} of {self.total:,}, {rate:,.1f} a second{left}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


# ---- data: `regard data`: what is in a corpus, before a model is made of it; and sentences to begin with.
#
# The commands read their arguments, hand them to `regard.data.doctor`, and draw what comes back; nothing is judged here.
# Texts of the corpus are shown with everything that a terminal would obey written out (`\x1b`), never as markup. The
# doctor is imported inside the functions: the command's help answers at once, and torch is not needed at all.


def escape_unprintable(text: str) -> str:
    """A text on one line, with every character that is not seen written out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
