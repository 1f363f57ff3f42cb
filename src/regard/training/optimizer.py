"""The optimizer (Adam or AdamW) and the learning-rate schedule, with their config tables.

    inverse_sqrt   learning_rate · min(s/w, √(w/s))                      Vaswani et al. 2017
    cosine         after the warm-up a half cosine down to `final_fraction` of the learning rate at the last step
    linear         constant until `constant_fraction` of all steps, then linear decay to `final_fraction`
    constant       constant after the warm-up

s is the step, from 1; w is the number of warm-up steps, over which the rate grows linearly to `learning_rate`. The rate
is a function of the step alone, so that a training can be resumed at any step. With a time limit s is a position in the
schedule, between two whole steps (`regard.training.timing`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from regard.config import Config, choice, integer, number, probability

OPTIMIZERS = ("adamw", "adam")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """Adam (Kingma and Ba 2015), or AdamW, which takes the decay out of the moments (Loshchilov and Hutter 2019)."""

    name: str = choice(OPTIMIZERS, "adamw")
    """Optimizer: AdamW, or Adam with L2 regularization instead of decoupled weight decay."""
    beta1: float = probability(0.9, old="first")
    """Decay of the running mean of the gradients."""
    beta2: float = probability(0.98, old="second")
    """Decay of the running mean of the squared gradients."""
    epsilon: float = number(1e-9, above=0)
    """Small number in the denominator of the update."""
    weight_decay: float = number(0.0, minimum=0.0, old="decay")
    """Weight decay of the weight matrices; biases and norms have none."""


def make_optimizer(config: OptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """Adam or AdamW for these parameters, fused; only matrices have weight decay."""
    weights = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    others = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    on_cuda = any(parameter.is_cuda for parameter in parameters.values())
    # On a GPU the rate is a tensor, so that a step in a CUDA graph can be given another one.
    rate = torch.zeros((), device=next(iter(parameters.values())).device) if on_cuda else 0.0
    kind = AdamW if config.name == "adamw" else Adam
    return kind([group for group in groups if group["params"]], lr=rate, betas=(config.beta1, config.beta2),
                eps=config.epsilon, fused=True, capturable=on_cuda)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the next steps."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _inverse_sqrt(step: float, schedule: "ScheduleConfig") -> float:
    return min(1.0, math.sqrt(max(1, schedule.warmup_steps) / step))


def _cosine(step: float, schedule: "ScheduleConfig") -> float:
    done = _fraction_done(step, schedule.warmup_steps, schedule.max_steps)
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * done))


def _linear(step: float, schedule: "ScheduleConfig") -> float:
    start = max(schedule.warmup_steps, round(schedule.constant_fraction * (schedule.max_steps or 0)))
    return 1.0 - (1.0 - schedule.final_fraction) * _fraction_done(step, start, schedule.max_steps)


def _constant(step: float, schedule: "ScheduleConfig") -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[float, "ScheduleConfig"], float]] = {
    "inverse_sqrt": _inverse_sqrt, "cosine": _cosine, "linear": _linear, "constant": _constant,
}
OPEN_ENDED_SCHEDULES = ("inverse_sqrt", "constant")
"""Schedules that do not depend on the number of steps."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning rate as a function of the step."""

    shape: str = choice(SCHEDULES, "inverse_sqrt")
    """How the learning rate decays after the warm-up."""
    learning_rate: float = number(1e-3, above=0.0, old="peak")
    """Learning rate at the end of the warm-up, the highest."""
    warmup_steps: int = integer(0, minimum=0, old="warmup")
    """Steps over which the learning rate grows linearly from 0."""
    max_steps: int | None = integer(None, minimum=1, old="steps")
    """Optimizer steps of the whole training; by default from the epochs."""
    constant_fraction: float = number(0.0, minimum=0.0, maximum=1.0, old="hold")
    """Linear schedule: fraction of all steps after which the decay begins."""
    final_fraction: float = number(0.0, minimum=0.0, maximum=1.0, old="last")
    """Linear and cosine schedule: learning rate at the last step, as a fraction of the highest."""

    def rate(self, step: float) -> float:
        """The learning rate of a step, from 1, or of a position between two steps."""
        step = step if self.max_steps is None else min(step, self.max_steps)
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        return self.learning_rate * SCHEDULES[self.shape](step, self)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys that contradict each other, and why."""
        if self.shape not in OPEN_ENDED_SCHEDULES and self.max_steps is None:
            yield "max_steps", f'must be set, because the schedule "{self.shape}" depends on it'
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
            yield "warmup_steps", f"{self.warmup_steps} steps of warm-up are more than all {self.max_steps} steps"


def _fraction_done(step: float, start: int, steps: int | None) -> float:
    """The fraction of the steps after `start` that is done, from 0 to 1."""
    assert steps is not None, "a config without steps was refused"
    return min(1.0, max(0.0, (step - start) / max(1, steps - start)))
