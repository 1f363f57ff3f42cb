"""Decoder-only language models: GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023), Mistral and Qwen2.

GPT-2 has pre-norm blocks and learned positions. Its matrices are the transposes of ours, and query, key and value are
one matrix. `GPT2Model` has no output layer; it is read as a language model with tied embeddings.

Llama has RMS norms, rotary positions, a gated feed-forward layer, and optionally fewer key and value heads than query
heads. Rotary positions are unlimited, so the number of positions it was trained with is kept beside the config. Mistral
(Jiang et al. 2023) is a Llama in which a token attends to the last tokens only (a sliding window); without a window it
is a Llama, and is written as one. Qwen2 (Yang et al. 2024) is a Llama with a bias of queries, keys and values.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import Config, choice, integer, number, probability
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.language import LanguageModelConfig
from regard.position.encoding import LearnedConfig
from regard.position.rope_scaling import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    RopeScalingConfig,
    YarnRopeScaling,
    yarn_magnitude,
)
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
    cannot_express,
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
    scale_attn_weights: bool = only(True, "unscaled dot products are not supported")
    scale_attn_by_inverse_layer_idx: bool = only(False, "scores scaled by the layer index are not supported")
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
            raise cannot_express("GPT-2", ["it has learned positions, and this model has others"])
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


ROPE_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset(("factor",)),
    "dynamic": frozenset(("factor",)),
    "yarn": frozenset(("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")),
    "llama3": frozenset(("factor", "low_freq_factor", "high_freq_factor")),
}
"""The supported types of rotary positions, each with its keys. `original_max_position_embeddings` may always be there:
`transformers` ignores it where a type does not use it."""
REQUIRED_ROPE_KEYS = {"linear": ("factor",), "dynamic": ("factor",),
                      "llama3": ("factor", "low_freq_factor", "high_freq_factor")}


@dataclass(frozen=True, kw_only=True)
class RopeSettings(Config):
    """The table `rope_scaling`, in newer files `rope_parameters`; `type` is an old name of `rope_type`."""

    rope_theta: float | None = number(None, above=0.0)
    rope_type: str | None = choice(ROPE_KEYS, None)
    type: str | None = choice(ROPE_KEYS, None)
    partial_rotary_factor: float | None = only(1.0, "partial rotary positions are not supported", optional=True)
    original_max_position_embeddings: int | None = integer(None, minimum=1)
    factor: float | None = number(None, minimum=1.0)
    low_freq_factor: float | None = number(None, above=0.0)
    high_freq_factor: float | None = number(None, above=0.0)
    attention_factor: float | None = number(None, above=0.0)
    beta_fast: float | None = number(None, above=0.0)
    beta_slow: float | None = number(None, above=0.0)
    mscale: float | None = number(None, minimum=0.0)
    mscale_all_dim: float | None = number(None, minimum=0.0)
    truncate: bool | None = None

    @property
    def scaling_type(self) -> str:
        """The type, under either of its names."""
        return self.rope_type or self.type or "default"

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        if self.rope_type and self.type and self.rope_type != self.type:
            yield "type", f'rope_type is "{self.rope_type}"; remove the wrong one'
        for key in REQUIRED_ROPE_KEYS.get(self.scaling_type, ()):
            if getattr(self, key) is None:
                yield key, f'the rope_type "{self.scaling_type}" needs it, and it is missing'
        for key in sorted(frozenset[str]().union(*ROPE_KEYS.values()) - ROPE_KEYS[self.scaling_type]):
            if getattr(self, key) is not None:
                yield key, f'the rope_type "{self.scaling_type}" does not have it'

    def scaling(self, positions: int) -> RopeScalingConfig | None:
        """Our config of the scaling in a model whose `max_position_embeddings` is `positions`; None for none."""
        original = self.original_max_position_embeddings or positions
        if self.scaling_type == "linear":
            return LinearRopeScaling(factor=self._given("factor"))
        if self.scaling_type == "dynamic":
            return DynamicRopeScaling(factor=self._given("factor"), original_max_position_embeddings=positions)
        if self.scaling_type == "llama3":
            return Llama3RopeScaling(
                factor=self._given("factor"), low_freq_factor=self._given("low_freq_factor"),
                high_freq_factor=self._given("high_freq_factor"), original_max_position_embeddings=original)
        if self.scaling_type == "yarn":
            factor, attention = self.factor or positions / original, self.attention_factor
            if attention is None and self.mscale and self.mscale_all_dim:
                attention = yarn_magnitude(factor, self.mscale) / yarn_magnitude(factor, self.mscale_all_dim)
            return YarnRopeScaling(
                factor=factor, original_max_position_embeddings=original, attention_factor=attention,
                beta_fast=self.beta_fast or 32.0, beta_slow=self.beta_slow or 1.0,
                truncate=True if self.truncate is None else self.truncate)
        return None

    def _given(self, key: str) -> float:
        """The value of a key that the type requires."""
        value: float | None = getattr(self, key)
        assert value is not None, key
        return value


def rope_settings(scaling: RopeScalingConfig | None) -> RopeSettings | None:
    """The table of a scaling of ours, without the values that are defaults; None for none."""
    if scaling is None:
        return None
    given = {field.name: getattr(scaling, field.name) for field in fields(scaling)
             if field.default is MISSING or getattr(scaling, field.name) != field.default}
    if isinstance(scaling, DynamicRopeScaling):  # it is `max_position_embeddings` of the model
        del given["original_max_position_embeddings"]
    return RopeSettings(rope_type=scaling.kind, **given)


@dataclass(frozen=True, kw_only=True)
class RotaryDecoderSettings(FamilySettings):
    """The keys that Llama, Mistral and Qwen2 share."""

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
    rope_parameters: RopeSettings | None = None
    rope_scaling: RopeSettings | None = None
    attention_dropout: float = probability(0.0)
    tie_word_embeddings: bool = False

    @property
    def ids(self) -> int:
        return self.vocab_size

    @property
    def base(self) -> float:
        """What the angles of rotary positions are made from."""
        return next(iter(self._bases().values()), 10000.0)

    @property
    def rotary(self) -> RotaryConfig:
        """The rotary positions, as our config."""
        table = self.rope_scaling or self.rope_parameters or RopeSettings()
        return RotaryConfig(base=self.base, pairing="halves", rope_scaling=table.scaling(self.max_position_embeddings))

    @property
    def window(self) -> int | None:
        """The number of tokens before its own to which a token may attend; None for all."""
        return None

    def _bases(self) -> dict[str, float]:
        """Every place that names it."""
        tables = {"rope_parameters": self.rope_parameters, "rope_scaling": self.rope_scaling}
        named = {"rope_theta": self.rope_theta, **{key: table.rope_theta for key, table in tables.items() if table}}
        return {key: value for key, value in named.items() if value is not None}

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        yield from super().conflicts()
        if len({*self._bases().values()}) > 1:
            yield "rope_theta", f"it occurs more than once, with different values: {self._bases()}"
        if self.rope_parameters is not None and self.rope_scaling is not None:
            positions = self.max_position_embeddings
            if self.rope_parameters.scaling(positions) != self.rope_scaling.scaling(positions):
                yield "rope_scaling", "rope_parameters says otherwise; remove the wrong one"


DecoderSettingsT = TypeVar("DecoderSettingsT", bound=RotaryDecoderSettings)


class RotaryDecoderFamily(Family[DecoderSettingsT], Generic[DecoderSettingsT]):
    """Keys and tensors of Llama and its relatives. A family adds its biases and its window."""

    title: ClassVar[str]
    base = "model."
    unused = (
        UnusedTensor("model.layers.{i}.self_attn.rotary_emb.inv_freq", "the angles, which follow from the config"),
        UnusedTensor("model.rotary_emb.inv_freq", "the angles, which follow from the config"),
    )

    def biases(self, settings: DecoderSettingsT) -> dict[str, Any]:
        """`bias` and `qkv_bias` of the attention."""
        return {"bias": False}

    def feed_forward_bias(self, settings: DecoderSettingsT) -> bool:
        """Whether the feed-forward layers have biases."""
        return False

    def own_keys(self, config: LanguageModelConfig, mixer: SelfAttentionConfig) -> dict[str, Any]:
        """The keys of this family alone, for one of our configs."""
        return {}

    def config(self, settings: DecoderSettingsT, facts: FileFacts) -> ModelConfig:
        heads, width = settings.num_attention_heads, settings.hidden_size
        mixer = SelfAttentionConfig(
            heads=heads, key_heads=None if settings.num_key_value_heads == heads else settings.num_key_value_heads,
            head_width=None if settings.head_dim == width // heads else settings.head_dim,
            dropout=settings.attention_dropout, window=settings.window, position=settings.rotary,
            **self.biases(settings))
        wide = FeedForwardConfig(ffn_width=settings.intermediate_size, gated=True,
                                 bias=self.feed_forward_bias(settings), activation=ACTIVATIONS[settings.hidden_act])
        stack = StackConfig(layers=settings.num_hidden_layers, norm_position="pre", norm="rms",
                            epsilon=settings.rms_norm_eps, mixer=mixer, feed_forward=wide)
        return LanguageModelConfig(vocab_size=settings.vocab_size, width=width, stack=stack,
                                   tie_word_embeddings=settings.tie_word_embeddings)

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> DecoderSettingsT:
        assert isinstance(config, LanguageModelConfig)
        mixer, wide = self_attention_of(config.stack, self.title), feed_forward_of(config.stack, self.title)
        rotary = mixer.position if isinstance(mixer.position, RotaryConfig) else RotaryConfig()
        return self.settings(
            vocab_size=config.vocab_size, hidden_size=config.width, intermediate_size=wide.ffn_width,
            num_hidden_layers=config.stack.layers, num_attention_heads=mixer.heads,
            num_key_value_heads=mixer.key_heads or mixer.heads, head_dim=mixer.head_size(config.width),
            hidden_act=activation_name(wide.activation), rms_norm_eps=config.stack.epsilon, rope_theta=rotary.base,
            rope_scaling=rope_settings(rotary.rope_scaling), attention_dropout=mixer.dropout,
            tie_word_embeddings=config.tie_word_embeddings, max_position_embeddings=self._positions(rotary, facts),
            **special_keys(self.settings, facts.special), **self.own_keys(config, mixer))

    def _positions(self, rotary: RotaryConfig, facts: ExportFacts) -> int:
        """`max_position_embeddings`: what dynamic scaling is computed from, and elsewhere only a record."""
        scaling = rotary.rope_scaling
        if isinstance(scaling, DynamicRopeScaling):
            return scaling.original_max_position_embeddings
        if facts.longest is not None:
            return facts.longest
        if isinstance(scaling, YarnRopeScaling | Llama3RopeScaling):
            return int(scaling.factor * scaling.original_max_position_embeddings)
        return self.settings.max_position_embeddings

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        return LLAMA_RULES

    def longest(self, settings: DecoderSettingsT) -> int:
        return settings.max_position_embeddings


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(RotaryDecoderSettings):
    """The keys of Llama."""

    # How matrices were cut for training on several devices.
    harmless: ClassVar[frozenset[str]] = frozenset(("pretraining_tp",))

    attention_bias: bool = False
    mlp_bias: bool = False


class Llama(RotaryDecoderFamily[LlamaSettings]):
    """Keys and tensors of Llama."""

    name, title = "llama", "Llama"
    architectures: ClassVar[Mapping[str, str]] = {"LlamaForCausalLM": "language"}
    settings = LlamaSettings

    def biases(self, settings: LlamaSettings) -> dict[str, Any]:
        return {"bias": settings.attention_bias}

    def feed_forward_bias(self, settings: LlamaSettings) -> bool:
        return settings.mlp_bias

    def own_keys(self, config: LanguageModelConfig, mixer: SelfAttentionConfig) -> dict[str, Any]:
        return {"attention_bias": mixer.bias, "mlp_bias": feed_forward_of(config.stack, self.title).bias}


@dataclass(frozen=True, kw_only=True)
class MistralSettings(RotaryDecoderSettings):
    """The keys of Mistral. A token attends to `sliding_window` tokens, itself included; null is no window."""

    absent: ClassVar[Mapping[str, Any]] = {"num_key_value_heads": 8, "sliding_window": 4096}
    emptied: ClassVar[tuple[str, ...]] = ("sliding_window",)

    intermediate_size: int = integer(14336, minimum=1)
    max_position_embeddings: int = integer(131072, minimum=1)
    sliding_window: int | None = integer(None, minimum=1)

    @property
    def window(self) -> int | None:
        return None if self.sliding_window is None else self.sliding_window - 1


class Mistral(RotaryDecoderFamily[MistralSettings]):
    """Keys of Mistral, with the tensors of Llama."""

    name, title = "mistral", "Mistral"
    architectures: ClassVar[Mapping[str, str]] = {"MistralForCausalLM": "language"}
    settings = MistralSettings

    def own_keys(self, config: LanguageModelConfig, mixer: SelfAttentionConfig) -> dict[str, Any]:
        return {"sliding_window": None if mixer.window is None else mixer.window + 1}


FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Qwen2Settings(RotaryDecoderSettings):
    """The keys of Qwen2. With `use_sliding_window`, the layers from `max_window_layers` on have a window."""

    default_ids: ClassVar[Mapping[str, int]] = {}
    absent: ClassVar[Mapping[str, Any]] = {"num_key_value_heads": 32, "sliding_window": 4096}
    emptied: ClassVar[tuple[str, ...]] = ("sliding_window",)

    vocab_size: int = integer(151936, minimum=1)
    intermediate_size: int = integer(22016, minimum=1)
    max_position_embeddings: int = integer(32768, minimum=1)
    use_sliding_window: bool = False
    sliding_window: int | None = integer(None, minimum=1)
    max_window_layers: int = integer(28, minimum=0)
    layer_types: tuple[str, ...] = choice((FULL, SLIDING), ())
    use_mrope: bool = only(False, "positions of several dimensions are not supported")

    @property
    def window(self) -> int | None:
        sliding = self._sliding_layers() > 0 and self.sliding_window is not None
        return self.sliding_window - 1 if sliding and self.sliding_window is not None else None

    def _sliding_layers(self) -> int:
        """How many layers have a window."""
        if self.layer_types:
            return self.layer_types.count(SLIDING)
        windowed = self.use_sliding_window and self.sliding_window is not None
        return max(0, self.num_hidden_layers - self.max_window_layers) if windowed else 0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        yield from super().conflicts()
        key, sliding = "layer_types" if self.layer_types else "max_window_layers", self._sliding_layers()
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            yield key, f"it has {len(self.layer_types)} entries for {self.num_hidden_layers} layers"
        elif sliding and (not self.use_sliding_window or self.sliding_window is None):
            yield key, "it has layers with a window; set use_sliding_window and sliding_window"
        elif 0 < sliding < self.num_hidden_layers:
            yield key, (f"{sliding} of {self.num_hidden_layers} layers have a sliding window; only models in which all "
                        "layers have one, or none, are supported")


class Qwen2(RotaryDecoderFamily[Qwen2Settings]):
    """Keys of Qwen2, with the tensors of Llama: queries, keys and values have a bias, the output has none."""

    name, title = "qwen2", "Qwen2"
    architectures: ClassVar[Mapping[str, str]] = {"Qwen2ForCausalLM": "language"}
    settings = Qwen2Settings

    def biases(self, settings: Qwen2Settings) -> dict[str, Any]:
        return {"bias": False, "qkv_bias": True}

    def own_keys(self, config: LanguageModelConfig, mixer: SelfAttentionConfig) -> dict[str, Any]:
        if mixer.window is None:
            return {"max_window_layers": config.stack.layers}
        return {"use_sliding_window": True, "sliding_window": mixer.window + 1, "max_window_layers": 0}
