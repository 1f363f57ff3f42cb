"""Memory in isolation: recurrence, convolution, self-attention and RWKV on tasks that need nothing else.

    from regard.comparison import memory

    results = memory.run("copy", lengths=(5, 20), seeds=1)
    print("\n".join(memory.result_lines(results)))

All models have the same pre-norm blocks, the same data and about the same number of parameters; only the mixer differs:

    rnn, lstm, gru, mut1, mut2, mut3    recurrence: two layers
    convolution                         causal and dilated: the dilation doubles from layer to layer; enough layers
                                        to see half as far again as the first token, which otherwise a single
                                        path would reach
    attention                           causal self-attention: two layers of four heads with rotary positions
    rwkv4, rwkv7                        RWKV's time mix: two layers; version 7 has heads of 16 features

    x -- read -- block -- block -- ... -- norm -- output      block: pre-norm, a mixer and a feed-forward layer

Heads are 16 features wide at any model width, and positions are rotary: with heads of 8 or with added sinusoids,
associative recall was far from learned when it was learned with these.

Every batch is new, so nothing can be memorised across batches. Training uses Adam with a short warm-up and a linear
decay to a twentieth, gradients clipped to norm 1, and stops when the held-out loss is a hundredth of chance. `QUICK`
takes some minutes on two cores; `LONG` is for a GPU and lengths up to 1,024, with a lower learning rate: at 1,024
tokens convolution did not learn to copy with twice the rate.

Published figures of other models and trainings are shown beside the results. None of them was measured by this code.

Legend: B rows, N tokens, D width.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from regard import checks
from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import MixerConfig, Stack, StackConfig
from regard.comparison.memory_tasks import MEMORY_TASKS, MemoryBatch, MemoryTask, make_task
from regard.convolution import Convolution, ConvolutionConfig, receptive_field
from regard.models.embedding import make_output_layer
from regard.position.rotary import RotaryConfig
from regard.recurrence.cells import CELLS
from regard.recurrence.scan import RecurrenceConfig
from regard.rwkv.time_mix import RWKV4Config, RWKV7Config
from regard.terminal import align_columns
from regard.training.train import flush_denormals

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KERNEL, LAYERS, HEADS, HEAD_WIDTH, LOW_RANK = 8, 2, 4, 16, 8
NUMERIC_FEATURES = 2
"""Features of a numeric input."""


@dataclass(frozen=True)
class MemoryMixer:
    """The config of a mixer, the number of layers for a sequence length, the learning rate, what divides the width."""

    config: MixerConfig
    layers: Callable[[int], int]
    rate: float
    width_step: int = 8


def _convolution_layers(tokens: int) -> int:
    """The number of layers with doubling dilation whose receptive field is 1.5 times the sequence."""
    layers = 1
    while 1 + (KERNEL - 1) * (2**layers - 1) < 1.5 * tokens:
        layers += 1
    return layers


def _two_layers(tokens: int) -> int:
    return LAYERS


MEMORY_MIXERS: Mapping[str, MemoryMixer] = {
    **{cell: MemoryMixer(RecurrenceConfig(cell=cell), _two_layers, 5e-3) for cell in CELLS},
    "convolution": MemoryMixer(ConvolutionConfig(kernel_size=KERNEL, dilation_growth=2), _convolution_layers, 2e-3),
    "attention": MemoryMixer(SelfAttentionConfig(heads=HEADS, head_width=HEAD_WIDTH, position=RotaryConfig()),
                             _two_layers, 5e-3),
    "rwkv4": MemoryMixer(RWKV4Config(), _two_layers, 5e-3),
    "rwkv7": MemoryMixer(RWKV7Config(head_width=HEAD_WIDTH, decay_rank=LOW_RANK, learning_rate_rank=LOW_RANK,
                                     value_rank=LOW_RANK, gate_rank=LOW_RANK), _two_layers, 5e-3, HEAD_WIDTH),
}


class MemoryModel(nn.Module):
    """A stack of blocks: ids (B, N) or numbers (B, N, features) -> (B, N, outputs)."""

    def __init__(self, task: MemoryTask, mixer: MemoryMixer, width: int) -> None:
        super().__init__()
        self.read = (nn.Linear(NUMERIC_FEATURES, width) if task.symbols is None
                     else nn.Embedding(task.symbols, width))
        self.stack: Stack = stack_config(mixer, task.tokens, width).build(width, causal=True)
        self.output = make_output_layer(width, task.outputs, bias=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for all tokens."""
        return self.output(self.stack(self.read(inputs)))

    @property
    def seen(self) -> int | None:
        """The number of tokens an output can depend on; None if unlimited."""
        mixers = [block.mixer for block in self.stack.blocks]
        convolutions = [mixer for mixer in mixers if isinstance(mixer, Convolution)]
        return receptive_field(convolutions) if convolutions else None


def stack_config(mixer: MemoryMixer, tokens: int, width: int) -> StackConfig:
    """The config of the stack for sequences of this length."""
    return StackConfig(layers=mixer.layers(tokens), norm_position="pre", mixer=mixer.config,
                       feed_forward=FeedForwardConfig(ffn_width=2 * width))


def build_model(task: MemoryTask, name: str, parameters: int) -> MemoryModel:
    """The widest model within the parameter budget, in steps of 8 features, or of those of a head of RWKV-7."""
    mixer = checks.pick("mixers", name, MEMORY_MIXERS)
    width = mixer.width_step
    if _count_parameters(task, mixer, width) > parameters:
        raise checks.wrong("parameters",
                           f"at least {_count_parameters(task, mixer, width):,} for {name} and {task.tokens} tokens",
                           f"{parameters:,}")
    while _count_parameters(task, mixer, width + mixer.width_step) <= parameters:
        width += mixer.width_step
    return MemoryModel(task, mixer, width)


def _count_parameters(task: MemoryTask, mixer: MemoryMixer, width: int) -> int:
    read = (NUMERIC_FEATURES + 1) * width if task.symbols is None else task.symbols * width
    stack = stack_config(mixer, task.tokens, width).parameters(width, causal=True)
    return read + stack + (width + 1) * task.outputs


ProgressCallback = Callable[[int, float], None]
SOLVED_FRACTION = 0.01
"""A task is solved if the loss is below this fraction of the chance loss."""
WARMUP, FINAL_RATE, MAX_GRAD_NORM = 50, 0.05, 1.0
VALIDATION_SEED = 7919
"""Added to the seed for the validation sequences."""


@dataclass(frozen=True)
class MemoryBudget:
    """The budget of each training: steps, batch size and parameters."""

    steps: int = 600
    rows: int = 32
    parameters: int = 30_000
    validation_rows: int = 256
    """Number of validation sequences."""
    every: int = 50
    """Steps between validations."""
    rate: float = 1.0
    """Factor on the learning rate of each mixer."""

    def __post_init__(self) -> None:
        if not isinstance(self.rate, int | float) or not 0 < self.rate < math.inf:
            raise checks.wrong("rate", "a number above 0", repr(self.rate))
        counts = {name: value for name, value in asdict(self).items() if name != "rate"}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise checks.wrong(name, "a whole number, at least 1", repr(value))


class MemoryTraining(NamedTuple):
    """The result of training one model."""

    loss: float
    accuracy: float | None
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]
    """Steps and the validation loss after them."""


@dataclass(frozen=True)
class MemoryResult:
    """The result of one mixer on one task at one length."""

    task: str
    mixer: str
    length: int
    seed: int
    tokens: int
    loss: float
    accuracy: float | None
    chance: float
    chance_accuracy: float | None
    parameters: int
    width: int
    layers: int
    seen: int | None
    """The number of tokens an output can depend on; None if unlimited."""
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]
    """Steps and the validation loss after them."""

    @property
    def solved(self) -> bool:
        """Whether the loss is at most 1 % of the chance loss."""
        return self.loss <= SOLVED_FRACTION * self.chance

    def table(self) -> dict[str, Any]:
        """As a JSON object; a loss that is not finite is null."""
        own = asdict(self) | {"way": self.mixer, "solved": self.solved,
                              "curve": [[step, _finite_or_none(loss)] for step, loss in self.curve]}
        return {**own, "loss": _finite_or_none(self.loss)}


@checks.renamed_arguments(way="mixer")
def learn(task: MemoryTask, mixer: str, budget: MemoryBudget, seed: int, device: str | torch.device = "cpu",
          on_validation: ProgressCallback | None = None) -> MemoryResult:
    """Train one mixer on one task.

    Args:
        on_validation: called with the step and the validation loss at every validation.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = build_model(task, mixer, budget.parameters).to(device)
        trained = train_model(model, task, budget, seed, budget.rate * MEMORY_MIXERS[mixer].rate, on_validation)
    return MemoryResult(task=task.name, mixer=mixer, length=task.length, seed=seed, tokens=task.tokens,
                        loss=trained.loss, accuracy=trained.accuracy, chance=task.chance,
                        chance_accuracy=task.chance_accuracy,
                        parameters=sum(parameter.numel() for parameter in model.parameters()),
                        width=model.output.in_features, layers=len(model.stack.blocks), seen=model.seen,
                        steps=trained.steps, seconds=trained.seconds, curve=trained.curve)


def train_model(model: nn.Module, task: MemoryTask, budget: MemoryBudget, seed: int, rate: float,
                on_validation: ProgressCallback | None = None) -> MemoryTraining:
    """Train a model (B, N) or (B, N, features) -> (B, N, outputs) on its device."""
    device = next(model.parameters()).device
    stream = Generator(device).manual_seed(seed)
    held = task.batch(budget.validation_rows, Generator(device).manual_seed(VALIDATION_SEED + seed))
    optimiser = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / WARMUP) * max(FINAL_RATE, 1 - step / budget.steps))
    curve: list[tuple[int, float]] = []
    accuracy: float | None = None
    began = time.perf_counter()
    with flush_denormals():
        for step in range(1, budget.steps + 1):
            batch = task.after((step - 1) / budget.steps).batch(budget.rows, stream)
            optimiser.zero_grad()
            task.score(model(batch.inputs), batch).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimiser.step()
            schedule.step()
            if step % budget.every and step < budget.steps:
                continue
            loss, accuracy = _validate(model, task, held, budget.rows)
            curve.append((step, loss))
            if on_validation is not None:
                on_validation(step, loss)
            if loss <= SOLVED_FRACTION * task.chance or not math.isfinite(loss):
                break
    return MemoryTraining(curve[-1][1], accuracy, curve[-1][0], time.perf_counter() - began, tuple(curve))


def _validate(model: nn.Module, task: MemoryTask, held: MemoryBatch, rows: int) -> tuple[float, float | None]:
    """Loss and accuracy on sequences that were never learned from, as many at once as in training.

    All parts are equally long and have equally many answers, so that the mean over parts is the mean over answers.
    """
    parts = [MemoryBatch(*tensors) for tensors in zip(*(tensor.split(rows) for tensor in held), strict=True)]
    with torch.no_grad():
        scores = [task.score(model(part.inputs), part) for part in parts]
    weights = [len(part.inputs) / len(held.inputs) for part in parts]
    loss = sum(weight * float(score.loss) for weight, score in zip(weights, scores, strict=True))
    right = [float(score.accuracy) for score in scores if score.accuracy is not None]
    return loss, sum(weight * share for weight, share in zip(weights, right, strict=True)) if right else None


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


DEFAULT_MIXERS = ("rnn", "lstm", "gru", "convolution", "attention", "rwkv7")


@dataclass(frozen=True)
class MemoryScale:
    """The default lengths of each task and the default budget."""

    lengths: Mapping[str, tuple[int, ...]]
    budget: MemoryBudget


QUICK = MemoryScale({"copy": (5, 20, 80), "recall": (16, 32, 64), "adding": (10, 40, 160)}, MemoryBudget())
LONG = MemoryScale({name: (64, 256, 1024) for name in MEMORY_TASKS},
                   MemoryBudget(steps=3000, rows=64, parameters=100_000, every=100, rate=0.4))
SCALES = {"quick": QUICK, "long": LONG}


@checks.renamed_arguments(ways="mixers")
def run(task: str, mixers: Sequence[str] = DEFAULT_MIXERS, lengths: Sequence[int] | None = None,
        budget: MemoryBudget | None = None, seeds: int = 1, device: str | torch.device = "cpu", scale: str = "quick",
        on_validation: Callable[[str, int, int, int, float], None] | None = None,
        on_result: Callable[[MemoryResult], None] | None = None) -> list[MemoryResult]:
    """Train every mixer at every length with every seed.

    Args:
        task: "copy", "recall" or "adding".
        mixers: names from `MEMORY_MIXERS`.
        lengths: by default those of the scale.
        budget: the budget of each training, by default that of the scale.
        seeds: how many, from 0.
        scale: "quick" or "long": the defaults of lengths and budget.
        on_validation: called with mixer, length, seed, step and validation loss at every validation.
        on_result: called with each result.
    """
    chosen = checks.pick("scale", scale, SCALES)
    checks.pick("task", task, MEMORY_TASKS)
    for name in mixers:
        checks.pick("mixers", name, MEMORY_MIXERS)
    if not mixers:
        raise checks.wrong("mixers", "at least one", "none", f"There are {', '.join(MEMORY_MIXERS)}.")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise checks.wrong("seeds", "a whole number, at least 1", repr(seeds))
    tasks = [make_task(task, length) for length in dict.fromkeys(chosen.lengths[task] if lengths is None else lengths)]
    if not tasks:
        raise checks.wrong("lengths", "at least one", "none")
    budget = chosen.budget if budget is None else budget
    results = []
    for one in tasks:
        for mixer in dict.fromkeys(mixers):
            for seed in range(seeds):
                callback = None if on_validation is None else _bind_run(on_validation, mixer, one.length, seed)
                results.append(learn(one, mixer, budget, seed, device, callback))
                if on_result is not None:
                    on_result(results[-1])
    return results


def _bind_run(on_validation: Callable[[str, int, int, int, float], None], mixer: str, length: int,
              seed: int) -> Callable[[int, float], None]:
    return lambda step, loss: on_validation(mixer, length, seed, step, loss)


class PublishedResult(NamedTuple):
    """A result from the literature."""

    task: str
    mixer: str
    """The mixer of the same kind, or "without memory"."""
    length: int | None
    """None means every length."""
    measure: str
    value: str
    """As printed in the paper."""
    source: str
    model: str = ""
    """The name in the paper, if it differs."""


BAI, ARJOVSKY, ARORA = ("Bai, Kolter, Koltun 2018", "Arjovsky, Shah, Bengio 2016", "Arora et al. 2023")
WITHOUT_MEMORY = "without memory"
PUBLISHED = (
    PublishedResult("copy", WITHOUT_MEMORY, 1000, "loss", "0.0204", ARJOVSKY),
    PublishedResult("copy", "rnn", 1000, "loss", "0.020", BAI),
    PublishedResult("copy", "lstm", 1000, "loss", "0.0204", BAI),
    PublishedResult("copy", "gru", 1000, "loss", "0.020", BAI),
    PublishedResult("copy", "convolution", 1000, "loss", "3.5e-5", BAI, "TCN"),
    PublishedResult("recall", "attention", None, "accuracy", "1.00", ARORA),
    PublishedResult("adding", WITHOUT_MEMORY, None, "loss", "0.1767", ARJOVSKY),
)


def published_results(task: str) -> tuple[PublishedResult, ...]:
    """The published results of a task."""
    return tuple(figure for figure in PUBLISHED if figure.task == task)


def published_marks(task: str, lengths: Sequence[int]) -> dict[str, dict[int, float]]:
    """Published values by mixer and length, up to the longest of these lengths."""
    found = dict[str, dict[int, float]]()
    for figure in published_results(task):
        at = lengths if figure.length is None else [figure.length]
        here = {length: float(figure.value) for length in at if length <= max(lengths)}
        if here and figure.mixer != WITHOUT_MEMORY:
            found[figure.mixer] = here
    return found


FIGURE_FORMATS = ("svg", "png")
DRAWN_ORDER = (*DEFAULT_MIXERS, "rwkv4")
"""The mixers in the order of the line colours: each of these has one of its own, the same in every chart."""


def result_lines(results: Sequence[MemoryResult]) -> list[str]:
    """A table as text, a row for each mixer and a column for each length: the median over the seeds, with the range."""
    task, lengths, mixers = _covered(results)
    cells = [["mixer", *(f"{length:,}" for length in lengths), "parameters", "layers", "sees", "steps", "s"]]
    for mixer in mixers:
        own = [result for result in results if result.mixer == mixer]
        seen = [result.seen for result in own if result.seen is not None]
        cells.append([mixer, *(_result_cell([one for one in own if one.length == length]) for length in lengths),
                      _format_range([one.parameters for one in own]), _format_range([one.layers for one in own]),
                      _format_range(seen) if seen else "all", _format_range([one.steps for one in own]),
                      f"{sum(one.seconds for one in own):.0f}"])
    cells.append([WITHOUT_MEMORY, *(_chance_cell(task, length) for length in lengths), "", "", "", "", ""])
    solved = "* solved: the loss is at most 1 % of what it is without memory."
    found = [f"{task.name}: {_measure_name(task)}, by {task.unit}", *align_columns(cells), solved]
    figures = published_results(task.name)
    if figures:
        rows = [["published", "length", "value", "source"]]
        rows += [[one.mixer + (f" ({one.model})" if one.model else ""),
                  "every" if one.length is None else f"{one.length:,}", f"{one.measure} {one.value}", one.source]
                 for one in figures]
        found += ["", *align_columns(rows)]
    return found


def results_table(results: Sequence[MemoryResult]) -> dict[str, Any]:
    """The results as a JSON object. `ways` and `way` are the old names of `mixers` and `mixer`."""
    task, lengths, mixers = _covered(results)
    return {"task": task.name, "measure": task.measure, "lengths": lengths, "mixers": mixers, "ways": mixers,
            "results": [result.table() for result in results],
            "published": [figure._asdict() | {"way": figure.mixer} for figure in published_results(task.name)]}


def results_figure(results: Sequence[MemoryResult]) -> "Figure":
    """A chart of the results by length, with chance and published values. It needs the extra `plot`."""
    from regard.inspection.pictures.curves import length_picture

    task, lengths, mixers = _covered(results)
    values = {mixer: {length: [value for one in results if (one.mixer, one.length) == (mixer, length)
                               for value in [_shown_value(one)]] for length in lengths} for mixer in mixers}
    kept = {mixer: {length: own for length, own in points.items() if own} for mixer, points in values.items()}
    level = {length: _chance_level(MEMORY_TASKS[task.name](length)) for length in lengths}
    known = {mixer: points for mixer, points in published_marks(task.name, lengths).items() if mixer in mixers}
    return length_picture(kept, _measure_name(task), scale="linear" if task.measure == "accuracy" else "log",
                          baseline=level, baseline_name=WITHOUT_MEMORY, title=f"Memory task: {task.name}",
                          x_label=task.unit, order=DRAWN_ORDER, marks=known, marks_name="published")


def save_figures(results: Sequence[MemoryResult], folder: str | os.PathLike[str]) -> list[str]:
    """Save the chart in this folder as SVG and PNG, named after the task, and return the paths."""
    from regard.inspection.pictures.canvas import save as write

    drawn, paths = results_figure(results), [os.path.join(folder, f"{results[0].task}.{ending}")
                                             for ending in FIGURE_FORMATS]
    for path in paths:
        write(drawn, path)
    return paths


def _covered(results: Sequence[MemoryResult]) -> tuple[MemoryTask, list[int], list[str]]:
    """The task (at the first length), the lengths and the mixers, in the order of the results."""
    names = {result.task for result in results}
    if len(names) != 1:
        raise checks.wrong("results", "those of one task", ", ".join(sorted(names)) or "empty")
    return (MEMORY_TASKS[results[0].task](results[0].length), sorted({result.length for result in results}),
            list(dict.fromkeys(result.mixer for result in results)))


def _measure_name(task: MemoryTask) -> str:
    kind = {"accuracy": "accuracy", "loss": "cross-entropy" if task.symbols else "mean squared error"}[task.measure]
    return f"{kind} on new sequences"


def _shown_value(result: MemoryResult) -> float:
    return result.loss if result.accuracy is None or MEMORY_TASKS[result.task].measure == "loss" else result.accuracy


def _chance_level(task: MemoryTask) -> float:
    accuracy = task.chance_accuracy
    return task.chance if accuracy is None or task.measure == "loss" else accuracy


def _result_cell(results: Sequence[MemoryResult]) -> str:
    """The median, with the range if it is visible after rounding, and a star if all seeds have solved the task."""
    if not results:
        return "-"
    values = sorted(_shown_value(result) for result in results)
    low, middle, high = (_format_number(value) for value in (values[0], median(values), values[-1]))
    spread = "" if low == high else f" [{low}, {high}]"
    return f"{middle}{spread}{'*' if all(result.solved for result in results) else ''}"


def _chance_cell(task: MemoryTask, length: int) -> str:
    return _format_number(_chance_level(MEMORY_TASKS[task.name](length)))


def _format_number(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


def _format_range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"
