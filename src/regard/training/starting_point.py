"""The start model of a training: a model that exists already and is fine-tuned on new data.

    start = load_start("model", "seq2seq")     a folder of regard or of Hugging Face, or a task object
    start.model_defaults()                     its architecture as config keys, which the training keeps
    start.fill(model, labels)                  copies its weights into the model that is trained

A training keeps architecture and tokenizer of its start model. An encoder without a classifier, such as BERT, may start
the training of a classifier or a tagger: it gets a new output layer, as does one of other labels. The start model is
identified by the sha256 of its weights, which is part of every checkpoint; where its folder is, is stored nowhere.

This module knows neither data nor defaults; whether data fits a start model is checked in
`regard.training.tasks.start_checks`.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import checks, config, toml
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.encoder_decoder import EncoderConfig
from regard.models.tracks import TracksConfig
from regard.models.vision import VisionConfig
from regard.storage import weights
from regard.tasks.card import TASK_USAGE
from regard.tasks.load import load
from regard.tasks.task import EncoderTask, Task
from regard.toml import ConfigError, TomlDocument
from regard.training.defaults import Default
from regard.training.short_options import DROPOUT_KEYS, OTHER_DROPOUT_KEYS, OptionSpelling

START_KINDS: Mapping[str, tuple[str, ...]] = {
    "seq2seq": ("encoder-decoder", "seq2seq"), "language": ("language",), "masked": ("masked",),
    "classify": ("classifier", "vision", "masked", "encoder"), "label": ("tagger", "masked", "encoder", "classifier"),
    "tracks": ("tracks",),
}
"""The kinds of models that each task can start from."""
OUTPUT_LAYER = "output."
"""The prefix of the parameter names of a classifier's output layer."""
REASON = "kept from the start model"
FIXED_OPTIONS = ("vocab_size", "layers", "width")
"""Short options that would change the start model."""


@dataclass(frozen=True, eq=False)
class StartModel:
    """A model that is fine-tuned."""

    task: Task
    name: str
    """The name of its folder, or what it is."""
    sha256: str
    """The sha256 of its weights."""
    config: ModelConfig
    """The config of the model that is trained, whose number of labels the data determines."""

    @property
    def identity(self) -> dict[str, str]:
        """What a checkpoint and the model folder store about it."""
        return {"name": self.name, "sha256": self.sha256}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a model that reads texts."""
        assert isinstance(self.task.tokenizer, Tokenizer), "checked when it was loaded"
        return self.task.tokenizer

    @property
    def pair_tokenizer(self) -> PairTokenizer:
        """The tokenizers of a translator."""
        assert isinstance(self.task.tokenizer, PairTokenizer), "checked when it was loaded"
        return self.task.tokenizer

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a classifier; empty for other models."""
        names = getattr(self.task, "label_names", None)
        return () if names is None else tuple(names())

    @property
    def recipe(self) -> str | None:
        """The name of its recipe, if it is known and the architecture is still that of the recipe."""
        return self.task.record.get("recipe") if self.task.config.kind == self.config.kind else None

    def model_defaults(self) -> list[Default]:
        """The [model] table of the training. The number of labels is left to the data."""
        table = toml.flatten_tables(config.to_tables(self.config))
        return [Default(f"model.{key}", value, REASON) for key, value in table if key != "num_labels"]

    def data_defaults(self) -> list[Default]:
        """How its tokenizer was trained, as config keys."""
        return tokenizer_defaults(self.task, REASON)

    def choices(self) -> list[Default]:
        """The keys that stand for the whole model where settings are explained."""
        kept = f"architecture and tokenizer of {self.name}, which is fine-tuned"
        recipe = [] if self.recipe is None else [Default("recipe", self.recipe, kept)]
        return [Default("model.kind", self.config.kind, kept), *recipe]

    def dropout_defaults(self, dropout: float, reason: str) -> list[Default]:
        """This dropout for embeddings and sublayers."""
        keys = DROPOUT_KEYS.get(self.config.kind, OTHER_DROPOUT_KEYS)
        return [Default(f"model.{key}", dropout, reason) for key in keys]

    def keeps_head(self, labels: Sequence[str] | None) -> bool:
        """Whether all weights of the start model are used: its output layer is for these labels, if there are any."""
        return self.task.config.kind == self.config.kind and (labels is None or tuple(labels) == self.labels)

    def fill(self, model: nn.Module, labels: Sequence[str] | None = None) -> None:
        """Copy the weights into a model; one with other labels keeps its new output layer.

        Args:
            labels: those of the model that is trained, if it is a classifier.
        """
        own = self.task.model.state_dict()
        if self.task.config.kind != self.config.kind:  # only the encoder is kept
            bare = self.task.config.kind == EncoderConfig.kind
            own = {f"encoder.{name}" if bare else name: tensor for name, tensor in own.items()
                   if bare or name.startswith("encoder.")}
            own = {**model.state_dict(), **own}
        elif not self.keeps_head(labels):
            own = {**model.state_dict(),
                   **{name: tensor for name, tensor in own.items() if not name.startswith(OUTPUT_LAYER)}}
        weights.fill_module(model, own, origin=self.name)

    def special_ids(self) -> tuple[list[int], list[int]]:
        """The special ids that a model of texts reads before and after each of them."""
        assert isinstance(self.task, EncoderTask)
        return self.task.special_ids()

    def max_text_ids(self) -> int | None:
        """The ids of a text that the model can read at once, without the special ones; None for any number."""
        assert isinstance(self.task, EncoderTask)
        limit = self.task.max_positions()
        return None if limit is None else limit - sum(map(len, self.special_ids()))

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts as the model reads them: with its special ids, within its positions."""
        assert isinstance(self.task, EncoderTask)
        return self.task.encode_texts(texts)


def tokenizer_defaults(task: Task, reason: str) -> list[Default]:
    """How the tokenizer of a model was trained, as config keys; none if that is not known."""
    table = dict(task.record.get("tokenizer", {}))
    try:
        config.read_config(TokenizerConfig, toml.document_of({"tokenizer": table}), ("tokenizer",))
    except ConfigError:  # of an imported model
        return []
    return [Default(f"tokenizer.{key}", value, reason) for key, value in table.items()]


def load_start(given: "str | os.PathLike[str] | Task", task: str, option: str = "--task") -> StartModel:
    """The start model of a training; a ValueError if this task cannot start from it.

    Args:
        task: the name of the training task.
        option: how messages call the option for it.
    """
    if isinstance(given, Task):
        found, name = given, str(given.record.get("recipe", given.config.kind))
    elif isinstance(given, str | os.PathLike):
        found, name = load(given), Path(os.path.realpath(given)).name
    else:
        raise checks.wrong("from_", "the folder of a model, or a task object", *checks.kind(given))
    _check_task(found, name, task, option)
    if found.tokenizer is None and not isinstance(found.config, VisionConfig | TracksConfig):
        raise ValueError(f"{name}: The start model has no tokenizer that regard can read, so it cannot read the data. "
                         "Put its tokenizer files into its folder. To read a tokenizer.json: pip install "
                         "'regard[import]'.")
    return StartModel(found, name, weights_sha256(found.model), _trained_config(found.config, task))


def _check_task(found: Task, name: str, task: str, option: str) -> None:
    """Refuse a model of another task, and say what fits."""
    kind = found.config.kind
    if kind in START_KINDS[task]:
        return
    fitting = [f"{option} {other}" for other, kinds in START_KINDS.items() if kind in kinds]
    remedy = f"It can start {' or '.join(fitting)}." if fitting else "No training can start from it."
    nouns = ", ".join(dict.fromkeys(f"{TASK_USAGE[one].name} ({one})" for one in START_KINDS[task]))
    raise ValueError(f"{name}: This model ({TASK_USAGE[kind].name}, {kind}) cannot start {option} {task}, which "
                     f"starts from: {nouns}. {remedy}")


def _trained_config(found: ModelConfig, task: str) -> ModelConfig:
    """The config of the model that is trained: that of the start model, or of a classifier with its encoder."""
    fitting = {"classify": (ClassifierConfig, VisionConfig), "label": (TaggerConfig,)}
    if task not in fitting or isinstance(found, fitting[task]):
        return found
    shared = {field.name: getattr(found, field.name) for field in fields(EncoderConfig)}
    if task == "label":
        return TaggerConfig(**shared, num_labels=2, dropout=found.stack.dropout)  # type: ignore[union-attr]
    return ClassifierConfig(**shared, num_labels=2, pooling="mean", dropout=found.stack.dropout)  # type: ignore[union-attr]


@torch.no_grad()
def weights_sha256(model: nn.Module) -> str:
    """The sha256 of the names, dtypes, shapes and values of all parameters and buffers."""
    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        whole.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def refuse_fixed_keys(document: TomlDocument, options: Mapping[str, Any], spelling: OptionSpelling) -> None:
    """Refuse settings that would change architecture or tokenizer of the start model. Dropout may be set.

    Args:
        document: what the user has set.
        options: the short options.
        spelling: how options are written where they were given.
    """
    tables = document.tables
    given = [spelling.given(name, options[name]) for name in FIXED_OPTIONS if options.get(name) is not None]
    if isinstance(tables.get("recipe"), str):
        given.append(f"{spelling.name('recipe')} {tables['recipe']}")
    for table in ("model", "tokenizer"):
        for key, value in toml.flatten_tables(tables.get(table, {})):
            option = document.source((table, *key.split(".")))
            if not key.endswith("dropout") and option not in given:
                given.append(f"{table}.{key}={toml.format_value(value)}")
    if "joint_tokenizer" in tables.get("data", {}):
        given.append(f"data.joint_tokenizer={toml.format_value(tables['data']['joint_tokenizer'])}")
    if given:
        raise ValueError(f"{', '.join(given)}: A fine-tuned model keeps architecture and tokenizer of its start model. "
                         f"Leave out {'this setting' if len(given) == 1 else 'these settings'}, or train a new model "
                         f"without {spelling.name('from')}.")
