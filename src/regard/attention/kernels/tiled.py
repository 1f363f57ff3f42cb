"""The `tiled` backend: any score, any normaliser, any mask, in memory that grows with N and not with N².

It computes blocks of whole rows, one after another, and keeps none of them: the backward pass computes each block
once more. Plain torch, so it runs on every device and follows whatever a user's score does, parameters included. It
trades time (one more forward pass) for memory. Scores of fused kernels that are few enough are all one block, and kept:
they hold nothing but the scores, and to compute them once more would cost most of the work.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.kernels import rows
from regard.attention.kernels.additive import has_fused_scores, with_tiled_score
from regard.attention.problem import AttentionProblem

HELD_CPU = 1 << 21
HELD_GPU = 1 << 26
"""Numbers held at once for the pairs of a block: about a cache on a CPU, enough to fill the chip on a GPU."""
KEPT = 1 << 25
"""Scores of fused kernels that are kept for the backward pass: 64 MiB in bfloat16, and as much for their weights."""


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    return None


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    return None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    later = "kept for the backward pass" if _keeps(problem) else "computed once more in the backward pass"
    scores = ", scores by fused kernels" if has_fused_scores(problem) else ""
    return f"{block_size(with_tiled_score(problem))} rows at a time, {later}{scores}"


def run(problem: AttentionProblem) -> Tensor:
    """The output, a block of rows at a time."""
    problem = with_tiled_score(problem.spread())
    pieces = []
    size = block_size(problem)
    again = torch.is_grad_enabled() and not _keeps(problem)
    for query, (block, columns) in zip(problem.query.split(size, dim=-2), blocks(problem, size), strict=True):
        if again:
            piece = checkpoint(rows.attend, problem, block, columns, query, use_reentrant=False,
                               preserve_rng_state=problem.dropout > 0, determinism_check="none")
        else:
            piece = rows.attend(problem, block, columns, query)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)


def block_size(problem: AttentionProblem) -> int:
    """How many rows a block has: as many as keep its pairs within the bound, at least one."""
    held = HELD_CPU if problem.query.device.type == "cpu" else HELD_GPU
    row = problem.pairs // max(1, problem.n_queries) * problem.score.numbers_per_pair(problem.query.shape[-1])
    return max(1, min(held // max(1, row), problem.n_queries))


def _keeps(problem: AttentionProblem) -> bool:
    """Whether the backward pass finds the scores and weights as they were. Else it computes them once more."""
    return has_fused_scores(problem) and problem.pairs <= KEPT and block_size(with_tiled_score(problem)) == problem.n_queries


def blocks(problem: AttentionProblem, size: int) -> Iterator[tuple[slice, slice]]:
    """The blocks of rows in order, each with a run of keys that holds all its rows may attend to.

    For no rows at all there is one empty block.
    """
    for first in range(0, max(1, problem.n_queries), size):
        last = min(first + size, problem.n_queries)
        start, stop = 0, problem.n_keys
        if problem.mask is not None:
            start, stop = problem.mask.span(first, last, problem.n_queries, problem.n_keys)
        yield slice(first, last), slice(start, stop)
