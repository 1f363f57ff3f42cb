"""Batches by the number of the step, on any number of processes.

    feed = Feed(plan, make, rank=0, processes=4)
    feed.at(1234)                       the batch of step 1234, without those before it
    feed.since(1234)                    that one, and all that follow, without end
    prefetched(feed.at, range(1234, 2000))     the same, some of them made ahead in a thread

In step s of an epoch the processes take batches s·P, s·P + 1, ... s·P + P - 1 of it, so that the order of all batches
does not depend on how many processes there are. Every process takes equally many steps: where an epoch ends unevenly,
the last ones get a batch without rows. It does not know what is in a batch.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np

from regard import checks
from regard.data.batches.batch import Batch
from regard.data.batches.buckets import Numbers
from regard.data.batches.plan import Plan

Maker = Callable[[Numbers, int], Batch]
"""(numbers, epoch) -> their batch"""
Item = TypeVar("Item")


class Place(NamedTuple):
    """Where a step stands: in which epoch, and how many of its steps come before."""

    epoch: int
    turn: int


class Steps(ABC):
    """Batches by the number of the step, from 0; epochs follow one another without end."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps every epoch has."""

    @abstractmethod
    def make(self, place: Place) -> Batch:
        """The batch of this process at a place."""

    def place(self, step: int) -> Place:
        """Where a step stands. At turn 0 an epoch begins."""
        if step < 0:
            raise checks.wrong("step", "at least 0", step)
        return Place(*divmod(step, self.steps))

    def at(self, step: int) -> Batch:
        """The batch of this process in this step. It follows from the number of the step alone."""
        return self.make(self.place(step))

    def largest(self) -> list[Batch]:
        """The batches that need most memory, to be tried first: the first one, where all need equally much."""
        return [self.at(0)]

    def since(self, step: int) -> Iterator[Batch]:
        """The batches from this step on, without end."""
        return map(self.at, count(step))


class Feed(Steps):
    """The batches of a plan, divided among processes; this is the one of number `rank`.

    Args:
        largest: the numbers of the batches that need most memory, where not all need equally much.
    """

    def __init__(self, plan: Plan, maker: Maker, *, rank: int = 0, processes: int = 1,
                 largest: Sequence[Numbers] = ()) -> None:
        check_rank(rank, processes)
        if not plan.count:
            raise checks.wrong("plan", "one of at least one batch", "empty", "Is there any data left?")
        self.plan, self.maker, self.rank, self.processes = plan, maker, rank, processes
        self._largest = tuple(largest)

    @property
    def steps(self) -> int:
        """How many steps every epoch has."""
        return -(-self.plan.count // self.processes)

    def largest(self) -> list[Batch]:
        """The batches that need most memory, to be tried first."""
        return [self.maker(numbers, 0) for numbers in self._largest] or super().largest()

    def make(self, place: Place) -> Batch:
        """The batch of this process at a place; one without rows where the epoch has no more."""
        index = place.turn * self.processes + self.rank
        there = index < self.plan.count
        return self.maker(self.plan.batch(place.epoch, index) if there else np.zeros(0, np.int64), place.epoch)


def check_rank(rank: int, processes: int) -> None:
    """Refuse a process that is not one of so many."""
    if processes < 1 or not 0 <= rank < processes:
        raise checks.wrong("rank", "from 0 up to the number of processes", f"{rank} of {processes}")


def prefetched(make: Callable[[int], Item], steps: Iterable[int], *, ahead: int = 2) -> Iterator[Item]:
    """make(step) for each step in turn, of which up to `ahead` are made in a thread before they are asked for.

    An error in one of them is raised when its turn comes. The thread ends with the steps, with an error, or when the
    iterator is closed or forgotten.
    """
    if ahead < 1:
        raise checks.wrong("ahead", "at least 1", ahead)
    return _prefetched(make, iter(steps), ahead)


def _prefetched(make: Callable[[int], Item], steps: Iterator[int], ahead: int) -> Iterator[Item]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="regard-batches")
    waiting: deque[Future[Item]] = deque()
    try:
        while True:
            for step in steps:
                waiting.append(pool.submit(make, step))
                if len(waiting) > ahead:
                    break
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
