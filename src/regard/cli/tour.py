"""`regard demo --tour`: a short tour of attention in the terminal.

It prints masks as 0/1 matrices, attention weights as a heat map, the chosen backend and the reason, and the time and
memory of two backends; and it compares results with the float64 reference, so it is also a quick test of the
installation. Nothing is trained. This is the only module outside the tests that imports `regard.reference`.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TextIO

import torch
from torch import Tensor

import regard
from regard.reference import attention as oracle
from regard.terminal import Terminal

# Two sentences with the same meaning and another word order. Words with the same meaning share a vector.
SOURCE = ("the", "black", "cat", "sleeps")
TARGET = ("le", "chat", "noir", "dort")
MEANING = (0, 2, 1, 3)  # for each word of TARGET, its place in SOURCE
WIDTH = 16
LONG = 1024  # tokens, for the measurement of backends
TOLERANCE = 1e-12  # relative to the largest number of the oracle's result


def tour(out: TextIO) -> int:
    """Print the tour; returns 0 if every result agrees with the oracle, else 1."""
    terminal = Terminal.of(out)
    terminal.text(f"regard {regard.__version__}, torch {torch.__version__}")
    random = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        _masks(terminal)
        _weights(terminal, random)
        _explain(terminal, random)
        agrees = _check(terminal, random)
        _cost(terminal, random)
    return 0 if agrees else 1


def _masks(terminal: Terminal) -> None:
    causal, both = regard.Causal(), regard.Causal() & regard.Window(2, 0)
    terminal.heading("Masks (rows: queries, columns: keys; 1 means: may attend)")
    terminal.beside(
        [
            ["Causal()", *_matrix(causal.matrix(6, 6))],
            ["& Window(2, 0)", *_matrix(both.matrix(6, 6))],
            ["3 new queries", *_matrix(causal.matrix(3, 6))],
        ]
    )


def _weights(terminal: Terminal, random: torch.Generator) -> None:
    key, query = _sentences(random)
    weights = regard.attention_weights(query, key)
    terminal.heading("Attention weights of hand-made vectors; nothing is trained")
    label = max(map(len, TARGET)) + 1
    cell = min(max(map(len, SOURCE)) + 1, (terminal.width - label) // len(SOURCE))
    lines = [" " * label + "".join(word[: cell - 1].ljust(cell) for word in SOURCE)]
    for word, row in zip(TARGET, weights.tolist(), strict=True):
        lines.append(word.ljust(label) + "".join(terminal.shade(weight, cell - 1) + " " for weight in row))
    terminal.beside([lines])


def _explain(terminal: Terminal, random: torch.Generator) -> None:
    query, key, value = torch.randn(3, 1, LONG, WIDTH, generator=random)
    for name, score in (("scaled_dot", "scaled_dot"), ("Additive", regard.Additive(torch.ones(WIDTH)))):
        terminal.heading(f"regard.explain: which backend runs, and why (causal mask, score {name})")
        terminal.text(str(regard.explain(query, key, value, score=score, mask=regard.Causal())))


def _check(terminal: Terminal, random: torch.Generator) -> bool:
    terminal.heading("Largest relative difference from the float64 reference (plain loops, no torch)")
    query, key, value = torch.randn(3, 12, WIDTH, generator=random, dtype=torch.float64)
    agrees = True
    cases = (("no mask", None), ("causal", regard.Causal()), ("window", regard.Causal() & regard.Window(2, 0)))
    for name, mask in cases:
        result = regard.attend(query, key, value, mask=mask)
        expected = oracle.attend_many(
            query.numpy(),
            key.numpy(),
            value.numpy(),
            score=oracle.scaled_dot,
            normalize=oracle.softmax,
            mask=None if mask is None else mask.matrix(12, 12).numpy(),
        )
        difference = float(abs(result.numpy() - expected).max() / abs(expected).max())
        agrees = agrees and difference <= TOLERANCE  # false for NaN too
        terminal.text(f"{name:8} {difference:.1e} {'ok' if difference <= TOLERANCE else 'DIFFERS'}")
    return agrees


def _cost(terminal: Terminal, random: torch.Generator) -> None:
    terminal.heading(f"Time and memory of two backends: additive attention, {LONG:,} tokens, width {2 * WIDTH}")
    query, key, value = torch.randn(3, 1, LONG, 2 * WIDTH, generator=random)
    score = regard.Additive(torch.randn(2 * WIDTH, generator=random))
    results = {}
    for backend in ("tiled", "exact"):  # the smaller first: the peak of a process only grows
        attend = partial(regard.attend, score=score, backend=backend)
        attend(query[:, :64], key[:, :64], value[:, :64])  # a first call also pays for threads and buffers
        results[backend], seconds, peak = _measure(partial(attend, query, key, value))
        memory = f", peak memory +{peak / 2**20:.0f} MiB" if peak is not None else ""
        terminal.text(f"{backend:6} {seconds * 1000:.0f} ms{memory}")
    difference = float((results["tiled"] - results["exact"]).abs().max())
    terminal.text(f"Largest difference between them: {difference:.1e} (float32).")


def _sentences(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Keys of the source and queries of the target: the same vectors in another order, a little moved."""
    key = 0.8 * torch.randn(len(SOURCE), WIDTH, generator=random)  # short vectors, so that some weight falls elsewhere
    return key, key[list(MEANING)] + 0.1 * torch.randn(len(TARGET), WIDTH, generator=random)


def _matrix(allowed: Tensor) -> list[str]:
    return [" ".join(str(int(cell)) for cell in row) for row in allowed.tolist()]


def _measure(work: Callable[[], Tensor]) -> tuple[Tensor, float, int | None]:
    """The result, the seconds it took, and by how many bytes it raised the peak of this process (None if unknown)."""
    before = _peak()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    after = _peak()
    return result, seconds, None if before is None or after is None else after - before


def _peak() -> int | None:
    """The most memory this process has held, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
