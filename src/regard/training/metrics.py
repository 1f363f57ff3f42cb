"""metrics.jsonl: what a training measured, one JSON object a line.

    {"event": "progress", "time": "2030-01-02T03:04:05+00:00", "step": 100, "loss": 2.31, ...}

`progress`, `judged` and `ended` have a line, with the fields of the events of `regard.training.reports`; sentences of
the data are not among them. What is no finite number is null. A file is of one training: when that starts or goes on,
lines of steps which it makes again are cut off, so every step is in the file once, however often it was killed.

It knows events and lines. It does not know what the numbers mean.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard.training.reports import Ended, Event, Judged, Progress, Started

WRITTEN = {Progress: "progress", Judged: "judged", Ended: "ended"}
UNWRITTEN = {"examples"}
"""Fields with sentences of the data."""


class Metrics:
    """A logger that adds a line to a file for every event that has numbers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, Started):
            self.resume(event.first_step - 1)
        kind = WRITTEN.get(type(event))
        if kind is None:
            return
        line = {"event": kind, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        line |= {each.name: _plain(getattr(event, each.name)) for each in fields(event) if each.name not in UNWRITTEN}
        # Opened anew for every line: saving a model may put another folder in the place of the one around the file.
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def resume(self, step: int) -> None:
        """Keep the lines up to this step: a training goes on behind it. The line of an end goes too, and a torn one."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        kept = b"".join(line for line in data.splitlines(keepends=True) if _belongs(line, step))
        if kept == data:
            return
        aside = self.path.with_name(f".{self.path.name}.cut")  # the old lines are there until the new file is whole
        aside.write_bytes(kept)
        os.replace(aside, self.path)

    def close(self) -> None:
        """Nothing is held between two lines."""


def _belongs(line: bytes, step: int) -> bool:
    """Whether a line is whole, and told of a step up to this one."""
    try:
        found = json.loads(line)
    except ValueError:  # also what is not UTF-8
        return False
    if not line.endswith(b"\n") or not isinstance(found, dict) or found.get("event") == WRITTEN[Ended]:
        return False
    return isinstance(found.get("step"), int) and found["step"] <= step


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    number = float(value)
    return number if math.isfinite(number) else None
