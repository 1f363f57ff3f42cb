"""Parameters in two precisions: float32 to be changed by small steps, and a copy with fewer digits to compute with.

Autocast lowers every weight and every input again at each product, and what lies between products stays in float32: in
a step of a Transformer on a GPU that moves more bytes than the products themselves. Here all that is computed in a step
is low, and a step begins by lowering all parameters at once. The gradients of the copy are added to those of the
parameters in float32, so that an optimiser sees nothing of it.

    lowered = Lowered(objective, torch.bfloat16)
    lowered.refresh()            the copy is what the parameters are
    lowered.module(batch)        what computes; after its backward pass
    lowered.give()               its gradients become those of the parameters, where these are zeros or none
    lowered.collect()            its gradients are added to those of the parameters

The parameters of the copy lie in one piece of memory, matrices first, in the order in which the objective has them: so
layers that stand one after another can be multiplied at once (`regard.attention.linear`).

It does not know optimisers, nor when a step begins. `why_not` says why an objective is better left to autocast.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.recurrence.cell import Cell
from regard.recurrence.lstmn import LSTMN
from regard.training.work import Objective

ALIGNED = 16
"""Bytes: where a parameter begins is a multiple of it, as products read so many at a time."""


def why_not(objective: Objective, device: torch.device) -> str | None:
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


class Lowered:
    """A copy of an objective whose parameters have another dtype. Buffers stay as they are."""

    def __init__(self, objective: Objective, dtype: torch.dtype) -> None:
        self.module: nn.Module = copy.deepcopy(objective)
        self.masters: list[Tensor] = list(objective.parameters())
        self.own: list[Tensor] = list(self.module.parameters())
        _lie_together(self.own, dtype)
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


def _lie_together(parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Lower them, and move them into one piece of memory."""
    step = ALIGNED // dtype.itemsize
    order = sorted(parameters, key=lambda parameter: parameter.dim() <= 1)
    sizes = [-(-parameter.numel() // step) * step for parameter in order]
    room = order[0].new_zeros(sum(sizes), dtype=dtype)
    for parameter, place in zip(order, room.split(sizes), strict=True):
        lowered = place[:parameter.numel()].view(parameter.shape)
        parameter.data = lowered.copy_(parameter.data)
