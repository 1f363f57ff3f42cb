"""Lines over time: how far gradients flow back, and how a training went.

    flow_picture({"vanilla": gradient_flow(cell, x), "LSTM": gradient_flow(other, x)})
    training_picture(["models/rnn", "models/transformer"])

Lines differ in colour and in dashes, so they can be told apart without colours. It reads the numbers of a training from
the `metrics.jsonl` of its folder; it does not know cells, models or how a training works.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection.pictures import canvas, cells, signs
from regard.inspection.pictures.cells import Floats
from regard.inspection.pictures.metrics import Points, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AnyPath = str | os.PathLike[str]
WIDTH, HEIGHT, GAP = 5.6, 3.2, 0.75
SMALL = 1.7
"""Inches of a panel, of the space below it, and the height of a small panel."""


def flow_picture(flows: Mapping[str, Any], *, title: str = "", label: str = "norm of the gradient") -> "Figure":
    """How much of a gradient arrives k steps before, on a logarithmic scale.

    Args:
        flows: norms (steps,) or (steps, rows) by the names of the cells, as `regard.recurrence.gradient.gradient_flow`
            and `loss_flow` give them. Of several rows the line is the median, and the band goes from the smallest to
            the largest.
        title: shown above.
        label: what the numbers are.
    """
    given = {name: _norms(name, values) for name, values in flows.items()}
    if not given:
        raise checks.wrong("flows", "at least one, by the names of the cells", "empty")
    notes = []
    with canvas.drawing() as figure:
        axes = canvas.panel(figure, 0, 0, WIDTH, HEIGHT)
        axes.set_yscale("log")
        axes.axhline(1.0, color=canvas.FAINT, linewidth=0.6)
        for number, (name, norms) in enumerate(given.items()):
            steps = np.arange(len(norms))
            middle, low, high = np.median(norms, axis=1), norms.min(axis=1), norms.max(axis=1)
            seen = middle > 0
            line = axes.plot(steps[seen], middle[seen], label=signs.sentence(name, 40), **_line(number))[0]
            if norms.shape[1] > 1:
                band = seen & (low > 0)
                axes.fill_between(steps[band], low[band], high[band], color=line.get_color(), alpha=0.15, linewidth=0)
            if not seen.all():
                notes.append(f"{signs.sentence(name, 40)}: exactly 0 at {int((~seen).sum())} of {len(seen)} steps, "
                             f"first at {int(np.argmin(seen))}")
        if any(norms.shape[1] > 1 for norms in given.values()):
            notes.insert(0, "lines: medians; bands: from the smallest to the largest")
        axes.set_xlabel("steps back in time")
        axes.set_ylabel(signs.sentence(label, 60), parse_math=False)
        _legend(axes, list(given))
        return canvas.finished(figure, title, notes)


def training_picture(folders: AnyPath | Sequence[AnyPath], *, title: str = "") -> "Figure":
    """The loss, each score of the validation and the learning rate, of one training or of several.

    Args:
        folders: model folders, or files named metrics.jsonl.
        title: shown above.
    """
    paths = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not paths:
        raise checks.wrong("folders", "at least one", "empty")
    runs = [Run.read(path) for path in paths]
    names = _names(paths) if len(paths) > 1 else [""]
    scores = list(dict.fromkeys(name for run in runs for name in run.scores if name != "loss"))
    panels: list[tuple[str, float, Callable[[Axes, Run, str, int], None]]] = [("loss", HEIGHT, _losses)]
    panels += [(name, SMALL, _score(name)) for name in scores]
    panels += [("learning rate", SMALL, _rates)]
    with canvas.drawing() as figure:
        top = 0.0
        for place, (label, height, draw) in enumerate(panels):
            axes = canvas.panel(figure, 0, top, WIDTH, height)
            for number, (run, name) in enumerate(zip(runs, names, strict=True)):
                draw(axes, run, name, number)
            axes.set_ylabel(signs.sentence(label, 40), parse_math=False)
            axes.set_xlim(0, max(run.last for run in runs) or 1)
            axes.grid(linewidth=0.3, color="#cccccc")
            axes.set_axisbelow(True)
            if place == 0:
                _legend(axes, names)
            if place == len(panels) - 1:
                axes.set_xlabel("step")
            top += height + GAP / 3
        return canvas.finished(figure, title, [note for run in runs for note in run.notes])


def _losses(axes: "Axes", run: Run, name: str, number: int) -> None:
    colour = canvas.LINES[number % len(canvas.LINES)]
    axes.plot(*run.loss, color=colour, linewidth=0.9, alpha=0.7, label=f"{name}, training" if name else "training")
    if "loss" in run.scores:
        axes.plot(*run.scores["loss"], color=colour, linewidth=1.2, linestyle="--", marker="o", markersize=3.5,
                  label=f"{name}, validation" if name else "validation", clip_on=False)


def _score(score: str) -> Callable[["Axes", Run, str, int], None]:
    def draw(axes: "Axes", run: Run, name: str, number: int) -> None:
        points = run.scores.get(score, Points.none())
        axes.plot(*points, marker="o", markersize=3.5, clip_on=False, **_line(number))

    return draw


def _rates(axes: "Axes", run: Run, name: str, number: int) -> None:
    axes.plot(*run.rate, **_line(number))


def _line(number: int) -> dict[str, Any]:
    """How the line with this number looks."""
    return {"color": canvas.LINES[number % len(canvas.LINES)], "linewidth": 1.3,
            "linestyle": canvas.DASHES[number % len(canvas.DASHES)]}


def _legend(axes: "Axes", names: Sequence[str]) -> None:
    """The names beside their lines, at the right of the panel, where they hide nothing."""
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, borderpad=0.2,
                         prop={"family": canvas.plain(labels)["fontfamily"], "size": canvas.LABEL})
    for text in legend.get_texts():
        text.set_parse_math(False)


def _names(paths: Sequence[AnyPath]) -> list[str]:
    """What the folders are called; with as much of their paths as makes them differ."""
    folders = [path.parent if path.name == "metrics.jsonl" else path for path in
               (Path(os.path.abspath(path)) for path in paths)]
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = [signs.word("/".join(folder.parts[-depth:]), 40) for folder in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [signs.word(str(folder), 200) for folder in folders]


def _norms(name: str, values: Any) -> Floats:
    shape = "(steps,) or (steps, rows)"
    norms = cells.floats(f'flows["{name}"]', values, 1 if np.ndim(values) == 1 else 2, shape)
    norms = norms[:, None] if norms.ndim == 1 else norms
    if not norms.size or not np.isfinite(norms).all() or (norms < 0).any():
        low, high = norms.min(initial=0), norms.max(initial=0)
        raise checks.wrong(f'flows["{name}"]', f"finite numbers of shape {shape}, none of them negative",
                           f"of shape {checks.shape(norms)}, from {low:.3g} to {high:.3g}")
    return norms
