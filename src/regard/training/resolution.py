"""Config resolution: from what a user asked for to the complete config of a training.

    document = requested_config(request, setup)            a recipe's name or file, and single values; checked
    fill_defaults(document, defaults, document)            the same with defaults for the keys that are not set
    prepare(request, setup, document, device, report)      data, model config and settings, ready for the loop

Misspelt keys and wrong values are all refused at once, each with its line, before any data is read. What only the data
can determine (the vocabulary, the size of the model, the number of steps) is filled in afterwards. A resumed training
must agree with the stored one in task, config and data files; every difference is reported. How defaults are computed
is not known here (`regard.training.defaults`).
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, get_args

import torch

from regard import checks, config, toml
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import TokenizerConfig
from regard.models import catalog
from regard.models.build import ModelConfig
from regard.toml import ConfigError, KeyPath, TomlDocument
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup, recipe_with_size
from regard.training.logging import EventHandler, Note
from regard.training.tasks.classification import ClassificationSetup
from regard.training.tasks.interface import TaskSetup, TrainingRequest, TrainingTask
from regard.training.tasks.language import LanguageSetup
from regard.training.tasks.masked import MaskedSetup
from regard.training.tasks.translation import TranslationSetup

CHECKPOINTS_FOLDER, DATA_FOLDER, METRICS_FILE = "checkpoints", "data", "metrics.jsonl"
"""In the output folder of a training."""
TASKS: dict[str, type[TaskSetup]] = {"seq2seq": TranslationSetup, "language": LanguageSetup, "masked": MaskedSetup,
                                     "classify": ClassificationSetup}
TABLES = {"recipe": str | None, "data": DataConfig | None, "tokenizer": TokenizerConfig | None, "model": ModelConfig,
          "training": TrainingConfig}
MODEL_KINDS = {kind.kind for kind in get_args(ModelConfig)}
STEPS_KEY = "training.schedule.max_steps"
UNKNOWN_STEPS = 10**9
"""Stands for the number of steps while that is not known."""
READ_OPTIONS = ("source", "target", "format")
Identity = Mapping[str, Any]


def requested_config(request: TrainingRequest, setup: TaskSetup) -> TomlDocument:
    """The config as far as the user has set it. A ConfigError lists all that is wrong with it."""
    name = request.recipe
    if name is None:
        document = toml.document_of({}, "config")
    elif name.endswith(".toml") or "/" in name:
        document = toml.read_document(name)
    else:
        document = toml.document_of({"recipe": name}, "config")
    document = config.with_current_keys(document, TABLES)
    document = toml.override(document, config.current_overrides(request.changes, TABLES))
    _check_request(document, request, setup)
    return document


def _check_request(document: TomlDocument, request: TrainingRequest, setup: TaskSetup) -> None:
    """Refuse a config that would be wrong for any data."""
    recipe = document.tables.get("recipe")
    if lookup(document.tables, "model.kind") is not None or not isinstance(recipe, str | None):
        names: list[str | None] = [None]
    else:  # recipe or size may depend on the data: a config is accepted if it is right for one of them
        names = [name for each in ((recipe,) if recipe else setup.recipes) for name in recipe_sizes(each)]
    unknown = [Default(key, value, "") for key, value in {STEPS_KEY: UNKNOWN_STEPS, **setup.data_dependent}.items()]
    filled = [fill_defaults(document, [*unknown, *(recipe_defaults(name) if name else ())], document) for name in names]
    unset = {tuple(default.key.split(".")) for default in unknown if lookup(document.tables, default.key) is None}
    kind = lookup(filled[0].tables, "model.kind")
    if kind in MODEL_KINDS and kind not in setup.model_kinds:
        raise checks.wrong("model.kind", f"one for --task {request.task}, {' or '.join(setup.model_kinds)}",
                           f"{kind}{f', from the recipe {recipe}' if recipe else ''}")
    errors = [_config_error(each, unset) for each in filled]
    if errors[0] is not None and None not in errors:
        raise errors[0]
    score = lookup(document.tables, "training.validation.metric", "loss")
    if score not in setup.scores:
        raise checks.wrong("training.validation.metric", f"one for --task {request.task}, {' or '.join(setup.scores)}",
                           score)
    for key, default in setup.unused.items():
        if lookup(document.tables, key, default) != default:
            raise checks.wrong(key, f"left out for --task {request.task}, where it has no effect",
                               lookup(document.tables, key))


def _config_error(document: TomlDocument, unset: Set[KeyPath]) -> ConfigError | None:
    """The errors of a config, except for keys that are not set yet."""
    try:
        config.read_configs(TABLES, document)
    except ConfigError as error:
        found = [problem for problem in error.found if problem.path not in unset]
        return document.error(found) if found else None
    return None


def fill_defaults(document: TomlDocument, defaults: Sequence[Default], requested: TomlDocument) -> TomlDocument:
    """The document with these defaults, except for keys that `requested` sets. They replace earlier defaults."""
    return toml.override(document, {default.key: default.value for default in defaults
                                    if lookup(requested.tables, default.key) is None and "." in default.key})


def recipe_defaults(name: str) -> list[Default]:
    """The [model] table of a recipe as defaults."""
    model = catalog.find_recipe(name).tables["model"]
    return [Default(f"model.{key}", value, name) for key, value in flatten_tables(model)]


def recipe_sizes(recipe: str) -> list[str]:
    """The names of a recipe in all its sizes; only its own if it names a size or a file."""
    if recipe not in catalog.recipe_names():
        return [recipe]
    return [recipe_with_size(recipe, size) for size in catalog.recipe_sizes(recipe)]


def flatten_tables(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every entry that is not a table."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten_tables(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class PreparedTraining:
    """A training with its data and its complete config, before the first step."""

    task: TrainingTask
    model: ModelConfig
    settings: TrainingConfig
    defaults: tuple[Default, ...]
    """The defaults of all keys that the user has not set."""
    tables: Mapping[str, Any]
    """The whole config as plain values."""
    files: dict[str, str]
    """The sha256 of the data files by name."""
    notes: tuple[str, ...]


def prepare(request: TrainingRequest, setup: TaskSetup, requested: TomlDocument, device: DeviceProperties,
            report: EventHandler, stored_files: Mapping[str, str] | None = None) -> PreparedTraining:
    """Read the data, fill in the defaults, and build the task for the loop.

    Args:
        stored_files: the sha256 by name of the files of a training that is resumed; other files are refused.
    """
    filters = config.read_config(DataConfig | None, requested, ("data",)) or DataConfig()
    survey = setup.survey(request, filters)
    if stored_files is not None:
        check_same_files(stored_files, survey.files, request)
    for warning in survey.warnings:
        report(Note(warning))
    defaults = setup.data_defaults(survey, requested.tables)
    document = fill_defaults(requested, defaults, requested)
    prepared = setup.prepare(survey, document, request.output / DATA_FOLDER)
    if lookup(requested.tables, "model.kind") is None:  # a recipe is not mixed into a whole [model] of the user's
        recipe = setup.recipe_default(prepared, device, requested.tables.get("recipe"))
        document = fill_defaults(document, recipe_defaults(recipe.value), requested)
        defaults = [*defaults, recipe]
    training = setup.training_defaults(prepared, document.tables, device)
    document = toml.override(fill_defaults(document, training, requested),
                             {default.key: default.value for default in defaults if default.key == "recipe"})
    defaults = [*defaults, *training]
    if "max_steps" not in document.tables["training"].get("schedule", {}):
        steps = _steps_default(document, setup.steps_per_epoch(prepared, document), device)
        document = fill_defaults(document, [steps], requested)
        defaults = [*defaults, steps]
    configs = config.read_configs(TABLES, document)
    tables = config.to_tables(configs)
    task = setup.build(prepared, configs["model"], configs["training"], _training_record(tables, survey.files))
    unset = tuple(default for default in defaults if lookup(requested.tables, default.key) is None)
    return PreparedTraining(task, configs["model"], configs["training"], unset, tables, survey.files,
                            (*prepared.notes, *task.notes))


def _training_record(tables: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """What is stored with the model about its training."""
    record = {key: tables[key] for key in ("recipe", "data", "training") if key in tables}
    return {**record, "tokenizer": tables.get("tokenizer", {}),
            "data": {**record.get("data", {}), "files": [f"{name} {digest}" for name, digest in files.items()]}}


def _steps_default(document: TomlDocument, batches: int, device: DeviceProperties) -> Default:
    """The number of steps of all epochs, given the batches of an epoch."""
    training = document.tables["training"]
    per_step, epochs = training.get("gradient_accumulation", 1) * device.count, training["epochs"]
    steps = max(1, math.ceil(epochs * batches / per_step))
    return Default(STEPS_KEY, steps, f"{epochs:g} epochs of {batches / per_step:,.0f} steps")


def device_properties(device: torch.device, count: int = 1) -> DeviceProperties:
    """The properties of a device that defaults depend on.

    Args:
        count: the number of processes, each with such a device.
    """
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return DeviceProperties("cuda", memory, torch.cuda.is_bf16_supported(including_emulation=False), count)
    return DeviceProperties(device.type, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), False, count)


def training_identity(request: TrainingRequest, tables: Mapping[str, Any], files: Mapping[str, str],
                      tokenizer: str | None) -> Identity:
    """What a resumed training must share with the stored one; it is part of every checkpoint.

    Args:
        tables: the whole config, as plain values.
        files: the sha256 of each file by its name.
        tokenizer: its sha256, if there is one.
    """
    return {"task": request.task, "reading": _read_options(request), "config": tables, "files": files,
            "tokenizer": tokenizer}


def stored_config(stored: Identity, request: TrainingRequest, requested: TomlDocument) -> TomlDocument:
    """The stored config. A resumed training may leave out settings, but not change them."""
    document = config.with_current_keys(toml.document_of(stored["config"], f"the config in {request.output}"), TABLES)
    before = {"task": stored["task"], **stored["reading"], **document.tables}
    now = {"task": request.task, **_read_options(request), **requested.tables}
    if "recipe" in now and before.get("recipe") in recipe_sizes(now["recipe"]):  # the size was a default
        now["recipe"] = before["recipe"]
    different = [f"  {key}: {_format_value(lookup(before, key))} is stored, {_format_value(value)} is requested"
                 for key, value in flatten_tables(now) if lookup(before, key) != value]
    if different:
        raise DataError("\n".join([f"{request.output}: This training cannot be resumed with other settings.",
                                   *different, "Request the same, or choose another folder."]))
    return document


def check_same_files(stored: Mapping[str, str], now: Mapping[str, str], request: TrainingRequest) -> None:
    """Refuse data files that have changed."""
    changed = [f"  {name}: its sha256 is {now.get(name, 'missing')}, and was {stored.get(name, 'missing')}"
               for name in {**stored, **now} if stored.get(name) != now.get(name)]
    if changed:
        raise DataError("\n".join([f"{request.output}: This training cannot be resumed with other data.", *changed,
                                   "Give the files as they were, or choose another folder."]))


def check_same_tokenizer(stored: Identity, now: Identity, folder: os.PathLike[str]) -> None:
    """Refuse another tokenizer than the one that the training started with."""
    if stored["tokenizer"] != now["tokenizer"]:
        raise DataError(f"{os.fspath(folder)}: This training started with another tokenizer: its sha256 is "
                        f"{now['tokenizer']}, and was {stored['tokenizer']}. Restore the folder, or start again in "
                        "another one.")


def _read_options(request: TrainingRequest) -> dict[str, Any]:
    """The arguments that order and sides of the data depend on."""
    files = {"DATA": request.data, "--validation": request.validation}
    return {**{key: [os.path.basename(path) for path in paths] for key, paths in files.items()},
            **{f"--{name}": getattr(request, name) for name in READ_OPTIONS}}


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)
