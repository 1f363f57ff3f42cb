"""The status of a training in words: one line of progress, and a sentence for the events that a user reads.

    status = TrainingStatus()
    status.update(event)
    status.line(80)                 1,000/7,000  loss 2.312  41,234 tokens/s  ETA 9:12  best BLEU 41.20
    describe(event, "bleu")         Finished 7,000 steps in 9:31. Best checkpoint: step 6,500 (BLEU 43.40, chrF 65.87).

The terminal, notebooks and log files use the same words. How they are shown is not known here; torch is not imported.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from regard import checks
from regard.tasks.card import format_interval, format_number, score_name, score_value
from regard.training.logging import (
    ALL_STEPS_DONE,
    FAILED,
    INTERRUPTED,
    PATIENCE_ENDED,
    TIME_IS_UP,
    Note,
    SynthesisProgress,
    TimeEstimated,
    TrainingEnded,
    TrainingEvent,
    TrainingProgress,
    TrainingStarted,
    Validated,
    ValidationExample,
)

TIME_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
EXAMPLE_COLUMNS = {
    "translation": ("Source", "Reference", "Model"), "language model": ("Prompt", "Text", "Model"),
    "masked language model": ("Text", "Word", "Model"), "text classification": ("Text", "Label", "Model"),
    "image classification": ("Image", "Label", "Model"), "token classification": ("Text", "Labels", "Model"),
    "forecasting of tracks": ("Observed", "True end", "Predicted end"),
}
"""The names of input, target and output in a table of validation examples, by task."""
SMALL_OVERTIME = 5.0
"""Seconds over the time limit that are not worth a warning."""


@dataclass
class TrainingStatus:
    """The current status of a training, from its events."""

    task: str = ""
    score: str = "loss"
    best: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    steps: int = 0
    latest: TrainingProgress | SynthesisProgress | None = None
    left: float | None = None
    """Estimated seconds to the end."""
    shown: tuple[ValidationExample, ...] = ()
    """The validation examples that were printed last; the same ones are not printed again."""

    def update(self, event: TrainingEvent) -> None:
        """Take an event into account."""
        match event:
            case TrainingStarted():
                self.task, self.score, self.best = event.task, event.score, event.best
                self.step, self.steps = event.first_step - 1, event.steps
                self.latest = self.left = None
                self.shown = ()
            case TimeEstimated():
                self.steps, self.left = self.step + event.steps, event.seconds
            case TrainingProgress() | SynthesisProgress():
                self.latest, self.step, self.steps, self.left = event, event.step, event.steps, event.seconds_left
            case Validated():
                self.best = event.best
        if isinstance(event, SynthesisProgress):
            self.best = {}

    @property
    def fraction(self) -> float:
        """The fraction of steps that is done."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    @property
    def columns(self) -> tuple[str, str, str]:
        """The names of the columns of a table of examples."""
        return EXAMPLE_COLUMNS.get(self.task, ("Input", "Reference", "Model"))

    def line(self, width: int, before: str = "") -> str:
        """The status in one line; the least important parts are left out if the width is too small."""
        parts = [(0, f"{before}{self.step:,}/{self.steps:,}")]
        if isinstance(self.latest, SynthesisProgress):
            parts = [(0, f"{self.step:,}/{self.steps:,} sentences"), (4, f"{self.latest.per_second:,.1f}/s")]
        elif self.latest is not None:
            parts.append((1, f"loss {format_number(self.latest.loss)}"))
            parts.append((4, f"{self.latest.tokens_per_second:,.0f} tokens/s"))
        if self.left is not None:
            parts.append((2, f"ETA {format_clock(self.left)}"))
        if self.score in self.best:
            parts.append((3, f"best {format_score(self.score, self.best[self.score])}"))
        while len(parts) > 1 and sum(len(part) + 2 for _, part in parts) - 2 > width:
            parts.remove(max(parts))
        return "  ".join(part for _, part in parts)[:width]


def describe(event: TrainingEvent, score: str) -> str:
    """A sentence about an event; empty if there is nothing to say.

    Args:
        score: the score that the best model is chosen by.
    """
    match event:
        case TimeEstimated():
            return _describe_estimate(event)
        case Validated():
            scores = format_scores(event.scores)
            if not event.step:
                return f"Start model: {scores} (took {format_clock(event.seconds)})"
            best = f"best {format_score(score, event.best[score])}; " if score in event.best else ""
            best = f"best {score_name(score)} so far; " if event.better else best
            return f"Validation at step {event.step:,}: {scores} ({best}took {format_clock(event.seconds)})"
        case TrainingEnded():
            return f"{_describe_end(event, score)} {_describe_best(event, score)}"
        case Note():
            return event.text
    return ""


def _describe_estimate(event: TimeEstimated) -> str:
    about = f"About {format_duration(event.seconds)} on {event.device}"
    speed = f"{_format_speed(event.step_seconds)} measured"
    if event.max_time is None:
        return f"{about} ({checks.plural(event.steps, 'step')}, {speed})."
    limit = f"the time limit of {format_duration(event.max_time)}"
    if event.seconds > max(1.03 * event.max_time, event.max_time + SMALL_OVERTIME):
        return (f"{limit[0].upper()}{limit[1:]} is too short: a step takes about {format_duration(event.step_seconds)} "
                f"and a validation about {format_duration(event.validation_seconds)}. Training runs "
                f"{checks.plural(event.steps, 'step')}, validates and saves the model, in about "
                f"{format_duration(event.seconds)}.")
    if event.steps >= event.max_steps:
        return f"{about} ({checks.plural(event.steps, 'step')}, {speed}), within {limit}."
    return (f"{about}: {event.steps:,} of {event.max_steps:,} steps fit into {limit} ({speed}). The schedule is "
            f"shortened to match: warm-up over {checks.plural(event.warmup_steps or 0, 'step')}, validation every "
            f"{checks.plural(event.validation_every or 1, 'step')}.")


def _describe_end(event: TrainingEnded, score: str) -> str:
    step, took = checks.plural(event.step, "step"), format_clock(event.seconds)
    at = f"at step {event.step:,}" + ("" if event.steps is None else f" of {event.steps:,}")
    match event.reason:
        case reason if reason == ALL_STEPS_DONE:
            return f"Finished {step} in {took}."
        case reason if reason == TIME_IS_UP:
            return f"Finished {step} in {took}, within the time limit."
        case reason if reason == PATIENCE_ENDED:
            return (f"Stopped early {at} after {took}: {score_name(score)} has not improved for "
                    f"{checks.plural(event.waited, 'validation')}.")
        case reason if reason == INTERRUPTED:
            return f"Interrupted {at} after {took}."
    return f"Ended {at} after {took}: {event.reason}."


def _describe_best(event: TrainingEnded, score: str) -> str:
    if not event.best:
        return ("No model was saved yet: it has not been validated." if event.reason in (FAILED, INTERRUPTED) else
                "No model was saved: no validation gave a finite score.")
    shown = {name: value for name, value in event.best.items() if name != "loss" or name == score} or event.best
    scores = format_scores(shown, event.intervals)
    if event.best_step:
        best = f"Best checkpoint: step {event.best_step:,}{f' ({scores})' if scores else ''}."
    else:
        best = f"No step was better than the start model, which is kept ({scores})."
    if not any(name in event.intervals for name in shown):
        return best
    return f"{best}\nIn brackets: 95% confidence intervals (bootstrap over the validation data)."


def format_score(name: str, value: float, interval: Sequence[float] | None = None) -> str:
    """A score with its name, and with its confidence interval if it has one.

        BLEU 41.20 [40.02, 42.31]     general BLEU 39.87     accuracy 93.15%     loss 0.9912
    """
    return f"{score_name(name)} {score_value(name, value)}{format_interval(interval)}"


def format_scores(scores: Mapping[str, float], intervals: Mapping[str, Sequence[float]] | None = None) -> str:
    """All scores; those of parts of the validation data follow their mean: BLEU 41.20 (en-fr 43.10, fr-en 39.30)."""
    shown, ranges = [], intervals or {}
    for name, value in scores.items():
        parts = {one: other for one, other in scores.items() if one.startswith(f"{name}/")}
        listed = ", ".join(f"{one.partition('/')[2]} {score_value(name, other)}{format_interval(ranges.get(one))}"
                           for one, other in parts.items())
        if "/" not in name:
            shown.append(format_score(name, value, ranges.get(name)) + (f" ({listed})" if listed else ""))
    return ", ".join(shown)


def format_clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_duration(seconds: float) -> str:
    """Seconds in words, with at most two units: 40 seconds, 9 minutes, 1 hour 30 minutes, 0.2 seconds."""
    if seconds < 0.95:
        return f"{max(seconds, 0.001):.1g} seconds"
    for (size, unit), (smaller, next_unit) in pairwise(TIME_UNITS):
        rounded = round(seconds / smaller) * smaller
        if rounded >= size:
            whole, rest = divmod(rounded, size)
            if whole >= 5 or not rest:  # the smaller unit is no longer worth mentioning
                return checks.plural(round(rounded / size), unit)
            return f"{checks.plural(whole, unit)} {checks.plural(round(rest / smaller), next_unit)}"
    return checks.plural(round(seconds), "second")


def _format_speed(step_seconds: float) -> str:
    """Steps per second, or seconds per step if these are more."""
    if step_seconds >= 1:
        return f"{step_seconds:.1f} s/step"
    speed = 1 / max(step_seconds, 1e-9)
    return f"{speed:,.0f} steps/s" if speed >= 9.5 else f"{speed:.1f} steps/s"
