"""Events of a training and the loggers that receive them: metrics.jsonl, TensorBoard and Python's own logging.

    with LoggerCollection([MetricsLogger(path), progress(sys.stderr)]) as report:
        report(TrainingProgress(...))

Events are plain values. A logger that fails is reported once and then left out: a full disk or a closed terminal ends a
log, never a training.

metrics.jsonl has one JSON object a line, for the events `progress`, `validation` and `ended`:

    {"event": "progress", "time": "2030-01-02T03:04:05+00:00", "step": 100, "loss": 2.31, ...}

Sentences of the data are not written; numbers that are not finite are null. When a training is resumed, lines of steps
that will run again are removed, so that each step is in the file once. Nothing is printed here: warnings and messages
go to Python's logger "regard", and the progress bar is part of the command line. This module does not import torch.
"""

import importlib
import json
import logging
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from regard import checks
from regard.storage import filesystem
from regard.storage.metrics import ENDED, PROGRESS, VALIDATION, parse_line
from regard.training.choices import Choice
from regard.training.defaults import Default

LOG = logging.getLogger("regard.training")
ALL_STEPS_DONE, PATIENCE_ENDED = "all steps are done", "the score has stopped improving"
TIME_IS_UP, INTERRUPTED = "the time limit is reached", "interrupted by the user"
STOPPED, FAILED = "stopped by a callback", "a callback failed"
"""Reasons for the end of a training."""
FAILURES = (OSError, ValueError, RuntimeError)
"""What a failing logger may raise: a full disk, a closed stream, a writer that has ended."""


@dataclass(frozen=True)
class TrainingStarted:
    """A training starts or is resumed."""

    task: str
    parameters: int
    steps: int
    """The last step, unless patience ends the training before."""
    first_step: int
    """The first step that will run, from 1; later if the training is resumed."""
    device: str
    defaults: tuple[Default, ...] = ()
    """The defaults of keys that the user has not set, with their values as text."""
    score: str = "loss"
    """The score that the best model is chosen by."""
    best: Mapping[str, float] = field(default_factory=dict)
    """All scores of the best model so far; empty before the first validation."""
    choices: tuple[Choice, ...] = ()
    """The eight choices that matter most, with reasons."""
    settings: tuple[Default, ...] = ()
    """All keys of the config, with their values as text and their reasons."""


@dataclass(frozen=True)
class TrainingProgress:
    """Losses and speed since the last event of this kind."""

    step: int
    """The number of finished steps."""
    steps: int
    epoch: float
    """The number of finished epochs; 1.5 is the middle of the second."""
    loss: float
    """The training loss per token."""
    nll: float
    """-log p of the labels per token, without label smoothing."""
    rate: float
    """The learning rate."""
    gradient_norm: float
    tokens: int
    """Training tokens since the start of the training."""
    seconds: float
    """Since the start of the training."""
    tokens_per_second: float
    memory: int | None
    """The peak memory in bytes; None if the device does not report it."""
    seconds_left: float | None = None
    """Estimated seconds to the end, with the validations to come."""


@dataclass(frozen=True)
class TimeEstimated:
    """The duration of the training was estimated: some steps and a part of a validation were timed."""

    seconds: float
    """To the end of the training."""
    steps: int
    """Steps that will run."""
    step_seconds: float
    validation_seconds: float
    device: str
    """In words, such as "2 CPU cores"."""
    max_time: float | None = None
    """The time limit in seconds."""
    max_steps: int = 0
    """Steps of the training without a time limit."""
    warmup_steps: int | None = None
    """Steps of the linear warm-up, fitted into the time limit; None without one."""
    validation_every: int | None = None
    """Steps between two validations, fitted into the time limit; None without one."""


class ValidationExample(NamedTuple):
    """One validation example with the output of the model, to be shown."""

    input: str
    target: str
    output: str


@dataclass(frozen=True)
class Validated:
    """The model was scored on the validation data."""

    step: int
    scores: Mapping[str, float]
    better: bool
    """Whether it is the best model so far."""
    best: Mapping[str, float]
    """All scores of the best model so far, which may be this one."""
    examples: tuple[ValidationExample, ...]
    seconds: float


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint was saved."""

    step: int
    seconds: float


@dataclass(frozen=True)
class Note:
    """A message to the user."""

    text: str
    warning: bool = False
    """Whether it is shown even if the user wants no progress."""


@dataclass(frozen=True)
class TrainingEnded:
    """The training has ended, and why."""

    reason: str
    step: int
    best_step: int
    """The step of the best model; 0 if none was validated, or if no step was better than the start model."""
    best: Mapping[str, float]
    seconds: float
    steps: int | None = None
    """The last step of the training as it was planned."""
    waited: int = 0
    """Validations since the best one."""
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The 95 % confidence intervals of the best scores, (low, high), of those that have one."""


@dataclass(frozen=True)
class SynthesisProgress:
    """A model writes synthetic sentence pairs, before the training."""

    step: int
    """The sentences that are written, those of interrupted runs included."""
    steps: int
    """The sentences in all."""
    per_second: float
    seconds_left: float | None = None


TrainingEvent = (TrainingStarted | TimeEstimated | TrainingProgress | Validated | CheckpointSaved | Note | TrainingEnded
                 | SynthesisProgress)
EVENT_NAMES = {TrainingProgress: PROGRESS, Validated: VALIDATION, TrainingEnded: ENDED}
"""The events in metrics.jsonl."""
UNWRITTEN_FIELDS = {"examples", "seconds_left"}
"""Fields with sentences of the data, and a forecast."""
PROGRESS_SCALARS = ("loss", "nll", "rate", "gradient_norm", "tokens_per_second", "epoch", "memory")
"""Fields of `TrainingProgress` that TensorBoard shows."""


logging.getLogger("regard").addHandler(logging.NullHandler())  # silent, unless the program sets up logging


class EventHandler(Protocol):
    """Any callable that takes events, such as the `append` of a list."""

    def __call__(self, event: TrainingEvent, /) -> None: ...


class Logger(EventHandler, Protocol):
    """An event handler with a resource: a file, or the last line of a terminal."""

    @property
    def name(self) -> str:
        """Its name in error messages."""

    def close(self) -> None:
        """Release the resource. It may be called more than once."""


class LoggerCollection:
    """Passes each event to all loggers, and leaves out a logger that fails."""

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self.loggers = list(loggers)
        self._pending: deque[TrainingEvent] = deque()
        self._sending = False

    def __call__(self, event: TrainingEvent, /) -> None:
        self._pending.append(event)
        if self._sending:  # called by a signal handler in the middle of another event: a stream that is being written
            return         # cannot be written to, so this event is sent after that one
        self._sending = True
        try:
            while self._pending:
                self._send(self._pending.popleft())
        finally:
            self._sending = False

    def close(self) -> None:
        """Close all loggers, even if some of them fail."""
        with ExitStack() as stack:
            for logger in reversed(self.loggers):
                stack.callback(self._close, logger)
        self.loggers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _send(self, event: TrainingEvent) -> None:
        for logger in tuple(self.loggers):
            try:
                logger(event)
            except FAILURES as error:
                self.loggers.remove(logger)
                with suppress(*FAILURES):  # probably the same failure again
                    logger.close()
                _report_failure(logger, error)

    def _close(self, logger: Logger) -> None:
        try:
            logger.close()
        except FAILURES as error:
            _report_failure(logger, error)


def _report_failure(logger: Logger, error: Exception) -> None:
    """Warn through Python's logging; the command line prints such warnings on stderr."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    with suppress(OSError, ValueError):  # stderr itself may have failed
        LOG.warning("%s: could not write: %s. The training continues without it.", logger.name, reason)


class MetricsLogger:
    """Appends a line to metrics.jsonl for every event that has numbers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, TrainingStarted):  # from the beginning, the start model is validated again as step 0
            self.resume(event.first_step - 1 if event.first_step > 1 else -1)
        kind = EVENT_NAMES.get(type(event))
        if kind is None:
            return
        line = {"event": kind, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        line |= {each.name: _json_value(getattr(event, each.name)) for each in fields(event)
                 if each.name not in UNWRITTEN_FIELDS}
        # Opened for every line: saving a model may replace the folder around the file.
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def resume(self, step: int) -> None:
        """Keep the complete lines up to this step, without that of an end, and with today's names of events."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        kept = b"".join(_kept_line(line, step) for line in data.splitlines(keepends=True))
        if kept == data:
            return
        filesystem.write_file(self.path, kept)  # the old file stays until the new one is complete

    def close(self) -> None:
        """Nothing to do: the file is closed after every line."""


def _kept_line(line: bytes, step: int) -> bytes:
    """The line if it is complete and of a step up to this one, else nothing."""
    try:
        entry = parse_line(line)
    except ValueError:  # also invalid UTF-8
        return b""
    if not line.endswith(b"\n") or not isinstance(entry, dict) or entry.get("event") == ENDED:
        return b""
    if not isinstance(entry.get("step"), int) or entry["step"] > step:
        return b""
    renamed = entry.get("event") != json.loads(line).get("event")
    return f"{json.dumps(entry)}\n".encode() if renamed else line


def _json_value(value: Any) -> Any:
    """The value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_json_value, value)]
    number = float(value)
    return number if math.isfinite(number) else None


class StandardLogger:
    """Passes events to Python's logging, at level INFO under the name "regard.training".

        logging.basicConfig(level=logging.INFO)       shows them
    """

    name = "regard.training"

    def __call__(self, event: TrainingEvent, /) -> None:
        match event:
            case TrainingStarted():
                LOG.info("training %s: %d parameters, steps %d to %d, on %s", event.task, event.parameters,
                         event.first_step, event.steps, event.device)
            case TrainingProgress():
                LOG.info("step %d/%d: loss %.4g, learning rate %.3g, %.0f tokens/s", event.step, event.steps,
                         event.loss, event.rate, event.tokens_per_second)
            case Validated():
                scores = ", ".join(f"{name} {value:.4g}" for name, value in event.scores.items())
                LOG.info("validation at step %d: %s%s", event.step, scores, " (best)" if event.better else "")
            case CheckpointSaved():
                LOG.debug("checkpoint of step %d saved in %.2f s", event.step, event.seconds)
            case Note():
                LOG.info("%s", event.text)
            case SynthesisProgress():
                LOG.info("sentence %d/%d: %.1f sentences/s", event.step, event.steps, event.per_second)
            case TrainingEnded():
                LOG.info("ended after step %d: %s; best model: step %d", event.step, event.reason, event.best_step)

    def close(self) -> None:
        """Nothing to close."""


class TensorBoardLogger:
    """Writes event files for TensorBoard into a folder; it needs the extra `track`.

    The package is imported at once, before any work; the file is opened when the training starts.
    """

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
                # Steps that an interrupted training had run, and that run again now, are hidden.
                self._writer = self._open(event.first_step if event.first_step > 1 else None)
            case TrainingProgress():
                values = {f"training/{name}": getattr(event, name) for name in PROGRESS_SCALARS}
                self._write({tag: value for tag, value in values.items() if value is not None}, event.step)
            case Validated():
                self._write({f"validation/{name}": value for name, value in event.scores.items()}, event.step)
                self._writer.flush()

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self, purge_step: int | None) -> Any:
        return self._module.SummaryWriter(str(self.folder), purge_step=purge_step)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        if self._writer is None:
            self._writer = self._open(None)
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
