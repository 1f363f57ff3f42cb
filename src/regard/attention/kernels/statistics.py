"""Statistics of attention weights without the matrix of weights: one pass over blocks of whole rows.

For every score, normaliser, mask and bias, in memory that grows with N. What each function computes is defined in
`Look`, which is where users meet it. `identities` computes some of it on fused kernels. No gradients flow from here.

Legend: ... leading dimensions, Q queries, K keys, R rows of a block, C keys of a block, M blocks of a map.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.attention.kernels import rows, tiled
from regard.attention.kernels.additive import with_tiled_score
from regard.attention.problem import AttentionProblem


@torch.no_grad()
def entropy(problem: AttentionProblem) -> Tensor:
    """-Σ w log w of every row: (..., Q)."""
    return torch.cat([torch.special.entr(w_RC).sum(-1) for w_RC, _, _ in _passes(problem)], dim=-1)


@torch.no_grad()
def row_max(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """The largest weight of every row and the first key that has it: (..., Q) each."""
    values, positions = [], []
    for w_RK, _, _ in _passes(problem, whole=True):
        if w_RK.shape[-1] == 0:  # no key to look at: weight 0, at no position in particular
            w_RK = torch.nn.functional.pad(w_RK, (0, 1))
        value_R, position_R = w_RK.max(dim=-1)
        values.append(value_R)
        positions.append(position_R)
    return torch.cat(values, dim=-1), torch.cat(positions, dim=-1)


@torch.no_grad()
def column_sums(problem: AttentionProblem) -> Tensor:
    """The sum of every column, what each key receives in all: (..., K)."""
    total = _zeros(problem, problem.n_keys)
    for w_RC, _, columns in _passes(problem):
        total[..., columns] += w_RC.sum(dim=-2)
    return total.to(problem.query.dtype)


@torch.no_grad()
def top_k(problem: AttentionProblem, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest weights of every row, largest first, and their keys: (..., Q, count) each."""
    values, positions = [], []
    for w_RK, _, _ in _passes(problem, whole=True):
        value, position = torch.sort(w_RK, dim=-1, descending=True, stable=True)  # equal weights: the first key first
        values.append(value[..., :count])
        positions.append(position[..., :count])
    return torch.cat(values, dim=-2), torch.cat(positions, dim=-2)


@torch.no_grad()
def block_map(problem: AttentionProblem, size: int) -> Tensor:
    """The mean weight of every size × size block, (..., M queries, M keys); blocks at the ends may be smaller."""
    down, across = (-(-n // size) for n in (problem.n_queries, problem.n_keys))
    total = _zeros(problem, down, across)
    for w_RC, block, columns in _passes(problem):
        lowest = columns.start // size
        # Columns are filled up on both sides, so that the block's own grid is the grid of the map.
        left, right = columns.start - lowest * size, -columns.stop % size
        if left or right:  # a pad of nothing is a copy too
            w_RC = torch.nn.functional.pad(w_RC, (left, right))
        w_RMS = w_RC.unflatten(-1, (-1, size))
        row_of_map = torch.arange(block.start, block.stop, device=total.device) // size
        sums_RM = w_RMS.sum(-1, dtype=total.dtype)
        total[..., lowest:lowest + sums_RM.shape[-1]].index_add_(-2, row_of_map, sums_RM)
    return (total / block_counts(problem, size)).to(problem.query.dtype)


@torch.no_grad()
def some_rows(problem: AttentionProblem, indices: Tensor) -> Tensor:
    """The weights of these queries alone: (..., indices, K)."""
    weights = rows.weigh(with_tiled_score(problem.spread()), indices, slice(0, problem.n_keys))[0]
    return weights.expand(*problem.leading, *weights.shape[-2:])


def block_counts(problem: AttentionProblem, size: int) -> Tensor:
    """How many pairs each block of the map has: (M queries, M keys)."""
    per_axis = []
    for n in (problem.n_queries, problem.n_keys):
        starts = torch.arange(0, n, size, device=problem.query.device)
        per_axis.append((n - starts).clamp(max=size))
    return per_axis[0].unsqueeze(-1) * per_axis[1]


def _passes(problem: AttentionProblem, *, whole: bool = False) -> Iterator[tuple[Tensor, slice, slice]]:
    """The weights of each block of rows, with its rows and the keys that they hold (all of them for `whole`)."""
    problem = with_tiled_score(problem.spread())
    every = slice(0, problem.n_keys)
    for block, columns in tiled.blocks(problem, tiled.block_size(problem)):
        columns = every if whole else columns
        weights, _ = rows.weigh(problem, block, columns)
        yield weights.expand(*problem.leading, *weights.shape[-2:]), block, columns


def _zeros(problem: AttentionProblem, *shape: int) -> Tensor:
    """A sum over many rows needs more digits than the half-width types have."""
    dtype = torch.float64 if problem.query.dtype == torch.float64 else torch.float32
    return problem.query.new_zeros(*problem.leading, *shape, dtype=dtype)
