"""A live search on a GPU: prompts join and leave while one CUDA graph per token runs.

    why_not(model, search)                       why a search runs as on any other device; None if it runs here
    GpuLiveSearch(model, prepare, capacity)      as `regard.decoding.live_search.LiveSearch`, several tokens a step

The buffers of `regard.decoding.gpu_search` have a slot for each sequence. A new one takes a free slot, without moving
the others: its source is projected into the slot, its prompt is read up to the last token, and this one is read in the
next step of the graph, in which the search still passes the slot over. A step of a live search runs several tokens,
because asking the device what has finished takes longer than a token; so a sequence may wait a few tokens for its
answer, and a new one to join. The number of slots is a power of four: few graphs serve all loads.
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
from regard.decoding.request import Hypothesis, InvalidLogitsError
from regard.models.contract import Memory

TOKENS_PER_STEP = 8
"""Tokens that a step of a live search generates at most."""
ANSWER_SHARE = 8
"""A step ends early when one sequence in this many has finished."""


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
        self._cache = graph_cache(model) if cache is None else cache
        self._slots = list[PromptT | None]()
        self._search: Any = None
        self._workspace: SearchWorkspace | None = None
        self._key: tuple[Any, ...] = ()

    @property
    def rows(self) -> int:
        """The number of hypotheses."""
        return len(self.prompts) * (0 if self._search is None else self._search.width)

    def last_tokens(self) -> Iterator[tuple[PromptT, int]]:
        """None: the tokens so far stay on the device."""
        return iter(())

    def step(self, joining: Sequence[PromptT] = (), memory: Memory | None = None,
             leaving: Collection[PromptT] = ()) -> LiveStep[PromptT]:
        """Let prompts join and leave, and add some tokens to every hypothesis; see `LiveSearch.step`."""
        with self._cache.entered(next(self.model.parameters())):
            self._leave([slot for slot, prompt in enumerate(self._slots) if prompt is not None and prompt in leaving])
            new = self._join(joining, memory) if joining else None
            if not self.prompts:
                self._release()
                return LiveStep([], [])
            found = self._generate(new)
            if not self.prompts:
                self._release()
            return found

    def _generate(self, new: torch.Tensor | None) -> LiveStep[PromptT]:
        """Some tokens, and the results of the sequences that have finished."""
        assert self._workspace is not None
        workspace, state = self._workspace, self._workspace.search
        state.steps = 0
        if new is not None:
            workspace.step(0)
            state.resume(new)
        for _ in range(TOKENS_PER_STEP):
            workspace.step(0)
            running = self._poll(state)
            if running is not None and ANSWER_SHARE * sum(running) <= (ANSWER_SHARE - 1) * len(self.prompts):
                break
        failed = list[tuple[PromptT, InvalidLogitsError]]()
        while True:
            try:
                status = state.poll_now()
                break
            except InvalidLogitsError as error:
                prompt = self._slots[error.sequence]
                assert prompt is not None
                failed.append((prompt, error))
                self._leave([error.sequence])
                state.readback.send()
        gone = [slot for slot, prompt in enumerate(self._slots) if prompt is not None and not status[slot]]
        answered = list[tuple[PromptT, list[Hypothesis]]]()
        for slot, result in state.results(gone, self._search) if gone else ():
            done = self._slots[slot]
            assert done is not None
            answered.append((done, result if isinstance(result, list) else [result]))
        self._forget(gone)
        return LiveStep(answered, failed)

    def _poll(self, state: Any) -> list[bool] | None:
        """Which sequences were running one token ago; None if that is not known, or the model gave NaN."""
        try:
            running = state.poll()
        except InvalidLogitsError:
            return None  # found again when the step ends
        return None if running is None else [one for one, prompt in zip(running, self._slots, strict=True)
                                             if prompt is not None]

    def _leave(self, slots: list[int]) -> None:
        """End the sequences in these slots."""
        if slots:
            assert self._workspace is not None
            self._workspace.search.stop(torch.tensor(slots, device=self._workspace.buffers.positions.device))
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
            self._slots[slot] = prompt
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
            index = torch.tensor(running, device=old.buffers.positions.device)
            workspace.buffers.take(old.buffers, index, old.buffers.capacity)
            workspace.search.take(old.search, running)
            workspace.search.sequences = list(range(groups))
            workspace.search.max_steps = old.search.max_steps
        kept: list[PromptT | None] = [self._slots[slot] for slot in running]
        self._release()
        self._workspace, self._key, self._slots = workspace, key, kept + [None] * (groups - len(kept))

    def _release(self) -> None:
        """Keep the workspace for the next search of its kind."""
        if self._workspace is not None:
            self._cache.keep(self._key, self._workspace)
        self._workspace, self._slots = None, []
