"""Small models of every kind, from configs: what tests of the contract run on."""

from dataclasses import replace

import torch

from regard.attention.layer import AttentionConfig, SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.convolution import ConvolutionConfig
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.models.seq2seq import Seq2SeqAttentionConfig, Seq2SeqConfig
from regard.models.vision import VisionConfig
from regard.position.bias import ALiBiConfig, BucketedBiasConfig, RelativeBiasConfig
from regard.position.encoding import FormalSinusoidalConfig, LearnedConfig, LinearConfig, SinusoidalConfig
from regard.position.rope_scaling import DynamicRopeScaling, YarnRopeScaling
from regard.position.rotary import RotaryConfig
from regard.recurrence.lstmn import LSTMNConfig
from regard.recurrence.scan import RecurrenceConfig
from regard.rwkv.channel_mix import ChannelMixConfig
from regard.rwkv.time_mix import RWKV4Config, RWKV7Config

SOURCE, TARGET, WIDTH, LONGEST = 11, 13, 8, 12

ATTENTION = SelfAttentionConfig(heads=2)
MIXERS = {
    "attention": ATTENTION,
    "rotary": SelfAttentionConfig(heads=2, key_heads=1, bias=False, position=RotaryConfig()),
    "alibi": SelfAttentionConfig(heads=2, position=ALiBiConfig()),
    "relative": SelfAttentionConfig(heads=2, position=RelativeBiasConfig(max_distance=3)),
    "bucketed": SelfAttentionConfig(heads=2, position=BucketedBiasConfig(num_buckets=8, max_distance=9)),
    "window": SelfAttentionConfig(heads=2, window=2),
    "additive": SelfAttentionConfig(heads=2, head_width=3, score="additive", normalize="relu_sum"),
    "bilinear": SelfAttentionConfig(heads=2, score="bilinear", normalize="sigmoid"),
    "gated": SelfAttentionConfig(heads=2, key_heads=1, gate=True, position=RotaryConfig()),
    "recurrence": RecurrenceConfig(cell="lstm"),
    "mut1": RecurrenceConfig(cell="mut1", layers=2),
    "convolution": ConvolutionConfig(kernel_size=3, dilation_growth=2, gate="glu"),
    "lstmn": LSTMNConfig(attention_width=5),
    "rwkv4": RWKV4Config(),
    "rwkv7": RWKV7Config(head_width=4, decay_rank=2, learning_rate_rank=2, value_rank=3, gate_rank=2),
}
PACKABLE = ("attention", "rotary", "alibi", "relative", "bucketed", "window", "additive", "bilinear", "gated")
"""The mixers that take packed rows."""
EMBEDDINGS = {
    "sinusoidal": EmbeddingConfig(positions=SinusoidalConfig(), scale=True),
    "halves": EmbeddingConfig(positions=SinusoidalConfig(layout="halves")),
    "learned": EmbeddingConfig(positions=LearnedConfig(max_positions=LONGEST), norm="layer"),
    "linear": EmbeddingConfig(positions=LinearConfig(slope=0.01)),
    "formal": EmbeddingConfig(positions=FormalSinusoidalConfig(max_length=LONGEST)),
    "beside": EmbeddingConfig(positions=SinusoidalConfig(), combine="concatenated", position_width=2),
    "segments": EmbeddingConfig(segments=2, norm="rms"),
    "none": EmbeddingConfig(),
}


def stack(mixer="attention", *, cross=False, gated=False, **options):
    """A stack of two blocks."""
    attending = AttentionConfig(heads=2, gate=mixer == "gated")
    if mixer.startswith("rwkv"):
        return StackConfig(layers=2, mixer=MIXERS[mixer], cross=attending if cross else None,
                           channel_mix=ChannelMixConfig(ffn_width=10, gated=mixer == "rwkv4"), **options)
    return StackConfig(layers=2, mixer=MIXERS[mixer], cross=attending if cross else None,
                       feed_forward=FeedForwardConfig(ffn_width=10, gated=gated, bias=not gated), **options)


def translating(mixer="attention", embedding="sinusoidal", order="pre", **options):
    """An encoder-decoder."""
    values = {"source_vocab_size": SOURCE, "target_vocab_size": TARGET,
              "tie_word_embeddings": embedding != "beside"} | options
    return EncoderDecoderConfig(width=WIDTH, embedding=EMBEDDINGS[embedding], encoder=stack(mixer, norm_position=order),
                                decoder=stack(mixer, norm_position=order, cross=True), **values)


def language(mixer="attention", embedding="learned", order="pre", gated=False, norm="layer", **options):
    """A language model."""
    return LanguageModelConfig(vocab_size=TARGET, width=WIDTH, embedding=EMBEDDINGS[embedding],
                               stack=stack(mixer, norm_position=order, gated=gated, norm=norm), **options)


def reading(kind=EncoderConfig, mixer="attention", embedding="learned", order="post", **options):
    """An encoder, or a model that is an encoder and something more."""
    return kind(vocab_size=SOURCE, width=WIDTH, embedding=EMBEDDINGS[embedding],
                stack=stack(mixer, norm_position=order), **options)


def old(**options):
    """A recurrent language model as they were: layers over each other and nothing else."""
    plain = StackConfig(layers=2, norm_position="none", mixer=RecurrenceConfig(**options))
    return LanguageModelConfig(vocab_size=TARGET, width=WIDTH, tie_word_embeddings=False, output_bias=True, stack=plain)


def seq2seq(**options):
    """The recurrent encoder-decoder."""
    return Seq2SeqConfig(source_vocab_size=SOURCE, target_vocab_size=TARGET, width=WIDTH, **options)


TRANSLATING = {
    **{mixer: translating(mixer) for mixer in MIXERS},
    "post-norm": translating(order="post", share_embeddings=True, target_vocab_size=SOURCE),
    "untied": translating(embedding="learned", tie_word_embeddings=False, output_bias=True),
    "beside": translating(embedding="beside"),
    "seq2seq": seq2seq(cell="lstm"),
    "seq2seq-attention": seq2seq(direction="both", layers=2, input_feeding=True, attention=Seq2SeqAttentionConfig()),
    "seq2seq-projected": seq2seq(init_hidden="mean",
                                 attention=Seq2SeqAttentionConfig(score="bilinear", values="projected")),
}
def rotary_language(scaling, **attention):
    """A relative of Llama, with its biases, its window and the scaling of its angles."""
    mixer = SelfAttentionConfig(heads=2, bias=False, position=RotaryConfig(base=100.0, rope_scaling=scaling),
                                **attention)
    llama = language("rotary", "none", gated=True, norm="rms", tie_word_embeddings=False)
    return replace(llama, stack=replace(llama.stack, mixer=mixer))


LANGUAGE = {
    **{mixer: language(mixer) for mixer in MIXERS},
    **{embedding: language(embedding=embedding, tie_word_embeddings=embedding != "beside") for embedding in EMBEDDINGS},
    "llama": language("rotary", "none", gated=True, norm="rms", tie_word_embeddings=False),
    "mistral": rotary_language(YarnRopeScaling(factor=4.0, original_max_position_embeddings=6), window=2),
    "qwen2": rotary_language(DynamicRopeScaling(factor=4.0, original_max_position_embeddings=3), qkv_bias=True),
    "old": old(cell="gru"),
    "old mut2": old(cell="mut2"),
}
READING = {
    "encoder": reading(),
    "masked": reading(MaskedModelConfig, embedding="segments"),
    "masked wide": reading(MaskedModelConfig, "convolution", mlm_width=6, tie_word_embeddings=False,
                           output_bias=False),
    "tagger": reading(TaggerConfig, "recurrence", num_labels=3),
    "front": reading(TaggerConfig, "rotary", "none", "pre", num_labels=3,
                     front=StackConfig(layers=1, mixer=ConvolutionConfig(kernel_size=3, gate="glu"))),
    "first": reading(ClassifierConfig, num_labels=3, pooling="first", pooler_activation="tanh"),
    "last": reading(ClassifierConfig, "recurrence", num_labels=3, pooling="last"),
    "mean": reading(ClassifierConfig, "rotary", "none", num_labels=3, pooling="mean"),
}
VISION = {
    "class": VisionConfig(image_height=8, image_width=12, patch_size=4, num_labels=5, width=WIDTH, stack=stack()),
    "no token": VisionConfig(image_height=8, image_width=8, channels=1, patch_size=2, num_labels=5, width=WIDTH,
                             class_token=False, positions=SinusoidalConfig(), stack=stack(norm_position="post")),
}
ALL = {f"{group} {name}": config
       for group, table in (("translating", TRANSLATING), ("language", LANGUAGE), ("reading", READING),
                            ("vision", VISION))
       for name, config in table.items()}


def built(config, seed=3):
    """The model in float64, ready to be used, with all that starts as zeros or ones drawn."""
    torch.manual_seed(seed)
    model = config.build().double().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name or name.endswith(".table") or not parameter.any():
            torch.nn.init.normal_(parameter, float("norm" in name and name.endswith("weight")), 0.3)
    return model
