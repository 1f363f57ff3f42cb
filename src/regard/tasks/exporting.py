"""`export`: a model as a folder for other programs, which says the same there, or is not left behind.

    task ── does it fit? ── written aside ── run by the other program ── compared with ours ── put in place

    ctranslate2    translators and language models with attention, for its fast search; quantised where asked for
    onnx           graphs of all models without recurrence
    huggingface    what an architecture of `transformers` can hold, with the tokenizer where it has a form there

Every export is compared on the spot; one that differs is an `ExportError`, and there is no folder then. A folder is
saved as all of ours are: never over what regard did not save. How files are written is the business of `storage`.
"""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from regard import checks
from regard._version import __version__
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.imported import ROLES, JsonTokenizer
from regard.data.tokenizer.marian import MarianTokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.data.tokenizer.sentencepieces import SentencePieceTokenizer
from regard.data.tokenizer.surface import FIRST_PIECE, SHOWN
from regard.models.special import SpecialConfig
from regard.storage import folder as folders
from regard.storage import manifest as manifests
from regard.storage import reordering
from regard.storage.ctranslate2 import fit
from regard.storage.ctranslate2 import writing as ctranslate2
from regard.storage.ctranslate2.writing import QUANTIZATIONS, Names
from regard.storage.huggingface import subwords
from regard.storage.huggingface import writing as huggingface
from regard.storage.manifest import NAME as MANIFEST
from regard.storage.onnx import writing as onnx
from regard.tasks import comparing, loading, runners
from regard.tasks.comparing import Comparison
from regard.tasks.runners import Runner
from regard.tasks.task import Task
from regard.tasks.translating import Translator

RECORD = "export.json"
"""What an export is made of, beside what the other program reads."""


class ExportError(RuntimeError):
    """An exported model says something else than ours."""


@dataclass(frozen=True)
class Report:
    """What was exported, and how it compares."""

    target: str
    quantization: str
    files: tuple[str, ...]
    program: str
    """Which one ran it, to compare."""
    comparison: Comparison
    notes: tuple[str, ...] = ()
    """What whoever uses it should know."""


@dataclass(frozen=True)
class Target:
    """How a model is written for a program, and how it is run by it."""

    write: Callable[[Task, Path, str], tuple[str, ...]]
    """It writes into a folder that is there, and gives notes; a ValueError for a model that does not fit."""
    run: Callable[[Task, Path, str], Runner]


def export(task: Task, target: str, folder: str | os.PathLike[str], *, quantization: str = "float32",
           texts: Sequence[str] = (), origin: str | None = None) -> Report:
    """Write a model for another program, run by which it says the same.

    Args:
        target: "ctranslate2", "onnx" or "huggingface".
        folder: not there yet, empty, or saved by regard before.
        quantization: as what numbers matrices are stored; other than "float32" for CTranslate2 alone.
        texts: what both models are asked; rows of ids that are drawn, where there are none.
        origin: what tells the model from others, to be kept in export.json.
    """
    chosen = checks.pick("target", target, TARGETS)
    checks.pick("quantization", quantization, QUANTIZATIONS)
    if quantization != "float32" and target != "ctranslate2":
        raise checks.wrong("quantization", f'"float32" for {target}', f'"{quantization}"',
                           "Only CTranslate2 has quantised numbers.")
    task.check_mode()
    _check_place(Path(folder))
    with tempfile.TemporaryDirectory(prefix="regard-export-") as name:
        place = Path(name)
        notes = chosen.write(task, place, quantization)
        asked = comparing.asked(task, texts)
        runner = chosen.run(task, place, quantization)
        found = comparing.compare(task, runner, asked, quantization)
        if not found.passed:
            raise ExportError(f"The exported model differs from ours, and is not kept: {told(found)}.")
        record = {"regard": __version__, "target": target, "quantization": quantization, "model": origin}
        (place / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        files = sorted(path.name for path in place.iterdir())
        folders.save(folder, {one: partial(_copied, place / one) for one in files})
    return Report(target, quantization, tuple(files), runner.program, found, notes)


def told(found: Comparison) -> str:
    """A comparison in words."""
    text = (f"{found.numbers:,} {found.what} of {found.rows} rows differ by at most {found.difference:.1e}, "
            f"{found.mean:.1e} on average (allowed: {found.tolerance:.1e})")
    if found.same is None:
        return text
    text += f"; greedy search writes the same after {found.same} of {found.rows}"
    return f"{text}, and after {found.parted} something that our model finds worse" if found.parted else text


def origin(folder: str | os.PathLike[str]) -> str:
    """What tells the model in a folder from any other: a sha256 of its manifest, or of the files of an imported one."""
    place = Path(folder)
    own = [place / MANIFEST] if (place / MANIFEST).exists() else [place / "config.json", *place.glob("*.safetensors")]
    found = {path.name: manifests.digest(path).sha256 for path in own}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def names(task: Task) -> Names:
    """What CTranslate2 calls the ids of a model."""
    if isinstance(task.tokenizer, PairTokenizer):
        sides: tuple[Tokenizer | None, ...] = (task.tokenizer.source, task.tokenizer.target)
    else:
        sides = (task.tokenizer,) * len(task.vocabularies)
    made = [ctranslate2.unique([] if one is None else one.pieces(range(one.size)), size)
            for one, size in zip(sides, task.vocabularies, strict=True)]
    return Names(made[0], made[-1])


def _check_place(folder: Path) -> None:
    """Refuse a folder that an export may not replace, such as that of the model itself."""
    folders.prepare(folder)
    if (folder / MANIFEST).exists() and not (folder / RECORD).exists():
        raise checks.wrong(str(folder), "new, empty, or an export that was saved before", "a model or a training",
                           "Choose another folder.")


def _copied(source: Path, path: Path) -> None:
    shutil.copyfile(source, path)


def _to_ctranslate2(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    fit.check(task.config)
    ctranslate2.write(folder, task.config, task.special, task.model.state_dict(), names(task), quantization)
    _put(folder, _own_tokenizer(task))
    notes = [f"It has {ctranslate2.room(task.config):,} positions."]
    if isinstance(task, Translator):
        notes.append("A source is given with its end token behind it.")
    return tuple(notes)


def _run_ctranslate2(task: Task, folder: Path, quantization: str) -> Runner:
    chosen = runners.CTranslate2Translator if isinstance(task, Translator) else runners.CTranslate2Generator
    return chosen(folder, names(task), comparing.ends(task), ctranslate2.QUANTIZATIONS[quantization])


def _to_onnx(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    onnx.write(folder, task.config, task.model)
    _put(folder, _own_tokenizer(task))
    return ("All tokens so far are given at each step: a graph has no cache.",) if hasattr(task.model, "decode") else ()


def _run_onnx(task: Task, folder: Path, quantization: str) -> Runner:
    chosen = runners.OnnxTranslator if isinstance(task, Translator) else runners.OnnxModel
    return chosen(folder, comparing.ends(task))


def _to_huggingface(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    config, tensors = reordering.halves(task.config, task.model.state_dict())
    files, note = _their_tokenizer(task)
    inner = folder / "model"  # which is saved as a folder of its own, with a manifest that the whole will have too
    huggingface.write(inner, config, task.special, _float32(tensors), labels=task.labels or (), others=files)
    for name in folders.verify(inner).files:
        (inner / name).rename(folder / name)
    shutil.rmtree(inner)
    return note


def _run_huggingface(task: Task, folder: Path, quantization: str) -> Runner:
    if runners.has_transformers():
        return runners.Transformers(folder, comparing.ends(task))
    return comparing.Reread(loading.load(folder))


def _float32(tensors: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    return {name: tensor.to("cpu", torch.float32) for name, tensor in tensors.items()}


def _own_tokenizer(task: Task) -> dict[str, bytes]:
    """The files of our tokenizer, and the special ids, by which text becomes ids."""
    return {} if task.tokenizer is None else task.tokenizer.files()


def _their_tokenizer(task: Task) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of a tokenizer that `transformers` reads; and what is to be said where it has no such form."""
    tokenizer = task.tokenizer
    if isinstance(tokenizer, JsonTokenizer):
        return {"tokenizer.json": tokenizer.data, "special_tokens_map.json": _named(tokenizer)}, ()
    if isinstance(tokenizer, PairTokenizer):
        source, target = tokenizer.source, tokenizer.target
        if isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer):
            return {"source.spm": source.data, "target.spm": target.data, "vocab.json": source.vocabulary}, ()
    if tokenizer is None:
        return {}, ()
    one, behind = tokenizer, task.special.separator
    if isinstance(tokenizer, PairTokenizer):
        one, behind = (tokenizer.source if tokenizer.joint else None), tokenizer.source_end  # type: ignore[assignment]
    if not isinstance(one, SentencePieceTokenizer) or not subwords.fits(one) or task.special.first is not None:
        return {}, ("The tokenizer has no form in `transformers`, and was left out: give it ids.",)
    files = subwords.files(one, behind=behind)
    if not _same_ids(one, files[subwords.JSON]):
        return {}, ("The tokenizer gave other ids in `tokenizers`, and was left out: give it ids.",)
    return files, ("A special token that is typed in a text is that token in `transformers`, and no text.",)


def _same_ids(tokenizer: SentencePieceTokenizer, data: bytes) -> bool:
    """Whether texts give the same ids there: pieces one after another, drawn at random."""
    source = random.Random(comparing.SEED)
    rows = [source.choices(range(FIRST_PIECE, tokenizer.size), k=length) for length in range(1, 200)]
    texts = [text for text in map(tokenizer.decode, rows) if not any(name in text for name in SHOWN)]
    return subwords.encoded(data, texts) == tokenizer.encode_many(texts)


def _named(tokenizer: JsonTokenizer) -> bytes:
    """The names of the special tokens, as `transformers` looks for them."""
    roles: dict[str, int | None] = {field.name: getattr(tokenizer.special, field.name)
                                    for field in dataclasses.fields(SpecialConfig) if field.name != "end"}
    roles["end"] = next(iter(tokenizer.special.end), None)
    found = {theirs: tokenizer.pieces([id_])[0] for theirs, ours in ROLES.items() if (id_ := roles[ours]) is not None}
    return json.dumps(found, ensure_ascii=False, indent=2).encode()


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


TARGETS = {
    "ctranslate2": Target(_to_ctranslate2, _run_ctranslate2),
    "onnx": Target(_to_onnx, _run_onnx),
    "huggingface": Target(_to_huggingface, _run_huggingface),
}
