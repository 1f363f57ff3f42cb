"""What a plan is: the steps from files to a `Work`, between which choices are made and may be overruled.

    plan.survey(request, config)      what is in the files                        ─► choices about data and tokenizer
    plan.prepare(survey, document)    everything as numbers on disk               ─► choices about model and training
    plan.work(...)                    what the loop is given

A plan knows one way to train. Who asks, and what is done with the choices, is not its business.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from regard.models.build import ModelConfig
from regard.toml.document import Document
from regard.training.choices.choice import Choice, Device
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Work


@dataclass(frozen=True)
class Request:
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


class Plan(Protocol):
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

    def survey(self, request: Request, config: DataConfig) -> Any:
        """What is in the files: its `files` are their sha256 by name, its `warnings` what a person should know."""

    def before(self, survey: Any, asked: Mapping[str, Any]) -> list[Choice]:
        """The choices about data and tokenizer; the tables have what was asked for."""

    def prepare(self, survey: Any, document: Document, place: Path) -> Any:
        """Everything as numbers on disk, with the tokenizer and filters that the document asks for; with `notes`."""

    def named(self, prepared: Any, device: Device, asked: str | None) -> Choice:
        """The recipe of the model: the one that is asked for, in the size that fits."""

    def after(self, prepared: Any, tables: Mapping[str, Any], device: Device) -> list[Choice]:
        """The choices about model and training; the tables have what was asked for, and the recipe's [model]."""

    def steps(self, prepared: Any, settings: Document) -> int:
        """How many batches an epoch has."""

    def work(self, prepared: Any, made_from: ModelConfig, settings: TrainingConfig, record: dict[str, Any]) -> Work:
        """What the loop is given."""


def held(given: bool, share: float, reason: str, otherwise: str) -> Choice:
    """How much of the data is held out to judge by: nothing where other data is given for that, or there is too little.

    Args:
        reason: why something is.
        otherwise: why nothing is, where there is too little.
    """
    return Choice("data.held", share, "validation data is given" if given else reason if share else otherwise)
