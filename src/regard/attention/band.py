"""Bands: masks by which every query sees one run of keys, first ≤ key < last.

    Causal()          0 … position            Window(l, r)     position - l … position + r
    Padding(lengths)  the tokens there are    Packed(lengths)  the keys of the query's segment
    Placed(start)     the keys that are there yet

Any of these joined by `&` is a band again, and both ends only ever move forward from one query to the next. So a kernel
needs two numbers a query, not a matrix, and knows which keys to leave out without looking at them; and the queries that
see a key are one run too. A `Band` is made once for all layers that ask under the same mask. It computes no attention.

Legend: N queries, M keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.attention.mask import All, Causal, Device, Mask, Padding, Placed, Window
from regard.attention.packed import Packed, Segments
from regard.attention.place import Block, Place


class Band(Mask):
    """Query i sees the keys first[i] ≤ j < last[i]; both (..., N), integers that never fall along N."""

    def __init__(self, first: Tensor, last: Tensor) -> None:
        both = torch.broadcast_tensors(first.to(torch.int32), last.to(torch.int32))
        self.first, self.last = (ends.contiguous() for ends in both)
        self._found: dict[object, tuple[Tensor, Tensor]] = {}

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
        the first one whose `first` is."""
        def find() -> tuple[Tensor, Tensor]:
            keys = torch.arange(n_keys, device=self.first.device, dtype=torch.int32)
            keys = keys.expand(*self.first.shape[:-1], n_keys).contiguous()
            start, stop = (torch.searchsorted(ends, keys, right=True, out_int32=True)
                           for ends in (self.last, self.first))
            return start, stop

        return self.looked_up(("queries", n_keys), find)

    def looked_up(self, name: object, find: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """What `find` finds out about these ends: once, for all that ask by this name."""
        if name not in self._found:
            self._found[name] = find()
        return self._found[name]

    def __repr__(self) -> str:
        return f"Band(of {self.first.shape[-1]} queries)"


KINDS = (Causal, Window, Padding, Placed, Segments, Band)
"""The masks that are bands."""


def parts(mask: Mask | None) -> tuple[Mask, ...]:
    """What a mask joins by &."""
    return () if mask is None else mask.members if isinstance(mask, All) else (mask,)


def is_band(mask: Mask | None) -> bool:
    """Whether a mask, ready for its sizes, is a band, as far as is known."""
    return all(isinstance(part, KINDS) for part in parts(mask))


def limits(mask: Mask | None, place: Block) -> tuple[Tensor, Tensor]:
    """The first key that each query of the block may see, and the one behind the last, (..., Q, 1) each.

    The mask is ready, and the place says where its queries stand. Of a mask that also says other things (a bool tensor,
    `|`, `~`) these are the ends of what its bands allow.
    """
    low, high = torch.zeros_like(place.position), torch.full_like(place.position, place.n_keys)
    for part in parts(mask):
        start, stop = _limits(part, place)
        low = low if start is None else torch.maximum(low, start)
        high = high if stop is None else torch.minimum(high, stop)
    return low, high


def band_of(mask: Mask | None, n_queries: int, n_keys: int, *, leading: int, device: torch.device) -> Band | None:
    """A mask, ready for these sizes, as a band; None where it is none.

    `leading` is how many leading dimensions the queries have, with heads.
    """
    if not is_band(mask):
        return None
    if isinstance(mask, Band):
        return mask
    place = Block.of(n_queries, n_keys, leading=leading, device=device)
    place = place if mask is None else mask.aligned(place)  # type: ignore[assignment]
    low, high = (ends.squeeze(-1) for ends in torch.broadcast_tensors(*limits(mask, place)))
    empty = low >= high
    behind = high.masked_fill(empty, 0).cummax(-1).values  # who sees nothing stands behind all that was seen before
    return Band(torch.where(empty, behind, low), torch.where(empty, behind, high))


def _limits(part: Mask, place: Block) -> tuple[Tensor | None, Tensor | None]:
    """The same by one part of a mask; None where it sets no limit."""
    if isinstance(part, Causal):
        return None, place.position + 1
    if isinstance(part, Window):
        return (None if part.left is None else place.position - part.left,
                None if part.right is None else place.position + part.right + 1)
    if isinstance(part, Padding):
        lengths = place.per_sequence(part.lengths)
        return (None, lengths) if part.side == "right" else (place.n_keys - lengths, None)
    if isinstance(part, Placed):
        return None, place.per_sequence(part.start) + place.n_queries
    if isinstance(part, Segments):
        start = torch.searchsorted(part.of_key, part.of_query)
        stop = torch.searchsorted(part.of_key, part.of_query, right=True)
        return start.unsqueeze(-1), stop.unsqueeze(-1)
    if isinstance(part, Band):
        return place.select(part.first.unsqueeze(-1)), place.select(part.last.unsqueeze(-1))
    return None, None


def band_in_segments(packed: Packed, mask: Mask | None, n_queries: int, n_keys: int, device: torch.device) -> Band:
    """The band of segments and of a mask of distances: `Causal`, `Window`, or several of them.

    Each query has the keys from `start` to `stop` of its segment, where segments follow each other; what a distance
    leaves of them begins and ends inside. So nothing has to be put in order, not even for those who see nothing.
    """
    if not torch.compiler.is_compiling():
        packed._check_room(n_queries, n_keys)
    query_edges, key_edges = (pad(lengths.to(device).cumsum(0), (1, 0))
                              for lengths in (packed.query_lengths, packed.key_lengths))
    index = torch.arange(n_queries, device=device)
    segment = torch.searchsorted(query_edges[1:], index, right=True)  # behind the last one, how many there are
    following = (segment + 1).clamp(max=len(packed.query_lengths))
    start, stop = key_edges[segment], key_edges[following]
    position = index + (stop - query_edges[following])
    low, high = start, stop
    for part in parts(mask):
        if isinstance(part, Causal):
            high = torch.minimum(high, position + 1)
        if isinstance(part, Window) and part.left is not None:
            low = torch.maximum(low, position - part.left)
        if isinstance(part, Window) and part.right is not None:
            high = torch.minimum(high, position + part.right + 1)
    return Band(torch.minimum(low, stop), torch.maximum(high, start))


class PackedPass(Packed):
    """The segments of one pass through a model, where all layers have the same tokens: bands are looked up once."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed.query_lengths, packed.key_lengths)
        self._bands: dict[tuple[object, ...], Mask] = {}

    def under(self, mask: Mask | None, n_queries: int, n_keys: int, leading: int, device: torch.device) -> Mask:
        """These segments and a mask of a mixer: a `Band` where the mask is made of distances."""
        if not all(type(part) in (Causal, Window) for part in parts(mask)):
            return self if mask is None else mask & self
        key = repr(mask), n_queries, n_keys, leading, device  # two layers have equal masks of their own
        if key not in self._bands:
            self._bands[key] = band_in_segments(self, mask, n_queries, n_keys, device)
        return self._bands[key]
