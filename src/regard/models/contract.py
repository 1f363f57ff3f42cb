"""What every model answers to, so that one loss, one search and one tool serve all of them.

    encode(tokens) -> memory                      the source, read once
    decode(tokens, memory) -> logits              all positions at once: (B, N) -> (B, N, V)
    start(memory, rows, capacity) -> state        before the first token
    step(state, ids) -> Step(logits, state, cross)   one token or a chunk; it consumes the state

The id at a position is what the model reads there; its logits are for the next one. A target is therefore shifted
by one before it is decoded: [START] first. Step by step equals all at once. This file knows no model.

Legend: B rows, N tokens, D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Padding
from regard.mixer import Rows, indices


@dataclass(frozen=True)
class Tokens:
    """Ids (B, N), of which row b has lengths[b] (all N where None); the others are padding, on the side named."""

    ids: Tensor
    lengths: Tensor | None = None
    side: str = "right"

    def __post_init__(self) -> None:
        if self.ids.dim() != 2 or self.ids.is_floating_point() or self.ids.dtype == torch.bool:
            got = f"of shape {checks.shape(self.ids)} and dtype {self.ids.dtype}"
            raise checks.wrong("ids", "integers of shape (rows, tokens)", got)
        if self.lengths is not None and tuple(self.lengths.shape) != tuple(self.ids.shape[:1]):
            expected = f"of shape ({self.ids.shape[0]},), a length for each row"
            raise checks.wrong("lengths", expected, f"of shape {checks.shape(self.lengths)}")

    @property
    def present(self) -> Padding | None:
        """Which tokens are there, as mixers and masks take it."""
        return None if self.lengths is None else Padding(self.lengths, self.side)

    @property
    def rows(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True)
class Memory:
    """What an encoder has read: its states, and where it makes one, a single vector for the whole source."""

    states: Tensor
    """(B, N, D)"""
    lengths: Tensor | None
    """(B,): how many states each row has, the first ones; all where None."""
    summary: Tensor | None = None
    """(B, D)"""

    def pick(self, rows: Rows) -> "Memory":
        """The memory of these rows; a row may be picked more than once."""
        index = indices(rows, self.states)
        parts = (None if part is None else part[index] for part in (self.lengths, self.summary))
        return Memory(self.states[index], *parts)


class State(Protocol):
    """What a model remembers of each row while it writes. Rows have their own positions and can be replaced."""

    @property
    def positions(self) -> Tensor:
        """(B,): how many tokens each row has read."""

    def pick(self, rows: Rows) -> Self:
        """The state of these rows, in storage of its own; a row may be picked more than once."""

    def put(self, rows: Rows, other: Self) -> Self:
        """Replace these rows by the rows of another state."""

    def copy(self) -> Self:
        """The same, in storage of its own."""


class Step(NamedTuple):
    """What a step gives: logits (B, n, V), the state after it, and the cross-attention weights where asked for."""

    logits: Tensor
    state: Any
    cross: Tensor | None = None
    """(B, heads, n, N of the memory)"""
