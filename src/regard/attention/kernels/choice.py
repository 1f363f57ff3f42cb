"""Which backend computes a problem of attention, and why: the table, in the order of preference.

The rules of choosing are those of `regard.backends`. Where the mask speaks of packed segments, the backend that cuts
them is asked first.
"""

from torch import Tensor

from regard import backends
from regard.attention.kernels import band, exact, flex, pointwise, sdpa, segments, tiled
from regard.attention.problem import Problem

Backend = backends.Backend[Problem, Tensor]
Explanation = backends.Explanation

BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "flex": flex, "pointwise": pointwise, "exact": exact,
                                "segments": segments, "band": band, "tiled": tiled}
"""Every backend by name, the preferred ones first. They give the output (*leading, queries, value width)."""
PACKED: dict[str, Backend] = {"segments": segments, "band": band, **BACKENDS}
"""The same where the mask speaks of packed segments: to cut them comes first, and then to touch no others."""


def choose(problem: Problem, backend: str | None = None) -> Backend:
    """The backend that runs this problem; a ValueError where the one asked for cannot."""
    return backends.choose(PACKED, problem, backend)  # without segments the first one refuses, and the others follow


def explain(problem: Problem, backend: str | None = None) -> Explanation:
    """The choice, in words. Why segments are not cut is said only where there are any."""
    return backends.explain(PACKED if segments.concerns(problem) else BACKENDS, problem, backend)
