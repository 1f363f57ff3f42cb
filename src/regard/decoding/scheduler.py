"""Continuous batching: prompts enter a batch when there is room and leave it when they finish, in any order.

    run_search(model, sources, request, search)      the results of all prompts in their order

A search (`SearchStrategy`) says what becomes of the rows of its batch in one step. The scheduler does what all searches
share: prefill of the prompts, moving the rows of the model's state, and returning results in order. Without a token
budget all prompts enter at once. With one, prompts that need the most room enter first and the others wait; a free slot
is filled again. The model's state has storage for the longest row in every slot, so prompts run in buckets: no prompt
of a bucket needs less than half of what another one does. Searches on a GPU run in `regard.decoding.gpu_search` if it
supports them. The scheduler knows the contract of the models, and not how tokens are chosen.

Legend: B slots, W hypotheses of each, R = B·W rows of the state, L layers, H heads, N states of a source, n tokens of a
chunk, V vocabulary.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.decoding.decoder_step import PackedDecoder, packed_decoder
from regard.decoding.recompute import honour_hooks
from regard.decoding.request import SearchRequest, SourceInput, select_memory
from regard.kernels.packed_linear import packed_linear_layers
from regard.mixer import RowGroups, Rows
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens

REFILL_SHARE = 4
"""A batch is filled again when one slot in this many is free: prefill of few prompts takes as long as of many."""
PREFILL_CHUNK = 64
"""Tokens of each prompt that the model reads at once: the logits of a long prompt would fill the memory."""


class SearchBatch(Protocol):
    """What a search remembers of the sequences in its slots."""

    @property
    def tokens(self) -> Tensor:
        """(R,): the last token of each hypothesis."""

    def select(self, slots: Sequence[int]) -> Self:
        """The sequences in these slots."""

    def concat(self, other: Self) -> Self:
        """These sequences followed by those of another batch."""


AnySearchBatch = TypeVar("AnySearchBatch", bound=SearchBatch)
SearchResult = TypeVar("SearchResult")


class SearchStep(NamedTuple, Generic[AnySearchBatch]):
    """The result of one step of a search."""

    batch: AnySearchBatch
    """All sequences of the batch, with one more token."""
    parents: Tensor | None
    """(B, W): the row of the state that each hypothesis continues; None if each continues its own."""
    finished: list[int]
    """The slots whose sequences have finished in this step."""


class SearchStrategy(Protocol[AnySearchBatch, SearchResult]):
    """How tokens are chosen."""

    @property
    def width(self) -> int:
        """The number of hypotheses of each sequence."""

    @property
    def needs_cross(self) -> bool:
        """Whether the search reads the cross-attention weights."""

    def start(self, sequences: Sequence[int], present: Tensor | None) -> AnySearchBatch:
        """The batch before its first step; `present` (B, N) tells padding of the sources from states."""

    def advance(self, batch: AnySearchBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[AnySearchBatch]:
        """One step from logits (R, V) and, if needed, the cross-attention weights (R, L, H, N)."""

    def results(self, batch: AnySearchBatch) -> list[tuple[int, SearchResult]]:
        """The results of a batch of finished sequences, with their numbers."""


def run_search(model: GenerativeModel, sources: SourceInput, request: SearchRequest,
               search: SearchStrategy[AnySearchBatch, SearchResult]) -> list[SearchResult]:
    """The results of all sequences in their order."""
    model = honour_hooks(model)
    if request.device.type == "cuda":
        from regard.decoding import gpu_search  # which imports this module

        found = gpu_search.run_on_gpu(model, sources, request, search)
        if found is not None:
            return found
    return run_plain_search(model, sources, request, search)


def run_plain_search(model: GenerativeModel, sources: SourceInput, request: SearchRequest,
                     search: SearchStrategy[AnySearchBatch, SearchResult]) -> list[SearchResult]:
    """The same by steps of the model itself, on any device; on a CPU with packed weights."""
    found = dict[int, SearchResult]()
    if request.prompts:
        with packed_linear_layers(model):
            model = model if search.needs_cross else packed_decoder(model)
            for bucket in prompt_buckets(request, search.width):
                found |= SearchRun(model, sources, request, search, bucket).run()
    return [found[sequence] for sequence in range(len(found))]


@dataclass(frozen=True)
class PromptBucket:
    """Sequences that use the same storage one after another."""

    sequences: list[int]
    slots: int
    capacity: int
    """The maximum number of tokens of a row."""


def prompt_buckets(request: SearchRequest, width: int) -> Iterator[PromptBucket]:
    """All sequences, those that need the most room first."""
    if request.token_budget is None:
        yield PromptBucket([*request.sequences], len(request.sequences), request.capacity)
        return
    need = {one: len(request.prompts[request.prompt_of(one)]) + request.max_length_of(one) for one in request.sequences}
    ordered = deque(sorted(request.sequences, key=lambda sequence: -need[sequence]))
    while ordered:
        capacity, sequences = need[ordered[0]], list[int]()
        while ordered and 2 * need[ordered[0]] >= capacity:
            sequences.append(ordered.popleft())
        yield PromptBucket(sequences, min(len(sequences), max(1, request.token_budget // (width * capacity))), capacity)


@dataclass(frozen=True)
class RunningBatch(Generic[AnySearchBatch]):
    """The batch of a search with the model's state and logits."""

    batch: AnySearchBatch
    state: Any
    logits: Tensor
    cross: Tensor | None


@dataclass(frozen=True)
class SearchRun(Generic[AnySearchBatch, SearchResult]):
    """The run of a search over one bucket."""

    model: GenerativeModel
    sources: SourceInput
    request: SearchRequest
    search: SearchStrategy[AnySearchBatch, SearchResult]
    bucket: PromptBucket

    def run(self) -> dict[int, SearchResult]:
        """The results by the numbers of the sequences."""
        waiting, found = deque(self.bucket.sequences), dict[int, SearchResult]()
        rows, used = self.admit(waiting, self.bucket.slots)  # used: the tokens of each row in the model's state
        is_open = [True] * len(used)
        while True:
            step = self.search.advance(rows.batch, rows.logits, rows.cross)
            batch = step.batch
            for slot in step.finished:
                is_open[slot] = False
            gone = [slot for slot, still in enumerate(is_open) if not still]
            stay, _ = arrangement(len(is_open), gone, 0)
            free = self.bucket.slots - len(stay)
            enter = bool(waiting) and (not stay or REFILL_SHARE * free >= self.bucket.slots)
            # Removing rows copies the state of the others. So finished rows stay until they are half of the batch,
            # unless the state is copied anyway or has no room for them.
            full = any(used[slot] >= self.bucket.capacity for slot in gone)
            leave = bool(gone) and (step.parents is not None or enter or full or 2 * len(stay) <= len(is_open))
            if leave:
                found |= self.search.results(batch.select(gone))
                batch, used, is_open = batch.select(stay), [used[slot] for slot in stay], [True] * len(stay)
            if used:
                rows = self._step(batch, self._reorder(rows.state, step, stay if leave else None))
                used = [count + 1 for count in used]
            if enter:
                others, theirs = self.admit(waiting, free)
                rows = self.concat(rows, others) if used else others
                used, is_open = [*used, *theirs], [*is_open, *[True] * len(theirs)]
            if not used:
                return found

    def admit(self, waiting: deque[int], slots: int) -> "tuple[RunningBatch[AnySearchBatch], list[int]]":
        """Prefill the next prompts, and return them with their lengths."""
        sequences = self.next_sequences(waiting, slots)
        unique = sorted({self.request.prompt_of(one) for one in sequences})  # samples of one prompt share its prefill
        prompts, memory = [self.request.prompts[row] for row in unique], select_memory(self.sources, unique)
        logits, state, cross = prefill(self.model, memory, prompts, self.bucket.capacity, self.request.device,
                                       self.search.needs_cross)
        places = {prompt: place for place, prompt in enumerate(unique)}
        each = [places[self.request.prompt_of(one)] for one in sequences for _ in range(self.search.width)]
        index = torch.tensor(each, device=self.request.device)
        if each != list(range(len(unique))):
            state = first_hypotheses(self.model, state, index, self.search.width)
            logits, cross = logits[index], None if cross is None else cross[index]
        present = None if memory is None else present_states(memory)[index[::self.search.width]]
        lengths = [len(self.request.prompts[self.request.prompt_of(one)]) for one in sequences]
        return RunningBatch(self.search.start(sequences, present), state, logits, cross), lengths

    def next_sequences(self, waiting: deque[int], slots: int) -> list[int]:
        """Take the next sequences, as many as there are slots."""
        return [waiting.popleft() for _ in range(min(slots, len(waiting)))]

    def concat(self, rows: RunningBatch[AnySearchBatch],
               others: RunningBatch[AnySearchBatch]) -> RunningBatch[AnySearchBatch]:
        """The rows followed by others."""
        mine, theirs, width = len(rows.logits), len(others.logits), self.search.width
        places = torch.arange(mine + theirs, device=self.request.device)
        groups = places[:(mine + theirs) // width]
        # The state grows by rows that are picked twice, and then replaced.
        grown = self._row_groups(torch.where(places < mine, places, places % width),
                                 torch.where(groups < mine // width, groups, 0))
        replaced = self._row_groups(places[mine:], groups[mine // width:])
        state = rows.state.pick(grown).put(replaced, others.state)
        cross = rows.cross
        if cross is not None and others.cross is not None:
            longest = max(cross.shape[-1], others.cross.shape[-1])
            cross = torch.cat([pad(part, (0, longest - part.shape[-1])) for part in (cross, others.cross)])
        return RunningBatch(rows.batch.concat(others.batch), state, torch.cat([rows.logits, others.logits]), cross)

    def _reorder(self, state: Any, step: SearchStep[AnySearchBatch], stay: list[int] | None) -> Any:
        """The state of the hypotheses that continue."""
        groups = None
        if stay is not None and len(stay) * self.search.width < len(state.positions):
            groups = torch.tensor(stay, dtype=torch.long, device=self.request.device)
        if groups is None and step.parents is None:
            return state
        return state.pick(continuing_rows(step.parents, groups, state.positions, self.search.width))

    def _row_groups(self, rows: Tensor, groups: Tensor) -> Rows:
        """Rows of the state, of which the hypotheses of one sequence share its source."""
        width = self.search.width
        return rows if width == 1 else RowGroups(rows, width, width, groups)

    def _step(self, batch: AnySearchBatch, state: Any) -> RunningBatch[AnySearchBatch]:
        logits_RnV, state, cross = self.model.step(state, batch.tokens.unsqueeze(-1))
        weights = require_cross(self.model, cross)[..., -1, :] if self.search.needs_cross else None
        return RunningBatch(batch, state, logits_RnV[:, -1], weights)


def first_hypotheses(model: GenerativeModel, state: Any, index: Tensor, width: int) -> Any:
    """The state of hypotheses, `width` for each sequence, that continue the rows `index` (R,) of prompts."""
    if width == 1:
        return state.pick(index)
    rows = RowGroups(index, width, 1, index[::width])
    return model.share(state, rows) if isinstance(model, PackedDecoder) else state.pick(rows)


def continuing_rows(parents: Tensor | None, groups: Tensor | None, positions: Tensor, width: int) -> RowGroups:
    """The rows of the state that continue after a step, written into the storage of the rows before it.

    Args:
        parents: those of the `SearchStep`.
        groups: (G,): the slots that stay, in their new order; None if all stay where they are.
        positions: (R,): the number of tokens that the model has read of each row.
    """
    if parents is None:
        parents = torch.arange(len(positions), device=positions.device).view(-1, width)
    rows = (parents if groups is None else parents[groups]).flatten()
    return RowGroups(rows, width, width, groups, reuse_storage=True)


def arrangement(count: int, gone: Collection[int], new: int) -> tuple[list[int], list[int]]:
    """Where sequences go: `count` slots of which some are `gone`, and `new` ones, numbered from `count`.

    New ones take the places of those that are gone. If more are gone, the last ones move into the gaps.

    Returns:
        the sequence of each place, and the places of the new ones.
    """
    order, holes, places = list(range(count)), deque(sorted(gone)), list[int]()
    for number in range(count, count + new):
        place = holes.popleft() if holes else len(order)
        order[place:place + 1] = [number]
        places.append(place)
    while holes:
        last = order.pop()
        if holes[-1] == len(order):
            holes.pop()
        else:
            order[holes.popleft()] = last
    return order, places


def present_states(memory: Memory) -> Tensor:
    """(B, N): True for states, False for padding."""
    places = torch.arange(memory.states.shape[1], device=memory.states.device).expand(memory.rows, -1)
    return places < (places.shape[1] if memory.lengths is None else memory.lengths.unsqueeze(-1))


class Prefilled(NamedTuple):
    """The model's answer after the last token of each prompt."""

    logits: Tensor
    """(B, V)"""
    state: Any
    cross: Tensor | None
    """(B, L, H, N), if requested."""


def prefill(model: GenerativeModel, memory: Memory | None, prompts: Sequence[Sequence[int]], capacity: int,
            device: torch.device, cross: bool = False) -> Prefilled:
    """Read prompts of any lengths, none of them empty, into a state with storage for `capacity` tokens a row."""
    ids_BT = Tokens.of(prompts).ids.to(device)
    lengths = [len(row) for row in prompts]
    lengths_B, rows_B = torch.tensor(lengths, device=device), torch.arange(len(lengths), device=device)
    state = model.start(memory, rows=len(lengths), capacity=capacity, cross=cross)
    found = list[Tensor]()
    for first in range(0, max(lengths), PREFILL_CHUNK):
        chunk_Bn = ids_BT[:, first:first + PREFILL_CHUNK]
        here_B = (lengths_B - first).clamp(min=0, max=chunk_Bn.shape[1])
        if min(lengths) >= first + chunk_Bn.shape[1]:
            step = model.step(state, chunk_Bn)
        else:
            step = model.step(state, chunk_Bn, lengths=here_B)
        state, last_B = step.state, (here_B - 1).clamp(min=0)
        parts = [step.logits[rows_B, last_B]]
        if cross:
            parts.append(require_cross(model, step.cross)[rows_B, ..., last_B, :])
        found = [_where_rows(here_B > 0, new, old) for new, old in zip(parts, found or parts, strict=True)]
    return Prefilled(found[0], state, found[1] if cross else None)


def require_cross(model: GenerativeModel, cross: Tensor | None) -> Tensor:
    """The cross-attention weights of a step; a ValueError if the model has none."""
    if cross is None:
        raise checks.wrong("model", "a model with cross-attention", f"a {type(model).__name__} without")
    return cross


def _where_rows(condition_B: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(condition_B.view(-1, *[1] * (new.dim() - 1)), new, old)
