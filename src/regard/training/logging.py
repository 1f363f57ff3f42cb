"""Events of a training and the loggers that receive them: metrics.jsonl and TensorBoard.

    with LoggerCollection([MetricsLogger(path), progress(sys.stderr)]) as report:
        report(TrainingProgress(...))

Events are plain values. A logger that fails is reported once and then left out: a full disk or a closed terminal ends a
log, never a training.

metrics.jsonl has one JSON object a line, for the events `progress`, `judged` (a validation) and `ended`:

    {"event": "progress", "time": "2030-01-02T03:04:05+00:00", "step": 100, "loss": 2.31, ...}

Sentences of the data are not written; numbers that are not finite are null. When a training is resumed, lines of steps
that will run again are removed, so that each step is in the file once. The progress bar is part of the command line.
This module does not import torch.
"""

import importlib
import json
import math
import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from regard import checks

FAILURES = (OSError, ValueError, RuntimeError)
"""What a logger may raise when it can do no more: a full disk, a closed stream, a writer that has ended."""


class ShownDefault(NamedTuple):
    """Something that was not set and so followed from the data or the device."""

    key: str
    value: str
    reason: str


@dataclass(frozen=True)
class TrainingStarted:
    """A training begins, or goes on."""

    task: str
    parameters: int
    steps: int
    """Of the whole training, at most."""
    first_step: int
    """The first that will be made, from 1; later than 1 where a training goes on."""
    tokens_per_epoch: int | None
    device: str
    choices: tuple[ShownDefault, ...] = ()
    """Those that are to be shown."""
    score: str = "loss"
    """The one that tells the better model."""
    best: Mapping[str, float] = field(default_factory=dict)
    """All scores of the best model so far; empty where none was judged."""


@dataclass(frozen=True)
class TrainingProgress:
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
class Validated:
    """What the model is worth on data that it did not learn from."""

    step: int
    scores: Mapping[str, float]
    better: bool
    """Better than all before."""
    best: Mapping[str, float]
    """All scores of the best model so far, this one among them."""
    examples: "tuple[ValidationExample, ...]"
    seconds: float


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is on the disk."""

    step: int
    seconds: float


@dataclass(frozen=True)
class Note:
    """Something that a person should read."""

    text: str


@dataclass(frozen=True)
class TrainingEnded:
    """The training has ended, and why."""

    reason: str
    step: int
    best_step: int
    """The step of the best model; 0 where none was judged."""
    best: Mapping[str, float]
    seconds: float


TrainingEvent = TrainingStarted | TrainingProgress | Validated | CheckpointSaved | Note | TrainingEnded


class EventHandler(Protocol):
    """Anything that takes events; the `append` of a list is one."""

    def __call__(self, event: TrainingEvent, /) -> None: ...


class Logger(EventHandler, Protocol):
    """A reporter that holds something open: a file, or the last line of a terminal."""

    @property
    def name(self) -> str:
        """How it is called when it fails."""

    def close(self) -> None:
        """Give back what it holds. It may be called more than once."""


class LoggerCollection:
    """A reporter that gives each event to all its loggers, and goes on without one that fails."""

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self.loggers = list(loggers)
        self._waiting: deque[TrainingEvent] = deque()
        self._telling = False

    def __call__(self, event: TrainingEvent, /) -> None:
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

    def _tell(self, event: TrainingEvent) -> None:
        for logger in tuple(self.loggers):
            try:
                logger(event)
            except FAILURES as error:
                self.loggers.remove(logger)
                with suppress(*FAILURES):  # the same fault once more
                    logger.close()
                _report_failure(logger, error)

    def _close(self, logger: Logger) -> None:
        try:
            logger.close()
        except FAILURES as error:
            _report_failure(logger, error)


def _report_failure(logger: Logger, error: Exception) -> None:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    with suppress(OSError, ValueError):  # stderr may be what has failed
        if sys.stderr is not None:
            print(f"{logger.name}: could not write: {reason}; going on without it", file=sys.stderr, flush=True)


# ---- metrics: metrics.jsonl: what a training measured, one JSON object a line.
#
#     {"event": "progress", "time": "2030-01-02T03:04:05+00:00", "step": 100, "loss": 2.31, ...}
#
# `progress`, `judged` and `ended` have a line, with the fields of the events of `regard.training.logging`; sentences of
# the data are not among them. What is no finite number is null. A file is of one training: when that starts or goes on,
# lines of steps which it makes again are cut off, so every step is in the file once, however often it was killed.
#
# It knows events and lines. It does not know what the numbers mean.

EVENT_NAMES = {TrainingProgress: "progress", Validated: "judged", TrainingEnded: "ended"}
UNWRITTEN_FIELDS = {"examples"}
"""Fields with sentences of the data."""


class MetricsLogger:
    """A logger that adds a line to a file for every event that has numbers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, TrainingStarted):
            self.resume(event.first_step - 1)
        kind = EVENT_NAMES.get(type(event))
        if kind is None:
            return
        line = {"event": kind, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        line |= {each.name: _json_value(getattr(event, each.name)) for each in fields(event) if each.name not in UNWRITTEN_FIELDS}
        # Opened anew for every line: saving a model may put another folder in the place of the one around the file.
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def resume(self, step: int) -> None:
        """Keep the lines up to this step: a training goes on behind it. The line of an end goes too, and a torn one."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        kept = b"".join(line for line in data.splitlines(keepends=True) if _keeps_line(line, step))
        if kept == data:
            return
        aside = self.path.with_name(f".{self.path.name}.cut")  # the old lines are there until the new file is whole
        aside.write_bytes(kept)
        os.replace(aside, self.path)

    def close(self) -> None:
        """Nothing is held between two lines."""


def _keeps_line(line: bytes, step: int) -> bool:
    """Whether a line is whole, and told of a step up to this one."""
    try:
        found = json.loads(line)
    except ValueError:  # also what is not UTF-8
        return False
    if not line.endswith(b"\n") or not isinstance(found, dict) or found.get("event") == EVENT_NAMES[TrainingEnded]:
        return False
    return isinstance(found.get("step"), int) and found["step"] <= step


def _json_value(value: Any) -> Any:
    """The value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    number = float(value)
    return number if math.isfinite(number) else None


# ---- tracking: A training in TensorBoard: its numbers as curves.
#
#     tensorboard --logdir model/tensorboard
#
# Needs the extra `track`. Whether it is there is asked when a `TensorBoard` is made, before any work, and torch's writer
# is opened when the training starts. A training that goes on hides what was told of later steps. It knows events and
# scalars, and nothing else of TensorBoard.

PROGRESS_SCALARS = ("loss", "nll", "rate", "gradient_norm", "tokens_per_second", "epoch", "memory")
"""Fields of `Progress` that have a curve."""


class TensorBoardLogger:
    """A logger that writes event files for TensorBoard into a folder."""

    name = "TensorBoard"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self._module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise checks.wrong("tensorboard", "installed, to track a training", f"not ({error})",
                               'Install it: pip install "regard[track]".') from error
        self._writer: Any = None

    def __call__(self, event: TrainingEvent, /) -> None:
        match event:
            case TrainingStarted():
                self.close()
                # What was told of steps that are made again is hidden: an interrupted training had come further.
                self._writer = self._open(event.first_step if event.first_step > 1 else None)
            case TrainingProgress():
                told = {f"training/{name}": getattr(event, name) for name in PROGRESS_SCALARS}
                self._write({tag: value for tag, value in told.items() if value is not None}, event.step)
            case Validated():
                self._write({f"validation/{name}": value for name, value in event.scores.items()}, event.step)
                self._writer.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self, hidden_from: int | None) -> Any:
        return self._module.SummaryWriter(str(self.folder), purge_step=hidden_from)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        if self._writer is None:
            self._writer = self._open(None)
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)


# ---- work: What a training is about, told to a loop that knows nothing of it: batches, a loss, a score, and what is saved.
#
#     work.feed(rank, processes).at(step)      a batch, with `tokens`: how many things in it are learned from
#     work.objective(model)(batch)             its Loss: sums over them
#     work.validate(task)                      Verdict(scores, examples) on data that was not learned from
#     work.task(model)                         what a person holds in the end
#     work.complete(task)                      what it has besides a model, chosen by that data; then it is saved
#
# There is one work for each way to train: translation, language, masked, classification (`regard.training.works`). Here
# is only what they share. It does not know optimisers, steps or files.


class ValidationExample(NamedTuple):
    """What the model makes of one example of the validation data, to be shown."""

    given: str
    wanted: str
    made: str
