"""Helpers of all modules of the reference: conversion to float64, a map over tokens, a linear map.

Tokens are rows everywhere: a sequence is a matrix (N, D), and a weight matrix W (out, in) maps the row x to W x.
This module knows nothing of attention, recurrence or models.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def floats(x: ArrayLike) -> Floats:
    """x as a float64 array."""
    return np.asarray(x, dtype=np.float64)


def each_token(function: Callable[[Floats], Floats], X: ArrayLike) -> Floats:
    """Apply a function of one token's vector to every token of X (..., D), one after the other."""
    X = floats(X)
    leading = X.shape[:-1]
    if 0 in leading:
        raise ValueError(f"`X` must hold at least one token, but its shape is {X.shape} instead.")
    first = floats(function(X[(0,) * len(leading)]))
    Y = np.empty(leading + first.shape)
    for index in np.ndindex(*leading):
        Y[index] = function(X[index])
    return Y


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Floats:
    """y = W x + b for one vector x (in,), W (out, in), b (out,)."""
    y: Floats = floats(weight) @ floats(x)
    return y if bias is None else y + floats(bias)


def project(X: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Floats:
    """The same linear map of every row: row n of the result is W x_n + b. X (N, in) -> (N, out); N may be 0."""
    X, weight = floats(X), floats(weight)
    Y = np.zeros((len(X), len(weight)))
    for n in range(len(X)):
        Y[n] = linear(X[n], weight, bias)
    return Y


def same_width(name: str, a: Floats, other: str, b: Floats) -> None:
    """Refuse to add two vectors of different widths: NumPy would silently broadcast a vector of width 1."""
    if a.shape != b.shape:
        raise ValueError(f"`{name}` and `{other}` must have one shape, but are {a.shape} and {b.shape} instead.")
