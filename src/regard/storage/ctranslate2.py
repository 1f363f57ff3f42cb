"""Export to CTranslate2: which models it can run, and the folder that it loads.

    model.bin                                        the weights, quantised on request
    config.json                                      the names of the special tokens
    source_vocabulary.json, target_vocabulary.json   the name of each id; shared_vocabulary.json if they are the same

CTranslate2 runs Transformers: softmax attention over dot products and feed-forward layers, with pre- or post-norm.
Position encodings that are added to the embeddings are written as a table, however they are computed; rotary positions
only in language models. Dropout,
`backend` and activation checkpointing do not change what a model computes, so they are not checked. Query, key and
value are one stacked matrix there; in cross-attention, key and value.

CTranslate2 takes texts as token names. An id has the name that its tokenizer shows, or <ID> where it has none or where
another id has the same name. The caller adds the end token to a source, as for our own models. This module knows
neither tokenizers nor decoding.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.layer import AttentionConfig, SelfAttentionConfig
from regard.blocks.stack import StackConfig
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.language import LanguageModelConfig
from regard.position.rotary import RotaryConfig
from regard.special_tokens import SpecialTokens

SCORE_SCALES = {"scaled_dot": -0.5, "scaled_dot_d": -1.0, "dot": 0.0}
"""The supported scores, and the power of the head width that scales the dot product."""
Unsupported = tuple[str, str]
"""A config key, and why its value is not supported."""


def check_supported(config: ModelConfig) -> None:
    """Refuse a config that CTranslate2 cannot run, and list every unsupported key."""
    found = [*find_unsupported(config)]
    if found:
        lines = "\n  ".join(f"model.{key}: {why}" for key, why in found)
        raise ValueError(f"CTranslate2 cannot run this model:\n  {lines}")


def find_unsupported(config: ModelConfig) -> Iterator[Unsupported]:
    """All parts of a config that CTranslate2 cannot run."""
    if isinstance(config, EncoderDecoderConfig):
        yield from _unsupported_embedding(config.embedding, config.encoder)
        yield from _unsupported_stack("encoder", config.encoder)
        yield from _unsupported_stack("decoder", config.decoder)
        yield from _unsupported_cross(config.decoder)
        for key in ("norm", "epsilon"):
            mine, others = getattr(config.encoder, key), getattr(config.decoder, key)
            if mine != others:
                yield f"decoder.{key}", f"must be that of the encoder, {mine}, but is {others}"
    elif isinstance(config, LanguageModelConfig):
        yield from _unsupported_embedding(config.embedding, config.stack)
        yield from _unsupported_stack("stack", config.stack, rotary=True)
        if _rotary(config.stack) is not None and config.embedding.positions is not None:
            yield "embedding.positions", "must be left out with rotary positions"
    else:
        yield "kind", f'must be "encoder-decoder" or "language", but is "{config.kind}"'


def _unsupported_embedding(embedding: EmbeddingConfig, stack: StackConfig) -> Iterator[Unsupported]:
    if embedding.combine != "added":
        yield "embedding.combine", "positions must be added to the embeddings, not concatenated"
    if embedding.segments:
        yield "embedding.segments", "segment embeddings are not supported"
    if embedding.norm is None:
        return
    for key in ("norm", "epsilon"):
        mine, others = getattr(embedding, key), getattr(stack, key)
        if mine != others:
            yield f"embedding.{key}", f"must be that of the blocks, {others}, but is {mine}"


def _rotary(stack: StackConfig) -> RotaryConfig | None:
    """The rotary positions of a stack; None if it has none."""
    position = getattr(stack.mixer, "position", None)
    return position if isinstance(position, RotaryConfig) else None


def _unsupported_stack(name: str, stack: StackConfig, *, rotary: bool = False) -> Iterator[Unsupported]:
    if stack.norm_position == "none":
        yield f"{name}.norm_position", 'must be "pre" or "post", but is "none"'
    if not isinstance(stack.mixer, SelfAttentionConfig):
        yield f"{name}.mixer.kind", f'must be "attention", but is "{stack.mixer.kind}"'
    else:
        yield from _unsupported_attention(f"{name}.mixer", stack.mixer)
        if stack.mixer.window is not None:
            yield f"{name}.mixer.window", "windowed attention is not supported"
        if stack.mixer.position is not None and not (rotary and _rotary(stack)):
            kind = stack.mixer.position.kind
            yield f"{name}.mixer.position", f'positions in the attention ("{kind}") are not supported'
    if stack.feed_forward is None:
        yield f"{name}.feed_forward", "every block must have a feed-forward layer"


def _unsupported_attention(name: str, attention: AttentionConfig) -> Iterator[Unsupported]:
    if attention.score not in SCORE_SCALES:
        yield f"{name}.score", f'must be one of {", ".join(SCORE_SCALES)}, but is "{attention.score}"'
    if attention.softcap is not None:
        yield f"{name}.softcap", "a softcap is not supported"
    if attention.gate:
        yield f"{name}.gate", "gated attention is not supported"
    if attention.normalize != "softmax":
        yield f"{name}.normalize", f'must be "softmax", but is "{attention.normalize}"'
    if attention.key_heads not in (None, attention.heads):
        yield f"{name}.key_heads", f"must be the number of heads, {attention.heads}, but is {attention.key_heads}"
    if attention.head_width is not None:
        yield f"{name}.head_width", f"must be left out (width / heads), but is {attention.head_width}"


def _unsupported_cross(stack: StackConfig) -> Iterator[Unsupported]:
    if stack.cross is None or not isinstance(stack.mixer, SelfAttentionConfig):
        return  # reported already
    yield from _unsupported_attention("decoder.cross", stack.cross)
    if stack.cross.heads != stack.mixer.heads:
        yield "decoder.cross.heads", f"must be that of the mixer, {stack.mixer.heads}, but is {stack.cross.heads}"


ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
Tensors = Mapping[str, Tensor]


def import_ctranslate2(name: str = "ctranslate2") -> Any:
    """Import CTranslate2 or a module of it; a ValueError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError("The engine and the export for CTranslate2 need the package ctranslate2: "
                         "pip install 'regard[export]'.") from error


def build_spec(config: ModelConfig, tensors: Tensors, positions: int) -> Any:
    """The CTranslate2 specification (a tree of named arrays) of a model with these tensors, by our names."""
    check_supported(config)
    specs = import_ctranslate2("ctranslate2.specs.transformer_spec")
    if isinstance(config, EncoderDecoderConfig):
        spec = specs.TransformerSpec(specs.TransformerEncoderSpec(**_stack_options(config.encoder, config.embedding)),
                                     specs.TransformerDecoderSpec(**_stack_options(config.decoder, config.embedding)))
        _fill_side(spec.encoder, spec.encoder.embeddings[0], config.encoder, config, tensors, "encoder.", positions)
        _fill_side(spec.decoder, spec.decoder.embeddings, config.decoder, config, tensors, "decoder.", positions)
        spec.config.layer_norm_epsilon = config.encoder.epsilon
    else:
        assert isinstance(config, LanguageModelConfig)
        options = _stack_options(config.stack, config.embedding)
        if (rotary := _rotary(config.stack)) is not None:  # a width of 0 stands for the whole head
            options |= {"rotary_dim": 0, "rotary_interleave": rotary.pairing == "interleaved",
                        "rotary_base": rotary.base}
        spec = specs.TransformerDecoderModelSpec(specs.TransformerDecoderSpec(with_encoder_attention=False, **options))
        _fill_side(spec.decoder, spec.decoder.embeddings, config.stack, config, tensors, "decoder.", positions)
        spec.config.layer_norm_epsilon = config.stack.epsilon
    _fill_linear(spec.decoder.projection, tensors, "decoder.output")
    return spec


def _stack_options(stack: StackConfig, embedding: EmbeddingConfig) -> dict[str, Any]:
    """The options of a stack in the specification."""
    common = import_ctranslate2("ctranslate2.specs.common_spec")
    assert isinstance(stack.mixer, SelfAttentionConfig)
    assert stack.feed_forward is not None
    return {"num_layers": stack.layers, "num_heads": stack.mixer.heads, "pre_norm": stack.norm_position == "pre",
            "activation": common.Activation[ACTIVATIONS[stack.feed_forward.activation]],
            "layernorm_embedding": embedding.norm is not None, "ffn_glu": stack.feed_forward.gated,
            "rms_norm": stack.norm == "rms"}


def _fill_side(spec: Any, table: Any, stack: StackConfig, config: EncoderDecoderConfig | LanguageModelConfig,
               tensors: Tensors,
               side: str, positions: int) -> None:
    """Fill in an encoder, or a decoder without its output layer."""
    embedding, width = config.embedding, config.width
    table.weight = _to_array(tensors[f"{side}embedding.tokens.weight"])
    spec.scale_embeddings = embedding.scale
    if _rotary(stack) is None:
        spec.position_encodings.encodings = _position_table(embedding, tensors, side, positions, width)
    if embedding.norm is not None:
        _fill_norm(spec.layernorm_embedding, tensors, f"{side}embedding.norm")
    if stack.norm_position == "pre":
        _fill_norm(spec.layer_norm, tensors, f"{side}stack.last_norm")
    for number, layer in enumerate(spec.layer):
        block = f"{side}stack.blocks.{number}."
        assert isinstance(stack.mixer, SelfAttentionConfig)
        _fill_attention(layer.self_attention, tensors, f"{block}mixer.layer", stack.mixer, width)
        _fill_norm(layer.self_attention.layer_norm, tensors, f"{block}around_mixer.norm")
        if stack.cross is not None:
            _fill_attention(layer.attention, tensors, f"{block}cross", stack.cross, width)
            _fill_norm(layer.attention.layer_norm, tensors, f"{block}around_cross.norm")
        ways = ("gate", "up") if stack.feed_forward is not None and stack.feed_forward.gated else ("up",)
        for way, linear in zip(ways, ("linear_0", "linear_0_noact"), strict=False):
            _fill_linear(getattr(layer.ffn, linear), tensors, f"{block}feed_forward.{way}")
        _fill_linear(layer.ffn.linear_1, tensors, f"{block}feed_forward.down")
        _fill_norm(layer.ffn.layer_norm, tensors, f"{block}around_feed_forward.norm")


def _position_table(embedding: EmbeddingConfig, tensors: Tensors, side: str, count: int, width: int) -> np.ndarray[Any,
                                                                                                                   Any]:
    """(count, width): the encodings of the first positions; zeros if there are none."""
    if embedding.positions is None:
        return np.zeros((count, width), np.float32)
    name = f"{side}embedding.positions.encoding.table"
    if name in tensors:
        return _to_array(tensors[name][:count])
    encoding: nn.Module = embedding.positions.build(width)
    return _to_array(encoding(torch.arange(count), dtype=torch.float32))


def _fill_attention(spec: Any, tensors: Tensors, name: str, config: AttentionConfig, width: int) -> None:
    parts = ("query", "key", "value")
    groups = [parts] if len(spec.linear) == 2 else [parts[:1], parts[1:]]
    for linear, group in zip(spec.linear, groups, strict=False):
        linear.weight = np.concatenate([_to_array(tensors[f"{name}.{part}.weight"]) for part in group])
        if config.has_qkv_bias:
            linear.bias = np.concatenate([_to_array(tensors[f"{name}.{part}.bias"]) for part in group])
    _fill_linear(spec.linear[-1], tensors, f"{name}.output")
    if config.scale is not None:
        spec.queries_scale = np.float32(config.scale)
    elif config.score != "scaled_dot":  # scaled_dot is its default
        spec.queries_scale = np.float32((width // config.heads) ** SCORE_SCALES[config.score])


def _fill_linear(spec: Any, tensors: Tensors, name: str) -> None:
    spec.weight = _to_array(tensors[f"{name}.weight"])
    if f"{name}.bias" in tensors:
        spec.bias = _to_array(tensors[f"{name}.bias"])


def _fill_norm(spec: Any, tensors: Tensors, name: str) -> None:
    spec.gamma = _to_array(tensors[f"{name}.weight"])
    if f"{name}.bias" in tensors:
        spec.beta = _to_array(tensors[f"{name}.bias"])


def _to_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.detach().to("cpu", torch.float32).numpy())  # a copy, because quantisation writes into it


QUANTIZATIONS = {"float32": "float32", "float16": "float32", "bfloat16": "float32", "int8": "int8_float32"}
"""The stored type of matrices, and the type that a CPU computes with. A GPU computes with the stored type."""
DEFAULT_POSITIONS = 2048
"""Rows of the position table if positions are unlimited."""


@dataclass(frozen=True)
class VocabularyNames:
    """Token names of the ids on each side; the same for both if a model has one side."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The vocabulary files of a translation model."""
        if self.source == self.target:
            return ("shared_vocabulary.json",)
        return "source_vocabulary.json", "target_vocabulary.json"


def unique_names(pieces: Sequence[str], size: int) -> tuple[str, ...]:
    """Unique names for all `size` ids of a model: the pieces, and <ID> for ids without a name of their own."""
    named, taken = list[str](), set[str]()
    numbered = {f"<{id_}>" for id_ in range(size)}
    for id_ in range(size):
        name = pieces[id_] if id_ < len(pieces) else ""
        if not name or name in taken or name in numbered:
            name = f"<{id_}>"
        taken.add(name)
        named.append(name)
    return tuple(named)


def max_positions(config: ModelConfig) -> int | None:
    """The number of positions of an exported model; None if it is unlimited."""
    if isinstance(config, LanguageModelConfig) and _rotary(config.stack) is not None:
        return None
    embedding = getattr(config, "embedding", None)
    count = getattr(embedding.positions, "max_positions", None) if embedding is not None else None
    return DEFAULT_POSITIONS if count is None else count


def write_ctranslate2(folder: Path, config: ModelConfig, special: SpecialTokens, tensors: Tensors,
                      names: VocabularyNames,
                      quantization: str = "float32") -> tuple[str, ...]:
    """Write the files into an existing folder and return their names; a ValueError says what is not supported.

    Args:
        tensors: the state dict of the model, by our names.
        quantization: the stored type of matrices, one of QUANTIZATIONS.
    """
    checks.pick("quantization", quantization, QUANTIZATIONS)
    if not special.end:
        raise checks.wrong("special.end", "at least one id: CTranslate2 needs an end token", "empty")
    if special.start is None and isinstance(config, EncoderDecoderConfig):
        raise checks.wrong("special.start", "an id: the decoder needs a start token", None)
    specified = build_spec(config, tensors, max_positions(config) or DEFAULT_POSITIONS)
    end = names.target[special.end[0]]
    options = specified.config
    options.eos_token = end
    options.bos_token = end if special.start is None else names.target[special.start]
    options.unk_token = end if special.unknown is None else names.target[special.unknown]
    if isinstance(config, EncoderDecoderConfig):
        options.decoder_start_token, options.add_source_bos, options.add_source_eos = options.bos_token, False, False
        specified.register_source_vocabulary([*names.source])
        specified.register_target_vocabulary([*names.target])
        vocabularies = names.files
    else:
        specified.register_vocabulary([*names.target])
        vocabularies = ("vocabulary.json",)
    specified.validate()
    specified.optimize(quantization)
    specified.save(str(folder))
    return ("model.bin", "config.json", *vocabularies)
