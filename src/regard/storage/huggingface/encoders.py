"""Encoders: BERT (Devlin et al. 2019) and ViT (Dosovitskiy et al. 2021).

BERT is read alone or with a head for masked tokens, for a sequence or for every token. Its pooler is read only for a
classifier, and its next-sentence head never. ViT classifies images over patches, with a class token and learned
positions; its first layer is a convolution, ours a matrix over the same numbers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import checks
from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import choice, integer, number, probability
from regard.models.build import ModelConfig
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderConfig
from regard.models.language import MaskedModelConfig
from regard.models.vision import VisionConfig
from regard.position.encoding import LearnedConfig
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
    patch_filters,
    self_attention_of,
    special_keys,
)

BERT_LAYER, BERT_BLOCK = "bert.encoder.layer.{i}", "encoder.stack.blocks.{i}"
BERT_RULES = (
    TensorRule("bert.embeddings.word_embeddings.weight", ("encoder.embedding.tokens.weight",)),
    TensorRule("bert.embeddings.position_embeddings.weight", ("encoder.embedding.positions.encoding.table",)),
    TensorRule("bert.embeddings.token_type_embeddings.weight", ("encoder.embedding.segments.weight",)),
    TensorRule("bert.embeddings.LayerNorm.*", ("encoder.embedding.norm.*",)),
    TensorRule(f"{BERT_LAYER}.attention.self.query.*", (f"{BERT_BLOCK}.mixer.layer.query.*",)),
    TensorRule(f"{BERT_LAYER}.attention.self.key.*", (f"{BERT_BLOCK}.mixer.layer.key.*",)),
    TensorRule(f"{BERT_LAYER}.attention.self.value.*", (f"{BERT_BLOCK}.mixer.layer.value.*",)),
    TensorRule(f"{BERT_LAYER}.attention.output.dense.*", (f"{BERT_BLOCK}.mixer.layer.output.*",)),
    TensorRule(f"{BERT_LAYER}.attention.output.LayerNorm.*", (f"{BERT_BLOCK}.around_mixer.norm.*",)),
    TensorRule(f"{BERT_LAYER}.intermediate.dense.*", (f"{BERT_BLOCK}.feed_forward.up.*",)),
    TensorRule(f"{BERT_LAYER}.output.dense.*", (f"{BERT_BLOCK}.feed_forward.down.*",)),
    TensorRule(f"{BERT_LAYER}.output.LayerNorm.*", (f"{BERT_BLOCK}.around_feed_forward.norm.*",)),
    TensorRule("cls.predictions.transform.dense.*", ("head.dense.*",)),
    TensorRule("cls.predictions.transform.LayerNorm.*", ("head.norm.*",)),
    TensorRule("cls.predictions.bias", ("head.output.bias",)),
    TensorRule("cls.predictions.decoder.*", ("head.output.*",)),
    TensorRule("bert.pooler.dense.*", ("between.*",)),
    TensorRule("classifier.*", ("output.*",)),
)


@dataclass(frozen=True, kw_only=True)
class BertSettings(FamilySettings):
    """The keys of BERT."""

    # The pooler_ keys came from the first program of BERT's authors, and are read by nothing.
    harmless: ClassVar[frozenset[str]] = frozenset((
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"))
    default_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 0}

    vocab_size: int = integer(30522, minimum=1)
    hidden_size: int = integer(768, minimum=1)
    num_hidden_layers: int = integer(12, minimum=1)
    num_attention_heads: int = integer(12, minimum=1)
    intermediate_size: int = integer(3072, minimum=1)
    hidden_act: str = choice(ACTIVATIONS, "gelu")
    hidden_dropout_prob: float = probability(0.1)
    attention_probs_dropout_prob: float = probability(0.1)
    classifier_dropout: float | None = probability(None)
    max_position_embeddings: int = integer(512, minimum=1)
    type_vocab_size: int = integer(2, minimum=1)
    layer_norm_eps: float = number(1e-12, minimum=0.0)
    position_embedding_type: str = only("absolute", "relative positions are not supported in this family")
    directionality: str = only("bidi", "unidirectional attention is not supported in this family")
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
        UnusedTensor("bert.embeddings.position_ids", "0, 1, 2, ..."),
        UnusedTensor("bert.pooler.dense.*", "the pooler, if our model does not use it"),
        UnusedTensor("cls.seq_relationship.*", "the head for the next sentence"),
    )
    settings = BertSettings

    def config(self, settings: BertSettings, facts: FileFacts) -> ModelConfig:
        names, hidden = ACTIVATIONS[settings.hidden_act], settings.hidden_dropout_prob
        embedding = EmbeddingConfig(positions=LearnedConfig(max_positions=settings.max_position_embeddings),
                                    norm="layer",
                                    segments=settings.type_vocab_size, epsilon=settings.layer_norm_eps, dropout=hidden)
        mixer = SelfAttentionConfig(heads=settings.num_attention_heads, dropout=settings.attention_probs_dropout_prob)
        stack = StackConfig(layers=settings.num_hidden_layers, norm_position="post", epsilon=settings.layer_norm_eps,
                            dropout=hidden, mixer=mixer,
                            feed_forward=FeedForwardConfig(ffn_width=settings.intermediate_size, activation=names))
        size: dict[str, Any] = {"vocab_size": settings.vocab_size, "width": settings.hidden_size}
        last = hidden if settings.classifier_dropout is None else settings.classifier_dropout
        if facts.kind == "masked":
            if not settings.tie_word_embeddings:  # such files have two biases, of which one is read by nothing
                raise checks.wrong("tie_word_embeddings", "true for BertForMaskedLM", "false")
            return MaskedModelConfig(**size, embedding=embedding, stack=stack, activation=names)
        if facts.kind == "tagger":
            return TaggerConfig(**size, embedding=embedding, stack=stack, num_labels=facts.labels, dropout=last)
        if facts.kind == "classifier":
            return ClassifierConfig(**size, embedding=embedding, stack=stack, num_labels=facts.labels, dropout=last,
                                    pooling="first", pooler_activation="tanh")
        return EncoderConfig(**size, embedding=embedding, stack=stack)

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> BertSettings:
        assert isinstance(config, EncoderConfig)
        mixer, wide = self_attention_of(config.stack, "BERT"), feed_forward_of(config.stack, "BERT")
        places = config.embedding.positions
        if not isinstance(places, LearnedConfig):
            raise cannot_express("BERT", ["it has learned positions, and this model has others"])
        if not config.embedding.segments:
            raise cannot_express("BERT", ["it has segment embeddings, and this model has none"])
        return BertSettings(
            vocab_size=config.vocab_size, hidden_size=config.width, num_hidden_layers=config.stack.layers,
            num_attention_heads=mixer.heads, intermediate_size=wide.ffn_width,
            hidden_act=activation_name(wide.activation),
            hidden_dropout_prob=config.stack.dropout, attention_probs_dropout_prob=mixer.dropout,
            classifier_dropout=getattr(config, "dropout", None), max_position_embeddings=places.max_positions,
            type_vocab_size=config.embedding.segments, layer_norm_eps=config.stack.epsilon,
            **special_keys(BertSettings, facts.special))

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        if config.kind != "encoder":
            return BERT_RULES
        return [rule._replace(ours=tuple(name.removeprefix("encoder.") for name in rule.ours)) for rule in BERT_RULES
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


VIT_LAYER, VIT_BLOCK = "vit.encoder.layer.{i}", "stack.blocks.{i}"
VIT_RULES = (
    TensorRule("vit.embeddings.cls_token", ("patches.token",), leading_ones(2)),
    TensorRule("vit.embeddings.position_embeddings", ("patches.positions.encoding.table",), leading_ones(1)),
    TensorRule("vit.embeddings.patch_embeddings.projection.bias", ("patches.project.bias",)),
    TensorRule(f"{VIT_LAYER}.layernorm_before.*", (f"{VIT_BLOCK}.around_mixer.norm.*",)),
    TensorRule(f"{VIT_LAYER}.attention.attention.query.*", (f"{VIT_BLOCK}.mixer.layer.query.*",)),
    TensorRule(f"{VIT_LAYER}.attention.attention.key.*", (f"{VIT_BLOCK}.mixer.layer.key.*",)),
    TensorRule(f"{VIT_LAYER}.attention.attention.value.*", (f"{VIT_BLOCK}.mixer.layer.value.*",)),
    TensorRule(f"{VIT_LAYER}.attention.output.dense.*", (f"{VIT_BLOCK}.mixer.layer.output.*",)),
    TensorRule(f"{VIT_LAYER}.layernorm_after.*", (f"{VIT_BLOCK}.around_feed_forward.norm.*",)),
    TensorRule(f"{VIT_LAYER}.intermediate.dense.*", (f"{VIT_BLOCK}.feed_forward.up.*",)),
    TensorRule(f"{VIT_LAYER}.output.dense.*", (f"{VIT_BLOCK}.feed_forward.down.*",)),
    TensorRule("vit.layernorm.*", ("stack.last_norm.*",)),
    TensorRule("classifier.*", ("output.*",)),
)


@dataclass(frozen=True, kw_only=True)
class ViTSettings(FamilySettings):
    """The keys of ViT."""

    # For a head that draws hidden patches, and for a pooler: neither is part of a classifier.
    harmless: ClassVar[frozenset[str]] = frozenset(("encoder_stride", "pooler_output_size", "pooler_act",
                                                    "tie_word_embeddings"))
    repeated: ClassVar[Mapping[str, int]] = {**FamilySettings.repeated, "image_size": 2, "patch_size": 2}

    hidden_size: int = integer(768, minimum=1)
    num_hidden_layers: int = integer(12, minimum=1)
    num_attention_heads: int = integer(12, minimum=1)
    intermediate_size: int = integer(3072, minimum=1)
    hidden_act: str = choice(ACTIVATIONS, "gelu")
    hidden_dropout_prob: float = probability(0.0)
    attention_probs_dropout_prob: float = probability(0.0)
    layer_norm_eps: float = number(1e-12, minimum=0.0)
    image_size: tuple[int, ...] = integer((224, 224), minimum=1)
    patch_size: tuple[int, ...] = integer((16, 16), minimum=1)
    num_channels: int = integer(3, minimum=1)
    qkv_bias: bool = only(True, "projections without a bias are not supported in this family")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        yield from super().conflicts()
        if len(self.image_size) != 2:
            yield "image_size", "it must be one number, or height and width"
        if len({*self.patch_size}) != 1 or len(self.patch_size) != 2:
            yield "patch_size", "only square patches are supported"


class ViT(Family[ViTSettings]):
    """Keys and tensors of ViT."""

    name = "vit"
    base = "vit."
    architectures: ClassVar[Mapping[str, str]] = {"ViTForImageClassification": "vision"}
    unused = (UnusedTensor("vit.pooler.dense.*", "the pooler, which the classifier does not read"),)
    settings = ViTSettings

    def config(self, settings: ViTSettings, facts: FileFacts) -> ModelConfig:
        mixer = SelfAttentionConfig(heads=settings.num_attention_heads, dropout=settings.attention_probs_dropout_prob)
        stack = StackConfig(layers=settings.num_hidden_layers, norm_position="pre", epsilon=settings.layer_norm_eps,
                            dropout=settings.hidden_dropout_prob, mixer=mixer,
                            feed_forward=FeedForwardConfig(ffn_width=settings.intermediate_size,
                                                           activation=ACTIVATIONS[settings.hidden_act]))
        height, breadth = settings.image_size
        return VisionConfig(image_height=height, image_width=breadth, channels=settings.num_channels, stack=stack,
                            patch_size=settings.patch_size[0], num_labels=facts.labels, width=settings.hidden_size,
                            dropout=settings.hidden_dropout_prob)

    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> ViTSettings:
        assert isinstance(config, VisionConfig)
        mixer, wide = self_attention_of(config.stack, "ViT"), feed_forward_of(config.stack, "ViT")
        return ViTSettings(
            hidden_size=config.width, num_hidden_layers=config.stack.layers, num_attention_heads=mixer.heads,
            intermediate_size=wide.ffn_width, hidden_act=activation_name(wide.activation),
            layer_norm_eps=config.stack.epsilon,
            hidden_dropout_prob=config.stack.dropout, attention_probs_dropout_prob=mixer.dropout,
            image_size=(config.image_height, config.image_width), patch_size=(config.patch_size, config.patch_size),
            num_channels=config.channels, **special_keys(ViTSettings, facts.special))

    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        assert isinstance(config, VisionConfig)
        filters = TensorRule("vit.embeddings.patch_embeddings.projection.weight", ("patches.project.weight",),
                             patch_filters(config.channels, config.patch_size))
        return (filters, *VIT_RULES)

    def guess(self, names: Collection[str]) -> str | None:
        return "ViTForImageClassification" if "classifier.weight" in names else None
