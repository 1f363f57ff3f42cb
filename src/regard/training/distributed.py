"""Several processes that train one model together: DDP and FSDP.

    with DistributedContext.joined() as processes:      as `torchrun` has started this process; alone otherwise
        device = processes.device("cuda")               each process has a GPU of its own
        module = processes.wrap(objective, "ddp")
        with processes.gradient_sync(module, last=True):
            (module(batch).total * processes.count / processes.sum(batch.tokens)).backward()

Every process learns from batches of its own, and after the last batch of a step all have the mean gradient over the
processes, so a loss that is a sum is multiplied by their number. Parameters are either

    ddp            whole on every process (DistributedDataParallel)
    fsdp           split evenly over the processes (FSDP2): a block is gathered while it computes

All processes take part in every collective, even one whose batch is empty. Numbers and texts go over the CPU (gloo), so
that no GPU is waited for. Optimizers and the origin of batches are not known here.
"""

import contextlib
import gc
import inspect
import json
import os
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from regard import checks
from regard.blocks.block import Block
from regard.training.loss import Loss
from regard.training.tasks.interface import Objective

TIMEOUT = timedelta(days=1)
"""Of collectives: one process may validate for hours. If a process dies, `torchrun` ends all."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class DistributedContext:
    """All processes of a training, seen from one of them."""

    rank: int
    """The number of this process, from 0."""
    count: int
    local_rank: int
    """The number of this process on its machine, from 0."""

    @staticmethod
    def alone() -> "DistributedContext":
        """A single process."""
        return DistributedContext(0, 1, 0)

    @classmethod
    @contextmanager
    def joined(cls) -> Iterator["DistributedContext"]:
        """Join the processes that `torchrun` has started, by its environment variables."""
        if "RANK" not in os.environ or _environment_number("WORLD_SIZE") == 1:
            yield cls.alone()
            return
        processes = cls(*map(_environment_number, ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
        nvidia = torch.cuda.is_available() and distributed.is_nccl_available()
        distributed.init_process_group("cpu:gloo,cuda:nccl" if nvidia else "gloo", timeout=TIMEOUT)
        yield processes
        # Not after an error: the others are not waiting here, and must see this process end.
        processes.barrier()
        gc.collect()  # references to the group would keep its threads alive, which abort the process at exit
        distributed.destroy_process_group()

    @property
    def main(self) -> bool:
        """Whether this is the process that reports and writes for all."""
        return self.rank == 0

    def device(self, requested: str | None = None) -> torch.device:
        """The device of this process: "cpu", "cuda", for a single process also "cuda:1"; by default the best one."""
        try:
            device = torch.device(requested or ("cuda" if torch.cuda.is_available() else "cpu"))
        except RuntimeError:
            raise checks.wrong("device", 'such as "cpu", "cuda" or "cuda:0"', repr(requested)) from None
        if device.type != "cuda":
            return device
        if device.index is not None and self.count > 1:
            raise checks.wrong("device", '"cuda": each of the processes has a GPU of its own', repr(requested))
        index, count = self.local_rank if device.index is None else device.index, torch.cuda.device_count()
        if not count:
            raise checks.wrong("device", "one that this machine has", repr(requested),
                               "torch finds no GPU here: use cpu.")
        if index >= count:
            raise checks.wrong("device", f"one of the {count} GPUs of this machine", f"number {index}, from 0",
                               "Start at most one process per GPU." if self.count > 1 else "")
        torch.cuda.set_device(index)
        return torch.device("cuda", index)

    def sum(self, number: Number) -> Number:
        """The sum of a number over all processes."""
        if self.count == 1:
            return number
        total = torch.tensor(number, dtype=torch.int64 if isinstance(number, int) else torch.float64)
        distributed.all_reduce(total)
        return type(number)(total.item())

    def any(self, true: bool) -> bool:
        """Whether it is true on at least one process."""
        return self.sum(int(true)) > 0

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.sum(0)

    def broadcast(self, value: Any) -> Any:
        """The value of the main process, which must be JSON; values of other processes are ignored."""
        return value if self.count == 1 else json.loads(self._broadcast_text(json.dumps(value), 0))

    def check_same(self, text: str, name: str = "config") -> None:
        """Raise a ValueError on all processes if a text differs between them."""
        other = self._first_true(text != self.broadcast(text))
        if other is None:
            return
        lines = [self._broadcast_text(text, rank).split("\n") for rank in (0, other)]
        here, there = next(pair for pair in zip_longest(*lines, fillvalue="nothing more") if pair[0] != pair[1])
        raise ValueError(f"The {name} differs between processes: {there!r} on process {other}, {here!r} on process 0. "
                         "Start all processes with the same arguments and the same data.")

    def wrap(self, objective: Objective, parallelism: str) -> nn.Module:
        """The objective wrapped in DDP or FSDP, with the parameters of the main process.

        With "fsdp" the objective itself is changed: its parameters become DTensors.
        """
        wrapper = checks.pick("parallelism", parallelism, WRAPPERS)
        return objective if self.count == 1 else wrapper(objective)

    @contextmanager
    def gradient_sync(self, module: nn.Module, *, last: bool) -> Iterator[None]:
        """For forward and backward pass of one batch of a step; the last batch synchronizes the gradients."""
        if isinstance(module, DistributedDataParallel):
            with contextlib.nullcontext() if last else module.no_sync():
                yield
            return
        if self.count > 1:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(module, FSDPModule), "`wrap` has made it"
            module.set_requires_gradient_sync(last)
        yield

    def _first_true(self, true: bool) -> int | None:
        """The first process on which it is true, if there is one."""
        if self.count == 1:
            return 0 if true else None
        first = torch.tensor(self.rank if true else self.count)
        distributed.all_reduce(first, distributed.ReduceOp.MIN)
        return int(first) if first < self.count else None

    def _broadcast_text(self, text: str, rank: int) -> str:
        """The text of one process."""
        own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        length = torch.tensor(len(own))
        distributed.broadcast(length, rank)
        received = own if rank == self.rank else own.new_empty(int(length))
        distributed.broadcast(received, rank)
        return received.numpy().tobytes().decode()


def _wrap_ddp(objective: Objective) -> nn.Module:
    objective.register_forward_hook(_GradientAnchor.of(objective))
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # since torch 2.13
    constant: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return DistributedDataParallel(objective, gradient_as_bucket_view=True, **constant)


def _wrap_fsdp(objective: Objective) -> nn.Module:
    """FSDP with one unit per block; all else, such as embeddings and the output layer, is gathered at the start.

    Tied weights are outside of blocks, and so in one unit.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for tensor in (*objective.parameters(), *objective.buffers()):
        distributed.broadcast(tensor.detach(), 0)
    device = next(objective.parameters()).device
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    blocks = [module for module in objective.modules() if isinstance(module, Block)]
    inside = {parameter for block in blocks for parameter in block.parameters()}
    objective.register_forward_hook(_GradientAnchor.of(objective, inside))
    for block in blocks:
        anchored = _GradientAnchor.of(block)
        block.register_forward_hook(anchored)
        block.step = anchored.method(block, block.step)  # type: ignore[method-assign]
        fully_shard(block, mesh=mesh)
        for method in ("start", "step"):  # used with a state that is carried from batch to batch
            register_fsdp_forward_method(block, method)
    fully_shard(objective, mesh=mesh)
    return objective


WRAPPERS: dict[str, Callable[[Objective], nn.Module]] = {"ddp": _wrap_ddp, "fsdp": _wrap_fsdp}


class _GradientAnchor:
    """A forward hook that makes the output depend on all parameters and inputs of a module, with zero gradients.

    A process must not wait for a gradient that another does not have because its batch is empty or its texts short.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    @staticmethod
    def of(module: nn.Module, without: Set[nn.Parameter] = frozenset()) -> "_GradientAnchor":
        """The hook for a module, for all parameters except those of `without`."""
        return _GradientAnchor(tuple(name for name, one in module.named_parameters() if one not in without))

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> Any:
        """The result, or its first element, made dependent on the anchors."""
        if not torch.is_grad_enabled():
            return result
        anchors: list[Tensor] = [module.get_parameter(name) for name in self.names]
        anchors += [argument for argument in arguments if isinstance(argument, Tensor) and argument.requires_grad]
        if isinstance(result, Tensor):
            return _AnchorFunction.apply(result, *anchors)
        if isinstance(result, Loss):
            return result._replace(total=_AnchorFunction.apply(result.total, *anchors))
        return (_AnchorFunction.apply(result[0], *anchors), *result[1:])

    def method(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same for a method other than forward."""
        return lambda *arguments, **named: self(module, arguments, method(*arguments, **named))


class _AnchorFunction(torch.autograd.Function):
    """Returns its first argument, which then depends on the others too, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *anchors: Tensor) -> Tensor:
        ctx.anchors = [(anchor.shape, anchor.dtype) for anchor in anchors]
        return result.detach()  # not a view: FSDP registers its hooks on the outputs of a module

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        zero = upstream[0].new_zeros(())
        return (upstream[0], *(zero.to(dtype).expand(shape) for shape, dtype in ctx.anchors))


def _environment_number(name: str) -> int:
    """A number that `torchrun` passes in the environment."""
    value = os.environ.get(name, "")
    if not value.isdecimal():
        raise checks.wrong(name, "a number in the environment if RANK is set", repr(value),
                           "Start several processes with torchrun, or unset RANK.")
    return int(value)
