"""The numbers of a training, from the metrics.jsonl of its folder: points to draw lines through.

A line of the file is an object: `progress` has step, loss and rate, `judged` has step and scores. What was no finite
number is null there, and a gap here. A last line that was cut off while it was written is left out; any other that is
not as it must be is an error with its number. It does not know what the numbers mean, nor draw them.
"""

import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection.pictures.cells import Floats

FILE = "metrics.jsonl"


class Points(NamedTuple):
    """Steps, and a number at each."""

    steps: Floats
    numbers: Floats

    @classmethod
    def none(cls) -> "Points":
        return cls(np.zeros(0), np.zeros(0))


class Run(NamedTuple):
    """One training."""

    loss: Points
    rate: Points
    scores: dict[str, Points]
    """Of the validation, by their names, "loss" among them."""
    last: int
    """The last step that is told of."""
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Run":
        """The training in a model folder, or in a file."""
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        try:
            lines = re.findall("[^\n]*\n|[^\n]+", file.read_text(encoding="utf-8"))  # nothing else ends a line
        except FileNotFoundError as error:
            raise checks.wrong("folders", f"folders of trainings, with a file {FILE}",
                               f"{os.fspath(path)!r}, in which there is none") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: this is no {FILE}: byte {error.start} is not UTF-8") from error
        told = [_line(file, number, text) for number, text in enumerate(lines, 1)
                if text.endswith("\n") or number < len(lines) or _whole(text)]
        progress = [line for line in told if line["event"] == "progress"]
        judged = [line for line in told if line["event"] == "judged"]
        if not progress and not judged:
            raise ValueError(f"{file}: nothing was measured yet: there is no line of progress or of a validation")
        names = dict.fromkeys(name for line in judged for name in line["scores"])
        loss = _points(progress, [line["loss"] for line in progress])
        gaps = int(np.isnan(loss.numbers).sum())
        return cls(loss, _points(progress, [line["rate"] for line in progress]),
                   {name: _points(judged, [line["scores"].get(name) for line in judged]) for name in names},
                   max(line["step"] for line in (*progress, *judged)),
                   (f"the loss was no finite number at {gaps} of {len(progress)} times",) if gaps else ())


def _whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _line(file: Path, number: int, text: str) -> dict[str, Any]:
    """One line, checked as far as it is used."""
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file}:{number}: expected a JSON object, but this is none: {error}") from error
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError(f'{file}:{number}: expected a JSON object with an "event"')
    needed = {"progress": ("step", "loss", "rate"), "judged": ("step", "scores")}.get(line["event"], ())
    for key in needed:
        if key not in line or not _fits(key, line[key]):
            raise ValueError(f'{file}:{number}: expected "{key}" in a line of {line["event"]}, but got '
                             f"{json.dumps(line.get(key))[:80]}")
    return line


def _fits(key: str, value: Any) -> bool:
    if key == "scores":
        return isinstance(value, dict) and all(_fits("score", inner) for inner in value.values())
    if key == "step":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _points(lines: list[dict[str, Any]], numbers: list[float | None]) -> Points:
    return Points(np.array([float(line["step"]) for line in lines]),
                  np.array([math.nan if number is None else float(number) for number in numbers]))
