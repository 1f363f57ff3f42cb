"""The step of a Transformer's decoder on a CPU in few calls: what `Decoder.advance` computes for one token of each row.

    with packed(model):
        writer = brisk(model)      the model itself where its steps cannot be made here: `why_not` says why

A step of one row is some 150 small operations. Each takes a few microseconds; to ask for it through modules, masks and
the choice of a backend takes several times as long, and was a third of a search. Here weights are looked up once for
all steps, queries, keys and values are one product, ReLU is part of the product before it, few rows are filled up once
and not for each product, and places are read from a table. The states are those of the model, so that rows are picked
and put as everywhere; where rows stand at different places, or read several tokens, the model makes the step.

It serves the decoders of which `regard.decoding.stride` says so, and knows neither searches nor which rows belong
together.

Legend: R rows, P = max(R, 4) rows that are multiplied, F contexts, H heads, G key heads, N tokens, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as rows_of
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.cache import Cache, ContextCache, families_apart, families_together
from regard.attention.layer import Attention
from regard.attention.score import Dot, as_score
from regard.blocks.block import Block, BlockState, PostNorm, PreNorm
from regard.blocks.feed_forward import FeedForward, Plain
from regard.blocks.packed import LAYOUTS, Packed, alone, filled, is_packed, lowered
from regard.blocks.stack import StackState
from regard.decoding.figure import every, hooked
from regard.decoding.stride import places_of, simple, why_no_block
from regard.models.contract import Memory, Step, Writer
from regard.models.decoder import DecoderState
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.language import LanguageModel

Around = PostNorm | PreNorm
Norm = Callable[[Tensor], Tensor]


def why_not(model: object) -> str | None:
    """Why the steps of a model are not made here; None where they are. It is asked inside of `packed`."""
    if type(model) not in (EncoderDecoder, LanguageModel):
        return "it is none of our Transformers"
    assert isinstance(model, EncoderDecoder | LanguageModel)
    inside = every(model.decoder)
    if torch.is_grad_enabled() or lowered() or not all(is_packed(one) for one in inside if isinstance(one, nn.Linear)):
        return "its weights are not laid out, or somebody asks for gradients or other numbers"
    if hooked(inside) or any(one.training or "parametrizations" in one._modules for one in inside):
        return "a module has hooks, is in training mode, or computes a parameter from others"
    if any(not isinstance(vars(one).get("forward", None), Packed | None) for one in inside):
        return "a forward pass was replaced"
    for block in model.decoder.stack.blocks:
        assert isinstance(block, Block)
        found = why_no_block(block)
        if found is not None:
            return found
        layers: list[Any] = [block.mixer.layer, *([] if block.cross is None else [block.cross])]
        if any(_width(layer) * layer.key_heads != layer.value.out_features for layer in layers):
            return "values have another width than keys"
    return None


def brisk(model: Writer) -> Writer:
    """The model, with faster steps where it can have them."""
    return model if why_not(model) is not None else Brisk(model)  # type: ignore[arg-type]


class Product:
    """A linear layer, or several of one input, with their weights laid out: (P, in) -> (P, out)."""

    def __init__(self, *layers: nn.Linear) -> None:
        self.layout, self.weights = LAYOUTS.of(*layers), [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers]
        self.bias = biases[0] if len(layers) == 1 or biases[0] is None else torch.cat(biases)

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        return self.layout.product(x, self.weights, self.bias, activation)

    def first(self, x: Tensor, rows: int) -> Tensor:
        """The first rows alone."""
        if rows == 1 and alone():
            return self.layout.single(x[:1], self.weights, self.bias)
        return self(x)[:rows]


class Look:
    """One attention layer in a step."""

    def __init__(self, layer: Attention) -> None:
        self.heads, self.key_heads, self.width = layer.heads, layer.key_heads, _width(layer)
        score = as_score(layer.score)
        assert isinstance(score, Dot)
        self.scale, self.output = score.scale(self.width), Product(layer.output)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(F, H, N, D) -> the same."""
        return scaled_dot_product_attention(query, key, value, allowed, scale=self.scale,
                                            enable_gqa=self.heads != self.key_heads)

    def merged(self, looked: Tensor) -> Tensor:
        """(R, H, 1, D) -> (P, width)."""
        return self.output(looked.flatten(1))


class Own(Look):
    """Self-attention."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.rotary, self.joined = layer.rotary, Product(layer.query, layer.key, layer.value)

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


class Across(Look):
    """Attention to the source."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.query = Product(layer.query)

    def __call__(self, x: Tensor, context: ContextCache, rows: int) -> Tensor:
        query = self.query(x)[:rows].view(rows, self.heads, 1, self.width)
        each, mask = context.each, context.mask
        looked = self.attended(query if each == 1 else families_together(query, each), context.key, context.value,
                               None if mask is None else mask.opened)
        if mask is not None and mask.blind is not None:
            looked = looked.masked_fill(mask.blind, 0.0)
        return self.merged(looked if each == 1 else families_apart(looked, each))


class Brisk:
    """A model that writes, inside of `packed`."""

    def __init__(self, model: EncoderDecoder | LanguageModel) -> None:
        self.model, decoder = model, model.decoder
        self.training, self.embedding, self.last = model.training, decoder.embedding, _norm(decoder.stack.last_norm)
        self.blocks = [_Block(block) for block in decoder.stack.blocks]  # type: ignore[arg-type]
        self.output = Product(decoder.output)
        self.places: Tensor | None = None

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> Any:
        """As the model's."""
        return self.model.start(memory, rows=rows, capacity=capacity, cross=cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """As the model's."""
        blocks: tuple[BlockState, ...] = state.stack.blocks
        if lengths is not None or state.watched or ids.shape[1] != 1 or not len(ids) or not all(map(_even, blocks)):
            return self.model.step(state, ids, lengths)
        rows, at, after = len(ids), blocks[0].mixer.filled, blocks[0].mixer.room(1)
        x, positions = filled(self._embedded(ids, state.positions, at, blocks[0].mixer.capacity)), state.positions + 1
        following = []
        for block, own in zip(self.blocks, blocks, strict=True):
            x = block(x, own, state.positions, at)
            cache = Cache(own.mixer.key, own.mixer.value, positions, after)
            following.append(BlockState(cache, own.context))
        x = x if self.last is None else self.last(x)
        logits = self.output.first(x, rows).unsqueeze(1)
        return Step(logits, DecoderState(StackState(tuple(following)), positions, state.watched))

    def _embedded(self, ids: Tensor, positions: Tensor, at: int, capacity: int) -> Tensor:
        """The vectors (R, D) of tokens at the place `at`, one of `capacity`."""
        embedding = self.embedding
        if not simple(embedding):
            return embedding(ids, positions.unsqueeze(-1)).squeeze(1)
        x = rows_of(ids.squeeze(1), embedding.tokens.weight)
        if embedding.factor != 1.0:
            x = x * embedding.factor
        if embedding.positions is None:
            return x
        if self.places is None or len(self.places) <= at:
            self.places = places_of(embedding, capacity)
            assert self.places is not None
        return x + self.places[at]


class _Block:
    """A block in a step."""

    def __init__(self, block: Block) -> None:
        self.own = Own(block.mixer.layer)  # type: ignore[arg-type]
        self.across = None if block.cross is None else Across(block.cross)  # type: ignore[arg-type]
        self.transform = None if block.feed_forward is None else _forward(block.feed_forward)  # type: ignore[arg-type]
        self.first = isinstance(block.around_mixer, PreNorm)
        self.norms = [None if around is None else _norm(around.norm)  # type: ignore[arg-type]
                      for around in (block.around_mixer, block.around_cross, block.around_feed_forward)]

    def __call__(self, x: Tensor, state: BlockState, positions: Tensor, at: int) -> Tensor:
        x = self._around(x, self.norms[0], lambda given: self.own(given, state.mixer, positions, at))
        across, context, transform = self.across, state.context, self.transform
        if across is not None and context is not None:
            x = self._around(x, self.norms[1], lambda given: across(given, context, len(positions)))
        return x if transform is None else self._around(x, self.norms[2], transform)

    def _around(self, x: Tensor, norm: Norm | None, part: Callable[[Tensor], Tensor]) -> Tensor:
        assert norm is not None
        return x + part(norm(x)) if self.first else norm(x + part(x))


def _even(state: BlockState) -> bool:
    """Whether all rows stand at one place, and see something."""
    return state.mixer.level and (state.context is None or state.context.key.shape[-2] > 0)


def _forward(part: FeedForward) -> Callable[[Tensor], Tensor]:
    """The feed-forward part; ReLU is done by the product before it."""
    if type(part) is not Plain:
        return part
    up, down = Product(part.up), Product(part.down)
    if part.name == "relu":
        return lambda x: down(up(x, "relu"))
    return lambda x: down(part.activation(up(x)))


def _norm(norm: nn.Module | None) -> Norm | None:
    """A norm, as it is called."""
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
    return norm


def _width(layer: Any) -> int:
    """Of the queries and keys of a head."""
    return int(layer.query.out_features // layer.heads)
