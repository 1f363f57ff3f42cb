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
from regard.training import logging
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup, recipe_with_size
from regard.training.logging import EventHandler
from regard.training.tasks.classification import ClassificationSetup
from regard.training.tasks.interface import TaskSetup, TrainingRequest, TrainingTask
from regard.training.tasks.language import LanguageSetup
from regard.training.tasks.masked import MaskedSetup
from regard.training.tasks.translation import TranslationSetup

# ---- run: A whole training: from what somebody asked for to a model in a folder.
#
#     what was asked ─► survey of the data ─► choices ─► tokenizer and ids ─► choices ─► model ─► loop ─► the best model
#
# Everything that was not asked for is chosen (`regard.training.choices`), told before the first step, and stored. In the
# output folder:
#
#     config.toml, model.safetensors, tokenizer.*, README.md, manifest.json     the best model so far
#     metrics.jsonl                                                             how it went
#     checkpoints/                                                              the last states, to go on from
#     data/                                                                     tokenizer and ids, while training
#
# It knows the order of things, and no details of any.

CHECKPOINTS_FOLDER, DATA_FOLDER, METRICS_FILE = "checkpoints", "data", "metrics.jsonl"


@dataclass(frozen=True)
class PreparedTraining:
    """Everything that a training is made of, before anything is learned."""

    work: TrainingTask
    model: ModelConfig
    settings: TrainingConfig
    choices: tuple[Default, ...]
    tables: Mapping[str, Any]
    """The whole config as plain values."""
    files: dict[str, str]
    notes: tuple[str, ...]


def prepare(request: TrainingRequest, plan: TaskSetup, asked: TomlDocument, device: DeviceProperties, report: EventHandler,
            known: Mapping[str, str] | None = None) -> PreparedTraining:
    """Read the data, make the choices, and put together what the loop is given.

    Args:
        known: the sha256 of the files that a training goes on with, by their names; others are refused.
    """
    filters = config.read_config(DataConfig | None, asked, ("data",)) or DataConfig()
    survey = plan.survey(request, filters)
    if known is not None:
        check_same_files(known, survey.files, request)
    for warning in survey.warnings:
        report(logging.Note(warning))
    first = plan.before(survey, asked.tables)
    document = fill_defaults(asked, first, asked)
    prepared = plan.prepare(survey, document, request.output / DATA_FOLDER)
    made = [*first]
    if lookup(asked.tables, "model.kind") is None:  # a whole model of their own is not mixed with a recipe
        named = plan.named(prepared, device, asked.tables.get("recipe"))
        document = fill_defaults(document, recipe_defaults(named.value), asked)
        made.append(named)
    second = plan.after(prepared, document.tables, device)
    document = toml.override(fill_defaults(document, second, asked),
                            {choice.key: choice.value for choice in made if choice.key == "recipe"})
    made += second
    if "max_steps" not in document.tables["training"].get("schedule", {}):
        steps = _steps_default(document, plan.steps(prepared, document), device)
        document = fill_defaults(document, [steps], asked)
        made.append(steps)
    tables = config.read_configs(TABLES, document)
    settings, model = tables["training"], tables["model"]
    plain = config.to_tables(tables)
    record = {**{key: plain[key] for key in ("recipe", "data", "training") if key in plain},
              "tokenizer": plain.get("tokenizer", {})}
    record["data"] = {**record.get("data", {}), "files": [f"{name} {digest}" for name, digest in
                                                          survey.files.items()]}
    work = plan.work(prepared, model, settings, record)
    kept = tuple(choice for choice in made if lookup(asked.tables, choice.key) is None)
    return PreparedTraining(work, model, settings, kept, plain, survey.files, (*prepared.notes, *work.notes))


def _steps_default(document: TomlDocument, epoch: int, device: DeviceProperties) -> Default:
    """How many steps so many epochs have."""
    training = document.tables["training"]
    many, epochs = training.get("gradient_accumulation", 1) * device.count, training["epochs"]
    steps = max(1, math.ceil(epochs * epoch / many))
    return Default("training.schedule.max_steps", steps, f"{epochs:g} epochs of {epoch / many:,.0f} steps")


TASKS: dict[str, type[TaskSetup]] = {"seq2seq": TranslationSetup, "language": LanguageSetup, "masked": MaskedSetup,
                                "classify": ClassificationSetup}


# ---- asking: What somebody asked for, as a config: a recipe's name or file, and single values; checked before any data is read.
#
#     document = asked(request, plan)              what was set, and nothing else
#     filled(document, choices, document)          with choices where nothing was set
#
# Misspelt keys and wrong values are all refused at once, each with its line. What only the data can tell (the vocabulary,
# the size of the model, the number of steps) is left open. It does not know what is chosen, nor how.

TABLES = {"recipe": str | None, "data": DataConfig | None, "tokenizer": TokenizerConfig | None, "model": ModelConfig,
          "training": TrainingConfig}
MODEL_KINDS = {one.kind for one in get_args(ModelConfig)}
STEPS_KEY = "training.schedule.max_steps"
UNKNOWN_STEPS = 10**9
"""Steps that stand for those which are not known yet."""


def requested_config(request: TrainingRequest, plan: TaskSetup) -> TomlDocument:
    """The config as far as somebody asked for it; a ConfigError has all that is wrong with it."""
    name = request.recipe
    if name is None:
        document = toml.document_of({}, "config")
    elif name.endswith(".toml") or "/" in name:
        document = toml.read_document(name)
    else:
        document = toml.document_of({"recipe": name}, "config")
    document = config.with_current_keys(document, TABLES)
    document = toml.override(document, config.current_overrides(request.changes, TABLES))
    _check_request(document, request, plan)
    return document


def fill_defaults(document: TomlDocument, choices: Sequence[Default], given: TomlDocument) -> TomlDocument:
    """The document with what was chosen, where `given` has nothing. What was chosen before gives way."""
    return toml.override(document, {choice.key: choice.value for choice in choices
                                   if lookup(given.tables, choice.key) is None and "." in choice.key})


def recipe_defaults(name: str) -> list[Default]:
    """What a recipe says of the model."""
    return [Default(f"model.{key}", each, name) for key, each in flatten_tables(catalog.find_recipe(name).tables["model"])]


def recipe_sizes(recipe: str) -> list[str]:
    """A recipe in all sizes that its name leaves open."""
    return [recipe_with_size(recipe, size) for size in catalog.recipe_sizes(recipe)] if recipe in catalog.recipe_names() else [recipe]


def flatten_tables(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is no table."""
    for key, each in tables.items():
        if isinstance(each, Mapping):
            yield from flatten_tables(each, f"{above}{key}.")
        else:
            yield f"{above}{key}", each


def _check_request(document: TomlDocument, request: TrainingRequest, plan: TaskSetup) -> None:
    """Refuse what is wrong whatever the data is."""
    named = document.tables.get("recipe")
    if lookup(document.tables, "model.kind") is not None or not isinstance(named, str | None):
        names: list[str | None] = [None]
    else:  # which recipe, and in which size, may not be known yet: what is right for one of them may be meant
        names = [size for recipe in ((named,) if named else plan.recipes) for size in recipe_sizes(recipe)]
    opened = [Default(key, each, "") for key, each in {STEPS_KEY: UNKNOWN_STEPS, **plan.open}.items()]
    whole = [fill_defaults(document, [*opened, *(recipe_defaults(name) if name else ())], document) for name in names]
    left = {tuple(choice.key.split(".")) for choice in opened if lookup(document.tables, choice.key) is None}
    kind = lookup(whole[0].tables, "model.kind")
    if kind in MODEL_KINDS and kind not in plan.kinds:
        raise checks.wrong("model.kind", f"one for --task {request.task}, {' or '.join(plan.kinds)}",
                           f"{kind}{f', as the recipe {named} says' if named else ''}")
    faults = [_config_error(each, left) for each in whole]
    if faults[0] is not None and None not in faults:
        raise faults[0]
    score = lookup(document.tables, "training.validation.metric", "loss")
    if score not in plan.scores:
        raise checks.wrong("training.validation.metric", f"one for --task {request.task}, {' or '.join(plan.scores)}",
                           score)
    for key, anyway in plan.unused.items():
        if lookup(document.tables, key, anyway) != anyway:
            raise checks.wrong(key, f"left out for --task {request.task}, which has no use for it",
                               lookup(document.tables, key))


def _config_error(document: TomlDocument, left: Set[KeyPath]) -> ConfigError | None:
    """All that is wrong with a whole config, but for what is left open."""
    try:
        config.read_configs(TABLES, document)
    except ConfigError as error:
        found = [problem for problem in error.found if problem.path not in left]
        return document.error(found) if found else None
    return None


# ---- devices: What a device can do, as far as choices depend on it. It does not choose.


def device_properties(device: torch.device, count: int = 1) -> DeviceProperties:
    """What is known of a device, of which there are so many."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return DeviceProperties("cuda", memory, torch.cuda.is_bf16_supported(including_emulation=False), count)
    return DeviceProperties(device.type, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), False, count)


# ---- resuming: What a training that goes on must share with the one that was stored: task, config, files and how they are read.
#
#     stored = identity(request, tables, files, tokenizer)      kept with every checkpoint
#     document = stored_config(stored, request, asked)          the config of then, where no other is asked for
#
# Whoever resumes may leave out what was set, but not set it otherwise. Every difference is told. It does not know the
# state of the training itself.

Identity = Mapping[str, Any]
READ_OPTIONS = ("source", "target", "format")


def training_identity(request: TrainingRequest, tables: Mapping[str, Any], files: Mapping[str, str], tokenizer: str | None) -> Identity:
    """What stands for a training.

    Args:
        tables: the whole config, as plain values.
        files: the sha256 of each by its name.
        tokenizer: its sha256, where there is one.
    """
    return {"task": request.task, "reading": _read_options(request), "config": tables, "files": files,
            "tokenizer": tokenizer}


def stored_config(stored: Identity, request: TrainingRequest, asked: TomlDocument) -> TomlDocument:
    """The config that was stored, in which all must be that is asked for now."""
    document = config.with_current_keys(toml.document_of(stored["config"], f"the config in {request.output}"), TABLES)
    there = {"task": stored["task"], **stored["reading"], **document.tables}
    wanted = {"task": request.task, **_read_options(request), **asked.tables}
    if "recipe" in wanted and there.get("recipe") in recipe_sizes(wanted["recipe"]):  # the size was chosen
        wanted["recipe"] = there["recipe"]
    different = [f"  {key}: {_format_value(lookup(there, key))} is stored, {_format_value(each)} is asked for"
                 for key, each in flatten_tables(wanted) if lookup(there, key) != each]
    if different:
        raise DataError("\n".join([f"{request.output}: This training cannot go on as another one.", *different,
                                   "Ask for the same, or choose another folder."]))
    return document


def check_same_files(stored: Mapping[str, str], now: Mapping[str, str], request: TrainingRequest) -> None:
    """Refuse files that are not what they were."""
    changed = [f"  {name}: its sha256 is {now.get(name, 'missing')}, and was {stored.get(name, 'missing')}"
               for name in {**stored, **now} if stored.get(name) != now.get(name)]
    if changed:
        raise DataError("\n".join([f"{request.output}: This training cannot go on with other data.", *changed,
                                   "Give the files as they were, or choose another folder."]))


def check_same_tokenizer(stored: Identity, now: Identity, folder: os.PathLike[str]) -> None:
    """Refuse another tokenizer than the one that the training has begun with."""
    if stored["tokenizer"] != now["tokenizer"]:
        raise DataError(f"{os.fspath(folder)}: The tokenizer is not the one that this training has begun with: its "
                        f"sha256 is {now['tokenizer']}, and was {stored['tokenizer']}. Restore the folder, or begin "
                        "anew in another one.")


def _read_options(request: TrainingRequest) -> dict[str, Any]:
    """How the data was asked for: what its order and its sides depend on besides the files."""
    files = {"DATA": request.data, "--validation": request.validation}
    return {**{key: [os.path.basename(path) for path in paths] for key, paths in files.items()},
            **{f"--{name}": getattr(request, name) for name in READ_OPTIONS}}


def _format_value(given: Any) -> str:
    if isinstance(given, list | tuple):
        return " ".join(map(str, given)) or "nothing"
    return "nothing" if given is None else str(given)
