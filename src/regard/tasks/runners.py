"""Exported models, run: what each target's own program says to the ids that our model is asked.

    runner.numbers(asked)       a tensor for each row: logits, or the log-probabilities of what is read
    runner.written(asked, n)    for each row what greedy search writes, n tokens at most

A runner asks the program that others will use: CTranslate2, onnxruntime, `transformers`. It knows nothing of our model
beyond its config and special ids; what both say is compared elsewhere.

Legend: B rows, N tokens, V vocabulary.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.models.special import SpecialConfig
from regard.storage.ctranslate2 import spec
from regard.storage.ctranslate2.writing import Names
from regard.storage.onnx.writing import package

Rows = list[list[int]]
Next = Callable[[list[int], Rows], list[Tensor]]
"""Numbers of rows, and what stands on the target's side of each -> the logits of the token after the last."""


@dataclass(frozen=True)
class Asked:
    """What a model is asked: rows of ids, with what is written after each where it translates; or images."""

    rows: Rows
    targets: Rows | None = None
    """Of a translator, with the start in front, without the end."""
    images: Tensor | None = None


@dataclass(frozen=True)
class Ends:
    """Where what is written ends, and what is never written."""

    special: SpecialConfig
    never: tuple[int, ...] = ()


class Runner(Protocol):
    """An exported model."""

    program: str
    """Which one runs it."""
    gathered: bool
    """Whether its numbers are of the tokens that are read alone: of each given those before it, and of the end."""

    def numbers(self, asked: Asked) -> list[Tensor]:
        """What it says to each row."""

    def written(self, asked: Asked, limit: int) -> Rows:
        """What it writes after each row."""


class CTranslate2Translator:
    """A translator in CTranslate2."""

    program, gathered = "ctranslate2", True

    def __init__(self, folder: Path, names: Names, ends: Ends, compute: str = "default") -> None:
        self.inner = spec.package().Translator(str(folder), device="cpu", compute_type=compute)
        self.names, self.ends = names, ends

    def numbers(self, asked: Asked) -> list[Tensor]:
        assert asked.targets is not None
        found = self.inner.score_batch(_named(asked.rows, self.names.source),
                                       _named([row[1:] for row in asked.targets], self.names.target),
                                       max_input_length=0)
        return [torch.tensor(one.log_probs) for one in found]

    def written(self, asked: Asked, limit: int) -> Rows:
        ids = {name: id_ for id_, name in enumerate(self.names.target)}
        found = self.inner.translate_batch(
            _named(asked.rows, self.names.source), beam_size=1, max_input_length=0, max_decoding_length=limit,
            min_decoding_length=0, end_token=[*self.ends.special.end],
            suppress_sequences=[[self.names.target[id_]] for id_ in self.ends.never] or None)
        return [[ids[name] for name in one.hypotheses[0]] for one in found]


class CTranslate2Generator:
    """A language model in CTranslate2."""

    program, gathered = "ctranslate2", False

    def __init__(self, folder: Path, names: Names, ends: Ends, compute: str = "default") -> None:
        self.inner = spec.package().Generator(str(folder), device="cpu", compute_type=compute)
        self.names, self.ends = names, ends

    def numbers(self, asked: Asked) -> list[Tensor]:
        logits_BNV = torch.from_numpy(np.array(self.inner.forward_batch(asked.rows)))
        return [logits_NV[:len(row)] for logits_NV, row in zip(logits_BNV, asked.rows, strict=True)]

    def written(self, asked: Asked, limit: int) -> Rows:
        # One by one: of prompts of several lengths, those beyond the shortest count as written.
        return [self._one([row], limit) for row in asked.rows]

    def _one(self, prompt: Rows, limit: int) -> list[int]:
        (found,) = self.inner.generate_batch(
            _named(prompt, self.names.target), beam_size=1, max_length=limit, min_length=0,
            include_prompt_in_result=False, end_token=[*self.ends.special.end],
            suppress_sequences=[[self.names.target[id_]] for id_ in self.ends.never] or None)
        return found.sequences_ids[0]


class OnnxTranslator:
    """A translator in onnxruntime."""

    program, gathered = "onnxruntime", False

    def __init__(self, folder: Path, ends: Ends) -> None:
        self.encoder, self.decoder = (_session(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
        self.ends = ends

    def numbers(self, asked: Asked) -> list[Tensor]:
        assert asked.targets is not None
        return self._decoded(*self._encoded(asked.rows), asked.targets)

    def written(self, asked: Asked, limit: int) -> Rows:
        assert asked.targets is not None
        states, lengths = self._encoded(asked.rows)

        def following(rows: list[int], texts: Rows) -> list[Tensor]:
            return [logits[-1] for logits in self._decoded(states[rows], lengths[rows], texts)]

        return greedy([[row[0]] for row in asked.targets], self.ends, limit, following)

    def _encoded(self, sources: Rows) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        ids, lengths = _padded(sources)
        return self.encoder.run(None, {"ids": ids, "lengths": lengths})[0], lengths

    def _decoded(self, states: "np.ndarray[Any, Any]", lengths: "np.ndarray[Any, Any]", targets: Rows) -> list[Tensor]:
        ids, counts = _padded(targets)
        logits = self.decoder.run(None, {"ids": ids, "states": states, "lengths": lengths})[0]
        return [torch.from_numpy(one[:count]) for one, count in zip(logits, counts, strict=True)]


class OnnxModel:
    """A model of one graph in onnxruntime: one that goes on with a text, or that reads."""

    program, gathered = "onnxruntime", False

    def __init__(self, folder: Path, ends: Ends) -> None:
        self.inner, self.ends = _session(folder / "model.onnx"), ends
        self.inputs = {one.name for one in self.inner.get_inputs()}

    def numbers(self, asked: Asked) -> list[Tensor]:
        if asked.images is not None:
            return [*torch.from_numpy(self.inner.run(None, {"images": asked.images.numpy()})[0])]
        ids, lengths = _padded(asked.rows)
        given = {name: value for name, value in (("ids", ids), ("lengths", lengths)) if name in self.inputs}
        found = torch.from_numpy(self.inner.run(None, given)[0])
        return [one if found.dim() == 2 else one[:count] for one, count in zip(found, lengths, strict=True)]

    def written(self, asked: Asked, limit: int) -> Rows:
        return greedy(asked.rows, self.ends, limit, lambda rows, texts: [logits[-1] for logits in
                                                                         self.numbers(Asked(texts))])


class Transformers:
    """A model in `transformers`."""

    program, gathered = "transformers", False

    def __init__(self, folder: Path, ends: Ends) -> None:
        transformers = importlib.import_module("transformers")
        architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
        with _quiet(transformers.utils.logging):
            self.inner = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
        self.ends = ends

    @torch.inference_mode()
    def numbers(self, asked: Asked) -> list[Tensor]:
        if asked.images is not None:
            return [*self.inner(pixel_values=asked.images).logits]
        ids, lengths = (torch.from_numpy(one) for one in _padded(asked.rows))
        mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(-1)).long()
        if asked.targets is not None:
            written, counts = _padded(asked.targets)
            logits = self.inner(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.from_numpy(written)).logits
            return [one[:count] for one, count in zip(logits, counts, strict=True)]
        found = self.inner(input_ids=ids, attention_mask=mask)
        given = found.logits if "logits" in found else found.last_hidden_state
        return [one if given.dim() == 2 else one[:count] for one, count in zip(given, lengths, strict=True)]

    def written(self, asked: Asked, limit: int) -> Rows:
        def following(rows: list[int], texts: Rows) -> list[Tensor]:
            some = Asked(texts) if asked.targets is None else Asked([asked.rows[row] for row in rows], texts)
            return [logits[-1] for logits in self.numbers(some)]

        starts = asked.rows if asked.targets is None else [[row[0]] for row in asked.targets]
        return greedy(starts, self.ends, limit, following)


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


def greedy(starts: Rows, ends: Ends, limit: int, following: Next) -> Rows:
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


def _named(rows: Rows, names: Sequence[str]) -> list[list[str]]:
    return [[names[id_] for id_ in row] for row in rows]


def _padded(rows: Rows) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Rows filled up on the right, (B, N), and their lengths, (B,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, :len(row)] = row
    return ids, lengths


def _session(path: Path) -> Any:
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors; its warnings are of how it optimises
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
