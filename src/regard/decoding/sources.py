"""Sources that are read when their turn comes.

A search takes a memory, in which all sources are read already; or this, and then reads a source only when there is
room for it. It knows neither models nor searches: how sources are read is for the caller to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.models.contract import Memory


@dataclass(frozen=True)
class Sources:
    """As many sources as there are prompts, not read yet."""

    rows: int
    encode: Callable[[list[int]], Memory]
    """The memory of some of them, by their numbers from 0."""


Given = Memory | Sources | None
"""What a search is given of the sources; None for a language model."""


def memory_of(given: Given, numbers: Sequence[int]) -> Memory | None:
    """What is remembered of the sources with these numbers."""
    if isinstance(given, Sources):
        return given.encode(list(numbers))
    if given is None or list(numbers) == list(range(given.rows)):
        return given
    return given.pick(list(numbers))
