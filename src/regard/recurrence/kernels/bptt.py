"""The `bptt` backend: back-propagation through time written out; autograd records one operation, not ten a step.

    forward     project all inputs at once; then step after step into storage that is made once
    backward    the steps in reverse; the gradients of the weights are one product over all tokens at the end

The steps of each cell and their derivatives are in `rules`. The gradient cannot itself be differentiated (`loop` can).

Rules know no padding. Where rows end early and are read on, their h is taken from the step of their last token, and the
gates of the LSTM are closed from there on, so that c stays: i = σ(-∞) = 0, f = σ(∞) = 1, both with a gradient of 0.
"""

from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.recurrence.cells import CellState, LSTMCell, RNNCell
from regard.recurrence.kernels.problem import ScanProblem
from regard.recurrence.kernels.rules import RULES, BPTTRule

FEW = 32
"""Steps below which, without gradients to come, the plain loop is as fast."""


def refusal(problem: ScanProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    if type(problem.cell) not in RULES:
        return f"the derivative of a {type(problem.cell).__name__} is not written out"
    if problem.lengths is not None and isinstance(problem.cell, RNNCell) and problem.cell.activation == "linear":
        return "after the end of a row the state of a linear cell may grow beyond all bounds"
    return None


def drawback(problem: ScanProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    if not problem.sizes:
        return "there is no token"
    if not problem.training and len(problem.sizes) < FEW:
        return f"{len(problem.sizes)} steps without a gradient are fewer than {FEW}: the plain loop is as fast"
    return None


def detail(problem: ScanProblem) -> str:
    """How it goes about it, in a few words."""
    return f"{len(problem.sizes)} steps of {type(problem.cell).__name__}, their backward written out"


def run(problem: ScanProblem) -> tuple[Tensor, CellState]:
    """The hidden vector of every token, (tokens, width), and the state of each row after its last one."""
    cell = problem.cell
    rule = RULES[type(cell)].of(cell)
    projected = cell.project(problem.inputs)
    if not problem.sizes:
        return projected[:, :cell.width], problem.state
    if problem.lengths is not None and isinstance(cell, LSTMCell):
        projected = _closed(projected, problem.absent)
    # Under autocast the projection decides the precision of the steps.
    given = [tensor.to(projected.dtype) for tensor in (*rule.weights(cell), *problem.state)]
    hidden, *final = _ThroughTime.apply(rule, problem.sizes, problem.training, projected, *given)
    return hidden, tuple(final) if problem.lengths is None else (problem.ended(hidden), *final[1:])


def _closed(projected: Tensor, absent: Tensor) -> Tensor:
    """The inputs of an LSTM's gates (tokens, 4 widths), in the order i, f, o, g, of which some leave c as it is."""
    i, f, rest = projected.split([projected.shape[-1] // 4, projected.shape[-1] // 4, projected.shape[-1] // 2], -1)
    return torch.cat([i.masked_fill(absent, -torch.inf), f.masked_fill(absent, torch.inf), rest], -1)


class _ThroughTime(torch.autograd.Function):
    """All steps of a cell as one operation."""

    @staticmethod
    def forward(ctx: Any, rule: BPTTRule, sizes: tuple[int, ...], keep: bool, projected: Tensor,
                *given: Tensor) -> tuple[Tensor, ...]:
        weights, state = given[:-rule.memories], given[-rule.memories:]
        with torch.autocast(projected.device.type, enabled=False):
            hidden, final, kept = rule.forward(projected, weights, state, sizes, keep)
        ctx.rule, ctx.sizes, ctx.count = rule, sizes, len(weights)
        ctx.save_for_backward(*given, hidden, *kept)
        return hidden, *final

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor, *d_final: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # torch would take the gradient for a constant, where nobody asks
            expected = '"loop" where a gradient is differentiated again (create_graph=True)'
            raise checks.wrong("backend", expected, '"bptt"')
        saved = ctx.saved_tensors
        given = ctx.count + ctx.rule.memories
        weights, state, hidden, kept = saved[:ctx.count], saved[ctx.count:given], saved[given], saved[given + 1:]
        with torch.autocast(hidden.device.type, enabled=False):
            d_projected, d_weights, d_state = ctx.rule.backward(
                weights, state, hidden, kept, ctx.sizes, d_hidden, [gradient.clone() for gradient in d_final])
        return None, None, None, d_projected, *d_weights, *d_state
