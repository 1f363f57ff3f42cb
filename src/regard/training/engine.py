"""The engine: one training step, that is the gradients of some batches and one update of the parameters.

    engine.step(number, batches, rate)     loss = Σ over tokens / all tokens of the step, over batches and processes
    engine.read()                          totals of all steps since the last call, and the first non-finite step

Dropout depends on (seed, step, process) alone, so that a step comes out the same whatever came before it. Sums stay on
the device until they are read: on a GPU no step waits for another. Around the optimizer there are

    EMA                  the exponential moving average of the parameters, which is validated and saved
    LowPrecisionCopy     mixed precision on a GPU: a bfloat16 copy computes, float32 parameters are updated
    GraphedCallable      CUDA graphs: from the second batch of a shape on, a step is replayed as one graph

The engine does not know where batches come from, nor what happens between steps.
"""

import contextlib
import copy
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import checks
from regard.data.batches.plan import derive_key
from regard.recurrence.cells import Cell
from regard.recurrence.lstmn import LSTMN
from regard.training import optimizer as optimisers
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.loss import Loss
from regard.training.tasks.interface import Objective, TrainingBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NO_STEP = -1


class StepTotals(NamedTuple):
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


# ---- lowered: Parameters in two precisions: float32 to be changed by small steps, and a copy with fewer digits to compute with.
#
# Autocast lowers every weight and every input again at each product, and what lies between products stays in float32: in
# a step of a Transformer on a GPU that moves more bytes than the products themselves. Here all that is computed in a step
# is low, and a step begins by lowering all parameters at once. The gradients of the copy are added to those of the
# parameters in float32, so that an optimiser sees nothing of it.
#
#     lowered = Lowered(objective, torch.bfloat16)
#     lowered.refresh()            the copy is what the parameters are
#     lowered.module(batch)        what computes; after its backward pass
#     lowered.give()               its gradients become those of the parameters, where these are zeros or none
#     lowered.collect()            its gradients are added to those of the parameters
#
# The parameters of the copy lie in one piece of memory, matrices first, in the order in which the objective has them: so
# layers that stand one after another can be multiplied at once (`regard.kernels.linear`).
#
# It does not know optimisers, nor when a step begins. `why_not` says why an objective is better left to autocast.


def why_no_low_precision(objective: Objective, device: torch.device) -> str | None:
    """Why an objective is not computed with a low copy; None where it is."""
    if device.type != "cuda":
        return "only on a GPU are products so fast that the rest counts"
    if type(objective).carried is not Objective.carried:
        return "what it carries from step to step has its own precision"
    if any(isinstance(module, Cell | LSTMN) for module in objective.modules()):
        return "the states of a recurrence add up over many steps"
    if any(parameter.dtype != torch.float32 for parameter in objective.parameters()):
        return "its parameters are not all float32"
    return None


class LowPrecisionCopy:
    """A copy of an objective whose parameters have another dtype. Buffers stay as they are."""

    def __init__(self, objective: Objective, dtype: torch.dtype) -> None:
        self.module: nn.Module = copy.deepcopy(objective)
        self.masters: list[Tensor] = list(objective.parameters())
        self.own: list[Tensor] = list(self.module.parameters())
        _pack_parameters(self.own, dtype)
        self.wide = [torch.zeros_like(master) for master in self.masters]

    @torch.no_grad()
    def refresh(self) -> None:
        """The copy becomes what the parameters are, and has no gradients."""
        torch._foreach_copy_(self.own, self.masters)
        for parameter in self.own:
            parameter.grad = None

    @torch.no_grad()
    def give(self) -> None:
        """The gradients of the copy become those of the parameters that had a part. Those of the others stay."""
        used = [(master, own) for master, own in zip(self.masters, self.own, strict=True) if own.grad is not None]
        for master, _ in used:
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
        torch._foreach_copy_([master.grad for master, _ in used if master.grad is not None],
                             [own.grad for _, own in used if own.grad is not None])
        for _, own in used:
            own.grad = None

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of the copy to those of the parameters; none for those that had no part."""
        used = [(master, wide, own) for master, wide, own in zip(self.masters, self.wide, self.own, strict=True)
                if own.grad is not None]
        wide = [wide for _, wide, _ in used]
        torch._foreach_copy_(wide, [own.grad for _, _, own in used if own.grad is not None])
        sums = [torch.zeros_like(master) if master.grad is None else master.grad for master, _, _ in used]
        torch._foreach_add_(sums, wide)
        for (master, _, own), total in zip(used, sums, strict=True):
            master.grad, own.grad = total, None


class TrainingEngine:
    """The parameters of an objective, and all that changes with them."""

    def __init__(self, objective: Objective, settings: TrainingConfig, processes: DistributedContext) -> None:
        self.settings, self.processes, self.objective = settings, processes, objective
        self.module = processes.share(objective, settings.parallelism)
        self.names: Mapping[str, nn.Parameter] = dict(objective.model.named_parameters())
        self.parameters = list(self.names.values())
        self.device = self.parameters[0].device
        self.optimiser = optimisers.make_optimizer(settings.optimizer, self.names)
        self.average = EMA(objective.model, settings.ema_decay) if settings.ema_decay else None
        self.sums = torch.zeros(5, dtype=torch.float64, device=self.device)  # total, nll, tokens, norm, steps
        self.bad = torch.full((), NO_STEP, dtype=torch.int64, device=self.device)
        self.number = torch.zeros((), dtype=torch.int64, device=self.device)
        self.scale = torch.zeros((), device=self.device)
        graphs = self.device.type == "cuda" and processes.count == 1
        low = graphs and settings.precision != "float32" and why_no_low_precision(objective, self.device) is None
        self._low = LowPrecisionCopy(objective, DTYPES[settings.precision]) if low else None
        self._recorded: Callable[[Callable[..., None]], Callable[..., None]] = GraphedCallable if graphs else _eager
        self._gradients = self._further = self._recorded(self._backward)
        if isinstance(self._gradients, GraphedCallable) and self._low is not None:  # of those after the first of a step
            self._further = GraphedCallable(self._backward_further, beside=self._gradients)
        self._updates: dict[int, Callable[..., None]] = {}
        self._stream = torch.cuda.Stream() if graphs else None

    def step(self, number: int, batches: Sequence[TrainingBatch], rate: float) -> None:
        """Learn from these batches, as step `number`, from 1."""
        tokens = self.processes.sum(sum(batch.tokens for batch in batches))
        if not tokens:  # nothing to learn from: the parameters stay
            return
        with self._own_stream():
            torch.manual_seed(derive_key(self.settings.seed, number, self.processes.rank) % 2**63)
            self.number.fill_(number)
            self.scale.fill_(self.processes.count / tokens)  # gradients are averaged over processes
            optimisers.set_learning_rate(self.optimiser, rate)
            for index, batch in enumerate(batches):
                with self.processes.gradients_of(self.module, last=index == len(batches) - 1):
                    (self._further if index else self._gradients)(batch)
            self._updated()
            if self.average is not None:
                self.average.update()

    def read(self) -> StepTotals:
        """The sums since the last reading. It waits for the device."""
        if self._stream is not None:
            self._stream.synchronize()
        total, nll, tokens, norm, steps = self.sums.tolist()
        total, nll, tokens = (self.processes.sum(number) for number in (total, nll, tokens))
        self.sums.zero_()
        return StepTotals(total, nll, round(tokens), norm, round(steps), self.bad_step())

    def bad_step(self) -> int | None:
        """The first step whose loss or gradient was not finite. It waits for the device."""
        bad = int(self.bad)
        return None if bad == NO_STEP else bad

    def tried(self, batch: TrainingBatch) -> None:
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
    def mean_loss(self, batches: Iterable[TrainingBatch]) -> float:
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
        return self.processes.count > 1 and self.settings.parallelism == "fsdp"

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

    def _backward(self, batch: TrainingBatch) -> None:
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

    def _backward_further(self, batch: TrainingBatch) -> None:
        """Add the gradients of another batch, by a low copy."""
        assert self._low is not None, "the gradients of all batches are added without one"
        self._count(self._computed_low(self._low, batch))
        self._low.collect()

    def _computed_low(self, low: LowPrecisionCopy, batch: TrainingBatch) -> Loss:
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
        norm = _full_norm(nn.utils.get_total_norm(gradients))
        if self.settings.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.max_grad_norm, norm)
        with torch.no_grad():
            self.sums[3] += norm
            self.sums[4] += 1
            fine = norm.isfinite() & self.sums[0].isfinite()
            self.bad.copy_(torch.where(fine | (self.bad != NO_STEP), self.bad, self.number))
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=self._stream is None)


def _eager(work: Callable[..., None]) -> Callable[..., None]:
    return work


def _full_norm(norm: Tensor) -> Tensor:
    """A norm of gradients that are shared among processes, of all of them."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


# ---- averaging: The mean of a model over its last steps, which is better than the last step alone.
#
#     a_s = d a_{s-1} + (1 - d) w_s,      d = min(decay, (1 + s) / (10 + s))
#
# An exponential moving average of all parameters, kept in float32 on their device. At first d is smaller, so that the
# random beginning is forgotten soon. It is a state like any other: it is stored and resumed. It does not know training.


class EMA:
    """The moving average of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        checks.probability("decay", decay)
        self.decay, self.steps = decay, 0
        self.model = model
        self.mean = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        self.steps += 1
        weight = 1.0 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        now = [parameter.detach().float() for _, parameter in self.model.named_parameters()]
        torch._foreach_lerp_(list(self.mean.values()), now, weight)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, the model has the mean as its parameters; afterwards what it had before."""
        parameters = dict(self.model.named_parameters())
        kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        self._write(parameters, self.mean)
        try:
            yield
        finally:
            self._write(parameters, kept)

    def state(self) -> dict[str, Tensor]:
        """What must be stored to go on: the mean, and how many steps it has seen."""
        return {**self.mean, "steps": torch.tensor(self.steps)}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a stored state."""
        missing = [name for name in self.state() if name not in state]
        if missing:
            raise checks.wrong("state", f"one with the mean of {missing[0]!r}", f"one with {len(state)} other tensors")
        more = [name for name in state if name not in self.state()]
        if more:
            raise checks.wrong("state", "one of this model", f"one with the mean of {more[0]!r}, which it has not")
        for name, mean in self.mean.items():  # all are looked at before the first is taken
            if state[name].shape != mean.shape:
                raise checks.wrong(f"state[{name!r}]", f"of shape {checks.shape(mean)}",
                                   f"of shape {checks.shape(state[name])}")
        self.steps = int(state["steps"])
        for name, mean in self.mean.items():
            mean.copy_(state[name])

    @staticmethod
    @torch.no_grad()
    def _write(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            parameter.copy_(values[name])


ALIGNMENT = 16
"""Bytes: where a parameter begins is a multiple of it, as products read so many at a time."""


def _pack_parameters(parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Lower them, and move them into one piece of memory."""
    step = ALIGNMENT // dtype.itemsize
    order = sorted(parameters, key=lambda parameter: parameter.dim() <= 1)
    sizes = [-(-parameter.numel() // step) * step for parameter in order]
    room = order[0].new_zeros(sum(sizes), dtype=dtype)
    for parameter, place in zip(order, room.split(sizes), strict=True):
        lowered = place[:parameter.numel()].view(parameter.shape)
        parameter.data = lowered.copy_(parameter.data)


# ---- graphs: Work on a GPU that is recorded once for each shape of its arguments, and from then on replayed by one call.
#
# A small model's step is thousands of small kernels, and a GPU does them faster than Python can ask for them. A CUDA
# graph holds them all. It reads its arguments from fixed places, into which new ones are copied, and writes where the
# recorded work wrote; so the work must give its results by writing into tensors that live elsewhere, and must never ask
# the device for a number.
#
# The first call of a shape runs as it is: it is of use, and it sets up what libraries set up once. The second is recorded
# and then replayed. It does not know what the work is.

MAX_GRAPHS = 128
"""Shapes that are recorded; later ones run as they are."""


class GraphedCallable:
    """work(*arguments) -> None, replayed from the second call of a shape on.

    What is `beside` it lends its memory: then the two may not be replayed at the same time.
    """

    def __init__(self, work: Callable[..., None], beside: "GraphedCallable | None" = None) -> None:
        self.work, self.beside = work, beside
        self.seen: set[Any] = set()
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]] = {}
        self.pool: Any = None

    def __call__(self, *arguments: Any) -> None:
        shape = tuple((tuple(tensor.shape), tensor.dtype) for tensor in iter_tensors(arguments))
        if shape not in self.recorded:
            if shape not in self.seen or len(self.recorded) >= MAX_GRAPHS:
                self.seen.add(shape)
                self.work(*arguments)
                return
            self.recorded[shape] = self._record(arguments)
        graph, places = self.recorded[shape]
        for place, tensor in zip(iter_tensors(places), iter_tensors(arguments), strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()

    def _record(self, arguments: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]:
        places = tuple(argument.to("cuda") for argument in arguments)
        graph = torch.cuda.CUDAGraph()
        if self.pool is None and self.beside is not None:
            self.pool = self.beside.pool
        torch.cuda.synchronize()
        # Of this thread alone: meanwhile another one makes batches, and asks for memory that the device can read.
        with torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream(),
                              capture_error_mode="thread_local"):
            self.work(*places)
        self.pool = graph.pool() if self.pool is None else self.pool
        return graph, places


def iter_tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in dataclasses and sequences, in the order of their fields."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from iter_tensors(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from iter_tensors(part)


def pin_batch(batch: Any) -> Any:
    """The batch in memory that a GPU reads by itself, while Python goes on."""
    if isinstance(batch, Tensor):
        return batch.pin_memory()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **{field.name: pin_batch(getattr(batch, field.name))
                                             for field in dataclasses.fields(batch) if field.init})
    return batch
