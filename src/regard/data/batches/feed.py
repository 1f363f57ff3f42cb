"""Batches by the number of the step, on any number of processes; windows of one long text; prefetching.

    feed = batch_feed(store, special, BatchConfig(tokens=8192), seed=1)
    feed = masked_feed(texts, special, BatchConfig(), MaskingConfig(), vocabulary=8000, seed=1)
    feed = window_feed(text, WindowConfig(length=256), seed=1)
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
    MaskedCollator,
    MaskingConfig,
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
    Permutation,
    derive_key,
    plan_batches,
    plan_packed,
)
from regard.data.store import PairStore, Ragged, TextStore, TokenStore
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, Tokens

# ---- labelled: Batches of texts or images that have one label each.
#
#     TextRows(read, labels, layout, padding)       makes batches of texts by their numbers
#     ImageRows(store, labels, shape, shift, seed)   makes batches of images, each moved by a few pixels at random
#     labelled_feed(plan, rows)                      the batch of every step, on any number of processes
#
# Images lie in a store as their bytes, one after another, and come as bytes: who reads them scales them. How far an image
# is moved follows from (seed, epoch, its number) alone. It does not know what the labels are called.
#
# Legend: B rows, C channels, H height, W breadth.


LabelledBatchMaker = Callable[[ExampleNumbers, int], LabelledBatch]
"""(numbers, epoch) -> their batch"""

BatchMaker = Callable[[ExampleNumbers, int], Batch]
"""(numbers, epoch) -> their batch"""


class StepPosition(NamedTuple):
    """Where a step stands: in which epoch, and how many of its steps come before."""

    epoch: int
    turn: int


class BatchFeed(ABC):
    """Batches by the number of the step, from 0; epochs follow one another without end."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps every epoch has."""

    @abstractmethod
    def make(self, place: StepPosition) -> Batch:
        """The batch of this process at a place."""

    def place(self, step: int) -> StepPosition:
        """Where a step stands. At turn 0 an epoch begins."""
        if step < 0:
            raise checks.wrong("step", "at least 0", step)
        return StepPosition(*divmod(step, self.steps))

    def at(self, step: int) -> Batch:
        """The batch of this process in this step. It follows from the number of the step alone."""
        return self.make(self.place(step))

    def largest(self) -> list[Batch]:
        """The batches that need most memory, to be tried first: the first one, where all need equally much."""
        return [self.at(0)]

    def since(self, step: int) -> Iterator[Batch]:
        """The batches from this step on, without end."""
        return map(self.at, count(step))


class PlanFeed(BatchFeed):
    """The batches of a plan, divided among processes; this is the one of number `rank`.

    Args:
        largest: the numbers of the batches that need most memory, where not all need equally much.
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
        """How many steps every epoch has."""
        return -(-self.plan.count // self.processes)

    def largest(self) -> list[Batch]:
        """The batches that need most memory, to be tried first."""
        return [self.maker(numbers, 0) for numbers in self._largest] or super().largest()

    def make(self, place: StepPosition) -> Batch:
        """The batch of this process at a place; one without rows where the epoch has no more."""
        index = place.turn * self.processes + self.rank
        there = index < self.plan.count
        return self.maker(self.plan.batch(place.epoch, index) if there else np.zeros(0, np.int64), place.epoch)


def labelled_feed(plan: BatchPlan, maker: LabelledBatchMaker, *, rank: int = 0, processes: int = 1,
                  largest: Sequence[ExampleNumbers] = ()) -> PlanFeed:
    """A feed whose batches have labels."""
    return PlanFeed(plan, maker, rank=rank, processes=processes, largest=largest)  # type: ignore[arg-type]  # any batches


Item = TypeVar("Item")


def check_rank(rank: int, processes: int) -> None:
    """Refuse a process that is not one of so many."""
    if processes < 1 or not 0 <= rank < processes:
        raise checks.wrong("rank", "from 0 up to the number of processes", f"{rank} of {processes}")


def prefetch_steps(make: Callable[[int], Item], steps: Iterable[int], *, ahead: int = 2) -> Iterator[Item]:
    """make(step) for each step in turn, of which up to `ahead` are made in a thread before they are asked for.

    An error in one of them is raised when its turn comes. The thread ends with the steps, with an error, or when the
    iterator is closed or forgotten.
    """
    if ahead < 1:
        raise checks.wrong("ahead", "at least 1", ahead)
    return _prefetch_in_thread(make, iter(steps), ahead)


def _prefetch_in_thread(make: Callable[[int], Item], steps: Iterator[int], ahead: int) -> Iterator[Item]:
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


# ---- windows: One long text, cut into windows for language models: in its order, or shuffled.
#
#     Streams(text, length=256, rows=32, padding=0)     row b of a step goes on where row b of the step before ended
#     Feed(WindowPlan(...), Windows(...))               windows in an order that is new in every epoch
#     Feed(WindowPlan(...), MovingWindows(...))         and that begin elsewhere in every epoch
#
# A window has inputs and labels, which are the ids that come next. Every id of the text but the first is a label exactly
# once an epoch; at the end windows may be shorter. With `Streams` a state can be carried from step to step (truncated
# back-propagation through time); at turn 0 of an epoch the text begins anew, and so must the state.
#
# It does not know where one text of several ends, unless an id in it says so.
#
# Legend: B rows, N ids of a window.

WINDOW_ORDERS = ("continuous", "shuffled")


@dataclass(frozen=True, kw_only=True)
class WindowConfig(Config):
    """How a text is cut."""

    length: int = integer(256, minimum=1)
    """Ids of a window."""
    batch_size: int = integer(32, minimum=1, old="rows")
    """Windows side by side: continuous ones on all processes together, which share the text; shuffled ones on each."""
    order: str = choice(WINDOW_ORDERS, "shuffled")


class StreamFeed(BatchFeed):
    """The text divided into `rows` parts of nearly equal lengths, all read at the same time, window after window.

    The rows are those of all processes together; each process has its share of them, always the same.
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
        """How many steps every epoch has."""
        return -(-self.longest // self.length)

    def make(self, place: StepPosition) -> Batch:
        """The windows of this process at a place."""
        first = np.minimum(self.first + place.turn * self.length, self.last)
        return _slice_windows(self.text, first, np.minimum(first + self.length, self.last), self.numbers, self.padding)


@dataclass(frozen=True)
class WindowPlan:
    """Windows shuffled anew in every epoch, `rows` of them a batch."""

    windows: int
    rows: int
    seed: int

    @property
    def count(self) -> int:
        """How many batches every epoch has."""
        return -(-self.windows // self.rows)

    def batch(self, epoch: int, index: int) -> ExampleNumbers:
        """The numbers of the windows of the index-th batch of an epoch."""
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
        """How many windows the text has."""
        return -(-_count_labels(self.text) // self.length)

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        first = numbers * self.length
        return _slice_windows(self.text, first, np.minimum(first + self.length, _count_labels(self.text)), numbers, self.padding)


@dataclass(frozen=True)
class MovingWindowCollator:
    """As `Windows`, but in every epoch all of them begin elsewhere, so that a token is met with another past each time.

    Window i begins at (i - 1) · length + shift, where the shift, from 1 to length, follows from (seed, epoch); what of
    it lies outside the text is left out. The first and the last may be short, and the last may be empty.
    """

    text: TextStore
    length: int
    seed: int
    padding: int = 0

    @property
    def count(self) -> int:
        """How many windows the text has, in every epoch."""
        return -(-_count_labels(self.text) // self.length) + 1

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        labels, shift = _count_labels(self.text), 1 + derive_key(self.seed, epoch, 1) % self.length
        first = (numbers - 1) * self.length + shift
        last = np.clip(first + self.length, 0, labels)
        return _slice_windows(self.text, np.clip(first, 0, last), last, numbers, self.padding)


def window_feed(text: TextStore, config: WindowConfig, *, seed: int, padding: int = 0, rank: int = 0,
                processes: int = 1) -> BatchFeed:
    """The feed that a config asks for."""
    if config.order == "continuous":
        return StreamFeed(text, length=config.length, rows=config.batch_size, padding=padding, rank=rank, processes=processes)
    windows = WindowCollator(text, config.length, padding)
    return PlanFeed(WindowPlan(windows.count, config.batch_size, seed), windows, rank=rank, processes=processes)


def _count_labels(text: TextStore) -> int:
    """How many ids have one before them."""
    if len(text.stream) < 2:
        raise checks.wrong("text", "of at least two ids", f"of {len(text.stream)}")
    return len(text.stream) - 1


def _slice_windows(text: TextStore, first: ExampleNumbers, last: ExampleNumbers, numbers: ExampleNumbers, padding: int) -> Batch:
    """The windows from `first` up to `last`, which is not in them."""
    lengths = last - first
    index = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    ids, following = (text.stream[index + more].astype(np.int64) for more in (0, 1))
    text.release()
    inputs = pad_sequences(Ragged(ids, lengths), padding)
    if not len(lengths) or int(lengths.min()) == inputs.ids.shape[1]:
        inputs = Tokens(inputs.ids)  # all rows are full
    labels = pad_sequences(Ragged(following, lengths), IGNORED_LABEL).ids
    return Batch(None, inputs, labels, numbers, int(lengths.sum()))


# ---- config: How batches are asked for in a config file, and the feed that comes of it.
#
#     feed = batch_feed(store, special, BatchConfig(tokens=8192), seed=1)
#     feed = masked_feed(texts, special, BatchConfig(), MaskingConfig(), vocabulary=8000, seed=1)
#
# It puts the parts together: a plan of the store, a maker of batches, a feed. It knows no model.

SHAPE_CHOICES = ("as_drawn", "few")


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Config):
    """How large batches are, and how sequences lie in them."""

    max_tokens: int = integer(4096, minimum=1, old="tokens")
    """Of a batch: source and target together, with the start of each target, and padding counted."""
    batch_size: int | None = integer(None, minimum=1, old="rows")
    """Sequences of a batch at most; as many as the tokens allow where not given."""
    layout: str = choice(LAYOUTS, "padded")
    shapes: str = choice(SHAPE_CHOICES, "as_drawn")
    """Each batch as large as what is in it, or all filled up to one of few shapes, for devices that record a step once
    for each. Packed batches then have one shape, and hold pairs of any lengths."""
    prefetch: int = integer(2, minimum=1, old="ahead")
    """Batches that are made before they are asked for."""

    def limits(self) -> BatchLimits:
        """The limits that a plan keeps."""
        return BatchLimits(self.max_tokens, self.max_tokens if self.batch_size is None else self.batch_size)

    def most(self) -> int | None:
        """How many shapes batches may have; any number where None."""
        return MAX_SHAPES if self.shapes == "few" else None


def batch_feed(store: TokenStore, special: SpecialTokens, config: BatchConfig, *, seed: int, rank: int = 0,
               processes: int = 1, read: SequenceReader | None = None) -> PlanFeed:
    """A feed of pairs for an encoder-decoder, or of texts for a language model.

    Args:
        read: where the ids come from, such as `Sampled`; from the store itself where not given.
    """
    ends = BoundaryIds.of(special)
    maker = ShiftedCollator(read or StoredReader(store), ends, LAYOUTS[config.layout])
    extra = (0, 1) if isinstance(store, PairStore) else (1,)  # a target gets its start, or its end
    return _plan_feed(plan_from_config(store, config, seed=seed, extra=extra), maker, config, ends.padding, rank, processes)


def masked_feed(store: TextStore, special: SpecialTokens, config: BatchConfig, masking: MaskingConfig, *,
                vocabulary: int, seed: int, rank: int = 0, processes: int = 1) -> PlanFeed:
    """A feed of texts, some of whose tokens are hidden, for a masked model."""
    maker = MaskedCollator(StoredReader(store), special, vocabulary, masking, LAYOUTS[config.layout], seed)
    return _plan_feed(plan_from_config(store, config, seed=seed, extra=(0,)), maker, config, special.padding or 0, rank, processes)


def plan_from_config(store: TokenStore, config: BatchConfig, *, seed: int, extra: tuple[int, ...],
            longest: int | None = None) -> BucketPlan | PackedPlan:
    """Pairs of like lengths together; of packed batches of one shape, any pairs.

    Args:
        extra: how many ids each side gets more in a batch than it has in the store.
        longest: of each sequence so many ids are read at most. Buckets are of whole lengths whatever is read.
    """
    if config.layout == "packed" and config.shapes == "few":
        return plan_packed(store, config.limits(), seed=seed, extra=extra, longest=longest)
    return plan_batches(store, config.limits(), seed=seed, extra=extra, most=config.most())


def _plan_feed(plan: BucketPlan | PackedPlan, maker: BatchMaker, config: BatchConfig, padding: int, rank: int,
          processes: int) -> PlanFeed:
    """The feed of a plan, in the shapes that are asked for."""
    if config.shapes == "few":
        maker = FittedCollator(maker, plan.shapes, padding)
    return PlanFeed(plan, maker, rank=rank, processes=processes, largest=plan.largest() if plan.count else ())
