"""Export to ONNX: graphs for any batch size and any length.

    encoder.onnx    ids (B, N), lengths (B,) -> states (B, N, D)                     a translation model
    decoder.onnx    ids (B, n), states (B, N, D), lengths (B,) -> logits (B, n, V)   a translation model, all tokens at once
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

from regard import checks
from regard.config import Config
from regard.models.build import ModelConfig
from regard.models.contract import Memory
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig
from regard.models.vision import VisionConfig
from regard.tokens import Tokens

REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20
RECURRENT = {"recurrence", "lstmn"}
"""The mixers that cannot be followed."""
MAX_SINGLE_FILE_BYTES = 2**30
"""Bytes of weights up to which a graph is one file. Beyond twice that it cannot be."""
DynamicAxes = dict[int, Any]


@dataclass(frozen=True)
class OnnxGraph:
    """What a graph is made of: a module, what it is called with, and which sizes of that may differ."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, DynamicAxes]
    output: str


class OnnxSourceEncoder(nn.Module):
    """The source of a translator."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The states."""
        return self.model.encode(Tokens(ids, lengths)).states  # type: ignore[operator]


class OnnxTargetDecoder(nn.Module):
    """The target of a translator."""

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
    """A model that reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits, or the states of an encoder."""
        return self.model(Tokens(ids, lengths))


def import_extra(name: str) -> Any:
    """A package that is needed here; a ValueError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise checks.wrong(name, "installed", "missing", "Install it: pip install 'regard[export]'.") from error


def check_exportable(config: ModelConfig) -> None:
    """Refuse a config whose model has no graph, with every key that is in the way."""
    if config.kind == "seq2seq":
        found = ["kind"]
    else:
        found = [f"{key}.kind" for key, part in _nested_configs("", config) if getattr(part, "kind", None) in RECURRENT]
    if found:
        keys = ", ".join(f"model.{key}" for key in found)
        raise checks.wrong("config", "one without recurrence, to be written as ONNX", f"one with it, in {keys}",
                           "The steps of a recurrence depend on the lengths, which a graph cannot follow.")


def write_onnx(folder: Path, config: ModelConfig, model: nn.Module) -> tuple[str, ...]:
    """Write the graphs into a folder that is there, and give the names of the files; a ValueError says what does not
    fit."""
    check_exportable(config)
    for name in REQUIRED_PACKAGES:
        import_extra(name)
    plain = copy.deepcopy(model).to("cpu", torch.float32)
    size = 4 * sum(parameter.numel() for parameter in plain.parameters())
    for graph in _model_graphs(config, plain):
        _export_graph(graph).save(str(folder / graph.name), external_data=size > MAX_SINGLE_FILE_BYTES)
    return tuple(sorted(path.name for path in folder.iterdir()))


def _model_graphs(config: ModelConfig, model: nn.Module) -> Iterator[OnnxGraph]:
    """The graphs of a model. The sizes of the examples mean nothing: all but 0 and 1 are alike to the exporter."""
    rows, tokens, written = (torch.export.Dim(name) for name in ("rows", "tokens", "written"))
    ids, lengths = torch.zeros(3, 5, dtype=torch.long), torch.tensor([5, 3, 4])
    one, both = {"lengths": {0: rows}}, {"ids": {0: rows, 1: tokens}}
    if isinstance(config, EncoderDecoderConfig):
        yield OnnxGraph("encoder.onnx", OnnxSourceEncoder(model), {"ids": ids, "lengths": lengths}, both | one, "states")
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
    """The graph as the exporter gives it. What it says on the way is of its own parts, and nothing to be done about."""
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
        raise checks.wrong("model", "one that torch's exporter can follow", f"not ({reason})") from error
    finally:
        logging.disable(level)


def _nested_configs(above: str, part: object) -> Iterator[tuple[str, object]]:
    """All tables of a config, by their keys."""
    if isinstance(part, Config) and is_dataclass(part):
        yield above, part
        for field in fields(part):
            name = f"{above}.{field.name}" if above else field.name
            yield from _nested_configs(name, getattr(part, field.name))
