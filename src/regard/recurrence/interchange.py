"""Weights to and from torch's recurrent modules, for the cells that both have.

    ours                      torch's                             gates of ours, where torch has them
    RNN with tanh             nn.RNN, nn.RNNCell                  h
    LSTM                      nn.LSTM, nn.LSTMCell                i f o g = 0 1 3 2: torch's order is i, f, g, o
    GRU with reset="after"    nn.GRU, nn.GRUCell                  r z h

torch has two biases that are only ever added, and we one: theirs are summed on the way in, and zeros stand for the
second on the way out; but for the bias inside of the GRU's reset, which both have. It knows nothing of time or layers.
"""

import torch
from torch import Tensor, nn

from regard import checks
from regard.recurrence.cell import GRU, LSTM, RNN, Cell

ORDER: dict[type[Cell], tuple[int, ...]] = {RNN: (0,), LSTM: (0, 1, 3, 2), GRU: (0, 1, 2)}
"""Where torch has our gate; each is its own inverse."""
MODULES: dict[type[Cell], tuple[type[nn.Module], ...]] = {
    RNN: (nn.RNN, nn.RNNCell), LSTM: (nn.LSTM, nn.LSTMCell), GRU: (nn.GRU, nn.GRUCell)}


def difference(cell: Cell) -> str | None:
    """Why torch does not compute this cell; None when it does."""
    if type(cell) not in ORDER:
        return f"torch has no {type(cell).__name__}"
    if isinstance(cell, RNN) and cell.activation != "tanh":
        return f'torch has no RNN with activation="{cell.activation}"'
    if isinstance(cell, GRU) and cell.reset != "after":
        return 'torch computes another GRU, the one with reset="after"'
    return None


def to_torch(cell: Cell) -> list[Tensor]:
    """weight_ih, weight_hh, bias_ih and bias_hh in torch's order, through which gradients reach the cell's own."""
    order = ORDER[type(cell)]
    own = (cell.input_weight, cell.hidden_weight, cell.bias)
    weights = [_ordered(parameter, order, cell.width) for parameter in own]
    second = torch.zeros_like(weights[2])
    if isinstance(cell, GRU):
        second = torch.cat([second[:2 * cell.width], cell.hidden_bias])
    return [*weights, second]


@torch.no_grad()
def load_torch(cell: Cell, module: nn.Module, layer: int = 0, *, reverse: bool = False) -> None:
    """Copy into the cell the weights of torch's: of a cell, or of one layer and direction of an nn.RNN, LSTM or GRU."""
    reason = difference(cell)
    if reason is not None:
        raise checks.wrong("cell", "one that torch has", type(cell).__name__, f"Reason: {reason}.")
    if not isinstance(module, MODULES[type(cell)]):
        names = " or ".join(f"nn.{kind.__name__}" for kind in MODULES[type(cell)])
        raise checks.wrong("module", f"an {names} for this cell", *checks.kind(module))
    if getattr(module, "nonlinearity", "tanh") != "tanh" or getattr(module, "proj_size", 0):
        raise checks.wrong("module", "one with tanh and without projection (proj_size=0)", module)
    suffix = f"_l{layer}{'_reverse' * reverse}" if isinstance(module, nn.RNNBase) else ""
    if not hasattr(module, "weight_ih" + suffix):
        raise checks.wrong("layer", "a layer and direction of the module", f'"{suffix[1:]}"')
    for name, parameter in (("weight_ih", cell.input_weight), ("weight_hh", cell.hidden_weight)):
        theirs = getattr(module, name + suffix)
        if theirs.shape != parameter.shape:
            expected = f"one whose {name} is of shape {checks.shape(parameter)}"
            raise checks.wrong("module", expected, f"one of shape {checks.shape(theirs)}")
        parameter.copy_(_ordered(theirs, ORDER[type(cell)], cell.width))
    if not module.bias:
        for bias in [cell.bias, *([cell.hidden_bias] if isinstance(cell, GRU) else [])]:
            bias.zero_()
        return
    first, second = (getattr(module, name + suffix) for name in ("bias_ih", "bias_hh"))
    if isinstance(cell, GRU):
        cell.hidden_bias.copy_(second[2 * cell.width:])
        second = torch.cat([second[:2 * cell.width], torch.zeros_like(cell.hidden_bias)])
    cell.bias.copy_(_ordered(first + second, ORDER[type(cell)], cell.width))


def _ordered(parameter: Tensor, order: tuple[int, ...], width: int) -> Tensor:
    """The gates of a parameter in another order."""
    if order == tuple(sorted(order)):
        return parameter
    gates = parameter.split(width)
    return torch.cat([gates[i] for i in order])
