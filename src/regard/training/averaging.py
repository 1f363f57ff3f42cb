"""The mean of a model over its last steps, which is better than the last step alone.

    a_s = d a_{s-1} + (1 - d) w_s,      d = min(decay, (1 + s) / (10 + s))

An exponential moving average of all parameters, kept in float32 on their device. At first d is smaller, so that the
random beginning is forgotten soon. It is a state like any other: it is stored and resumed. It does not know training.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard import checks


class Average:
    """The moving average of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        checks.probability("decay", decay)
        self.decay, self.steps = decay, 0
        self.model = model
        self.mean = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        self.steps += 1
        weight = 1.0 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        now = [parameter.detach().float() for _, parameter in self.model.named_parameters()]
        torch._foreach_lerp_(list(self.mean.values()), now, weight)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, the model has the mean as its parameters; afterwards what it had before."""
        parameters = dict(self.model.named_parameters())
        kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        self._write(parameters, self.mean)
        try:
            yield
        finally:
            self._write(parameters, kept)

    def state(self) -> dict[str, Tensor]:
        """What must be stored to go on: the mean, and how many steps it has seen."""
        return {**self.mean, "steps": torch.tensor(self.steps)}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a stored state."""
        missing = [name for name in self.state() if name not in state]
        if missing:
            raise checks.wrong("state", f"one with the mean of {missing[0]!r}", f"one with {len(state)} other tensors")
        more = [name for name in state if name not in self.state()]
        if more:
            raise checks.wrong("state", "one of this model", f"one with the mean of {more[0]!r}, which it has not")
        for name, mean in self.mean.items():  # all are looked at before the first is taken
            if state[name].shape != mean.shape:
                raise checks.wrong(f"state[{name!r}]", f"of shape {checks.shape(mean)}",
                                   f"of shape {checks.shape(state[name])}")
        self.steps = int(state["steps"])
        for name, mean in self.mean.items():
            mean.copy_(state[name])

    @staticmethod
    @torch.no_grad()
    def _write(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
