"""Position encodings as maps: a row for each position, a column for each feature.

    vectors = Sinusoidal(64)(torch.arange(100))
    position_picture({"sinusoidal": vectors, "learned": table})

Beside each map is how alike the vectors of two positions are (the cosine of their angle): for sines and cosines that
depends on the distance alone. It knows vectors; it does not know encodings.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection.pictures import canvas, cells, signs
from regard.inspection.pictures.cells import Floats, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE, GAP, BELOW = 3.0, 0.95, 0.75
MOST = 1000
"""Positions and features that are drawn one by one."""


def position_picture(encodings: Mapping[str, Any], *, title: str = "") -> "Figure":
    """The vectors (positions, features) by the names of their encodings."""
    given = {name: cells.floats(f'encodings["{name}"]', vectors, 2, "(positions, features)")
             for name, vectors in encodings.items()}
    if not given:
        raise checks.wrong("encodings", "at least one, by name", "empty")
    notes = []
    with canvas.drawing() as figure:
        for number, (name, vectors) in enumerate(given.items()):
            top = number * (SIDE + BELOW)
            shown = signs.sentence(name, 40)
            drawn = cells.of_weights(vectors, MOST)
            _panel(figure, 0.0, top, drawn.values, drawn.size, Scale.of(drawn.values), ("feature", "value"), shown)
            like, size = _likeness(vectors)
            _panel(figure, SIDE + GAP + 0.4, top, like, size, Scale.of(like, 1.0), ("position", "cosine"),
                   f"{shown}: how alike")
            if np.isnan(like).any():
                notes.append(f"{shown}: a vector of zeros is like none: pink")
            if drawn.size > 1:
                notes.append(f"{shown}: each cell is the mean of {drawn.size} × {drawn.size} numbers")
            if size > 1:
                notes.append(f"{shown}: one position in {size} is compared")
        most = max(max(image.get_size()) for axes in figure.axes for image in axes.images)
        figure.set_dpi(max(canvas.DPI, math.ceil(1.02 * most / SIDE)))
        return canvas.finished(figure, title, notes)


def _panel(figure: "Figure", left: float, top: float, values: Floats, size: int, scale: Scale,
           names: tuple[str, str], title: str) -> None:
    """One map; its axes count positions and features, whatever a cell stands for."""
    axes = canvas.panel(figure, left, top, SIDE, SIDE)
    down, across = values.shape
    image = canvas.draw(axes, values, scale, (-0.5, across * size - 0.5, down * size - 0.5, -0.5))
    axes.set_xlabel(names[0])
    axes.set_ylabel("position")
    axes.set_title(title, fontsize=canvas.LABEL + 1, **canvas.plain([title]))
    canvas.bar(figure, image, left + SIDE + 0.1, top, SIDE, names[1])


def _likeness(vectors: Floats) -> tuple[Floats, int]:
    """The cosines of the angles between vectors, of all positions or of every so many."""
    step = max(1, math.ceil(len(vectors) / MOST))
    chosen = vectors[::step]
    lengths = np.linalg.norm(chosen, axis=1, keepdims=True)
    directions = np.divide(chosen, lengths, out=np.full_like(chosen, np.nan), where=lengths > 0)
    return np.clip(directions @ directions.T, -1.0, 1.0), step
