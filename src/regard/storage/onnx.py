"""Export to ONNX: graphs for any batch size and any length.

    encoder.onnx    ids (B, N), lengths (B,) -> states (B, N, D)                     a translation model
    decoder.onnx    ids (B, n), states (B, N, D), lengths (B,) -> logits (B, n, V)   a translation model, all tokens
    model.onnx      ids (B, N) -> logits (B, N, V)                                   a language model
    model.onnx      ids (B, N), lengths (B,) -> logits or states                     an encoder, with or without a head
    model.onnx      images (B, C, H, W) -> logits (B, labels)                        an image classifier

Rows are padded on the right, and `lengths` gives the length of each row. A graph has no cache: to generate, pass all
tokens so far and take the logits of the last one. Torch's exporter traces tensors and cannot trace a recurrence, whose
number of steps depends on the lengths: models with one are refused.
"""

import copy
import importlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import Config
from regard.models.build import ModelConfig
from regard.models.contract import Memory
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig
from regard.models.vision import VisionConfig
from regard.tokens import Tokens

REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20
RECURRENT = {"recurrence", "lstmn", "rwkv4", "rwkv7"}
"""Mixers that the exporter cannot trace."""
MAX_SINGLE_FILE_BYTES = 2**30
"""Weights beyond this size are stored in a separate file; at twice the size a single file is impossible."""
DynamicAxes = dict[int, Any]


@dataclass(frozen=True)
class OnnxGraph:
    """A graph to export: the module, example inputs, and their dynamic axes."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, DynamicAxes]
    output: str


class OnnxSourceEncoder(nn.Module):
    """The encoder of a translation model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The encoder states."""
        return self.model.encode(Tokens(ids, lengths)).states  # type: ignore[operator]


class OnnxTargetDecoder(nn.Module):
    """The decoder of a translation model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """The logits."""
        return self.model.decode(Tokens(ids), Memory(states, lengths))  # type: ignore[operator]


class OnnxLanguageModel(nn.Module):
    """A language model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """The logits."""
        return self.model.decode(Tokens(ids))  # type: ignore[operator]


class OnnxEncoder(nn.Module):
    """An encoder, with or without a head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits, or the states of an encoder."""
        return self.model(Tokens(ids, lengths))


def import_extra(name: str) -> Any:
    """Import a package of the extra `export`; a ValueError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"ONNX export needs the package {name}: pip install 'regard[export]'.") from error


def check_exportable(config: ModelConfig) -> None:
    """Refuse a config that cannot be exported, and list every key that prevents it."""
    if config.kind == "seq2seq":
        found = ["kind"]
    else:
        found = [f"{key}.kind" for key, part in _nested_configs("", config) if getattr(part, "kind", None) in RECURRENT]
    if found:
        keys = ", ".join(f"model.{key}" for key in found)
        raise ValueError(f"ONNX export does not support recurrence ({keys}): its number of steps depends on the "
                         "lengths, which torch's exporter cannot trace.")


def write_onnx(folder: Path, config: ModelConfig, model: nn.Module) -> tuple[str, ...]:
    """Write the graphs into an existing folder and return the file names; a ValueError says what is not supported."""
    check_exportable(config)
    for name in REQUIRED_PACKAGES:
        import_extra(name)
    plain = copy.deepcopy(model).to("cpu", torch.float32)
    size = 4 * sum(parameter.numel() for parameter in plain.parameters())
    for graph in _model_graphs(config, plain):
        _export_graph(graph).save(str(folder / graph.name), external_data=size > MAX_SINGLE_FILE_BYTES)
    return tuple(sorted(path.name for path in folder.iterdir()))


def _model_graphs(config: ModelConfig, model: nn.Module) -> Iterator[OnnxGraph]:
    """The graphs of a model. The example sizes are arbitrary: the exporter treats only 0 and 1 specially."""
    rows, tokens, written = (torch.export.Dim(name) for name in ("rows", "tokens", "written"))
    ids, lengths = torch.zeros(3, 5, dtype=torch.long), torch.tensor([5, 3, 4])
    one, both = {"lengths": {0: rows}}, {"ids": {0: rows, 1: tokens}}
    if isinstance(config, EncoderDecoderConfig):
        yield OnnxGraph("encoder.onnx", OnnxSourceEncoder(model), {"ids": ids, "lengths": lengths}, both | one,
                        "states")
        inputs = {"ids": torch.zeros(3, 4, dtype=torch.long), "states": torch.zeros(3, 5, config.width),
                  "lengths": lengths}
        axes = {"ids": {0: rows, 1: written}, "states": {0: rows, 1: tokens}}
        yield OnnxGraph("decoder.onnx", OnnxTargetDecoder(model), inputs, axes | one, "logits")
    elif isinstance(config, LanguageModelConfig):
        yield OnnxGraph("model.onnx", OnnxLanguageModel(model), {"ids": ids}, both, "logits")
    elif isinstance(config, VisionConfig):
        images = torch.zeros(3, config.channels, config.image_height, config.image_width)
        yield OnnxGraph("model.onnx", model, {"images": images}, {"images": {0: rows}}, "logits")
    else:
        assert isinstance(config, EncoderConfig)
        output = "states" if config.kind == "encoder" else "logits"
        yield OnnxGraph("model.onnx", OnnxEncoder(model), {"ids": ids, "lengths": lengths}, both | one, output)


def _export_graph(graph: OnnxGraph) -> Any:
    """Export a graph; warnings of the exporter about its own internals are suppressed."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.onnx.export(graph.module.eval(), tuple(graph.inputs.values()), dynamo=True, verbose=False,
                                     dynamic_shapes=graph.axes, input_names=[*graph.inputs],
                                     output_names=[graph.output], opset_version=OPSET)
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0][:200]
        raise ValueError(f"torch's ONNX exporter cannot trace this model: {reason}") from error
    finally:
        logging.disable(level)


def _nested_configs(above: str, part: object) -> Iterator[tuple[str, object]]:
    """A config and all configs inside it, by their keys."""
    if isinstance(part, Config) and is_dataclass(part):
        yield above, part
        for field in fields(part):
            name = f"{above}.{field.name}" if above else field.name
            yield from _nested_configs(name, getattr(part, field.name))
