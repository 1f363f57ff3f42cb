"""What came of a comparison, for people and for programs: lines of text, tables for JSON, a picture against length.

It shows what `running` found beside chance and beside the figures of the literature, and draws no conclusions but one:
whether a way has solved a length. It does not know how anything was measured.
"""

import os
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from regard import checks
from regard.comparison.memory import published
from regard.comparison.memory.tasks import TASKS, Task
from regard.comparison.memory.training import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("svg", "png")


def lines(results: Sequence[Result]) -> list[str]:
    """A row for every way, a column for every length: medians over the seeds, and the whole range where it is wide."""
    task, lengths, ways = _asked(results)
    cells = [["way", *(f"{length:,}" for length in lengths), "parameters", "layers", "sees", "steps", "s"]]
    for way in ways:
        own = [result for result in results if result.way == way]
        seen = [result.seen for result in own if result.seen is not None]
        cells.append([way, *(_cell([one for one in own if one.length == length]) for length in lengths),
                      _range([one.parameters for one in own]), _range([one.layers for one in own]),
                      _range(seen) if seen else "all", _range([one.steps for one in own]),
                      f"{sum(one.seconds for one in own):.0f}"])
    cells.append([published.NOTHING, *(_chance(task, length) for length in lengths), "", "", "", "", ""])
    solved = "* solved: the loss is at most 1 % of what it is without memory."
    found = [f"{task.name}: {_measure(task)}, by {task.unit}", *_aligned(cells), solved]
    figures = published.of(task.name)
    if figures:
        rows = [["published", "length", "value", "source"]]
        rows += [[one.way + (f" ({one.model})" if one.model else ""),
                  "every" if one.length is None else f"{one.length:,}", f"{one.measure} {one.value}", one.source]
                 for one in figures]
        found += ["", *_aligned(rows)]
    return found


def table(results: Sequence[Result]) -> dict[str, Any]:
    """The same as plain values, each result with all that is known of it."""
    task, lengths, ways = _asked(results)
    return {"task": task.name, "measure": task.measure, "lengths": lengths, "ways": ways,
            "results": [result.table() for result in results],
            "published": [figure._asdict() for figure in published.of(task.name)]}


def picture(results: Sequence[Result]) -> "Figure":
    """The measure of every way against the length, with chance and published figures. It needs the extra `plot`."""
    from regard.inspection.pictures.lengths import length_picture

    task, lengths, ways = _asked(results)
    values = {way: {length: [value for one in results if (one.way, one.length) == (way, length)
                             for value in [_value(one)]] for length in lengths} for way in ways}
    kept = {way: {length: own for length, own in points.items() if own} for way, points in values.items()}
    level = {length: _level(TASKS[task.name](length)) for length in lengths}
    known = {way: points for way, points in published.marks(task.name, lengths).items() if way in ways}
    return length_picture(kept, _measure(task), scale="linear" if task.measure == "accuracy" else "log", level=level,
                          level_name=published.NOTHING, title=f"{task.name}: three ways to remember", across=task.unit,
                          marks=known, marks_name="published")


def save(results: Sequence[Result], folder: str | os.PathLike[str]) -> list[str]:
    """The picture in this folder as SVG and as PNG, named after the task; the paths."""
    from regard.inspection.pictures.saving import save as write

    drawn, paths = picture(results), [os.path.join(folder, f"{results[0].task}.{ending}") for ending in PICTURES]
    for path in paths:
        write(drawn, path)
    return paths


def _asked(results: Sequence[Result]) -> tuple[Task, list[int], list[str]]:
    """The task (at the first length), the lengths and the ways, in the order of the results."""
    names = {result.task for result in results}
    if len(names) != 1:
        raise checks.wrong("results", "those of one task", ", ".join(sorted(names)) or "empty")
    return (TASKS[results[0].task](results[0].length), sorted({result.length for result in results}),
            list(dict.fromkeys(result.way for result in results)))


def _measure(task: Task) -> str:
    kind = {"accuracy": "accuracy", "loss": "cross-entropy" if task.symbols else "mean squared error"}[task.measure]
    return f"{kind} on new sequences"


def _value(result: Result) -> float:
    return result.loss if result.accuracy is None or TASKS[result.task].measure == "loss" else result.accuracy


def _level(task: Task) -> float:
    accuracy = task.chance_accuracy
    return task.chance if accuracy is None or task.measure == "loss" else accuracy


def _cell(results: Sequence[Result]) -> str:
    """The median, with the range where it does not round to the same, and a star where all have solved it."""
    if not results:
        return "-"
    values = sorted(_value(result) for result in results)
    low, middle, high = (_shown(value) for value in (values[0], median(values), values[-1]))
    spread = "" if low == high else f" [{low}, {high}]"
    return f"{middle}{spread}{'*' if all(result.solved for result in results) else ''}"


def _chance(task: Task, length: int) -> str:
    return _shown(_level(TASKS[task.name](length)))


def _shown(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in
                                                  zip(row[1:], widths[1:], strict=True))]).rstrip() for row in rows]
