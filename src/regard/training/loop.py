"""The training loop: step after step, with logging, validation and checkpoints; from the start, or resumed.

    every step          learn from its batches, at the learning rate of the schedule
    periodically        log progress; validate, and save the model if it is the best so far; save a checkpoint
    at the end          of the steps, of the patience, or on Ctrl-C or SIGTERM

All that a step depends on follows from its number and from the checkpoint, so a training that was killed and resumed
equals the uninterrupted one, bit for bit on a CPU. The loop knows neither data nor models: a `TrainingTask` does.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from regard.data.batches.feed import prefetch_steps
from regard.tasks.task import Task
from regard.training import snapshot as snapshots
from regard.training.checkpoints import CheckpointManager
from regard.training.config import HIGHER_IS_BETTER, TrainingConfig
from regard.training.engine import StepTotals, TrainingEngine, pin_batch
from regard.training.logging import CheckpointSaved, EventHandler, Note, TrainingEnded, TrainingProgress, Validated
from regard.training.snapshot import StoredState
from regard.training.tasks.interface import BatchLoader, TrainingTask, ValidationResult

ALL_STEPS_DONE, PATIENCE_ENDED = "all steps are done", "the score has stopped improving"
INTERRUPTED = "interrupted by the user"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingError(Exception):
    """A training failed for a reason that the message explains to the user."""


@dataclass(frozen=True)
class TrainingState:
    """How far a training has come; stored beside the tensors of a checkpoint."""

    step: int = 0
    best: float | None = None
    """The best score."""
    best_step: int = 0
    best_scores: dict[str, float] | None = None
    waited: int = 0
    """Validations since the best one."""
    tokens: int = 0
    """Training tokens so far."""
    seconds: float = 0.0
    """Training time so far, over all interruptions."""


@dataclass
class TrainingLoop:
    """A training that is ready to run."""

    training_task: TrainingTask
    task: Task
    engine: TrainingEngine
    settings: TrainingConfig
    checkpoints: CheckpointManager
    report: EventHandler
    save_best: Callable[[TrainingState], None]
    """Saves the model as it is now; called whenever it is the best so far."""
    identity: Mapping[str, Any]
    """What a resumed training must share with the stored one: config and data."""

    def run(self, state: TrainingState) -> TrainingState:
        """Train from this state to the end."""
        settings, engine = self.settings, self.engine
        feed = self._feed()
        started = time.monotonic() - state.seconds
        last = time.monotonic()
        engine.module.train()
        with InterruptHandler(lambda text: self.report(Note(text))) as interrupt:
            for step, batches in self._steps(feed, state.step + 1):
                engine.step(step, batches, settings.schedule.rate(step))
                state = replace(state, step=step)
                interrupted = engine.processes.any(interrupt.requested)
                validate = step == settings.steps or step % settings.validation.every == 0
                store = validate or interrupted or step % settings.checkpoints.every == 0
                if store or step % settings.log_every == 0:
                    state, last = self._log(state, feed, started, last)
                elif engine.device.type == "cpu":  # reading a GPU would wait for it
                    self._check_finite(engine.bad_step(), feed)
                if validate:
                    state = self._validate(state)
                if store:
                    self._save_checkpoint(replace(state, seconds=time.monotonic() - started))
                if interrupted or stop_reason(state, settings):
                    break
        state = replace(state, seconds=time.monotonic() - started)
        self.report(ended_event(stop_reason(state, settings) or INTERRUPTED, state))
        return state

    def resume(self, stored: StoredState) -> None:
        """Restore the state of a checkpoint."""
        snapshots.restore_snapshot(self.engine, stored)

    def try_largest(self) -> None:
        """Compute the gradients of the largest batches and discard them, to find out now whether they fit in memory."""
        self.engine.module.train()
        for batch in self._feed().largest():
            try:
                self.engine.try_batch(batch)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "memory" not in str(error):
                    raise
                windows = self.settings.windows
                key, size = (("batches.max_tokens", self.settings.batches.max_tokens) if windows is None else
                             ("windows.batch_size", windows.batch_size))
                raise TrainingError(
                    f"a batch of {batch.tokens:,} tokens does not fit into the memory of {self.engine.device}. Try "
                    f"--set training.{key}={max(1, size // 2)} "
                    f"--set training.gradient_accumulation={2 * self.settings.gradient_accumulation}, "
                    f"which computes the same step in smaller parts, or a smaller model.") from error

    def _feed(self) -> BatchLoader:
        return self.training_task.feed(self.engine.processes.rank, self.engine.processes.count)

    def _steps(self, feed: BatchLoader, first: int) -> Iterator[tuple[int, list[Any]]]:
        """Each step with its batches, which are prefetched."""
        count, pin = self.settings.gradient_accumulation, self.engine.device.type == "cuda"

        def make(step: int) -> tuple[int, list[Any]]:
            batches = [feed.at((step - 1) * count + part) for part in range(count)]
            return step, [pin_batch(batch) for batch in batches] if pin else batches

        return prefetch_steps(make, range(first, self.settings.steps + 1), prefetch=self.settings.batches.prefetch)

    def _log(self, state: TrainingState, feed: BatchLoader, started: float, last: float) -> tuple[TrainingState, float]:
        """Report the steps since the last call, and stop if the loss of one was not finite."""
        totals = self.engine.read()
        self._check_finite(totals.bad, feed)
        if not totals.steps:
            return state, last
        now = time.monotonic()
        state = replace(state, tokens=state.tokens + totals.tokens)
        self.report(self._progress(state, totals, feed, now - started, now - last))
        return state, now

    def _progress(self, state: TrainingState, totals: StepTotals, feed: BatchLoader, seconds: float,
                  since_last: float) -> TrainingProgress:
        batches = state.step * self.settings.gradient_accumulation
        tokens = max(1, totals.tokens)
        return TrainingProgress(
            step=state.step, steps=self.settings.steps, epoch=batches / feed.steps, loss=totals.total / tokens,
            nll=totals.nll / tokens, rate=self.settings.schedule.rate(state.step),
            gradient_norm=totals.norm / totals.steps, tokens=state.tokens, seconds=seconds,
            tokens_per_second=totals.tokens / max(since_last, 1e-9), memory=self.engine.memory())

    def _validate(self, state: TrainingState) -> TrainingState:
        """Score the model, and save it if none was better."""
        start, score = time.monotonic(), self.settings.validation.metric
        with self.engine.averaged(), _evaluation(self.engine):
            result = self._validation_result()
            value = result.scores[score]
            better = math.isfinite(value) and (state.best is None or _is_better(score, value, state.best))
            if better:
                state = replace(state, best=value, best_step=state.step, best_scores=dict(result.scores), waited=0)
                self.save_best(state)
            else:
                state = replace(state, waited=state.waited + 1)
        self.report(Validated(state.step, dict(result.scores), better, state.best_scores or {}, result.examples,
                              time.monotonic() - start))
        return state

    def _validation_result(self) -> ValidationResult:
        """The scores that the main process computes, sent to all, so that all decide alike."""
        processes = self.engine.processes
        if self.engine.sharded:
            return ValidationResult({"loss": self.engine.mean_loss(self.training_task.validation_batches())})
        result = self.training_task.validate(self.task) if processes.main else None
        scores = processes.broadcast({} if result is None else dict(result.scores))
        return ValidationResult(scores, () if result is None else result.examples)

    def _save_checkpoint(self, state: TrainingState) -> None:
        start = time.monotonic()
        snapshot = snapshots.take_snapshot(self.engine, {"standing": asdict(state), "identity": self.identity})
        processes = self.engine.processes
        notes = self.checkpoints.save(state.step, snapshot, best=state.best_step or None, rank=processes.rank,
                                      processes=processes.count, barrier=processes.barrier)
        for note in notes:
            self.report(Note(note))
        self.report(CheckpointSaved(state.step, time.monotonic() - start))

    def _check_finite(self, bad_step: int | None, feed: BatchLoader) -> None:
        """Stop if the loss of a step was not finite."""
        if bad_step is None:
            return
        count = self.settings.gradient_accumulation
        numbers = [int(number) for part in range(count) for number in feed.at((bad_step - 1) * count + part).numbers]
        shown = ", ".join(str(number) for number in numbers[:10]) + (", ..." if len(numbers) > 10 else "")
        stored = ("The last checkpoint is from before that step." if self.checkpoints.steps() else
                  "No checkpoint was saved yet.")
        raise TrainingError(
            f"step {bad_step}: the loss is not a finite number. Its batch has the examples {shown} (numbered from 0, "
            f"after filtering). {stored} Try a smaller learning rate, such as "
            f"--set training.schedule.learning_rate={self.settings.schedule.learning_rate / 2:g}, or "
            f"--set training.precision=float32.")


def stored_training_state(stored: StoredState) -> TrainingState:
    """The training state of a checkpoint."""
    return TrainingState(**stored.values["standing"])


def stop_reason(state: TrainingState, settings: TrainingConfig) -> str | None:
    """Why there is nothing left to do; None if there is."""
    patience = settings.validation.patience
    if state.step >= settings.steps:
        return ALL_STEPS_DONE
    return PATIENCE_ENDED if patience is not None and state.waited >= patience else None


def ended_event(reason: str, state: TrainingState) -> TrainingEnded:
    """The event of the end of a training."""
    return TrainingEnded(reason, state.step, state.best_step, state.best_scores or {}, state.seconds)


def _is_better(score: str, value: float, best: float) -> bool:
    return value > best if HIGHER_IS_BETTER[score] else value < best


@contextmanager
def _evaluation(engine: TrainingEngine) -> Iterator[None]:
    """Evaluation mode; afterwards mode and random state are as they were."""
    mode, random_state = engine.module.training, torch.get_rng_state()
    engine.module.eval()
    try:
        yield
    finally:
        engine.module.train(mode)
        torch.set_rng_state(random_state)


class InterruptHandler:
    """Ctrl-C or SIGTERM during a training: the first sets `requested`, the second raises KeyboardInterrupt at once."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify, self.requested = notify, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set signal handlers
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.notify("Stopping after this step and saving a checkpoint. Press Ctrl-C again to stop at once.")
