"""A stack of blocks, one over the other, with a norm at the end where the order is pre-norm.

It does not know embeddings, vocabularies or what its tokens are. With `checkpoint`, the activations inside a block are
not kept for the backward pass, but computed once more (less memory, about a third more time).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from regard.attention.mask import Mask
from regard.blocks.block import Block, BlockState
from regard.mixer import Rows


@dataclass(frozen=True)
class StackState:
    """The states of all blocks, the lowest first."""

    blocks: tuple[BlockState, ...]

    def pick(self, rows: Rows) -> "StackState":
        """The state of these rows; a row may be picked more than once."""
        return StackState(tuple(block.pick(rows) for block in self.blocks))

    def put(self, rows: Rows, other: "StackState") -> "StackState":
        """The state in which these rows are those of the other."""
        return StackState(tuple(mine.put(rows, theirs)
                                for mine, theirs in zip(self.blocks, other.blocks, strict=True)))

    def copy(self) -> "StackState":
        """The same, in storage of its own."""
        return StackState(tuple(block.copy() for block in self.blocks))


class Stack(nn.Module):
    """Blocks in sequence; `last_norm` is None after post-norm blocks, which end with a norm of their own."""

    def __init__(self, blocks: Sequence[Block], last_norm: nn.Module | None = None, *,
                 checkpoint: bool = False) -> None:
        super().__init__()
        self.blocks, self.last_norm, self.checkpoint = nn.ModuleList(blocks), last_norm, checkpoint

    def forward(self, x: Tensor, present: Mask | None = None, context: Tensor | None = None,
                context_present: Mask | None = None) -> Tensor:
        """All tokens at once: (B, N, D) -> (B, N, D)."""
        for block in self.blocks:
            if self.checkpoint and self.training:
                x = recompute(block, x, present, context, context_present, use_reentrant=False)
            else:
                x = block(x, present, context, context_present)
        return x if self.last_norm is None else self.last_norm(x)

    def start(self, rows: int, capacity: int, context: Tensor | None = None,
              lengths: Tensor | None = None) -> StackState:
        """The state before the first token."""
        return StackState(tuple(block.start(rows, capacity, context, lengths)  # type: ignore[operator]
                                for block in self.blocks))

    def step(self, x: Tensor, state: StackState, *, lengths: Tensor | None = None) -> tuple[Tensor, StackState]:
        """One token or a chunk, after those that the state has seen, which it consumes."""
        after = []
        for block, own in zip(self.blocks, state.blocks, strict=True):
            x, following = block.step(x, own, lengths=lengths)  # type: ignore[operator]
            after.append(following)
        return (x if self.last_norm is None else self.last_norm(x)), StackState(tuple(after))
