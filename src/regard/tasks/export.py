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
from regard.data.tokenizer.subwords import FIRST_PIECE, SPECIAL_PIECES, LosslessTokenizer, SentencePieceTokenizer
from regard.models.vision import VisionConfig
from regard.special_tokens import SpecialTokens
from regard.storage import ctranslate2, onnx
from regard.storage import folder as folders
from regard.storage.filesystem import file_in_errors
from regard.storage.huggingface import conversion, tokenizer_json
from regard.tasks.completer import Completer
from regard.tasks.load import load
from regard.tasks.task import EncoderTask, Task, check_lengths, ids_without_token, max_positions
from regard.tasks.translator import Translator
from regard.tokens import Tokens

RECORD_FILE = "export.json"
"""A record of the exported model and the export, in the folder of the export."""
ROW_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
"""The lengths of random rows, as far as the model has positions."""
MAX_CONTROLS = 20
"""Control tokens that a note lists."""
MAX_WRITTEN = 20
"""Tokens that greedy search writes after a row."""
MAX_TEXTS = 100
"""The number of given texts that are used."""
CHECK_SEED = 1
TOLERANCES = {"float32": 1e-4, "float16": 0.005, "bfloat16": 0.02, "int8": 0.2}
"""The largest allowed difference of outputs, relative to the largest of ours if that is above 1."""
IdLists = list[list[int]]
Array = np.ndarray[Any, Any]
NextLogits = Callable[[list[int], IdLists], list[Tensor]]
"""Row numbers, and the target ids of each -> the logits of the next token."""


class ExportError(RuntimeError):
    """The outputs of an exported model differ from ours."""


@dataclass(frozen=True)
class ExportComparison:
    """The result of comparing an exported model with ours."""

    rows: int
    numbers: int
    """How many numbers were compared."""
    what: str
    """"outputs" or "log-probabilities"."""
    difference: float
    """The largest absolute difference."""
    mean: float
    """The mean absolute difference."""
    tolerance: float
    """The largest allowed difference."""
    same: int | None = None
    """The number of rows after which greedy search generates the same text; None for a model without generation."""
    parted: int = 0
    """The number of rows after which it generates a text that is clearly less probable in our model."""

    @property
    def passed(self) -> bool:
        """Whether the exported model equals ours within the tolerance."""
        return self.difference <= self.tolerance and not self.parted


@dataclass(frozen=True)
class ExportReport:
    """What was exported, and how it compares."""

    target: str
    quantization: str
    files: tuple[str, ...]
    program: str
    """The program that ran the export."""
    comparison: ExportComparison
    notes: tuple[str, ...] = ()
    """What users of the export should know."""


@dataclass(frozen=True)
class ExportTarget:
    """How a model is written for a program, and run by it."""

    write: Callable[[Task, Path, str], tuple[str, ...]]
    """Writes into an existing folder, and returns notes; a ValueError for an unsupported model."""
    run: Callable[[Task, Path, str], "ExportRunner"]


def export(task: Task, target: str, folder: str | os.PathLike[str], *, quantization: str = "float32",
           texts: Sequence[str] = (), origin: str | None = None) -> ExportReport:
    """Write a model for another program, and verify that it computes the same there.

    Args:
        target: "ctranslate2", "onnx" or "huggingface".
        folder: a folder that does not exist, is empty, or was exported by regard before.
        quantization: the number format of stored matrices; for CTranslate2 only.
        texts: the inputs of both models; by default random rows of ids.
        origin: the identity of the model, which is kept in export.json.
    """
    chosen = checks.pick("target", target, TARGETS)
    checks.pick("quantization", quantization, ctranslate2.QUANTIZATIONS)
    if quantization != "float32" and target != "ctranslate2":
        raise checks.wrong("quantization", f'"float32" for {target}', f'"{quantization}"',
                           "Only exports for CTranslate2 can be quantised.")
    task.check_eval_mode()
    _check_folder(Path(folder))
    with tempfile.TemporaryDirectory(prefix="regard-export-") as name:
        temporary = Path(name)
        with file_in_errors(temporary):
            notes = chosen.write(task, temporary, quantization)
        inputs = make_check_inputs(task, texts)
        runner = chosen.run(task, temporary, quantization)
        comparison = compare_outputs(task, runner, inputs, quantization)
        if not comparison.passed:
            raise ExportError(f"The exported model does not compute the same as the original: "
                              f"{describe_comparison(comparison)}. Nothing was written.")
        record = {"regard": __version__, "target": target, "quantization": quantization, "model": origin}
        (temporary / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")
        files = sorted(path.name for path in temporary.iterdir())
        folders.save(folder, {one: partial(_copy_file, temporary / one) for one in files})
    return ExportReport(target, quantization, tuple(files), runner.program, comparison, notes)


def describe_comparison(found: ExportComparison) -> str:
    """One sentence, without a full stop, that states the result of a comparison."""
    text = (f"{found.numbers:,} {found.what} of {checks.plural(found.rows, 'row')} differ by at most "
            f"{found.difference:.1e}, {found.mean:.1e} on average (allowed: {found.tolerance:.1e})")
    if found.same is None:
        return text
    text += f"; greedy search gives the same text for {found.same} of {checks.plural(found.rows, 'row')}"
    return f"{text}, and a clearly less probable one for {found.parted}" if found.parted else text


def model_identity(folder: str | os.PathLike[str]) -> str:
    """A sha256 of the manifest of a model folder, or of the files of an imported model."""
    path = Path(folder)
    manifest = path / folders.MANIFEST_FILE
    files = [manifest] if manifest.exists() else [path / "config.json", *path.glob("*.safetensors")]
    hashes = {file.name: folders.hash_file(file).sha256 for file in files}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def vocabulary_names(task: Task) -> ctranslate2.VocabularyNames:
    """The names of the ids of a model in CTranslate2."""
    if isinstance(task.tokenizer, PairTokenizer):
        sides: tuple[Tokenizer | None, ...] = (task.tokenizer.source, task.tokenizer.target)
    else:
        sides = (task.tokenizer,) * len(task.vocabularies)
    names = [ctranslate2.unique_names([] if one is None else one.pieces(range(one.size)), size)
             for one, size in zip(sides, task.vocabularies, strict=True)]
    return ctranslate2.VocabularyNames(names[0], names[-1])


def _check_folder(folder: Path) -> None:
    """Refuse a folder that an export may not replace, such as that of the model itself."""
    folders.prepare(folder)
    if (folder / folders.MANIFEST_FILE).exists() and not (folder / RECORD_FILE).exists():
        raise ValueError(f"{folder}: this folder has a model or a training, which an export does not overwrite. Choose "
                         "another folder.")


def _copy_file(source: Path, path: Path) -> None:
    shutil.copyfile(source, path)


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


# The targets

def _to_ctranslate2(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    ctranslate2.check_supported(task.config)
    ctranslate2.write_ctranslate2(folder, task.config, task.special, task.model.state_dict(), vocabulary_names(task),
                                  quantization)
    _write_files(folder, _regard_tokenizer_files(task))
    positions = ctranslate2.max_positions(task.config)
    notes = [] if positions is None else [f"The export takes texts of at most {positions:,} tokens."]
    if isinstance(task, Translator):
        notes.append("Append the end token to every source.")
    return (*notes, *_control_notes(task))


def _control_notes(task: Task) -> tuple[str, ...]:
    """How to choose the target language of an exported model for several languages."""
    if not isinstance(task, Translator) or not task.target_languages:
        return ()
    controls = task.pair_tokenizer().source.controls
    shown = ", ".join(f"{name} (id {id_})" for name, id_ in [*controls.items()][:MAX_CONTROLS])
    return (f"Begin every source with the token of the target language: {shown}"
            f"{', ...' if len(controls) > MAX_CONTROLS else ''}.",)


def _run_ctranslate2(task: Task, folder: Path, quantization: str) -> "ExportRunner":
    runner = CTranslate2Translator if isinstance(task, Translator) else CTranslate2Generator
    return runner(folder, vocabulary_names(task), find_stop_tokens(task), ctranslate2.QUANTIZATIONS[quantization])


def _to_onnx(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    onnx.write_onnx(folder, task.config, task.model)
    _write_files(folder, _regard_tokenizer_files(task))
    cache = ("The graphs have no key-value cache: pass all tokens so far at each step.",)
    return (*(cache if hasattr(task.model, "decode") else ()), *_control_notes(task))


def _run_onnx(task: Task, folder: Path, quantization: str) -> "ExportRunner":
    runner = OnnxTranslator if isinstance(task, Translator) else OnnxModel
    return runner(folder, find_stop_tokens(task))


def _to_huggingface(task: Task, folder: Path, quantization: str) -> tuple[str, ...]:
    config, tensors = conversion.with_half_sinusoids(task.config, task.model.state_dict())
    files, notes = _huggingface_tokenizer_files(task)
    inner = folder / "model"  # saved as a folder of its own, with a manifest that the whole export has too
    float32 = {name: tensor.to("cpu", torch.float32) for name, tensor in tensors.items()}
    conversion.write_model(inner, config, task.special, float32, labels=task.labels or (), others=files)
    for name in folders.verify(inner).files:
        (inner / name).rename(folder / name)
    shutil.rmtree(inner)
    return (*notes, *_control_notes(task))


def _run_huggingface(task: Task, folder: Path, quantization: str) -> "ExportRunner":
    return TransformersModel(folder, find_stop_tokens(task)) if has_transformers() else ReloadedModel(load(folder))


TARGETS = {
    "ctranslate2": ExportTarget(_to_ctranslate2, _run_ctranslate2),
    "onnx": ExportTarget(_to_onnx, _run_onnx),
    "huggingface": ExportTarget(_to_huggingface, _run_huggingface),
}


def _regard_tokenizer_files(task: Task) -> dict[str, bytes]:
    return {} if task.tokenizer is None else task.tokenizer.files()


def _huggingface_tokenizer_files(task: Task) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of the tokenizer for `transformers`, if it has such a form, and notes for the user."""
    tokenizer = task.tokenizer
    if isinstance(tokenizer, JsonTokenizer):
        return {"tokenizer.json": tokenizer.data, "special_tokens_map.json": _special_tokens_map(tokenizer)}, ()
    if isinstance(tokenizer, PairTokenizer):
        source, target = tokenizer.source, tokenizer.target
        if isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer):
            return {"source.spm": source.data, "target.spm": target.data, "vocab.json": source.vocabulary}, ()
    if tokenizer is None:
        return {}, ()
    one, end = tokenizer, task.special.separator
    if isinstance(tokenizer, PairTokenizer):
        one, end = (tokenizer.source if tokenizer.joint else None), tokenizer.source_end  # type: ignore[assignment]
    if isinstance(one, LosslessTokenizer) and one.controls:
        return {}, ("The tokenizer is not exported, because a text could forge the control tokens in `transformers`: "
                    "pass token ids.",)
    if (not isinstance(one, SentencePieceTokenizer) or not tokenizer_json.is_exportable(one)
            or task.special.cls is not None):
        return {}, ("The tokenizer is not exported, because `transformers` has no such tokenizer: pass token ids.",)
    files = tokenizer_json.tokenizer_files(one, end=end)
    if not _same_ids(one, files[tokenizer_json.TOKENIZER_FILE]):
        return {}, ("The tokenizer is not exported, because `tokenizers` gave other ids: pass token ids.",)
    return files, ("`transformers` takes the name of a special token in a text, such as </s>, as that token.",)


def _same_ids(tokenizer: SentencePieceTokenizer, data: bytes) -> bool:
    """Whether `tokenizers` gives the same ids for texts of random pieces."""
    source = random.Random(CHECK_SEED)
    rows = [source.choices(range(FIRST_PIECE, tokenizer.size), k=length) for length in range(1, 200)]
    texts = [text for text in map(tokenizer.decode, rows) if not any(name in text for name in SPECIAL_PIECES)]
    return tokenizer_json.encode_texts(data, texts) == tokenizer.encode_batch(texts)


def _special_tokens_map(tokenizer: JsonTokenizer) -> bytes:
    """The names of the special tokens, in the form of `transformers`."""
    roles: dict[str, int | None] = {field.name: getattr(tokenizer.special, field.name)
                                    for field in dataclasses.fields(SpecialTokens) if field.name != "end"}
    roles["end"] = next(iter(tokenizer.special.end), None)
    names = {theirs: tokenizer.pieces([id_])[0] for theirs, ours in HUGGING_FACE_ROLES.items()
             if (id_ := roles[ours]) is not None}
    return json.dumps(names, ensure_ascii=False, indent=2).encode()


# The comparison

@dataclass(frozen=True)
class CheckInputs:
    """The inputs of both models: rows of ids, with target ids for a translator; or images."""

    rows: IdLists
    targets: IdLists | None = None
    """The target ids of a translator, with the start and without the end."""
    images: Tensor | None = None


@dataclass(frozen=True)
class StopTokens:
    """The special ids of generated text, and the ids that are never generated."""

    special: SpecialTokens
    forbidden: tuple[int, ...] = ()


def find_stop_tokens(task: Task) -> StopTokens:
    """Which ids end a generated text, and which are forbidden."""
    if not isinstance(task, Translator | Completer):
        return StopTokens(task.special)
    size, padding = task.vocabularies[-1], task.special.padding
    tokenizer = task.tokenizer.target if isinstance(task.tokenizer, PairTokenizer) else task.tokenizer
    forbidden = [] if tokenizer is None else ids_without_token(tokenizer, size)
    if isinstance(task, Translator) and padding is not None and padding not in task.special.end and padding < size:
        forbidden.append(padding)
    return StopTokens(task.special, tuple(forbidden))


def make_check_inputs(task: Task, texts: Sequence[str] = ()) -> CheckInputs:
    """The inputs of both models: texts, or random rows or images."""
    if isinstance(task.config, VisionConfig):
        source = torch.Generator().manual_seed(CHECK_SEED)
        shape = (len(ROW_LENGTHS), task.config.channels, task.config.image_height, task.config.image_width)
        return CheckInputs([], images=torch.rand(shape, generator=source) * 2 - 1)
    rows = _rows_of_texts(task, texts[:MAX_TEXTS]) if texts else _random_rows(task)
    if not isinstance(task, Translator):
        return CheckInputs(rows)
    hypotheses = task.translate_ids(rows, max_length=_max_written(task))
    return CheckInputs(rows, [[task.start_id(), *nbest[0].ids] for nbest in hypotheses])


def compare_outputs(task: Task, runner: "ExportRunner", inputs: CheckInputs,
                    quantization: str = "float32") -> ExportComparison:
    """Compare the outputs of both models; `quantization` is that of the export."""
    ours, theirs = _model_outputs(task, inputs), runner.outputs(inputs)
    what = "log-probabilities" if runner.gathers else "outputs"
    if runner.gathers:
        assert inputs.targets is not None
        ours = [_gather_log_probabilities(logits, [*target[1:], task.end_ids()[0]])
                for logits, target in zip(ours, inputs.targets, strict=True)]
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        raise ExportError(f"The exported model does not compute the same as the original: its outputs have the shape "
                          f"{tuple(theirs[0].shape)} instead of {tuple(ours[0].shape)}. Nothing was written.")
    differences = torch.cat([(mine - other.float()).abs().flatten() for mine, other in zip(ours, theirs, strict=True)])
    scale = max(1.0, *(float(mine.abs().max()) for mine in ours))
    tolerance, same, parted = TOLERANCES[quantization] * scale, None, 0
    if isinstance(task, Translator | Completer):
        same, parted = _compare_generated(task, runner, inputs, tolerance)
        parted = parted if quantization == "float32" else 0
    largest = float(differences.nan_to_num(nan=torch.inf).max())
    return ExportComparison(len(ours), len(differences), what, largest, float(differences.mean()), tolerance, same,
                            parted)


def _compare_generated(task: "Translator | Completer", runner: "ExportRunner", inputs: CheckInputs,
                       tolerance: float) -> tuple[int, int]:
    """After how many rows greedy search writes the same, and after how many something clearly worse."""
    max_length, same, parted = _max_written(task, inputs), 0, 0
    if isinstance(task, Translator):
        assert inputs.targets is not None
        ours = [target[1:] for target in inputs.targets]
    else:
        ours = [nbest[0].ids for nbest in task.complete_ids(inputs.rows, max_length=max_length)]
    for number, (mine, other) in enumerate(zip(ours, runner.generate(inputs, max_length), strict=True)):
        if mine == other:
            same += 1
        elif _logit_gap(task, inputs, number, mine, other) > tolerance:
            parted += 1
    return same, parted


def _logit_gap(task: "Translator | Completer", inputs: CheckInputs, number: int, mine: list[int],
               other: list[int]) -> float:
    """The difference of our logits of the two tokens at which two texts diverge."""
    at = next((at for at, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]),
              min(len(mine), len(other)))
    before, end = mine[:at], next(iter(task.special.end), 0)
    own, theirs = (row[at] if at < len(row) else end for row in (mine, other))
    if inputs.targets is None:
        one = CheckInputs([[*inputs.rows[number], *before]])
    else:
        one = CheckInputs([inputs.rows[number]], [[task.start_id(), *before]])  # type: ignore[union-attr]
    logits_V = _model_outputs(task, one)[0][-1]
    return abs(float(logits_V[own] - logits_V[theirs]))


@torch.inference_mode()
def _model_outputs(task: Task, inputs: CheckInputs) -> list[Tensor]:
    """The outputs of our model in float32, each row by itself."""
    model = task.model

    def tokens(row: Sequence[int]) -> Tokens:
        return Tokens.of([row]).to(task.device)

    if inputs.images is not None:
        weight = next(model.parameters())
        return [*model(inputs.images.to(weight)).float().cpu()]
    if isinstance(task, Translator):
        assert inputs.targets is not None
        outputs = [model.decode(tokens(target), model.encode(tokens(row)))  # type: ignore[operator]
                   for row, target in zip(inputs.rows, inputs.targets, strict=True)]
    elif isinstance(task, Completer):
        outputs = [model.decode(tokens(row)) for row in inputs.rows]  # type: ignore[operator]
    else:
        outputs = [model(tokens(row)) for row in inputs.rows]
    return [one[0].float().cpu() for one in outputs]


def _gather_log_probabilities(logits_NV: Tensor, ids: Sequence[int]) -> Tensor:
    return logits_NV.log_softmax(-1).gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)


def _input_part(task: Task) -> object:
    """The part of the model that reads the rows."""
    return getattr(task.model, "encoder", getattr(task.model, "decoder", task.model))


def _max_written(task: Task, inputs: CheckInputs | None = None) -> int:
    """How many tokens greedy search writes: MAX_WRITTEN, or as many as the model has positions for."""
    positions = max_positions(getattr(task.model, "decoder", None))
    before = 1 if inputs is None or inputs.targets is not None else max(map(len, inputs.rows))
    return MAX_WRITTEN if positions is None else max(1, min(MAX_WRITTEN, positions - before))


def _random_rows(task: Task) -> IdLists:
    """Rows of random ids without special ones, but with the end of a source."""
    positions, size = max_positions(_input_part(task)), task.vocabularies[0]
    end = [] if not isinstance(task, Translator) else [_source_end(task)]
    spare = len(end) if isinstance(task, Translator) else 1  # at least one token is generated
    plain = [id_ for id_ in range(size) if id_ not in task.special.ids()] or [*range(size)]
    source, rows = torch.Generator().manual_seed(CHECK_SEED), []
    for length in ROW_LENGTHS:
        length = length if positions is None else max(1, min(length, positions - spare))
        drawn = torch.randint(len(plain), (length,), generator=source).tolist()
        rows.append([*(plain[at] for at in drawn), *end])
    return rows


def _source_end(task: Translator) -> int:
    if isinstance(task.tokenizer, PairTokenizer):
        return task.tokenizer.source_end
    return min(task.end_ids()[0], task.vocabularies[0] - 1)


def _rows_of_texts(task: Task, texts: Sequence[str]) -> IdLists:
    """The rows of texts, without empty ones."""
    if isinstance(task, Translator):
        languages = task.target_languages  # any of them will do: the same ids are given to both models
        rows = (task.into(languages[0]) if languages else task).pair_tokenizer().encode_sources(texts)
    elif isinstance(task, EncoderTask):
        rows = task.encode_texts(texts)
    else:
        assert isinstance(task, Completer)
        rows = [[*([] if task.special.cls is None else [task.special.cls]), *ids]
                for ids in task.text_tokenizer().encode_batch(texts)]
    rows = [row for row in rows if row]
    check_lengths("texts", rows, max_positions(_input_part(task)))
    if not rows:
        raise checks.wrong("texts", "a list with at least one text that is not empty", "a list of empty texts")
    return rows


# The programs that run exports

class ExportRunner(Protocol):
    """An exported model, run by the program that it was exported for."""

    program: str
    gathers: bool
    """Whether `outputs` has only the log-probabilities of the target ids and of the end, not all logits."""

    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        """The output for each row."""

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        """What greedy search writes after each row."""


class CTranslate2Translator:
    """A translator in CTranslate2."""

    program, gathers = "ctranslate2", True

    def __init__(self, folder: Path, names: ctranslate2.VocabularyNames, stop: StopTokens,
                 compute: str = "default") -> None:
        self.inner = ctranslate2.import_ctranslate2().Translator(str(folder), device="cpu", compute_type=compute)
        self.names, self.stop = names, stop

    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        assert inputs.targets is not None
        found = self.inner.score_batch(_token_names(inputs.rows, self.names.source),
                                       _token_names([row[1:] for row in inputs.targets], self.names.target),
                                       max_input_length=0)
        return [torch.tensor(one.log_probs) for one in found]

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        ids = {name: id_ for id_, name in enumerate(self.names.target)}
        found = self.inner.translate_batch(
            _token_names(inputs.rows, self.names.source), beam_size=1, max_input_length=0,
            max_decoding_length=max_length, min_decoding_length=0, end_token=[*self.stop.special.end],
            suppress_sequences=[[self.names.target[id_]] for id_ in self.stop.forbidden] or None)
        return [[ids[name] for name in one.hypotheses[0]] for one in found]


class CTranslate2Generator:
    """A language model in CTranslate2."""

    program, gathers = "ctranslate2", False

    def __init__(self, folder: Path, names: ctranslate2.VocabularyNames, stop: StopTokens,
                 compute: str = "default") -> None:
        self.inner = ctranslate2.import_ctranslate2().Generator(str(folder), device="cpu", compute_type=compute)
        self.names, self.stop = names, stop

    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        logits_BNV = torch.from_numpy(np.array(self.inner.forward_batch(inputs.rows)))
        return [logits_NV[:len(row)] for logits_NV, row in zip(logits_BNV, inputs.rows, strict=True)]

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        # One by one: in a batch, the tokens of a prompt beyond the shortest count as generated.
        return [self._generate_one([row], max_length) for row in inputs.rows]

    def _generate_one(self, prompt: IdLists, max_length: int) -> list[int]:
        (found,) = self.inner.generate_batch(
            _token_names(prompt, self.names.target), beam_size=1, max_length=max_length, min_length=0,
            include_prompt_in_result=False, end_token=[*self.stop.special.end],
            suppress_sequences=[[self.names.target[id_]] for id_ in self.stop.forbidden] or None)
        return found.sequences_ids[0]


class OnnxTranslator:
    """A translator in onnxruntime."""

    program, gathers = "onnxruntime", False

    def __init__(self, folder: Path, stop: StopTokens) -> None:
        self.encoder, self.decoder = (_onnx_session(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
        self.stop = stop

    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        assert inputs.targets is not None
        return self._decode(*self._encode(inputs.rows), inputs.targets)

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        assert inputs.targets is not None
        states, lengths = self._encode(inputs.rows)

        def next_logits(rows: list[int], texts: IdLists) -> list[Tensor]:
            return [logits[-1] for logits in self._decode(states[rows], lengths[rows], texts)]

        return greedy_rows([[row[0]] for row in inputs.targets], self.stop, max_length, next_logits)

    def _encode(self, sources: IdLists) -> tuple[Array, Array]:
        ids, lengths = _pad_rows(sources)
        return self.encoder.run(None, {"ids": ids, "lengths": lengths})[0], lengths

    def _decode(self, states: Array, lengths: Array, targets: IdLists) -> list[Tensor]:
        ids, counts = _pad_rows(targets)
        logits = self.decoder.run(None, {"ids": ids, "states": states, "lengths": lengths})[0]
        return [torch.from_numpy(one[:count]) for one, count in zip(logits, counts, strict=True)]


class OnnxModel:
    """A model of one graph in onnxruntime: any but a translator."""

    program, gathers = "onnxruntime", False

    def __init__(self, folder: Path, stop: StopTokens) -> None:
        self.inner, self.stop = _onnx_session(folder / "model.onnx"), stop
        self.input_names = {one.name for one in self.inner.get_inputs()}

    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        if inputs.images is not None:
            return [*torch.from_numpy(self.inner.run(None, {"images": inputs.images.numpy()})[0])]
        ids, lengths = _pad_rows(inputs.rows)
        given = {name: value for name, value in (("ids", ids), ("lengths", lengths)) if name in self.input_names}
        found = torch.from_numpy(self.inner.run(None, given)[0])
        return [one if found.dim() == 2 else one[:count] for one, count in zip(found, lengths, strict=True)]

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        return greedy_rows(inputs.rows, self.stop, max_length,
                           lambda rows, texts: [logits[-1] for logits in self.outputs(CheckInputs(texts))])


class TransformersModel:
    """A model in `transformers`."""

    program, gathers = "transformers", False

    def __init__(self, folder: Path, stop: StopTokens) -> None:
        transformers = importlib.import_module("transformers")
        architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
        with _quiet(transformers.utils.logging):
            self.inner = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
        self.stop = stop

    @torch.inference_mode()
    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        if inputs.images is not None:
            return [*self.inner(pixel_values=inputs.images).logits]
        ids, lengths = (torch.from_numpy(one) for one in _pad_rows(inputs.rows))
        mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(-1)).long()
        if inputs.targets is not None:
            targets, counts = _pad_rows(inputs.targets)
            logits = self.inner(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.from_numpy(targets)).logits
            return [one[:count] for one, count in zip(logits, counts, strict=True)]
        found = self.inner(input_ids=ids, attention_mask=mask)
        output = found.logits if "logits" in found else found.last_hidden_state
        return [one if output.dim() == 2 else one[:count] for one, count in zip(output, lengths, strict=True)]

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        def next_logits(rows: list[int], texts: IdLists) -> list[Tensor]:
            some = (CheckInputs(texts) if inputs.targets is None
                    else CheckInputs([inputs.rows[row] for row in rows], texts))
            return [logits[-1] for logits in self.outputs(some)]

        starts = inputs.rows if inputs.targets is None else [[row[0]] for row in inputs.targets]
        return greedy_rows(starts, self.stop, max_length, next_logits)


class ReloadedModel:
    """An export for `transformers`, run by regard because `transformers` is not installed."""

    program, gathers = "regard", False

    def __init__(self, task: Task) -> None:
        self.task = task

    def outputs(self, inputs: CheckInputs) -> list[Tensor]:
        return _model_outputs(self.task, inputs)

    def generate(self, inputs: CheckInputs, max_length: int) -> IdLists:
        if isinstance(self.task, Translator):
            return [nbest[0].ids for nbest in self.task.translate_ids(inputs.rows, max_length=max_length)]
        assert isinstance(self.task, Completer)
        return [nbest[0].ids for nbest in self.task.complete_ids(inputs.rows, max_length=max_length)]


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Silence the progress bars and the advice of `transformers`."""
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


def greedy_rows(starts: IdLists, stop: StopTokens, max_length: int, next_logits: NextLogits) -> IdLists:
    """Greedy search after each start, by a function that computes the logits of the next token."""
    texts, running = [list(row) for row in starts], [*range(len(starts))]
    for _ in range(max_length):
        unfinished = []
        for row, logits_V in zip(running, next_logits(running, [texts[row] for row in running]), strict=True):
            allowed_V = logits_V.clone()
            allowed_V[[*stop.forbidden]] = -torch.inf
            token = int(allowed_V.argmax())
            if token not in stop.special.end:
                texts[row].append(token)
                unfinished.append(row)
        running = unfinished
        if not running:
            break
    return [text[len(start):] for text, start in zip(texts, starts, strict=True)]


def _token_names(rows: IdLists, names: Sequence[str]) -> list[list[str]]:
    return [[names[id_] for id_ in row] for row in rows]


def _pad_rows(rows: IdLists) -> tuple[Array, Array]:
    """Rows padded on the right, (B, N), and their lengths, (B,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, :len(row)] = row
    return ids, lengths


def _onnx_session(path: Path) -> Any:
    runtime = onnx.import_extra("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors; its warnings are about its own optimiser
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
