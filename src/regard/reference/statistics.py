"""Statistics of attention weights, of word alignments, and of the influence of words.

Weights are one matrix (Nq, Nk). A link is a pair (word of the source, word of the target). This module does not
know where weights, links and log-probabilities come from.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, Ints, floats

# ---- attention weights -------------------------------------------------------------------------------------------


def entropy(weights: ArrayLike) -> Floats:
    """H_i = -sum_j w_ij log w_ij, natural logarithm, 0 log 0 = 0. -> (Nq,)

    The weights are not rescaled where rows do not sum to one (ReLU, sigmoid, a query that may attend to nothing).
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
    """sum_i w_ij: how much attention each key gets. -> (Nk,)"""
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


# ---- roles of heads ----------------------------------------------------------------------------------------------


def is_role_place(role: str, i: int, j: int, queries: Sequence[str], keys: Sequence[str], separators: Sequence[bool],
                  links: set[tuple[int, int]]) -> bool:
    """Whether key j is a place of a role for query i. "same" is that of self-attention, "copied" of cross-attention."""
    if role == "itself":
        return j == i
    if role == "previous":
        return j == i - 1
    if role == "next":
        return j == i + 1
    if role == "first":
        return j == 0
    if role == "separators":
        return separators[j]
    if role == "in_order":
        centre = 0 if len(queries) == 1 else math.floor(i * (len(keys) - 1) / (len(queries) - 1) + 0.5)
        return j in (centre - 1, centre, centre + 1)
    if role == "same":
        return keys[j] == queries[i] and j != i
    if role == "copied":
        return keys[j] == queries[i]
    if role == "after_same":
        return j >= 1 and keys[j - 1] == queries[i] and j - 1 != i and j != i
    if role == "gold":
        return (i, j) in links
    raise ValueError(f"`role` must be one of the roles above, but is {role!r} instead.")


def role_score(role: str, maps: Sequence[ArrayLike], visible: Sequence[ArrayLike], queries: Sequence[Sequence[str]],
               keys: Sequence[Sequence[str]], separators: Sequence[Sequence[bool]],
               links: Sequence[set[tuple[int, int]]]) -> tuple[float, float, int]:
    """The mean weight of one head on the places of a role, the mean of even weights, and the number of queries.

    A map is that of one sequence, (Nq, Nk), and so are the keys that its queries may attend to. A query counts if it
    may attend to two keys or more, and if one of them is a place of the role.
    """
    total, even, count = 0.0, 0.0, 0
    for m in range(len(maps)):
        weights, allowed = floats(maps[m]), np.asarray(visible[m])
        for i in range(weights.shape[0]):
            seen = [j for j in range(weights.shape[1]) if allowed[i, j]]
            places = [j for j in seen if is_role_place(role, i, j, queries[m], keys[m], separators[m], links[m])]
            if len(seen) < 2 or not places:
                continue
            total += sum(weights[i, j] for j in places)
            even += len(places) / len(seen)
            count += 1
    return (total / count, even / count, count) if count else (0.0, 0.0, 0)


# ---- word alignments ---------------------------------------------------------------------------------------------


Link = tuple[Hashable, Hashable]


def alignment_error_rate(found: set[Link], sure: set[Link], possible: set[Link]) -> float:
    """AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with all of S in P. (Och and Ney 2003, equation 6)"""
    in_sure = in_possible = 0
    for link in found:
        if link in sure:
            in_sure += 1
        if link in sure or link in possible:
            in_possible += 1
    return 1.0 - (in_sure + in_possible) / (len(found) + len(sure))


def normalize_columns(weights: ArrayLike, faint: float, rounds: int = 1) -> Floats:
    """A_ts = a_ts / (sum_t' a_t's + faint), and in each further round the same of A_ts r_t / (sum_s' A_ts'), where r_t
    is sum_s' a_ts', what the row was. (m, M) -> (m, M)"""
    weights = floats(weights)
    m, M = weights.shape
    share = np.zeros((m, M))
    before = weights
    for _ in range(rounds):
        for t in range(m):
            for s in range(M):
                share[t, s] = before[t, s] / (sum(before[other, s] for other in range(m)) + faint)
        before = np.zeros((m, M))
        for t in range(m):
            for s in range(M):
                before[t, s] = share[t, s] * sum(weights[t]) / sum(share[t])
    return share


def held_out_log_likelihood(sentences: Sequence[Sequence[Link]]) -> float:
    """1/n sum_k sum_(s, t) log p_k(t | s): how probable each link is by those of all other sentences.

    p_k(t | s) = (c(s, t) + q(t)) / (c(s) + 1) and q(t) = (c(t) + 1) / (n_k + V), where c counts the n_k links that are
    not of sentence k, and V is the number of different words t in all sentences.
    """
    different = {t for sentence in sentences for _, t in sentence}
    terms = []
    for k, sentence in enumerate(sentences):
        others = [link for number, other in enumerate(sentences) if number != k for link in other]
        for s, t in sentence:
            alone = (sum(1 for link in others if link[1] == t) + 1) / (len(others) + len(different))
            together = sum(1 for link in others if link == (s, t))
            terms.append(math.log((together + alone) / (sum(1 for link in others if link[0] == s) + 1)))
    return sum(terms) / len(terms)


# ---- influence ---------------------------------------------------------------------------------------------------


def influence(log_probabilities: Callable[[Sequence[int]], ArrayLike], source: Sequence[int],
              words: Sequence[Sequence[int]]) -> Floats:
    """I[t, s] = log p(y_t | x, y_<t) - log p(y_t | x without word s, y_<t). -> (n, M)

    log_probabilities(x) has log p(y_t | x, y_<t) for every t = 1 .. n; words[s] has the positions of word s in x.
    """
    whole = floats(log_probabilities(source))
    result = np.zeros((len(whole), len(words)))
    for s, word in enumerate(words):
        rest = [source[i] for i in range(len(source)) if i not in word]
        without = floats(log_probabilities(rest))
        for t in range(len(whole)):
            result[t, s] = whole[t] - without[t]
    return result


def influence_shares(values: ArrayLike, least: float) -> Floats:
    """max(0, I[t, s]) / r_t with r_t = sum_s max(0, I[t, s]), where r_t > least; 0 in the other rows."""
    values = floats(values)
    n, M = values.shape
    result = np.zeros((n, M))
    for t in range(n):
        total = sum(max(0.0, values[t, s]) for s in range(M))
        for s in range(M):
            result[t, s] = max(0.0, values[t, s]) / total if total > least else 0.0
    return result


def without_effect(values: ArrayLike, threshold: float) -> list[int]:
    """The words s with |I[t, s]| < threshold for all t."""
    values = floats(values)
    return [s for s in range(values.shape[1])
            if all(abs(values[t, s]) < threshold for t in range(values.shape[0]))]
