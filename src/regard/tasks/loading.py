"""`regard.load` and `regard.task`: the task that fits a model, from its folder or new.

    config.toml ── which kind ── does it fit the weights? ── model ── task

It reads the folders that regard saved, verified by their manifest, and those of Hugging Face (config.json and
safetensors). Sizes are compared before anything is allocated. It does not know what is in the folders beyond that:
`storage` does.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import checks, config
from regard.models.build import AnyConfig, ModelConfig, build, check_size, model_config
from regard.models.encoder import EncoderConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.labels import ClassifierConfig, TaggerConfig
from regard.models.language import LanguageConfig
from regard.models.masked import MaskedConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.special import SpecialConfig
from regard.models.vision import VisionConfig
from regard.storage import folder as folders
from regard.storage import modules, weights
from regard.storage.huggingface import files
from regard.storage.huggingface import reading as huggingface
from regard.storage.manifest import NAME as MANIFEST
from regard.tasks.reading import Classifier, Embedder, Filler
from regard.tasks.task import CONFIG, WEIGHTS, Task
from regard.tasks.writing import Completer, Translator
from regard.toml import document

TASKS: dict[type[config.Config], type[Task]] = {
    EncoderDecoderConfig: Translator, Seq2SeqConfig: Translator, LanguageConfig: Completer, MaskedConfig: Filler,
    ClassifierConfig: Classifier, TaggerConfig: Classifier, VisionConfig: Classifier, EncoderConfig: Embedder,
}


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Task:
    """The task of the model in a folder: a `Translator`, `Completer`, `Filler`, `Classifier` or `Embedder`.

    The model is in torch's default dtype, float32 if nobody has changed it: weights in half precision keep their
    values, those in float64 are rounded.
    """
    _check_device(device)
    place = Path(folder)
    # Of what may not be looked at these give False, and `folders` words why.
    if not os.path.exists(place / MANIFEST) and os.path.exists(place / files.CONFIG):
        return _foreign(place, device)
    return folders.load(folder, lambda saved: _own(saved, device))


def task(given: AnyConfig, *, special: SpecialConfig | None = None, **changes: Any) -> Task:
    """The task of a new model, made as `regard.build` makes it, which can then be used and saved."""
    made_from = model_config(given, **changes)
    return fitting(build(made_from), made_from, special)


def fitting(model: nn.Module, made_from: ModelConfig, special: SpecialConfig | None = None) -> Task:
    """The task that fits a model."""
    return TASKS[type(made_from)](model, made_from, special)


def _check_device(device: str | torch.device) -> None:
    """Refuse a device that is not there, before a large model is read for it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise checks.wrong("device", "one that torch has on this machine", f'"{device}" ({reason})') from None


def _own(saved: folders.Saved, device: str | torch.device) -> Task:
    if CONFIG not in saved.manifest.files and files.CONFIG in saved.manifest.files:  # exported, by ourselves
        return _foreign(saved.folder, device)
    read = document.parse(saved.read_text(CONFIG), str(saved.path(CONFIG)))
    tables = config.make_all({"model": ModelConfig, "special": SpecialConfig | None}, read)
    made_from: ModelConfig = tables["model"]
    path = saved.path(WEIGHTS)
    found = weights.header(path).elements
    if found != made_from.parameters():
        raise checks.wrong(str(path), f"of {made_from.parameters():,} numbers, as {CONFIG} asks for", f"of {found:,}",
                           "The two files are not of one model.")
    check_size(made_from)
    model = modules.made(made_from.build, weights.read(path), origin=str(path))
    return fitting(model.to(device), made_from, tables["special"])


def _foreign(folder: Path, device: str | torch.device) -> Task:
    found = huggingface.read(folder)
    model = modules.made(found.config.build, found.tensors, origin=str(folder))
    return fitting(model.to(device), found.config, found.special)
