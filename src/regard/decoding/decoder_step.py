"""The step of a Transformer decoder in few operations, on a GPU and on a CPU: one token for each row.

Legend: R rows, P = max(R, 4) rows that are multiplied on a CPU, F sources, N states of a source, H heads, G key heads,
D width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as rows_of
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.attention.cache import Cache, ContextCache, fold_rows, unfold_rows
from regard.attention.layer import Attention, SelfAttention
from regard.attention.mask import Causal
from regard.attention.normalize import Softmax
from regard.attention.score import Dot, as_score
from regard.blocks.block import Block, BlockState
from regard.blocks.feed_forward import FeedForward, PlainFeedForward
from regard.blocks.stack import StackState
from regard.blocks.sublayer import PostNorm, PreNorm
from regard.decoding.cuda_graph import all_modules, has_hooks, why_not_plain
from regard.kernels import launch
from regard.kernels.packed_linear import (
    PACKED_WEIGHTS,
    PackedForward,
    autocast_or_compiling,
    is_packed,
    pad_rows,
    single_threaded,
)
from regard.models.contract import GenerativeModel, Memory, Step
from regard.models.embedding import Embedding
from regard.models.encoder_decoder import Decoder, DecoderState, EncoderDecoder
from regard.models.language import LanguageModel
from regard.position.encoding import AddPositions, LearnedEncoding

MAX_HEAD_WIDTH = 256
"""The widest head that the kernel of attention takes."""


class LayerBuffers(NamedTuple):
    """What one block remembers."""

    keys: Tensor
    """(R, G, C, D)"""
    values: Tensor
    context: Tensor | None
    """(F, N, G · D + G · D of the values): keys and values of the sources side by side."""


class StepRows(NamedTuple):
    """Where the rows of a step stand."""

    positions: Tensor
    """(R,)"""
    table: Tensor
    """(R, C): in which row of the storage each token of a row lies."""
    lengths: Tensor
    """(F,): of the sources."""
    each: int
    """How many rows, one after another, look at one source."""


def why_no_fused_step(model: object) -> str | None:
    """Why the steps of a model cannot be made here; None where they can."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):
        return "it has no decoder that is a stack of blocks"
    found = launch.why_not(decoder.output.weight.device)
    if found is not None:
        return found
    inside = all_modules(decoder)
    found = "a module has hooks" if has_hooks(inside) else why_not_plain(inside)
    if found is not None:
        return found
    for block in decoder.stack.blocks:
        assert isinstance(block, Block)
        found = why_no_block(block) or _why_no_norm(block)
        if found is not None:
            return found
    return None


def why_no_block(block: Block) -> str | None:
    """Why a block is more than attention by dot products and softmax, norms and a feed-forward part of ours."""
    if type(block.mixer) is not SelfAttention or type(block.mixer.mask) is not Causal:
        return "a block does more than to look at all tokens before"
    if block.feed_forward is not None and not isinstance(block.feed_forward, FeedForward):
        return "the feed-forward part of a block is not ours"
    for around in (block.around_mixer, block.around_cross, block.around_feed_forward):
        if around is not None and not isinstance(around, PreNorm | PostNorm):
            return "a block has no norms"
    layers = [block.mixer.layer, *([] if block.cross is None else [block.cross])]
    return next((found for found in map(_why_no_layer, layers) if found is not None), None)


def _why_no_norm(block: Block) -> str | None:
    from regard.kernels.decoder_rows import why_not_norm as why_no_norm  # imports Triton

    arounds = (block.around_mixer, block.around_cross, block.around_feed_forward)
    return next((found for around in arounds if around is not None
                 if (found := why_no_norm(around.norm)) is not None), None)  # type: ignore[arg-type]


def _why_no_layer(layer: nn.Module) -> str | None:
    if type(layer) is not Attention or layer.position_bias is not None or layer.tap.listeners:
        return "an attention layer has a bias of position, or somebody listens to it, or it projects otherwise"
    if layer.scorer.kind in ("additive", "bilinear") or not isinstance(as_score(layer.score), Dot):
        return f"an attention layer has the score {layer.scorer.kind}"
    if type(layer.normalize) is not Softmax:
        return f"an attention layer normalises by {layer.normalize!r}"
    widest = max(layer.query.out_features // layer.heads, layer.value.out_features // layer.key_heads)
    return f"its heads are {widest} wide, more than {MAX_HEAD_WIDTH}" if widest > MAX_HEAD_WIDTH else None


@dataclass(frozen=True)
class JoinedLinear:
    """Several linear layers of one input, side by side."""

    parts: tuple[nn.Linear, ...]
    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def of(*parts: nn.Linear) -> "JoinedLinear":
        """Copies, not yet made."""
        like, count = parts[0].weight, sum(part.out_features for part in parts)
        bias = None if parts[0].bias is None else like.new_zeros(count)
        return JoinedLinear(parts, like.new_zeros(count, like.shape[1]), bias)

    def copies(self) -> list[tuple[Tensor, Tensor]]:
        """(mine, theirs), what is copied into the first."""
        sizes = [part.out_features for part in self.parts]
        pairs = list(zip(self.weight.split(sizes), [part.weight.detach() for part in self.parts], strict=True))
        if self.bias is not None:
            pairs += zip(self.bias.split(sizes), [part.bias.detach() for part in self.parts], strict=True)
        return pairs

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FusedAttention:
    """One attention layer in a step."""

    def __init__(self, layer: Attention) -> None:
        self.layer, self.heads, self.key_heads = layer, layer.heads, layer.key_heads
        self.width, self.value_width = (layer.query.out_features // layer.heads,
                                        layer.value.out_features // layer.key_heads)
        score = as_score(layer.score)
        assert isinstance(score, Dot)
        self.scale = score.scale(self.width)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that lie side by side, (..., G · D + G · E), apart: (..., G, D) and (..., G, E)."""
        keys = self.key_heads * self.width
        return x[..., :keys].unflatten(-1, (self.key_heads, -1)), x[..., keys:].unflatten(-1, (self.key_heads, -1))


class FusedSelfAttention(FusedAttention):
    """Self-attention."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.joined = JoinedLinear.of(layer.query, layer.key, layer.value)

    def __call__(self, x: Tensor, kept: LayerBuffers, rows: StepRows) -> Tensor:
        from regard.kernels.decode_attention import self_attention_step

        made = self.joined(x)
        query = made[:, :self.heads * self.width].unflatten(-1, (self.heads, -1))
        key, value = self.split(made[:, self.heads * self.width:])
        if self.layer.rotary is not None:
            places = rows.positions.unsqueeze(-1)
            query, key = (self.layer.rotary(part.unsqueeze(2), places).squeeze(2).contiguous()
                          for part in (query, key))
        looked = self_attention_step(query, key, value, kept.keys, kept.values, rows.table, rows.positions, self.scale)
        return self.layer.output(looked.flatten(1))


class FusedCrossAttention(FusedAttention):
    """Attention to the source."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.joined = JoinedLinear.of(layer.key, layer.value)

    def __call__(self, x: Tensor, kept: LayerBuffers, rows: StepRows) -> Tensor:
        from regard.kernels.decode_attention import cross_attention_step

        assert kept.context is not None
        query = self.layer.query(x).unflatten(-1, (self.heads, -1))
        looked = cross_attention_step(query, *self.split(kept.context), rows.lengths, rows.each, self.scale)
        return self.layer.output(looked.flatten(1))


def _fused_feed_forward(part: nn.Module) -> "Callable[[Tensor, LayerBuffers, StepRows], Tensor]":
    """The feed-forward part; ReLU is done by the matrix product that comes before it."""
    if type(part) is PlainFeedForward and part.name == "relu" and part.up.bias is not None:
        def relu(x: Tensor, kept: LayerBuffers, rows: StepRows) -> Tensor:
            return part.down(torch._addmm_activation(part.up.bias, x, part.up.weight.t()))

        return relu
    return lambda x, kept, rows: part(x)


class FusedDecoder:
    """The steps of a decoder; rows may stand at any of the first `places` places."""

    def __init__(self, decoder: Decoder, places: int) -> None:
        self.decoder, self.own, self.across = decoder, list[FusedSelfAttention](), list[FusedCrossAttention | None]()
        self.parts = list[list[tuple[nn.Module, Callable[[Tensor, LayerBuffers, StepRows], Tensor]]]]()
        for block in decoder.stack.blocks:
            assert isinstance(block, Block)
            own = FusedSelfAttention(block.mixer.layer)  # type: ignore[arg-type]
            across = None if block.cross is None else FusedCrossAttention(block.cross)  # type: ignore[arg-type]
            parts: list[tuple[nn.Module, Callable[[Tensor, LayerBuffers, StepRows], Tensor]]] = [(block.around_mixer, own)]
            if across is not None and block.around_cross is not None:
                parts.append((block.around_cross, across))
            if block.feed_forward is not None and block.around_feed_forward is not None:
                parts.append((block.around_feed_forward, _fused_feed_forward(block.feed_forward)))
            self.parts.append(parts)
            self.own.append(own)
            self.across.append(across)
        looks: list[FusedSelfAttention | FusedCrossAttention] = [*self.own, *(across for across in self.across if across is not None)]
        joined = [pair for look in looks for pair in look.joined.copies()]
        self.mine, self.theirs = [pair[0] for pair in joined], [pair[1] for pair in joined]
        self.places = position_table(decoder.embedding, places)
        self.refresh()

    @property
    def bytes(self) -> int:
        """How much memory the copies hold."""
        return sum(part.nbytes for part in self.mine)

    def refresh(self) -> None:
        """Copy the parameters that are laid side by side."""
        torch._foreach_copy_(self.mine, self.theirs)

    def project(self, states: Tensor, layers: list[LayerBuffers]) -> None:
        """Keys and values of sources (F, N, D of the encoder) into the storage of all layers."""
        flat = states.flatten(0, 1)
        for across, kept in zip(self.across, layers, strict=True):
            if across is not None and kept.context is not None:
                _matmul_into(flat, across.joined.weight, across.joined.bias, kept.context.flatten(0, 1))

    def logits(self, tokens: Tensor, layers: list[LayerBuffers], rows: StepRows, output: Tensor) -> None:
        """The logits (R, V) after one token (R,) of each row."""
        from regard.kernels.decoder_rows import add_norm_rows

        x = self._embedded(tokens, rows.positions)
        parts = [(around, part, kept) for several, kept in zip(self.parts, layers, strict=True)
                 for around, part in several]
        last = self.decoder.stack.last_norm
        if isinstance(parts[0][0], PostNorm):
            for around, part, kept in parts:
                x = add_norm_rows(x, part(x, kept, rows), around.norm).norm  # type: ignore[arg-type]
            x = x if last is None else add_norm_rows(x, None, last).norm  # type: ignore[arg-type]
        else:
            norms = [*(around.norm for around, _, _ in parts[1:]), last]
            now = add_norm_rows(x, None, parts[0][0].norm)  # type: ignore[arg-type]
            for (_, part, kept), norm in zip(parts, norms, strict=True):
                added = part(now.norm, kept, rows)
                if norm is not None:
                    now = add_norm_rows(now.sum, added, norm)  # type: ignore[arg-type]
                else:
                    now = now._replace(norm=now.sum + added)
            x = now.norm
        _matmul_into(x, self.decoder.output.weight, self.decoder.output.bias, output)

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        from regard.kernels.decoder_rows import embed_rows

        embedding = self.decoder.embedding
        if not is_simple_embedding(embedding):
            return embedding(tokens.unsqueeze(-1), positions.unsqueeze(-1)).squeeze(1)
        return embed_rows(tokens, positions, embedding.tokens.weight, self.places, embedding.factor)


def is_simple_embedding(embedding: Embedding) -> bool:
    """Whether a vector is that of the token and of its place, and nothing more."""
    joined = embedding.positions is None or type(embedding.positions) is AddPositions
    return joined and embedding.segments is None and embedding.norm is None


def position_table(embedding: Embedding, count: int) -> Tensor | None:
    """The vectors of the first places, (count, D)."""
    if embedding.positions is None or not is_simple_embedding(embedding):
        return None
    encoding = embedding.positions.encoding
    if isinstance(encoding, LearnedEncoding):
        return encoding.table.detach()  # itself: it may be written into
    like = embedding.tokens.weight
    vectors = encoding(torch.arange(count, device=like.device), like.dtype)
    return vectors.expand(-1, like.shape[1]).contiguous()


def _matmul_into(x: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=output)
    else:
        torch.addmm(bias, x, weight.t(), out=output)


# ---- brisk: The step of a Transformer's decoder on a CPU in few calls: what `Decoder.advance` computes for one token of each row.
#
#     with packed(model):
#         writer = brisk(model)      the model itself where its steps cannot be made here: `why_not` says why
#
# A step of one row is some 150 small operations. Each takes a few microseconds; to ask for it through modules, masks and
# the choice of a backend takes several times as long, and was a third of a search. Here weights are looked up once for
# all steps, queries, keys and values are one product, ReLU is part of the product before it, few rows are filled up once
# and not for each product, and places are read from a table. The states are those of the model, so that rows are picked
# and put as everywhere; where rows stand at different places, or read several tokens, the model makes the step.
#
# It serves the decoders of which `regard.decoding.decoder_step` says so, and knows neither searches nor which rows belong
# together.
#
# Legend: R rows, P = max(R, 4) rows that are multiplied, F contexts, H heads, G key heads, N tokens, D width.

NormPlacement = PostNorm | PreNorm
NormFunction = Callable[[Tensor], Tensor]


def why_no_packed_step(model: object) -> str | None:
    """Why the steps of a model are not made here; None where they are. It is asked inside of `packed`."""
    if type(model) not in (EncoderDecoder, LanguageModel):
        return "it is none of our Transformers"
    assert isinstance(model, EncoderDecoder | LanguageModel)
    inside = all_modules(model.decoder)
    if torch.is_grad_enabled() or autocast_or_compiling() or not all(is_packed(one) for one in inside if isinstance(one, nn.Linear)):
        return "its weights are not laid out, or somebody asks for gradients or other numbers"
    if has_hooks(inside) or any(one.training or "parametrizations" in one._modules for one in inside):
        return "a module has hooks, is in training mode, or computes a parameter from others"
    if any(not isinstance(vars(one).get("forward", None), PackedForward | None) for one in inside):
        return "a forward pass was replaced"
    for block in model.decoder.stack.blocks:
        assert isinstance(block, Block)
        found = why_no_block(block)
        if found is not None:
            return found
        layers: list[Any] = [block.mixer.layer, *([] if block.cross is None else [block.cross])]
        if any(_head_width(layer) * layer.key_heads != layer.value.out_features for layer in layers):
            return "values have another width than keys"
    return None


def packed_decoder(model: GenerativeModel) -> GenerativeModel:
    """The model, with faster steps where it can have them."""
    return model if why_no_packed_step(model) is not None else PackedDecoder(model)  # type: ignore[arg-type]


class PackedProduct:
    """A linear layer, or several of one input, with their weights laid out: (P, in) -> (P, out)."""

    def __init__(self, *layers: nn.Linear) -> None:
        self.layout, self.weights = PACKED_WEIGHTS.of(*layers), [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers]
        self.bias = biases[0] if len(layers) == 1 or biases[0] is None else torch.cat(biases)

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        return self.layout.product(x, self.weights, self.bias, activation)

    def first(self, x: Tensor, rows: int) -> Tensor:
        """The first rows alone."""
        if rows == 1 and single_threaded():
            return self.layout.single(x[:1], self.weights, self.bias)
        return self(x)[:rows]


class PackedStepAttention:
    """One attention layer in a step."""

    def __init__(self, layer: Attention) -> None:
        self.heads, self.key_heads, self.width = layer.heads, layer.key_heads, _head_width(layer)
        score = as_score(layer.score)
        assert isinstance(score, Dot)
        self.scale, self.output = score.scale(self.width), PackedProduct(layer.output)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(F, H, N, D) -> the same."""
        return scaled_dot_product_attention(query, key, value, allowed, scale=self.scale,
                                            enable_gqa=self.heads != self.key_heads)

    def merged(self, looked: Tensor) -> Tensor:
        """(R, H, 1, D) -> (P, width)."""
        return self.output(looked.flatten(1))


class PackedSelfAttention(PackedStepAttention):
    """Self-attention."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.rotary, self.joined = layer.rotary, PackedProduct(layer.query, layer.key, layer.value)

    def __call__(self, x: Tensor, before: Cache, positions: Tensor, at: int) -> Tensor:
        """Of tokens at the place `at`, which is what `positions` says too. It writes into the cache."""
        heads = self.joined(x)[:len(positions)].view(len(positions), -1, 1, self.width)
        query, key, value = heads.split((self.heads, self.key_heads, self.key_heads), 1)
        if self.rotary is not None:
            places = positions.unsqueeze(-1)
            query, key = self.rotary(query, places), self.rotary(key, places)
        before.key[:, :, at:at + 1] = key
        before.value[:, :, at:at + 1] = value
        return self.merged(self.attended(query, before.key[:, :, :at + 1], before.value[:, :, :at + 1]))


class PackedCrossAttention(PackedStepAttention):
    """Attention to the source."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.query = PackedProduct(layer.query)

    def __call__(self, x: Tensor, context: ContextCache, rows: int) -> Tensor:
        query = self.query(x)[:rows].view(rows, self.heads, 1, self.width)
        each, mask = context.rows_per_context, context.mask
        looked = self.attended(query if each == 1 else fold_rows(query, each), context.key, context.value,
                               None if mask is None else mask.opened)
        if mask is not None and mask.blind is not None:
            looked = looked.masked_fill(mask.blind, 0.0)
        return self.merged(looked if each == 1 else unfold_rows(looked, each))


class PackedDecoder:
    """A model that writes, inside of `packed`."""

    def __init__(self, model: EncoderDecoder | LanguageModel) -> None:
        self.model, decoder = model, model.decoder
        self.training, self.embedding, self.last = model.training, decoder.embedding, _norm_function(decoder.stack.last_norm)
        self.blocks = [_PackedBlock(block) for block in decoder.stack.blocks]  # type: ignore[arg-type]
        self.output = PackedProduct(decoder.output)
        self.places: Tensor | None = None

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> Any:
        """As the model's."""
        return self.model.start(memory, rows=rows, capacity=capacity, cross=cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """As the model's."""
        blocks: tuple[BlockState, ...] = state.stack.blocks
        if lengths is not None or state.with_cross or ids.shape[1] != 1 or not len(ids) or not all(map(_is_aligned, blocks)):
            return self.model.step(state, ids, lengths)
        rows, at, after = len(ids), blocks[0].mixer.filled, blocks[0].mixer.filled_after(1)
        x, positions = pad_rows(self._embedded(ids, state.positions, at, blocks[0].mixer.capacity)), state.positions + 1
        following = []
        for block, own in zip(self.blocks, blocks, strict=True):
            x = block(x, own, state.positions, at)
            cache = Cache(own.mixer.key, own.mixer.value, positions, after)
            following.append(BlockState(cache, own.context))
        x = x if self.last is None else self.last(x)
        logits = self.output.first(x, rows).unsqueeze(1)
        return Step(logits, DecoderState(StackState(tuple(following)), positions, state.with_cross))

    def _embedded(self, ids: Tensor, positions: Tensor, at: int, capacity: int) -> Tensor:
        """The vectors (R, D) of tokens at the place `at`, one of `capacity`."""
        embedding = self.embedding
        if not is_simple_embedding(embedding):
            return embedding(ids, positions.unsqueeze(-1)).squeeze(1)
        x = rows_of(ids.squeeze(1), embedding.tokens.weight)
        if embedding.factor != 1.0:
            x = x * embedding.factor
        if embedding.positions is None:
            return x
        if self.places is None or len(self.places) <= at:
            self.places = position_table(embedding, capacity)
            assert self.places is not None
        return x + self.places[at]


class _PackedBlock:
    """A block in a step."""

    def __init__(self, block: Block) -> None:
        self.own = PackedSelfAttention(block.mixer.layer)  # type: ignore[arg-type]
        self.across = None if block.cross is None else PackedCrossAttention(block.cross)  # type: ignore[arg-type]
        self.transform = None if block.feed_forward is None else _packed_feed_forward(block.feed_forward)  # type: ignore[arg-type]
        self.first = isinstance(block.around_mixer, PreNorm)
        self.norms = [None if around is None else _norm_function(around.norm)  # type: ignore[arg-type]
                      for around in (block.around_mixer, block.around_cross, block.around_feed_forward)]

    def __call__(self, x: Tensor, state: BlockState, positions: Tensor, at: int) -> Tensor:
        x = self._around(x, self.norms[0], lambda given: self.own(given, state.mixer, positions, at))
        across, context, transform = self.across, state.context, self.transform
        if across is not None and context is not None:
            x = self._around(x, self.norms[1], lambda given: across(given, context, len(positions)))
        return x if transform is None else self._around(x, self.norms[2], transform)

    def _around(self, x: Tensor, norm: NormFunction | None, part: Callable[[Tensor], Tensor]) -> Tensor:
        assert norm is not None
        return x + part(norm(x)) if self.first else norm(x + part(x))


def _is_aligned(state: BlockState) -> bool:
    """Whether all rows stand at one place, and see something."""
    return state.mixer.uniform and (state.context is None or state.context.key.shape[-2] > 0)


def _packed_feed_forward(part: FeedForward) -> Callable[[Tensor], Tensor]:
    """The feed-forward part; ReLU is done by the product before it."""
    if type(part) is not PlainFeedForward:
        return part
    up, down = PackedProduct(part.up), PackedProduct(part.down)
    if part.name == "relu":
        return lambda x: down(up(x, "relu"))
    return lambda x: down(part.activation(up(x)))


def _norm_function(norm: nn.Module | None) -> NormFunction | None:
    """A norm, as it is called."""
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
    return norm


def _head_width(layer: Any) -> int:
    """Of the queries and keys of a head."""
    return int(layer.query.out_features // layer.heads)
