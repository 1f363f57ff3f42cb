"""Batches by the number of the step, on any number of processes; windows of one long text; prefetching.

    feed = batch_feed(store, special, BatchConfig(max_tokens=8192), seed=1)        pairs, or texts for an LM
    feed = PlanFeed(plan_from_config(store, config, seed=1, extra=(0,)), maker)     any collator
    feed = StreamFeed(text, length=256, rows=32)                                    continuous windows of one text
    feed.at(1234)                       the batch of step 1234, without those before it
    feed.since(1234)                    that one and all that follow, without end
    prefetch_steps(feed.at, range(1234, 2000))      the same, some of them made in advance in a thread

In step s of an epoch, P processes take batches s·P, s·P + 1, ... s·P + P - 1 of it, so that the order of all batches
does not depend on the number of processes. Every process takes the same number of steps: where an epoch ends unevenly,
the last ones get a batch without rows.

A window of a long text has inputs and labels, the next ids. Every id of the text except the first is a label exactly
once an epoch; at the end windows may be shorter. Continuous windows (`StreamFeed`) divide the text into rows: row b of
a step continues where row b of the step before ended, so that a state can be carried over (truncated back-propagation
through time); at step 0 of an epoch the text begins anew, and so must the state. Shuffled windows come in a new order
in every epoch, and may start at a new offset.

Legend: B rows, N ids of a window.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np

from regard import checks
from regard.config import Config, choice, integer
from regard.data.batches.batch import (
    LAYOUTS,
    MAX_SHAPES,
    Batch,
    BoundaryIds,
    FittedCollator,
    LabelledBatch,
    SequenceReader,
    ShiftedCollator,
    StoredReader,
    pad_sequences,
)
from regard.data.batches.plan import (
    BatchLimits,
    BatchPlan,
    BucketPlan,
    ExampleNumbers,
    PackedPlan,
    PartRates,
    Permutation,
    derive_key,
    plan_batches,
    plan_packed,
)
from regard.data.store import IntArray, PairStore, Ragged, TextStore, TokenStore
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, Tokens

Item = TypeVar("Item")
BatchMaker = Callable[[ExampleNumbers, int], Batch]
"""(numbers, epoch) -> the batch of these examples; without numbers, a batch without rows"""
LabelledBatchMaker = Callable[[ExampleNumbers, int], LabelledBatch]
SHAPE_CHOICES = ("as_drawn", "few")
WINDOW_ORDERS = ("continuous", "shuffled")


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Config):
    """The size of batches, and how sequences are laid out in them."""

    max_tokens: int = integer(4096, minimum=1, old="tokens")
    """Largest number of tokens of a batch: source and target together, start ids and padding included."""
    batch_size: int | None = integer(None, minimum=1, old="rows")
    """Largest number of examples of a batch; by default as many as the tokens allow."""
    layout: str = choice(LAYOUTS, "padded")
    """Whether sequences are padded to one length, or packed one after another without padding."""
    shapes: str = choice(SHAPE_CHOICES, "as_drawn")
    """Whether a batch is as large as its content (as_drawn), or padded to one of few shapes, for CUDA graphs."""
    prefetch: int = integer(2, minimum=1, old="ahead")
    """Batches that are prepared in advance."""

    def limits(self) -> BatchLimits:
        """The limits of a plan."""
        return BatchLimits(self.max_tokens, self.max_tokens if self.batch_size is None else self.batch_size)

    def max_shapes(self) -> int | None:
        """The largest number of batch shapes; None for any number."""
        return MAX_SHAPES if self.shapes == "few" else None


@dataclass(frozen=True, kw_only=True)
class WindowConfig(Config):
    """How a long text is divided into windows."""

    length: int = integer(256, minimum=1)
    """Tokens of a window: the context length in training."""
    batch_size: int = integer(32, minimum=1, old="rows")
    """Windows per batch: continuous ones on all processes together, shuffled ones on each."""
    order: str = choice(WINDOW_ORDERS, "shuffled")
    """Whether windows continue each other from batch to batch, or are shuffled."""


class StepPosition(NamedTuple):
    """The position of a step: its epoch, and its number in that epoch."""

    epoch: int
    step: int


class BatchFeed(ABC):
    """Batches by the number of the step, from 0; epochs follow one another without end."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of steps in every epoch."""

    @abstractmethod
    def make(self, position: StepPosition) -> Batch:
        """The batch of this process at a position."""

    def position(self, step: int) -> StepPosition:
        """The epoch of a step, and its number in that epoch."""
        if step < 0:
            raise checks.wrong("step", "at least 0", step)
        return StepPosition(*divmod(step, self.steps))

    def at(self, step: int) -> Batch:
        """The batch of this process in this step, which follows from the number of the step alone."""
        return self.make(self.position(step))

    def largest(self) -> list[Batch]:
        """The batches that need most memory, to be tried first; by default, all being equal, the first one."""
        return [self.at(0)]

    def since(self, step: int) -> Iterator[Batch]:
        """The batches from this step on, without end."""
        return map(self.at, count(step))


class PlanFeed(BatchFeed):
    """The batches of a plan that belong to the process `rank`.

    Args:
        largest: the examples of the batches that need most memory, if not all need the same.
    """

    def __init__(self, plan: BatchPlan, maker: BatchMaker, *, rank: int = 0, processes: int = 1,
                 largest: Sequence[ExampleNumbers] = ()) -> None:
        check_rank(rank, processes)
        if not plan.count:
            raise checks.wrong("plan", "one of at least one batch", "empty", "Is there any data left?")
        self.plan, self.maker, self.rank, self.processes = plan, maker, rank, processes
        self._largest = tuple(largest)

    @property
    def steps(self) -> int:
        return -(-self.plan.count // self.processes)

    def largest(self) -> list[Batch]:
        return [self.maker(numbers, 0) for numbers in self._largest] or super().largest()

    def make(self, position: StepPosition) -> Batch:
        """The batch of this process at a position; one without rows if the epoch has no more."""
        epoch, index = position.epoch, position.step * self.processes + self.rank
        return self.maker(self.plan.batch(epoch, index) if index < self.plan.count else np.zeros(0, np.int64), epoch)


def check_rank(rank: int, processes: int) -> None:
    """Refuse a rank that is not below the number of processes."""
    if processes < 1 or not 0 <= rank < processes:
        raise checks.wrong("rank", "from 0 up to the number of processes", f"{rank} of {processes}")


def batch_feed(store: TokenStore, special: SpecialTokens, config: BatchConfig, *, seed: int, rank: int = 0,
               processes: int = 1, read: SequenceReader | None = None, rates: PartRates | None = None) -> PlanFeed:
    """A feed of pairs for an encoder-decoder, or of texts for a language model.

    Args:
        read: the source of the ids, such as a `SamplingReader`; by default the store itself.
        rates: how often the examples of each part of the store are drawn; by default all of them once an epoch.
    """
    boundary = BoundaryIds.of(special)
    maker: BatchMaker = ShiftedCollator(read or StoredReader(store), boundary, LAYOUTS[config.layout])
    extra = (0, 1) if isinstance(store, PairStore) else (1,)  # a target gets its start, or its end
    plan = plan_from_config(store, config, seed=seed, extra=extra, rates=rates)
    if config.shapes == "few":
        maker = FittedCollator(maker, plan.shapes, boundary.padding)
    return PlanFeed(plan, maker, rank=rank, processes=processes, largest=plan.largest() if plan.count else ())


def labelled_feed(plan: BatchPlan, maker: LabelledBatchMaker, *, rank: int = 0, processes: int = 1,
                  largest: Sequence[ExampleNumbers] = ()) -> PlanFeed:
    """A feed of labelled batches."""
    return PlanFeed(plan, maker, rank=rank, processes=processes, largest=largest)  # type: ignore[arg-type]  # labelled


def plan_from_config(store: TokenStore, config: BatchConfig, *, seed: int, extra: tuple[int, ...],
                     longest: int | None = None, rates: PartRates | None = None) -> BucketPlan | PackedPlan:
    """The plan of a store: pairs of similar lengths together, or any pairs in packed batches of one shape.

    Args:
        extra: how many ids a batch adds to each side.
        longest: packed sequences are truncated to this many ids when they are read. Buckets always use full lengths.
        rates: how often the examples of each part of the store are drawn; by default all of them once an epoch.
    """
    if config.layout == "packed" and config.shapes == "few":
        return plan_packed(store, config.limits(), seed=seed, extra=extra, longest=longest, rates=rates)
    return plan_batches(store, config.limits(), seed=seed, extra=extra, max_shapes=config.max_shapes(), rates=rates)


class StreamFeed(BatchFeed):
    """Continuous windows: the text in `rows` parts of nearly equal lengths, all read in parallel.

    The rows are those of all processes together; each process always has the same share of them.
    """

    def __init__(self, text: TextStore, *, length: int, rows: int, padding: int = 0, rank: int = 0,
                 processes: int = 1) -> None:
        check_rank(rank, processes)
        labels = _count_labels(text)
        if not processes <= rows <= labels:
            raise checks.wrong("rows", f"from {processes}, one a process, to {labels}, one a label", rows)
        self.text, self.length, self.padding = text, length, padding
        self.longest = -(-labels // rows)
        self.numbers = np.arange(rank * rows // processes, (rank + 1) * rows // processes)
        self.first, self.last = (labels * number // rows for number in (self.numbers, self.numbers + 1))

    @property
    def steps(self) -> int:
        return -(-self.longest // self.length)

    def make(self, position: StepPosition) -> Batch:
        """The windows of this process at a position."""
        first = np.minimum(self.first + position.step * self.length, self.last)
        return _slice_windows(self.text, first, np.minimum(first + self.length, self.last), self.numbers, self.padding)


@dataclass(frozen=True)
class WindowPlan:
    """Windows shuffled anew in every epoch, `rows` of them a batch."""

    windows: int
    rows: int
    seed: int

    @property
    def count(self) -> int:
        return -(-self.windows // self.rows)

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        last = min((index + 1) * self.rows, self.windows)
        return Permutation(self.windows, derive_key(self.seed, epoch))(np.arange(index * self.rows, last))


@dataclass(frozen=True)
class WindowCollator:
    """Makes batches of windows by their numbers: window i begins at i · length."""

    text: TextStore
    length: int
    padding: int = 0

    @property
    def count(self) -> int:
        """The number of windows of the text."""
        return -(-_count_labels(self.text) // self.length)

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        first = numbers * self.length
        last = np.minimum(first + self.length, _count_labels(self.text))
        return _slice_windows(self.text, first, last, numbers, self.padding)


@dataclass(frozen=True)
class MovingWindowCollator:
    """Makes batches of windows that begin at another offset in every epoch, so that contexts vary.

    Window i begins at (i - 1) · length + shift, where the shift, from 1 to length, follows from (seed, epoch), and is
    clipped to the text. The first and the last may be short, and the last may be empty.
    """

    text: TextStore
    length: int
    seed: int
    padding: int = 0

    @property
    def count(self) -> int:
        """The number of windows of the text, in every epoch."""
        return -(-_count_labels(self.text) // self.length) + 1

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        labels, shift = _count_labels(self.text), 1 + derive_key(self.seed, epoch, 1) % self.length
        first = (numbers - 1) * self.length + shift
        last = np.clip(first + self.length, 0, labels)
        return _slice_windows(self.text, np.clip(first, 0, last), last, numbers, self.padding)


def _count_labels(text: TextStore) -> int:
    """The number of ids that follow another one."""
    if len(text.stream) < 2:
        raise checks.wrong("text", "of at least two ids", f"of {len(text.stream)}")
    return len(text.stream) - 1


def _slice_windows(text: TextStore, first: IntArray, last: IntArray, numbers: ExampleNumbers, padding: int) -> Batch:
    """The windows from `first` up to, but not including, `last`."""
    lengths = last - first
    index = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    ids, following = (text.stream[index + more].astype(np.int64) for more in (0, 1))
    text.release()
    inputs = pad_sequences(Ragged(ids, lengths), padding)
    if not len(lengths) or int(lengths.min()) == inputs.ids.shape[1]:
        inputs = Tokens(inputs.ids)  # all rows are full
    labels = pad_sequences(Ragged(following, lengths), IGNORED_LABEL).ids
    return Batch(None, inputs, labels, numbers, int(lengths.sum()))


def prefetch_steps(make: Callable[[int], Item], steps: Iterable[int], *, prefetch: int = 2) -> Iterator[Item]:
    """make(step) for each step in turn, up to `prefetch` of them made in advance in a thread.

    An error in one of them is raised when its turn comes. The thread ends with the steps, with an error, or when the
    iterator is closed or garbage-collected.
    """
    if prefetch < 1:
        raise checks.wrong("prefetch", "at least 1", prefetch)
    return _prefetch_in_thread(make, iter(steps), prefetch)


def _prefetch_in_thread(make: Callable[[int], Item], steps: Iterator[int], prefetch: int) -> Iterator[Item]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="regard-batches")
    pending: deque[Future[Item]] = deque()
    try:
        while True:
            for step in steps:
                pending.append(pool.submit(make, step))
                if len(pending) > prefetch:
                    break
            if not pending:
                return
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
