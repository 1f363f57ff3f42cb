"""Which backend computes a problem of attention, and why: the table, in the order of preference.

The rules of choosing are those of `regard.backends`.
"""

from torch import Tensor

from regard import backends
from regard.attention.kernels import exact, flex, sdpa, tiled
from regard.attention.problem import Problem

Backend = backends.Backend[Problem, Tensor]
Explanation = backends.Explanation

BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "flex": flex, "exact": exact, "tiled": tiled}
"""Every backend by name, the preferred ones first. They give the output (*leading, queries, value width)."""


def choose(problem: Problem, backend: str | None = None) -> Backend:
    """The backend that runs this problem; a ValueError where the one asked for cannot."""
    return backends.choose(BACKENDS, problem, backend)


def explain(problem: Problem, backend: str | None = None) -> Explanation:
    """The choice, in words."""
    return backends.explain(BACKENDS, problem, backend)
