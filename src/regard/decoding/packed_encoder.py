"""Sources encoded without padding, on a CPU: what `Encoder.encode` computes, in few operations.

    with packed_linear_layers(model):
        encoder = packed_encoder(model)      None if the model has no such encoder
        memory = encoder.encode(tokens)

The tokens of all sources are the rows of one matrix, the longest sources first. Queries, keys and values of a layer are
one matrix product, and ReLU is part of the product before it (see `regard.kernels.packed_linear`). Only attention needs
to know where a source ends: sources of equal length are one operation, whose arguments are views of that product. A
view of keys ends at a multiple of KEY_MULTIPLE, which attention reads up to three times as fast as a number below it;
the tokens of the next source that it then contains are masked. Should they be NaN, as in a damaged model, the mask
would not help: then the model itself encodes the tokens.

It serves encoders of `Attention` layers with dot products and softmax, in blocks with norms; `why_no_packed_encoder`
says what is in the way.

Legend: B sources, N tokens of the longest, T tokens of a chunk and those that fill the last view, F sources of equal
length, n their tokens, k keys of a view, H heads, G key heads, D width.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.layer import Attention
from regard.blocks.stack import Stack
from regard.blocks.sublayer import PreNorm
from regard.decoding.beam_cache import round_up
from regard.decoding.decoder_step import (
    PackedAttention,
    PackedProduct,
    norm_function,
    packed_feed_forward,
    why_no_block,
    why_no_equal_widths,
    why_not_packed,
)
from regard.models.contract import Memory
from regard.models.encoder_decoder import Encoder, EncoderDecoder
from regard.tokens import Tokens

CHUNK_TOKENS = 2048
"""Tokens that run through all layers together: their states fit into the caches of the processor."""


class EqualLengths(NamedTuple):
    """Consecutive sources of equal length."""

    start: int
    """Their first token in the chunk."""
    sources: int
    length: int
    mask: Tensor | None
    """(1, 1, 1, k): 0 for the keys of a source, −∞ for those that follow; None if its length is k."""


class Chunk(NamedTuple):
    """Sources that run through all layers together."""

    rows: Tensor
    """(T,): the source of each token."""
    positions: Tensor
    """(T,)"""
    tokens: int
    """The number of tokens; those after them only fill the last view."""
    groups: list[EqualLengths]


def why_no_packed_encoder(model: object) -> str | None:
    """Why sources cannot be encoded without padding; None if they can. It holds inside of `packed_linear_layers`."""
    if type(model) is not EncoderDecoder:
        return "the model is no EncoderDecoder"
    encoder = model.encoder
    if "encode" in vars(model) or {"encode", "states"} & {*vars(encoder)}:
        return "a function of the encoder was replaced"
    if type(encoder) is not Encoder or type(encoder.stack) is not Stack or encoder.front is not None:
        return "the encoder is more than a stack of blocks"
    found = why_not_packed(encoder)
    for block in encoder.stack.blocks:
        found = found or why_no_block(block, causal=False) or why_no_equal_widths(block)
        if found is None and (block.feed_forward is None or block.cross is not None):
            found = "a block has cross-attention, or no feed-forward layer"
    return found


def packed_encoder(model: object) -> "PackedEncoder | None":
    """The encoder of a model, for sources without padding; None if the model has no such encoder."""
    if why_no_packed_encoder(model) is not None:
        return None
    assert isinstance(model, EncoderDecoder)
    return PackedEncoder(model.encoder)


class PackedEncoder:
    """An encoder that computes no padding, inside of `packed_linear_layers`."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.embedding, self.last_norm = encoder, encoder.embedding, encoder.stack.last_norm
        self.layers = [PackedEncoderLayer(block) for block in encoder.stack.blocks]

    def encode(self, tokens: Tokens) -> Memory:
        """The same as `Encoder.encode(tokens)`; the states of padding are 0."""
        tokens = tokens.right()
        (sources, longest), ids = tokens.ids.shape, tokens.ids
        if not ids.numel() or tokens.segments is not None:
            return self._plain(tokens)
        lengths = torch.full((sources,), longest) if tokens.lengths is None else tokens.lengths
        states: Tensor | None = None
        for chunk in chunks(lengths):
            x = self._states(ids[chunk.rows, chunk.positions], chunk)[:chunk.tokens]
            if states is None:
                states = x.new_zeros(sources * longest, x.shape[-1])
            states.index_copy_(0, (chunk.rows * longest + chunk.positions)[:chunk.tokens], x)
        if states is None or not bool(states.isfinite().all()):
            return self._plain(tokens)
        return Memory(states.view(sources, longest, -1), tokens.lengths)

    def _states(self, ids: Tensor, chunk: Chunk) -> Tensor:
        """The states (T, D) of the tokens of a chunk."""
        x = self.embedding(ids.unsqueeze(0), chunk.positions.unsqueeze(0)).squeeze(0)
        for layer in self.layers:
            x = layer(x, chunk)
        return x if self.last_norm is None else self.last_norm(x)

    def _plain(self, tokens: Tokens) -> Memory:
        memory = self.encoder.encode(tokens)
        assert isinstance(memory, Memory)
        return memory


class PackedEncoderLayer:
    """A block: attention and a feed-forward layer, with their norms and residuals."""

    def __init__(self, block: Any) -> None:
        self.attention = PackedSourceAttention(block.mixer.layer)
        self.feed_forward = packed_feed_forward(block.feed_forward)
        self.pre_norm = isinstance(block.around_mixer, PreNorm)
        self.norms = norm_function(block.around_mixer.norm), norm_function(block.around_feed_forward.norm)

    def __call__(self, x: Tensor, chunk: Chunk) -> Tensor:
        """(T, D) -> (T, D)."""
        first, second = self.norms
        if self.pre_norm:
            x = x + self.attention(first(x), chunk)
            return x + self.feed_forward(second(x))
        x = first(x + self.attention(x, chunk))
        return second(x + self.feed_forward(x))


class PackedSourceAttention(PackedAttention):
    """Self-attention inside of each source."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.rotary, self.joined = layer.rotary, PackedProduct(layer.query, layer.key, layer.value)

    def __call__(self, x: Tensor, chunk: Chunk) -> Tensor:
        """(T, D of the model) -> the same."""
        heads = self.joined(x).view(len(x), -1, self.width)  # (T, H + 2 · G, D)
        if self.rotary is not None:
            turned = self.heads + self.key_heads
            moved = self.rotary(heads[:, :turned].unsqueeze(2), chunk.positions.unsqueeze(-1)).squeeze(2)
            heads = torch.cat([moved, heads[:, turned:]], 1)
        parts = [self._attend(heads, group) for group in chunk.groups]
        rest = x.new_zeros(len(x) - chunk.tokens, self.heads * self.width)
        return self.merge(torch.cat([*parts, rest]), x)

    def _attend(self, heads: Tensor, group: EqualLengths) -> Tensor:
        """The attention of one group of sources, (F · n, H · D)."""
        count, length, keys = group.sources, group.length, round_up(group.length)
        row, head, _ = heads.stride()
        strides, first = (length * row, head, row, 1), heads.storage_offset() + group.start * row

        def view(heads_before: int, number: int, tokens: int) -> Tensor:
            return heads.as_strided((count, number, tokens, self.width), strides, first + heads_before * head)

        output = self.attend(view(0, self.heads, length), view(self.heads, self.key_heads, keys),
                             view(self.heads + self.key_heads, self.key_heads, keys), group.mask)
        return output.transpose(1, 2).reshape(count * length, -1)


def chunks(lengths: Tensor) -> Iterator[Chunk]:
    """Divide sources of these lengths (B,) into chunks, the longest sources first; empty sources are in none."""
    ordered, order = lengths.sort(descending=True, stable=True)
    sizes = [size for size in ordered.tolist() if size]
    first = 0
    for count in _sources_of_chunks(sizes):
        some = ordered[first:first + count]
        total, groups, filled = sum(sizes[first:first + count]), list[EqualLengths](), 0
        for length, equal in groupby(sizes[first:first + count]):
            keys, sources = round_up(length), len([*equal])
            mask = None
            if keys > length:
                mask = torch.zeros(1, 1, 1, keys)
                mask[..., length:] = -torch.inf
            groups.append(EqualLengths(filled, sources, length, mask))
            filled += sources * length
        ends = [group.start + (group.sources - 1) * group.length + round_up(group.length) for group in groups]
        rows = torch.arange(count).repeat_interleave(some)
        positions = torch.arange(total) - (some.cumsum(0) - some)[rows]
        more = torch.arange(max(total, *ends)).clamp(max=total - 1)  # the last token again
        yield Chunk(order[first:first + count][rows][more], positions[more], total, groups)
        first += count


def _sources_of_chunks(sizes: Sequence[int]) -> list[int]:
    """How many sources of these sizes are in each chunk."""
    counts, tokens = list[int](), CHUNK_TOKENS + 1
    for size in sizes:
        if tokens + size > CHUNK_TOKENS:
            counts.append(0)
            tokens = 0
        counts[-1] += 1
        tokens += size
    return counts
