"""Rows that come and go: prompts enter a batch when there is room, leave it when they have finished, in any order.

A search says what becomes of the rows of its batch in one turn. Here is what is common to all of them: who is read
when, which rows of the model's state go on, and results in the order of the prompts. Without a `room` all prompts enter
at once. With one, those that need most room enter first, others wait; a place that has become free is filled again. The
state of the model has storage for the longest row in every place, so prompts run in shares: none needs less than half
of what another of its share does. It knows the contract of the models, and not how tokens are chosen.

Legend: B places, W hypotheses of each, R = B·W rows of the state, N states of a source, V vocabulary.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.blocks.packed import packed
from regard.decoding.brisk import brisk
from regard.decoding.reading import looked, read
from regard.decoding.request import Request
from regard.decoding.sources import Given, memory_of
from regard.mixer import Rows, Siblings
from regard.models.contract import Memory, Writer

REFILLED = 4
"""A batch is filled up again when one place in so many is free: to read few prompts at once takes as long as many."""


class Batch(Protocol):
    """What a search remembers of the rows in their places."""

    @property
    def tokens(self) -> Tensor:
        """(R,): the last token of each hypothesis."""

    def pick(self, places: Sequence[int]) -> Self:
        """Those in these places."""

    def joined(self, other: Self) -> Self:
        """These, and the others behind them."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Result = TypeVar("Result")


class Turn(NamedTuple, Generic[AnyBatch]):
    """What one turn makes of a batch."""

    batch: AnyBatch
    """All that were there, with one more token."""
    parents: Tensor | None
    """(B, W): which row of the state each hypothesis continues; None where each continues its own."""
    finished: list[int]
    """The places that need no further turn: those that have finished in this one."""


class Search(Protocol[AnyBatch, Result]):
    """How tokens are chosen."""

    @property
    def width(self) -> int:
        """How many hypotheses of each prompt are followed."""

    @property
    def watches(self) -> bool:
        """Whether it asks for the cross-attention weights."""

    def first(self, numbers: Sequence[int], present: Tensor | None) -> AnyBatch:
        """The batch before its first turn; (B, N): which states the memory has of each, where there is one."""

    def turn(self, batch: AnyBatch, logits: Tensor, cross: Tensor | None) -> Turn[AnyBatch]:
        """From logits (R, V), and the weights (R, layers, heads, N) where asked for."""

    def results(self, batch: AnyBatch) -> list[tuple[int, Result]]:
        """What those in these places, who have finished, have written, with their numbers."""


@dataclass(frozen=True)
class Share:
    """Prompts that use the same storage after each other."""

    numbers: list[int]
    places: int
    capacity: int
    """How many tokens a row may have."""


def shares(request: Request, width: int) -> Iterator[Share]:
    """All prompts, those that need most room first."""
    if request.room is None:
        yield Share([*request.numbers], len(request.numbers), request.capacity)
        return
    need = {number: len(request.prompts[request.prompt(number)]) + request.limit(number) for number in request.numbers}
    ordered = deque(sorted(request.numbers, key=lambda number: -need[number]))
    while ordered:
        capacity, numbers = need[ordered[0]], list[int]()
        while ordered and 2 * need[ordered[0]] >= capacity:
            numbers.append(ordered.popleft())
        yield Share(numbers, min(len(numbers), max(1, request.room // (width * capacity))), capacity)


def run(model: Writer, given: Given, request: Request, search: Search[AnyBatch, Result]) -> list[Result]:
    """The results of all prompts in their order."""
    found = dict[int, Result]()
    if request.prompts:
        with packed(model):
            model = model if search.watches else brisk(model)
            for share in shares(request, search.width):
                found |= Course(model, given, request, search, share).run()
    return [found[number] for number in range(len(found))]


@dataclass(frozen=True)
class Held(Generic[AnyBatch]):
    """A batch, and what the model has made of it."""

    batch: AnyBatch
    state: Any
    logits: Tensor
    cross: Tensor | None


@dataclass(frozen=True)
class Course(Generic[AnyBatch, Result]):
    """A search over a share."""

    model: Writer
    given: Given
    request: Request
    search: Search[AnyBatch, Result]
    share: Share

    def run(self) -> dict[int, Result]:
        """The results by their numbers."""
        waiting = deque(self.share.numbers)
        return self.run_from(*self.entered(waiting, self.share.places), waiting)

    def run_from(self, rows: "Held[AnyBatch]", read_by: list[int], waiting: deque[int]) -> dict[int, Result]:
        """The results of rows that have read so many tokens, none of which has finished, and of those that wait."""
        found, is_open = dict[int, Result](), [True] * len(read_by)
        while True:
            batch, parents, finished = self.search.turn(rows.batch, rows.logits, rows.cross)
            for place in finished:
                is_open[place] = False
            stay = [place for place, still in enumerate(is_open) if still]
            gone = [place for place, still in enumerate(is_open) if not still]
            free = self.share.places - len(stay)
            enter = bool(waiting) and (not stay or REFILLED * free >= self.share.places)
            # To take rows out copies what the state remembers of the others, so that those who have finished stay,
            # unread, until they are half of it; but not where the state is copied anyway, or has no room for them.
            full = any(read_by[place] >= self.share.capacity for place in gone)
            leave = bool(gone) and (parents is not None or enter or full or 2 * len(stay) <= len(is_open))
            if leave:
                found |= self.search.results(batch.pick(gone))
                batch, read_by, is_open = batch.pick(stay), [read_by[place] for place in stay], [True] * len(stay)
            if read_by:
                kept = self._kept(rows.state, parents, stay if leave else None)
                rows = self._stepped(batch, kept)
                read_by = [count + 1 for count in read_by]
            if enter:
                others, theirs = self.entered(waiting, free)
                rows = self.joined(rows, others) if read_by else others
                read_by, is_open = [*read_by, *theirs], [*is_open, *[True] * len(theirs)]
            if not read_by:
                return found

    def _kept(self, state: Any, parents: Tensor | None, stay: list[int] | None) -> Any:
        """The state of those that go on."""
        if parents is None and stay is None:
            return state
        families = None
        if parents is None:
            parents = torch.arange(len(state.positions), device=self.request.device).view(-1, self.search.width)
        if stay is not None and len(stay) < len(parents):
            families = torch.tensor(stay, dtype=torch.long, device=self.request.device)
            parents = parents[families]
        return state.pick(Siblings(parents.flatten(), self.search.width, self.search.width, families, spent=True))

    def _siblings(self, rows: Tensor, families: Tensor | None, before: int | None = None) -> Rows:
        """Rows of the state, where those of one prompt share its source."""
        width = self.search.width
        return rows if width == 1 else Siblings(rows, width, width if before is None else before, families)

    def _stepped(self, batch: AnyBatch, state: Any) -> "Held[AnyBatch]":
        logits_RnV, state, cross = self.model.step(state, batch.tokens.unsqueeze(-1))
        seen = looked(self.model, cross)[..., -1, :] if self.search.watches else None
        return Held(batch, state, logits_RnV[:, -1], seen)

    def entered(self, waiting: deque[int], places: int) -> "tuple[Held[AnyBatch], list[int]]":
        """The next prompts, read; and how many tokens each has."""
        numbers = self.next(waiting, places)
        unique = sorted({self.request.prompt(number) for number in numbers})  # several tries read one prompt once
        prompts, memory = [self.request.prompts[row] for row in unique], memory_of(self.given, unique)
        logits, state, cross = read(self.model, memory, prompts, self.share.capacity, self.request.device,
                                    self.search.watches)
        each = [unique.index(self.request.prompt(number)) for number in numbers for _ in range(self.search.width)]
        index = torch.tensor(each, device=self.request.device)
        if each != list(range(len(unique))):
            state = state.pick(self._siblings(index, index[::self.search.width], before=1))
            logits, cross = logits[index], None if cross is None else cross[index]
        present = None if memory is None else _present(memory)[index[::self.search.width]]
        batch = self.search.first(numbers, present)
        counts = [len(self.request.prompts[self.request.prompt(number)]) for number in numbers]
        return Held(batch, state, logits, cross), counts

    def next(self, waiting: deque[int], places: int) -> list[int]:
        """The numbers of those whose turn it is."""
        return [waiting.popleft() for _ in range(min(places, len(waiting)))]

    def joined(self, rows: "Held[AnyBatch]", others: "Held[AnyBatch]") -> "Held[AnyBatch]":
        """The rows, and others behind them."""
        mine, theirs, width = len(rows.logits), len(others.logits), self.search.width
        places = torch.arange(mine + theirs, device=self.request.device)
        families = places[:(mine + theirs) // width]
        # The state grows by rows that are picked twice, and replaced.
        grown = self._siblings(torch.where(places < mine, places, places % width),
                               torch.where(families < mine // width, families, 0))
        replaced = self._siblings(places[mine:], families[mine // width:])
        state = rows.state.pick(grown).put(replaced, others.state)
        cross = rows.cross
        if cross is not None and others.cross is not None:
            longest = max(cross.shape[-1], others.cross.shape[-1])
            cross = torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[-1]))
                               for part in (cross, others.cross)])
        return Held(rows.batch.joined(others.batch), state, torch.cat([rows.logits, others.logits]), cross)


def _present(memory: Memory) -> Tensor:
    """(B, N): which states are there."""
    places = torch.arange(memory.states.shape[1], device=memory.states.device).expand(memory.rows, -1)
    return places < (places.shape[1] if memory.lengths is None else memory.lengths.unsqueeze(-1))
