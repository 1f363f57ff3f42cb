"""Recurrent scans, forward and backward: every cell against cuDNN, which has some of them, and a plain loop.

The steps follow one upon another, so the limit of matrix products is far: what counts is how long a step takes. The
limit was measured in bfloat16, and shares are given for that alone. cuDNN has no MUT and one form of the GRU; its LSTM,
which has as many weights or more, is what they are measured by.
"""

from collections.abc import Iterator

import torch
from timing import Work

from on_gpu.rows import Cost, Row, Setting, Table, measured
from regard.recurrence.backends import (
    BACKENDS,
    ScanBackend,
    ScanProblem,
    choose_scan_backend,
    explain_scan_backend,
)
from regard.recurrence.cells import make_cell

KINDS: dict[str, dict[str, str]] = {"rnn": {}, "lstm": {}, "gru": {}, 'gru, reset="after"': {"reset": "after"},
                                    "mut1": {}, "mut2": {}, "mut3": {}}
OURS, THEIRS, LOOP = "regard", "torch (cuDNN)", "a loop"


def tables(setting: Setting) -> Iterator[Table]:
    """bfloat16, then float32 with products in tf32."""
    steps, rows, width = (3, 4, 16) if setting.tiny else (512, 64, 512)
    about = f"T {steps}, B {rows}, D {width}"
    for dtype in (torch.bfloat16, torch.float32) if setting.on_gpu else (torch.float32,):
        found, chosen, name = list[Row](), set[str](), str(dtype).removeprefix("torch.")
        torch.set_float32_matmul_precision("high")
        for kind in KINDS:
            problem = _problem(kind, setting, steps, rows, width, dtype)
            chosen.add(explain_scan_backend(problem).backend if setting.on_gpu else "fused")
            found += _of(kind, problem, setting)
        torch.set_float32_matmul_precision("highest")
        yield Table(f"Scans, {about}, {name}{' (tf32)' if dtype == torch.float32 else ''}, forward and backward; "
                    f"chosen: {', '.join(sorted(chosen))}", OURS, found)


def _of(kind: str, problem: ScanProblem, setting: Setting) -> list[Row]:
    low = problem.inputs.dtype == torch.bfloat16
    works: dict[str,
                Work] = {OURS: _training(choose_scan_backend(problem, None if setting.on_gpu else "fused"), problem)}
    if BACKENDS["native"].refusal(problem) is None:
        works[THEIRS] = _training(BACKENDS["native"], problem)
    if low or setting.tiny:  # one precision is enough for the slowest
        works[LOOP] = _training(BACKENDS["loop"], problem)
    weights = sum(parameter.numel() for parameter in problem.cell.parameters() if parameter.dim() == 2)
    cost = Cost(products=6 * len(problem.inputs) * weights) if low else None
    return measured(kind, works, setting, base=OURS, cost=cost, repeats=5, goal="≤ 20 ms")


def _problem(kind: str, setting: Setting, steps: int, rows: int, width: int, dtype: torch.dtype) -> ScanProblem:
    made = make_cell(kind.split(",")[0], width, width, **KINDS[kind]).to(setting.device, dtype)
    inputs = setting.random(steps * rows, width, dtype=dtype)
    return ScanProblem(made, inputs, (rows,) * steps, made.initial(rows))


def _training(backend: ScanBackend, problem: ScanProblem) -> Work:
    wanted = (problem.inputs, *problem.cell.parameters())
    upstream = torch.randn(len(problem.inputs), problem.cell.width, device=problem.inputs.device,
                           dtype=problem.inputs.dtype)

    def work() -> None:
        hidden, _ = backend.run(problem)
        torch.autograd.grad(hidden, wanted, upstream)

    return work
