"""Recurrence measured: every cell against `torch.nn.LSTM` of the same width, and the three ways to mix side by side.

    python benchmarks/recurrence.py                every part
    python benchmarks/recurrence.py cells          one part: cells, padding, steps or mixers

Everything that is compared runs in this one call, in turns, and medians are compared. Forward and backward, float32.

Denormal numbers are flushed to zero for all contestants (`torch.set_flush_denormal(True)`). The gradients of a
recurrent network vanish, and a CPU is several times slower with denormal numbers: training on a CPU does well to do the
same. The package does not set it by itself.
"""

import importlib.util
from functools import partial

import torch
from timing import Work, main, medians, table
from torch import Tensor, nn

import regard
from regard.recurrence.backends import BACKENDS
from regard.recurrence.scan import Recurrence

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, BATCH, WIDTH = 256, 32, 256
CELLS = {"lstm": {}, "rnn": {}, "gru": {}, 'gru, reset="after"': {"reset": "after"}, "mut1": {}, "mut2": {}, "mut3": {}}


def network(name: str, backend: str | None = None) -> Recurrence:
    """The recurrence of a row of the tables."""
    return Recurrence(WIDTH, cell=name.split(",")[0], backend=backend, **CELLS[name]).to(DEVICE)


def training(module: nn.Module, x: Tensor, **options: object) -> Work:
    """One forward and backward, with the gradients of the input and of all weights."""
    wanted = [x, *module.parameters()]
    upstream = torch.randn(*x.shape[:2], WIDTH, device=DEVICE)

    def work() -> None:
        y = module(x, **options)
        torch.autograd.grad(y[0] if isinstance(y, tuple) else y, wanted, upstream)

    return work


def inference(module: nn.Module, x: Tensor) -> Work:
    """One forward without gradients."""
    return partial(torch.no_grad()(module), x)


def tokens() -> Tensor:
    """A batch (B, N, D)."""
    return torch.randn(BATCH, STEPS, WIDTH, device=DEVICE, requires_grad=True)


def cells() -> str:
    """Every cell on every backend that can run it, against torch's LSTM."""
    x, base = tokens(), nn.LSTM(WIDTH, WIDTH, batch_first=True).to(DEVICE)
    modules: dict[str, nn.Module] = {"torch.nn.LSTM": base}
    chosen = {}
    for name in CELLS:
        chosen[name] = network(name).explain(x).backend
        for backend, module in BACKENDS.items():
            made = network(name, backend)
            if module.refusal(made.problem(x)) is None:
                modules[f"{name}, {backend}"] = made
    taken = medians({name: training(module, x) for name, module in modules.items()}, device=DEVICE, repeats=7)
    forward = medians({name: inference(module, x) for name, module in modules.items()}, device=DEVICE, repeats=7)
    rows = []
    for name in modules:
        cell, _, backend = name.rpartition(", ")
        ratios = [f"{times[name]:.1f} ms ({times[name] / times['torch.nn.LSTM']:.2f}×)" for times in (taken, forward)]
        rows.append([cell or name, backend, "yes" if chosen.get(cell) == backend else "", *ratios])
    return f"T {STEPS}, B {BATCH}, D {WIDTH}, against torch.nn.LSTM\n" + table(
        ["cell", "backend", "chosen", "forward and backward", "forward alone"], rows)


def padding() -> str:
    """Rows of different lengths: what is chosen, against torch's packed LSTM, and the same without padding."""
    x, lengths = tokens(), torch.linspace(STEPS // 2, STEPS, BATCH).long()
    works: dict[str, Work] = {"torch.nn.LSTM, packed": training(_Packed(lengths), x)}
    for name in CELLS:
        works[name] = training(network(name), x, present=regard.Padding(lengths))
        works[f"{name}, no padding"] = training(network(name), x)
    taken = medians(works, device=DEVICE, repeats=5)
    base = taken["torch.nn.LSTM, packed"]
    rows = [["torch.nn.LSTM", f"{base:.1f}", "", "1.00×"]]
    rows += [[name, f"{taken[name]:.1f}", f"{taken[name + ', no padding']:.1f}", f"{taken[name] / base:.2f}×"]
             for name in CELLS]
    return f"rows of {STEPS // 2} to {STEPS} tokens, B {BATCH}, D {WIDTH}, forward and backward, ms\n" + table(
        ["cell", "padded", "no padding", "padded, of torch's packed LSTM"], rows)


def steps() -> str:
    """One token at a time, as in decoding."""
    x = tokens().detach()[:, :1]
    works: dict[str, Work] = {}
    for name in CELLS:
        made = network(name).eval()
        works[name] = partial(torch.no_grad()(made.step), x, made.start(BATCH))
    taken = medians(works, device=DEVICE, repeats=51)
    return f"one step of {BATCH} rows, D {WIDTH}, microseconds\n" + table(
        ["cell", "µs"], [[name, f"{taken[name] * 1e3:.0f}"] for name in CELLS])


def mixers() -> str:
    """Recurrence, convolution and self-attention on the same work."""
    x = tokens()
    works = {"torch.nn.LSTM": training(nn.LSTM(WIDTH, WIDTH, batch_first=True).to(DEVICE), x)}
    works |= {f"recurrence, {name}": training(network(name), x) for name in ("lstm", "gru", "rnn")}
    if importlib.util.find_spec("regard.convolution") is not None:
        from regard.convolution import Convolution

        works["convolution, kernel 5"] = training(Convolution(WIDTH, kernel_size=5).to(DEVICE), x)
    attention = regard.Attention(WIDTH, heads=4).to(DEVICE)
    works["self-attention, causal, 4 heads"] = training(attention, x, mask=regard.Causal())
    taken = medians(works, device=DEVICE, repeats=7)
    base = taken["torch.nn.LSTM"]
    rows = [[name, f"{milliseconds:.1f}", f"{milliseconds / base:.2f}×"] for name, milliseconds in taken.items()]
    return f"three ways to mix, N {STEPS}, B {BATCH}, D {WIDTH}, forward and backward\n" + table(
        ["mixer", "ms", "of torch.nn.LSTM"], rows)


class _Packed(nn.Module):
    """torch's LSTM on a packed sequence, back to a padded one."""

    def __init__(self, lengths: Tensor) -> None:
        super().__init__()
        self.lstm, self.lengths = nn.LSTM(WIDTH, WIDTH, batch_first=True).to(DEVICE), lengths

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


PARTS = {"cells": cells, "padding": padding, "steps": steps, "mixers": mixers}


if __name__ == "__main__":
    torch.set_flush_denormal(True)
    main(PARTS, __doc__, __file__, DEVICE)
