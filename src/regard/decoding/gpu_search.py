"""Searches on a GPU: one CUDA graph per token, for the decoder step and the search step together.

    why_not(model, request, search)              why a search runs as on any other device; None if it runs here
    run_on_gpu(model, sources, request, search)  the results of all sequences in their order, or None

Sequences enter and leave as in `regard.decoding.scheduler`. In between, the model's state is in `DecoderBuffers` and
the search's in a `SearchState`, whose tensors stay in place; Python only reads, one step late, whether sequences have
finished. Sizes are rounded up, so that few graphs serve many calls. The graphs of a model are kept with it, the most
recent ones, as long as they hold a small part of the memory and the model does not change
(`regard.decoding.cuda_graph`).

There are two kinds of buffers. With `FusedBuffers` the step is that of `regard.decoding.decoder_step`: rows that change
places move numbers of a table, not keys, and sources are projected inside a graph. `PlainBuffers` capture the step of
the model itself, for other scores and normalisers of attention. Results may differ from those of the plain search in
the last digits, as they do between batches of different sizes.

Legend: F sequences at once, W hypotheses of each, R = F·W rows, C token positions, N states of a source, G key heads,
D width, V vocabulary.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.cache import Cache, ContextCache, StaticCache, StaticMask
from regard.attention.layer import AttentionLayer, SelfAttention
from regard.attention.mask import Causal
from regard.attention.mask_cache import CachedMask
from regard.blocks.block import Block, BlockState
from regard.blocks.stack import StackState
from regard.decoding.cuda_graph import (
    SOURCE_STEP,
    GraphCache,
    GraphCapture,
    GraphWork,
    all_modules,
    graph_cache,
    has_hooks,
    model_unchanged,
    round_up,
)
from regard.decoding.decoder_step import FusedDecoder, LayerBuffers, StepRows, why_no_fused_step
from regard.decoding.gpu_state import SearchState, search_kind, search_state, why_no_gpu_state
from regard.decoding.request import SearchRequest, SourceInput, select_memory
from regard.decoding.scheduler import (
    REFILL_SHARE,
    RunningBatch,
    SearchResult,
    SearchRun,
    SearchStrategy,
    prompt_buckets,
)
from regard.mixer import RowGroups
from regard.models.contract import GenerativeModel, Memory
from regard.models.encoder_decoder import Decoder, DecoderState, EncoderDecoder
from regard.models.language import LanguageModel

TOKEN_STEP = 64
"""Numbers of token positions are rounded up to multiples of this."""
SHRINK_SHARE = 4
"""Sequences run together until one in this many is left: fewer rows are hardly faster on a GPU."""


def why_not(model: GenerativeModel, request: SearchRequest, search: object) -> str | None:
    """Why a search does not run here; None if it does."""
    if request.device.type != "cuda":
        return "the model is not on a GPU"
    if not isinstance(model, nn.Module):
        return "the model is not a module"
    if torch.is_autocast_enabled("cuda"):
        return "under autocast weights are converted at each step: model.bfloat16() converts them once"
    return why_no_gpu_state(search) or why_no_buffers(graph_cache(model), model)


def why_no_buffers(cache: GraphCache, model: GenerativeModel) -> str | None:
    """Why the steps of a model cannot be captured; None if they can."""
    if cache.answer("fused", lambda: why_no_fused_step(model)) is None:
        return None
    return cache.answer("plain", lambda: why_no_plain_step(model))


def why_no_plain_step(model: object) -> str | None:
    """Why the step of a model itself cannot be captured; None if it can."""
    if type(model) not in (EncoderDecoder, LanguageModel):
        return "the decoder of the model is not a stack of blocks"
    inside = all_modules(model.decoder)  # type: ignore[attr-defined]
    if has_hooks(inside):
        return "a module has hooks"
    for module in inside:
        if isinstance(module, Block) and (type(module.mixer) is not SelfAttention
                                          or type(module.mixer.mask) is not Causal):
            return "a block has a mixer other than causal self-attention"
        if isinstance(module, Block) and hasattr(module.feed_forward, "step"):
            return "a block has a feed-forward layer with a state of its own"
        if isinstance(module, AttentionLayer) and (module.position_bias is not None or module.tap.listeners):
            return "an attention layer has a position bias or a listener"
    return None


def run_on_gpu(model: Any, sources: SourceInput, request: SearchRequest,
               search: SearchStrategy[Any, SearchResult]) -> list[SearchResult] | None:
    """The results of all sequences in their order; None if the search cannot run here."""
    with model_unchanged(model):  # its fingerprint is compared once
        if why_not(model, request, search) is not None:
            return None
        return run_in_cache(graph_cache(model), model, sources, request, search)


def run_in_cache(cache: GraphCache, model: Any, sources: SourceInput, request: SearchRequest,
                 search: SearchStrategy[Any, SearchResult]) -> list[SearchResult]:
    """The results with the graphs of this cache, on the device of the model; threads take turns."""
    found = dict[int, SearchResult]()
    fused = cache.answer("fused", lambda: why_no_fused_step(model)) is None
    if request.prompts:
        with cache.entered(next(model.parameters())):
            for bucket in prompt_buckets(request, search.width):
                found |= GpuSearchRun(SearchRun(model, sources, request, search, bucket), cache, fused).run()
    return [found[sequence] for sequence in range(len(found))]


class DecoderBuffers:
    """The state of a decoder: `groups` of `width` rows of at most `capacity` tokens, and `sources` states of a source.

    Both kinds have these methods; rows beyond those that are used are computed too, and ignored.

        load(state)                      take over an ordinary state; the number of tokens of its longest row
        take(other, groups, filled)      take over groups of other buffers, of at most `filled` tokens
        project()                        captured: compute what new sources need, before the first step
        step(parents, tokens, window)    captured: one token (R,) for each row, after those of the row that it continues
        state(groups, filled, capacity)  these groups, of at most `filled` tokens, as an ordinary state
    """

    def __init__(self, decoder: Decoder, groups: int, width: int, capacity: int, sources: int) -> None:
        self.decoder, self.groups, self.width, self.capacity, self.sources = decoder, groups, width, capacity, sources
        limit, like, rows = decoder.embedding.limit, decoder.output.weight, groups * width
        self.last_position = (capacity if limit is None else min(limit, capacity)) - 1
        with torch.inference_mode(False), torch.no_grad():  # inference tensors cannot be written outside of that mode
            self.positions = torch.zeros(rows, dtype=torch.long, device=like.device)
            self.logits = like.new_zeros(rows, decoder.output.out_features)

    def load_logits(self, logits: Tensor) -> None:
        """Take over the logits of a state."""
        self.logits[:len(logits)] = logits

    def rows(self, groups: Tensor) -> Tensor:
        """The rows of these groups."""
        return (groups.unsqueeze(-1) * self.width + torch.arange(self.width, device=groups.device)).flatten()


class FusedBuffers(DecoderBuffers):
    """Buffers for the fused decoder step."""

    def __init__(self, decoder: Decoder, groups: int, width: int, capacity: int, sources: int) -> None:
        super().__init__(decoder, groups, width, capacity, sources)
        rows, like = groups * width, decoder.output.weight
        with torch.inference_mode(False), torch.no_grad():
            self.fused = FusedDecoder(decoder, capacity)
            self.layers = list[LayerBuffers]()
            for own, cross in zip(self.fused.self_attention, self.fused.cross_attention, strict=True):
                keys = like.new_zeros(rows, own.key_heads, capacity, own.width)
                values = like.new_zeros(rows, own.key_heads, capacity, own.value_width)
                context = None if cross is None else like.new_zeros(
                    groups, sources, cross.key_heads * (cross.width + cross.value_width))
                self.layers.append(LayerBuffers(keys, values, context))
            wide = next((one.layer.context_width for one in self.fused.cross_attention if one is not None), 0)
            self.states = like.new_zeros(groups, sources, wide)
            self.lengths = torch.zeros(groups, dtype=torch.long, device=like.device)
            self.own_rows = torch.arange(rows, dtype=torch.int32, device=like.device).unsqueeze(-1)
            self.table = self.own_rows.repeat(1, capacity)
            self.step_rows = StepRows(self.positions, self.table, self.lengths, width)

    @property
    def bytes(self) -> int:
        parts = [part for layer in self.layers for part in layer if part is not None]
        return sum(part.nbytes for part in (*parts, self.states, self.logits)) + self.fused.bytes

    def begin(self, memory: Memory | None) -> None:
        """Take over new sources; then `project`."""
        if memory is not None:
            rows, count = memory.states.shape[:2]
            self.states[:rows, :count] = memory.states
            if memory.lengths is None:
                self.lengths[:rows] = count
            else:
                self.lengths[:rows] = memory.lengths

    def window(self, filled: int) -> int:
        """All positions: the kernels read only those before a row's own, so one graph serves all lengths."""
        return self.capacity

    def project(self) -> None:
        """Captured: the keys and values of the sources in all layers, with the current parameters."""
        self._reset_rows()
        if self.states.shape[1]:
            self.fused.project(self.states, self.layers)

    def load(self, state: DecoderState) -> int:
        rows, filled = len(state.positions), 0
        self._reset_rows()
        self.positions[:rows] = state.positions.clamp(max=self.last_position)
        for layer, block in zip(self.layers, state.stack.blocks, strict=True):
            cache, filled = block.mixer, block.mixer.filled
            for mine, theirs in ((layer.keys, cache.key), (layer.values, cache.value)):
                mine[:rows, :, :filled] = theirs[:, :, :filled]
            if block.context is not None and layer.context is not None:
                own = context_per_group(block.context, rows, self.width)
                groups, count = len(own.key), own.key.shape[-2]
                joined = torch.cat([part.transpose(1, 2).flatten(2) for part in (own.key, own.value)], dim=-1)
                layer.context[:groups, :count] = joined
                self.lengths[:groups] = count if own.lengths is None else own.lengths
        return filled

    def take(self, other: "FusedBuffers", groups: Tensor, filled: int) -> None:
        index, count = other.rows(groups), len(groups)
        rows, places = len(index), torch.arange(filled, device=index.device)
        stored_rc = other.table[index, :filled].long()
        self._reset_rows()
        self.positions[:rows] = other.positions[index]
        self.lengths[:count] = other.lengths[groups]
        self.logits[:rows] = other.logits[index]
        for layer, theirs in zip(self.layers, other.layers, strict=True):
            layer.keys[:rows, :, :filled] = theirs.keys[stored_rc, :, places].transpose(1, 2)
            layer.values[:rows, :, :filled] = theirs.values[stored_rc, :, places].transpose(1, 2)
            if layer.context is not None and theirs.context is not None:
                layer.context[:count, :other.sources] = theirs.context[groups]

    def put(self, groups: Tensor, state: DecoderState) -> None:
        """Replace these groups; all rows of a group begin with the same row of an ordinary state."""
        rows, each = self.rows(groups), self.width
        self.positions[rows] = state.positions.repeat_interleave(each)
        self.table[rows] = self.own_rows[rows].expand(-1, self.capacity)
        for layer, block in zip(self.layers, state.stack.blocks, strict=True):
            filled = block.mixer.filled
            if filled:
                for mine, theirs in ((layer.keys, block.mixer.key), (layer.values, block.mixer.value)):
                    mine[rows, :, :filled] = theirs[:, :, :filled].repeat_interleave(each, 0).to(mine.dtype)
            if block.context is not None and layer.context is not None:
                own, count = block.context, block.context.key.shape[-2]
                joined = torch.cat([part.transpose(1, 2).flatten(2) for part in (own.key, own.value)], dim=-1)
                layer.context[groups, :count] = joined.to(layer.context.dtype)
                self.lengths[groups] = count if own.lengths is None else own.lengths

    def step(self, parents: Tensor | None, tokens: Tensor, window: int) -> None:
        from regard.kernels.decoding import reorder_table  # imports Triton

        if parents is not None:
            reorder_table(self.table, parents, self.positions, self.width)
        self.fused.logits(tokens, self.layers, self.step_rows, self.logits)
        self.positions.add_(1).clamp_(max=self.last_position)  # finished rows continue, within the storage

    def state(self, groups: Tensor, filled: int, capacity: int) -> DecoderState:
        index, blocks = self.rows(groups), list[BlockState]()
        positions, places = self.positions[index], torch.arange(filled, device=groups.device)
        stored_rc = self.table[index, :filled].long()
        lengths = self.lengths[groups]
        for layer, cross in zip(self.layers, self.fused.cross_attention, strict=True):
            kept = [part.new_zeros(len(index), part.shape[1], capacity, part.shape[-1])
                    for part in (layer.keys, layer.values)]
            for mine, theirs in zip(kept, (layer.keys, layer.values), strict=True):
                mine[:, :, :filled] = theirs[stored_rc, :, places].transpose(1, 2)
            context = None
            if layer.context is not None and cross is not None:
                key, value = (part.transpose(1, 2).contiguous() for part in cross.split(layer.context[groups]))
                context = ContextCache.of(key, value, lengths, self.width)
            blocks.append(BlockState(Cache(kept[0], kept[1], positions, filled, uniform=False), context))
        return DecoderState(StackState(tuple(blocks)), positions, with_cross=False)

    def _reset_rows(self) -> None:
        """Every row is empty and stored in its own place; the copied parameters are the current ones."""
        self.fused.refresh()
        self.positions.zero_()
        self.table.copy_(self.own_rows.expand_as(self.table))


class PlainBuffers(DecoderBuffers):
    """Buffers for the step of the model itself, created for states like a given one."""

    def __init__(self, decoder: Decoder, groups: int, width: int, capacity: int, sources: int,
                 like: DecoderState) -> None:
        super().__init__(decoder, groups, width, capacity, sources)

        def room(part: Tensor, first: int, places: int) -> Tensor:
            return torch.zeros(first, part.shape[1], places, part.shape[-1], dtype=part.dtype, device=part.device)

        rows = groups * width
        with torch.inference_mode(False), torch.no_grad():
            self.allowed = torch.zeros(groups, 1, 1, sources, dtype=torch.bool, device=self.positions.device)
            self.caches = [(room(one.mixer.key, rows, capacity), room(one.mixer.value, rows, capacity))
                           for one in like.stack.blocks]
            self.contexts = [None if one.context is None else (room(one.context.key, groups, sources),
                                                               room(one.context.value, groups, sources))
                             for one in like.stack.blocks]

    @property
    def bytes(self) -> int:
        parts = [part for pair in (*self.caches, *self.contexts) if pair is not None for part in pair]
        return sum(part.nbytes for part in (*parts, self.logits))

    def project(self) -> None:
        """Captured: nothing, since `load` has taken over the projected sources."""

    def window(self, filled: int) -> int:
        """The positions that a step reads if the longest row has `filled` tokens: a graph for each."""
        return min(round_up(filled + 1, TOKEN_STEP), self.capacity)

    def load(self, state: DecoderState) -> int:
        rows, filled = len(state.positions), 0
        self.positions.zero_()
        self.positions[:rows] = state.positions
        self.allowed.zero_()
        for pair, contexts, block in zip(self.caches, self.contexts, state.stack.blocks, strict=True):
            filled = block.mixer.filled
            for mine, theirs in zip(pair, (block.mixer.key, block.mixer.value), strict=True):
                mine[:rows, :, :filled] = theirs[:, :, :filled]
            if contexts is not None and block.context is not None:
                own = context_per_group(block.context, rows, self.width)
                groups, count = len(own.key), own.key.shape[-2]
                for mine, theirs in zip(contexts, (own.key, own.value), strict=True):
                    mine[:groups, :, :count], mine[:groups, :, count:] = theirs, 0.0
                places = torch.arange(count, device=self.positions.device)
                self.allowed[:groups, 0, 0, :count] = places < (count if own.lengths is None
                                                                else own.lengths.unsqueeze(-1))
        return filled

    def take(self, other: "PlainBuffers", groups: Tensor, filled: int) -> None:
        self.load(other.state(groups, filled, filled))
        self.load_logits(other.logits[other.rows(groups)])

    def step(self, parents: Tensor | None, tokens: Tensor, window: int) -> None:
        here = self.positions.clamp(max=self.last_position)  # finished rows continue, within the storage
        here = here if parents is None else here[parents]
        visible_RC = torch.arange(window, device=here.device) <= here.unsqueeze(-1)
        visible, allowed, blocks = StaticMask(visible_RC[:, None, None]), None, list[BlockState]()
        for (keys, values), context in zip(self.caches, self.contexts, strict=True):
            key, value = keys[:, :, :window], values[:, :, :window]
            if parents is not None:
                key.copy_(key[parents])
                value.copy_(value[parents])
            if context is not None and allowed is None:
                allowed = CachedMask(self.allowed)
            cross = None if context is None else ContextCache(*context, None, allowed, self.width)
            blocks.append(BlockState(StaticCache(key, value, here, window, False, visible), cross))
        step = self.decoder.step(DecoderState(StackState(tuple(blocks)), here, False), tokens.unsqueeze(-1))
        self.logits.copy_(step.logits[:, -1])
        self.positions.copy_(here + 1)

    def state(self, groups: Tensor, filled: int, capacity: int) -> DecoderState:
        index, blocks = self.rows(groups), list[BlockState]()
        positions, lengths = self.positions[index], self.allowed[groups].sum(dim=-1).flatten()
        for pair, contexts in zip(self.caches, self.contexts, strict=True):
            kept = [part.new_zeros(len(index), part.shape[1], capacity, part.shape[-1]) for part in pair]
            for mine, theirs in zip(kept, pair, strict=True):
                mine[:, :, :filled] = theirs[index, :, :filled]
            context = None
            if contexts is not None:
                context = ContextCache.of(contexts[0][groups], contexts[1][groups], lengths, self.width)
            blocks.append(BlockState(Cache(kept[0], kept[1], positions, filled, uniform=False), context))
        return DecoderState(StackState(tuple(blocks)), positions, with_cross=False)


def context_per_group(context: ContextCache, rows: int, width: int) -> ContextCache:
    """A context for each group of `width` rows."""
    if context.rows_per_context == width:
        return context
    return context.pick(torch.arange(0, rows, width, device=context.key.device))


@dataclass
class SearchWorkspace:
    """The buffers of the decoder, the state of the search, and the graphs that were captured with them."""

    buffers: Any
    search: SearchState
    capture: GraphCapture
    graphs: dict[Any, GraphWork] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The memory that the workspace holds."""
        return int(self.buffers.bytes) + self.search.bytes

    def begin(self) -> None:
        """The first step of new sequences: their prompts, of one token each."""
        window = self.buffers.window(0)
        if "begin" not in self.graphs:
            def first() -> None:
                self.search.clear()
                self.buffers.project()
                self.buffers.step(None, self.search.tokens, window)

            self.graphs["begin"] = self.capture(first)
        self.graphs["begin"]()

    def step(self, filled: int) -> None:
        """One step of the search and one of the decoder, whose longest row has `filled` tokens."""
        window = self.buffers.window(filled)
        if window not in self.graphs:
            self.graphs[window] = self.capture(
                lambda: self.buffers.step(*self.search.step(self.buffers.logits), window))
        self.graphs[window]()


Progress = tuple[RunningBatch[Any] | None, dict[int, Any]]
"""What continues, and the results of the sequences that have finished, by their numbers."""


@dataclass(frozen=True)
class GpuSearchRun:
    """The run of a search over one bucket."""

    base: SearchRun[Any, Any]
    """The scheduler's run, for prefill and for batches that are joined."""
    cache: GraphCache
    fused: bool

    def run(self) -> dict[int, Any]:
        """The results by the numbers of the sequences."""
        slots, waiting, found = self.base.bucket.slots, deque(self.base.bucket.sequences), dict[int, Any]()
        rows: RunningBatch[Any] | None = None
        while rows is not None or waiting:
            free = slots - (0 if rows is None else len(rows.batch.sequences))
            if rows is None and self._may_begin():
                sequences = self.base.next_sequences(waiting, free)
                rows, results = self._begin(sequences, bool(waiting))
                found |= results
                continue
            if waiting and (rows is None or REFILL_SHARE * free >= slots):
                others, _ = self.base.admit(waiting, free)
                rows = others if rows is None else self.base.concat(rows, others)
            assert rows is not None
            rows, results = self._continue(rows, bool(waiting))
            found |= results
        return found

    def _may_begin(self) -> bool:
        """Whether prompts need no prefill: each is one token."""
        request = self.base.request
        return request.num_samples == 1 and all(len(request.prompts[one]) == 1 for one in self.base.bucket.sequences)

    def _begin(self, sequences: list[int], waiting: bool) -> Progress:
        """Run new sequences."""
        request, count = self.base.request, len(sequences)
        memory = select_memory(self.base.sources, sequences)
        workspace = self._begin_fused(memory, count) if self.fused else self._begin_plain(memory, count)
        workspace.search.begin(sequences, [request.prompts[one][0] for one in sequences], self.base.search)
        workspace.begin()
        return self._generate(workspace, 1, waiting)

    def _begin_fused(self, memory: Memory | None, count: int) -> SearchWorkspace:
        model, capacity = self.base.model, self.base.bucket.capacity
        limit = model.decoder.embedding.limit  # type: ignore[attr-defined]
        if memory is None or (limit is not None and capacity > limit):
            # Without a source this is cheap; and a capacity beyond the limit is refused.
            model.start(memory, rows=count, capacity=capacity)
        workspace = self._workspace(count, 0 if memory is None else memory.states.shape[1])
        workspace.buffers.begin(memory)
        return workspace

    def _begin_plain(self, memory: Memory | None, count: int) -> SearchWorkspace:
        width = self.base.search.width
        state = self.base.model.start(memory, rows=count, capacity=self.base.bucket.capacity)
        if width > 1:
            each = torch.arange(count, device=self.base.request.device).repeat_interleave(width)
            state = state.pick(RowGroups(each, width, 1, each[::width]))
        workspace = self._workspace(count, 0 if memory is None else memory.states.shape[1], lambda: state)
        workspace.buffers.load(state)
        return workspace

    def _continue(self, rows: RunningBatch[Any], waiting: bool) -> Progress:
        """Run sequences that have a state."""
        context = rows.state.stack.blocks[0].context
        workspace = self._workspace(len(rows.batch.sequences), 0 if context is None else context.key.shape[-2],
                                    lambda: rows.state)
        filled = workspace.buffers.load(rows.state)
        workspace.buffers.load_logits(rows.logits)
        workspace.search.load(rows.batch, self.base.search)
        return self._generate(workspace, filled, waiting)

    def _generate(self, workspace: SearchWorkspace, filled: int, waiting: bool) -> Progress:
        """Run until all sequences have finished, or until enough have to let others enter."""
        found = dict[int, Any]()
        while True:
            running, filled = self._steps(workspace, filled, waiting)
            filled = min(filled, self.base.bucket.capacity)  # finished rows may be beyond it, running ones are not
            gone = [slot for slot, still in enumerate(running) if not still]
            stay = [slot for slot, still in enumerate(running) if still]
            if gone:
                found |= dict(workspace.search.results(gone, self.base.search))
            if not stay:
                return None, found
            if waiting:
                return self._unload(workspace, stay, filled), found
            workspace = self._shrink(workspace, stay, filled)

    def _steps(self, workspace: SearchWorkspace, filled: int, waiting: bool) -> tuple[list[bool], int]:
        """Some steps, until enough have finished: which slots are running, and the tokens of the longest row."""
        while True:
            workspace.step(filled)
            filled = min(filled + 1, workspace.buffers.capacity)
            running = workspace.search.poll()
            if running is not None and self._may_stop(running, waiting):
                # The others have made one more step meanwhile, and may have finished in it.
                return workspace.search.poll_now() if any(running) else running, filled

    def _may_stop(self, running: list[bool], waiting: bool) -> bool:
        """Whether enough sequences have finished to continue without them."""
        left, slots = sum(running), self.base.bucket.slots
        few = SHRINK_SHARE * left <= len(running) or (waiting and REFILL_SHARE * (slots - left) >= slots)
        return left == 0 or (left < len(running) and few)

    def _unload(self, workspace: SearchWorkspace, stay: list[int], filled: int) -> RunningBatch[Any]:
        """The sequences in these slots as an ordinary batch."""
        buffers = workspace.buffers
        groups = torch.tensor(stay, device=buffers.positions.device)
        state = buffers.state(groups, filled, self.base.bucket.capacity)
        return RunningBatch(workspace.search.batch(stay), state, buffers.logits[buffers.rows(groups)], None)

    def _shrink(self, workspace: SearchWorkspace, stay: list[int], filled: int) -> SearchWorkspace:
        """Move the sequences in these slots to a smaller workspace."""
        buffers = workspace.buffers
        groups = torch.tensor(stay).to(buffers.positions.device, non_blocking=True)
        smaller = self._workspace(len(stay), buffers.sources, lambda: buffers.state(groups[:1], 0, 1))
        assert smaller is not workspace, "sequences leave when few are left"
        smaller.buffers.take(buffers, groups, filled)
        smaller.search.take(workspace.search, stay)
        return smaller

    def _workspace(self, count: int, longest: int, like: Callable[[], DecoderState] | None = None) -> SearchWorkspace:
        """A workspace for `count` sequences of at most `longest` source states; plain ones are made `like` a state."""
        search, width = self.base.search, self.base.search.width
        decoder: Decoder = self.base.model.decoder  # type: ignore[attr-defined]
        groups, capacity = 1 << (count - 1).bit_length(), round_up(self.base.bucket.capacity, TOKEN_STEP)
        # A plain step needs a position to attend to, even if all sources are empty.
        sizes = (groups, width, capacity, round_up(longest if self.fused else max(1, longest), SOURCE_STEP))

        def make() -> SearchWorkspace:
            if self.fused:
                buffers: DecoderBuffers = FusedBuffers(decoder, *sizes)
            else:
                assert like is not None
                buffers = PlainBuffers(decoder, *sizes, like())
            return SearchWorkspace(buffers, search_state(search, groups, capacity, buffers.logits), self.cache.capture)

        found: SearchWorkspace = self.cache.find(
            (self.fused, search_kind(search), *sizes, decoder.output.weight.dtype), make)
        return found
