"""Maps for notebooks: an SVG of text, made by hand, that needs no other package and obeys nobody's words.

    heat_svg(weights, ["le", "chat"], ["the", "cat"])       one map with its words; a cell that is pointed at tells all
    heads_svg(weights)                                      a small map for each head, all on one scale

The darker, the more; orange is negative. Letters have the colour of the text around, so it can be read on black and on
white. Words are text: what would be a tag is escaped, what would not be seen is named. There is no script in it, no
link and no name (`id`), so many can stand on one page. It knows numbers and words; it does not know models.
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard import checks
from regard.inspection.pictures import cells, signs
from regard.inspection.pictures.cells import Cells, Scale

MOST = 64
"""Rows and columns that are drawn one by one, and words that are named."""
POINTED = 1600
"""Cells that tell their weight when they are pointed at; more would make a page slow."""
SMALL = 32
"""Rows and columns of a small map that are drawn one by one."""
ACROSS = 8
LETTER, TALL = 6.6, 11
"""Pixels that a letter is wide and high, about."""
DARK, BLACK, ORANGE, PINK = "#2d004b", "#000", "#7f3b08", "#ff7ac6"
STEPS = 5
"""Parts of the scale."""


def heat_svg(weights: Any, rows: Sequence[str], columns: Sequence[str], *, title: str = "") -> str:
    """The weights (rows, columns) as an SVG element, which is also a whole file.

    Args:
        weights: a tensor, an array or lists.
        rows: the words that look.
        columns: the words that are looked at.
        title: what a screen reader says.
    """
    given = cells.floats("weights", weights, 2, "(rows, columns)")
    if given.shape != (len(rows), len(columns)):
        raise checks.wrong("weights", f"of shape ({len(rows)}, {len(columns)}), one row and one column for each word",
                           f"of shape {checks.shape(given)}")
    if not given.size:
        return whole_svg(260, 20, title or "nothing", [text_svg(0, 14, f"nothing to show: {len(rows)} rows, "
                                                                 f"{len(columns)} columns")])
    return map_svg(cells.of_weights(given, MOST), rows, columns, title=title)


def map_svg(drawn: Cells, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
            notes: Sequence[str] = ()) -> str:
    """The same from cells (r, c), at least one, with the words of all rows and columns, not only of those drawn."""
    cell = min(22.0, max(12.0, 600 / max(drawn.values.shape)))
    (down, left_words), (across, top_words) = (signs.labels(words, drawn.size, MOST) for words in (rows, columns))
    left = LETTER * max(map(signs.width, left_words)) + 6
    top = LETTER * max(map(signs.width, top_words)) + 6
    parts = [text_svg(left - 4, top + (place + 0.5) * cell + 4, word, "end")
             for place, word in zip(down, left_words, strict=True)]
    parts += [turned_svg(left + (place + 0.5) * cell + 4, top - 4, word)
              for place, word in zip(across, top_words, strict=True)]
    tells = _tell(drawn, rows, columns) if drawn.values.size <= POINTED else None
    scale = Scale.of(drawn.values)
    parts += _map(drawn.values, scale, left, top, cell, cell, tells)
    width, height = left + drawn.values.shape[1] * cell, top + drawn.values.shape[0] * cell
    notes = [*(signs.sentence(note, 120) for note in notes), *cells.remarks([drawn]),
             *signs.thinned(len(rows), len(columns), drawn.size, MOST)]
    return _noted(parts, width, height, scale, notes, title or f"weights of {len(rows)} words on {len(columns)} words")


def heads_svg(weights: Any, *, title: str = "") -> str:
    """The weights (heads, rows, columns) as an SVG element."""
    given = cells.floats("weights", weights, 3, "(heads, rows, columns)")
    if not given.size:
        return whole_svg(260, 20, title or "nothing", [text_svg(0, 14, f"nothing to show: {checks.shape(given)}")])
    drawn = cells.of_weights(given, SMALL)
    side, parts, scale = 84.0, [], Scale.of(drawn.values)
    down, across = drawn.values.shape[1:]
    for head, values in enumerate(drawn.values):
        left, top = head % ACROSS * (side + 10), 14 + head // ACROSS * (side + 26)
        parts.append(text_svg(left + side / 2, top - 4, str(head), "middle"))
        parts += _map(values, scale, left, top, side / across, side / down, None)
    width = min(len(given), ACROSS) * (side + 10) - 10
    height = 14 + -(-len(given) // ACROSS) * (side + 26) - 26
    return _noted(parts, width, height, scale, cells.remarks([drawn]), title or f"weights of {len(given)} heads")


def _map(values: Any, scale: Scale, left: float, top: float, width: float, height: float,
         tells: Any) -> list[str]:
    """White paper, the cells on it, and a frame."""
    down, across = values.shape
    box = f'x="{left:.1f}" y="{top:.1f}" width="{across * width:.1f}" height="{down * height:.1f}"'
    parts = [f'<rect {box} fill="#fff"/>']
    colours = {1: BLACK if scale.low == 0 else DARK, -1: ORANGE, 0: PINK}
    for sign, colour in colours.items():
        chosen = ~np.isfinite(values) if sign == 0 else np.isfinite(values) & (values * sign > 0)
        if sign == 1 and tells is not None:
            chosen |= values == 0  # nothing to see, but something to point at
        found = []
        for row, column in zip(*np.nonzero(chosen), strict=True):
            share = 1.0 if sign == 0 else abs(values[row, column]) / (scale.high or 1.0)
            place = f'x="{left + column * width:.1f}" y="{top + row * height:.1f}" opacity="{share:.3g}"'
            told = f"><title>{escaped(tells(row, column))}</title></rect>" if tells is not None else "/>"
            found.append(f'<rect {place} width="{width:.1f}" height="{height:.1f}"{told}')
        if found:
            parts.append(f'<g fill="{colour}" shape-rendering="crispEdges">{"".join(found)}</g>')
    return [*parts, f'<rect {box} fill="none" stroke="#888"/>']


def _tell(drawn: Cells, rows: Sequence[str], columns: Sequence[str]) -> Any:
    """What a cell says when it is pointed at."""
    def tell(row: int, column: int) -> str:
        words = [signs.word(words[place * drawn.size]) + ("…" if drawn.size > 1 else "")
                 for words, place in ((rows, row), (columns, column))]
        return f"{words[0]} → {words[1]}: {cells.number(drawn.values[row, column])}"

    return tell


def _noted(parts: list[str], width: float, height: float, scale: Scale, notes: Sequence[str], title: str) -> str:
    """The map with its scale and its notes below."""
    top, step = height + 10, 16
    shares = np.linspace(-1.0 if scale.low < 0 else 0.0, 1.0, 2 * STEPS + 1 if scale.low < 0 else STEPS + 1)
    low, high = cells.number(scale.low), cells.number(scale.high)
    left = LETTER * len(low) + 4
    parts = [*parts, text_svg(0, top + 10, low),
             f'<rect x="{left:.1f}" y="{top:.1f}" width="{len(shares) * step}" height="12" fill="#fff" stroke="#888"/>']
    for place, share in enumerate(shares):
        colour = ORANGE if share < 0 else DARK if scale.low < 0 else BLACK
        parts.append(f'<rect x="{left + place * step:.1f}" y="{top:.1f}" width="{step}" height="12" fill="{colour}" '
                     f'opacity="{abs(share):.3g}"/>')
    right = left + len(shares) * step + 4
    parts.append(text_svg(right, top + 10, high))
    width = max(width, right + LETTER * len(high), *(LETTER * len(note) for note in notes), 60)
    for place, note in enumerate(notes):
        parts.append(text_svg(0, top + 28 + 15 * place, note))
    return whole_svg(width + 2, top + 18 + 15 * len(notes), title, parts)


def whole_svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """These parts as an SVG element, which is also a whole file."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="-1 -1 {width:.0f} {height:.0f}" role="img" aria-label="{escaped(signs.sentence(title, 200))}" '
            f'font-family="sans-serif" font-size="{TALL}" fill="currentColor">{"".join(parts)}</svg>')


def text_svg(x: float, y: float, text: str, anchor: str = "start") -> str:
    """A text that begins, ends or has its middle here."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def turned_svg(x: float, y: float, text: str) -> str:
    """A text that goes upwards from here."""
    return f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escaped(text)}</text>'


def escaped(text: str) -> str:
    """A text in which nothing is a tag."""
    return html.escape(text, quote=True)
