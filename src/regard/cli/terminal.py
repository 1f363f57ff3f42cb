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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO, TypeVar

import typer

BLOCK_SHADES = " ░▒▓█"
ASCII_SHADES = " .:+#"
# Mathematical signs for terminals that print ASCII only; any other character becomes a question mark.
ASCII_SPELLING = str.maketrans(
    {"×": "x", "·": "*", "²": "^2", "√": "sqrt ", "≤": "<=", "≥": ">=", "→": "->", "Σ": "sum "})
REDRAW_SECONDS, LINE_SECONDS, NEVER = 0.2, 30.0, math.inf
"""Seconds between two updates of a meter on a terminal, and between two plain lines."""
CLEAR_LINE = "\r\x1b[K"
COUNT_INTERVAL = 1 << 16
"""Items between two updates of a count."""
ItemT = TypeVar("ItemT")


def fail(message: str, code: int = 2) -> NoReturn:
    """Print an error on stderr, and exit: with 2 for a wrong call or input, with 1 if the work failed."""
    say(f"Error: {message}")
    raise typer.Exit(code)


def say(message: str) -> None:
    """Print a message on stderr, without control characters."""
    typer.echo("\n".join(map(escape_unprintable, message.split("\n"))), err=True)


def write_line(text: str) -> None:
    """Write a result as one line of stdout."""
    write_text(text.replace("\r", " ").replace("\n", " "))


def write_text(text: str) -> None:
    """Write a result of one or several lines, and a line break."""
    write_part(f"{text}\n")


def write_part(text: str) -> None:
    """Write a part of a result."""
    if sys.stdout.isatty():
        text = "\n".join("".join(char if char >= " " and not "\x7f" <= char < "\xa0" else escape_unprintable(char)
                                 for char in line) for line in text.split("\n"))
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))


def write_json(table: Any) -> None:
    """Write a result as one line of JSON."""
    sys.stdout.buffer.write(json.dumps(table, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def escape_unprintable(text: str) -> str:
    """A text on one line, with every unprintable character written out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def show_count(items: Iterable[ItemT], noun: str, out: TextIO) -> Iterator[ItemT]:
    """The items; on a terminal, their number so far is shown now and then."""
    if not out.isatty():
        yield from items
        return
    count = 0
    try:
        for count, item in enumerate(items, 1):
            if not count % COUNT_INTERVAL:
                out.write(f"\r{count:,} {noun}")
                out.flush()
            yield item
    finally:
        if count >= COUNT_INTERVAL:  # leave the line empty
            out.write("\r" + " " * len(f"{count:,} {noun}") + "\r")
            out.flush()


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
        # At most 100 columns: longer lines are hard to read. COLUMNS, if set, wins over the terminal's answer.
        width = max(10, min(100, shutil.get_terminal_size().columns))
        bold = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, width, BLOCK_SHADES if _can_print(BLOCK_SHADES, out) else ASCII_SHADES, bold)

    def heading(self, text: str) -> None:
        """Print a bold line after an empty one."""
        lines = "\n".join(textwrap.wrap(self._printable(text), self.width))
        self.out.write(f"\n\x1b[1m{lines}\x1b[0m\n" if self.bold else f"\n{lines}\n")

    def text(self, text: str, indent: str = "") -> None:
        """Print a text, each of its lines wrapped on its own."""
        for line in self._printable(text).splitlines():
            margin = indent + line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(line.strip(), self.width, initial_indent=margin, subsequent_indent=margin)
            self.out.write("\n".join(wrapped) + "\n")

    def beside(self, blocks: Sequence[Sequence[str]], gap: int = 3) -> None:
        """Print blocks of lines side by side, as many as the width allows, the rest below."""
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
        if self.shades == BLOCK_SHADES:
            return text
        return text.translate(ASCII_SPELLING).encode("ascii", "replace").decode("ascii")


def _total_width(blocks: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(len, block)) for block in blocks) + gap * (len(blocks) - 1)


def _can_print(text: str, out: TextIO) -> bool:
    """Whether the stream takes `text`, and the locale is not C.

    In the C locale Python itself switches its streams to UTF-8, so the encoding alone does not tell.
    """
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in ("C", "POSIX"):
        return False
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


class ProgressMeter:
    """Shows how many entries of a total are done; None is an unknown total.

    On a terminal it is one line that is redrawn, elsewhere a plain line now and then.

    Args:
        results: the stream of the results. If it is a terminal, the results themselves show the progress. If it is not
            a file, its reader sees the results come, so no plain lines are printed.
    """

    def __init__(self, stream: TextIO, results: TextIO | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        drawing = stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        self.drawn = drawing and not (results is not None and results.isatty())
        self.pause = REDRAW_SECONDS if self.drawn else LINE_SECONDS if results is None else NEVER
        self.begin(0, None)

    def begin(self, done: int, total: int | None) -> None:
        """Start to count time and entries."""
        self.first, self.total, self.begun = done, total, self.clock()
        self.last = -math.inf if self.drawn else self.begun

    def show(self, done: int) -> None:
        """Show the number of finished entries, if the last update is long enough ago."""
        now = self.clock()
        if now - self.last < self.pause:
            return
        self.last = now
        self.stream.write(f"{CLEAR_LINE}{self._line(done, now)}" if self.drawn else f"{self._line(done, now)}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Clear the line for other output."""
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
