"""The log of a training in its model folder: the name of the file, and the names of its events.

    {"event": "validation", "time": "2030-01-02T03:04:05+00:00", "step": 100, "scores": {"loss": 2.1}, ...}

`regard.training.logging` writes it, one JSON object a line; histories, curves and `regard info` read it.
"""

import json
from typing import Any

METRICS_FILE = "metrics.jsonl"
PROGRESS, VALIDATION, ENDED = "progress", "validation", "ended"
RENAMED_EVENTS = {"judged": VALIDATION}
"""Events of files that earlier versions wrote, and their names now."""


def parse_line(line: str | bytes) -> Any:
    """The JSON value of a line, with the event under its name of today; a ValueError if it is not JSON."""
    entry = json.loads(line)
    if isinstance(entry, dict) and isinstance(event := entry.get("event"), str):
        entry["event"] = RENAMED_EVENTS.get(event, event)
    return entry
