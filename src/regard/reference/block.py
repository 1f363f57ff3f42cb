"""The block: a mixer over tokens and an MLP on each token, each with a residual and a norm, in the two orders.

The parts come as functions, so that any mixer (self-attention, recurrence, convolution) and any norm fits:
mixer (N, D) -> (N, D); norm and mlp (D,) -> (D,). The block knows nothing of what is inside them.

Sources: Vaswani et al. 2017 (post-norm); Xiong et al. 2020 (pre-norm); Shazeer 2020 (the gated MLP).
"""

# ruff: noqa: N803
# (the names of matrices are those of the sources: W_xh, W_e)

from collections.abc import Callable

from numpy.typing import ArrayLike

from .activation import relu, swiglu
from .arrays import Floats, each_token, floats, linear

OfToken = Callable[[Floats], Floats]
OfTokens = Callable[[Floats], Floats]


def mlp(
    x: ArrayLike,
    W_1: ArrayLike,
    b_1: ArrayLike | None,
    W_2: ArrayLike,
    b_2: ArrayLike | None,
    activation: Callable[[ArrayLike], Floats] = relu,
) -> Floats:
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
