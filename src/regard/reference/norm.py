"""Normalisation over the features of one token. x is one vector; `arrays.each_token` walks over many.

Three forms of layer norm are written in the sources; the first is what libraries compute, and ours. None of them knows
where in a block it stands.

Sources: Ba, Kiros, Hinton 2016 (layer norm); Phuong & Hutter 2022, algorithm 6; Zhang & Sennrich 2019 (RMS norm).
"""

import math

from numpy.typing import ArrayLike

from .arrays import Floats, floats


def _mean(x: Floats) -> float:
    return float(sum(x)) / len(x)


def layer_norm(x: ArrayLike, gain: ArrayLike, bias: ArrayLike, eps: float = 1e-5) -> Floats:
    """y = (x - mu) / sqrt(v + eps) gain + bias, mu = sum_j x_j / D, v = sum_j (x_j - mu)^2 / D (biased)."""
    x = floats(x)
    mu = _mean(x)
    v = _mean((x - mu) ** 2)
    return (x - mu) / math.sqrt(v + eps) * floats(gain) + floats(bias)


def layer_norm_formal(x: ArrayLike, gain: ArrayLike, bias: ArrayLike) -> Floats:
    """y = (x - mu) / sqrt(v) gain + bias: algorithm 6 of Phuong & Hutter 2022, biased variance."""
    # Departure from libraries: no eps. A vector of equal numbers is 0/0.
    return layer_norm(x, gain, bias, eps=0.0)


def layer_norm_unscaled(x: ArrayLike, gain: ArrayLike, bias: ArrayLike) -> Floats:
    """y = (x - mu) / sigma gain + bias, sigma = (sum_j (x_j - mu)^2)^(1/2): as one source writes it."""
    # Departure from libraries: no 1/D, so that the result is sqrt(D) times smaller before the gain; and no eps.
    x = floats(x)
    mu = _mean(x)
    sigma = math.sqrt(sum((x - mu) ** 2))
    return (x - mu) / sigma * floats(gain) + floats(bias)


def rms_norm(x: ArrayLike, gain: ArrayLike, eps: float = 1e-5) -> Floats:
    """y = x / sqrt(sum_j x_j^2 / D + eps) gain."""
    # Departure: the paper writes no eps; eps = 0 is its form.
    x = floats(x)
    return x / math.sqrt(_mean(x**2) + eps) * floats(gain)
