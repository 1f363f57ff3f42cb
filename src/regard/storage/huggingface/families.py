"""The families there are, and which of them a file or a config of ours belongs to."""

from collections.abc import Collection, Mapping
from typing import Any

from regard import checks
from regard.models.build import ModelConfig
from regard.models.encoder import EncoderConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.language import LanguageConfig
from regard.models.vision import VisionConfig
from regard.storage.huggingface.bert import Bert
from regard.storage.huggingface.family import Family
from regard.storage.huggingface.gpt2 import GPT2
from regard.storage.huggingface.llama import Llama
from regard.storage.huggingface.marian import Marian
from regard.storage.huggingface.pegasus import Pegasus
from regard.storage.huggingface.vit import ViT

FAMILIES: dict[str, Family[Any]] = {family.name: family for family in (Bert(), GPT2(), Marian(), Pegasus(), ViT(),
                                                                      Llama())}


def of_file(raw: Mapping[str, Any], names: Collection[str], path: str) -> tuple[Family[Any], str]:
    """The family and the architecture that a config.json at `path` names; where it names none, by its tensors.

    A file may name several architectures that its weights can be used as: the first one is meant.
    """
    named = raw.get("architectures")
    if named is not None and (not isinstance(named, list) or not all(isinstance(one, str) for one in named)):
        raise checks.wrong(f"{path}: architectures", "a list of names", repr(named)[:80])
    known = {architecture: family for family in FAMILIES.values() for architecture in family.architectures}
    if named:
        if named[0] not in known or raw.get("model_type", known[named[0]].name) != known[named[0]].name:
            got = f'"{named[0]}" of model_type {raw.get("model_type")!r:.80}'
            expected, hint = f"one of {', '.join(known)}", checks.nearest(named[0], known)
            raise checks.wrong(f"{path}: architectures", expected, got, hint)
        return known[named[0]], named[0]
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise checks.wrong(f"{path}: model_type", f"one of {', '.join(FAMILIES)}", repr(kind)[:80])
    family = FAMILIES[kind]
    guessed = family.guess(names)
    if guessed is None:
        remedy = f"The tensors alone do not tell which of {', '.join(family.architectures)} it is: write it there."
        raise checks.wrong(f"{path}: architectures", "there", "missing", remedy)
    return family, guessed


def of_config(config: ModelConfig) -> tuple[Family[Any], str]:
    """The family that a config of ours may fit, and the architecture that it is written as."""
    if isinstance(config, LanguageConfig):
        rotary = getattr(getattr(config.stack.mixer, "position", None), "kind", None) == "rotary"
        name = "llama" if rotary or config.stack.norm == "rms" else "gpt2"
    elif isinstance(config, EncoderConfig):
        name = "bert"
    elif isinstance(config, EncoderDecoderConfig):
        name = "pegasus" if config.decoder.order == "pre" else "marian"
    elif isinstance(config, VisionConfig):
        name = "vit"
    else:
        expected = "the config of a model that one of the families holds: " + ", ".join(FAMILIES)
        raise checks.wrong("config", expected, f'of the kind "{config.kind}"')
    family = FAMILIES[name]
    return family, next(theirs for theirs, kind in family.architectures.items() if kind == config.kind)
