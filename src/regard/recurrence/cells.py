"""Cells: one step of a recurrent network, each written as its equation. State goes in and comes out.

    RNN     h' = tanh(W_xh x + W_hh h + b_h)
    LSTM    (i, f, o, g) = (σ, σ, σ, tanh)(W [h; x] + b); c' = f⊙c + i⊙g; h' = o⊙tanh(c')
    GRU     r = σ(W_xr x + W_hr h + b_r); z = σ(W_xz x + W_hz h + b_z);
            h~ = tanh(W_xh x + W_hh (r⊙h) + b_h); h' = z⊙h + (1-z)⊙h~
    MUT1    z = σ(W_xz x + b_z); r = σ(W_xr x + W_hr h + b_r); h' = tanh(W_hh (r⊙h) + tanh(x) + b_h)⊙z + h⊙(1-z)
    MUT2    z = σ(W_xz x + W_hz h + b_z); r = σ(x + W_hr h + b_r);
            h' = tanh(W_hh (r⊙h) + W_xh x + b_h)⊙z + h⊙(1-z)
    MUT3    as MUT2 with z = σ(W_xz x + W_hz tanh(h) + b_z) and r = σ(W_xr x + W_hr h + b_r)

In the GRU z keeps the old state; in the MUTs it lets the new one in. Sources: Elman 1990; Hochreiter & Schmidhuber
1997 and Gers et al. 2000; Cho et al. 2014; Jozefowicz, Zaremba, Sutskever 2015.

**Parameters.** All matrices that read x are rows of one matrix, all that read h are rows of another, so each is one
product; `named()` returns them by their names in the equation.

    input_weight    (gates·width, input_width)    W_x*, the gates in the order of `from_input`
    hidden_weight   (gates·width, width)          W_h*, in the order of `from_hidden`
    bias            (gates·width,)                b_*, in the order of `biased`
    bare_weight     (width, input_width)          MUT1 and MUT2 where the widths differ: x is projected by it first
    hidden_bias     (width,)                      GRU with reset="after": the bias that the reset gate scales

The gates are in the order i, f, o, g in the LSTM (torch: i, f, g, o) and r, z, h in the others.

**Initial values** depart from torch's, which are all uniform: orthogonal for the weights of h, Xavier for those of x,
gate by gate; biases are 0, and 1 for the LSTM's forget gate, so that it remembers at first.

**torch's weights.** `torch_weights` and `load_torch_cell` convert the cells that torch has too:

    RNN with tanh             nn.RNN, nn.RNNCell
    LSTM                      nn.LSTM, nn.LSTMCell                the gates f, o, g in another order
    GRU with reset="after"    nn.GRU, nn.GRUCell

torch has two biases for each gate that are only ever added, these cells have one: torch's are summed on the way in, and
zeros stand for the second on the way out. Only the bias that the GRU's reset gate scales exists in both.

A cell knows one step. It does not know time, padding, layers or directions. Legend: D input width, H width.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import checks

CellState = tuple[Tensor, ...]
"""The tensors that a cell remembers: the hidden vector h (rows, width) first, then the LSTM's memory c."""


class Cell(nn.Module, ABC):
    """One step of a recurrent network. Subclasses name their gates below, and define `project` and `advance`.

    Args:
        input_width: the width of x.
        width: the width of the hidden vector and of every other tensor of the state.
    """

    memories: ClassVar[int] = 1
    """The number of tensors in the state."""
    from_input: ClassVar[tuple[str, ...]] = ()
    from_hidden: ClassVar[tuple[str, ...]] = ()
    biased: ClassVar[tuple[str, ...]] = ()
    """The gates that read x, that read h, and that have a bias, in the order of the parameters' rows."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        checks.whole_number("input_width", input_width, 1)
        checks.whole_number("width", width, 1)
        self.input_width, self.width = input_width, width
        self.input_weight = nn.Parameter(torch.empty(len(self.from_input) * width, input_width))
        self.hidden_weight = nn.Parameter(torch.empty(len(self.from_hidden) * width, width))
        self.bias = nn.Parameter(torch.empty(len(self.biased) * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, as the top of this file says."""
        for k in range(len(self.from_input)):
            nn.init.xavier_uniform_(self.input_weight.data[k * self.width:(k + 1) * self.width])
        for k in range(len(self.from_hidden)):
            nn.init.orthogonal_(self.hidden_weight.data[k * self.width:(k + 1) * self.width])
        self.bias.data.zero_()

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """The part of the equation that depends on the input alone: (..., input_width) -> (..., any)."""

    @abstractmethod
    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """One step, given the result of `project`, (rows, any)."""

    def forward(self, x: Tensor, state: CellState) -> CellState:
        """One step: x (rows, input_width) and the state -> the next state."""
        if x.shape[-1] != self.input_width:
            raise checks.wrong("x", f"of the cell's input width {self.input_width}", f"of shape {checks.shape(x)}")
        return self.advance(self.project(x), state)

    @property
    def name(self) -> str:
        """The name of the cell in messages, such as "LSTM"."""
        return type(self).__name__.removesuffix("Cell")

    def initial(self, rows: int) -> CellState:
        """The state before the first token: zeros (rows, width) for each memory."""
        return tuple(self.hidden_weight.new_zeros(rows, self.width) for _ in range(self.memories))

    def named(self) -> dict[str, Tensor]:
        """The parameters by their names in the equation; the tensors are views."""
        names: dict[str, Tensor] = {}
        for prefix, gates, parameter in (("W_x", self.from_input, self.input_weight), ("b_", self.biased, self.bias),
                                         ("W_h", self.from_hidden, self.hidden_weight)):
            names |= {prefix + gate: part for gate, part in zip(gates, parameter.split(self.width), strict=True)}
        return names

    def extra_repr(self) -> str:
        return f"{self.input_width}, {self.width}"


class RNNCell(Cell):
    """The vanilla network: h' = tanh(W_xh x + W_hh h + b_h).

    Args:
        activation: "tanh"; or "linear" for none, so that gradient flow is a power of W_hh.
    """

    from_input = from_hidden = biased = ("h",)

    def __init__(self, input_width: int, width: int, *, activation: str = "tanh") -> None:
        checks.pick("activation", activation, {"tanh": None, "linear": None})
        super().__init__(input_width, width)
        self.activation = activation

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.input_weight, self.bias)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        h = projected + F.linear(state[0], self.hidden_weight)
        return (torch.tanh(h) if self.activation == "tanh" else h,)


class LSTMCell(Cell):
    """(i, f, o, g) = (σ, σ, σ, tanh)(W [h; x] + b); c' = f⊙c + i⊙g; h' = o⊙tanh(c'). The state is (h, c).

    Args:
        forget_bias: the initial bias of f; torch's is near 0.
    """

    memories = 2
    from_input = from_hidden = biased = ("i", "f", "o", "g")

    def __init__(self, input_width: int, width: int, *, forget_bias: float = 1.0) -> None:
        self.forget_bias = forget_bias
        super().__init__(input_width, width)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias.data[self.width:2 * self.width], self.forget_bias)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.input_weight, self.bias)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        h, c = state
        gates = projected + F.linear(h, self.hidden_weight)
        i, f, o = torch.sigmoid(gates[..., :3 * self.width]).chunk(3, -1)
        c = f * c + i * torch.tanh(gates[..., 3 * self.width:])
        return o * torch.tanh(c), c

    def named(self) -> dict[str, Tensor]:
        """W (4H, H + D), which reads [h; x], and b, both in the order i, f, o, g. W is a copy, not a view."""
        return {"W": torch.cat([self.hidden_weight, self.input_weight], 1), "b": self.bias}


class GRUCell(Cell):
    """r = σ(W_xr x + W_hr h + b_r); z = σ(W_xz x + W_hz h + b_z); h~ = tanh(W_xh x + W_hh (r⊙h) + b_h);
    h' = z⊙h + (1-z)⊙h~.

    Args:
        reset: "before": r is applied before the matrix product, as above and in the paper; "after": the form of torch
            and cuDNN, which is another function: h~ = tanh(W_xh x + b_h + r⊙(W_hh h + b_hh)), b_hh is `hidden_bias`.
    """

    from_input = from_hidden = biased = ("r", "z", "h")

    def __init__(self, input_width: int, width: int, *, reset: str = "before") -> None:
        checks.pick("reset", reset, {"before": None, "after": None})
        super().__init__(input_width, width)
        self.reset = reset
        if reset == "after":
            self.hidden_bias = nn.Parameter(torch.zeros(width))

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.input_weight, self.bias)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        H, (h,) = self.width, state
        if self.reset == "after":
            from_h = F.linear(h, self.hidden_weight)
            r, z = torch.sigmoid(projected[..., :2 * H] + from_h[..., :2 * H]).chunk(2, -1)
            candidate = torch.tanh(projected[..., 2 * H:] + r * (from_h[..., 2 * H:] + self.hidden_bias))
        else:
            r, z = torch.sigmoid(projected[..., :2 * H] + F.linear(h, self.hidden_weight[:2 * H])).chunk(2, -1)
            candidate = torch.tanh(projected[..., 2 * H:] + F.linear(r * h, self.hidden_weight[2 * H:]))
        return (z * h + (1.0 - z) * candidate,)

    def named(self) -> dict[str, Tensor]:
        """The parameters by their names in the equation; b_hh is `hidden_bias`, where there is one."""
        return super().named() | ({"b_hh": self.hidden_bias} if self.reset == "after" else {})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "hidden_bias"):
            nn.init.zeros_(self.hidden_bias)


class MutantCell(Cell):
    """The base of MUT1 and MUT2, which add x itself to a hidden vector.

    Departure: in the paper input and state have one width. Where they differ, x is projected by `bare_weight` first.
    """

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        if input_width != width:
            self.bare_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, input_width)))

    def bare(self, x: Tensor) -> Tensor:
        """x in the width of the hidden vector."""
        return x if self.input_width == self.width else F.linear(x, self.bare_weight)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "bare_weight"):
            nn.init.xavier_uniform_(self.bare_weight)

    def named(self) -> dict[str, Tensor]:
        """The parameters by their names in the equation; W_xx is `bare_weight`, where there is one."""
        return super().named() | ({} if self.input_width == self.width else {"W_xx": self.bare_weight})


class MUT1Cell(MutantCell):
    """z = σ(W_xz x + b_z); r = σ(W_xr x + W_hr h + b_r); h' = tanh(W_hh (r⊙h) + tanh(x) + b_h)⊙z + h⊙(1-z).

    Where input_width is not width, tanh(x) is tanh(W_xx x): see `MutantCell`.
    """

    from_input, from_hidden, biased = ("r", "z"), ("r", "h"), ("r", "z", "h")

    def project(self, x: Tensor) -> Tensor:
        H = self.width
        r, z = F.linear(x, self.input_weight, self.bias[:2 * H]).chunk(2, -1)
        return torch.cat([r, torch.sigmoid(z), torch.tanh(self.bare(x)) + self.bias[2 * H:]], -1)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        H, (h,) = self.width, state
        r, z, candidate = projected.split(H, -1)
        r = torch.sigmoid(r + F.linear(h, self.hidden_weight[:H]))
        return (torch.tanh(F.linear(r * h, self.hidden_weight[H:]) + candidate) * z + h * (1.0 - z),)


class MUT2Cell(MutantCell):
    """z = σ(W_xz x + W_hz h + b_z); r = σ(x + W_hr h + b_r); h' = tanh(W_hh (r⊙h) + W_xh x + b_h)⊙z + h⊙(1-z).

    Where input_width is not width, the x in r is W_xx x: see `MutantCell`.
    """

    from_input, from_hidden, biased = ("z", "h"), ("r", "z", "h"), ("r", "z", "h")

    def project(self, x: Tensor) -> Tensor:
        H = self.width
        return torch.cat([self.bare(x) + self.bias[:H], F.linear(x, self.input_weight, self.bias[H:])], -1)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        H, (h,) = self.width, state
        r, z = torch.sigmoid(projected[..., :2 * H] + F.linear(h, self.hidden_weight[:2 * H])).chunk(2, -1)
        candidate = torch.tanh(projected[..., 2 * H:] + F.linear(r * h, self.hidden_weight[2 * H:]))
        return (candidate * z + h * (1.0 - z),)


class MUT3Cell(Cell):
    """z = σ(W_xz x + W_hz tanh(h) + b_z); r = σ(W_xr x + W_hr h + b_r);
    h' = tanh(W_hh (r⊙h) + W_xh x + b_h)⊙z + h⊙(1-z)."""

    from_input = from_hidden = biased = ("r", "z", "h")

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.input_weight, self.bias)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        (h,) = state
        r, z, candidate = projected.split(self.width, -1)
        reset, update, new = self.hidden_weight.split(self.width)
        r = torch.sigmoid(r + F.linear(h, reset))
        z = torch.sigmoid(z + F.linear(torch.tanh(h), update))
        return (torch.tanh(F.linear(r * h, new) + candidate) * z + h * (1.0 - z),)


CELLS: dict[str, type[Cell]] = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell, "mut1": MUT1Cell, "mut2": MUT2Cell,
                                "mut3": MUT3Cell}
"""Every cell by name."""


def make_cell(name: str, input_width: int, width: int, **options: Any) -> Cell:
    """The cell of this name; `options` are those of its class."""
    return checks.pick("cell", name, CELLS)(input_width, width, **options)


def count_cell_parameters(name: str, input_width: int, width: int) -> int:
    """The number of parameters of the cell of this name, with its default options."""
    made = checks.pick("cell", name, CELLS)
    bare = input_width * width if issubclass(made, MutantCell) and input_width != width else 0
    rows = len(made.from_input) * input_width + len(made.from_hidden) * width + len(made.biased)
    return rows * width + bare


TORCH_GATE_ORDER: dict[type[Cell], tuple[int, ...]] = {RNNCell: (0,), LSTMCell: (0, 1, 3, 2), GRUCell: (0, 1, 2)}
"""The position of each of our gates in torch's order; each permutation is its own inverse."""
TORCH_MODULES: dict[type[Cell], tuple[type[nn.Module], ...]] = {
    RNNCell: (nn.RNN, nn.RNNCell), LSTMCell: (nn.LSTM, nn.LSTMCell), GRUCell: (nn.GRU, nn.GRUCell)}


def why_not_torch(cell: Cell) -> str | None:
    """Why torch does not compute this cell; None when it does."""
    if type(cell) not in TORCH_GATE_ORDER:
        return f"torch has no {cell.name}"
    if isinstance(cell, RNNCell) and cell.activation != "tanh":
        return f'torch has no RNN with activation="{cell.activation}"'
    if isinstance(cell, GRUCell) and cell.reset != "after":
        return 'torch computes another GRU, the one with reset="after"'
    return None


def torch_weights(cell: Cell) -> list[Tensor]:
    """weight_ih, weight_hh, bias_ih and bias_hh in torch's order; gradients reach the cell's own parameters."""
    order = TORCH_GATE_ORDER[type(cell)]
    own = (cell.input_weight, cell.hidden_weight, cell.bias)
    weights = [_reorder_gates(parameter, order, cell.width) for parameter in own]
    second = torch.zeros_like(weights[2])
    if isinstance(cell, GRUCell):
        second = torch.cat([second[:2 * cell.width], cell.hidden_bias])
    return [*weights, second]


@torch.no_grad()
def load_torch_cell(cell: Cell, module: nn.Module, layer: int = 0, *, reverse: bool = False) -> None:
    """Copy the weights of a torch cell, or of one layer and direction of an nn.RNN, nn.LSTM or nn.GRU, into a cell."""
    reason = why_not_torch(cell)
    if reason is not None:
        raise checks.wrong("cell", "a cell that torch has too", cell.name, f"Reason: {reason}.")
    if not isinstance(module, TORCH_MODULES[type(cell)]):
        names = " or ".join(f"nn.{kind.__name__}" for kind in TORCH_MODULES[type(cell)])
        raise checks.wrong("module", f"an {names} for this cell", *checks.kind(module))
    if getattr(module, "nonlinearity", "tanh") != "tanh" or getattr(module, "proj_size", 0):
        raise checks.wrong("module", "a module with tanh and proj_size=0", module)
    suffix = f"_l{layer}{'_reverse' * reverse}" if isinstance(module, nn.RNNBase) else ""
    if not hasattr(module, "weight_ih" + suffix):
        raise checks.wrong("layer", "a layer and a direction of the module", f'"{suffix[1:]}"')
    for name, parameter in (("weight_ih", cell.input_weight), ("weight_hh", cell.hidden_weight)):
        theirs = getattr(module, name + suffix)
        if theirs.shape != parameter.shape:
            expected = f"a module whose {name} is of shape {checks.shape(parameter)}"
            raise checks.wrong("module", expected, f"one of shape {checks.shape(theirs)}")
        parameter.copy_(_reorder_gates(theirs, TORCH_GATE_ORDER[type(cell)], cell.width))
    if not module.bias:
        for bias in [cell.bias, *([cell.hidden_bias] if isinstance(cell, GRUCell) else [])]:
            bias.zero_()
        return
    first, second = (getattr(module, name + suffix) for name in ("bias_ih", "bias_hh"))
    if isinstance(cell, GRUCell):
        cell.hidden_bias.copy_(second[2 * cell.width:])
        second = torch.cat([second[:2 * cell.width], torch.zeros_like(cell.hidden_bias)])
    cell.bias.copy_(_reorder_gates(first + second, TORCH_GATE_ORDER[type(cell)], cell.width))


def _reorder_gates(parameter: Tensor, order: tuple[int, ...], width: int) -> Tensor:
    """Put the gates of a parameter into another order."""
    if order == tuple(sorted(order)):
        return parameter
    gates = parameter.split(width)
    return torch.cat([gates[i] for i in order])
