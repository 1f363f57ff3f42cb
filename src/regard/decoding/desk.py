"""The state of a decoder in memory that stays where it is, so that its step can be recorded.

    desk = Desk(model, state, families=4, width=5, …)  storage for states of this kind
    desk.load(state)                                   an ordinary state comes in; desk.put_logits(...) its logits
    desk.step(parents, tokens, places)                 in a recording: the rows move, read a token each, and give logits
    desk.state(families, filled, capacity)             an ordinary state comes out

Rows come in families that look at one source, as in `regard.mixer.Siblings`. Places beyond those that are needed are
there too, filled with anything: who uses the desk knows which rows mean something. It serves decoders whose blocks look
at all tokens before and at the source, without biases of position and with nobody listening: `why_not` says what is in
the way.

Legend: F families, W rows of each, R = F·W rows, C places of tokens, N places of a source, H heads, D width,
V vocabulary.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.cache import Cache, ContextCache
from regard.attention.layer import AttentionLayer
from regard.attention.mask import Causal
from regard.attention.mixing import SelfAttention
from regard.attention.steady import Seen, SteadyCache
from regard.blocks.block import BlockState
from regard.blocks.stack import StackState
from regard.decoding.figure import every, hooked
from regard.models.contract import Writer
from regard.models.decoder import Decoder, DecoderState


@dataclass(frozen=True)
class Layer:
    """What one block remembers."""

    key: Tensor
    """(R, H, C, D)"""
    value: Tensor
    context: tuple[Tensor, Tensor] | None
    """Keys and values of the source, (F, H, N, D)."""


def why_not(model: Writer, state: object) -> str | None:
    """Why the steps of a model from this state cannot be made at a desk; None where they can."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder) or not isinstance(state, DecoderState):
        return "its state is not that of a stack of blocks"
    if state.watched:
        return "its weights are looked at"
    if any(type(block.mixer) is not Cache for block in state.stack.blocks):
        return "its blocks do more than to look at the tokens before"
    inside = every(decoder)
    if hooked(inside):
        return "a module has hooks"
    for module in inside:
        if isinstance(module, AttentionLayer) and (module.position_bias is not None or module.tap.listeners):
            return "an attention layer has a bias of position, or somebody listens to it"
        if isinstance(module, SelfAttention) and type(module.mask) is not Causal:
            return "an attention layer does not look at all tokens before"
    return None


class Desk:
    """Storage for `families` of `width` rows each, of at most `capacity` tokens, with sources of at most `sources`."""

    def __init__(self, model: Writer, state: DecoderState, *, families: int, width: int, capacity: int,
                 sources: int) -> None:
        self.families, self.width, self.capacity = families, width, capacity
        self._model = weakref.ref(model)  # desks are kept as long as the model is: they must not be what keeps it
        rows, first = families * width, state.positions
        limit = model.decoder.embedding.limit  # type: ignore[attr-defined]
        self.highest = (capacity if limit is None else min(limit, capacity)) - 1
        with torch.inference_mode(False):  # what is made in that mode cannot be written into outside of it
            self.positions = torch.zeros(rows, dtype=torch.long, device=first.device)
            self.allowed = torch.zeros(families, 1, 1, sources, dtype=torch.bool, device=first.device)
            self.layers = [_layer(block, rows, families, capacity, sources) for block in state.stack.blocks]
            vocabulary = model.decoder.output  # type: ignore[attr-defined]
            self.logits = torch.zeros(rows, vocabulary.out_features, dtype=vocabulary.weight.dtype, device=first.device)

    @property
    def bytes(self) -> int:
        """How much memory it holds."""
        parts = (part for layer in self.layers for part in (layer.key, layer.value, *(layer.context or ())))
        return sum(part.nbytes for part in (*parts, self.logits))

    def load(self, state: DecoderState) -> int:
        """Take a state in, whose rows come in families; how many tokens its longest row has.

        Rows beyond those of the state are copies of its first family, so that their numbers are ordinary.
        """
        rows, filled, own = len(state.positions), 0, None
        self._put(self.positions, state.positions)
        for layer, block in zip(self.layers, state.stack.blocks, strict=True):
            cache, filled = block.mixer, block.mixer.filled
            for mine, theirs in ((layer.key, cache.key), (layer.value, cache.value)):
                if filled:
                    self._put(mine[:, :, :filled], theirs[:, :, :filled])
            if block.context is not None and layer.context is not None:
                own = by_family(block.context, rows, self.width)
                count = own.key.shape[-2]
                for mine, theirs in zip(layer.context, (own.key, own.value), strict=True):
                    mine[:, :, count:] = 0.0
                    self._put(mine[:, :, :count], theirs)
        self.allowed.zero_()
        if own is not None:
            self._put(self.allowed[..., :own.key.shape[-2]], _there(own))
        return filled

    def put_logits(self, logits: Tensor) -> None:
        """The logits of the last step of a state that was taken in."""
        self._put(self.logits, logits)

    def step(self, parents: Tensor | None, tokens: Tensor, places: int) -> None:
        """One token (R,) for each row, after those of the row that it continues (R,), within the first `places`."""
        here = self.positions.clamp(max=self.highest)  # rows that have finished go on, and may not leave the storage
        if parents is not None:
            here = here[parents]
        seen_RC = torch.arange(places, device=here.device) <= here.unsqueeze(-1)
        seen, blocks = Seen(seen_RC[:, None, None]), []
        for layer in self.layers:
            key, value = layer.key[:, :, :places], layer.value[:, :, :places]
            if parents is not None:
                key.copy_(key[parents])
                value.copy_(value[parents])
            context = layer.context and ContextCache(*layer.context, None, Seen(self.allowed), self.width)
            blocks.append(BlockState(SteadyCache(key, value, here, places, False, seen), context))
        state = DecoderState(StackState(tuple(blocks)), here, False)
        model = self._model()
        assert model is not None, "who asks for a step has the model"
        self.logits.copy_(model.step(state, tokens.unsqueeze(-1)).logits[:, -1])
        self.positions.copy_(here + 1)

    def rows(self, families: Tensor) -> Tensor:
        """The rows of these families."""
        return (families.unsqueeze(-1) * self.width + torch.arange(self.width, device=families.device)).flatten()

    def state(self, families: Tensor, filled: int, capacity: int) -> DecoderState:
        """The state of these families, none of whose rows has more than `filled` tokens, in storage of its own."""
        index = self.rows(families)
        positions, blocks = self.positions[index], list[BlockState]()
        for layer in self.layers:
            kept = [part.new_zeros(len(index), part.shape[1], capacity, part.shape[-1])
                    for part in (layer.key, layer.value)]
            for mine, theirs in zip(kept, (layer.key, layer.value), strict=True):
                mine[:, :, :filled] = theirs[index, :, :filled]
            context = None
            if layer.context is not None:
                lengths = self.allowed[families].sum(dim=-1).flatten()
                key, value = layer.context
                context = ContextCache.of(key[families], value[families], lengths, self.width)
            blocks.append(BlockState(Cache(kept[0], kept[1], positions, filled, level=False), context))
        return DecoderState(StackState(tuple(blocks)), positions, watched=False)

    def _put(self, mine: Tensor, theirs: Tensor) -> None:
        """Rows, and behind them the first family again and again."""
        count, each = len(theirs), len(mine) // self.families
        mine[:count] = theirs
        if count < len(mine):
            mine[count:].unflatten(0, (-1, each)).copy_(theirs[:each])


def _layer(block: BlockState, rows: int, families: int, capacity: int, sources: int) -> Layer:
    def room(like: Tensor, first: int, places: int) -> Tensor:
        return torch.zeros(first, like.shape[1], places, like.shape[-1], dtype=like.dtype, device=like.device)

    cache, context = block.mixer, block.context
    own = (room(cache.key, rows, capacity), room(cache.value, rows, capacity))
    if context is None:
        return Layer(*own, None)
    return Layer(*own, (room(context.key, families, sources), room(context.value, families, sources)))


def by_family(context: ContextCache, rows: int, width: int) -> ContextCache:
    """A context for each family."""
    if context.each == width:
        return context
    return context.pick(torch.arange(0, rows, width, device=context.key.device))


def _there(context: ContextCache) -> Tensor:
    """(F, 1, 1, N): which tokens of the contexts are there."""
    places = torch.arange(context.key.shape[-2], device=context.key.device)
    count = places.shape[0] if context.lengths is None else context.lengths.view(-1, 1, 1, 1)
    return (places < count).expand(len(context.key), 1, 1, -1)
