"""Self-attention as a mixer: the third way to process a sequence, behind the interface of the other two.

    y = Attn(x, x) under the mask of the mixer and the tokens that are there

The layer has the parameters; the mask is the mixer's, so that a block does not need to know that its mixer attends.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard import checks
from regard.attention.band import PackedPass
from regard.attention.cache import Cache
from regard.attention.layer import AttentionConfig, AttentionLayer
from regard.attention.looked import Pass
from regard.attention.mask import All, Causal, Mask, Padding, Window
from regard.attention.packed import Packed
from regard.attention.presence import cleared, there
from regard.config import whole
from regard.position.bias import ALiBiConfig, BucketedBiasConfig, RelativeBiasConfig
from regard.position.rotary import RotaryConfig


class SelfAttention(nn.Module):
    """An attention layer over its own input, under a mask: causal where nothing else is said, None for all to all."""

    def __init__(self, layer: AttentionLayer, mask: Mask | None = Causal()) -> None:  # noqa: B008 (a value, never changed)
        super().__init__()
        if layer.context_width != layer.width:
            raise checks.wrong("layer", "one whose context has its own width, for self-attention",
                               f"of width {layer.width} with a context of {layer.context_width}")
        self.layer, self.mask = layer, mask

    def forward(self, x: Tensor, present: Mask | None = None, positions: Tensor | None = None) -> Tensor:
        """All tokens at once: (B, N, D) -> (B, N, D). Where `present` says that there is no token, zeros.

        `positions` are for rotary layers; where not given, every sequence starts at 0, packed ones too.
        """
        if isinstance(present, Pass):
            mask: Mask | None = present.under(self.mask, x.shape[-2], x.device)
        elif isinstance(present, PackedPass):
            mask = present.under(self.mask, x.shape[-2], x.shape[-2], x.dim() - 1, x.device)
        else:
            mask = self.mask if present is None else present if self.mask is None else self.mask & present
        if not isinstance(present, Padding):  # packed rows have no padding
            if isinstance(present, Packed) and positions is None and self.layer.rotary is not None:
                positions = _places_in_segments(x, present)
            return self.layer(x, mask=mask, positions=positions)
        there_BN = there(x, present)
        if positions is None and there_BN is not None and present.side == "left":  # the first token stands at 0
            positions = (there_BN.cumsum(-1) - 1).clamp(min=0)
        return cleared(self.layer(cleared(x, there_BN), mask=mask, positions=positions), there_BN)

    def start(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of at most `capacity` tokens."""
        self._further_mask()
        return self.layer.start(rows, capacity)

    def step(self, x: Tensor, state: Cache, *, lengths: Tensor | None = None) -> tuple[Tensor, Cache]:
        """One token or a chunk, (B, n, D), after those in the cache, which it consumes."""
        there_BN = None if lengths is None else there(x, Padding(lengths), "lengths")
        further = self._further_mask()
        y, state = self.layer.step(cleared(x, there_BN), state, mask=further, lengths=lengths)  # type: ignore[assignment]
        return cleared(y, there_BN), state

    def _further_mask(self) -> Mask | None:
        """What the mask says beside causal; a ValueError where it is not causal, and tokens would need the future."""
        parts = self.mask.members if isinstance(self.mask, All) else (self.mask,)
        others = [part for part in parts if part is not None and not isinstance(part, Causal)]
        if not any(isinstance(part, Causal) for part in parts):
            raise checks.wrong("mask", "Causal(), alone or with others, to go step by step", repr(self.mask))
        return All.of(*others) if others else None


def _places_in_segments(x: Tensor, packed: Packed) -> Tensor:
    """Where every token of x (B, N, D) stands in its own segment, (N,): the first one of each stands at 0."""
    if packed.key_lengths is not packed.query_lengths:
        raise checks.wrong("present", "a Packed of one list of lengths, where tokens are both queries and keys",
                           repr(packed), "Leave out its key_lengths.")
    return packed.positions(x.shape[-2], x.device)


@dataclass(frozen=True, kw_only=True)
class SelfAttentionConfig(AttentionConfig):
    """Self-attention as a mixer, as a table of a config file.

    `window` is how many tokens to each side a token sees (all where not given), `position` what the layer itself knows
    of places: a rotation of queries and keys, or a bias of the scores.
    """

    kind: ClassVar[str] = "attention"
    window: int | None = whole(None, least=0)
    position: RotaryConfig | ALiBiConfig | RelativeBiasConfig | BucketedBiasConfig | None = None

    def mixer(self, width: int, causal: bool, layer: int) -> SelfAttention:
        """The mixer of a layer, from 0; all layers are alike."""
        rotary, bias = None, None
        if isinstance(self.position, RotaryConfig):
            rotary = self.position.build(self.each(width))
        elif self.position is not None:
            bias = self.position.build(self.heads, causal)
        near = None if self.window is None else Window(self.window, self.window)
        mask = near if not causal else Causal() if near is None else Causal() & near
        return SelfAttention(self.build(width, position_bias=bias, rotary=rotary), mask)

    def parameters(self, width: int) -> int:
        count = super().parameters(width)
        if self.position is None or isinstance(self.position, RotaryConfig):
            return count
        return count + self.position.parameters(self.heads)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """What does not go with a model of this width: key, and why."""
        yield from super().clashes(width, causal)
        if isinstance(self.position, RotaryConfig) and self.each(width) % 2:
            yield "position", f"rotary positions need heads of an even width, and these have {self.each(width)}"
        if isinstance(self.position, BucketedBiasConfig):
            buckets, ways = self.position.buckets, 1 if causal else 2
            if buckets % ways:
                yield "position.buckets", f"half of them are for each way: their number must be even, and is {buckets}"
            exact = buckets // (2 * ways)
            if self.position.max_distance <= exact:
                yield "position.max_distance", f"it must be beyond the first {exact}, which have a bucket each"
