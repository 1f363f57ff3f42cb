"""Key-value caches: what attention remembers between steps, passed into `step` and returned from it.

    Cache          grows: self-attention appends the keys and values of every new token
    StaticCache    the same in storage of fixed size, masked by a tensor, so that a CUDA graph can replay a step
    ContextCache   fixed: cross-attention projects its context once

Rows (sequences) have their own positions, so a finished one can be replaced by another. A cache that was passed to a
step is consumed: its storage is written. Copy it first to keep it. Caches know neither scores nor layers.

Legend: B rows, H key heads, C capacity, N tokens, D width.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import BoolMask, Causal, Mask, Padding, Placed
from regard.attention.mask_cache import CachedMask
from regard.mixer import RowGroups, Rows, row_indices


@dataclass(frozen=True)
class Cache:
    """The keys and values of the tokens so far, in storage for `capacity` of them."""

    key: Tensor
    """(B, H, C, D)"""
    value: Tensor
    """(B, H, C, D of the values)"""
    positions: Tensor
    """(B,): how many tokens each row has, and so where its next one stands."""
    filled: int
    """No row has more tokens than this. Known without asking the device."""
    level: bool = True
    """Every row has exactly this many. Then keys are written side by side, and steps need no mask."""

    @property
    def capacity(self) -> int:
        return self.key.shape[-2]

    def room(self, count: int) -> int:
        """The new `filled` after `count` more tokens; a ValueError where they do not fit."""
        if self.filled + count <= self.capacity:
            return self.filled + count
        longest = self._longest()
        if longest + count > self.capacity:
            expected = f"at least {longest + count}, for {count} tokens after {longest}"
            raise checks.wrong("capacity", expected, self.capacity)
        return longest + count

    def _longest(self) -> int:
        """The tokens of the longest row: after `put` and `pick` maybe fewer than `filled`. It asks the device."""
        return int(self.positions.max()) if self.positions.numel() else 0

    def extend(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> "Cache":
        """Write the keys and values (B, H, N, D) of N new tokens behind those of each row.

        Where rows have fewer new tokens than N, `lengths` says how many; what stands behind them is written over later.
        """
        filled = self.room(key.shape[-2])
        if self.level:
            self.key[:, :, self.filled:filled] = key
            self.value[:, :, self.filled:filled] = value
        else:
            rows_B1 = torch.arange(key.shape[0], device=key.device).unsqueeze(-1)
            index_BN = self.positions.unsqueeze(-1) + torch.arange(key.shape[-2], device=key.device)
            self.key[rows_B1, :, index_BN] = key.transpose(1, 2).to(self.key.dtype)
            self.value[rows_B1, :, index_BN] = value.transpose(1, 2).to(self.value.dtype)
        positions = self.positions + (key.shape[-2] if lengths is None else lengths)
        return Cache(self.key, self.value, positions, filled, self.level and lengths is None)

    def step_mask(self, count: int, lengths: Tensor | None, extra: Mask | None) -> Mask | None:
        """What `count` new tokens, of which each row has `lengths`, may look at: see `step_mask`."""
        if self.level and lengths is None:  # the last token stands at the last key, as causal masks have it
            if count == 1:
                return extra
            return Causal() if extra is None else Causal() & extra
        mask = Causal() & Placed(self.positions)
        if lengths is not None:  # what fills up a shorter row is no key for anybody
            mask = mask & Padding(self.positions + lengths)
        return mask if extra is None else mask & extra

    def view(self, filled: int) -> tuple[Tensor, Tensor]:
        """The keys and values of the first `filled` places."""
        return self.key[:, :, :filled], self.value[:, :, :filled]

    def pick(self, rows: Rows) -> "Cache":
        """The cache of these rows, in storage of its own; a row may be picked more than once."""
        index = row_indices(rows, self.key)
        if isinstance(rows, RowGroups) and rows.reuse_storage and len(index) <= len(self.key):
            return self._moved(index)
        shape = (len(index), self.key.shape[1], self.capacity)
        key, value = (tensor.new_empty(*shape, tensor.shape[-1]) for tensor in (self.key, self.value))
        key[:, :, :self.filled] = self.key[index, :, :self.filled]
        value[:, :, :self.filled] = self.value[index, :, :self.filled]
        return Cache(key, value, self.positions[index], self.filled, self.level)

    def _moved(self, index: Tensor) -> "Cache":
        """The cache of these rows in the same storage. Fresh memory costs more than to write into what is there."""
        count = len(index)
        places = torch.arange(count, device=index.device)
        if index.device.type == "cpu":  # where it costs nothing to ask, rows that stay where they are do stay
            places = (index != places).nonzero().squeeze(-1)
        for tensor in (self.key, self.value):
            filled = tensor[:, :, :self.filled]
            filled[places] = filled[index[places]]  # all that is read is read before the first is written
        return Cache(self.key[:count], self.value[:count], self.positions[index], self.filled, self.level)

    def put(self, rows: Rows, other: "Cache") -> "Cache":
        """Replace these rows by the rows of another cache, which may have another capacity."""
        filled = other.filled if other.filled <= self.capacity else other._longest()
        if filled > self.capacity:
            raise checks.wrong("other", f"of at most {self.capacity} tokens, the capacity", f"of {filled}")
        index = row_indices(rows, self.key)
        key, value = other.view(filled)
        self.key[index, :, :filled] = key
        self.value[index, :, :filled] = value
        positions = self.positions.index_copy(0, index, other.positions)
        level = self.level and other.level and self.filled == other.filled
        after = Cache(self.key, self.value, positions, max(self.filled, filled), level)
        # The longest may have been replaced. To ask once spares every further step keys that no row has.
        return after if level else replace(after, filled=after._longest())

    def copy(self) -> "Cache":
        """The same, in storage of its own."""
        return Cache(self.key.clone(), self.value.clone(), self.positions.clone(), self.filled, self.level)


class StaticMask(CachedMask):
    """A matrix by which every query sees something, by the word of whoever makes it: nothing is looked up."""

    def __init__(self, allowed: Tensor) -> None:
        BoolMask.__init__(self, allowed)
        self.opened, self.blind = allowed, None


@dataclass(frozen=True)
class StaticCache(Cache):
    """The keys and values of at most C tokens, (B, H, C, D); the next one of row b goes to positions[b]."""

    seen: StaticMask | None = field(default=None)
    """(B, 1, 1, C): which places the next token sees, its own among them."""

    def extend(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> "StaticCache":
        """Write the key and the value (B, H, 1, D) of one new token a row."""
        assert (key.shape[-2], lengths) == (1, None), "one token of each row"
        for storage, new in ((self.key, key), (self.value, value)):
            places = self.positions.view(-1, 1, 1, 1).expand(-1, *new.shape[1:])
            storage.scatter_(2, places, new.to(storage.dtype))
        return self

    def step_mask(self, count: int, lengths: Tensor | None, extra: Mask | None) -> Mask | None:
        """What was said to be seen."""
        assert (count, lengths, extra) == (1, None, None), "one token of each row, which sees all before it"
        return self.seen


@dataclass(frozen=True)
class ContextCache:
    """The keys and values of contexts, (B, H, N, D), of which each has `lengths` tokens (all, if None).

    Those behind the lengths were made of zeros, whatever stood there. Where rows come in families that look at one
    context, it is kept once for all of them.
    """

    key: Tensor
    value: Tensor
    lengths: Tensor | None
    mask: CachedMask | None
    """The tokens of the context that are there; None for all, whatever the lengths."""
    each: int = 1
    """How many rows, one after another, look at one context."""

    @staticmethod
    def of(key: Tensor, value: Tensor, lengths: Tensor | None, each: int = 1) -> "ContextCache":
        """The cache of keys and values; its mask is looked up here, once for all steps."""
        if lengths is None or _all_full(lengths, key.shape[-2]):
            return ContextCache(key, value, lengths, None, each)
        allowed = Padding(lengths).matrix(1, key.shape[-2], leading=2, device=key.device)
        return ContextCache(key, value, lengths, CachedMask(allowed), each)

    def pick(self, rows: Rows) -> "ContextCache":
        """The cache of these rows; a row may be picked more than once. Families share what they shared before."""
        if isinstance(rows, RowGroups) and rows.previous_size % self.each == 0:
            if rows.groups is None and rows.previous_size == self.each:
                return replace(self, each=rows.size)
            families = range(len(self.key) * self.each // rows.previous_size) if rows.groups is None else rows.groups
            first = row_indices(torch.as_tensor(families, device=self.key.device) * (rows.previous_size // self.each), self.key)
            return replace(self._picked(first), each=rows.size)
        return self._picked(_row_indices(rows, self.key, self.each) // self.each)

    def put(self, rows: Rows, other: "ContextCache") -> "ContextCache":
        """Replace these rows by the rows of another cache. The shorter of the two contexts is filled up with zeros."""
        if isinstance(rows, RowGroups) and rows.groups is not None and rows.size == self.each == other.each:
            mine, theirs, index = self, other, row_indices(rows.groups, self.key)
        else:
            mine, theirs = self.apart(), other.apart()
            index = row_indices(rows, mine.key)
        longest = max(mine.key.shape[-2], theirs.key.shape[-2])
        key, value = (_pad_tokens(old, longest).index_copy(0, index, _pad_tokens(new, longest).to(old.dtype))
                      for old, new in ((mine.key, theirs.key), (mine.value, theirs.value)))
        lengths = mine._lengths().index_copy(0, index, theirs._lengths().to(mine._lengths().dtype))
        return ContextCache.of(key, value, lengths, mine.each)

    def copy(self) -> "ContextCache":
        """The same, in storage of its own."""
        lengths = None if self.lengths is None else self.lengths.clone()
        return ContextCache(self.key.clone(), self.value.clone(), lengths, self.mask, self.each)

    def apart(self) -> "ContextCache":
        """The same with a context for each row."""
        if self.each == 1:
            return self
        rows = torch.arange(len(self.key), device=self.key.device).repeat_interleave(self.each)
        return self._picked(rows)

    def _picked(self, index: Tensor) -> "ContextCache":
        """These contexts, for one row each."""
        lengths, mask = None if self.lengths is None else self.lengths[index], self.mask
        return ContextCache(self.key[index], self.value[index], lengths, None if mask is None else mask.pick(index))

    def _lengths(self) -> Tensor:
        if self.lengths is not None:
            return self.lengths
        return torch.full(self.key.shape[:1], self.key.shape[-2], device=self.key.device)


def fold_rows(query: Tensor, each: int) -> Tensor:
    """Queries (B, H, N, D) of families of rows as queries of one row a family: (B / each, H, each · N, D)."""
    return query.unflatten(0, (-1, each)).transpose(1, 2).flatten(2, 3)


def unfold_rows(output: Tensor, each: int) -> Tensor:
    """The way back: (B / each, H, each · N, D) -> (B, H, N, D)."""
    return output.unflatten(2, (each, -1)).transpose(1, 2).flatten(0, 1)


def _row_indices(rows: Rows, key: Tensor, each: int) -> Tensor:
    """Rows as indices from 0 on, of which a context has `each`."""
    return row_indices(rows, key.new_empty(len(key) * each, 0))


def _all_full(lengths: Tensor, count: int) -> bool:
    """Whether every context is known to have `count` tokens: on other devices looking would make every call wait."""
    if lengths.device.type != "cpu" or torch.compiler.is_compiling() or lengths.numel() == 0 or count == 0:
        return False
    return int(lengths.min()) >= count


def _pad_tokens(tensor: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, 0, 0, count - tensor.shape[-2]))
