"""Encoder-decoders: Marian (Junczys-Dowmunt et al. 2018) and Pegasus (Zhang et al. 2020).

Marian is the post-norm Transformer of the OPUS-MT translators. One embedding table may serve source, target and output,
or target and output, or nothing is shared. Pegasus is pre-norm with one table for all three; it was made for
summarisation, but `transformers` has no translation model with sinusoidal positions and pre-norm that is closer to
ours.

Their sinusoids have all sines before all cosines and are unlimited, so the number of positions a model was trained with
is kept beside the config. A file may have a table of positions: it is compared with the sinusoids, and a table with
other values becomes the learned positions of our model. The bias of the logits belongs to our output layer. Shared
tensors are stored once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.attention.layer import AttentionConfig, SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.checks import plural
from regard.config import choice, integer, probability
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.position.encoding import LearnedConfig, SinusoidalConfig, SinusoidalEncoding
from regard.storage.huggingface.family import (
    ACTIVATIONS,
    ExportFacts,
    Family,
    FamilySettings,
    FileFacts,
    TensorRule,
    UnusedTensor,
    activation_name,
    cannot_express,
    feed_forward_of,
    leading_ones,
    only,
    self_attention_of,
    special_keys,
)

LOGITS_BIAS = "final_logits_bias"
SHARED_TABLE_RULE = TensorRule("model.shared.weight", ("encoder.embedding.tokens.weight",))
ENCODER_LAYER, ENCODER_BLOCK = "model.encoder.layers.{i}", "encoder.stack.blocks.{i}"
DECODER_LAYER, DECODER_BLOCK = "model.decoder.layers.{i}", "decoder.stack.blocks.{i}"
POSITION_TABLES = {"model.encoder.embed_positions.weight": "encoder.embedding.positions.encoding.table",
                   "model.decoder.embed_positions.weight": "decoder.embedding.positions.encoding.table"}
POSITION_RULES = tuple(TensorRule(theirs, (ours,)) for theirs, ours in POSITION_TABLES.items())
COMMON_RULES = (
    *POSITION_RULES,
    TensorRule("model.encoder.embed_tokens.weight", ("encoder.embedding.tokens.weight",)),
    TensorRule("model.decoder.embed_tokens.weight", ("decoder.embedding.tokens.weight",)),
    TensorRule(f"{ENCODER_LAYER}.self_attn.q_proj.*", (f"{ENCODER_BLOCK}.mixer.layer.query.*",)),
    TensorRule(f"{ENCODER_LAYER}.self_attn.k_proj.*", (f"{ENCODER_BLOCK}.mixer.layer.key.*",)),
    TensorRule(f"{ENCODER_LAYER}.self_attn.v_proj.*", (f"{ENCODER_BLOCK}.mixer.layer.value.*",)),
    TensorRule(f"{ENCODER_LAYER}.self_attn.out_proj.*", (f"{ENCODER_BLOCK}.mixer.layer.output.*",)),
    TensorRule(f"{ENCODER_LAYER}.self_attn_layer_norm.*", (f"{ENCODER_BLOCK}.around_mixer.norm.*",)),
    TensorRule(f"{ENCODER_LAYER}.fc1.*", (f"{ENCODER_BLOCK}.feed_forward.up.*",)),
    TensorRule(f"{ENCODER_LAYER}.fc2.*", (f"{ENCODER_BLOCK}.feed_forward.down.*",)),
    TensorRule(f"{ENCODER_LAYER}.final_layer_norm.*", (f"{ENCODER_BLOCK}.around_feed_forward.norm.*",)),
    TensorRule(f"{DECODER_LAYER}.self_attn.q_proj.*", (f"{DECODER_BLOCK}.mixer.layer.query.*",)),
    TensorRule(f"{DECODER_LAYER}.self_attn.k_proj.*", (f"{DECODER_BLOCK}.mixer.layer.key.*",)),
    TensorRule(f"{DECODER_LAYER}.self_attn.v_proj.*", (f"{DECODER_BLOCK}.mixer.layer.value.*",)),
    TensorRule(f"{DECODER_LAYER}.self_attn.out_proj.*", (f"{DECODER_BLOCK}.mixer.layer.output.*",)),
    TensorRule(f"{DECODER_LAYER}.self_attn_layer_norm.*", (f"{DECODER_BLOCK}.around_mixer.norm.*",)),
    TensorRule(f"{DECODER_LAYER}.encoder_attn.q_proj.*", (f"{DECODER_BLOCK}.cross.query.*",)),
    TensorRule(f"{DECODER_LAYER}.encoder_attn.k_proj.*", (f"{DECODER_BLOCK}.cross.key.*",)),
    TensorRule(f"{DECODER_LAYER}.encoder_attn.v_proj.*", (f"{DECODER_BLOCK}.cross.value.*",)),
    TensorRule(f"{DECODER_LAYER}.encoder_attn.out_proj.*", (f"{DECODER_BLOCK}.cross.output.*",)),
    TensorRule(f"{DECODER_LAYER}.encoder_attn_layer_norm.*", (f"{DECODER_BLOCK}.around_cross.norm.*",)),
    TensorRule(f"{DECODER_LAYER}.fc1.*", (f"{DECODER_BLOCK}.feed_forward.up.*",)),
    TensorRule(f"{DECODER_LAYER}.fc2.*", (f"{DECODER_BLOCK}.feed_forward.down.*",)),
    TensorRule(f"{DECODER_LAYER}.final_layer_norm.*", (f"{DECODER_BLOCK}.around_feed_forward.norm.*",)),
    TensorRule("lm_head.weight", ("decoder.output.weight",)),
    TensorRule(LOGITS_BIAS, ("decoder.output.bias",), leading_ones(1)),
)
UNUSED_SINUSOIDS = tuple(UnusedTensor(name, "sinusoids, if its values are those that follow from the config")
                         for name in POSITION_TABLES)
SINUSOID_TOLERANCE = 1e-4
"""How far a table may be from the exact sinusoids, besides the rounding of its dtype: some were computed in float32."""


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSettings(FamilySettings):
    """The keys of both. Those that must have one value are of old files, in which they have it."""

    # A head that no translator has; an id that nothing begins with; and room in a table that sinusoids do not have.
    harmless: ClassVar[frozenset[str]] = frozenset(("classif_dropout", "classifier_dropout", "bos_token_id",
                                                    "extra_pos_embeddings"))
    emptied: ClassVar[tuple[str, ...]] = ("forced_eos_token_id",)
    start_key: ClassVar[str] = "decoder_start_token_id"

    vocab_size: int = integer(1, minimum=1)
    max_position_embeddings: int = integer(1024, minimum=1)
    d_model: int = integer(1024, minimum=1)
    encoder_layers: int = integer(12, minimum=1)
    encoder_ffn_dim: int = integer(4096, minimum=1)
    encoder_attention_heads: int = integer(16, minimum=1)
    decoder_layers: int = integer(12, minimum=1)
    decoder_ffn_dim: int = integer(4096, minimum=1)
    decoder_attention_heads: int = integer(16, minimum=1)
    num_hidden_layers: int | None = integer(None, minimum=1)
    encoder_layerdrop: float = only(0.0, "models trained with layer dropout are not supported")
    decoder_layerdrop: float = only(0.0, "models trained with layer dropout are not supported")
    activation_function: str = choice(ACTIVATIONS, "gelu")
    dropout: float = probability(0.1)
    attention_dropout: float = probability(0.0)
    activation_dropout: float = probability(0.0)
    decoder_start_token_id: int | None = integer(None, minimum=0)
    scale_embedding: bool = False
    is_encoder_decoder: bool = only(True, "a decoder alone is not supported in this family")
    normalize_embedding: bool = only(False, "a norm after the embedding is not supported in this family")
    add_bias_logits: bool = only(False, "this form of a logit bias is not supported")
    static_position_embeddings: bool = only(True, "only sinusoidal positions are supported in this family")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        yield from super().conflicts()
        if self.num_hidden_layers not in (None, self.encoder_layers):
            yield "num_hidden_layers", f"it must equal encoder_layers, {self.encoder_layers}"


def config_from_settings(settings: EncoderDecoderSettings, facts: FileFacts, *, order: str, target_vocabulary: int,
                         shared: bool,
                         tied: bool) -> EncoderDecoderConfig:
    """Our config of what these keys say."""
    def stack(layers: int, heads: int, inner: int, cross: AttentionConfig | None) -> StackConfig:
        return StackConfig(
            layers=layers, norm_position=order, dropout=settings.dropout, cross=cross,
            mixer=SelfAttentionConfig(heads=heads, dropout=settings.attention_dropout),
            feed_forward=FeedForwardConfig(ffn_width=inner, activation=ACTIVATIONS[settings.activation_function],
                                           dropout=settings.activation_dropout))

    heads = settings.decoder_attention_heads
    learned = any(name.endswith("embed_positions.weight") for name in facts.names)  # sinusoids are not among the names
    positions = (LearnedConfig(max_positions=settings.max_position_embeddings) if learned
                 else SinusoidalConfig(layout="halves"))
    return EncoderDecoderConfig(
        source_vocab_size=settings.vocab_size, target_vocab_size=target_vocabulary, width=settings.d_model,
        share_embeddings=shared, tie_word_embeddings=tied, output_bias=LOGITS_BIAS in facts.names,
        embedding=EmbeddingConfig(positions=positions, scale=settings.scale_embedding, dropout=settings.dropout),
        encoder=stack(settings.encoder_layers, settings.encoder_attention_heads, settings.encoder_ffn_dim, None),
        decoder=stack(settings.decoder_layers, heads, settings.decoder_ffn_dim,
                      AttentionConfig(heads=heads, dropout=settings.attention_dropout)))


def follows_sinusoids(settings: EncoderDecoderSettings, name: str, table: Tensor) -> bool:
    """Whether a table of positions has the sinusoids that the settings imply, in the rows that the model reads.

    A ValueError if it has other values and our model cannot have it as learned positions.
    """
    rows, width = settings.max_position_embeddings, settings.d_model
    if table.dim() != 2 or table.shape[1] != width or not table.is_floating_point():
        return False  # the check of shapes and dtypes names it
    read = table[:rows].double()
    difference = (read - SinusoidalEncoding(width, layout="halves")(torch.arange(len(read)), torch.float64)).abs()
    if bool((difference <= SINUSOID_TOLERANCE + torch.finfo(table.dtype).eps).all()):
        return True
    if len(table) == rows:
        return False
    worst = difference.amax(1).nan_to_num(nan=float("inf"))
    raise ValueError(f"{name} has other values than sinusoids (the largest difference is {float(worst.max()):.3g}, in "
                     f"row {int(worst.argmax())}), and {plural(len(table), 'row')} for {plural(rows, 'position')}. Set "
                     "max_position_embeddings in config.json to the number of its rows.")


def settings_from_config(config: EncoderDecoderConfig, facts: ExportFacts, settings: type[EncoderDecoderSettings],
                         family: str) -> dict[str, Any]:
    """The keys of both that come nearest to this config."""
    mixers = [self_attention_of(stack, family) for stack in (config.encoder, config.decoder)]
    wide = [feed_forward_of(stack, family) for stack in (config.encoder, config.decoder)]
    places = config.embedding.positions
    longest = places.max_positions if isinstance(places, LearnedConfig) else facts.longest
    return dict(
        vocab_size=config.source_vocab_size, d_model=config.width,
        encoder_layers=config.encoder.layers, decoder_layers=config.decoder.layers,
        encoder_attention_heads=mixers[0].heads, decoder_attention_heads=mixers[1].heads,
        encoder_ffn_dim=wide[0].ffn_width, decoder_ffn_dim=wide[1].ffn_width,
        activation_function=activation_name(wide[0].activation), dropout=config.encoder.dropout,
        attention_dropout=mixers[0].dropout, activation_dropout=wide[0].dropout,
        scale_embedding=config.embedding.scale, **special_keys(settings, facts.special),
        max_position_embeddings=settings.max_position_embeddings if longest is None else longest)


@dataclass(frozen=True, kw_only=True)
class MarianSettings(EncoderDecoderSettings):
    """The keys of Marian."""

    default_ids: ClassVar[Mapping[str, int]] = {
        "pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0}

    vocab_size: int = integer(58101, minimum=1)
    decoder_vocab_size: int | None = integer(None, minimum=1)
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    normalize_before: bool = only(False, "pre-norm blocks are not supported in this family")
    add_final_layer_norm: bool = only(False, "a norm after the last block is not supported in this family")

    @property
    def ids(self) -> int:
        return max(self.vocab_size, self.decoder_vocab_size or 0)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        yield from super().conflicts()
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            yield "tie_word_embeddings", "one table for source and target, but not for the output, is not supported"
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size not in (None, self.vocab_size):
            yield "decoder_vocab_size", f"with one table for both sides it must be vocab_size, {self.vocab_size:,}"


class Marian(Family[MarianSettings]):
    """Keys and tensors of Marian."""

    name = "marian"
    base = "model."
    architectures: ClassVar[Mapping[str, str]] = {"MarianMTModel": "encoder-decoder"}
    unused, compared = UNUSED_SINUSOIDS, tuple(POSITION_TABLES)
    settings = MarianSettings

    def config(self, settings: MarianSettings, facts: FileFacts) -> ModelConfig:
        return config_from_settings(settings, facts, order="post", shared=settings.share_encoder_decoder_embeddings,
                                    tied=settings.tie_word_embeddings,
                                    target_vocabulary=settings.decoder_vocab_size or settings.vocab_size)

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> MarianSettings:
        assert isinstance(config, EncoderDecoderConfig)
        if config.share_embeddings and not config.tie_word_embeddings:
            raise cannot_express("Marian", ["share_embeddings without tie_word_embeddings: it shares one table among "
                                            "source, target and output, or between target and output, or none"])
        return MarianSettings(**settings_from_config(config, facts, MarianSettings, "Marian"),
                              tie_word_embeddings=config.tie_word_embeddings,
                              decoder_vocab_size=config.target_vocab_size,
                              share_encoder_decoder_embeddings=config.share_embeddings)

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        assert isinstance(config, EncoderDecoderConfig)
        return (SHARED_TABLE_RULE, *COMMON_RULES) if config.share_embeddings else COMMON_RULES

    def follows(self, settings: MarianSettings, name: str, tensor: Tensor) -> bool:
        return follows_sinusoids(settings, name, tensor)

    def longest(self, settings: MarianSettings) -> int:
        return settings.max_position_embeddings


FINAL_NORM_RULES = (
    TensorRule("model.encoder.layer_norm.*", ("encoder.stack.last_norm.*",)),
    TensorRule("model.decoder.layer_norm.*", ("decoder.stack.last_norm.*",)),
)


@dataclass(frozen=True, kw_only=True)
class PegasusSettings(EncoderDecoderSettings):
    """The keys of Pegasus."""

    default_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}

    vocab_size: int = integer(50265, minimum=1)
    tie_word_embeddings: bool = only(True, "an untied output layer is not supported in this family")
    normalize_before: bool = only(True, "post-norm blocks are not supported in this family")
    add_final_layer_norm: bool = only(True, "pre-norm blocks without a final norm are not supported")

    @property
    def ids(self) -> int:
        return self.vocab_size


class Pegasus(Family[PegasusSettings]):
    """Keys and tensors of Pegasus."""

    name = "pegasus"
    base = "model."
    architectures: ClassVar[Mapping[str, str]] = {"PegasusForConditionalGeneration": "encoder-decoder"}
    unused, compared = UNUSED_SINUSOIDS, tuple(POSITION_TABLES)
    settings = PegasusSettings

    def config(self, settings: PegasusSettings, facts: FileFacts) -> ModelConfig:
        return config_from_settings(settings, facts, order="pre", shared=True, tied=True,
                                    target_vocabulary=settings.vocab_size)

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> PegasusSettings:
        assert isinstance(config, EncoderDecoderConfig)
        return PegasusSettings(**settings_from_config(config, facts, PegasusSettings, "Pegasus"))

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        return (SHARED_TABLE_RULE, *COMMON_RULES, *FINAL_NORM_RULES)

    def derived(self, settings: PegasusSettings) -> dict[str, Tensor]:
        """The sinusoids: `transformers` makes them anew where they are missing, and warns of it."""
        waves = SinusoidalEncoding(settings.d_model, layout="halves")(torch.arange(settings.max_position_embeddings))
        return {one.theirs: waves.clone() for one in self.unused}

    def follows(self, settings: PegasusSettings, name: str, tensor: Tensor) -> bool:
        return follows_sinusoids(settings, name, tensor)

    def longest(self, settings: PegasusSettings) -> int:
        return settings.max_position_embeddings
