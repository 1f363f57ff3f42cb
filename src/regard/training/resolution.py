"""Config resolution: from what a user asked for to the complete config of a training.

    document = requested_config(request, setup)            a recipe's name or file, and single values; checked
    fill_defaults(document, defaults, document)            the same with defaults for the keys that are not set
    prepare(request, setup, document, device, report)      data, model config and settings, ready for the loop

Short options such as --lr and --width become keys of the config (`regard.training.short_options`). Those that depend
on the model wait until the data has determined its recipe.

Misspelt keys and wrong values are all refused at once, each with its line, before any data is read. What only the data
can determine (the vocabulary, the size of the model, the number of steps) is filled in afterwards. A resumed training
must agree with the stored one in task, config and data files; every difference is reported. How defaults are computed
is not known here (`regard.training.defaults`).
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from regard import allocation, checks, config, toml
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import TokenizerConfig
from regard.models import catalog
from regard.models.build import ModelConfig
from regard.models.vision import VisionConfig
from regard.toml import ConfigError, KeyPath, TomlDocument, flatten_tables
from regard.training import short_options, starting_point
from regard.training.choices import SET_BY_USER
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup, recipe_with_size
from regard.training.estimate import activation_bytes
from regard.training.logging import EventHandler, Note
from regard.training.short_options import ExpandedKey, OptionSpelling
from regard.training.starting_point import StartModel
from regard.training.tasks.classification import ClassificationSetup
from regard.training.tasks.common import list_digests
from regard.training.tasks.directions import without_direction_tables
from regard.training.tasks.interface import TaskSetup, TrainingRequest, TrainingTask
from regard.training.tasks.labelling import TokenLabelSetup
from regard.training.tasks.language import LanguageSetup
from regard.training.tasks.masked import MaskedSetup
from regard.training.tasks.tracks import TrackBatch, TracksSetup
from regard.training.tasks.translation import TranslationSetup

CHECKPOINTS_FOLDER, DATA_FOLDER = "checkpoints", "data"
"""In the output folder of a training."""
STAGES_FILE, REVERSE_FOLDER = f"{DATA_FOLDER}/stages.json", "reverse"
"""There too, for a training with synthetic pairs: how far it has come, and the reverse model."""
TASKS: dict[str, type[TaskSetup]] = {"seq2seq": TranslationSetup, "language": LanguageSetup, "masked": MaskedSetup,
                                     "classify": ClassificationSetup, "label": TokenLabelSetup, "tracks": TracksSetup}
TABLES = {"recipe": str | None, "data": DataConfig | None, "tokenizer": TokenizerConfig | None, "model": ModelConfig,
          "training": TrainingConfig}
MODEL_KINDS = {kind.kind for kind in get_args(ModelConfig)}
STEPS_KEY = "training.schedule.max_steps"
TRAINING_BYTES, EMA_BYTES, GRADIENT_BYTES = 16, 4, 4
"""Bytes per parameter in float32: of the parameter, its gradient and two moments of AdamW together; of the EMA, if
there is one; of the gradient alone."""
FROZEN_BYTES = 2
"""Bytes per parameter of a model that is used but not trained, such as a teacher, at least: in bfloat16."""
LIBRARY_BYTES = 150 << 20
"""What torch and its libraries take on a CPU in the first step, for themselves; at least 200 MiB were measured."""
GPU_REDUCTION = 2
"""On a GPU fused kernels keep less; how much less was not measured, so activations count by half."""
UNKNOWN_STEPS = 10**9
"""Stands for the number of steps while that is not known."""
DESCRIPTIVE_KEYS = ("data.source_lang", "data.target_lang")
"""Keys that only describe the data: a resumed training may change them."""
SUMMARY_START = "Read "
"""How the note begins that sums up the data; the other notes on it are warnings."""
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
    document = without_direction_tables(config.with_current_keys(document, TABLES))
    changes = config.current_overrides(request.changes, TABLES)
    document = toml.override(document, changes, request.changes_name)
    expanded = short_options.expand_direct(request.options, request.task, _spelling(request))
    short_options.check_set_once(expanded, changes, request.changes_name)
    document = override_expanded(document, expanded)
    if setup.start is not None:
        starting_point.refuse_fixed_keys(document, request.options, _spelling(request))
        _check_mix(document, request)
    else:
        _check_start_given(document, request)
    _check_request(document, request, setup, changes)
    return document


def _check_start_given(document: TomlDocument, request: TrainingRequest) -> None:
    """Refuse settings of fine-tuning without a start model."""
    spelling, tables = _spelling(request), document.tables
    given = {"mix": bool(request.mix), "general_validation": bool(request.general_validation),
             "mix_share": lookup(tables, "data.mix_share") is not None,
             "blend": lookup(tables, "training.blend", False),
             "blend_share": lookup(tables, "training.blend_share") is not None}
    names = [spelling.name(name) for name, is_given in given.items() if is_given]
    if names:
        raise ValueError(f"{' and '.join(names)} only {'has' if len(names) == 1 else 'have'} an effect on a model that "
                         f"is fine-tuned. Name that model with {spelling.name('from')}.")


def _check_mix(document: TomlDocument, request: TrainingRequest) -> None:
    """Refuse general data for a task without sentence pairs, and a share of general data without any."""
    spelling = _spelling(request)
    for name, files in (("mix", request.mix), ("general_validation", request.general_validation)):
        if files and request.task != "seq2seq":
            raise ValueError(f"{spelling.name(name)} is for sentence pairs, not for --task {request.task}. To keep "
                             f"what the start model knows, use {spelling.name('blend')}, or train on both kinds of "
                             "data.")
    if not request.mix and lookup(document.tables, "data.mix_share") is not None:
        raise ValueError(f"{spelling.name('mix_share')} has no effect without general data: name its files with "
                         f"{spelling.name('mix')}.")


def override_expanded(document: TomlDocument, expanded: Iterable[ExpandedKey]) -> TomlDocument:
    """The document with the values that short options set; errors in them name the option."""
    for one in expanded:
        document = toml.override(document, {one.key: one.value}, one.option)
    return document


def _spelling(request: TrainingRequest) -> OptionSpelling:
    return OptionSpelling(request.option_prefix)


def _expand_dependent(request: TrainingRequest, tables: Mapping[str, Any],
                      requested: Mapping[str, Any]) -> list[ExpandedKey]:
    return short_options.expand_dependent(request.options, tables, request.task, requested, _spelling(request))


def _check_request(document: TomlDocument, request: TrainingRequest, setup: TaskSetup,
                   changes: Mapping[str, Any]) -> None:
    """Refuse a config that would be wrong for any data."""
    recipe = document.tables.get("recipe")
    start = [] if setup.start is None else setup.start.model_defaults()
    if start or lookup(document.tables, "model.kind") is not None or not isinstance(recipe, str | None):
        names: list[str | None] = [None]
    else:  # recipe or size may depend on the data: a config is accepted if it is right for one of them
        names = [name for each in ((recipe,) if recipe else setup.recipes) for name in recipe_sizes(each)]
    dependent = {STEPS_KEY: UNKNOWN_STEPS, **setup.data_dependent}
    known = {default.key for default in start}
    unknown = [Default(key, value, "") for key, value in dependent.items() if key not in known]
    filled = [fill_defaults(document, [*unknown, *start, *(recipe_defaults(name) if name else ())], document)
              for name in names]
    unset = {tuple(default.key.split(".")) for default in unknown if lookup(document.tables, default.key) is None}
    kind = lookup(filled[0].tables, "model.kind")
    if kind in MODEL_KINDS and kind not in setup.model_kinds:
        raise _wrong_kind(kind, recipe, request.task, setup)
    errors = [_request_error(each, document, request, changes, unset) for each in filled]
    if errors[0] is not None and None not in errors:
        raise errors[0]
    score = lookup(document.tables, "training.validation.metric", "loss")
    if score not in setup.scores:
        raise checks.wrong("training.validation.metric", f"{' or '.join(setup.scores)} for --task {request.task}",
                           score)
    for key, default in setup.unused.items():
        if lookup(document.tables, key, default) != default:
            value = lookup(document.tables, key)
            given = flatten_tables(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
            shown = ", ".join(f"{name}={toml.format_value(one)}" for name, one in given) or key
            raise ValueError(f"{shown} has no effect on --task {request.task}. Leave it out.")


def _wrong_kind(kind: str, recipe: str | None, task: str, setup: TaskSetup) -> ValueError:
    """The error for a model that this task cannot train, with those that it can; the caller raises it."""
    if recipe is None:
        return checks.wrong("model.kind", f"{' or '.join(setup.model_kinds)} for --task {task}", kind)
    fitting = [name for name in catalog.recipe_names()
               if catalog.find_recipe(name).tables["model"]["kind"] in setup.model_kinds]
    other = [name for name, each in TASKS.items() if kind in each.model_kinds]
    remedy = f" For {recipe}, use --task {' or '.join(other)}." if other else ""
    return ValueError(f"The recipe {recipe} is a model of kind {kind}, which --task {task} cannot train. Its recipes "
                      f"are {', '.join(fitting)}.{remedy}")


def _request_error(filled: TomlDocument, requested: TomlDocument, request: TrainingRequest,
                   changes: Mapping[str, Any], unset: Set[KeyPath]) -> ConfigError | None:
    """The errors of a config without the options that depend on its model, or else of the one with them.

    If the config is right without the options, all errors come from them, whichever key these name. Heads that do not
    divide the width are no error if the options set another width.
    """
    error = _config_error(filled, unset)
    if error is not None and not (request.options.get("width") and _only_heads_do_not_fit(error, filled)):
        return error
    expanded = _expand_dependent(request, filled.tables, requested.tables)
    short_options.check_set_once(expanded, changes, request.changes_name)
    changed = override_expanded(filled, expanded)
    if error is None:
        options = " and ".join(dict.fromkeys(one.option for one in expanded))
        changed = replace(changed, sources={("model",): options, **changed.sources})
    return _config_error(changed, unset)


def _only_heads_do_not_fit(error: ConfigError, document: TomlDocument) -> bool:
    """Whether all errors are numbers of heads, each a number that another width may have."""
    heads = [lookup(document.tables, ".".join(map(str, problem.path))) for problem in error.found
             if problem.path[-1] == "heads"]
    return len(heads) == len(error.found) and all(type(number) is int and number > 0 for number in heads)


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


@dataclass(frozen=True)
class PreparedTraining:
    """A training with its data and its complete config, before the first step."""

    task: TrainingTask
    model: ModelConfig
    settings: TrainingConfig
    defaults: tuple[Default, ...]
    """The defaults of all keys that the user has not set; none if the training is resumed."""
    reasons: Mapping[str, str]
    """Why a key has its value, for the keys that the user has set and those whose default depends on the data or the
    device. All others have the value of the recipe, or a fixed default."""
    tables: Mapping[str, Any]
    """The whole config as plain values."""
    files: dict[str, str]
    """The sha256 of the data files by name."""
    notes: tuple[str, ...]


def prepare(request: TrainingRequest, setup: TaskSetup, requested: TomlDocument, device: DeviceProperties,
            report: EventHandler, stored: Identity | None = None) -> PreparedTraining:
    """Read the data, fill in the defaults, and build the task for the loop.

    Defaults depend on each other: those of the tokenizer on the data, the recipe on the tokenized data, those of the
    training on the recipe, and the number of steps on the size of the batches. `requested` has only what the user has
    set, `document` also the defaults that are known so far.

    Args:
        stored: the identity of a training that is resumed, of which `requested` is the complete config; other data
            files are refused.
    """
    filters = config.read_config(DataConfig | None, requested, ("data",)) or DataConfig()
    survey = setup.survey(request, filters)
    if stored is not None:
        check_same_files(stored["files"], survey.files, request)
    for note in survey.warnings:
        report(Note(note, warning=not note.startswith(SUMMARY_START)))
    start, defaults = setup.start, setup.data_defaults(survey, requested.tables)
    document = fill_defaults(requested, [*([] if start is None else start.model_defaults()), *defaults], requested)
    _check_tokenizer_used(requested, defaults)
    with _option_in_errors(request, "vocab_size"):
        prepared = setup.prepare(survey, document, request.output / DATA_FOLDER)
    if start is not None:
        defaults = [*defaults, *start.choices()]
    elif lookup(requested.tables, "model.kind") is None:  # a recipe is not mixed into a whole [model] of the user's
        recipe = setup.recipe_default(prepared, device, requested.tables.get("recipe"))
        document = fill_defaults(document, recipe_defaults(recipe.value), requested)
        defaults = [*defaults, recipe]
    training = setup.training_defaults(prepared, document.tables, device)
    expanded = [] if stored is not None else _expand_dependent(
        request, fill_defaults(document, training, requested).tables, requested.tables)
    if expanded:  # other defaults depend on them
        requested, document = override_expanded(requested, expanded), override_expanded(document, expanded)
        training = setup.training_defaults(prepared, document.tables, device)
    document = toml.override(fill_defaults(document, training, requested),
                             {default.key: default.value for default in defaults if default.key == "recipe"})
    defaults = [*defaults, *training]
    if "max_steps" not in document.tables["training"].get("schedule", {}):
        steps = _steps_default(document, setup.steps_per_epoch(prepared, document), device)
        document = fill_defaults(document, [steps], requested)
        defaults = [*defaults, steps]
    configs = config.read_configs(TABLES, document)
    check_training_memory(configs["model"], configs["training"], device, [one.option for one in expanded])
    tables = config.to_tables(configs)
    record = _training_record(tables, survey.files, survey.counts, request.validation_files)
    if start is not None:
        record["start"] = start.identity
    task = setup.build(prepared, configs["model"], configs["training"], record)
    counts = {"training_examples": task.training_count, "validation_examples": task.validation_count}
    record["data"] |= {key: count for key, count in counts.items() if count}
    unset = tuple(default for default in defaults if lookup(requested.tables, default.key) is None)
    reasons = _reasons(requested, defaults, expanded) if stored is None else stored.get("reasons", {})
    return PreparedTraining(task, configs["model"], configs["training"], unset, reasons, tables, survey.files,
                            (*prepared.notes, *task.notes))


def _check_tokenizer_used(requested: TomlDocument, defaults: Sequence[Default]) -> None:
    """Refuse settings of a tokenizer for data that needs none: images."""
    given = [key for key, _ in flatten_tables(requested.tables.get("tokenizer", {}), "tokenizer.")]
    if given and not any(default.key.startswith("tokenizer.") for default in defaults):
        source = requested.source(tuple(given[0].split(".")))
        name = source if source is not None and " " in source else given[0]
        raise ValueError(f"{name} has no effect on images, which need no tokenizer. Leave it out.")


@contextmanager
def _option_in_errors(request: TrainingRequest, name: str) -> Iterator[None]:
    """Put a short option, if it is given, before an error that names its key."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        value = request.options.get(name)
        if value is None or f"`{name}`" not in str(error):
            raise
        raise ValueError(f"{_spelling(request).given(name, value)}: {error}") from None


def check_training_memory(model: ModelConfig, settings: TrainingConfig, device: DeviceProperties,
                          options: Iterable[str] = ()) -> None:
    """Refuse a training whose parameters need more memory than the device has, before anything is allocated.

    Activations come on top (`check_batch_memory`). So the estimate is a lower bound, and what it refuses cannot be
    trained.

    Args:
        options: the options of the call that changed the size of the model; the message names them.
    """
    named = " and ".join(dict.fromkeys(options))
    room, place = _room(device)
    what = f"{f'{named}: ' if named else ''}Training a model of {checks.plural(model.parameters(), 'parameter')}"
    allocation.check_fits(what, _parameter_bytes(model, settings, device), "Reduce --width, --layers or --vocab-size.",
                          room=room, place=place)


def check_batch_memory(prepared: "PreparedTraining", device: DeviceProperties) -> None:
    """Refuse a training whose largest batches need more memory than the device has, before the model is built.

    Parameters and activations are estimated (`regard.training.estimate.activation_bytes`), rather too low, so that
    what fits is not refused: what the check lets pass is tried before the first step.
    """
    model, settings, (room, place) = prepared.model, prepared.settings, _room(device)
    parameters = _parameter_bytes(model, settings, device)
    if device.kind != "cuda":  # where other models are in memory already
        parameters += LIBRARY_BYTES
    else:
        parameters += FROZEN_BYTES * prepared.task.frozen_parameters
    without_gradients = parameters - GRADIENT_BYTES * _parameters_per_device(model, settings, device)
    for rows, lengths in _largest_batches(prepared, device):
        activations = activation_bytes(
            prepared.tables["model"], rows, lengths, passes=2 if settings.rdrop else 1, on_gpu=device.kind == "cuda",
            bfloat16=settings.precision == "bfloat16")
        if device.kind == "cuda":
            activations //= GPU_REDUCTION
        free = max(1, (allocation.available_memory() if room is None else room) - without_gradients)
        parts = 1 << max(1, math.ceil(math.log2(max(1, activations) / free)))
        tokens = round(rows * sum(lengths))
        what = (f"Training a model of {checks.plural(model.parameters(), 'parameter')} with batches of "
                f"{checks.plural(tokens, 'token')}")
        # There are most activations when the backward pass begins, and most gradients when it ends.
        remedy = (f"Try {settings.in_smaller_batches(parts, rows, tokens)}, which computes the same step in smaller "
                  "parts, or a smaller model.")
        if rows == 1:  # one sequence that is too long
            limit = "data.filters.max_words" if settings.windows is None else "training.windows.length"
            remedy = f"Reduce {limit} or --width."
        allocation.check_fits(what, max(parameters, without_gradients + activations), remedy, room=room, place=place)


def _largest_batches(prepared: "PreparedTraining", device: DeviceProperties) -> Iterator[tuple[int, list[float]]]:
    """The rows of the batches that need most memory, and their length on each side.

    One window alone comes first: if it is too long, no batch of them is made.
    """
    if prepared.settings.windows is not None:
        yield 1, [prepared.settings.windows.length]
    for batch in prepared.task.feed(0, device.count).largest():
        if isinstance(batch, TrackBatch):
            yield len(batch.chosen), [prepared.model.tokens]  # type: ignore[union-attr]
            continue
        batch = getattr(batch, "batch", batch)  # of windows that continue each other
        sides = [side for side in (getattr(batch, "source", None), batch.inputs) if side is not None]
        if isinstance(prepared.model, VisionConfig):
            yield len(batch.inputs), [prepared.model.tokens]
        elif sides[0].rows:
            yield sides[0].rows, [side.ids.numel() / side.rows for side in sides]


def _parameter_bytes(model: ModelConfig, settings: TrainingConfig, device: DeviceProperties) -> int:
    """The bytes of all that is kept for the parameters on one device."""
    return _parameters_per_device(model, settings, device) * (TRAINING_BYTES + (EMA_BYTES if settings.ema_decay else 0))


def _parameters_per_device(model: ModelConfig, settings: TrainingConfig, device: DeviceProperties) -> int:
    return model.parameters() // (max(1, device.count) if settings.parallelism == "fsdp" else 1)


def _room(device: DeviceProperties) -> tuple[int | None, str]:
    """The memory of the device, or None for what this machine has free, and what messages call it."""
    return (device.memory, "the GPU") if device.kind == "cuda" else (None, "this machine")


def _reasons(requested: TomlDocument, defaults: Sequence[Default], expanded: Sequence[ExpandedKey]) -> dict[str, str]:
    """Why each key has its value that was set by the user, or whose default depends on the data or the device."""
    reasons = {default.key: default.reason for default in defaults}
    size = reasons.get("recipe")
    for key, value in flatten_tables(requested.tables):
        option = requested.source(tuple(key.split(".")))
        reasons[key] = f"{SET_BY_USER} ({option})" if option is not None and " " in option else SET_BY_USER
        if key == "recipe" and size is not None and len(recipe_sizes(value)) > 1:
            reasons[key] = f"{SET_BY_USER}; {size}"
    return reasons | {one.key: f"{one.reason} ({one.option})" for one in expanded if one.reason}


def _training_record(tables: Mapping[str, Any], files: Mapping[str, str], counts: Mapping[str, int],
                     validation: Sequence[str]) -> dict[str, Any]:
    """What is stored with the model about its training."""
    record = {key: tables[key] for key in ("recipe", "data", "training") if key in tables}
    names = [os.path.basename(os.path.normpath(path)) for path in validation]
    return {**record, "tokenizer": tables.get("tokenizer", {}),
            "data": {**record.get("data", {}), **counts, **({"validation_files": names} if names else {}),
                     "files": list_digests(files)}}


def _steps_default(document: TomlDocument, batches: int, device: DeviceProperties) -> Default:
    """The number of steps of all epochs, given the batches of an epoch."""
    training = document.tables["training"]
    per_step, epochs = training.get("gradient_accumulation", 1) * device.count, training["epochs"]
    steps = max(1, math.ceil(epochs * batches / per_step))
    length = checks.plural(max(1, round(batches / per_step)), "step")
    return Default(STEPS_KEY, steps, f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'} of {length}")


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
                      tokenizer: str | None, reasons: Mapping[str, str] | None = None,
                      start: StartModel | None = None) -> Identity:
    """What a resumed training must share with the stored one; it is part of every checkpoint.

    Args:
        tables: the whole config, as plain values.
        files: the sha256 of each file by its name.
        tokenizer: its sha256, if there is one.
        reasons: why keys have their values, which a resumed training repeats.
        start: the model that is fine-tuned.
    """
    return {"task": request.task, "reading": _read_options(request), "config": tables, "files": files,
            "tokenizer": tokenizer, "reasons": dict(reasons or {}),
            **({} if start is None else {"start": start.identity})}


def check_same_start(stored: Identity, start: StartModel | None, request: TrainingRequest) -> None:
    """Refuse another start model than the one that the training began with."""
    before, option = stored.get("start"), _spelling(request).name("from")
    if before is None and start is None:
        return
    if before is None:
        raise DataError(f"{request.output}: This training began with new weights. Leave out {option} to resume it.")
    if start is None:
        raise DataError(f"{request.output}: This training fine-tunes {before['name']}. Name that model with {option} "
                        "to resume it.")
    if before["sha256"] != start.sha256:
        raise DataError(f"{request.output}: This training cannot be resumed with another start model: the weights of "
                        f"{start.name} have the sha256 {start.sha256}, those of {before['name']} had "
                        f"{before['sha256']}. Use the same model, or choose another folder.")


def stored_config(stored: Identity, request: TrainingRequest, requested: TomlDocument) -> TomlDocument:
    """The stored config. A resumed training may leave out settings, but not change them."""
    document = config.with_current_keys(toml.document_of(stored["config"], f"the config in {request.output}"), TABLES)
    before = {"task": stored["task"], **stored["reading"], **document.tables}
    now = {"task": request.task, **dict.fromkeys(stored["reading"]), **_read_options(request), **requested.tables}
    for one in _expand_dependent(request, document.tables, {}):  # the same options give the same values again
        if not one.reason:
            now = dict(toml.override(toml.document_of(now), {one.key: one.value}).tables)
    if "recipe" in now and before.get("recipe") in recipe_sizes(now["recipe"]):  # the size was a default
        now["recipe"] = before["recipe"]
    different = [f"  {key}: {_format_value(lookup(before, key))} is stored, {_format_value(value)} is requested"
                 for key, value in flatten_tables(now) if key not in DESCRIPTIVE_KEYS and lookup(before, key) != value]
    if different:
        raise DataError("\n".join([f"{request.output}: This training cannot be resumed with other settings.",
                                   *different, "Use the stored settings, or choose another folder."]))
    return toml.override(document, {key: lookup(requested.tables, key) for key in DESCRIPTIVE_KEYS
                                    if lookup(requested.tables, key) is not None})


def check_same_files(stored: Mapping[str, str], now: Mapping[str, str], request: TrainingRequest) -> None:
    """Refuse data files that have changed."""
    changed = [f"  {name} is missing." if name not in now else f"  {name} is new." if name not in stored else
               f"  {name} was changed: its sha256 is {now[name]}, and was {stored[name]}."
               for name in {**stored, **now} if stored.get(name) != now.get(name)]
    if changed:
        raise DataError("\n".join([f"{request.output}: This training cannot be resumed with other data.", *changed,
                                   "Use the same files, or choose another folder."]))


def check_same_tokenizer(stored: Identity, now: Identity, folder: os.PathLike[str]) -> None:
    """Refuse another tokenizer than the one that the training started with."""
    if stored["tokenizer"] != now["tokenizer"]:
        raise DataError(f"{os.fspath(folder)}: The tokenizer is not the one that this training started with: its "
                        f"sha256 is {now['tokenizer']}, and was {stored['tokenizer']}. Restore the folder, or start a "
                        "new training in another one.")


def _read_options(request: TrainingRequest) -> dict[str, Any]:
    """The arguments that order and sides of the data depend on."""
    files = {"DATA": request.data, "--validation": request.validation,
             **({"--mix": request.mix} if request.mix else {}),
             **({"--general-validation": request.general_validation} if request.general_validation else {})}
    directions, validation = ([f"{one.name}:{','.join(map(os.path.basename, paths))}" for one, paths in given if paths]
                              for given in ([(one, one.data) for one in request.directions],
                                            [(one, one.validation) for one in request.directions]))
    return {**{key: [os.path.basename(path) for path in paths] for key, paths in files.items()},
            **{f"--{name}": getattr(request, name) for name in READ_OPTIONS},
            **({"--direction": directions, "--validation": validation} if directions else {}),
            **({"--both-ways": True} if request.both_ways else {}), **_synthesis_options(request)}


def _synthesis_options(request: TrainingRequest) -> dict[str, Any]:
    """The arguments that synthetic pairs depend on; none for a training without them."""
    given = request.synthesis
    if given is None:
        return {"reversed": True} if request.reversed else {}
    models = {key: None if path is None else os.path.basename(os.path.normpath(path))
              for key, path in (("--reverse", given.reverse), ("--teacher", given.teacher))}
    return {"--monolingual": [os.path.basename(path) for path in given.monolingual], **models,
            **({} if given.sampled_sources is None else {"--sampled-sources": given.sampled_sources}),
            "--synthetic-share": given.share, "--temperature": given.temperature, "--top-k": given.top_k,
            "--time": total_time(request)}


def total_time(request: TrainingRequest) -> float | None:
    """The time limit of the user in seconds, for all stages of a training together; None without one."""
    options = short_options.read_short_options(request.options, _spelling(request))
    return options.get("time", request.changes.get("training.max_time"))


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)
