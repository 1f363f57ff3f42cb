"""Chance without state: numbers and orders that follow from a key alone, the same on every machine.

    key(seed, epoch, 3)              one 64-bit key from several whole numbers
    Order(count, key)(places)        a shuffled range(count), at any places, without making the others
    uniform(key, numbers)            a number in [0, 1) for each
    below(limit, key, numbers)       a whole number in [0, limit) for each

An order is a Feistel network (Luby and Rackoff 1988) over a rectangle of rows × columns cells that is hardly larger
than `count`: each round moves one coordinate by an amount that follows from the other, which can be undone, so that no
two places meet. A place that lands outside range(count) is sent through again until it is inside (Black and Rogaway
2002, cycle walking); fewer than one in √count does. The amounts come from a 64-bit mixer (the finaliser of SplitMix64,
Steele et al. 2014). All of it is arithmetic of unsigned 64-bit numbers, which wraps around.

It knows no data. It is not for secrets.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard import checks

Words = NDArray[np.uint64]

ROUNDS = 8
"""Pairs of moves, one of each coordinate."""
_STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL = 2**64 - 1


def key(*parts: int) -> int:
    """A 64-bit key from whole numbers from 0; another number, or another order of them, is another key."""
    word = 0
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | np.integer) or not 0 <= part <= _ALL:
            raise checks.wrong("parts", "whole numbers from 0 to 2**64 - 1", repr(part))
        word = _mix(_mix((word + _STEP) & _ALL) ^ int(part))
    return word


def words(key: int, numbers: ArrayLike) -> Words:
    """64 random bits for each number, of the shape of `numbers`."""
    array = np.asarray(numbers).astype(np.uint64)
    return _mixed(_mixed(array.reshape(-1) + np.uint64(_STEP)) ^ np.uint64(key)).reshape(array.shape)


def uniform(key: int, numbers: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) for each number."""
    return (words(key, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(limit: int, key: int, numbers: ArrayLike) -> NDArray[np.int64]:
    """A whole number in [0, limit) for each number."""
    return (words(key, numbers) % np.uint64(limit)).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The numbers from 0 to count - 1 in an order that follows from the key."""

    count: int
    key: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= 2**48:
            raise checks.wrong("count", "from 0 to 2**48", self.count)

    def __call__(self, places: ArrayLike) -> NDArray[np.int64]:
        """What stands at these places, each from 0 to count - 1."""
        array = np.asarray(places, dtype=np.int64)
        found = array.reshape(-1).astype(np.uint64)
        if found.size and int(found.max()) >= self.count:  # below 0 is far above, as an unsigned number
            raise checks.wrong("places", f"from 0 to {self.count - 1}", f"{array.min()} to {array.max()}")
        outside = np.arange(found.size)
        while outside.size:
            found[outside] = self._moved(found[outside])
            outside = outside[found[outside] >= np.uint64(self.count)]
        return found.astype(np.int64).reshape(array.shape)

    def _moved(self, cells: Words) -> Words:
        """Where a network sends each cell of the rectangle: a shuffling of all of them."""
        columns = isqrt(self.count - 1) + 1
        rows = -(-self.count // columns)
        row, column = cells // np.uint64(columns), cells % np.uint64(columns)
        for turn in range(ROUNDS):
            row = (row + words(key(self.key, turn, 0), column) % np.uint64(rows)) % np.uint64(rows)
            column = (column + words(key(self.key, turn, 1), row) % np.uint64(columns)) % np.uint64(columns)
        return row * np.uint64(columns) + column


def _mix(word: int) -> int:
    """The mixer, on a Python number."""
    word = ((word ^ (word >> 30)) * _FIRST) & _ALL
    word = ((word ^ (word >> 27)) * _SECOND) & _ALL
    return word ^ (word >> 31)


def _mixed(array: Words) -> Words:
    """The mixer, on an array of at least one dimension: NumPy warns when a single number wraps around."""
    array = (array ^ (array >> np.uint64(30))) * np.uint64(_FIRST)
    array = (array ^ (array >> np.uint64(27))) * np.uint64(_SECOND)
    return array ^ (array >> np.uint64(31))
