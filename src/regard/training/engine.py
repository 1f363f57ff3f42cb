"""The engine: one training step, that is the gradients of some batches and one update of the parameters.

    engine.step(number, batches, rate)     loss = Σ over tokens / all tokens of the step, over batches and processes
    engine.read()                          totals of all steps since the last call, and the first non-finite step

Dropout depends on (seed, step, process) alone, so that a step can be repeated exactly. Sums stay on the device until
they are read: on a GPU no step waits for another. Around the optimizer there are

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
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.loss import Loss
from regard.training.optimizer import make_optimizer, set_learning_rate
from regard.training.tasks.interface import Objective, TrainingBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NO_STEP = -1
ALIGNMENT = 16
"""The parameters of a low-precision copy start at multiples of this many bytes, as matrix products load them."""
MAX_GRAPHS = 128
"""Shapes that are captured as CUDA graphs; later ones run eagerly."""


class StepTotals(NamedTuple):
    """Sums over the steps since the last reading, on all processes together."""

    total: float
    """The training loss."""
    nll: float
    """-log p of the labels."""
    tokens: int
    norm: float
    """The norms of the gradients, before clipping."""
    steps: int
    bad: int | None
    """The first step whose loss or gradient was not finite."""


class TrainingEngine:
    """The parameters of an objective, and all that changes with them."""

    def __init__(self, objective: Objective, settings: TrainingConfig, processes: DistributedContext) -> None:
        self.settings, self.processes, self.objective = settings, processes, objective
        self.module = processes.wrap(objective, settings.parallelism)
        self.named_parameters: Mapping[str, nn.Parameter] = dict(objective.model.named_parameters())
        self.parameters = list(self.named_parameters.values())
        self.device = self.parameters[0].device
        self.optimizer = make_optimizer(settings.optimizer, self.named_parameters)
        self.ema = EMA(objective.model, settings.ema_decay) if settings.ema_decay else None
        self.sums = torch.zeros(5, dtype=torch.float64, device=self.device)  # total, nll, tokens, norm, steps
        self.bad = torch.full((), NO_STEP, dtype=torch.int64, device=self.device)
        self.number = torch.zeros((), dtype=torch.int64, device=self.device)
        self.scale = torch.zeros((), device=self.device)
        graphs = self.device.type == "cuda" and processes.count == 1
        low = graphs and settings.precision != "float32" and why_no_low_precision(objective, self.device) is None
        self._low = LowPrecisionCopy(objective, DTYPES[settings.precision]) if low else None
        self._captured: Callable[[Callable[..., None]], Callable[..., None]] = GraphedCallable if graphs else _eager
        self._first_backward = self._next_backward = self._captured(self._backward)
        if isinstance(self._first_backward, GraphedCallable) and self._low is not None:
            self._next_backward = GraphedCallable(self._add_gradients, share_pool=self._first_backward)
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
            set_learning_rate(self.optimizer, rate)
            for index, batch in enumerate(batches):
                with self.processes.gradient_sync(self.module, last=index == len(batches) - 1):
                    (self._next_backward if index else self._first_backward)(batch)
            self._update()
            if self.ema is not None:
                self.ema.update()

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

    def try_batch(self, batch: TrainingBatch) -> None:
        """Compute the gradients of a batch, and discard them."""
        with self._own_stream():
            carried = self.objective.carried()
            with self.processes.gradient_sync(self.module, last=True):
                self._backward(batch)
            self.objective.resume(carried)
            self.optimizer.zero_grad(set_to_none=self._stream is None)
            self.sums.zero_()
        if self._stream is not None:
            self._stream.synchronize()

    def time_steps(self, steps: Iterable[tuple[int, Sequence[TrainingBatch]]], rate: float, *,
                   clock: Callable[[], float], max_seconds: float) -> list[float]:
        """The seconds of each of these steps, until `max_seconds` are over. Their effects are undone.

        At least one step is run. Afterwards parameters, optimizer, EMA, carried state, sums and random state are as
        before, bit for bit.
        """
        seconds: list[float] = []
        first = clock()
        with self._undone():
            for number, batches in steps:
                start = clock()
                self.step(number, batches, rate)
                self.read()  # waits for the device
                seconds.append(clock() - start)
                if self.processes.any(clock() - first > max_seconds):
                    break
        return seconds

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Steps in this block are undone at its end.

        Tensors are overwritten in place, so that CUDA graphs stay valid. Their copies are in the memory of the CPU.
        """
        carried = {name: tensor.clone() for name, tensor in self.objective.carried().items()}
        tensors = [*self.parameters, *self.objective.buffers(), *(self.ema.mean.values() if self.ema else ()),
                   *(tensor for state in self.optimizer.state.values() for tensor in state.values()),
                   self.sums, self.bad, self.number, self.scale]
        copies = [_local(tensor).to("cpu", copy=True) for tensor in tensors]
        known, ema_steps = set(self.optimizer.state), self.ema.steps if self.ema else 0
        with torch.random.fork_rng([]):  # that of a GPU is set at the start of each step
            yield
        with torch.no_grad():
            for tensor, before in zip(tensors, copies, strict=True):
                _local(tensor).copy_(before)
            for parameter in [one for one in self.optimizer.state if one not in known]:
                if self._stream is None:
                    del self.optimizer.state[parameter]
                else:
                    for tensor in self.optimizer.state[parameter].values():
                        tensor.zero_()  # as before the first step of Adam
        if self.ema is not None:
            self.ema.steps = ema_steps
        self.objective.resume(carried)

    @torch.no_grad()
    def mean_loss(self, batches: Iterable[TrainingBatch]) -> float:
        """The mean of -log p of the labels of these batches, computed by all processes together."""
        nll, tokens = 0.0, 0
        for batch in batches:
            with self._autocast():
                loss = self.module(batch.to(self.device))
            nll, tokens = nll + float(loss.nll), tokens + int(loss.tokens)
        return nll / max(1, tokens)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the EMA of its weights, if there is one; afterwards its own again."""
        with contextlib.nullcontext() if self.ema is None else self.ema.applied():
            yield

    @property
    def sharded(self) -> bool:
        """Whether each process holds a shard of the parameters."""
        return self.processes.count > 1 and self.settings.parallelism == "fsdp"

    def memory(self) -> int:
        """The peak memory in bytes: that of the GPU, or else of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Work runs on a CUDA stream of our own, after all earlier work of the default stream and before all later.

        So the default stream always sees parameters and sums as the last step left them.
        """
        if self._stream is None:
            yield
            return
        default = torch.cuda.default_stream()
        self._stream.wait_stream(default)
        with torch.cuda.stream(self._stream):
            yield
        default.wait_stream(self._stream)

    def _backward(self, batch: TrainingBatch) -> None:
        """Compute the gradients of the first batch of a step; without a low-precision copy, of any batch."""
        if self._low is None:
            batch = batch.to(self.device)
            with self._autocast():
                loss = self.module(batch)
            (loss.total * self.scale).backward()
            self._add_loss(loss)
        else:
            self._add_loss(self._low_backward(self._low, batch))
            self._low.copy_gradients()

    def _add_gradients(self, batch: TrainingBatch) -> None:
        """Add the gradients of a later batch, by the low-precision copy."""
        assert self._low is not None, "autograd adds gradients by itself without one"
        self._add_loss(self._low_backward(self._low, batch))
        self._low.add_gradients()

    def _low_backward(self, low: "LowPrecisionCopy", batch: TrainingBatch) -> Loss:
        """Forward and backward pass of the low-precision copy."""
        low.refresh()
        loss: Loss = low.module.train(self.module.training)(batch.to(self.device))
        (loss.total * self.scale).backward()
        return loss

    def _add_loss(self, loss: Loss) -> None:
        with torch.no_grad():
            self.sums[0] += loss.total.detach()
            self.sums[1] += loss.nll
            self.sums[2] += loss.tokens

    def _autocast(self) -> torch.autocast:
        """Autocast to the precision of the settings, without a cache, which CUDA graphs cannot share."""
        return torch.autocast(self.device.type, DTYPES[self.settings.precision],
                              enabled=self.settings.precision != "float32", cache_enabled=False)

    def _update(self) -> None:
        """Update the parameters. A CUDA graph does not know parameters that got their first gradient after it."""
        used = sum(parameter.grad is not None for parameter in self.parameters)
        if used not in self._updates:
            self._updates[used] = self._captured(self._update_parameters)
        self._updates[used]()

    def _update_parameters(self) -> None:
        """Clip the gradients, step the optimizer, and reset the gradients."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = _full_norm(nn.utils.get_total_norm(gradients))
        if self.settings.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.max_grad_norm, norm)
        with torch.no_grad():
            self.sums[3] += norm
            self.sums[4] += 1
            finite = norm.isfinite() & self.sums[0].isfinite()
            self.bad.copy_(torch.where(finite | (self.bad != NO_STEP), self.bad, self.number))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self._stream is None)


def _local(tensor: Tensor) -> Tensor:
    """The shard of this process, if the tensor is sharded."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _eager(function: Callable[..., None]) -> Callable[..., None]:
    return function


def _full_norm(norm: Tensor) -> Tensor:
    """The norm over all processes, if the gradients are sharded."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


class EMA:
    """The exponential moving average of a model's parameters, in float32 on their device.

        a_s = d a_{s-1} + (1 - d) w_s,      d = min(decay, (1 + s) / (10 + s))

    At first d is smaller, so that the random initialization is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        checks.probability("decay", decay)
        self.decay, self.steps = decay, 0
        self.model = model
        self.mean = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Average in the present parameters."""
        self.steps += 1
        weight = 1.0 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        parameters = [parameter.detach().float() for _, parameter in self.model.named_parameters()]
        torch._foreach_lerp_(list(self.mean.values()), parameters, weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average as its parameters; afterwards its own again."""
        parameters = dict(self.model.named_parameters())
        own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        self._write(parameters, self.mean)
        try:
            yield
        finally:
            self._write(parameters, own)

    def state(self) -> dict[str, Tensor]:
        """The average and the number of its steps, for a checkpoint."""
        return {**self.mean, "steps": torch.tensor(self.steps)}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Restore a stored state; that of another model is refused and changes nothing."""
        missing = [name for name in self.state() if name not in state]
        if missing:
            raise checks.wrong("state", f"the EMA of this model, with {missing[0]!r}",
                               f"one with {checks.plural(len(state), 'other tensor')}")
        unexpected = [name for name in state if name not in self.state()]
        if unexpected:
            raise checks.wrong("state", "the EMA of this model",
                               f"one with {unexpected[0]!r}, which the model does not have")
        for name, mean in self.mean.items():
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


def why_no_low_precision(objective: Objective, device: torch.device) -> str | None:
    """Why autocast is used for an objective, and no low-precision copy; None if a copy can be used."""
    if device.type != "cuda":
        return "only a GPU gains from it"
    if type(objective).carried is not Objective.carried:
        return "the state that is carried from step to step has its own precision"
    if any(isinstance(module, Cell | LSTMN) for module in objective.modules()):
        return "the states of a recurrence accumulate over many steps"
    if any(parameter.dtype != torch.float32 for parameter in objective.parameters()):
        return "its parameters are not all float32"
    return None


class LowPrecisionCopy:
    """A copy of an objective with parameters of lower precision, which computes the gradients. Buffers stay.

    Autocast casts every weight and input again at each product, and keeps activations between products in float32: in
    a Transformer step on a GPU that moves more bytes than the products themselves. Here everything in a step has the
    lower precision, and all parameters are cast at once. Gradients are added to those of the parameters in float32, so
    that the optimizer does not notice.

        low.refresh()            copy the parameters
        low.module(batch)        forward and backward pass
        low.copy_gradients()     to the parameters, for the first batch of a step
        low.add_gradients()      to those of the parameters, for later batches

    The parameters of the copy are contiguous in memory, matrices first, in the order of the objective: so layers that
    stand one after another can be multiplied at once (`regard.kernels.linear`).
    """

    def __init__(self, objective: Objective, dtype: torch.dtype) -> None:
        self.module: nn.Module = copy.deepcopy(objective)
        self.masters: list[Tensor] = list(objective.parameters())
        self.copies: list[Tensor] = list(self.module.parameters())
        _pack_parameters(self.copies, dtype)
        self.buffers = [torch.zeros_like(master) for master in self.masters]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters, and clear the gradients of the copy."""
        torch._foreach_copy_(self.copies, self.masters)
        for parameter in self.copies:
            parameter.grad = None

    @torch.no_grad()
    def copy_gradients(self) -> None:
        """Move the gradients of the copy to the parameters. Parameters without a new gradient keep theirs."""
        used = [(master, low) for master, low in zip(self.masters, self.copies, strict=True) if low.grad is not None]
        for master, _ in used:
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
        torch._foreach_copy_([master.grad for master, _ in used if master.grad is not None],
                             [low.grad for _, low in used if low.grad is not None])
        for _, low in used:
            low.grad = None

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the gradients of the copy to those of the parameters."""
        used = [(master, buffer, low) for master, buffer, low
                in zip(self.masters, self.buffers, self.copies, strict=True) if low.grad is not None]
        wide = [buffer for _, buffer, _ in used]
        torch._foreach_copy_(wide, [low.grad for _, _, low in used if low.grad is not None])
        sums = [torch.zeros_like(master) if master.grad is None else master.grad for master, _, _ in used]
        torch._foreach_add_(sums, wide)
        for (master, _, low), total in zip(used, sums, strict=True):
            master.grad, low.grad = total, None


def _pack_parameters(parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Cast the parameters, and move them into one contiguous tensor."""
    step = ALIGNMENT // dtype.itemsize
    order = sorted(parameters, key=lambda parameter: parameter.dim() <= 1)
    sizes = [-(-parameter.numel() // step) * step for parameter in order]
    storage = order[0].new_zeros(sum(sizes), dtype=dtype)
    for parameter, part in zip(order, storage.split(sizes), strict=True):
        cast = part[:parameter.numel()].view(parameter.shape)
        parameter.data = cast.copy_(parameter.data)


class GraphedCallable:
    """A function of tensors that is captured as a CUDA graph for each shape of its arguments, and then replayed.

    A step of a small model is thousands of small kernels, which a GPU runs faster than Python can launch them. A CUDA
    graph launches them all. It reads its arguments from fixed tensors, into which new ones are copied, so the function
    must write its results into tensors that live elsewhere, and must never read a number from the device.

    The first call of a shape runs eagerly, which also initializes libraries. The second is captured and replayed.

    Args:
        share_pool: another callable whose memory pool is used too; the two must not be replayed at the same time.
    """

    def __init__(self, function: Callable[..., None], share_pool: "GraphedCallable | None" = None) -> None:
        self.function, self.share_pool = function, share_pool
        self.seen: set[Any] = set()
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]] = {}
        self.pool: Any = None

    def __call__(self, *arguments: Any) -> None:
        shape = tuple((tuple(tensor.shape), tensor.dtype) for tensor in iter_tensors(arguments))
        if shape not in self.graphs:
            if shape not in self.seen or len(self.graphs) >= MAX_GRAPHS:
                self.seen.add(shape)
                self.function(*arguments)
                return
            self.graphs[shape] = self._capture(arguments)
        graph, inputs = self.graphs[shape]
        for buffer, tensor in zip(iter_tensors(inputs), iter_tensors(arguments), strict=True):
            buffer.copy_(tensor, non_blocking=True)
        graph.replay()

    def _capture(self, arguments: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]:
        inputs = tuple(argument.to("cuda") for argument in arguments)
        graph = torch.cuda.CUDAGraph()
        if self.pool is None and self.share_pool is not None:
            self.pool = self.share_pool.pool
        torch.cuda.synchronize()
        # Only this thread is captured: meanwhile another one prefetches batches and allocates pinned memory.
        with torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream(),
                              capture_error_mode="thread_local"):
            self.function(*inputs)
        self.pool = graph.pool() if self.pool is None else self.pool
        return graph, inputs


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
    """The batch in pinned memory, from which a GPU copies asynchronously."""
    if isinstance(batch, Tensor):
        return batch.pin_memory()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **{field.name: pin_batch(getattr(batch, field.name))
                                             for field in dataclasses.fields(batch) if field.init})
    return batch
