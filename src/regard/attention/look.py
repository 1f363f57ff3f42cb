"""A look: queries and keys, and what is asked of the weights between them, when it is asked.

It keeps what a weight matrix is made from, and computes from it what somebody wants to see: the matrix whole, some of
its rows, or statistics of it that never hold it. It does not know which layer it comes from, nor draw anything.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.attention.attend import AnyNormalizer, AnyScore
from regard.attention.kernels import exact, identities, statistics
from regard.attention.mask import Mask
from regard.attention.problem import Problem, state
from regard.position.bias import Bias


class Peaks(NamedTuple):
    """The largest weights, and the positions of the keys that have them."""

    values: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Look:
    """What `attend(query, key, ...)` looks at. All answers are without gradients.

    Rows are queries, columns are keys; `...` are the leading dimensions, heads last. The memory of every answer but
    `weights` grows with the number of tokens, not with its square.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None = None
    score: AnyScore = "scaled_dot"
    normalize: AnyNormalizer = "softmax"
    mask: Mask | Tensor | None = None
    bias: Tensor | Bias | None = None

    def __repr__(self) -> str:
        parts: list[object] = [f"queries {checks.shape(self.query)}", f"keys {checks.shape(self.key)}", self.score,
                               self.normalize]
        for name, part in (("mask", self.mask), ("bias", self.bias)):
            if part is not None:
                parts.append(f"{name} {checks.shape(part)}" if isinstance(part, Tensor) else
                             type(part).__name__ if isinstance(part, Bias) else part)
        return f"Look({', '.join(map(str, parts))})"

    @cached_property
    def problem(self) -> Problem:
        """The look as kernels read it, checked."""
        query, key = self.query.detach(), self.key.detach()
        return state(query, key, key, score=self.score, normalize=self.normalize, mask=self.mask, bias=self.bias,
                     dropout=0.0)

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The whole matrix, (..., queries, keys)."""
        weights = exact.weights(self.problem)
        return weights.expand(*self.problem.leading, *weights.shape[-2:])

    def rows(self, indices: "int | list[int] | Tensor") -> Tensor:
        """The weights of these queries, (..., keys) for one index and (..., indices, keys) for several."""
        chosen = row_indices(indices, self.problem.n_queries, self.query.device)
        rows = statistics.some_rows(self.problem, chosen.reshape(-1))
        return rows if chosen.dim() else rows.squeeze(-2)

    def entropy(self) -> Tensor:
        """-Σ w log w of every row in nats, (..., queries): 0 for one key alone, log n for n keys alike.

        Weights that do not sum to 1 (relu, sigmoid) are taken as they are.
        """
        return (identities if self._fused else statistics).entropy(self.problem)

    def row_max(self) -> Peaks:
        """The largest weight of every row and the first key that has it, (..., queries); 0 and 0 for an empty row."""
        return Peaks(*statistics.row_max(self.problem))

    def column_sums(self) -> Tensor:
        """What every key receives from all queries, (..., keys)."""
        # The gradient costs three times a forward pass: measured slower than the plain pass on a CPU, faster on a GPU.
        fused = self._fused and self.query.device.type == "cuda"
        return (identities if fused else statistics).column_sums(self.problem)

    def top_k(self, count: int) -> Peaks:
        """The `count` largest weights of every row, largest first, (..., queries, count)."""
        if not 0 < count <= self.problem.n_keys:
            raise checks.wrong("count", f"from 1 to the number of keys, {self.problem.n_keys}", count)
        return Peaks(*statistics.top_k(self.problem, count))

    def block_map(self, size: int) -> Tensor:
        """The mean weight of every block of `size` queries and `size` keys, (..., blocks, blocks)."""
        if size < 1:
            raise checks.wrong("size", "at least 1", size)
        # An identity pays for every 64 blocks of keys with one attention: it is for coarse maps.
        coarse = self.problem.n_keys <= size * identities.WIDTH
        return (identities if self._fused and coarse else statistics).block_map(self.problem, size)

    @property
    def _fused(self) -> bool:
        return identities.refusal(self.problem) is None


def row_indices(indices: "int | list[int] | Tensor", count: int, device: torch.device) -> Tensor:
    """Indices of some of `count` rows, from 0 on, as a tensor; a ValueError where they are none."""
    chosen = torch.as_tensor(indices, device=device)
    chosen = chosen.long() if chosen.numel() == 0 else chosen
    if chosen.is_floating_point() or chosen.dtype == torch.bool or chosen.dim() > 1:
        raise checks.wrong("indices", "an integer or a list of integers", repr(indices))
    if chosen.numel() and not (-count <= int(chosen.min()) and int(chosen.max()) < count):
        raise checks.wrong("indices", f"rows of the {count} queries", repr(indices))
    return chosen % max(1, count)
