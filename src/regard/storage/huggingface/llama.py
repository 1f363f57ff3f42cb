"""Llama (Touvron et al. 2023): a language model with RMS norms, rotary positions, a gated feed-forward part, and
fewer heads of keys and values than of queries where it says so.

Rotary positions have no end, so the number of positions that it was trained with is kept beside the config. It knows
keys and names; reading and writing are elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import Config, choice, number, share, whole
from regard.models.build import ModelConfig
from regard.models.language import LanguageConfig
from regard.position.rotary import RotaryConfig
from regard.storage.huggingface.family import Asked, Family, Made, attention, feed_forward
from regard.storage.huggingface.mapping import Rule, Unused
from regard.storage.huggingface.settings import ACTIVATIONS, Settings, activation, only, special_keys

LAYER, BLOCK = "model.layers.{i}", "decoder.stack.blocks.{i}"
TABLE = (
    Rule("model.embed_tokens.weight", ("decoder.embedding.tokens.weight",)),
    Rule(f"{LAYER}.input_layernorm.weight", (f"{BLOCK}.around_mixer.norm.weight",)),
    Rule(f"{LAYER}.self_attn.q_proj.*", (f"{BLOCK}.mixer.layer.query.*",)),
    Rule(f"{LAYER}.self_attn.k_proj.*", (f"{BLOCK}.mixer.layer.key.*",)),
    Rule(f"{LAYER}.self_attn.v_proj.*", (f"{BLOCK}.mixer.layer.value.*",)),
    Rule(f"{LAYER}.self_attn.o_proj.*", (f"{BLOCK}.mixer.layer.output.*",)),
    Rule(f"{LAYER}.post_attention_layernorm.weight", (f"{BLOCK}.around_feed_forward.norm.weight",)),
    Rule(f"{LAYER}.mlp.gate_proj.*", (f"{BLOCK}.feed_forward.gate.*",)),
    Rule(f"{LAYER}.mlp.up_proj.*", (f"{BLOCK}.feed_forward.up.*",)),
    Rule(f"{LAYER}.mlp.down_proj.*", (f"{BLOCK}.feed_forward.down.*",)),
    Rule("model.norm.weight", ("decoder.stack.last_norm.weight",)),
    Rule("lm_head.weight", ("decoder.output.weight",)),
)


@dataclass(frozen=True, kw_only=True)
class RotarySettings(Config):
    """The table of rotary positions; `type` is an old name of `rope_type`."""

    rope_theta: float | None = number(None, above=0.0)
    rope_type: str = only("default", "rotary positions that are stretched are not read")
    type: str = only("default", "rotary positions that are stretched are not read")
    partial_rotary_factor: float = only(1.0, "heads of which only a part is turned are not read")


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(Settings):
    """The keys of Llama."""

    # How matrices were cut for training on several devices.
    harmless: ClassVar[frozenset[str]] = frozenset(("pretraining_tp",))
    default_ids: ClassVar[Mapping[str, int]] = {"bos_token_id": 1, "eos_token_id": 2}

    vocab_size: int = whole(32000, least=1)
    hidden_size: int = whole(4096, least=1)
    intermediate_size: int = whole(11008, least=1)
    num_hidden_layers: int = whole(32, least=1)
    num_attention_heads: int = whole(32, least=1)
    num_key_value_heads: int | None = whole(None, least=1)
    head_dim: int | None = whole(None, least=1)
    hidden_act: str = choice(ACTIVATIONS, "silu")
    max_position_embeddings: int = whole(2048, least=1)
    rms_norm_eps: float = number(1e-6, least=0.0)
    rope_theta: float | None = number(None, above=0.0)
    rope_parameters: RotarySettings | None = None
    rope_scaling: RotarySettings | None = None
    attention_bias: bool = False
    attention_dropout: float = share(0.0)
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
        """What is wrong between keys: key, and why."""
        yield from super().conflicts()
        if len({*self._bases().values()}) > 1:
            yield "rope_theta", f"it is named more than once, and differs: {self._bases()}"


class Llama(Family[LlamaSettings]):
    """Keys and tensors of Llama."""

    name = "llama"
    base = "model."
    architectures: ClassVar[Mapping[str, str]] = {"LlamaForCausalLM": "language"}
    unused = (
        Unused("model.layers.{i}.self_attn.rotary_emb.inv_freq", "the angles, which follow from the config"),
        Unused("model.rotary_emb.inv_freq", "the angles, which follow from the config"),
    )
    settings = LlamaSettings

    def config(self, settings: LlamaSettings, asked: Asked) -> ModelConfig:
        heads, width = settings.num_attention_heads, settings.hidden_size
        mixer = SelfAttentionConfig(
            heads=heads, key_heads=None if settings.num_key_value_heads == heads else settings.num_key_value_heads,
            head_width=None if settings.head_dim == width // heads else settings.head_dim,
            bias=settings.attention_bias, dropout=settings.attention_dropout,
            position=RotaryConfig(base=settings.base, pairing="halves"))
        wide = FeedForwardConfig(inner=settings.intermediate_size, form="gated", bias=settings.mlp_bias,
                                 activation=ACTIVATIONS[settings.hidden_act])
        stack = StackConfig(layers=settings.num_hidden_layers, order="pre", norm="rms", epsilon=settings.rms_norm_eps,
                            mixer=mixer, feed_forward=wide)
        return LanguageConfig(vocabulary=settings.vocab_size, width=width, tied=settings.tie_word_embeddings,
                              stack=stack)

    def told(self, config: ModelConfig, made: Made) -> LlamaSettings:
        assert isinstance(config, LanguageConfig)
        mixer, wide = attention(config.stack, "Llama"), feed_forward(config.stack, "Llama")
        turned = mixer.position if isinstance(mixer.position, RotaryConfig) else RotaryConfig()
        return LlamaSettings(
            vocab_size=config.vocabulary, hidden_size=config.width, intermediate_size=wide.inner,
            num_hidden_layers=config.stack.layers, num_attention_heads=mixer.heads,
            num_key_value_heads=mixer.key_heads or mixer.heads, head_dim=mixer.each(config.width),
            hidden_act=activation(wide.activation), rms_norm_eps=config.stack.epsilon, rope_theta=turned.base,
            attention_bias=mixer.bias, attention_dropout=mixer.dropout, mlp_bias=wide.bias,
            tie_word_embeddings=config.tied, **special_keys(LlamaSettings, made.special),
            max_position_embeddings=LlamaSettings.max_position_embeddings if made.longest is None else made.longest)

    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        return TABLE

    def longest(self, settings: LlamaSettings) -> int:
        return settings.max_position_embeddings
