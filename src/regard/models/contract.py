"""The interface that every model implements, so that one loss, one search and one inspection tool serve all of them.

    encode(tokens) -> memory                         the encoded source
    decode(tokens, memory) -> logits                 all positions at once: (B, N) -> (B, N, V)
    start(memory, rows, capacity) -> state           before the first token
    step(state, ids) -> Step(logits, state, cross)   one token or a chunk; it consumes the state

    features(...)    the input of the layer `output`: model(...) = output(features(...)), for losses without logits

The logits at a position predict the next token. A target is therefore shifted right by one before it is decoded, with
[START] first. Step by step gives the same numbers as all at once, and packed sequences (`PackedTokens`) the same as
padded ones (`Tokens`). This module knows no model.

Legend: B rows, N tokens, S sequences, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.attention.mask import Mask, Packed, Padding
from regard.checks import plural
from regard.mixer import Rows, row_indices
from regard.tokens import AnyTokens, PackedTokens


@dataclass(frozen=True)
class Memory:
    """The encoded source: the states of its tokens, and for some encoders one vector for the whole."""

    states: Tensor
    """(B, N, D)"""
    lengths: Tensor | None
    """(B,): the number of states of each row, padding on the right; None: all are states."""
    summary: Tensor | None = None
    """(B, D)"""

    def __repr__(self) -> str:
        return f"Memory(states {tuple(self.states.shape)}{'' if self.summary is None else ', with a summary'})"

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return self.states.shape[0]

    def pick(self, rows: Rows) -> "Memory":
        """The memory of these rows; a row may be picked more than once."""
        index = row_indices(rows, self.states)
        parts = (None if part is None else part[index] for part in (self.lengths, self.summary))
        return Memory(self.states[index], *parts)

    @staticmethod
    def joined(parts: "Sequence[Memory]") -> "Memory":
        """The rows of several memories of one model as one, padded to the longest."""
        longest = max(part.states.shape[1] for part in parts)
        states = torch.cat([pad(part.states, (0, 0, 0, longest - part.states.shape[1])) for part in parts])
        lengths = [torch.full((part.rows,), part.states.shape[1], device=states.device) if part.lengths is None
                   else part.lengths for part in parts]
        summaries = [part.summary for part in parts if part.summary is not None]
        return Memory(states, torch.cat(lengths), torch.cat(summaries) if summaries else None)

    def mask_for(self, tokens: AnyTokens) -> Mask | None:
        """The mask of cross-attention: which states the target's tokens may attend to."""
        if isinstance(tokens, PackedTokens):
            raise checks.wrong("tokens", "Tokens, like the source", "PackedTokens", "Pack both sides, or none.")
        return None if self.lengths is None else Padding(self.lengths)

    def mean(self) -> Tensor:
        """(B, D): the mean of each row's states; zeros for an empty row."""
        if self.lengths is None:
            return self.states.sum(dim=1) / max(1, self.states.shape[1])
        present_BN = torch.arange(self.states.shape[1], device=self.states.device) < self.lengths.unsqueeze(-1)
        total = self.states.masked_fill(~present_BN.unsqueeze(-1), 0.0).sum(dim=1)
        return total / self.lengths.clamp(min=1).unsqueeze(-1)


@dataclass(frozen=True)
class PackedMemory:
    """Encoded packed sources: states (1, N, D), of which each sequence has `lengths` (S,)."""

    states: Tensor
    lengths: Tensor

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return len(self.lengths)

    def mask_for(self, tokens: AnyTokens) -> Mask:
        """The mask of cross-attention: the target's tokens may attend to the states of their own sequence."""
        if not isinstance(tokens, PackedTokens) or len(tokens.lengths) != len(self.lengths):
            got = plural(tokens.rows, "sequence") if isinstance(tokens, PackedTokens) else "Tokens"
            raise checks.wrong("tokens", f"PackedTokens with as many sequences as the memory, {len(self.lengths)}", got)
        return Packed(tokens.lengths, self.lengths)

    def padded(self) -> Memory:
        """The same states as padded rows, which can be picked and decoded step by step."""
        if not len(self.lengths):
            return Memory(self.states.new_zeros(0, *self.states.shape[1:]), self.lengths.to(self.states.device))
        pieces = self.states[0].split(self.lengths.tolist())
        return Memory(torch.nn.utils.rnn.pad_sequence(list(pieces), batch_first=True),
                      self.lengths.to(self.states.device))


AnyMemory = Memory | PackedMemory


class GenerationState(Protocol):
    """The state of a model for each row while it generates. Rows have their own positions and can be replaced."""

    @property
    def positions(self) -> Tensor:
        """(B,): the number of tokens that each row has consumed."""

    def pick(self, rows: Rows) -> Self:
        """The state of these rows, in storage of its own; a row may be picked more than once."""

    def put(self, rows: Rows, other: Self) -> Self:
        """Replace these rows by the rows of another state."""

    def copy(self) -> Self:
        """A copy in storage of its own."""


class Step(NamedTuple):
    """The result of a step: logits (B, n, V), the next state, and the cross-attention weights where requested."""

    logits: Tensor
    state: Any
    cross: Tensor | None = None
    """(B, layers, heads, n, N of the memory)"""


class GenerativeModel(Protocol):
    """A model that generates tokens, as a search knows it."""

    training: bool

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> Any:
        """The state before the first token, for at most `capacity` tokens in each row."""

    def step(self, state: Any, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """Consume the next tokens (B, n), of which row b has lengths[b] (default: all), and the state."""
