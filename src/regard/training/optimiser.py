"""The optimiser of a model: Adam or AdamW, with decay for the weights that are matrices alone.

It makes torch's own, in the form that runs fastest on the device. It does not know schedules: the rate is set before
every step, by `set_rate`.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from regard.training.settings import OptimiserConfig


def make(config: OptimiserConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
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


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """The learning rate of the steps to come."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
