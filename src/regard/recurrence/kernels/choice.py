"""Which backend runs a cell over time, and why: the table, in the order of preference.

The rules of choosing are those of `regard.kernels.dispatch`.
"""

from torch import Tensor

from regard.kernels import dispatch
from regard.recurrence.cells import CellState
from regard.recurrence.kernels import bptt, fused, loop, native
from regard.recurrence.kernels.problem import ScanProblem

ScanBackend = dispatch.Backend[ScanProblem, tuple[Tensor, CellState]]
Explanation = dispatch.Explanation

BACKENDS: dict[str, ScanBackend] = {"fused": fused, "native": native, "bptt": bptt, "loop": loop}
"""Every backend by name, the preferred ones first. They give the hidden vector of every token, (tokens, width), and the
state of each row after its last one."""


def choose(problem: ScanProblem, backend: str | None = None) -> ScanBackend:
    """The backend that runs this problem; a ValueError where the one asked for cannot."""
    return dispatch.choose_backend(BACKENDS, problem, backend)


def explain(problem: ScanProblem, backend: str | None = None) -> Explanation:
    """The choice, in words."""
    return dispatch.explain_choice(BACKENDS, problem, backend)
