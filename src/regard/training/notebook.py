"""The progress of a training in a Jupyter notebook: a bar that is updated in place, with the last validation.

    logger = notebook_progress()          a logger if this process is the kernel of a notebook, else None

IPython is not a dependency: it is used if the process has imported it, as the kernel of a notebook has. All texts are
escaped: a text of the user is never read as HTML.
"""

import importlib
import math
import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from regard.training.logging import (
    CheckpointSaved,
    SynthesisProgress,
    TrainingEnded,
    TrainingEvent,
    TrainingProgress,
    Validated,
)
from regard.training.status import TrainingStatus, describe

REDRAW_SECONDS = 0.5
"""Minimum seconds between two updates of the bar."""
LINE_WIDTH = 200
CELL = 'style="text-align: left; vertical-align: top; padding: 2px 8px; overflow-wrap: anywhere"'


def notebook_progress() -> "NotebookProgress | None":
    """A logger for the notebook whose kernel this process is; None if it is not one."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = ask() if callable(ask) else None
    if getattr(shell, "kernel", None) is None:  # IPython in a terminal has no kernel
        return None
    try:
        display = importlib.import_module("IPython.display").display
    except (ImportError, AttributeError):
        return None
    return NotebookProgress(display)


class NotebookDrawing:
    """A text, as HTML for a notebook and as plain text for everything else."""

    def __init__(self, html: str, text: str) -> None:
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


class NotebookProgress:
    """A logger for a notebook.

    Args:
        display: `IPython.display.display`, or another function that takes an object and `display_id=True`, and returns
            a handle with `update`.
    """

    name = "progress"

    def __init__(self, display: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._clock, self._status = display, clock, TrainingStatus()
        self._handle: Any = None
        self._lines: list[str] = []
        self._validation: Validated | None = None
        self._last = -math.inf

    def __call__(self, event: TrainingEvent, /) -> None:
        self._status.update(event)
        if isinstance(event, CheckpointSaved):
            return
        if isinstance(event, TrainingProgress | SynthesisProgress):
            if self._clock() - self._last < REDRAW_SECONDS:
                return
        elif isinstance(event, Validated):
            self._validation = event
        elif text := describe(event, self._status.score):
            self._lines.append(text)
        self._draw(ended=isinstance(event, TrainingEnded))

    def close(self) -> None:
        """Nothing to close."""

    def _draw(self, *, ended: bool) -> None:
        self._last = self._clock()
        line = self._status.line(LINE_WIDTH, "step ")
        bar = "" if ended else (f'<div><progress style="width: 20em" max="1" value="{self._status.fraction:.4f}">'
                                f'</progress> {escape(line)}</div>')
        texts = "".join(f"<div>{escape(text)}</div>" for text in self._lines)
        plain = "\n".join([*self._lines, line])
        drawing = NotebookDrawing(f"{bar}{texts}{self._validation_html()}", plain)
        if self._handle is None:
            self._handle = self._display(drawing, display_id=True)
        elif hasattr(self._handle, "update"):
            self._handle.update(drawing)

    def _validation_html(self) -> str:
        """The last validation with its examples."""
        if self._validation is None:
            return ""
        text = f"<div>{escape(describe(self._validation, self._status.score))}</div>"
        if not self._validation.examples:
            return text
        rows = [f"<tr>{''.join(f'<td {CELL}>{escape(cell)}</td>' for cell in example)}</tr>"
                for example in self._validation.examples]
        heads = "".join(f"<th {CELL}>{name}</th>" for name in self._status.columns)
        return f"{text}<table><tr>{heads}</tr>{''.join(rows)}</table>"
