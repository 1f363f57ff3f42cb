"""All steps of a cell on a device, forward and backward: the storage, the launches, and what is left to large products.

The rules of the cells are those of `rules`, and a scan is made from one; the kernels are in `forward` and `backward`.
Gradients of the weights are products over all steps, after the scan: always the same numbers, no atomic sums.

Every step reads all rows. A scan does not know cells, layers or autograd. Needs triton.

Legend: T steps, B rows, R = T·B tokens, H width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.recurrence.kernels.rules import GatedRule, LSTMRule, ResetAfterRule, Rule, VanillaRule
from regard.recurrence.kernels.steps import backward, forward
from regard.recurrence.kernels.steps.layout import Layout

Tensors = Sequence[Tensor]
Forward = tuple[list[Tensor], list[Tensor]]
"""Of each memory the state before each step and after the last, (B + R, H); what the backward needs beside them."""
Backward = tuple[Tensor, list[Tensor], list[Tensor]]
"""The gradients of the projected inputs, of the weights and of the state."""


class Scan(ABC):
    """A cell over time on a device, and its derivative."""

    @abstractmethod
    def forward(self, layout: Layout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> Forward:
        """All steps. `keep`: whether there will be a backward."""

    @abstractmethod
    def backward(self, layout: Layout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        """All steps in reverse, given what `forward` made and kept."""


def scan(rule: Rule) -> Scan:
    """The scan of a cell that has this rule."""
    if isinstance(rule, GatedRule):
        return Gated(rule.keeps, rule.update)
    if isinstance(rule, VanillaRule):
        return Simple("linear" if rule.linear else "tanh")
    assert isinstance(rule, LSTMRule | ResetAfterRule)
    return Simple("lstm" if isinstance(rule, LSTMRule) else "gru")


class Simple(Scan):
    """RNN ("tanh", "linear"), LSTM ("lstm") and GRU with reset="after" ("gru"): one phase a step."""

    def __init__(self, cell: str) -> None:
        self.cell = cell

    def forward(self, layout: Layout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> Forward:
        R, H = len(projected), layout.width
        hidden = _from(state[0], R)
        cells = _from(state[1].float(), R) if self.cell == "lstm" else hidden
        gated = keep and self.cell in ("lstm", "gru")
        gates = torch.empty_like(projected) if gated else hidden
        inner = projected.new_empty(R, H) if gated and self.cell == "gru" else hidden
        bias = weights[1] if self.cell == "gru" else hidden
        layout.launch(forward.simple, [projected, weights[0].contiguous(), bias, hidden, cells, gates, inner,
                                       hidden if lengths is None else lengths],
                      range(R // layout.rows), 1, CELL=self.cell, PADDED=lengths is not None, KEEP=keep)
        return [hidden, cells] if self.cell == "lstm" else [hidden], [gates, inner] if gated else []

    def backward(self, layout: Layout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        W, hidden, (R, H), B = weights[0], memories[0], d_hidden.shape, layout.rows
        cells = memories[-1]
        gates, inner = kept or (hidden, hidden)
        d_gates = _until(hidden, R, len(W), B)
        d_inner = _until(hidden, R, H, B) if self.cell == "gru" else d_gates
        carried = _turns(d_final[0], R // B)
        d_cells = _turns(d_final[1], R // B) if self.cell == "lstm" else carried
        layout.launch(backward.simple, [W.t().contiguous(), hidden, cells, gates, inner, d_hidden, d_gates, d_inner,
                                        carried, d_cells, hidden if lengths is None else lengths],
                      range(R // B - 1, -1, -1), 1, CELL=self.cell, PADDED=lengths is not None)
        found, d_projected = hidden[:R], d_gates[:R]
        if self.cell == "gru":
            d_inner = d_inner[:R]
            d_h = carried[0] + (d_projected[:B, :2 * H] @ W[:2 * H] + d_inner[:B] @ W[2 * H:]).float()
            d_W = [torch.cat([d_projected[:, :2 * H].t() @ found, d_inner.t() @ found]), d_inner.sum(0)]
        else:
            d_h = carried[0] + (d_projected[:B] @ W).float()
            d_W = [d_projected.t() @ found]
        d_state = [d_h, d_cells[0]] if self.cell == "lstm" else [d_h]
        return d_projected, d_W, [gradient.to(hidden.dtype) for gradient in d_state]


class Gated(Scan):
    """GRU, MUT1, MUT2 and MUT3: two phases a step. `keeps` and `update` are those of `rules.GatedRule`."""

    def __init__(self, keeps: bool, update: str) -> None:
        self.keeps, self.update = keeps, update

    def forward(self, layout: Layout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> Forward:
        R, H = len(projected), layout.width
        hidden = _from(state[0], R)
        squashed = _from(state[0].tanh(), R) if self.update == "squashed" else hidden
        gates, scaled = torch.empty_like(projected), projected.new_empty(R, H)
        layout.launch(forward.gated, [projected, weights[0].contiguous(), hidden, scaled, squashed, gates,
                                      hidden if lengths is None else lengths],
                      range(R // layout.rows), 2, KEEPS=self.keeps, UPDATE=self.update, PADDED=lengths is not None)
        return [hidden], [gates, scaled, squashed]

    def backward(self, layout: Layout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W,), (hidden,), (gates, scaled, squashed) = weights, memories, kept
        (R, H), B = d_hidden.shape, layout.rows
        d_gates = _until(hidden, R, 3 * H, B)
        carried = d_final[0].to(torch.float32, copy=True)
        layout.launch(backward.gated, [W.t().contiguous(), hidden, squashed, gates, d_hidden, d_gates, carried,
                                       torch.empty_like(carried), hidden if lengths is None else lengths],
                      range(R // B - 1, -1, -1), 2, KEEPS=self.keeps, UPDATE=self.update, PADDED=lengths is not None)
        together = 2 * H if self.update == "hidden" else H  # the gates that read h
        d_projected, found = d_gates[:R], hidden[:R]
        d_h = carried + (d_projected[:B, :together] @ W[:together]).float()
        d_W = [d_projected[:, :together].t() @ found, d_projected[:, 2 * H:].t() @ scaled]
        if self.update == "squashed":
            d_W.insert(1, d_projected[:, H:2 * H].t() @ squashed[:R])
            d_h += (d_projected[:B, H:2 * H] @ W[H:2 * H]).float() * (1.0 - squashed[:B].float() ** 2)
        return d_projected, [torch.cat(d_W)], [d_h.to(hidden.dtype)]


def _from(first: Tensor, tokens: int) -> Tensor:
    """Room for a state before each step and after the last, the first one filled in, (B + R, H)."""
    room = first.new_empty(len(first) + tokens, first.shape[1])
    room[:len(first)] = first
    return room


def _until(like: Tensor, tokens: int, width: int, rows: int) -> Tensor:
    """Room for the gradients of all steps, and zeros for the one behind the last, (R + B, width)."""
    room = like.new_empty(tokens + rows, width)
    room[tokens:] = 0.0
    return room


def _turns(final: Tensor, steps: int) -> Tensor:
    """Two places that take turns, (2, B, H), in float32: step t reads the other one, and the last finds `final`."""
    room = final.new_empty(2, *final.shape, dtype=torch.float32)
    room[steps % 2] = final
    return room
