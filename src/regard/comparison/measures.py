"""Measurements of one trained model: scores, curves, size, speed, memory, gradient flow and attention.

    measure_model(folder, pairs)      reads the model and its metrics, and runs it on the test pairs

Gradient flow is how much the outputs depend on each source token:

    d f_t / d x_i     f_t: input of the output layer at step t; x_i: embedding of source token i

of the last step ("last") and of all steps together ("all"). The size of a Jacobian is the root mean square of v·J over
random directions v of length 1; with the loss gradient in place of v, a confident model would seem to have none. Models
differ in the scale of their embeddings, so the result is the share of each position times the number of positions: 1
if all count alike. Positions are resampled to tenths of the source. For a single cell, see
`regard.recurrence.gradient_flow`.

Step memory counts the tensors of one training step: parameters, gradients, two Adam moments, and what autograd saves
for one batch. Counting gives the same number on every machine; temporary buffers of operations are not included.

All results are plain values that JSON can hold. Legend: B rows, N source tokens, n target tokens, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.inspection.pictures.curves import CurvePoints
from regard.inspection.pictures.curves import TrainingCurves as Curves
from regard.inspection.pictures.maps import trace_svg
from regard.storage.metrics import METRICS_FILE, PROGRESS, parse_line
from regard.tasks import evaluation, traces
from regard.tasks.load import load
from regard.tasks.task import Task
from regard.tasks.translator import Translator
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.loss import token_loss

FLOW_PARTS = 10
"""A source is divided into this many parts."""
FLOW_DIRECTIONS = 4
"""Random directions for each sentence."""
FLOW_SENTENCES = 16
"""Only the longest sentences are used, at most this many."""


class GradientFlow(NamedTuple):
    """The share of the gradient by tenths of the source; 1 if all positions count alike."""

    last: tuple[float, ...]
    """For the last output step."""
    all: tuple[float, ...]
    """For all output steps."""
    sentences: int
    tokens: float
    """Mean length of the sources."""


def source_flow(task: Translator, pairs: Sequence[tuple[str, str]]) -> GradientFlow:
    """The gradient flow of a model on the longest of these pairs."""
    both = task.pair_tokenizer()
    rows = sorted(zip(both.encode_sources([pair[0] for pair in pairs]),
                      both.encode_targets([pair[1] for pair in pairs]),
                      strict=True), key=lambda row: -len(row[0]))[:FLOW_SENTENCES]
    chance = torch.Generator().manual_seed(1)
    found: dict[str, list[np.ndarray]] = {"last": [], "all": []}
    for source, target in rows:
        norms = _jacobian_norms(task, source, [task.start_id(), *target], chance)
        for name, norms_N in zip(found, norms, strict=True):
            found[name].append(_resample_shares(norms_N))
    mean = {name: tuple(float(value) for value in np.mean(one, axis=0)) for name, one in found.items()}
    return GradientFlow(mean["last"], mean["all"], len(rows), float(np.mean([len(row[0]) for row in rows])))


def position_norms(task: Translator, source: Sequence[int], target: Sequence[int], directions: Tensor) -> Tensor:
    """The norms (N,) of the gradient of `directions` (n, D) · f with respect to the embedding of each source token."""
    model, kept = task.model, list[Tensor]()
    embedding: nn.Module = model.encoder.embedding  # type: ignore[assignment,union-attr]

    def keep(_: nn.Module, __: object, made: Tensor) -> Tensor:
        kept.append(made.detach().requires_grad_())
        return kept[-1]

    modes = [(module, module.training) for module in model.modules()]
    hook = embedding.register_forward_hook(keep)
    try:
        model.eval()
        with torch.enable_grad():
            features_BnD = model.features(*(Tokens.of([row]).to(task.device)  # type: ignore[operator]
                                            for row in (source, target)))
            (gradient_BND,) = torch.autograd.grad((features_BnD[0] * directions.to(features_BnD)).sum(), kept[0])
    finally:
        hook.remove()
        for module, mode in modes:
            module.training = mode
    return gradient_BND[0].norm(dim=-1).double().cpu()


def _jacobian_norms(task: Translator, source: Sequence[int], target: Sequence[int],
                    chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Root mean square over random directions: for the last step, and for all steps."""
    width: int = task.config.width
    last_N, all_N = torch.zeros(len(source), dtype=torch.float64), torch.zeros(len(source), dtype=torch.float64)
    for _ in range(FLOW_DIRECTIONS):
        drawn = torch.randn(len(target), width, generator=chance)
        only = torch.zeros_like(drawn)
        only[-1] = drawn[-1]
        last_N += position_norms(task, source, target, only).square()
        all_N += position_norms(task, source, target, drawn).square()
    return (last_N / FLOW_DIRECTIONS).sqrt(), (all_N / FLOW_DIRECTIONS).sqrt()


def _resample_shares(norms_N: Tensor) -> np.ndarray:
    """The share of each position times their number, resampled to tenths of the source."""
    norms = norms_N.numpy()
    total = norms.sum()
    shares = norms * len(norms) / total if total > 0 else np.zeros_like(norms)
    middles = (np.arange(FLOW_PARTS) + 0.5) / FLOW_PARTS * len(shares) - 0.5
    return np.interp(middles, np.arange(len(shares)), shares)


COPIES_PER_PARAMETER = 4
"""Values that training keeps for each parameter: itself, its gradient, and two moments."""


def step_memory(task: Translator, pairs: Sequence[tuple[str, str]]) -> int:
    """Bytes of one training step on a padded batch of these pairs."""
    both, model = task.pair_tokenizer(), task.model
    sources = both.encode_sources([pair[0] for pair in pairs])
    targets = [[task.start_id(), *ids] for ids in both.encode_targets([pair[1] for pair in pairs])]
    parameters = [*model.parameters()]
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    read, written = (Tokens.of(rows).to(task.device) for rows in (sources, targets))
    labels = written.ids.roll(-1, 1)  # which ones they are does not matter here, but that there are as many
    labels[labels == IGNORED_LABEL] = 0
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = token_loss(model.features(read, written), model.output, labels, 0.0)  # type: ignore[operator,arg-type]
        assert loss.total.requires_grad
    return COPIES_PER_PARAMETER * sum(parameter.nbytes for parameter in parameters) + sum(kept.values())


TestPairs = Sequence[tuple[str, str]]
MEMORY_PAIRS = 16
"""The batch for step memory has this many of the longest test pairs."""
SHOWN_WORDS = (8, 12)
"""Minimum and maximum number of source words of the sentence whose attention is shown."""
RENAMED_CURVES = {"judged": "validation_step", "judged_nll": "validation_nll"}
"""Curves in the files of comparisons that were begun with earlier versions, and their names now."""


@dataclass(frozen=True)
class ModelMeasures:
    """The measurements of one model. Losses are in nats per token, memory is in bytes."""

    bleu: float
    chrf: float
    loss: float
    by_length: tuple[dict[str, Any], ...]
    parameters: int
    steps: int
    tokens: int
    """Target tokens seen in training."""
    seconds: float
    """Training time, including validation."""
    tokens_per_second: float
    """Target tokens per second in training: the median over the lines of the metrics."""
    memory: int
    """Step memory."""
    peak: int | None
    """Peak GPU memory in training; None on a CPU, where it cannot be attributed to one model."""
    curve: dict[str, list[Any]]
    """Steps, tokens and losses of training; steps and losses of validation; None for a loss that is not finite."""
    flow: GradientFlow
    translation: str
    """The translation of the shown sentence."""
    attention: str | None
    """The attention for that sentence and its reference, as SVG; None for a model without attention."""
    signatures: dict[str, str]
    """The sacreBLEU signatures."""
    tokenizer: str
    """The sha256 of the tokenizer."""
    hypotheses: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "flow": self.flow._asdict()}

    @staticmethod
    def from_json(table: dict[str, Any]) -> "ModelMeasures":
        """The inverse of `to_json`."""
        flow = table["flow"]
        curve = {RENAMED_CURVES.get(name, name): values for name, values in table["curve"].items()}
        return ModelMeasures(**{**table, "curve": curve,
                                "flow": GradientFlow(tuple(flow["last"]), tuple(flow["all"]), flow["sentences"],
                                                     flow["tokens"]),
                                "by_length": tuple(table["by_length"]), "hypotheses": tuple(table["hypotheses"])})


def measure_model(folder: Path, tested: TestPairs, *, beams: int, device: str,
                  peak: int | None = None) -> ModelMeasures:
    """Load a trained model and measure it on the test pairs.

    Args:
        tested: the test pairs; gradient flow and memory use the longest of them, attention one of usual length.
        peak: peak memory of the device in training, if known.
    """
    task = require_translator(load(folder, device=device), folder)
    found = evaluation.evaluate_translator(task, tested, beams=beams)
    longest = sorted(tested, key=lambda pair: -len(pair[0].split()))
    lines = progress_lines(folder)
    shown = tested[shown_sentence(tested)]
    return ModelMeasures(
        found.scores.bleu, found.scores.chrf, found.loss.mean, tuple(one._asdict() for one in found.by_length),
        task.config.parameters(), max(line["step"] for line in lines), max(line["tokens"] for line in lines),
        max(line["seconds"] for line in lines), float(median(line["tokens_per_second"] for line in lines)),
        step_memory(task, longest[:MEMORY_PAIRS]), peak, _training_curve(folder, lines), source_flow(task, longest),
        found.hypotheses[shown_sentence(tested)], _attention_svg(task, *shown),
        {"bleu": found.scores.bleu_signature, "chrf": found.scores.chrf_signature},
        task.pair_tokenizer().sha256, found.hypotheses)


def shown_sentence(pairs: TestPairs) -> int:
    """The index of the pair whose attention is shown: the first of usual length, or the closest to it."""
    least, most = SHOWN_WORDS
    return min(range(len(pairs)), key=lambda number: max(least - len(pairs[number][0].split()), 0)
               + max(len(pairs[number][0].split()) - most, 0))


def require_translator(task: Task, folder: Path) -> Translator:
    """The task; a ValueError if it does not translate."""
    if not isinstance(task, Translator):
        raise ValueError(f"{folder}: Only translators can be compared, and this is a {type(task).__name__}.")
    return task


def _attention_svg(task: Translator, source: str, target: str) -> str | None:
    if not task.attends:
        return None
    return trace_svg(traces.trace_forced(task, source, target))


def progress_lines(folder: Path) -> list[dict[str, Any]]:
    """The progress lines of the metrics."""
    with (folder / METRICS_FILE).open(encoding="utf-8") as file:
        return [line for line in map(parse_line, file) if line["event"] == PROGRESS]


def _training_curve(folder: Path, lines: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    found = Curves.read(folder)
    validated = found.scores.get("loss", CurvePoints.empty())
    return {"step": [line["step"] for line in lines], "tokens": [line["tokens"] for line in lines],
            "nll": [line["nll"] for line in lines], "validation_step": [float(step) for step in validated.steps],
            "validation_nll": [float(number) if math.isfinite(number) else None for number in validated.numbers]}
