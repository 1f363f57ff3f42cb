"""Two claims of cost: attention is parallel and an RNN is not; attention is hungry for memory.

Time is that of one sequence, forward and backward, by its length: what an RNN must do token by token, attention does at
once. Memory is measured in a process of its own for each size, as the most that is held beyond the inputs while
attention goes forward and backward: `exact` holds the matrix of weights, the fused kernel (`sdpa`) and `tiled` do not.

Legend: N tokens, D width.
"""

import math
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from timing import Work, medians
from torch import nn

from claimed.claim import Claim, Numbers, Rows, Verdict
from regard.attention.layer import Attention
from regard.attention.mixing import SelfAttention
from regard.recurrence.scan import Recurrence

WIDTH, HEADS = 64, 4
BACKENDS = ("exact", "tiled", "sdpa")


def parallel(lengths: Sequence[int] = (64, 256, 1024), repeats: int = 7, device: str = "cpu") -> Numbers:
    """Milliseconds of one sequence in one layer, forward and backward."""
    taken: dict[str, dict[str, float]] = {"lstm": {}, "attention": {}}
    for length in lengths:
        x = torch.randn(1, length, WIDTH, device=device, requires_grad=True)
        layers: dict[str, nn.Module] = {"lstm": Recurrence(WIDTH).to(device),
                                        "attention": SelfAttention(Attention(WIDTH, heads=HEADS)).to(device)}
        works: dict[str, Work] = {name: partial(_pass, layer, x) for name, layer in layers.items()}
        for name, milliseconds in medians(works, device=device, repeats=repeats).items():
            taken[name][str(length)] = milliseconds
    return {"ms": taken, "width": WIDTH, "threads": torch.get_num_threads()}


def judge_parallel(found: Numbers) -> Verdict:
    """Attention took less time at every length, and that by more at the longest than at the shortest."""
    times = {int(length): taken / found["ms"]["attention"][length] for length, taken in found["ms"]["lstm"].items()}
    short, long = min(times), max(times)
    return Verdict(min(times.values()) > 1 and times[long] > times[short],
                   f"the LSTM takes {times[short]:.1f} times as long as attention for {short} tokens, "
                   f"{times[long]:.1f} times for {long}")


def shown_parallel(found: Numbers) -> tuple[list[str], Rows]:
    lengths = list(found["ms"]["lstm"])
    return ["layer", *(f"N {length}, ms" for length in lengths)], [
        [name, *(f"{own[length]:.2f}" for length in lengths)] for name, own in found["ms"].items()]


def memory(lengths: Sequence[int] = (512, 1024, 2048), backends: Sequence[str] = BACKENDS) -> Numbers:
    """The most bytes beyond the inputs, by backend and length."""
    return {"bytes": {backend: {str(length): _peak(backend, length) for length in lengths} for backend in backends},
            "heads": HEADS, "width": WIDTH}


def judge_memory(found: Numbers) -> Verdict:
    """Exact grows faster than N^1.5 at the end, and the fused kernel holds less than a quarter of it there."""
    sizes = sorted(map(int, found["bytes"]["exact"]))
    exact, fused = ([max(1.0, found["bytes"][name][str(size)]) for size in sizes] for name in ("exact", "sdpa"))
    power = math.log(exact[-1] / exact[-2]) / math.log(sizes[-1] / sizes[-2])
    share = fused[-1] / exact[-1]
    return Verdict(power > 1.5 and share < 0.25, f"from {sizes[-2]:,} to {sizes[-1]:,} tokens exact attention grows as "
                   f"N^{power:.1f} to {exact[-1] / 2**20:,.0f} MiB; the fused kernel holds {share:.0%} of that")


def shown_memory(found: Numbers) -> tuple[list[str], Rows]:
    lengths = list(found["bytes"]["exact"])
    return ["backend", *(f"N {length}, MiB" for length in lengths)], [
        [name, *(f"{own[length] / 2**20:,.1f}" for length in lengths)] for name, own in found["bytes"].items()]


def held(backend: str, length: int) -> None:
    """In a process of its own: print the most bytes beyond what was there before."""
    from attention import _used, _Watch, forward_and_backward, inputs

    import regard

    torch.manual_seed(0)
    attend = partial(regard.attend, backend=backend)
    small = inputs(1, HEADS, 64, WIDTH, dtype=torch.float32)
    forward_and_backward(attend, small, torch.ones_like(small[0]))  # what a first call brings in is not counted
    tensors = inputs(1, HEADS, length, WIDTH, dtype=torch.float32)
    upstream, before = torch.ones_like(tensors[0]), _used()
    with _Watch() as watch:
        forward_and_backward(attend, tensors, upstream)
        if tensors[0].is_cuda:
            torch.cuda.synchronize()
    print((torch.cuda.max_memory_allocated() if tensors[0].is_cuda else watch.most) - before)


def _peak(backend: str, length: int) -> float:
    script = Path(__file__).resolve().parent.parent / "claims.py"
    done = subprocess.run([sys.executable, str(script), "--held", backend, str(length)], check=True,
                          capture_output=True, text=True)
    return float(done.stdout)


def _pass(layer: nn.Module, x: torch.Tensor) -> None:
    torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])


CLAIMS = {
    "parallel": Claim("Attention reads a sequence at once, an RNN token by token: it takes longer, the longer the "
                      "sequence.", parallel, judge_parallel, shown_parallel),
    "memory": Claim("Attention is hungry for memory: it grows with the square of the length, unless a fused kernel "
                    "keeps the weights nowhere.", memory, judge_memory, shown_memory),
}
