"""How long a training takes: its pace, the time that is left, and how the steps are fitted into a time limit.

    parse_duration("1h30m")                   5400.0 seconds
    Pace(window)                              seconds per step and per validation, from the latest measurements
    fit_plan(settings, pace)                  FittedPlan: the steps and validations that fit into training.max_time
    extrapolate(parts)                        seconds of a whole validation from those of parts of it
    refit_plan(plan, settings, pace, ...)     the plan with as many steps as fit into the time that is left

A time limit changes two things. The schedule of the learning rate gets as many steps as fit by the first measurement,
with a warm-up and a validation interval to match. And each step of the training advances through that schedule by

    (steps of the schedule - position) / (steps that are left)

which is 1 as long as the measurement holds. If the machine becomes slower or faster, the number of steps that are left
changes and the position does not: the learning rate has no jumps, and reaches its end with the last step. A model that
has learned nothing writes long outputs, so that its validation takes much longer than later ones: where validations
turn out to be faster, there are more of them. The plan is part of every checkpoint. This module does the arithmetic;
the loop measures.
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard import checks
from regard.training.config import TrainingConfig
from regard.training.optimizer import ScheduleConfig

DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
UNIT_SECONDS = (3600, 60, 1)
WINDOW_SECONDS = 60.0
"""The pace is the mean over about this many seconds; with a time limit, over WINDOW_FRACTION of that if it is less."""
WINDOW_FRACTION = 0.1
VALIDATION_FRACTION = 0.1
"""With a time limit, validations take at most about this fraction of it, unless there would be too few."""
FEW_VALIDATIONS, FEW_VALIDATIONS_FRACTION = 4, 0.3
"""At least as many validations as this are planned, if they take at most this fraction of the limit."""
BELIEVED_FRACTION = 0.25
"""Before the first validation, one is not believed to take more than this fraction of the limit: if the estimate is
wrong, there is still time for most steps; if it is right, the training ends late, but has learned something."""
MARGIN_FRACTION, MAX_MARGIN_SECONDS = 0.01, 5.0
"""The steps are fitted to end this much before the limit, so that small delays do not cut the schedule off."""
REFIT_FRACTION = 0.05
"""The number of steps that are left is changed if it is wrong by more than this fraction."""
WARMUP_FRACTION = 0.1
"""A warm-up that must be shortened keeps this fraction of the steps, or the fraction that it had if that is more."""


FEW_STEPS = 500
"""With fewer steps a model has hardly begun to learn."""


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 90s, 30m, 2h or 1h30m. A ValueError shows examples of the right form."""
    match = DURATION.fullmatch(text.strip().lower())
    parts = [] if match is None else [part for part in zip(match.groups(), UNIT_SECONDS, strict=True) if part[0]]
    seconds = sum(float(number) * unit for number, unit in parts)
    if not seconds:
        raise checks.wrong("time", "a duration above 0, such as 90s, 30m, 2h or 1h30m", repr(text))
    return seconds


class Pace:
    """Seconds per step and per validation, from the latest measurements.

    Args:
        window: the seconds over which the pace is averaged.
    """

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self.window = window
        self.validation_seconds = 0.0
        """The duration of the last validation, with all that is saved then; an estimate before the first."""
        self.final_validations = 0
        """Validations after the last step, to choose the share of a blended model."""
        self._measured: deque[tuple[int, float]] = deque()

    @staticmethod
    def of(settings: TrainingConfig) -> "Pace":
        """The pace of a training that has not been measured yet."""
        limit = settings.max_time
        return Pace(WINDOW_SECONDS if limit is None else min(WINDOW_SECONDS, WINDOW_FRACTION * limit))

    def estimate_validation(self, seconds: float, limit: float | None) -> None:
        """Set the duration of a validation before the first one; with a time limit, at most a fraction of it."""
        self.validation_seconds = seconds if limit is None else min(seconds, BELIEVED_FRACTION * limit)

    def add_steps(self, steps: int, seconds: float) -> None:
        """Take a measurement into account; those that are older than the window are forgotten."""
        if steps < 1:
            return
        self._measured.append((steps, seconds))
        while sum(took for _, took in self._measured) - self._measured[0][1] > self.window:
            self._measured.popleft()

    @property
    def final_seconds(self) -> float:
        """The duration of what follows the last step and its validation."""
        return self.final_validations * self.validation_seconds

    @property
    def step_seconds(self) -> float:
        """Seconds per step; 0 if nothing was measured yet."""
        return sum(took for _, took in self._measured) / max(1, sum(steps for steps, _ in self._measured))

    def seconds(self, steps: float, validations: float) -> float:
        """The duration of this many steps and validations."""
        return steps * self.step_seconds + validations * self.validation_seconds


def extrapolate(parts: Sequence[tuple[float, float]]) -> float:
    """Seconds of the whole, from fractions of it in rising order and their seconds; 0 if there is nothing to time.

    One fraction is scaled. Two give a line, as on a GPU a larger batch takes hardly longer than a small one.
    """
    fraction, seconds = parts[-1]
    if not fraction:
        return 0.0
    if len(parts) < 2 or fraction <= parts[0][0]:
        return seconds / fraction
    slope = (seconds - parts[0][1]) / (fraction - parts[0][0])
    return seconds + max(0.0, slope) * (1 - fraction)


@dataclass(frozen=True)
class FittedPlan:
    """How the steps of a training fit into a time limit, and how far its schedule has come."""

    steps: int
    """Steps of the learning-rate schedule, as many as fitted by the first measurement."""
    total: int
    """Steps of the training, as many as fit by the latest measurement."""
    validation_every: int
    """Steps of the schedule between two validations."""
    position: float = 0.0
    """Position in the schedule, from 0 to `steps`."""

    def advanced(self, step: int) -> "FittedPlan":
        """The plan after this step, from 1."""
        left = self.total - step + 1
        position = self.position + (self.steps - self.position) / left if left > 1 else float(self.steps)
        return replace(self, position=position)

    def validates_after(self, earlier: "FittedPlan") -> bool:
        """Whether a validation is due at this position, and was not at an earlier one."""
        return self.position // self.validation_every > earlier.position // self.validation_every

    @property
    def validations_left(self) -> int:
        """The number of validations after this position; there is always one at the end."""
        return max(1, math.ceil((self.steps - self.position) / self.validation_every - 1e-9))


def fit_plan(settings: TrainingConfig, pace: Pace) -> FittedPlan:
    """The steps and validations that fit into the time limit, never more than the settings have."""
    limit, every = _usable_seconds(settings) - pace.final_seconds, settings.validation.every
    if pace.seconds(settings.steps, math.ceil(settings.steps / every)) <= limit:
        return FittedPlan(settings.steps, settings.steps, every)
    fitting = limit / max(pace.validation_seconds, 1e-9)
    affordable = max(VALIDATION_FRACTION * fitting, min(FEW_VALIDATIONS, FEW_VALIDATIONS_FRACTION * fitting))
    validations = max(1, math.floor(min(round(settings.steps / every), affordable)))
    steps = _steps_within(limit - validations * pace.validation_seconds, pace, settings.steps)
    return FittedPlan(steps, steps, max(1, math.ceil(steps / validations)))


def few_steps_warning(settings: TrainingConfig, plan: FittedPlan) -> str | None:
    """A warning if so few steps fit into the time limit that smaller batches are better; None if enough do."""
    if plan.steps >= FEW_STEPS or plan.steps == settings.steps:
        return None
    key, size = (("batches.max_tokens", settings.batches.max_tokens) if settings.windows is None else
                 ("windows.batch_size", settings.windows.batch_size))
    smaller = max(1, size * plan.steps // FEW_STEPS)
    remedy = f" Smaller batches give more steps: --set training.{key}={smaller}." if smaller < size else ""
    return (f"Only {checks.plural(plan.steps, 'step')} fit into the time limit, and a model needs some hundreds to "
            f"begin to learn.{remedy}")


def refit_plan(plan: FittedPlan, settings: TrainingConfig, pace: Pace, step: int, elapsed: float) -> FittedPlan:
    """The plan with the number of steps that fit into the time that is left after a step."""
    if step >= plan.total:
        return plan
    plan, left = _with_more_validations(plan, settings, pace), plan.total - step
    seconds = (_usable_seconds(settings) - pace.final_seconds - elapsed
               - plan.validations_left * pace.validation_seconds)
    fitting = _steps_within(seconds, pace, settings.steps - step)
    return plan if abs(fitting - left) <= REFIT_FRACTION * left else replace(plan, total=step + fitting)


def _with_more_validations(plan: FittedPlan, settings: TrainingConfig, pace: Pace) -> FittedPlan:
    """The plan with validations twice as often, or more, if these are now fast enough and the settings want as many."""
    most = max(1, round(settings.steps / settings.validation.every))
    while True:
        more = replace(plan, validation_every=math.ceil(plan.validation_every / 2))
        if (more.validation_every == plan.validation_every or math.ceil(plan.steps / more.validation_every) > most
                or math.ceil(plan.steps / more.validation_every) * pace.validation_seconds
                > VALIDATION_FRACTION * _usable_seconds(settings)):
            return plan
        plan = more


def is_out_of_time(settings: TrainingConfig, pace: Pace, elapsed: float) -> bool:
    """Whether another step and the last validation would end after the time limit."""
    assert settings.max_time is not None, "only asked with a time limit"
    return elapsed + pace.seconds(1, 1) + pace.final_seconds > settings.max_time


def fit_schedule(schedule: ScheduleConfig, plan: FittedPlan) -> ScheduleConfig:
    """The schedule with the steps of the plan, and a warm-up that fits these."""
    before = schedule.max_steps
    if before is None or plan.steps == before:
        return schedule
    warmup = max(schedule.warmup_steps * plan.steps / before, min(schedule.warmup_steps, WARMUP_FRACTION * plan.steps))
    return replace(schedule, max_steps=plan.steps, warmup_steps=min(plan.steps, math.ceil(warmup)))


def _usable_seconds(settings: TrainingConfig) -> float:
    """The time limit without the margin."""
    assert settings.max_time is not None, "only asked with a time limit"
    return settings.max_time - min(MAX_MARGIN_SECONDS, MARGIN_FRACTION * settings.max_time)


def _steps_within(seconds: float, pace: Pace, most: int) -> int:
    """The number of steps that fit, at least one."""
    return most if pace.step_seconds <= 0 else max(1, min(most, math.floor(max(0.0, seconds) / pace.step_seconds)))
