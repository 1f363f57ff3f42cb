"""Windows of attention weights at any scale, without the matrix: what a map shows of its tiles.

    maps.window(attention, head, Window(top=0, left=0, rows=256, columns=256), size=1)      the weights themselves
    maps.window(attention, head, Window(0, 0, 16384, 16384), size=64)                       means of 64 × 64 weights

Rows are computed in slices and given up again; what is kept is the answer. Means are made for whole stripes of the
matrix, because a row is normalised over all its keys: the tiles beside each other then cost one computation. A few
stripes and overviews are kept, the longest unused is given up first.

It knows attentions and numbers. It does not know how they are drawn, nor who asks.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.inspection.page.heads import rows_of, single
from regard.inspection.trace.parts import Attention

HELD = 1 << 22
"""Weights that are computed at once."""
LARGEST = 1 << 20
"""Numbers of an answer."""
STRIPE = 64
"""Rows of blocks that are computed together."""
KEPT = 64 << 20
"""Bytes of what is remembered."""
FINE = 1 << 18
"""Numbers of a map that is made whole."""


class Window(NamedTuple):
    """A part of a matrix: where it begins, and how many tokens it has."""

    top: int
    left: int
    rows: int
    columns: int


class Maps:
    """Windows of attentions. Several threads may ask; one is answered at a time."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self._found: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock, self._closed = threading.Lock(), False

    def close(self) -> None:
        """Wait for what is being computed, and compute nothing more: a process must not end in the middle of it."""
        with self._lock:
            self._closed = True

    @torch.no_grad()
    def window(self, attention: Attention, head: int, window: Window, size: int = 1) -> Tensor:
        """The means of blocks of `size` × `size` weights of a window, (rows of blocks, columns of blocks), float32.

        The window begins where a block begins, and is cut where the matrix ends. The last blocks may be smaller.
        """
        window = _checked(attention, head, window, size)
        with self._lock:
            if self._closed:
                raise ValueError("The server is ending.")
            if size == 1:
                return _exact(attention, head, window)
            down, across = (-(-count // size) for count in (attention.rows, attention.columns))
            top, left = window.top // size, window.left // size
            rows, columns = -(-window.rows // size), -(-window.columns // size)
            if down * across <= FINE:
                return self._whole(attention, head, size)[top:top + rows, left:left + columns]
            first, last = top // STRIPE, -(-(top + rows) // STRIPE)
            stripes = torch.cat([self._stripe(attention, head, size, number) for number in range(first, last)])
            return stripes[top - first * STRIPE:top - first * STRIPE + rows, left:left + columns]

    def _whole(self, attention: Attention, head: int, size: int) -> Tensor:
        """The map of one head: of the finest that is made whole, all coarser ones are made."""
        finest = size
        while finest % 2 == 0 and -(-attention.rows // (finest // 2)) * -(-attention.columns // (finest // 2)) <= FINE:
            finest //= 2
        if finest == 1:  # the weights themselves are nobody's overview
            finest = size
        fine = self._remembered((attention, head, finest), lambda: overview(attention, head, finest))
        return fine if finest == size else _coarser(fine, attention, finest, size)

    def _stripe(self, attention: Attention, head: int, size: int, number: int) -> Tensor:
        first = number * STRIPE * size
        last = min(attention.rows, first + STRIPE * size)
        return self._remembered((attention, head, size, number),
                                lambda: _means(attention, head, first, last, size))

    def _remembered(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        found = self._found.pop(key, None)
        if found is None:
            found = make()
        self._found[key] = found
        while len(self._found) > 1 and sum(one.nbytes for one in self._found.values()) > self.kept:
            self._found.popitem(last=False)
        return found


@torch.no_grad()
def overview(attention: Attention, head: int, size: int) -> Tensor:
    """The means of all blocks of one head, (rows of blocks, columns of blocks), float32."""
    alone = single(attention.look, head)
    if alone is None:
        return _means(attention, head, 0, attention.rows, size)
    return alone.block_map(size)[0].float().cpu()


def overview_size(attention: Attention, most: int) -> int:
    """The smallest power of two whose map of blocks is at most `most` blocks high and wide."""
    longest = max(attention.rows, attention.columns)
    return 1 << max(0, math.ceil(math.log2(longest / most)) if longest > most else 0)


def _coarser(fine: Tensor, attention: Attention, finest: int, size: int) -> Tensor:
    """Means of larger blocks from means of smaller ones, each with as many weights as it has."""
    counts = _counts(attention.rows, attention.columns, finest)
    sums, times = fine.double() * counts, size // finest
    for dim in (0, 1):
        blocks = torch.arange(sums.shape[dim]) // times
        shape = [-(-part // times) if place == dim else part for place, part in enumerate(sums.shape)]
        sums = sums.new_zeros(shape).index_add_(dim, blocks, sums)
    return (sums / _counts(attention.rows, attention.columns, size)).float()


def _counts(rows: int, columns: int, size: int) -> Tensor:
    """How many weights each block has; those at the ends may be smaller."""
    heights, widths = ((count - torch.arange(0, count, size)).clamp(max=size) for count in (rows, columns))
    return heights.unsqueeze(-1) * widths


def _exact(attention: Attention, head: int, window: Window) -> Tensor:
    rows = rows_of(attention.look, head)
    slices = []
    for indices in _slices(window.top, window.top + window.rows, attention.columns):
        part = rows(indices)[:, window.left:window.left + window.columns]
        slices.append(part.to(device="cpu", dtype=torch.float32))
    return torch.cat(slices)


def _means(attention: Attention, head: int, first: int, last: int, size: int) -> Tensor:
    """Means of blocks of the rows from `first`, where a block begins, to `last`."""
    rows, across = rows_of(attention.look, head), -(-attention.columns // size)
    sums = torch.zeros(-(-(last - first) // size), across, dtype=torch.float64)
    block_of_column = torch.arange(attention.columns) // size
    for indices in _slices(first, last, attention.columns):
        weights = rows(indices).to(device="cpu", dtype=torch.float32)
        part = torch.zeros(len(indices), across).index_add_(1, block_of_column, weights)
        sums.index_add_(0, (torch.tensor(indices) - first) // size, part.double())
    return (sums / _counts(last - first, attention.columns, size)).float()


def _slices(first: int, last: int, columns: int) -> Iterator[list[int]]:
    step = max(1, HELD // max(1, columns))
    for start in range(first, last, step):
        yield list(range(start, min(last, start + step)))


def _checked(attention: Attention, head: int, window: Window, size: int) -> Window:
    """The window, cut to the matrix."""
    if not 0 <= head < attention.heads:
        raise checks.wrong("head", f"one of the {attention.heads} heads, from 0", head)
    if size < 1:
        raise checks.wrong("size", "at least 1", size)
    for name, start, count in (("top", window.top, attention.rows), ("left", window.left, attention.columns)):
        if not 0 <= start < count:
            raise checks.wrong(name, f"at least 0 and below {count}", start)
        if start % size:
            raise checks.wrong(name, f"where a block of {size} begins", start)
    for name, count in (("rows", window.rows), ("columns", window.columns)):
        if count < 1:
            raise checks.wrong(name, "at least 1", count)
    rows = min(window.rows, attention.rows - window.top)
    columns = min(window.columns, attention.columns - window.left)
    if -(-rows // size) * -(-columns // size) > LARGEST:
        raise checks.wrong("window", f"of at most {LARGEST:,} blocks", f"{rows:,} × {columns:,} tokens by {size}",
                           "Ask for less, or for larger blocks.")
    return Window(window.top, window.left, rows, columns)
