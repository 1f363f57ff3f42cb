"""Token ids as models take them: batches of padded rows, and packed rows.

    Tokens          ids (B, N), padded on one side, with the length of every row
    PackedTokens    several sequences one after another in a single row (1, N), without padding

Both kinds of batch give the same numbers in every model. This module knows ids only: the tokenizer turns text into ids,
and models turn ids into vectors.

Legend: B rows, N tokens, S sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Packed, Padding, as_integers
from regard.kernels.launch import is_readable

IGNORED_LABEL = -100
"""The label of a token that a loss does not count."""
MAX_SHOWN_LENGTHS = 6
"""The number of lengths that a `repr` shows."""


@dataclass(frozen=True)
class Tokens:
    """A padded batch of sequences of ids: what models read.

    Example:
        import regard

        tokens = regard.Tokens.of([[5, 6, 7], [8]])
        assert tokens.ids.tolist() == [[5, 6, 7], [8, 0, 0]]
        assert tokens.lengths.tolist() == [3, 1]
    """

    ids: Tensor
    """(B, N): the ids, padded to one length."""
    lengths: Tensor | None = None
    """(B,): the number of tokens of each row that are not padding; None if there is no padding."""
    side: str = "right"
    """The side of the padding: "right" or "left"."""
    segments: Tensor | None = None
    """(B, N): the segment of each token, for models with segment embeddings (BERT's token types)."""

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        checks.pick("side", self.side, {"right": None, "left": None})
        if self.lengths is not None and tuple(self.lengths.shape) != tuple(self.ids.shape[:1]):
            expected = f"of shape ({self.ids.shape[0]},), a length for each row"
            raise checks.wrong("lengths", expected, f"of shape {checks.shape(self.lengths)}")
        _check_segments(self.segments, self.ids)

    def __repr__(self) -> str:
        lengths = "" if self.lengths is None else f", lengths {_first_lengths(self.lengths)}, padded {self.side}"
        return f"Tokens(ids {checks.shape(self.ids)}{lengths}{_device_suffix(self.ids)})"

    @staticmethod
    def of(sequences: "Sequence[Sequence[int] | Tensor]", side: str = "right", padding: int = 0) -> "Tokens":
        """Make one batch of sequences of ids, padded with the id `padding`."""
        rows = [row.tolist() if hasattr(row, "tolist") else row for row in sequences]
        counts = [len(row) for row in rows]
        longest = max(counts, default=0)
        # One tensor for all rows: one for each row takes longer than a small model on a GPU.
        filled = [[*[padding] * (longest - len(row)), *row] if side == "left" else
                  [*row, *[padding] * (longest - len(row))] for row in rows]
        ids = torch.tensor(filled, dtype=torch.long).view(len(rows), longest)
        return Tokens(ids, torch.tensor(counts, dtype=torch.long), side)

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return self.ids.shape[0]

    @property
    def present(self) -> Padding | None:
        """Which tokens are not padding, as mixers and masks take it."""
        return None if self.lengths is None else Padding(self.lengths, self.side)

    @property
    def positions(self) -> Tensor:
        """(N,) or (B, N): the position of each token in its own sequence, from 0."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        if self.side == "right" or self.lengths is None:
            return columns
        return (columns - (self.ids.shape[1] - self.lengths).unsqueeze(-1)).clamp(min=0)

    def right(self) -> "Tokens":
        """Return the same sequences, padded on the right."""
        if self.side == "right" or self.lengths is None:
            return Tokens(self.ids, self.lengths, segments=self.segments)
        count = self.ids.shape[1]
        index_BN = (torch.arange(count, device=self.ids.device) - self.lengths.unsqueeze(-1)) % max(1, count)
        segments = None if self.segments is None else self.segments.gather(1, index_BN)
        return Tokens(self.ids.gather(1, index_BN), self.lengths, segments=segments)

    def to(self, device: "torch.device | str") -> "Tokens":
        """Return a copy on a device."""
        # From the host nothing waits for the work that the device still has; to the host a copy must wait.
        at_once = self.ids.device.type == "cpu"
        ids, lengths, segments = (None if part is None else part.to(device, non_blocking=at_once)
                                  for part in (self.ids, self.lengths, self.segments))
        assert ids is not None
        return Tokens(ids, lengths, self.side, segments)


@dataclass(frozen=True)
class PackedTokens:
    """A packed batch of sequences of ids: one after another in a single row, without padding."""

    ids: Tensor
    """(1, N): the ids of all sequences."""
    lengths: Tensor
    """(S,): the number of tokens of each sequence."""
    segments: Tensor | None = None
    """(1, N), as in `Tokens`."""

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        if self.ids.shape[0] != 1:
            raise checks.wrong("ids", "one row, (1, tokens)", f"of shape {checks.shape(self.ids)}")
        if self.lengths.dim() != 1:
            raise checks.wrong("lengths", "of shape (sequences,)", f"of shape {checks.shape(self.lengths)}")
        as_integers("lengths", self.lengths)
        if is_readable(self.lengths) and int(self.lengths.sum()) != self.ids.shape[1]:
            raise checks.wrong("lengths", f"lengths that add up to the {self.ids.shape[1]} tokens",
                               f"lengths that add up to {int(self.lengths.sum())}")
        _check_segments(self.segments, self.ids)

    def __repr__(self) -> str:
        return (f"PackedTokens(ids {checks.shape(self.ids)}, lengths {_first_lengths(self.lengths)}"
                f"{_device_suffix(self.ids)})")

    @staticmethod
    def of(sequences: "Sequence[Sequence[int] | Tensor]") -> "PackedTokens":
        """Put sequences of ids one after another."""
        rows = [torch.as_tensor(row, dtype=torch.long) for row in sequences]
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        return PackedTokens(torch.cat([*rows, lengths.new_zeros(0)]).unsqueeze(0), lengths)

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return len(self.lengths)

    @property
    def present(self) -> Packed:
        """Which tokens belong to one sequence, as mixers and masks take it."""
        return Packed(self.lengths)

    @property
    def positions(self) -> Tensor:
        """(1, N): the position of each token in its own sequence, from 0."""
        return self.present.positions(self.ids.shape[1], self.ids.device).unsqueeze(0)

    def right(self) -> "PackedTokens":
        """Return the same object: there is no padding."""
        return self

    def to(self, device: "torch.device | str") -> "PackedTokens":
        """Return a copy on a device."""
        segments = None if self.segments is None else self.segments.to(device)
        return PackedTokens(self.ids.to(device), self.lengths.to(device), segments)


AnyTokens = Tokens | PackedTokens


def _first_lengths(lengths: Tensor) -> str:
    """The first lengths, as a `repr` shows them."""
    shown = ", ".join(str(length) for length in lengths[:MAX_SHOWN_LENGTHS].tolist())
    return f"[{shown}{', …' if len(lengths) > MAX_SHOWN_LENGTHS else ''}]"


def _device_suffix(tensor: Tensor) -> str:
    return "" if tensor.device.type == "cpu" else f", {tensor.device}"


def _check_segments(segments: Tensor | None, ids: Tensor) -> None:
    if segments is not None and segments.shape != ids.shape:
        raise checks.wrong("segments", f"of the ids' shape {checks.shape(ids)}", f"of shape {checks.shape(segments)}")


def _check_ids(ids: Tensor) -> None:
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        got = f"of shape {checks.shape(ids)} and dtype {ids.dtype}"
        raise checks.wrong("ids", "integers of shape (rows, tokens)", got)
