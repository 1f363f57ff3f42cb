"""From a config to a model: `regard.build`.

    config ── which kind ── its config class, checked ── does it fit? ── the model, with new parameters

A config is the name of a recipe ("transformer-tiny"), the path of a TOML file, tables, or the config object itself.
Nothing is allocated before the config is whole and known to fit into the machine's memory. It knows the kinds of
models; it does not know tokenizers, training, or folders of trained models.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard import checks, config
from regard.models.encoder import EncoderConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.labels import ClassifierConfig, TaggerConfig
from regard.models.language import LanguageConfig
from regard.models.masked import MaskedConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.vision import VisionConfig
from regard.recipes import catalog
from regard.toml import document as toml

ModelConfig = (Seq2SeqConfig | EncoderDecoderConfig | LanguageConfig | MaskedConfig | EncoderConfig | TaggerConfig
               | ClassifierConfig | VisionConfig)
AnyConfig = ModelConfig | str | os.PathLike[str] | Mapping[str, Any]


def build(given: AnyConfig, **changes: Any) -> nn.Module:
    """A bare model with new parameters.

    Args:
        given: the name of a recipe ("transformer-tiny"), the path of a TOML file that has a table [model], such tables
            as a mapping, or a config object.
        changes: keys of the model that have other values: vocabulary=8000; deeper ones as **{"stack.layers": 4}.
    """
    chosen = model_config(given, **changes)
    check_size(chosen)
    return chosen.build()


def model_config(given: AnyConfig, **changes: Any) -> ModelConfig:
    """The checked config of a model; a ConfigError has all that is wrong with it."""
    if isinstance(given, ModelConfig):
        if not changes:
            return given
        given = {"model": config.plain(given)}
    document = _document(given)
    at = () if "kind" in document.tables and "model" not in document.tables else ("model",)
    document = toml.changed(document, {".".join([*at, key]): value for key, value in changes.items()})
    return config.make(ModelConfig, document, at)


def check_size(chosen: ModelConfig) -> None:
    """Refuse a model whose parameters alone do not fit into this machine's memory."""
    count, room = chosen.parameters(), _memory()
    if 4 * count > room:
        expected = f"a model that fits into the {room / 2**30:.0f} GiB of this machine"
        got = f"one of {count:,} parameters, {4 * count / 2**30:,.0f} GiB in float32"
        raise checks.wrong("config", expected, got)


def _document(given: Any) -> toml.Document:
    if isinstance(given, Mapping):
        return toml.given(given)
    if not isinstance(given, str | os.PathLike):
        expected = "the name of a recipe, the path of a TOML file, tables, or the config of a model"
        raise checks.wrong("given", expected, *checks.kind(given))
    if isinstance(given, os.PathLike) or given.endswith(".toml") or os.sep in given:
        return toml.read(Path(given))
    return catalog.find(given)


def _memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
