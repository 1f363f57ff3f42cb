"""What every model answers to, so that one loss, one search and one tool serve all of them.

    encode(tokens) -> memory                      the source, read once
    decode(tokens, memory) -> logits              all positions at once: (B, N) -> (B, N, V)
    start(memory, rows, capacity) -> state        before the first token
    step(state, ids) -> Step(logits, state, cross)   one token or a chunk; it consumes the state

    features(...) -> what `output` turns into logits: model(...) = output(features(...)), for losses that need no logits

The id at a position is what the model reads there; its logits are for the next one. A target is therefore shifted
by one before it is decoded: [START] first. Step by step equals all at once. Several sequences are given as rows that
are filled up (`Tokens`), or one after another in a single row (`PackedTokens`), which gives the same numbers.
This file knows no model.

Legend: B rows, N tokens, S sequences, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Mask, Padding, integers
from regard.attention.packed import Packed
from regard.mixer import Rows, indices

IGNORED = -100
"""The label of a token that counts nothing in a loss."""


@dataclass(frozen=True)
class Tokens:
    """Ids (B, N), of which row b has lengths[b] (all N where None); the others are padding, on the side named."""

    ids: Tensor
    lengths: Tensor | None = None
    side: str = "right"
    segments: Tensor | None = None
    """(B, N): which of several texts each token belongs to, for models that were taught to tell them apart."""

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        checks.pick("side", self.side, {"right": None, "left": None})
        if self.lengths is not None and tuple(self.lengths.shape) != tuple(self.ids.shape[:1]):
            expected = f"of shape ({self.ids.shape[0]},), a length for each row"
            raise checks.wrong("lengths", expected, f"of shape {checks.shape(self.lengths)}")
        _check_segments(self.segments, self.ids)

    @staticmethod
    def of(sequences: "Sequence[Sequence[int] | Tensor]", side: str = "right", padding: int = 0) -> "Tokens":
        """Sequences of ids as rows of one batch, filled up with the id `padding`."""
        rows = [row.tolist() if hasattr(row, "tolist") else row for row in sequences]
        counts = [len(row) for row in rows]
        longest = max(counts, default=0)
        # One call for all rows: a tensor for each takes longer than a small model on a GPU.
        filled = [[*[padding] * (longest - len(row)), *row] if side == "left" else
                  [*row, *[padding] * (longest - len(row))] for row in rows]
        ids = torch.tensor(filled, dtype=torch.long).view(len(rows), longest)
        return Tokens(ids, torch.tensor(counts, dtype=torch.long), side)

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return self.ids.shape[0]

    @property
    def present(self) -> Padding | None:
        """Which tokens are there, as mixers and masks take it."""
        return None if self.lengths is None else Padding(self.lengths, self.side)

    @property
    def positions(self) -> Tensor:
        """(N,) or (B, N): where each token stands in its own sequence, from 0."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        if self.side == "right" or self.lengths is None:
            return places
        return (places - (self.ids.shape[1] - self.lengths).unsqueeze(-1)).clamp(min=0)

    def right(self) -> "Tokens":
        """The same sequences with their padding on the right."""
        if self.side == "right" or self.lengths is None:
            return Tokens(self.ids, self.lengths, segments=self.segments)
        count = self.ids.shape[1]
        index_BN = (torch.arange(count, device=self.ids.device) - self.lengths.unsqueeze(-1)) % max(1, count)
        segments = None if self.segments is None else self.segments.gather(1, index_BN)
        return Tokens(self.ids.gather(1, index_BN), self.lengths, segments=segments)

    def to(self, device: "torch.device | str") -> "Tokens":
        """The same on a device."""
        lengths, segments = (None if part is None else part.to(device) for part in (self.lengths, self.segments))
        return Tokens(self.ids.to(device), lengths, self.side, segments)


@dataclass(frozen=True)
class PackedTokens:
    """Sequences one after another in a single row of ids (1, N), each of `lengths` (S,), without padding."""

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None = None
    """(1, N), as in `Tokens`."""

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        if self.ids.shape[0] != 1:
            raise checks.wrong("ids", "one row, (1, tokens)", f"of shape {checks.shape(self.ids)}")
        if self.lengths.dim() != 1:
            raise checks.wrong("lengths", "of shape (sequences,)", f"of shape {checks.shape(self.lengths)}")
        integers("lengths", self.lengths)
        if self.lengths.device.type == "cpu" and int(self.lengths.sum()) != self.ids.shape[1]:  # elsewhere nobody looks
            raise checks.wrong("lengths", f"lengths that add up to the {self.ids.shape[1]} tokens",
                               f"lengths that add up to {int(self.lengths.sum())}")
        _check_segments(self.segments, self.ids)

    @staticmethod
    def of(sequences: "Sequence[Sequence[int] | Tensor]") -> "PackedTokens":
        """Sequences of ids, one after another."""
        rows = [torch.as_tensor(row, dtype=torch.long) for row in sequences]
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        return PackedTokens(torch.cat([*rows, lengths.new_zeros(0)]).unsqueeze(0), lengths)

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    @property
    def present(self) -> Packed:
        """Who is in one sequence with whom, as mixers and masks take it."""
        return Packed(self.lengths)

    @property
    def positions(self) -> Tensor:
        """(1, N): where each token stands in its own sequence, from 0."""
        return self.present.positions(self.ids.shape[1], self.ids.device).unsqueeze(0)

    def right(self) -> "PackedTokens":
        """The same: there is no padding."""
        return self

    def to(self, device: "torch.device | str") -> "PackedTokens":
        """The same on a device."""
        segments = None if self.segments is None else self.segments.to(device)
        return PackedTokens(self.ids.to(device), self.lengths.to(device), segments)


AnyTokens = Tokens | PackedTokens


@dataclass(frozen=True)
class Memory:
    """What an encoder has read: its states, and where it makes one, a single vector for the whole source."""

    states: Tensor
    """(B, N, D)"""
    lengths: Tensor | None
    """(B,): how many states each row has, the first ones; all where None."""
    summary: Tensor | None = None
    """(B, D)"""

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return self.states.shape[0]

    def pick(self, rows: Rows) -> "Memory":
        """The memory of these rows; a row may be picked more than once."""
        index = indices(rows, self.states)
        parts = (None if part is None else part[index] for part in (self.lengths, self.summary))
        return Memory(self.states[index], *parts)

    def seen_by(self, tokens: AnyTokens) -> Mask | None:
        """Which states the tokens of the other side may look at."""
        if isinstance(tokens, PackedTokens):
            raise checks.wrong("tokens", "rows like the memory's", "packed", "Pack both sides, or none.")
        return None if self.lengths is None else Padding(self.lengths)

    def mean(self) -> Tensor:
        """(B, D): the mean of the states that are there; zeros for an empty row."""
        if self.lengths is None:
            return self.states.sum(dim=1) / max(1, self.states.shape[1])
        there_BN = torch.arange(self.states.shape[1], device=self.states.device) < self.lengths.unsqueeze(-1)
        total = self.states.masked_fill(~there_BN.unsqueeze(-1), 0.0).sum(dim=1)
        return total / self.lengths.clamp(min=1).unsqueeze(-1)


@dataclass(frozen=True)
class PackedMemory:
    """What an encoder has read of packed sources: states (1, N, D), `lengths` (S,) of them a sequence."""

    states: Tensor
    lengths: Tensor

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    def seen_by(self, tokens: AnyTokens) -> Mask:
        """Which states the tokens of the other side may look at: those of their own sequence."""
        if not isinstance(tokens, PackedTokens) or len(tokens.lengths) != len(self.lengths):
            got = f"{tokens.rows} sequences" if isinstance(tokens, PackedTokens) else "not packed"
            raise checks.wrong("tokens", f"{len(self.lengths)} packed sequences, as many as the memory has", got)
        return Packed(tokens.lengths, self.lengths)

    def padded(self) -> Memory:
        """The same as rows that are filled up, to be picked from and to write from."""
        if not len(self.lengths):
            return Memory(self.states.new_zeros(0, *self.states.shape[1:]), self.lengths.to(self.states.device))
        pieces = self.states[0].split(self.lengths.tolist())
        return Memory(torch.nn.utils.rnn.pad_sequence(list(pieces), batch_first=True),
                      self.lengths.to(self.states.device))


AnyMemory = Memory | PackedMemory


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
    """(B, layers, heads, n, N of the memory)"""


class Writer(Protocol):
    """A model that writes: what a search needs to know of it."""

    training: bool

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> Any:
        """The state before the first token, for at most `capacity` of them a row."""

    def step(self, state: Any, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """The next tokens (B, n), of which row b has lengths[b] (all where None). It consumes the state."""


def _check_segments(segments: Tensor | None, ids: Tensor) -> None:
    if segments is not None and segments.shape != ids.shape:
        raise checks.wrong("segments", f"of the ids' shape {checks.shape(ids)}", f"of shape {checks.shape(segments)}")


def _check_ids(ids: Tensor) -> None:
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        got = f"of shape {checks.shape(ids)} and dtype {ids.dtype}"
        raise checks.wrong("ids", "integers of shape (rows, tokens)", got)
