"""What a training tells while it runs, and who is told.

    with Reporters([Metrics(path), progress(sys.stderr)]) as report:
        report(Progress(...))

Events are plain values. A `Reporter` is anything that takes one; a `Logger` is one with a name and an end, such as a
file or a bar. `Reporters` gives every event to all loggers. One that fails is told of once and left out from then on: a
full disk or a closed terminal ends a log, never a training.

It does not know how anything is shown or written, and does not import torch.
"""

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from regard.training.work import Example

FAILURES = (OSError, ValueError, RuntimeError)
"""What a logger may raise when it can do no more: a full disk, a closed stream, a writer that has ended."""


class Choice(NamedTuple):
    """Something that was not set and so followed from the data or the device."""

    key: str
    value: str
    reason: str


@dataclass(frozen=True)
class Started:
    """A training begins, or goes on."""

    task: str
    parameters: int
    steps: int
    """Of the whole training, at most."""
    first_step: int
    """The first that will be made, from 1; later than 1 where a training goes on."""
    tokens_per_epoch: int | None
    device: str
    choices: tuple[Choice, ...] = ()
    """Those that are to be shown."""
    score: str = "loss"
    """The one that tells the better model."""
    best: Mapping[str, float] = field(default_factory=dict)
    """All scores of the best model so far; empty where none was judged."""


@dataclass(frozen=True)
class Progress:
    """How it went since the last time this was told."""

    step: int
    """How many are done."""
    steps: int
    epoch: float
    """How many are done; 1.5 is in the middle of the second."""
    loss: float
    """What is minimised, a token."""
    nll: float
    """-log p of the labels, a token."""
    rate: float
    gradient_norm: float
    tokens: int
    """Learned from since the start of the training."""
    seconds: float
    """Since the start of the training."""
    tokens_per_second: float
    memory: int | None
    """The most bytes that were held on the device; None where it does not say."""


@dataclass(frozen=True)
class Judged:
    """What the model is worth on data that it did not learn from."""

    step: int
    scores: Mapping[str, float]
    better: bool
    """Better than all before."""
    best: Mapping[str, float]
    """All scores of the best model so far, this one among them."""
    examples: "tuple[Example, ...]"
    seconds: float


@dataclass(frozen=True)
class Stored:
    """A checkpoint is on the disk."""

    step: int
    seconds: float


@dataclass(frozen=True)
class Note:
    """Something that a person should read."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The training has ended, and why."""

    reason: str
    step: int
    best_step: int
    """The step of the best model; 0 where none was judged."""
    best: Mapping[str, float]
    seconds: float


Event = Started | Progress | Judged | Stored | Note | Ended


class Reporter(Protocol):
    """Anything that takes events; the `append` of a list is one."""

    def __call__(self, event: Event, /) -> None: ...


class Logger(Reporter, Protocol):
    """A reporter that holds something open: a file, or the last line of a terminal."""

    @property
    def name(self) -> str:
        """How it is called when it fails."""

    def close(self) -> None:
        """Give back what it holds. It may be called more than once."""


class Reporters:
    """A reporter that gives each event to all its loggers, and goes on without one that fails."""

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self.loggers = list(loggers)
        self._waiting: deque[Event] = deque()
        self._telling = False

    def __call__(self, event: Event, /) -> None:
        self._waiting.append(event)
        if self._telling:  # this comes from a signal in the middle of another event, and its turn comes after that:
            return         # a stream cannot be written to while it is written to
        self._telling = True
        try:
            while self._waiting:
                self._tell(self._waiting.popleft())
        finally:
            self._telling = False

    def close(self) -> None:
        """Close all loggers, each whatever becomes of the others."""
        with ExitStack() as stack:
            for logger in reversed(self.loggers):
                stack.callback(self._close, logger)
        self.loggers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _tell(self, event: Event) -> None:
        for logger in tuple(self.loggers):
            try:
                logger(event)
            except FAILURES as error:
                self.loggers.remove(logger)
                with suppress(*FAILURES):  # the same fault once more
                    logger.close()
                _complain(logger, error)

    def _close(self, logger: Logger) -> None:
        try:
            logger.close()
        except FAILURES as error:
            _complain(logger, error)


def _complain(logger: Logger, error: Exception) -> None:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    with suppress(OSError, ValueError):  # stderr may be what has failed
        if sys.stderr is not None:
            print(f"{logger.name}: could not write: {reason}; going on without it", file=sys.stderr, flush=True)
