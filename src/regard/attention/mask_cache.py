"""Masks in the forms that backends read, made once for all layers of a forward pass.

    CachedMask(allowed)      a bool matrix, with the rows that may attend to nothing already found
    Band(first, last)        one range of keys for each query, first ≤ key < last
    CachedPadding(padding)   the padding of one forward pass; gives the `CachedMask` of each layer's mask
    CachedPacked(packed)     the packed sequences of one forward pass; gives the `Band` of each layer's mask

All layers of a model have the same padding, and writing the mask out costs more than a small attention itself.

These masks, and any of them joined by `&`, are bands:

    Causal()          0 … position            Window(l, r)     position - l … position + r
    Padding(lengths)  the tokens that exist   Packed(lengths)  the keys of the query's segment
    Placed(start)     the keys up to the last query

Both ends of a band only move forward from one query to the next. So a kernel needs two numbers for each query and no
matrix, knows which keys to skip, and the queries that may attend to one key are a range too.

`hide` keeps what the package promises of every backend where torch does not: a query that may attend to nothing gets
zeros and zero gradients, and NaN, inf or 1e30 in keys that no query may attend to are never read. It costs passes over
whole tensors, which are skipped in eager mode on a CPU where the numbers show that there is nothing to guard against.

Legend: ... leading dimensions, B rows, N queries or tokens, Q queries, K keys, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.attention.mask import (
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
    mask_parts,
    sizes_broadcast,
)
from regard.attention.problem import AttentionProblem
from regard.kernels.launch import in_torch_func, is_readable

MAX_MATRIX_ENTRIES = 1 << 28
"""The most entries of a mask's matrix: a larger one is not written out, and a backend without a matrix is preferred."""


def any_along(flags: Tensor, dim: int) -> Tensor:
    """`flags.any(dim, keepdim=True)`, twenty times as fast on a CPU (measured: 0.07 against 1.4 ms for 2 M flags)."""
    if flags.shape[dim] == 1:
        return flags
    if flags.shape[dim] == 0 or torch.compiler.is_compiling() or in_torch_func():
        return flags.any(dim, keepdim=True)
    return flags.view(torch.uint8).amax(dim, keepdim=True).view(torch.bool)


def may_hold(flags: Tensor) -> bool:
    """Whether a flag may be set; True where the host cannot read it, or looking would cost more than it saves."""
    return not is_readable(flags) or (flags.numel() > 0 and bool(flags.any()))


def hide(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, *,
         bounded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The three without the numbers of queries that may attend to nothing, and of keys that no query may attend to.

    They are returned unchanged where their numbers can do no harm. `bounded` says that |score| ≤ c |query| |key| with a
    small c, so that ordinary numbers have ordinary scores, and zeros have scores of 0. A score that is not bounded may
    be undefined at 0, as the cosine is: such queries and keys become copies of visible ones.
    """
    blind = ~any_along(allowed, -1)
    unused = ~any_along(allowed, -2).transpose(-2, -1)
    some_blind, some_unused = may_hold(blind), may_hold(unused)
    if some_blind and not (bounded and _is_ordinary(query)):
        query = query.masked_fill(blind, 0.0) if bounded else _fill_with_visible(query, blind)
    if some_unused and not (bounded and _is_ordinary(key) and _is_ordinary(value)):
        key = key.masked_fill(unused, 0.0) if bounded else _fill_with_visible(key, unused)
        value = value.masked_fill(unused, 0.0)
    return query, key, value


def _fill_with_visible(tokens: Tensor, hidden: Tensor) -> Tensor:
    """The tokens (..., N, D) with the first visible one in the place of each hidden one; ones where none is visible."""
    if not tokens.shape[-2]:
        return tokens
    hidden = hidden.expand(*hidden.shape[:-2], tokens.shape[-2], 1)
    if hidden.dim() < tokens.dim():
        hidden = hidden[(None,) * (tokens.dim() - hidden.dim())]
    tokens = tokens.expand(*hidden.shape[:hidden.dim() - tokens.dim()], *tokens.shape)
    first = (~hidden).to(torch.uint8).argmax(-2, keepdim=True)
    visible = torch.take_along_dim(tokens, first, -2).masked_fill(hidden.all(-2, keepdim=True), 1.0)
    return torch.where(hidden, visible, tokens)


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether a weight of 0 hides these numbers: there is no NaN and no inf, and no product overflows.

    NaN, inf and large numbers all show in a norm. A product with less than 1e6 overflows only where the other factor is
    larger than 1e32, and then the scores of real keys overflow too. False where the host cannot read the numbers, or
    looking costs too much, and for float16, whose range is too small.
    """
    if not is_readable(tensor) or tensor.dtype == torch.float16:
        return False
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=wide)) < 1e6


class CachedMask(BoolMask):
    """A bool matrix (B, 1, N or 1, K) with its empty rows already found.

    The caller promises that keys and values that no query may attend to are finite, so they need no guard.

    Args:
        allowed: which pairs may attend.
        blind_rows: "zeros" where queries that may attend to nothing get zeros, as everywhere; "any" where the caller
            discards their outputs.
    """

    def __init__(self, allowed: Tensor, blind_rows: str = "zeros") -> None:
        super().__init__(allowed)
        blind = ~any_along(allowed, -1)
        some = may_hold(blind)
        self.opened = allowed | blind if some else allowed
        """The same with the rows that forbid everything opened, as fused kernels need it."""
        self.blind = blind if some and blind_rows == "zeros" else None
        """The queries whose outputs must be zeros; None where there are none."""

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        super().prepare(n_queries, n_keys, device)  # checks the sizes
        return self

    def pick(self, index: Tensor) -> "CachedMask":
        """The mask of these rows."""
        return CachedMask(self.tensor[index], "zeros")


class CachedPadding(Padding):
    """The padding of one forward pass, in which all layers have the same tokens."""

    def __init__(self, padding: Padding) -> None:
        super().__init__(padding.lengths, padding.side)
        self._present: Tensor | None = None
        self._masks: dict[str | Mask | None, Mask] = {}

    def present(self, count: int, device: torch.device) -> Tensor:
        """(B, N): which tokens exist."""
        if self._present is None:
            self._present = self.matrix(1, count, device=device).squeeze(-2)
        return self._present

    def under(self, mask: Mask | None, count: int, device: torch.device) -> Mask:
        """This padding joined with the mask of a mixer, for self-attention. The outputs of padding are undefined.

        The result is a `CachedMask`, except where its matrix would be too large to hold.
        """
        plain = _depends_on_distance(mask)
        key = repr(mask) if plain else mask  # equal masks of two layers are two objects; other reprs are not unique
        if key not in self._masks:
            both: Mask = Padding(self.lengths, self.side)
            both = both if mask is None else broadcast_over_heads(mask, 3) & both
            if both.is_matrix and self.lengths.numel() * count**2 > MAX_MATRIX_ENTRIES:
                self._masks[key] = both
            else:
                matrix = both.matrix(count if both.is_matrix else 1, count, leading=2, device=device)
                self._masks[key] = CachedMask(matrix, "any" if plain else "zeros")
        return self._masks[key]


def _depends_on_distance(mask: Mask | None) -> bool:
    """Whether a mask depends on distances only: then its repr identifies it, and every token may attend to itself."""
    return all(type(part) in (Causal, Window) for part in mask_parts(mask))


def broadcast_over_heads(mask: Mask, dims: int) -> Mask:
    """The mask with a dimension of heads in each bool tensor of `dims` dimensions, (B, N, K), that has none."""
    def widen(part: Mask) -> Mask:
        if isinstance(part, BoolMask) and not isinstance(part, CachedMask) and part.tensor.dim() == dims > 2:
            return BoolMask(part.tensor.unsqueeze(-3))
        return part

    return mask.map_parts(widen)


def present_tokens(x: Tensor, present: Padding | None, argument: str = "present") -> Tensor | None:
    """(B, N): True where x (B, N, D) has a token; None where it has one everywhere."""
    if present is None:
        return None
    if not isinstance(present, Padding):
        raise checks.wrong(argument, "a Padding, which says which tokens exist, or None", *checks.kind(present))
    if not present.fits((x.shape[0],)):
        got = f"for lengths of shape {checks.shape(present.lengths)}"
        raise checks.wrong(argument, f"for the {x.shape[0]} rows of x", got)
    if isinstance(present, CachedPadding):
        return present.present(x.shape[1], x.device).expand(x.shape[:2])
    return present.matrix(1, x.shape[1], device=x.device).squeeze(-2).expand(x.shape[:2])


def zero_absent(x: Tensor, present_BN: Tensor | None) -> Tensor:
    """x with zeros in place of absent tokens: what was there is not read, and gets no gradient."""
    return x if present_BN is None else x.masked_fill(~present_BN.unsqueeze(-1), 0.0)


class Band(Mask):
    """Query i may attend to the keys first[i] ≤ j < last[i]; both (..., N), integers that never decrease along N."""

    def __init__(self, first: Tensor, last: Tensor) -> None:
        both = torch.broadcast_tensors(first.to(torch.int32), last.to(torch.int32))
        self.first, self.last = (ends.contiguous() for ends in both)
        self._cache: dict[object, tuple[Tensor, Tensor]] = {}

    @property
    def leading(self) -> int:
        return self.first.dim() - 1

    def fits(self, leading: tuple[int, ...]) -> bool:
        return sizes_broadcast(self.first.shape[:-1], leading[len(leading) - self.leading:])

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        if self.first.shape[-1] != n_queries:
            raise checks.wrong("mask", f"a Band of {n_queries} queries", f"one of {self.first.shape[-1]}")
        return self

    def allowed(self, block: PairIndices) -> Tensor:
        first, last = (block.select(ends.unsqueeze(-1)) for ends in (self.first, self.last))
        return (block.column >= first) & (block.column < last)

    def queries(self, n_keys: int) -> tuple[Tensor, Tensor]:
        """The range of queries that may attend to each key j, (..., K).

        It starts at the first query whose `last` is after j, and stops before the first one whose `first` is after j.
        """
        def find() -> tuple[Tensor, Tensor]:
            keys = torch.arange(n_keys, device=self.first.device, dtype=torch.int32)
            keys = keys.expand(*self.first.shape[:-1], n_keys).contiguous()
            start, stop = (torch.searchsorted(ends, keys, right=True, out_int32=True)
                           for ends in (self.last, self.first))
            return start, stop

        return self.cached(("queries", n_keys), find)

    def cached(self, name: object, find: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The result of `find`, which runs once for each name."""
        if name not in self._cache:
            self._cache[name] = find()
        return self._cache[name]

    def __repr__(self) -> str:
        return f"Band(of {self.first.shape[-1]} queries)"


BAND_MASKS = (Causal, Window, Padding, Placed, PackedSegments, Band)
"""The masks that are bands."""


def is_band(mask: Mask | None) -> bool:
    """Whether a prepared mask is known to be a band."""
    return all(isinstance(part, BAND_MASKS) for part in mask_parts(mask))


def range_limits(mask: Mask | None, block: BlockIndices) -> tuple[Tensor, Tensor]:
    """The first key that each query of the block may attend to, and the end of its range, (..., Q, 1) each.

    The mask is prepared, and the block has the positions that it gives. Where a mask has other parts as well (a bool
    tensor, `|`, `~`), these are the ends of what its bands allow.
    """
    low, high = torch.zeros_like(block.position), torch.full_like(block.position, block.n_keys)
    for part in mask_parts(mask):
        start, stop = _part_limits(part, block)
        low = low if start is None else torch.maximum(low, start)
        high = high if stop is None else torch.minimum(high, stop)
    return low, high


def _part_limits(part: Mask, block: BlockIndices) -> tuple[Tensor | None, Tensor | None]:
    """The limits that one part of a mask sets; None where it sets none."""
    if isinstance(part, Causal):
        return None, block.position + 1
    if isinstance(part, Window):
        return (None if part.left is None else block.position - part.left,
                None if part.right is None else block.position + part.right + 1)
    if isinstance(part, Padding):
        lengths = block.per_sequence(part.lengths)
        return (None, lengths) if part.side == "right" else (block.n_keys - lengths, None)
    if isinstance(part, Placed):
        return None, block.per_sequence(part.start) + block.n_queries
    if isinstance(part, PackedSegments):
        start = torch.searchsorted(part.of_key, part.of_query)
        stop = torch.searchsorted(part.of_key, part.of_query, right=True)
        return start.unsqueeze(-1), stop.unsqueeze(-1)
    if isinstance(part, Band):
        return block.select(part.first.unsqueeze(-1)), block.select(part.last.unsqueeze(-1))
    return None, None


def band_of(mask: Mask | None, n_queries: int, n_keys: int, *, leading: int, device: torch.device) -> Band | None:
    """A mask, prepared for these sizes, as a band; None where it is not one.

    `leading` is the number of leading dimensions of the queries, heads included.
    """
    if not is_band(mask):
        return None
    if isinstance(mask, Band):
        return mask
    block = BlockIndices.of(n_queries, n_keys, leading=leading, device=device)
    block = block if mask is None else mask.aligned(block)  # type: ignore[assignment]
    low, high = (ends.squeeze(-1) for ends in torch.broadcast_tensors(*range_limits(mask, block)))
    empty = low >= high
    before = high.masked_fill(empty, 0).cummax(-1).values  # an empty range stands where the ranges before it end
    return Band(torch.where(empty, before, low), torch.where(empty, before, high))


def band_in_segments(packed: Packed, mask: Mask | None, n_queries: int, n_keys: int, device: torch.device) -> Band:
    """The band of packed segments and of a mask of distances: `Causal`, `Window`, or several of them.

    Each query has the keys from `start` to `stop` of its segment, and segments follow each other; what a distance
    leaves of them starts and stops inside. So the ends are in order already, those of empty ranges too.
    """
    packed.check_sizes(n_queries, n_keys)
    query_edges, key_edges = (pad(lengths.to(device).cumsum(0), (1, 0))
                              for lengths in (packed.query_lengths, packed.key_lengths))
    index = torch.arange(n_queries, device=device)
    segment = torch.searchsorted(query_edges[1:], index, right=True)  # after the last segment: their number
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
    """The packed sequences of one forward pass, in which all layers have the same tokens: each band is made once."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed.query_lengths, packed.key_lengths)
        self._bands: dict[tuple[object, ...], Mask] = {}

    def under(self, mask: Mask | None, n_queries: int, n_keys: int, leading: int, device: torch.device) -> Mask:
        """These segments joined with the mask of a mixer: a `Band` where the mask depends on distances only."""
        if not _depends_on_distance(mask):
            return self if mask is None else mask & self
        key = repr(mask), n_queries, n_keys, leading, device  # equal masks of two layers are two objects
        if key not in self._bands:
            self._bands[key] = band_in_segments(self, mask, n_queries, n_keys, device)
        return self._bands[key]


class KeyRanges(NamedTuple):
    """The keys low ≤ j < high of each query: int32, broadcastable to (..., Q). An empty range has low K and high 0."""

    low: Tensor
    high: Tensor

    def used_keys(self, n_keys: int) -> Tensor:
        """Which keys some query may attend to, (..., K): starts count 1, ends -1, and running sums count the ranges."""
        low, high = (torch.minimum(end, self.high).long() for end in self)  # an empty range starts where it ends
        steps = low.new_zeros(*low.shape[:-1], n_keys + 1)
        steps.scatter_add_(-1, low, torch.ones_like(low))
        steps.scatter_add_(-1, high, torch.full_like(high, -1))
        return steps[..., :n_keys].cumsum(-1) > 0


def key_ranges(problem: AttentionProblem) -> KeyRanges:
    """The ranges of keys outside of which the queries may attend to nothing."""
    low, high = torch.broadcast_tensors(*range_limits(problem.mask, problem.indices()))
    empty = low >= high
    low, high = low.masked_fill(empty, problem.n_keys), high.masked_fill(empty, 0)
    return KeyRanges(*(end.squeeze(-1).to(torch.int32) for end in (low, high)))
