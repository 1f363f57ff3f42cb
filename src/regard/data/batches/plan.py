"""Which examples make up which batch: length buckets, packing, and stateless shuffling.

    plan = plan_batches(store, BatchLimits(tokens=4096, rows=512), seed=1)     examples of similar lengths together
    plan = plan_packed(store, limits, seed=1)                                  packed rows: any examples, one shape
    plan.count                       batches of an epoch, the same in all
    plan.batch(epoch, index)         the numbers of the examples in one of them
    plan.shapes                      for each bucket, rows and lengths that none of its batches exceeds
    plan.largest()                   the numbers of the batches that need most memory

Every example occurs exactly once an epoch. A bucket is a rectangle of lengths, one interval for each side of a pair.
All pairs start in one bucket; a bucket is split in two, at the length of either side that saves most, as long as the
split saves more than it costs:

    cost = tokens with padding + budget / BATCH × batches

so there are many narrow buckets where there are many pairs, and few wide ones where there are few. A part must have
some batches, or the same pairs would meet in every epoch; but a few pairs that are far longer than the others are split
off all the same, or they would make the others' batches small. Costs are integers: every machine makes the same splits.
Where batches should have few shapes, similar buckets are merged: always the two whose union adds least padding.

An index, a file of pair numbers sorted by bucket, is made once for a store and its limits, in memory that does not grow
with the store, and is then memory-mapped. In each epoch the pairs are shuffled inside their buckets, the buckets are
split into batches of nearly equal sizes, and the batches of all buckets are shuffled. All of that follows from (seed,
epoch, index): any batch is reached without those before it, in time that depends on its own size alone.

Packed rows need no similar lengths, so a batch holds as many pairs as any other, drawn from all of them. The mean
number of tokens of a batch plus four standard deviations is enough for all but one batch in about ten thousand.

A permutation is a Feistel network (Luby and Rackoff 1988) over a rectangle of rows × columns cells that is hardly
larger than `count`; a position that lands outside range(count) is sent through again (cycle walking, Black and Rogaway
2002). Random numbers come from the finaliser of SplitMix64 (Steele et al. 2014), in unsigned 64-bit arithmetic, which
wraps around; they are the same on every machine, and not for cryptography.

This module knows lengths and numbers. It does not know ids, processes or tensors.

Legend: U distinct lengths of a pair, S sides, N pairs of a block.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard import checks
from regard.data.store import MappedArray, TokenStore

INDEX_FORMAT = 3
BLOCK_PAIRS = 2**18
"""Pairs that are looked at in one go."""
LENGTH_BITS = 31
"""Of a length: two of them fit into one number."""


class BatchShape(NamedTuple):
    """How large a batch is: its rows, and how many tokens they have on each side, padding counted."""

    rows: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of all rows and sides together."""
        return self.rows * sum(self.lengths)


# ---- buckets: Which lengths go into one batch: buckets of pairs of like lengths, so that little is filled up.
#
# A bucket is a rectangle of lengths, one side for each side of a pair. All pairs start in one bucket; a bucket is cut in
# two, at the length of either side that saves most, as long as that saves more than it costs:
#
#     cost = tokens with padding + budget / BATCH × batches
#
# so there are many narrow buckets where there are many pairs, and few wide ones where there are few. A part must have
# some batches, or the same pairs would meet in every epoch; but a few pairs that are far longer than the others are cut
# off all the same, or they would make the others' batches small. Costs are whole numbers: every machine makes the same
# cuts.
#
# It sees a table of lengths with counts. It does not know the pairs, nor in which order they come.
#
# Legend: U different lengths of a pair, S sides.

ExampleNumbers = NDArray[np.int64]


class BatchPlan(Protocol):
    """Which numbers make up which batch of which epoch."""

    @property
    def count(self) -> int:
        """How many batches every epoch has."""

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        """The numbers of the index-th batch of an epoch."""


@dataclass(frozen=True)
class BucketPlan:
    """The plan of a store; `plan_batches` makes it."""

    seed: int
    index: MappedArray
    """The numbers of all pairs, those of a bucket together."""
    sizes: ExampleNumbers
    """The pairs of each bucket."""
    batches: ExampleNumbers
    """The batches of each bucket."""
    longest: ExampleNumbers
    """(buckets, sides): the longest lengths in each bucket, with what each side gets more in a batch."""
    extremes: ExampleNumbers
    """(buckets, sides): a pair in each bucket that is the longest on a side."""
    notes: tuple[str, ...]
    """What a person should know: pairs that are longer than the budget."""

    @property
    def count(self) -> int:
        """How many batches every epoch has."""
        return int(self.batches.sum())

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """For each bucket the smallest shape that all of its batches fit into, in every epoch."""
        rows = -(-self.sizes // self.batches)
        return tuple(BatchShape(*shape) for shape in zip(rows.tolist(), map(tuple, self.longest.tolist()), strict=True))

    def largest(self) -> list[ExampleNumbers]:
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

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        """The numbers of the pairs of the index-th batch of an epoch."""
        if not 0 <= index < self.count:
            raise checks.wrong("index", f"from 0 to {self.count - 1}", index)
        place = int(Permutation(self.count, derive_key(self.seed, epoch, 0))(index))
        bucket = int(np.searchsorted(np.cumsum(self.batches), place, side="right"))
        turn = place - int(self.batches[:bucket].sum())
        size, parts = int(self.sizes[bucket]), int(self.batches[bucket])
        slots = np.arange(turn * size // parts, (turn + 1) * size // parts)
        inside = Permutation(size, derive_key(self.seed, epoch, 1, bucket))(slots)
        numbers = self.index.numbers[int(self.sizes[:bucket].sum()) + inside].astype(np.int64)
        self.index.release()
        return numbers


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch may be: tokens of all sides together, with padding, and rows."""

    tokens: int
    rows: int

    def size(self, longest: ExampleNumbers) -> ExampleNumbers:
        """Rows of a batch for longest lengths (..., S); at least 1, even where one row is more than the budget."""
        return np.clip(self.tokens // np.maximum(1, longest.sum(-1)), 1, self.rows)

    def batches(self, counts: ExampleNumbers, longest: ExampleNumbers) -> ExampleNumbers:
        """How many batches so many pairs make, with these longest lengths."""
        return -(-counts // self.size(longest))


def plan_batches(store: TokenStore, limits: BatchLimits, *, seed: int, extra: tuple[int, ...] = (0, 1),
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
    asked = [INDEX_FORMAT, store.fingerprint, limits.tokens, limits.rows, most, *extra,
             BATCH_COST, MIN_BATCHES, MIN_SAVING, MAX_PADDING]
    name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    path = (folder or store.folder) / f"buckets-{name}.index"
    dtype = "<i4" if len(store) < 2**31 else "<i8"
    known = _read_index(path, len(store) * np.dtype(dtype).itemsize)
    if known is None:
        known = _make_index(path, dtype, store, limits, extra, most)
    over, longest = known["over"], known["longest"]
    note = (f"{over} of {len(store)} are longer than the budget of {limits.tokens} tokens (the longest has {longest}): "
            f"each is a batch by itself.")
    sizes, batches = (np.array(known[part], np.int64) for part in ("sizes", "batches"))
    lengths, extremes = (np.array(known[part], np.int64).reshape(-1, len(extra)) for part in ("lengths", "extremes"))
    return BucketPlan(seed, MappedArray(path, dtype, len(store)), sizes, batches, lengths, extremes, (note,) if over else ())


def _read_index(path: Path, length: int) -> dict[str, Any] | None:
    """What is known of the index at this path; None where it is not there, or not as it was written."""
    try:
        known = json.loads(path.with_suffix(".json").read_bytes())
        if path.stat().st_size == length and known["sha256"] == _file_sha256(path):
            return known
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return None


def _make_index(path: Path, dtype: str, store: TokenStore, limits: BatchLimits, extra: tuple[int, ...],
          most: int | None) -> dict[str, Any]:
    """Write the index. Several processes may do so at the same time: all write the same, and each renames its own."""
    lengths_US, counts = _length_table(store, extra)
    bucket = split_into_buckets(lengths_US, counts, limits)
    sizes, longest = _measure_buckets(bucket, lengths_US, counts)
    if most is not None and len(sizes) > most:
        bucket = _merge_buckets(sizes, longest, limits, most)[bucket]
        sizes, longest = _measure_buckets(bucket, lengths_US, counts)
    over = lengths_US.sum(axis=1) > limits.tokens
    aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    with aside.open("wb+") as file:
        file.truncate(len(store) * np.dtype(dtype).itemsize)
        extremes = _fill_index(file, dtype, store, extra, _pack_lengths(lengths_US), bucket, sizes, longest)
        file.flush()
        os.fsync(file.fileno())
    known = {"sizes": sizes.tolist(), "batches": limits.batches(sizes, longest).tolist(),
             "lengths": longest.tolist(), "extremes": extremes.tolist(),
             "over": int(counts[over].sum()), "longest": int(lengths_US.sum(axis=1).max(initial=0)),
             "sha256": _file_sha256(aside)}
    os.replace(aside, path)
    about = path.with_suffix(".json")
    aside = about.with_name(f"{about.name}.{os.urandom(8).hex()}")
    with aside.open("w", encoding="utf-8") as text:
        json.dump(known, text)
        text.flush()
        os.fsync(text.fileno())
    os.replace(aside, about)
    return known


def _measure_buckets(bucket: ExampleNumbers, lengths_US: ExampleNumbers, counts: ExampleNumbers) -> tuple[ExampleNumbers, ExampleNumbers]:
    """How many pairs each bucket has, and (buckets, sides) the longest lengths in it."""
    sizes = np.bincount(bucket, counts).astype(np.int64)
    longest = np.zeros((len(sizes), lengths_US.shape[1]), np.int64)
    np.maximum.at(longest, bucket, lengths_US)
    return sizes, longest


def _merge_buckets(sizes: ExampleNumbers, longest: ExampleNumbers, limits: BatchLimits, most: int) -> ExampleNumbers:
    """The new bucket of each bucket, when the two that are most alike become one until there are `most` of them."""
    sizes, longest, place = sizes.copy(), longest.copy(), np.arange(len(sizes))

    def tokens(sizes: ExampleNumbers, longest: ExampleNumbers) -> ExampleNumbers:
        """Of an epoch, where all batches of a bucket have its one shape."""
        batches = limits.batches(sizes, longest)
        return batches * -(-sizes // batches) * longest.sum(-1)

    def added(one: int) -> ExampleNumbers:
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


def _fill_index(file: BinaryIO, dtype: str, store: TokenStore, extra: tuple[int, ...], table: ExampleNumbers, bucket: ExampleNumbers,
          sizes: ExampleNumbers, longest: ExampleNumbers) -> ExampleNumbers:
    """Write every number behind those of its bucket, in ascending order: a counting sort. -> `BucketPlan.extremes`"""
    free, extremes = np.cumsum(sizes) - sizes, np.zeros_like(longest)
    for first, lengths_NS in _length_blocks(store, extra):
        mine = bucket[np.searchsorted(table, _pack_lengths(lengths_NS))]
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


def _length_table(store: TokenStore, extra: tuple[int, ...]) -> tuple[ExampleNumbers, ExampleNumbers]:
    """The different lengths of the store's pairs, ascending, and how many pairs have each."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for _, lengths_NS in _length_blocks(store, extra):
        new, many = np.unique(_pack_lengths(lengths_NS), return_counts=True)
        keys, place = np.unique(np.concatenate([keys, new]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, many]), minlength=len(keys)).astype(np.int64)
    sides = [keys >> (LENGTH_BITS * back) & (2**LENGTH_BITS - 1) for back in reversed(range(len(extra)))]
    return np.stack(sides, axis=1), counts


def _length_blocks(store: TokenStore, extra: tuple[int, ...]) -> Iterator[tuple[int, ExampleNumbers]]:
    """The lengths (N, sides) of a block of pairs after another, each with the number of its first pair."""
    for first in range(0, len(store), BLOCK_PAIRS):
        last = min(first + BLOCK_PAIRS, len(store))
        yield first, np.stack([side.lengths(first, last) + more for side, more in zip(store.sides, extra, strict=True)],
                              axis=1)
        store.release()


def _pack_lengths(lengths_NS: ExampleNumbers) -> ExampleNumbers:
    """The lengths of all sides in one number, which sorts as they do."""
    keys = np.zeros(len(lengths_NS), np.int64)
    for lengths in lengths_NS.T:
        keys = keys << LENGTH_BITS | lengths
    return keys


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


BATCH_COST = 4
"""One more batch is as bad as this part of the budget, 1 / BATCH, in padding."""
MIN_BATCHES = 3
"""Batches that a part must have..."""
MIN_SAVING = 8
"""...unless the cut makes the batches fewer by this part of them, 1 / FEWER."""
MAX_PADDING = 32
"""A bucket is narrow enough when at most this part of its tokens, 1 / ENOUGH, is padding."""


def split_into_buckets(lengths_US: ExampleNumbers, counts: ExampleNumbers, limits: BatchLimits) -> ExampleNumbers:
    """The bucket, from 0, of each row of a table of different lengths, with how many pairs have each."""
    found = np.zeros(len(counts), np.int64)
    todo, last = [np.arange(len(counts))] if len(counts) else [], 0
    while todo:
        rows = todo.pop()
        for part in _split_bucket(rows, lengths_US, counts, limits):
            last += 1
            found[part] = last
            todo.append(part)
    return np.unique(found, return_inverse=True)[1]


def _split_bucket(rows: ExampleNumbers, lengths_US: ExampleNumbers, counts: ExampleNumbers, limits: BatchLimits) -> list[ExampleNumbers]:
    """The two parts of a bucket, or nothing where it is best left whole."""
    own, many = lengths_US[rows], counts[rows]
    total, longest = many.sum(), own.max(axis=0)
    if MAX_PADDING * (total * longest.sum() - (own.sum(axis=1) * many).sum()) <= total * longest.sum():
        return []
    best, parts = _bucket_cost(total, longest, limits), []
    for side in range(own.shape[1]):
        order = np.argsort(own[:, side], kind="stable")
        ascending = own[order]
        ends = np.flatnonzero(np.diff(ascending[:, side]))  # the last row of the lower part, for each place to cut
        if not ends.size:
            continue
        below = np.cumsum(many[order])[ends]
        lower = np.maximum.accumulate(ascending, axis=0)[ends]
        upper = np.maximum.accumulate(ascending[::-1], axis=0)[::-1][ends + 1]
        few, rest = limits.batches(below, lower), limits.batches(total - below, upper)
        now = limits.batches(total, longest)
        useful = (np.minimum(few, rest) >= MIN_BATCHES) | (MIN_SAVING * (few + rest) <= (MIN_SAVING - 1) * now)
        costs = _bucket_cost(below, lower, limits) + _bucket_cost(total - below, upper, limits)
        least = int(np.where(useful, costs, best).argmin())
        if useful[least] and costs[least] < best:
            best, parts = costs[least], [rows[order[:ends[least] + 1]], rows[order[ends[least] + 1:]]]
    return parts


def _bucket_cost(counts: ExampleNumbers, longest: ExampleNumbers, limits: BatchLimits) -> ExampleNumbers:
    return BATCH_COST * counts * longest.sum(-1) + limits.tokens * limits.batches(counts, longest)


# ---- packing: Batches of one shape for packed rows: which pairs make up which, and how large all of them are.
#
#     plan = plan_packed(store, limits, seed=1)
#     plan.shapes                    the one shape that nearly all batches of all epochs fit into
#
# Packed rows need no pairs of like lengths, so a batch is as many pairs as any other, drawn from all of them. How many
# tokens these have together varies little: the mean of a batch, and four times the spread of such means, is room enough
# but for one batch in some ten thousand. So a device that replays what it has recorded once for each shape records one
# step, and all but a few percent of what it computes is there.
#
# It knows lengths and numbers, as `regard.data.batches.plan`. It does not know ids or tensors.

ROOM_DEVIATIONS = 4
"""How far above the mean there is room, in standard deviations."""
PACKED_MULTIPLE = 64
"""Numbers of tokens are multiples of this."""


@dataclass(frozen=True)
class SideLengths:
    """What is known of the lengths of one side."""

    total: int
    squares: int
    longest: int
    place: int
    """The number of a longest one."""


@dataclass(frozen=True)
class PackedPlan:
    """The plan of a store; `plan_packed` makes it."""

    seed: int
    pairs: int
    count: int
    """How many batches every epoch has."""
    sides: tuple[SideLengths, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Pairs of a batch at most."""
        return -(-self.pairs // self.count)

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """Rows, with room for what fills up, and the tokens of each side of the whole batch."""
        lengths = tuple(_side_capacity(side, self.rows, self.pairs) for side in self.sides)
        return (BatchShape(rows_with_padding(self.rows), lengths),)

    def largest(self) -> list[ExampleNumbers]:
        """Batches that need as much memory as any: those with the longest of each side."""
        found = []
        for side in self.sides:
            numbers = np.array([side.place, *range(min(self.rows, self.pairs))], np.int64)
            found.append(numbers[np.sort(np.unique(numbers, return_index=True)[1])][:self.rows])
        return found

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        """The numbers of the pairs of the index-th batch of an epoch."""
        slots = np.arange(index * self.pairs // self.count, (index + 1) * self.pairs // self.count)
        return Permutation(self.pairs, derive_key(self.seed, epoch, 2))(slots).astype(np.int64)


def rows_with_padding(rows: int) -> int:
    """Places for so many sequences, and for those that fill up: what is to be filled is some spreads and a STEP."""
    return rows + rows // 8 + 4 * math.isqrt(rows) + PACKED_MULTIPLE


def plan_packed(store: TokenStore, limits: BatchLimits, *, seed: int, extra: tuple[int, ...] = (0, 1),
                longest: int | None = None) -> PackedPlan:
    """The plan of a store.

    Args:
        limits: of a batch, with what fills it up. A pair that is longer than the budget is a batch by itself.
        extra: how many ids each side gets more in a batch than it has in the store: the target its start or end.
        longest: of each sequence so many ids are read at most; all of them where not given.
    """
    sides = tuple(_measure_side(store, side, more, longest) for side, more in enumerate(extra))
    total = sum(side.total for side in sides)
    plan = PackedPlan(seed, len(store), max(1, -(-total // limits.tokens), -(-len(store) // limits.rows)), sides)
    if not len(store):
        return replace(plan, count=0)
    while plan.rows > 1 and sum(plan.shapes[0].lengths) > limits.tokens:
        plan = replace(plan, count=plan.count + max(1, plan.count // 64))
    return plan


def _side_capacity(side: SideLengths, rows: int, pairs: int) -> int:
    mean = side.total / pairs
    spread = math.sqrt(max(0.0, side.squares / pairs - mean**2) * rows)
    wanted = max(side.longest, min(rows * side.longest, math.ceil(rows * mean + ROOM_DEVIATIONS * spread)))
    return -(-wanted // PACKED_MULTIPLE) * PACKED_MULTIPLE


def _measure_side(store: TokenStore, side: int, more: int, most: int | None) -> SideLengths:
    total, squares, longest, place = 0, 0, 0, 0
    for first in range(0, len(store), BLOCK_PAIRS):
        lengths = store.sides[side].lengths(first, min(first + BLOCK_PAIRS, len(store))).astype(np.int64)
        lengths = (lengths if most is None else np.minimum(lengths, most)) + more
        total, squares = total + int(lengths.sum()), squares + int((lengths**2).sum())
        if int(lengths.max(initial=0)) > longest:
            longest, place = int(lengths.max()), first + int(lengths.argmax())
        store.release()
    return SideLengths(total, squares, longest, place)


# ---- order: Chance without state: numbers and orders that follow from a key alone, the same on every machine.
#
#     key(seed, epoch, 3)              one 64-bit key from several whole numbers
#     Order(count, key)(places)        a shuffled range(count), at any places, without making the others
#     uniform(key, numbers)            a number in [0, 1) for each
#     below(limit, key, numbers)       a whole number in [0, limit) for each
#
# An order is a Feistel network (Luby and Rackoff 1988) over a rectangle of rows × columns cells that is hardly larger
# than `count`: each round moves one coordinate by an amount that follows from the other, which can be undone, so that no
# two places meet. A place that lands outside range(count) is sent through again until it is inside (Black and Rogaway
# 2002, cycle walking); fewer than one in √count does. The amounts come from a 64-bit mixer (the finaliser of SplitMix64,
# Steele et al. 2014). All of it is arithmetic of unsigned 64-bit numbers, which wraps around.
#
# It knows no data. It is not for secrets.

UInt64Array = NDArray[np.uint64]

ROUNDS = 8
"""Pairs of moves, one of each coordinate."""
_GOLDEN_STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd
_MIX_FIRST, _MIX_SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MAX_UINT64 = 2**64 - 1


def derive_key(*parts: int) -> int:
    """A 64-bit key from whole numbers from 0; another number, or another order of them, is another key."""
    word = 0
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | np.integer) or not 0 <= part <= _MAX_UINT64:
            raise checks.wrong("parts", "whole numbers from 0 to 2**64 - 1", repr(part))
        word = _mix(_mix((word + _GOLDEN_STEP) & _MAX_UINT64) ^ int(part))
    return word


def random_bits(key: int, numbers: ArrayLike) -> UInt64Array:
    """64 random bits for each number, of the shape of `numbers`."""
    array = np.asarray(numbers).astype(np.uint64)
    return _mix_array(_mix_array(array.reshape(-1) + np.uint64(_GOLDEN_STEP)) ^ np.uint64(key)).reshape(array.shape)


def random_uniform(key: int, numbers: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) for each number."""
    return (random_bits(key, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def random_below(limit: int, key: int, numbers: ArrayLike) -> NDArray[np.int64]:
    """A whole number in [0, limit) for each number."""
    return (random_bits(key, numbers) % np.uint64(limit)).astype(np.int64)


@dataclass(frozen=True)
class Permutation:
    """The numbers from 0 to count - 1 in an order that follows from the key."""

    count: int
    key: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= 2**48:
            raise checks.wrong("count", "from 0 to 2**48", self.count)

    def __call__(self, places: ArrayLike) -> NDArray[np.int64]:
        """What stands at these places, each from 0 to count - 1."""
        array = np.asarray(places, dtype=np.int64)
        found = array.reshape(-1).astype(np.uint64)
        if found.size and int(found.max()) >= self.count:  # below 0 is far above, as an unsigned number
            raise checks.wrong("places", f"from 0 to {self.count - 1}", f"{array.min()} to {array.max()}")
        outside = np.arange(found.size)
        while outside.size:
            found[outside] = self._moved(found[outside])
            outside = outside[found[outside] >= np.uint64(self.count)]
        return found.astype(np.int64).reshape(array.shape)

    def _moved(self, cells: UInt64Array) -> UInt64Array:
        """Where a network sends each cell of the rectangle: a shuffling of all of them."""
        columns = isqrt(self.count - 1) + 1
        rows = -(-self.count // columns)
        row, column = cells // np.uint64(columns), cells % np.uint64(columns)
        for turn in range(ROUNDS):
            row = (row + random_bits(derive_key(self.key, turn, 0), column) % np.uint64(rows)) % np.uint64(rows)
            column = (column + random_bits(derive_key(self.key, turn, 1), row) % np.uint64(columns)) % np.uint64(columns)
        return row * np.uint64(columns) + column


def _mix(word: int) -> int:
    """The mixer, on a Python number."""
    word = ((word ^ (word >> 30)) * _MIX_FIRST) & _MAX_UINT64
    word = ((word ^ (word >> 27)) * _MIX_SECOND) & _MAX_UINT64
    return word ^ (word >> 31)


def _mix_array(array: UInt64Array) -> UInt64Array:
    """The mixer, on an array of at least one dimension: NumPy warns when a single number wraps around."""
    array = (array ^ (array >> np.uint64(30))) * np.uint64(_MIX_FIRST)
    array = (array ^ (array >> np.uint64(27))) * np.uint64(_MIX_SECOND)
    return array ^ (array >> np.uint64(31))
