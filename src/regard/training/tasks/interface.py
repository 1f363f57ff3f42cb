"""What a training task is: the interface between the tasks and a loop that knows nothing of them.

A `TaskSetup` goes from files to a `TrainingTask`, and supplies defaults on the way:

    setup.survey(request, config)           statistics of the files           ─► defaults of data and tokenizer
    setup.prepare(survey, document, place)  everything as numbers on disk     ─► defaults of model and training
    setup.build(...)                        the TrainingTask

A `TrainingTask` gives the loop batches, a loss and a score:

    training_task.feed(rank, processes).at(step)     a batch, with `tokens`: the number of labels in it
    training_task.objective(model)(batch)            its Loss: sums over the labels
    training_task.validate(task)                     ValidationResult(scores, examples, details)
    training_task.wrap(model)                        the task object that a user holds in the end
    training_task.finalize(task)                     chooses what that has besides a model, on the validation data

Optimizers, steps and files are not known here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from regard import checks
from regard.data.batches.plan import ExampleNumbers
from regard.data.directions import DirectionData
from regard.data.languages import LanguagePair
from regard.models.build import ModelConfig
from regard.tasks.task import Task
from regard.tasks.translator import Translator
from regard.toml import TomlDocument
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.loss import Loss
from regard.training.starting_point import StartModel

SAMPLED_TEXTS, MIN_SAMPLE, MAX_SAMPLE = 100, 10, 60
"""Texts among which a sample for the user is looked for, and its characters."""
ProgressHook = Callable[[Iterable[Any]], Iterable[Any]]
"""Passes items on unchanged, and may count them to show progress, as tqdm does."""
TRACK_KEYS: Mapping[str, Any] = {"data.columns": None, "data.frame_step": None}
"""Keys that only tracks use, with their fixed defaults."""
PAIR_KEYS: Mapping[str, Any] = {"data.joint_tokenizer": True, "data.source_lang": None, "data.target_lang": None,
                               "data.directions": None, "data.sampling_temperature": None, "data.zero_shot": False,
                               "data.mix_share": None, "training.teacher_share": 0.0}
"""Keys that only sentence pairs use, with their fixed defaults."""
LABEL_KEYS: Mapping[str, Any] = {"data.label_unit": None, "data.split_punctuation": None, "training.token_dropout": 0.0}
"""Keys that only token classification uses, with their fixed defaults."""


@dataclass(frozen=True)
class SynthesisRequest:
    """Synthetic sentence pairs that another model writes before the training: back-translation, or distillation."""

    monolingual: tuple[str, ...] = ()
    """Files of target text, one sentence a line; a reverse model writes the sources."""
    reverse: str | None = None
    """The folder of the reverse model; without it, one is trained."""
    teacher: str | None = None
    """The folder of the teacher, which translates the sources of the data."""
    sampled_sources: int | None = None
    """New sentences that the teacher translates too; None for the default."""
    share: float | None = None
    """The fraction of an epoch that is synthetic, between 0 and 1; None for the default."""
    temperature: float | None = None
    """The temperature at which synthetic sources are sampled; None for the default."""
    top_k: int | None = None
    """Synthetic sources are sampled from this many tokens at each step; None for all."""
    keep: str | None = None
    """A new file for the synthetic pairs."""


@dataclass(frozen=True)
class SyntheticPairs:
    """Synthetic pairs that were written for a training."""

    path: str
    """A JSONL file in the output folder."""
    files: tuple[str, ...]
    """The files of the user that the training depends on, besides this one."""
    share: float | None = None
    """The fraction of an epoch that is synthetic, if there are other pairs; None for the default."""
    languages: LanguagePair | None = None
    """The languages of the pairs, if they are known; the file does not tell them."""
    teacher: Translator | None = None
    """The teacher, if the student also learns from its probabilities; it has its tokenizer then."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is stored with the model in [data], in place of what this file and those written with it tell."""


@dataclass(frozen=True)
class TrainingRequest:
    """What the user asked for."""

    task: str
    data: tuple[str, ...]
    output: Path
    validation: tuple[str, ...] = ()
    recipe: str | None = None
    """The name of a recipe, or the path of a TOML file."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys of the config with their values."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Short options by name, such as {"lr": 1e-3, "layers": 4}; `regard.training.short_options` has the table."""
    changes_name: str = "--set"
    """How error messages call `changes`."""
    option_prefix: str = "--"
    """What error messages put before the name of a short option: "--" on the command line, nothing in Python."""
    source: str | None = None
    target: str | None = None
    format: str | None = None
    resume: bool = False
    device: str = "auto"
    progress: ProgressHook = iter
    write_data: Callable[[], None] | None = None
    """Writes data that is given in memory to the files of `data` and `validation`, in the folder for ids."""
    adapt_threads: bool = True
    """Whether a new training on a CPU uses no more threads than cores are free."""
    directions: tuple[DirectionData, ...] = ()
    """The files of each direction, for a model for several languages; then `data` is empty."""
    both_ways: bool = False
    """Whether every direction is also trained the other way round."""
    start: "str | Task | None" = None
    """The model that is fine-tuned: its folder, or the task itself; None to start with new weights."""
    mix: tuple[str, ...] = ()
    """Files of general data that is kept in the batches while a model is fine-tuned."""
    general_validation: tuple[str, ...] = ()
    """Files of general validation data, whose score is reported beside that of the new data."""
    synthesis: SynthesisRequest | None = None
    """The synthetic pairs to write before the training."""
    back_translated: SyntheticPairs | None = None
    """Pairs with synthetic sources, to be mixed with those of `data`."""
    distilled: SyntheticPairs | None = None
    """Pairs with the translations of a teacher; `data` is their file."""
    reversed: bool = False
    """Whether the model is trained from target to source."""

    @property
    def validation_files(self) -> tuple[str, ...]:
        """The validation files of all directions, or of the only one."""
        return (*self.validation, *(path for one in self.directions for path in one.validation))


class TrainingBatch(Protocol):
    """The part of a batch that the loop uses."""

    @property
    def tokens(self) -> int:
        """The number of labels, by which the sum of the losses is divided."""

    @property
    def numbers(self) -> ExampleNumbers:
        """The numbers of its examples in the data, for error messages."""

    def to(self, device: "torch.device | str") -> Self:
        """The same batch on a device."""


class BatchLoader(Protocol):
    """Batches by the number of the step; `regard.data.batches.feed.BatchFeed` is one."""

    @property
    def steps(self) -> int:
        """Steps per epoch."""

    def at(self, step: int) -> Any:
        """The batch of this process in this step, from 0. It depends on the number alone."""

    def largest(self) -> Sequence[Any]:
        """The batches that need most memory, to be tried first."""


class Objective(nn.Module, ABC):
    """A model with its loss, as one module that can be wrapped for several processes and captured in a CUDA graph.

    Its parameters are the model's. `carried` and `resume` are for objectives that keep a state from step to step, such
    as that of a recurrent network that reads a long text.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: Any) -> Loss:
        """The sums of the losses over the labels of a batch."""

    def carried(self) -> dict[str, Tensor]:
        """The state that is kept from step to step, for a checkpoint."""
        return {}

    def resume(self, carried: Mapping[str, Tensor]) -> None:
        """Continue with a stored state."""


@dataclass(frozen=True)
class ValidationResult:
    """Scores of a model on the validation data."""

    scores: Mapping[str, float]
    """By the names of HIGHER_IS_BETTER; "loss", the mean of -log p of the labels, is always among them."""
    examples: tuple[ValidationExample, ...] = ()
    details: Callable[[], Mapping[str, Any]] = dict
    """Computes what is stored beside the scores of the best model, such as their confidence intervals: plain values.
    The loop calls it only if this is the best model so far."""


class TrainingTask(ABC):
    """Batches, loss and validation of one training.

    Args:
        prepared: the data, as the setup's `prepare` returns it.
        record: what is stored with the model about its training.
    """

    name: str
    notes: tuple[str, ...] = ()
    """What the user should know about how the data fits the model."""
    frozen_parameters: int = 0
    """The parameters of another model that the loss needs, such as a teacher, which are not trained."""
    training_count: int = 0
    """The number of training examples from the data of the user; 0 if it does not count them."""
    validation_count: int = 0
    """The number of examples that validation uses; 0 if it does not count examples."""

    def __init__(self, prepared: Any, model_config: Any, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        self.prepared, self.model_config, self.settings, self.record = prepared, model_config, settings, record

    @abstractmethod
    def feed(self, rank: int, processes: int) -> BatchLoader:
        """The training batches of one process of several."""

    def initialize(self, model: nn.Module) -> None:
        """Set what a new model takes from the data before the first step, such as anchors."""

    @abstractmethod
    def objective(self, model: nn.Module) -> Objective:
        """The model with its loss."""

    @abstractmethod
    def validation_batches(self) -> Sequence[Any]:
        """The validation data in batches."""

    @abstractmethod
    def validate(self, task: Task) -> ValidationResult:
        """Score the model on the validation data. Mode and random state of the model stay as they were."""

    def try_validation(self, task: Task, examples: int) -> float:
        """Validate on a part of the data, to time it; returns the fraction of a whole validation that this is.

        Args:
            examples: about how many validation examples to use, where a task can choose.
        """
        batches = self.validation_batches()
        if not batches:
            return 0.0
        with torch.no_grad():
            self.objective(task.model)(batches[0].to(task.device))
        return batches[0].tokens / max(1, sum(batch.tokens for batch in batches))

    def sample_input(self) -> str | None:
        """A short validation input, which a user may try the model with; None if there is none."""
        return None

    def sample_options(self) -> tuple[str, ...]:
        """The options that `regard translate` and others need for the sample input."""
        return ()

    @abstractmethod
    def wrap(self, model: nn.Module) -> Task:
        """The task object around this model, which is not copied."""

    def finalize(self, task: Task) -> None:
        """Choose what a task has besides its model, on the validation data, before it is saved."""


class TaskSetup(ABC):
    """The way from files to a `TrainingTask`, with defaults that depend on the data.

    Args:
        start: the model that is fine-tuned; None to start with new weights.
    """

    recipes: tuple[str, ...]
    """The default recipe; several if the choice depends on the data."""
    model_kinds: tuple[str, ...]
    """The `model.kind` values that can be trained for this task."""
    data_dependent: Mapping[str, Any]
    """Required keys that only the data determines, with plausible values for checking a config before it is read."""
    scores: tuple[str, ...]
    """The scores that validation computes."""
    unused: Mapping[str, Any]
    """Keys without effect on this task, with their fixed defaults; other values are refused."""

    def __init__(self, start: StartModel | None = None) -> None:
        self.start = start

    @abstractmethod
    def survey(self, request: TrainingRequest, config: DataConfig) -> Any:
        """Read the files once.

        The result has `files` (sha256 by name), `counts` (how much was read, by noun) and `warnings` for the user.
        """

    @abstractmethod
    def data_defaults(self, survey: Any, requested: Mapping[str, Any]) -> list[Default]:
        """Defaults of data and tokenizer, given the tables that the user has set."""

    @abstractmethod
    def prepare(self, survey: Any, document: TomlDocument, place: Path) -> Any:
        """Write everything as numbers into a folder, with the document's tokenizer; the result has `notes`."""

    @abstractmethod
    def recipe_default(self, prepared: Any, device: DeviceProperties, requested: str | None) -> Default:
        """The recipe of the model: the requested one, in the size that fits the data."""

    @abstractmethod
    def training_defaults(self, prepared: Any, tables: Mapping[str, Any], device: DeviceProperties) -> list[Default]:
        """Defaults of model and training, given the tables that are set, among them the recipe's [model]."""

    @abstractmethod
    def steps_per_epoch(self, prepared: Any, document: TomlDocument) -> int:
        """Batches per epoch."""

    @abstractmethod
    def build(self, prepared: Any, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> TrainingTask:
        """The task for the loop."""


def short_sample(texts: Iterable[str]) -> str | None:
    """The first text that is short enough for a command line; else the first words of one; None if there is none."""
    printable = [text for text in islice(texts, SAMPLED_TEXTS) if text.strip() and text.isprintable()]
    short = [text for text in printable if MIN_SAMPLE <= len(text) <= MAX_SAMPLE]
    return next((text.strip() for text in (*short, *(text[:MAX_SAMPLE].rsplit(" ", 1)[0] for text in printable))), None)


def validation_fraction_default(given: bool, fraction: float, reason: str, too_small: str) -> Default:
    """The default of the validation split: 0 if validation data is given or the data is too small."""
    return Default("data.validation_fraction", fraction,
                   "validation data is given" if given else reason if fraction else too_small)


def held_out_reasons(fraction: float, count: int, noun: str) -> tuple[str, str]:
    """The reasons for a validation split of this many examples: for a fraction, and for none."""
    return (f"about {checks.plural(round(fraction * count), noun)}, held out for validation",
            f"only {checks.plural(count, noun)}, so nothing is held out: validation uses the training data")
