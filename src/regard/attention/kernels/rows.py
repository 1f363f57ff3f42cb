"""Whole rows of attention weights, exactly as defined: the computation that `exact` and `tiled` share.

Rows are whole, because a normaliser may need them whole. It does not choose which rows, nor keep any.
"""

import torch
from torch import Tensor

from regard.attention import mask_cache
from regard.attention.problem import AttentionProblem


def weigh(problem: AttentionProblem, rows: "slice | Tensor", columns: slice,
          query: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weights (..., queries, keys) of these rows, and the values (..., keys, width) that they weigh.

    Key heads are already spread. `columns` holds every key that the rows may attend to. `query` are the queries of the
    rows, where the caller has cut them out already.
    """
    place = problem.block(rows, columns)
    query = problem.query[..., rows, :] if query is None else query
    key, value = problem.key[..., columns, :], problem.value[..., columns, :]
    allowed, added = problem.allowed(place), problem.added(place)
    if allowed is not None:
        query, key, value = mask_cache.hide(query, key, value, allowed, bounded=problem.score.bounded)
    scores = problem.score.checked(query, key)
    if added is not None:
        scores = scores + added
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    if scores.shape[-1] == 0:
        return scores, value
    if added is None and problem.score.bounded:  # then the mask alone forbids, and it is small: heads share it
        if allowed is None:
            return problem.normalize(scores), value
        empty = ~mask_cache.any_along(allowed, -1)
    else:
        empty = ~mask_cache.any_along(scores != -torch.inf, -1)  # a bias or a user's score of -inf forbids as well
    if not mask_cache.may_hold(empty):
        return problem.normalize(scores), value
    return problem.normalize(scores.masked_fill(empty, 0.0)).masked_fill(empty, 0.0), value


def attend(problem: AttentionProblem, rows: slice, columns: slice, query: Tensor | None = None) -> Tensor:
    """The output (..., queries, width) of these rows."""
    weights, value = weigh(problem, rows, columns, query)
    if problem.dropout:
        weights = torch.nn.functional.dropout(weights, problem.dropout)
    return weights @ value
