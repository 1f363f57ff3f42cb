"""What writing back needs of a format: the file as pieces, of which only the slots, where targets stand, may change.

All bytes of a file are in its pieces, in order. So what is not a slot is written as it was read. This file knows no
format.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regard.data.pair import Where

LeftOut = Callable[[Where, str], None]
"""Told of everything that a file has and a reader does not give: where it stands, and why."""


@dataclass(frozen=True)
class Slot:
    """The place of one target."""

    source: str
    target: str
    """What stands there now; empty where nothing does."""
    where: Where
    """Of the source."""
    raw: bytes
    """The place as it stands in the file."""
    write: Callable[[str], bytes]
    """How the file says another target. A DataError where the format has no way to say it."""


Pieces = Iterator[bytes | Slot]
