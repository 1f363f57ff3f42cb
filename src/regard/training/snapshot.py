"""The whole state of a training: tensors by name, and values in JSON; and how an optimiser gives and takes its share.

    Snapshot.of({"model": ..., "average": ..., "optimiser": ...}, values)       "model.encoder.0.weight", ...
    optimiser_state(optimiser, parameters)              "first.<parameter>", "second.<parameter>", "step.<parameter>"
    resume_optimiser(optimiser, parameters, tensors)    all of them, as they must be, or none

An optimiser of torch takes a state of any shape without a word, and counts parameters in place of naming them; here
they have names, and what does not fit is refused before anything is changed. It does not know files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from regard import checks
from regard.storage import modules
from regard.training.shards import Part

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""The moving means of the gradient and of its square: our names, and torch's."""
STEP = "step"


@dataclass(frozen=True)
class Snapshot:
    """A training as it is now. The tensors are its own, not copies: store them before the next step."""

    tensors: Mapping[str, Tensor | Part]
    """By names that begin with the part of the training that each belongs to."""
    values: Mapping[str, Any]
    """What can be written as JSON and is equal when it is read: dicts with strings as keys, lists, numbers, strings."""

    @classmethod
    def of(cls, parts: Mapping[str, Mapping[str, Tensor | Part]], values: Mapping[str, Any]) -> "Snapshot":
        """The tensors of several parts, each under its name. `Stored.under` takes them apart again."""
        for part in parts:
            if "." in part:
                raise checks.wrong("parts", "of names without a dot", f"with {part!r}")
        return cls({f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()},
                   values)


def optimiser_state(optimiser: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The state of Adam or AdamW by the names of its parameters.

    A parameter that never had a gradient has the state that its first step would begin with.
    """
    state: dict[str, Tensor] = {}
    for name, parameter, group in _named(optimiser, parameters):
        own = optimiser.state.get(parameter) or _fresh(parameter, group)
        state |= {f"{ours}.{name}": own[theirs].detach() for ours, theirs in MOMENTS.items()}
        state[f"{STEP}.{name}"] = own[STEP].detach()
    return state


def optimiser_like(optimiser: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """For each tensor of the state one of the same shape, shared among processes in the same way: the parameter."""
    return {f"{ours}.{name}": parameter.detach() for name, parameter, _ in _named(optimiser, parameters)
            for ours in MOMENTS}


@torch.no_grad()
def resume_optimiser(optimiser: Optimizer, parameters: Mapping[str, nn.Parameter],
                     tensors: Mapping[str, Tensor]) -> None:
    """Go on with a stored state. A state that is there already is written over in its place, so that graphs stay valid.

    Names, shapes, dtypes and the way of sharing must be those of this optimiser; otherwise nothing is changed.
    """
    named = list(_named(optimiser, parameters))
    fresh = {name: optimiser.state.get(parameter) or _fresh(parameter, group) for name, parameter, group in named}
    wanted = {f"{ours}.{name}": own[theirs] for name, own in fresh.items()
              for ours, theirs in (*MOMENTS.items(), (STEP, STEP))}
    kind = type(optimiser).__name__
    modules.match(modules.entries(wanted), modules.entries(tensors), origin="tensors", owner=kind)
    for name, tensor in tensors.items():
        if tensor.dtype != wanted[name].dtype:
            raise checks.wrong(f"tensors[{name!r}]", str(wanted[name].dtype), str(tensor.dtype))
        if _sharing(tensor) != _sharing(wanted[name]):
            raise checks.wrong(f"tensors[{name!r}]", f"shared as {_sharing(wanted[name])}", str(_sharing(tensor)),
                               "Give `optimiser_like` to `under`, which reads the part that is needed here.")
    for name, tensor in tensors.items():
        wanted[name].copy_(tensor)
    for name, parameter, _ in named:
        optimiser.state[parameter] = fresh[name]


def _named(optimiser: Optimizer,
           parameters: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """The parameters of the optimiser with their names and groups."""
    if not isinstance(optimiser, Adam | AdamW):
        raise checks.wrong("optimiser", "an Adam or AdamW of torch", *checks.kind(optimiser))
    names = {parameter: name for name, parameter in parameters.items()}
    for group in optimiser.param_groups:
        if group["amsgrad"]:
            raise checks.wrong("optimiser", "one without amsgrad", "one with it")
        for parameter in group["params"]:
            if parameter not in names:
                raise checks.wrong("parameters", "all those of the optimiser",
                                   f"without one of shape {checks.shape(parameter)}")
            yield names[parameter], parameter, group


def _fresh(parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state before the first step, as torch makes it: its count is on the device where kernels read it there."""
    wide = not group["fused"] and torch.get_default_dtype() == torch.float64
    step = torch.zeros((), dtype=torch.float64 if wide else torch.float32,
                       device=parameter.device if group["fused"] or group["capturable"] else "cpu")
    return {STEP: step} | {theirs: torch.zeros_like(parameter.detach()) for theirs in MOMENTS.values()}


def _sharing(tensor: Tensor) -> object:
    """How a tensor is shared among processes; None for a plain one."""
    return getattr(tensor, "placements", None)
