"""Recorded searches by kernels of our own: the turn and the step of a token are one recording, of few kernels.

As `regard.decoding.graph_search`, with a desk whose steps are those of `regard.decoding.decoder_step`, and a ledger in place of a
board. Rows that change places move numbers of a table, and no keys; what became of a turn is asked for when the next is
under way; sources are projected in a recording; rows that are left over move from desk to desk. `why_not` says what is
done in the other way.

Legend: F prompts that are written at once, W hypotheses of each, R = F·W rows, C places of tokens, N places of a
source, G key heads, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.cache import Cache, ContextCache
from regard.blocks.block import BlockState
from regard.blocks.stack import StackState
from regard.decoding import decoder_step, search_state
from regard.decoding.cuda_graph import SOURCE_STEP, TOKEN_STEP, GraphWorkspace, round_up
from regard.decoding.decoder_step import FusedDecoder, LayerBuffers, StepRows
from regard.decoding.graph_search import GraphSearchRun
from regard.decoding.request import select_memory
from regard.decoding.scheduler import RunningBatch
from regard.decoding.search_state import search_state_for
from regard.decoding.static_state import context_per_source, search_kind
from regard.kernels import decoding as turns
from regard.models.contract import Memory
from regard.models.encoder_decoder import DecoderState


def why_not_fused(model: object, search: object) -> str | None:
    """Why a search that has a kind, of this model, does not run here; None where it does."""
    found = why_no_fused_model(model)
    return why_no_fused_search(search) if found is None else found


why_no_fused_model, why_no_fused_search = decoder_step.why_no_fused_step, search_state.why_no_kernel_search
"""The same of a model, whatever is searched, and of a search, whatever the model."""


class DecoderBuffers:
    """The state of a decoder: `families` of `width` rows, `capacity` tokens of each, sources of at most `sources`."""

    def __init__(self, model: Any, *, families: int, width: int, capacity: int, sources: int) -> None:
        decoder, rows = model.decoder, families * width
        self.families, self.width, self.capacity = families, width, capacity
        limit, like = decoder.embedding.limit, decoder.output.weight
        self.highest = (capacity if limit is None else min(limit, capacity)) - 1
        with torch.inference_mode(False), torch.no_grad():  # what is made in that mode cannot be written into outside
            self.stride = FusedDecoder(decoder, capacity)
            self.layers = [_layer_buffers(own, across, rows, families, capacity, sources, like)
                           for own, across in zip(self.stride.own, self.stride.across, strict=True)]
            wide = next((one.layer.context_width for one in self.stride.across if one is not None), 0)
            self.states = like.new_zeros(families, sources, wide)
            self.positions = torch.zeros(rows, dtype=torch.long, device=like.device)
            self.lengths = torch.zeros(families, dtype=torch.long, device=like.device)
            self.straight = torch.arange(rows, dtype=torch.int32, device=like.device).unsqueeze(-1)
            self.table = self.straight.repeat(1, capacity)
            self.logits = like.new_zeros(rows, decoder.output.out_features)
            self.rows_now = StepRows(self.positions, self.table, self.lengths, width)

    @property
    def bytes(self) -> int:
        """How much memory it holds."""
        parts = [part for layer in self.layers for part in layer if part is not None]
        return sum(part.nbytes for part in (*parts, self.states, self.logits)) + self.stride.bytes

    def begin(self, memory: Memory | None) -> None:
        """Take sources in that nobody has looked at; `project` does the rest, in a recording."""
        if memory is not None:
            rows, count = memory.states.shape[:2]
            self.states[:rows, :count] = memory.states
            if memory.lengths is None:
                self.lengths[:rows] = count
            else:
                self.lengths[:rows] = memory.lengths

    def project(self) -> None:
        """What all layers make of the sources, with the parameters as they are now; nothing is written yet."""
        self.positions.zero_()
        self.table.copy_(self.straight.expand_as(self.table))
        self.stride.refresh()
        if self.states.shape[1]:
            self.stride.project(self.states, self.layers)

    def load(self, state: DecoderState) -> int:
        """Take a state in, whose rows come in families; how many tokens its longest row has."""
        rows, filled = len(state.positions), 0
        self.stride.refresh()
        self.positions.zero_()
        self.positions[:rows] = state.positions.clamp(max=self.highest)
        self.table.copy_(self.straight.expand_as(self.table))
        for layer, block in zip(self.layers, state.stack.blocks, strict=True):
            cache, filled = block.mixer, block.mixer.filled
            for mine, theirs in ((layer.keys, cache.key), (layer.values, cache.value)):
                mine[:rows, :, :filled] = theirs[:, :, :filled]
            if block.context is not None and layer.context is not None:
                own = context_per_source(block.context, rows, self.width)
                families, count = len(own.key), own.key.shape[-2]
                beside = torch.cat([part.transpose(1, 2).flatten(2) for part in (own.key, own.value)], dim=-1)
                layer.context[:families, :count] = beside
                self.lengths[:families] = count if own.lengths is None else own.lengths
        return filled

    def take(self, other: "DecoderBuffers", families: Tensor, filled: int) -> None:
        """Take families of another desk of this model in, none of whose rows has more than `filled` tokens."""
        index, count = other.rows(families), len(families)
        rows, places = len(index), torch.arange(filled, device=index.device)
        lying_rc = other.table[index, :filled].long()
        self.stride.refresh()
        self.positions.zero_()
        self.positions[:rows] = other.positions[index]
        self.table.copy_(self.straight.expand_as(self.table))
        self.lengths[:count] = other.lengths[families]
        self.logits[:rows] = other.logits[index]
        for layer, theirs in zip(self.layers, other.layers, strict=True):
            layer.keys[:rows, :, :filled] = theirs.keys[lying_rc, :, places].transpose(1, 2)
            layer.values[:rows, :, :filled] = theirs.values[lying_rc, :, places].transpose(1, 2)
            if layer.context is not None and theirs.context is not None:
                layer.context[:count] = theirs.context[families]

    def put_logits(self, logits: Tensor) -> None:
        """The logits of the last step of a state that was taken in."""
        self.logits[:len(logits)] = logits

    def step(self, parents: Tensor | None, tokens: Tensor) -> None:
        """One token (R,) for each row, after those of the row that it continues (R,)."""
        if parents is not None:
            turns.reorder_table(self.table, parents, self.positions, self.width)
        self.stride.logits(tokens, self.layers, self.rows_now, self.logits)
        self.positions.add_(1).clamp_(max=self.highest)  # rows that have finished go on, within the storage

    def rows(self, families: Tensor) -> Tensor:
        """The rows of these families."""
        return (families.unsqueeze(-1) * self.width + torch.arange(self.width, device=families.device)).flatten()

    def state(self, families: Tensor, filled: int, capacity: int) -> DecoderState:
        """The state of these families, none of whose rows has more than `filled` tokens, in storage of its own."""
        index, blocks = self.rows(families), list[BlockState]()
        positions, places = self.positions[index], torch.arange(filled, device=families.device)
        lying_rc = self.table[index, :filled].long()
        lengths = self.lengths[families]
        for layer, across in zip(self.layers, self.stride.across, strict=True):
            kept = [part.new_zeros(len(index), part.shape[1], capacity, part.shape[-1])
                    for part in (layer.keys, layer.values)]
            for mine, theirs in zip(kept, (layer.keys, layer.values), strict=True):
                mine[:, :, :filled] = theirs[lying_rc, :, places].transpose(1, 2)
            context = None
            if layer.context is not None and across is not None:
                key, value = (part.transpose(1, 2).contiguous() for part in across.split(layer.context[families]))
                context = ContextCache.of(key, value, lengths, self.width)
            blocks.append(BlockState(Cache(kept[0], kept[1], positions, filled, uniform=False), context))
        return DecoderState(StackState(tuple(blocks)), positions, with_cross=False)


def _layer_buffers(own: decoder_step.FusedSelfAttention, across: decoder_step.FusedCrossAttention | None, rows: int, families: int, capacity: int, sources: int,
          like: Tensor) -> LayerBuffers:
    keys = like.new_zeros(rows, own.key_heads, capacity, own.width)
    values = like.new_zeros(rows, own.key_heads, capacity, own.value_width)
    if across is None:
        return LayerBuffers(keys, values, None)
    return LayerBuffers(keys, values, like.new_zeros(families, sources, across.key_heads * (across.width + across.value_width)))


class FusedSearchRun(GraphSearchRun):
    """A search over a share."""

    def _in_the_way(self, state: Any) -> bool:
        return False

    def _begun(self, numbers: list[int], waiting: bool) -> tuple[RunningBatch[Any] | None, dict[int, Any]] | None:
        course, request = self.course, self.course.request
        memory = select_memory(course.given, numbers)
        limit = course.model.decoder.embedding.limit  # type: ignore[attr-defined]
        if memory is None or (limit is not None and self.share.capacity > limit):
            # Without a source there is little to start; and who asks for too much is told so.
            course.model.start(memory, rows=len(numbers), capacity=self.share.capacity)
        place = self._room(len(numbers), 0 if memory is None else memory.states.shape[1])
        place.desk.begin(memory)
        place.board.begin(numbers, [request.prompts[number][0] for number in numbers], course.search)

        def begin() -> None:
            place.board.clear()
            place.desk.project()
            place.desk.step(None, place.tokens)

        place.work("begin", begin)()
        return self._written(place, 1, waiting)

    def _written(self, place: GraphWorkspace, filled: int, waiting: bool) -> tuple[RunningBatch[Any] | None, dict[int, Any]]:
        found = dict[int, Any]()
        while True:
            is_open, filled = self._turned(place, filled, waiting)
            if waiting or not any(is_open):
                rows, results = self._parted(place, is_open, filled)
                return rows, found | results
            found |= self._results(place.board, [number for number, still in enumerate(is_open) if not still])
            filled = min(filled, self.share.capacity)
            place = self._moved(place, [number for number, still in enumerate(is_open) if still], filled)

    def _turned(self, place: GraphWorkspace, filled: int, waiting: bool) -> tuple[list[bool], int]:
        """Some turns, until enough have finished: who has not, and how many tokens the longest row has."""
        desk, board = place.desk, place.board
        work = place.work("turn", lambda: desk.step(*board.turn(desk.logits)))
        while True:
            work()
            filled = min(filled + 1, desk.capacity)
            is_open = board.settle()
            if is_open is not None and self._may_part(is_open, waiting):
                # Who goes on has made the turn that was asked for meanwhile, and may have finished in it.
                return board.settled() if any(is_open) else is_open, filled

    def _moved(self, place: GraphWorkspace, stay: list[int], filled: int) -> GraphWorkspace:
        """Those in these places, in a smaller place."""
        smaller = self._room(len(stay), place.desk.states.shape[1])
        assert smaller is not place, "rows leave when few are left"
        families = torch.tensor(stay).to(place.desk.positions.device, non_blocking=True)
        smaller.desk.take(place.desk, families, filled)
        smaller.board.take(place.board, stay)
        return smaller

    def _results(self, board: Any, gone: list[int]) -> dict[int, Any]:
        return dict(board.results(gone, self.course.search))

    def _place(self, numbers: Sequence[int], state: DecoderState) -> GraphWorkspace:
        context = state.stack.blocks[0].context
        return self._room(len(numbers), 0 if context is None else context.key.shape[-2])

    def _room(self, count: int, longest: int) -> GraphWorkspace:
        """A place for so many prompts, the longest of whose sources has so many states."""
        search, model = self.course.search, self.course.model
        families, capacity = 1 << (count - 1).bit_length(), round_up(self.share.capacity, TOKEN_STEP)
        sources = round_up(longest, SOURCE_STEP)

        def make() -> GraphWorkspace:
            desk = DecoderBuffers(model, families=families, width=search.width, capacity=capacity, sources=sources)
            ledger = search_state_for(search, families, capacity, desk.logits)
            return GraphWorkspace(desk, ledger, ledger.tokens, self.places.record)

        like = model.decoder.output.weight  # type: ignore[attr-defined]
        return self.places.find(("swift", search_kind(search), families, capacity, sources, like.dtype), make)
