"""Which directions a training has: from the options, a config file, or the data itself.

    with_file_directions(request)              the request with the directions of its config file
    requested_directions(request, config)      all directions of a training, the opposite ones included; none if the
                                               training has one direction and needs no control token

A config file lists directions as tables:

    [[data.direction]]
    languages = "en-fr"
    files = ["train.en", "train.fr"]
    validation = ["dev.en", "dev.fr"]
    both_ways = true
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard import config as configs
from regard import toml
from regard.config import Config
from regard.data.directions import (
    DirectionData,
    check_directions,
    named_directions,
    parse_direction,
    with_reverses,
    with_validation,
)
from regard.data.languages import LanguagePair, parse_pair
from regard.data.sources import formats
from regard.data.sources.text import DataError
from regard.toml import TomlDocument
from regard.training.config import DataConfig
from regard.training.tasks.interface import TrainingRequest

TASK = "seq2seq"
TABLE = "direction"


@dataclass(frozen=True, kw_only=True)
class DirectionTable(Config):
    """A direction of a model for several languages, in a config file."""

    languages: str
    """Source and target language, such as "en-fr"."""
    files: tuple[str, ...]
    """The training data."""
    validation: tuple[str, ...] = ()
    """The validation data; without it pairs are held out."""
    both_ways: bool = False
    """Whether the opposite direction is trained too."""


@dataclass(frozen=True, kw_only=True)
class DirectionTables(Config):
    """The directions in the table [data] of a config file."""

    direction: tuple[DirectionTable, ...] = ()


def without_direction_tables(document: TomlDocument) -> TomlDocument:
    """A config without its directions, which name files and are no settings."""
    data = document.tables.get("data")
    if not isinstance(data, dict) or TABLE not in data:
        return document
    left = {key: value for key, value in data.items() if key != TABLE}
    return replace(document, tables={**document.tables, "data": left})


def with_file_directions(request: TrainingRequest) -> TrainingRequest:
    """The request with the directions of its config file, if that has any."""
    if request.recipe is not None and request.recipe.endswith(".toml"):
        document = toml.read_document(request.recipe)
        data: Any = document.tables.get("data")
        if isinstance(data, dict) and TABLE in data:
            only = replace(document, tables={"data": {TABLE: data[TABLE]}})
            tables: DirectionTables = configs.read_configs({"data": DirectionTables}, only)["data"]
            if request.directions or request.data:
                given = "--direction" if request.directions else "DATA"
                raise DataError(f"{request.recipe} has [[data.{TABLE}]], and {given} is given too. Leave out one of "
                                "them.")
            request = replace(request, directions=tuple(_table_directions(tables.direction)))
    if request.task != TASK and (request.directions or request.both_ways):
        raise DataError(f"Only --task {TASK} has directions, not --task {request.task}. Leave out --direction and "
                        "--both-ways.")
    if not request.data and not request.directions:
        raise DataError("There is no data. Name its files, or give directions: --direction en-fr:train.en,train.fr.")
    if request.data and request.directions:
        raise DataError(f"{request.data[0]}: With --direction the data of every direction is named there. Leave out "
                        "DATA, or give it a direction too.")
    return request


def _table_directions(tables: Sequence[DirectionTable]) -> list[DirectionData]:
    found = list[DirectionData]()
    for table in tables:
        one = DirectionData(parse_pair(table.languages, f"data.{TABLE}.languages"), table.files, table.validation)
        found += with_reverses([one]) if table.both_ways else [one]
    return found


def parse_directions(directions: Sequence[str], validation: Sequence[str]) -> tuple[DirectionData, ...]:
    """The directions of --direction, with the validation data of --validation."""
    found = [parse_direction(text) for text in directions]
    return tuple(with_validation(found, [parse_direction(text, "--validation") for text in validation]))


def requested_directions(request: TrainingRequest, config: DataConfig) -> list[DirectionData]:
    """All directions of a training; none for a training of one direction that says nothing about it.

    Args:
        config: the settings of the user. Those of a resumed training are complete, with keys that nobody has set.
    """
    found = list(request.directions)
    if not found and request.source is None:
        found = _directions_of_rows(request, config)
    if not found and request.both_ways:
        found = [DirectionData(_only_languages(request, config), request.data, request.validation)]
    if request.both_ways:
        found = with_reverses(found)
    names = [one.name for one in found]
    if len(found) > 1 and (config.source_lang or config.target_lang) and request.directions and not request.resume:
        raise DataError(f"--languages is for a model of one direction, and this one has {', '.join(names)}. Leave it "
                        "out.")
    if config.directions is not None and [*config.directions] != names and not request.resume:
        raise DataError(f"data.directions = {', '.join(config.directions)}, but the data has "
                        f"{', '.join(names) or 'one direction'}. Leave out the key: it follows from the data.")
    if config.sampling_temperature is not None and len(found) < 2:
        raise DataError("data.sampling_temperature has no effect on a training of one direction. Leave it out.")
    if config.zero_shot and len(found) < 2:
        raise DataError("--zero-shot is for a model of several directions, such as en-de and en-fr both ways. Leave it "
                        "out, or give more directions.")
    check_directions(found)
    return found


def _directions_of_rows(request: TrainingRequest, config: DataConfig) -> list[DirectionData]:
    """The directions that the lines of the data name; if the user has set the languages, that direction alone."""
    found = _chosen_directions(request.data, request, config)
    if not found or not request.validation:
        return found
    validation = _chosen_directions(request.validation, request, config)
    if not validation:
        raise DataError(f"{request.validation[0]}: The lines of {request.data[0]} name their languages, and those of "
                        "this file do not. Add the columns source_lang and target_lang.")
    return with_validation(found, validation)


def _chosen_directions(files: Sequence[str], request: TrainingRequest, config: DataConfig) -> list[DirectionData]:
    """The directions that the lines of some files name, without those in other languages than the user has set."""
    found = named_directions(files, request.format)
    if config.directions is not None and request.resume:  # stored: all of them
        return found
    chosen = [one for one in found if config.source_lang in (None, one.languages.source)
              and config.target_lang in (None, one.languages.target)]
    if found and not chosen:
        wanted = "-".join(filter(None, (config.source_lang, config.target_lang)))
        named = ", ".join(one.name for one in found)
        raise DataError(f"{', '.join(files)}: The lines are for {named}, and none is for {wanted}. Set other "
                        "languages (--languages; source_lang and target_lang in Python), or none, to train all "
                        "directions.")
    return chosen


def _only_languages(request: TrainingRequest, config: DataConfig) -> LanguagePair:
    """The languages of data without directions: those that the user has set, or that the files tell."""
    if config.source_lang is not None and config.target_lang is not None:
        return LanguagePair(config.source_lang, config.target_lang)
    corpus = formats.read_pairs(request.data, source=request.source, target=request.target, format=request.format)
    next(iter(corpus), None)  # a header line is known after the first pair
    told = {*corpus.log.languages.values()}
    if len(told) != 1:
        raise DataError(f"--both-ways needs the languages of {', '.join(request.data)}. Set them with --languages, for "
                        "example en-fr.")
    return told.pop()
