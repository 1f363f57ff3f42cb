"""Places: which pairs of a query and a key a block of scores holds, and where each query stands among the keys.

Masks and biases are computed from places, so one formula serves the whole matrix, a block of it, some rows of it, and
a single pair inside a compiled kernel. A place knows nothing of scores or of what a mask means.

Every query stands at a position among the keys. Where nothing else is said the two sequences end together (aligned to
the bottom right): the last query stands at the last key. `Packed` and `Placed` masks say otherwise.

Legend: Q queries of the block, K keys of the block.
"""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor


class Place(Protocol):
    """What a mask may read. The tensors broadcast against each other to the shape of the block."""

    @property
    def row(self) -> Tensor:
        """The index of the query."""

    @property
    def column(self) -> Tensor:
        """The index of the key."""

    @property
    def position(self) -> Tensor:
        """The index of the key at which the query stands."""

    @property
    def n_queries(self) -> int: ...

    @property
    def n_keys(self) -> int: ...

    def per_sequence(self, numbers: Tensor) -> Tensor:
        """Numbers given one a sequence, (batch, ...), aligned with the block's leading dimensions from the left."""

    def select(self, matrix: Tensor) -> Tensor:
        """The entries of a (..., n_queries, n_keys) matrix at this place."""

    def at(self, position: Tensor) -> Self:
        """The same pairs, with the queries standing elsewhere."""


@dataclass(frozen=True)
class Block:
    """The place of a block: some queries against a run of keys, for every leading index."""

    row: Tensor
    column: Tensor
    position: Tensor
    n_queries: int
    n_keys: int
    leading: int
    rows: "slice | Tensor"
    columns: slice

    @classmethod
    def of(cls, n_queries: int, n_keys: int, *, leading: int, device: "torch.device | str | None" = None,
           rows: "slice | Tensor | None" = None, columns: slice | None = None) -> "Block":
        """The block of these rows and columns (all, where not said) under `leading` leading dimensions."""
        # By type and not by `is None`, on which torch.compile would specialise, and compile again for every length.
        rows = rows if isinstance(rows, slice | Tensor) else slice(0, n_queries)
        columns = columns if isinstance(columns, slice) else slice(0, n_keys)
        index_Q = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
        row_Q1 = index_Q.unsqueeze(-1)
        column_K = torch.arange(columns.start, columns.stop, device=device)
        return cls(row_Q1, column_K, row_Q1 + (n_keys - n_queries), n_queries, n_keys, leading, rows, columns)

    def per_sequence(self, numbers: Tensor) -> Tensor:
        return numbers.reshape(numbers.shape + (1,) * (self.leading + 2 - numbers.dim()))

    def select(self, matrix: Tensor) -> Tensor:
        if matrix.shape[-2] != 1:  # a dimension of size 1 stands for all queries, or all keys
            matrix = matrix[..., self.rows, :]
        return matrix if matrix.shape[-1] == 1 else matrix[..., self.columns]

    def at(self, position: Tensor) -> "Block":
        return replace(self, position=position)
