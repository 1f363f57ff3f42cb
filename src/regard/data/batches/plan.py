"""Which pairs make up which batch: a plan in which every pair stands exactly once an epoch.

    plan = plan_batches(store, Limits(tokens=4096, rows=512), seed=1)
    plan.count                       batches of an epoch, the same in all
    plan.batch(epoch, index)         the numbers of the pairs in one of them
    plan.shapes                      for each bucket, rows and lengths that none of its batches exceeds
    plan.largest()                   the numbers of the batches that need most memory

Pairs of like lengths share a bucket (`regard.data.batches.buckets`). An index, a file of pair numbers sorted by bucket,
is made once for a store and its limits, in memory that does not grow with the store, and is then mapped. In each epoch
the pairs are shuffled inside their buckets, the buckets are cut into batches of nearly equal sizes, and the batches of
all buckets are shuffled. All of that follows from (seed, epoch, index): any batch is reached without those before it,
in time that depends on its own size alone.

Where batches should have few shapes, the buckets that are alike become one until there are few enough: always the two
whose union adds least padding to an epoch. A batch of them keeps the limits too, with fewer rows.

It knows lengths and numbers. It does not know ids, processes or tensors.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from regard import checks
from regard.data.batches import buckets as cutting
from regard.data.batches.buckets import Limits, Numbers
from regard.data.batches.order import Order, key
from regard.data.store import Mapped, Store

FORMAT = 3
BLOCK = 2**18
"""Pairs that are looked at in one go."""
BITS = 31
"""Of a length: two of them fit into one number."""


class Shape(NamedTuple):
    """How large a batch is: its rows, and how many tokens they have on each side, padding counted."""

    rows: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of all rows and sides together."""
        return self.rows * sum(self.lengths)


class Plan(Protocol):
    """Which numbers make up which batch of which epoch."""

    @property
    def count(self) -> int:
        """How many batches every epoch has."""

    def batch(self, epoch: int, index: int) -> Numbers:
        """The numbers of the index-th batch of an epoch."""


@dataclass(frozen=True)
class BucketPlan:
    """The plan of a store; `plan_batches` makes it."""

    seed: int
    index: Mapped
    """The numbers of all pairs, those of a bucket together."""
    sizes: Numbers
    """The pairs of each bucket."""
    batches: Numbers
    """The batches of each bucket."""
    longest: Numbers
    """(buckets, sides): the longest lengths in each bucket, with what each side gets more in a batch."""
    extremes: Numbers
    """(buckets, sides): a pair in each bucket that is the longest on a side."""
    notes: tuple[str, ...]
    """What a person should know: pairs that are longer than the budget."""

    @property
    def count(self) -> int:
        """How many batches every epoch has."""
        return int(self.batches.sum())

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """For each bucket the smallest shape that all of its batches fit into, in every epoch."""
        rows = -(-self.sizes // self.batches)
        return tuple(Shape(*shape) for shape in zip(rows.tolist(), map(tuple, self.longest.tolist()), strict=True))

    def largest(self) -> list[Numbers]:
        """Batches that need as much memory as any: that of most tokens, and that of most pairs of tokens in a row."""
        found = []
        for power in (1, 2):
            needed = [shape.rows * sum(length**power for length in shape.lengths) for shape in self.shapes]
            bucket = int(np.argmax(needed))
            first, rows = int(self.sizes[:bucket].sum()), self.shapes[bucket].rows
            numbers = np.concatenate([self.extremes[bucket], self.index.numbers[first:first + rows]]).astype(np.int64)
            found.append(numbers[np.sort(np.unique(numbers, return_index=True)[1])][:rows])
        self.index.release()
        return found

    def batch(self, epoch: int, index: int) -> Numbers:
        """The numbers of the pairs of the index-th batch of an epoch."""
        if not 0 <= index < self.count:
            raise checks.wrong("index", f"from 0 to {self.count - 1}", index)
        place = int(Order(self.count, key(self.seed, epoch, 0))(index))
        bucket = int(np.searchsorted(np.cumsum(self.batches), place, side="right"))
        turn = place - int(self.batches[:bucket].sum())
        size, parts = int(self.sizes[bucket]), int(self.batches[bucket])
        slots = np.arange(turn * size // parts, (turn + 1) * size // parts)
        inside = Order(size, key(self.seed, epoch, 1, bucket))(slots)
        numbers = self.index.numbers[int(self.sizes[:bucket].sum()) + inside].astype(np.int64)
        self.index.release()
        return numbers


def plan_batches(store: Store, limits: Limits, *, seed: int, extra: tuple[int, ...] = (0, 1),
                 most: int | None = None, folder: Path | None = None) -> BucketPlan:
    """The plan of a store.

    Args:
        limits: of a batch, padding counted. A pair that is longer than the budget is a batch by itself, and noted.
        extra: how many ids each side gets more in a batch than it has in the store: the target its start or end.
        most: buckets, and with them shapes of batches; as many as leave little padding where not given.
        folder: where the index is kept; the store's own where not given.
    """
    if len(extra) != len(store.sides):
        raise checks.wrong("extra", f"of {len(store.sides)} numbers, one a side", extra)
    if most is not None and most < 1:
        raise checks.wrong("most", "at least 1", most)
    asked = [FORMAT, store.identity, limits.tokens, limits.rows, most, *extra,
             cutting.BATCH, cutting.MIXED, cutting.FEWER, cutting.ENOUGH]
    name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    path = (folder or store.folder) / f"buckets-{name}.index"
    dtype = "<i4" if len(store) < 2**31 else "<i8"
    known = _read(path, len(store) * np.dtype(dtype).itemsize)
    if known is None:
        known = _make(path, dtype, store, limits, extra, most)
    over, longest = known["over"], known["longest"]
    note = (f"{over} of {len(store)} are longer than the budget of {limits.tokens} tokens (the longest has {longest}): "
            f"each is a batch by itself.")
    sizes, batches = (np.array(known[part], np.int64) for part in ("sizes", "batches"))
    lengths, extremes = (np.array(known[part], np.int64).reshape(-1, len(extra)) for part in ("lengths", "extremes"))
    return BucketPlan(seed, Mapped(path, dtype, len(store)), sizes, batches, lengths, extremes, (note,) if over else ())


def _read(path: Path, length: int) -> dict[str, Any] | None:
    """What is known of the index at this path; None where it is not there, or not as it was written."""
    try:
        known = json.loads(path.with_suffix(".json").read_bytes())
        if path.stat().st_size == length and known["sha256"] == _digest(path):
            return known
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return None


def _make(path: Path, dtype: str, store: Store, limits: Limits, extra: tuple[int, ...],
          most: int | None) -> dict[str, Any]:
    """Write the index. Several processes may do so at the same time: all write the same, and each renames its own."""
    lengths_US, counts = _table(store, extra)
    bucket = cutting.buckets(lengths_US, counts, limits)
    sizes, longest = _measured(bucket, lengths_US, counts)
    if most is not None and len(sizes) > most:
        bucket = _united(sizes, longest, limits, most)[bucket]
        sizes, longest = _measured(bucket, lengths_US, counts)
    over = lengths_US.sum(axis=1) > limits.tokens
    aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    with aside.open("wb+") as file:
        file.truncate(len(store) * np.dtype(dtype).itemsize)
        extremes = _fill(file, dtype, store, extra, _packed(lengths_US), bucket, sizes, longest)
        file.flush()
        os.fsync(file.fileno())
    known = {"sizes": sizes.tolist(), "batches": limits.batches(sizes, longest).tolist(),
             "lengths": longest.tolist(), "extremes": extremes.tolist(),
             "over": int(counts[over].sum()), "longest": int(lengths_US.sum(axis=1).max(initial=0)),
             "sha256": _digest(aside)}
    os.replace(aside, path)
    about = path.with_suffix(".json")
    aside = about.with_name(f"{about.name}.{os.urandom(8).hex()}")
    with aside.open("w", encoding="utf-8") as text:
        json.dump(known, text)
        text.flush()
        os.fsync(text.fileno())
    os.replace(aside, about)
    return known


def _measured(bucket: Numbers, lengths_US: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """How many pairs each bucket has, and (buckets, sides) the longest lengths in it."""
    sizes = np.bincount(bucket, counts).astype(np.int64)
    longest = np.zeros((len(sizes), lengths_US.shape[1]), np.int64)
    np.maximum.at(longest, bucket, lengths_US)
    return sizes, longest


def _united(sizes: Numbers, longest: Numbers, limits: Limits, most: int) -> Numbers:
    """The new bucket of each bucket, when the two that are most alike become one until there are `most` of them."""
    sizes, longest, place = sizes.copy(), longest.copy(), np.arange(len(sizes))

    def tokens(sizes: Numbers, longest: Numbers) -> Numbers:
        """Of an epoch, where all batches of a bucket have its one shape."""
        batches = limits.batches(sizes, longest)
        return batches * -(-sizes // batches) * longest.sum(-1)

    def added(one: int) -> Numbers:
        """What a union with each of the others adds."""
        more = tokens(sizes[one] + sizes, np.maximum(longest[one], longest)) - tokens(sizes, longest)
        return np.where(there & (np.arange(len(sizes)) != one), more - tokens(sizes[one], longest[one]), never)

    never, there = np.iinfo(np.int64).max, np.full(len(sizes), True)
    costs = np.stack([added(one) for one in range(len(sizes))])
    for _ in range(len(sizes) - most):
        one, other = divmod(int(costs.argmin()), len(sizes))
        sizes[one] += sizes[other]
        longest[one] = np.maximum(longest[one], longest[other])
        place[place == other], there[other] = one, False
        costs[one] = costs[:, one] = added(one)
        costs[other] = costs[:, other] = never
    return np.unique(place, return_inverse=True)[1]


def _fill(file: BinaryIO, dtype: str, store: Store, extra: tuple[int, ...], table: Numbers, bucket: Numbers,
          sizes: Numbers, longest: Numbers) -> Numbers:
    """Write every number behind those of its bucket, in ascending order: a counting sort. -> `BucketPlan.extremes`"""
    free, extremes = np.cumsum(sizes) - sizes, np.zeros_like(longest)
    for first, lengths_NS in _blocks(store, extra):
        mine = bucket[np.searchsorted(table, _packed(lengths_NS))]
        order = np.argsort(mine, kind="stable")
        many = np.bincount(mine, minlength=len(sizes))
        behind = np.arange(len(mine)) - np.repeat(np.cumsum(many) - many, many)
        index = np.memmap(file, dtype, "r+")  # anew for each block: what was written leaves the memory
        index[free[mine[order]] + behind] = first + order
        free += many
        for side, lengths in enumerate(lengths_NS.T):
            (place,) = np.nonzero(lengths == longest[mine, side])
            extremes[mine[place], side] = first + place
    return extremes


def _table(store: Store, extra: tuple[int, ...]) -> tuple[Numbers, Numbers]:
    """The different lengths of the store's pairs, ascending, and how many pairs have each."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for _, lengths_NS in _blocks(store, extra):
        new, many = np.unique(_packed(lengths_NS), return_counts=True)
        keys, place = np.unique(np.concatenate([keys, new]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, many]), minlength=len(keys)).astype(np.int64)
    sides = [keys >> (BITS * back) & (2**BITS - 1) for back in reversed(range(len(extra)))]
    return np.stack(sides, axis=1), counts


def _blocks(store: Store, extra: tuple[int, ...]) -> Iterator[tuple[int, Numbers]]:
    """The lengths (N, sides) of a block of pairs after another, each with the number of its first pair."""
    for first in range(0, len(store), BLOCK):
        last = min(first + BLOCK, len(store))
        yield first, np.stack([side.lengths(first, last) + more for side, more in zip(store.sides, extra, strict=True)],
                              axis=1)
        store.release()


def _packed(lengths_NS: Numbers) -> Numbers:
    """The lengths of all sides in one number, which sorts as they do."""
    keys = np.zeros(len(lengths_NS), np.int64)
    for lengths in lengths_NS.T:
        keys = keys << BITS | lengths
    return keys


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
