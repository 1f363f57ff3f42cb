"""The interface of mixers: recurrence, convolution and self-attention all implement it.

    mixer(x, present) -> y                   all tokens at once: (B, N, D) -> (B, N, D)
    mixer.start(rows, capacity) -> state     the state before the first token
    mixer.step(x, state) -> (y, state)       one token or a chunk of them, after those of the state

A mixer passes information between tokens, and a block takes any mixer. No module hides a state: it goes in and comes
out. A state that was passed to a step is consumed; copy it first to keep it. A feed-forward layer that reads other
tokens (RWKV's channel mix) is a mixer too. This module knows none of the mixers.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from regard import checks


@dataclass(frozen=True)
class RowGroups:
    """Rows in consecutive groups of `size`, such as the beams of one source; each group continues a single group.

    What all rows of a group share, such as the encoded source, need not be copied for each of them.
    """

    rows: Tensor
    """(groups · size,): the row that each of them continues, or replaces."""
    size: int
    previous_size: int
    """The size of the groups that they continue: the same, or 1 where groups begin."""
    groups: Tensor | None = None
    """(groups,): the group that each of them continues, or replaces; None where all stay where they are."""
    reuse_storage: bool = False
    """The old state is not needed any more, so the new one may be written into its storage."""


Rows = list[int] | Tensor | RowGroups


class MixerState(Protocol):
    """The state of a mixer for each row (sequence). Rows are independent of each other."""

    def pick(self, rows: Rows) -> Self:
        """The state of these rows, in storage of its own; a row may be picked more than once."""

    def put(self, rows: Rows, other: Self) -> Self:
        """Replace these rows by the rows of another state."""

    def copy(self) -> Self:
        """A copy in storage of its own."""


class Mixer(Protocol):
    """A module from (B, N, D) to (B, N, D) that passes information between tokens."""

    def __call__(self, x: Tensor, present: Any = None) -> Tensor:
        """All tokens at once. `present` is a `Padding` that says which tokens are not padding; None means all."""

    def start(self, rows: int, capacity: int) -> Any:
        """The state before the first token, for `rows` sequences of at most `capacity` tokens."""

    def step(self, x: Tensor, state: Any, *, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """The next tokens, (B, n, D); where rows have fewer than n of them, `lengths` (B,) says how many."""


def check_input(x: Tensor, width: int) -> None:
    """Refuse an input of a mixer that is not (rows, tokens, width)."""
    if x.dim() != 3 or x.shape[-1] != width:
        raise checks.wrong("x", f"of shape (rows, tokens, {width})", f"of shape {checks.shape(x)}")


@dataclass
class FirstValues:
    """The values of the first layer of a stack in one pass, which later layers of RWKV-7 mix into their own.

    A stack makes one for each pass and each step, and hands it to mixers whose `shares_values` is True, as `first`. The
    first layer writes its values, the others read them.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    """By the direction in which they were read, (B, N, D) each."""


class CompositeState:
    """The base of states that are dataclasses: what happens to the rows of a state happens to each of its fields.

    A field may be a tensor whose first dimension is the rows, a state, a tuple of these, or None; other fields, such as
    flags, stay as they are.
    """

    def pick(self, rows: Rows) -> Self:
        """The state of these rows, in storage of its own; a row may be picked more than once."""
        return type(self)(*[_pick(field, rows) for field in vars(self).values()])

    def put(self, rows: Rows, other: Self) -> Self:
        """Replace these rows by the rows of another state."""
        fields = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*[_put(mine, rows, theirs) for mine, theirs in fields])

    def copy(self) -> Self:
        """A copy in storage of its own."""
        return type(self)(*[_copy(field) for field in vars(self).values()])


@dataclass(frozen=True)
class RowState(CompositeState):
    """A state of tensors whose first dimension is the rows."""

    tensors: tuple[Tensor, ...]

    def detach(self) -> Self:
        """The same numbers without their history: gradients stop here (truncated back-propagation through time)."""
        return replace(self, tensors=tuple(tensor.detach() for tensor in self.tensors))


def _pick(field: Any, rows: Rows) -> Any:
    if isinstance(field, Tensor):
        return field[row_indices(rows, field)]
    if isinstance(field, tuple):
        return tuple(_pick(part, rows) for part in field)
    return field.pick(rows) if hasattr(field, "pick") else field


def _put(mine: Any, rows: Rows, theirs: Any) -> Any:
    if isinstance(mine, Tensor):
        return mine.index_copy(0, row_indices(rows, mine), theirs.to(mine.dtype))
    if isinstance(mine, tuple):
        return tuple(_put(part, rows, other) for part, other in zip(mine, theirs, strict=True))
    return mine.put(rows, theirs) if hasattr(mine, "put") and theirs is not None else mine


def _copy(field: Any) -> Any:
    if isinstance(field, Tensor):
        return field.clone()
    if isinstance(field, tuple):
        return tuple(_copy(part) for part in field)
    return field.copy() if hasattr(field, "copy") else field


def row_indices(rows: Rows, like: Tensor) -> Tensor:
    """Rows as non-negative indices, which every kind of indexing takes, on the device of `like`."""
    rows = rows.rows if isinstance(rows, RowGroups) else rows
    return torch.as_tensor(rows, dtype=torch.long, device=like.device) % max(1, like.shape[0])
