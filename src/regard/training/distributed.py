"""Several processes that train one model together: DDP and FSDP.

    with DistributedContext.joined() as processes:      as `torchrun` has started this process; alone otherwise
        device = processes.device("cuda")               each process has a GPU of its own
        module = processes.share(objective, "ddp")
        with processes.gradients_of(module, last=True):
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
"""How long processes wait for each other: one may have a lot to do alone. If one of them ends, `torchrun` ends all."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class DistributedContext:
    """All processes, as one of them sees them."""

    rank: int
    """The number of this one, from 0."""
    count: int
    local: int
    """The number of this one on its machine, from 0."""

    @staticmethod
    def alone() -> "DistributedContext":
        """One process."""
        return DistributedContext(0, 1, 0)

    @classmethod
    @contextmanager
    def joined(cls) -> Iterator["DistributedContext"]:
        """All processes that were started together, as the environment tells."""
        if "RANK" not in os.environ or _environment_number("WORLD_SIZE") == 1:
            yield cls.alone()
            return
        processes = cls(_environment_number("RANK"), _environment_number("WORLD_SIZE"), _environment_number("LOCAL_RANK"))
        nvidia = torch.cuda.is_available() and distributed.is_nccl_available()
        distributed.init_process_group("cpu:gloo,cuda:nccl" if nvidia else "gloo", timeout=TIMEOUT)
        yield processes
        # Not after an error: the others are not here to part from, and must see this process end.
        processes.barrier()
        gc.collect()  # what still holds the group would keep its threads, and those end a process that leaves them
        distributed.destroy_process_group()

    @property
    def main(self) -> bool:
        """Whether this is the one that speaks and writes for all."""
        return self.rank == 0

    def device(self, asked: str | None = None) -> torch.device:
        """The device of this process: "cpu", "cuda", "cuda:1" for one process alone; the best there is where None."""
        try:
            device = torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
        except RuntimeError:
            raise checks.wrong("device", 'such as "cpu", "cuda" or "cuda:0"', repr(asked)) from None
        if device.type != "cuda":
            return device
        if device.index is not None and self.count > 1:
            raise checks.wrong("device", '"cuda": each of the processes has a GPU of its own', repr(asked))
        index, there = self.local if device.index is None else device.index, torch.cuda.device_count()
        if not there:
            raise checks.wrong("device", "one that this machine has", repr(asked), "torch finds no GPU; take cpu.")
        if index >= there:
            raise checks.wrong("device", f"one of the {there} GPUs of this machine", f"number {index}, from 0",
                               "Start at most one process a GPU." if self.count > 1 else "")
        torch.cuda.set_device(index)
        return torch.device("cuda", index)

    def sum(self, number: Number) -> Number:
        """The sum of the numbers of all processes."""
        if self.count == 1:
            return number
        total = torch.tensor(number, dtype=torch.int64 if isinstance(number, int) else torch.float64)
        distributed.all_reduce(total)
        return type(number)(total.item())

    def any(self, true: bool) -> bool:
        """Whether it is true on one process at least."""
        return self.sum(int(true)) > 0

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.sum(0)

    def told(self, value: Any) -> Any:
        """What the main process has; of the others nothing is asked. It must be something that JSON can hold."""
        return value if self.count == 1 else json.loads(self._text(json.dumps(value), 0))

    def same(self, text: str, name: str = "config") -> None:
        """Refuse, on all processes, a text that is not the same on all."""
        other = self._first(text != self.told(text))
        if other is None:
            return
        lines = [self._text(text, rank).split("\n") for rank in (0, other)]
        here, there = next(pair for pair in zip_longest(*lines, fillvalue="nothing more") if pair[0] != pair[1])
        raise checks.wrong(name, "the same on all processes", f"another on process {other}",
                           f"There it says {there!r}, and {here!r} on process 0.")

    def share(self, objective: Objective, sharing: str) -> nn.Module:
        """The objective as a module of all processes, whose gradients are the mean over them: use it in its place.

        The parameters are those of the main process. With "fsdp" the objective itself is changed: its parameters are
        tensors of all processes (DTensor), and each holds a part.
        """
        shared = checks.pick("sharing", sharing, WRAPPERS)
        return objective if self.count == 1 else shared(objective)

    @contextmanager
    def gradients_of(self, module: nn.Module, *, last: bool) -> Iterator[None]:
        """Inside, forward and backward pass of one of the batches of a step; with the last the gradients are shared."""
        if isinstance(module, DistributedDataParallel):
            with contextlib.nullcontext() if last else module.no_sync():
                yield
            return
        if self.count > 1:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(module, FSDPModule), "`share` has made it"
            module.set_requires_gradient_sync(last)
        yield

    def _first(self, true: bool) -> int | None:
        """The first process on which it is true, if there is one."""
        if self.count == 1:
            return 0 if true else None
        first = torch.tensor(self.rank if true else self.count)
        distributed.all_reduce(first, distributed.ReduceOp.MIN)
        return int(first) if first < self.count else None

    def _text(self, text: str, rank: int) -> str:
        """The text of one of the processes."""
        own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        length = torch.tensor(len(own))
        distributed.broadcast(length, rank)
        given = own if rank == self.rank else own.new_empty(int(length))
        distributed.broadcast(given, rank)
        return given.numpy().tobytes().decode()


def _wrap_ddp(objective: Objective) -> nn.Module:
    objective.register_forward_hook(_GradientAnchor.of(objective))
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # since torch 2.13
    constant: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return DistributedDataParallel(objective, gradient_as_bucket_view=True, **constant)


def _wrap_fsdp(objective: Objective) -> nn.Module:
    """Blocks are put together one after another; all else, such as embeddings and the output layer, at the beginning.

    Tied weights lie outside of blocks, and so in one part.
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
        for method in ("start", "step"):  # which a text that goes on from batch to batch is read with
            register_fsdp_forward_method(block, method)
    fully_shard(objective, mesh=mesh)
    return objective


WRAPPERS: dict[str, Callable[[Objective], nn.Module]] = {"ddp": _wrap_ddp, "fsdp": _wrap_fsdp}


class _GradientAnchor:
    """A hook that gives all parameters and inputs of a module a gradient, of zeros where there is no other.

    A process must not wait for a gradient that another does not have because its batch is empty, or its texts short.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    @staticmethod
    def of(module: nn.Module, without: Set[nn.Parameter] = frozenset()) -> "_GradientAnchor":
        """The hook for a module, for all of its parameters but some."""
        return _GradientAnchor(tuple(name for name, one in module.named_parameters() if one not in without))

    def __call__(self, module: nn.Module, given: tuple[Any, ...], result: Any) -> Any:
        """What the module gives, or the first of what it gives, with all that it should depend on."""
        if not torch.is_grad_enabled():
            return result
        anchors: list[Tensor] = [module.get_parameter(name) for name in self.names]
        anchors += [one for one in given if isinstance(one, Tensor) and one.requires_grad]
        if isinstance(result, Tensor):
            return _AnchorFunction.apply(result, *anchors)
        if isinstance(result, Loss):
            return result._replace(total=_AnchorFunction.apply(result.total, *anchors))
        return (_AnchorFunction.apply(result[0], *anchors), *result[1:])

    def method(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same for another method than forward."""
        return lambda *given, **named: self(module, given, method(*given, **named))


class _AnchorFunction(torch.autograd.Function):
    """Its first argument as it is, which from then on depends on the others too, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *anchors: Tensor) -> Tensor:
        ctx.anchors = [(anchor.shape, anchor.dtype) for anchor in anchors]
        return result.detach()  # not a view: FSDP hangs what it does on what comes out of a module

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        zero = upstream[0].new_zeros(())
        return (upstream[0], *(zero.to(dtype).expand(shape) for shape, dtype in ctx.anchors))


def _environment_number(name: str) -> int:
    """A number that `torchrun` tells its processes."""
    value = os.environ.get(name, "")
    if not value.isdecimal():
        raise checks.wrong(name, "a number in the environment, where RANK is set", repr(value),
                           "Start several processes with torchrun, or unset RANK.")
    return int(value)
