"""Continuous batching: prompts join a running search between two steps, and leave it when they finish.

    live = LiveSearch(model, prepare, capacity)
    answered, failed = live.step(joining, memory, leaving)     one token for every hypothesis of every prompt
    live.prompts                                               the prompts that are running

`regard.decoding.scheduler` runs prompts that are all known before. Here each step may bring new ones. `prepare` makes
the search for the prompts of a batch, so what differs between prompts (maximum length, seed, prefix, terms) is always
that of the prompts that are there. A new prompt is read up to its last token, which is read with the next step of all
others; a prompt of one token therefore costs no step of its own. Its rows take the places of finished ones, so that the
states of the others stay where they are. If the logits of a prompt are NaN, only this prompt fails.

Legend: B slots, W hypotheses of each, R = B·W rows of the state, V vocabulary.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from regard.decoding.beam import BeamSearch
from regard.decoding.decoder_step import packed_decoder
from regard.decoding.recompute import honour_hooks
from regard.decoding.request import Hypothesis, InvalidLogitsError
from regard.decoding.sampling import TokenSearch
from regard.decoding.scheduler import (
    PREFILL_CHUNK,
    arrangement,
    continuing_rows,
    first_hypotheses,
    present_states,
    require_cross,
)
from regard.mixer import RowGroups
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens


class LivePrompt(Protocol):
    """What a live search needs to know of a prompt. Prompts are compared by identity."""

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens that the model reads first, at least one."""


PromptT = TypeVar("PromptT", bound=LivePrompt)
Prepare = Callable[[list[PromptT]], BeamSearch | TokenSearch]
"""Makes the search for the prompts of a batch, in this order."""


class LiveStep(NamedTuple, Generic[PromptT]):
    """The prompts that left in a step."""

    answered: list[tuple[PromptT, list[Hypothesis]]]
    """With the results: of beam search the best first, of sampling in the order drawn."""
    failed: list[tuple[PromptT, InvalidLogitsError]]


class LiveSearch(Generic[PromptT]):
    """A batch of prompts, each with `width` hypotheses or several samples.

    It is used inside of `packed_linear_layers`, and without gradients.

    Args:
        capacity: the maximum number of tokens of a prompt and what follows it.
    """

    def __init__(self, model: GenerativeModel, prepare: Prepare[PromptT], capacity: int) -> None:
        self.prepare, self.capacity = prepare, capacity
        self.prompts = list[PromptT]()
        self.step_rows = 0
        """The number of rows of the last step."""
        self._model, self._is_packed = honour_hooks(model), False
        self._slots = list[tuple[PromptT, int]]()  # the prompt and the number of the sample
        self._found = dict[int, dict[int, Any]]()  # by the identity of the prompt and the number of the sample
        self._finished = set[int]()  # slots that leave before the next step
        self._search: Any = None
        self._batch: Any = None
        self._state: Any = None
        self._parents: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the next step, if nothing joins or leaves before."""
        return (len(self._slots) - len(self._finished)) * (0 if self._search is None else self._search.width)

    def step(self, joining: Sequence[PromptT] = (), memory: Memory | None = None,
             leaving: Collection[PromptT] = ()) -> LiveStep[PromptT]:
        """Let prompts join and leave, and add one token to every hypothesis.

        Args:
            memory: the encoded sources of the prompts that join; None for a language model.
            leaving: running prompts that are not answered any more.
        """
        gone = {slot for slot, (prompt, _) in enumerate(self._slots) if prompt in leaving} | self._finished
        self._arrange(gone, joining, memory)
        self.step_rows = self.rows
        if not self._slots:
            return LiveStep([], [])
        logits_RnV, self._state, cross = self._model.step(self._state, self._batch.tokens.unsqueeze(-1))
        weights = require_cross(self._model, cross)[..., -1, :] if self._search.needs_cross else None
        failed = self._advance(logits_RnV[:, -1], weights)
        return LiveStep(self._collect(), failed)

    def last_tokens(self) -> Iterator[tuple[PromptT, int, int]]:
        """The last token of every sample that is still running: its prompt, its number and the token.

        For a search of one hypothesis for each sample, such as greedy search, which has one sample.
        """
        if self._slots:
            for slot, (owner, token) in enumerate(zip(self._slots, self._batch.tokens.tolist(), strict=True)):
                if slot not in self._finished:
                    yield *owner, token

    def _advance(self, logits: Tensor, cross: Tensor | None) -> list[tuple[PromptT, InvalidLogitsError]]:
        """One step of the search, without prompts for which the model gave NaN."""
        failed, width = list[tuple[PromptT, InvalidLogitsError]](), self._search.width
        while self._slots:
            try:
                self._batch, self._parents, finished = self._search.advance(self._batch, logits, cross)
                self._finished = set(finished)
                break
            except InvalidLogitsError as error:
                prompt = self.prompts[self._search.request.prompt_of(error.sequence)]
                failed.append((prompt, error))
                keep = [slot for slot, (other, _) in enumerate(self._slots) if other is not prompt]
                slots = torch.tensor(keep, dtype=torch.long, device=logits.device)
                rows = _rows_of(slots, width)
                self._slots, self._batch = [self._slots[slot] for slot in keep], self._batch.select(keep)
                self._state = self._state.pick(RowGroups(rows, width, width, slots, reuse_storage=True))
                logits, cross = logits[rows], None if cross is None else cross[rows]
        for prompt, _ in failed:
            self._forget(prompt)
        return failed

    def _collect(self) -> list[tuple[PromptT, list[Hypothesis]]]:
        """The prompts that have all their results."""
        if not self._finished:
            return []
        answered = list[tuple[PromptT, list[Hypothesis]]]()
        slots = sorted(self._finished)
        for slot, (_, result) in zip(slots, self._search.results(self._batch.select(slots)), strict=True):
            prompt, sample = self._slots[slot]
            found = self._found[id(prompt)]
            found[sample] = result
            if isinstance(result, list):
                answered.append((prompt, result))
            elif len(found) == self._search.request.num_samples:
                answered.append((prompt, [found[number] for number in range(len(found))]))
        for prompt, _ in answered:
            self._forget(prompt)
        return answered

    def _forget(self, prompt: PromptT) -> None:
        """Remove a prompt from those that are running; its rows leave before the next step."""
        self._found.pop(id(prompt), None)
        self.prompts = [one for one in self.prompts if one is not prompt]

    def _arrange(self, gone: set[int], joining: Sequence[PromptT], memory: Memory | None) -> None:
        """Bring batch and state to the sequences of the next step."""
        count = len(self._slots)
        if len(gone) < count or joining:
            staying = {id(prompt) for slot, (prompt, _) in enumerate(self._slots) if slot not in gone}
            self.prompts = [*(one for one in self.prompts if id(one) in staying), *joining]
            if joining or gone:
                self._search = self.prepare(self.prompts)
        new = self._begin(joining, memory) if joining else None
        if len(gone) == count:
            self._slots, self._batch, self._state = ([], None, None) if new is None else new
            self.prompts = [*joining]
        else:
            self._move(gone, new)
        self._found = {id(prompt): self._found.get(id(prompt), {}) for prompt in self.prompts}
        self._finished, self._parents = set(), None
        if self._slots and (joining or gone):
            numbers = {id(prompt): number for number, prompt in enumerate(self.prompts)}
            samples = self._search.request.num_samples
            self._batch = replace(self._batch, sequences=[numbers[id(prompt)] * samples + sample
                                                          for prompt, sample in self._slots])

    def _move(self, gone: set[int], new: tuple[list[tuple[PromptT, int]], Any, Any] | None) -> None:
        """Remove slots and add others, moving as few rows of the state as possible."""
        count, width, device = len(self._slots), self._search.width, self._search.request.device
        order, places = arrangement(count, gone, 0 if new is None else len(new[0]))
        index = [one if one < count else place if place < count else 0 for place, one in enumerate(order)]
        groups = None
        if index != list(range(count)):
            groups = torch.tensor(index, dtype=torch.long, device=device)
        if groups is not None or self._parents is not None:
            self._state = self._state.pick(continuing_rows(self._parents, groups, self._state.positions, width))
        slots, batch = self._slots, self._batch
        if new is not None:
            at = torch.tensor(places, dtype=torch.long, device=device)
            self._state = self._state.put(RowGroups(_rows_of(at, width), width, width, at), new[2])
            slots, batch = [*slots, *new[0]], batch.concat(new[1])
        if order != list(range(len(slots))):
            slots, batch = [slots[one] for one in order], batch.select(order)
        self._slots, self._batch = slots, batch

    def _begin(self, joining: Sequence[PromptT],
               memory: Memory | None) -> tuple[list[tuple[PromptT, int]], Any, Any]:
        """The slots, the batch and the state of new prompts, which have been read up to their last tokens."""
        search, device = self._search, self._search.request.device
        if not self._is_packed and not search.needs_cross:
            self._model, self._is_packed = packed_decoder(self._model), True
        samples, width = search.request.num_samples, search.width
        state = self._model.start(memory, rows=len(joining), capacity=self.capacity, cross=search.needs_cross)
        state = read_prompts(self._model, state, [one.prompt[:-1] for one in joining], device)
        index = torch.arange(len(joining), device=device).repeat_interleave(samples * width)
        if samples * width > 1:
            state = first_hypotheses(self._model, state, index, width)
        present = None if memory is None else present_states(memory)[index[::width]]
        slots = [(prompt, sample) for prompt in joining for sample in range(samples)]
        last = torch.tensor([one.prompt[-1] for one in joining], device=device)
        return slots, search.start([0] * len(slots), present).with_tokens(last[index]), state


def read_prompts(model: GenerativeModel, state: Any, prompts: Sequence[Sequence[int]], device: torch.device) -> Any:
    """The state after prompts of any lengths, which may be empty."""
    lengths = [len(prompt) for prompt in prompts]
    if not any(lengths):
        return state
    ids_BT, lengths_B = Tokens.of(prompts).to(device).ids, torch.tensor(lengths).to(device, non_blocking=True)
    for first in range(0, max(lengths), PREFILL_CHUNK):
        chunk_Bn = ids_BT[:, first:first + PREFILL_CHUNK]
        width = chunk_Bn.shape[1]
        here_B = None if min(lengths) >= first + width else (lengths_B - first).clamp(min=0, max=width)
        state = model.step(state, chunk_Bn, lengths=here_B).state
    return state


def _rows_of(slots: Tensor, width: int) -> Tensor:
    """The rows of these slots."""
    return (slots.unsqueeze(-1) * width + torch.arange(width, device=slots.device)).flatten()
