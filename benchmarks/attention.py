"""Attention measured: the overhead of `regard.attend`, the memory of `tiled`, the kernels of a GPU, the statistics.

    python benchmarks/attention.py                 every part that this machine can run
    python benchmarks/attention.py overhead        one part: overhead, memory, kernels or statistics

Everything that is compared runs in this one call. On a CPU: float32; on a GPU: bfloat16, unless a row says otherwise.
"""

import resource
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import torch
from timing import main, medians, table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention.statistics import STATISTICS_BACKENDS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
BATCH, HEADS, WIDTH = 64 if DEVICE == "cuda" else 8, 8, 64


def inputs(*shape: int, dtype: torch.dtype = DTYPE) -> list[Tensor]:
    """Query, key and value of this shape, with gradients."""
    return [torch.randn(*shape, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]


def forward_and_backward(attend: partial[Tensor], tensors: list[Tensor], upstream: Tensor) -> None:
    """One training pass."""
    torch.autograd.grad(attend(*tensors), tensors, upstream)


def overhead() -> str:
    """`regard.attend` against the bare torch kernel that it ends in."""
    rows = []
    for length, repeats in ((256, 101), (512, 51), (1024, 21)):  # the shorter, the noisier
        tensors = inputs(BATCH, HEADS, length, WIDTH)
        upstream = torch.randn_like(tensors[0])
        lengths = torch.randint(length // 2, length + 1, (BATCH,), device=DEVICE)
        padding = (torch.arange(length, device=DEVICE) < lengths[:, None])[:, None, None, :]
        cases = {"none": ({}, {}), "Causal()": ({"mask": regard.Causal()}, {"is_causal": True}),
                 "Padding(...)": ({"mask": regard.Padding(lengths)}, {"attn_mask": padding})}
        for name, (ours, bare) in cases.items():
            attend = partial(regard.attend, **ours)
            kernel = partial(scaled_dot_product_attention, **bare)
            with torch.no_grad():
                forward = medians({"ours": partial(attend, *tensors), "bare": partial(kernel, *tensors)}, device=DEVICE,
                                  repeats=repeats)
            training = medians({"ours": partial(forward_and_backward, attend, tensors, upstream),
                                "bare": partial(forward_and_backward, kernel, tensors, upstream)}, device=DEVICE,
                               repeats=repeats)
            rows.append([str(length), name, *_compared(forward), *_compared(training)])
    header = ["N", "mask", "attend ms", "torch ms", "overhead", "with backward", "torch ms", "overhead"]
    return f"attend against torch's kernel, batch {BATCH}, heads {HEADS}, width {WIDTH}\n" + table(header, rows)


def memory() -> str:
    """Peak memory and time of additive attention, forward and backward, N = 4,096, D = 64."""
    rows, peaks = [], {}
    for backend in ("tiled", "exact"):
        command = [sys.executable, __file__, "--additive", backend]
        peak, seconds = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
        peaks[backend] = peak
        rows.append([backend, f"{peak / 2**20:,.0f} MiB", f"{seconds:.2f} s"])
    share = f"tiled holds 1/{peaks['exact'] / peaks['tiled']:.0f} of what exact holds"
    return "additive attention, N 4,096, D 64, float32, forward and backward\n" + table(
        ["backend", "peak beyond the inputs", "time"], rows) + f"\n{share}"


def additive(backend: str) -> None:
    """In a process of its own: print the peak in bytes beyond what was there before, and the seconds."""
    torch.manual_seed(0)
    tensors = inputs(1, 1, 4096, 64, dtype=torch.float32)
    score = regard.Additive(torch.randn(64, device=DEVICE, requires_grad=True))
    attend = partial(regard.attend, score=score, backend=backend)
    small = [tensor[:, :, :64] for tensor in tensors]
    forward_and_backward(attend, small, torch.ones_like(small[0]))  # what a first call brings in is not counted
    before, start = _used(), time.perf_counter()
    with _Watch() as watch:
        forward_and_backward(attend, tensors, torch.ones_like(tensors[0]))
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else watch.most
    print(peak - before, seconds)


def kernels() -> str:
    """The kernel that regard chooses against torch's own choice and each kernel by name."""
    if DEVICE != "cuda":
        return "kernels: only on a GPU"
    rows = []
    named = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION}
    for width, length in ((64, 64), (64, 256), (64, 1024), (128, 1024), (128, 4096), (128, 8192)):
        for layout in ("heads first", "tokens first"):
            for causal in (False, True):
                tensors = _laid_out(layout, 65536 // length, 1024 // width, length, width)
                upstream = torch.randn_like(tensors[0])
                mask = regard.Causal() if causal else None
                bare = partial(scaled_dot_product_attention, is_causal=causal)
                works = {"regard": partial(forward_and_backward, partial(regard.attend, mask=mask), tensors, upstream),
                         "torch": partial(forward_and_backward, bare, tensors, upstream)}
                for name, kernel in named.items():
                    works[name] = partial(_forced, kernel, bare, tensors, upstream)
                taken = medians(works, device=DEVICE, repeats=11)
                best = min(taken[name] for name in named)
                rows.append([str(width), str(length), layout, "causal" if causal else "none",
                             *(f"{taken[name]:.3f}" for name in works), f"{(taken['regard'] / best - 1):+.1%}"])
    header = ["D", "N", "layout", "mask", *works, "regard over best"]
    return "forward and backward, 65,536 tokens, bfloat16, milliseconds\n" + table(header, rows)


def looks() -> str:
    """Statistics without the matrix, against one attention forward."""
    length = 16384 if DEVICE == "cuda" else 2048
    query, key, value = (t.detach() for t in inputs(1, HEADS, length, WIDTH))
    problem = regard.Look(query, key, mask=regard.Causal()).problem
    works = {"attention forward": partial(regard.attend, query, key, value, mask=regard.Causal())}
    for name in ("rows", "closed_form"):
        backend = STATISTICS_BACKENDS[name]
        works[f"entropy, {name}"] = partial(backend.entropy, problem)
        works[f"column sums, {name}"] = partial(backend.column_sums, problem)
        works[f"block map of 32 × 32, {name}"] = partial(backend.block_map, problem, length // 32)
    works["row max, rows"] = partial(STATISTICS_BACKENDS["rows"].row_max, problem)
    works["top 5, rows"] = partial(STATISTICS_BACKENDS["rows"].top_k, problem, 5)
    taken = medians(works, device=DEVICE, repeats=5)
    once = taken["attention forward"]
    rows = [[name, f"{taken[name]:.1f}", f"{taken[name] / once:.1f}×"] for name in works]
    title = f"statistics of causal attention, {HEADS} heads, N {length:,}, width {WIDTH}"
    return f"{title}\n" + table(["what", "ms", "of a forward"], rows)


def _compared(taken: dict[str, float]) -> list[str]:
    return [f"{taken['ours']:.3f}", f"{taken['bare']:.3f}", f"{taken['ours'] / taken['bare'] - 1:+.1%}"]


def _laid_out(layout: str, batch: int, heads: int, length: int, width: int) -> list[Tensor]:
    """Tokens first is how projections leave them: (B, N, H, D) seen as (B, H, N, D)."""
    if layout == "heads first":
        return inputs(batch, heads, length, width)
    return [t.transpose(1, 2).detach().requires_grad_() for t in inputs(batch, length, heads, width)]


def _forced(kernel: SDPBackend, attend: partial[Tensor], tensors: list[Tensor], upstream: Tensor) -> None:
    with sdpa_kernel(kernel):
        forward_and_backward(attend, tensors, upstream)


def _used() -> float:
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else psutil.Process().memory_info().rss


class _Watch:
    """The most memory that this process holds inside the block, looked at every millisecond."""

    def __enter__(self) -> "_Watch":
        self.most, self._over = _used(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.001):
            self.most = max(self.most, psutil.Process().memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        # The high-water mark of the whole process is never missed; it counts only where it lies above the samples.
        self.most = max(self.most, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


PARTS = {"overhead": overhead, "memory": memory, "kernels": kernels, "statistics": looks}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--additive"]:
        additive(sys.argv[2])
    else:
        main(PARTS, __doc__, __file__, DEVICE)
