"""`regard.load` and `regard.task`: the task that fits a model, read from a folder or newly made.

    config.toml -> config -> do the weights fit it? -> model --+
    tokenizer.* -> is it the one whose sha256 config.toml has? -+-> task

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

from regard import checks, config, toml
from regard.data.tokenizer import loading
from regard.data.tokenizer.interface import TOKENIZER_NAME as TOKENIZER
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.data.tokenizer.loading import JsonTokenizer, MarianTokenizer, special_ids_from_names
from regard.models.build import AnyConfig, ModelConfig, build, check_size, model_config
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.vision import VisionConfig
from regard.special_tokens import SpecialTokens
from regard.storage import filesystem, weights
from regard.storage import folder as folders
from regard.storage import weights as modules
from regard.storage.folder import MANIFEST_FILE as MANIFEST
from regard.storage.huggingface import conversion
from regard.storage.huggingface import conversion as huggingface
from regard.tasks import task as description
from regard.tasks.alignment import AlignmentConfig
from regard.tasks.classifier import Classifier, Embedder
from regard.tasks.completer import Completer
from regard.tasks.filler import Filler
from regard.tasks.task import CONFIG_FILE, WEIGHTS_FILE, AnyTokenizer, Task
from regard.tasks.translator import Translator

TASK_CLASSES: dict[type[config.Config], type[Task]] = {
    EncoderDecoderConfig: Translator, Seq2SeqConfig: Translator, LanguageModelConfig: Completer, MaskedModelConfig: Filler,
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
    if not os.path.exists(place / MANIFEST) and os.path.exists(place / conversion.CONFIG_FILE):
        return _load_huggingface_folder(place, device)
    return folders.load(folder, lambda saved: _load_regard_folder(saved, device))


def task(given: AnyConfig, *, special: SpecialTokens | None = None, tokenizer: AnyTokenizer | None = None,
         label_names: Sequence[str] | None = None, record: Mapping[str, Any] | None = None, **changes: Any) -> Task:
    """The task of a new model, made as `regard.build` makes it, which can then be used and saved.

    Args:
        given, changes: as for `regard.build`.
        special, tokenizer, record: as for `Task`.
        label_names: what `Task` calls its labels; `labels` is a key of the model, how many there are.
    """
    made_from = model_config(given, **changes)
    return make_task(build(made_from), made_from, special, tokenizer=tokenizer, labels=label_names, record=record)


def make_task(model: nn.Module, made_from: ModelConfig, special: SpecialTokens | None = None, *,
            tokenizer: AnyTokenizer | None = None, labels: Sequence[str] | None = None,
            aligned_by: AlignmentConfig | None = None, record: Mapping[str, Any] | None = None) -> Task:
    """The task that fits a model; the arguments are those of `Task`."""
    return TASK_CLASSES[type(made_from)](model, made_from, special, tokenizer=tokenizer, labels=labels,
                                  aligned_by=aligned_by, record=record)


def _check_device(device: str | torch.device) -> None:
    """Refuse a device that is not there, before a large model is read for it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise checks.wrong("device", "one that torch has on this machine", f'"{device}" ({reason})') from None


def _load_regard_folder(saved: folders.SavedFolder, device: str | torch.device) -> Task:
    if CONFIG_FILE not in saved.manifest.files and conversion.CONFIG_FILE in saved.manifest.files:  # exported, by ourselves
        return _load_huggingface_folder(saved.folder, device)
    described = description.read_description(toml.parse_document(saved.read_text(CONFIG_FILE), str(saved.path(CONFIG_FILE))))
    made_from, path = described.model, saved.path(WEIGHTS_FILE)
    found = weights.read_header(path).elements
    if found != made_from.parameters():
        raise checks.wrong(str(path), f"of {made_from.parameters():,} numbers, as {CONFIG_FILE} asks for", f"of {found:,}",
                           "The two files are not of one model.")
    check_size(made_from)
    tokenizer = None if described.tokenizer is None else _load_tokenizer(saved, made_from, described.tokenizer)
    model = modules.build_module(made_from.build, weights.read_tensors(path), origin=str(path))
    return make_task(model.to(device), made_from, described.special, tokenizer=tokenizer, labels=described.labels,
                   aligned_by=described.alignment, record=described.record)


def _load_tokenizer(saved: folders.SavedFolder, made_from: ModelConfig, sha256: str) -> AnyTokenizer:
    """The tokenizer of a folder; a FolderError where it is not the one that the model was saved with."""
    contents = {name: saved.read_bytes(name) for name in saved.manifest.files if name.startswith(f"{TOKENIZER}.")}
    load_it = loading.load_pair_tokenizer if TASK_CLASSES[type(made_from)].reads is PairTokenizer else loading.load_tokenizer
    try:
        return load_it(contents, sha256=sha256)
    except ValueError as error:
        raise filesystem.FolderError(f"{saved.folder}: {error}") from error


def _load_huggingface_folder(folder: Path, device: str | torch.device) -> Task:
    found = huggingface.read_model(folder)
    two = TASK_CLASSES[type(found.config)].reads is PairTokenizer
    tokenizer = (read_marian_tokenizers if two else read_tokenizer)(folder, found.special)
    if isinstance(found.config, VisionConfig):
        tokenizer = None
    model = modules.build_module(found.config.build, found.tensors, origin=str(folder))
    return make_task(model.to(device), found.config, found.special if tokenizer is None else None, tokenizer=tokenizer,
                   labels=found.labels or None)


# ---- foreign: The tokenizer that lies in a folder of `transformers`, and the special ids that its files name.
#
#     tokenizer.json                         of a model that reads or writes one side; it needs the package `tokenizers`
#     source.spm, target.spm, vocab.json     of a Marian translator
#
# config.json of such a folder names few special ids. The others are those that special_tokens_map.json, or else
# tokenizer_config.json, names; and what stands around a text, `first` and `separator`, is what the template in
# tokenizer.json says. A folder without these files, or a machine without `tokenizers`, gives no tokenizer: the model then
# takes ids. It does not know models.

TOKENIZER_JSON, SPECIAL_TOKEN_FILES = "tokenizer.json", ("special_tokens_map.json", "tokenizer_config.json")
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")


class TextTemplate(NamedTuple):
    """The ids in front of every text and behind it."""

    before: tuple[int, ...]
    behind: tuple[int, ...]


def read_tokenizer(folder: Path, special: SpecialTokens) -> Tokenizer | None:
    """The tokenizer.json of a folder, with the special ids of its model and those that its own files name."""
    if not (folder / TOKENIZER_JSON).is_file() or importlib.util.find_spec("tokenizers") is None:
        return None
    data, named = (folder / TOKENIZER_JSON).read_bytes(), dict[str, Any]()
    for name in SPECIAL_TOKEN_FILES:
        if not named and (folder / name).is_file():
            named = _json_object((folder / name).read_bytes(), folder / name)
    special = merge_special_ids(special, special_ids_from_names(data, named))
    around = read_template(data)
    if around is not None:
        if max(map(len, around)) > 1:
            raise checks.wrong(str(folder / TOKENIZER_JSON), "with a template of at most one token on each side of a text",
                               f"with {around.before} and {around.behind}")
        first, separator = (next(iter(ids), None) for ids in around)
        special = dataclasses.replace(special, cls=first, separator=separator)
    return JsonTokenizer(data, special)


def read_marian_tokenizers(folder: Path, special: SpecialTokens) -> PairTokenizer | None:
    """The tokenizers of a Marian translator."""
    if not all((folder / name).is_file() for name in MARIAN_FILES):
        return None
    source, target, vocabulary = ((folder / name).read_bytes() for name in MARIAN_FILES)
    special = merge_special_ids(special, MarianTokenizer(source, vocabulary).special)
    return PairTokenizer(MarianTokenizer(source, vocabulary, special), MarianTokenizer(target, vocabulary, special))


def merge_special_ids(special: SpecialTokens, named: SpecialTokens) -> SpecialTokens:
    """The special ids of a model, and where it has none of a role, those of its tokenizer."""
    roles = [field.name for field in dataclasses.fields(SpecialTokens)]
    return SpecialTokens(**{role: getattr(named, role) if getattr(special, role) in (None, ()) else
                            getattr(special, role) for role in roles})


def read_template(data: bytes) -> TextTemplate | None:
    """What a tokenizer.json sets around a single text; None where it does not say."""
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
    """What a template says that is written out, piece by piece; its ids are in the table."""
    names: list[Any] = [None if "Sequence" in piece else piece["SpecialToken"]["id"] for piece in pieces]
    if names.count(None) != 1 or not {*names} <= {None, *table}:
        raise checks.wrong(TOKENIZER_JSON, "with a template of one text and special tokens that it lists", f"with {names!r:.80}")
    text = names.index(None)
    return TextTemplate(*(tuple(id_ for name in side for id_ in table[name]["ids"])
                    for side in (names[:text], names[text + 1:])))


def _json_object(data: bytes, path: Path) -> dict[str, Any]:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise checks.wrong(str(path), "a JSON object", "something else")
    return table
