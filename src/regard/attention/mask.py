"""Masks: which keys a query may attend to.

A mask is a value with a meaning, so that a backend can recognise it. True means *may attend*. Masks combine with `&`,
`|` and `~`; `mask.matrix(n_queries, n_keys)` shows one.

    Causal()                  no query attends to a key after its own position
    Padding(lengths, side)    only the first (or last) `length` keys of each sequence exist
    Window(left, right)       keys at most `left` before and `right` after the query
    Packed(lengths)           several sequences in one row, each attends to itself only
    Placed(start)             the first query stands at key `start`, as in cached decoding
    a bool tensor             broadcast against (..., n_queries, n_keys)

Every query has a position among the keys. By default the two sequences end together (aligned to the bottom right): the
last query stands at the last key. `Packed` and `Placed` set other positions, and in a conjunction they set them for all
members: `Causal() & Placed(start)` is causal from there.

Masks and biases are computed from the indices of query-key pairs (`PairIndices`), so one formula serves the whole
matrix, a block of it, some rows of it, and a single pair inside a compiled kernel. A mask does not know scores, backends
or dtypes.

Legend: Q queries of a block, K keys of a block.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from regard import checks


class PairIndices(Protocol):
    """What a mask may read. The tensors broadcast against each other to the shape of the block."""

    @property
    def row(self) -> Tensor:
        """The index of the query."""

    @property
    def column(self) -> Tensor:
        """The index of the key."""

    @property
    def position(self) -> Tensor:
        """The index of the key at which the query stands."""

    @property
    def n_queries(self) -> int: ...

    @property
    def n_keys(self) -> int: ...

    def per_sequence(self, numbers: Tensor) -> Tensor:
        """Numbers given one a sequence, (batch, ...), aligned with the block's leading dimensions from the left."""

    def select(self, matrix: Tensor) -> Tensor:
        """The entries of a (..., n_queries, n_keys) matrix at this place."""

    def at(self, position: Tensor) -> Self:
        """The same pairs, with the queries standing elsewhere."""


@dataclass(frozen=True)
class BlockIndices:
    """The place of a block: some queries against a run of keys, for every leading index."""

    row: Tensor
    column: Tensor
    position: Tensor
    n_queries: int
    n_keys: int
    leading: int
    rows: "slice | Tensor"
    columns: slice

    @classmethod
    def of(cls, n_queries: int, n_keys: int, *, leading: int, device: "torch.device | str | None" = None,
           rows: "slice | Tensor | None" = None, columns: slice | None = None) -> "BlockIndices":
        """The block of these rows and columns (all, where not said) under `leading` leading dimensions."""
        # By type and not by `is None`, on which torch.compile would specialise, and compile again for every length.
        rows = rows if isinstance(rows, slice | Tensor) else slice(0, n_queries)
        columns = columns if isinstance(columns, slice) else slice(0, n_keys)
        index_Q = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
        row_Q1 = index_Q.unsqueeze(-1)
        column_K = torch.arange(columns.start, columns.stop, device=device)
        return cls(row_Q1, column_K, row_Q1 + (n_keys - n_queries), n_queries, n_keys, leading, rows, columns)

    def per_sequence(self, numbers: Tensor) -> Tensor:
        return numbers.reshape(numbers.shape + (1,) * (self.leading + 2 - numbers.dim()))

    def select(self, matrix: Tensor) -> Tensor:
        if matrix.shape[-2] != 1:  # a dimension of size 1 stands for all queries, or all keys
            matrix = matrix[..., self.rows, :]
        return matrix if matrix.shape[-1] == 1 else matrix[..., self.columns]

    def at(self, position: Tensor) -> "BlockIndices":
        return replace(self, position=position)


# ---- mask: Masks: who may look at whom.
#
# A mask is a value with a meaning, so that a kernel can recognise it. True means *may attend*. Masks combine with `&`,
# `|` and `~`; `mask.matrix(n_queries, n_keys)` shows one.
#
#     Causal()                  no query sees a key that stands after it
#     Padding(lengths, side)    only the first (or last) `length` keys of each sequence exist
#     Window(left, right)       keys at most `left` before and `right` after the query
#     Packed(lengths)           several sequences in one row, each sees itself alone (in `packed`)
#     Placed(start)             the first query stands at key `start`, as in cached decoding
#     a bool tensor             broadcast against (..., n_queries, n_keys)
#
# A mask does not know scores, backends or dtypes. Where the queries stand among the keys: see `place`. In a conjunction,
# `Packed` and `Placed` say it for all members: `Causal() & Placed(start)` is causal from there.

Lengths = int | Sequence[int] | Tensor
Device = torch.device | str | None


class Mask(ABC):
    """The protocol of a mask."""

    moves: bool = False
    """Whether the mask says where the queries stand."""
    square: bool = True
    """Whether it depends on both the query and the key, so that writing it out takes a matrix."""

    @property
    def leading(self) -> int:
        """How many leading (batch) dimensions the mask has itself."""
        return 0

    def fits(self, leading: tuple[int, ...]) -> bool:
        """Whether the mask's own leading dimensions broadcast to these."""
        return True

    @abstractmethod
    def allowed(self, place: PairIndices) -> Tensor:
        """Bool, broadcastable to the block at `place`. The mask is ready for the sizes and the device of the block."""

    def ready(self, n_queries: int, n_keys: int, device: Device) -> "Mask":
        """The mask with its tensors on `device`, checked against the sizes; `allowed` is asked of this one."""
        return self

    def each(self, change: "Callable[[Mask], Mask]") -> "Mask":
        """The mask with every part of it that is not itself a combination changed."""
        return change(self)

    def aligned(self, place: PairIndices) -> PairIndices:
        """The place with the positions that this mask gives to the queries."""
        return place

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        """A run of keys outside of which the queries first..last-1 see nothing. It may be too wide, never narrow."""
        return 0, n_keys

    def matrix(self, n_queries: int, n_keys: int, *, leading: int | None = None, device: Device = None) -> Tensor:
        """The mask as a bool tensor (..., n_queries, n_keys), with as many leading dimensions as it has itself."""
        mask = self.ready(n_queries, n_keys, device)
        place = BlockIndices.of(n_queries, n_keys, leading=mask.leading if leading is None else leading, device=device)
        allowed = mask.allowed(mask.aligned(place))
        return allowed.expand(*allowed.shape[:-2], n_queries, n_keys)

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return AndMask.of(self, as_mask(other))

    def __rand__(self, other: Tensor) -> "Mask":
        return AndMask.of(as_mask(other), self)

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        return OrMask(self, as_mask(other))

    def __ror__(self, other: Tensor) -> "Mask":
        return OrMask(as_mask(other), self)

    def __invert__(self) -> "Mask":
        return NotMask(self)


class Causal(Mask):
    """A query sees the key at its own position and those before it; the last query stands at the last key."""

    def allowed(self, place: PairIndices) -> Tensor:
        return place.column <= place.position

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        return 0, max(0, min(n_keys, last + n_keys - n_queries))

    def __repr__(self) -> str:
        return "Causal()"


class Window(Mask):
    """A query sees at most `left` keys before its position and `right` after it; None is without limit."""

    def __init__(self, left: int | None, right: int | None) -> None:
        for argument, value in (("left", left), ("right", right)):
            if value is not None and (not isinstance(value, int) or value < 0):
                raise checks.wrong(argument, "a number of keys, 0 or more, or None", value)
        self.left, self.right = left, right

    def allowed(self, place: PairIndices) -> Tensor:
        distance = place.column - place.position
        near = torch.ones_like(distance, dtype=torch.bool) if self.left is None else distance >= -self.left
        return near if self.right is None else near & (distance <= self.right)

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        shift = n_keys - n_queries
        start = 0 if self.left is None else max(0, first + shift - self.left)
        stop = n_keys if self.right is None else max(0, min(n_keys, last + shift + self.right))
        return min(start, stop), stop

    def __repr__(self) -> str:
        return f"Window({self.left}, {self.right})"


class Padding(Mask):
    """Of each sequence only `length` keys exist: the first (padded on the side "right"), or the last ("left").

    `lengths` has one number a sequence, (batch,), aligned with the leading dimensions of the queries from the left.
    """

    def __init__(self, lengths: Lengths, side: str = "right") -> None:
        checks.pick("side", side, {"right": None, "left": None})
        self.square = False
        self.lengths, self.side = as_integers("lengths", lengths), side

    @property
    def leading(self) -> int:
        return self.lengths.dim()

    def fits(self, leading: tuple[int, ...]) -> bool:
        return _sizes_broadcast(self.lengths.shape, leading[:self.lengths.dim()])

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        if not torch.compiler.is_compiling() and self.lengths.device.type == "cpu" and self.lengths.numel():
            longest = int(self.lengths.max())
            if longest > n_keys:
                raise checks.wrong("lengths", f"at most the number of keys, {n_keys}", f"as long as {longest}")
        return self if _is_on_device(self.lengths, device) else Padding(self.lengths.to(device), self.side)

    def allowed(self, place: PairIndices) -> Tensor:
        lengths = place.per_sequence(self.lengths)
        return place.column < lengths if self.side == "right" else place.column >= place.n_keys - lengths

    def __repr__(self) -> str:
        return f'Padding({abbreviate(self.lengths)}, side="{self.side}")'


class Placed(Mask):
    """The first query of each sequence stands at key `start`, and the keys after the last query are not there yet."""

    moves = True

    def __init__(self, start: Lengths) -> None:
        self.start = as_integers("start", start)

    @property
    def leading(self) -> int:
        return self.start.dim()

    def fits(self, leading: tuple[int, ...]) -> bool:
        return _sizes_broadcast(self.start.shape, leading[:self.start.dim()])

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        return self if _is_on_device(self.start, device) else Placed(self.start.to(device))

    def aligned(self, place: PairIndices) -> PairIndices:
        return place.at(place.row + place.per_sequence(self.start))

    def allowed(self, place: PairIndices) -> Tensor:
        return place.column < place.per_sequence(self.start) + place.n_queries

    def __repr__(self) -> str:
        return f"Placed({abbreviate(self.start)})"


class BoolMask(Mask):
    """A bool tensor as a mask: True means may attend."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.square = tensor.dim() > 1 and tensor.shape[-2] > 1

    @property
    def leading(self) -> int:
        return max(0, self.tensor.dim() - 2)

    def fits(self, leading: tuple[int, ...]) -> bool:
        return _sizes_broadcast(self.tensor.shape[:-2], leading[len(leading) - self.leading:])

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        tensor = self.tensor[(None,) * max(0, 2 - self.tensor.dim())]
        if any(size not in (1, wanted) for size, wanted in zip(tensor.shape[-2:], (n_queries, n_keys), strict=True)):
            expected = f"broadcastable to (..., {n_queries} queries, {n_keys} keys)"
            raise checks.wrong("mask", expected, f"of shape {checks.shape(self.tensor)}")
        return BoolMask(tensor.to(device))

    def allowed(self, place: PairIndices) -> Tensor:
        return place.select(self.tensor)

    def __repr__(self) -> str:
        return f"Allowed(bool tensor of shape {checks.shape(self.tensor)})"


class AndMask(Mask):
    """The conjunction of masks. Its members agree on where the queries stand."""

    def __init__(self, members: tuple[Mask, ...]) -> None:
        self.members = members
        self.moves = any(member.moves for member in members)
        self.square = any(member.square for member in members)

    @classmethod
    def of(cls, *masks: Mask) -> "AndMask":
        """The conjunction, with conjunctions inside it opened."""
        return cls(tuple(part for mask in masks for part in (mask.members if isinstance(mask, cls) else (mask,))))

    @property
    def leading(self) -> int:
        return max(member.leading for member in self.members)

    def fits(self, leading: tuple[int, ...]) -> bool:
        return all(member.fits(leading) for member in self.members)

    def each(self, change: Callable[[Mask], Mask]) -> Mask:
        return AndMask(tuple(member.each(change) for member in self.members))

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        return self.each(lambda part: part.ready(n_queries, n_keys, device))

    def aligned(self, place: PairIndices) -> PairIndices:
        for member in self.members:
            place = member.aligned(place)
        return place

    def allowed(self, place: PairIndices) -> Tensor:
        result = self.members[0].allowed(place)
        for member in self.members[1:]:
            result = result & member.allowed(place)
        return result

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        if self.moves:
            return 0, n_keys  # the queries stand elsewhere: the members' spans do not hold
        spans = [member.span(first, last, n_queries, n_keys) for member in self.members]
        start, stop = max(start for start, _ in spans), min(stop for _, stop in spans)
        return min(start, stop), stop

    def __repr__(self) -> str:
        return " & ".join(f"({member!r})" if isinstance(member, OrMask) else repr(member) for member in self.members)


class OrMask(Mask):
    """The disjunction of two masks. Each has its own say on where the queries stand."""

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right
        self.square = left.square or right.square

    @property
    def leading(self) -> int:
        return max(self.left.leading, self.right.leading)

    def fits(self, leading: tuple[int, ...]) -> bool:
        return self.left.fits(leading) and self.right.fits(leading)

    def each(self, change: Callable[[Mask], Mask]) -> Mask:
        return OrMask(self.left.each(change), self.right.each(change))

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        return self.each(lambda part: part.ready(n_queries, n_keys, device))

    def allowed(self, place: PairIndices) -> Tensor:
        return self.left.allowed(self.left.aligned(place)) | self.right.allowed(self.right.aligned(place))

    def __repr__(self) -> str:
        return f"{self.left!r} | {self.right!r}"


class NotMask(Mask):
    """The complement of a mask."""

    def __init__(self, inner: Mask) -> None:
        self.inner, self.square = inner, inner.square

    @property
    def leading(self) -> int:
        return self.inner.leading

    def fits(self, leading: tuple[int, ...]) -> bool:
        return self.inner.fits(leading)

    def each(self, change: Callable[[Mask], Mask]) -> Mask:
        return NotMask(self.inner.each(change))

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        return self.each(lambda part: part.ready(n_queries, n_keys, device))

    def allowed(self, place: PairIndices) -> Tensor:
        return ~self.inner.allowed(self.inner.aligned(place))

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, AndMask | OrMask) else f"~{self.inner!r}"


def as_mask(mask: "Mask | Tensor") -> Mask:
    """The mask that a user gave. Only bool tensors are masks: what is added to the scores goes into `bias`."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise checks.wrong("mask", "a bool tensor or a mask such as regard.Causal()", *checks.kind(mask))
    if mask.dtype == torch.bool:
        return BoolMask(mask)
    remedy = ("What is added to the scores goes into `bias`." if mask.is_floating_point()
              else "Say which values may attend, for example mask=(tensor == 1).")
    raise checks.wrong("mask", "a bool tensor (True: may attend)", f"a tensor of {mask.dtype}", remedy)


def as_integers(argument: str, numbers: Lengths) -> Tensor:
    """Lengths or starts that a user gave, as an integer tensor."""
    if not isinstance(numbers, Tensor | list | tuple | range | int):
        raise checks.wrong(argument, "whole numbers", repr(numbers))
    tensor = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers)
    if tensor.numel() == 0:
        return tensor.long()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise checks.wrong(argument, "whole numbers", f"of dtype {tensor.dtype}")
    if not torch.compiler.is_compiling() and tensor.device.type == "cpu" and bool((tensor < 0).any()):
        raise checks.wrong(argument, "0 or more", int(tensor.min()))
    return tensor.long()  # smaller integers overflow where positions are added


def abbreviate(numbers: Tensor) -> str:
    """The numbers; the first few of them where there are many."""
    flat = numbers.flatten().tolist()
    shown = ", ".join(map(str, flat[:6])) + (", …" if len(flat) > 6 else "")
    return f"[{shown}]" if numbers.dim() else shown


def _sizes_broadcast(own: Sequence[int], leading: Sequence[int]) -> bool:
    """Sizes broadcast to those beside them; there are no more of them."""
    return len(own) == len(leading) and all(size in (1, wanted) for size, wanted in zip(own, leading, strict=True))


def _is_on_device(tensor: Tensor, device: Device) -> bool:
    return device is None or tensor.device == torch.device(device)


# ---- packed: Packed sequences: several of them one after another in one row, without padding, each seeing itself alone.
#
# The mask of segments. It says where the queries stand, so `Causal() & Packed(...)` is causal inside every segment. It
# does not know how a batch is packed, what the tokens are, nor who computes a segment.


class Packed(Mask):
    """The queries of a segment see the keys of that segment. What lies behind the last one neither sees nor is seen.

    `query_lengths` and `key_lengths` (the queries' where not given) have one length a segment. Each segment is aligned
    to its own bottom right: its last query stands at its last key.
    """

    moves = True

    def __init__(self, query_lengths: Lengths, key_lengths: Lengths | None = None) -> None:
        self.query_lengths = as_integers("query_lengths", query_lengths)
        self.key_lengths = self.query_lengths if key_lengths is None else as_integers("key_lengths", key_lengths)
        for argument, lengths in (("query_lengths", self.query_lengths), ("key_lengths", self.key_lengths)):
            if lengths.dim() != 1:
                raise checks.wrong(argument, "one length a segment, (segments,)", f"of shape {checks.shape(lengths)}")
        if self.query_lengths.shape != self.key_lengths.shape:
            expected = f"as many lengths as query_lengths has, {len(self.query_lengths)}"
            raise checks.wrong("key_lengths", expected, f"{len(self.key_lengths)} lengths")

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        if not torch.compiler.is_compiling():
            self._check_room(n_queries, n_keys)
        queries, keys = self.query_lengths.to(device), self.key_lengths.to(device)
        query_ends, key_ends = queries.cumsum(0), keys.cumsum(0)
        of_query = torch.searchsorted(query_ends, torch.arange(n_queries, device=device), right=True)
        of_key = torch.searchsorted(key_ends, torch.arange(n_keys, device=device), right=True)
        # What lies behind the last segment has the number len(queries): it gets a shift of its own, and sees nothing.
        shift = torch.cat([key_ends - query_ends, queries.new_zeros(1)])
        position = torch.arange(n_queries, device=device) + shift[of_query]
        return PackedSegments(self, of_query.where(of_query < len(queries), -1), of_key, position)

    def allowed(self, place: PairIndices) -> Tensor:
        return self.ready(place.n_queries, place.n_keys, place.row.device).allowed(place)

    def positions(self, n_queries: int, device: Device = None) -> Tensor:
        """How far into its segment every query is, (n_queries,): each segment starts at 0, and what lies behind too."""
        ends = self.query_lengths.to(device).cumsum(0)
        index = torch.arange(n_queries, device=device)
        starts = torch.cat([ends.new_zeros(1), ends])
        return index - starts[torch.searchsorted(ends, index, right=True)]

    def on_host(self, n_queries: int, n_keys: int) -> tuple[list[int], list[int]]:
        """The lengths of the queries and of the keys as plain numbers, checked. Lengths on a GPU are waited for."""
        host = Packed(self.query_lengths.cpu(), self.key_lengths.cpu())
        host._check_room(n_queries, n_keys)
        return host.query_lengths.tolist(), host.key_lengths.tolist()

    def _check_room(self, n_queries: int, n_keys: int) -> None:
        """A ValueError where there are more tokens in segments than there are. On a GPU nobody looks."""
        for argument, lengths, room in (("query_lengths", self.query_lengths, n_queries),
                                        ("key_lengths", self.key_lengths, n_keys)):
            if lengths.device.type == "cpu" and int(lengths.sum()) > room:
                expected = f"lengths that add up to at most {room}, the tokens there are"
                raise checks.wrong(argument, expected, f"lengths that add up to {int(lengths.sum())}")

    def __repr__(self) -> str:
        keys = "" if self.key_lengths is self.query_lengths else ", " + abbreviate(self.key_lengths)
        return f"Packed({abbreviate(self.query_lengths)}{keys})"


class PackedSegments(Mask):
    """A `Packed` looked up once: the segment of every query and of every key, and the position of every query."""

    moves = True

    def __init__(self, packed: Packed, of_query: Tensor, of_key: Tensor, position: Tensor) -> None:
        self.packed, self.of_query, self.of_key, self.position = packed, of_query, of_key, position

    def aligned(self, place: PairIndices) -> PairIndices:
        return place.at(self.position[place.row])

    def allowed(self, place: PairIndices) -> Tensor:
        return self.of_query[place.row] == self.of_key[place.column]

    def __repr__(self) -> str:
        return repr(self.packed)
