"""Searches whose turns and steps are recorded: on a GPU, where Python is slower than the work that it asks for.

    run(model, given, request, search)        as `regard.decoding.scheduler.run_search`, and by it where nothing can be recorded

Prompts enter and leave as in `regard.decoding.scheduler`; between that, rows are written at a desk and on a board, whose
memory stays where it is, by two recordings: the turn of the search, and the step of the model. Python only asks whether
somebody has finished. Sizes are rounded up, so that few recordings serve many calls; those of a model are kept with it,
the last ones, as long as they hold a small part of the memory of the device, and as long as the model is what and where
it was (`regard.decoding.cuda_graph`).

Where kernels of our own can do it, `regard.decoding.fused_search` writes in their place: one recording a token, of fewer
kernels. What is here does the rest: other scores and mixers of attention, rules that read what is written.

`why_not` says in words why a search of a model does not run here: then it runs as everywhere. Numbers may differ from
those in the last digits, as they do between batches of different sizes.

Legend: F prompts that are written at once, W hypotheses of each, R = F·W rows of the state.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.decoding import scheduler
from regard.decoding import static_state as desks
from regard.decoding.cuda_graph import SOURCE_STEP, TOKEN_STEP, GraphCache, GraphWorkspace, graph_cache, round_up
from regard.decoding.request import SearchRequest, SourceInput, select_memory
from regard.decoding.scheduler import (
    REFILL_SHARE,
    PromptBucket,
    RunningBatch,
    SearchResult,
    SearchRun,
    SearchStrategy,
    prompt_buckets,
)
from regard.decoding.static_state import SearchKind, StaticBuffers, search_kind, static_state_for
from regard.kernels import launch
from regard.mixer import RowGroups
from regard.models.contract import GenerativeModel
from regard.models.encoder_decoder import DecoderState

SHRINK_SHARE = 4
"""Rows are written together until one prompt in so many is left: fewer rows are hardly faster on a GPU."""


def why_no_graph_search(model: GenerativeModel, request: SearchRequest, search: object) -> str | None:
    """Why a search does not run here; None where it does. It says nothing of models that it has not started yet."""
    if request.device.type != "cuda":
        return "Python is fast enough for a CPU"
    if not isinstance(model, nn.Module):
        return "the model is none of ours"
    if torch.is_autocast_enabled("cuda"):
        return "under autocast weights are lowered anew at each step: model.bfloat16() lowers them once"
    if search_kind(search) is None:
        return "the search has groups, terms, coverage, chance, or rules and rankings of the user's"
    return None


def run_graph_search(model: GenerativeModel, given: SourceInput, request: SearchRequest, search: SearchStrategy[Any, SearchResult]) -> list[SearchResult]:
    """The results of all prompts in their order, recorded where that can be."""
    if why_no_graph_search(model, request, search) is not None:
        return scheduler.run_search(model, given, request, search)
    assert isinstance(model, nn.Module)
    return run_in_cache(graph_cache(model), model, given, request, search)


def run_in_cache(places: GraphCache, model: Any, given: SourceInput, request: SearchRequest, search: SearchStrategy[Any, SearchResult]) -> list[SearchResult]:
    """The same, recorded in these places, on the device of the model; threads take turns."""
    found = dict[int, SearchResult]()
    swiftly = _fused_search(places, model, request, search)
    if request.prompts:
        with places.entered(next(model.parameters())):
            for share in prompt_buckets(request, search.width):
                course = SearchRun(model, given, request, search, share)
                kind = GraphSearchRun if swiftly is None else swiftly.FusedSearchRun
                found |= kind(course, places).run()
    return [found[number] for number in range(len(found))]


def _fused_search(places: GraphCache, model: Any, request: SearchRequest, search: Any) -> Any:
    """The module of searches by kernels of our own, where they can do it; None otherwise."""
    if launch.why_not(request.device) is not None:
        return None
    from regard.decoding import fused_search  # which needs Triton

    why = places.answer("swift", lambda: fused_search.why_no_fused_model(model)) or fused_search.why_no_fused_search(search)
    return fused_search if why is None else None


@dataclass(frozen=True)
class GraphSearchRun:
    """A search over a share."""

    course: SearchRun[Any, Any]
    places: GraphCache

    @property
    def share(self) -> PromptBucket:
        return self.course.share

    def run(self) -> dict[int, Any]:
        """The results by their numbers."""
        waiting, found = deque(self.share.numbers), dict[int, Any]()
        rows: RunningBatch[Any] | None = None
        while True:
            free = self.share.places - (0 if rows is None else len(rows.batch.numbers))
            if waiting and (rows is None or REFILL_SHARE * free >= self.share.places):
                if rows is None and self._may_begin():
                    numbers = self.course.next(waiting, free)
                    begun = self._begun(numbers, bool(waiting))
                    if begun is None:
                        waiting.extendleft(reversed(numbers))
                        return found | self.course.run_from(*self.course.entered(waiting, free), waiting)
                    rows = begun[0]
                    found |= begun[1]
                    continue
                others, _ = self.course.entered(waiting, free)
                rows = others if rows is None else self.course.joined(rows, others)
            if rows is None:
                return found
            if self._in_the_way(rows.state):
                prompts, prompt = self.course.request.prompts, self.course.request.prompt
                read_by = [len(prompts[prompt(number)]) + count
                           for number, count in zip(rows.batch.numbers, rows.batch.counts, strict=True)]
                return found | self.course.run_from(rows, read_by, waiting)
            rows, results = self._continued(rows, bool(waiting))
            found |= results

    def _may_begin(self) -> bool:
        """Whether prompts need not be read before: each is one token."""
        request = self.course.request
        return request.tries == 1 and all(len(request.prompts[number]) == 1 for number in self.share.numbers)

    def _in_the_way(self, state: Any) -> bool:
        """Whether something is asked of the model that a desk cannot do. It asks the device."""
        if desks.why_no_static_step(self.course.model, state) is not None:
            return True
        contexts = [block.context for block in state.stack.blocks if block.context is not None]
        return any(context.key.shape[-2] == 0 or (context.lengths is not None and bool((context.lengths == 0).any()))
                   for context in contexts[:1])

    def _started(self, numbers: list[int]) -> Any:
        """The state of prompts of which nothing is read."""
        memory = select_memory(self.course.given, numbers)
        return self.course.model.start(memory, rows=len(numbers), capacity=self.share.capacity)

    def _begun(self, numbers: list[int], waiting: bool) -> tuple[RunningBatch[Any] | None, dict[int, Any]] | None:
        """Prompts of one token that nobody has read: the desk reads them, in a step that is recorded.

        None where something is in the way.
        """
        course, request, state = self.course, self.course.request, self._started(numbers)
        if self._in_the_way(state):
            return None
        prompts = torch.tensor([request.prompts[number][0] for number in numbers], device=request.device)
        width = course.search.width
        each = torch.arange(len(numbers), device=request.device).repeat_interleave(width)
        if width > 1:
            state = state.pick(RowGroups(each, width, 1, each[::width]))
        place = self._place(numbers, state)
        filled = place.desk.load(state)
        place.board.load(course.search.first(numbers, None), course.search)
        place.tokens.zero_()
        place.tokens[:len(each)] = prompts[each]
        place.work("begin", lambda: place.desk.step(None, place.tokens, min(TOKEN_STEP, place.desk.capacity)))()
        return self._written(place, filled + 1, waiting)

    def _continued(self, rows: RunningBatch[Any], waiting: bool) -> tuple[RunningBatch[Any] | None, dict[int, Any]]:
        """Rows that have come to here go on at a desk."""
        place = self._place(rows.batch.numbers, rows.state)
        filled = place.desk.load(rows.state)
        place.desk.put_logits(rows.logits)
        place.board.load(rows.batch, self.course.search)
        return self._written(place, filled, waiting)

    def _written(self, place: GraphWorkspace, filled: int, waiting: bool) -> tuple[RunningBatch[Any] | None, dict[int, Any]]:
        """Some turns, until enough have finished: what goes on, and the results of the others."""
        desk, board = place.desk, place.board
        while True:
            place.work("turn", lambda: board.choose(desk.logits))()
            is_open = board.settle(desk.logits)
            if is_open is not None and not any(is_open):
                board.commit()
                break
            size = min(round_up(filled + 1, TOKEN_STEP), desk.capacity)
            place.work(size, lambda size=size: desk.step(*board.commit(), size))()  # type: ignore[misc]
            filled = min(filled + 1, desk.capacity)
            if is_open is None:
                continue
            if self._may_part(is_open, waiting):
                break
        return self._parted(place, is_open, filled)

    def _may_part(self, is_open: list[bool], waiting: bool) -> bool:
        """Whether so many have finished that the others go on without them."""
        left, most = sum(is_open), self.share.places
        few = SHRINK_SHARE * left <= len(is_open) or (waiting and REFILL_SHARE * (most - left) >= most)
        return left == 0 or (left < len(is_open) and few)

    def _parted(self, place: GraphWorkspace, is_open: list[bool], filled: int) -> tuple[RunningBatch[Any] | None, dict[int, Any]]:
        """What goes on, and the results of the others."""
        desk, board = place.desk, place.board
        gone = [number for number, still in enumerate(is_open) if not still]
        stay = [number for number, still in enumerate(is_open) if still]
        results = self._results(board, gone) if gone else {}
        if not stay:
            return None, results
        families = torch.tensor(stay, device=desk.positions.device)
        filled = min(filled, self.share.capacity)  # rows that had finished may have gone beyond it, these have not
        kept = desk.state(families, filled, self.share.capacity)
        return RunningBatch(board.batch(stay), kept, desk.logits[desk.rows(families)], None), results

    def _results(self, board: Any, gone: list[int]) -> dict[int, Any]:
        """Of those in these places of a board, who have finished."""
        return dict(self.course.search.results(board.batch(gone)))

    def _place(self, numbers: Sequence[int], state: DecoderState) -> GraphWorkspace:
        """Where these have room, rounded up."""
        search, kind = self.course.search, search_kind(self.course.search)
        families = 1 << (len(numbers) - 1).bit_length()
        capacity = round_up(self.share.capacity, TOKEN_STEP)
        context = state.stack.blocks[0].context
        sources = 0 if context is None else round_up(context.key.shape[-2], SOURCE_STEP)

        def make() -> GraphWorkspace:
            desk = StaticBuffers(self.course.model, state, families=families, width=search.width, capacity=capacity,
                        sources=sources)
            with torch.inference_mode(False):
                tokens = torch.zeros_like(desk.positions)
            return GraphWorkspace(desk, static_state_for(search, families, capacity, desk.logits.dtype), tokens, self.places.record)

        return self.places.find(_workspace_key(kind, families, capacity, sources, state), make)


def _workspace_key(kind: SearchKind | None, families: int, capacity: int, sources: int, state: DecoderState) -> Any:
    dtypes = tuple((block.mixer.key.dtype, block.mixer.key.shape[1:2]) for block in state.stack.blocks[:1])
    return kind, families, capacity, sources, dtypes
