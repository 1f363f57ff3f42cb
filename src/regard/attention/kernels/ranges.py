"""Masks as ranges: each query sees the keys from `low` to below `high`, two numbers a query in place of a row of flags.

Causal masks, windows, padding, packed segments and places in a cache are such ranges, and so is what several of them
allow together. Of a mask that also says other things (a bool tensor, `|`, `~`) the ranges hold what it allows, and
more. It does not know who computes with them.

Legend: ... leading dimensions, Q queries, K keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.mask import All, Causal, Mask, Padding, Placed, Window
from regard.attention.packed import Segments
from regard.attention.place import Block
from regard.attention.problem import Problem

KINDS = (Causal, Window, Padding, Placed, Segments)


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


def whole(mask: Mask | None) -> bool:
    """Whether the ranges say all that the mask says."""
    return all(isinstance(part, KINDS) for part in _parts(mask))


def of(problem: Problem) -> Ranges:
    """The ranges of keys outside of which the queries see nothing."""
    place = problem.block()
    low = place.position.new_zeros(problem.n_queries, 1)
    high = low + problem.n_keys
    for part in _parts(problem.mask):
        start, stop = _range(part, place)
        low = low if start is None else torch.maximum(low, start)
        high = high if stop is None else torch.minimum(high, stop)
    empty = low >= high
    low, high = low.masked_fill(empty, problem.n_keys), high.masked_fill(empty, 0)
    return Ranges(*(end.squeeze(-1).to(torch.int32) for end in torch.broadcast_tensors(low, high)))


def _range(mask: Mask, place: Block) -> tuple[Tensor | None, Tensor | None]:
    """From which key to below which one, (..., Q, 1) each; None where there is no limit."""
    if isinstance(mask, Causal):
        return None, place.position + 1
    if isinstance(mask, Window):
        return (None if mask.left is None else place.position - mask.left,
                None if mask.right is None else place.position + mask.right + 1)
    if isinstance(mask, Padding):
        lengths = place.per_sequence(mask.lengths)
        return (None, lengths) if mask.side == "right" else (place.n_keys - lengths, None)
    if isinstance(mask, Placed):
        return None, place.per_sequence(mask.start) + place.n_queries
    if isinstance(mask, Segments):
        start = torch.searchsorted(mask.of_key, mask.of_query)
        stop = torch.searchsorted(mask.of_key, mask.of_query, right=True)
        return start.unsqueeze(-1), stop.unsqueeze(-1)
    return None, None


def _parts(mask: Mask | None) -> tuple[Mask, ...]:
    """What a mask joins by &."""
    return () if mask is None else mask.members if isinstance(mask, All) else (mask,)
