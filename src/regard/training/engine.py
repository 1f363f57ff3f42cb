"""One step of training: gradients of some batches, then one update of the parameters.

    engine.step(number, batches, rate)     loss = Σ over tokens / all tokens of the step, over batches and processes
    engine.read()                          Totals of all steps since the last reading; where one was not finite, which

Dropout follows from (seed, number of the step, process) alone, so that a step comes out the same whatever came before
it. Sums stay on the device until they are read: on a GPU no step waits for another, and from the second time on a batch
of a shape is replayed as one CUDA graph. It does not know where batches come from, nor what comes after a step.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batches.order import key
from regard.training import lowered
from regard.training import optimiser as optimisers
from regard.training.averaging import Average
from regard.training.graphs import Captured
from regard.training.loss import Loss
from regard.training.processes import Processes
from regard.training.settings import TrainingConfig
from regard.training.work import Learned, Objective

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NONE = -1


class Totals(NamedTuple):
    """Sums over the steps since the last reading, on all processes together."""

    total: float
    """Of the loss that is minimised."""
    nll: float
    """Of -log p of the labels."""
    tokens: int
    norm: float
    """Of the lengths of the gradients."""
    steps: int
    bad: int | None
    """The first step whose loss or gradient was not finite."""


class Engine:
    """The parameters of an objective, and all that changes with them."""

    def __init__(self, objective: Objective, settings: TrainingConfig, processes: Processes) -> None:
        self.settings, self.processes, self.objective = settings, processes, objective
        self.module = processes.share(objective, settings.sharing)
        self.names: Mapping[str, nn.Parameter] = dict(objective.model.named_parameters())
        self.parameters = list(self.names.values())
        self.device = self.parameters[0].device
        self.optimiser = optimisers.make(settings.optimiser, self.names)
        self.average = Average(objective.model, settings.average) if settings.average else None
        self.sums = torch.zeros(5, dtype=torch.float64, device=self.device)  # total, nll, tokens, norm, steps
        self.bad = torch.full((), NONE, dtype=torch.int64, device=self.device)
        self.number = torch.zeros((), dtype=torch.int64, device=self.device)
        self.scale = torch.zeros((), device=self.device)
        graphs = self.device.type == "cuda" and processes.count == 1
        low = graphs and settings.precision != "float32" and lowered.why_not(objective, self.device) is None
        self._low = lowered.Lowered(objective, DTYPES[settings.precision]) if low else None
        self._recorded: Callable[[Callable[..., None]], Callable[..., None]] = Captured if graphs else _as_it_is
        self._gradients = self._further = self._recorded(self._backward)
        if isinstance(self._gradients, Captured) and self._low is not None:  # of those after the first of a step
            self._further = Captured(self._backward_further, beside=self._gradients)
        self._updates: dict[int, Callable[..., None]] = {}
        self._stream = torch.cuda.Stream() if graphs else None

    def step(self, number: int, batches: Sequence[Learned], rate: float) -> None:
        """Learn from these batches, as step `number`, from 1."""
        tokens = self.processes.sum(sum(batch.tokens for batch in batches))
        if not tokens:  # nothing to learn from: the parameters stay
            return
        with self._own_stream():
            torch.manual_seed(key(self.settings.seed, number, self.processes.rank) % 2**63)
            self.number.fill_(number)
            self.scale.fill_(self.processes.count / tokens)  # gradients are averaged over processes
            optimisers.set_rate(self.optimiser, rate)
            for index, batch in enumerate(batches):
                with self.processes.gradients_of(self.module, last=index == len(batches) - 1):
                    (self._further if index else self._gradients)(batch)
            self._updated()
            if self.average is not None:
                self.average.update()

    def read(self) -> Totals:
        """The sums since the last reading. It waits for the device."""
        if self._stream is not None:
            self._stream.synchronize()
        total, nll, tokens, norm, steps = self.sums.tolist()
        total, nll, tokens = (self.processes.sum(number) for number in (total, nll, tokens))
        self.sums.zero_()
        return Totals(total, nll, round(tokens), norm, round(steps), self.bad_step())

    def bad_step(self) -> int | None:
        """The first step whose loss or gradient was not finite. It waits for the device."""
        bad = int(self.bad)
        return None if bad == NONE else bad

    def tried(self, batch: Learned) -> None:
        """Compute the gradients of a batch, and forget them."""
        with self._own_stream():
            carried = self.objective.carried()
            with self.processes.gradients_of(self.module, last=True):
                self._backward(batch)
            self.objective.resume(carried)
            self.optimiser.zero_grad(set_to_none=self._stream is None)
            self.sums.zero_()
        if self._stream is not None:
            self._stream.synchronize()

    @torch.no_grad()
    def mean_loss(self, batches: Iterable[Learned]) -> float:
        """The mean of -log p of the labels of these batches, in which all processes take part."""
        nll, tokens = 0.0, 0
        for batch in batches:
            with self._lowered():
                loss = self.module(batch.to(self.device))
            nll, tokens = nll + float(loss.nll), tokens + int(loss.tokens)
        return nll / max(1, tokens)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model has the mean of its weights, where there is one."""
        with contextlib.nullcontext() if self.average is None else self.average.used():
            yield

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of the parameters."""
        return self.processes.count > 1 and self.settings.sharing == "sharded"

    def memory(self) -> int:
        """The most bytes that were in use: on a GPU there, otherwise of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Inside, work is asked of a stream of our own, after all that was asked of the common one, and before all that
        will be: whoever looks at parameters and sums finds them as the last step left them."""
        if self._stream is None:
            yield
            return
        common = torch.cuda.default_stream()
        self._stream.wait_stream(common)
        with torch.cuda.stream(self._stream):
            yield
        common.wait_stream(self._stream)

    def _backward(self, batch: Learned) -> None:
        """The gradients of the first batch of a step; without a low copy they are added, as those of any other."""
        if self._low is None:
            batch = batch.to(self.device)
            with self._lowered():
                loss = self.module(batch)
            (loss.total * self.scale).backward()
            self._count(loss)
        else:
            self._count(self._computed_low(self._low, batch))
            self._low.give()

    def _backward_further(self, batch: Learned) -> None:
        """Add the gradients of another batch, by a low copy."""
        assert self._low is not None, "the gradients of all batches are added without one"
        self._count(self._computed_low(self._low, batch))
        self._low.collect()

    def _computed_low(self, low: lowered.Lowered, batch: Learned) -> Loss:
        """The loss of a batch by the low copy, which has its gradients then."""
        low.refresh()
        loss: Loss = low.module.train(self.module.training)(batch.to(self.device))
        (loss.total * self.scale).backward()
        return loss

    def _count(self, loss: Loss) -> None:
        with torch.no_grad():
            self.sums[0] += loss.total.detach()
            self.sums[1] += loss.nll
            self.sums[2] += loss.tokens

    def _lowered(self) -> torch.autocast:
        """Inside, products of matrices are in the precision that is set. Nothing is kept between graphs."""
        return torch.autocast(self.device.type, DTYPES[self.settings.precision],
                              enabled=self.settings.precision != "float32", cache_enabled=False)

    def _updated(self) -> None:
        """Change the parameters. One that has its first gradient now had no part in what was recorded before."""
        used = sum(parameter.grad is not None for parameter in self.parameters)
        if used not in self._updates:
            self._updates[used] = self._recorded(self._change)
        self._updates[used]()

    def _change(self) -> None:
        """Change the parameters by the gradients, which are then zero."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = _whole(nn.utils.get_total_norm(gradients))
        if self.settings.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.clip, norm)
        with torch.no_grad():
            self.sums[3] += norm
            self.sums[4] += 1
            fine = norm.isfinite() & self.sums[0].isfinite()
            self.bad.copy_(torch.where(fine | (self.bad != NONE), self.bad, self.number))
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=self._stream is None)


def _as_it_is(work: Callable[..., None]) -> Callable[..., None]:
    return work


def _whole(norm: Tensor) -> Tensor:
    """A norm of gradients that are shared among processes, of all of them."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
