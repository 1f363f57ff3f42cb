"""ReLU and sigmoid weights of dot products, forward and backward, against going block by block in torch.

Softmax by torch's own kernels stands beside them: the same products, by kernels that many have worked on.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from timing import Work
from torch import Tensor

import regard
from on_gpu.rows import Cost, Row, Setting, Table, measured

OURS, TILED, SOFTMAX = "regard", "regard, tiled", "softmax, torch's kernels"


def tables(setting: Setting) -> Iterator[Table]:
    """Both normalisers, with and without a causal mask."""
    B, H, N, D = (1, 2, 48, 16) if setting.tiny else (4, 8, 4096, 64)
    tensors, rows = [setting.random(B, H, N, D) for _ in range(3)], list[Row]()
    upstream, pairs = torch.randn_like(tensors[0]), B * H * N * N
    for kind in ("relu", "sigmoid"):
        for mask in (None, regard.Causal()):
            works: dict[str, Work] = {
                OURS: partial(_training, tensors, upstream, normalize=kind, mask=mask),
                TILED: partial(_training, tensors, upstream, normalize=kind, mask=mask, backend="tiled"),
                SOFTMAX: partial(_training, tensors, upstream, normalize="softmax", mask=mask, backend="sdpa")}
            seen = pairs / (1 if mask is None else 2)
            cost = Cost(products=14 * seen * D, special=2 * seen if kind == "sigmoid" else 0)
            rows += measured(f"{kind}, {'no mask' if mask is None else 'causal'}", works, setting, base=OURS, cost=cost)
    chosen = regard.explain(*tensors, normalize="relu").backend
    yield Table(f"ReLU and sigmoid weights, B {B}, H {H}, N {N:,}, d {D}, forward and backward; chosen: {chosen}", OURS,
                rows)


def _training(tensors: list[Tensor], upstream: Tensor, **options: Any) -> None:
    torch.autograd.grad(regard.attend(*tensors, **options), tensors, upstream)
