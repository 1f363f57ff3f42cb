"""`regard.load` and `regard.task`: the task that fits a model, read from a folder or newly made.

    config.toml -> config -> do the weights fit it? -> model ----+
    tokenizer.* -> is it the one whose sha256 config.toml has? --+-> task

Two kinds of folder are read: those that regard saved, verified by their manifest, and those of Hugging Face
(config.json, safetensors and tokenizer files). Sizes are compared before any tensor is allocated.
"""

import dataclasses
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import checks, toml
from regard.config import Config
from regard.data.tokenizer import loading
from regard.data.tokenizer.interface import TOKENIZER_NAME, PairTokenizer, Tokenizer
from regard.data.tokenizer.loading import JsonTokenizer, MarianTokenizer, special_ids_from_names
from regard.models.build import AnyConfig, ModelConfig, build, check_size, model_config
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.tracks import TracksConfig
from regard.models.vision import VisionConfig
from regard.special_tokens import SpecialTokens
from regard.storage import filesystem, metrics, weights
from regard.storage import folder as folders
from regard.tasks.alignment import AlignmentConfig
from regard.tasks.classifier import Classifier, Embedder
from regard.tasks.completer import Completer
from regard.tasks.filler import Filler
from regard.tasks.forecaster import Forecaster
from regard.tasks.info import huggingface_languages
from regard.tasks.labeller import Labeller
from regard.tasks.task import CONFIG_FILE, WEIGHTS_FILE, AnyTokenizer, Task, read_description
from regard.tasks.translator import Translator

TASK_CLASSES: dict[type[Config], type[Task]] = {
    EncoderDecoderConfig: Translator, Seq2SeqConfig: Translator, LanguageModelConfig: Completer,
    MaskedModelConfig: Filler, ClassifierConfig: Classifier, TaggerConfig: Labeller, VisionConfig: Classifier,
    EncoderConfig: Embedder, TracksConfig: Forecaster,
}
HUGGING_FACE_CONFIG = "config.json"
HISTORY_KEYS = {"step": "step", "epoch": "epoch", "loss": "loss", "nll": "nll", "rate": "learning_rate",
                "gradient_norm": "gradient_norm", "tokens": "tokens", "seconds": "seconds",
                "tokens_per_second": "tokens_per_second"}
"""The numbers of a logged step in the metrics, and their names in a history."""
TOKENIZER_JSON = "tokenizer.json"
SPECIAL_TOKEN_FILES = ("special_tokens_map.json", "tokenizer_config.json")
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Task:
    """Load the model in a folder, ready to use.

    It is a `Translator`, `Completer`, `Filler`, `Classifier`, `Labeller`, `Embedder` or `Forecaster`.
    The model is in torch's default dtype, usually float32: weights in half precision keep their values, those in
    float64 are rounded. Without a tokenizer in the folder the task takes ids only.
    """
    _check_device(device)
    path = Path(folder)
    # For an unreadable folder both are False, and `folders` reports why.
    if not os.path.exists(path / folders.MANIFEST_FILE) and os.path.exists(path / HUGGING_FACE_CONFIG):
        return _load_huggingface_folder(path, device)
    found = folders.load(folder, lambda saved: _load_regard_folder(saved, device))
    found.history = read_history(path)
    return found


def read_history(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """How the training of a model went: a dict for each logged step and each validation, in their order.

    A logged step has "step", "epoch", "loss", "learning_rate" and others, a validation "step", "scores" and "best",
    whether it was the best so far. A number that was not finite is None. Without metrics.jsonl the list is empty.
    """
    try:
        lines = (Path(folder) / metrics.METRICS_FILE).read_bytes().splitlines()
    except OSError:  # an optional file, which may have been left out or moved away
        return []
    history = []
    for line in lines:
        try:
            entry = metrics.parse_line(line)
        except ValueError:  # the last line of a training that was killed
            continue
        match entry:
            case {"event": metrics.PROGRESS, "step": int()}:
                history.append({name: entry[key] for key, name in HISTORY_KEYS.items() if key in entry})
            case {"event": metrics.VALIDATION, "step": int(step), "scores": dict(scores), "better": bool(better)}:
                history.append({"step": step, "scores": scores, "best": better})
    return history


def task(given: AnyConfig, *, special: SpecialTokens | None = None, tokenizer: AnyTokenizer | None = None,
         label_names: Sequence[str] | None = None, record: Mapping[str, Any] | None = None, **changes: Any) -> Task:
    """The task of a new model, built as by `regard.build`, ready to be used and saved.

    Args:
        given, changes: as for `regard.build`.
        special, tokenizer, record: as for `Task`.
        label_names: the names of the labels; `labels` is a key of the model config, their number.
    """
    config = model_config(given, **changes)
    return make_task(build(config), config, special, tokenizer=tokenizer, labels=label_names, record=record)


def make_task(model: nn.Module, config: ModelConfig, special: SpecialTokens | None = None, *,
              tokenizer: AnyTokenizer | None = None, labels: Sequence[str] | None = None,
              aligned_by: AlignmentConfig | None = None, record: Mapping[str, Any] | None = None) -> Task:
    """The task of a model; the arguments are those of `Task`."""
    return TASK_CLASSES[type(config)](model, config, special, tokenizer=tokenizer, labels=labels,
                                      aligned_by=aligned_by, record=record)


def _check_device(device: str | torch.device) -> None:
    """Refuse a device that this machine does not have, before a large model is read for it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise checks.wrong("device", "a device of this machine", f'"{device}" ({reason})',
                           'Use device="cpu".') from None


def _load_regard_folder(saved: folders.SavedFolder, device: str | torch.device) -> Task:
    files = saved.manifest.files
    if CONFIG_FILE not in files and HUGGING_FACE_CONFIG in files:  # an export of regard for Hugging Face
        return _load_huggingface_folder(saved.folder, device)
    text = saved.read_text(CONFIG_FILE)
    described = read_description(toml.parse_document(text, str(saved.path(CONFIG_FILE))))
    config, path = described.model, saved.path(WEIGHTS_FILE)
    found = weights.read_header(path).elements
    if found != config.parameters():
        raise ValueError(f"{path} does not match {CONFIG_FILE}: it has {found:,} parameters instead of "
                         f"{config.parameters():,}. The two files belong to different models.")
    check_size(config)
    tokenizer = None if described.tokenizer is None else _load_tokenizer(saved, config, described.tokenizer)
    model = weights.build_module(config.build, weights.read_tensors(path), origin=str(path), owner=CONFIG_FILE)
    loaded = make_task(model.to(device), config, described.special, tokenizer=tokenizer, labels=described.labels,
                       aligned_by=described.alignment, record=described.record)
    loaded.comments = toml.read_comments(text)
    return loaded


def _load_tokenizer(saved: folders.SavedFolder, config: ModelConfig, sha256: str) -> AnyTokenizer:
    """The tokenizer of a folder; a FolderError if it is not the one that the model was saved with."""
    contents = {name: saved.read_bytes(name) for name in saved.manifest.files if name.startswith(f"{TOKENIZER_NAME}.")}
    paired = TASK_CLASSES[type(config)].tokenizer_type is PairTokenizer
    try:
        return (loading.load_pair_tokenizer if paired else loading.load_tokenizer)(contents, sha256=sha256)
    except ValueError as error:
        raise filesystem.FolderError(f"{saved.folder}: {error}") from error


def _load_huggingface_folder(folder: Path, device: str | torch.device) -> Task:
    from regard.storage.huggingface import conversion  # only such a folder needs its readers

    found = conversion.read_model(folder)
    tokenizer: AnyTokenizer | None
    if isinstance(found.config, VisionConfig):
        tokenizer = None
    elif TASK_CLASSES[type(found.config)].tokenizer_type is PairTokenizer:
        tokenizer = read_marian_tokenizers(folder, found.special)
    else:
        tokenizer = read_tokenizer(folder, found.special)
    model = weights.build_module(found.config.build, found.tensors, origin=str(folder))
    pair = huggingface_languages(folder) if isinstance(found.config, EncoderDecoderConfig) else None
    record = None if pair is None else {"data": {"source_lang": pair.source, "target_lang": pair.target}}
    return make_task(model.to(device), found.config, found.special if tokenizer is None else None,
                     tokenizer=tokenizer, labels=found.labels or None, record=record)


class TextTemplate(NamedTuple):
    """The ids before and after every text."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def read_tokenizer(folder: Path, special: SpecialTokens) -> Tokenizer | None:
    """The tokenizer.json of a Hugging Face folder; None without the file or without the package `tokenizers`.

    config.json names few special ids (`special`). The others come from special_tokens_map.json or else
    tokenizer_config.json, and `first` and `separator` from the template in tokenizer.json.
    """
    if not (folder / TOKENIZER_JSON).is_file() or importlib.util.find_spec("tokenizers") is None:
        return None
    data, names = filesystem.read_limited(folder / TOKENIZER_JSON), dict[str, Any]()
    for file in SPECIAL_TOKEN_FILES:
        if not names and (folder / file).is_file():
            names = _json_object(filesystem.read_limited(folder / file), folder / file)
    special = merge_special_ids(special, special_ids_from_names(data, names))
    template = read_template(data)
    if template is not None:
        if max(map(len, template)) > 1:
            raise ValueError(f"{folder / TOKENIZER_JSON}: The template puts {template.before} before and "
                             f"{template.after} after a text. At most one token on each side is supported.")
        first, separator = (next(iter(ids), None) for ids in template)
        special = dataclasses.replace(special, cls=first, separator=separator)
    return JsonTokenizer(data, special)


def read_marian_tokenizers(folder: Path, special: SpecialTokens) -> PairTokenizer | None:
    """The tokenizers of a Marian translator; None without their files."""
    if not all((folder / name).is_file() for name in MARIAN_FILES):
        return None
    source, target, vocabulary = (filesystem.read_limited(folder / name) for name in MARIAN_FILES)
    special = merge_special_ids(special, MarianTokenizer(source, vocabulary).special)
    return PairTokenizer(MarianTokenizer(source, vocabulary, special), MarianTokenizer(target, vocabulary, special))


def merge_special_ids(special: SpecialTokens, fallback: SpecialTokens) -> SpecialTokens:
    """The special ids of a model, completed by those of its tokenizer."""
    roles = [field.name for field in dataclasses.fields(SpecialTokens)]
    return SpecialTokens(**{role: getattr(fallback if getattr(special, role) in (None, ()) else special, role)
                            for role in roles})


def read_template(data: bytes) -> TextTemplate | None:
    """The template for a single text in a tokenizer.json; None if it has none."""
    return _parse_template(json.loads(data).get("post_processor"))


def _parse_template(processor: Any) -> TextTemplate | None:
    match processor:
        case {"type": "Sequence", "processors": [*parts]}:
            return next((found for part in parts if (found := _parse_template(part)) is not None), None)
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, int(first)], "sep": [_, int(separator)]}:
            return TextTemplate((first,), (separator,))
        case {"type": "TemplateProcessing", "single": [*pieces], "special_tokens": dict(table)}:
            return _parse_template_pieces(pieces, table)
    return None


def _parse_template_pieces(pieces: list[Any], table: dict[str, Any]) -> TextTemplate:
    """A template of pieces; the ids of its special tokens are in the table."""
    names: list[Any] = [None if "Sequence" in piece else piece["SpecialToken"]["id"] for piece in pieces]
    if names.count(None) != 1 or not {*names} <= {None, *table}:
        raise ValueError(f"{TOKENIZER_JSON}: The template must have one text and special tokens of its own list, but "
                         f"has {names!r:.80}.")
    text = names.index(None)
    return TextTemplate(*(tuple(id_ for name in side for id_ in table[name]["ids"])
                          for side in (names[:text], names[text + 1:])))


def _json_object(data: bytes, path: Path) -> dict[str, Any]:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object.")
    return table
