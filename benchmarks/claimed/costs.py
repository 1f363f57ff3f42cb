"""Two claims of cost: attention is parallel and an RNN is not; attention is hungry for memory.

Time is that of one sequence, forward and backward, by its length: what an RNN must do token by token, attention does at
once. Memory is the most that is held beyond the inputs while attention goes forward and backward: `exact` holds the
matrix of weights, the fused kernel (`sdpa`) and `tiled` do not.

Legend: N tokens, D width.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from timing import Work, medians
from torch import nn
from torch.profiler import ProfilerActivity, profile

import regard
from claimed.claim import Claim, Numbers, Rows, Verdict
from regard.attention.layer import Attention, SelfAttention
from regard.recurrence.scan import Recurrence

WIDTH, HEADS = 64, 4
WIDE = 256
"""Of the layers whose time is taken: at a width of 64 the square of the length costs more than the projections."""
BACKENDS = ("exact", "tiled", "sdpa")


def parallel(lengths: Sequence[int] = (64, 256, 1024), repeats: int = 11, width: int = WIDE) -> Numbers:
    """Milliseconds of one sequence in one layer, forward and backward, on a GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    taken: dict[str, dict[str, float]] = {"lstm": {}, "attention": {}}
    for length in lengths:
        x = torch.randn(1, length, width, device=device, requires_grad=True)
        layers: dict[str, nn.Module] = {"lstm": Recurrence(width).to(device),
                                        "attention": SelfAttention(Attention(width, heads=HEADS)).to(device)}
        works: dict[str, Work] = {name: partial(_pass, layer, x) for name, layer in layers.items()}
        for name, milliseconds in medians(works, device=device, repeats=repeats).items():
            taken[name][str(length)] = milliseconds
    return {"ms": taken, "width": width, "device": device, "threads": torch.get_num_threads()}


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


def _peak(backend: str, length: int) -> int:
    """The most bytes that one forward and backward pass holds at once, beyond what was there before.

    On a CPU every allocation and every release is counted, so that it is exact and the same every time. The memory of
    the process would tell less: it holds what other work left behind, and a busy machine takes some of it away.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = [torch.zeros(1, HEADS, length, WIDTH, device=device, requires_grad=True) for _ in range(3)]
    upstream = torch.ones_like(tensors[0])
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(regard.attend(*tensors, backend=backend), tensors, upstream)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        torch.autograd.grad(regard.attend(*tensors, backend=backend), tensors, upstream)
    changes = [event.nbytes() for event in sorted(seen.profiler.kineto_results.events(), key=lambda one: one.start_ns())
               if event.name() == "[memory]"]
    return max(accumulate(changes))


def _pass(layer: nn.Module, x: torch.Tensor) -> None:
    torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])


CLAIMS = {
    "parallel": Claim("Attention reads a sequence at once, an RNN token by token: it takes longer, the longer the "
                      "sequence.", parallel, judge_parallel, shown_parallel),
    "memory": Claim("Attention is hungry for memory: it grows with the square of the length, unless a fused kernel "
                    "keeps the weights nowhere.", memory, judge_memory, shown_memory),
}
