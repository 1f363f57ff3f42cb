"""1-D convolution over tokens: full and depthwise, causal and centred, dilated, gated.

    y_n = b + sum_j W_j x_{n + o_j}            the offsets o_j say which neighbours a token reads
    causal   o_j = -(K - 1 - j) d              the last tap is the token itself, the others stand before it
    centred  o_j = (j - (K - 1) / 2) d         the middle tap is the token itself; K is odd

A sequence is (N, D), tokens as rows; K is the kernel, the number of taps; d the dilation, the distance between two of
them. Positions before the first token, after the last one and in padding count as zeros, and the content of padding
is never used; the result has zeros there. This module knows nothing of batches, steps or layers.

As in every library, the taps are in the order of the tokens: the mathematicians' convolution has them reversed.
Sources: LeCun et al. 1989; Waibel et al. 1989 (over time); Dauphin et al. 2017 (GLU, causal); Gehring et al. 2017;
van den Oord et al. 2016 (dilated, causal); Wu et al. 2019 (depthwise, over text).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats, linear, same_width
from .blocks import sigmoid


def causal_offsets(kernel: int, dilation: int = 1) -> list[int]:
    """o_j = -(K - 1 - j) d: no tap reads a token that stands after."""
    return [-(kernel - 1 - j) * dilation for j in range(kernel)]


def centred_offsets(kernel: int, dilation: int = 1) -> list[int]:
    """o_j = (j - (K - 1) / 2) d: as many taps before as after."""
    if kernel % 2 == 0:
        raise ValueError(f"`kernel` must be odd to have a middle, but is {kernel} instead.")
    return [(j - kernel // 2) * dilation for j in range(kernel)]


def convolution(X: ArrayLike, W: ArrayLike, b: ArrayLike | None = None, *, offsets: Sequence[int],
                present: Sequence[bool] | None = None) -> Floats:
    """y_n = b + sum_j W[:, :, j] x_{n + o_j}: every output feature reads every input feature.

    X (N, D), W (E, D, K), b (E,) -> (N, E). `present` (N,) says which tokens are not padding; None means all.
    """
    X, W = floats(X), floats(W)
    there = _there(X, present)
    Y = np.zeros((len(X), len(W)))
    for n in range(len(X)):
        if not there[n]:
            continue
        if b is not None:
            Y[n] += floats(b)
        for j in range(W.shape[2]):
            m = n + offsets[j]
            if 0 <= m < len(X) and there[m]:
                Y[n] += linear(X[m], W[:, :, j])
    return Y


def depthwise_convolution(X: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, offsets: Sequence[int],
                          present: Sequence[bool] | None = None) -> Floats:
    """y_n = b + sum_j w[:, j] * x_{n + o_j}: every feature reads itself alone. X (N, D), w (D, K), b (D,) -> (N, D)."""
    X, w = floats(X), floats(w)
    there = _there(X, present)
    Y = np.zeros(X.shape)
    for n in range(len(X)):
        if not there[n]:
            continue
        if b is not None:
            Y[n] += floats(b)
        for j in range(w.shape[1]):
            m = n + offsets[j]
            if 0 <= m < len(X) and there[m]:
                Y[n] += w[:, j] * X[m]
    return Y


def glu(a: ArrayLike, b: ArrayLike) -> Floats:
    """a * sigma(b): two convolutions of the same tokens, of which the second gates the first."""
    a, b = floats(a), floats(b)
    same_width("a", a, "b", b)
    return a * sigmoid(b)


def receptive_field(kernels: Sequence[int], dilations: Sequence[int]) -> int:
    """1 + sum_l (K_l - 1) d_l: the tokens that one output of a stack depends on, from the first to the last."""
    field = 1
    for kernel, dilation in zip(kernels, dilations, strict=True):
        field += (kernel - 1) * dilation
    return field


def _there(X: Floats, present: Sequence[bool] | None) -> list[bool]:
    """Which tokens are not padding."""
    if present is None:
        return [True] * len(X)
    if len(present) != len(X):
        raise ValueError(f"`present` must have one entry a token, {len(X)}, but has {len(present)} instead.")
    return [bool(flag) for flag in present]
