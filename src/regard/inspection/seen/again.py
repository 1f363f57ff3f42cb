"""Texts that a task has read or written, and that are read once more, alone, when somebody asks where it looked.

A task tells its witnesses what it has done: a `Reading`, which knows how to be read again in one pass, without a search
(for what was written: teacher-forced, all tokens at once). So watching a task costs nothing while it works, and what is
seen is one text without padding. It is read with the model as it is then. It does not know tasks: they know this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from regard.inspection.seen import rows as seen_rows
from regard.inspection.seen.keeping import Keeping
from regard.inspection.seen.seen import NotSeenError
from regard.inspection.seen.sides import About
from regard.inspection.trace.parts import AnyLook
from regard.inspection.watching.names import SELF, Place, places
from regard.inspection.watching.taps import listening


@dataclass(frozen=True)
class Reading:
    """One text, or one text and what was written of it."""

    again: Callable[[], object]
    """Let the model read it once more, alone, in one pass."""
    about: About = field(default_factory=About)


Witness = Callable[[Reading], None]


class Witnesses(list[Witness]):
    """Those whom a task tells what it does. A copy of the task has none yet."""

    def __reduce__(self) -> "tuple[type[Witnesses], tuple[()]]":
        return Witnesses, ()


class Witnessed(Protocol):
    """A task: something that has a model, and tells its witnesses what it does with it."""

    model: nn.Module
    witnesses: Witnesses


class Readings:
    """The looks of readings, one call for each. What was read again is kept as long as all of it fits the limit."""

    def __init__(self, model: nn.Module, limit: int) -> None:
        self.model, self.limit = model, limit
        self.readings: list[Reading] = []
        self._found = {place.name: place for place in places(model)}
        self._kept: dict[int, Keeping] = {}

    @property
    def places(self) -> Mapping[str, Place]:
        """The attentions of the model."""
        return self._found

    def calls(self) -> int:
        """How many readings there are."""
        return len(self.readings)

    def ran(self, name: str) -> int:
        """Every attention runs for every reading."""
        return len(self.readings)

    def look(self, name: str, call: int) -> AnyLook:
        """What it looks at in this reading, (heads, queries, keys), read again if need be."""
        keeping = self._kept.pop(call, None) or self._read(self.readings[call])
        self._kept[call] = keeping  # the last one is the one that was asked for last
        while len(self._kept) > 1 and sum(one.held for one in self._kept.values()) > self.limit:
            del self._kept[next(iter(self._kept))]
        look = keeping.look(name, -1) if name in keeping.runs else None
        if look is None:
            raise NotSeenError(f'"{name}" was not kept: one reading of this text takes more than the limit of '
                               f"{self.limit:,} bytes. Give a larger limit to watch.")
        return seen_rows.row(look, 0, own=self._found[name].kind == SELF)

    def about(self, call: int) -> About:
        """What the task said of it."""
        return self.readings[call].about

    def why_nothing(self) -> str:
        """Why nothing was seen."""
        if not self._found:
            return "Nothing was seen: this model has no attention."
        return "Nothing was seen: the task has read no text inside the `with` block."

    def _read(self, reading: Reading) -> Keeping:
        keeping = Keeping(self.limit)
        with listening(self._found.values(), keeping), torch.inference_mode():
            reading.again()
        return keeping
