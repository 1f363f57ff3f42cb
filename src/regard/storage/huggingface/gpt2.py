"""GPT-2 (Radford et al. 2019): a language model with pre-norm blocks and learned positions.

Its matrices are those of a convolution of width 1, the transposes of ours, and query, key and value are one of them.
`GPT2Model` has no output layer of its own: it becomes a language model whose output is its table. It knows keys and
names; reading and writing are elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard import checks
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import choice, number, share, whole
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.language import LanguageConfig
from regard.position.encoding import LearnedConfig
from regard.storage.huggingface.family import Asked, Family, Made, attention, feed_forward
from regard.storage.huggingface.mapping import THIRDS, TRANSPOSED, TRANSPOSED_THIRDS, Rule, Unused
from regard.storage.huggingface.settings import ACTIVATIONS, Settings, activation, only, special_keys

LAYER, BLOCK = "transformer.h.{i}", "decoder.stack.blocks.{i}"
PARTS = ("query", "key", "value")
TABLE = (
    Rule("transformer.wte.weight", ("decoder.embedding.tokens.weight",)),
    Rule("transformer.wpe.weight", ("decoder.embedding.positions.encoding.table",)),
    Rule(f"{LAYER}.ln_1.*", (f"{BLOCK}.around_mixer.norm.*",)),
    Rule(f"{LAYER}.attn.c_attn.weight", tuple(f"{BLOCK}.mixer.layer.{part}.weight" for part in PARTS),
         TRANSPOSED_THIRDS),
    Rule(f"{LAYER}.attn.c_attn.bias", tuple(f"{BLOCK}.mixer.layer.{part}.bias" for part in PARTS), THIRDS),
    Rule(f"{LAYER}.attn.c_proj.weight", (f"{BLOCK}.mixer.layer.output.weight",), TRANSPOSED),
    Rule(f"{LAYER}.attn.c_proj.bias", (f"{BLOCK}.mixer.layer.output.bias",)),
    Rule(f"{LAYER}.ln_2.*", (f"{BLOCK}.around_feed_forward.norm.*",)),
    Rule(f"{LAYER}.mlp.c_fc.weight", (f"{BLOCK}.feed_forward.up.weight",), TRANSPOSED),
    Rule(f"{LAYER}.mlp.c_fc.bias", (f"{BLOCK}.feed_forward.up.bias",)),
    Rule(f"{LAYER}.mlp.c_proj.weight", (f"{BLOCK}.feed_forward.down.weight",), TRANSPOSED),
    Rule(f"{LAYER}.mlp.c_proj.bias", (f"{BLOCK}.feed_forward.down.bias",)),
    Rule("transformer.ln_f.*", ("decoder.stack.last_norm.*",)),
    Rule("lm_head.weight", ("decoder.output.weight",)),
)


@dataclass(frozen=True, kw_only=True)
class GPT2Settings(Settings):
    """The keys of GPT-2."""

    # n_ctx is an old name of n_positions; the summary is a head that no language model has; the last one is how
    # attention is computed in half precision, and not what it is.
    harmless: ClassVar[frozenset[str]] = frozenset((
        "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout", "reorder_and_upcast_attn"))
    default_ids: ClassVar[Mapping[str, int]] = {"bos_token_id": 50256, "eos_token_id": 50256}

    vocab_size: int = whole(50257, least=1)
    n_positions: int = whole(1024, least=1)
    n_embd: int = whole(768, least=1)
    n_layer: int = whole(12, least=1)
    n_head: int = whole(12, least=1)
    n_inner: int | None = whole(None, least=1)
    activation_function: str = choice(ACTIVATIONS, "gelu_new")
    resid_pdrop: float = share(0.1)
    embd_pdrop: float = share(0.1)
    attn_pdrop: float = share(0.1)
    layer_norm_epsilon: float = number(1e-5, least=0.0)
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
        Unused("transformer.h.{i}.attn.bias", "the causal mask"),
        Unused("transformer.h.{i}.attn.masked_bias", "what stands for minus infinity in the mask"),
    )
    settings = GPT2Settings

    def config(self, settings: GPT2Settings, asked: Asked) -> ModelConfig:
        wide = FeedForwardConfig(inner=settings.n_inner or 4 * settings.n_embd,
                                 activation=ACTIVATIONS[settings.activation_function])
        return LanguageConfig(
            vocabulary=settings.vocab_size, width=settings.n_embd, tied=settings.tie_word_embeddings,
            embedding=EmbeddingConfig(positions=LearnedConfig(count=settings.n_positions), dropout=settings.embd_pdrop),
            stack=StackConfig(layers=settings.n_layer, order="pre", epsilon=settings.layer_norm_epsilon,
                              dropout=settings.resid_pdrop, feed_forward=wide,
                              mixer=SelfAttentionConfig(heads=settings.n_head, dropout=settings.attn_pdrop)))

    def told(self, config: ModelConfig, made: Made) -> GPT2Settings:
        assert isinstance(config, LanguageConfig)
        mixer, wide = attention(config.stack, "GPT-2"), feed_forward(config.stack, "GPT-2")
        places = config.embedding.positions
        if not isinstance(places, LearnedConfig):
            raise checks.wrong("config", "one that fits GPT-2, with learned positions", "with others")
        return GPT2Settings(
            vocab_size=config.vocabulary, n_positions=places.count, n_embd=config.width, n_layer=config.stack.layers,
            n_head=mixer.heads, n_inner=wide.inner, activation_function=activation(wide.activation),
            resid_pdrop=config.stack.dropout, embd_pdrop=config.embedding.dropout, attn_pdrop=mixer.dropout,
            layer_norm_epsilon=config.stack.epsilon, tie_word_embeddings=config.tied,
            **special_keys(GPT2Settings, made.special))

    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        return TABLE
