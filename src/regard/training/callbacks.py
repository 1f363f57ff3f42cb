"""Callbacks: a user's functions that follow a training from Python, and may stop it.

    def stop_when_good(event: CallbackEvent) -> None:
        if event.scores.get("bleu", 0) > 30:
            raise StopTraining

    regard.train(data, "model", callbacks=[stop_when_good])

A callback is called after every log interval (`training.log_every` steps) and after every validation. `StopTraining`
ends the training cleanly: the model is validated and saved, and `regard.train` returns the best one. With any other
exception a checkpoint is saved, and the exception is raised again, so that the training can be resumed.

An exception is kept here until the step is complete: raised in the middle of one, it would leave no state to save.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from regard import checks
from regard.training.logging import TrainingEvent, TrainingProgress, TrainingStarted, Validated


class StopTraining(Exception):  # noqa: N818  (the name that users of other libraries know)
    """Raised by a callback to end the training cleanly: the model is validated, saved and returned."""


@dataclass(frozen=True)
class CallbackEvent:
    """How far a training has come: passed to callbacks after every log interval and every validation."""

    step: int
    """The number of finished steps."""
    steps: int
    """The last step."""
    epoch: float
    """The number of finished epochs; 1.5 is the middle of the second."""
    loss: float
    """The training loss per token since the last log interval; NaN before the first one."""
    learning_rate: float
    scores: Mapping[str, float] = field(default_factory=dict)
    """The scores of this validation, such as "loss", "bleu" and "chrf"; empty for a log interval."""
    best: bool = False
    """Whether this validation was the best so far, so that its model was saved."""
    tokens_per_second: float = 0.0
    seconds: float = 0.0
    """Training time so far, over all interruptions."""


Callback = Callable[[CallbackEvent], object]


class CallbackLogger:
    """A logger that calls callbacks, and keeps what they raise until the loop asks for it."""

    name = "callbacks"

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        for number, callback in enumerate(callbacks):
            if not callable(callback):
                raise checks.wrong("callbacks", "functions that take a CallbackEvent",
                                   f"{checks.kind(callback)[0]} at {number}")
        self.callbacks = tuple(callbacks)
        self.error: Exception | None = None
        """The exception of a callback that failed."""
        self.stopped = False
        """Whether a callback raised `StopTraining`."""
        self._latest = CallbackEvent(0, 0, 0.0, float("nan"), 0.0)

    @property
    def ending(self) -> bool:
        """Whether the training is to end after this step."""
        return self.stopped or self.error is not None

    def __call__(self, event: TrainingEvent, /) -> None:
        match event:
            case TrainingStarted():
                self._latest = replace(self._latest, step=event.first_step - 1, steps=event.steps)
            case TrainingProgress():
                self._latest = CallbackEvent(event.step, event.steps, event.epoch, event.loss, event.rate,
                                             tokens_per_second=event.tokens_per_second, seconds=event.seconds)
                self._call(self._latest)
            case Validated():
                self._call(replace(self._latest, step=event.step, scores=dict(event.scores), best=event.better))

    def close(self) -> None:
        """Nothing to close."""

    def _call(self, event: CallbackEvent) -> None:
        for callback in self.callbacks:
            if self.error is None:
                with _KeepException(self):
                    callback(event)


class _KeepException:
    """Keeps an exception of a callback, whatever it is: it is raised again when the checkpoint is saved."""

    def __init__(self, logger: CallbackLogger) -> None:
        self.logger = logger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool:
        if isinstance(error, StopTraining):
            self.logger.stopped = True
        elif isinstance(error, Exception):
            self.logger.error = error
        return isinstance(error, Exception)  # KeyboardInterrupt and SystemExit end the training at once
