"""Links between the words of two sentences: how right they are, and how much alike from sentence to sentence.

A link is a pair (word of the source, word of the target). It does not know where links come from.
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats

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


def shares(weights: ArrayLike, faint: float, rounds: int = 1) -> Floats:
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


def foretold(sentences: Sequence[Sequence[Link]]) -> float:
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
