"""The `loop` backend: the definition itself. The inputs of all steps are projected at once, then it is step after step.

It takes every cell, also a user's own, and every transform that torch has: autograd records each operation.
"""

import torch
from torch import Tensor

from regard.recurrence.cells import CellState
from regard.recurrence.kernels.problem import ScanProblem


def refusal(problem: ScanProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    return None


def drawback(problem: ScanProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    return None


def detail(problem: ScanProblem) -> str:
    """How it goes about it, in a few words."""
    return f"{len(problem.sizes)} steps of {type(problem.cell).__name__}, recorded one by one"


def run(problem: ScanProblem) -> tuple[Tensor, CellState]:
    """The hidden vector of every token, (tokens, width), and the state of each row after its last one."""
    cell, state = problem.cell, problem.state
    projected = cell.project(problem.inputs)
    hidden, ended = [], []
    for step, now in enumerate(projected.split(problem.sizes)):
        if len(now) < len(state[0]):  # rows that have ended keep their state
            ended.append([memory[len(now):] for memory in state])
            state = tuple(memory[:len(now)] for memory in state)
        following = cell.advance(now, state)
        if problem.lengths is not None:
            there = (problem.lengths > step).unsqueeze(-1)
            following = tuple(torch.where(there, new, old.to(new.dtype))
                              for new, old in zip(following, state, strict=True))
        state = following
        hidden.append(state[0])
    if not hidden:
        return projected[:, :cell.width], state
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *ended[::-1], strict=True))
    return torch.cat(hidden), state
