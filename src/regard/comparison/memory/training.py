"""One way learns one task at one length: how long, how fast, and how well it does then on sequences that are new.

Every batch is new, so nothing can be learned by heart. The optimiser is Adam with a short warm-up and a rate that falls
to a twentieth, gradients are clipped to a norm of 1, and it ends as soon as the held-out loss is a hundredth of chance:
what is solved needs no more steps. It knows neither the other ways nor how results are shown.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, nn

from regard import checks
from regard.comparison.memory.tasks import Batch, Task
from regard.comparison.memory.ways import WAYS, reader

Told = Callable[[int, float], None]
SOLVED = 0.01
"""The share of the chance loss below which a task is solved."""
WARMUP, LOWEST, CLIP = 50, 0.05, 1.0
HELD_OUT = 7919
"""Added to the seed for the sequences to judge by."""


@dataclass(frozen=True)
class Budget:
    """What each way may use: steps of so many sequences, and learned numbers."""

    steps: int = 600
    rows: int = 32
    parameters: int = 30_000
    judged: int = 256
    """Sequences to judge by."""
    every: int = 50
    """Steps between two looks at these."""
    rate: float = 1.0
    """Of learning: each way's own is multiplied by it."""

    def __post_init__(self) -> None:
        if not isinstance(self.rate, int | float) or not 0 < self.rate < math.inf:
            raise checks.wrong("rate", "a number above 0", repr(self.rate))
        counts = {name: value for name, value in asdict(self).items() if name != "rate"}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise checks.wrong(name, "a whole number, at least 1", repr(value))


class Lesson(NamedTuple):
    """How well a model does after so many steps."""

    loss: float
    accuracy: float | None
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]
    """Steps and the held-out loss after them."""


@dataclass(frozen=True)
class Result:
    """What came of one training."""

    task: str
    way: str
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
    """How many tokens an output can depend on; None where there is no limit."""
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]
    """Steps and the held-out loss after them."""

    @property
    def solved(self) -> bool:
        """Whether the loss is at most a hundredth of chance."""
        return self.loss <= SOLVED * self.chance

    def table(self) -> dict[str, Any]:
        """As plain values. JSON has no NaN: a loss that is none is null."""
        own = asdict(self) | {"solved": self.solved, "curve": [[step, _number(loss)] for step, loss in self.curve]}
        return {**own, "loss": _number(self.loss)}


def learn(task: Task, way: str, budget: Budget, seed: int, device: str | torch.device = "cpu",
          told: Told | None = None) -> Result:
    """Train one way on one task.

    Args:
        told: called with the step and the held-out loss, whenever it is judged.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = reader(task, way, budget.parameters).to(device)
        lesson = teach(model, task, budget, seed, budget.rate * WAYS[way].rate, told)
    return Result(task=task.name, way=way, length=task.length, seed=seed, tokens=task.tokens, loss=lesson.loss,
                  accuracy=lesson.accuracy, chance=task.chance, chance_accuracy=task.chance_accuracy,
                  parameters=sum(parameter.numel() for parameter in model.parameters()),
                  width=model.output.in_features, layers=len(model.stack.blocks), seen=model.seen, steps=lesson.steps,
                  seconds=lesson.seconds, curve=lesson.curve)


def teach(model: nn.Module, task: Task, budget: Budget, seed: int, rate: float, told: Told | None = None) -> Lesson:
    """Train any model of inputs to outputs, (B, N) or (B, N, features) -> (B, N, outputs), where it is."""
    device = next(model.parameters()).device
    stream = Generator(device).manual_seed(seed)
    held = task.batch(budget.judged, Generator(device).manual_seed(HELD_OUT + seed))
    optimiser = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / WARMUP) * max(LOWEST, 1 - step / budget.steps))
    curve: list[tuple[int, float]] = []
    accuracy: float | None = None
    began = time.perf_counter()
    with _flushed():
        for step in range(1, budget.steps + 1):
            batch = task.after((step - 1) / budget.steps).batch(budget.rows, stream)
            optimiser.zero_grad()
            task.score(model(batch.inputs), batch).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            schedule.step()
            if step % budget.every and step < budget.steps:
                continue
            loss, accuracy = _judged(model, task, held, budget.rows)
            curve.append((step, loss))
            if told is not None:
                told(step, loss)
            if loss <= SOLVED * task.chance or not math.isfinite(loss):
                break
    return Lesson(curve[-1][1], accuracy, curve[-1][0], time.perf_counter() - began, tuple(curve))


def _judged(model: nn.Module, task: Task, held: Batch, rows: int) -> tuple[float, float | None]:
    """Loss and accuracy on sequences that were never learned from, as many at once as in training.

    All parts are equally long and have equally many answers, so that the mean over parts is the mean over answers.
    """
    parts = [Batch(*tensors) for tensors in zip(*(tensor.split(rows) for tensor in held), strict=True)]
    with torch.no_grad():
        scores = [task.score(model(part.inputs), part) for part in parts]
    weights = [len(part.inputs) / len(held.inputs) for part in parts]
    loss = sum(weight * float(score.loss) for weight, score in zip(weights, scores, strict=True))
    right = [float(score.accuracy) for score in scores if score.accuracy is not None]
    return loss, sum(weight * share for weight, share in zip(weights, right, strict=True)) if right else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _flushed() -> Iterator[None]:
    """Inside, numbers that are nearly 0 are 0: gradients vanish, and a CPU is many times slower with such numbers."""
    before = sys.float_info.min / 2 == 0.0  # how it was; torch does not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
