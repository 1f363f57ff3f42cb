"""Which backend runs a cell over time, and why: the table, in the order of preference.

The rules of choosing are those of `regard.backends`.
"""

from torch import Tensor

from regard import backends
from regard.recurrence.cell import State
from regard.recurrence.kernels import bptt, fused, loop, native
from regard.recurrence.kernels.problem import Problem

Backend = backends.Backend[Problem, tuple[Tensor, State]]
Explanation = backends.Explanation

BACKENDS: dict[str, Backend] = {"fused": fused, "native": native, "bptt": bptt, "loop": loop}
"""Every backend by name, the preferred ones first. They give the hidden vector of every token, (tokens, width), and the
state of each row after its last one."""


def choose(problem: Problem, backend: str | None = None) -> Backend:
    """The backend that runs this problem; a ValueError where the one asked for cannot."""
    return backends.choose(BACKENDS, problem, backend)


def explain(problem: Problem, backend: str | None = None) -> Explanation:
    """The choice, in words."""
    return backends.explain(BACKENDS, problem, backend)
