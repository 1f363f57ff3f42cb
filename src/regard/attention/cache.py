"""Key-value caches: what attention remembers between steps, passed into `step` and returned from it.

    Cache          grows: self-attention appends the keys and values of every new token
    StaticCache    the same in storage of fixed size, masked by a tensor, so that a CUDA graph can replay a step
    ContextCache   fixed: cross-attention projects its context once

Rows (sequences) have their own positions, so a finished one can be replaced by another. Where rows differ in length,
what is stored after a shorter one is finite, so that a mask hides it. A cache that was passed to a step is consumed:
its storage is written. Copy it first to keep it. Caches know neither scores nor layers.

Legend: B rows, H key heads, C capacity, N tokens, D width.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import BoolMask, Causal, Mask, Padding, Placed
from regard.attention.mask_cache import CachedMask
from regard.kernels.launch import is_readable
from regard.mixer import RowGroups, Rows, row_indices


@dataclass(frozen=True)
class Cache:
    """The keys and values of the tokens so far, in storage for `capacity` of them."""

    key: Tensor
    """(B, H, C, D)"""
    value: Tensor
    """(B, H, C, D of the values)"""
    positions: Tensor
    """(B,): the number of tokens of each row, which is the position of its next one."""
    filled: int
    """The most tokens that any row may have; known without waiting for the device."""
    uniform: bool = True
    """Whether every row has exactly `filled` tokens: then keys are written with a slice, and steps need no mask."""

    @property
    def capacity(self) -> int:
        return self.key.shape[-2]

    def filled_after(self, count: int) -> int:
        """The new `filled` after `count` more tokens; a ValueError where they do not fit."""
        if self.filled + count <= self.capacity:
            return self.filled + count
        longest = self._longest()
        if longest + count > self.capacity:
            expected = f"at least {longest + count}, for {count} tokens after {longest}"
            raise checks.wrong("capacity", expected, self.capacity)
        return longest + count

    def _longest(self) -> int:
        """The tokens of the longest row, after `put` and `pick` maybe fewer than `filled`. It waits for the device."""
        return int(self.positions.max()) if self.positions.numel() else 0

    def extend(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> "Cache":
        """Write the keys and values (B, H, N, D) of N new tokens after those of each row.

        Where rows have fewer new tokens than N, `lengths` says how many; the entries after them are overwritten later.
        """
        filled = self.filled_after(key.shape[-2])
        if self.uniform:
            self.key[:, :, self.filled:filled] = key
            self.value[:, :, self.filled:filled] = value
        else:
            rows_B1 = torch.arange(key.shape[0], device=key.device).unsqueeze(-1)
            index_BN = self.positions.unsqueeze(-1) + torch.arange(key.shape[-2], device=key.device)
            self.clear(self.filled, filled)
            self.key[rows_B1, :, index_BN] = key.transpose(1, 2).to(self.key.dtype)
            self.value[rows_B1, :, index_BN] = value.transpose(1, 2).to(self.value.dtype)
        positions = self.positions + (key.shape[-2] if lengths is None else lengths)
        return Cache(self.key, self.value, positions, filled, self.uniform and lengths is None)

    def clear(self, first: int, last: int) -> None:
        """Write zeros where rows that are shorter than others have no tokens: new storage may hold NaN."""
        self.key[:, :, first:last] = 0.0
        self.value[:, :, first:last] = 0.0

    def step_mask(self, count: int, lengths: Tensor | None, extra: Mask | None) -> Mask | None:
        """The mask by which `count` new tokens attend to the tokens before them and to themselves, within `extra`.

        Where rows have fewer new tokens than `count`, `lengths` says how many.
        """
        if self.uniform and lengths is None:  # the last token is at the last key, as causal masks assume
            if count == 1:
                return extra
            return Causal() if extra is None else Causal() & extra
        mask = Causal() & Placed(self.positions)
        if lengths is not None:  # the padding of a shorter row is no key
            mask = mask & Padding(self.positions + lengths)
        return mask if extra is None else mask & extra

    def view(self, filled: int) -> tuple[Tensor, Tensor]:
        """The keys and values of the first `filled` positions."""
        return self.key[:, :, :filled], self.value[:, :, :filled]

    def pick(self, rows: Rows) -> "Cache":
        """The cache of these rows, in storage of its own; a row may be picked more than once."""
        index = row_indices(rows, self.key)
        count = room = len(index)
        if isinstance(rows, RowGroups) and rows.reuse_storage:
            if count <= min(map(_rows_in_storage, (self.key, self.value))):
                return self._with_rows(count)._moved(index)
            room += count // 2  # for rows that come later
        shape = (room, self.key.shape[1], self.capacity)
        key, value = (tensor.new_empty(*shape, tensor.shape[-1])[:count] for tensor in (self.key, self.value))
        key[:, :, :self.filled] = self.key[index, :, :self.filled]
        value[:, :, :self.filled] = self.value[index, :, :self.filled]
        return Cache(key, value, self.positions[index], self.filled, self.uniform)

    def _with_rows(self, count: int) -> "Cache":
        """The cache with at least `count` rows, for which there is storage; new ones have zeros."""
        more = count - len(self.key)
        if more <= 0:
            return self
        key, value = (tensor.as_strided((count, *tensor.shape[1:]), tensor.stride())
                      for tensor in (self.key, self.value))
        for tensor in (key, value):
            tensor[-more:, :, :self.filled] = 0.0  # new storage may hold NaN
        return replace(self, key=key, value=value)

    def _moved(self, index: Tensor) -> "Cache":
        """The cache of these rows in the same storage: new memory costs more than overwriting the old."""
        count = len(index)
        moved = torch.arange(count, device=index.device)
        parts = [(moved, self.filled)]
        if index.device.type == "cpu":  # where asking costs nothing, skip the rows that stay, and the end of short ones
            moved = (index != moved).nonzero().squeeze(-1)
            parts = [(moved, self.filled)]
            if not self.uniform:
                is_long = self.positions[index[moved]] > self.filled // 2
                parts = [(moved[is_long], self.filled), (moved[~is_long], self.filled // 2)]
        for tensor in (self.key, self.value):
            taken = [tensor[:, :, :filled].index_select(0, index[rows]) for rows, filled in parts]
            for (rows, filled), new in zip(parts, taken, strict=True):  # all is read before anything is written
                tensor[:, :, :filled].index_copy_(0, rows, new)
        return Cache(self.key[:count], self.value[:count], self.positions[index], self.filled, self.uniform)

    def put(self, rows: Rows, other: "Cache") -> "Cache":
        """Replace these rows by the rows of another cache, which may have another capacity."""
        filled = other.filled if other.filled <= self.capacity else other._longest()
        if filled > self.capacity:
            raise checks.wrong("other", f"of at most {self.capacity} tokens, the capacity", f"of {filled}")
        index = row_indices(rows, self.key)
        key, value = other.view(filled)
        self.clear(self.filled, filled)
        self.key[index, :, :filled] = key
        self.value[index, :, :filled] = value
        positions = self.positions.index_copy(0, index, other.positions)
        uniform = self.uniform and other.uniform and self.filled == other.filled
        after = Cache(self.key, self.value, positions, max(self.filled, filled), uniform)
        # The longest row may have been replaced. Asking once saves later steps from reading keys that no row has.
        return after if uniform else replace(after, filled=after._longest())

    def copy(self) -> "Cache":
        """The same, in storage of its own."""
        return Cache(self.key.clone(), self.value.clone(), self.positions.clone(), self.filled, self.uniform)


def _rows_in_storage(tensor: Tensor) -> int:
    """The number of rows for which a tensor has storage, of which it may be the first ones."""
    if tensor.storage_offset() != 0 or not tensor.numel():
        return len(tensor)
    return tensor.untyped_storage().nbytes() // (tensor.stride(0) * tensor.element_size())


class StaticMask(CachedMask):
    """A bool matrix in which every query may attend to something, as the caller promises: nothing is checked."""

    def __init__(self, allowed: Tensor) -> None:
        BoolMask.__init__(self, allowed)
        self.opened, self.blind = allowed, None


@dataclass(frozen=True)
class StaticCache(Cache):
    """A cache of fixed size, (B, H, C, D), for CUDA graphs; the next token of row b goes to positions[b].

    `Cache` knows in Python how many tokens there are, and reads no more keys than that. A CUDA graph repeats the same
    work on the same memory. So here a token is written where a tensor says, and every step reads all C positions, under
    a mask that is a tensor. The caller advances the positions and the mask. It serves one token a step, with causal
    attention to all tokens before.
    """

    mask: StaticMask | None = field(default=None)
    """(B, 1, 1, C): the positions to which the next token may attend, its own included."""

    def extend(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> "StaticCache":
        """Write the key and the value (B, H, 1, D) of one new token for each row."""
        assert (key.shape[-2], lengths) == (1, None), "one token of each row"
        for storage, new in ((self.key, key), (self.value, value)):
            index = self.positions.view(-1, 1, 1, 1).expand(-1, *new.shape[1:])
            storage.scatter_(2, index, new.to(storage.dtype))
        return self

    def step_mask(self, count: int, lengths: Tensor | None, extra: Mask | None) -> Mask | None:
        """The mask that the caller set."""
        assert (count, lengths, extra) == (1, None, None), "one token of each row, which attends to all before it"
        return self.mask


@dataclass(frozen=True)
class ContextCache:
    """The keys and values of contexts, (B, H, N, D), of which each has `lengths` tokens (None: all N).

    Keys and values after the lengths are projections of zeros. Rows that attend to the same context, such as the
    hypotheses of one source, share one copy of it.
    """

    key: Tensor
    value: Tensor
    lengths: Tensor | None
    mask: CachedMask | None
    """Which tokens of the context exist; None where all do."""
    rows_per_context: int = 1
    """The number of consecutive rows that share a context."""

    @staticmethod
    def of(key: Tensor, value: Tensor, lengths: Tensor | None,
           rows_per_context: int = 1) -> "ContextCache":
        """The cache of keys and values; its mask is made here, once for all steps."""
        if lengths is None or _all_full(lengths, key.shape[-2]):
            return ContextCache(key, value, lengths, None, rows_per_context)
        allowed = Padding(lengths).matrix(1, key.shape[-2], leading=2, device=key.device)
        return ContextCache(key, value, lengths, CachedMask(allowed), rows_per_context)

    def pick(self, rows: Rows) -> "ContextCache":
        """The cache of these rows; a row may be picked more than once. Groups of rows keep sharing a context."""
        each = self.rows_per_context
        if isinstance(rows, RowGroups) and rows.previous_size % each == 0:
            if rows.groups is None and rows.previous_size == each:
                return replace(self, rows_per_context=rows.size)
            groups = range(len(self.key) * each // rows.previous_size) if rows.groups is None else rows.groups
            contexts = torch.as_tensor(groups, device=self.key.device) * (rows.previous_size // each)
            return replace(self._picked(row_indices(contexts, self.key)), rows_per_context=rows.size)
        return self._picked(row_indices(rows, self.key.new_empty(len(self.key) * each, 0)) // each)

    def move(self, contexts: Tensor, rows_per_context: int) -> "ContextCache":
        """These contexts (F,), written over the first F: those that stay where they are need not be copied.

        Keys and values must be tensors of their own, which nothing else reads: layers without projections remember the
        context itself.

        Args:
            contexts: not more than there are.
            rows_per_context: that of the result.
        """
        count = len(contexts)
        moved = (contexts != torch.arange(count, device=contexts.device)).nonzero().squeeze(-1)
        for tensor in (self.key, self.value) if len(moved) else ():
            tensor.index_copy_(0, moved, tensor.index_select(0, contexts[moved]))
        return ContextCache(self.key[:count], self.value[:count],
                            None if self.lengths is None else self.lengths[contexts],
                            None if self.mask is None else self.mask.pick(contexts), rows_per_context)

    def put(self, rows: Rows, other: "ContextCache") -> "ContextCache":
        """Replace these rows by the rows of another cache. The shorter of the two contexts is padded with zeros."""
        if (isinstance(rows, RowGroups) and rows.groups is not None
                and rows.size == self.rows_per_context == other.rows_per_context):
            mine, theirs, index = self, other, row_indices(rows.groups, self.key)
        else:
            mine, theirs = self.one_per_row(), other.one_per_row()
            index = row_indices(rows, mine.key)
        longest = max(mine.key.shape[-2], theirs.key.shape[-2])
        key, value = (_pad_tokens(old, longest).index_copy(0, index, _pad_tokens(new, longest).to(old.dtype))
                      for old, new in ((mine.key, theirs.key), (mine.value, theirs.value)))
        lengths = mine._lengths().index_copy(0, index, theirs._lengths().to(mine._lengths().dtype))
        return ContextCache.of(key, value, lengths, mine.rows_per_context)

    def padded(self, multiple: int) -> "ContextCache":
        """The same, with the number of tokens rounded up to a multiple, by zeros."""
        more = -self.key.shape[-2] % multiple
        if not more:
            return self
        longest = self.key.shape[-2] + more
        return ContextCache.of(_pad_tokens(self.key, longest), _pad_tokens(self.value, longest), self._lengths(),
                               self.rows_per_context)

    def copy(self) -> "ContextCache":
        """The same, in storage of its own."""
        lengths = None if self.lengths is None else self.lengths.clone()
        return ContextCache(self.key.clone(), self.value.clone(), lengths, self.mask, self.rows_per_context)

    def one_per_row(self) -> "ContextCache":
        """The same with a context for each row."""
        if self.rows_per_context == 1:
            return self
        rows = torch.arange(len(self.key), device=self.key.device).repeat_interleave(self.rows_per_context)
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
    """Queries (B, H, N, D), with each `each` consecutive rows folded into one: (B / each, H, each · N, D)."""
    return query.unflatten(0, (-1, each)).transpose(1, 2).flatten(2, 3)


def unfold_rows(output: Tensor, each: int) -> Tensor:
    """The inverse of `fold_rows`: (B / each, H, each · N, D) -> (B, H, N, D)."""
    return output.unflatten(2, (each, -1)).transpose(1, 2).flatten(0, 1)


def _all_full(lengths: Tensor, count: int) -> bool:
    """Whether every context is known to have `count` tokens; False where looking would wait for a device."""
    if not is_readable(lengths) or lengths.numel() == 0 or count == 0:
        return False
    return int(lengths.min()) >= count


def _pad_tokens(tensor: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, 0, 0, count - tensor.shape[-2]))
