"""Visits: which tiles of queries meet which tiles of keys, where every query sees one range of keys.

What is outside of the ranges is skipped, and what is inside of all of them needs no mask. It does not know who
computes a tile.

Legend: ... leading dimensions, Q queries, K keys, C tiles of keys.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.band import is_band
from regard.attention.kernels import ranges
from regard.attention.kernels.ranges import Ranges
from regard.attention.problem import Problem


def refusal(problem: Problem) -> str | None:
    """Why the mask is not one range of keys for every query; None when it is."""
    if is_band(problem.mask):
        return None
    return f"it takes masks that are one range of keys a query, and {problem.mask!r} is not known to be one"


def of(problem: Problem) -> Ranges:
    """The ranges in a row for every sequence: (*leading, Q), or (Q,) where all have the same."""
    found = ranges.of(problem)
    if found.low.dim() == 1:
        return found
    return Ranges(*(bound.expand(*problem.leading, problem.n_queries).contiguous() for bound in found))


def across(found: Ranges, n_keys: int, rows: int, columns: int) -> Tensor:
    """For every tile of `columns` keys the tiles of `rows` queries to visit: int32, (..., C, 4).

    Of the tiles from the first number to the last none else sees the keys; those from the second to the third see all
    of them, with each of their queries.
    """
    first, last = found
    spare = -first.shape[-1] % rows

    def tiles(bound: Tensor, filler: int) -> Tensor:
        return pad(bound, (0, spare), value=filler).unflatten(-1, (-1, rows))

    low = tiles(first, n_keys).amin(-1)  # who sees nothing begins behind the last key
    high = tiles(last, 0).amax(-1)
    highest_first, lowest_last = tiles(first, 0).amax(-1), tiles(last, n_keys).amin(-1)
    start = torch.arange(0, n_keys, columns, device=first.device, dtype=torch.int32).expand(*low.shape[:-1], -1)
    stop = (start + columns).clamp(max=n_keys).contiguous()
    start = start.contiguous()
    # Running maxima and minima are ordered, whatever the ranges are.
    begin = torch.searchsorted(high.cummax(-1).values, start, right=True)
    end = torch.searchsorted(_backward_minima(low), stop)
    full = torch.searchsorted(_backward_minima(lowest_last), stop)
    until = torch.searchsorted(highest_first.cummax(-1).values, start, right=True)
    end = torch.maximum(begin, end)
    full = torch.minimum(torch.maximum(full, begin), end)
    until = torch.minimum(torch.maximum(until, full), end)
    return torch.stack([begin, full, until, end], dim=-1).to(torch.int32)


def _backward_minima(numbers: Tensor) -> Tensor:
    """The minimum of each number and all that follow."""
    return numbers.flip(-1).cummin(-1).values.flip(-1).contiguous()
