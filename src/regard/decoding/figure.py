"""What recordings of a model rely on, and whether it is still so.

    figure = Figure(model)       where something is about to be recorded
    figure.fits()                before each call that may replay it
    figure.is_touched()          whether somebody has hooks in it, or listens to it

A recording holds addresses of numbers, and what Python once decided. Both are wrong when a parameter lies elsewhere or
is laid out otherwise (`to`, `load_state_dict(assign=True)`, another `.data`), when a module was put in the place of
another, or when an attribute of one is another object: a mask, a score, the mode, a forward pass. All of that is looked
at, by identity, in lists that are laid out once: a look takes a fraction of a millisecond, a walk through a model takes
several times as long. Numbers that are written where they lie are no change: recordings read them there. What is
changed inside of an object that is no module, and code of classes, is not seen.

It knows neither models nor what is recorded.
"""

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch

DTYPE = attrgetter("dtype")


class Figure:
    """Of a module and all inside it, as it is now. It does not keep the module itself."""

    def __init__(self, module: nn.Module) -> None:
        inside = every(module)
        held = [part for one in inside for part in (one._modules, one._parameters, one._buffers)]
        self._dicts = [*map(vars, inside), *held]
        self._sizes, self._values = list(map(len, self._dicts)), list(_values(self._dicts))
        self._tensors = [part for part in _values(held) if isinstance(part, Tensor)]
        self._layouts = self._layouts_now()
        self._hooks = [hooks for one in inside for hooks in (one._forward_hooks, one._forward_pre_hooks)]
        self._taps: list[Any] = [vars(one)["tap"] for one in inside if "tap" in vars(one)]

    def fits(self) -> bool:
        """Whether all is where and what it was."""
        return (list(map(len, self._dicts)) == self._sizes and all(map(is_, _values(self._dicts), self._values))
                and self._layouts_now() == self._layouts)

    def is_touched(self) -> bool:
        """Whether a hook is somewhere, or a listener at a tap."""
        return any(self._hooks) or any(tap.listeners for tap in self._taps) or any_hook_of_all()

    def _layouts_now(self) -> list[list[Any]]:
        """Where the numbers lie, and how: without a loop in Python, which would take most of the time."""
        return [list(map(part, self._tensors)) for part in (Tensor.data_ptr, Tensor.size, Tensor.stride, DTYPE)]


def every(module: nn.Module) -> list[nn.Module]:
    """A module and all inside it. It is asked for at calls of a search: torch's own way takes far longer."""
    found = [module]
    for one in found:  # which grows meanwhile
        found += [child for child in one._modules.values() if child is not None]
    return found


def hooked(inside: Iterable[nn.Module]) -> bool:
    """Whether hooks would run where these modules do."""
    return any(one._forward_hooks or one._forward_pre_hooks for one in inside) or any_hook_of_all()


def any_hook_of_all() -> bool:
    """Whether there are hooks of all modules at once."""
    return bool(modules_of_torch._global_forward_hooks or modules_of_torch._global_forward_pre_hooks)


def replaced(inside: Iterable[nn.Module]) -> str | None:
    """Why what these modules compute does not follow from their kinds and parameters; None where it does."""
    for one in inside:
        if one.training:
            return "a module is in training mode"
        if "forward" in vars(one) or "parametrizations" in one._modules:
            return "a forward pass was replaced, or a parameter is computed from others"
    return None


def _values(dicts: Iterable[dict[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(map(dict.values, dicts))
