"""What a mixer is: the one interface behind recurrence, convolution and self-attention.

    mixer(x, present) -> y                   all tokens at once: (B, N, D) -> (B, N, D)
    mixer.start(rows, capacity) -> state     what is remembered before the first token
    mixer.step(x, state) -> (y, state)       one token or a chunk of them, after those that the state has seen

A mixer lets every token learn from the others. A block takes any mixer. No module hides a state: it goes in and comes
out. A state that was passed to a step is consumed; copy it first to keep it. This file knows none of the mixers.
"""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowGroups:
    """Rows in families of `size`, one family after another; each row continues one of a single family's.

    What all rows of a family share, such as the source that they look at, need not be copied for each of them.
    """

    rows: Tensor
    """(families · size,): which row each of them continues, or replaces."""
    size: int
    before: int
    """The size of the families that they continue: the same, or 1 where families begin."""
    families: Tensor | None = None
    """(families,): which of those families each continues, or replaces; None where all stay in their places."""
    spent: bool = False
    """Nobody needs the state any more that they are picked from: what is picked may stand in its storage."""


Rows = list[int] | Tensor | RowGroups


class MixerState(Protocol):
    """What a mixer remembers of each row (sequence). Rows are independent of each other."""

    def pick(self, rows: Rows) -> Self:
        """The state of these rows, in storage of its own; a row may be picked more than once."""

    def put(self, rows: Rows, other: Self) -> Self:
        """Replace these rows by the rows of another state."""

    def copy(self) -> Self:
        """The same, in storage of its own."""


class Mixer(Protocol):
    """A module from (B, N, D) to (B, N, D) in which tokens learn from each other."""

    def __call__(self, x: Tensor, present: Any = None) -> Tensor:
        """All tokens at once. `present` is a `Padding`, which says which tokens are there; all are where it is None."""

    def start(self, rows: int, capacity: int) -> Any:
        """The state before the first token, for `rows` sequences of at most `capacity` tokens."""

    def step(self, x: Tensor, state: Any, *, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """The next tokens, (B, n, D); where rows have fewer than n of them, `lengths` (B,) says how many."""


@dataclass(frozen=True)
class RowState:
    """A state made of tensors that all have the rows as their first dimension."""

    tensors: tuple[Tensor, ...]

    def pick(self, rows: Rows) -> "RowState":
        """The state of these rows, in storage of its own; a row may be picked more than once."""
        return RowState(tuple(tensor[row_indices(rows, tensor)] for tensor in self.tensors))

    def put(self, rows: Rows, other: "RowState") -> "RowState":
        """The state in which these rows are those of the other."""
        return RowState(tuple(mine.index_copy(0, row_indices(rows, mine), theirs.to(mine.dtype))
                              for mine, theirs in zip(self.tensors, other.tensors, strict=True)))

    def copy(self) -> "RowState":
        """The same, in storage of its own."""
        return RowState(tuple(tensor.clone() for tensor in self.tensors))

    def detach(self) -> "RowState":
        """The same, without its past: gradients stop here (truncated back-propagation through time)."""
        return RowState(tuple(tensor.detach() for tensor in self.tensors))


def row_indices(rows: Rows, like: Tensor) -> Tensor:
    """Rows as indices from 0 on, which every kind of indexing takes, on the device of `like`."""
    rows = rows.rows if isinstance(rows, RowGroups) else rows
    return torch.as_tensor(rows, dtype=torch.long, device=like.device) % max(1, like.shape[0])
