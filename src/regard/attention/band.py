"""Bands: masks by which every query sees one run of keys, first ≤ key < last.

    Causal()          0 … position            Window(l, r)     position - l … position + r
    Padding(lengths)  the tokens there are    Packed(lengths)  the keys of the query's segment

Any of these joined by `&` is a band again, and both ends only ever move forward from one query to the next. So a kernel
needs two numbers a query, not a matrix, and knows which keys to leave out without looking at them; and the queries that
see a key are one run too. A `Band` is made once for all layers that ask under the same mask. It computes no attention.

Legend: N queries, M keys.
"""

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import All, Causal, Device, Mask, Padding, Window
from regard.attention.packed import Packed, Segments
from regard.attention.place import Place


class Band(Mask):
    """Query i sees the keys first[i] ≤ j < last[i]; both (..., N), integers that never fall along N."""

    def __init__(self, first: Tensor, last: Tensor) -> None:
        both = torch.broadcast_tensors(first.to(torch.int32), last.to(torch.int32))
        self.first, self.last = (ends.contiguous() for ends in both)
        self._queries: tuple[Tensor, Tensor] | None = None

    @property
    def leading(self) -> int:
        return self.first.dim() - 1

    def fits(self, leading: tuple[int, ...]) -> bool:
        own = self.first.shape[:-1]
        beside = leading[len(leading) - len(own):]
        return len(own) == len(beside) and all(size in (1, wanted) for size, wanted in zip(own, beside, strict=True))

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        if self.first.shape[-1] != n_queries:
            raise checks.wrong("mask", f"a Band of {n_queries} queries", f"one of {self.first.shape[-1]}")
        return self

    def allowed(self, place: Place) -> Tensor:
        first, last = (place.select(ends.unsqueeze(-1)) for ends in (self.first, self.last))
        return (place.column >= first) & (place.column < last)

    def queries(self, n_keys: int) -> tuple[Tensor, Tensor]:
        """For every key j the run of queries that see it, (..., M): from the first one whose `last` is beyond j, up to
        the first one whose `first` is. It is looked up once."""
        if self._queries is None:
            keys = torch.arange(n_keys, device=self.first.device, dtype=torch.int32)
            keys = keys.expand(*self.first.shape[:-1], n_keys).contiguous()
            start, stop = (torch.searchsorted(ends, keys, right=True, out_int32=True)
                           for ends in (self.last, self.first))
            self._queries = start, stop
        return self._queries

    def __repr__(self) -> str:
        return f"Band(of {self.first.shape[-1]} queries)"


def band_of(mask: Mask | None, n_queries: int, n_keys: int, *, leading: int, device: torch.device) -> Band | None:
    """The mask as a band; None where it is none, or not known to be one. The mask is ready for these sizes.

    `leading` is how many leading dimensions the queries have, with heads.
    """
    parts = mask.members if isinstance(mask, All) else () if mask is None else (mask,)
    if len(parts) == 1 and isinstance(parts[0], Band):
        return parts[0]
    segments = [part for part in parts if isinstance(part, Segments)]
    if len(segments) > 1 or not all(isinstance(part, KINDS) for part in parts):
        return None
    position = torch.arange(n_queries, device=device) + (n_keys - n_queries)
    if segments:
        position = segments[0].position
    first, last = torch.zeros_like(position), torch.full_like(position, n_keys)
    for part in parts:
        start, stop = _ends(part, position, n_keys, leading)
        first, last = torch.maximum(first, start), torch.minimum(last, stop)
    return Band(first, torch.maximum(first, last))


KINDS = (Causal, Window, Padding, Segments, Band)


def _ends(part: Mask, position: Tensor, n_keys: int, leading: int) -> tuple[Tensor, Tensor]:
    """The first key that each query sees by this part of a mask, and the one behind the last."""
    low, high = position.new_zeros(()), position.new_full((), n_keys)
    if isinstance(part, Causal):
        return low, position + 1
    if isinstance(part, Window):
        return (low if part.left is None else position - part.left,
                high if part.right is None else position + part.right + 1)
    if isinstance(part, Padding):
        lengths = part.lengths.reshape(*part.lengths.shape, *(1,) * (leading + 1 - part.lengths.dim()))
        return (low, lengths) if part.side == "right" else (n_keys - lengths, high)
    if isinstance(part, Band):
        return part.first, part.last
    assert isinstance(part, Segments)
    sums = part.packed.key_lengths.to(position.device).cumsum(0)
    ends = torch.cat([sums, high.view(1)])  # what lies behind the last segment sees nothing, behind all keys
    starts = torch.cat([low.view(1), sums[:-1], high.view(1)]) if len(sums) else ends
    own = part.of_query.where(part.of_query >= 0, len(sums))
    return starts[own], ends[own]


class PackedPass(Packed):
    """The segments of one pass through a model, where all layers have the same tokens: bands are looked up once."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed.query_lengths, packed.key_lengths)
        self._bands: dict[str, Mask] = {}

    def under(self, mask: Mask | None, n_queries: int, n_keys: int, leading: int, device: torch.device) -> Mask:
        """These segments and a mask of a mixer: a `Band` where the mask is made of distances."""
        both = self if mask is None else mask & self
        parts = mask.members if isinstance(mask, All) else (mask,)
        if not all(part is None or type(part) in (Causal, Window) for part in parts):
            return both
        if repr(mask) not in self._bands:  # two layers have equal masks of their own
            ready = both.ready(n_queries, n_keys, device)
            band = band_of(ready, n_queries, n_keys, leading=leading, device=device)
            assert band is not None, "segments and distances are a band"
            self._bands[repr(mask)] = band
        return self._bands[repr(mask)]
