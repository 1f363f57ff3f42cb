"""Lines over lengths: how something changes with the length of a sequence, for several contestants.

    length_picture({"lstm": {64: [0.3], 256: [0.08]}, "attention": {64: [1e-4], 256: [2e-4]}}, "loss", level={...})

Of several values at a length the line is the median, and the band goes from the smallest to the largest. The level is
what is worth nothing: chance. Marks are what others have found. It does not know what was measured.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection.pictures import canvas, curves, signs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 12
"""Lengths that are all written at the axis."""
CROSS: dict[str, Any] = {"marker": "x", "markersize": 6, "linestyle": "none", "clip_on": False}


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
    with canvas.drawing() as figure:
        axes = canvas.panel(figure, 0, 0, curves.WIDTH, curves.HEIGHT)
        axes.set_xscale("log", base=2)
        axes.set_yscale(scale)
        for number, (name, points) in enumerate(given.items()):
            shown = {length: own for length, own in points.items() if _drawable(own, scale)}
            for length in points.keys() - shown.keys():
                said.append(f"{signs.sentence(name, 40)} at {length}: {points[length].tolist()}, which cannot be drawn")
            middle, low, high = ([float(f(own)) for own in shown.values()] for f in (np.median, np.min, np.max))
            line = axes.plot(list(shown), middle, label=signs.sentence(name, 40), marker="o", markersize=3.5,
                             clip_on=False, **curves._line(number))[0]
            if name in elsewhere:
                axes.plot(list(elsewhere[name]), list(elsewhere[name].values()), color=line.get_color(), **CROSS)
            if any(own.size > 1 for own in shown.values()):
                axes.fill_between(list(shown), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        if elsewhere:
            axes.plot([], [], color=canvas.FAINT, label=signs.sentence(marks_name, 40), **CROSS)
        if level:
            axes.plot(list(level), list(level.values()), color=canvas.FAINT, linewidth=0.9, linestyle=":",
                      label=signs.sentence(level_name, 40))
        axes.set_xticks(lengths if len(lengths) <= FEW else lengths[::-(-len(lengths) // FEW)])
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
        axes.xaxis.set_minor_locator(canvas.library().ticker.NullLocator())
        axes.grid(linewidth=0.3, color="#cccccc")
        axes.set_axisbelow(True)
        axes.set_xlabel(signs.sentence(across, 60), parse_math=False)
        axes.set_ylabel(signs.sentence(label, 60), parse_math=False)
        curves._legend(axes, list(given))
        if any(own.size > 1 for points in given.values() for own in points.values()):
            said.insert(0, "lines: medians; bands: from the smallest to the largest")
        return canvas.finished(figure, title, said)


def _drawable(own: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", scale: str) -> bool:
    return bool(np.isfinite(own).all() and (scale == "linear" or (own > 0).all()))
