"""How the work of a scan is laid out on a device: which program does which rows and features, and how it is launched.

    resident    one launch does all steps: as many programs as fit on the device at once, which wait for each other
    stepwise    one launch for each phase of each step; slower, and possible everywhere

A layout does not know what a step computes. Needs triton.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels

APART = 32
"""Counters of groups, in int32: far enough for each to have a line of the cache to itself."""

GATES = 4
"""That a product may have at most."""
SHARED = 192 * 1024
"""Bytes of shared memory for what is loaded ahead of the products; a Hopper multiprocessor has 227 KiB."""


@dataclass(frozen=True)
class Layout:
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
    def of(cls, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> "Layout":
        """The layout for a scan over this many rows."""
        block_rows = min(64, max(16, triton.next_power_of_2(rows)))
        block_depth = min(128 if dtype.itemsize == 2 else 64, max(16, triton.next_power_of_2(width)))
        groups, block_width = triton.cdiv(rows, block_rows), 16
        room = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
        while groups * triton.cdiv(width, block_width) > room and block_width < 64:
            block_width *= 2
        resident = groups * triton.cdiv(width, block_width) <= room
        block_width = block_width if resident else 16
        stage = (block_rows + GATES * block_width) * block_depth * dtype.itemsize
        return cls(rows, width, resident, block_rows, block_width, block_depth, warps=8 if block_width == 64 else 4,
                   stages=max(2, min(4, SHARED // stage)))

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of features, and groups of rows."""
        return triton.cdiv(self.width, self.block_width), triton.cdiv(self.rows, self.block_rows)

    def launch(self, kernel: Any, tensors: list[Tensor], steps: Iterable[int], phases: int, **constants: Any) -> None:
        """All steps in this order, each of so many phases."""
        order = list(steps)
        counters = torch.zeros(self.grid[1] * APART if self.resident else 1, dtype=torch.int32,
                               device=tensors[0].device)
        constants |= {"H": self.width, "BLOCK_ROWS": self.block_rows, "BLOCK_WIDTH": self.block_width,
                      "BLOCK_DEPTH": self.block_depth, "WAITS": self.resident, "PRECISION": precision(tensors[0].dtype),
                      "num_warps": self.warps, "num_stages": self.stages}
        if self.resident:
            whole = {"PHASE": 0} if phases > 1 else {}
            kernels.launch(kernel, self.grid, *tensors, counters, min(order), max(order) + 1, self.rows, **constants,
                           **whole, launch_cooperative_grid=True)
            return
        for step in order:
            for phase in range(phases):
                part = {"PHASE": phase + 1} if phases > 1 else {}
                kernels.launch(kernel, self.grid, *tensors, counters, step, step + 1, self.rows, **constants, **part)


def precision(dtype: torch.dtype) -> str:
    """How products of float32 are made on tensor cores: exactly, in three parts, or rounded, where torch may too."""
    if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
        return "tf32x3"
    return "tf32"
