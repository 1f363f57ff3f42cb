"""An attention map as lines of text for a terminal: output words against input words.

                  s
            b     l
            l     e
         t  a  c  e
         h  c  a  p
         e  k  t  s
    le  │██         │
    chat│   ░░ ▓▓   │
    noir│   ▓▓ ░░   │
    dort│         ██│
    " " 0   "░" 0.24   "▒" 0.47
    "▓" 0.71   "█" 0.95
    weights from 0.01 to 0.95

Cells are as wide as the width allows; the words above them are written across, or downward, or truncated. Shades go
from the smallest weight (at most 0) to the largest, and the last lines are the legend: nothing is normalised. Where
that would leave a row blank, because another row has much larger weights, as the first row of a causal map does, every
row has shades of its own, from 0 to its largest weight, and the legend says so. Widths are counted in terminal columns,
and characters that are invisible, or that a terminal would interpret, are shown by their code point. This file knows
numbers and words, not models, and needs no torch.
"""

import math
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from rich.cells import cell_len

from regard import checks
from regard.inspection.labels import CIRCLE, ELLIPSIS, EMPTY, SPACE, code_point, is_variation_selector, is_visible

SHADES = " ░▒▓█"
"""Shades from the smallest weight to the largest."""
MIN_WIDTH = 10
MAX_HEIGHT = 12
"""The number of characters of a word that is written downward."""
NOT_FINITE = "?"
"""The cell of a weight that is not finite."""


class SupportsToList(Protocol):
    """A tensor of torch or an array of NumPy."""

    def tolist(self) -> Any:
        """The numbers as nested lists."""


def heat_map(weights: Sequence[Sequence[float]] | SupportsToList, rows: Sequence[str], columns: Sequence[str], *,
             width: int = 80, shades: str = SHADES) -> list[str]:
    """Draw weights as a heat map of characters, in lines of at most `width` terminal columns.

    Args:
        weights: a row for each output word, with a weight for each input word.
        rows: the output words.
        columns: the input words.
        width: the width of the terminal. Words that do not fit are left out, and a line says so.
        shades: from the smallest weight to the largest. If all are ASCII characters, so are the lines.
    """
    if width < MIN_WIDTH:
        raise checks.wrong("width", f"at least {MIN_WIDTH}", width)
    if len(shades) < 2 or any(cell_len(shade) != 1 for shade in shades):
        raise checks.wrong("shades", "two characters or more, each one column wide", repr(shades))
    numbers = _as_lists(weights, len(rows), len(columns))
    if not rows or not columns:
        return [f"no weights: {checks.plural(len(rows), 'row')}, {checks.plural(len(columns), 'column')}"[:width]]
    text = _TerminalText(shades.isascii())
    down, across = [text.clusters(word) for word in rows], [text.clusters(word) for word in columns]
    layout = _choose_layout(down, across, width)
    shown = min(len(columns), (width - layout.label - 2 + layout.gap) // (layout.cell + layout.gap))
    scale = _ShadeScale.of(numbers, shades)
    scales = [_ShadeScale.of([row], shades) if scale.hides_a_row(numbers) else scale for row in numbers]
    lines = _column_labels(across[:shown], layout, text)
    for word, row, own in zip(down, numbers, scales, strict=True):
        cells = (" " * layout.gap).join(own.shade(weight) * layout.cell for weight in row[:shown])
        lines.append(_pad(text.truncate(word, layout.label), layout.label) + text.frame + cells + text.frame)
    lines += scale.lines(width, by_row=scale.hides_a_row(numbers))
    if shown < len(columns):
        lines += textwrap.wrap(f"{len(columns) - shown} of {len(columns)} words above are left out: only {shown} fit "
                               f"into a width of {width}", width)
    return lines


class _TerminalText(NamedTuple):
    """How words are written in a terminal, in ASCII only if `plain`."""

    plain: bool

    @property
    def frame(self) -> str:
        return "|" if self.plain else "│"

    def clusters(self, word: str) -> list[str]:
        """The clusters that are written for a word: a character with its marks, or a character of a code point."""
        clusters: list[str] = []
        before = ""
        for char in unicodedata.normalize("NFC", word):
            modifies = "\U0001f3fb" <= char <= "\U0001f3ff" or (
                is_variation_selector(char) and not is_variation_selector(before))
            if unicodedata.category(char) == "Zs":
                clusters.append("_" if self.plain else SPACE)
            elif clusters and modifies:
                pass  # terminals disagree on the width of a character with a skin tone or a variation selector
            elif not is_visible(char) or is_variation_selector(char):
                clusters += "?" if self.plain else code_point(char)
            elif cell_len(char):
                clusters.append(char if not self.plain or char.isascii() else "?")
            elif clusters:
                clusters[-1] += "" if self.plain else char
            else:
                clusters.append("?" if self.plain else CIRCLE + char)
            before = char
        return clusters or ["?" if self.plain else EMPTY]

    def truncate(self, clusters: Sequence[str], width: int) -> str:
        """A word truncated to a width, with an ellipsis."""
        if sum(map(cell_len, clusters)) <= width:
            return "".join(clusters)
        kept, used = [], 1
        for cluster in clusters:
            used += cell_len(cluster)
            if used > width:
                break
            kept.append(cluster)
        return "".join(kept) + self.ellipsis

    @property
    def ellipsis(self) -> str:
        return "~" if self.plain else ELLIPSIS


class _MapLayout(NamedTuple):
    """The widths of the parts of a map, in terminal columns."""

    label: int
    """The words of the rows."""
    cell: int
    gap: int
    """The space between two cells."""
    downward: bool
    """Whether the words of the columns are written from top to bottom."""


def _choose_layout(down: Sequence[Sequence[str]], across: Sequence[Sequence[str]], width: int) -> _MapLayout:
    """The widest layout that fits, or the narrowest one."""
    label = max(sum(map(cell_len, word)) for word in down)
    short = min(label, width // 4)
    widest = max(sum(map(cell_len, word)) for word in across)
    letter = max(cell_len(cluster) for word in across for cluster in word)  # a Chinese character takes two columns
    choices = [_MapLayout(label, max(2, widest), 1, False), _MapLayout(label, 2, 1, True),
               _MapLayout(label, letter, 2 - letter, True), _MapLayout(short, letter, 2 - letter, True),
               _MapLayout(label, letter, 0, True), _MapLayout(short, letter, 0, True)]
    for choice in choices:
        if choice.label + 2 + len(across) * (choice.cell + choice.gap) - choice.gap <= width:
            return choice
    return choices[-1]


def _column_labels(across: Sequence[Sequence[str]], layout: _MapLayout, text: _TerminalText) -> list[str]:
    """The words above the columns."""
    gap, margin = " " * layout.gap, " " * (layout.label + 1)
    if not layout.downward:
        return [(margin + gap.join(_pad("".join(word), layout.cell) for word in across)).rstrip()]
    words = [list(word) if len(word) <= MAX_HEIGHT else [*word[:MAX_HEIGHT - 1], text.ellipsis] for word in across]
    height = max(map(len, words))
    standing = [[" "] * (height - len(word)) + word for word in words]  # their last characters in one line
    return [(margin + gap.join(_pad(word[level], layout.cell) for word in standing)).rstrip()
            for level in range(height)]


class _ShadeScale(NamedTuple):
    """The mapping from weights to shades."""

    shades: str
    low: float
    """The weight of the first shade: 0, or the smallest weight if it is negative."""
    high: float
    finite: Sequence[float]
    """All finite weights."""
    others: int
    """The number of weights that are not finite."""

    @classmethod
    def of(cls, numbers: Sequence[Sequence[float]], shades: str) -> "_ShadeScale":
        weights = [weight for row in numbers for weight in row]
        finite = [weight for weight in weights if math.isfinite(weight)]
        return cls(shades, min([0.0, *finite]), max([0.0, *finite]), finite, len(weights) - len(finite))

    def shade(self, weight: float) -> str:
        if not math.isfinite(weight):
            return NOT_FINITE
        largest = max(-self.low, self.high)
        if not largest:
            return self.shades[0]
        low, high = self.low / largest, self.high / largest  # the difference of two huge numbers could overflow
        return self.shades[int((weight / largest - low) / (high - low) * (len(self.shades) - 1) + 0.5)]

    def hides_a_row(self, numbers: Sequence[Sequence[float]]) -> bool:
        """Whether all weights of a row that is not all zeros would have the first shade."""
        return self.low == 0 and any(max(row) > 0 and {self.shade(weight) for weight in row} == {self.shades[0]}
                                     for row in numbers if row and all(map(math.isfinite, row)))

    def lines(self, width: int, *, by_row: bool = False) -> list[str]:
        """The legend, in as many lines as needed; `by_row` if each row has shades of its own."""
        items = []
        if self.low < self.high:
            steps = [level / (len(self.shades) - 1) for level in range(len(self.shades))]
            items = [f'"{shade}" {100 * step:.0f}%' if by_row else
                     f'"{shade}" {self.low * (1 - step) + self.high * step:.2g}'
                     for shade, step in zip(self.shades, steps, strict=True)]
            items += ["of the largest weight of each row"] if by_row else []
            items.append(f"weights from {min(self.finite):.2g} to {max(self.finite):.2g}")
        elif self.finite:
            items.append("all weights are 0")
        if self.others:
            items.append(f'"{NOT_FINITE}" {self.others} not finite')
        lines = [""]
        for item in items:
            joined = f"{lines[-1]}   {item}" if lines[-1] else item
            if len(joined) > width and lines[-1]:
                lines.append(item)
            else:
                lines[-1] = joined
        return [part for line in lines for part in textwrap.wrap(line, width)]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _as_lists(weights: Sequence[Sequence[float]] | SupportsToList, rows: int, columns: int) -> list[list[float]]:
    """The weights as lists of floats, checked against the numbers of words."""
    expected = f"{rows} rows of {columns} numbers, one for each word"
    try:
        numbers = [[float(weight) for weight in _to_list(row)] for row in _to_list(weights)]
    except TypeError as error:
        raise checks.wrong("weights", expected, f"something else ({error})") from error
    lengths = {len(row) for row in numbers}
    if len(numbers) != rows or lengths - {columns}:
        found = " or ".join(map(str, sorted(lengths))) or "no"
        raise checks.wrong("weights", expected, f"{len(numbers)} rows of {found} numbers")
    return numbers


def _to_list(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values
