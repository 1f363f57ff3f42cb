"""Marian (Junczys-Dowmunt et al. 2018): the post-norm encoder-decoder of the OPUS-MT translators.

One table may serve source, target and output, or target and output, or none is shared. What it has in common with
Pegasus is in `encoder_decoder`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard import checks
from regard.config import whole
from regard.models.build import ModelConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.storage.huggingface.encoder_decoder import SHARED, TABLE, UNUSED, PairSettings, config_of, keys_of
from regard.storage.huggingface.family import Asked, Family, Made
from regard.storage.huggingface.mapping import Rule
from regard.storage.huggingface.settings import only


@dataclass(frozen=True, kw_only=True)
class MarianSettings(PairSettings):
    """The keys of Marian."""

    default_ids: ClassVar[Mapping[str, int]] = {
        "pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0}

    vocab_size: int = whole(58101, least=1)
    decoder_vocab_size: int | None = whole(None, least=1)
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    normalize_before: bool = only(False, "blocks with the norm in front are not read in this family")
    add_final_layer_norm: bool = only(False, "a norm behind the last block is not read in this family")

    @property
    def ids(self) -> int:
        return max(self.vocab_size, self.decoder_vocab_size or 0)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between keys: key, and why."""
        yield from super().conflicts()
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            yield "tie_word_embeddings", "one table for source and target, but not for the output, is not read"
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size not in (None, self.vocab_size):
            yield "decoder_vocab_size", f"one table for source and target has the {self.vocab_size} ids of vocab_size"


class Marian(Family[MarianSettings]):
    """Keys and tensors of Marian."""

    name = "marian"
    base = "model."
    architectures: ClassVar[Mapping[str, str]] = {"MarianMTModel": "encoder-decoder"}
    unused = UNUSED
    settings = MarianSettings

    def config(self, settings: MarianSettings, asked: Asked) -> ModelConfig:
        return config_of(settings, asked, order="post", shared=settings.share_encoder_decoder_embeddings,
                         tied=settings.tie_word_embeddings,
                         target_vocabulary=settings.decoder_vocab_size or settings.vocab_size)

    def told(self, config: ModelConfig, made: Made) -> MarianSettings:
        assert isinstance(config, EncoderDecoderConfig)
        if config.shared and not config.tied:
            raise checks.wrong("config", "one that fits Marian", "one whose output alone has its own table",
                               "Marian shares one table among all three, or between target and output, or none.")
        return MarianSettings(**keys_of(config, made, MarianSettings, "Marian"), tie_word_embeddings=config.tied,
                              decoder_vocab_size=config.target_vocabulary,
                              share_encoder_decoder_embeddings=config.shared)

    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        assert isinstance(config, EncoderDecoderConfig)
        return (SHARED, *TABLE) if config.shared else TABLE

    def longest(self, settings: MarianSettings) -> int:
        return settings.max_position_embeddings
