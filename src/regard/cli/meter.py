"""How far a long work is, on stderr: one line that is drawn anew on a terminal, a plain line now and then elsewhere.

It counts entries and time, and knows nothing of the work.
"""

import math
import os
import time
from collections.abc import Callable
from typing import TextIO

OFTEN, SELDOM = 0.2, 30.0
"""Seconds between two drawings on a terminal, and between two plain lines."""
NEVER = math.inf
CLEAR = "\r\x1b[K"


class Meter:
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
        self.pause = OFTEN if self.drawn else SELDOM if results is None else NEVER
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
        self.stream.write(f"{CLEAR}{self._line(done, now)}" if self.drawn else f"{self._line(done, now)}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Make room for something else."""
        if self.drawn and self.last > -math.inf:
            self.stream.write(CLEAR)
            self.stream.flush()

    def _line(self, done: int, now: float) -> str:
        rate = (done - self.first) / max(now - self.begun, 1e-9)
        if self.total is None:
            return f"{done:,} done, {rate:,.1f} a second"
        left = f", {_duration((self.total - done) / rate)} left" if rate > 0 else ""
        return f"{done:,} of {self.total:,}, {rate:,.1f} a second{left}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
