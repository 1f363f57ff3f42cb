"""Batches of one shape for packed rows: which pairs make up which, and how large all of them are.

    plan = plan_packed(store, limits, seed=1)
    plan.shapes                    the one shape that nearly all batches of all epochs fit into

Packed rows need no pairs of like lengths, so a batch is as many pairs as any other, drawn from all of them. How many
tokens these have together varies little: the mean of a batch, and four times the spread of such means, is room enough
but for one batch in some ten thousand. So a device that replays what it has recorded once for each shape records one
step, and all but a few percent of what it computes is there.

It knows lengths and numbers, as `regard.data.batches.plan`. It does not know ids or tensors.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from regard.data.batches.buckets import Limits, Numbers
from regard.data.batches.order import Order, key
from regard.data.batches.plan import BLOCK, Shape
from regard.data.store import Store

SPREADS = 4
"""How far above the mean there is room, in standard deviations."""
STEP = 64
"""Numbers of tokens are multiples of this."""


@dataclass(frozen=True)
class Lengths:
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
    sides: tuple[Lengths, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Pairs of a batch at most."""
        return -(-self.pairs // self.count)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Rows, with room for what fills up, and the tokens of each side of the whole batch."""
        lengths = tuple(_room(side, self.rows, self.pairs) for side in self.sides)
        return (Shape(filled_rows(self.rows), lengths),)

    def largest(self) -> list[Numbers]:
        """Batches that need as much memory as any: those with the longest of each side."""
        found = []
        for side in self.sides:
            numbers = np.array([side.place, *range(min(self.rows, self.pairs))], np.int64)
            found.append(numbers[np.sort(np.unique(numbers, return_index=True)[1])][:self.rows])
        return found

    def batch(self, epoch: int, index: int) -> Numbers:
        """The numbers of the pairs of the index-th batch of an epoch."""
        slots = np.arange(index * self.pairs // self.count, (index + 1) * self.pairs // self.count)
        return Order(self.pairs, key(self.seed, epoch, 2))(slots).astype(np.int64)


def filled_rows(rows: int) -> int:
    """Places for so many sequences, and for those that fill up: what is to be filled is some spreads and a STEP."""
    return rows + rows // 8 + 4 * math.isqrt(rows) + STEP


def plan_packed(store: Store, limits: Limits, *, seed: int, extra: tuple[int, ...] = (0, 1),
                longest: int | None = None) -> PackedPlan:
    """The plan of a store.

    Args:
        limits: of a batch, with what fills it up. A pair that is longer than the budget is a batch by itself.
        extra: how many ids each side gets more in a batch than it has in the store: the target its start or end.
        longest: of each sequence so many ids are read at most; all of them where not given.
    """
    sides = tuple(_measured(store, side, more, longest) for side, more in enumerate(extra))
    total = sum(side.total for side in sides)
    plan = PackedPlan(seed, len(store), max(1, -(-total // limits.tokens), -(-len(store) // limits.rows)), sides)
    if not len(store):
        return replace(plan, count=0)
    while plan.rows > 1 and sum(plan.shapes[0].lengths) > limits.tokens:
        plan = replace(plan, count=plan.count + max(1, plan.count // 64))
    return plan


def _room(side: Lengths, rows: int, pairs: int) -> int:
    mean = side.total / pairs
    spread = math.sqrt(max(0.0, side.squares / pairs - mean**2) * rows)
    wanted = max(side.longest, min(rows * side.longest, math.ceil(rows * mean + SPREADS * spread)))
    return -(-wanted // STEP) * STEP


def _measured(store: Store, side: int, more: int, most: int | None) -> Lengths:
    total, squares, longest, place = 0, 0, 0, 0
    for first in range(0, len(store), BLOCK):
        lengths = store.sides[side].lengths(first, min(first + BLOCK, len(store))).astype(np.int64)
        lengths = (lengths if most is None else np.minimum(lengths, most)) + more
        total, squares = total + int(lengths.sum()), squares + int((lengths**2).sum())
        if int(lengths.max(initial=0)) > longest:
            longest, place = int(lengths.max()), first + int(lengths.argmax())
        store.release()
    return Lengths(total, squares, longest, place)
