"""The `exact` backend: the definition itself. It holds the whole weight matrix, and takes everything."""

from torch import Tensor

from regard.attention.kernels import additive, rows
from regard.attention.problem import AttentionProblem

HELD = 1 << 25
"""Numbers that `exact` may hold for the weights before `tiled`, which holds none, is preferred: 128 MiB in float32."""
HELD_UNFUSED = 1 << 25
"""The same where `tiled` has fused kernels: below it, both wait for the launches alone, and `exact` has fewer."""


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    return None


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    held = problem.pairs * problem.score.numbers_per_pair(problem.query.shape[-1])
    if additive.has_fused_scores(problem) and held > HELD_UNFUSED:
        return f"it would hold {held:,} numbers at once, and `tiled` has fused kernels that hold none"
    return f"it would hold {held:,} numbers at once, more than {HELD:,}" if held > HELD else None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    return f"the whole {problem.n_queries} × {problem.n_keys} matrix of weights at once"


def run(problem: AttentionProblem) -> Tensor:
    """The output, from the materialised weights."""
    problem = problem.spread()
    return rows.attend(problem, slice(0, problem.n_queries), slice(0, problem.n_keys))


def weights(problem: AttentionProblem) -> Tensor:
    """The weights themselves, (..., queries, keys)."""
    return rows.weigh(problem.spread(), slice(0, problem.n_queries), slice(0, problem.n_keys))[0]
