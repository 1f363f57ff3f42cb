"""The point-wise functions, of a number or of every number of an array. They know nothing of layers.

Sources: Hendrycks & Gimpel 2016 (GELU); Elfwing et al. 2018, Ramachandran et al. 2017 (SiLU, Swish with beta 1);
Shazeer 2020 (SwiGLU).
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats, same_width


def _each(function: Callable[[float], float], x: ArrayLike) -> Floats:
    """The function of every number of x, in an array of the same shape."""
    x = floats(x)
    y = np.empty(x.shape)
    for index in np.ndindex(*x.shape):
        y[index] = function(float(x[index]))
    return y


def _sigmoid(x: float) -> float:
    # 1 / (1 + e^-x) = e^x / (1 + e^x): of the two, the one whose exponential cannot overflow.
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0.0 else math.exp(x) / (1.0 + math.exp(x))


def sigmoid(x: ArrayLike) -> Floats:
    """1 / (1 + exp(-x))."""
    return _each(_sigmoid, x)


def relu(x: ArrayLike) -> Floats:
    """max(x, 0)."""
    return _each(lambda a: 0.0 if a < 0.0 else a, x)


def gelu(x: ArrayLike) -> Floats:
    """x Phi(x) = x/2 (1 + erf(x / sqrt 2)), the exact one."""
    # 1 + erf(a) = erfc(-a), which keeps its digits where erf(a) is close to -1.
    return _each(lambda a: 0.5 * a * math.erfc(-a / math.sqrt(2.0)), x)


def gelu_tanh(x: ArrayLike) -> Floats:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the approximation that several models were trained with."""
    return _each(lambda a: 0.5 * a * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (a + 0.044715 * a * a * a))), x)


def silu(x: ArrayLike) -> Floats:
    """x sigmoid(x)."""
    return _each(lambda a: a * _sigmoid(a), x)


def swiglu(gate: ArrayLike, up: ArrayLike) -> Floats:
    """silu(gate) * up, both already projected: gate = W x, up = V x (Shazeer 2020, without biases)."""
    gate, up = floats(gate), floats(up)
    same_width("gate", gate, "up", up)
    return silu(gate) * up
