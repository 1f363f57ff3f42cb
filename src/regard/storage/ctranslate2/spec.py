"""A model of ours as a specification of CTranslate2: which of its arrays is which of our tensors.

    query, key, value   one matrix, one below the other; of the attention to a source, key and value
    positions           a table of `positions` rows, whatever they are computed from

A specification is a tree of named arrays that CTranslate2 writes itself. It does not know vocabularies, nor files.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.layer import AttentionConfig
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.stack import StackConfig
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.language import LanguageConfig
from regard.storage.ctranslate2 import fit

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
Tensors = Mapping[str, Tensor]


def package(name: str = "ctranslate2") -> Any:
    """CTranslate2, or a module of it; a ValueError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise checks.wrong("ctranslate2", "installed", "missing",
                           "Install it: pip install 'regard[export]'.") from error


def made(config: ModelConfig, tensors: Tensors, positions: int) -> Any:
    """The specification of a model with these tensors, by our names; it must fit."""
    fit.check(config)
    specs = package("ctranslate2.specs.transformer_spec")
    if isinstance(config, EncoderDecoderConfig):
        spec = specs.TransformerSpec(specs.TransformerEncoderSpec(**_options(config.encoder, config.embedding)),
                                     specs.TransformerDecoderSpec(**_options(config.decoder, config.embedding)))
        _side(spec.encoder, spec.encoder.embeddings[0], config.encoder, config, tensors, "encoder.", positions)
        _side(spec.decoder, spec.decoder.embeddings, config.decoder, config, tensors, "decoder.", positions)
        spec.config.layer_norm_epsilon = config.encoder.epsilon
    else:
        assert isinstance(config, LanguageConfig)
        options = _options(config.stack, config.embedding)
        spec = specs.TransformerDecoderModelSpec(specs.TransformerDecoderSpec(with_encoder_attention=False, **options))
        _side(spec.decoder, spec.decoder.embeddings, config.stack, config, tensors, "decoder.", positions)
        spec.config.layer_norm_epsilon = config.stack.epsilon
    _linear(spec.decoder.projection, tensors, "decoder.output")
    return spec


def _options(stack: StackConfig, embedding: EmbeddingConfig) -> dict[str, Any]:
    """What a stack is called there."""
    common = package("ctranslate2.specs.common_spec")
    assert isinstance(stack.mixer, SelfAttentionConfig)
    assert stack.feed_forward is not None
    return {"num_layers": stack.layers, "num_heads": stack.mixer.heads, "pre_norm": stack.order == "pre",
            "activation": common.Activation[ACTIVATIONS[stack.feed_forward.activation]],
            "layernorm_embedding": embedding.norm is not None, "ffn_glu": stack.feed_forward.form == "gated",
            "rms_norm": stack.norm == "rms"}


def _side(spec: Any, table: Any, stack: StackConfig, config: EncoderDecoderConfig | LanguageConfig, tensors: Tensors,
          side: str, positions: int) -> None:
    """All of an encoder, or of a decoder but for its output."""
    embedding, width = config.embedding, config.width
    table.weight = _array(tensors[f"{side}embedding.tokens.weight"])
    spec.scale_embeddings = embedding.scale
    spec.position_encodings.encodings = _positions(embedding, tensors, side, positions, width)
    if embedding.norm is not None:
        _norm(spec.layernorm_embedding, tensors, f"{side}embedding.norm")
    if stack.order == "pre":
        _norm(spec.layer_norm, tensors, f"{side}stack.last_norm")
    for number, layer in enumerate(spec.layer):
        block = f"{side}stack.blocks.{number}."
        _attention(layer.self_attention, tensors, f"{block}mixer.layer", stack.mixer, width)  # type: ignore[arg-type]
        _norm(layer.self_attention.layer_norm, tensors, f"{block}around_mixer.norm")
        if stack.cross is not None:
            _attention(layer.attention, tensors, f"{block}cross", stack.cross, width)
            _norm(layer.attention.layer_norm, tensors, f"{block}around_cross.norm")
        ways = ("gate", "up") if stack.feed_forward is not None and stack.feed_forward.form == "gated" else ("up",)
        for way, linear in zip(ways, ("linear_0", "linear_0_noact"), strict=False):
            _linear(getattr(layer.ffn, linear), tensors, f"{block}feed_forward.{way}")
        _linear(layer.ffn.linear_1, tensors, f"{block}feed_forward.down")
        _norm(layer.ffn.layer_norm, tensors, f"{block}around_feed_forward.norm")


def _positions(embedding: EmbeddingConfig, tensors: Tensors, side: str, count: int, width: int) -> np.ndarray[Any, Any]:
    """(count, width): the vectors of the first positions; zeros where there are none."""
    if embedding.positions is None:
        return np.zeros((count, width), np.float32)
    name = f"{side}embedding.positions.encoding.table"
    if name in tensors:
        return _array(tensors[name][:count])
    encoding: nn.Module = embedding.positions.build(width)
    return _array(encoding(torch.arange(count), dtype=torch.float32))


def _attention(spec: Any, tensors: Tensors, name: str, config: AttentionConfig, width: int) -> None:
    parts = ("query", "key", "value")
    groups = [parts] if len(spec.linear) == 2 else [parts[:1], parts[1:]]
    for linear, group in zip(spec.linear, groups, strict=False):
        linear.weight = np.concatenate([_array(tensors[f"{name}.{part}.weight"]) for part in group])
        if config.bias:
            linear.bias = np.concatenate([_array(tensors[f"{name}.{part}.bias"]) for part in group])
    _linear(spec.linear[-1], tensors, f"{name}.output")
    if config.score != "scaled_dot":  # which is what it computes where nothing is said
        spec.queries_scale = np.float32((width // config.heads) ** fit.SCALES[config.score])


def _linear(spec: Any, tensors: Tensors, name: str) -> None:
    spec.weight = _array(tensors[f"{name}.weight"])
    if f"{name}.bias" in tensors:
        spec.bias = _array(tensors[f"{name}.bias"])


def _norm(spec: Any, tensors: Tensors, name: str) -> None:
    spec.gamma = _array(tensors[f"{name}.weight"])
    if f"{name}.bias" in tensors:
        spec.beta = _array(tensors[f"{name}.bias"])


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.detach().to("cpu", torch.float32).numpy())  # a copy: quantising writes into it
