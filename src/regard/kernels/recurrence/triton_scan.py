"""Scans of recurrent cells on a GPU: storage, launches, and the large products after a scan.

    resident    one launch does all steps: as many programs as fit on the device at once, which wait for each other
    stepwise    one launch for each phase of each step; slower, but possible for every batch

`fused_scan` is one operation of autograd. Its forward pass starts from inputs that are already projected; its backward
pass runs the steps in reverse and computes the gradients of the weights as products over all tokens at the end, so they
are deterministic: there are no atomic sums. The gradient cannot itself be differentiated.

The rules are those of `bptt`; the kernels are in `triton_steps`. Every step takes all rows; rows that end early keep
their state. This module knows neither cells nor layers, and needs Triton.

Legend: T steps, B rows, R = T·B tokens, H width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import checks
from regard.kernels.launch import launch
from regard.kernels.recurrence import triton_steps
from regard.kernels.recurrence.bptt import BPTTRule, GatedRule, LSTMRule, ResetAfterRule, RNNRule

COUNTER_STRIDE = 32
"""Distance between the int32 counters of two groups: each counter has a cache line to itself."""
MAX_GATES = 4
"""The largest number of gates in one product."""
SHARED_MEMORY = 192 * 1024
"""Bytes of shared memory for loads ahead of the products; a Hopper multiprocessor has 227 KiB."""


@dataclass(frozen=True)
class ScanLayout:
    """The rows and features of a program, and the depth of its products."""

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
        """Choose the layout for a scan over this many rows."""
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
        """Launch all steps in this order, each in `phases` phases."""
        order = list(steps)
        counters = torch.zeros(self.grid[1] * COUNTER_STRIDE if self.resident else 1, dtype=torch.int32,
                               device=tensors[0].device)
        constants |= {"H": self.width, "BLOCK_ROWS": self.block_rows, "BLOCK_WIDTH": self.block_width,
                      "BLOCK_DEPTH": self.block_depth, "WAITS": self.resident,
                      "PRECISION": dot_precision(tensors[0].dtype), "num_warps": self.warps, "num_stages": self.stages}
        if self.resident:
            whole = {"PHASE": 0} if phases > 1 else {}
            launch(kernel, self.grid, *tensors, counters, min(order), max(order) + 1, self.rows, **constants, **whole,
                   launch_cooperative_grid=True)
            return
        for step in order:
            for phase in range(phases):
                part = {"PHASE": phase + 1} if phases > 1 else {}
                launch(kernel, self.grid, *tensors, counters, step, step + 1, self.rows, **constants, **part)


def dot_precision(dtype: torch.dtype) -> str:
    """The input precision of float32 products on tensor cores: exact in three parts, or rounded where torch rounds."""
    if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
        return "tf32x3"
    return "tf32"


Tensors = Sequence[Tensor]
ForwardResult = tuple[list[Tensor], list[Tensor]]
"""For each memory the state before each step and after the last, (B + R, H); what else the backward pass needs."""
BackwardResult = tuple[Tensor, list[Tensor], list[Tensor]]
"""The gradients of the projected inputs, of the weights and of the state."""


class TritonScan(ABC):
    """A cell over time on a device, and its derivative."""

    @abstractmethod
    def forward(self, layout: ScanLayout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> ForwardResult:
        """Run all steps. With `keep` there will be a backward pass."""

    @abstractmethod
    def backward(self, layout: ScanLayout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> BackwardResult:
        """Run all steps in reverse, with the results of `forward`."""


def scan_for(rule: BPTTRule) -> TritonScan:
    """The scan of a cell with this rule."""
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
        layout.launch(triton_steps.simple_forward, [projected, weights[0].contiguous(), bias, hidden, cells, gates,
                                                    inner, hidden if lengths is None else lengths],
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
        layout.launch(triton_steps.simple_backward, [W.t().contiguous(), hidden, cells, gates, inner, d_hidden, d_gates,
                                                     d_inner, carried, d_cells, hidden if lengths is None else lengths],
                      range(R // B - 1, -1, -1), 1, CELL=self.cell, PADDED=lengths is not None)
        before, d_projected = hidden[:R], d_gates[:R]
        if self.cell == "gru":
            d_inner = d_inner[:R]
            d_h = carried[0] + (d_projected[:B, :2 * H] @ W[:2 * H] + d_inner[:B] @ W[2 * H:]).float()
            d_W = [torch.cat([d_projected[:, :2 * H].t() @ before, d_inner.t() @ before]), d_inner.sum(0)]
        else:
            d_h = carried[0] + (d_projected[:B] @ W).float()
            d_W = [d_projected.t() @ before]
        d_state = [d_h, d_cells[0]] if self.cell == "lstm" else [d_h]
        return d_projected, d_W, [gradient.to(hidden.dtype) for gradient in d_state]


class TwoPhaseScan(TritonScan):
    """GRU, MUT1, MUT2 and MUT3: two phases a step. `keeps` and `update` are those of `GatedRule`."""

    def __init__(self, keeps: bool, update: str) -> None:
        self.keeps, self.update = keeps, update

    def forward(self, layout: ScanLayout, projected: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None,
                keep: bool) -> ForwardResult:
        R, H = len(projected), layout.width
        hidden = _with_initial(state[0], R)
        tanh_hidden = _with_initial(state[0].tanh(), R) if self.update == "tanh" else hidden
        gates, scaled = torch.empty_like(projected), projected.new_empty(R, H)
        layout.launch(triton_steps.gated_forward, [projected, weights[0].contiguous(), hidden, scaled, tanh_hidden,
                                                   gates, hidden if lengths is None else lengths],
                      range(R // layout.rows), 2, KEEPS=self.keeps, UPDATE=self.update, PADDED=lengths is not None)
        return [hidden], [gates, scaled, tanh_hidden]

    def backward(self, layout: ScanLayout, weights: Tensors, memories: Tensors, kept: Tensors, lengths: Tensor | None,
                 d_hidden: Tensor, d_final: Tensors) -> BackwardResult:
        (W,), (hidden,), (gates, scaled, tanh_hidden) = weights, memories, kept
        (R, H), B = d_hidden.shape, layout.rows
        d_gates = _with_final_zeros(hidden, R, 3 * H, B)
        carried = d_final[0].to(torch.float32, copy=True)
        layout.launch(triton_steps.gated_backward, [W.t().contiguous(), hidden, tanh_hidden, gates, d_hidden, d_gates,
                                                    carried, torch.empty_like(carried),
                                                    hidden if lengths is None else lengths],
                      range(R // B - 1, -1, -1), 2, KEEPS=self.keeps, UPDATE=self.update, PADDED=lengths is not None)
        together = 2 * H if self.update == "hidden" else H  # the gates that read h
        d_projected, before = d_gates[:R], hidden[:R]
        d_h = carried + (d_projected[:B, :together] @ W[:together]).float()
        d_W = [d_projected[:, :together].t() @ before, d_projected[:, 2 * H:].t() @ scaled]
        if self.update == "tanh":
            d_W.insert(1, d_projected[:, H:2 * H].t() @ tanh_hidden[:R])
            d_h += (d_projected[:B, H:2 * H] @ W[H:2 * H]).float() * (1.0 - tanh_hidden[:B].float() ** 2)
        return d_projected, [torch.cat(d_W)], [d_h.to(hidden.dtype)]


class _FusedScan(torch.autograd.Function):
    """All steps of a cell as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, rule: BPTTRule, rows: int, lengths: Tensor | None, keep: bool, projected: Tensor,
                *given: Tensor) -> tuple[Tensor, ...]:
        weights, state = given[:-rule.memories], given[-rule.memories:]
        layout = ScanLayout.of(rows, weights[0].shape[1], projected.dtype, projected.device)
        with torch.autocast(projected.device.type, enabled=False):
            memories, kept = scan_for(rule).forward(layout, projected, weights, state, lengths, keep)
        ctx.rule, ctx.layout, ctx.count, ctx.padded = rule, layout, len(weights), lengths is not None
        ctx.save_for_backward(*weights, *memories, *kept, *([] if lengths is None else [lengths]))
        return memories[0][rows:], *(memory[-rows:].to(projected.dtype, copy=True) for memory in memories)

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor, *d_final: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # torch would silently treat the gradient as a constant
            expected = '"loop" for second derivatives (create_graph=True)'
            raise checks.wrong("backend", expected, '"fused"')
        saved, memories = list(ctx.saved_tensors), ctx.count + ctx.rule.memories
        lengths = saved.pop() if ctx.padded else None
        with torch.autocast(d_hidden.device.type, enabled=False):
            d_projected, d_weights, d_state = scan_for(ctx.rule).backward(
                ctx.layout, saved[:ctx.count], saved[ctx.count:memories], saved[memories:], lengths,
                d_hidden.contiguous(), d_final)
        return None, None, None, None, d_projected, *d_weights, *d_state


def fused_scan(rule: BPTTRule, rows: int, lengths: Tensor | None, keep: bool, projected: Tensor,
               *weights_and_state: Tensor) -> tuple[Tensor, ...]:
    """Run all steps of a cell: the hidden vector of every token, (R, H), and the final state of each row.

    Args:
        rows: B, the same at every step.
        lengths: how many tokens each row has, (B,); all steps where None.
        keep: whether there will be a backward pass.
        projected: what of the cell's equation depends on the inputs alone, (R, gates·H), contiguous.
        weights_and_state: the weights that the rule reads, then the initial state, (B, H) for each memory.
    """
    results: tuple[Tensor, ...] = _FusedScan.apply(rule, rows, lengths, keep, projected, *weights_and_state)
    return results


def _with_initial(first: Tensor, tokens: int) -> Tensor:
    """Storage for a state before each step and after the last, (B + R, H); the first one is filled in."""
    storage = first.new_empty(len(first) + tokens, first.shape[1])
    storage[:len(first)] = first
    return storage


def _with_final_zeros(like: Tensor, tokens: int, width: int, rows: int) -> Tensor:
    """Storage for the gradients of all steps, then zeros for the step after the last, (R + B, width)."""
    storage = like.new_empty(tokens + rows, width)
    storage[tokens:] = 0.0
    return storage


def _alternating(final: Tensor, steps: int) -> Tensor:
    """Two slots that take turns, (2, B, H), in float32: step t reads the other slot; the last step reads `final`."""
    storage = final.new_empty(2, *final.shape, dtype=torch.float32)
    storage[steps % 2] = final
    return storage
