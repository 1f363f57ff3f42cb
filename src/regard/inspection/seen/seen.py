"""What was seen: the looks of a model that was watched, by the names of its attentions.

    seen.names()                       "encoder.0.self", ...
    seen["decoder.2.cross"]            the look of its last run: weights(), entropy(), block_map(64), rows(3), ...
    seen.calls[0]["decoder.2.cross"]   that of its first, where it ran more than once
    seen.row(1)["decoder.2.cross"]     the second sequence of a batch alone, without padding
    seen.trace(), seen.save(path)      all of it for one sequence, in one file

A look is computed when it is asked something. What was seen stays readable when the watch is over. Where the looks come
from is the business of a `Source`: the runs of layers, or texts that are read again.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from regard import checks
from regard.inspection.seen import rows as seen_rows
from regard.inspection.seen.sides import About, AnySide, traced
from regard.inspection.trace.parts import AnyLook, shape
from regard.inspection.trace.trace import Trace
from regard.inspection.watching.names import SELF, Place


class NotSeenError(KeyError):
    """There is no such look; the message says why."""

    def __str__(self) -> str:
        return str(self.args[0])


class Source(Protocol):
    """Where looks come from. Calls have numbers, from 0."""

    @property
    def places(self) -> Mapping[str, Place]:
        """All attentions that may be seen, in the order in which the model computes them."""

    def calls(self) -> int:
        """How many calls there were."""

    def ran(self, name: str) -> int:
        """In how many of the first calls this attention ran."""

    def look(self, name: str, call: int) -> AnyLook:
        """What it looked at in this call; a `NotSeenError` where that was not kept."""

    def about(self, call: int) -> About:
        """What is known of the sequences of this call."""

    def why_nothing(self) -> str:
        """Why nothing was seen, where that is so."""


class Call(Mapping[str, AnyLook]):
    """The looks of one run of each attention, or of one text, by name."""

    def __init__(self, source: Source, numbers: Mapping[str, int], number: int) -> None:
        self._source, self._numbers, self._number = source, numbers, number

    def __getitem__(self, name: str) -> AnyLook:
        if name not in self._numbers:
            raise NotSeenError(_unknown(name, self._numbers, self._source))
        return self._source.look(name, self._numbers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def row(self, index: int) -> dict[str, AnyLook]:
        """The looks of one sequence of the batch, (heads, queries, keys) each, without padding."""
        looks, places = dict(self), self._source.places
        own = {name: places[name].kind == SELF or (places[name].kind is None and len({*shape(look)[-2:]}) == 1)
               for name, look in looks.items()}
        # Queries have no mask of their own: where the same part also looks at itself, that tells which are there.
        present = {(places[name].part, shape(look)[-2]): seen_rows.there(look, index)
                   for name, look in looks.items() if own[name]}
        return {name: seen_rows.row(look, index, own=own[name],
                                    rows=None if own[name] else present.get((places[name].part, shape(look)[-2])))
                for name, look in looks.items()}

    def trace(self, row: int = 0, *, title: str | None = None, model: str = "", **tokens: AnySide) -> Trace:
        """All of it for one sequence, as one trace.

        Args:
            row: which sequence of the batch.
            title: shown above pictures; the text, where it is known.
            model: a name, for people.
            tokens: those of a side ("source", "target", "text"), where they are not known, as those of ids are not: a
                list of strings, or a `Side`. Without them tokens are called by their numbers.
        """
        if not self._numbers:
            raise NotSeenError(self._source.why_nothing())
        about = self._source.about(self._number)
        return traced(self.row(row), self._source.places, about, title, model, tokens)

    def save(self, path: str | os.PathLike[str], row: int = 0, **options: Any) -> None:
        """Write the trace to a file that ends in .safetensors; see `trace` for the options."""
        self.trace(row, **options).save(path)


class Calls(Sequence[Call]):
    """The calls, the first first."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.calls()

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...
    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        """One call, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"There were {len(self)} calls, and number {index} is none of them. "
                             f"{'' if len(self) else self._source.why_nothing()}".rstrip())
        number = index % len(self)
        ran = [name for name in self._source.places if self._source.ran(name) > number]
        return Call(self._source, dict.fromkeys(ran, number), number)


class Seen:
    """All that a watch has seen. `seen[name]` is what an attention looked at when it ran last."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.calls = Calls(source)

    def names(self) -> list[str]:
        """The attentions that were seen, in the order in which the model has them."""
        return [name for name in self._source.places if self._source.ran(name)]

    @property
    def last(self) -> Call:
        """The last run of every attention."""
        return Call(self._source, {name: self._source.ran(name) - 1 for name in self.names()}, len(self.calls) - 1)

    def __getitem__(self, name: str) -> AnyLook:
        return self.last[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def row(self, index: int) -> dict[str, AnyLook]:
        """The last looks of one sequence of the batch, (heads, queries, keys) each, without padding."""
        return self.last.row(index)

    def trace(self, row: int = 0, **options: Any) -> Trace:
        """The last looks of one sequence, as one trace; see `Call.trace` for the options."""
        return self.last.trace(row, **options)

    def save(self, path: str | os.PathLike[str], row: int = 0, **options: Any) -> None:
        """Write that trace to a file that ends in .safetensors."""
        self.trace(row, **options).save(path)

    def __repr__(self) -> str:
        names = self.names()
        shown = ", ".join(names[:4]) + (f", … ({len(names)})" if len(names) > 4 else "")
        return f"Seen({len(self.calls)} calls of {shown})" if names else "Seen(nothing)"


def _unknown(name: str, known: Mapping[str, int], source: Source) -> str:
    if not known:
        return source.why_nothing()
    if name in source.places:
        return f'"{name}" did not run in this call.'
    near = checks.nearest(name, known)
    return f'There is no attention "{name}". {near or "There are: " + ", ".join(known) + "."}'
