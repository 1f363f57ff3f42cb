"""Losses of one token from its logits: cross entropy with label smoothing, of a teacher, of two passes that must agree.

z are the logits over V tokens, p = softmax(z). It does not know where logits come from, nor which tokens count.

Sources: Szegedy et al. 2016 (label smoothing); Liang, Wu et al. 2021 (R-Drop); Hinton et al. 2015, Kim and Rush 2016
(word-level distillation).
"""

import math

from numpy.typing import ArrayLike

from .arrays import Floats, floats


def log_softmax(z: ArrayLike) -> Floats:
    """log p_j = z_j - log sum_k exp z_k; the largest z is taken out first, so that no exponential overflows."""
    z = floats(z)
    highest = max(z)
    return z - highest - math.log(sum(math.exp(z_j - highest) for z_j in z))


def cross_entropy(z: ArrayLike, label: int, smoothing: float = 0.0) -> float:
    """-sum_j y_j log p_j, y_j = (1 - eps) [j = label] + eps / V, eps the smoothing."""
    log_p = log_softmax(z)
    total = 0.0
    for j in range(len(log_p)):
        y_j = (1.0 - smoothing) * (j == label) + smoothing / len(log_p)
        total -= y_j * log_p[j]
    return total


def kl_divergence(z: ArrayLike, other: ArrayLike) -> float:
    """KL(p || q) = sum_j p_j (log p_j - log q_j), p = softmax(z), q = softmax(other)."""
    log_p, log_q = log_softmax(z), log_softmax(other)
    total = 0.0
    for j in range(len(log_p)):
        total += math.exp(log_p[j]) * (log_p[j] - log_q[j])
    return total


def rdrop_loss(z: ArrayLike, other: ArrayLike, label: int, smoothing: float, weight: float) -> float:
    """1/2 (CE(z) + CE(other)) + weight 1/4 (KL(p || q) + KL(q || p))."""
    # Departure: half of the paper's loss, CE + CE + alpha 1/2 (KL + KL), so that a token counts as much as in one pass.
    entropies = cross_entropy(z, label, smoothing) + cross_entropy(other, label, smoothing)
    return 0.5 * entropies + weight * 0.25 * (kl_divergence(z, other) + kl_divergence(other, z))


def distillation_loss(z: ArrayLike, teacher: ArrayLike, label: int, smoothing: float, share: float) -> float:
    """(1 - share) CE(z) + share KL(t || p), t = softmax(teacher), at temperature 1."""
    return (1.0 - share) * cross_entropy(z, label, smoothing) + share * kl_divergence(teacher, z)
