"""Write a model as a folder that CTranslate2 loads.

    model.bin                                        the weights, quantised where asked for
    config.json                                      the names of the special tokens
    source_vocabulary.json, target_vocabulary.json   what each id is called; shared_vocabulary.json where they are one

CTranslate2 is given texts as names of tokens. An id is called as its tokenizer shows it, and <ID> where it has no name
or one that another id has already. A source ends with the end token, which whoever calls adds, as for our own models.

It does not know tokenizers: it takes names. It does not know what a model writes: others check that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard import checks
from regard.models.build import ModelConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.special import SpecialConfig
from regard.storage.ctranslate2 import spec
from regard.storage.ctranslate2.spec import Tensors

QUANTIZATIONS = {"float32": "float32", "float16": "float32", "bfloat16": "float32", "int8": "int8_float32"}
"""As what numbers matrices are stored, and as what a CPU computes with them. A GPU computes with what is stored."""
POSITIONS = 2048
"""Rows of the table of positions that have no end."""


@dataclass(frozen=True)
class Names:
    """What ids are called on each side; one list for both where a model has one side."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that hold them for a translator."""
        if self.source == self.target:
            return ("shared_vocabulary.json",)
        return "source_vocabulary.json", "target_vocabulary.json"


def unique(pieces: Sequence[str], size: int) -> tuple[str, ...]:
    """Names for all `size` ids of a model, the first of which are called like these pieces."""
    named, taken = list[str](), set[str]()
    numbered = {f"<{id_}>" for id_ in range(size)}
    for id_ in range(size):
        name = pieces[id_] if id_ < len(pieces) else ""
        if not name or name in taken or name in numbered:
            name = f"<{id_}>"
        taken.add(name)
        named.append(name)
    return tuple(named)


def room(config: ModelConfig) -> int:
    """How many positions an exported model has."""
    embedding = getattr(config, "embedding", None)
    count = getattr(embedding.positions, "count", None) if embedding is not None else None
    return POSITIONS if count is None else count


def write(folder: Path, config: ModelConfig, special: SpecialConfig, tensors: Tensors, names: Names,
          quantization: str = "float32") -> tuple[str, ...]:
    """Write the files into a folder that is there, and give their names; a ValueError says what does not fit.

    Args:
        tensors: the state of the model, by our names.
        quantization: one of QUANTIZATIONS: as what numbers matrices are stored.
    """
    checks.pick("quantization", quantization, QUANTIZATIONS)
    if not special.end:
        raise checks.wrong("special.end", "an id, for a model that writes", "none")
    if special.start is None and isinstance(config, EncoderDecoderConfig):
        raise checks.wrong("special.start", "an id, for a model that translates", None)
    specified = spec.made(config, tensors, room(config))
    end = names.target[special.end[0]]
    told = specified.config
    told.eos_token = end
    told.bos_token = end if special.start is None else names.target[special.start]
    told.unk_token = end if special.unknown is None else names.target[special.unknown]
    if isinstance(config, EncoderDecoderConfig):
        told.decoder_start_token, told.add_source_bos, told.add_source_eos = told.bos_token, False, False
        specified.register_source_vocabulary([*names.source])
        specified.register_target_vocabulary([*names.target])
        vocabularies = names.files
    else:
        specified.register_vocabulary([*names.target])
        vocabularies = ("vocabulary.json",)
    specified.validate()
    specified.optimize(quantization)
    specified.save(str(folder))
    return ("model.bin", "config.json", *vocabularies)
