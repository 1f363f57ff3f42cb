"""Masks as ranges: the keys that a query sees, where they stand side by side.

    Causal, Padding, Window, Placed, Packed, and `&` of these      from `first` on, up to and without `last`
    all others                                                     no range: `refusal` says so

Two whole numbers a query say all of such a mask, so a kernel can skip what is outside, and need not look at what is
inside. It does not know who reads them.

Legend: ... leading dimensions, Q queries, K keys, T tiles of queries, C tiles of keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.mask import All, Causal, Mask, Padding, Placed, Window
from regard.attention.packed import Segments
from regard.attention.problem import Problem

TAKEN = (Causal, Padding, Window, Placed, Segments)


class Ranges(NamedTuple):
    """The first key that every query sees, and the one behind the last: int32, (*leading or none, Q).

    A query that sees nothing has 0 and 0.
    """

    first: Tensor
    last: Tensor


def refusal(problem: Problem) -> str | None:
    """Why the mask is no range of keys for every query; None when it is."""
    for part in _parts(problem.mask):
        if type(part) not in TAKEN:  # a subclass may mean something else
            return f"it takes masks that are one range of keys a query, and {part!r} is not known to be one"
    return None


def of(problem: Problem) -> Ranges:
    """The ranges of the problem's mask."""
    place = problem.block()
    n_queries, n_keys = problem.n_queries, problem.n_keys
    position_Q = place.position.squeeze(-1)
    first = torch.zeros_like(position_Q)
    last = torch.full_like(position_Q, n_keys)
    for part in _parts(problem.mask):
        if isinstance(part, Causal):
            last = torch.minimum(last, position_Q + 1)
        elif isinstance(part, Window):
            if part.left is not None:
                first = torch.maximum(first, position_Q - part.left)
            if part.right is not None:
                last = torch.minimum(last, position_Q + part.right + 1)
        elif isinstance(part, Padding):
            lengths = place.per_sequence(part.lengths).squeeze(-1)
            if part.side == "right":
                last = torch.minimum(last, lengths)
            else:
                first = torch.maximum(first, n_keys - lengths)
        elif isinstance(part, Placed):
            last = torch.minimum(last, place.per_sequence(part.start).squeeze(-1) + n_queries)
        else:
            assert isinstance(part, Segments), "refusal() was not asked"
            ends = part.packed.key_lengths.to(first.device).cumsum(0)
            behind = ends.new_zeros(1)  # the number -1 stands for no segment: it has no keys
            first = torch.maximum(first, torch.cat([ends - part.packed.key_lengths.to(ends), behind])[part.of_query])
            last = torch.minimum(last, torch.cat([ends, behind])[part.of_query])
    first, last = torch.broadcast_tensors(first, last)
    nothing = (first >= last) | (last <= 0)
    first, last = (bound.clamp(0, n_keys).masked_fill(nothing, 0) for bound in (first, last))
    if first.dim() > 1:
        first, last = (bound.expand(*problem.leading, n_queries) for bound in (first, last))
    return Ranges(first.to(torch.int32).contiguous(), last.to(torch.int32).contiguous())


def across(ranges: Ranges, n_keys: int, rows: int, columns: int) -> Tensor:
    """For every tile of `columns` keys the tiles of `rows` queries to visit: int32, (..., C, 4).

    Of the tiles from the first number to the last none else sees the keys; those from the second to the third see all
    of them, with each of their queries.
    """
    first, last = ranges
    spare = -first.shape[-1] % rows
    unseen = first >= last

    def tiles(bound: Tensor, filler: int) -> Tensor:
        return pad(bound, (0, spare), value=filler).unflatten(-1, (-1, rows))

    low = tiles(first.masked_fill(unseen, n_keys), n_keys).amin(-1)
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


def _parts(mask: Mask | None) -> tuple[Mask, ...]:
    if mask is None:
        return ()
    return mask.members if isinstance(mask, All) else (mask,)
