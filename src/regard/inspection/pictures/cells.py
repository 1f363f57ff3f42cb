"""The numbers of a picture: checked, small enough to be seen, and with what must be said about them.

    of_weights(weights, most=2000)      the weights themselves, or the means of blocks of them
    of_look(look, most=2000)            the same of what is computed when it is asked for: the matrix is never whole
    Scale.of(values)                    from which number to which, in which colours
    remarks([cells, ...])               "rows sum to 0.6 … 2.3, not to 1"

Nothing is normalised, clipped or left out: a picture shows the numbers that it is given, or says what it shows instead.
It needs no torch and no matplotlib, and does not know what looks at what.

Legend: ... leading dimensions, heads last; n, N rows and columns of the weights; r, c of the cells that are drawn.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard import checks

Floats = NDArray[np.float64]
CLOSE = 0.01
"""How far from 1 the sum of a row may be: sums of numbers in bfloat16 are no closer."""
GREY, DIVERGING = "Greys", "PuOr"
"""White is 0 in both. Both can be told apart by people who see no red, no green or no blue, and in black and white."""


class Cells(NamedTuple):
    """What is drawn of weights (..., n, N)."""

    values: Floats
    """(..., r, c): the weights, or the means of blocks of `size` × `size` of them."""
    sums: Floats
    """(..., r): what the rows sum to; of a block of rows, on average."""
    rows: int
    columns: int
    size: int = 1

    def one(self, values: Floats, sums: Floats) -> "Cells":
        """The same cells of one head, or of a mean over heads."""
        return self._replace(values=values, sums=sums)


class Scale(NamedTuple):
    """Which colours stand for which numbers."""

    low: float
    high: float
    colours: str

    @classmethod
    def of(cls, values: Floats, largest: float | None = None) -> "Scale":
        """From 0 to the largest number, or `largest`; where some are negative, from minus to plus as much."""
        finite = values[np.isfinite(values)]
        high = float(np.abs(finite).max(initial=0.0)) if largest is None else largest
        if not (math.isfinite(high) and high >= 0.0):
            raise checks.wrong("largest", "a positive number", largest)
        return cls(-high if (finite < 0).any() else 0.0, high, DIVERGING if (finite < 0).any() else GREY)


def floats(argument: str, values: Any, dimensions: int, shape: str) -> Floats:
    """A tensor, an array or lists as an array of so many dimensions."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # NumPy has no bfloat16
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise checks.wrong(argument, f"numbers of shape {shape}", f"something else ({error})") from error
    if array.ndim != dimensions:
        raise checks.wrong(argument, f"numbers of shape {shape}", f"of shape {checks.shape(array)}")
    return array


def of_weights(weights: Floats, most: int) -> Cells:
    """Weights (..., n, N) as at most `most` × `most` cells."""
    n, N = weights.shape[-2:]
    size = block(n, N, most)
    if size == 1:
        return Cells(weights, _sums(weights), n, N)
    means = weights
    for axis, count in ((-1, N), (-2, n)):
        starts = np.arange(0, count, size)
        heights = np.minimum(size, count - starts)
        with np.errstate(invalid="ignore", over="ignore"):  # what is no finite number makes a mean that is none
            means = np.add.reduceat(means, starts, axis=axis) / (heights if axis == -1 else heights[:, None])
    return _of_means(means, n, N, size)


def of_look(look: Any, most: int) -> Cells:
    """What a `Look` or a `Matrix` answers, (heads, n, N), as at most `most` × `most` cells."""
    n, N = size_of(look)
    size = block(n, N, most)
    if size == 1:
        return of_weights(floats("weights", look.weights(), 3, "(heads, rows, columns)"), most)
    return _of_means(floats("weights", look.block_map(size), 3, "(heads, rows, columns)"), n, N, size)


def size_of(look: Any) -> tuple[int, int]:
    """Rows and columns of the weights of a look, which are not computed for it."""
    from regard.inspection.trace.parts import shape

    return shape(look)[-2], shape(look)[-1]


def block(rows: int, columns: int, most: int) -> int:
    """The side of the blocks of which there are at most `most` in each direction."""
    return max(1, math.ceil(max(rows, columns) / most))


def remarks(drawn: Iterable[Cells]) -> list[str]:
    """What somebody who looks at these cells must know."""
    drawn = list(drawn)
    sizes = {cells.size for cells in drawn} or {1}
    span = f"{'up to ' * (len(sizes) > 1)}{max(sizes)} × {max(sizes)}"
    said = [f"each cell is the mean of {span} weights"] if max(sizes) > 1 else []
    sums = np.concatenate([cells.sums.ravel() for cells in drawn] or [np.zeros(0)])
    values = np.concatenate([cells.values.ravel() for cells in drawn] or [np.zeros(0)])
    known = sums[np.isfinite(sums)]
    looking = known[np.abs(known) > 0]
    if len(looking) and np.abs(looking - 1).max() > CLOSE:
        said.append(_sums_said(looking.min(), looking.max()))
    if len(values) and len(known) and not len(looking) and not (values[np.isfinite(values)] != 0).any():
        said.append("all weights are 0")
    elif empty := sum(int((cells.sums == 0).sum()) for cells in drawn if cells.size == 1):
        said.append(f"{empty} of {len(sums)} rows sum to 0")
    if negative := int((values < 0).sum()):
        said.append(f"{negative} of {len(values)} cells are negative")
    if unknown := len(values) - int(np.isfinite(values).sum()):
        said.append(f"{unknown} of {len(values)} cells are no finite numbers: pink")
    return said


def number(value: float) -> str:
    """A number in three digits."""
    return f"{value:.3g}"


def _sums_said(low: float, high: float) -> str:
    if low > 0 and high <= 1 + CLOSE:
        return f"rows sum to less than 1, down to {number(low)}"
    if low >= 1 - CLOSE:
        return f"rows sum to more than 1, up to {number(high)}"
    span = number(low) if number(low) == number(high) else f"{number(low)} … {number(high)}"
    return f"rows sum to {span}, not to 1"


def _of_means(means: Floats, rows: int, columns: int, size: int) -> Cells:
    starts = np.arange(0, columns, size)
    return Cells(means, _sums(means, np.minimum(size, columns - starts)), rows, columns, size)


def _sums(values: Floats, widths: Any = 1) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((values * widths).sum(axis=-1))
