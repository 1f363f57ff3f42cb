"""Curves: gradient flow through time, the loss and scores of a training run, and values by sequence length.

    flow_picture({"vanilla": gradient_flow(cell, x), "LSTM": gradient_flow(other, x)})
    training_picture(["models/rnn", "models/transformer"])
    length_picture({"lstm": {64: [0.3], 256: [0.08]}, "attention": {64: [1e-4], 256: [2e-4]}}, "loss", level={...})

A training run is read from the `metrics.jsonl` of its folder. Lines differ in colour and in dashes, so that they can be
told apart without colours; of several values the line is the median and the band goes from the smallest to the largest.
This file does not know cells, models or training.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection import labels
from regard.inspection import labels as signs
from regard.inspection.pictures import canvas
from regard.inspection.pictures import canvas as cells
from regard.inspection.pictures.canvas import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


METRICS_FILE = "metrics.jsonl"


class CurvePoints(NamedTuple):
    """Steps, and a number at each."""

    steps: Floats
    numbers: Floats

    @classmethod
    def none(cls) -> "CurvePoints":
        return cls(np.zeros(0), np.zeros(0))


class TrainingCurves(NamedTuple):
    """One training."""

    loss: CurvePoints
    rate: CurvePoints
    scores: dict[str, CurvePoints]
    """Of the validation, by their names, "loss" among them."""
    last: int
    """The last step that is told of."""
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "TrainingCurves":
        """The training in a model folder, or in a file."""
        file = Path(path) / METRICS_FILE if Path(path).is_dir() else Path(path)
        try:
            lines = re.findall("[^\n]*\n|[^\n]+", file.read_text(encoding="utf-8"))  # nothing else ends a line
        except FileNotFoundError as error:
            raise checks.wrong("folders", f"folders of trainings, with a file {METRICS_FILE}",
                               f"{os.fspath(path)!r}, in which there is none") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: this is no {METRICS_FILE}: byte {error.start} is not UTF-8") from error
        told = [_parse_line(file, number, text) for number, text in enumerate(lines, 1)
                if text.endswith("\n") or number < len(lines) or _is_json(text)]
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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _parse_line(file: Path, number: int, text: str) -> dict[str, Any]:
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


def _points(lines: list[dict[str, Any]], numbers: list[float | None]) -> CurvePoints:
    return CurvePoints(np.array([float(line["step"]) for line in lines]),
                  np.array([math.nan if number is None else float(number) for number in numbers]))


# ---- curves: Lines over time: how far gradients flow back, and how a training went.
#
#     flow_picture({"vanilla": gradient_flow(cell, x), "LSTM": gradient_flow(other, x)})
#     training_picture(["models/rnn", "models/transformer"])
#
# Lines differ in colour and in dashes, so they can be told apart without colours. It reads the numbers of a training from
# the `metrics.jsonl` of its folder; it does not know cells, models or how a training works.

AnyPath = str | os.PathLike[str]
WIDTH, HEIGHT, GAP = 5.6, 3.2, 0.75
SMALL = 1.7
"""Inches of a panel, of the space below it, and the height of a small panel."""


def flow_picture(flows: Mapping[str, Any], *, title: str = "", label: str = "norm of the gradient") -> "Figure":
    """How much of a gradient arrives k steps before, on a logarithmic scale.

    Args:
        flows: norms (steps,) or (steps, rows) by the names of the cells, as `regard.recurrence.gradient_flow.gradient_flow`
            and `loss_flow` give them. Of several rows the line is the median, and the band goes from the smallest to
            the largest.
        title: shown above.
        label: what the numbers are.
    """
    given = {name: _norms(name, values) for name, values in flows.items()}
    if not given:
        raise checks.wrong("flows", "at least one, by the names of the cells", "empty")
    notes = []
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, WIDTH, HEIGHT)
        axes.set_yscale("log")
        axes.axhline(1.0, color=canvas.FAINT, linewidth=0.6)
        for number, (name, norms) in enumerate(given.items()):
            steps = np.arange(len(norms))
            middle, low, high = np.median(norms, axis=1), norms.min(axis=1), norms.max(axis=1)
            seen = middle > 0
            line = axes.plot(steps[seen], middle[seen], label=signs.text_label(name, 40), **_line_style(number))[0]
            if norms.shape[1] > 1:
                band = seen & (low > 0)
                axes.fill_between(steps[band], low[band], high[band], color=line.get_color(), alpha=0.15, linewidth=0)
            if not seen.all():
                notes.append(f"{signs.text_label(name, 40)}: exactly 0 at {int((~seen).sum())} of {len(seen)} steps, "
                             f"first at {int(np.argmin(seen))}")
        if any(norms.shape[1] > 1 for norms in given.values()):
            notes.insert(0, "lines: medians; bands: from the smallest to the largest")
        axes.set_xlabel("steps back in time")
        axes.set_ylabel(signs.text_label(label, 60), parse_math=False)
        _add_legend(axes, list(given))
        return canvas.finish_figure(figure, title, notes)


def training_picture(folders: AnyPath | Sequence[AnyPath], *, title: str = "") -> "Figure":
    """The loss, each score of the validation and the learning rate, of one training or of several.

    Args:
        folders: model folders, or files named metrics.jsonl.
        title: shown above.
    """
    paths = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not paths:
        raise checks.wrong("folders", "at least one", "empty")
    runs = [TrainingCurves.read(path) for path in paths]
    names = _folder_names(paths) if len(paths) > 1 else [""]
    scores = list(dict.fromkeys(name for run in runs for name in run.scores if name != "loss"))
    panels: list[tuple[str, float, Callable[[Axes, TrainingCurves, str, int], None]]] = [("loss", HEIGHT, _draw_losses)]
    panels += [(name, SMALL, _score_drawer(name)) for name in scores]
    panels += [("learning rate", SMALL, _draw_rates)]
    with canvas.new_figure() as figure:
        top = 0.0
        for place, (label, height, draw) in enumerate(panels):
            axes = canvas.add_panel(figure, 0, top, WIDTH, height)
            for number, (run, name) in enumerate(zip(runs, names, strict=True)):
                draw(axes, run, name, number)
            axes.set_ylabel(signs.text_label(label, 40), parse_math=False)
            axes.set_xlim(0, max(run.last for run in runs) or 1)
            axes.grid(linewidth=0.3, color="#cccccc")
            axes.set_axisbelow(True)
            if place == 0:
                _add_legend(axes, names)
            if place == len(panels) - 1:
                axes.set_xlabel("step")
            top += height + GAP / 3
        return canvas.finish_figure(figure, title, [note for run in runs for note in run.notes])


def _draw_losses(axes: "Axes", run: TrainingCurves, name: str, number: int) -> None:
    colour = canvas.LINE_COLOURS[number % len(canvas.LINE_COLOURS)]
    axes.plot(*run.loss, color=colour, linewidth=0.9, alpha=0.7, label=f"{name}, training" if name else "training")
    if "loss" in run.scores:
        axes.plot(*run.scores["loss"], color=colour, linewidth=1.2, linestyle="--", marker="o", markersize=3.5,
                  label=f"{name}, validation" if name else "validation", clip_on=False)


def _score_drawer(score: str) -> Callable[["Axes", TrainingCurves, str, int], None]:
    def draw(axes: "Axes", run: TrainingCurves, name: str, number: int) -> None:
        points = run.scores.get(score, CurvePoints.none())
        axes.plot(*points, marker="o", markersize=3.5, clip_on=False, **_line_style(number))

    return draw


def _draw_rates(axes: "Axes", run: TrainingCurves, name: str, number: int) -> None:
    axes.plot(*run.rate, **_line_style(number))


def _line_style(number: int) -> dict[str, Any]:
    """How the line with this number looks."""
    return {"color": canvas.LINE_COLOURS[number % len(canvas.LINE_COLOURS)], "linewidth": 1.3,
            "linestyle": canvas.LINE_STYLES[number % len(canvas.LINE_STYLES)]}


def _add_legend(axes: "Axes", names: Sequence[str]) -> None:
    """The names beside their lines, at the right of the panel, where they hide nothing."""
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, borderpad=0.2,
                         prop={"family": canvas.text_style(labels)["fontfamily"], "size": canvas.LABEL_SIZE})
    for text in legend.get_texts():
        text.set_parse_math(False)


def _folder_names(paths: Sequence[AnyPath]) -> list[str]:
    """What the folders are called; with as much of their paths as makes them differ."""
    folders = [path.parent if path.name == "metrics.jsonl" else path for path in
               (Path(os.path.abspath(path)) for path in paths)]
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = [signs.word_label("/".join(folder.parts[-depth:]), 40) for folder in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [signs.word_label(str(folder), 200) for folder in folders]


def _norms(name: str, values: Any) -> Floats:
    shape = "(steps,) or (steps, rows)"
    norms = cells.as_floats(f'flows["{name}"]', values, 1 if np.ndim(values) == 1 else 2, shape)
    norms = norms[:, None] if norms.ndim == 1 else norms
    if not norms.size or not np.isfinite(norms).all() or (norms < 0).any():
        low, high = norms.min(initial=0), norms.max(initial=0)
        raise checks.wrong(f'flows["{name}"]', f"finite numbers of shape {shape}, none of them negative",
                           f"of shape {checks.shape(norms)}, from {low:.3g} to {high:.3g}")
    return norms


# ---- lengths: Lines over lengths: how something changes with the length of a sequence, for several contestants.
#
#     length_picture({"lstm": {64: [0.3], 256: [0.08]}, "attention": {64: [1e-4], 256: [2e-4]}}, "loss", level={...})
#
# Of several values at a length the line is the median, and the band goes from the smallest to the largest. The level is
# what is worth nothing: chance. Marks are what others have found. It does not know what was measured.

MAX_LENGTH_LABELS = 12
"""Lengths that are all written at the axis."""
CROSS_STYLE: dict[str, Any] = {"marker": "x", "markersize": 6, "linestyle": "none", "clip_on": False}


def length_picture(values: Mapping[str, Mapping[int, Sequence[float]]], label: str, *, scale: str = "linear",
                   level: Mapping[int, float] | None = None, level_name: str = "chance", title: str = "",
                   across: str = "length", notes: Sequence[str] = (),
                   marks: Mapping[str, Mapping[int, float]] | None = None, marks_name: str = "elsewhere") -> "Figure":
    """Values by length, and by the name of who has them.

    Args:
        values: for each name, the values at each length. Those that are not finite are left out, and the notes say so.
        label: what the numbers are.
        scale: of the numbers: "linear" or "log", where zeros cannot be shown and are left out too.
        level: what is worth nothing, at each length.
        title, notes: shown above.
        across: what the lengths are.
        marks: what others have found, by names of `values` and by lengths: crosses in the colour of the line.
    """
    checks.pick("scale", scale, {"linear": None, "log": None})
    given = {name: {length: np.asarray(own, dtype=float) for length, own in sorted(points.items())}
             for name, points in values.items()}
    lengths = sorted({length for points in given.values() for length in points})
    if not lengths or any(not own.size for points in given.values() for own in points.values()):
        raise checks.wrong("values", "at least one number for every name and length", "empty")
    elsewhere = dict(marks or {})
    for name in elsewhere:
        checks.pick("marks", name, given)
    said = list(notes)
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, WIDTH, HEIGHT)
        axes.set_xscale("log", base=2)
        axes.set_yscale(scale)
        for number, (name, points) in enumerate(given.items()):
            shown = {length: own for length, own in points.items() if _drawable(own, scale)}
            for length in points.keys() - shown.keys():
                said.append(f"{labels.text_label(name, 40)} at {length}: {points[length].tolist()}, which cannot be drawn")
            middle, low, high = ([float(f(own)) for own in shown.values()] for f in (np.median, np.min, np.max))
            line = axes.plot(list(shown), middle, label=labels.text_label(name, 40), marker="o", markersize=3.5,
                             clip_on=False, **_line_style(number))[0]
            if name in elsewhere:
                axes.plot(list(elsewhere[name]), list(elsewhere[name].values()), color=line.get_color(), **CROSS_STYLE)
            if any(own.size > 1 for own in shown.values()):
                axes.fill_between(list(shown), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        if elsewhere:
            axes.plot([], [], color=canvas.FAINT, label=labels.text_label(marks_name, 40), **CROSS_STYLE)
        if level:
            axes.plot(list(level), list(level.values()), color=canvas.FAINT, linewidth=0.9, linestyle=":",
                      label=labels.text_label(level_name, 40))
        axes.set_xticks(lengths if len(lengths) <= MAX_LENGTH_LABELS else lengths[::-(-len(lengths) // MAX_LENGTH_LABELS)])
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
        axes.xaxis.set_minor_locator(canvas.load_matplotlib().ticker.NullLocator())
        axes.grid(linewidth=0.3, color="#cccccc")
        axes.set_axisbelow(True)
        axes.set_xlabel(labels.text_label(across, 60), parse_math=False)
        axes.set_ylabel(labels.text_label(label, 60), parse_math=False)
        _add_legend(axes, list(given))
        if any(own.size > 1 for points in given.values() for own in points.values()):
            said.insert(0, "lines: medians; bands: from the smallest to the largest")
        return canvas.finish_figure(figure, title, said)


def _drawable(own: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", scale: str) -> bool:
    return bool(np.isfinite(own).all() and (scale == "linear" or (own > 0).all()))
