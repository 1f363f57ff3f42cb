"""The output of commands: results on stdout, messages and progress on stderr.

Results are UTF-8 with LF on every system. On a terminal, control characters in texts are written out (`\\x1b`); texts
are never read as markup.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TextIO, TypeVar

import typer

from regard.terminal import escape_unprintable

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


def say_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr, such as those of a `ReadLog` about the files that were read."""
    for note in notes:
        say_note(note)


def say_note(note: str) -> None:
    """Print one note on stderr."""
    say(f"Note: {note}")


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


class ProgressMeter:
    """Shows how many entries of a total are done; None is an unknown total.

    On a terminal it is one line that is redrawn, elsewhere a plain line now and then.

    Args:
        results: the stream of the results. If it is a terminal, the results themselves show the progress. If it is not
            a file, its reader sees the results come, so no plain lines are printed.
        quiet: show nothing.
    """

    def __init__(self, stream: TextIO, results: TextIO | None = None, clock: Callable[[], float] = time.monotonic, *,
                 quiet: bool = False) -> None:
        self.stream, self.clock = stream, clock
        drawing = stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        self.drawn = drawing and not quiet and not (results is not None and results.isatty())
        self.pause = REDRAW_SECONDS if self.drawn else LINE_SECONDS if results is None and not quiet else NEVER
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
            return f"{done:,} done, {rate:,.1f}/s"
        left = f", {_format_duration((self.total - done) / rate)} left" if rate > 0 else ""
        return f"{done:,} of {self.total:,}, {rate:,.1f}/s{left}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
