"""SVG without matplotlib: attention maps for notebooks, and line charts for reports.

    heat_svg(weights, ["le", "chat"], ["the", "cat"])       one map with its words; each cell has a tooltip
    heads_svg(weights)                                      a small map for each head, all on one scale
    lines_svg([ChartLine("LSTM", steps, losses)], x_label="step", y_label="loss")

0 is the paper around the map and more is more ink: the colour of the text around it, dark on a light page and light on
a dark one. Orange is negative, masked cells are hatched. Lines differ in colour, dashes and markers, and can be
distinguished without colours. Text and axes take the colour of the text around them and are legible on black and on
white. Words are escaped, and there is no script, link or `id`, so that many can stand on one page. This file knows
numbers and words, not models.
"""

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection import labels
from regard.inspection.pictures import canvas
from regard.inspection.pictures.canvas import Cells, ColourScale, Floats

MAX_CELLS = 64
"""The number of rows and columns up to which each has its own cell and its label."""
MAX_TOOLTIPS = 1600
"""The number of cells up to which each has a tooltip; more would make a page slow."""
MAX_HEAD_CELLS = 32
"""The number of rows and columns up to which a small map draws each."""
HEADS_PER_ROW = 8
LETTER_WIDTH, FONT_SIZE = 6.6, 11
"""The approximate width of a letter, and its height, in pixels."""
CELL_INK, ORANGE, PINK = "currentColor", "#c65a1e", "#ff7ac6"
FRAME = "#888"
SCALE_STEPS = 5
LINE_COLOURS = ("#2a7ab8", "#d55e00", "#00875f", "#b4538a", "#8a6d00", "#5b5bd6", "#777777")
"""After the palette of Okabe and Ito, each of medium lightness, so that it is visible on black and on white."""
LINE_DASHES = ("", "7 3", "2 3", "9 3 2 3")
MARKERS = ("circle", "square", "diamond", "triangle")
CHART_WIDTH, CHART_HEIGHT = 420.0, 210.0
"""The size of the plot area in pixels."""
TICKS = 5
MAX_POINTS = 400
"""The number of points of a line that are drawn; a longer line is subsampled."""
MAX_MARKERS = 40
"""The number of points up to which each has a marker with a tooltip."""


def heat_svg(weights: Any, rows: Sequence[str], columns: Sequence[str], *, title: str = "") -> str:
    """An attention map as an SVG element, which is also a complete file.

    Args:
        weights: (rows, columns), as a tensor, an array or lists.
        rows: the words of the queries.
        columns: the words of the keys.
        title: the label for screen readers.
    """
    given = canvas.as_floats("weights", weights, 2, "(rows, columns)")
    if given.shape != (len(rows), len(columns)):
        raise checks.wrong("weights", f"of shape ({len(rows)}, {len(columns)}), one row and one column for each word",
                           f"of shape {checks.shape(given)}")
    if not given.size:
        sizes = f"{checks.plural(len(rows), 'row')}, {checks.plural(len(columns), 'column')}"
        return svg_element(260, 20, title or "no weights", [svg_text(0, 14, f"no weights: {sizes}")])
    return map_svg(canvas.cells_from_weights(given, MAX_CELLS), rows, columns, title=title)


def map_svg(drawn: Cells, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
            notes: Sequence[str] = ()) -> str:
    """A map of cells (r, c), at least one, with the words of all rows and columns."""
    cell = min(22.0, max(12.0, 600 / max(drawn.values.shape)))
    (down, left_words), (across, top_words) = (labels.axis_labels(words, drawn.size, MAX_CELLS)
                                               for words in (rows, columns))
    left = LETTER_WIDTH * max(map(labels.display_width, left_words)) + 6
    top = LETTER_WIDTH * max(map(labels.display_width, top_words)) + 6
    parts = [svg_text(left - 4, top + (place + 0.5) * cell + 4, word, "end")
             for place, word in zip(down, left_words, strict=True)]
    parts += [svg_rotated_text(left + (place + 0.5) * cell + 4, top - 4, word)
              for place, word in zip(across, top_words, strict=True)]
    tooltips = _cell_tooltips(drawn, rows, columns) if drawn.values.size <= MAX_TOOLTIPS else None
    scale = ColourScale.of(drawn.values)
    parts += _map_parts(drawn.values, scale, left, top, cell, cell, tooltips)
    parts += _hatching(drawn.masked, left, top, cell)
    width, height = left + drawn.values.shape[1] * cell, top + drawn.values.shape[0] * cell
    notes = [*(labels.text_label(note, 120) for note in notes), *canvas.describe_cells([drawn]),
             *labels.describe_label_step(len(rows), len(columns), drawn.size, MAX_CELLS)]
    title = title or f"attention weights, {len(rows)} × {len(columns)} words"
    return _with_scale(parts, width, height, scale, notes, title)


def heads_svg(weights: Any, *, title: str = "") -> str:
    """A small map of each head as one SVG element, from weights (heads, rows, columns)."""
    given = canvas.as_floats("weights", weights, 3, "(heads, rows, columns)")
    if not given.size:
        return svg_element(260, 20, title or "no weights", [svg_text(0, 14, f"no weights: {checks.shape(given)}")])
    drawn = canvas.cells_from_weights(given, MAX_HEAD_CELLS)
    side, parts, scale = 84.0, [], ColourScale.of(drawn.values)
    down, across = drawn.values.shape[1:]
    for head, values in enumerate(drawn.values):
        left, top = head % HEADS_PER_ROW * (side + 10), 14 + head // HEADS_PER_ROW * (side + 26)
        parts.append(svg_text(left + side / 2, top - 4, str(head), "middle"))
        parts += _map_parts(values, scale, left, top, side / across, side / down, None)
    width = min(len(given), HEADS_PER_ROW) * (side + 10) - 10
    height = 14 + -(-len(given) // HEADS_PER_ROW) * (side + 26) - 26
    title = title or f"attention weights of {checks.plural(len(given), 'head')}"
    return _with_scale(parts, width, height, scale, canvas.describe_cells([drawn]), title)


def _map_parts(values: Any, scale: ColourScale, left: float, top: float, width: float, height: float,
               tooltips: Callable[[int, int], str] | None) -> list[str]:
    """The cells, and a frame; the paper shows through."""
    down, across = values.shape
    box = f'x="{left:.1f}" y="{top:.1f}" width="{across * width:.1f}" height="{down * height:.1f}"'
    parts = []
    colours = {1: CELL_INK, -1: ORANGE, 0: PINK}
    for sign, colour in colours.items():
        selected = ~np.isfinite(values) if sign == 0 else np.isfinite(values) & (values * sign > 0)
        if sign == 1 and tooltips is not None:
            selected |= values == 0  # transparent, but with a tooltip
        cells = []
        for row, column in zip(*np.nonzero(selected), strict=True):
            opacity = 1.0 if sign == 0 else abs(values[row, column]) / (scale.high or 1.0)
            position = f'x="{left + column * width:.1f}" y="{top + row * height:.1f}" opacity="{opacity:.3g}"'
            end = "/>" if tooltips is None else f"><title>{escape_svg(tooltips(row, column))}</title></rect>"
            cells.append(f'<rect {position} width="{width:.1f}" height="{height:.1f}"{end}')
        if cells:
            parts.append(f'<g fill="{colour}" shape-rendering="crispEdges">{"".join(cells)}</g>')
    return [*parts, f'<rect {box} fill="none" stroke="{FRAME}"/>']


def _hatching(masked: Any, left: float, top: float, cell: float) -> list[str]:
    """Two strokes across each masked cell."""
    if masked is None:
        return []
    half = cell / 2
    strokes = "".join(f"M{left + column * cell:.1f} {top + row * cell + half:.1f}l{half:.1f} {-half:.1f}m{half:.1f} "
                      f"{half:.1f}l{-half:.1f} {half:.1f}" for row, column in zip(*np.nonzero(masked), strict=True))
    return [f'<path d="{strokes}" fill="none" stroke="{FRAME}" stroke-width="0.6" stroke-opacity="0.6"/>']


def _cell_tooltips(drawn: Cells, rows: Sequence[str], columns: Sequence[str]) -> Callable[[int, int], str]:
    """A function from a row and a column of cells to a tooltip."""
    def tooltip(row: int, column: int) -> str:
        words = [labels.word_label(words[place * drawn.size]) + ("…" if drawn.size > 1 else "")
                 for words, place in ((rows, row), (columns, column))]
        return f"{words[0]} → {words[1]}: {canvas.format_number(drawn.values[row, column])}"

    return tooltip


def _with_scale(parts: list[str], width: float, height: float, scale: ColourScale, notes: Sequence[str],
                title: str) -> str:
    """An SVG element of a map, with its scale and notes below."""
    top, step = height + 10, 16
    shares = np.linspace(-1.0 if scale.low < 0 else 0.0, 1.0, 2 * SCALE_STEPS + 1 if scale.low < 0 else SCALE_STEPS + 1)
    low, high = canvas.format_number(scale.low), canvas.format_number(scale.high)
    left = LETTER_WIDTH * len(low) + 4
    parts = [*parts, svg_text(0, top + 10, low),
             f'<rect x="{left:.1f}" y="{top:.1f}" width="{len(shares) * step}" height="12" fill="none" '
             f'stroke="{FRAME}"/>']
    for place, share in enumerate(shares):
        colour = ORANGE if share < 0 else CELL_INK
        parts.append(f'<rect x="{left + place * step:.1f}" y="{top:.1f}" width="{step}" height="12" fill="{colour}" '
                     f'opacity="{abs(share):.3g}"/>')
    right = left + len(shares) * step + 4
    parts.append(svg_text(right, top + 10, high))
    width = max(width, right + LETTER_WIDTH * len(high), *(LETTER_WIDTH * len(note) for note in notes), 60)
    for place, note in enumerate(notes):
        parts.append(svg_text(0, top + 28 + 15 * place, note))
    return svg_element(width + 2, top + 18 + 15 * len(notes), title, parts)


def svg_element(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """An SVG element of these parts, which is also a complete file."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="-1 -1 {width:.0f} {height:.0f}" role="img" '
            f'aria-label="{escape_svg(labels.text_label(title, 200))}" '
            f'font-family="sans-serif" font-size="{FONT_SIZE}" fill="currentColor">{"".join(parts)}</svg>')


def svg_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    """A text anchored at this point: "start", "middle" or "end"."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_svg(text)}</text>'


def svg_rotated_text(x: float, y: float, text: str) -> str:
    """A text that runs upwards from this point."""
    return f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escape_svg(text)}</text>'


def escape_svg(text: str) -> str:
    """The text with XML special characters escaped."""
    return html.escape(text, quote=True)


class ChartLine(NamedTuple):
    """A line of a chart: its name, x and y, and optionally a band from `lows` to `highs`."""

    name: str
    x: Any
    y: Any
    lows: Any = None
    highs: Any = None


class _LinePoints(NamedTuple):
    """The points of a line that are drawn: arrays of one length, of finite numbers."""

    name: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats


class _ChartAxis(NamedTuple):
    """An axis: from numbers to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[float]:
        """Round numbers between the ends of the axis."""
        if self.log:
            whole = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            return [10.0 ** power for power in whole[::-(-len(whole) // 7) or 1]]
        step = _round_step((self.high - self.low) / TICKS)
        return [step * number for number in range(math.ceil(self.low / step - 1e-9),
                                                  math.floor(self.high / step + 1e-9) + 1)]


def lines_svg(lines: Sequence[ChartLine], *, x_label: str, y_label: str, title: str = "",
              x_names: Sequence[str] | None = None, log: bool = False, y_min: float | None = None) -> str:
    """A line chart with a legend, as an SVG element.

    Args:
        lines: the lines, each with its name.
        x_label, y_label: the labels of the axes.
        title: the label for screen readers.
        x_names: the names of x = 0, 1, ...; by default x are numbers.
        log: whether the y axis is logarithmic; values that are not positive are left out, with a note.
        y_min: the y axis starts at this value or lower.
    """
    drawn = [_line_points(line, log) for line in lines]
    missing = [f"{line.name}: not shown where it is 0" for line, one in zip(lines, drawn, strict=True)
               if log and len(one.x) < int(np.isfinite(canvas.as_floats(line.name, line.y, 1, "(n,)")).sum())]
    if not any(len(one.x) for one in drawn):
        return svg_element(260, 20, title or "no data", [svg_text(0, 14, "no data")])
    left, top, legend = 52.0, 10.0, 16.0 * len(drawn)
    x_axis, y_axis = _chart_axes(drawn, left, top, x_names, log, y_min)
    parts = _grid(x_axis, y_axis, x_names)
    bottom = top + CHART_HEIGHT
    parts.append(svg_text(left + CHART_WIDTH / 2, bottom + 32, labels.text_label(x_label, 80), "middle"))
    middle = top + CHART_HEIGHT / 2 + LETTER_WIDTH / 2 * len(y_label)
    parts.append(svg_rotated_text(12, middle, labels.text_label(y_label, 60)))
    for number, one in enumerate(drawn):
        parts += _line_parts(one, number, x_axis, y_axis, x_names)
        parts += _legend_parts(one.name, number, left, bottom + 50 + 16 * number)
    for row, note in enumerate(missing):
        parts.append(svg_text(left, bottom + 50 + legend + 16 * row, labels.text_label(note, 100)))
    height = bottom + 44 + legend + 16 * len(missing)
    return svg_element(left + CHART_WIDTH + 16, height, title or f"{y_label} by {x_label}", parts)


def _line_points(line: ChartLine, log: bool) -> _LinePoints:
    x, y = (canvas.as_floats(line.name, values, 1, "(n,)") for values in (line.x, line.y))
    low = y if line.lows is None else canvas.as_floats(line.name, line.lows, 1, "(n,)")
    high = y if line.highs is None else canvas.as_floats(line.name, line.highs, 1, "(n,)")
    if not len(x) == len(y) == len(low) == len(high):
        raise checks.wrong(f'line "{line.name}"', "x and y of one length", f"{len(x)} x and {len(y)} y")
    there = np.isfinite(x) & np.isfinite(y) & ((y > 0) & (low > 0) if log else True)
    x, y, low, high = (values[there] for values in (x, y, low, high))
    every = max(1, -(-len(x) // MAX_POINTS))
    return _LinePoints(line.name, x[::every], y[::every], low[::every], high[::every])


def _chart_axes(drawn: Sequence[_LinePoints], left: float, top: float, x_names: Sequence[str] | None, log: bool,
                y_min: float | None) -> tuple[_ChartAxis, _ChartAxis]:
    x = np.concatenate([one.x for one in drawn])
    lows, highs = (np.concatenate([getattr(one, side) for one in drawn]) for side in ("low", "high"))
    first, last = (-0.5, len(x_names) - 0.5) if x_names is not None else (float(x.min()), float(x.max()))
    if last <= first:
        first, last = first - 0.5, first + 0.5
    low, high = float(lows.min()), float(highs.max())
    if log:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
    elif y_min is not None:
        low = min(low, y_min)
    if high <= low:
        high = low + 1.0
    high += 0.0 if log else 0.04 * (high - low)
    x_axis = _ChartAxis(first, last, left, left + CHART_WIDTH, False)
    return x_axis, _ChartAxis(low, high, top + CHART_HEIGHT, top, log)


def _grid(x: _ChartAxis, y: _ChartAxis, x_names: Sequence[str] | None) -> list[str]:
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path d="M{x.start:.1f} {at:.1f}H{x.end:.1f}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(svg_text(x.start - 5, at + 4, _tick_label(value, y.log), "end"))
    places = [(float(place), name) for place, name in enumerate(x_names)] if x_names is not None else \
        [(value, _tick_label(value)) for value in x.ticks()]
    parts += [svg_text(x.at(place), y.start + 15, labels.word_label(name), "middle") for place, name in places]
    frame = f'M{x.start:.1f} {y.end:.1f}V{y.start:.1f}H{x.end:.1f}'
    return [*parts, f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>']


def _line_parts(one: _LinePoints, number: int, x: _ChartAxis, y: _ChartAxis,
                x_names: Sequence[str] | None) -> list[str]:
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
            place = x_names[int(one.x[index])] if x_names is not None else _tick_label(float(one.x[index]))
            tooltip = f"{one.name}, {place}: {canvas.format_number(one.y[index])}"
            if one.high[index] > one.low[index]:
                tooltip += f" ({canvas.format_number(one.low[index])} to {canvas.format_number(one.high[index])})"
            parts.append(_marker(number, left, top, tooltip))
    return parts


def _legend_parts(name: str, number: int, left: float, top: float) -> list[str]:
    colour = LINE_COLOURS[number % len(LINE_COLOURS)]
    line = (f'<path d="M{left:.1f} {top - 4:.1f}h30" fill="none" stroke="{colour}" stroke-width="2"'
            f'{_dash_attribute(number)}/>')
    return [line, _marker(number, left + 15, top - 4), svg_text(left + 38, top, labels.text_label(name, 60))]


def _marker(number: int, left: float, top: float, tooltip: str = "") -> str:
    """The marker of a line, with a tooltip."""
    kind, colour = MARKERS[number % len(MARKERS)], LINE_COLOURS[number % len(LINE_COLOURS)]
    shapes = {"circle": f"M{left - 3.5:.1f} {top:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
              "square": f"M{left - 3.2:.1f} {top - 3.2:.1f}h6.4v6.4h-6.4Z",
              "diamond": f"M{left:.1f} {top - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z",
              "triangle": f"M{left:.1f} {top - 4.2:.1f}l4.2 7.4h-8.4Z"}
    inside = f"><title>{escape_svg(labels.text_label(tooltip, 160))}</title></path>" if tooltip else "/>"
    return f'<path d="{shapes[kind]}" fill="{colour}"{inside}'


def _dash_attribute(number: int) -> str:
    dashes = LINE_DASHES[number % len(LINE_DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, close to this number."""
    power = 10.0 ** math.floor(math.log10(about))
    return power * next(step for step in (1, 2, 5, 10) if step * power >= about * 0.999)


def _tick_label(value: float, log: bool = False) -> str:
    if log:
        return f"{value:g}" if 1e-3 <= value <= 1e4 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{round(value, 6):g}"
