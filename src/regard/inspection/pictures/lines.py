"""Lines and points as an SVG of text, made by hand: curves, scores by length, and how far gradients flow.

    lines_svg([Line("LSTM", steps, losses)], across="step", down="loss")
    lines_svg([Line("LSTM", places, means, lows, highs)], across="words", down="BLEU", names=["1-10", "11-20"])

Lines differ in colour, in dashes and in the shape of their points, so they can be told apart without colours. Letters
and axes have the colour of the text around, so that it can be read on black and on white. As in `svg.py`, words are
text, and there is no script, no link and no name in it. It needs no other package; it does not know what is drawn.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection.pictures import cells, signs
from regard.inspection.pictures.cells import Floats
from regard.inspection.pictures.svg import LETTER, escaped, text_svg, turned_svg, whole_svg

COLOURS = ("#2a7ab8", "#d55e00", "#00875f", "#b4538a", "#8a6d00", "#5b5bd6", "#777777")
"""After those of Okabe and Ito, each between black and white, so that all are seen on both."""
DASHES = ("", "7 3", "2 3", "9 3 2 3")
MARKS = ("circle", "square", "diamond", "triangle")
WIDTH, HEIGHT = 420.0, 210.0
"""Pixels between the axes."""
TICKS = 5
MOST = 400
"""Points of a line that are drawn; of more, those between are left out."""
POINTED = 40
"""Points of a line up to which each has a mark, and tells its number."""


class Line(NamedTuple):
    """Numbers at places, with what they are called; where there is a spread, from low to high at each place."""

    name: str
    places: Any
    numbers: Any
    lows: Any = None
    highs: Any = None


class _Drawn(NamedTuple):
    """A line as it is drawn: all arrays of one length, without what is no finite number."""

    name: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats


class _Axis(NamedTuple):
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


def lines_svg(lines: Sequence[Line], *, across: str, down: str, title: str = "", names: Sequence[str] | None = None,
              powers: bool = False, least: float | None = None) -> str:
    """The lines as an SVG element, with a legend.

    Args:
        across: what the places are; `down`: what the numbers are.
        names: of the places 0, 1, ...; without them the places are numbers.
        powers: the axis of the numbers goes by powers of ten; what is not above 0 is left out, and said.
        least: what the axis of the numbers starts with, at most.
    """
    drawn = [_drawn(line, powers) for line in lines]
    missing = [f"{line.name}: not shown where it is 0" for line, one in zip(lines, drawn, strict=True)
               if powers and len(one.x) < int(np.isfinite(cells.floats(line.name, line.numbers, 1, "(n,)")).sum())]
    if not any(len(one.x) for one in drawn):
        return whole_svg(260, 20, title or "nothing", [text_svg(0, 14, "nothing to show")])
    left, top, legend = 52.0, 10.0, 16.0 * len(drawn)
    x_axis, y_axis = _axes(drawn, left, top, names, powers, least)
    parts = _grid(x_axis, y_axis, names)
    bottom = top + HEIGHT
    parts.append(text_svg(left + WIDTH / 2, bottom + 32, signs.sentence(across, 80), "middle"))
    parts.append(turned_svg(12, top + HEIGHT / 2 + LETTER / 2 * len(down), signs.sentence(down, 60)))
    for number, one in enumerate(drawn):
        parts += _line(one, number, x_axis, y_axis, names, powers)
        parts += _legend(one.name, number, left, bottom + 50 + 16 * number)
    for row, note in enumerate(missing):
        parts.append(text_svg(left, bottom + 50 + legend + 16 * row, signs.sentence(note, 100)))
    height = bottom + 44 + legend + 16 * len(missing)
    return whole_svg(left + WIDTH + 16, height, title or f"{down} by {across}", parts)


def _drawn(line: Line, powers: bool) -> _Drawn:
    x, y = (cells.floats(line.name, values, 1, "(n,)") for values in (line.places, line.numbers))
    low = y if line.lows is None else cells.floats(line.name, line.lows, 1, "(n,)")
    high = y if line.highs is None else cells.floats(line.name, line.highs, 1, "(n,)")
    if not len(x) == len(y) == len(low) == len(high):
        raise checks.wrong(f'line "{line.name}"', "as many numbers as places", f"{len(y)} at {len(x)}")
    there = np.isfinite(x) & np.isfinite(y) & ((y > 0) & (low > 0) if powers else True)
    x, y, low, high = (values[there] for values in (x, y, low, high))
    every = max(1, -(-len(x) // MOST))
    return _Drawn(line.name, x[::every], y[::every], low[::every], high[::every])


def _axes(drawn: Sequence[_Drawn], left: float, top: float, names: Sequence[str] | None, powers: bool,
          least: float | None) -> tuple[_Axis, _Axis]:
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
    return (_Axis(first, last, left, left + WIDTH, False), _Axis(low, high, top + HEIGHT, top, powers))


def _grid(x: _Axis, y: _Axis, names: Sequence[str] | None) -> list[str]:
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path d="M{x.start:.1f} {at:.1f}H{x.end:.1f}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(text_svg(x.start - 5, at + 4, _short(value, y.powers), "end"))
    places = [(float(place), name) for place, name in enumerate(names)] if names is not None else \
        [(value, _short(value)) for value in x.ticks()]
    parts += [text_svg(x.at(place), y.start + 15, signs.word(name), "middle") for place, name in places]
    frame = f'M{x.start:.1f} {y.end:.1f}V{y.start:.1f}H{x.end:.1f}'
    return [*parts, f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>']


def _line(one: _Drawn, number: int, x: _Axis, y: _Axis, names: Sequence[str] | None, powers: bool) -> list[str]:
    colour, parts = COLOURS[number % len(COLOURS)], []
    points = [(x.at(place), y.at(value)) for place, value in zip(one.x, one.y, strict=True)]
    if not points:
        return []
    if (one.high > one.low).any():
        above = [f"{x.at(place):.1f} {y.at(value):.1f}" for place, value in zip(one.x, one.high, strict=True)]
        below = [f"{x.at(place):.1f} {y.at(value):.1f}" for place, value in zip(one.x, one.low, strict=True)]
        parts.append(f'<path d="M{"L".join([*above, *reversed(below)])}Z" fill="{colour}" opacity="0.18"/>')
    route = "L".join(f"{left:.1f} {top:.1f}" for left, top in points)
    parts.append(f'<path d="M{route}" fill="none" stroke="{colour}" stroke-width="2"{_dashes(number)}/>')
    if len(points) <= POINTED:
        for index, (left, top) in enumerate(points):
            place = names[int(one.x[index])] if names is not None else _short(float(one.x[index]))
            told = f"{one.name}, {place}: {cells.number(one.y[index])}"
            if one.high[index] > one.low[index]:
                told += f" ({cells.number(one.low[index])} to {cells.number(one.high[index])})"
            parts.append(_mark(number, left, top, told))
    return parts


def _legend(name: str, number: int, left: float, top: float) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    line = (f'<path d="M{left:.1f} {top - 4:.1f}h30" fill="none" stroke="{colour}" stroke-width="2"'
            f'{_dashes(number)}/>')
    return [line, _mark(number, left + 15, top - 4), text_svg(left + 38, top, signs.sentence(name, 60))]


def _mark(number: int, left: float, top: float, told: str = "") -> str:
    """A point in the shape of its line."""
    kind, colour = MARKS[number % len(MARKS)], COLOURS[number % len(COLOURS)]
    shapes = {"circle": f"M{left - 3.5:.1f} {top:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
              "square": f"M{left - 3.2:.1f} {top - 3.2:.1f}h6.4v6.4h-6.4Z",
              "diamond": f"M{left:.1f} {top - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z",
              "triangle": f"M{left:.1f} {top - 4.2:.1f}l4.2 7.4h-8.4Z"}
    inside = f"><title>{escaped(signs.sentence(told, 160))}</title></path>" if told else "/>"
    return f'<path d="{shapes[kind]}" fill="{colour}"{inside}'


def _dashes(number: int) -> str:
    dashes = DASHES[number % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, about as large as this."""
    power = 10.0 ** math.floor(math.log10(about))
    return power * next(step for step in (1, 2, 5, 10) if step * power >= about * 0.999)


def _short(value: float, powers: bool = False) -> str:
    if powers:
        return f"{value:g}" if 1e-3 <= value <= 1e4 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{round(value, 6):g}"

