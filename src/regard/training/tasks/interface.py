"""What a training task is: the interface between the tasks and a loop that knows nothing of them.

A `TaskSetup` goes from files to a `TrainingTask`, and supplies defaults on the way:

    setup.survey(request, config)      what is in the files                       ─► defaults of data and tokenizer
    setup.prepare(survey, document)    everything as numbers on disk              ─► defaults of model and training
    setup.work(...)                    the TrainingTask

A `TrainingTask` gives the loop batches, a loss and a score:

    task.feed(rank, processes).at(step)      a batch, with `tokens`: the number of labels in it
    task.objective(model)(batch)             its Loss: sums over the labels
    task.validate(task)                      ValidationResult(scores, examples)
    task.task(model)                         the task object that a user holds in the end
    task.complete(task)                      what that has besides a model, chosen on the validation data

Optimizers, steps and files are not known here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from regard.data.batches.plan import ExampleNumbers
from regard.models.build import ModelConfig
from regard.tasks.task import Task
from regard.toml import TomlDocument
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.loss import Loss


class TrainingBatch(Protocol):
    """A batch, as far as the loop looks at it."""

    @property
    def tokens(self) -> int:
        """How many labels there are in it: what the sum of the losses is divided by."""

    @property
    def numbers(self) -> ExampleNumbers:
        """Which examples of the data it holds, to be named when something is wrong with it."""

    def to(self, device: "torch.device | str") -> Self:
        """The same on a device."""


class BatchLoader(Protocol):
    """Batches by the number of the step; `regard.data.batches.feed.BatchFeed` is one."""

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


@dataclass(frozen=True)
class ValidationResult:
    """How good a model is on data that it did not learn from."""

    scores: Mapping[str, float]
    """By the names of RISING; "loss" is always among them: the mean of -log p of the labels."""
    examples: tuple[ValidationExample, ...] = field(default=())


@runtime_checkable
class TrainingTask(Protocol):
    """One way to train, with its data."""

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of how the data fits the model."""

    def feed(self, rank: int, processes: int) -> BatchLoader:
        """The batches of one of so many processes."""

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model of this work."""

    def validate(self, task: Task) -> ValidationResult:
        """How good the model is. It leaves the random state and the mode of the model as they were."""

    def judged(self) -> Sequence[Any]:
        """Batches of the data to judge by, for models of which no process has all."""

    def task(self, model: nn.Module) -> Task:
        """The model as a person holds it. The module itself, not a copy, is in it."""

    def complete(self, task: Task) -> None:
        """Choose what a task has besides its model, by the data to judge by, before it is saved."""


# ---- plan: What a plan is: the steps from files to a `Work`, between which choices are made and may be overruled.
#
#     plan.survey(request, config)      what is in the files                        ─► choices about data and tokenizer
#     plan.prepare(survey, document)    everything as numbers on disk               ─► choices about model and training
#     plan.work(...)                    what the loop is given
#
# A plan knows one way to train. Who asks, and what is done with the choices, is not its business.


@dataclass(frozen=True)
class TrainingRequest:
    """What somebody asked for."""

    task: str
    data: tuple[str, ...]
    output: Path
    validation: tuple[str, ...] = ()
    recipe: str | None = None
    """The name of a recipe, or the path of a TOML file."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the config with their values."""
    source: str | None = None
    target: str | None = None
    format: str | None = None
    resume: bool = False
    device: str = "auto"
    counted: Callable[[Iterable[Any]], Iterable[Any]] = iter
    """Passes on what is read, and may count it."""


class TaskSetup(Protocol):
    """One way to train."""

    recipes: tuple[str, ...]
    """The recipe where none is asked for; several where only the data tells which."""
    kinds: tuple[str, ...]
    """Of the models that are trained so, as their configs name them."""
    open: Mapping[str, Any]
    """What configs must have and only the data tells: keys, with values that some data would give."""
    scores: tuple[str, ...]
    """What a model can be judged by."""
    unused: Mapping[str, Any]
    """Keys of the config that change nothing here, with the values that they have anyway; others are refused."""

    def survey(self, request: TrainingRequest, config: DataConfig) -> Any:
        """What is in the files: its `files` are their sha256 by name, its `warnings` what a person should know."""

    def before(self, survey: Any, asked: Mapping[str, Any]) -> list[Default]:
        """The choices about data and tokenizer; the tables have what was asked for."""

    def prepare(self, survey: Any, document: TomlDocument, place: Path) -> Any:
        """Everything as numbers on disk, with the tokenizer and filters that the document asks for; with `notes`."""

    def named(self, prepared: Any, device: DeviceProperties, asked: str | None) -> Default:
        """The recipe of the model: the one that is asked for, in the size that fits."""

    def after(self, prepared: Any, tables: Mapping[str, Any], device: DeviceProperties) -> list[Default]:
        """The choices about model and training; the tables have what was asked for, and the recipe's [model]."""

    def steps(self, prepared: Any, settings: TomlDocument) -> int:
        """How many batches an epoch has."""

    def work(self, prepared: Any, made_from: ModelConfig, settings: TrainingConfig, record: dict[str, Any]) -> TrainingTask:
        """What the loop is given."""


def validation_fraction_default(given: bool, share: float, reason: str, otherwise: str) -> Default:
    """How much of the data is held out to judge by: nothing where other data is given for that, or there is too little.

    Args:
        reason: why something is.
        otherwise: why nothing is, where there is too little.
    """
    return Default("data.validation_fraction", share, "validation data is given" if given else reason if share else otherwise)
