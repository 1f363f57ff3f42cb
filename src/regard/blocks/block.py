"""The block: a mixer, cross-attention where there is a context, and a feed-forward layer.

    x ── mixer ── cross-attention to a context ── feed-forward layer ──► y        each with residual, norm and dropout

A block takes any mixer (recurrence, convolution, self-attention, RWKV) and does not know which one it has. A
feed-forward layer that reads other tokens is a mixer too: it has a state of its own. The residual
connections, norms and dropout around each sublayer are in `sublayer`.

Legend: B rows, N tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard import checks
from regard.attention.cache import ContextCache
from regard.attention.layer import AttentionLayer
from regard.attention.mask import Mask
from regard.blocks.sublayer import NORM_POSITIONS, make_norm
from regard.mixer import CompositeState, FirstValues


@dataclass(frozen=True)
class BlockState(CompositeState):
    """The state of a block between steps: of its mixer, the projected context, and of a feed-forward layer with one."""

    mixer: Any
    context: ContextCache | None
    feed_forward: Any = None
    """The state of a feed-forward layer that reads other tokens, such as RWKV's channel mix; None for others."""


class Block(nn.Module):
    """A block of a Transformer: a mixer, cross-attention and a feed-forward layer, with residuals and norms.

        pre-norm     x ← x + sublayer(norm(x))
        post-norm    x ← norm(x + sublayer(x))

    Args:
        mixer: a module (B, N, D) -> (B, N, D): `SelfAttention`, `Recurrence`, `Convolution` or your own.
        feed_forward: a module (..., D) -> (..., D), or a mixer, which is a module with `step`; None for none.
        width: D.
        cross: the attention layer that attends to a context; None for none.
        norm_position: "pre", "post" or "none" (neither norms nor residuals).
        norm_name: "layer" or "rms".
        epsilon: added to the variance in the norms.
        dropout: the probability of dropout on the result of each sublayer, before it is added to the residual.
    """

    @checks.renamed_arguments(order="norm_position")
    def __init__(self, mixer: nn.Module, feed_forward: nn.Module | None, width: int, *,
                 cross: AttentionLayer | None = None, norm_position: str = "pre", norm_name: str = "layer",
                 epsilon: float = 1e-5, dropout: float = 0.0) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        norm_position = {"plain": "none"}.get(norm_position, norm_position)  # "plain" is the old name
        around = checks.pick("norm_position", norm_position, NORM_POSITIONS)
        self.mixer, self.cross, self.feed_forward = mixer, cross, feed_forward
        self.shares_values = bool(getattr(mixer, "shares_values", False))
        """Whether the mixer reads or writes the values of the stack's first layer."""
        self._feeds_mixer = hasattr(feed_forward, "step")
        self.around_mixer = around(make_norm(norm_name, width, epsilon), dropout)
        self.around_cross = None if cross is None else around(make_norm(norm_name, width, epsilon), dropout)
        self.around_feed_forward = None if feed_forward is None else around(make_norm(norm_name, width, epsilon),
                                                                            dropout)

    def forward(self, x: Tensor, present: Mask | None = None, context: Tensor | None = None,
                context_present: Mask | None = None, first: FirstValues | None = None) -> Tensor:
        """Run over all tokens at once: (B, N, D) -> (B, N, D).

        Args:
            present: a `Padding` or `Packed` that says which tokens exist; None means all.
            context: the tokens that cross-attention attends to, (B, M, D).
            context_present: as `present`, for the context.
            first: the values of the stack's first layer, for mixers that share them.
        """
        shared = (first,) if self.shares_values else ()
        x = self.around_mixer(x, lambda normed: self.mixer(normed, present, *shared))
        if self.around_cross is not None and self.cross is not None:
            cross = self.cross
            x = self.around_cross(x, lambda normed: cross(normed, self._given(context), mask=context_present))
        if self.feed_forward is None or self.around_feed_forward is None:
            return x
        feed = self.feed_forward
        return self.around_feed_forward(x, (lambda normed: feed(normed, present)) if self._feeds_mixer else feed)

    def start(self, rows: int, capacity: int, context: Tensor | None = None,
              lengths: Tensor | None = None) -> BlockState:
        """Return the state before the first token; the context (B, M, D) with `lengths` tokens is projected here."""
        seen = None if self.cross is None else self.cross.remember(self._given(context), lengths)
        feed = self.feed_forward.start(rows, capacity) if self._feeds_mixer else None  # type: ignore[operator, union-attr]
        return BlockState(self.mixer.start(rows, capacity), seen, feed)  # type: ignore[operator]

    def step(self, x: Tensor, state: BlockState, *, lengths: Tensor | None = None,
             first: FirstValues | None = None) -> tuple[Tensor, BlockState]:
        """Continue with one token or a chunk, (B, n, D); the state is consumed."""
        after: list[Any] = []

        def mix(mixer: Any, own: Any, **shared: Any) -> Callable[[Tensor], Tensor]:
            def advance(normed: Tensor) -> Tensor:
                y, following = mixer.step(normed, own, lengths=lengths, **shared)
                after.append(following)
                return y

            return advance

        x = self.around_mixer(x, mix(self.mixer, state.mixer, **({"first": first} if self.shares_values else {})))
        if self.around_cross is not None and self.cross is not None and state.context is not None:
            cross, context = self.cross, state.context
            x = self.around_cross(x, lambda normed: cross.step(normed, context)[0])
        if self.feed_forward is not None and self.around_feed_forward is not None:
            feed = mix(self.feed_forward, state.feed_forward) if self._feeds_mixer else self.feed_forward
            x = self.around_feed_forward(x, feed)
        return x, BlockState(after[0], state.context, after[1] if self._feeds_mixer else None)

    def _given(self, context: Tensor | None) -> Tensor:
        if context is None:
            raise checks.wrong("context", "given to a block with cross-attention", None)
        return context
