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
    beta1: float = probability(0.9, old="first")
    """How much of the mean of the gradients stays from step to step."""
    beta2: float = probability(0.98, old="second")
    """The same of the mean of their squares."""
    epsilon: float = number(1e-9, above=0)
    weight_decay: float = number(0.0, minimum=0.0, old="decay")
    """Of weights; not of biases, of norms, or of anything else that has one dimension."""


def make_optimizer(config: OptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """An optimiser of these parameters, by their names."""
    weights = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    others = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    on_cuda = any(parameter.is_cuda for parameter in parameters.values())
    # A rate on the device, so that a captured step can be told another one.
    rate = torch.zeros((), device=next(iter(parameters.values())).device) if on_cuda else 0.0
    kind = AdamW if config.name == "adamw" else Adam
    return kind([group for group in groups if group["params"]], lr=rate, betas=(config.beta1, config.beta2),
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
    return math.sqrt(max(1, schedule.warmup_steps) / step)


def _cosine(step: int, schedule: "ScheduleConfig") -> float:
    done = _fraction_done(step, schedule.warmup_steps, schedule.max_steps)
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * done))


def _linear(step: int, schedule: "ScheduleConfig") -> float:
    start = max(schedule.warmup_steps, round(schedule.constant_fraction * (schedule.max_steps or 0)))
    return 1.0 - (1.0 - schedule.final_fraction) * _fraction_done(step, start, schedule.max_steps)


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
    learning_rate: float = number(1e-3, above=0.0, old="peak")
    warmup_steps: int = integer(0, minimum=0, old="warmup")
    max_steps: int | None = integer(None, minimum=1, old="steps")
    """Of the whole training; what comes after them has the rate of the last one."""
    constant_fraction: float = number(0.0, minimum=0.0, maximum=1.0, old="hold")
    final_fraction: float = number(0.0, minimum=0.0, maximum=1.0, old="last")

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        step = step if self.max_steps is None else min(step, self.max_steps)
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        return self.learning_rate * SCHEDULES[self.shape](step, self)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.shape not in OPEN_ENDED_SCHEDULES and self.max_steps is None:
            yield "max_steps", f'"{self.shape}" comes to an end, and must know after how many steps'
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
            yield "warmup_steps", f"{self.warmup_steps} steps of warm-up are more than all {self.max_steps} steps"


def _fraction_done(step: int, start: int, steps: int | None) -> float:
    """How much of the way from `start` to the last step is done: 0 to 1."""
    assert steps is not None, "a config without steps was refused"
    return min(1.0, max(0.0, (step - start) / max(1, steps - start)))
