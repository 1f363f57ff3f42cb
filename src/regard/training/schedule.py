"""How fast to learn at every step: a function of the step alone, so that training can be resumed at any.

    inverse_sqrt   peak · min(s/w, √(w/s))                      Vaswani et al. 2017, with the peak given
    cosine         up to the peak, then a half cosine down to `last` · peak at the final step
    linear         up to the peak, constant until `hold` of all steps, then a straight line down to `last` · peak
    constant       up to the peak, and there it stays

s is the step, from 1, w the steps of the warm-up, in which the rate grows in a straight line. It does not know
optimisers.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regard.config import Config, choice, number, whole


def _inverse_sqrt(step: int, schedule: "ScheduleConfig") -> float:
    return math.sqrt(max(1, schedule.warmup) / step)


def _cosine(step: int, schedule: "ScheduleConfig") -> float:
    done = _share(step, schedule.warmup, schedule.steps)
    return schedule.last + (1.0 - schedule.last) * 0.5 * (1.0 + math.cos(math.pi * done))


def _linear(step: int, schedule: "ScheduleConfig") -> float:
    start = max(schedule.warmup, round(schedule.hold * (schedule.steps or 0)))
    return 1.0 - (1.0 - schedule.last) * _share(step, start, schedule.steps)


def _constant(step: int, schedule: "ScheduleConfig") -> float:
    return 1.0


SHAPES: dict[str, Callable[[int, "ScheduleConfig"], float]] = {
    "inverse_sqrt": _inverse_sqrt, "cosine": _cosine, "linear": _linear, "constant": _constant,
}
ENDLESS = ("inverse_sqrt", "constant")
"""Those that do not need to know the number of steps."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning rate over the steps, as a table of a config file."""

    shape: str = choice(SHAPES, "inverse_sqrt")
    peak: float = number(1e-3, above=0.0)
    warmup: int = whole(0, least=0)
    steps: int | None = whole(None, least=1)
    """Of the whole training; what comes after them has the rate of the last one."""
    hold: float = number(0.0, least=0.0, most=1.0)
    last: float = number(0.0, least=0.0, most=1.0)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        step = step if self.steps is None else min(step, self.steps)
        if step <= self.warmup:
            return self.peak * step / self.warmup
        return self.peak * SHAPES[self.shape](step, self)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.shape not in ENDLESS and self.steps is None:
            yield "steps", f'"{self.shape}" comes to an end, and must know after how many steps'
        if self.steps is not None and self.warmup > self.steps:
            yield "warmup", f"{self.warmup} steps of warm-up are more than all {self.steps} steps"


def _share(step: int, start: int, steps: int | None) -> float:
    """How much of the way from `start` to the last step is done: 0 to 1."""
    assert steps is not None, "a config without steps was refused"
    return min(1.0, max(0.0, (step - start) / max(1, steps - start)))
