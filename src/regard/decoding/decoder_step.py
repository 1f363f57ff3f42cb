"""Fast decoder steps of a Transformer: what `Decoder.step` computes for one token of each row, in few operations.

A `DecoderPlan` lists the sublayers of a decoder once. Two steps are made from it:

    with packed_linear_layers(model):
        model = packed_decoder(model)       on a CPU: a model with faster steps, or the model itself

    step = FusedDecoder(decoder, capacity)  on a GPU, with Triton
    step.refresh()                          copy the parameters, which may have been written in place
    step.project(states, buffers)           keys and values of all sources (F, N, D) into the buffers of the layers
    step.logits(tokens, buffers, rows, out) one token for each row, logits into (R, V)

A step of one row is some 150 small operations of a few microseconds; calling them through modules, masks and the choice
of a backend takes several times as long. In both steps, queries, keys and values of a layer are one matrix product,
ReLU is part of the product before it, and positions are read from a table. On a CPU weights are packed (see
`regard.kernels.packed_linear`), the states are those of the model, so that the scheduler moves rows as usual, and the
hypotheses of a beam search share the keys of common tokens (see `regard.decoding.beam_cache`). On a GPU the residual
connection and the norm are one kernel, and rows are read through a table (see `regard.kernels.decode_attention`).

Both serve decoders of `Attention` layers with dot products and softmax, in blocks with norms; `why_no_packed_step` and
`why_no_fused_step` say what is in the way. They know no searches.

Legend: R rows, P = max(R, 4) rows that a CPU multiplies, F sources, N states of a source, C token positions, H heads,
G key heads, D width, E width of the values, V vocabulary.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as embedding_rows
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.attention.cache import Cache
from regard.attention.layer import Attention, SelfAttention
from regard.attention.mask import Causal
from regard.attention.normalize import Softmax
from regard.attention.score import Dot, as_score
from regard.blocks.block import Block, BlockState
from regard.blocks.feed_forward import FeedForward, PlainFeedForward
from regard.blocks.stack import Stack, StackState
from regard.blocks.sublayer import Dropout, PostNorm, PreNorm
from regard.decoding.beam_cache import KEY_MULTIPLE, RUN_BYTES, BeamCache, BeamSlots, attend_runs
from regard.decoding.cuda_graph import all_modules, has_hooks
from regard.kernels import launch
from regard.kernels.linear import Linear
from regard.kernels.packed_linear import (
    PACKED_WEIGHTS,
    PackedForward,
    autocast_or_compiling,
    is_packed,
    pad_rows,
    single_threaded,
)
from regard.mixer import RowGroups
from regard.models.contract import GenerativeModel, Memory, Step
from regard.models.embedding import Embedding
from regard.models.encoder_decoder import Decoder, DecoderState, EncoderDecoder
from regard.models.language import LanguageModel
from regard.position.encoding import AddPositions, LearnedEncoding

MAX_HEAD_WIDTH = 256
"""The widest head that the attention kernels take."""
SELF, CROSS, FEED_FORWARD = range(3)
"""Kinds of sublayers."""


class PlannedSublayer(NamedTuple):
    """A sublayer of a decoder."""

    block: int
    kind: int
    module: Any
    """The attention layer or the feed-forward module."""
    norm: Any


class DecoderPlan:
    """The sublayers of a decoder in the order of a step."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.embedding, self.last_norm = decoder, decoder.embedding, decoder.stack.last_norm
        self.sublayers = list[PlannedSublayer]()
        for number, block in enumerate(decoder.stack.blocks):
            assert isinstance(block, Block)
            parts: list[tuple[int, Any, Any]] = [(SELF, block.mixer.layer, block.around_mixer),
                                                 (CROSS, block.cross, block.around_cross),
                                                 (FEED_FORWARD, block.feed_forward, block.around_feed_forward)]
            self.sublayers += [PlannedSublayer(number, kind, module, around.norm)
                               for kind, module, around in parts if module is not None and around is not None]
            self.pre_norm = isinstance(block.around_mixer, PreNorm)


class StepAttention:
    """The sizes and the scale of an attention layer."""

    def __init__(self, layer: Attention) -> None:
        self.layer, self.heads, self.key_heads = layer, layer.heads, layer.key_heads
        self.width = layer.query.out_features // layer.heads
        self.value_width = layer.value.out_features // layer.key_heads
        score = as_score(layer.score)
        assert isinstance(score, Dot)
        self.scale = score.scale(self.width)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer and nothing else: its product may be computed from its parameters."""
    return type(module) in (nn.Linear, Linear)


def why_no_plan(decoder: Decoder) -> str | None:
    """Why a decoder is more than an embedding, blocks that a `DecoderPlan` knows, and a linear output layer."""
    if type(decoder) is not Decoder or type(decoder.stack) is not Stack or not is_plain_linear(decoder.output):
        return "the decoder, its stack or its output layer is of another class"
    return next((found for found in map(why_no_block, decoder.stack.blocks) if found is not None), None)


def why_no_block(block: nn.Module, causal: bool = True) -> str | None:
    """Why a block is more than attention with dot products and softmax, norms and a feed-forward sublayer.

    Args:
        causal: whether its mask must be `Causal`; otherwise it must have none.
    """
    if type(block) is not Block:
        return f"a block is a {type(block).__name__}"
    if type(block.mixer) is not SelfAttention or type(block.mixer.mask) is not (Causal if causal else type(None)):
        wanted = "causal self-attention" if causal else "self-attention without a mask"
        return f"a block has a mixer other than {wanted}"
    if block.feed_forward is not None and not isinstance(block.feed_forward, FeedForward):
        return "a block has an unknown feed-forward module"
    for around in (block.around_mixer, block.around_cross, block.around_feed_forward):
        if around is not None and (type(around) not in (PreNorm, PostNorm) or type(around.dropout) is not Dropout):
            return "a block has no norms, or another module in the place of one"
    layers = [block.mixer.layer, *([] if block.cross is None else [block.cross])]
    return next((found for found in map(_why_no_layer, layers) if found is not None), None)


def _why_no_layer(layer: nn.Module) -> str | None:
    if type(layer) is not Attention or layer.position_bias is not None or layer.tap.listeners:
        return "an attention layer has a position bias, a listener, or projections of another kind"
    projections = (layer.query, layer.key, layer.value, layer.output, *([] if layer.gate is None else [layer.gate]))
    if not all(map(is_plain_linear, projections)):
        return "a projection of an attention layer is not a plain linear layer"
    score = as_score(layer.score)
    if not isinstance(score, Dot):
        return f"an attention layer has the score {score!r}"
    if type(layer.normalize) is not Softmax:
        return f"an attention layer has the normaliser {layer.normalize!r}"
    widest = max(layer.query.out_features // layer.heads, layer.value.out_features // layer.key_heads)
    return f"its heads are {widest} wide, above the limit of {MAX_HEAD_WIDTH}" if widest > MAX_HEAD_WIDTH else None


def is_simple_embedding(embedding: Embedding) -> bool:
    """Whether an embedding is the sum of a token vector and a position vector, and nothing more."""
    added = embedding.positions is None or type(embedding.positions) is AddPositions
    table = type(embedding.tokens) is nn.Embedding and embedding.tokens.max_norm is None
    ours = type(embedding) is Embedding and type(embedding.dropout) is Dropout  # not a module that a user has replaced
    return added and table and ours and embedding.segments is None and embedding.norm is None


def position_table(embedding: Embedding, count: int) -> Tensor | None:
    """The vectors of the first positions, (count, D); None where an embedding has none, or is not simple."""
    if embedding.positions is None or not is_simple_embedding(embedding):
        return None
    encoding = embedding.positions.encoding
    if isinstance(encoding, LearnedEncoding):
        return encoding.table.detach()  # the parameter itself: it may be written in place
    like = embedding.tokens.weight
    vectors = encoding(torch.arange(count, device=like.device), like.dtype)
    return vectors.expand(-1, like.shape[1]).contiguous()


def why_no_packed_step(model: object) -> str | None:
    """Why a model has no packed steps; None if it has. It holds inside of `packed_linear_layers`."""
    if type(model) not in (EncoderDecoder, LanguageModel):
        return "the model is neither an EncoderDecoder nor a LanguageModel"
    assert isinstance(model, EncoderDecoder | LanguageModel)
    return (why_not_packed(model.decoder) or why_no_plan(model.decoder)
            or next((found for found in map(why_no_equal_widths, model.decoder.stack.blocks) if found), None))


def why_not_packed(part: nn.Module) -> str | None:
    """Why parts of a model cannot be replaced by products with packed weights; None if they can."""
    inside = all_modules(part)
    if torch.is_grad_enabled() or autocast_or_compiling():
        return "gradients, autocast or compilation are on"
    if not all(is_packed(one) for one in inside if isinstance(one, nn.Linear)):
        return "a linear layer is not packed"
    if has_hooks(inside) or any(one.training or "parametrizations" in one._modules for one in inside):
        return "a module has hooks, is in training mode, or has a parametrization"
    if any(not isinstance(vars(one).get("forward", None), PackedForward | None) for one in inside):
        return "a forward function was replaced"
    return None


def why_no_equal_widths(block: Any) -> str | None:
    """Why the products of a block's attention cannot be split into heads of one width; None if they can."""
    layers = map(StepAttention, [block.mixer.layer, *([] if block.cross is None else [block.cross])])
    return "values and keys have different widths" if any(one.width != one.value_width for one in layers) else None


def packed_decoder(model: GenerativeModel) -> GenerativeModel:
    """The model with packed steps if it can have them, otherwise the model itself."""
    return model if why_no_packed_step(model) is not None else PackedDecoder(model)  # type: ignore[arg-type]


class PackedDecoder:
    """A model whose steps of one token are packed, inside of `packed_linear_layers`."""

    def __init__(self, model: EncoderDecoder | LanguageModel) -> None:
        plan = DecoderPlan(model.decoder)
        self.model, self.training, self.embedding, self.pre_norm = model, model.training, plan.embedding, plan.pre_norm
        self.sublayers = [(one, PACKED_SUBLAYERS[one.kind](one.module), norm_function(one.norm))
                          for one in plan.sublayers]
        self.last_norm = None if plan.last_norm is None else norm_function(plan.last_norm)
        self.output, self.simple_embedding = PackedProduct(plan.decoder.output), is_simple_embedding(plan.embedding)
        self.positions: Tensor | None = None

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> Any:
        """The start of the model, with contexts of as many states as attention is fast for."""
        state = self.model.start(memory, rows=rows, capacity=capacity, cross=cross)
        if cross:  # the weights returned have a column for each state
            return state
        blocks = (replace(block, context=None if block.context is None else block.context.padded(KEY_MULTIPLE))
                  for block in state.stack.blocks)
        return replace(state, stack=StackState(tuple(blocks)))

    def share(self, state: DecoderState, rows: RowGroups) -> BeamCache:
        """The hypotheses that continue the rows of a state, with common tokens stored once, for steps of one token."""
        return BeamCache.of(state, rows)

    def step(self, state: DecoderState | BeamCache, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """The step of the model. The model itself takes several tokens."""
        if isinstance(state, BeamCache):
            following, slots = state.next_slots()
            return Step(self._logits(ids, following.blocks, state.positions, slots, state.capacity), following)
        if lengths is not None or state.with_cross or ids.shape[1] != 1 or not len(ids):
            return self.model.step(state, ids, lengths)
        blocks: tuple[BlockState, ...] = state.stack.blocks
        cache = blocks[0].mixer
        after = cache.filled_after(1)
        at = cache.filled if cache.uniform else RowPositions(state.positions, after)
        logits, positions = self._logits(ids, blocks, state.positions, at, cache.capacity), state.positions + 1
        moved = (BlockState(Cache(own.mixer.key, own.mixer.value, positions, after, cache.uniform), own.context)
                 for own in blocks)
        return Step(logits, DecoderState(StackState(tuple(moved)), positions, state.with_cross))

    def _logits(self, ids: Tensor, blocks: tuple[BlockState, ...], positions: Tensor, at: "TokenPositions",
                capacity: int) -> Tensor:
        """The logits (R, 1, V) after tokens at `positions`, whose keys and values are written into the blocks."""
        x = pad_rows(self._embed(ids, positions, at, capacity))
        for one, sublayer, norm in self.sublayers:
            own = blocks[one.block]
            if one.kind == CROSS and own.context is None:
                continue
            if self.pre_norm:
                x = x + sublayer(norm(x), own, positions, at)
            else:
                x = norm(x + sublayer(x, own, positions, at))
        x = x if self.last_norm is None else self.last_norm(x)
        return self.output.first(x, len(ids)).unsqueeze(1)

    def _embed(self, ids: Tensor, positions: Tensor, at: "TokenPositions", capacity: int) -> Tensor:
        """The vectors (R, D) of tokens at position `at` of `capacity`."""
        if not self.simple_embedding:
            return self.embedding(ids, positions.unsqueeze(-1)).squeeze(1)
        x, factor = embedding_rows(ids.squeeze(1), self.embedding.tokens.weight), self.embedding.factor
        if self.embedding.positions is None:
            return x if factor == 1.0 else x * factor
        last = at if isinstance(at, int) else at.filled - 1
        if self.positions is None or len(self.positions) <= last:
            self.positions = position_table(self.embedding, capacity)
            assert self.positions is not None
        return torch.add(self.positions[at if isinstance(at, int) else at.rows], x, alpha=factor)


class RowPositions:
    """Rows at different positions: where each one writes its key, and which keys it attends to."""

    def __init__(self, positions: Tensor, filled: int) -> None:
        self.rows, self.filled = positions, filled
        self._indices = dict[tuple[int, int], Tensor]()
        places = torch.arange(filled, device=positions.device)
        hidden = (places > positions.unsqueeze(-1))[:, None, None]
        # Attention would convert a bool mask in every layer; packed weights are in float32.
        self.mask = torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, -torch.inf)
        """(R, 1, 1, filled): 0 for the keys of a row, −∞ for others."""
        self.runs = [(position, len([*some])) for position, some in groupby(positions.tolist())]
        """Positions, and how many consecutive rows, such as the hypotheses of one sequence, are at each of them."""
        self.sizes = [count for _, count in self.runs]
        self.hidden = sum(count * (filled - 1 - position) for position, count in self.runs)

    def indices(self, heads: int, capacity: int) -> Tensor:
        """(R · heads,): where the tokens are in storage (R, heads, capacity, width), viewed as (-1, width).

        Layers of one shape share them.
        """
        found = self._indices.get((heads, capacity))
        if found is None:
            heads_RH = torch.arange(len(self.rows) * heads, device=self.rows.device).view(-1, heads)
            found = self._indices[heads, capacity] = (heads_RH * capacity + self.rows.unsqueeze(-1)).flatten()
        return found

    def attend(self, layer: "PackedAttention", query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The attention of rows (R, H, 1, D) to keys (R, G, C, D): at once under a mask, or where that would read too
        much of what it hides, run by run."""
        if self.hidden * (key.shape[1] * key.shape[3] * 2) * key.element_size() < RUN_BYTES * len(self.runs):
            return layer.attend(query, key[:, :, :self.filled], value[:, :, :self.filled], self.mask)
        parts = zip(self.runs, *(part.split(self.sizes) for part in (query, key, value)), strict=True)
        return torch.cat([layer.attend(some, keys.narrow(2, 0, position + 1), values.narrow(2, 0, position + 1))
                          for (position, _), some, keys, values in parts])


TokenPositions = int | RowPositions | BeamSlots
"""Where the tokens of a step are: all at one position, rows at different ones, or hypotheses that share tokens."""


class PackedProduct:
    """A linear layer, or several with one input, with packed weights: (P, in) -> (P, out)."""

    def __init__(self, *layers: nn.Linear) -> None:
        self.packed, self.weights = PACKED_WEIGHTS.of(*layers), [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers]
        self.bias = biases[0] if len(layers) == 1 or biases[0] is None else torch.cat(biases)

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        return self.packed.product(x, self.weights, self.bias, activation)

    def first(self, x: Tensor, rows: int) -> Tensor:
        """The product of the first rows only."""
        if rows == 1 and single_threaded():
            return self.packed.single(x[:1], self.weights, self.bias)
        return self(x)[:rows]


class PackedAttention(StepAttention):
    """An attention layer of a packed step."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.output = PackedProduct(layer.output)
        self.gate = None if layer.gate is None else PackedProduct(layer.gate)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """(F, H, N, D) -> (F, H, N, D)."""
        return scaled_dot_product_attention(query, key, value, mask, scale=self.scale,
                                            enable_gqa=self.heads != self.key_heads)

    def merge(self, attended: Tensor, x: Tensor) -> Tensor:
        """(R, H, 1, D) or (R, H · D) -> (P, width of the model), gated by the input x (P, width) if there is a gate."""
        flat = attended.flatten(1)
        return self.output(flat if self.gate is None else flat * self.gate(x)[:len(flat)].sigmoid())


class PackedSelfAttention(PackedAttention):
    """Self-attention of a packed step. It writes into the cache."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.rotary, self.joined = layer.rotary, PackedProduct(layer.query, layer.key, layer.value)

    def __call__(self, x: Tensor, state: BlockState, positions: Tensor, at: TokenPositions) -> Tensor:
        """The output for tokens at `positions` (R,), which are all `at` if that is a number."""
        cache, rows = state.mixer, len(positions)
        heads = self.joined(x)[:rows].view(rows, -1, 1, self.width)
        if self.rotary is not None:
            turned = self.heads + self.key_heads
            heads = torch.cat([self.rotary(heads[:, :turned], positions.unsqueeze(-1)), heads[:, turned:]], 1)
        if isinstance(at, BeamSlots):
            return self.merge(at.attend(self.attend, cache, heads[:, :self.heads], heads[:, self.heads:]), x)
        query, key, value = heads.split((self.heads, self.key_heads, self.key_heads), 1)
        if not isinstance(at, int):
            cache.clear(at.filled - 1, at.filled)  # no row has had a token there
            places = at.indices(self.key_heads, cache.capacity)
            cache.key.view(-1, self.width).index_copy_(0, places, key.reshape(-1, self.width))
            cache.value.view(-1, self.width).index_copy_(0, places, value.reshape(-1, self.width))
            return self.merge(at.attend(self, query, cache.key, cache.value), x)
        cache.key[:, :, at:at + 1] = key
        cache.value[:, :, at:at + 1] = value
        return self.merge(self.attend(query, cache.key[:, :, :at + 1], cache.value[:, :, :at + 1]), x)


class PackedCrossAttention(PackedAttention):
    """Cross-attention of a packed step."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.query = PackedProduct(layer.query)

    def __call__(self, x: Tensor, state: BlockState, positions: Tensor, at: TokenPositions) -> Tensor:
        context = state.context
        assert context is not None
        rows, each, mask = len(positions), context.rows_per_context, context.mask
        query = self.query(x)[:rows]
        if not context.key.shape[-2]:
            return self.merge(torch.zeros_like(query), x)  # no source has states
        query = query.view(-1, each, self.heads, self.width).transpose(1, 2)
        if isinstance(at, BeamSlots) and mask is not None:
            attended = attend_runs(self.attend, query, context.key, context.value, mask.opened, at.context_runs)
        else:
            attended = self.attend(query, context.key, context.value, None if mask is None else mask.opened)
            attended = attended.transpose(1, 2).flatten(2)
        if mask is not None and mask.blind is not None:
            attended = attended.masked_fill(mask.blind.squeeze(-1), 0.0)
        return self.merge(attended.reshape(rows, -1), x)


PackedSublayer = Callable[[Tensor, BlockState, Tensor, TokenPositions], Tensor]


def packed_feed_forward(module: FeedForward) -> Callable[[Tensor], Tensor]:
    """A feed-forward layer with packed weights; ReLU is part of the product before it."""
    if not _is_plain_feed_forward(module):
        return module
    assert isinstance(module, PlainFeedForward)
    up, down, activation = PackedProduct(module.up), PackedProduct(module.down), module.activation
    if module.activation_name == "relu":
        return lambda x: down(up(x, "relu"))
    return lambda x: down(activation(up(x)))


def _feed_forward_step(module: FeedForward) -> PackedSublayer:
    """The feed-forward sublayer of a packed step, which needs no state."""
    layer = packed_feed_forward(module)
    return lambda x, state, positions, at: layer(x)


def _is_plain_feed_forward(module: nn.Module) -> bool:
    """Whether a feed-forward layer is two products and an activation, with no module that a user has replaced."""
    return (type(module) is PlainFeedForward and type(module.dropout) is Dropout
            and all(map(is_plain_linear, (module.up, module.down))))


PACKED_SUBLAYERS: dict[int, Callable[[Any], PackedSublayer]] = {
    SELF: PackedSelfAttention, CROSS: PackedCrossAttention, FEED_FORWARD: _feed_forward_step}


def norm_function(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A norm as a function; a layer norm without the overhead of its module."""
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
    return norm


class LayerBuffers(NamedTuple):
    """The keys and values that one block remembers in fused steps."""

    keys: Tensor
    """(R, G, C, D)"""
    values: Tensor
    """(R, G, C, E)"""
    context: Tensor | None
    """(F, N, G · D + G · E): keys and values of the sources side by side."""


class StepRows(NamedTuple):
    """The positions of the rows of a fused step."""

    positions: Tensor
    """(R,)"""
    table: Tensor
    """(R, C): the row of the buffers that holds each token of a row."""
    lengths: Tensor
    """(F,): the lengths of the sources."""
    width: int
    """The number of consecutive rows that share a source."""


def why_no_fused_step(model: object) -> str | None:
    """Why a model has no fused steps; None if it has."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):
        return "the decoder of the model is not a stack of blocks"
    found = launch.why_not(decoder.output.weight.device)
    if found is not None:
        return found
    inside = all_modules(decoder)
    if has_hooks(inside) or any(one.training for one in inside):
        return "a module has hooks, or is in training mode"
    if any("forward" in vars(one) or "parametrizations" in one._modules for one in inside):
        return "a forward function was replaced, or a module has a parametrization"
    return why_no_plan(decoder) or next((found for found in map(_why_no_norm, decoder.stack.blocks)
                                         if found is not None), None)


def _why_no_norm(block: Any) -> str | None:
    from regard.kernels.decoder_rows import why_not_norm  # imports Triton

    arounds = (block.around_mixer, block.around_cross, block.around_feed_forward)
    return next((found for around in arounds if around is not None
                 if (found := why_not_norm(around.norm)) is not None), None)


class FusedDecoder:
    """The fused steps of a decoder; rows may be at any of the first `capacity` positions."""

    def __init__(self, decoder: Decoder, capacity: int) -> None:
        self.plan = plan = DecoderPlan(decoder)
        self.sublayers = [(one, FUSED_SUBLAYERS[one.kind](one.module)) for one in plan.sublayers]
        self.self_attention: list[FusedSelfAttention] = [part for one, part in self.sublayers if one.kind == SELF]
        self.cross_attention: list[FusedCrossAttention | None] = [None] * len(decoder.stack.blocks)
        for one, part in self.sublayers:
            if one.kind == CROSS:
                self.cross_attention[one.block] = part
        joined = [*self.self_attention, *(one for one in self.cross_attention if one is not None)]
        pairs = [pair for one in joined for pair in one.joined.copies()]
        self.copies, self.originals = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.positions = position_table(decoder.embedding, capacity)
        self.refresh()

    @property
    def bytes(self) -> int:
        """The memory of the copied parameters."""
        return sum(part.nbytes for part in self.copies)

    def refresh(self) -> None:
        """Copy the parameters that are joined into one matrix."""
        torch._foreach_copy_(self.copies, self.originals)

    def project(self, states: Tensor, buffers: list[LayerBuffers]) -> None:
        """Write the keys and values of sources (F, N, D of the encoder) into the buffers of all layers."""
        flat = states.flatten(0, 1)
        for cross, layer in zip(self.cross_attention, buffers, strict=True):
            if cross is not None and layer.context is not None:
                _matmul_into(flat, cross.joined.weight, cross.joined.bias, layer.context.flatten(0, 1))

    def logits(self, tokens: Tensor, buffers: list[LayerBuffers], rows: StepRows, output: Tensor) -> None:
        """Write the logits (R, V) after one token (R,) of each row into `output`."""
        from regard.kernels.decoder_rows import add_norm_rows  # imports Triton

        x, last, decoder = self._embed(tokens, rows.positions), self.plan.last_norm, self.plan.decoder
        if self.plan.pre_norm:
            norms = [*(one.norm for one, _ in self.sublayers[1:]), last]
            now = add_norm_rows(x, None, self.sublayers[0][0].norm)
            for (one, sublayer), norm in zip(self.sublayers, norms, strict=True):
                added = sublayer(now.norm, buffers[one.block], rows)
                if norm is not None:
                    now = add_norm_rows(now.sum, added, norm)
                else:
                    now = now._replace(norm=now.sum + added)
            x = now.norm
        else:
            for one, sublayer in self.sublayers:
                x = add_norm_rows(x, sublayer(x, buffers[one.block], rows), one.norm).norm
            x = x if last is None else add_norm_rows(x, None, last).norm  # type: ignore[arg-type]
        _matmul_into(x, decoder.output.weight, decoder.output.bias, output)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        from regard.kernels.decoder_rows import embed_rows

        embedding = self.plan.embedding
        if not is_simple_embedding(embedding):
            return embedding(tokens.unsqueeze(-1), positions.unsqueeze(-1)).squeeze(1)
        return embed_rows(tokens, positions, embedding.tokens.weight, self.positions, embedding.factor)


class JoinedLinear:
    """Several linear layers with one input as one matrix product, with copied parameters."""

    def __init__(self, *layers: nn.Linear) -> None:
        like, count = layers[0].weight, sum(layer.out_features for layer in layers)
        self.layers, self.weight = layers, like.new_zeros(count, like.shape[1])
        self.bias = None if layers[0].bias is None else like.new_zeros(count)

    def copies(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Pairs of a part of the joined parameters and the parameter that is copied into it."""
        sizes = [layer.out_features for layer in self.layers]
        pairs = list(zip(self.weight.split(sizes), [layer.weight.detach() for layer in self.layers], strict=True))
        if self.bias is not None:
            pairs += zip(self.bias.split(sizes), [layer.bias.detach() for layer in self.layers], strict=True)
        return pairs

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FusedAttention(StepAttention):
    """An attention layer of a fused step."""

    joined: JoinedLinear

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (..., G, D) and values (..., G, E) that lie side by side, (..., G · D + G · E)."""
        keys = self.key_heads * self.width
        return x[..., :keys].unflatten(-1, (self.key_heads, -1)), x[..., keys:].unflatten(-1, (self.key_heads, -1))

    def merge(self, attended: Tensor, x: Tensor) -> Tensor:
        """(R, H, E) -> (R, width of the model), gated by the input x (R, width) where the layer has a gate."""
        flat, gate = attended.flatten(1), self.layer.gate
        return self.layer.output(flat if gate is None else flat * gate(x).sigmoid())


class FusedSelfAttention(FusedAttention):
    """Self-attention of a fused step."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.joined = JoinedLinear(layer.query, layer.key, layer.value)

    def __call__(self, x: Tensor, buffers: LayerBuffers, rows: StepRows) -> Tensor:
        """The output for one token of each row; its key and value are written into the buffers."""
        from regard.kernels.decode_attention import self_attention_step  # imports Triton

        made = self.joined(x)
        query = made[:, :self.heads * self.width].unflatten(-1, (self.heads, -1))
        key, value = self.split(made[:, self.heads * self.width:])
        if self.layer.rotary is not None:
            places = rows.positions.unsqueeze(-1)
            query, key = (self.layer.rotary(part.unsqueeze(2), places).squeeze(2).contiguous()
                          for part in (query, key))
        attended = self_attention_step(query, key, value, buffers.keys, buffers.values, rows.table, rows.positions,
                                       self.scale)
        return self.merge(attended, x)


class FusedCrossAttention(FusedAttention):
    """Cross-attention of a fused step."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.joined = JoinedLinear(layer.key, layer.value)

    def __call__(self, x: Tensor, buffers: LayerBuffers, rows: StepRows) -> Tensor:
        from regard.kernels.decode_attention import cross_attention_step

        assert buffers.context is not None
        query = self.layer.query(x).unflatten(-1, (self.heads, -1))
        attended = cross_attention_step(query, *self.split(buffers.context), rows.lengths, rows.width, self.scale)
        return self.merge(attended, x)


def fused_feed_forward(module: Any) -> Callable[[Tensor, LayerBuffers, StepRows], Tensor]:
    """The feed-forward sublayer of a fused step; ReLU is part of the product before it."""
    if not _is_plain_feed_forward(module) or module.activation_name != "relu" or module.up.bias is None:
        return lambda x, buffers, rows: module(x)
    return lambda x, buffers, rows: module.down(torch._addmm_activation(module.up.bias, x, module.up.weight.t()))


FUSED_SUBLAYERS: dict[int, Any] = {
    SELF: FusedSelfAttention, CROSS: FusedCrossAttention, FEED_FORWARD: fused_feed_forward}


def _matmul_into(x: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=output)
    else:
        torch.addmm(bias, x, weight.t(), out=output)
