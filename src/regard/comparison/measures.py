"""What is told of one trained model: scores, curves, sizes, speed, memory, gradient flow, and what it looks at.

    measured(folder, tested)      reads the model and its metrics, and asks the model

All of it is plain values, that JSON can hold and a page can draw. It does not know other models, nor how they compare.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from regard.comparison.flow import Flow, source_flow
from regard.comparison.memory_use import step_memory
from regard.inspection.pictures.metrics import FILE, Points
from regard.inspection.pictures.metrics import Run as Curves
from regard.inspection.pictures.traces import trace_svg
from regard.tasks import evaluation, looking
from regard.tasks.loading import load
from regard.tasks.task import Task
from regard.tasks.translating import Translator

Pairs = Sequence[tuple[str, str]]
COUNTED = 16
"""Pairs of the batch whose memory is counted, the longest ones of the test."""
SHOWN = (8, 12)
"""Words of the source whose attention is shown, from and to."""


@dataclass(frozen=True)
class Measured:
    """What is told of one model. Losses are in natural logarithms a token, memory is in bytes."""

    bleu: float
    chrf: float
    loss: float
    by_length: tuple[dict[str, Any], ...]
    parameters: int
    steps: int
    tokens: int
    """Target tokens that it learned from."""
    seconds: float
    """Of training, judging included."""
    tokens_per_second: float
    """While it learned: the median over the lines of its metrics."""
    memory: int
    """Of one step, counted."""
    peak: int | None
    """The most that a GPU held while it was trained; None on a CPU, where the process is shared with all else."""
    curve: dict[str, list[Any]]
    """Steps, tokens and losses of the training; steps and losses of the validation; None is no finite number."""
    flow: Flow
    translation: str
    """Of the sentence that is shown."""
    attention: str | None
    """What it looks at while it reads that sentence and its reference, as an SVG; None where it has no attention."""
    signatures: dict[str, str]
    """How the scores were computed."""
    tokenizer: str
    """Its sha256."""
    hypotheses: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "flow": self.flow._asdict()}

    @staticmethod
    def of_plain(table: dict[str, Any]) -> "Measured":
        """From what `plain` gave, read back from JSON."""
        flow = table["flow"]
        return Measured(**{**table, "flow": Flow(tuple(flow["last"]), tuple(flow["all"]), flow["sentences"],
                                                 flow["tokens"]),
                           "by_length": tuple(table["by_length"]), "hypotheses": tuple(table["hypotheses"])})


def measured(folder: Path, tested: Pairs, *, beams: int, device: str, peak: int | None = None) -> Measured:
    """Read a trained model, test it, and look at it.

    Args:
        tested: the pairs of the test; the longest of them, and one of usual length, are looked at closely.
        peak: what the device held at most while the model was trained, where that is known.
    """
    task = translator(load(folder, device=device), folder)
    found = evaluation.translated(task, tested, beams=beams)
    longest = sorted(tested, key=lambda pair: -len(pair[0].split()))
    lines = _lines(folder)
    shown = tested[shown_sentence(tested)]
    return Measured(
        found.scores.bleu, found.scores.chrf, found.loss.mean, tuple(one._asdict() for one in found.by_length),
        task.config.parameters(), max(line["step"] for line in lines), max(line["tokens"] for line in lines),
        max(line["seconds"] for line in lines), float(median(line["tokens_per_second"] for line in lines)),
        step_memory(task, longest[:COUNTED]), peak, _curve(folder, lines), source_flow(task, longest),
        found.hypotheses[shown_sentence(tested)], _attention(task, *shown),
        {"bleu": found.scores.bleu_signature, "chrf": found.scores.chrf_signature},
        task.pair_tokenizer().sha256, found.hypotheses)


def shown_sentence(pairs: Pairs) -> int:
    """The number of the pair whose attention is shown: the first of usual length, or the one nearest to it."""
    least, most = SHOWN
    return min(range(len(pairs)), key=lambda number: max(least - len(pairs[number][0].split()), 0)
               + max(len(pairs[number][0].split()) - most, 0))


def translator(task: Task, folder: Path) -> Translator:
    """The task, which must translate."""
    if not isinstance(task, Translator):
        raise ValueError(f"{folder}: Only translators are compared, but this is a {type(task).__name__}.")
    return task


def _attention(task: Translator, source: str, target: str) -> str | None:
    if not task.attends:
        return None
    return trace_svg(looking.forced(task, source, target))


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of progress."""
    with (folder / FILE).open(encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["event"] == "progress"]


def _curve(folder: Path, lines: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    found = Curves.read(folder)
    judged = found.scores.get("loss", Points.none())
    return {"step": [line["step"] for line in lines], "tokens": [line["tokens"] for line in lines],
            "nll": [line["nll"] for line in lines], "judged": [float(step) for step in judged.steps],
            "judged_nll": [float(number) if math.isfinite(number) else None for number in judged.numbers]}
