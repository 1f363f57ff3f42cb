"""What is in a model folder, without loading the model: task, languages, size, scores, data, and how to use it.

    info = read_info("model")               of a model, of a training that has not ended, or of a Hugging Face folder
    set_languages("model", LanguagePair("en", "fr"))

Numbers come from config.toml, the header of model.safetensors, metrics.jsonl and the newest checkpoint. Lengths of
files are compared with the manifest; their sha256 is not computed, since that would take long for a large model. This
module does not import torch, so that it answers at once.
"""

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from regard import toml
from regard.data.languages import LanguagePair, normalize_code
from regard.storage import filesystem
from regard.storage import folder as folders
from regard.storage.filesystem import FolderError, unreadable_error
from regard.storage.metrics import ENDED, METRICS_FILE
from regard.tasks.card import CARD_FILE, COUNTED, TASK_USAGE, directions, model_card
from regard.tasks.record import RECORD_KEYS, SHA256_KEY, TOKENIZER_KEY, with_current_names

CONFIG_FILE, WEIGHTS_FILE, HUGGING_FACE_CONFIG = "config.toml", "model.safetensors", "config.json"
CHECKPOINTS_FOLDER, DATA_FOLDER, LOCK_FILE = "checkpoints", "data", "lock"
VOCABULARY_KEYS = ("vocab_size", "source_vocab_size", "target_vocab_size",
                   "vocabulary", "source_vocabulary", "target_vocabulary")  # the last three are old names
MAX_HEADER_BYTES = 100 * 2**20
"""The limit of the safetensors format."""
ARCHITECTURES = {"MTModel": "encoder-decoder", "ForConditionalGeneration": "encoder-decoder",
                 "LMHeadModel": "language", "ForCausalLM": "language", "ForMaskedLM": "masked",
                 "ForSequenceClassification": "classifier", "ForTokenClassification": "tagger",
                 "ForImageClassification": "vision"}
"""Endings of the names of architectures in `transformers`, and our kind of model."""
_OPUS_NAME = re.compile(r"opus-mt(?:-tc)?(?:-big|-base|-tiny)?-([a-z]{2,3}(?:_[A-Z]{2})?)-([a-z]{2,3}(?:_[A-Z]{2})?)$")


@dataclass(frozen=True)
class TrainingFolderStatus:
    """How far a training is, from its newest checkpoint."""

    step: int
    steps: int | None
    """All steps of the training; None if unknown."""
    seconds: float | None
    """The training time so far."""
    finished: bool
    running: bool = False
    """Whether a process is training in this folder now."""
    task: str = "seq2seq"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What says how the data is read: "DATA" and options by name, with files without their folders."""
    start: str | None = None
    """The name of the model that is fine-tuned."""


@dataclass(frozen=True)
class ModelInfo:
    """What is known about the model in a folder; None or empty if unknown."""

    format: str
    """"regard" or "huggingface"."""
    kind: str | None
    """`model.kind`; of a Hugging Face folder, ours that fits its architecture."""
    family: str | None = None
    """The `model_type` of a Hugging Face folder."""
    source_lang: str | None = None
    target_lang: str | None = None
    recipe: str | None = None
    parameters: int | None = None
    """None before the first model is saved."""
    vocabularies: tuple[int, ...] = ()
    reads_text: bool = True
    labels: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    """How the model was trained, under current names; see `regard.tasks.record`."""
    training: TrainingFolderStatus | None = None
    version: str | None = None
    """The version of regard that saved the model."""
    model_bytes: int = 0
    all_bytes: int = 0
    """With checkpoints and other files in the folder."""

    @property
    def task(self) -> str | None:
        """The name of the task."""
        return None if self.kind is None else TASK_USAGE[self.kind].name

    @property
    def directions(self) -> tuple[LanguagePair, ...]:
        """The directions of a model for several languages; empty for any other."""
        return directions(self.record)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the data files."""
        given = self.record.get("data", {}).get("files", ())
        names = given if isinstance(given, Mapping) else [str(each).rpartition(" ")[0] for each in given]
        return tuple(PurePath(name).name for name in names)

    @property
    def counts(self) -> dict[str, int]:
        """How many examples it was trained on, by noun: {"pairs": 5000}."""
        data = self.record.get("data", {})
        return {name: data[name] for name in COUNTED if isinstance(data.get(name), int)}


def read_info(folder: str | os.PathLike[str]) -> ModelInfo:
    """What is in a folder; a FolderError says what is wrong if it has no model and no training."""
    path = Path(folder)
    if not path.is_dir():
        raise FolderError(f"{path}: There is no such folder. Check the name." if not os.path.lexists(path) else
                          f"{path}: This is a file. Give the folder of a model.")
    try:
        has_manifest = (path / folders.MANIFEST_FILE).exists()
        if not has_manifest and (path / HUGGING_FACE_CONFIG).is_file():
            return _read_huggingface(path, None)
        if not has_manifest:
            raise FolderError(f"{path}: There is no model in this folder: it has neither {folders.MANIFEST_FILE} of "
                              f"regard nor {HUGGING_FACE_CONFIG} of Hugging Face.")
        manifest = folders.read_manifest(path)
        _check_lengths(path, manifest)
        if CONFIG_FILE not in manifest.files and HUGGING_FACE_CONFIG in manifest.files:
            return _read_huggingface(path, manifest.version)
        return _read_regard(path, manifest)
    except OSError as error:
        raise unreadable_error(Path(error.filename or path), error) from error


def _check_lengths(path: Path, manifest: folders.Manifest) -> None:
    for name, recorded in manifest.files.items():
        try:
            status = (path / name).lstat()
        except FileNotFoundError:
            raise FolderError(f"{path / name}: The file is missing. Restore it from a copy.") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size != recorded.length:
            raise folders.changed_file_error(path / name, recorded, folders.FileRecord(status.st_size, ""))


def _read_regard(path: Path, manifest: folders.Manifest) -> ModelInfo:
    training = _training_status(path)
    sizes: dict[str, Any] = {"model_bytes": sum(one.length for one in manifest.files.values()),
                             "all_bytes": _total_bytes(path)}
    if CONFIG_FILE not in manifest.files:
        if training is None or training.steps is None:
            raise FolderError(f"{path}: A training is running in this folder, and has not saved anything yet."
                              if _is_running(path) else f"{path}: Nothing is saved in this folder: its training ended "
                              "before the first checkpoint. Delete the folder, and start again.")
        config = _newest_values(path)["identity"]["config"]
        return ModelInfo("regard", **_described(config), training=training, version=manifest.version, **sizes)
    document = toml.parse_document(folders.SavedFolder(path, manifest).read_text(CONFIG_FILE), str(path / CONFIG_FILE))
    has_tokenizer = TOKENIZER_KEY in document.tables
    parameters = _count_parameters(path / WEIGHTS_FILE) if WEIGHTS_FILE in manifest.files else None
    labels = document.tables.get("labels", {}).get("names", ())
    return ModelInfo("regard", **_described(document.tables), parameters=parameters, training=training,
                     version=manifest.version, labels=tuple(map(str, labels)), reads_text=has_tokenizer, **sizes)


def _described(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a ModelInfo that a config has."""
    record = {key: tables[key] for key in RECORD_KEYS if key in tables}
    record = with_current_names(json.loads(json.dumps(record)))  # a copy, since names are replaced in place
    record.get(TOKENIZER_KEY, {}).pop(SHA256_KEY, None)
    model, data = tables.get("model", {}), record.get("data", {})
    kind = model.get("kind")
    return {"kind": kind if kind in TASK_USAGE else None, "recipe": record.get("recipe"), "record": record,
            "source_lang": data.get("source_lang"), "target_lang": data.get("target_lang"),
            "vocabularies": tuple(model[key] for key in VOCABULARY_KEYS if isinstance(model.get(key), int))}


def _newest_values(path: Path) -> dict[str, Any]:
    """The values of the newest checkpoint; empty if there is none that can be read."""
    for step in sorted((path / CHECKPOINTS_FOLDER).glob("step-*"), reverse=True):
        try:
            values = json.loads((step / "values.json").read_bytes())["values"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # incomplete, and the one before is resumed from
        if isinstance(values, dict):
            return values
    return {}


def _training_status(path: Path) -> TrainingFolderStatus | None:
    values = _newest_values(path)
    try:
        state, identity = values["standing"], values["identity"]
        config = with_current_names({"training": identity["config"]["training"]})["training"]
        steps, patience = config["schedule"]["max_steps"], config.get("validation", {}).get("patience")
        done = state["step"] >= steps or (patience is not None and state["waited"] >= patience)
        # A training with a time limit ends before its last step, and then its data is removed.
        done = done or ("max_time" in config and not (path / DATA_FOLDER).exists())
        return TrainingFolderStatus(state["step"], steps, state["seconds"], done, _is_running(path), identity["task"],
                                    dict(identity["reading"]), identity.get("start", {}).get("name"))
    except (KeyError, TypeError, AttributeError):  # no checkpoint, or one of another version
        return _status_from_metrics(path)


def _is_running(path: Path) -> bool:
    """Whether a training holds the lock of its checkpoints."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        with (path / CHECKPOINTS_FOLDER / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a file system without locks
        return False
    return False


def _status_from_metrics(path: Path) -> TrainingFolderStatus | None:
    """Step and time of a finished training whose checkpoints were removed."""
    try:
        lines = (path / METRICS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        last = json.loads(lines[-1])
        return TrainingFolderStatus(last["step"], None, last["seconds"], finished=last["event"] == ENDED)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _count_parameters(path: Path) -> int:
    """The number of parameters in a safetensors file, from its header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size):
            raise FolderError(f"{path}: This is not a safetensors file, or it is damaged.")
        try:
            header = json.loads(file.read(length))
            return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FolderError(f"{path}: The header is damaged. Restore the file from a copy.") from None


def _total_bytes(path: Path) -> int:
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(path) for name in names)


# Folders of Hugging Face

def _read_huggingface(path: Path, version: str | None) -> ModelInfo:
    config = _json_object(path / HUGGING_FACE_CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise FolderError(f"{path / HUGGING_FACE_CONFIG}: It has no model_type, so it is not of a Hugging Face model.")
    named = [str(name) for name in config.get("architectures") or ()]
    kind = next((ours for ending, ours in ARCHITECTURES.items() if named and named[0].endswith(ending)), "encoder")
    weights = sorted(path.glob("*.safetensors"))
    pair = huggingface_languages(path)
    labels = config.get("id2label") if kind in ("classifier", "tagger", "vision") else None
    vocabulary = config.get("vocab_size")
    total = _total_bytes(path)
    return ModelInfo("huggingface", kind, family=config["model_type"], version=version,
                     source_lang=pair and pair.source, target_lang=pair and pair.target,
                     parameters=sum(map(_count_parameters, weights)) if weights else None,
                     vocabularies=(vocabulary,) if isinstance(vocabulary, int) else (),
                     labels=tuple(map(str, labels.values())) if isinstance(labels, dict) else (),
                     model_bytes=total, all_bytes=total)


def huggingface_languages(folder: Path) -> LanguagePair | None:
    """The languages of a Marian model: from tokenizer_config.json, or from its name, opus-mt-en-fr; None if unknown."""
    for name, keys in (("tokenizer_config.json", ("source_lang", "target_lang")), (HUGGING_FACE_CONFIG, ())):
        table = _json_object(folder / name) if (folder / name).is_file() else {}
        found = [table.get(key) for key in keys]
        if not keys and table.get("model_type") == "marian":
            named = _OPUS_NAME.search(str(table.get("_name_or_path", ""))) or _OPUS_NAME.search(folder.resolve().name)
            found = [*named.groups()] if named else []
        codes = [normalize_code(code) if isinstance(code, str) else None for code in found]
        if len(codes) == 2 and codes[0] and codes[1]:
            return LanguagePair(codes[0], codes[1])
    return None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(filesystem.read_limited(path))
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise FolderError(f"{path}: The file is damaged: it is not a JSON object.")
    return table


# Setting languages

def set_languages(folder: str | os.PathLike[str], pair: LanguagePair) -> bool:
    """Store the languages of a translation model in config.toml and its card; the folder changes whole or not at all.

    Returns whether the card was rewritten: one that the user has edited stays as it is.
    """
    info, path = read_info(folder), Path(folder).resolve()
    if info.format != "regard" or info.parameters is None:
        raise FolderError(f"{folder}: There is no model of regard in this folder to store languages with.")
    if info.task != "translation":
        raise FolderError(f"{folder}: Only a translation model has a source and a target language; this is a "
                          f"{info.task} model.")
    if info.directions:
        raise FolderError(f"{folder}: This model is for several languages, {', '.join(map(str, info.directions))}. "
                          "They are stored with it, and cannot be set.")
    if info.training is not None and info.training.running:
        raise FolderError(f"{folder}: A training is running in this folder. Wait until it ends.")
    manifest = folders.verify(path)
    text = (path / CONFIG_FILE).read_bytes().decode()
    contents: dict[str, folders.FileContent] = {name: partial(_link_or_copy, path / name) for name in manifest.files}
    contents[CONFIG_FILE] = _with_languages(text, pair).encode()
    data = {**info.record.get("data", {}), "source_lang": pair.source, "target_lang": pair.target}
    assert info.kind is not None
    card = model_card(info.kind, info.parameters, reads_text=info.reads_text, vocabularies=info.vocabularies,
                      record={**info.record, "data": data})
    folders.save(path, contents, editable={CARD_FILE: card.encode()})
    return (path / CARD_FILE).read_bytes() == card.encode()


def _with_languages(text: str, pair: LanguagePair) -> str:
    """The text of config.toml with these languages in [data]; comments and all else stay."""
    lines, table, head = list[str](), "", None
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            table = line.strip()
        if table == "[data]" and re.match(r"(source|target)_lang\s*=", line):
            continue
        lines.append(line)
        head = len(lines) if line.strip() == "[data]" else head
    keys = [f"source_lang = {toml.quote(pair.source)}\n", f"target_lang = {toml.quote(pair.target)}\n"]
    if head is None:
        lines += ["\n[data]\n", *keys]
    else:
        lines[head:head] = keys
    changed = "".join(lines)
    before, after = (toml.parse_document(each, CONFIG_FILE).tables for each in (text, changed))
    expected = {**before, "data": {**before.get("data", {}), "source_lang": pair.source, "target_lang": pair.target}}
    assert after == expected, "only the two keys have changed"
    return changed


def _link_or_copy(source: Path, goal: Path) -> None:
    """Put a file at another path too: as a hard link where the system can, else as a copy."""
    try:
        os.link(source, goal)
    except OSError:
        shutil.copyfile(source, goal)
