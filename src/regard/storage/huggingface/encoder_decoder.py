"""Encoder and decoder of Marian and of Pegasus, which differ in where their norms are and in which tables they share.

Their sinusoids have first all sines and then all cosines, and no end, so the number of positions that a model was
trained with is kept beside the config. The bias of the logits is our output layer's. What is shared is in the file
once. It knows keys and names; reading and writing are elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.attention.layer import AttentionConfig
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import choice, share, whole
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.position.encoding import SinusoidalConfig
from regard.storage.huggingface.family import Asked, Made, attention, feed_forward
from regard.storage.huggingface.mapping import Rule, Unused, leading
from regard.storage.huggingface.settings import ACTIVATIONS, Settings, activation, only, special_keys

BIAS = "final_logits_bias"
SHARED = Rule("model.shared.weight", ("encoder.embedding.tokens.weight",))
LAYER, BLOCK = "model.encoder.layers.{i}", "encoder.stack.blocks.{i}"
LAYER_OUT, BLOCK_OUT = "model.decoder.layers.{i}", "decoder.stack.blocks.{i}"
TABLE = (
    Rule("model.encoder.embed_tokens.weight", ("encoder.embedding.tokens.weight",)),
    Rule("model.decoder.embed_tokens.weight", ("decoder.embedding.tokens.weight",)),
    Rule(f"{LAYER}.self_attn.q_proj.*", (f"{BLOCK}.mixer.layer.query.*",)),
    Rule(f"{LAYER}.self_attn.k_proj.*", (f"{BLOCK}.mixer.layer.key.*",)),
    Rule(f"{LAYER}.self_attn.v_proj.*", (f"{BLOCK}.mixer.layer.value.*",)),
    Rule(f"{LAYER}.self_attn.out_proj.*", (f"{BLOCK}.mixer.layer.output.*",)),
    Rule(f"{LAYER}.self_attn_layer_norm.*", (f"{BLOCK}.around_mixer.norm.*",)),
    Rule(f"{LAYER}.fc1.*", (f"{BLOCK}.feed_forward.up.*",)),
    Rule(f"{LAYER}.fc2.*", (f"{BLOCK}.feed_forward.down.*",)),
    Rule(f"{LAYER}.final_layer_norm.*", (f"{BLOCK}.around_feed_forward.norm.*",)),
    Rule(f"{LAYER_OUT}.self_attn.q_proj.*", (f"{BLOCK_OUT}.mixer.layer.query.*",)),
    Rule(f"{LAYER_OUT}.self_attn.k_proj.*", (f"{BLOCK_OUT}.mixer.layer.key.*",)),
    Rule(f"{LAYER_OUT}.self_attn.v_proj.*", (f"{BLOCK_OUT}.mixer.layer.value.*",)),
    Rule(f"{LAYER_OUT}.self_attn.out_proj.*", (f"{BLOCK_OUT}.mixer.layer.output.*",)),
    Rule(f"{LAYER_OUT}.self_attn_layer_norm.*", (f"{BLOCK_OUT}.around_mixer.norm.*",)),
    Rule(f"{LAYER_OUT}.encoder_attn.q_proj.*", (f"{BLOCK_OUT}.cross.query.*",)),
    Rule(f"{LAYER_OUT}.encoder_attn.k_proj.*", (f"{BLOCK_OUT}.cross.key.*",)),
    Rule(f"{LAYER_OUT}.encoder_attn.v_proj.*", (f"{BLOCK_OUT}.cross.value.*",)),
    Rule(f"{LAYER_OUT}.encoder_attn.out_proj.*", (f"{BLOCK_OUT}.cross.output.*",)),
    Rule(f"{LAYER_OUT}.encoder_attn_layer_norm.*", (f"{BLOCK_OUT}.around_cross.norm.*",)),
    Rule(f"{LAYER_OUT}.fc1.*", (f"{BLOCK_OUT}.feed_forward.up.*",)),
    Rule(f"{LAYER_OUT}.fc2.*", (f"{BLOCK_OUT}.feed_forward.down.*",)),
    Rule(f"{LAYER_OUT}.final_layer_norm.*", (f"{BLOCK_OUT}.around_feed_forward.norm.*",)),
    Rule("lm_head.weight", ("decoder.output.weight",)),
    Rule(BIAS, ("decoder.output.bias",), leading(1)),
)
UNUSED = (
    Unused("model.encoder.embed_positions.weight", "sinusoids, which follow from the config"),
    Unused("model.decoder.embed_positions.weight", "sinusoids, which follow from the config"),
)


@dataclass(frozen=True, kw_only=True)
class PairSettings(Settings):
    """The keys of both. Those that must have one value are of old files, in which they have it."""

    # A head that no translator has; an id that nothing begins with; and room in a table that sinusoids do not have.
    harmless: ClassVar[frozenset[str]] = frozenset(("classif_dropout", "classifier_dropout", "bos_token_id",
                                                    "extra_pos_embeddings"))
    emptied: ClassVar[tuple[str, ...]] = ("forced_eos_token_id",)
    start_key: ClassVar[str] = "decoder_start_token_id"

    vocab_size: int = whole(1, least=1)
    max_position_embeddings: int = whole(1024, least=1)
    d_model: int = whole(1024, least=1)
    encoder_layers: int = whole(12, least=1)
    encoder_ffn_dim: int = whole(4096, least=1)
    encoder_attention_heads: int = whole(16, least=1)
    decoder_layers: int = whole(12, least=1)
    decoder_ffn_dim: int = whole(4096, least=1)
    decoder_attention_heads: int = whole(16, least=1)
    num_hidden_layers: int | None = whole(None, least=1)
    encoder_layerdrop: float = only(0.0, "layers that are left out by chance in training are not read")
    decoder_layerdrop: float = only(0.0, "layers that are left out by chance in training are not read")
    activation_function: str = choice(ACTIVATIONS, "gelu")
    dropout: float = share(0.1)
    attention_dropout: float = share(0.0)
    activation_dropout: float = share(0.0)
    decoder_start_token_id: int | None = whole(None, least=0)
    scale_embedding: bool = False
    is_encoder_decoder: bool = only(True, "a decoder alone is not read in this family")
    normalize_embedding: bool = only(False, "a norm of the embedding is not read in this family")
    add_bias_logits: bool = only(False, "a bias of the logits that is no tensor is not read")
    static_position_embeddings: bool = only(True, "positions other than sinusoids are not read in this family")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between keys: key, and why."""
        yield from super().conflicts()
        if self.num_hidden_layers not in (None, self.encoder_layers):
            yield "num_hidden_layers", f"another name of encoder_layers, which is {self.encoder_layers}"


def config_of(settings: PairSettings, asked: Asked, *, order: str, target_vocabulary: int, shared: bool,
              tied: bool) -> EncoderDecoderConfig:
    """Our config of what these keys say."""
    def stack(layers: int, heads: int, inner: int, cross: AttentionConfig | None) -> StackConfig:
        return StackConfig(
            layers=layers, order=order, dropout=settings.dropout, cross=cross,
            mixer=SelfAttentionConfig(heads=heads, dropout=settings.attention_dropout),
            feed_forward=FeedForwardConfig(inner=inner, activation=ACTIVATIONS[settings.activation_function],
                                           dropout=settings.activation_dropout))

    heads = settings.decoder_attention_heads
    return EncoderDecoderConfig(
        source_vocabulary=settings.vocab_size, target_vocabulary=target_vocabulary, width=settings.d_model,
        shared=shared, tied=tied, output_bias=BIAS in asked.names,
        embedding=EmbeddingConfig(positions=SinusoidalConfig(layout="halves"), scale=settings.scale_embedding,
                                  dropout=settings.dropout),
        encoder=stack(settings.encoder_layers, settings.encoder_attention_heads, settings.encoder_ffn_dim, None),
        decoder=stack(settings.decoder_layers, heads, settings.decoder_ffn_dim,
                      AttentionConfig(heads=heads, dropout=settings.attention_dropout)))


def keys_of(config: EncoderDecoderConfig, made: Made, settings: type[PairSettings], family: str) -> dict[str, Any]:
    """The keys of both that come nearest to this config."""
    mixers = [attention(stack, family) for stack in (config.encoder, config.decoder)]
    wide = [feed_forward(stack, family) for stack in (config.encoder, config.decoder)]
    return dict(
        vocab_size=config.source_vocabulary, d_model=config.width,
        encoder_layers=config.encoder.layers, decoder_layers=config.decoder.layers,
        encoder_attention_heads=mixers[0].heads, decoder_attention_heads=mixers[1].heads,
        encoder_ffn_dim=wide[0].inner, decoder_ffn_dim=wide[1].inner,
        activation_function=activation(wide[0].activation), dropout=config.encoder.dropout,
        attention_dropout=mixers[0].dropout, activation_dropout=wide[0].dropout,
        scale_embedding=config.embedding.scale, **special_keys(settings, made.special),
        max_position_embeddings=settings.max_position_embeddings if made.longest is None else made.longest)
