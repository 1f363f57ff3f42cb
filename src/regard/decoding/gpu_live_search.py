"""A live search on a GPU: prompts join and leave while one CUDA graph per token runs.

    why_not(model, search)                       why a search runs as on any other device; None if it runs here
    GpuLiveSearch(model, prepare, capacity)      as `regard.decoding.live_search.LiveSearch`, several tokens a step

The buffers of `regard.decoding.gpu_search` have a slot for each sequence. A new one takes a free slot, without moving
the others: its source is projected into the slot, its prompt is read up to the last token, and this one is read in the
next step of the graph, in which the search still passes the slot over. A step of a live search launches several tokens
and returns what had finished before them, so that the device works while the host answers, encodes and admits. A
sequence therefore waits some tokens for its answer, and a slot for its next sequence. The number of slots is a power of
four: few graphs serve all loads.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Generic

import torch

from regard.decoding import gpu_search
from regard.decoding.cuda_graph import SOURCE_STEP, GraphCache, graph_cache, round_up
from regard.decoding.decoder_step import why_no_fused_step
from regard.decoding.gpu_search import TOKEN_STEP, FusedBuffers, SearchWorkspace
from regard.decoding.gpu_state import search_kind, search_state
from regard.decoding.live_search import LiveStep, Prepare, PromptT, read_prompts
from regard.decoding.request import INVALID, RUNNING, Hypothesis, InvalidLogitsError
from regard.models.contract import Memory

TOKENS_PER_STEP, FEW_TOKENS, FEW_PROMPTS = 8, 4, 32
"""Tokens that a step of a live search generates; fewer for few prompts, which give the host little to do meanwhile."""


def why_not(model: Any, search: Any) -> str | None:
    """Why a search does not run here; None if it does."""
    found = gpu_search.why_not(model, search.request, search)
    if found is not None:
        return found
    if search.request.num_samples > 1:
        return "the search has several samples"
    return graph_cache(model).answer("fused", lambda: why_no_fused_step(model))


class GpuLiveSearch(Generic[PromptT]):
    """A batch of prompts in the slots of a workspace.

    Args:
        model: a model for which `why_not` is None.
        capacity: the maximum number of tokens of a prompt and what follows it.
        cache: the graphs of the model.
    """

    def __init__(self, model: Any, prepare: Prepare[PromptT], capacity: int, cache: GraphCache | None = None) -> None:
        self.model, self.prepare, self.capacity = model, prepare, capacity
        self.prompts = list[PromptT]()
        self.step_rows = 0
        """The number of hypotheses of the last step."""
        self._cache = graph_cache(model) if cache is None else cache
        self._slots = list[PromptT | None]()
        self._joined = dict[int, int]()  # the number of the launch in which the prompt of each slot joined
        self._launched = 0  # with this workspace
        self._search: Any = None
        self._workspace: SearchWorkspace | None = None
        self._key: tuple[Any, ...] = ()

    @property
    def rows(self) -> int:
        """The number of hypotheses."""
        return len(self.prompts) * (0 if self._search is None else self._search.width)

    def last_tokens(self) -> Iterator[tuple[PromptT, int, int]]:
        """None: the tokens so far stay on the device."""
        return iter(())

    def step(self, joining: Sequence[PromptT] = (), memory: Memory | None = None,
             leaving: Collection[PromptT] = ()) -> LiveStep[PromptT]:
        """Let prompts join and leave, launch some tokens of every hypothesis, and return what the step before finished.

        See `LiveSearch.step`.
        """
        with self._cache.entered(next(self.model.parameters())):
            self._leave([slot for slot, prompt in enumerate(self._slots) if prompt is not None and prompt in leaving])
            new = self._join(joining, memory) if joining else None
            found: LiveStep[PromptT] = LiveStep([], [])
            self.step_rows = self.rows
            if self.prompts:
                self._launch(new)
                found = self._collect()
            if not self.prompts:
                self._release()
            return found

    def _launch(self, new: torch.Tensor | None) -> None:
        """Launch some tokens, and a copy of the status after them to the host."""
        assert self._workspace is not None
        if new is not None:
            self._workspace.step(0)
            self._workspace.search.resume(new)
        for _ in range(FEW_TOKENS if len(self.prompts) <= FEW_PROMPTS else TOKENS_PER_STEP):
            self._workspace.step(0)
        self._workspace.search.readback.send()
        self._launched += 1

    def _collect(self) -> LiveStep[PromptT]:
        """The prompts that had finished before the tokens that were launched last."""
        assert self._workspace is not None
        state, answered = self._workspace.search, list[tuple[PromptT, list[Hypothesis]]]()
        failed = list[tuple[PromptT, InvalidLogitsError]]()
        if self._launched < 2:
            return LiveStep(answered, failed)
        status = state.read_status(1)
        there = [slot for slot, prompt in enumerate(self._slots)
                 if prompt is not None and self._joined[slot] < self._launched]
        invalid = [slot for slot in there if status[slot] == INVALID]
        gone = [slot for slot in there if status[slot] not in (RUNNING, INVALID)]
        for slot in invalid:
            failed.append((self._prompt(slot), state.request.invalid_logits(slot, int(state.status.lengths[slot]))))
        for slot, result in state.results(gone, self._search) if gone else ():
            answered.append((self._prompt(slot), result if isinstance(result, list) else [result]))
        self._forget([*gone, *invalid])
        return LiveStep(answered, failed)

    def _prompt(self, slot: int) -> PromptT:
        prompt = self._slots[slot]
        assert prompt is not None
        return prompt

    def _leave(self, slots: list[int]) -> None:
        """End the sequences in these slots."""
        if slots:
            assert self._workspace is not None
            device = self._workspace.buffers.positions.device
            self._workspace.search.stop(torch.tensor(slots).to(device, non_blocking=True))
            self._forget(slots)

    def _forget(self, slots: list[int]) -> None:
        gone = {id(self._slots[slot]) for slot in slots}
        self.prompts = [prompt for prompt in self.prompts if id(prompt) not in gone]
        for slot in slots:
            self._slots[slot] = None

    def _join(self, joining: Sequence[PromptT], memory: Memory | None) -> torch.Tensor:
        """Let prompts enter free slots, which they are held in until the decoder has read their last tokens."""
        self.prompts = [*self.prompts, *joining]
        self._search = self.prepare(self.prompts)
        self._make_room(0 if memory is None else memory.states.shape[1])
        assert self._workspace is not None
        device = self._workspace.buffers.positions.device
        longest = max(len(one.prompt) for one in joining)
        state = self.model.start(memory, rows=len(joining), capacity=longest)
        state = read_prompts(self.model, state, [one.prompt[:-1] for one in joining], device)
        free = [slot for slot, prompt in enumerate(self._slots) if prompt is None][:len(joining)]
        for slot, prompt in zip(free, joining, strict=True):
            self._slots[slot], self._joined[slot] = prompt, self._launched + 1
        slots = torch.tensor(free).to(device, non_blocking=True)
        max_lengths = self._search.request.max_lengths[len(self.prompts) - len(joining):]
        self._workspace.buffers.put(slots, state)
        self._workspace.search.put(slots, max_lengths, [one.prompt[-1] for one in joining])
        return slots

    def _make_room(self, longest: int) -> None:
        """A workspace with slots for all prompts and for sources of `longest` states; sequences move into it."""
        search, old = self._search, self._workspace
        groups = max(4 ** -(-(len(self.prompts) - 1).bit_length() // 2), len(self._slots))
        wanted = round_up(max(longest, self.capacity // 2 if longest else 0), SOURCE_STEP)
        sources = wanted if old is None else max(wanted, old.buffers.sources)
        if old is not None and (groups, sources) == (len(self._slots), old.buffers.sources):
            return
        decoder = self.model.decoder
        sizes = (groups, search.width, round_up(self.capacity, TOKEN_STEP), sources)

        def make() -> SearchWorkspace:
            buffers = FusedBuffers(decoder, *sizes)
            return SearchWorkspace(buffers, search_state(search, groups, sizes[2], buffers.logits), self._cache.capture)

        key = ("live", search_kind(search), *sizes, decoder.output.weight.dtype)
        workspace: SearchWorkspace = self._cache.borrow(key, make)
        workspace.buffers.fused.refresh()
        workspace.search.request = search.request
        workspace.search.hold_all()
        running = [slot for slot, prompt in enumerate(self._slots) if prompt is not None]
        if old is not None and running:
            index = torch.tensor(running).to(old.buffers.positions.device, non_blocking=True)
            workspace.buffers.take(old.buffers, index, old.buffers.capacity)
            workspace.search.take(old.search, running)
            workspace.search.sequences = list(range(groups))
        kept: list[PromptT | None] = [self._slots[slot] for slot in running]
        self._release()
        self._workspace, self._key, self._slots = workspace, key, kept + [None] * (groups - len(kept))
        self._joined = dict.fromkeys(range(groups), 0)

    def _release(self) -> None:
        """Keep the workspace for the next search of its kind."""
        if self._workspace is not None:
            self._cache.keep(self._key, self._workspace)
        self._workspace, self._slots, self._launched = None, [], 0
