"""The `native` backend: torch's own fused scans (oneDNN, cuDNN), where they compute the same function.

    LSTM, RNN with tanh, GRU with reset="after"        their weights go over in torch's order, at each call

On a CPU only the LSTM in float32 without padding has a fused backward; the others are recorded step by step, and `bptt`
is faster. Rows that end early are torch's packed sequences.

Where they are read on instead (the problem has lengths), h is taken from the step of their last token. Of an LSTM torch
gives c after the last step alone: more columns of the input say that a row has ended, and close its gates by weights
beside which the others do not count, i = σ(-LARGE) = 0 and f = σ(LARGE) = 1, so that c stays to the end.
"""

from typing import Any

import torch
from torch import Tensor

from regard.recurrence.cells import CellState, LSTMCell, RNNCell, torch_weights, why_not_torch
from regard.recurrence.kernels.problem import ScanProblem

FEW = 16
"""Steps below which, on a CPU, putting the weights in order (torch's, then oneDNN's) costs more than they gain."""

LARGE = 4096.0
"""A weight. COLUMNS of it are within every precision, and their exponential is beyond it."""
COLUMNS = 8
"""That say that a row has ended. One would do, but tensor cores want widths that 8 divides."""


def refusal(problem: ScanProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    return why_not_torch(problem.cell) if problem.sizes else "there is no token"


def drawback(problem: ScanProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    kind = problem.inputs.device.type
    if kind != "cpu":
        return None
    if torch.is_autocast_enabled(kind):
        return "on a CPU it does not follow autocast"
    if len(problem.sizes) < FEW:
        return f"{len(problem.sizes)} steps are fewer than {FEW}: they do not earn back the reordering of the weights"
    fused = isinstance(problem.cell, LSTMCell) and problem.even and problem.inputs.dtype == torch.float32
    if problem.training and not fused:
        return "on a CPU only the backward of an LSTM in float32, with rows of one length, is fused"
    return None


def detail(problem: ScanProblem) -> str:
    """How it goes about it, in a few words."""
    return f"torch's {type(problem.cell).__name__} over {len(problem.sizes)} steps"


def run(problem: ScanProblem) -> tuple[Tensor, CellState]:
    """The hidden vector of every token, (tokens, width), and the state of each row after its last one."""
    cell, inputs = problem.cell, problem.inputs
    scans: Any = torch._VF  # the functions under nn.LSTM, nn.GRU and nn.RNN, which take the weights as arguments
    weights = torch_weights(cell)
    if problem.lengths is not None and isinstance(cell, LSTMCell):
        inputs = torch.cat([inputs, problem.absent.to(inputs.dtype).expand(-1, COLUMNS)], -1)
        weights[0] = torch.cat([weights[0], _closing(weights[0], cell.width)], -1)
    scan = scans.lstm if isinstance(cell, LSTMCell) else scans.rnn_tanh if isinstance(cell, RNNCell) else scans.gru
    before = [memory.unsqueeze(0).contiguous() for memory in problem.state]
    start = before if isinstance(cell, LSTMCell) else before[0]
    # Biases, one layer, no dropout, one direction.
    rest = (_together(weights), True, 1, 0.0, problem.training, False)
    if problem.even:
        hidden, *final = scan(inputs.unflatten(0, (len(problem.sizes), problem.sizes[0])), start, *rest, False)
        hidden = hidden.flatten(0, 1)
    else:
        hidden, *final = scan(inputs, torch.tensor(problem.sizes), start, *rest)
    state = tuple(memory.squeeze(0) for memory in final)
    return hidden, state if problem.lengths is None else (problem.ended(hidden), *state[1:])


def _closing(weight: Tensor, width: int) -> Tensor:
    """What the gates i, f, g and o read of the columns that say that a row has ended, (4 widths, COLUMNS)."""
    columns = weight.new_zeros(4 * width, COLUMNS)
    columns[:width].fill_(-LARGE)
    columns[width:2 * width].fill_(LARGE)
    return columns


def _together(weights: list[Tensor]) -> list[Tensor]:
    """On a GPU in one piece of memory, as cuDNN wants them (it would copy them, and warn)."""
    if weights[0].device.type == "cpu":
        return weights
    whole = torch.cat([weight.flatten() for weight in weights])
    parts = whole.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
