"""The smallest work there is, for tests of engine and loop: a line through points, judged as the test says.

    work = Line(scores=[3.0, 2.0])          what the first and the second judgement find
    with training(work, folder) as made:    a `Training` of it, with all events in `made.told`
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from regard.training.checkpoints import CheckpointManager
from regard.training.config import CheckpointConfig, TrainingConfig, ValidationConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.logging import ValidationExample
from regard.training.loop import TrainingLoop
from regard.training.loss import Loss
from regard.training.optimizer import ScheduleConfig
from regard.training.tasks.interface import Objective, ValidationResult

POINTS = 12
EACH = 3
"""Points of a batch."""


@dataclass(frozen=True)
class Points:
    """A batch."""

    given: torch.Tensor
    wanted: torch.Tensor
    numbers: np.ndarray

    @property
    def tokens(self):
        return len(self.numbers)

    def to(self, device):
        return replace(self, given=self.given.to(device), wanted=self.wanted.to(device))


def points(numbers):
    """The points of these numbers."""
    numbers = np.asarray(numbers, np.int64)
    given = torch.sin(torch.from_numpy(numbers)[:, None] * torch.arange(1.0, 5.0))
    return Points(given, given.sum(-1, keepdim=True) - 1, numbers)


class Squares(Objective):
    """The sum of squared errors, with dropout between."""

    def forward(self, batch):
        errors = (self.model(batch.given) - batch.wanted).square().sum()
        return Loss(errors, errors.detach(), torch.tensor(batch.tokens))


def model(dropout=0.0):
    """Always with the same numbers."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 1))


class Feed:
    """Batches of neighbours, one after another without end; every one but the third learns something."""

    steps = POINTS // EACH

    def __init__(self, empty=()):
        self.empty, self.asked = empty, []

    def at(self, step):
        self.asked.append(step)
        first = EACH * step
        return points([] if step in self.empty else [number % POINTS for number in range(first, first + EACH)])

    def largest(self):
        return [points(range(EACH))]


class Line:
    """The work."""

    def __init__(self, scores=(), empty=(), score="loss"):
        self.scores, self.empty, self.score, self.modes = iter(scores), empty, score, []

    def feed(self, rank, processes):
        return Feed(self.empty)

    def objective(self, model):
        return Squares(model)

    def validation_batches(self):
        return [points(range(POINTS))]

    def try_validation(self, task, examples):
        torch.rand(3)
        return 0.5

    def wrap(self, model):
        return model

    def validate(self, task):
        self.modes.append(any(module.training for module in task.modules()))
        torch.rand(7)
        value = next(self.scores, None)
        found = Squares(task)(points(range(POINTS))).total.item() if value is None else value
        return ValidationResult({"loss": found, self.score: found}, (ValidationExample("given", "wanted", "made"),))


def settings(steps=8, *, every=4, store=4, patience=None, score="loss", **options):
    """Settings of a short training."""
    options = {"max_grad_norm": 0.0, "log_every": 2} | options
    return TrainingConfig(schedule=ScheduleConfig(shape="constant", learning_rate=0.05, max_steps=steps),
                          validation=ValidationConfig(every=every, patience=patience, metric=score),
                          checkpoints=CheckpointConfig(every=store, keep=2), **options)


class Made:
    """A training, what it has told, and what it has kept."""

    def __init__(self, folder, work=None, config=None, dropout=0.2, objective=None):
        self.told, self.kept = [], []
        work, config = work or Line(), config or settings()
        network = model(dropout)
        engine = TrainingEngine(objective(network) if objective else work.objective(network), config,
                                DistributedContext.alone())
        self.training = TrainingLoop(work, network, engine, config,
                                     CheckpointManager(folder, keep=config.checkpoints.keep),
                                 self.told.append, self._keep, {"of": "a line"})

    def _keep(self, standing):
        self.kept.append((standing.step, {name: tensor.clone() for name, tensor
                                          in self.training.engine.objective.model.state_dict().items()}))

    def events(self, kind):
        """Those of a kind."""
        return [event for event in self.told if type(event).__name__ == kind]

    @property
    def order(self):
        """The kinds of all events, with their steps."""
        return [(type(event).__name__, getattr(event, "step", None)) for event in self.told]


def numbers(engine):
    """All tensors of an engine in one vector, to be compared."""
    state = [tensor for moments in engine.optimizer.state.values() for tensor in moments.values()]
    mean = [] if engine.ema is None else list(engine.ema.mean.values())
    return torch.cat([tensor.detach().double().flatten() for tensor in itertools.chain(
        engine.objective.model.state_dict().values(), state, mean)])
