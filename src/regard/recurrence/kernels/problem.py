"""What a kernel is asked: this cell, over these tokens, from this state."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.recurrence.cells import Cell, CellState


@dataclass(frozen=True)
class ScanProblem:
    """A cell over time. Step t reads the first sizes[t] rows; they never grow, and the first reads all of them.

    Where there are `lengths`, every step reads all rows, but those that have ended leave the state of their last token
    as it is. Their inputs are finite, and nobody asks what is made of them, which must be finite too.
    """

    cell: Cell
    inputs: Tensor
    """(tokens, input_width): those of the first step, then those of the second, and so on."""
    sizes: tuple[int, ...]
    state: CellState
    """Of each memory (sizes[0], width)."""
    lengths: Tensor | None = None
    """(sizes[0],): how many tokens each row has, on the device of the inputs; as many as steps read it where None."""

    @property
    def even(self) -> bool:
        """Whether every step reads all rows."""
        return not self.sizes or self.sizes[-1] == self.sizes[0]

    @property
    def training(self) -> bool:
        """Whether somebody may ask for gradients."""
        given = (self.inputs, *self.state, *self.cell.parameters())
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)

    @property
    def absent(self) -> Tensor:
        """(tokens, 1): whether the row of an input has ended before it."""
        assert self.lengths is not None
        step = torch.arange(len(self.sizes), device=self.lengths.device).unsqueeze(-1)
        return (step >= self.lengths).flatten().unsqueeze(-1)

    def ended(self, hidden: Tensor) -> Tensor:
        """What each row has in `hidden` (tokens, width) at its last token; without tokens, what it had before."""
        assert self.lengths is not None
        rows = torch.arange(self.sizes[0], device=hidden.device)
        last = hidden.index_select(0, (self.lengths - 1).clamp(min=0) * self.sizes[0] + rows)
        return torch.where(self.lengths.unsqueeze(-1) > 0, last, self.state[0].to(hidden.dtype))
