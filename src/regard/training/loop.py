"""The loop: step after step, told about, judged, stored; from the start, or from where it was interrupted.

    every step          learn from its batches, at the rate of the schedule
    now and then        tell how it goes; judge the model, and keep it if it is the best so far; store the whole state
    in the end          of the steps, of the patience, or when somebody asks to end

All that a step depends on follows from its number and from what is stored, so a training that was killed and resumed
is the training that was not, bit for bit on a CPU. The loop knows neither data nor models: a `Work` does.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from regard.data.batches.feed import prefetched
from regard.tasks.task import Task
from regard.training import reports, state
from regard.training.checkpoints import Checkpoints
from regard.training.engine import Engine, Totals
from regard.training.graphs import pinned
from regard.training.interrupting import Interruption
from regard.training.reports import Reporter
from regard.training.settings import TrainingConfig
from regard.training.shards import Stored
from regard.training.work import RISING, Feeding, Verdict, Work

DONE, PATIENCE, ASKED = "all steps are done", "the score has stopped getting better", "somebody asked to end"


class TrainingError(Exception):
    """The work failed in a way that its message tells to a person."""


@dataclass(frozen=True)
class Standing:
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
class Training:
    """All that a training consists of."""

    work: Work
    task: Task
    engine: Engine
    settings: TrainingConfig
    checkpoints: Checkpoints
    report: Reporter
    keep: Callable[[Standing], None]
    """Called when the model, as it is now, is the best so far: it saves it."""
    identity: Mapping[str, Any]
    """What a resumed training must share with the stored one: config and data."""

    def run(self, standing: Standing) -> Standing:
        """Train from where it stands to the end."""
        settings, engine = self.settings, self.engine
        feed = self.work.feed(engine.processes.rank, engine.processes.count)
        began = time.monotonic() - standing.seconds
        last = time.monotonic()
        engine.module.train()
        with Interruption(lambda text: self.report(reports.Note(text))) as interruption:
            for step, batches in self._steps(feed, standing.step + 1):
                engine.step(step, batches, settings.schedule.rate(step))
                standing = replace(standing, step=step)
                final = step == settings.steps
                asked = engine.processes.any(interruption.asked)
                judge = final or step % settings.validation.every == 0
                store = judge or asked or step % settings.checkpoints.every == 0
                if store or step % settings.report == 0:
                    standing, last = self._read(standing, feed, began, last)
                elif engine.device.type == "cpu":  # elsewhere to look would be to wait
                    self._check(engine.bad_step(), feed)
                if judge:
                    standing = self._judge(standing)
                if store:
                    self._store(replace(standing, seconds=time.monotonic() - began))
                if asked or over(standing, settings):
                    break
        standing = replace(standing, seconds=time.monotonic() - began)
        self.report(ended(over(standing, settings) or ASKED, standing))
        return standing

    def resume(self, stored: Stored) -> None:
        """Take in a stored state."""
        state.resume(self.engine, stored)

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
                key, size = (("batches.tokens", self.settings.batches.tokens) if windows is None else
                             ("windows.rows", windows.rows))
                raise TrainingError(
                    f"a batch of {batch.tokens:,} tokens does not fit into the memory of {self.engine.device}. Try "
                    f"--set training.{key}={max(1, size // 2)} "
                    f"--set training.accumulate={2 * self.settings.accumulate}, "
                    f"which learns the same in smaller parts, or a smaller model.") from error

    def _steps(self, feed: Feeding, first: int) -> Iterator[tuple[int, list[Any]]]:
        """Each step with its batches, made ahead."""
        many = self.settings.accumulate
        ready = pinned if self.engine.device.type == "cuda" else _same

        def make(step: int) -> tuple[int, list[Any]]:
            return step, [ready(feed.at((step - 1) * many + part)) for part in range(many)]

        return prefetched(make, range(first, self.settings.steps + 1), ahead=self.settings.batches.ahead)

    def _read(self, standing: Standing, feed: Feeding, began: float, last: float) -> tuple[Standing, float]:
        """Tell how the last steps went, and stop where one of them went wrong."""
        totals = self.engine.read()
        self._check(totals.bad, feed)
        if not totals.steps:
            return standing, last
        now = time.monotonic()
        standing = replace(standing, tokens=standing.tokens + totals.tokens)
        self.report(self._progress(standing, totals, feed, now - began, now - last))
        return standing, now

    def _progress(self, standing: Standing, totals: Totals, feed: Feeding, seconds: float,
                  lately: float) -> reports.Progress:
        micro = standing.step * self.settings.accumulate
        tokens = max(1, totals.tokens)
        return reports.Progress(
            step=standing.step, steps=self.settings.steps, epoch=micro / feed.steps, loss=totals.total / tokens,
            nll=totals.nll / tokens, rate=self.settings.schedule.rate(standing.step),
            gradient_norm=totals.norm / totals.steps, tokens=standing.tokens, seconds=seconds,
            tokens_per_second=totals.tokens / max(lately, 1e-9), memory=self.engine.memory())

    def _judge(self, standing: Standing) -> Standing:
        """Score the model; keep it if none was better."""
        start, score = time.monotonic(), self.settings.validation.score
        with self.engine.averaged(), _undisturbed(self.engine):
            verdict = self._verdict()
            value = verdict.scores[score]
            better = math.isfinite(value) and (standing.best is None or _better(score, value, standing.best))
            if better:
                standing = replace(standing, best=value, best_step=standing.step, best_scores=dict(verdict.scores),
                                   waited=0)
                self.keep(standing)
            else:
                standing = replace(standing, waited=standing.waited + 1)
        self.report(reports.Judged(standing.step, dict(verdict.scores), better, standing.best_scores or {},
                                   verdict.examples, time.monotonic() - start))
        return standing

    def _verdict(self) -> Verdict:
        """What the first process finds, told to all, so that all decide alike."""
        processes = self.engine.processes
        if self.engine.sharded:
            return Verdict({"loss": self.engine.mean_loss(self.work.judged())})
        verdict = self.work.validate(self.task) if processes.main else None
        scores = processes.told({} if verdict is None else dict(verdict.scores))
        return Verdict(scores, () if verdict is None else verdict.examples)

    def _store(self, standing: Standing) -> None:
        start = time.monotonic()
        snapshot = state.snapshot(self.engine, {"standing": asdict(standing), "identity": self.identity})
        processes = self.engine.processes
        notes = self.checkpoints.save(standing.step, snapshot, best=standing.best_step or None, rank=processes.rank,
                                      processes=processes.count, barrier=processes.barrier)
        for note in notes:
            self.report(reports.Note(note))
        self.report(reports.Stored(standing.step, time.monotonic() - start))

    def _check(self, bad: int | None, feed: Feeding) -> None:
        """Stop where a step came to no finite number."""
        if bad is not None:
            raise TrainingError(self._bad(bad, feed))

    def _bad(self, step: int, feed: Feeding) -> str:
        many = self.settings.accumulate
        numbers = [int(number) for part in range(many) for number in feed.at((step - 1) * many + part).numbers]
        shown = ", ".join(str(number) for number in numbers[:10]) + (", ..." if len(numbers) > 10 else "")
        stored = ("The last checkpoint is whole, and no later state was stored." if self.checkpoints.steps() else
                  "No state was stored yet.")
        return (f"step {step}: the loss is not a finite number. Its batch has the examples of numbers {shown} "
                f"(from 0, of those that were kept). {stored} Try "
                f"a smaller rate, such as --set training.schedule.peak={self.settings.schedule.peak / 2:g}, or "
                f"--set training.precision=float32.")


def standing_of(stored: Stored) -> Standing:
    """How far a stored training had come."""
    return Standing(**stored.values["standing"])


def over(standing: Standing, settings: TrainingConfig) -> str | None:
    """Why there is nothing left to do; None where there is."""
    patience = settings.validation.patience
    if standing.step >= settings.steps:
        return DONE
    return PATIENCE if patience is not None and standing.waited >= patience else None


def ended(reason: str, standing: Standing) -> reports.Ended:
    """What is told in the end."""
    return reports.Ended(reason, standing.step, standing.best_step, standing.best_scores or {}, standing.seconds)


def _better(score: str, value: float, best: float) -> bool:
    return value > best if RISING[score] else value < best


def _same(batch: Any) -> Any:
    return batch


class _undisturbed:  # noqa: N801 (read as a verb in `with`)
    """Inside, the model is in evaluation mode; afterwards mode and random state are as they were."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> None:
        self.mode = self.engine.module.training
        self.state = torch.get_rng_state()
        self.engine.module.eval()

    def __exit__(self, *_: object) -> None:
        self.engine.module.train(self.mode)
        torch.set_rng_state(self.state)
