"""Which examples make up which batch: length buckets, packing, and stateless shuffling.

    plan = plan_batches(store, BatchLimits(tokens=4096, rows=512), seed=1)     examples of similar lengths together
    plan = plan_packed(store, limits, seed=1)                                  packed rows: any examples, one shape
    plan.count                       batches of an epoch, the same in all
    plan.batch(epoch, index)         the numbers of the examples in one of them
    plan.shapes                      for each bucket, rows and lengths that none of its batches exceeds
    plan.largest()                   the numbers of the batches that need most memory

Every example occurs exactly once an epoch, unless `PartRates` say how often the examples of each part of the store are
drawn: an epoch then takes rate × examples of a part, and the next epoch continues where it ended in a random order of
all of them, so that in the long run all examples of a part are drawn equally often.

A bucket is a rectangle of lengths, one interval for each side of a pair. All pairs start in one bucket; a bucket is
split in two, at the length of either side that saves most, as long as the split saves more than it costs:

    cost = tokens with padding + budget / BATCH_COST × batches

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
from regard.data.store import IntArray, MappedArray, TokenStore

ExampleNumbers = IntArray
"""The numbers of examples in a store."""
UInt64Array = NDArray[np.uint64]
INDEX_FORMAT = 3
BLOCK_PAIRS = 2**18
"""Pairs whose lengths are read at once."""
LENGTH_BITS = 31
"""Bits of a length: two of them fit into one number."""
BATCH_COST = 4
"""One more batch costs as much as this part of the budget, 1 / BATCH_COST, in padding."""
MIN_BATCHES = 3
"""Batches that each part of a split must have..."""
MIN_SAVING = 8
"""...unless the split reduces the number of batches by this part, 1 / MIN_SAVING."""
MAX_PADDING = 32
"""A bucket with at most this part of padding, 1 / MAX_PADDING, is not split further."""
ROOM_DEVIATIONS = 4
"""The capacity above the mean, in standard deviations."""
PACKED_MULTIPLE = 64
"""The capacity is a multiple of this."""
WEIGHT_UNIT = 1024
"""Lengths are counted in these parts of an example, so that how often an example is drawn is a whole number."""
BATCH_ORDER, BUCKET_ORDER, PACKED_ORDER, DRAW_ORDER = range(4)
"""Which permutation of an epoch a key is for: of the batches, of the pairs of a bucket, of the pairs of packed batches,
and of the examples of a part with a rate."""
ROUNDS = 8
"""Rounds of the Feistel network, each with one move of both coordinates."""
_GOLDEN_STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd
_MIX_FIRST, _MIX_SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MAX_UINT64 = 2**64 - 1


class BatchShape(NamedTuple):
    """The shape of a batch: its rows, and their length on each side, padding included."""

    rows: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """The tokens of all rows and sides together."""
        return self.rows * sum(self.lengths)


class BatchPlan(Protocol):
    """Which examples make up which batch of which epoch."""

    @property
    def count(self) -> int:
        """The number of batches in every epoch."""

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        """The examples of the index-th batch of an epoch."""


@dataclass(frozen=True)
class PartRates:
    """How often the examples of each part of a store are drawn in an epoch. The parts follow one another."""

    counts: tuple[int, ...]
    """The examples of each part."""
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.rates) or not all(0 <= rate < math.inf for rate in self.rates):
            raise checks.wrong("rates", f"a number, at least 0, for each of the {len(self.counts)} parts", self.rates)

    def check(self, count: int) -> None:
        """Refuse parts that do not add up to this many examples."""
        if sum(self.counts) != count:
            raise checks.wrong("rates", f"for parts of {count} examples in all", f"for {sum(self.counts)}")

    def draws(self, sizes: IntArray) -> IntArray:
        """The draws of an epoch from `sizes` (..., parts) examples; at least one of every part with a rate above 0."""
        wanted = np.rint(sizes * np.array(self.rates)).astype(np.int64)
        return np.where((sizes > 0) & (np.array(self.rates) > 0), np.maximum(wanted, 1), 0)


def draw_examples(seed: int, epoch: int, salt: tuple[int, ...], sizes: IntArray, draws: IntArray,
                  positions: IntArray) -> IntArray:
    """The examples at some positions of an epoch that draws `draws[p]` of the `sizes[p]` examples of each part.

    Args:
        salt: distinguishes draws that should not depend on each other.
        positions: from 0 up to the sum of the draws; the draws of the first part come first.

    Returns:
        for each position the index of an example, from 0 up to the sum of the sizes.
    """
    part = np.searchsorted(np.cumsum(draws), positions, side="right")
    running = epoch * draws[part] + positions - (np.cumsum(draws) - draws)[part]
    order, place = running // sizes[part], running % sizes[part]
    found = np.zeros(len(positions), np.int64)
    for mine, turn in sorted({*zip(part.tolist(), order.tolist(), strict=True)}):
        chosen = (part == mine) & (order == turn)
        permuted = Permutation(int(sizes[mine]), derive_key(seed, turn, DRAW_ORDER, *salt, mine))(place[chosen])
        found[chosen] = int(sizes[:mine].sum()) + permuted
    return found


@dataclass(frozen=True)
class BucketPlan:
    """Batches of pairs of similar lengths; `plan_batches` makes it."""

    seed: int
    index: MappedArray
    """The numbers of all pairs, sorted by bucket."""
    sizes: IntArray
    """The number of pairs of each bucket."""
    batches: IntArray
    """The number of batches of each bucket."""
    longest: IntArray
    """(buckets, sides): the maximum length in each bucket, including the ids that a batch adds."""
    extremes: IntArray
    """(buckets, sides): a longest pair of each bucket on each side."""
    notes: tuple[str, ...]
    """A note about pairs that are longer than the budget."""
    parts: IntArray | None = None
    """(buckets, parts): the pairs of each part in each bucket; None if every pair is drawn once an epoch."""
    draws: IntArray | None = None
    """(buckets, parts): how many of them an epoch draws; None likewise."""

    @property
    def count(self) -> int:
        return int(self.batches.sum())

    @property
    def drawn(self) -> IntArray:
        """The number of pairs that an epoch draws from each bucket."""
        return self.sizes if self.draws is None else self.draws.sum(axis=1)

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """For each bucket the smallest shape that contains all its batches of all epochs."""
        rows = -(-self.drawn // np.maximum(1, self.batches))
        return tuple(BatchShape(*shape) for shape in zip(rows.tolist(), map(tuple, self.longest.tolist()), strict=True))

    def largest(self) -> list[ExampleNumbers]:
        """The batches that need most memory: one by the sum of lengths, one by the sum of squared lengths."""
        found = []
        for power in (1, 2):
            needed = [shape.rows * sum(length**power for length in shape.lengths) for shape in self.shapes]
            bucket = int(np.argmax(needed))
            first, rows = int(self.sizes[:bucket].sum()), self.shapes[bucket].rows
            last = min(first + rows, first + int(self.sizes[bucket]))
            numbers = np.concatenate([self.extremes[bucket], self.index.numbers[first:last]]).astype(np.int64)
            found.append(_first_distinct(numbers, rows))
        self.index.release()
        return found

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        if not 0 <= index < self.count:
            raise checks.wrong("index", f"from 0 to {self.count - 1}", index)
        position = int(Permutation(self.count, derive_key(self.seed, epoch, BATCH_ORDER))(index))
        bucket = int(np.searchsorted(np.cumsum(self.batches), position, side="right"))
        turn = position - int(self.batches[:bucket].sum())
        size, parts = int(self.drawn[bucket]), int(self.batches[bucket])
        slots = np.arange(turn * size // parts, (turn + 1) * size // parts)
        inside = Permutation(size, derive_key(self.seed, epoch, BUCKET_ORDER, bucket))(slots)
        if self.parts is not None and self.draws is not None:
            inside = draw_examples(self.seed, epoch, (bucket,), self.parts[bucket], self.draws[bucket], inside)
        numbers = self.index.numbers[int(self.sizes[:bucket].sum()) + inside].astype(np.int64)
        self.index.release()
        return numbers


def _first_distinct(numbers: IntArray, count: int) -> ExampleNumbers:
    """The first `count` numbers in their order, each once."""
    return numbers[np.sort(np.unique(numbers, return_index=True)[1])][:count]


@dataclass(frozen=True)
class BatchLimits:
    """The largest batch: tokens of all sides together, padding included, and rows."""

    tokens: int
    rows: int

    def size(self, longest: IntArray) -> IntArray:
        """Rows of a batch with these maximum lengths (..., S); at least 1, even if one row exceeds the budget."""
        return np.clip(self.tokens // np.maximum(1, longest.sum(-1)), 1, self.rows)

    def batches(self, counts: IntArray, longest: IntArray, unit: int = 1) -> IntArray:
        """The number of batches of `counts` / `unit` pairs with these maximum lengths."""
        return -(-counts // (unit * self.size(longest)))


def plan_batches(store: TokenStore, limits: BatchLimits, *, seed: int, extra: tuple[int, ...] = (0, 1),
                 max_shapes: int | None = None, folder: Path | None = None,
                 rates: PartRates | None = None) -> BucketPlan:
    """Plan batches of pairs of similar lengths.

    Args:
        limits: the largest batch. A pair that is longer than the budget is a batch by itself, and noted.
        extra: how many ids a batch adds to each side: the target gets its start or end.
        max_shapes: the largest number of buckets, and so of shapes; by default as many as leave little padding.
        folder: where the index is kept; by default the store's own folder.
        rates: how often the examples of each part of the store are drawn; by default all of them once an epoch.
    """
    if len(extra) != len(store.sides):
        raise checks.wrong("extra", f"of {len(store.sides)} numbers, one a side", extra)
    if max_shapes is not None and max_shapes < 1:
        raise checks.wrong("max_shapes", "at least 1", max_shapes)
    identity: list[Any] = [INDEX_FORMAT, store.fingerprint, limits.tokens, limits.rows, max_shapes, *extra,
                           BATCH_COST, MIN_BATCHES, MIN_SAVING, MAX_PADDING]
    if rates is not None:
        rates.check(len(store))
        identity += [WEIGHT_UNIT, rates.counts, rates.rates]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    path = (folder or store.folder) / f"buckets-{name}.index"
    dtype = "<i4" if len(store) < 2**31 else "<i8"
    known = _read_index(path, len(store) * np.dtype(dtype).itemsize)
    if known is None:
        known = _make_index(path, dtype, store, limits, extra, max_shapes, rates)
    over, longest = known["over"], known["longest"]
    note = (f"{over:,} of {checks.plural(len(store), 'example')} {'has' if over == 1 else 'have'} more than the "
            f"{limits.tokens:,} tokens of a batch (the longest: {longest:,}); each is a batch by itself.")
    sizes, batches = (np.array(known[part], np.int64) for part in ("sizes", "batches"))
    lengths, extremes = (np.array(known[part], np.int64).reshape(-1, len(extra)) for part in ("lengths", "extremes"))
    index = MappedArray(path, dtype, len(store))
    plan = BucketPlan(seed, index, sizes, batches, lengths, extremes, (note,) if over else ())
    if rates is None:
        return plan
    parts = _part_sizes(index, sizes, rates.counts)
    draws = rates.draws(parts)
    return replace(plan, batches=limits.batches(draws.sum(axis=1), lengths), parts=parts, draws=draws)


def _part_sizes(index: MappedArray, sizes: IntArray, counts: tuple[int, ...]) -> IntArray:
    """(buckets, parts): the examples of each part in each bucket, whose numbers ascend in the index."""
    ends, first, found = np.cumsum(counts), 0, []
    for size in sizes.tolist():
        below = np.searchsorted(index.numbers[first:first + size], ends, side="left")
        found.append(np.diff(below, prepend=0))
        first += size
    index.release()
    return np.array(found, np.int64).reshape(-1, len(counts))


def _read_index(path: Path, length: int) -> dict[str, Any] | None:
    """The description of the index at this path; None if it is missing or damaged."""
    try:
        known = json.loads(path.with_suffix(".json").read_bytes())
        if path.stat().st_size == length and known["sha256"] == _file_sha256(path):
            return known
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return None


def _make_index(path: Path, dtype: str, store: TokenStore, limits: BatchLimits, extra: tuple[int, ...],
                max_shapes: int | None, rates: PartRates | None) -> dict[str, Any]:
    """Write the index. Several processes may do so at once: all write the same, and each renames its own file."""
    lengths_US, counts, weights = _length_table(store, extra, rates)
    bucket = split_into_buckets(lengths_US, weights, limits, 1 if rates is None else WEIGHT_UNIT)
    sizes, longest = _measure_buckets(bucket, lengths_US, counts)
    if max_shapes is not None and len(sizes) > max_shapes:
        drawn, _ = _measure_buckets(bucket, lengths_US, weights)
        bucket = _merge_buckets(-(-drawn // (1 if rates is None else WEIGHT_UNIT)), longest, limits, max_shapes)[bucket]
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


def _measure_buckets(bucket: IntArray, lengths_US: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """The number of pairs of each bucket, and (buckets, sides) its maximum lengths."""
    sizes = np.bincount(bucket, counts).astype(np.int64)
    longest = np.zeros((len(sizes), lengths_US.shape[1]), np.int64)
    np.maximum.at(longest, bucket, lengths_US)
    return sizes, longest


def _merge_buckets(sizes: IntArray, longest: IntArray, limits: BatchLimits, count: int) -> IntArray:
    """The new bucket of each bucket, after merging the two most similar ones until `count` are left."""
    sizes, longest, merged = sizes.copy(), longest.copy(), np.arange(len(sizes))

    def tokens(sizes: IntArray, longest: IntArray) -> IntArray:
        """The tokens of an epoch, if all batches of a bucket have one shape."""
        batches = limits.batches(sizes, longest)
        return batches * -(-sizes // batches) * longest.sum(-1)

    def added(one: int) -> IntArray:
        """The tokens that merging with each of the others adds."""
        more = tokens(sizes[one] + sizes, np.maximum(longest[one], longest)) - tokens(sizes, longest)
        return np.where(present & (np.arange(len(sizes)) != one), more - tokens(sizes[one], longest[one]), never)

    never, present = np.iinfo(np.int64).max, np.full(len(sizes), True)
    costs = np.stack([added(one) for one in range(len(sizes))])
    for _ in range(len(sizes) - count):
        one, other = divmod(int(costs.argmin()), len(sizes))
        sizes[one] += sizes[other]
        longest[one] = np.maximum(longest[one], longest[other])
        merged[merged == other], present[other] = one, False
        costs[one] = costs[:, one] = added(one)
        costs[other] = costs[:, other] = never
    return np.unique(merged, return_inverse=True)[1]


def _fill_index(file: BinaryIO, dtype: str, store: TokenStore, extra: tuple[int, ...], table: IntArray,
                bucket: IntArray, sizes: IntArray, longest: IntArray) -> IntArray:
    """Write the pair numbers sorted by bucket, a counting sort; returns `BucketPlan.extremes`."""
    free, extremes = np.cumsum(sizes) - sizes, np.zeros_like(longest)
    for first, lengths_NS in _length_blocks(store, extra):
        mine = bucket[np.searchsorted(table, _pack_lengths(lengths_NS))]
        order = np.argsort(mine, kind="stable")
        many = np.bincount(mine, minlength=len(sizes))
        rank = np.arange(len(mine)) - np.repeat(np.cumsum(many) - many, many)
        index = np.memmap(file, dtype, "r+")  # mapped again for each block, which releases the memory of written pages
        index[free[mine[order]] + rank] = first + order
        free += many
        for side, lengths in enumerate(lengths_NS.T):
            (found,) = np.nonzero(lengths == longest[mine, side])
            extremes[mine[found], side] = first + found
    return extremes


def _length_table(store: TokenStore, extra: tuple[int, ...],
                  rates: PartRates | None) -> tuple[IntArray, IntArray, IntArray]:
    """The distinct lengths of the store's pairs, ascending, how many pairs have each, and how many of them are drawn.

    The draws are counted in parts of WEIGHT_UNIT; without rates they are the pairs themselves.
    """
    keys, sums = np.zeros(0, np.int64), np.zeros((2, 0), np.int64)
    ends = np.cumsum([len(store)] if rates is None else rates.counts)
    rate_units = np.ones(1, np.int64)
    if rates is not None:
        rate_units = np.array([max(1, round(rate * WEIGHT_UNIT)) if rate else 0 for rate in rates.rates], np.int64)
    for first, lengths_NS in _length_blocks(store, extra):
        new, inverse = np.unique(_pack_lengths(lengths_NS), return_inverse=True)
        part = np.searchsorted(ends, np.arange(first, first + len(lengths_NS)), side="right")
        more = np.zeros((2, len(new)), np.int64)
        np.add.at(more[0], inverse, 1)
        np.add.at(more[1], inverse, rate_units[part])
        keys, place = np.unique(np.concatenate([keys, new]), return_inverse=True)
        old, sums = sums, np.zeros((2, len(keys)), np.int64)
        sums[:, place[:old.shape[1]]] += old
        sums[:, place[old.shape[1]:]] += more
    sides = [keys >> (LENGTH_BITS * back) & (2**LENGTH_BITS - 1) for back in reversed(range(len(extra)))]
    return np.stack(sides, axis=1), sums[0], sums[1]


def _length_blocks(store: TokenStore, extra: tuple[int, ...]) -> Iterator[tuple[int, IntArray]]:
    """The lengths (N, sides) of blocks of pairs, each with the number of its first pair."""
    for first in range(0, len(store), BLOCK_PAIRS):
        last = min(first + BLOCK_PAIRS, len(store))
        yield first, np.stack([side.lengths(first, last) + more for side, more in zip(store.sides, extra, strict=True)],
                              axis=1)
        store.release()


def _pack_lengths(lengths_NS: IntArray) -> IntArray:
    """The lengths of all sides in one number, in the same order."""
    keys = np.zeros(len(lengths_NS), np.int64)
    for lengths in lengths_NS.T:
        keys = keys << LENGTH_BITS | lengths
    return keys


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split_into_buckets(lengths_US: IntArray, counts: IntArray, limits: BatchLimits, unit: int = 1) -> IntArray:
    """The bucket of each row of a table of distinct lengths, given how many pairs have each, in parts of `unit`."""
    found = np.zeros(len(counts), np.int64)
    todo, last = [np.arange(len(counts))] if len(counts) else [], 0
    while todo:
        rows = todo.pop()
        for part in _split_bucket(rows, lengths_US, counts, limits, unit):
            last += 1
            found[part] = last
            todo.append(part)
    return np.unique(found, return_inverse=True)[1]


def _split_bucket(rows: IntArray, lengths_US: IntArray, counts: IntArray, limits: BatchLimits,
                  unit: int) -> list[IntArray]:
    """The two parts of a bucket, or nothing if it should not be split."""
    own, many = lengths_US[rows], counts[rows]
    total, longest = many.sum(), own.max(axis=0)
    if MAX_PADDING * (total * longest.sum() - (own.sum(axis=1) * many).sum()) <= total * longest.sum():
        return []
    best, parts = _bucket_cost(total, longest, limits, unit), []
    for side in range(own.shape[1]):
        order = np.argsort(own[:, side], kind="stable")
        ascending = own[order]
        ends = np.flatnonzero(np.diff(ascending[:, side]))  # the last row of the lower part, for each possible split
        if not ends.size:
            continue
        below = np.cumsum(many[order])[ends]
        lower = np.maximum.accumulate(ascending, axis=0)[ends]
        upper = np.maximum.accumulate(ascending[::-1], axis=0)[::-1][ends + 1]
        lower_batches, upper_batches = limits.batches(below, lower, unit), limits.batches(total - below, upper, unit)
        unsplit = limits.batches(total, longest, unit)
        saves = MIN_SAVING * (lower_batches + upper_batches) <= (MIN_SAVING - 1) * unsplit
        useful = (np.minimum(lower_batches, upper_batches) >= MIN_BATCHES) | saves
        costs = _bucket_cost(below, lower, limits, unit) + _bucket_cost(total - below, upper, limits, unit)
        least = int(np.where(useful, costs, best).argmin())
        if useful[least] and costs[least] < best:
            best, parts = costs[least], [rows[order[:ends[least] + 1]], rows[order[ends[least] + 1:]]]
    return parts


def _bucket_cost(counts: IntArray, longest: IntArray, limits: BatchLimits, unit: int) -> IntArray:
    return BATCH_COST * counts * longest.sum(-1) + unit * limits.tokens * limits.batches(counts, longest, unit)


@dataclass(frozen=True)
class SideLengths:
    """Statistics of the lengths of one side."""

    total: int
    squares: int
    longest: int
    longest_number: int
    """The number of a longest example."""


@dataclass(frozen=True)
class PackedPlan:
    """Packed batches of one shape; `plan_packed` makes it."""

    seed: int
    pairs: int
    count: int
    """The number of batches in every epoch."""
    sides: tuple[SideLengths, ...]
    notes: tuple[str, ...] = ()
    rates: PartRates | None = None
    """How often the pairs of each part are drawn; `pairs` then counts the draws of an epoch."""

    @property
    def rows(self) -> int:
        """The largest number of pairs of a batch."""
        return -(-self.pairs // self.count)

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """The one shape: rows, including those of padding, and the tokens of each side of the whole batch."""
        lengths = tuple(_side_capacity(side, self.rows, self.pairs) for side in self.sides)
        return (BatchShape(rows_with_padding(self.rows), lengths),)

    def largest(self) -> list[ExampleNumbers]:
        """The batches that need most memory: those with the longest example of each side."""
        found = []
        for side in self.sides:
            stored = self.pairs if self.rates is None else sum(self.rates.counts)
            numbers = np.array([side.longest_number, *range(min(self.rows, stored))], np.int64)
            found.append(_first_distinct(numbers, self.rows))
        return found

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        slots = np.arange(index * self.pairs // self.count, (index + 1) * self.pairs // self.count)
        numbers = Permutation(self.pairs, derive_key(self.seed, epoch, PACKED_ORDER))(slots).astype(np.int64)
        if self.rates is None:
            return numbers
        sizes = np.array(self.rates.counts, np.int64)
        return draw_examples(self.seed, epoch, (), sizes, self.rates.draws(sizes), numbers)


def rows_with_padding(rows: int) -> int:
    """Rows for this many sequences and for the padding: a few standard deviations and PACKED_MULTIPLE tokens."""
    return rows + rows // 8 + 4 * math.isqrt(rows) + PACKED_MULTIPLE


def plan_packed(store: TokenStore, limits: BatchLimits, *, seed: int, extra: tuple[int, ...] = (0, 1),
                longest: int | None = None, rates: PartRates | None = None) -> PackedPlan:
    """Plan packed batches of one shape.

    Args:
        limits: the largest batch, padding included. A pair that is longer than the budget is a batch by itself.
        extra: how many ids a batch adds to each side: the target gets its start or end.
        longest: sequences are truncated to this many ids when they are read; by default they are not.
        rates: how often the examples of each part of the store are drawn; by default all of them once an epoch.
    """
    pairs = len(store)
    if rates is not None:
        rates.check(len(store))
        pairs = int(rates.draws(np.array(rates.counts, np.int64)).sum())
    sides = tuple(_measure_side(store, side, more, longest, rates) for side, more in enumerate(extra))
    total = sum(side.total for side in sides)
    plan = PackedPlan(seed, pairs, max(1, -(-total // limits.tokens), -(-pairs // limits.rows)), sides, rates=rates)
    if not pairs:
        return replace(plan, count=0)
    while plan.rows > 1 and sum(plan.shapes[0].lengths) > limits.tokens:
        plan = replace(plan, count=plan.count + max(1, plan.count // 64))
    return plan


def _side_capacity(side: SideLengths, rows: int, pairs: int) -> int:
    mean = side.total / pairs
    spread = math.sqrt(max(0.0, side.squares / pairs - mean**2) * rows)
    wanted = max(side.longest, min(rows * side.longest, math.ceil(rows * mean + ROOM_DEVIATIONS * spread)))
    return -(-wanted // PACKED_MULTIPLE) * PACKED_MULTIPLE


def _measure_side(store: TokenStore, side: int, more: int, truncated: int | None,
                  rates: PartRates | None) -> SideLengths:
    """The lengths of one side, each counted as often as an epoch draws its example."""
    total, squares, longest, number, start = 0.0, 0.0, 0, 0, 0
    counts = np.array([len(store)] if rates is None else rates.counts, np.int64)
    draws = counts if rates is None else rates.draws(counts)
    for count, drawn in zip(counts.tolist(), draws.tolist(), strict=True):
        end = start + count
        for first in range(start, end, BLOCK_PAIRS):
            lengths = store.sides[side].lengths(first, min(first + BLOCK_PAIRS, end)).astype(np.int64)
            lengths = (lengths if truncated is None else np.minimum(lengths, truncated)) + more
            total += int(lengths.sum()) * drawn / count
            squares += int((lengths**2).sum()) * drawn / count
            if int(lengths.max(initial=0)) > longest:
                longest, number = int(lengths.max()), first + int(lengths.argmax())
            store.release()
        start = end
    return SideLengths(round(total), round(squares), longest, number)


def derive_key(*parts: int) -> int:
    """A 64-bit key from non-negative integers; other integers, or another order, give another key."""
    word = 0
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | np.integer) or not 0 <= part <= _MAX_UINT64:
            raise checks.wrong("parts", "whole numbers from 0 to 2**64 - 1", repr(part))
        word = _mix(_mix((word + _GOLDEN_STEP) & _MAX_UINT64) ^ int(part))
    return word


def random_bits(key: int, numbers: ArrayLike) -> UInt64Array:
    """64 random bits for each number, in the shape of `numbers`."""
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
    """A permutation of range(count) that follows from the key; any part of it is computed without the rest."""

    count: int
    key: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= 2**48:
            raise checks.wrong("count", "from 0 to 2**48", self.count)

    def __call__(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The numbers at these positions, each from 0 to count - 1."""
        array = np.asarray(positions, dtype=np.int64)
        found = array.reshape(-1).astype(np.uint64)
        if found.size and int(found.max()) >= self.count:  # a negative number is a very large unsigned one
            raise checks.wrong("positions", f"from 0 to {self.count - 1}", f"{array.min()} to {array.max()}")
        outside = np.arange(found.size)
        while outside.size:
            found[outside] = self._permute_cells(found[outside])
            outside = outside[found[outside] >= np.uint64(self.count)]
        return found.astype(np.int64).reshape(array.shape)

    def _permute_cells(self, cells: UInt64Array) -> UInt64Array:
        """The cell of the rectangle that the Feistel network sends each cell to."""
        columns = isqrt(self.count - 1) + 1
        rows = -(-self.count // columns)
        row, column = cells // np.uint64(columns), cells % np.uint64(columns)
        for turn in range(ROUNDS):
            first, second = derive_key(self.key, turn, 0), derive_key(self.key, turn, 1)
            row = (row + random_bits(first, column) % np.uint64(rows)) % np.uint64(rows)
            column = (column + random_bits(second, row) % np.uint64(columns)) % np.uint64(columns)
        return row * np.uint64(columns) + column


def _mix(word: int) -> int:
    """The finaliser of SplitMix64 on a Python number."""
    word = ((word ^ (word >> 30)) * _MIX_FIRST) & _MAX_UINT64
    word = ((word ^ (word >> 27)) * _MIX_SECOND) & _MAX_UINT64
    return word ^ (word >> 31)


def _mix_array(array: UInt64Array) -> UInt64Array:
    """The same on an array of at least one dimension: NumPy warns if a scalar wraps around."""
    array = (array ^ (array >> np.uint64(30))) * np.uint64(_MIX_FIRST)
    array = (array ^ (array >> np.uint64(27))) * np.uint64(_MIX_SECOND)
    return array ^ (array >> np.uint64(31))
