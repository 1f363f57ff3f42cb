"""What a training is about, told to a loop that knows nothing of it: batches, a loss, a score, and what is saved.

    work.feed(rank, processes).at(step)      a batch, with `tokens`: how many things in it are learned from
    work.objective(model)(batch)             its Loss: sums over them
    work.validate(task)                      Verdict(scores, examples) on data that was not learned from
    work.task(model)                         what a person holds in the end
    work.complete(task)                      what it has besides a model, chosen by that data; then it is saved

There is one work for each way to train: translation, language, masked, classification (`regard.training.works`). Here
is only what they share. It does not know optimisers, steps or files.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from regard.data.batches.buckets import Numbers
from regard.tasks.task import Task
from regard.training.loss import Loss

RISING = {"loss": False, "bleu": True, "chrf": True, "accuracy": True}
"""The scores there are, and whether more is better."""


class Learned(Protocol):
    """A batch, as far as the loop looks at it."""

    @property
    def tokens(self) -> int:
        """How many labels there are in it: what the sum of the losses is divided by."""

    @property
    def numbers(self) -> Numbers:
        """Which examples of the data it holds, to be named when something is wrong with it."""

    def to(self, device: "torch.device | str") -> Self:
        """The same on a device."""


class Feeding(Protocol):
    """Batches by the number of the step; `regard.data.batches.feed.Steps` is one."""

    @property
    def steps(self) -> int:
        """How many steps an epoch has."""

    def at(self, step: int) -> Any:
        """The batch of this process in this step, from 0. It follows from the number alone."""

    def largest(self) -> Sequence[Any]:
        """The batches that need most memory, to be tried first."""


class Objective(nn.Module, ABC):
    """A model with its loss, as one module that can be shared among processes and captured whole.

    Its parameters are the model's. `carried` and `resume` are for those that keep something from step to step, such as
    the state of a recurrent network that reads a long text; others have nothing to keep.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: Any) -> Loss:
        """The sums of the losses over what is learned from."""

    def carried(self) -> dict[str, Tensor]:
        """What is kept from step to step, to be stored."""
        return {}

    def resume(self, carried: Mapping[str, Tensor]) -> None:
        """Go on with what was kept."""


class Example(NamedTuple):
    """What the model makes of one example of the validation data, to be shown."""

    given: str
    wanted: str
    made: str


@dataclass(frozen=True)
class Verdict:
    """How good a model is on data that it did not learn from."""

    scores: Mapping[str, float]
    """By the names of RISING; "loss" is always among them: the mean of -log p of the labels."""
    examples: tuple[Example, ...] = field(default=())


@runtime_checkable
class Work(Protocol):
    """One way to train, with its data."""

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of how the data fits the model."""

    def feed(self, rank: int, processes: int) -> Feeding:
        """The batches of one of so many processes."""

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model of this work."""

    def validate(self, task: Task) -> Verdict:
        """How good the model is. It leaves the random state and the mode of the model as they were."""

    def judged(self) -> Sequence[Any]:
        """Batches of the data to judge by, for models of which no process has all."""

    def task(self, model: nn.Module) -> Task:
        """The model as a person holds it. The module itself, not a copy, is in it."""

    def complete(self, task: Task) -> None:
        """Choose what a task has besides its model, by the data to judge by, before it is saved."""
