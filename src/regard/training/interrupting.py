"""Ctrl-C, or the end of a job, during a long work: once to end it well, twice to end it at once.

    with Interruption(tell) as interruption:
        for ...:
            if interruption.asked: save, and stop

The first signal only sets `asked` and says so. The second raises KeyboardInterrupt where the work stands. It does not
know what the work is.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether somebody asked to end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.asked = tell, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set how signals are taken
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.tell("Ending after this step; the state will be saved. Once more ends at once.")
