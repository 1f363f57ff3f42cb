"""The reference of all config keys: type, default, and one sentence for each, from the config classes.

    read_reference()         all keys, as `regard config` shows them; from config_keys.json, without importing torch
    describe_config()        the same, from the classes themselves
    python -m regard.training.config_reference      writes config_keys.json anew; a test compares it with the classes

A key's sentence is the docstring after its field. The default of a key that no user has set is fixed, follows from the
recipe, or depends on the data and the device. A table of several kinds has the key `kind`; keys that only some kinds
have say so.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field
from importlib import resources
from typing import Any

from regard import checks, config
from regard.models import catalog
from regard.toml import format_value
from regard.training import defaults
from regard.training.defaults import Default, DeviceProperties

REFERENCE_FILE = "config_keys.json"
BY_DATA, BY_RECIPE = "depends on the data", "from the recipe"
NO_DEFAULT, UNSET = "none: must be set", "not set"
"""Defaults that are no single value."""
DETERMINED_BY_DATA = {
    "data.validation_fraction", "training.schedule.max_steps", "model.share_embeddings", "model.image_height",
    "model.image_width", "model.channels", "model.patch_size",
}
"""Keys whose defaults the tasks compute from the data themselves."""
REFUSED_TABLES = ("model.encoder.cross", "model.stack.cross")
"""Tables that no model accepts: only a decoder with an encoder has something to attend to."""
TABLE_DOCS = {
    "data": "Which examples are used, and which of them for validation.",
    "tokenizer": "How texts are split into tokens; `kind` selects the method.",
    "model": "The model. A recipe sets most of its keys; with `kind` of your own, all are yours to set.",
    "training": "How the model is trained.",
}
RECIPE_DOC = "Name of a recipe, with or without a size, such as transformer-small."
KIND_DOC = "Which of these it is; the other keys of the table depend on it."
SAMPLE_SIZES = (300, 10_000, 300_000, 5_000_000, 100_000_000)
"""Amounts of data for which defaults are computed, to see which depend on it."""


@dataclass(frozen=True)
class ConfigKey:
    """One key of the config, or a table of keys."""

    key: str
    type: str
    """In words, such as "a whole number, at least 1"; "table" for a table."""
    default: str
    doc: str
    kinds: Mapping[str, list[str]] = field(default_factory=dict)
    """If only some kinds of a table have this key: those kinds, by the key of `kind`."""
    tasks: list[str] = field(default_factory=list)
    """The tasks for which it has an effect."""

    def is_of(self, tables: Mapping[str, Any]) -> bool:
        """Whether a config has tables of the kinds that have this key; a kind that is not set may be one of them."""
        return all(defaults.lookup(tables, key) in (None, *kinds) for key, kinds in self.kinds.items())


def read_reference() -> list[ConfigKey]:
    """All keys and tables in the order of the config file."""
    text = resources.files(__package__).joinpath(REFERENCE_FILE).read_text(encoding="utf-8")
    return [ConfigKey(**entry) for entry in json.loads(text)]


def describe_config() -> list[ConfigKey]:
    """All keys and tables, from the config classes."""
    from regard.training import resolution

    setups = {name: make() for name, make in resolution.TASKS.items()}
    determined = {key for setup in setups.values() for key in setup.data_dependent} | DETERMINED_BY_DATA
    samples = _sample_defaults()
    found = [ConfigKey("recipe", "text", BY_DATA, RECIPE_DOC)]
    for name, annotation in resolution.TABLES.items():
        if name != "recipe":
            found.append(ConfigKey(name, "table", "", TABLE_DOCS[name]))
            found += _describe_table(config.type_spec(annotation, name).reader, name, {})
    described: dict[tuple[str, ...], ConfigKey] = {}
    for one in found:  # a key of several kinds is listed once
        identity = (one.key, one.type, one.default, one.doc)
        known = described.get(identity)
        kinds = one.kinds if known is None else _merge_kinds(known.kinds, one.kinds)
        described[identity] = dataclasses.replace(one, kinds=kinds)
    every_kind = {one.key: one.type for one in found if one.key.endswith(".kind")}
    return [_complete(one, setups, samples, determined, every_kind) for one in described.values()
            if not any(one.key == table or one.key.startswith(f"{table}.") for table in REFUSED_TABLES)]


def _complete(one: ConfigKey, setups: Mapping[str, Any], samples: Mapping[str, list[dict[str, str]]],
              determined: set[str], every_kind: Mapping[str, str]) -> ConfigKey:
    """A key with its tasks, its default, and without kinds that are all there are."""
    tasks = [name for name, setup in setups.items() if _has_effect(one, setup)]
    kinds = {key: names for key, names in one.kinds.items() if config.one_of(names) != every_kind[key]}
    default = one.default
    if one.type != "table":
        values = [_sampled_values(one, samples[task]) for task in tasks]
        if one.key in determined or any(len(value) > 1 for value in values):
            default = BY_DATA
        elif _recipe_sets(one):
            default = BY_RECIPE
        elif values:
            default = _default_by_task(dict(zip(tasks, (next(iter(value)) for value in values), strict=True)))
    return dataclasses.replace(one, tasks=tasks, kinds=kinds, default=default)


def _sampled_values(one: ConfigKey, samples: list[dict[str, str]]) -> set[str]:
    """The defaults of a key in those samples that have it."""
    kinds = one.kinds.get("tokenizer.kind")
    return {sample.get(one.key, one.default) for sample in samples
            if kinds is None or sample["tokenizer.kind"] in kinds} or {one.default}


def _default_by_task(defaults_of: Mapping[str, str]) -> str:
    """The default, and where tasks differ, which has which: "0.1 for seq2seq and classify, 0.0 for language"."""
    tasks: dict[str, list[str]] = {}
    for task, value in defaults_of.items():
        tasks.setdefault(value, []).append(task)
    if len(tasks) == 1:
        return next(iter(tasks))
    return ", ".join(f"{value} for {checks.join_names(names)}" for value, names in tasks.items())


def _describe_table(reader: Any, path: str, kinds: Mapping[str, list[str]]) -> Iterator[ConfigKey]:
    """The keys of a table and of the tables in it."""
    assert isinstance(reader, config.TableReader)
    several = len(reader.classes) > 1
    if several:
        yield ConfigKey(f"{path}.kind", config.one_of(reader.kinds), NO_DEFAULT, KIND_DOC, kinds)
    for cls in reader.classes:
        inside = {**kinds, f"{path}.kind": [str(config.config_kind(cls))]} if several else kinds
        docs, fields = field_docs(cls), {one.name: one for one in dataclasses.fields(cls)}
        for name, spec in config.key_specs(cls).items():
            key = f"{path}.{name}"
            if isinstance(spec.reader, config.TableReader):
                yield ConfigKey(key, "table", UNSET if spec.optional else "", docs[name], inside)
                yield from _describe_table(spec.reader, key, inside)
            else:
                yield ConfigKey(key, spec.reader.expected, _format_default(fields[name]), docs[name], inside)


def field_docs(cls: type) -> dict[str, str]:
    """The docstring after each field of a dataclass, also of those that it inherits, on one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base in (object, config.Config) or not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for statement, after in itertools.pairwise(body):
            if (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
                    and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                docs[statement.target.id] = " ".join(str(after.value.value).split())
    return docs


def _format_default(of: dataclasses.Field[Any]) -> str:
    if of.default is MISSING:
        return NO_DEFAULT
    if of.default is None:
        return UNSET
    return _format_value(of.default)


def _format_value(value: Any) -> str:
    """A value as a user writes it."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else format_value(value)


def _recipe_sets(one: ConfigKey) -> bool:
    """Whether a recipe sets this key of the model."""
    recipes = [{"model": catalog.find_recipe(recipe).tables["model"]} for recipe in catalog.recipe_names()]
    return any(defaults.lookup(tables, one.key) is not None for tables in recipes if one.is_of(tables))


def _merge_kinds(one: Mapping[str, list[str]], other: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {key: list(dict.fromkeys([*one[key], *other[key]])) for key in one if key in other}


def _has_effect(one: ConfigKey, setup: Any) -> bool:
    """Whether a key has an effect on a task."""
    kinds = one.kinds.get("model.kind")
    if kinds is not None and not set(kinds) & set(setup.model_kinds):
        return False
    return not any(one.key == key or one.key.startswith(f"{key}.") for key in setup.unused)


def _sample_defaults() -> dict[str, list[dict[str, str]]]:
    """For each task, the defaults for some amounts of data, devices and recipes: values by key."""
    found: dict[str, list[list[Default]]] = {"seq2seq": [], "language": [], "masked": [], "classify": [], "label": [],
                                             "tracks": []}
    models = {name: catalog.find_recipe(name).tables["model"] for name in catalog.recipe_names()}
    devices = (DeviceProperties("cpu", 2**34, False), DeviceProperties("cuda", 2**34, True))
    for device, count in itertools.product(devices, SAMPLE_SIZES):
        for name, mixers in (("transformer", ["attention"]), ("seq2seq", [])):
            found["seq2seq"].append([*defaults.translation_tokenizer(count, {}),
                                     *defaults.translation_model(count, models[name]),
                                     *defaults.translation_training(count, 20 * count, mixers, device, {})])
        for name in (defaults.LANGUAGE_RECIPE, "gpt", "lstm"):
            found["language"].append([*defaults.language_tokenizer(count, {}),
                                      *defaults.language_model(count, models[name]),
                                      *defaults.language_training(count, models[name], device, {})])
        found["masked"].append([*defaults.masked_tokenizer(count, {}),
                                *defaults.masked_training(count, 20 * count, device, {})])
        found["tracks"].append([*defaults.tracks_training(count, 10 * count, device, {})])
        for side in (None, 28):
            found["classify"].append([*defaults.classification_tokenizer(count, {}),
                                      *defaults.classification_training(count, 20 * count, device, side, {})])
        for name, unit in itertools.product(("tagger", "tagger-lstm", "tagger-conv"), ("character", "word")):
            found["label"].append([*defaults.labelling_tokenizer(count, unit, {}),
                                   *defaults.tagger_model(20 * count, models[name]),
                                   *defaults.labelling_training(count, 20 * count, False, device, {})])
    return {task: [{default.key: _format_value(default.value) for default in those} for those in samples]
            for task, samples in found.items()}


if __name__ == "__main__":
    entries = [{key: value for key, value in asdict(one).items() if value != {}} for one in describe_config()]
    with resources.as_file(resources.files("regard.training").joinpath(REFERENCE_FILE)) as path:
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
