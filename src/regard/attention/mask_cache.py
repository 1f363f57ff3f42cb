"""Masks in the forms that backends read, made once for all layers of a forward pass.

    CachedMask(allowed)      a bool matrix, with the rows that may attend to nothing already found
    Band(first, last)        one range of keys for each query, first ≤ key < last
    CachedPadding(padding)   the padding of one forward pass; gives the `CachedMask` of each layer's mask
    CachedPacked(packed)     the packed sequences of one forward pass; gives the `Band` of each layer's mask

Every layer of a model asks under the same padding, and writing the mask out costs more than a small attention itself.

`Causal`, `Window`, `Padding`, `Placed` and `Packed`, and any of these joined by `&`, are bands: a kernel then needs two
numbers for each query and no matrix, and the queries that attend to one key are a range too.

`hide` keeps what the package promises of every backend where torch does not: a query that may attend to nothing gets
zeros and zero gradients, and NaN, inf or 1e30 in keys that no query may attend to are never read.

Legend: B rows, N queries or tokens, M or K keys, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.attention.mask import (
    AndMask,
    BlockIndices,
    BoolMask,
    Causal,
    Device,
    Mask,
    Packed,
    PackedSegments,
    Padding,
    PairIndices,
    Placed,
    Window,
)
from regard.attention.problem import AttentionProblem


def any_along(flags: Tensor, dim: int) -> Tensor:
    """`flags.any(dim, keepdim=True)`, twenty times as fast on a CPU (measured: 0.07 against 1.4 ms for 2 M flags)."""
    if flags.shape[dim] == 1:
        return flags
    if flags.shape[dim] == 0 or torch.compiler.is_compiling():
        return flags.any(dim, keepdim=True)
    return flags.view(torch.uint8).amax(dim, keepdim=True).view(torch.bool)


def may_hold(flags: Tensor) -> bool:
    """Whether a flag may be set. On a GPU, or while compiling, looking would cost more than it saves: it may."""
    if torch.compiler.is_compiling() or flags.device.type != "cpu":
        return True
    return flags.numel() > 0 and bool(flags.any())


def hide(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, *,
         bounded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with zeros in queries that see nothing, and in keys and values that nothing sees.

    They are untouched where what stands there can do no harm. `bounded` says that |score| ≤ c |query| |key| with a
    small c, so that ordinary numbers have ordinary scores.
    """
    blind = ~any_along(allowed, -1)
    unused = ~any_along(allowed, -2).transpose(-2, -1)
    some_blind, some_unused = may_hold(blind), may_hold(unused)
    if some_blind and not (bounded and _is_ordinary(query)):
        query = query.masked_fill(blind, 0.0)
    if some_unused and not (bounded and _is_ordinary(key) and _is_ordinary(value)):
        key, value = key.masked_fill(unused, 0.0), value.masked_fill(unused, 0.0)
    return query, key, value


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether the numbers are so ordinary that a weight of 0 hides them: no NaN, no inf, and no product overflows.

    NaN, inf and large numbers all show in a norm. A product with less than 1e6 overflows only where the other factor is
    beyond 1e32, and then the scores of real keys do so too. Nobody looks on a GPU or while compiling; float16 has no
    room for ordinary numbers.
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or tensor.dtype == torch.float16:
        return False
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=wide)) < 1e6


# ---- looked: Masks that are looked up once, for all layers of a model that ask the same.
#
# Every layer asks under the same padding, and in decoding every step asks again. To write the mask out each time costs
# more than a small attention itself. Here it is written out once, and what the kernels guard against is settled then:
# which rows see nothing, and that what nobody sees is finite, because whoever made it has cleared it.
#
#     Looked(allowed)    a matrix that was written out
#     Pass(padding)      the padding of one pass through a model, which gives the `Looked` of each of its masks
#
# It does not know layers or kernels. Legend: B rows, N tokens.

MAX_MATRIX_ENTRIES = 1 << 28
"""Entries that a matrix may have: a larger one is not written out, and a backend that needs none is preferred."""


class CachedMask(BoolMask):
    """A bool matrix (B, 1, N or 1, N of the keys) and what was found out about it.

    What stands in keys and values that no query sees is finite, by the word of whoever makes it: it needs no guard.

    Args:
        allowed: who may attend.
        blind_rows: "zeros": queries that see nothing get zeros, as everywhere; "any": what they get is never used, as
            whoever asks clears it.
    """

    def __init__(self, allowed: Tensor, blind_rows: str = "zeros") -> None:
        super().__init__(allowed)
        blind = ~any_along(allowed, -1)
        some = may_hold(blind)
        self.opened = allowed | blind if some else allowed
        """The same with the rows that forbid everything opened, as fused kernels need it."""
        self.blind = blind if some and blind_rows == "zeros" else None
        """The queries whose results must be zeros; None where there are none."""

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        """Itself: it was made for these sizes and this device."""
        super().ready(n_queries, n_keys, device)
        return self

    def pick(self, index: Tensor) -> "CachedMask":
        """The mask of these rows."""
        return CachedMask(self.tensor[index], "zeros")


class CachedPadding(Padding):
    """The padding of one pass through a model, where all layers have the same tokens."""

    def __init__(self, padding: Padding) -> None:
        super().__init__(padding.lengths, padding.side)
        self._there: Tensor | None = None
        self._masks: dict[str | Mask | None, Mask] = {}

    def there(self, count: int, device: torch.device) -> Tensor:
        """(B, N): which tokens are there."""
        if self._there is None:
            self._there = self.matrix(1, count, device=device).squeeze(-2)
        return self._there

    def under(self, mask: Mask | None, count: int, device: torch.device) -> Mask:
        """This padding and a mask of a mixer, for tokens that look at each other. Rows of padding get anything.

        It is a `Looked`, but where the matrix would be too large to be held: there it is not written out.
        """
        plain = _depends_on_distance(mask)
        key = repr(mask) if plain else mask  # two layers have equal masks of their own; others tell no more than a size
        if key not in self._masks:
            both: Mask = Padding(self.lengths, self.side)
            both = both if mask is None else broadcast_over_heads(mask, 3) & both
            if both.square and self.lengths.numel() * count**2 > MAX_MATRIX_ENTRIES:
                self._masks[key] = both
            else:
                matrix = both.matrix(count if both.square else 1, count, leading=2, device=device)
                self._masks[key] = CachedMask(matrix, "any" if plain else "zeros")
        return self._masks[key]


def _depends_on_distance(mask: Mask | None) -> bool:
    """Whether a mask is made of distances alone: its name says all of it, and every token sees itself."""
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    return all(part is None or type(part) in (Causal, Window) for part in parts)


def broadcast_over_heads(mask: Mask, dims: int) -> Mask:
    """Bool tensors of `dims` dimensions in the mask, (B, N, M), say nothing of heads: they hold for all."""
    def widen(part: Mask) -> Mask:
        if isinstance(part, BoolMask) and not isinstance(part, CachedMask) and part.tensor.dim() == dims > 2:
            return BoolMask(part.tensor.unsqueeze(-3))
        return part

    return mask.each(widen)


# ---- presence: Which tokens of a padded batch are there, for mixers: a `Padding` becomes a flag for every token.
#
# It knows no mixer. Legend: B rows, N tokens, D width.


def present_tokens(x: Tensor, present: Padding | None, argument: str = "present") -> Tensor | None:
    """(B, N): True where x (B, N, D) has a token; None where it has one everywhere."""
    if present is None:
        return None
    if not isinstance(present, Padding):
        raise checks.wrong(argument, "a Padding, which says which tokens are there, or None", *checks.kind(present))
    if not present.fits((x.shape[0],)):
        got = f"for lengths of shape {checks.shape(present.lengths)}"
        raise checks.wrong(argument, f"for the {x.shape[0]} rows of x", got)
    if isinstance(present, CachedPadding):
        return present.there(x.shape[1], x.device).expand(x.shape[:2])
    return present.matrix(1, x.shape[1], device=x.device).squeeze(-2).expand(x.shape[:2])


def zero_absent(x: Tensor, there_BN: Tensor | None) -> Tensor:
    """Zeros in the place of tokens that are not there: what stood there is not read, and gets no gradient."""
    return x if there_BN is None else x.masked_fill(~there_BN.unsqueeze(-1), 0.0)


# ---- band: Bands: masks by which every query sees one run of keys, first ≤ key < last.
#
#     Causal()          0 … position            Window(l, r)     position - l … position + r
#     Padding(lengths)  the tokens there are    Packed(lengths)  the keys of the query's segment
#     Placed(start)     the keys that are there yet
#
# Any of these joined by `&` is a band again, and both ends only ever move forward from one query to the next. So a kernel
# needs two numbers a query, not a matrix, and knows which keys to leave out without looking at them; and the queries that
# see a key are one run too. A `Band` is made once for all layers that ask under the same mask. It computes no attention.
#
# Legend: N queries, M keys.


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

    def allowed(self, place: PairIndices) -> Tensor:
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


BAND_MASKS = (Causal, Window, Padding, Placed, PackedSegments, Band)
"""The masks that are bands."""


def mask_parts(mask: Mask | None) -> tuple[Mask, ...]:
    """What a mask joins by &."""
    return () if mask is None else mask.members if isinstance(mask, AndMask) else (mask,)


def is_band(mask: Mask | None) -> bool:
    """Whether a mask, ready for its sizes, is a band, as far as is known."""
    return all(isinstance(part, BAND_MASKS) for part in mask_parts(mask))


def range_limits(mask: Mask | None, place: BlockIndices) -> tuple[Tensor, Tensor]:
    """The first key that each query of the block may see, and the one behind the last, (..., Q, 1) each.

    The mask is ready, and the place says where its queries stand. Of a mask that also says other things (a bool tensor,
    `|`, `~`) these are the ends of what its bands allow.
    """
    low, high = torch.zeros_like(place.position), torch.full_like(place.position, place.n_keys)
    for part in mask_parts(mask):
        start, stop = _part_limits(part, place)
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
    place = BlockIndices.of(n_queries, n_keys, leading=leading, device=device)
    place = place if mask is None else mask.aligned(place)  # type: ignore[assignment]
    low, high = (ends.squeeze(-1) for ends in torch.broadcast_tensors(*range_limits(mask, place)))
    empty = low >= high
    behind = high.masked_fill(empty, 0).cummax(-1).values  # who sees nothing stands behind all that was seen before
    return Band(torch.where(empty, behind, low), torch.where(empty, behind, high))


def _part_limits(part: Mask, place: BlockIndices) -> tuple[Tensor | None, Tensor | None]:
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
    if isinstance(part, PackedSegments):
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
    for part in mask_parts(mask):
        if isinstance(part, Causal):
            high = torch.minimum(high, position + 1)
        if isinstance(part, Window) and part.left is not None:
            low = torch.maximum(low, position - part.left)
        if isinstance(part, Window) and part.right is not None:
            high = torch.minimum(high, position + part.right + 1)
    return Band(torch.minimum(low, stop), torch.maximum(high, start))


class CachedPacked(Packed):
    """The segments of one pass through a model, where all layers have the same tokens: bands are looked up once."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed.query_lengths, packed.key_lengths)
        self._bands: dict[tuple[object, ...], Mask] = {}

    def under(self, mask: Mask | None, n_queries: int, n_keys: int, leading: int, device: torch.device) -> Mask:
        """These segments and a mask of a mixer: a `Band` where the mask is made of distances."""
        if not all(type(part) in (Causal, Window) for part in mask_parts(mask)):
            return self if mask is None else mask & self
        key = repr(mask), n_queries, n_keys, leading, device  # two layers have equal masks of their own
        if key not in self._bands:
            self._bands[key] = band_in_segments(self, mask, n_queries, n_keys, device)
        return self._bands[key]


# ---- ranges: Masks as ranges: each query sees the keys from `low` to below `high`, two numbers a query in place of a row of flags.
#
# What masks are such ranges is said in `regard.attention.mask_cache`; of a mask that also says other things (a bool tensor,
# `|`, `~`) the ranges hold what it allows, and more. It does not know who computes with them.
#
# Legend: ... leading dimensions, Q queries, K keys.


class KeyRanges(NamedTuple):
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


def key_ranges(problem: AttentionProblem) -> KeyRanges:
    """The ranges of keys outside of which the queries see nothing."""
    low, high = torch.broadcast_tensors(*range_limits(problem.mask, problem.block()))
    empty = low >= high
    low, high = low.masked_fill(empty, problem.n_keys), high.masked_fill(empty, 0)
    return KeyRanges(*(end.squeeze(-1).to(torch.int32) for end in (low, high)))


# ---- visits: Visits: which tiles of queries meet which tiles of keys, where every query sees one range of keys.
#
# What is outside of the ranges is skipped, and what is inside of all of them needs no mask. It does not know who
# computes a tile.
#
# Legend: ... leading dimensions, Q queries, K keys, C tiles of keys.


def range_refusal(problem: AttentionProblem) -> str | None:
    """Why the mask is not one range of keys for every query; None when it is."""
    if is_band(problem.mask):
        return None
    return f"it takes masks that are one range of keys a query, and {problem.mask!r} is not known to be one"


def sequence_ranges(problem: AttentionProblem) -> KeyRanges:
    """The ranges in a row for every sequence: (*leading, Q), or (Q,) where all have the same."""
    found = key_ranges(problem)
    if found.low.dim() == 1:
        return found
    return KeyRanges(*(bound.expand(*problem.leading, problem.n_queries).contiguous() for bound in found))


def tile_schedule(found: KeyRanges, n_keys: int, rows: int, columns: int) -> Tensor:
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
