"""ViT (Dosovitskiy et al. 2021): an image classifier over patches, with a class token and learned positions.

Its first layer is a convolution, ours a matrix over the same numbers. It knows keys and names; reading and writing are
elsewhere.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import choice, number, share, whole
from regard.models.build import ModelConfig
from regard.models.vision import VisionConfig
from regard.storage.huggingface.family import Asked, Family, Made, attention, feed_forward
from regard.storage.huggingface.mapping import Rule, Unused, grid, leading
from regard.storage.huggingface.settings import ACTIVATIONS, Settings, activation, only, special_keys

LAYER, BLOCK = "vit.encoder.layer.{i}", "stack.blocks.{i}"
TABLE = (
    Rule("vit.embeddings.cls_token", ("patches.token",), leading(2)),
    Rule("vit.embeddings.position_embeddings", ("patches.positions.encoding.table",), leading(1)),
    Rule("vit.embeddings.patch_embeddings.projection.bias", ("patches.project.bias",)),
    Rule(f"{LAYER}.layernorm_before.*", (f"{BLOCK}.around_mixer.norm.*",)),
    Rule(f"{LAYER}.attention.attention.query.*", (f"{BLOCK}.mixer.layer.query.*",)),
    Rule(f"{LAYER}.attention.attention.key.*", (f"{BLOCK}.mixer.layer.key.*",)),
    Rule(f"{LAYER}.attention.attention.value.*", (f"{BLOCK}.mixer.layer.value.*",)),
    Rule(f"{LAYER}.attention.output.dense.*", (f"{BLOCK}.mixer.layer.output.*",)),
    Rule(f"{LAYER}.layernorm_after.*", (f"{BLOCK}.around_feed_forward.norm.*",)),
    Rule(f"{LAYER}.intermediate.dense.*", (f"{BLOCK}.feed_forward.up.*",)),
    Rule(f"{LAYER}.output.dense.*", (f"{BLOCK}.feed_forward.down.*",)),
    Rule("vit.layernorm.*", ("stack.last_norm.*",)),
    Rule("classifier.*", ("output.*",)),
)


@dataclass(frozen=True, kw_only=True)
class ViTSettings(Settings):
    """The keys of ViT."""

    # For a head that draws hidden patches, and for a pooler: neither is part of a classifier.
    harmless: ClassVar[frozenset[str]] = frozenset(("encoder_stride", "pooler_output_size", "pooler_act",
                                                    "tie_word_embeddings"))
    repeated: ClassVar[Mapping[str, int]] = {**Settings.repeated, "image_size": 2, "patch_size": 2}

    hidden_size: int = whole(768, least=1)
    num_hidden_layers: int = whole(12, least=1)
    num_attention_heads: int = whole(12, least=1)
    intermediate_size: int = whole(3072, least=1)
    hidden_act: str = choice(ACTIVATIONS, "gelu")
    hidden_dropout_prob: float = share(0.0)
    attention_probs_dropout_prob: float = share(0.0)
    layer_norm_eps: float = number(1e-12, least=0.0)
    image_size: tuple[int, ...] = whole((224, 224), least=1)
    patch_size: tuple[int, ...] = whole((16, 16), least=1)
    num_channels: int = whole(3, least=1)
    qkv_bias: bool = only(True, "queries, keys and values without a bias beside an output with one are not read")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between keys: key, and why."""
        yield from super().conflicts()
        if len(self.image_size) != 2:
            yield "image_size", "an image has a height and a width"
        if len({*self.patch_size}) != 1 or len(self.patch_size) != 2:
            yield "patch_size", "only square patches are read"


class ViT(Family[ViTSettings]):
    """Keys and tensors of ViT."""

    name = "vit"
    base = "vit."
    architectures: ClassVar[Mapping[str, str]] = {"ViTForImageClassification": "vision"}
    unused = (Unused("vit.pooler.dense.*", "the pooler, which the classifier does not read"),)
    settings = ViTSettings

    def config(self, settings: ViTSettings, asked: Asked) -> ModelConfig:
        mixer = SelfAttentionConfig(heads=settings.num_attention_heads, dropout=settings.attention_probs_dropout_prob)
        stack = StackConfig(layers=settings.num_hidden_layers, order="pre", epsilon=settings.layer_norm_eps,
                            dropout=settings.hidden_dropout_prob, mixer=mixer,
                            feed_forward=FeedForwardConfig(inner=settings.intermediate_size,
                                                           activation=ACTIVATIONS[settings.hidden_act]))
        height, breadth = settings.image_size
        return VisionConfig(height=height, breadth=breadth, channels=settings.num_channels, stack=stack,
                            patch=settings.patch_size[0], labels=asked.labels, width=settings.hidden_size,
                            dropout=settings.hidden_dropout_prob)

    def told(self, config: ModelConfig, made: Made) -> ViTSettings:
        assert isinstance(config, VisionConfig)
        mixer, wide = attention(config.stack, "ViT"), feed_forward(config.stack, "ViT")
        return ViTSettings(
            hidden_size=config.width, num_hidden_layers=config.stack.layers, num_attention_heads=mixer.heads,
            intermediate_size=wide.inner, hidden_act=activation(wide.activation), layer_norm_eps=config.stack.epsilon,
            hidden_dropout_prob=config.stack.dropout, attention_probs_dropout_prob=mixer.dropout,
            image_size=(config.height, config.breadth), patch_size=(config.patch, config.patch),
            num_channels=config.channels, **special_keys(ViTSettings, made.special))

    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        assert isinstance(config, VisionConfig)
        filters = Rule("vit.embeddings.patch_embeddings.projection.weight", ("patches.project.weight",),
                       grid(config.channels, config.patch))
        return (filters, *TABLE)

    def guess(self, names: Collection[str]) -> str | None:
        return "ViTForImageClassification" if "classifier.weight" in names else None
