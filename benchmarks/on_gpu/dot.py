"""Dot attention over long sequences: which of torch's kernels is chosen, how fast it is, and what choosing costs.

Each kernel is called by name, too. The overhead is that of `regard.attend` over the same call of torch under the best
of them, on an idle GPU: what Python does before a kernel can start counts. Forward passes run without gradients;
backward passes are timed alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from timing import Work
from torch import Tensor
from torch.backends import cuda
from torch.nn.functional import scaled_dot_product_attention

import regard
from on_gpu.rows import Cost, Row, Setting, Table, compared, measured

OURS, DEFAULT = "regard.attend", "torch's choice"
SWITCHES: dict[str, Callable[[bool], None]] = {
    "cudnn": cuda.enable_cudnn_sdp, "flash": cuda.enable_flash_sdp, "efficient": cuda.enable_mem_efficient_sdp,
    "math": cuda.enable_math_sdp}
NAMED = ("cudnn", "flash", "efficient")
TOKENS = 65_536
"""Of a batch."""


def tables(setting: Setting) -> Iterator[Table]:
    """Two lengths, with and without a causal mask."""
    heads, width = (2, 16) if setting.tiny else (8, 128)
    for length in (32, 64) if setting.tiny else (4096, 16_384):
        batch = 2 if setting.tiny else TOKENS // length
        for mask in (None, regard.Causal()):
            tensors = [setting.random(batch, heads, length, width) for _ in range(3)]
            rows = _directions(tensors, setting, mask)
            chosen = regard.explain(*tensors, mask=mask)
            about = "no mask" if mask is None else "causal"
            yield Table(f"Dot attention, B {batch}, H {heads}, N {length:,}, d {width}, {about}; chosen: "
                        f"{chosen.backend}, {chosen.detail}", "the best kernel", rows)


def _directions(tensors: list[Tensor], setting: Setting, mask: "regard.Causal | None") -> list[Row]:
    B, H, N, D = tensors[0].shape
    upstream = torch.randn_like(tensors[0])
    plain = partial(scaled_dot_product_attention, is_causal=mask is not None)
    calls: dict[str, Callable[..., Tensor]] = {OURS: partial(regard.attend, mask=mask), DEFAULT: plain}
    calls |= {name: partial(_forced, name, plain) for name in NAMED if setting.on_gpu}
    operations = 4 * B * H * N * N * D / (1 if mask is None else 2)
    with torch.no_grad():
        forward: dict[str, Work] = {name: partial(call, *tensors) for name, call in calls.items()}
        rows = _rated("forward", forward, setting, operations)
    able = {row.who for row in rows if row.ms is not None}
    backward = {name: _backward(call, tensors, upstream) for name, call in calls.items() if name in able}
    both: dict[str, Work] = {name: partial(_both, calls[name], tensors, upstream) for name in backward}
    rows += _rated("backward", backward, setting, 2.5 * operations)
    return rows + _rated("both", both, setting, 3.5 * operations)


def _rated(work: str, works: dict[str, Work], setting: Setting, operations: float) -> list[Row]:
    """Rows with their rates, compared with the fastest kernel that torch was told to take."""
    rows = measured(work, works, setting, base="", cost=Cost(products=operations), repeats=15,
                    goal="≤ 1.02 of the best kernel")
    rows = [row if row.ms is None else replace(row, rate=f"{operations / row.ms / 1e9:,.0f} TFLOP/s") for row in rows]
    named = [row for row in rows if row.ms is not None and row.who in (NAMED if setting.on_gpu else (DEFAULT,))]
    return compared(rows, min(named, key=lambda row: row.ms or 0.0).who) if named else rows


def _forced(name: str, call: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Under one kernel. The switches take a microsecond, where the context of torch takes a hundred."""
    before = (cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
              cuda.math_sdp_enabled())
    for kernel, switch in SWITCHES.items():
        switch(kernel == name)
    try:
        return call(*tensors)
    finally:
        for switch, was in zip(SWITCHES.values(), before, strict=True):
            switch(was)


def _backward(call: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor) -> Work:
    """A backward pass of an output that the first run makes, before anything is timed."""
    kept = list[Tensor]()

    def work() -> None:
        if not kept:
            kept.append(call(*tensors))
        torch.autograd.grad(kept[0], tensors, upstream, retain_graph=True)

    return work


def _both(call: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor) -> None:
    torch.autograd.grad(call(*tensors), tensors, upstream)
