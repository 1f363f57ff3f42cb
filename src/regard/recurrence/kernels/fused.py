"""The `fused` backend: all steps of a scan as one kernel on a GPU, for every cell; Triton writes the machine code.

    forward     project all inputs at once; one launch for all steps, whose programs wait for each other at each step
    backward    the same in reverse; the gradients of the weights are products over all tokens at the end

The kernels are in `steps`; the rules that they follow, in `rules`. Where a batch is too wide for its programs to be on
the device at once, each step is a launch. Rows that end early are read on, as zeros, and leave their state as it is.
The gradient cannot itself be differentiated (`loop` can). This file does not know what a step computes.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import checks
from regard.kernels import launch
from regard.recurrence.cells import CellState
from regard.recurrence.kernels.problem import ScanProblem
from regard.recurrence.kernels.rules import RULES, BPTTRule

if TYPE_CHECKING:
    from regard.recurrence.kernels.triton_scan import ScanLayout


FEW = 8
"""Steps below which the plain loop is as fast."""


def refusal(problem: ScanProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    if type(problem.cell) not in RULES:
        return f"the derivative of a {type(problem.cell).__name__} is not written out"
    if not problem.sizes:
        return "there is no token"
    kind = problem.inputs.device.type
    if kind != "cuda" and not (kind == "cpu" and launch.interpreted()):
        return f"it runs on a CUDA device, and the inputs are on {kind}"
    dtype = _dtype(problem)
    if dtype not in launch.DTYPES or (kind == "cpu" and dtype == torch.bfloat16):  # which cannot be interpreted
        return f"it has no {str(dtype).removeprefix('torch.')} on {kind}"
    if not launch.installed():
        return "triton is not installed"
    if torch.compiler.is_compiling():
        return "torch.compile cannot follow programs that wait for each other"
    return None


def drawback(problem: ScanProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    if problem.inputs.device.type != "cuda":
        return "without a GPU its kernels are interpreted, which is slow"
    if len(problem.sizes) < FEW:
        return f"{len(problem.sizes)} steps are fewer than {FEW}: they do not earn back its preparations"
    if not _layout(problem).resident:
        return "its programs would not be on the device all at once, and each step would be a launch"
    return None


def detail(problem: ScanProblem) -> str:
    """How it goes about it, in a few words."""
    return f"{len(problem.sizes)} steps of {type(problem.cell).__name__} in one kernel"


def run(problem: ScanProblem) -> tuple[Tensor, CellState]:
    """The hidden vector of every token, (tokens, width), and the state of each row after its last one."""
    cell, rows, steps = problem.cell, problem.sizes[0], len(problem.sizes)
    rule = RULES[type(cell)].of(cell)
    projected = cell.project(problem.inputs)
    lengths, index = problem.lengths, None
    if not problem.even:
        lengths, index = _ragged(problem)
        projected = projected.new_zeros(steps * rows, projected.shape[1]).index_copy(0, index, projected)
    # Under autocast the projection decides the precision of the steps.
    given = [tensor.to(projected.dtype) for tensor in (*rule.weights(cell), *problem.state)]
    hidden, *final = _Fused.apply(rule, rows, lengths, problem.training, projected.contiguous(), *given)
    return hidden if index is None else hidden.index_select(0, index), tuple(final)


def _layout(problem: ScanProblem) -> "ScanLayout":
    from regard.recurrence.kernels.triton_scan import ScanLayout

    return ScanLayout.of(problem.sizes[0], problem.cell.width, _dtype(problem), problem.inputs.device)


def _dtype(problem: ScanProblem) -> torch.dtype:
    """The precision of the steps."""
    kind = problem.inputs.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else problem.inputs.dtype


def _ragged(problem: ScanProblem) -> tuple[Tensor, Tensor]:
    """Of rows that end early, how many tokens each has, (rows,), and where tokens stand among steps·rows, (tokens,)."""
    sizes, rows = torch.tensor(problem.sizes), torch.arange(problem.sizes[0])
    there = rows < sizes.unsqueeze(-1)
    device = problem.inputs.device
    return there.sum(0).to(device), there.flatten().nonzero().squeeze(-1).to(device)


class _Fused(torch.autograd.Function):
    """All steps of a cell as one operation."""

    @staticmethod
    def forward(ctx: Any, rule: BPTTRule, rows: int, lengths: Tensor | None, keep: bool, projected: Tensor,
                *given: Tensor) -> tuple[Tensor, ...]:
        from regard.recurrence.kernels.triton_scan import ScanLayout, scan_for

        weights, state = given[:-rule.memories], given[-rule.memories:]
        layout = ScanLayout.of(rows, weights[0].shape[1], projected.dtype, projected.device)
        with torch.autocast(projected.device.type, enabled=False):
            memories, kept = scan_for(rule).forward(layout, projected, weights, state, lengths, keep)
        ctx.rule, ctx.layout, ctx.count, ctx.padded = rule, layout, len(weights), lengths is not None
        ctx.save_for_backward(*weights, *memories, *kept, *([] if lengths is None else [lengths]))
        return memories[0][rows:], *(memory[-rows:].to(projected.dtype, copy=True) for memory in memories)

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor, *d_final: Tensor) -> tuple[Any, ...]:
        from regard.recurrence.kernels.triton_scan import scan_for

        if torch.is_grad_enabled():  # torch would take the gradient for a constant, where nobody asks
            expected = '"loop" where a gradient is differentiated again (create_graph=True)'
            raise checks.wrong("backend", expected, '"fused"')
        saved, memories = list(ctx.saved_tensors), ctx.count + ctx.rule.memories
        lengths = saved.pop() if ctx.padded else None
        with torch.autocast(d_hidden.device.type, enabled=False):
            d_projected, d_weights, d_state = scan_for(ctx.rule).backward(
                ctx.layout, saved[:ctx.count], saved[ctx.count:memories], saved[memories:], lengths,
                d_hidden.contiguous(), d_final)
        return None, None, None, None, d_projected, *d_weights, *d_state
