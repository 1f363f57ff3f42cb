"""The optimizer (Adam or AdamW) and the learning-rate schedule, with their config tables.

    inverse_sqrt   peak · min(s/w, √(w/s))                      Vaswani et al. 2017, with the peak given
    cosine         up to the peak, then a half cosine down to `last` · peak at the final step
    linear         up to the peak, constant until `hold` of all steps, then a straight line down to `last` · peak
    constant       up to the peak, and there it stays

s is the step, from 1; w is the number of warm-up steps, over which the rate grows linearly. The rate is a function of
the step alone, so that a training can be resumed at any step.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from regard.config import Config, choice, integer, number, probability

# ---- settings: All that can be set about a training, as tables of a config file.
#
#     [training]
#     seed = 1
#     smoothing = 0.1
#     [training.schedule]
#     peak = 1e-3
#     steps = 7000
#
# What is not set follows from the data and the device (`regard.training.choices`). It knows no defaults that depend on
# them, and no loop.

OPTIMIZERS = ("adamw", "adam")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """Adam (Kingma and Ba 2015), or AdamW, which takes the decay out of the moments (Loshchilov and Hutter 2019)."""

    name: str = choice(OPTIMIZERS, "adamw")
    first: float = probability(0.9)
    """How much of the mean of the gradients stays from step to step."""
    second: float = probability(0.98)
    """The same of the mean of their squares."""
    epsilon: float = number(1e-9, above=0)
    decay: float = number(0.0, least=0.0)
    """Of weights; not of biases, of norms, or of anything else that has one dimension."""


def make_optimizer(config: OptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """An optimiser of these parameters, by their names."""
    weights = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    others = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": config.decay}, {"params": others, "weight_decay": 0.0}]
    on_cuda = any(parameter.is_cuda for parameter in parameters.values())
    # A rate on the device, so that a captured step can be told another one.
    rate = torch.zeros((), device=next(iter(parameters.values())).device) if on_cuda else 0.0
    kind = AdamW if config.name == "adamw" else Adam
    return kind([group for group in groups if group["params"]], lr=rate, betas=(config.first, config.second),
                eps=config.epsilon, fused=True, capturable=on_cuda)


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """The learning rate of the steps to come."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


# ---- schedule: How fast to learn at every step: a function of the step alone, so that training can be resumed at any.
#
#     inverse_sqrt   peak · min(s/w, √(w/s))                      Vaswani et al. 2017, with the peak given
#     cosine         up to the peak, then a half cosine down to `last` · peak at the final step
#     linear         up to the peak, constant until `hold` of all steps, then a straight line down to `last` · peak
#     constant       up to the peak, and there it stays
#
# s is the step, from 1, w the steps of the warm-up, in which the rate grows in a straight line. It does not know
# optimisers.


def _inverse_sqrt(step: int, schedule: "ScheduleConfig") -> float:
    return math.sqrt(max(1, schedule.warmup) / step)


def _cosine(step: int, schedule: "ScheduleConfig") -> float:
    done = _fraction_done(step, schedule.warmup, schedule.steps)
    return schedule.last + (1.0 - schedule.last) * 0.5 * (1.0 + math.cos(math.pi * done))


def _linear(step: int, schedule: "ScheduleConfig") -> float:
    start = max(schedule.warmup, round(schedule.hold * (schedule.steps or 0)))
    return 1.0 - (1.0 - schedule.last) * _fraction_done(step, start, schedule.steps)


def _constant(step: int, schedule: "ScheduleConfig") -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[int, "ScheduleConfig"], float]] = {
    "inverse_sqrt": _inverse_sqrt, "cosine": _cosine, "linear": _linear, "constant": _constant,
}
OPEN_ENDED_SCHEDULES = ("inverse_sqrt", "constant")
"""Those that do not need to know the number of steps."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning rate over the steps, as a table of a config file."""

    shape: str = choice(SCHEDULES, "inverse_sqrt")
    peak: float = number(1e-3, above=0.0)
    warmup: int = integer(0, least=0)
    steps: int | None = integer(None, least=1)
    """Of the whole training; what comes after them has the rate of the last one."""
    hold: float = number(0.0, least=0.0, most=1.0)
    last: float = number(0.0, least=0.0, most=1.0)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        step = step if self.steps is None else min(step, self.steps)
        if step <= self.warmup:
            return self.peak * step / self.warmup
        return self.peak * SCHEDULES[self.shape](step, self)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.shape not in OPEN_ENDED_SCHEDULES and self.steps is None:
            yield "steps", f'"{self.shape}" comes to an end, and must know after how many steps'
        if self.steps is not None and self.warmup > self.steps:
            yield "warmup", f"{self.warmup} steps of warm-up are more than all {self.steps} steps"


def _fraction_done(step: int, start: int, steps: int | None) -> float:
    """How much of the way from `start` to the last step is done: 0 to 1."""
    assert steps is not None, "a config without steps was refused"
    return min(1.0, max(0.0, (step - start) / max(1, steps - start)))
