"""The map of one matrix of weights: words on both axes, those that are looked at on top, in the style of the papers.

    alignment_picture(weights, ["le", "chat", "noir"], ["the", "black", "cat"])

White is 0, and a bar says what the other colours are. With many words some are named, with their positions, and the
picture says how many; of more than 2,000 it shows means of blocks, and says that. The first such map of an alignment is
in Bahdanau, Cho and Bengio (2015), figure 3. It knows weights and words; it does not know models or traces.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard import checks
from regard.inspection.pictures import canvas, cells, signs
from regard.inspection.pictures.cells import Cells, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 2000
"""Rows and columns that are drawn one by one."""
NAMED = 60
"""Rows and columns that have a word each."""
CELL, SIDE = 0.32, 8.4
"""Inches of a cell at most, and of the whole map."""
LETTER = 0.075
"""Inches that a letter takes."""


def alignment_picture(weights: Any, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
                      sides: tuple[str, str] = ("", ""), largest: float | None = None) -> "Figure":
    """The weights (rows, columns) of words that were made on words that were read.

    Args:
        weights: a tensor, an array or lists.
        rows: the words that look.
        columns: the words that are looked at.
        title: shown above.
        sides: what the rows and what the columns are, such as ("French", "English").
        largest: what the darkest colour stands for, to compare pictures; without it the largest weight.
    """
    given = cells.floats("weights", weights, 2, "(rows, columns)")
    if given.shape != (len(rows), len(columns)):
        raise checks.wrong("weights", f"of shape ({len(rows)}, {len(columns)}), one row and one column for each word",
                           f"of shape {checks.shape(given)}")
    return map_picture(cells.of_weights(given, MOST), rows, columns, title=title, sides=sides, largest=largest)


def map_picture(drawn: Cells, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
                sides: tuple[str, str] = ("", ""), largest: float | None = None,
                notes: Sequence[str] = ()) -> "Figure":
    """Cells (r, c) with the words of all rows and columns, not only of those that are drawn."""
    scale = Scale.of(drawn.values, largest)
    cell = min(CELL, SIDE / max(1, drawn.rows, drawn.columns))
    width, height = (max(count * cell, min(count, NAMED) * SIDE / NAMED) for count in (drawn.columns, drawn.rows))
    with canvas.drawing() as figure:
        axes = canvas.panel(figure, 0, 0, width, height)
        image = canvas.draw(axes, drawn.values, scale)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        name_columns(axes, columns, drawn.size, width / max(1, drawn.columns))
        name_rows(axes, rows, drawn.size)
        left, above = (signs.sentence(side, 40) for side in sides)
        axes.set_ylabel(left, **canvas.plain([left]))
        axes.set_xlabel(above, **canvas.plain([above]))
        canvas.bar(figure, image, width + 0.15, 0, min(max(height, 1.0), 3.0), "weight")
        # Every cell has a pixel of its own: one that had none would not be seen.
        figure.set_dpi(max(canvas.DPI, math.ceil(1.02 * max(drawn.values.shape[1] / width,
                                                            drawn.values.shape[0] / height))))
        thinned = signs.thinned(len(rows), len(columns), drawn.size, NAMED)
        return canvas.finished(figure, title, [*notes, *cells.remarks([drawn]), *thinned])


def name_rows(axes: "Axes", words: Sequence[str], size: int = 1) -> None:
    """The words at the left."""
    places, labels = signs.labels(words, size, NAMED)
    axes.set_yticks(places, labels, **canvas.plain(labels))
    axes.tick_params(axis="y", length=2 if signs.step_of(len(words), NAMED, size) > 1 else 0)


def name_columns(axes: "Axes", words: Sequence[str], size: int = 1, cell: float = CELL) -> None:
    """The words on top: upright where cells of this breadth have room for them, or else turned."""
    places, labels = signs.labels(words, size, NAMED)
    room = cell * signs.step_of(len(words), NAMED, size) - LETTER
    turned = any(signs.width(label) * LETTER > room for label in labels)
    axes.set_xticks(places, labels, rotation=90 if turned else 0, **canvas.plain(labels))
    axes.tick_params(axis="x", length=2 if signs.step_of(len(words), NAMED, size) > 1 else 0)
