"""Continuous batching: prompts enter a batch when there is room and leave it when they finish, in any order.

A search says what becomes of the rows of its batch in one step. The scheduler does what all searches share: prefill
of the prompts, moving the rows of the model's state, and returning results in the order of the prompts. Without a token
budget all prompts enter at once. With one, prompts that need the most room enter first and the others wait; a free
slot is filled again. The model's state has storage for the longest row in every slot, so prompts run in buckets: no
prompt of a bucket needs less than half of what another one does. The scheduler knows the contract of the models, and
not how tokens are chosen.

Legend: B slots, W hypotheses of each, R = B·W rows of the state, L layers, H heads, N tokens of the longest prompt or
states of a source, n tokens of a chunk, S states of the memory, V vocabulary.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard import checks
from regard.decoding.decoder_step import packed_decoder
from regard.decoding.request import SearchRequest, SourceInput, select_memory
from regard.kernels.packed_linear import packed_linear_layers
from regard.mixer import RowGroups, Rows
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens

PREFILL_CHUNK = 64
"""Tokens of each row that are read at once."""


class Prefilled(NamedTuple):
    """What there is after the last token of each row."""

    logits: Tensor
    """(B, V)"""
    state: Any
    cross: Tensor | None
    """(B, L, H, S), where asked for."""


def prefill(model: GenerativeModel, memory: Memory | None, prompts: Sequence[Sequence[int]], capacity: int, device: torch.device,
         cross: bool = False) -> Prefilled:
    """Read the prompts, none of which is empty, into storage for `capacity` tokens a row."""
    ids_BN = Tokens.of(prompts).ids.to(device)
    lengths = [len(row) for row in prompts]
    lengths_B, rows_B = torch.tensor(lengths, device=device), torch.arange(len(lengths), device=device)
    state = model.start(memory, rows=len(lengths), capacity=capacity, cross=cross)
    found = list[Tensor]()
    for first in range(0, max(lengths), PREFILL_CHUNK):
        chunk_Bn = ids_BN[:, first:first + PREFILL_CHUNK]
        here_B = (lengths_B - first).clamp(min=0, max=chunk_Bn.shape[1])
        if min(lengths) >= first + chunk_Bn.shape[1]:
            step = model.step(state, chunk_Bn)
        else:
            step = model.step(state, chunk_Bn, lengths=here_B)
        state, last_B = step.state, (here_B - 1).clamp(min=0)
        parts = [step.logits[rows_B, last_B]]
        if cross:
            parts.append(require_cross(model, step.cross)[rows_B, ..., last_B, :])
        found = [_where(here_B > 0, new, old) for new, old in zip(parts, found or parts, strict=True)]
    return Prefilled(found[0], state, found[1] if cross else None)


def require_cross(model: GenerativeModel, cross: Tensor | None) -> Tensor:
    """The weights of a step in which they were asked for; a ValueError where the model has none."""
    if cross is None:
        raise checks.wrong("model", "one that attends to its memory", f"a {type(model).__name__} that does not")
    return cross


def _where(condition_B: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(condition_B.view(-1, *[1] * (new.dim() - 1)), new, old)


# ---- queue: Rows that come and go: prompts enter a batch when there is room, leave it when they have finished, in any order.
#
# A search says what becomes of the rows of its batch in one turn. Here is what is common to all of them: who is read
# when, which rows of the model's state go on, and results in the order of the prompts. Without a `room` all prompts enter
# at once. With one, those that need most room enter first, others wait; a place that has become free is filled again. The
# state of the model has storage for the longest row in every place, so prompts run in shares: none needs less than half
# of what another of its share does. It knows the contract of the models, and not how tokens are chosen.
#
# Legend: B places, W hypotheses of each, R = B·W rows of the state, N states of a source, V vocabulary.

REFILL_SHARE = 4
"""A batch is filled up again when one place in so many is free: to read few prompts at once takes as long as many."""


class SearchBatch(Protocol):
    """What a search remembers of the rows in their places."""

    @property
    def tokens(self) -> Tensor:
        """(R,): the last token of each hypothesis."""

    def pick(self, places: Sequence[int]) -> Self:
        """Those in these places."""

    def joined(self, other: Self) -> Self:
        """These, and the others behind them."""


AnySearchBatch = TypeVar("AnySearchBatch", bound=SearchBatch)
SearchResult = TypeVar("SearchResult")


class SearchStep(NamedTuple, Generic[AnySearchBatch]):
    """What one turn makes of a batch."""

    batch: AnySearchBatch
    """All that were there, with one more token."""
    parents: Tensor | None
    """(B, W): which row of the state each hypothesis continues; None where each continues its own."""
    finished: list[int]
    """The places that need no further turn: those that have finished in this one."""


class SearchStrategy(Protocol[AnySearchBatch, SearchResult]):
    """How tokens are chosen."""

    @property
    def width(self) -> int:
        """How many hypotheses of each prompt are followed."""

    @property
    def watches(self) -> bool:
        """Whether it asks for the cross-attention weights."""

    def first(self, numbers: Sequence[int], present: Tensor | None) -> AnySearchBatch:
        """The batch before its first turn; (B, N): which states the memory has of each, where there is one."""

    def turn(self, batch: AnySearchBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[AnySearchBatch]:
        """From logits (R, V), and the weights (R, layers, heads, N) where asked for."""

    def results(self, batch: AnySearchBatch) -> list[tuple[int, SearchResult]]:
        """What those in these places, who have finished, have written, with their numbers."""


@dataclass(frozen=True)
class PromptBucket:
    """Prompts that use the same storage after each other."""

    numbers: list[int]
    places: int
    capacity: int
    """How many tokens a row may have."""


def prompt_buckets(request: SearchRequest, width: int) -> Iterator[PromptBucket]:
    """All prompts, those that need most room first."""
    if request.room is None:
        yield PromptBucket([*request.numbers], len(request.numbers), request.capacity)
        return
    need = {number: len(request.prompts[request.prompt(number)]) + request.limit(number) for number in request.numbers}
    ordered = deque(sorted(request.numbers, key=lambda number: -need[number]))
    while ordered:
        capacity, numbers = need[ordered[0]], list[int]()
        while ordered and 2 * need[ordered[0]] >= capacity:
            numbers.append(ordered.popleft())
        yield PromptBucket(numbers, min(len(numbers), max(1, request.room // (width * capacity))), capacity)


def run_search(model: GenerativeModel, given: SourceInput, request: SearchRequest, search: SearchStrategy[AnySearchBatch, SearchResult]) -> list[SearchResult]:
    """The results of all prompts in their order."""
    found = dict[int, SearchResult]()
    if request.prompts:
        with packed_linear_layers(model):
            model = model if search.watches else packed_decoder(model)
            for share in prompt_buckets(request, search.width):
                found |= SearchRun(model, given, request, search, share).run()
    return [found[number] for number in range(len(found))]


@dataclass(frozen=True)
class RunningBatch(Generic[AnySearchBatch]):
    """A batch, and what the model has made of it."""

    batch: AnySearchBatch
    state: Any
    logits: Tensor
    cross: Tensor | None


@dataclass(frozen=True)
class SearchRun(Generic[AnySearchBatch, SearchResult]):
    """A search over a share."""

    model: GenerativeModel
    given: SourceInput
    request: SearchRequest
    search: SearchStrategy[AnySearchBatch, SearchResult]
    share: PromptBucket

    def run(self) -> dict[int, SearchResult]:
        """The results by their numbers."""
        waiting = deque(self.share.numbers)
        return self.run_from(*self.entered(waiting, self.share.places), waiting)

    def run_from(self, rows: "RunningBatch[AnySearchBatch]", read_by: list[int], waiting: deque[int]) -> dict[int, SearchResult]:
        """The results of rows that have read so many tokens, none of which has finished, and of those that wait."""
        found, is_open = dict[int, SearchResult](), [True] * len(read_by)
        while True:
            batch, parents, finished = self.search.turn(rows.batch, rows.logits, rows.cross)
            for place in finished:
                is_open[place] = False
            stay = [place for place, still in enumerate(is_open) if still]
            gone = [place for place, still in enumerate(is_open) if not still]
            free = self.share.places - len(stay)
            enter = bool(waiting) and (not stay or REFILL_SHARE * free >= self.share.places)
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
        return state.pick(RowGroups(parents.flatten(), self.search.width, self.search.width, families, reuse_storage=True))

    def _siblings(self, rows: Tensor, families: Tensor | None, before: int | None = None) -> Rows:
        """Rows of the state, where those of one prompt share its source."""
        width = self.search.width
        return rows if width == 1 else RowGroups(rows, width, width if before is None else before, families)

    def _stepped(self, batch: AnySearchBatch, state: Any) -> "RunningBatch[AnySearchBatch]":
        logits_RnV, state, cross = self.model.step(state, batch.tokens.unsqueeze(-1))
        seen = require_cross(self.model, cross)[..., -1, :] if self.search.watches else None
        return RunningBatch(batch, state, logits_RnV[:, -1], seen)

    def entered(self, waiting: deque[int], places: int) -> "tuple[RunningBatch[AnySearchBatch], list[int]]":
        """The next prompts, read; and how many tokens each has."""
        numbers = self.next(waiting, places)
        unique = sorted({self.request.prompt(number) for number in numbers})  # several tries read one prompt once
        prompts, memory = [self.request.prompts[row] for row in unique], select_memory(self.given, unique)
        logits, state, cross = prefill(self.model, memory, prompts, self.share.capacity, self.request.device,
                                    self.search.watches)
        each = [unique.index(self.request.prompt(number)) for number in numbers for _ in range(self.search.width)]
        index = torch.tensor(each, device=self.request.device)
        if each != list(range(len(unique))):
            state = state.pick(self._siblings(index, index[::self.search.width], before=1))
            logits, cross = logits[index], None if cross is None else cross[index]
        present = None if memory is None else _present_states(memory)[index[::self.search.width]]
        batch = self.search.first(numbers, present)
        counts = [len(self.request.prompts[self.request.prompt(number)]) for number in numbers]
        return RunningBatch(batch, state, logits, cross), counts

    def next(self, waiting: deque[int], places: int) -> list[int]:
        """The numbers of those whose turn it is."""
        return [waiting.popleft() for _ in range(min(places, len(waiting)))]

    def joined(self, rows: "RunningBatch[AnySearchBatch]", others: "RunningBatch[AnySearchBatch]") -> "RunningBatch[AnySearchBatch]":
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
        return RunningBatch(rows.batch.joined(others.batch), state, torch.cat([rows.logits, others.logits]), cross)


def _present_states(memory: Memory) -> Tensor:
    """(B, N): which states are there."""
    places = torch.arange(memory.states.shape[1], device=memory.states.device).expand(memory.rows, -1)
    return places < (places.shape[1] if memory.lengths is None else memory.lengths.unsqueeze(-1))
