"""Additive attention, forward and backward: time and memory against the formula as one writes it in torch.

A pass takes a tanh for every pair of tokens and every feature, and the backward pass, which keeps none of them, takes
them once more: two passes over the special functions are the limit here. Memory is shown at a length and at its double:
where it grows with N·D and not with N², it doubles.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import torch
from timing import Work
from torch import Tensor

import regard
from on_gpu.rows import GIB, Cost, Row, Setting, Table, measured

OURS, EAGER, COMPILED = "regard", "the formula", "the formula, compiled"
PATIENCE = 60
"""Seconds that torch.compile may take."""


def formula(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """softmax(w · tanh(q + k)) v, with a number for every pair and every feature."""
    scores = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight
    return scores.softmax(-1) @ value


def ours(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """The same as a user asks for it."""
    return regard.attend(query, key, value, score=regard.Additive(weight))


def tables(setting: Setting) -> Iterator[Table]:
    """Batches of middling length, and one long sequence."""
    yield _batches(setting)
    yield Table("Additive attention of one long sequence, forward and backward", OURS, _long(setting))


def _batches(setting: Setting) -> Table:
    B, N, D = (2, 20, 16) if setting.tiny else (32, 1024, 256)
    given = _inputs(setting, B, N, D)
    works = {OURS: _training(ours, given), EAGER: _training(formula, given)}
    if setting.compiled:
        works[COMPILED] = _compiled(given)
    title = f"B {B}, N {N:,}, D {D}, {_named(setting.dtype)}"
    rows = measured(title, works, setting, base=OURS, cost=_cost(B, N, D), goal="≤ 7 ms, ≤ 0.5 GiB")
    causal = measured(f"{title}, causal", {OURS: _training(_causal, given)}, setting, base=OURS,
                      cost=Cost(special=_cost(B, N, D).special / 2))
    held = sum(tensor.numel() * tensor.element_size() for tensor in given) / GIB
    return Table(f"Additive attention, forward and backward; inputs of {held:.2f} GiB", OURS, rows + causal)


def _long(setting: Setting) -> list[Row]:
    rows, D, lengths = list[Row](), 16 if setting.tiny else 256, (40, 80) if setting.tiny else (8192, 16_384)
    for N in lengths:
        given = _inputs(setting, 1, N, D)
        works: dict[str, Work] = {OURS: _training(ours, given)}
        if lengths[0] == N:
            works[EAGER] = _training(formula, given)
        goal = "runs, memory as N·D" if lengths[0] == N else "at most twice the memory"
        rows += measured(f"B 1, N {N:,}, D {D}", works, setting, base=OURS, cost=_cost(1, N, D), goal=goal, repeats=5)
    return rows


def _causal(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    return regard.attend(query, key, value, score=regard.Additive(weight), mask=regard.Causal())


def _compiled(given: list[Tensor]) -> Work:
    made = _training(torch.compile(formula), given)
    ready = list[bool]()

    def work() -> None:
        with nullcontext() if ready else _at_most(PATIENCE):
            made()
        ready.append(True)

    return work


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """A TimeoutError where it takes longer."""
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not compiled after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _training(attend: Callable[..., Tensor], given: list[Tensor]) -> Work:
    upstream = torch.randn_like(given[0])

    def work() -> None:
        torch.autograd.grad(attend(*given), given, upstream)

    return work


def _inputs(setting: Setting, *shape: int) -> list[Tensor]:
    """Query, key, value and weight."""
    return [*(setting.random(*shape) for _ in range(3)), setting.random(shape[-1])]


def _cost(B: int, N: int, D: int) -> Cost:
    """Forward and backward: a tanh for each pair and feature, twice; and the products with the values."""
    return Cost(special=2 * B * N * N * D, products=6 * B * N * N * D, bytes=8 * 2 * B * N * D)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
