"""Masks as ranges: each query sees the keys from `low` to below `high`, two numbers a query in place of a row of flags.

What masks are such ranges is said in `regard.attention.band`; of a mask that also says other things (a bool tensor,
`|`, `~`) the ranges hold what it allows, and more. It does not know who computes with them.

Legend: ... leading dimensions, Q queries, K keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.band import limits
from regard.attention.problem import Problem


class Ranges(NamedTuple):
    """int32, broadcastable to (..., Q). Where there is nothing to see, `low` is K and `high` is 0."""

    low: Tensor
    high: Tensor

    def seen(self, n_keys: int) -> Tensor:
        """Which keys a query sees, (..., K): where ranges begin counts 1, where they end -1, and sums say how many."""
        low, high = (torch.minimum(end, self.high).long() for end in self)  # an empty range begins where it ends
        steps = low.new_zeros(*low.shape[:-1], n_keys + 1)
        steps.scatter_add_(-1, low, torch.ones_like(low))
        steps.scatter_add_(-1, high, torch.full_like(high, -1))
        return steps[..., :n_keys].cumsum(-1) > 0


def of(problem: Problem) -> Ranges:
    """The ranges of keys outside of which the queries see nothing."""
    low, high = torch.broadcast_tensors(*limits(problem.mask, problem.block()))
    empty = low >= high
    low, high = low.masked_fill(empty, problem.n_keys), high.masked_fill(empty, 0)
    return Ranges(*(end.squeeze(-1).to(torch.int32) for end in (low, high)))
