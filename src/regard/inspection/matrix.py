"""Weights that somebody gives whole, and that answer as a `Look` does.

A look has queries and keys, and computes its weights when they are asked for. Other programs, and some of our layers,
have the weights themselves. Whoever draws or counts asks both alike. A matrix does not know where it is from.

Legend: ... leading dimensions, heads last; n rows (queries), N columns (keys), M blocks of a map.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.attention.look import Peaks, row_indices


@dataclass(frozen=True, eq=False)
class Matrix:
    """Weights (..., heads, n, N). They need not sum to 1, and may be negative: nothing here changes them."""

    given: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.given, Tensor):
            raise checks.wrong("given", "a tensor", *checks.kind(self.given))
        if self.given.dim() < 2 or not self.given.is_floating_point():
            raise checks.wrong("given", "floating-point numbers of shape (..., rows, columns)",
                               f"{self.given.dtype} of shape {checks.shape(self.given)}")
        object.__setattr__(self, "given", self.given.detach())

    def __repr__(self) -> str:
        return f"Matrix({checks.shape(self.given)})"

    def weights(self) -> Tensor:
        """All of them, (..., n, N)."""
        return self.given

    def rows(self, indices: "int | list[int] | Tensor") -> Tensor:
        """The weights of these queries, (..., N) for one index and (..., indices, N) for several."""
        return self.given[..., row_indices(indices, self.given.shape[-2], self.given.device), :]

    def entropy(self) -> Tensor:
        """-Σ w log w of every row in nats, (..., n). A row with a negative weight has none: NaN."""
        negative = (self.given < 0).any(dim=-1)
        entropy = torch.special.entr(self._wide()).sum(-1)
        return entropy.masked_fill(negative, torch.nan).to(self.given.dtype)

    def row_max(self) -> Peaks:
        """The largest weight of every row and the first key that has it, (..., n); 0 and 0 where there is no key."""
        full = self.given if self.given.shape[-1] else torch.nn.functional.pad(self.given, (0, 1))
        return Peaks(*full.max(dim=-1))

    def column_sums(self) -> Tensor:
        """What every key receives from all queries, (..., N)."""
        return self._wide().sum(dim=-2).to(self.given.dtype)

    def top_k(self, count: int) -> Peaks:
        """The `count` largest weights of every row, largest first, (..., n, count)."""
        if not 0 < count <= self.given.shape[-1]:
            raise checks.wrong("count", f"from 1 to the number of keys, {self.given.shape[-1]}", count)
        values, positions = torch.sort(self.given, dim=-1, descending=True, stable=True)  # equal: the first key first
        return Peaks(values[..., :count], positions[..., :count])

    def block_map(self, size: int) -> Tensor:
        """The mean weight of every block of `size` queries and `size` keys, (..., M, M); those at the ends may be
        smaller."""
        if size < 1:
            raise checks.wrong("size", "at least 1", size)
        means = self._wide()
        for dim in (-1, -2):
            count = means.shape[dim]
            edges = torch.arange(0, count, size, device=means.device)
            added = means.new_zeros(*means.shape[:-2], *((len(edges), means.shape[-1]) if dim == -2 else
                                                         (means.shape[-2], len(edges))))
            added.index_add_(dim, torch.arange(count, device=means.device) // size, means)
            sizes = (count - edges).clamp(max=size)
            means = added / (sizes if dim == -1 else sizes.unsqueeze(-1))
        return means.to(self.given.dtype)

    def _wide(self) -> Tensor:
        """Sums of many numbers need more digits than the half-width types have."""
        return self.given.to(torch.promote_types(self.given.dtype, torch.float32))
