"""All heads of all layers on one sheet, and how sharply each of them looks.

    heads_picture({"decoder.0.cross": weights, "decoder.1.cross": weights})         weights (heads, rows, columns)
    entropy_picture({"decoder.0.cross": [0.4, 1.9]}, {"decoder.0.cross": 2.3})      nats, and the most there could be

A row is a layer, a square is a head; all squares have one scale, so they can be compared. Many heads go on in a second
row. It knows names and numbers; it does not know models or traces.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection.pictures import canvas, cells, signs
from regard.inspection.pictures.cells import GREY, Cells, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 96
"""Rows and columns of a small map that are drawn one by one."""
ACROSS, TALLEST = 16, 60
"""Heads beside each other, where that makes no more rows than the second."""
GAP, APART = 0.12, 0.35
"""Between two squares, and between two layers of several rows, in squares."""
HALF = (1 - GAP) / 2
DARK = 0.59
"""Share of the largest above which white can be read better than black."""
NUMBERS = 24
"""Heads beside each other whose entropies are written into their squares."""


def heads_picture(layers: Mapping[str, Any], *, title: str = "") -> "Figure":
    """A small map for each head, from weights (heads, rows, columns) by the names of the layers."""
    return sheet({name: cells.of_weights(cells.floats(f'layers["{name}"]', weights, 3, "(heads, rows, columns)"), MOST)
                  for name, weights in layers.items()}, title=title)


def sheet(layers: Mapping[str, Cells], *, title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """The same from cells (heads, r, c)."""
    places, across, down = _places({name: len(drawn.values) for name, drawn in layers.items()})
    scale = Scale.of(np.concatenate([drawn.values.ravel() for drawn in layers.values()]))
    square = min(0.85, max(0.3, 9.0 / across))
    with canvas.drawing() as figure:
        axes = canvas.panel(figure, 0, 0, across * square, down * square)
        image = None
        for name, drawn in layers.items():
            for (left, top), values in zip(places[name], drawn.values, strict=True):
                image = canvas.draw(axes, values, scale, (left, left + 1 - GAP, top + 1 - GAP, top))
                axes.add_patch(_frame(left, top))
        _name(axes, places, across, down)
        assert image is not None
        canvas.bar(figure, image, across * square + 0.1, 0, min(max(down * square, 1.0), 3.0), "weight")
        most = max(max(drawn.values.shape[1:]) for drawn in layers.values())
        figure.set_dpi(max(canvas.DPI, min(400, math.ceil(1.02 * most / (square * (1 - GAP))))))
        return canvas.finished(figure, title, [*notes, *cells.remarks(layers.values())])


def entropy_picture(entropies: Mapping[str, Sequence[float] | Any], most: Mapping[str, float] | None = None, *,
                    title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """A square for each head: dark where it looks at many tokens alike, light where it looks at one.

    Args:
        entropies: of every head in nats, the mean over the queries, by the names of the layers.
        most: the largest that the entropies of a layer can be, such as log n for n tokens; the scale ends at the
            largest of them, and each is written beside its layer.
        title: shown above.
        notes: shown below the title.
    """
    given = {name: cells.floats(f'entropies["{name}"]', values, 1, "(heads,)") for name, values in entropies.items()}
    bounds = most or {}
    if unknown := sorted(set(bounds) - set(given)):
        raise checks.wrong("most", "of the layers that have entropies", f'of "{unknown[0]}"')
    places, across, down = _places({name: len(values) for name, values in given.items()})
    largest = max([0.0, *bounds.values(), *(float(values[np.isfinite(values)].max(initial=0.0))
                                            for values in given.values())])
    scale = Scale(0.0, largest, GREY)
    square = min(0.5, max(0.3, 9.0 / across))
    with canvas.drawing() as figure:
        axes = canvas.panel(figure, 0, 0, across * square, down * square)
        image = None
        for name, values in given.items():
            for (left, top), value in zip(places[name], values, strict=True):
                image = canvas.draw(axes, np.array([[value]]), scale, (left, left + 1 - GAP, top + 1 - GAP, top))
                axes.add_patch(_frame(left, top))
                if across <= NUMBERS:
                    axes.text(left + HALF, top + HALF, f"{value:.2f}" if np.isfinite(value) else "–", ha="center",
                              va="center", fontsize=6.5, color="white" if value > DARK * largest else canvas.INK)
        _name(axes, places, across, down, {name: f" (at most {bound:.2f})" for name, bound in bounds.items()})
        assert image is not None
        canvas.bar(figure, image, across * square + 0.1, 0, min(max(down * square, 1.0), 3.0), "entropy in nats")
        finite = all(np.isfinite(values).all() for values in given.values())
        return canvas.finished(figure, title, notes if finite else [*notes, "pink: weights that have no entropy"])


def _places(heads: Mapping[str, int]) -> tuple[dict[str, list[tuple[float, float]]], int, float]:
    """The left and the top of each square, in squares, and how many are beside each other and below each other."""
    if not heads or not all(heads.values()):
        raise checks.wrong("layers", "at least one, with at least one head", f"{dict(heads)}")
    widest = max(heads.values())
    rows = sum(math.ceil(count / ACROSS) for count in heads.values())
    across = widest if widest <= ACROSS or rows > TALLEST else ACROSS
    places, top = {}, 0.0
    for name, count in heads.items():
        places[name] = [(float(head % across), top + head // across) for head in range(count)]
        top += math.ceil(count / across) + (APART if widest > across else 0.0)
    return places, across, top


def _name(axes: Any, places: Mapping[str, list[tuple[float, float]]], across: int, down: float,
          more: Mapping[str, str] | None = None) -> None:
    """Layers at the left, heads on top, and no frame around all."""
    labels = [signs.word(name, 32) + (more or {}).get(name, "") for name in places]
    axes.set_yticks([squares[0][1] + HALF for squares in places.values()], labels, **canvas.plain(labels))
    step = max(1, math.ceil(across / 32))
    heads = range(0, across, step)
    axes.set_xticks([head + HALF for head in heads], list(map(str, heads)))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    widest = max(map(len, places.values()))
    axes.set_xlabel("head" if widest <= across else f"head, and {across} more in each row below")
    axes.tick_params(length=0)
    axes.set_xlim(-GAP, across)
    axes.set_ylim(down, -GAP)
    axes.set_frame_on(False)


def _frame(left: float, top: float) -> Any:
    """A thin line around a square: 0 is as white as the paper."""
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), 1 - GAP, 1 - GAP, fill=False, linewidth=0.5, edgecolor=canvas.FAINT)
