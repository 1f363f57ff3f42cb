"""Write a model as ONNX graphs, for any number of rows of any length.

    encoder.onnx    ids (B, N), lengths (B,) -> states (B, N, D)                     of a translator
    decoder.onnx    ids (B, n), states (B, N, D), lengths (B,) -> logits (B, n, V)   of a translator: all tokens at once
    model.onnx      ids (B, N) -> logits (B, N, V)                                   of a language model
    model.onnx      ids (B, N), lengths (B,) -> logits or states                     of a model that reads
    model.onnx      images (B, C, H, W) -> logits (B, labels)                        of a model of images

Rows are filled up on the right, and `lengths` says how far each goes; what stands behind that means nothing. A graph
has no cache: whoever writes with it gives all tokens so far each time, and takes the logits of the last.

Torch's exporter follows tensors, and cannot follow a recurrence, whose steps depend on the lengths: models with one are
refused. It does not know tokenizers, nor what is done with the graphs.
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
from regard.models.contract import Memory, Tokens
from regard.models.encoder import EncoderConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.language import LanguageConfig
from regard.models.vision import VisionConfig

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20
RECURRENT = {"recurrence", "lstmn"}
"""The mixers that cannot be followed."""
LARGEST = 2**30
"""Bytes of weights up to which a graph is one file. Beyond twice that it cannot be."""
Axes = dict[int, Any]


@dataclass(frozen=True)
class Graph:
    """What a graph is made of: a module, what it is called with, and which sizes of that may differ."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, Axes]
    output: str


class Encoding(nn.Module):
    """The source of a translator."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The states."""
        return self.model.encode(Tokens(ids, lengths)).states  # type: ignore[operator]


class Decoding(nn.Module):
    """The target of a translator."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """The logits."""
        return self.model.decode(Tokens(ids), Memory(states, lengths))  # type: ignore[operator]


class Continuing(nn.Module):
    """A language model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """The logits."""
        return self.model.decode(Tokens(ids))  # type: ignore[operator]


class Reading(nn.Module):
    """A model that reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits, or the states of an encoder."""
        return self.model(Tokens(ids, lengths))


def package(name: str) -> Any:
    """A package that is needed here; a ValueError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise checks.wrong(name, "installed", "missing", "Install it: pip install 'regard[export]'.") from error


def check(config: ModelConfig) -> None:
    """Refuse a config whose model has no graph, with every key that is in the way."""
    if config.kind == "seq2seq":
        found = ["kind"]
    else:
        found = [f"{key}.kind" for key, part in _parts("", config) if getattr(part, "kind", None) in RECURRENT]
    if found:
        keys = ", ".join(f"model.{key}" for key in found)
        raise checks.wrong("config", "one without recurrence, to be written as ONNX", f"one with it, in {keys}",
                           "The steps of a recurrence depend on the lengths, which a graph cannot follow.")


def write(folder: Path, config: ModelConfig, model: nn.Module) -> tuple[str, ...]:
    """Write the graphs into a folder that is there, and give the names of the files; a ValueError says what does not
    fit."""
    check(config)
    for name in PACKAGES:
        package(name)
    plain = copy.deepcopy(model).to("cpu", torch.float32)
    size = 4 * sum(parameter.numel() for parameter in plain.parameters())
    for graph in _graphs(config, plain):
        _exported(graph).save(str(folder / graph.name), external_data=size > LARGEST)
    return tuple(sorted(path.name for path in folder.iterdir()))


def _graphs(config: ModelConfig, model: nn.Module) -> Iterator[Graph]:
    """The graphs of a model. The sizes of the examples mean nothing: all but 0 and 1 are alike to the exporter."""
    rows, tokens, written = (torch.export.Dim(name) for name in ("rows", "tokens", "written"))
    ids, lengths = torch.zeros(3, 5, dtype=torch.long), torch.tensor([5, 3, 4])
    one, both = {"lengths": {0: rows}}, {"ids": {0: rows, 1: tokens}}
    if isinstance(config, EncoderDecoderConfig):
        yield Graph("encoder.onnx", Encoding(model), {"ids": ids, "lengths": lengths}, both | one, "states")
        inputs = {"ids": torch.zeros(3, 4, dtype=torch.long), "states": torch.zeros(3, 5, config.width),
                  "lengths": lengths}
        axes = {"ids": {0: rows, 1: written}, "states": {0: rows, 1: tokens}}
        yield Graph("decoder.onnx", Decoding(model), inputs, axes | one, "logits")
    elif isinstance(config, LanguageConfig):
        yield Graph("model.onnx", Continuing(model), {"ids": ids}, both, "logits")
    elif isinstance(config, VisionConfig):
        images = torch.zeros(3, config.channels, config.height, config.breadth)
        yield Graph("model.onnx", model, {"images": images}, {"images": {0: rows}}, "logits")
    else:
        assert isinstance(config, EncoderConfig)
        output = "states" if config.kind == "encoder" else "logits"
        yield Graph("model.onnx", Reading(model), {"ids": ids, "lengths": lengths}, both | one, output)


def _exported(graph: Graph) -> Any:
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


def _parts(above: str, part: object) -> Iterator[tuple[str, object]]:
    """All tables of a config, by their keys."""
    if isinstance(part, Config) and is_dataclass(part):
        yield above, part
        for field in fields(part):
            name = f"{above}.{field.name}" if above else field.name
            yield from _parts(name, getattr(part, field.name))
