"""One long text, cut into windows for language models: in its order, or shuffled.

    Streams(text, length=256, rows=32, padding=0)     row b of a step goes on where row b of the step before ended
    Feed(WindowPlan(...), Windows(...))               windows in an order that is new in every epoch
    Feed(WindowPlan(...), MovingWindows(...))         and that begin elsewhere in every epoch

A window has inputs and labels, which are the ids that come next. Every id of the text but the first is a label exactly
once an epoch; at the end windows may be shorter. With `Streams` a state can be carried from step to step (truncated
back-propagation through time); at turn 0 of an epoch the text begins anew, and so must the state.

It does not know where one text of several ends, unless an id in it says so.

Legend: B rows, N ids of a window.
"""

from dataclasses import dataclass

import numpy as np

from regard import checks
from regard.config import Config, choice, whole
from regard.data.batches.batch import Batch, padded
from regard.data.batches.buckets import Numbers
from regard.data.batches.feed import Feed, Place, Steps, check_rank
from regard.data.batches.order import Order, key
from regard.data.store import Ragged, TextStore
from regard.models.contract import IGNORED, Tokens

ORDERS = ("continuous", "shuffled")


@dataclass(frozen=True, kw_only=True)
class WindowConfig(Config):
    """How a text is cut."""

    length: int = whole(256, least=1)
    """Ids of a window."""
    rows: int = whole(32, least=1)
    """Windows side by side: continuous ones on all processes together, which share the text; shuffled ones on each."""
    order: str = choice(ORDERS, "shuffled")


class Streams(Steps):
    """The text divided into `rows` parts of nearly equal lengths, all read at the same time, window after window.

    The rows are those of all processes together; each process has its share of them, always the same.
    """

    def __init__(self, text: TextStore, *, length: int, rows: int, padding: int = 0, rank: int = 0,
                 processes: int = 1) -> None:
        check_rank(rank, processes)
        labels = _labels(text)
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

    def make(self, place: Place) -> Batch:
        """The windows of this process at a place."""
        first = np.minimum(self.first + place.turn * self.length, self.last)
        return _cut(self.text, first, np.minimum(first + self.length, self.last), self.numbers, self.padding)


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

    def batch(self, epoch: int, index: int) -> Numbers:
        """The numbers of the windows of the index-th batch of an epoch."""
        last = min((index + 1) * self.rows, self.windows)
        return Order(self.windows, key(self.seed, epoch))(np.arange(index * self.rows, last))


@dataclass(frozen=True)
class Windows:
    """Makes batches of windows by their numbers: window i begins at i · length."""

    text: TextStore
    length: int
    padding: int = 0

    @property
    def count(self) -> int:
        """How many windows the text has."""
        return -(-_labels(self.text) // self.length)

    def __call__(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        first = numbers * self.length
        return _cut(self.text, first, np.minimum(first + self.length, _labels(self.text)), numbers, self.padding)


@dataclass(frozen=True)
class MovingWindows:
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
        return -(-_labels(self.text) // self.length) + 1

    def __call__(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        labels, shift = _labels(self.text), 1 + key(self.seed, epoch, 1) % self.length
        first = (numbers - 1) * self.length + shift
        last = np.clip(first + self.length, 0, labels)
        return _cut(self.text, np.clip(first, 0, last), last, numbers, self.padding)


def window_feed(text: TextStore, config: WindowConfig, *, seed: int, padding: int = 0, rank: int = 0,
                processes: int = 1) -> Steps:
    """The feed that a config asks for."""
    if config.order == "continuous":
        return Streams(text, length=config.length, rows=config.rows, padding=padding, rank=rank, processes=processes)
    windows = Windows(text, config.length, padding)
    return Feed(WindowPlan(windows.count, config.rows, seed), windows, rank=rank, processes=processes)


def _labels(text: TextStore) -> int:
    """How many ids have one before them."""
    if len(text.stream) < 2:
        raise checks.wrong("text", "of at least two ids", f"of {len(text.stream)}")
    return len(text.stream) - 1


def _cut(text: TextStore, first: Numbers, last: Numbers, numbers: Numbers, padding: int) -> Batch:
    """The windows from `first` up to `last`, which is not in them."""
    lengths = last - first
    index = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    ids, following = (text.stream[index + more].astype(np.int64) for more in (0, 1))
    text.release()
    inputs = padded(Ragged(ids, lengths), padding)
    if not len(lengths) or int(lengths.min()) == inputs.ids.shape[1]:
        inputs = Tokens(inputs.ids)  # all rows are full
    labels = padded(Ragged(following, lengths), IGNORED).ids
    return Batch(None, inputs, labels, numbers, int(lengths.sum()))
