"""Scans of recurrent cells on a GPU: the storage, the launch layout, and the large products after a scan.

    resident    one launch does all steps: as many programs as fit on the device at once, which wait for each other
    stepwise    one launch for each phase of each step; slower, and possible everywhere

A scan is made for a rule of `rules`; the kernels are in `triton_steps`. The gradients of the weights are products over
all steps after the scan, so they are deterministic: there are no atomic sums. Every step takes all rows. This module
knows neither cells nor layers nor autograd, and needs Triton.

Legend: T steps, B rows, R = T·B tokens, H width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from regard.kernels import launch
from regard.kernels.recurrence import triton_steps
from regard.recurrence.kernels.rules import BPTTRule, GatedRule, LSTMRule, ResetAfterRule, RNNRule

COUNTER_STRIDE = 32
"""Counters of groups, in int32: far enough for each to have a line of the cache to itself."""

MAX_GATES = 4
"""That a product may have at most."""
SHARED_MEMORY = 192 * 1024
"""Bytes of shared memory for what is loaded ahead of the products; a Hopper multiprocessor has 227 KiB."""


@dataclass(frozen=True)
class ScanLayout:
    """Which rows and features a program has, and how deep its products go at a time."""

    rows: int
    width: int
    resident: bool
    block_rows: int
    block_width: int
    block_depth: int
    warps: int = 4
    stages: int = 4

    @classmethod
    def of(cls, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> "ScanLayout":
        """The layout for a scan over this many rows."""
        block_rows = min(64, max(16, triton.next_power_of_2(rows)))
        block_depth = min(128 if dtype.itemsize == 2 else 64, max(16, triton.next_power_of_2(width)))
        groups, block_width = triton.cdiv(rows, block_rows), 16
        room = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
        while groups * triton.cdiv(width, block_width) > room and block_width < 64:
            block_width *= 2
        resident = groups * triton.cdiv(width, block_width) <= room
        block_width = block_width if resident else 16
        stage = (block_rows + MAX_GATES * block_width) * block_depth * dtype.itemsize
        return cls(rows, width, resident, block_rows, block_width, block_depth, warps=8 if block_width == 64 else 4,
                   stages=max(2, min(4, SHARED_MEMORY // stage)))

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of features, and groups of rows."""
        return triton.cdiv(self.width, self.block_width), triton.cdiv(self.rows, self.block_rows)

    def launch(self, kernel: Any, tensors: list[Tensor], steps: Iterable[int], phases: int, **constants: Any) -> None:
        """All steps in this order, each of so many phases."""
        order = list(steps)
        counters = torch.zeros(self.grid[1] * COUNTER_STRIDE if self.resident else 1, dtype=torch.int32,
                               device=tensors[0].device)
        constants |= {"H": self.width, "BLOCK_ROWS": self.block_rows, "BLOCK_WIDTH": self.block_width,
                      "BLOCK_DEPTH": self.block_depth, "WAITS": self.resident, "PRECISION": dot_precision(tensors[0].dtype),
                      "num_warps": self.warps, "num_stages": self.stages}
        if self.resident:
            whole = {"PHASE": 0} if phases > 1 else {}
            launch.launch(kernel, self.grid, *tensors, counters, min(order), max(order) + 1, self.rows, **constants,
                           **whole, launch_cooperative_grid=True)
            return
        for step in order:
            for phase in range(phases):
                part = {"PHASE": phase + 1} if phases > 1 else {}
                launch.launch(kernel, self.grid, *tensors, counters, step, step + 1, self.rows, **constants, **part)


def dot_precision(dtype: torch.dtype) -> str:
    """How products of float32 are made on tensor cores: exactly, in three parts, or rounded, where torch may too."""
    if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
        return "tf32x3"
    return "tf32"


# ---- scans: All steps of a cell on a device, forward and backward: the storage, the launches, and what is left to large products.
#
# The rules of the cells are those of `rules`, and a scan is made from one; the kernels are in `forward` and `backward`.
# Gradients of the weights are products over all steps, after the scan: always the same numbers, no atomic sums.
#
# Every step reads all rows. A scan does not know cells, layers or autograd. Needs triton.
#
# Legend: T steps, B rows, R = T·B tokens, H width.

Tensors = Sequence[Tensor]
ForwardResult = tuple[list[Tensor], list[Tensor]]
"""Of each memory the state before each step and after the last, (B + R, H); what the backward needs beside them."""
BackwardResult = tuple[Tensor, list[Tensor], list[Tensor]]
"""The gradients of the projected inputs, of the weights and of the state."""


class TritonScan(ABC):
    """A cell over time on a device, and its derivative."""

    @abstractmethod
    def forward(self, layout: ScanLayout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> ForwardResult:
        """All steps. `keep`: whether there will be a backward."""

    @abstractmethod
    def backward(self, layout: ScanLayout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> BackwardResult:
        """All steps in reverse, given what `forward` made and kept."""


def scan_for(rule: BPTTRule) -> TritonScan:
    """The scan of a cell that has this rule."""
    if isinstance(rule, GatedRule):
        return TwoPhaseScan(rule.keeps, rule.update)
    if isinstance(rule, RNNRule):
        return OnePhaseScan("linear" if rule.linear else "tanh")
    assert isinstance(rule, LSTMRule | ResetAfterRule)
    return OnePhaseScan("lstm" if isinstance(rule, LSTMRule) else "gru")


class OnePhaseScan(TritonScan):
    """RNN ("tanh", "linear"), LSTM ("lstm") and GRU with reset="after" ("gru"): one phase a step."""

    def __init__(self, cell: str) -> None:
        self.cell = cell

    def forward(self, layout: ScanLayout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> ForwardResult:
        R, H = len(projected), layout.width
        hidden = _with_initial(state[0], R)
        cells = _with_initial(state[1].float(), R) if self.cell == "lstm" else hidden
        gated = keep and self.cell in ("lstm", "gru")
        gates = torch.empty_like(projected) if gated else hidden
        inner = projected.new_empty(R, H) if gated and self.cell == "gru" else hidden
        bias = weights[1] if self.cell == "gru" else hidden
        layout.launch(triton_steps.simple_forward, [projected, weights[0].contiguous(), bias, hidden, cells, gates, inner,
                                       hidden if lengths is None else lengths],
                      range(R // layout.rows), 1, CELL=self.cell, PADDED=lengths is not None, KEEP=keep)
        return [hidden, cells] if self.cell == "lstm" else [hidden], [gates, inner] if gated else []

    def backward(self, layout: ScanLayout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> BackwardResult:
        W, hidden, (R, H), B = weights[0], memories[0], d_hidden.shape, layout.rows
        cells = memories[-1]
        gates, inner = kept or (hidden, hidden)
        d_gates = _with_final_zeros(hidden, R, len(W), B)
        d_inner = _with_final_zeros(hidden, R, H, B) if self.cell == "gru" else d_gates
        carried = _alternating(d_final[0], R // B)
        d_cells = _alternating(d_final[1], R // B) if self.cell == "lstm" else carried
        layout.launch(triton_steps.simple_backward, [W.t().contiguous(), hidden, cells, gates, inner, d_hidden, d_gates, d_inner,
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


class TwoPhaseScan(TritonScan):
    """GRU, MUT1, MUT2 and MUT3: two phases a step. `keeps` and `update` are those of `rules.GatedRule`."""

    def __init__(self, keeps: bool, update: str) -> None:
        self.keeps, self.update = keeps, update

    def forward(self, layout: ScanLayout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> ForwardResult:
        R, H = len(projected), layout.width
        hidden = _with_initial(state[0], R)
        squashed = _with_initial(state[0].tanh(), R) if self.update == "squashed" else hidden
        gates, scaled = torch.empty_like(projected), projected.new_empty(R, H)
        layout.launch(triton_steps.gated_forward, [projected, weights[0].contiguous(), hidden, scaled, squashed, gates,
                                      hidden if lengths is None else lengths],
                      range(R // layout.rows), 2, KEEPS=self.keeps, UPDATE=self.update, PADDED=lengths is not None)
        return [hidden], [gates, scaled, squashed]

    def backward(self, layout: ScanLayout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> BackwardResult:
        (W,), (hidden,), (gates, scaled, squashed) = weights, memories, kept
        (R, H), B = d_hidden.shape, layout.rows
        d_gates = _with_final_zeros(hidden, R, 3 * H, B)
        carried = d_final[0].to(torch.float32, copy=True)
        layout.launch(triton_steps.gated_backward, [W.t().contiguous(), hidden, squashed, gates, d_hidden, d_gates, carried,
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


def _with_initial(first: Tensor, tokens: int) -> Tensor:
    """Room for a state before each step and after the last, the first one filled in, (B + R, H)."""
    room = first.new_empty(len(first) + tokens, first.shape[1])
    room[:len(first)] = first
    return room


def _with_final_zeros(like: Tensor, tokens: int, width: int, rows: int) -> Tensor:
    """Room for the gradients of all steps, and zeros for the one behind the last, (R + B, width)."""
    room = like.new_empty(tokens + rows, width)
    room[tokens:] = 0.0
    return room


def _alternating(final: Tensor, steps: int) -> Tensor:
    """Two places that take turns, (2, B, H), in float32: step t reads the other one, and the last finds `final`."""
    room = final.new_empty(2, *final.shape, dtype=torch.float32)
    room[steps % 2] = final
    return room
