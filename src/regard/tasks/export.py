"""Export a model for CTranslate2, ONNX or `transformers`, and verify the export before it is kept.

    task -> does the target support it? -> write to a temporary folder -> run it in the target program
         -> compare its outputs with ours -> move into place

    ctranslate2    translators and language models with attention, optionally quantised
    onnx           graphs of all models without recurrence
    huggingface    models that fit an architecture of `transformers`, with the tokenizer if it has a form there

An export whose outputs differ raises `ExportError`, and no folder is written. Both models read the same rows of ids,
random ones of several lengths or those of given texts; their outputs are compared, and so is what greedy search writes.
Two greedy searches may diverge where two tokens are almost equally probable: that is not counted as a difference.
Quantised outputs may differ more, and their greedy search is reported but not required to agree.

Legend: B rows, N tokens, V vocabulary.
"""

import dataclasses
import hashlib
import importlib.util
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard._version import __version__
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.data.tokenizer.loading import HUGGING_FACE_ROLES, JsonTokenizer, MarianTokenizer
from regard.data.tokenizer.subwords import FIRST_PIECE, SPECIAL_PIECES, SentencePieceTokenizer
from regard.models.vision import VisionConfig
from regard.special_tokens import SpecialTokens
from regard.storage import ctranslate2, onnx
from regard.storage import ctranslate2 as fit
from regard.storage import folder as folders
from regard.storage import folder as manifests
from regard.storage.ctranslate2 import QUANTIZATIONS, VocabularyNames
from regard.storage.folder import MANIFEST_FILE as MANIFEST
from regard.storage.huggingface import conversion, tokenizer_json
from regard.storage.huggingface import conversion as huggingface
from regard.storage.onnx import import_extra
from regard.tasks import load
from regard.tasks.completer import Completer
from regard.tasks.task import EncoderTask, Task, check_lengths, max_positions
from regard.tasks.translator import Translator
from regard.tokens import Tokens

RECORD_FILE = "export.json"
"""What an export is made of, beside what the other program reads."""


class ExportError(RuntimeError):
    """An exported model says something else than ours."""


# ---- comparing: What an exported model says beside what our own says, to the same ids.
#
# Rows of ids are drawn at random, of several lengths, so that no language and no tokenizer is needed; or they are those
# of texts that are given. Our model writes after each by greedy search. Then both read what was written, and their
# numbers are compared; and the exported model writes by itself, and what it writes is compared.
#
# Two greedy searches may part where two tokens are as good as equally probable: that is no difference. Numbers that were
# quantised on purpose may differ more, and what is written from them is counted and not asked for.


@dataclass(frozen=True)
class ExportComparison:
    """What came of it."""

    rows: int
    numbers: int
    """How many were compared."""
    what: str
    """What they are."""
    difference: float
    """The largest."""
    mean: float
    """The mean of all differences."""
    tolerance: float
    """What the largest may be."""
    same: int | None = None
    """After how many rows both wrote the same; None for a model that does not write."""
    parted: int = 0
    """After how many rows they did not, where our model finds the two far from equal."""

    @property
    def passed(self) -> bool:
        """Whether the exported model is the same as ours, as far as its numbers allow."""
        return self.difference <= self.tolerance and not self.parted


@dataclass(frozen=True)
class ExportReport:
    """What was exported, and how it compares."""

    target: str
    quantization: str
    files: tuple[str, ...]
    program: str
    """Which one ran it, to compare."""
    comparison: ExportComparison
    notes: tuple[str, ...] = ()
    """What whoever uses it should know."""


# ---- runners: Exported models, run: what each target's own program says to the ids that our model is asked.
#
#     runner.numbers(asked)       a tensor for each row: logits, or the log-probabilities of what is read
#     runner.written(asked, n)    for each row what greedy search writes, n tokens at most
#
# A runner asks the program that others will use: CTranslate2, onnxruntime, `transformers`. It knows nothing of our model
# beyond its config and special ids; what both say is compared elsewhere.
#
# Legend: B rows, N tokens, V vocabulary.

IdLists = list[list[int]]


@dataclass(frozen=True)
class CheckInputs:
    """What a model is asked: rows of ids, with what is written after each where it translates; or images."""

    rows: IdLists
    targets: IdLists | None = None
    """Of a translator, with the start in front, without the end."""
    images: Tensor | None = None


class ExportRunner(Protocol):
    """An exported model."""

    program: str
    """Which one runs it."""
    gathered: bool
    """Whether its numbers are of the tokens that are read alone: of each given those before it, and of the end."""

    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        """What it says to each row."""

    def written(self, asked: CheckInputs, limit: int) -> IdLists:
        """What it writes after each row."""


@dataclass(frozen=True)
class ExportTarget:
    """How a model is written for a program, and how it is run by it."""

    write: Callable[[Task, Path, str], tuple[str, ...]]
    """It writes into a folder that is there, and gives notes; a ValueError for a model that does not fit."""
    run: Callable[[Task, Path, str], ExportRunner]


def export(task: Task, target: str, folder: str | os.PathLike[str], *, quantization: str = "float32",
           texts: Sequence[str] = (), origin: str | None = None) -> ExportReport:
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
    _check_folder(Path(folder))
    with tempfile.TemporaryDirectory(prefix="regard-export-") as name:
        place = Path(name)
        notes = chosen.write(task, place, quantization)
        asked = make_check_inputs(task, texts)
        runner = chosen.run(task, place, quantization)
        found = compare_outputs(task, runner, asked, quantization)
        if not found.passed:
            raise ExportError(f"The exported model differs from ours, and is not kept: {describe_comparison(found)}.")
        record = {"regard": __version__, "target": target, "quantization": quantization, "model": origin}
        (place / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")
        files = sorted(path.name for path in place.iterdir())
        folders.save(folder, {one: partial(_copy_file, place / one) for one in files})
    return ExportReport(target, quantization, tuple(files), runner.program, found, notes)


def describe_comparison(found: ExportComparison) -> str:
    """A comparison in words."""
    text = (f"{found.numbers:,} {found.what} of {found.rows} rows differ by at most {found.difference:.1e}, "
            f"{found.mean:.1e} on average (allowed: {found.tolerance:.1e})")
    if found.same is None:
        return text
    text += f"; greedy search writes the same after {found.same} of {found.rows}"
    return f"{text}, and after {found.parted} something that our model finds worse" if found.parted else text


def model_identity(folder: str | os.PathLike[str]) -> str:
    """What tells the model in a folder from any other: a sha256 of its manifest, or of the files of an imported one."""
    place = Path(folder)
    own = [place / MANIFEST] if (place / MANIFEST).exists() else [place / "config.json", *place.glob("*.safetensors")]
    found = {path.name: manifests.hash_file(path).sha256 for path in own}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def vocabulary_names(task: Task) -> VocabularyNames:
    """What CTranslate2 calls the ids of a model."""
    if isinstance(task.tokenizer, PairTokenizer):
        sides: tuple[Tokenizer | None, ...] = (task.tokenizer.source, task.tokenizer.target)
    else:
        sides = (task.tokenizer,) * len(task.vocabularies)
    made = [ctranslate2.unique_names([] if one is None else one.pieces(range(one.size)), size)
            for one, size in zip(sides, task.vocabularies, strict=True)]
    return VocabularyNames(made[0], made[-1])


def _check_folder(folder: Path) -> None:
    """Refuse a folder that an export may not replace, such as that of the model itself."""
    folders.prepare(folder)
    if (folder / MANIFEST).exists() and not (folder / RECORD_FILE).exists():
        raise checks.wrong(str(folder), "new, empty, or an export that was saved before", "a model or a training",
                           "Choose another folder.")


def _copy_file(source: Path, path: Path) -> None:
    shutil.copyfile(source, path)


def _to_ctranslate2(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    fit.check_supported(task.config)
    ctranslate2.write_ctranslate2(folder, task.config, task.special, task.model.state_dict(), vocabulary_names(task), quantization)
    _write_files(folder, _regard_tokenizer_files(task))
    notes = [f"It has {ctranslate2.max_positions(task.config):,} positions."]
    if isinstance(task, Translator):
        notes.append("A source is given with its end token behind it.")
    return tuple(notes)


def _run_ctranslate2(task: Task, folder: Path, quantization: str) -> ExportRunner:
    chosen = CTranslate2Translator if isinstance(task, Translator) else CTranslate2Generator
    return chosen(folder, vocabulary_names(task), find_stop_tokens(task), ctranslate2.QUANTIZATIONS[quantization])


def _to_onnx(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    onnx.write_onnx(folder, task.config, task.model)
    _write_files(folder, _regard_tokenizer_files(task))
    return ("All tokens so far are given at each step: a graph has no cache.",) if hasattr(task.model, "decode") else ()


def _run_onnx(task: Task, folder: Path, quantization: str) -> ExportRunner:
    chosen = OnnxTranslator if isinstance(task, Translator) else OnnxModel
    return chosen(folder, find_stop_tokens(task))


def _to_huggingface(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    config, tensors = conversion.with_half_sinusoids(task.config, task.model.state_dict())
    files, note = _huggingface_tokenizer_files(task)
    inner = folder / "model"  # which is saved as a folder of its own, with a manifest that the whole will have too
    huggingface.write_model(inner, config, task.special, _float32(tensors), labels=task.labels or (), others=files)
    for name in folders.verify(inner).files:
        (inner / name).rename(folder / name)
    shutil.rmtree(inner)
    return note


def _run_huggingface(task: Task, folder: Path, quantization: str) -> ExportRunner:
    if has_transformers():
        return TransformersModel(folder, find_stop_tokens(task))
    return ReloadedModel(load.load(folder))


def _float32(tensors: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    return {name: tensor.to("cpu", torch.float32) for name, tensor in tensors.items()}


def _regard_tokenizer_files(task: Task) -> dict[str, bytes]:
    """The files of our tokenizer, and the special ids, by which text becomes ids."""
    return {} if task.tokenizer is None else task.tokenizer.files()


def _huggingface_tokenizer_files(task: Task) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of a tokenizer that `transformers` reads; and what is to be said where it has no such form."""
    tokenizer = task.tokenizer
    if isinstance(tokenizer, JsonTokenizer):
        return {"tokenizer.json": tokenizer.data, "special_tokens_map.json": _special_tokens_map(tokenizer)}, ()
    if isinstance(tokenizer, PairTokenizer):
        source, target = tokenizer.source, tokenizer.target
        if isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer):
            return {"source.spm": source.data, "target.spm": target.data, "vocab.json": source.vocabulary}, ()
    if tokenizer is None:
        return {}, ()
    one, behind = tokenizer, task.special.separator
    if isinstance(tokenizer, PairTokenizer):
        one, behind = (tokenizer.source if tokenizer.joint else None), tokenizer.source_end  # type: ignore[assignment]
    if not isinstance(one, SentencePieceTokenizer) or not tokenizer_json.is_exportable(one) or task.special.cls is not None:
        return {}, ("The tokenizer has no form in `transformers`, and was left out: give it ids.",)
    files = tokenizer_json.tokenizer_files(one, behind=behind)
    if not _same_ids(one, files[tokenizer_json.TOKENIZER_FILE]):
        return {}, ("The tokenizer gave other ids in `tokenizers`, and was left out: give it ids.",)
    return files, ("A special token that is typed in a text is that token in `transformers`, and no text.",)


def _same_ids(tokenizer: SentencePieceTokenizer, data: bytes) -> bool:
    """Whether texts give the same ids there: pieces one after another, drawn at random."""
    source = random.Random(CHECK_SEED)
    rows = [source.choices(range(FIRST_PIECE, tokenizer.size), k=length) for length in range(1, 200)]
    texts = [text for text in map(tokenizer.decode, rows) if not any(name in text for name in SPECIAL_PIECES)]
    return tokenizer_json.encode_texts(data, texts) == tokenizer.encode_batch(texts)


def _special_tokens_map(tokenizer: JsonTokenizer) -> bytes:
    """The names of the special tokens, as `transformers` looks for them."""
    roles: dict[str, int | None] = {field.name: getattr(tokenizer.special, field.name)
                                    for field in dataclasses.fields(SpecialTokens) if field.name != "end"}
    roles["end"] = next(iter(tokenizer.special.end), None)
    found = {theirs: tokenizer.pieces([id_])[0] for theirs, ours in HUGGING_FACE_ROLES.items() if (id_ := roles[ours]) is not None}
    return json.dumps(found, ensure_ascii=False, indent=2).encode()


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


TARGETS = {
    "ctranslate2": ExportTarget(_to_ctranslate2, _run_ctranslate2),
    "onnx": ExportTarget(_to_onnx, _run_onnx),
    "huggingface": ExportTarget(_to_huggingface, _run_huggingface),
}

ROW_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Of the rows that are drawn, as far as the model has positions."""
MAX_WRITTEN, MAX_TEXTS = 20, 100
"""How many tokens are written after a row; how many texts are taken of those that are given."""
CHECK_SEED = 1
TOLERANCES = {"float32": 1e-4, "float16": 0.005, "bfloat16": 0.02, "int8": 0.2}
"""How far numbers may be apart, as a share of the largest of our own where that is above 1."""


@dataclass(frozen=True)
class StopTokens:
    """Where what is written ends, and what is never written."""

    special: SpecialTokens
    never: tuple[int, ...] = ()


def find_stop_tokens(task: Task) -> StopTokens:
    """Where what the model writes ends, and what it never writes."""
    if not isinstance(task, Translator | Completer):
        return StopTokens(task.special)
    size, padding = task.vocabularies[-1], task.special.padding
    tokenizer = task.tokenizer.target if isinstance(task.tokenizer, PairTokenizer) else task.tokenizer
    never = [] if tokenizer is None else [*range(tokenizer.size, size)]  # ids of the model that are no token
    if isinstance(task, Translator) and padding is not None and padding not in task.special.end and padding < size:
        never.append(padding)
    return StopTokens(task.special, tuple(never))


def make_check_inputs(task: Task, texts: Sequence[str] = ()) -> CheckInputs:
    """What both models are asked."""
    if isinstance(task.config, VisionConfig):
        source = torch.Generator().manual_seed(CHECK_SEED)
        shape = (len(ROW_LENGTHS), task.config.channels, task.config.image_height, task.config.image_width)
        return CheckInputs([], images=torch.rand(shape, generator=source) * 2 - 1)
    rows = _rows_of_texts(task, texts[:MAX_TEXTS]) if texts else _random_rows(task)
    if not isinstance(task, Translator):
        return CheckInputs(rows)
    found = task.translate_ids(rows, limit=_max_written(task))
    return CheckInputs(rows, [[task.start(), *hypotheses[0].ids] for hypotheses in found])


def compare_outputs(task: Task, runner: ExportRunner, asked: CheckInputs, quantization: str = "float32") -> ExportComparison:
    """What the two say to the same ids; `quantization` is what the exported numbers are."""
    ours, theirs = _model_outputs(task, asked), runner.numbers(asked)
    what = "log-probabilities" if runner.gathered else "outputs"
    if runner.gathered:
        assert asked.targets is not None
        ours = [_gather_log_probabilities(logits, [*target[1:], task.end()[0]])
                for logits, target in zip(ours, asked.targets, strict=True)]
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        raise checks.wrong("export", f"of outputs of {[*ours[0].shape]}", f"of {[*theirs[0].shape]}")
    apart = torch.cat([(mine - other.float()).abs().flatten() for mine, other in zip(ours, theirs, strict=True)])
    scale = max(1.0, *(float(mine.abs().max()) for mine in ours))
    tolerance, same, parted = TOLERANCES[quantization] * scale, None, 0
    if isinstance(task, Translator | Completer):
        same, parted = _compare_written(task, runner, asked, tolerance)
        parted = parted if quantization == "float32" else 0
    largest = float(apart.nan_to_num(nan=torch.inf).max())
    return ExportComparison(len(ours), len(apart), what, largest, float(apart.mean()), tolerance, same, parted)


def _compare_written(task: "Translator | Completer", runner: ExportRunner, asked: CheckInputs, tolerance: float) -> tuple[int, int]:
    """After how many rows both write the same; and after how many something that is no matter of rounding."""
    limit, same, parted = _max_written(task, asked), 0, 0
    if isinstance(task, Translator):
        assert asked.targets is not None
        ours = [target[1:] for target in asked.targets]
    else:
        ours = [hypotheses[0].ids for hypotheses in task.complete_ids(asked.rows, limit=limit)]
    for number, (mine, other) in enumerate(zip(ours, runner.written(asked, limit), strict=True)):
        if mine == other:
            same += 1
        elif _logit_gap(task, asked, number, mine, other) > tolerance:
            parted += 1
    return same, parted


def _logit_gap(task: "Translator | Completer", asked: CheckInputs, number: int, mine: list[int], other: list[int]) -> float:
    """How far apart our model finds the two tokens at which they part, as a difference of logits."""
    at = next((at for at, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]),
              min(len(mine), len(other)))
    before, end = mine[:at], next(iter(task.special.end), 0)
    own, theirs = (row[at] if at < len(row) else end for row in (mine, other))
    if asked.targets is None:
        one = CheckInputs([[*asked.rows[number], *before]])
    else:
        one = CheckInputs([asked.rows[number]], [[task.start(), *before]])  # type: ignore[union-attr]
    logits_V = _model_outputs(task, one)[0][-1]
    return abs(float(logits_V[own] - logits_V[theirs]))


class ReloadedModel:
    """An export for `transformers` as our own reader reads it, where that is not installed."""

    program, gathered = "regard", False

    def __init__(self, task: Task) -> None:
        self.task = task

    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        return _model_outputs(self.task, asked)

    def written(self, asked: CheckInputs, limit: int) -> list[list[int]]:
        if isinstance(self.task, Translator):
            return [found[0].ids for found in self.task.translate_ids(asked.rows, limit=limit)]
        assert isinstance(self.task, Completer)
        return [found[0].ids for found in self.task.complete_ids(asked.rows, limit=limit)]


@torch.inference_mode()
def _model_outputs(task: Task, asked: CheckInputs) -> list[Tensor]:
    """What our model says to each row, in float32, each row by itself."""
    model = task.model
    if asked.images is not None:
        weight = next(model.parameters())
        return [*model(asked.images.to(weight)).float().cpu()]
    if isinstance(task, Translator):
        assert asked.targets is not None
        found = [model.decode(_as_tokens(task, target), model.encode(_as_tokens(task, row)))  # type: ignore[operator]
                 for row, target in zip(asked.rows, asked.targets, strict=True)]
    elif isinstance(task, Completer):
        found = [model.decode(_as_tokens(task, row)) for row in asked.rows]  # type: ignore[operator]
    else:
        found = [model(_as_tokens(task, row)) for row in asked.rows]
    return [one[0].float().cpu() for one in found]


def _as_tokens(task: Task, row: Sequence[int]) -> Tokens:
    return Tokens.of([row]).to(task.device)


def _gather_log_probabilities(logits_NV: Tensor, ids: Sequence[int]) -> Tensor:
    """The log-probabilities of these ids."""
    return logits_NV.log_softmax(-1).gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)


def _reading_part(task: Task) -> object:
    """The part of the model that reads rows."""
    return getattr(task.model, "encoder", getattr(task.model, "decoder", task.model))


def _max_written(task: Task, asked: CheckInputs | None = None) -> int:
    """How many tokens are written: as many as there is room for behind the longest row."""
    positions = max_positions(getattr(task.model, "decoder", None))
    before = 1 if asked is None or asked.targets is not None else max(map(len, asked.rows))
    return MAX_WRITTEN if positions is None else max(1, min(MAX_WRITTEN, positions - before))


def _random_rows(task: Task) -> list[list[int]]:
    """Rows of ids that no special one is among, but for the end of a source."""
    most, size = max_positions(_reading_part(task)), task.vocabularies[0]
    behind = [] if not isinstance(task, Translator) else [_source_end(task)]
    spare = len(behind) if isinstance(task, Translator) else 1  # a token at least is written
    plain = [id_ for id_ in range(size) if id_ not in task.special.ids()] or [*range(size)]
    source, rows = torch.Generator().manual_seed(CHECK_SEED), []
    for length in ROW_LENGTHS:
        length = length if most is None else max(1, min(length, most - spare))
        drawn = torch.randint(len(plain), (length,), generator=source).tolist()
        rows.append([*(plain[at] for at in drawn), *behind])
    return rows


def _source_end(task: Translator) -> int:
    if isinstance(task.tokenizer, PairTokenizer):
        return task.tokenizer.source_end
    return min(task.end()[0], task.vocabularies[0] - 1)


def _rows_of_texts(task: Task, texts: Sequence[str]) -> list[list[int]]:
    """The rows of texts, without those that are empty."""
    if isinstance(task, Translator):
        rows = task.pair_tokenizer().encode_sources(texts)
    elif isinstance(task, EncoderTask):
        rows = task.text_ids(texts)
    else:
        assert isinstance(task, Completer)
        rows = [[*([] if task.special.cls is None else [task.special.cls]), *ids]
                for ids in task.text_tokenizer().encode_batch(texts)]
    rows = [row for row in rows if row]
    check_lengths("texts", rows, max_positions(_reading_part(task)))
    if not rows:
        raise checks.wrong("texts", "texts that are not all empty", "none")
    return rows


NextLogits = Callable[[list[int], IdLists], list[Tensor]]
"""Numbers of rows, and what stands on the target's side of each -> the logits of the token after the last."""


class CTranslate2Translator:
    """A translator in CTranslate2."""

    program, gathered = "ctranslate2", True

    def __init__(self, folder: Path, names: VocabularyNames, ends: StopTokens, compute: str = "default") -> None:
        self.inner = ctranslate2.import_ctranslate2().Translator(str(folder), device="cpu", compute_type=compute)
        self.names, self.ends = names, ends

    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        assert asked.targets is not None
        found = self.inner.score_batch(_token_names(asked.rows, self.names.source),
                                       _token_names([row[1:] for row in asked.targets], self.names.target),
                                       max_input_length=0)
        return [torch.tensor(one.log_probs) for one in found]

    def written(self, asked: CheckInputs, limit: int) -> IdLists:
        ids = {name: id_ for id_, name in enumerate(self.names.target)}
        found = self.inner.translate_batch(
            _token_names(asked.rows, self.names.source), beam_size=1, max_input_length=0, max_decoding_length=limit,
            min_decoding_length=0, end_token=[*self.ends.special.end],
            suppress_sequences=[[self.names.target[id_]] for id_ in self.ends.never] or None)
        return [[ids[name] for name in one.hypotheses[0]] for one in found]


class CTranslate2Generator:
    """A language model in CTranslate2."""

    program, gathered = "ctranslate2", False

    def __init__(self, folder: Path, names: VocabularyNames, ends: StopTokens, compute: str = "default") -> None:
        self.inner = ctranslate2.import_ctranslate2().Generator(str(folder), device="cpu", compute_type=compute)
        self.names, self.ends = names, ends

    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        logits_BNV = torch.from_numpy(np.array(self.inner.forward_batch(asked.rows)))
        return [logits_NV[:len(row)] for logits_NV, row in zip(logits_BNV, asked.rows, strict=True)]

    def written(self, asked: CheckInputs, limit: int) -> IdLists:
        # One by one: of prompts of several lengths, those beyond the shortest count as written.
        return [self._one([row], limit) for row in asked.rows]

    def _one(self, prompt: IdLists, limit: int) -> list[int]:
        (found,) = self.inner.generate_batch(
            _token_names(prompt, self.names.target), beam_size=1, max_length=limit, min_length=0,
            include_prompt_in_result=False, end_token=[*self.ends.special.end],
            suppress_sequences=[[self.names.target[id_]] for id_ in self.ends.never] or None)
        return found.sequences_ids[0]


class OnnxTranslator:
    """A translator in onnxruntime."""

    program, gathered = "onnxruntime", False

    def __init__(self, folder: Path, ends: StopTokens) -> None:
        self.encoder, self.decoder = (_onnx_session(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
        self.ends = ends

    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        assert asked.targets is not None
        return self._decoded(*self._encoded(asked.rows), asked.targets)

    def written(self, asked: CheckInputs, limit: int) -> IdLists:
        assert asked.targets is not None
        states, lengths = self._encoded(asked.rows)

        def following(rows: list[int], texts: IdLists) -> list[Tensor]:
            return [logits[-1] for logits in self._decoded(states[rows], lengths[rows], texts)]

        return greedy_rows([[row[0]] for row in asked.targets], self.ends, limit, following)

    def _encoded(self, sources: IdLists) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        ids, lengths = _pad_rows(sources)
        return self.encoder.run(None, {"ids": ids, "lengths": lengths})[0], lengths

    def _decoded(self, states: "np.ndarray[Any, Any]", lengths: "np.ndarray[Any, Any]", targets: IdLists) -> list[Tensor]:
        ids, counts = _pad_rows(targets)
        logits = self.decoder.run(None, {"ids": ids, "states": states, "lengths": lengths})[0]
        return [torch.from_numpy(one[:count]) for one, count in zip(logits, counts, strict=True)]


class OnnxModel:
    """A model of one graph in onnxruntime: one that goes on with a text, or that reads."""

    program, gathered = "onnxruntime", False

    def __init__(self, folder: Path, ends: StopTokens) -> None:
        self.inner, self.ends = _onnx_session(folder / "model.onnx"), ends
        self.inputs = {one.name for one in self.inner.get_inputs()}

    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        if asked.images is not None:
            return [*torch.from_numpy(self.inner.run(None, {"images": asked.images.numpy()})[0])]
        ids, lengths = _pad_rows(asked.rows)
        given = {name: value for name, value in (("ids", ids), ("lengths", lengths)) if name in self.inputs}
        found = torch.from_numpy(self.inner.run(None, given)[0])
        return [one if found.dim() == 2 else one[:count] for one, count in zip(found, lengths, strict=True)]

    def written(self, asked: CheckInputs, limit: int) -> IdLists:
        return greedy_rows(asked.rows, self.ends, limit, lambda rows, texts: [logits[-1] for logits in
                                                                         self.numbers(CheckInputs(texts))])


class TransformersModel:
    """A model in `transformers`."""

    program, gathered = "transformers", False

    def __init__(self, folder: Path, ends: StopTokens) -> None:
        transformers = importlib.import_module("transformers")
        architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
        with _quiet(transformers.utils.logging):
            self.inner = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
        self.ends = ends

    @torch.inference_mode()
    def numbers(self, asked: CheckInputs) -> list[Tensor]:
        if asked.images is not None:
            return [*self.inner(pixel_values=asked.images).logits]
        ids, lengths = (torch.from_numpy(one) for one in _pad_rows(asked.rows))
        mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(-1)).long()
        if asked.targets is not None:
            written, counts = _pad_rows(asked.targets)
            logits = self.inner(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.from_numpy(written)).logits
            return [one[:count] for one, count in zip(logits, counts, strict=True)]
        found = self.inner(input_ids=ids, attention_mask=mask)
        given = found.logits if "logits" in found else found.last_hidden_state
        return [one if given.dim() == 2 else one[:count] for one, count in zip(given, lengths, strict=True)]

    def written(self, asked: CheckInputs, limit: int) -> IdLists:
        def following(rows: list[int], texts: IdLists) -> list[Tensor]:
            some = CheckInputs(texts) if asked.targets is None else CheckInputs([asked.rows[row] for row in rows], texts)
            return [logits[-1] for logits in self.numbers(some)]

        starts = asked.rows if asked.targets is None else [[row[0]] for row in asked.targets]
        return greedy_rows(starts, self.ends, limit, following)


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """`transformers` without its bars and its advice."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def has_transformers() -> bool:
    """Whether `transformers` is installed."""
    return importlib.util.find_spec("transformers") is not None


def greedy_rows(starts: IdLists, ends: StopTokens, limit: int, following: NextLogits) -> IdLists:
    """What greedy search writes after each start, by a function that gives the logits of the next token."""
    texts, going = [list(row) for row in starts], [*range(len(starts))]
    for _ in range(limit):
        still = []
        for row, logits_V in zip(going, following(going, [texts[row] for row in going]), strict=True):
            allowed_V = logits_V.clone()
            allowed_V[[*ends.never]] = -torch.inf
            token = int(allowed_V.argmax())
            if token not in ends.special.end:
                texts[row].append(token)
                still.append(row)
        going = still
        if not going:
            break
    return [text[len(start):] for text, start in zip(texts, starts, strict=True)]


def _token_names(rows: IdLists, names: Sequence[str]) -> list[list[str]]:
    return [[names[id_] for id_ in row] for row in rows]


def _pad_rows(rows: IdLists) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Rows filled up on the right, (B, N), and their lengths, (B,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, :len(row)] = row
    return ids, lengths


def _onnx_session(path: Path) -> Any:
    runtime = import_extra("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors; its warnings are of how it optimises
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
