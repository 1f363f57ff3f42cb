"""Decoder-only language models: GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023).

GPT-2 has pre-norm blocks and learned positions. Its matrices are the transposes of ours, and query, key and value are
one matrix. `GPT2Model` has no output layer; it is read as a language model with tied embeddings.

Llama has RMS norms, rotary positions, a gated feed-forward layer, and optionally fewer key and value heads than query
heads. Rotary positions are unlimited, so the number of positions it was trained with is kept beside the config.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard import checks
from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import Config, choice, integer, number, probability
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.language import LanguageModelConfig
from regard.position.encoding import LearnedConfig
from regard.position.rotary import RotaryConfig
from regard.storage.huggingface.family import (
    ACTIVATIONS,
    THIRDS,
    TRANSPOSED,
    TRANSPOSED_THIRDS,
    ExportFacts,
    Family,
    FamilySettings,
    FileFacts,
    TensorRule,
    UnusedTensor,
    activation_name,
    feed_forward_of,
    only,
    self_attention_of,
    special_keys,
)

GPT2_LAYER, GPT2_BLOCK = "transformer.h.{i}", "decoder.stack.blocks.{i}"
GPT2_PROJECTIONS = ("query", "key", "value")
GPT2_RULES = (
    TensorRule("transformer.wte.weight", ("decoder.embedding.tokens.weight",)),
    TensorRule("transformer.wpe.weight", ("decoder.embedding.positions.encoding.table",)),
    TensorRule(f"{GPT2_LAYER}.ln_1.*", (f"{GPT2_BLOCK}.around_mixer.norm.*",)),
    TensorRule(f"{GPT2_LAYER}.attn.c_attn.weight",
               tuple(f"{GPT2_BLOCK}.mixer.layer.{part}.weight" for part in GPT2_PROJECTIONS),
               TRANSPOSED_THIRDS),
    TensorRule(f"{GPT2_LAYER}.attn.c_attn.bias",
               tuple(f"{GPT2_BLOCK}.mixer.layer.{part}.bias" for part in GPT2_PROJECTIONS), THIRDS),
    TensorRule(f"{GPT2_LAYER}.attn.c_proj.weight", (f"{GPT2_BLOCK}.mixer.layer.output.weight",), TRANSPOSED),
    TensorRule(f"{GPT2_LAYER}.attn.c_proj.bias", (f"{GPT2_BLOCK}.mixer.layer.output.bias",)),
    TensorRule(f"{GPT2_LAYER}.ln_2.*", (f"{GPT2_BLOCK}.around_feed_forward.norm.*",)),
    TensorRule(f"{GPT2_LAYER}.mlp.c_fc.weight", (f"{GPT2_BLOCK}.feed_forward.up.weight",), TRANSPOSED),
    TensorRule(f"{GPT2_LAYER}.mlp.c_fc.bias", (f"{GPT2_BLOCK}.feed_forward.up.bias",)),
    TensorRule(f"{GPT2_LAYER}.mlp.c_proj.weight", (f"{GPT2_BLOCK}.feed_forward.down.weight",), TRANSPOSED),
    TensorRule(f"{GPT2_LAYER}.mlp.c_proj.bias", (f"{GPT2_BLOCK}.feed_forward.down.bias",)),
    TensorRule("transformer.ln_f.*", ("decoder.stack.last_norm.*",)),
    TensorRule("lm_head.weight", ("decoder.output.weight",)),
)


@dataclass(frozen=True, kw_only=True)
class GPT2Settings(FamilySettings):
    """The keys of GPT-2."""

    # n_ctx is an old name of n_positions; the summary is a head that no language model has; the last one is how
    # attention is computed in half precision, and not what it is.
    harmless: ClassVar[frozenset[str]] = frozenset((
        "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout", "reorder_and_upcast_attn"))
    default_ids: ClassVar[Mapping[str, int]] = {"bos_token_id": 50256, "eos_token_id": 50256}

    vocab_size: int = integer(50257, minimum=1)
    n_positions: int = integer(1024, minimum=1)
    n_embd: int = integer(768, minimum=1)
    n_layer: int = integer(12, minimum=1)
    n_head: int = integer(12, minimum=1)
    n_inner: int | None = integer(None, minimum=1)
    activation_function: str = choice(ACTIVATIONS, "gelu_new")
    resid_pdrop: float = probability(0.1)
    embd_pdrop: float = probability(0.1)
    attn_pdrop: float = probability(0.1)
    layer_norm_epsilon: float = number(1e-5, minimum=0.0)
    scale_attn_weights: bool = only(True, "scores that are not divided by the root of a head's width are not read")
    scale_attn_by_inverse_layer_idx: bool = only(False, "scores that depend on the layer are not read")
    tie_word_embeddings: bool = True

    @property
    def ids(self) -> int:
        return self.vocab_size


class GPT2(Family[GPT2Settings]):
    """Keys and tensors of GPT-2."""

    name = "gpt2"
    base = "transformer."
    architectures: ClassVar[Mapping[str, str]] = {"GPT2LMHeadModel": "language", "GPT2Model": "language"}
    bare = frozenset(("GPT2Model",))
    unused = (
        UnusedTensor("transformer.h.{i}.attn.bias", "the causal mask"),
        UnusedTensor("transformer.h.{i}.attn.masked_bias", "what stands for minus infinity in the mask"),
    )
    settings = GPT2Settings

    def config(self, settings: GPT2Settings, facts: FileFacts) -> ModelConfig:
        wide = FeedForwardConfig(ffn_width=settings.n_inner or 4 * settings.n_embd,
                                 activation=ACTIVATIONS[settings.activation_function])
        return LanguageModelConfig(
            vocab_size=settings.vocab_size, width=settings.n_embd, tie_word_embeddings=settings.tie_word_embeddings,
            embedding=EmbeddingConfig(positions=LearnedConfig(max_positions=settings.n_positions),
                                      dropout=settings.embd_pdrop),
            stack=StackConfig(layers=settings.n_layer, norm_position="pre", epsilon=settings.layer_norm_epsilon,
                              dropout=settings.resid_pdrop, feed_forward=wide,
                              mixer=SelfAttentionConfig(heads=settings.n_head, dropout=settings.attn_pdrop)))

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> GPT2Settings:
        assert isinstance(config, LanguageModelConfig)
        mixer, wide = self_attention_of(config.stack, "GPT-2"), feed_forward_of(config.stack, "GPT-2")
        places = config.embedding.positions
        if not isinstance(places, LearnedConfig):
            raise checks.wrong("config", "one that fits GPT-2, with learned positions", "with others")
        return GPT2Settings(
            vocab_size=config.vocab_size, n_positions=places.max_positions, n_embd=config.width,
            n_layer=config.stack.layers,
            n_head=mixer.heads, n_inner=wide.ffn_width, activation_function=activation_name(wide.activation),
            resid_pdrop=config.stack.dropout, embd_pdrop=config.embedding.dropout, attn_pdrop=mixer.dropout,
            layer_norm_epsilon=config.stack.epsilon, tie_word_embeddings=config.tie_word_embeddings,
            **special_keys(GPT2Settings, facts.special))

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        return GPT2_RULES


LLAMA_LAYER, LLAMA_BLOCK = "model.layers.{i}", "decoder.stack.blocks.{i}"
LLAMA_RULES = (
    TensorRule("model.embed_tokens.weight", ("decoder.embedding.tokens.weight",)),
    TensorRule(f"{LLAMA_LAYER}.input_layernorm.weight", (f"{LLAMA_BLOCK}.around_mixer.norm.weight",)),
    TensorRule(f"{LLAMA_LAYER}.self_attn.q_proj.*", (f"{LLAMA_BLOCK}.mixer.layer.query.*",)),
    TensorRule(f"{LLAMA_LAYER}.self_attn.k_proj.*", (f"{LLAMA_BLOCK}.mixer.layer.key.*",)),
    TensorRule(f"{LLAMA_LAYER}.self_attn.v_proj.*", (f"{LLAMA_BLOCK}.mixer.layer.value.*",)),
    TensorRule(f"{LLAMA_LAYER}.self_attn.o_proj.*", (f"{LLAMA_BLOCK}.mixer.layer.output.*",)),
    TensorRule(f"{LLAMA_LAYER}.post_attention_layernorm.weight", (f"{LLAMA_BLOCK}.around_feed_forward.norm.weight",)),
    TensorRule(f"{LLAMA_LAYER}.mlp.gate_proj.*", (f"{LLAMA_BLOCK}.feed_forward.gate.*",)),
    TensorRule(f"{LLAMA_LAYER}.mlp.up_proj.*", (f"{LLAMA_BLOCK}.feed_forward.up.*",)),
    TensorRule(f"{LLAMA_LAYER}.mlp.down_proj.*", (f"{LLAMA_BLOCK}.feed_forward.down.*",)),
    TensorRule("model.norm.weight", ("decoder.stack.last_norm.weight",)),
    TensorRule("lm_head.weight", ("decoder.output.weight",)),
)


@dataclass(frozen=True, kw_only=True)
class RotarySettings(Config):
    """The table of rotary positions; `type` is an old name of `rope_type`."""

    rope_theta: float | None = number(None, above=0.0)
    rope_type: str = only("default", "rotary positions that are stretched are not read")
    type: str = only("default", "rotary positions that are stretched are not read")
    partial_rotary_factor: float = only(1.0, "heads of which only a part is turned are not read")


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(FamilySettings):
    """The keys of Llama."""

    # How matrices were cut for training on several devices.
    harmless: ClassVar[frozenset[str]] = frozenset(("pretraining_tp",))
    default_ids: ClassVar[Mapping[str, int]] = {"bos_token_id": 1, "eos_token_id": 2}

    vocab_size: int = integer(32000, minimum=1)
    hidden_size: int = integer(4096, minimum=1)
    intermediate_size: int = integer(11008, minimum=1)
    num_hidden_layers: int = integer(32, minimum=1)
    num_attention_heads: int = integer(32, minimum=1)
    num_key_value_heads: int | None = integer(None, minimum=1)
    head_dim: int | None = integer(None, minimum=1)
    hidden_act: str = choice(ACTIVATIONS, "silu")
    max_position_embeddings: int = integer(2048, minimum=1)
    rms_norm_eps: float = number(1e-6, minimum=0.0)
    rope_theta: float | None = number(None, above=0.0)
    rope_parameters: RotarySettings | None = None
    rope_scaling: RotarySettings | None = None
    attention_bias: bool = False
    attention_dropout: float = probability(0.0)
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def ids(self) -> int:
        return self.vocab_size

    @property
    def base(self) -> float:
        """What the angles of rotary positions are made from."""
        return next(iter(self._bases().values()), 10000.0)

    def _bases(self) -> dict[str, float]:
        """Every place that names it."""
        tables = {"rope_parameters": self.rope_parameters, "rope_scaling": self.rope_scaling}
        named = {"rope_theta": self.rope_theta, **{key: table.rope_theta for key, table in tables.items() if table}}
        return {key: value for key, value in named.items() if value is not None}

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        yield from super().conflicts()
        if len({*self._bases().values()}) > 1:
            yield "rope_theta", f"it is named more than once, and differs: {self._bases()}"


class Llama(Family[LlamaSettings]):
    """Keys and tensors of Llama."""

    name = "llama"
    base = "model."
    architectures: ClassVar[Mapping[str, str]] = {"LlamaForCausalLM": "language"}
    unused = (
        UnusedTensor("model.layers.{i}.self_attn.rotary_emb.inv_freq", "the angles, which follow from the config"),
        UnusedTensor("model.rotary_emb.inv_freq", "the angles, which follow from the config"),
    )
    settings = LlamaSettings

    def config(self, settings: LlamaSettings, facts: FileFacts) -> ModelConfig:
        heads, width = settings.num_attention_heads, settings.hidden_size
        mixer = SelfAttentionConfig(
            heads=heads, key_heads=None if settings.num_key_value_heads == heads else settings.num_key_value_heads,
            head_width=None if settings.head_dim == width // heads else settings.head_dim,
            bias=settings.attention_bias, dropout=settings.attention_dropout,
            position=RotaryConfig(base=settings.base, pairing="halves"))
        wide = FeedForwardConfig(ffn_width=settings.intermediate_size, gated=True, bias=settings.mlp_bias,
                                 activation=ACTIVATIONS[settings.hidden_act])
        stack = StackConfig(layers=settings.num_hidden_layers, norm_position="pre", norm="rms",
                            epsilon=settings.rms_norm_eps,
                            mixer=mixer, feed_forward=wide)
        return LanguageModelConfig(vocab_size=settings.vocab_size, width=width,
                                   tie_word_embeddings=settings.tie_word_embeddings,
                                   stack=stack)

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> LlamaSettings:
        assert isinstance(config, LanguageModelConfig)
        mixer, wide = self_attention_of(config.stack, "Llama"), feed_forward_of(config.stack, "Llama")
        turned = mixer.position if isinstance(mixer.position, RotaryConfig) else RotaryConfig()
        return LlamaSettings(
            vocab_size=config.vocab_size, hidden_size=config.width, intermediate_size=wide.ffn_width,
            num_hidden_layers=config.stack.layers, num_attention_heads=mixer.heads,
            num_key_value_heads=mixer.key_heads or mixer.heads, head_dim=mixer.head_size(config.width),
            hidden_act=activation_name(wide.activation), rms_norm_eps=config.stack.epsilon, rope_theta=turned.base,
            attention_bias=mixer.bias, attention_dropout=mixer.dropout, mlp_bias=wide.bias,
            tie_word_embeddings=config.tie_word_embeddings, **special_keys(LlamaSettings, facts.special),
            max_position_embeddings=LlamaSettings.max_position_embeddings if facts.longest is None else facts.longest)

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        return LLAMA_RULES

    def longest(self, settings: LlamaSettings) -> int:
        return settings.max_position_embeddings
