"""A choice: a key of the config, its value, and why; and what choices are made from.

    Choice("training.batches.tokens", 12000, "a GPU is idle below that")

Choices are values that a person reads before anything starts, stores in a config, and may set otherwise. This file does
not know which there are.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.recipes import catalog


class Choice(NamedTuple):
    """A key, its value, and the reason for it."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Device:
    """What a training runs on."""

    kind: str
    """ "cpu" or "cuda" """
    memory: int
    """Bytes."""
    lowered: bool
    """Whether it has bfloat16 in its matrix units."""
    count: int = 1
    """How many of them there are, each with a process and batches of its own."""

    @property
    def fast(self) -> bool:
        """Whether it is made for large batches."""
        return self.kind == "cuda"


def sized(recipe: str, size: str) -> str:
    """The recipe of a name in a size, where the name says none and there is such a size."""
    if recipe in catalog.names() and size != catalog.AS_WRITTEN and size in catalog.sizes(recipe):
        return f"{recipe}-{size}"
    return recipe


def grade(value: float, steps: Iterable[tuple[float, Any]], last: Any) -> Any:
    """The entry of the first step that the value is below, or the last one."""
    return next((entry for limit, entry in steps if value < limit), last)


def length(asked: Mapping[str, Any], epochs: float, batches: float, device: Device,
           reason: str) -> tuple[list[Choice], int]:
    """How long a training is: the choice of epochs, where no steps are set, and about how many steps it has.

    Args:
        asked: the table [training] as far as somebody has set it.
        epochs: so many, where nobody has set them.
        batches: of an epoch, about; it has one at least.
    """
    steps = value(asked, "schedule.steps")
    if steps is not None:
        return [], steps
    epochs = value(asked, "epochs", epochs)
    many = value(asked, "accumulate", 1) * device.count
    return [Choice("training.epochs", epochs, reason)], max(1, math.ceil(epochs * max(1.0, batches) / many))


def score(asked: Mapping[str, Any], name: str, reason: str) -> Choice:
    """What tells the better model: the score of this name, where a process has a whole model to judge."""
    if value(asked, "sharing", "replicated") == "sharded":
        name, reason = "loss", "no process has the whole model"
    return Choice("training.validation.score", name, reason)


def value(tables: Mapping[str, Any], key: str, otherwise: Any = None) -> Any:
    """What tables have at a dotted key, or something else where they have nothing."""
    found: Any = tables
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return otherwise
        found = found[part]
    return found
