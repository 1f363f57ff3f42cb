"""How a scan is computed: the problem, the four backends that can solve it, and which of them runs.

    fused     all steps in one Triton kernel on a GPU, for every cell of this package
    native    torch's own scans (oneDNN, cuDNN), where they compute the same function
    bptt      back-propagation through time written out: autograd records one operation instead of ten a step
    loop      the definition: step after step, for every cell, also a user's own, and every transform of torch

All of them project the inputs of all steps at once, before the scan. The first backend of this order that can and
should run is chosen (`regard.kernels.dispatch`). The steps themselves and their derivatives are in
`regard.kernels.recurrence`; this module turns cells into what those kernels take.

Two kinds of ragged batches occur. Where lengths are known on the CPU, rows that end drop out: step t has the first
sizes[t] rows. On a GPU every step has all rows, and `lengths` says how many tokens each row has; rows that have ended
must keep the state of their last token.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checks import plural
from regard.kernels import dispatch, launch
from regard.kernels.recurrence.bptt import BPTTRule, GatedRule, LSTMRule, ResetAfterRule, RNNRule, scan_through_time
from regard.recurrence.cells import (
    Cell,
    CellState,
    GRUCell,
    LSTMCell,
    MUT1Cell,
    MUT2Cell,
    MUT3Cell,
    RNNCell,
    torch_weights,
    why_not_torch,
)

ScanResult = tuple[Tensor, CellState]
"""The hidden vector of every token, (tokens, width), and the state of each row after its last token."""


@dataclass(frozen=True)
class ScanProblem:
    """A cell over time. Step t reads the first sizes[t] rows; the sizes never grow.

    Where `lengths` is given, every step reads all rows, and rows that have ended keep the state of their last token.
    Their inputs are finite, and so must be the results computed from them, which are not used.
    """

    cell: Cell
    inputs: Tensor
    """(tokens, input_width): those of the first step, then those of the second, and so on."""
    sizes: tuple[int, ...]
    state: CellState
    """(sizes[0], width) for each memory."""
    lengths: Tensor | None = None
    """(sizes[0],): how many tokens each row has, on the device of the inputs. None: as many as steps read the row."""

    @property
    def even(self) -> bool:
        """Whether every step reads all rows."""
        return not self.sizes or self.sizes[-1] == self.sizes[0]

    @property
    def training(self) -> bool:
        """Whether gradients may be requested."""
        given = (self.inputs, *self.state, *self.cell.parameters())
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)

    @property
    def absent(self) -> Tensor:
        """(tokens, 1): whether the row of an input has ended before it."""
        assert self.lengths is not None
        step = torch.arange(len(self.sizes), device=self.lengths.device).unsqueeze(-1)
        return (step >= self.lengths).flatten().unsqueeze(-1)

    def at_last_token(self, hidden: Tensor) -> Tensor:
        """The entry of `hidden` (tokens, width) at each row's last token; the initial state for an empty row."""
        assert self.lengths is not None
        rows = torch.arange(self.sizes[0], device=hidden.device)
        last = hidden.index_select(0, (self.lengths - 1).clamp(min=0) * self.sizes[0] + rows)
        return torch.where(self.lengths.unsqueeze(-1) > 0, last, self.state[0].to(hidden.dtype))


ScanBackend = dispatch.Backend[ScanProblem, ScanResult]


class LoopBackend(ScanBackend):
    """The definition itself, step after step; autograd records each operation. It takes everything."""

    def refusal(self, problem: ScanProblem) -> str | None:
        return None

    def drawback(self, problem: ScanProblem) -> str | None:
        return None

    def detail(self, problem: ScanProblem) -> str:
        return f"{plural(len(problem.sizes), 'step')} of {problem.cell.name}, recorded by autograd one by one"

    def run(self, problem: ScanProblem) -> ScanResult:
        cell, state = problem.cell, problem.state
        projected = cell.project(problem.inputs)
        hidden, ended = [], []
        for step, now in enumerate(projected.split(problem.sizes)):
            if len(now) < len(state[0]):  # rows that have ended keep their state
                ended.append([memory[len(now):] for memory in state])
                state = tuple(memory[:len(now)] for memory in state)
            following = cell.advance(now, state)
            if problem.lengths is not None:
                present = (problem.lengths > step).unsqueeze(-1)
                following = tuple(torch.where(present, new, old.to(new.dtype))
                                  for new, old in zip(following, state, strict=True))
            state = following
            hidden.append(state[0])
        if not hidden:
            return projected[:, :cell.width], state
        if ended:
            state = tuple(torch.cat(parts) for parts in zip(state, *ended[::-1], strict=True))
        return torch.cat(hidden), state


class BPTTBackend(ScanBackend):
    """Back-propagation through time written out (`regard.kernels.recurrence.bptt`).

    The rules know no padding. Where rows that have ended are still read, h is taken from the step of their last token,
    and the gates of the LSTM are closed from there on, so that c stays: i = σ(-∞) = 0 and f = σ(∞) = 1, both with a
    gradient of 0.
    """

    min_steps = 32
    """Below this many steps, without gradients to come, the plain loop is as fast."""

    def refusal(self, problem: ScanProblem) -> str | None:
        if type(problem.cell) not in _RULE_CELLS:
            return f"there is no hand-written backward pass for {problem.cell.name}"
        if problem.lengths is not None and isinstance(problem.cell, RNNCell) and problem.cell.activation == "linear":
            return "in the padding after a row, the state of a linear cell may overflow"
        if problem.inputs.device.type == "meta":
            return "it does not support the meta device"
        if launch.in_torch_func():
            return "torch.func cannot transform its backward pass"
        return "torch.compile cannot trace it" if torch.compiler.is_compiling() else None

    def drawback(self, problem: ScanProblem) -> str | None:
        steps = len(problem.sizes)
        if not steps:
            return "there are no tokens"
        if not problem.training and steps < self.min_steps:
            return f"below {self.min_steps} steps without gradients the plain loop is as fast; there are {steps}"
        return None

    def detail(self, problem: ScanProblem) -> str:
        return f"{plural(len(problem.sizes), 'step')} of {problem.cell.name}, with a hand-written backward pass"

    def run(self, problem: ScanProblem) -> ScanResult:
        cell = problem.cell
        projected = cell.project(problem.inputs)
        if not problem.sizes:
            return projected[:, :cell.width], problem.state
        if problem.lengths is not None and isinstance(cell, LSTMCell):
            projected = self._close_gates(projected, problem.absent)
        # Under autocast the projection decides the precision of the steps.
        given = [tensor.to(projected.dtype) for tensor in (*_step_weights(cell), *problem.state)]
        hidden, *final = scan_through_time(_rule(cell), problem.sizes, problem.training, projected, *given)
        if problem.lengths is None:
            return hidden, tuple(final)
        return hidden, (problem.at_last_token(hidden), *final[1:])

    def _close_gates(self, projected: Tensor, absent: Tensor) -> Tensor:
        """The inputs of an LSTM's gates (tokens, 4 widths) in the order i, f, o, g; absent tokens leave c unchanged."""
        width = projected.shape[-1] // 4
        i, f, rest = projected.split([width, width, 2 * width], -1)
        return torch.cat([i.masked_fill(absent, -torch.inf), f.masked_fill(absent, torch.inf), rest], -1)


class NativeBackend(ScanBackend):
    """torch's own fused scans: LSTM, RNN with tanh, GRU with reset="after".

    The weights are put into torch's order at each call. On a CPU only the LSTM in float32 without padding has a fused
    backward pass; the others are recorded step by step, and `bptt` is faster. Rows that drop out are torch's packed
    sequences.

    Where rows that have ended are still read, h is taken from the step of their last token. torch returns c of an LSTM
    after the last step only, so more input columns say that a row has ended, and close its gates with weights beside
    which the others do not count: i = σ(-large) = 0 and f = σ(large) = 1, so c stays to the end.
    """

    min_steps = 16
    """Below this many steps, on a CPU, reordering the weights (for torch, then for oneDNN) costs more than it gains."""
    closing_weight = 4096.0
    """The weight of a closing column: finite in every precision, and its exponential is beyond every precision."""
    closing_columns = 8
    """How many columns say that a row has ended. One is enough, but tensor cores need widths divisible by 8."""

    def refusal(self, problem: ScanProblem) -> str | None:
        return why_not_torch(problem.cell) if problem.sizes else "there are no tokens"

    def drawback(self, problem: ScanProblem) -> str | None:
        device, steps = problem.inputs.device.type, len(problem.sizes)
        if launch.in_torch_func():
            return "torch.func has no batching rule for it"
        if device != "cpu":
            return None
        if torch.is_autocast_enabled(device):
            return "on a CPU it ignores autocast"
        if steps < self.min_steps:
            return f"below {self.min_steps} steps reordering the weights costs more than it saves; there are {steps}"
        fused = isinstance(problem.cell, LSTMCell) and problem.even and problem.inputs.dtype == torch.float32
        if problem.training and not fused:
            return "on a CPU, torch has a fused backward pass only for an LSTM in float32 without padding"
        return None

    def detail(self, problem: ScanProblem) -> str:
        return f"torch's {problem.cell.name} over {plural(len(problem.sizes), 'step')}"

    def run(self, problem: ScanProblem) -> ScanResult:
        cell, inputs = problem.cell, problem.inputs
        functions: Any = torch._VF  # the functions under nn.LSTM, nn.GRU and nn.RNN, which take weights as arguments
        weights = torch_weights(cell)
        if problem.lengths is not None and isinstance(cell, LSTMCell):
            ended = problem.absent.to(inputs.dtype).expand(-1, self.closing_columns)
            inputs = torch.cat([inputs, ended], -1)
            weights[0] = torch.cat([weights[0], self._closing_columns(weights[0], cell.width)], -1)
        scan = (functions.lstm if isinstance(cell, LSTMCell) else
                functions.rnn_tanh if isinstance(cell, RNNCell) else functions.gru)
        before = [memory.unsqueeze(0).contiguous() for memory in problem.state]
        start = before if isinstance(cell, LSTMCell) else before[0]
        # Biases, one layer, no dropout, one direction.
        rest = (self._contiguous(weights), True, 1, 0.0, problem.training, False)
        if problem.even:
            hidden, *final = scan(inputs.unflatten(0, (len(problem.sizes), problem.sizes[0])), start, *rest, False)
            hidden = hidden.flatten(0, 1)
        else:
            hidden, *final = scan(inputs, torch.tensor(problem.sizes), start, *rest)
        state = tuple(memory.squeeze(0) for memory in final)
        return hidden, state if problem.lengths is None else (problem.at_last_token(hidden), *state[1:])

    def _closing_columns(self, weight: Tensor, width: int) -> Tensor:
        """The weights of the gates i, f, g, o for the columns that say that a row has ended, (4 widths, columns)."""
        columns = weight.new_zeros(4 * width, self.closing_columns)
        columns[:width].fill_(-self.closing_weight)
        columns[width:2 * width].fill_(self.closing_weight)
        return columns

    def _contiguous(self, weights: list[Tensor]) -> list[Tensor]:
        """The weights; on a GPU in one piece of memory, because cuDNN would copy them there itself, and warn."""
        if weights[0].device.type == "cpu":
            return weights
        whole = torch.cat([weight.flatten() for weight in weights])
        parts = whole.split([weight.numel() for weight in weights])
        return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


class FusedBackend(ScanBackend):
    """All steps of a scan in one Triton kernel on a GPU (`regard.kernels.recurrence.triton_scan`).

    Where a batch is too wide for its programs to be on the device at once, each step is a launch of its own.
    """

    min_steps = 8
    """Below this many steps the plain loop is as fast."""

    def refusal(self, problem: ScanProblem) -> str | None:
        if type(problem.cell) not in _RULE_CELLS:
            return f"there is no hand-written backward pass for {problem.cell.name}"
        if not problem.sizes:
            return "there are no tokens"
        device = problem.inputs.device.type
        if device != "cuda" and not (device == "cpu" and launch.interpreted()):
            return f"it needs a CUDA device, and the inputs are on {device}"
        dtype = self._dtype(problem)
        if dtype not in launch.DTYPES or (device == "cpu" and dtype == torch.bfloat16):  # which cannot be interpreted
            return f"it does not support {str(dtype).removeprefix('torch.')} on {device}"
        if not launch.installed():
            return "triton is not installed"
        if torch.compiler.is_compiling() or launch.in_torch_func():
            return "torch.compile and torch.func cannot trace its kernel"
        return None

    def drawback(self, problem: ScanProblem) -> str | None:
        steps = len(problem.sizes)
        if problem.inputs.device.type != "cuda":
            return "on a CPU its kernels run in Triton's interpreter, which is for tests"
        if steps < self.min_steps:
            return f"below {self.min_steps} steps its preparation costs more than it saves; there are {steps}"
        from regard.kernels.recurrence.triton_scan import ScanLayout  # imports Triton

        layout = ScanLayout.of(problem.sizes[0], problem.cell.width, self._dtype(problem), problem.inputs.device)
        if not layout.resident:
            return "the batch is too wide to be on the device at once, so each step would be a launch"
        return None

    def detail(self, problem: ScanProblem) -> str:
        return f"{plural(len(problem.sizes), 'step')} of {problem.cell.name} in one kernel"

    def run(self, problem: ScanProblem) -> ScanResult:
        from regard.kernels.recurrence.triton_scan import fused_scan  # imports Triton

        cell, rows, steps = problem.cell, problem.sizes[0], len(problem.sizes)
        projected = cell.project(problem.inputs)
        lengths, index = problem.lengths, None
        if not problem.even:  # rows that end early are filled up with zeros
            lengths, index = self._rectangle(problem)
            projected = projected.new_zeros(steps * rows, projected.shape[1]).index_copy(0, index, projected)
        # Under autocast the projection decides the precision of the steps.
        given = [tensor.to(projected.dtype) for tensor in (*_step_weights(cell), *problem.state)]
        hidden, *final = fused_scan(_rule(cell), rows, lengths, problem.training, projected.contiguous(), *given)
        return hidden if index is None else hidden.index_select(0, index), tuple(final)

    def _dtype(self, problem: ScanProblem) -> torch.dtype:
        """The precision of the steps."""
        device = problem.inputs.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else problem.inputs.dtype

    def _rectangle(self, problem: ScanProblem) -> tuple[Tensor, Tensor]:
        """The length of each row, (rows,), and the index of each token among steps·rows, (tokens,)."""
        sizes, rows = torch.tensor(problem.sizes), torch.arange(problem.sizes[0])
        present = rows < sizes.unsqueeze(-1)
        device = problem.inputs.device
        return present.sum(0).to(device), present.flatten().nonzero().squeeze(-1).to(device)


BACKENDS: dict[str, ScanBackend] = {"fused": FusedBackend(), "native": NativeBackend(), "bptt": BPTTBackend(),
                                    "loop": LoopBackend()}
"""Every backend by name, the preferred ones first."""


def choose_scan_backend(problem: ScanProblem, backend: str | None = None) -> ScanBackend:
    """The backend that runs this problem; a ValueError where the one named by `backend` cannot."""
    return dispatch.choose_backend(BACKENDS, problem, backend)


def explain_scan_backend(problem: ScanProblem, backend: str | None = None) -> dispatch.Explanation:
    """Which backend runs this problem, and why each preferred one does not."""
    return dispatch.explain_choice(BACKENDS, problem, backend)


_RULE_CELLS = (RNNCell, LSTMCell, GRUCell, MUT1Cell, MUT2Cell, MUT3Cell)
"""The cells whose derivative is written out. A subclass may compute something else, so it is not one of them."""


def _rule(cell: Cell) -> BPTTRule:
    """The steps of this cell over time, and their derivatives."""
    if isinstance(cell, RNNCell):
        return RNNRule(cell.activation == "linear")
    if isinstance(cell, LSTMCell):
        return LSTMRule()
    if isinstance(cell, GRUCell) and cell.reset == "after":
        return ResetAfterRule()
    return GatedRule(isinstance(cell, GRUCell), {MUT1Cell: "nothing", MUT3Cell: "tanh"}.get(type(cell), "hidden"))


def _step_weights(cell: Cell) -> list[Tensor]:
    """The parameters that the steps read."""
    if isinstance(cell, GRUCell) and cell.reset == "after":
        return [cell.hidden_weight, cell.hidden_bias]
    return [cell.hidden_weight]
