"""From a config to a model: `regard.build`.

    config ── its kind ── its config class, validated ── does it fit into memory? ── the model, with new parameters

A config is the name of a recipe ("transformer", or with a size "transformer-tiny"), the path of a TOML file, tables, or
the config object itself. Nothing is allocated before the config is valid and known to fit into the machine's memory.

This module knows the kinds of models; it does not know tokenizers, training, or folders of trained models.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard import allocation, checks, config, toml
from regard.checks import plural
from regard.models import catalog
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.tracks import TracksConfig
from regard.models.vision import VisionConfig

ModelConfig = (Seq2SeqConfig | EncoderDecoderConfig | LanguageModelConfig | MaskedModelConfig | EncoderConfig
               | TaggerConfig | ClassifierConfig | VisionConfig | TracksConfig)
BYTES_PER_PARAMETER = 4
"""Parameters are float32."""
AnyConfig = ModelConfig | str | os.PathLike[str] | Mapping[str, Any]


def build(given: AnyConfig, **changes: Any) -> nn.Module:
    """Build a bare model, on ids and with new parameters, from a recipe or a config.

    `regard.task` builds a model with its tokenizer and search.

    Args:
        given: the name of a recipe ("transformer-tiny"), the path of a TOML file that has a table [model], such tables
            as a mapping, or a config object.
        changes: keys of the model with other values: vocab_size=8000; nested ones as **{"stack.layers": 4}.

    Example:
        import regard

        model = regard.build("gpt-tiny", vocab_size=8000, **{"stack.layers": 2})
        assert model(regard.Tokens.of([[5, 6, 7]])).shape == (1, 3, 8000)
    """
    chosen = model_config(given, **changes)
    check_size(chosen)
    return chosen.build()


def model_config(given: AnyConfig, **changes: Any) -> ModelConfig:
    """The validated config of a model; a ConfigError lists all of its errors."""
    if isinstance(given, ModelConfig):
        if not changes:
            return given
        given = {"model": config.to_tables(given)}
    document = _config_document(given)
    at = () if "kind" in document.tables and "model" not in document.tables else ("model",)
    document = config.with_current_keys(document, {"model": ModelConfig} if at else ModelConfig)
    changes = config.current_overrides(changes, ModelConfig)
    document = toml.override(document, {".".join([*at, key]): value for key, value in changes.items()})
    return config.read_config(ModelConfig, document, at)


def check_size(chosen: ModelConfig) -> None:
    """Refuse a model whose parameters do not fit into the free memory of this machine."""
    count = chosen.parameters()
    allocation.check_fits(f"The model has {plural(count, 'parameter')} and", BYTES_PER_PARAMETER * count,
                          "Reduce its width, layers or vocabulary.")


def _config_document(given: Any) -> toml.TomlDocument:
    if isinstance(given, Mapping):
        return toml.document_of(given)
    if not isinstance(given, str | os.PathLike):
        expected = "the name of a recipe, the path of a TOML file, a mapping of tables, or the config of a model"
        raise checks.wrong("given", expected, *checks.kind(given))
    if isinstance(given, os.PathLike) or given.endswith(".toml") or os.sep in given:
        return toml.read_document(Path(given))
    return catalog.find_recipe(given)
