"""Which backend computes a problem of attention, and why: the table, in the order of preference.

The rules of choosing are those of `regard.kernels.dispatch`. Where the mask speaks of packed segments, the backend that cuts
them is asked first.
"""

from torch import Tensor

from regard.attention.kernels import band, exact, flex, pointwise, sdpa, segments, tiled
from regard.attention.problem import AttentionProblem
from regard.kernels import dispatch

Backend = dispatch.Backend[AttentionProblem, Tensor]
Explanation = dispatch.Explanation

BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "flex": flex, "pointwise": pointwise, "exact": exact,
                                "segments": segments, "band": band, "tiled": tiled}
"""Every backend by name, the preferred ones first. They give the output (*leading, queries, value width)."""
PACKED: dict[str, Backend] = {"segments": segments, "band": band, **BACKENDS}
"""The same where the mask speaks of packed segments: to cut them comes first, and then to touch no others."""


def choose_backend(problem: AttentionProblem, backend: str | None = None) -> Backend:
    """The backend that runs this problem; a ValueError where the one asked for cannot."""
    return dispatch.choose_backend(PACKED, problem, backend)  # without segments the first one refuses, and the others follow


def explain_choice(problem: AttentionProblem, backend: str | None = None) -> Explanation:
    """The choice, in words. Why segments are not cut is said only where there are any."""
    return dispatch.explain_choice(PACKED if segments.concerns(problem) else BACKENDS, problem, backend)
