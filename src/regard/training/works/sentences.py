"""Files of texts, one a line, as far as something can be learned from them.

Empty lines are left out, and as the config says texts that are too long, or that were there before. What is left out is
counted by the reason, in the doctor's words. It does not know what is learned from the texts.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.data.doctor import seen
from regard.data.doctor.characters import is_blank
from regard.data.doctor.rules import FilterConfig
from regard.data.doctor.seen import Seen
from regard.data.sources.inputs import Input
from regard.data.sources.lines import lines
from regard.training.works.splitting import Hashes

Counting = Callable[[Iterable[Any]], Iterable[Any]]
"""Passes on what it is given, and may count it to show that something happens."""


@dataclass(frozen=True)
class Texts:
    """The lines of files, but for those that are left out."""

    inputs: tuple[Input, ...]
    filters: FilterConfig

    def __iter__(self) -> Iterator[str]:
        return self.kept(Counter(), iter)

    def kept(self, dropped: Counter[str], counted: Counting) -> Iterator[str]:
        """The texts; those that are left out are counted."""
        before = Seen()
        for text in counted(line for input in self.inputs for line in lines(input)):
            reason = self._reason(text, before)
            if reason is None:
                yield text
            else:
                dropped[reason] += 1

    def _reason(self, text: str, before: Seen) -> str | None:
        filters = self.filters
        if is_blank(text):  # there is nothing to learn from it, whatever is asked
            return "empty"
        if "too_long" in filters.drop and (len(text) > filters.longest_characters
                                           or len(text.split()) > filters.longest_words):
            return "too_long"
        if "duplicate" in filters.drop and not before.add(seen.number(text)):
            return "duplicate"
        return None


@dataclass(frozen=True)
class Found:
    """What was met in texts."""

    hashes: Hashes
    """Of each text that is kept."""
    characters: int
    distinct: frozenset[str]
    """The different characters."""
    longest: int
    """Characters of the longest text."""
    dropped: dict[str, int] = field(default_factory=dict)
    """How many texts are left out, by the reason."""

    @property
    def count(self) -> int:
        """How many texts are kept."""
        return len(self.hashes)


def look(texts: Texts, counted: Counting) -> Found:
    """Read all texts once."""
    dropped, hashes, distinct, characters, longest = Counter[str](), array("Q"), set[str](), 0, 0
    for text in texts.kept(dropped, counted):
        hashes.append(seen.number(text))
        distinct.update(text)
        characters, longest = characters + len(text), max(longest, len(text))
    return Found(np.frombuffer(hashes, np.uint64) if hashes else np.zeros(0, np.uint64), characters,
                 frozenset(distinct), longest, dict(dropped))
