"""The training loop: step after step, with logging, validation and checkpoints; from the start, or resumed.

    before the first    try the largest batches; time some steps, and undo them; estimate the duration
    every step          learn from its batches, at the learning rate of the schedule
    periodically        log progress; validate, and save the model if it is the best so far; save a checkpoint
    at the end          of the steps, of the patience or of the time; when a callback ends it; on Ctrl-C or SIGTERM

All that a step depends on follows from its number and from the checkpoint, so a training that was killed and resumed
equals the uninterrupted one, bit for bit on a CPU. With a time limit, the number of steps depends on the speed of the
machine too (`regard.training.timing`). The loop knows neither data nor models: a `TrainingTask` does.
"""

import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from regard import allocation, checks
from regard.data.batches.feed import prefetch_steps
from regard.tasks.card import INTERVAL_SUFFIX
from regard.tasks.task import Task
from regard.training import snapshot as snapshots
from regard.training.blending import final_validations
from regard.training.callbacks import CallbackLogger
from regard.training.checkpoints import CheckpointManager
from regard.training.config import HIGHER_IS_BETTER, TrainingConfig
from regard.training.engine import StepTotals, TrainingEngine, pin_batch
from regard.training.logging import (
    ALL_STEPS_DONE,
    FAILED,
    INTERRUPTED,
    PATIENCE_ENDED,
    STOPPED,
    TIME_IS_UP,
    CheckpointSaved,
    EventHandler,
    Note,
    TimeEstimated,
    TrainingEnded,
    TrainingProgress,
    Validated,
)
from regard.training.snapshot import StoredState
from regard.training.tasks.interface import BatchLoader, TrainingTask, ValidationResult
from regard.training.timing import (
    FittedPlan,
    Pace,
    extrapolate,
    few_steps_warning,
    fit_plan,
    fit_schedule,
    is_out_of_time,
    refit_plan,
)

MEASURED_SECONDS = 1.0
"""Steps are timed before the training for about this long."""
MAX_MEASURED_STEPS, MEASURED_FRACTION = 40, 0.02
"""At most this many steps, and this fraction of all steps, are timed; and one more, which is not counted."""
LAST_STEPS = 10
"""With a time limit, the plan is checked at each of the last steps: there may be time for more."""
SAMPLE_SIZES, SAMPLE_SECONDS = (16, 64), 0.2
"""Validation examples that are timed; the second number if the first take less time than this, and on a GPU."""
PATIENCE_STARTS = 5
"""Early stopping does not count this many first validations, nor those before the end of the warm-up."""
COUNTS_ALL, COUNTS_LATER = 1, 2
"""Versions of early stopping: in the first, every validation counts, and an equal score is never better. A checkpoint
of it, which does not name its version, is resumed with it, so that it ends where it would have ended."""
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
    """Validations since the best one that count for early stopping."""
    tokens: int = 0
    """Training tokens so far."""
    seconds: float = 0.0
    """Training time so far, over all interruptions."""
    plan: FittedPlan | None = None
    """How the training fits into its time limit, if it has one."""
    early_stopping: int = COUNTS_LATER
    """The version of early stopping."""
    best_details: dict[str, Any] | None = None
    """What is stored beside the best scores: `ValidationResult.details`."""
    start_scores: dict[str, float] | None = None
    """The scores of the model that is fine-tuned, before the first step."""

    def table(self) -> dict[str, Any]:
        """The state as plain values, for a checkpoint, which earlier versions can read.

        The checkpoint has `early_stopping` and `best_details` beside it.
        """
        left_out = {"early_stopping", "best_details",
                    *(name for name in ("plan", "start_scores") if getattr(self, name) is None)}
        return {key: value for key, value in asdict(self).items() if key not in left_out}


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
    callbacks: CallbackLogger = field(default_factory=CallbackLogger)
    """Tells whether a callback ends the training; it receives its events through `report`."""
    clock: Callable[[], float] = time.monotonic
    pace: Pace = field(init=False)
    feed: BatchLoader = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace.of(self.settings)
        if self.settings.blend:
            self.pace.final_validations = final_validations(self.settings.blend_share)
        self.feed = self.training_task.feed(self.engine.processes.rank, self.engine.processes.count)

    def run(self, state: TrainingState) -> TrainingState:
        """Train from this state to the end."""
        settings, engine = self.settings, self.engine
        state = self._fit(state, state.seconds)
        started = self.clock() - state.seconds
        lap_started = self.clock()  # of the steps that the next log averages, or of a validation
        engine.module.train()
        with InterruptHandler(lambda text: self.report(Note(text))) as interrupt:
            for step, batches in self._steps(state.step + 1):
                before, state = state, _next_state(state, step)
                engine.step(step, batches, learning_rate(state, settings))
                state = self._end_in_time(state, self.clock() - started)
                interrupted = engine.processes.any(interrupt.requested)
                validate = _validates(before, state, settings)
                store = validate or interrupted or step % settings.checkpoints.every == 0
                log = store or step % settings.log_every == 0 or self._refit_due(state, lap_started)
                if log:
                    state = self._log(state, started, lap_started, validates=validate)
                    lap_started = self.clock()
                elif engine.device.type == "cpu":  # reading a GPU would wait for it
                    self._check_finite(engine.bad_step())
                if validate:
                    state = self._validate(state)
                if store:
                    self._save_checkpoint(replace(state, seconds=self.clock() - started))
                if validate:
                    self.pace.validation_seconds = self.clock() - lap_started
                    lap_started = self.clock()
                if interrupted or stop_reason(state, settings):
                    break
                if log and engine.processes.any(self.callbacks.ending):
                    state = self._end_early(state, started, validated=validate, stored=store)
                    break
                state = self._fit(state, self.clock() - started) if log else state
        state = replace(state, seconds=self.clock() - started)
        reason = stop_reason(state, settings) or self._callback_reason() or INTERRUPTED
        report_end(reason, state, settings, self.report)
        return state

    def validate_start(self, state: TrainingState) -> TrainingState:
        """Score the model that is fine-tuned before the first step: it is the best one until a step is better."""
        before = self.clock()
        state = self._validate(state)
        state = replace(state, start_scores=state.best_scores, seconds=state.seconds + self.clock() - before)
        self.pace.validation_seconds = self.clock() - before
        return state

    def _end_early(self, state: TrainingState, started: float, *, validated: bool, stored: bool) -> TrainingState:
        """Validate where a callback stopped the training, and save a checkpoint; where it failed, only save."""
        validate = not validated and self.engine.processes.any(self.callbacks.stopped)
        if validate:
            state = self._validate(state)
        if validate or not stored:
            self._save_checkpoint(replace(state, seconds=self.clock() - started))
        return state

    def _callback_reason(self) -> str | None:
        """How a callback ended the training; None if none did."""
        return FAILED if self.callbacks.error is not None else STOPPED if self.callbacks.stopped else None

    def resume(self, stored: StoredState) -> None:
        """Restore the state of a checkpoint."""
        snapshots.restore_snapshot(self.engine, stored)

    def measure(self, state: TrainingState) -> TrainingState:
        """Time some steps and a part of a validation, undo them, and report how long the training will take.

        Returns the state with the plan that fits into the time limit, if there is one.
        """
        engine = self.engine
        engine.module.train()
        left = self.settings.steps - state.step
        number = min(left, 1 + max(1, min(MAX_MEASURED_STEPS, int(MEASURED_FRACTION * left))))
        steps = range(state.step + 1, state.step + 1 + number)
        seconds = engine.time_steps(((step, self._batches(step)) for step in steps), self.settings.schedule.rate(1),
                                    clock=self.clock, max_seconds=MEASURED_SECONDS)
        # The first step allocates memory; on a GPU, the first steps also capture CUDA graphs.
        counted = seconds[len(seconds) // 2 if engine.device.type == "cuda" else 1:] or seconds
        step_seconds, validation_seconds = engine.processes.broadcast(
            [statistics.median(counted), self._time_validation() if engine.processes.main else 0.0])
        self.pace.estimate_validation(validation_seconds, self.settings.max_time)
        self.pace.add_steps(len(counted), step_seconds * len(counted))
        state = self._fit(state, state.seconds)
        self.report(self._estimate(state, validation_seconds))
        warning = None if state.plan is None else few_steps_warning(self.settings, state.plan)
        if warning is not None:
            self.report(Note(warning, warning=True))
        return state

    def _time_validation(self) -> float:
        """The duration of a validation, from those of parts of it."""
        if self.engine.sharded:  # all processes validate together; the first validation will tell
            return 0.0
        on_gpu, parts = self.engine.device.type == "cuda", list[tuple[float, float]]()
        with self.engine.averaged(), _evaluation(self.engine):
            if on_gpu:  # the first one also compiles kernels
                self.training_task.try_validation(self.task, SAMPLE_SIZES[0])
            for examples in SAMPLE_SIZES:
                start = self.clock()
                fraction = self.training_task.try_validation(self.task, examples)
                parts.append((fraction, self.clock() - start))
                if (parts[-1][1] > SAMPLE_SECONDS and not on_gpu) or not fraction or fraction >= 1:
                    break
        return extrapolate(parts)

    def _fit(self, state: TrainingState, elapsed: float) -> TrainingState:
        """The state with a plan for the time that is left; unchanged without a time limit."""
        if self.settings.max_time is None:
            return state
        plan = (fit_plan(self.settings, self.pace) if state.plan is None else
                refit_plan(state.plan, self.settings, self.pace, state.step, elapsed))
        total, every = self.engine.processes.broadcast([plan.total, plan.validation_every])
        return replace(state, plan=replace(plan, total=total, validation_every=every))

    def _refit_due(self, state: TrainingState, lap_started: float) -> bool:
        """Whether the plan for the time limit should be checked: after some time, and at each of the last steps."""
        if state.plan is None:
            return False
        late = self.clock() - lap_started > self.pace.window or state.plan.total - state.step < LAST_STEPS
        return self.engine.processes.any(late)

    def _end_in_time(self, state: TrainingState, elapsed: float) -> TrainingState:
        """The state, with this step as the last one if there is no time for another."""
        if state.plan is None or not self.engine.processes.any(is_out_of_time(self.settings, self.pace, elapsed)):
            return state
        return replace(state, plan=replace(state.plan, total=min(state.step, state.plan.total)))

    def _estimate(self, state: TrainingState, validation_seconds: float) -> TimeEstimated:
        plan, settings = state.plan, self.settings
        steps = total_steps(state, settings) - state.step
        validations = validations_left(state, settings) + self.pace.final_validations
        return TimeEstimated(
            seconds=steps * self.pace.step_seconds + validations * validation_seconds, steps=steps,
            step_seconds=self.pace.step_seconds, validation_seconds=validation_seconds,
            device=_describe_device(self.engine), max_time=settings.max_time, max_steps=settings.steps,
            warmup_steps=None if plan is None else fit_schedule(settings.schedule, plan).warmup_steps,
            validation_every=None if plan is None else plan.validation_every)

    def try_largest(self) -> None:
        """Compute the gradients of the largest batches and discard them, to find out now whether they fit in memory."""
        self.engine.module.train()
        for batch in self.feed.largest():
            try:
                self.engine.try_batch(batch)
            except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter
                if not allocation.is_out_of_memory(error):
                    raise
                remedy = (f"Try {self.settings.in_smaller_batches(2)}, which computes the same step in smaller parts, "
                          "or a smaller model.")
                raise TrainingError(f"a batch of {batch.tokens:,} tokens does not fit into the memory of "
                                    f"{self.engine.device}. {allocation.describe(error, remedy)}") from error

    def _steps(self, first: int) -> Iterator[tuple[int, list[Any]]]:
        """Each step with its batches, which are prefetched."""
        return prefetch_steps(lambda step: (step, self._batches(step)), range(first, self.settings.steps + 1),
                              prefetch=self.settings.batches.prefetch)

    def _batches(self, step: int) -> list[Any]:
        """The batches of a step; for a GPU in pinned memory."""
        count = self.settings.gradient_accumulation
        batches = [self.feed.at((step - 1) * count + part) for part in range(count)]
        return [pin_batch(batch) for batch in batches] if self.engine.device.type == "cuda" else batches

    def _log(self, state: TrainingState, started: float, lap_started: float, *, validates: bool) -> TrainingState:
        """Report the steps since the last call, and stop if the loss of one was not finite."""
        totals = self.engine.read()
        self._check_finite(totals.bad)
        now = self.clock()
        self.pace.add_steps(totals.steps, now - lap_started)
        if not totals.steps:
            return state
        state = replace(state, tokens=state.tokens + totals.tokens)
        self.report(self._progress(state, totals, now - started, now - lap_started, validates))
        return state

    def _progress(self, state: TrainingState, totals: StepTotals, seconds: float, since_last: float,
                  validates: bool) -> TrainingProgress:
        batches = state.step * self.settings.gradient_accumulation
        tokens, steps = max(1, totals.tokens), total_steps(state, self.settings)
        validations = validations_left(state, self.settings) + validates if state.step < steps else 1
        return TrainingProgress(
            step=state.step, steps=steps, epoch=batches / self.feed.steps, loss=totals.total / tokens,
            nll=totals.nll / tokens, rate=learning_rate(state, self.settings),
            gradient_norm=totals.norm / totals.steps, tokens=state.tokens, seconds=seconds,
            tokens_per_second=totals.tokens / max(since_last, 1e-9), memory=self.engine.memory(),
            seconds_left=self.pace.seconds(steps - state.step, validations))

    def _validate(self, state: TrainingState) -> TrainingState:
        """Score the model, and save it if none was better."""
        start, score = self.clock(), self.settings.validation.metric
        with self.engine.averaged(), _evaluation(self.engine):
            result = self._validation_result()
            value = result.scores[score]
            better = math.isfinite(value) and _is_better(score, result.scores, state)
            if better:
                details = self.engine.processes.broadcast(dict(result.details()))
                state = replace(state, best=value, best_step=state.step, best_scores=dict(result.scores), waited=0,
                                best_details=details)
                self.save_best(state)
            else:
                state = replace(state, waited=state.waited + _counts_for_patience(state, self.settings))
        self.report(Validated(state.step, dict(result.scores), better, state.best_scores or {}, result.examples,
                              self.clock() - start))
        return state

    def _validation_result(self) -> ValidationResult:
        """The scores that the main process computes, sent to all, so that all decide alike."""
        processes = self.engine.processes
        if self.engine.sharded:
            return ValidationResult({"loss": self.engine.mean_loss(self.training_task.validation_batches())})
        result = self.training_task.validate(self.task) if processes.main else None
        scores = processes.broadcast({} if result is None else dict(result.scores))
        return ValidationResult(scores) if result is None else replace(result, scores=scores)

    def _save_checkpoint(self, state: TrainingState) -> None:
        start = self.clock()
        snapshot = snapshots.take_snapshot(self.engine, {
            "standing": state.table(), "identity": self.identity, "early_stopping": state.early_stopping,
            "best_details": state.best_details, "threads": torch.get_num_threads()})
        processes = self.engine.processes
        notes = self.checkpoints.save(state.step, snapshot, best=state.best_step or None, rank=processes.rank,
                                      processes=processes.count, barrier=processes.barrier)
        for note in notes:
            self.report(Note(note, warning=True))
        self.report(CheckpointSaved(state.step, self.clock() - start))

    def _check_finite(self, bad_step: int | None) -> None:
        """Stop if the loss of a step was not finite."""
        if bad_step is None:
            return
        numbers = [int(number) for batch in self._batches(bad_step) for number in batch.numbers]
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
    table = dict(stored.values["standing"])
    plan = table.pop("plan", None)
    return TrainingState(**table, plan=None if plan is None else FittedPlan(**plan),
                         early_stopping=stored.values.get("early_stopping", COUNTS_ALL),
                         best_details=stored.values.get("best_details"))


def total_steps(state: TrainingState, settings: TrainingConfig) -> int:
    """The number of steps of the whole training, as far as it is known now."""
    return settings.steps if state.plan is None else state.plan.total


def learning_rate(state: TrainingState, settings: TrainingConfig) -> float:
    """The learning rate of the step of this state."""
    if state.plan is None:
        return settings.schedule.rate(state.step)
    return fit_schedule(settings.schedule, state.plan).rate(state.plan.position)


def validations_left(state: TrainingState, settings: TrainingConfig) -> int:
    """The number of validations after this state; there is always one at the end."""
    if state.plan is not None:
        return state.plan.validations_left
    every = settings.validation.every
    return max(1, math.ceil(settings.steps / every) - state.step // every)


def stop_reason(state: TrainingState, settings: TrainingConfig) -> str | None:
    """Why there is nothing left to do; None if there is."""
    patience = settings.validation.patience
    if state.step >= settings.steps:
        return ALL_STEPS_DONE
    if state.plan is not None and state.step >= state.plan.total:
        return TIME_IS_UP
    return PATIENCE_ENDED if patience is not None and state.waited >= patience else None


def report_end(reason: str, state: TrainingState, settings: TrainingConfig, report: EventHandler) -> None:
    """Report the end of a training, and before it in which ways the outputs of the best model are degenerate."""
    details = dict(state.best_details or {})
    for sentence in details.pop("degenerate", ()):
        report(Note(f"Warning: the best model (step {state.best_step:,}) is degenerate. {sentence}", warning=True))
    intervals = {name.removesuffix(INTERVAL_SUFFIX): interval for name, interval in details.items()
                 if name.endswith(INTERVAL_SUFFIX)}
    report(TrainingEnded(reason, state.step, state.best_step, state.best_scores or {}, state.seconds,
                         total_steps(state, settings), state.waited, intervals))


def _next_state(state: TrainingState, step: int) -> TrainingState:
    """The state after this step."""
    return replace(state, step=step, plan=None if state.plan is None else state.plan.advanced(step))


def _validates(before: TrainingState, state: TrainingState, settings: TrainingConfig) -> bool:
    """Whether the model is validated after the last step; always at the end."""
    if state.plan is None or before.plan is None:
        return state.step == settings.steps or state.step % settings.validation.every == 0
    return state.step >= state.plan.total or state.plan.validates_after(before.plan)


def _describe_device(engine: TrainingEngine) -> str:
    """The device in words: 2 CPU cores, NVIDIA H200, 8 x NVIDIA H200."""
    processes = engine.processes.count
    if engine.device.type == "cuda":
        name = torch.cuda.get_device_name(engine.device)
        return name if processes == 1 else f"{processes} x {name}"
    return checks.plural(torch.get_num_threads() * processes, "CPU core")


def _is_better(score: str, scores: Mapping[str, float], state: TrainingState) -> bool:
    """Whether these scores are better than the best so far.

    If the score is equal, a lower loss is better: at the start BLEU and chrF may be 0 several times, which must not end
    a training that is learning.
    """
    value, best = scores[score], state.best
    if best is None:
        return True
    if value == best and (state.early_stopping >= COUNTS_LATER or state.plan is not None):
        return scores["loss"] < (state.best_scores or {}).get("loss", -math.inf)
    return value > best if HIGHER_IS_BETTER[score] else value < best


def _counts_for_patience(state: TrainingState, settings: TrainingConfig) -> bool:
    """Whether a validation at this step without a better score counts for early stopping."""
    if state.early_stopping < COUNTS_LATER:
        return True
    if state.plan is None:
        position, schedule, every = float(state.step), settings.schedule, settings.validation.every
    else:
        position, every = state.plan.position, state.plan.validation_every
        schedule = fit_schedule(settings.schedule, state.plan)
    return position > schedule.warmup_steps and position // every > PATIENCE_STARTS


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
        self.notify("Stopping after this step to save a checkpoint. Press Ctrl-C again to stop at once.")
