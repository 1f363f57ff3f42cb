"""SVG without matplotlib: attention maps for notebooks, and line charts for reports.

    heat_svg(weights, ["le", "chat"], ["the", "cat"])       one map with its words; each cell has a tooltip
    heads_svg(weights)                                      a small map for each head, all on one scale
    lines_svg([ChartLine("LSTM", steps, losses)], across="step", down="loss")

Darker is more, orange is negative. Lines differ in colour, dashes and markers, so that they can be told apart without
colours. Text and axes take the colour of the text around them and are legible on black and on white. Words are escaped,
and there is no script, link or `id`, so that many can stand on one page. This file knows numbers and words, not models.
"""

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection import labels
from regard.inspection.pictures import canvas
from regard.inspection.pictures.canvas import Cells, ColourScale, Floats

MAX_CELLS = 64
"""Rows and columns that are drawn one by one, and words that are named."""
MAX_TOOLTIPS = 1600
"""Cells that tell their weight when they are pointed at; more would make a page slow."""
MAX_HEAD_CELLS = 32
"""Rows and columns of a small map that are drawn one by one."""
HEADS_PER_ROW = 8
LETTER_WIDTH, FONT_SIZE = 6.6, 11
"""Pixels that a letter is wide and high, about."""
DARK, BLACK, ORANGE, PINK = "#2d004b", "#000", "#7f3b08", "#ff7ac6"
SCALE_STEPS = 5
"""Parts of the scale."""


def heat_svg(weights: Any, rows: Sequence[str], columns: Sequence[str], *, title: str = "") -> str:
    """The weights (rows, columns) as an SVG element, which is also a whole file.

    Args:
        weights: a tensor, an array or lists.
        rows: the words that look.
        columns: the words that are looked at.
        title: what a screen reader says.
    """
    given = canvas.as_floats("weights", weights, 2, "(rows, columns)")
    if given.shape != (len(rows), len(columns)):
        raise checks.wrong("weights", f"of shape ({len(rows)}, {len(columns)}), one row and one column for each word",
                           f"of shape {checks.shape(given)}")
    if not given.size:
        return svg_element(260, 20, title or "nothing", [svg_text(0, 14, f"nothing to show: {len(rows)} rows, "
                                                                 f"{len(columns)} columns")])
    return map_svg(canvas.cells_from_weights(given, MAX_CELLS), rows, columns, title=title)


def map_svg(drawn: Cells, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
            notes: Sequence[str] = ()) -> str:
    """The same from cells (r, c), at least one, with the words of all rows and columns, not only of those drawn."""
    cell = min(22.0, max(12.0, 600 / max(drawn.values.shape)))
    (down, left_words), (across, top_words) = (labels.axis_labels(words, drawn.size, MAX_CELLS) for words in (rows, columns))
    left = LETTER_WIDTH * max(map(labels.display_width, left_words)) + 6
    top = LETTER_WIDTH * max(map(labels.display_width, top_words)) + 6
    parts = [svg_text(left - 4, top + (place + 0.5) * cell + 4, word, "end")
             for place, word in zip(down, left_words, strict=True)]
    parts += [svg_rotated_text(left + (place + 0.5) * cell + 4, top - 4, word)
              for place, word in zip(across, top_words, strict=True)]
    tells = _cell_tooltips(drawn, rows, columns) if drawn.values.size <= MAX_TOOLTIPS else None
    scale = ColourScale.of(drawn.values)
    parts += _map_parts(drawn.values, scale, left, top, cell, cell, tells)
    width, height = left + drawn.values.shape[1] * cell, top + drawn.values.shape[0] * cell
    notes = [*(labels.text_label(note, 120) for note in notes), *canvas.describe_cells([drawn]),
             *labels.describe_label_step(len(rows), len(columns), drawn.size, MAX_CELLS)]
    return _with_scale(parts, width, height, scale, notes, title or f"weights of {len(rows)} words on {len(columns)} words")


def heads_svg(weights: Any, *, title: str = "") -> str:
    """The weights (heads, rows, columns) as an SVG element."""
    given = canvas.as_floats("weights", weights, 3, "(heads, rows, columns)")
    if not given.size:
        return svg_element(260, 20, title or "nothing", [svg_text(0, 14, f"nothing to show: {checks.shape(given)}")])
    drawn = canvas.cells_from_weights(given, MAX_HEAD_CELLS)
    side, parts, scale = 84.0, [], ColourScale.of(drawn.values)
    down, across = drawn.values.shape[1:]
    for head, values in enumerate(drawn.values):
        left, top = head % HEADS_PER_ROW * (side + 10), 14 + head // HEADS_PER_ROW * (side + 26)
        parts.append(svg_text(left + side / 2, top - 4, str(head), "middle"))
        parts += _map_parts(values, scale, left, top, side / across, side / down, None)
    width = min(len(given), HEADS_PER_ROW) * (side + 10) - 10
    height = 14 + -(-len(given) // HEADS_PER_ROW) * (side + 26) - 26
    return _with_scale(parts, width, height, scale, canvas.describe_cells([drawn]), title or f"weights of {len(given)} heads")


def _map_parts(values: Any, scale: ColourScale, left: float, top: float, width: float, height: float,
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
            told = f"><title>{escape_svg(tells(row, column))}</title></rect>" if tells is not None else "/>"
            found.append(f'<rect {place} width="{width:.1f}" height="{height:.1f}"{told}')
        if found:
            parts.append(f'<g fill="{colour}" shape-rendering="crispEdges">{"".join(found)}</g>')
    return [*parts, f'<rect {box} fill="none" stroke="#888"/>']


def _cell_tooltips(drawn: Cells, rows: Sequence[str], columns: Sequence[str]) -> Any:
    """What a cell says when it is pointed at."""
    def tell(row: int, column: int) -> str:
        words = [labels.word_label(words[place * drawn.size]) + ("…" if drawn.size > 1 else "")
                 for words, place in ((rows, row), (columns, column))]
        return f"{words[0]} → {words[1]}: {canvas.format_number(drawn.values[row, column])}"

    return tell


def _with_scale(parts: list[str], width: float, height: float, scale: ColourScale, notes: Sequence[str], title: str) -> str:
    """The map with its scale and its notes below."""
    top, step = height + 10, 16
    shares = np.linspace(-1.0 if scale.low < 0 else 0.0, 1.0, 2 * SCALE_STEPS + 1 if scale.low < 0 else SCALE_STEPS + 1)
    low, high = canvas.format_number(scale.low), canvas.format_number(scale.high)
    left = LETTER_WIDTH * len(low) + 4
    parts = [*parts, svg_text(0, top + 10, low),
             f'<rect x="{left:.1f}" y="{top:.1f}" width="{len(shares) * step}" height="12" fill="#fff" stroke="#888"/>']
    for place, share in enumerate(shares):
        colour = ORANGE if share < 0 else DARK if scale.low < 0 else BLACK
        parts.append(f'<rect x="{left + place * step:.1f}" y="{top:.1f}" width="{step}" height="12" fill="{colour}" '
                     f'opacity="{abs(share):.3g}"/>')
    right = left + len(shares) * step + 4
    parts.append(svg_text(right, top + 10, high))
    width = max(width, right + LETTER_WIDTH * len(high), *(LETTER_WIDTH * len(note) for note in notes), 60)
    for place, note in enumerate(notes):
        parts.append(svg_text(0, top + 28 + 15 * place, note))
    return svg_element(width + 2, top + 18 + 15 * len(notes), title, parts)


def svg_element(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """These parts as an SVG element, which is also a whole file."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="-1 -1 {width:.0f} {height:.0f}" role="img" aria-label="{escape_svg(labels.text_label(title, 200))}" '
            f'font-family="sans-serif" font-size="{FONT_SIZE}" fill="currentColor">{"".join(parts)}</svg>')


def svg_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    """A text that begins, ends or has its middle here."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_svg(text)}</text>'


def svg_rotated_text(x: float, y: float, text: str) -> str:
    """A text that goes upwards from here."""
    return f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escape_svg(text)}</text>'


def escape_svg(text: str) -> str:
    """A text in which nothing is a tag."""
    return html.escape(text, quote=True)


# ---- lines: Lines and points as an SVG of text, made by hand: curves, scores by length, and how far gradients flow.
#
#     lines_svg([Line("LSTM", steps, losses)], across="step", down="loss")
#     lines_svg([Line("LSTM", places, means, lows, highs)], across="words", down="BLEU", names=["1-10", "11-20"])
#
# Lines differ in colour, in dashes and in the shape of their points, so they can be told apart without colours. Letters
# and axes have the colour of the text around, so that it can be read on black and on white. As in `svg.py`, words are
# text, and there is no script, no link and no name in it. It needs no other package; it does not know what is drawn.

LINE_COLOURS = ("#2a7ab8", "#d55e00", "#00875f", "#b4538a", "#8a6d00", "#5b5bd6", "#777777")
"""After those of Okabe and Ito, each between black and white, so that all are seen on both."""
LINE_DASHES = ("", "7 3", "2 3", "9 3 2 3")
MARKERS = ("circle", "square", "diamond", "triangle")
CHART_WIDTH, CHART_HEIGHT = 420.0, 210.0
"""Pixels between the axes."""
TICKS = 5
MAX_POINTS = 400
"""Points of a line that are drawn; of more, those between are left out."""
MAX_MARKERS = 40
"""Points of a line up to which each has a mark, and tells its number."""


class ChartLine(NamedTuple):
    """Numbers at places, with what they are called; where there is a spread, from low to high at each place."""

    name: str
    places: Any
    numbers: Any
    lows: Any = None
    highs: Any = None


class _LinePoints(NamedTuple):
    """A line as it is drawn: all arrays of one length, without what is no finite number."""

    name: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats


class _ChartAxis(NamedTuple):
    """From numbers to pixels."""

    low: float
    high: float
    start: float
    end: float
    powers: bool

    def at(self, value: float) -> float:
        value = math.log10(value) if self.powers else value
        return self.start + (self.end - self.start) * (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[float]:
        """Round numbers between the ends."""
        if self.powers:
            whole = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            return [10.0 ** power for power in whole[::-(-len(whole) // 7) or 1]]
        step = _round_step((self.high - self.low) / TICKS)
        return [step * number for number in range(math.ceil(self.low / step - 1e-9),
                                                  math.floor(self.high / step + 1e-9) + 1)]


def lines_svg(lines: Sequence[ChartLine], *, across: str, down: str, title: str = "", names: Sequence[str] | None = None,
              powers: bool = False, least: float | None = None) -> str:
    """The lines as an SVG element, with a legend.

    Args:
        across: what the places are; `down`: what the numbers are.
        names: of the places 0, 1, ...; without them the places are numbers.
        powers: the axis of the numbers goes by powers of ten; what is not above 0 is left out, and said.
        least: what the axis of the numbers starts with, at most.
    """
    drawn = [_line_points(line, powers) for line in lines]
    missing = [f"{line.name}: not shown where it is 0" for line, one in zip(lines, drawn, strict=True)
               if powers and len(one.x) < int(np.isfinite(canvas.as_floats(line.name, line.numbers, 1, "(n,)")).sum())]
    if not any(len(one.x) for one in drawn):
        return svg_element(260, 20, title or "nothing", [svg_text(0, 14, "nothing to show")])
    left, top, legend = 52.0, 10.0, 16.0 * len(drawn)
    x_axis, y_axis = _chart_axes(drawn, left, top, names, powers, least)
    parts = _grid(x_axis, y_axis, names)
    bottom = top + CHART_HEIGHT
    parts.append(svg_text(left + CHART_WIDTH / 2, bottom + 32, labels.text_label(across, 80), "middle"))
    parts.append(svg_rotated_text(12, top + CHART_HEIGHT / 2 + LETTER_WIDTH / 2 * len(down), labels.text_label(down, 60)))
    for number, one in enumerate(drawn):
        parts += _line_parts(one, number, x_axis, y_axis, names, powers)
        parts += _legend_parts(one.name, number, left, bottom + 50 + 16 * number)
    for row, note in enumerate(missing):
        parts.append(svg_text(left, bottom + 50 + legend + 16 * row, labels.text_label(note, 100)))
    height = bottom + 44 + legend + 16 * len(missing)
    return svg_element(left + CHART_WIDTH + 16, height, title or f"{down} by {across}", parts)


def _line_points(line: ChartLine, powers: bool) -> _LinePoints:
    x, y = (canvas.as_floats(line.name, values, 1, "(n,)") for values in (line.places, line.numbers))
    low = y if line.lows is None else canvas.as_floats(line.name, line.lows, 1, "(n,)")
    high = y if line.highs is None else canvas.as_floats(line.name, line.highs, 1, "(n,)")
    if not len(x) == len(y) == len(low) == len(high):
        raise checks.wrong(f'line "{line.name}"', "as many numbers as places", f"{len(y)} at {len(x)}")
    there = np.isfinite(x) & np.isfinite(y) & ((y > 0) & (low > 0) if powers else True)
    x, y, low, high = (values[there] for values in (x, y, low, high))
    every = max(1, -(-len(x) // MAX_POINTS))
    return _LinePoints(line.name, x[::every], y[::every], low[::every], high[::every])


def _chart_axes(drawn: Sequence[_LinePoints], left: float, top: float, names: Sequence[str] | None, powers: bool,
          least: float | None) -> tuple[_ChartAxis, _ChartAxis]:
    x = np.concatenate([one.x for one in drawn])
    lows, highs = (np.concatenate([getattr(one, side) for one in drawn]) for side in ("low", "high"))
    first, last = (-0.5, len(names) - 0.5) if names is not None else (float(x.min()), float(x.max()))
    if last <= first:
        first, last = first - 0.5, first + 0.5
    low, high = float(lows.min()), float(highs.max())
    if powers:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
    elif least is not None:
        low = min(low, least)
    if high <= low:
        high = low + 1.0
    high += 0.0 if powers else 0.04 * (high - low)
    return (_ChartAxis(first, last, left, left + CHART_WIDTH, False), _ChartAxis(low, high, top + CHART_HEIGHT, top, powers))


def _grid(x: _ChartAxis, y: _ChartAxis, names: Sequence[str] | None) -> list[str]:
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path d="M{x.start:.1f} {at:.1f}H{x.end:.1f}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(svg_text(x.start - 5, at + 4, _tick_label(value, y.powers), "end"))
    places = [(float(place), name) for place, name in enumerate(names)] if names is not None else \
        [(value, _tick_label(value)) for value in x.ticks()]
    parts += [svg_text(x.at(place), y.start + 15, labels.word_label(name), "middle") for place, name in places]
    frame = f'M{x.start:.1f} {y.end:.1f}V{y.start:.1f}H{x.end:.1f}'
    return [*parts, f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>']


def _line_parts(one: _LinePoints, number: int, x: _ChartAxis, y: _ChartAxis, names: Sequence[str] | None, powers: bool) -> list[str]:
    colour, parts = LINE_COLOURS[number % len(LINE_COLOURS)], []
    points = [(x.at(place), y.at(value)) for place, value in zip(one.x, one.y, strict=True)]
    if not points:
        return []
    if (one.high > one.low).any():
        above = [f"{x.at(place):.1f} {y.at(value):.1f}" for place, value in zip(one.x, one.high, strict=True)]
        below = [f"{x.at(place):.1f} {y.at(value):.1f}" for place, value in zip(one.x, one.low, strict=True)]
        parts.append(f'<path d="M{"L".join([*above, *reversed(below)])}Z" fill="{colour}" opacity="0.18"/>')
    route = "L".join(f"{left:.1f} {top:.1f}" for left, top in points)
    parts.append(f'<path d="M{route}" fill="none" stroke="{colour}" stroke-width="2"{_dash_attribute(number)}/>')
    if len(points) <= MAX_MARKERS:
        for index, (left, top) in enumerate(points):
            place = names[int(one.x[index])] if names is not None else _tick_label(float(one.x[index]))
            told = f"{one.name}, {place}: {canvas.format_number(one.y[index])}"
            if one.high[index] > one.low[index]:
                told += f" ({canvas.format_number(one.low[index])} to {canvas.format_number(one.high[index])})"
            parts.append(_marker(number, left, top, told))
    return parts


def _legend_parts(name: str, number: int, left: float, top: float) -> list[str]:
    colour = LINE_COLOURS[number % len(LINE_COLOURS)]
    line = (f'<path d="M{left:.1f} {top - 4:.1f}h30" fill="none" stroke="{colour}" stroke-width="2"'
            f'{_dash_attribute(number)}/>')
    return [line, _marker(number, left + 15, top - 4), svg_text(left + 38, top, labels.text_label(name, 60))]


def _marker(number: int, left: float, top: float, told: str = "") -> str:
    """A point in the shape of its line."""
    kind, colour = MARKERS[number % len(MARKERS)], LINE_COLOURS[number % len(LINE_COLOURS)]
    shapes = {"circle": f"M{left - 3.5:.1f} {top:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
              "square": f"M{left - 3.2:.1f} {top - 3.2:.1f}h6.4v6.4h-6.4Z",
              "diamond": f"M{left:.1f} {top - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z",
              "triangle": f"M{left:.1f} {top - 4.2:.1f}l4.2 7.4h-8.4Z"}
    inside = f"><title>{escape_svg(labels.text_label(told, 160))}</title></path>" if told else "/>"
    return f'<path d="{shapes[kind]}" fill="{colour}"{inside}'


def _dash_attribute(number: int) -> str:
    dashes = LINE_DASHES[number % len(LINE_DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, about as large as this."""
    power = 10.0 ** math.floor(math.log10(about))
    return power * next(step for step in (1, 2, 5, 10) if step * power >= about * 0.999)


def _tick_label(value: float, powers: bool = False) -> str:
    if powers:
        return f"{value:g}" if 1e-3 <= value <= 1e4 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{round(value, 6):g}"
