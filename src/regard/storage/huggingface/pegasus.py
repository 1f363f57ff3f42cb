"""Pegasus (Zhang et al. 2020): an encoder-decoder with its norms in front, and one table for all.

It was made to summarise; `transformers` has no translator with sinusoids and norms in front that would be nearer to
ours. What it has in common with Marian is in `encoder_decoder`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.config import whole
from regard.models.build import ModelConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.position.encoding import Sinusoidal
from regard.storage.huggingface.encoder_decoder import SHARED, TABLE, UNUSED, PairSettings, config_of, keys_of
from regard.storage.huggingface.family import Asked, Family, Made
from regard.storage.huggingface.mapping import Rule
from regard.storage.huggingface.settings import only

LAST = (
    Rule("model.encoder.layer_norm.*", ("encoder.stack.last_norm.*",)),
    Rule("model.decoder.layer_norm.*", ("decoder.stack.last_norm.*",)),
)


@dataclass(frozen=True, kw_only=True)
class PegasusSettings(PairSettings):
    """The keys of Pegasus."""

    default_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}

    vocab_size: int = whole(50265, least=1)
    tie_word_embeddings: bool = only(True, "an output with a table of its own is not read in this family")
    normalize_before: bool = only(True, "blocks with the norm behind are not read in this family")
    add_final_layer_norm: bool = only(True, "a stack without a norm behind the last block is not read in this family")

    @property
    def ids(self) -> int:
        return self.vocab_size


class Pegasus(Family[PegasusSettings]):
    """Keys and tensors of Pegasus."""

    name = "pegasus"
    base = "model."
    architectures: ClassVar[Mapping[str, str]] = {"PegasusForConditionalGeneration": "encoder-decoder"}
    unused = UNUSED
    settings = PegasusSettings

    def config(self, settings: PegasusSettings, asked: Asked) -> ModelConfig:
        return config_of(settings, asked, order="pre", shared=True, tied=True, target_vocabulary=settings.vocab_size)

    def told(self, config: ModelConfig, made: Made) -> PegasusSettings:
        assert isinstance(config, EncoderDecoderConfig)
        return PegasusSettings(**keys_of(config, made, PegasusSettings, "Pegasus"))

    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        return (SHARED, *TABLE, *LAST)

    def derived(self, settings: PegasusSettings) -> dict[str, Tensor]:
        """The sinusoids: `transformers` makes them anew where they are missing, and warns of it."""
        waves = Sinusoidal(settings.d_model, layout="halves")(torch.arange(settings.max_position_embeddings))
        return {one.theirs: waves.clone() for one in self.unused}

    def longest(self, settings: PegasusSettings) -> int:
        return settings.max_position_embeddings
