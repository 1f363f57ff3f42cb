"""Which lengths go into one batch: buckets of pairs of like lengths, so that little is filled up.

A bucket is a rectangle of lengths, one side for each side of a pair. All pairs start in one bucket; a bucket is cut in
two, at the length of either side that saves most, as long as that saves more than it costs:

    cost = tokens with padding + budget / BATCH × batches

so there are many narrow buckets where there are many pairs, and few wide ones where there are few. A part must have
some batches, or the same pairs would meet in every epoch; but a few pairs that are far longer than the others are cut
off all the same, or they would make the others' batches small. Costs are whole numbers: every machine makes the same
cuts.

It sees a table of lengths with counts. It does not know the pairs, nor in which order they come.

Legend: U different lengths of a pair, S sides.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

BATCH = 4
"""One more batch is as bad as this part of the budget, 1 / BATCH, in padding."""
MIXED = 3
"""Batches that a part must have..."""
FEWER = 8
"""...unless the cut makes the batches fewer by this part of them, 1 / FEWER."""
ENOUGH = 32
"""A bucket is narrow enough when at most this part of its tokens, 1 / ENOUGH, is padding."""


@dataclass(frozen=True)
class Limits:
    """How large a batch may be: tokens of all sides together, with padding, and rows."""

    tokens: int
    rows: int

    def size(self, longest: Numbers) -> Numbers:
        """Rows of a batch for longest lengths (..., S); at least 1, even where one row is more than the budget."""
        return np.clip(self.tokens // np.maximum(1, longest.sum(-1)), 1, self.rows)

    def batches(self, counts: Numbers, longest: Numbers) -> Numbers:
        """How many batches so many pairs make, with these longest lengths."""
        return -(-counts // self.size(longest))


def buckets(lengths_US: Numbers, counts: Numbers, limits: Limits) -> Numbers:
    """The bucket, from 0, of each row of a table of different lengths, with how many pairs have each."""
    found = np.zeros(len(counts), np.int64)
    todo, last = [np.arange(len(counts))] if len(counts) else [], 0
    while todo:
        rows = todo.pop()
        for part in _cut(rows, lengths_US, counts, limits):
            last += 1
            found[part] = last
            todo.append(part)
    return np.unique(found, return_inverse=True)[1]


def _cut(rows: Numbers, lengths_US: Numbers, counts: Numbers, limits: Limits) -> list[Numbers]:
    """The two parts of a bucket, or nothing where it is best left whole."""
    own, many = lengths_US[rows], counts[rows]
    total, longest = many.sum(), own.max(axis=0)
    if ENOUGH * (total * longest.sum() - (own.sum(axis=1) * many).sum()) <= total * longest.sum():
        return []
    best, parts = _cost(total, longest, limits), []
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
        useful = (np.minimum(few, rest) >= MIXED) | (FEWER * (few + rest) <= (FEWER - 1) * now)
        costs = _cost(below, lower, limits) + _cost(total - below, upper, limits)
        least = int(np.where(useful, costs, best).argmin())
        if useful[least] and costs[least] < best:
            best, parts = costs[least], [rows[order[:ends[least] + 1]], rows[order[ends[least] + 1:]]]
    return parts


def _cost(counts: Numbers, longest: Numbers, limits: Limits) -> Numbers:
    return BATCH * counts * longest.sum(-1) + limits.tokens * limits.batches(counts, longest)
