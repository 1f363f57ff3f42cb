"""Curves: gradient flow through time, the loss and scores of a training run, and values by sequence length.

    flow_picture({"vanilla": gradient_flow(cell, x), "LSTM": gradient_flow(other, x)})
    training_picture(["models/rnn", "models/transformer"])
    length_picture({"lstm": {64: [0.3], 256: [0.08]}, "attention": {64: [1e-4], 256: [2e-4]}}, "loss", baseline={...})

A training run is read from the `metrics.jsonl` of its folder. Lines differ in colour and in dashes, so that they can be
distinguished without colours; of several values the line is the median and the band goes from the smallest to the
largest.
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
from regard.inspection.pictures import canvas
from regard.inspection.pictures.canvas import Floats
from regard.storage.metrics import METRICS_FILE, PROGRESS, VALIDATION, parse_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AnyPath = str | os.PathLike[str]
WIDTH, HEIGHT, SMALL_HEIGHT, GAP = 5.6, 3.2, 1.7, 0.75
"""Inches: the width of a panel, its height, the height of a small panel, and the gap below."""
MAX_LENGTH_LABELS = 12
"""The number of lengths up to which each is written at the axis."""
CROSS_STYLE: dict[str, Any] = {"marker": "x", "markersize": 6, "linestyle": "none", "clip_on": False}


class CurvePoints(NamedTuple):
    """Steps, and a value at each."""

    steps: Floats
    numbers: Floats

    @classmethod
    def empty(cls) -> "CurvePoints":
        """No points."""
        return cls(np.zeros(0), np.zeros(0))


class TrainingCurves(NamedTuple):
    """The curves of one training run."""

    loss: CurvePoints
    rate: CurvePoints
    scores: dict[str, CurvePoints]
    """The validation scores by name, including "loss"."""
    last: int
    """The last step in the file."""
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "TrainingCurves":
        """Read the metrics.jsonl of a model folder, or a file.

        A last line that was truncated while it was written is ignored; any other malformed line is an error.
        """
        file = Path(path) / METRICS_FILE if Path(path).is_dir() else Path(path)
        try:
            # str.splitlines would split at other characters too.
            lines = re.findall("[^\n]*\n|[^\n]+", file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(f"{file}: there is no such file or folder. Give the folder of a training, which has a "
                             f"{METRICS_FILE}.") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: byte {error.start:,} is not UTF-8.") from error
        parsed = [_parse_line(file, number, text) for number, text in enumerate(lines, 1)
                  if text.endswith("\n") or number < len(lines) or _is_json(text)]
        progress = [line for line in parsed if line["event"] == PROGRESS]
        validated = [line for line in parsed if line["event"] == VALIDATION]
        if not progress and not validated:
            raise ValueError(f"{file}: there is no training progress and no validation yet.")
        names = dict.fromkeys(name for line in validated for name in line["scores"])
        loss = _points(progress, [line["loss"] for line in progress])
        gaps = int(np.isnan(loss.numbers).sum())
        return cls(loss, _points(progress, [line["rate"] for line in progress]),
                   {name: _points(validated, [line["scores"].get(name) for line in validated]) for name in names},
                   max(line["step"] for line in (*progress, *validated)),
                   (f"the loss was NaN or infinite at {gaps:,} of {len(progress):,} logged steps",) if gaps else ())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _parse_line(file: Path, number: int, text: str) -> dict[str, Any]:
    """Parse one line, and check the keys that are used."""
    try:
        line = parse_line(text)
    except ValueError as error:
        raise ValueError(f"{file}:{number}: invalid JSON: {error}.") from error
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError(f'{file}:{number}: expected a JSON object with an "event".')
    needed = {PROGRESS: ("step", "loss", "rate"), VALIDATION: ("step", "scores")}.get(line["event"], ())
    for key in needed:
        if key not in line or not _fits(key, line[key]):
            got = json.dumps(line[key])[:80] if key in line else "none"
            raise ValueError(f'{file}:{number}: the event "{line["event"]}" needs a valid "{key}", but has {got}.')
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


def flow_picture(flows: Mapping[str, Any], *, title: str = "", label: str = "norm of the gradient") -> "Figure":
    """The norm of the gradient k steps back in time, on a logarithmic scale.

    Args:
        flows: norms (steps,) or (steps, rows) by the names of the cells, from `gradient_flow` and `loss_flow` of
            `regard.recurrence.gradient_flow`. For several rows the line is the median, and the band goes from the
            smallest to the largest.
        title: shown above.
        label: the label of the y axis.
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
            positive = middle > 0
            line = axes.plot(steps[positive], middle[positive], label=labels.text_label(name, 40),
                             **_line_style(number))[0]
            if norms.shape[1] > 1:
                band = positive & (low > 0)
                axes.fill_between(steps[band], low[band], high[band], color=line.get_color(), alpha=0.15, linewidth=0)
            if not positive.all():
                zeros = f"{int((~positive).sum())} of {len(positive)} steps, first at {int(np.argmin(positive))}"
                notes.append(f"{labels.text_label(name, 40)}: exactly 0 at {zeros}")
        if any(norms.shape[1] > 1 for norms in given.values()):
            notes.insert(0, "lines: medians; bands: from the smallest to the largest")
        axes.set_xlabel("steps back in time")
        axes.set_ylabel(labels.text_label(label, 60), parse_math=False)
        _add_legend(axes)
        return canvas.finish_figure(figure, title, notes)


def training_picture(folders: AnyPath | Sequence[AnyPath], *, title: str = "") -> "Figure":
    """The loss, the validation scores and the learning rate of one training run or several.

    Args:
        folders: model folders, or files named metrics.jsonl.
        title: shown above.
    """
    paths = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not paths:
        raise checks.wrong("folders", "at least one", "empty")
    runs = [TrainingCurves.read(path) for path in paths]
    names = _folder_names(paths) if len(paths) > 1 else [""]
    scores = list(dict.fromkeys(name for run in runs for name in run.scores
                                if name != "loss" and "/" not in name))  # of parts, "bleu/en-fr", only the mean
    panels: list[tuple[str, float, Callable[[Axes, TrainingCurves, str, int], None]]] = [
        ("loss", HEIGHT, _draw_losses), *((name, SMALL_HEIGHT, _score_drawer(name)) for name in scores),
        ("learning rate", SMALL_HEIGHT, _draw_rates)]
    with canvas.new_figure() as figure:
        top = 0.0
        for place, (label, height, draw) in enumerate(panels):
            axes = canvas.add_panel(figure, 0, top, WIDTH, height)
            for number, (run, name) in enumerate(zip(runs, names, strict=True)):
                draw(axes, run, name, number)
            axes.set_ylabel(labels.text_label(label, 40), parse_math=False)
            axes.set_xlim(0, max(run.last for run in runs) or 1)
            axes.grid(linewidth=0.3, color="#cccccc")
            axes.set_axisbelow(True)
            if place == 0:
                _add_legend(axes)
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
        points = run.scores.get(score, CurvePoints.empty())
        axes.plot(*points, marker="o", markersize=3.5, clip_on=False, **_line_style(number))

    return draw


def _draw_rates(axes: "Axes", run: TrainingCurves, name: str, number: int) -> None:
    axes.plot(*run.rate, **_line_style(number))


def _line_style(number: int) -> dict[str, Any]:
    """The colour and dashes of the line with this number."""
    return {"color": canvas.LINE_COLOURS[number % len(canvas.LINE_COLOURS)], "linewidth": 1.3,
            "linestyle": canvas.LINE_STYLES[number % len(canvas.LINE_STYLES)]}


def _add_legend(axes: "Axes") -> None:
    """Add the legend at the right of the panel, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    legend = axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, borderpad=0.2,
                         prop={"family": canvas.text_style(names)["fontfamily"], "size": canvas.LABEL_SIZE})
    for text in legend.get_texts():
        text.set_parse_math(False)


def _folder_names(paths: Sequence[AnyPath]) -> list[str]:
    """The names of the folders, with as many parent folders as needed to tell them apart."""
    folders = [path.parent if path.name == METRICS_FILE else path for path in
               (Path(os.path.abspath(path)) for path in paths)]
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = [labels.word_label("/".join(folder.parts[-depth:]), 40) for folder in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [labels.word_label(str(folder), 200) for folder in folders]


def _norms(name: str, values: Any) -> Floats:
    shape = "(steps,) or (steps, rows)"
    norms = canvas.as_floats(f'flows["{name}"]', values, 1 if np.ndim(values) == 1 else 2, shape)
    norms = norms[:, None] if norms.ndim == 1 else norms
    if not norms.size or not np.isfinite(norms).all() or (norms < 0).any():
        low, high = norms.min(initial=0), norms.max(initial=0)
        raise checks.wrong(f'flows["{name}"]', f"finite numbers of shape {shape}, none of them negative",
                           f"of shape {checks.shape(norms)}, from {low:.3g} to {high:.3g}")
    return norms


@checks.renamed_arguments(level="baseline", level_name="baseline_name", across="x_label")
def length_picture(values: Mapping[str, Mapping[int, Sequence[float]]], label: str, *, scale: str = "linear",
                   baseline: Mapping[int, float] | None = None, baseline_name: str = "chance", title: str = "",
                   x_label: str = "length", notes: Sequence[str] = (), order: Sequence[str] = (),
                   marks: Mapping[str, Mapping[int, float]] | None = None, marks_name: str = "elsewhere") -> "Figure":
    """Values by sequence length, a line for each name.

    Args:
        values: for each name, the values at each length: the line is their median, the band their range. Values that
            are not finite are left out, with a note.
        label: the label of the y axis.
        scale: "linear", or "log", which leaves out zeros too.
        baseline: the value of chance at each length.
        title, notes: shown above.
        x_label: the label of the x axis.
        order: names in the order of the line styles, so that a name looks the same in several pictures; names that are
            not listed come after these.
        marks: published values, by names of `values` and by lengths: crosses in the colour of the line.
    """
    checks.pick("scale", scale, {"linear": None, "log": None})
    given = {name: {length: np.asarray(own, dtype=float) for length, own in sorted(points.items())}
             for name, points in values.items()}
    lengths = sorted({length for points in given.values() for length in points})
    if not lengths or any(not own.size for points in given.values() for own in points.values()):
        raise checks.wrong("values", "at least one number for every name and length", "empty")
    crosses = dict(marks or {})
    for name in crosses:
        checks.pick("marks", name, given)
    all_notes = list(notes)
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, WIDTH, HEIGHT)
        axes.set_xscale("log", base=2)
        axes.set_yscale(scale)
        numbers = {name: number for number, name in enumerate(dict.fromkeys([*order, *given]))}
        for name, points in given.items():
            shown = {length: own for length, own in points.items() if _drawable(own, scale)}
            for length in points.keys() - shown.keys():
                dropped = f"{labels.text_label(name, 40)} at {length}: {points[length].tolist()}"
                all_notes.append(f"{dropped}, which cannot be drawn")
            middle, low, high = ([float(f(own)) for own in shown.values()] for f in (np.median, np.min, np.max))
            line = axes.plot(list(shown), middle, label=labels.text_label(name, 40), marker="o", markersize=3.5,
                             clip_on=False, **_line_style(numbers[name]))[0]
            if name in crosses:
                axes.plot(list(crosses[name]), list(crosses[name].values()), color=line.get_color(), **CROSS_STYLE)
            if any(own.size > 1 for own in shown.values()):
                axes.fill_between(list(shown), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        if crosses:
            axes.plot([], [], color=canvas.FAINT, label=labels.text_label(marks_name, 40), **CROSS_STYLE)
        if baseline:
            axes.plot(list(baseline), list(baseline.values()), color=canvas.FAINT, linewidth=0.9, linestyle=":",
                      label=labels.text_label(baseline_name, 40))
        axes.set_xticks(lengths[::max(1, -(-len(lengths) // MAX_LENGTH_LABELS))])
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
        axes.xaxis.set_minor_locator(canvas.load_matplotlib().ticker.NullLocator())
        axes.grid(linewidth=0.3, color="#cccccc")
        axes.set_axisbelow(True)
        axes.set_xlabel(labels.text_label(x_label, 60), parse_math=False)
        axes.set_ylabel(labels.text_label(label, 60), parse_math=False)
        _add_legend(axes)
        if any(own.size > 1 for points in given.values() for own in points.values()):
            all_notes.insert(0, "lines: medians; bands: from the smallest to the largest")
        return canvas.finish_figure(figure, title, all_notes)


def _drawable(own: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", scale: str) -> bool:
    return bool(np.isfinite(own).all() and (scale == "linear" or (own > 0).all()))
