"""Activations, norms, the MLP, and the block made of them, in its two orders.

Activations are functions of a number, or of every number of an array. Norms are over the features of one token: x is
one vector, and `arrays.each_token` applies them to many. Three forms of layer norm are written in the sources; the
first is what libraries compute, and ours. A block takes its parts as functions, so that any mixer (self-attention,
recurrence, convolution) and any norm fits: mixer (N, D) -> (N, D); norm and mlp (D,) -> (D,).

Sources: Hendrycks & Gimpel 2016 (GELU); Elfwing et al. 2018, Ramachandran et al. 2017 (SiLU, Swish with beta 1);
Shazeer 2020 (SwiGLU, the gated MLP); Ba, Kiros, Hinton 2016 (layer norm); Phuong & Hutter 2022, algorithm 6; Zhang &
Sennrich 2019 (RMS norm); Vaswani et al. 2017 (post-norm); Xiong et al. 2020 (pre-norm).
"""
# ruff: noqa: N803

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, each_token, floats, linear, same_width

# ---- activations: one number -------------------------------------------------------------------------------------


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


# ---- norms: one vector -------------------------------------------------------------------------------------------


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


# ---- the MLP and the block ---------------------------------------------------------------------------------------


OfToken = Callable[[Floats], Floats]
OfTokens = Callable[[Floats], Floats]


def mlp(x: ArrayLike, W_1: ArrayLike, b_1: ArrayLike | None, W_2: ArrayLike, b_2: ArrayLike | None,
        activation: Callable[[ArrayLike], Floats] = relu) -> Floats:
    """y = W_2 act(W_1 x + b_1) + b_2 for one token."""
    return linear(activation(linear(x, W_1, b_1)), W_2, b_2)


def mlp_swiglu(x: ArrayLike, W_gate: ArrayLike, W_up: ArrayLike, W_down: ArrayLike) -> Floats:
    """y = W_down (silu(W_gate x) W_up x) for one token, without biases."""
    return linear(swiglu(linear(x, W_gate), linear(x, W_up)), W_down)


def post_norm_block(X: ArrayLike, mixer: OfTokens, norm_1: OfToken, mlp: OfToken, norm_2: OfToken) -> Floats:
    """X <- norm_1(X + mixer(X)); X <- norm_2(X + mlp(X))."""
    X = floats(X)
    X = each_token(norm_1, X + mixer(X))
    return each_token(norm_2, X + each_token(mlp, X))


def pre_norm_block(X: ArrayLike, mixer: OfTokens, norm_1: OfToken, mlp: OfToken, norm_2: OfToken) -> Floats:
    """X <- X + mixer(norm_1(X)); X <- X + mlp(norm_2(X)). A stack of these needs a last norm of its own."""
    X = floats(X)
    X = X + mixer(each_token(norm_1, X))
    return X + each_token(mlp, each_token(norm_2, X))
