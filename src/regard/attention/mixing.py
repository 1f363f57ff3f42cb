"""Self-attention as a mixer: the third way to process a sequence, behind the interface of the other two.

    y = Attn(x, x) under the mask of the mixer and the tokens that are there

The layer has the parameters; the mask is the mixer's, so that a block does not need to know that its mixer attends.
"""

from torch import Tensor, nn

from regard import checks
from regard.attention.cache import Cache
from regard.attention.layer import AttentionLayer
from regard.attention.mask import All, Causal, Mask, Padding
from regard.attention.presence import cleared, there


class SelfAttention(nn.Module):
    """An attention layer over its own input, under a mask: causal where nothing else is said, None for all to all."""

    def __init__(self, layer: AttentionLayer, mask: Mask | None = Causal()) -> None:  # noqa: B008 (a value, never changed)
        super().__init__()
        if layer.context_width != layer.width:
            raise checks.wrong("layer", "one whose context has its own width, for self-attention",
                               f"of width {layer.width} with a context of {layer.context_width}")
        self.layer, self.mask = layer, mask

    def forward(self, x: Tensor, present: Mask | None = None, positions: Tensor | None = None) -> Tensor:
        """All tokens at once: (B, N, D) -> (B, N, D). Where `present` says that there is no token, zeros."""
        mask = self.mask if present is None else present if self.mask is None else self.mask & present
        if not isinstance(present, Padding):  # packed rows have no padding
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
