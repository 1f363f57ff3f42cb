"""The training loop: step after step, with logging, validation and checkpoints; from the start, or resumed.

    every step          learn from its batches, at the learning rate of the schedule
    periodically        log progress; validate, and keep the model if it is the best so far; save a checkpoint
    at the end          of the steps, of the patience, or on Ctrl-C or SIGTERM

All that a step depends on follows from its number and from the checkpoint, so a training that was killed and resumed
equals the uninterrupted one, bit for bit on a CPU. The loop knows neither data nor models: a `TrainingTask` does.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from regard.data.batches.feed import prefetch_steps
from regard.tasks.task import Task
from regard.training import logging
from regard.training import snapshot as state
from regard.training.checkpoints import CheckpointManager
from regard.training.config import HIGHER_IS_BETTER, TrainingConfig
from regard.training.engine import StepTotals, TrainingEngine, pin_batch
from regard.training.logging import EventHandler
from regard.training.snapshot import StoredState
from regard.training.tasks.interface import BatchLoader, TrainingTask, ValidationResult

ALL_STEPS_DONE, PATIENCE_ENDED, INTERRUPTED = "all steps are done", "the score has stopped getting better", "somebody asked to end"


class TrainingError(Exception):
    """The work failed in a way that its message tells to a person."""


@dataclass(frozen=True)
class TrainingState:
    """How far a training has come: what is stored beside the tensors."""

    step: int = 0
    best: float | None = None
    """The best score."""
    best_step: int = 0
    best_scores: dict[str, float] | None = None
    waited: int = 0
    """Judgements since the best one."""
    tokens: int = 0
    """Learned from in all."""
    seconds: float = 0.0
    """Of training in all, of all its parts."""


@dataclass
class TrainingLoop:
    """All that a training consists of."""

    work: TrainingTask
    task: Task
    engine: TrainingEngine
    settings: TrainingConfig
    checkpoints: CheckpointManager
    report: EventHandler
    keep: Callable[[TrainingState], None]
    """Called when the model, as it is now, is the best so far: it saves it."""
    identity: Mapping[str, Any]
    """What a resumed training must share with the stored one: config and data."""

    def run(self, standing: TrainingState) -> TrainingState:
        """Train from where it stands to the end."""
        settings, engine = self.settings, self.engine
        feed = self.work.feed(engine.processes.rank, engine.processes.count)
        began = time.monotonic() - standing.seconds
        last = time.monotonic()
        engine.module.train()
        with InterruptHandler(lambda text: self.report(logging.Note(text))) as interruption:
            for step, batches in self._steps(feed, standing.step + 1):
                engine.step(step, batches, settings.schedule.rate(step))
                standing = replace(standing, step=step)
                final = step == settings.steps
                asked = engine.processes.any(interruption.asked)
                judge = final or step % settings.validation.every == 0
                store = judge or asked or step % settings.checkpoints.every == 0
                if store or step % settings.log_every == 0:
                    standing, last = self._read(standing, feed, began, last)
                elif engine.device.type == "cpu":  # elsewhere to look would be to wait
                    self._check(engine.bad_step(), feed)
                if judge:
                    standing = self._judge(standing)
                if store:
                    self._store(replace(standing, seconds=time.monotonic() - began))
                if asked or stop_reason(standing, settings):
                    break
        standing = replace(standing, seconds=time.monotonic() - began)
        self.report(ended_event(stop_reason(standing, settings) or INTERRUPTED, standing))
        return standing

    def resume(self, stored: StoredState) -> None:
        """Take in a stored state."""
        state.restore_snapshot(self.engine, stored)

    def try_largest(self) -> None:
        """Learn nothing from the largest batches, to see now whether they fit into memory."""
        feed = self.work.feed(self.engine.processes.rank, self.engine.processes.count)
        self.engine.module.train()
        for batch in feed.largest():
            try:
                self.engine.tried(batch)
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
                    f"which learns the same in smaller parts, or a smaller model.") from error

    def _steps(self, feed: BatchLoader, first: int) -> Iterator[tuple[int, list[Any]]]:
        """Each step with its batches, made ahead."""
        many = self.settings.gradient_accumulation
        ready = pin_batch if self.engine.device.type == "cuda" else _unchanged

        def make(step: int) -> tuple[int, list[Any]]:
            return step, [ready(feed.at((step - 1) * many + part)) for part in range(many)]

        return prefetch_steps(make, range(first, self.settings.steps + 1), prefetch=self.settings.batches.prefetch)

    def _read(self, standing: TrainingState, feed: BatchLoader, began: float, last: float) -> tuple[TrainingState, float]:
        """Tell how the last steps went, and stop where one of them went wrong."""
        totals = self.engine.read()
        self._check(totals.bad, feed)
        if not totals.steps:
            return standing, last
        now = time.monotonic()
        standing = replace(standing, tokens=standing.tokens + totals.tokens)
        self.report(self._progress(standing, totals, feed, now - began, now - last))
        return standing, now

    def _progress(self, standing: TrainingState, totals: StepTotals, feed: BatchLoader, seconds: float,
                  lately: float) -> logging.TrainingProgress:
        micro = standing.step * self.settings.gradient_accumulation
        tokens = max(1, totals.tokens)
        return logging.TrainingProgress(
            step=standing.step, steps=self.settings.steps, epoch=micro / feed.steps, loss=totals.total / tokens,
            nll=totals.nll / tokens, rate=self.settings.schedule.rate(standing.step),
            gradient_norm=totals.norm / totals.steps, tokens=standing.tokens, seconds=seconds,
            tokens_per_second=totals.tokens / max(lately, 1e-9), memory=self.engine.memory())

    def _judge(self, standing: TrainingState) -> TrainingState:
        """Score the model; keep it if none was better."""
        start, score = time.monotonic(), self.settings.validation.metric
        with self.engine.averaged(), _evaluation(self.engine):
            verdict = self._verdict()
            value = verdict.scores[score]
            better = math.isfinite(value) and (standing.best is None or _is_better(score, value, standing.best))
            if better:
                standing = replace(standing, best=value, best_step=standing.step, best_scores=dict(verdict.scores),
                                   waited=0)
                self.keep(standing)
            else:
                standing = replace(standing, waited=standing.waited + 1)
        self.report(logging.Validated(standing.step, dict(verdict.scores), better, standing.best_scores or {},
                                   verdict.examples, time.monotonic() - start))
        return standing

    def _verdict(self) -> ValidationResult:
        """What the first process finds, told to all, so that all decide alike."""
        processes = self.engine.processes
        if self.engine.sharded:
            return ValidationResult({"loss": self.engine.mean_loss(self.work.judged())})
        verdict = self.work.validate(self.task) if processes.main else None
        scores = processes.told({} if verdict is None else dict(verdict.scores))
        return ValidationResult(scores, () if verdict is None else verdict.examples)

    def _store(self, standing: TrainingState) -> None:
        start = time.monotonic()
        snapshot = state.take_snapshot(self.engine, {"standing": asdict(standing), "identity": self.identity})
        processes = self.engine.processes
        notes = self.checkpoints.save(standing.step, snapshot, best=standing.best_step or None, rank=processes.rank,
                                      processes=processes.count, barrier=processes.barrier)
        for note in notes:
            self.report(logging.Note(note))
        self.report(logging.CheckpointSaved(standing.step, time.monotonic() - start))

    def _check(self, bad: int | None, feed: BatchLoader) -> None:
        """Stop where a step came to no finite number."""
        if bad is not None:
            raise TrainingError(self._bad(bad, feed))

    def _bad(self, step: int, feed: BatchLoader) -> str:
        many = self.settings.gradient_accumulation
        numbers = [int(number) for part in range(many) for number in feed.at((step - 1) * many + part).numbers]
        shown = ", ".join(str(number) for number in numbers[:10]) + (", ..." if len(numbers) > 10 else "")
        stored = ("The last checkpoint is whole, and no later state was stored." if self.checkpoints.steps() else
                  "No state was stored yet.")
        return (f"step {step}: the loss is not a finite number. Its batch has the examples of numbers {shown} "
                f"(from 0, of those that were kept). {stored} Try "
                f"a smaller rate, such as --set training.schedule.learning_rate={self.settings.schedule.learning_rate / 2:g}, or "
                f"--set training.precision=float32.")


def stored_training_state(stored: StoredState) -> TrainingState:
    """How far a stored training had come."""
    return TrainingState(**stored.values["standing"])


def stop_reason(standing: TrainingState, settings: TrainingConfig) -> str | None:
    """Why there is nothing left to do; None where there is."""
    patience = settings.validation.patience
    if standing.step >= settings.steps:
        return ALL_STEPS_DONE
    return PATIENCE_ENDED if patience is not None and standing.waited >= patience else None


def ended_event(reason: str, standing: TrainingState) -> logging.TrainingEnded:
    """What is told in the end."""
    return logging.TrainingEnded(reason, standing.step, standing.best_step, standing.best_scores or {}, standing.seconds)


def _is_better(score: str, value: float, best: float) -> bool:
    return value > best if HIGHER_IS_BETTER[score] else value < best


def _unchanged(batch: Any) -> Any:
    return batch


class _evaluation:  # noqa: N801 (read as a verb in `with`)
    """Inside, the model is in evaluation mode; afterwards mode and random state are as they were."""

    def __init__(self, engine: TrainingEngine) -> None:
        self.engine = engine

    def __enter__(self) -> None:
        self.mode = self.engine.module.training
        self.state = torch.get_rng_state()
        self.engine.module.eval()

    def __exit__(self, *_: object) -> None:
        self.engine.module.train(self.mode)
        torch.set_rng_state(self.state)


# ---- interrupting: Ctrl-C, or the end of a job, during a long work: once to end it well, twice to end it at once.
#
#     with Interruption(tell) as interruption:
#         for ...:
#             if interruption.asked: save, and stop
#
# The first signal only sets `asked` and says so. The second raises KeyboardInterrupt where the work stands. It does not
# know what the work is.

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptHandler:
    """Whether somebody asked to end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.asked = tell, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set how signals are taken
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.tell("Ending after this step; the state will be saved. Once more ends at once.")
