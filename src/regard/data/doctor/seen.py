"""Which values were there before, in little memory: a table of 64-bit numbers, without the values themselves.

A table takes 12 to 24 bytes a value (a Python set of the same numbers about 70), and half as much again while it grows;
it grows with the number of values. Two different values are taken for one if their numbers agree: the odds that this
happens anywhere among n values are about n² / 2^65, one in 37 million for a million, one in 15,000 for fifty million.
"""

from array import array
from hashlib import blake2b
from struct import Struct

LAST = 2**64 - 1
_UNPACK = Struct("<Q").unpack
_SMALLEST = 1024  # places, a power of two


def number(source: str, target: str = "") -> int:
    """64 bits that stand for two texts, or one; the same in every process and on every machine, and never 0."""
    # The length of the first tells ("a", "b") from ("ab", ""), whatever the texts hold.
    data = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
    return _UNPACK(blake2b(data, digest_size=8).digest())[0] or 1


class Seen:
    """A set of numbers from 1 to 2^64 - 1 that can only grow."""

    def __init__(self) -> None:
        self._places = array("Q", bytes(8 * _SMALLEST))  # 0 is a free place
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Add a number; whether it is new."""
        places = self._places
        last = len(places) - 1
        place = value & last
        while there := places[place]:  # the first free place from its own on
            if there == value:
                return False
            place = (place + 1) & last
        places[place] = value
        self._count += 1
        if 3 * self._count > 2 * last:
            self._grow()
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(16 * len(self._places)))
        last = len(larger) - 1
        for value in self._places:
            if value:
                place = value & last
                while larger[place]:
                    place = (place + 1) & last
                larger[place] = value
        self._places = larger
