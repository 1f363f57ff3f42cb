"""Masks: which keys a query may attend to.

A mask is a value with a meaning, so that a backend can recognise it. True means *may attend*. Masks combine with `&`,
`|` and `~`; `mask.matrix(n_queries, n_keys)` shows one.

    Causal()                  no query attends to a key after its own position
    Padding(lengths, side)    only the first (or last) `length` keys of each sequence exist
    Window(left, right)       keys at most `left` before and `right` after the query
    Packed(lengths)           several sequences in one row, each attends to itself only
    Placed(start)             the first query is at key `start`, as in cached decoding
    a bool tensor             broadcast against (..., n_queries, n_keys)

Every query has a position among the keys. By default the two sequences end together (aligned to the bottom right): the
last query is at the last key. `Packed` and `Placed` set other positions, and in a conjunction they set them for all
members: `Causal() & Placed(start)` is causal from there.

Masks and biases are computed from the indices of query-key pairs (`PairIndices`), so one formula serves the whole
matrix, a block of it, some rows of it, and a single pair inside a compiled kernel. A mask does not know scores,
backends or dtypes.

Legend: Q queries of a block, K keys of a block.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from regard import checks
from regard.kernels.launch import in_torch_func, is_readable


class PairIndices(Protocol):
    """The indices of query-key pairs, as a mask reads them. The tensors broadcast against each other."""

    @property
    def row(self) -> Tensor:
        """The index of the query."""

    @property
    def column(self) -> Tensor:
        """The index of the key."""

    @property
    def position(self) -> Tensor:
        """The position of the query: the index of a key."""

    @property
    def n_queries(self) -> int: ...

    @property
    def n_keys(self) -> int: ...

    def per_sequence(self, numbers: Tensor) -> Tensor:
        """Numbers for each sequence, (batch, ...), aligned with the leading dimensions from the left."""

    def select(self, matrix: Tensor) -> Tensor:
        """The entries of a (..., n_queries, n_keys) matrix at these pairs."""

    def at(self, position: Tensor) -> Self:
        """The same pairs, with other positions of the queries."""


@dataclass(frozen=True)
class BlockIndices:
    """The indices of a block of pairs: some queries against a range of keys, for every leading index."""

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
        """The block of these rows and columns (default: all) under `leading` leading dimensions."""
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


Lengths = int | Sequence[int] | Tensor
Device = torch.device | str | None


class Mask(ABC):
    """The protocol of a mask. A subclass defines at least `allowed`."""

    sets_positions: bool = False
    """Whether the mask sets the positions of the queries."""
    is_matrix: bool = True
    """Whether it depends on both the query and the key, so that writing it out takes a matrix."""

    @property
    def leading(self) -> int:
        """The number of leading (batch) dimensions of the mask itself."""
        return 0

    def fits(self, leading: tuple[int, ...]) -> bool:
        """Whether the mask's own leading dimensions broadcast to these."""
        return True

    @abstractmethod
    def allowed(self, block: PairIndices) -> Tensor:
        """Which pairs may attend: bool, broadcastable to the block. The mask was prepared for its sizes."""

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> "Mask":
        """The mask with its tensors on `device`, checked against the sizes. `allowed` is called on the result."""
        return self

    def map_parts(self, change: "Callable[[Mask], Mask]") -> "Mask":
        """The mask with `change` applied to each part that is not itself a combination."""
        return change(self)

    def aligned(self, block: PairIndices) -> PairIndices:
        """The block with the positions that this mask gives to the queries."""
        return block

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        """A range that holds all keys to which the queries first..last-1 may attend. It may be too wide."""
        return 0, n_keys

    def matrix(self, n_queries: int, n_keys: int, *, leading: int | None = None, device: Device = None) -> Tensor:
        """Return the mask as a bool tensor (..., n_queries, n_keys), in which True means may attend.

        Args:
            leading: the number of leading dimensions of the result; by default those of the mask itself.
            device: the device of the result; by default that of the mask.
        """
        mask = self.prepare(n_queries, n_keys, device)
        block = BlockIndices.of(n_queries, n_keys, leading=mask.leading if leading is None else leading, device=device)
        allowed = mask.allowed(mask.aligned(block))
        return allowed.expand(*allowed.shape[:-2], n_queries, n_keys)

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return AndMask.of(self, as_mask(other))

    def __rand__(self, other: Tensor) -> "Mask":
        return AndMask.of(as_mask(other), self)

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        return OrMask((self, as_mask(other)))

    def __ror__(self, other: Tensor) -> "Mask":
        return OrMask((as_mask(other), self))

    def __invert__(self) -> "Mask":
        return NotMask((self,))


class Causal(Mask):
    """A causal mask: a query may attend to the key at its own position and to those before it.

    The mask is aligned to the bottom right: the last query is at the last key, as decoding with a cache needs it.
    (`is_causal` of `scaled_dot_product_attention` is aligned to the top left.)

    Example:
        import regard

        assert regard.Causal().matrix(2, 4).tolist() == [[True, True, True, False],
                                                         [True, True, True, True]]
    """

    def allowed(self, block: PairIndices) -> Tensor:
        return block.column <= block.position

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        return 0, max(0, min(n_keys, last + n_keys - n_queries))

    def __repr__(self) -> str:
        return "Causal()"


class Window(Mask):
    """A window (local attention): a query may attend to the keys near its own position.

    Args:
        left: the number of keys before the position of the query; None for all.
        right: the number of keys after it; None for all.

    Example:
        import regard

        mask = regard.Causal() & regard.Window(1, 0)            # the token itself and the one before it
        assert mask.matrix(3, 3).tolist() == [[True, False, False],
                                              [True, True, False],
                                              [False, True, True]]
    """

    def __init__(self, left: int | None, right: int | None) -> None:
        for argument, value in (("left", left), ("right", right)):
            if value is not None and (not isinstance(value, int) or value < 0):
                raise checks.wrong(argument, "a number of keys, 0 or more, or None", value)
        self.left, self.right = left, right

    def allowed(self, block: PairIndices) -> Tensor:
        distance = block.column - block.position
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
    """A padding mask: queries attend to the real keys of their sequence, not to padding.

    What the padding contains, NaN included, changes nothing.

    Args:
        lengths: the number of real keys of each sequence, (B,). It aligns with the leading dimensions of the queries
            from the left.
        side: the side of the padding: "right" (the real keys come first) or "left".
    """

    def __init__(self, lengths: Lengths, side: str = "right") -> None:
        checks.pick("side", side, {"right": None, "left": None})
        self.is_matrix = False
        self.lengths, self.side = as_integers("lengths", lengths), side

    @property
    def leading(self) -> int:
        return self.lengths.dim()

    def fits(self, leading: tuple[int, ...]) -> bool:
        return sizes_broadcast(self.lengths.shape, leading[:self.lengths.dim()])

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        if is_readable(self.lengths) and self.lengths.numel():
            longest = int(self.lengths.max())
            if longest > n_keys:
                raise checks.wrong("lengths", f"at most the number of keys, {n_keys}", longest)
        return self if _is_on_device(self.lengths, device) else Padding(self.lengths.to(device), self.side)

    def allowed(self, block: PairIndices) -> Tensor:
        lengths = block.per_sequence(self.lengths)
        return block.column < lengths if self.side == "right" else block.column >= block.n_keys - lengths

    def __repr__(self) -> str:
        return f'Padding({abbreviate(self.lengths)}, side="{self.side}")'


class Placed(Mask):
    """A mask for decoding with a cache: the first query is at key `start`, and keys after the last query do not exist.

    `Causal() & Placed(start)` is causal from there.

    Args:
        start: the position of the first query among the keys: one number, or one for each sequence, (B,).
    """

    sets_positions = True

    def __init__(self, start: Lengths) -> None:
        self.start = as_integers("start", start)

    @property
    def leading(self) -> int:
        return self.start.dim()

    def fits(self, leading: tuple[int, ...]) -> bool:
        return sizes_broadcast(self.start.shape, leading[:self.start.dim()])

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        return self if _is_on_device(self.start, device) else Placed(self.start.to(device))

    def aligned(self, block: PairIndices) -> PairIndices:
        return block.at(block.row + block.per_sequence(self.start))

    def allowed(self, block: PairIndices) -> Tensor:
        return block.column < block.per_sequence(self.start) + block.n_queries

    def __repr__(self) -> str:
        return f"Placed({abbreviate(self.start)})"


class Packed(Mask):
    """A mask for packed sequences, one after another in one row: each segment attends to itself only.

    Tokens after the last segment attend to nothing, and no token attends to them. Each segment is aligned to its own
    bottom right, so `Causal() & Packed(...)` is causal inside every segment.

    Args:
        query_lengths: the queries of each segment, (segments,).
        key_lengths: the keys of each segment; `query_lengths` by default.
    """

    sets_positions = True

    def __init__(self, query_lengths: Lengths, key_lengths: Lengths | None = None) -> None:
        self.query_lengths = as_integers("query_lengths", query_lengths)
        self.key_lengths = self.query_lengths if key_lengths is None else as_integers("key_lengths", key_lengths)
        for argument, lengths in (("query_lengths", self.query_lengths), ("key_lengths", self.key_lengths)):
            if lengths.dim() != 1:
                expected = "of shape (segments,), one length for each segment"
                raise checks.wrong(argument, expected, f"of shape {checks.shape(lengths)}")
        if self.query_lengths.shape != self.key_lengths.shape:
            expected = f"a list of as many lengths as query_lengths, {len(self.query_lengths)}"
            raise checks.wrong("key_lengths", expected, len(self.key_lengths))

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        self.check_sizes(n_queries, n_keys)
        queries, keys = self.query_lengths.to(device), self.key_lengths.to(device)
        query_ends, key_ends = queries.cumsum(0), keys.cumsum(0)
        of_query = torch.searchsorted(query_ends, torch.arange(n_queries, device=device), right=True)
        of_key = torch.searchsorted(key_ends, torch.arange(n_keys, device=device), right=True)
        # Tokens after the last segment have the segment number len(queries) and a shift of 0, and attend to nothing.
        shift = torch.cat([key_ends - query_ends, queries.new_zeros(1)])
        position = torch.arange(n_queries, device=device) + shift[of_query]
        return PackedSegments(self, of_query.where(of_query < len(queries), -1), of_key, position)

    def allowed(self, block: PairIndices) -> Tensor:
        return self.prepare(block.n_queries, block.n_keys, block.row.device).allowed(block)

    def positions(self, n_queries: int, device: Device = None) -> Tensor:
        """The index of each query in its segment, (n_queries,); the tokens after the last segment count from 0 too."""
        ends = self.query_lengths.to(device).cumsum(0)
        index = torch.arange(n_queries, device=device)
        starts = torch.cat([ends.new_zeros(1), ends])
        return index - starts[torch.searchsorted(ends, index, right=True)]

    def on_host(self, n_queries: int, n_keys: int) -> tuple[list[int], list[int]]:
        """The lengths of the queries and of the keys as plain numbers, checked. It waits for lengths on a GPU."""
        host = Packed(self.query_lengths.cpu(), self.key_lengths.cpu())
        host.check_sizes(n_queries, n_keys)
        return host.query_lengths.tolist(), host.key_lengths.tolist()

    def check_sizes(self, n_queries: int, n_keys: int) -> None:
        """Raise a ValueError if the segments hold more tokens than exist; unless reading the lengths would wait."""
        for argument, lengths, tokens in (("query_lengths", self.query_lengths, n_queries),
                                          ("key_lengths", self.key_lengths, n_keys)):
            if is_readable(lengths) and int(lengths.sum()) > tokens:
                expected = f"lengths that add up to at most {tokens}, the number of tokens"
                raise checks.wrong(argument, expected, f"lengths that add up to {int(lengths.sum())}")

    def __repr__(self) -> str:
        keys = "" if self.key_lengths is self.query_lengths else ", " + abbreviate(self.key_lengths)
        return f"Packed({abbreviate(self.query_lengths)}{keys})"


class PackedSegments(Mask):
    """A prepared `Packed`: the segment of every query and of every key, and the position of every query."""

    sets_positions = True

    def __init__(self, packed: Packed, of_query: Tensor, of_key: Tensor, position: Tensor) -> None:
        self.packed, self.of_query, self.of_key, self.position = packed, of_query, of_key, position

    def aligned(self, block: PairIndices) -> PairIndices:
        return block.at(self.position[block.row])

    def allowed(self, block: PairIndices) -> Tensor:
        return self.of_query[block.row] == self.of_key[block.column]

    def __repr__(self) -> str:
        return repr(self.packed)


class BoolMask(Mask):
    """A bool tensor as a mask; True means may attend."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.is_matrix = tensor.dim() > 1 and tensor.shape[-2] > 1

    @property
    def leading(self) -> int:
        return max(0, self.tensor.dim() - 2)

    def fits(self, leading: tuple[int, ...]) -> bool:
        return sizes_broadcast(self.tensor.shape[:-2], leading[len(leading) - self.leading:])

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        tensor = self.tensor[(None,) * max(0, 2 - self.tensor.dim())]
        if any(size not in (1, wanted) for size, wanted in zip(tensor.shape[-2:], (n_queries, n_keys), strict=True)):
            expected = f"broadcastable to (..., {n_queries} queries, {n_keys} keys)"
            raise checks.wrong("mask", expected, f"of shape {checks.shape(self.tensor)}")
        return BoolMask(tensor.to(device))

    def allowed(self, block: PairIndices) -> Tensor:
        return block.select(self.tensor)

    def __repr__(self) -> str:
        return f"BoolMask(bool tensor of shape {checks.shape(self.tensor)})"


class CombinedMask(Mask):
    """The base of masks that are made of others."""

    def __init__(self, members: tuple[Mask, ...]) -> None:
        self.members = members
        self.is_matrix = any(member.is_matrix for member in members)

    @property
    def leading(self) -> int:
        return max(member.leading for member in self.members)

    def fits(self, leading: tuple[int, ...]) -> bool:
        return all(member.fits(leading) for member in self.members)

    def map_parts(self, change: Callable[[Mask], Mask]) -> Mask:
        return type(self)(tuple(member.map_parts(change) for member in self.members))

    def prepare(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        return self.map_parts(lambda part: part.prepare(n_queries, n_keys, device))


class AndMask(CombinedMask):
    """The conjunction of masks. Positions that one member sets hold for all."""

    def __init__(self, members: tuple[Mask, ...]) -> None:
        super().__init__(members)
        self.sets_positions = any(member.sets_positions for member in members)

    @classmethod
    def of(cls, *masks: Mask) -> "AndMask":
        """The conjunction of these masks, without nested conjunctions."""
        return cls(tuple(part for mask in masks for part in mask_parts(mask)))

    def aligned(self, block: PairIndices) -> PairIndices:
        for member in self.members:
            block = member.aligned(block)
        return block

    def allowed(self, block: PairIndices) -> Tensor:
        result = self.members[0].allowed(block)
        for member in self.members[1:]:
            result = result & member.allowed(block)
        return result

    def span(self, first: int, last: int, n_queries: int, n_keys: int) -> tuple[int, int]:
        if self.sets_positions:
            return 0, n_keys  # the members' spans assume other positions
        spans = [member.span(first, last, n_queries, n_keys) for member in self.members]
        start, stop = max(start for start, _ in spans), min(stop for _, stop in spans)
        return min(start, stop), stop

    def __repr__(self) -> str:
        return " & ".join(f"({member!r})" if isinstance(member, OrMask) else repr(member) for member in self.members)


class OrMask(CombinedMask):
    """The disjunction of two masks. Each sets positions for itself."""

    def allowed(self, block: PairIndices) -> Tensor:
        left, right = self.members
        return left.allowed(left.aligned(block)) | right.allowed(right.aligned(block))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.members))


class NotMask(CombinedMask):
    """The complement of a mask."""

    def allowed(self, block: PairIndices) -> Tensor:
        (inner,) = self.members
        return ~inner.allowed(inner.aligned(block))

    def __repr__(self) -> str:
        (inner,) = self.members
        return f"~({inner!r})" if isinstance(inner, AndMask | OrMask) else f"~{inner!r}"


def mask_parts(mask: Mask | None) -> tuple[Mask, ...]:
    """The members of a conjunction; the mask itself where it is none."""
    return () if mask is None else mask.members if isinstance(mask, AndMask) else (mask,)


def as_mask(mask: Mask | Tensor) -> Mask:
    """The argument `mask` as a mask. Only bool tensors are masks: numbers to add to the scores go into `bias`."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise checks.wrong("mask", "a bool tensor or a mask such as regard.Causal()", *checks.kind(mask))
    if mask.dtype == torch.bool:
        return BoolMask(mask)
    remedy = ("Numbers to add to the scores go into `bias`." if mask.is_floating_point()
              else "Say which values may attend, for example mask=(tensor == 1).")
    raise checks.wrong("mask", "a bool tensor (True: may attend)", f"a tensor of {mask.dtype}", remedy)


def as_integers(argument: str, numbers: Lengths) -> Tensor:
    """The lengths or starts of an argument, as an integer tensor."""
    if not isinstance(numbers, Tensor | list | tuple | range | int):
        raise checks.wrong(argument, "integers", repr(numbers))
    tensor = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers)
    if tensor.numel() == 0:
        return tensor.long()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise checks.wrong(argument, "integers", f"of dtype {tensor.dtype}")
    if is_readable(tensor) and bool((tensor < 0).any()):
        raise checks.wrong(argument, "0 or more", int(tensor.min()))
    return tensor.long()  # smaller integers overflow where positions are added


def abbreviate(numbers: Tensor) -> str:
    """The numbers as text; only the first six of many."""
    if in_torch_func():
        return f"of shape {checks.shape(numbers)}"
    flat = numbers.flatten().tolist()
    shown = ", ".join(map(str, flat[:6])) + (", …" if len(flat) > 6 else "")
    return f"[{shown}]" if numbers.dim() else shown


def sizes_broadcast(own: Sequence[int], leading: Sequence[int]) -> bool:
    """Whether the sizes `own` broadcast to `leading`, of which there are as many."""
    return len(own) == len(leading) and all(size in (1, wanted) for size, wanted in zip(own, leading, strict=True))


def _is_on_device(tensor: Tensor, device: Device) -> bool:
    return device is None or tensor.device == torch.device(device)
