"""BERT (Devlin et al. 2019): an encoder, alone or with a head for hidden tokens, for a sequence or for every token.

The pooler is read for a classifier alone, and the head for the next sentence by none of ours. It knows keys and names;
reading and writing are elsewhere.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import checks
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import choice, number, share, whole
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder import EncoderConfig
from regard.models.labels import ClassifierConfig, TaggerConfig
from regard.models.masked import MaskedConfig
from regard.position.encoding import LearnedConfig
from regard.storage.huggingface.family import Asked, Family, Made, attention, feed_forward
from regard.storage.huggingface.mapping import Rule, Unused
from regard.storage.huggingface.settings import ACTIVATIONS, Settings, activation, only, special_keys

LAYER, BLOCK = "bert.encoder.layer.{i}", "encoder.stack.blocks.{i}"
TABLE = (
    Rule("bert.embeddings.word_embeddings.weight", ("encoder.embedding.tokens.weight",)),
    Rule("bert.embeddings.position_embeddings.weight", ("encoder.embedding.positions.encoding.table",)),
    Rule("bert.embeddings.token_type_embeddings.weight", ("encoder.embedding.segments.weight",)),
    Rule("bert.embeddings.LayerNorm.*", ("encoder.embedding.norm.*",)),
    Rule(f"{LAYER}.attention.self.query.*", (f"{BLOCK}.mixer.layer.query.*",)),
    Rule(f"{LAYER}.attention.self.key.*", (f"{BLOCK}.mixer.layer.key.*",)),
    Rule(f"{LAYER}.attention.self.value.*", (f"{BLOCK}.mixer.layer.value.*",)),
    Rule(f"{LAYER}.attention.output.dense.*", (f"{BLOCK}.mixer.layer.output.*",)),
    Rule(f"{LAYER}.attention.output.LayerNorm.*", (f"{BLOCK}.around_mixer.norm.*",)),
    Rule(f"{LAYER}.intermediate.dense.*", (f"{BLOCK}.feed_forward.up.*",)),
    Rule(f"{LAYER}.output.dense.*", (f"{BLOCK}.feed_forward.down.*",)),
    Rule(f"{LAYER}.output.LayerNorm.*", (f"{BLOCK}.around_feed_forward.norm.*",)),
    Rule("cls.predictions.transform.dense.*", ("head.dense.*",)),
    Rule("cls.predictions.transform.LayerNorm.*", ("head.norm.*",)),
    Rule("cls.predictions.bias", ("head.output.bias",)),
    Rule("cls.predictions.decoder.*", ("head.output.*",)),
    Rule("bert.pooler.dense.*", ("between.*",)),
    Rule("classifier.*", ("output.*",)),
)


@dataclass(frozen=True, kw_only=True)
class BertSettings(Settings):
    """The keys of BERT."""

    # The pooler_ keys came from the first program of BERT's authors, and are read by nothing.
    harmless: ClassVar[frozenset[str]] = frozenset((
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"))
    default_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 0}

    vocab_size: int = whole(30522, least=1)
    hidden_size: int = whole(768, least=1)
    num_hidden_layers: int = whole(12, least=1)
    num_attention_heads: int = whole(12, least=1)
    intermediate_size: int = whole(3072, least=1)
    hidden_act: str = choice(ACTIVATIONS, "gelu")
    hidden_dropout_prob: float = share(0.1)
    attention_probs_dropout_prob: float = share(0.1)
    classifier_dropout: float | None = share(None)
    max_position_embeddings: int = whole(512, least=1)
    type_vocab_size: int = whole(2, least=1)
    layer_norm_eps: float = number(1e-12, least=0.0)
    position_embedding_type: str = only("absolute", "relative positions of this family are not read")
    directionality: str = only("bidi", "tokens that see one side alone are not read in this family")
    tie_word_embeddings: bool = True

    @property
    def ids(self) -> int:
        return self.vocab_size


class Bert(Family[BertSettings]):
    """Keys and tensors of BERT."""

    name = "bert"
    base = "bert."
    architectures: ClassVar[Mapping[str, str]] = {
        "BertModel": "encoder", "BertForMaskedLM": "masked", "BertForPreTraining": "masked",
        "BertForSequenceClassification": "classifier", "BertForTokenClassification": "tagger"}
    bare = frozenset(("BertModel",))
    unused = (
        Unused("bert.embeddings.position_ids", "0, 1, 2, ..."),
        Unused("bert.pooler.dense.*", "the pooler, where nothing of ours reads it"),
        Unused("cls.seq_relationship.*", "the head for the next sentence"),
    )
    settings = BertSettings

    def config(self, settings: BertSettings, asked: Asked) -> ModelConfig:
        names, hidden = ACTIVATIONS[settings.hidden_act], settings.hidden_dropout_prob
        embedding = EmbeddingConfig(positions=LearnedConfig(count=settings.max_position_embeddings), norm="layer",
                                    segments=settings.type_vocab_size, epsilon=settings.layer_norm_eps, dropout=hidden)
        mixer = SelfAttentionConfig(heads=settings.num_attention_heads, dropout=settings.attention_probs_dropout_prob)
        stack = StackConfig(layers=settings.num_hidden_layers, order="post", epsilon=settings.layer_norm_eps,
                            dropout=hidden, mixer=mixer,
                            feed_forward=FeedForwardConfig(inner=settings.intermediate_size, activation=names))
        size: dict[str, Any] = {"vocabulary": settings.vocab_size, "width": settings.hidden_size}
        last = hidden if settings.classifier_dropout is None else settings.classifier_dropout
        if asked.kind == "masked":
            if not settings.tie_word_embeddings:  # such files have two biases, of which one is read by nothing
                raise checks.wrong("tie_word_embeddings", "true in a BERT for hidden tokens", "false")
            return MaskedConfig(**size, embedding=embedding, stack=stack, activation=names)
        if asked.kind == "tagger":
            return TaggerConfig(**size, embedding=embedding, stack=stack, labels=asked.labels, dropout=last)
        if asked.kind == "classifier":
            return ClassifierConfig(**size, embedding=embedding, stack=stack, labels=asked.labels, dropout=last,
                                    pooling="first", between="tanh")
        return EncoderConfig(**size, embedding=embedding, stack=stack)

    def told(self, config: ModelConfig, made: Made) -> BertSettings:
        assert isinstance(config, EncoderConfig)
        mixer, wide = attention(config.stack, "BERT"), feed_forward(config.stack, "BERT")
        places = config.embedding.positions
        if not isinstance(places, LearnedConfig):
            raise checks.wrong("config", "one that fits BERT, with learned positions", "with others")
        if not config.embedding.segments:
            raise checks.wrong("config", "one that fits BERT, with segments", "without",
                               "A model that tells no segments apart has no place in BERT.")
        return BertSettings(
            vocab_size=config.vocabulary, hidden_size=config.width, num_hidden_layers=config.stack.layers,
            num_attention_heads=mixer.heads, intermediate_size=wide.inner, hidden_act=activation(wide.activation),
            hidden_dropout_prob=config.stack.dropout, attention_probs_dropout_prob=mixer.dropout,
            classifier_dropout=getattr(config, "dropout", None), max_position_embeddings=places.count,
            type_vocab_size=config.embedding.segments, layer_norm_eps=config.stack.epsilon,
            **special_keys(BertSettings, made.special))

    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        if config.kind != "encoder":
            return TABLE
        return [rule._replace(ours=tuple(name.removeprefix("encoder.") for name in rule.ours)) for rule in TABLE
                if rule.ours[0].startswith("encoder.")]

    def guess(self, names: Collection[str]) -> str | None:
        if any(name.startswith("cls.predictions.") for name in names):
            return "BertForMaskedLM"
        return None if "classifier.weight" in names else "BertModel"

    def spelling(self, names: Collection[str]) -> Callable[[str], str]:
        usual = super().spelling(names)
        if not any(name.endswith("LayerNorm.gamma") for name in names):
            return usual
        # Files that were converted from the first program of BERT's authors.
        return lambda name: usual(name).replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta")
