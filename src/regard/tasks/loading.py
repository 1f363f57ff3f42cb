"""`regard.load` and `regard.task`: the task that fits a model, from its folder or new.

    config.toml ── which kind ── does it fit the weights? ── model ──┐
    tokenizer.* ── the one that config.toml names by its sha256? ────┴── task

It reads the folders that regard saved, verified by their manifest, and those of Hugging Face (config.json and
safetensors). Sizes are compared before anything is allocated. It does not know what is in the folders beyond that:
`storage` does.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import checks, config
from regard.data.tokenizer import storing
from regard.data.tokenizer.contract import NAME as TOKENIZER
from regard.data.tokenizer.pair import PairTokenizer
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
from regard.tasks import description, foreign
from regard.tasks.alignment.words import AlignmentConfig
from regard.tasks.completing import Completer
from regard.tasks.reading import Classifier, Embedder, Filler
from regard.tasks.task import CONFIG, WEIGHTS, AnyTokenizer, Task
from regard.tasks.translating import Translator
from regard.toml import document

TASKS: dict[type[config.Config], type[Task]] = {
    EncoderDecoderConfig: Translator, Seq2SeqConfig: Translator, LanguageConfig: Completer, MaskedConfig: Filler,
    ClassifierConfig: Classifier, TaggerConfig: Classifier, VisionConfig: Classifier, EncoderConfig: Embedder,
}


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Task:
    """The task of the model in a folder: a `Translator`, `Completer`, `Filler`, `Classifier` or `Embedder`.

    The model is in torch's default dtype, float32 if nobody has changed it: weights in half precision keep their
    values, those in float64 are rounded. Without a tokenizer in the folder the task takes ids alone.
    """
    _check_device(device)
    place = Path(folder)
    # Of what may not be looked at these give False, and `folders` words why.
    if not os.path.exists(place / MANIFEST) and os.path.exists(place / files.CONFIG):
        return _foreign(place, device)
    return folders.load(folder, lambda saved: _own(saved, device))


def task(given: AnyConfig, *, special: SpecialConfig | None = None, tokenizer: AnyTokenizer | None = None,
         label_names: Sequence[str] | None = None, record: Mapping[str, Any] | None = None, **changes: Any) -> Task:
    """The task of a new model, made as `regard.build` makes it, which can then be used and saved.

    Args:
        given, changes: as for `regard.build`.
        special, tokenizer, record: as for `Task`.
        label_names: what `Task` calls its labels; `labels` is a key of the model, how many there are.
    """
    made_from = model_config(given, **changes)
    return fitting(build(made_from), made_from, special, tokenizer=tokenizer, labels=label_names, record=record)


def fitting(model: nn.Module, made_from: ModelConfig, special: SpecialConfig | None = None, *,
            tokenizer: AnyTokenizer | None = None, labels: Sequence[str] | None = None,
            aligned_by: AlignmentConfig | None = None, record: Mapping[str, Any] | None = None) -> Task:
    """The task that fits a model; the arguments are those of `Task`."""
    return TASKS[type(made_from)](model, made_from, special, tokenizer=tokenizer, labels=labels,
                                  aligned_by=aligned_by, record=record)


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
    described = description.read(document.parse(saved.read_text(CONFIG), str(saved.path(CONFIG))))
    made_from, path = described.model, saved.path(WEIGHTS)
    found = weights.header(path).elements
    if found != made_from.parameters():
        raise checks.wrong(str(path), f"of {made_from.parameters():,} numbers, as {CONFIG} asks for", f"of {found:,}",
                           "The two files are not of one model.")
    check_size(made_from)
    tokenizer = None if described.tokenizer is None else _tokenizer(saved, made_from, described.tokenizer)
    model = modules.made(made_from.build, weights.read(path), origin=str(path))
    return fitting(model.to(device), made_from, described.special, tokenizer=tokenizer, labels=described.labels,
                   aligned_by=described.alignment, record=described.record)


def _tokenizer(saved: folders.Saved, made_from: ModelConfig, sha256: str) -> AnyTokenizer:
    """The tokenizer of a folder; a FolderError where it is not the one that the model was saved with."""
    contents = {name: saved.read_bytes(name) for name in saved.manifest.files if name.startswith(f"{TOKENIZER}.")}
    load_it = storing.load_pair if TASKS[type(made_from)].reads is PairTokenizer else storing.load
    try:
        return load_it(contents, sha256=sha256)
    except ValueError as error:
        raise folders.FolderError(f"{saved.folder}: {error}") from error


def _foreign(folder: Path, device: str | torch.device) -> Task:
    found = huggingface.read(folder)
    two = TASKS[type(found.config)].reads is PairTokenizer
    tokenizer = (foreign.two_sides if two else foreign.one_side)(folder, found.special)
    if isinstance(found.config, VisionConfig):
        tokenizer = None
    model = modules.made(found.config.build, found.tensors, origin=str(folder))
    return fitting(model.to(device), found.config, found.special if tokenizer is None else None, tokenizer=tokenizer,
                   labels=found.labels or None)
