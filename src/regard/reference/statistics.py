"""What is read off one matrix of attention weights (Nq, Nk). It does not know where the weights come from."""

import math

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, Ints, floats


def entropy(weights: ArrayLike) -> Floats:
    """H_i = -sum_j w_ij log w_ij, natural logarithm, 0 log 0 = 0. -> (Nq,)

    Of the weights as they are: rows that do not sum to one (ReLU, sigmoid, a query that sees nothing) are not rescaled.
    """
    weights = floats(weights)
    result = np.zeros(len(weights))
    for i in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            w = weights[i, j]
            if w != 0.0:
                result[i] -= w * math.log(w)
    return result


def row_max(weights: ArrayLike) -> tuple[Floats, Ints]:
    """max_j w_ij, and the first j that has it. -> (Nq,), (Nq,)"""
    values, positions = top_k(weights, 1)
    return values[:, 0], positions[:, 0]


def column_sums(weights: ArrayLike) -> Floats:
    """sum_i w_ij: how much each key is looked at. -> (Nk,)"""
    weights = floats(weights)
    sums = np.zeros(weights.shape[1])
    for i in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            sums[j] += weights[i, j]
    return sums


def top_k(weights: ArrayLike, k: int) -> tuple[Floats, Ints]:
    """The k largest weights of each row, descending, and where they are; of equal ones the lower index comes first."""
    weights = floats(weights)
    if not 0 <= k <= weights.shape[1]:
        raise ValueError(f"`k` must be between 0 and the number of keys ({weights.shape[1]}), but is {k} instead.")
    values = np.zeros((len(weights), k))
    positions = np.zeros((len(weights), k), dtype=np.int64)
    for i, row in enumerate(weights):
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))
        for rank in range(k):
            positions[i, rank] = order[rank]
            values[i, rank] = row[order[rank]]
    return values, positions


def block_map(weights: ArrayLike, size: int) -> Floats:
    """The mean weight of every size x size block, from the top left; the last blocks may be smaller, and their mean is
    over what is there. -> (ceil(Nq / size), ceil(Nk / size))"""
    weights = floats(weights)
    n_queries, n_keys = weights.shape
    result = np.zeros((math.ceil(n_queries / size), math.ceil(n_keys / size)))
    for a in range(result.shape[0]):
        for b in range(result.shape[1]):
            block = weights[a * size : (a + 1) * size, b * size : (b + 1) * size]
            result[a, b] = block.sum() / block.size
    return result
