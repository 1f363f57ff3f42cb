"""The step of a Transformer's decoder in few kernels: what `Decoder.advance` computes for one token of each row.

    stride = Stride(decoder, places)        weights that are read together are laid side by side, in copies
    stride.refresh()                        the copies are made anew: parameters may have been written into
    stride.project(states, layers)          keys and values of all sources, (F, N, D), into the storage of the layers
    stride.logits(tokens, positions, ...)   one token of each row, in (R, V)

Queries, keys and values of a layer are one matrix product; what stands between two products (the residual, the norm) is
one kernel; the attention is that of `regard.attention.kernels.step`. It serves decoders whose layers are `Attention`
by dot products and softmax, in blocks with norms; `why_not` says what is in the way. It does not know which rows belong
together, nor searches.

Legend: R rows, F sources, N places of a source, H heads, G key heads, D width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard import kernels
from regard.attention.layer import Attention
from regard.attention.mask import Causal
from regard.attention.mixing import SelfAttention
from regard.attention.normalize import Softmax
from regard.attention.score import Dot, as_score
from regard.blocks.block import Block, PostNorm, PreNorm
from regard.blocks.feed_forward import FeedForward, Plain
from regard.decoding.figure import every, hooked, replaced
from regard.models.decoder import Decoder
from regard.models.embedding import Embedding
from regard.position.encoding import Added, Learned

WIDEST = 256
"""The widest head that the kernel of attention takes."""


class Kept(NamedTuple):
    """What one block remembers."""

    keys: Tensor
    """(R, G, C, D)"""
    values: Tensor
    context: Tensor | None
    """(F, N, G · D + G · D of the values): keys and values of the sources side by side."""


class Rows(NamedTuple):
    """Where the rows of a step stand."""

    positions: Tensor
    """(R,)"""
    table: Tensor
    """(R, C): in which row of the storage each token of a row lies."""
    lengths: Tensor
    """(F,): of the sources."""
    each: int
    """How many rows, one after another, look at one source."""


def why_not(model: object) -> str | None:
    """Why the steps of a model cannot be made here; None where they can."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):
        return "it has no decoder that is a stack of blocks"
    found = kernels.why_not(decoder.output.weight.device)
    if found is not None:
        return found
    inside = every(decoder)
    found = "a module has hooks" if hooked(inside) else replaced(inside)
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
    from regard.blocks.kernels.rows import why_not as why_no_norm  # imports Triton

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
    return f"its heads are {widest} wide, more than {WIDEST}" if widest > WIDEST else None


@dataclass(frozen=True)
class Joined:
    """Several linear layers of one input, side by side."""

    parts: tuple[nn.Linear, ...]
    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def of(*parts: nn.Linear) -> "Joined":
        """Copies, not yet made."""
        like, count = parts[0].weight, sum(part.out_features for part in parts)
        bias = None if parts[0].bias is None else like.new_zeros(count)
        return Joined(parts, like.new_zeros(count, like.shape[1]), bias)

    def copies(self) -> list[tuple[Tensor, Tensor]]:
        """(mine, theirs), what is copied into the first."""
        sizes = [part.out_features for part in self.parts]
        pairs = list(zip(self.weight.split(sizes), [part.weight.detach() for part in self.parts], strict=True))
        if self.bias is not None:
            pairs += zip(self.bias.split(sizes), [part.bias.detach() for part in self.parts], strict=True)
        return pairs

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Look:
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


class Own(Look):
    """Self-attention."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.joined = Joined.of(layer.query, layer.key, layer.value)

    def __call__(self, x: Tensor, kept: Kept, rows: Rows) -> Tensor:
        from regard.attention.kernels.step import own

        made = self.joined(x)
        query = made[:, :self.heads * self.width].unflatten(-1, (self.heads, -1))
        key, value = self.split(made[:, self.heads * self.width:])
        if self.layer.rotary is not None:
            places = rows.positions.unsqueeze(-1)
            query, key = (self.layer.rotary(part.unsqueeze(2), places).squeeze(2).contiguous()
                          for part in (query, key))
        looked = own(query, key, value, kept.keys, kept.values, rows.table, rows.positions, self.scale)
        return self.layer.output(looked.flatten(1))


class Across(Look):
    """Attention to the source."""

    def __init__(self, layer: Attention) -> None:
        super().__init__(layer)
        self.joined = Joined.of(layer.key, layer.value)

    def __call__(self, x: Tensor, kept: Kept, rows: Rows) -> Tensor:
        from regard.attention.kernels.step import context

        assert kept.context is not None
        query = self.layer.query(x).unflatten(-1, (self.heads, -1))
        looked = context(query, *self.split(kept.context), rows.lengths, rows.each, self.scale)
        return self.layer.output(looked.flatten(1))


def _forward(part: nn.Module) -> "Callable[[Tensor, Kept, Rows], Tensor]":
    """The feed-forward part; ReLU is done by the matrix product that comes before it."""
    if type(part) is Plain and part.name == "relu" and part.up.bias is not None:
        def relu(x: Tensor, kept: Kept, rows: Rows) -> Tensor:
            return part.down(torch._addmm_activation(part.up.bias, x, part.up.weight.t()))

        return relu
    return lambda x, kept, rows: part(x)


class Stride:
    """The steps of a decoder; rows may stand at any of the first `places` places."""

    def __init__(self, decoder: Decoder, places: int) -> None:
        self.decoder, self.own, self.across = decoder, list[Own](), list[Across | None]()
        self.parts = list[list[tuple[nn.Module, Callable[[Tensor, Kept, Rows], Tensor]]]]()
        for block in decoder.stack.blocks:
            assert isinstance(block, Block)
            own = Own(block.mixer.layer)  # type: ignore[arg-type]
            across = None if block.cross is None else Across(block.cross)  # type: ignore[arg-type]
            parts: list[tuple[nn.Module, Callable[[Tensor, Kept, Rows], Tensor]]] = [(block.around_mixer, own)]
            if across is not None and block.around_cross is not None:
                parts.append((block.around_cross, across))
            if block.feed_forward is not None and block.around_feed_forward is not None:
                parts.append((block.around_feed_forward, _forward(block.feed_forward)))
            self.parts.append(parts)
            self.own.append(own)
            self.across.append(across)
        looks: list[Own | Across] = [*self.own, *(across for across in self.across if across is not None)]
        joined = [pair for look in looks for pair in look.joined.copies()]
        self.mine, self.theirs = [pair[0] for pair in joined], [pair[1] for pair in joined]
        self.places = places_of(decoder.embedding, places)
        self.refresh()

    @property
    def bytes(self) -> int:
        """How much memory the copies hold."""
        return sum(part.nbytes for part in self.mine)

    def refresh(self) -> None:
        """Copy the parameters that are laid side by side."""
        torch._foreach_copy_(self.mine, self.theirs)

    def project(self, states: Tensor, layers: list[Kept]) -> None:
        """Keys and values of sources (F, N, D of the encoder) into the storage of all layers."""
        flat = states.flatten(0, 1)
        for across, kept in zip(self.across, layers, strict=True):
            if across is not None and kept.context is not None:
                _product(flat, across.joined.weight, across.joined.bias, kept.context.flatten(0, 1))

    def logits(self, tokens: Tensor, layers: list[Kept], rows: Rows, output: Tensor) -> None:
        """The logits (R, V) after one token (R,) of each row."""
        from regard.blocks.kernels.rows import normed

        x = self._embedded(tokens, rows.positions)
        parts = [(around, part, kept) for several, kept in zip(self.parts, layers, strict=True)
                 for around, part in several]
        last = self.decoder.stack.last_norm
        if isinstance(parts[0][0], PostNorm):
            for around, part, kept in parts:
                x = normed(x, part(x, kept, rows), around.norm).norm  # type: ignore[arg-type]
            x = x if last is None else normed(x, None, last).norm  # type: ignore[arg-type]
        else:
            norms = [*(around.norm for around, _, _ in parts[1:]), last]
            now = normed(x, None, parts[0][0].norm)  # type: ignore[arg-type]
            for (_, part, kept), norm in zip(parts, norms, strict=True):
                added = part(now.norm, kept, rows)
                if norm is not None:
                    now = normed(now.sum, added, norm)  # type: ignore[arg-type]
                else:
                    now = now._replace(norm=now.sum + added)
            x = now.norm
        _product(x, self.decoder.output.weight, self.decoder.output.bias, output)

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        from regard.blocks.kernels.rows import embedded

        embedding = self.decoder.embedding
        if not simple(embedding):
            return embedding(tokens.unsqueeze(-1), positions.unsqueeze(-1)).squeeze(1)
        return embedded(tokens, positions, embedding.tokens.weight, self.places, embedding.factor)


def simple(embedding: Embedding) -> bool:
    """Whether a vector is that of the token and of its place, and nothing more."""
    joined = embedding.positions is None or type(embedding.positions) is Added
    return joined and embedding.segments is None and embedding.norm is None


def places_of(embedding: Embedding, count: int) -> Tensor | None:
    """The vectors of the first places, (count, D)."""
    if embedding.positions is None or not simple(embedding):
        return None
    encoding = embedding.positions.encoding
    if isinstance(encoding, Learned):
        return encoding.table.detach()  # itself: it may be written into
    like = embedding.tokens.weight
    vectors = encoding(torch.arange(count, device=like.device), like.dtype)
    return vectors.expand(-1, like.shape[1]).contiguous()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=output)
    else:
        torch.addmm(bias, x, weight.t(), out=output)
