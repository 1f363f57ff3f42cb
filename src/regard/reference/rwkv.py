"""RWKV, versions 4 and 7: the recurrences, the maps from values to results, and the two halves of a block.

    x'_t = x_{t-1}, x'_0 = 0;   mix(x, m) = x + m (x' - x)                     the token shift

    version 4, every channel by itself, w < 0 the decay, u the bonus of the current token:
    wkv_t = (sum_{i<t} e^{(t-1-i)w + k_i} v_i + e^{u + k_t} v_t) / (the same sum without v)

    version 7, every head by itself, S (value features, key features):
    S_t = S_{t-1} diag(w_t) - (S_{t-1} c_t)(c_t a_t)^T + v_t k_t^T;   y_t = S_t r_t

Both are linear in the values, so that y = M v with a matrix M (token, earlier token): in version 4 one for every
channel, whose rows sum to 1; in version 7 one for every head, with positive and negative numbers.

A sequence is (N, D), tokens as rows. `c` is the normalized removal key (kappa-hat in the paper), `a` the in-context
learning rate. This module knows nothing of batches, padding or stacks; the values of the first layer are an argument.

Sources: Peng et al. 2023 (RWKV-4); Peng et al. 2025 (RWKV-7 "Goose").
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats, linear, project
from .blocks import layer_norm, relu, sigmoid

Parameters = Mapping[str, ArrayLike]
EMPTY = -1e38
"""The exponent p of an empty sum in version 4."""
GROUP_EPSILON = 64e-5
"""The epsilon of version 7's norm over the features of a head."""
NORMALIZE_EPSILON = 1e-12
"""The smallest length of a removal key in its normalization."""

# ---- the token shift ---------------------------------------------------------------------------------------------


def token_shift(X: ArrayLike) -> Floats:
    """x'_t = x_{t-1}; zeros before the first token."""
    X = floats(X)
    shifted = np.zeros(X.shape)
    for t in range(1, len(X)):
        shifted[t] = X[t - 1]
    return shifted


def mix(X: ArrayLike, m: ArrayLike) -> Floats:
    """x + m (x' - x): m = 0 is the token, m = 1 the token before it."""
    X = floats(X)
    return X + floats(m) * (token_shift(X) - X)


# ---- version 4 ---------------------------------------------------------------------------------------------------


def wkv4(k: ArrayLike, v: ArrayLike, w: ArrayLike, u: ArrayLike) -> Floats:
    """The recurrence in log space: numerator a e^p and denominator b e^p. k, v (N, D); w, u (D,)."""
    k, v, w, u = floats(k), floats(v), floats(w), floats(u)
    y = np.zeros(v.shape)
    a, b, p = np.zeros(len(w)), np.zeros(len(w)), np.full(len(w), EMPTY)
    for t in range(len(k)):
        q = np.maximum(p, u + k[t])
        y[t] = ((np.exp(p - q) * a + np.exp(u + k[t] - q) * v[t])
                / (np.exp(p - q) * b + np.exp(u + k[t] - q)))
        q = np.maximum(p + w, k[t])
        a = np.exp(p + w - q) * a + np.exp(k[t] - q) * v[t]
        b = np.exp(p + w - q) * b + np.exp(k[t] - q)
        p = q
    return y


def wkv4_map(k: ArrayLike, w: ArrayLike, u: ArrayLike) -> Floats:
    """M (D, N, N): M[c, t, i] is the share of v_i in wkv_t, for channel c. Every row sums to 1."""
    k, w, u = floats(k), floats(w), floats(u)
    N, D = k.shape
    M = np.zeros((D, N, N))
    for c in range(D):
        for t in range(N):
            exponents = [(t - 1 - i) * w[c] + k[i, c] for i in range(t)] + [u[c] + k[t, c]]
            largest = max(exponents)
            parts = [math.exp(exponent - largest) for exponent in exponents]
            for i in range(t + 1):
                M[c, t, i] = parts[i] / sum(parts)
    return M


def time_mix4(X: ArrayLike, P: Parameters) -> Floats:
    """W_o (sigma(r) wkv): r, k, v = W mix(x, m), each with its own W and m; w = -exp(decay). X (N, D) -> (N, D)."""
    r, k, v = (project(mix(X, P[f"m_{name}"]), P[f"W_{name}"]) for name in "rkv")
    wkv = wkv4(k, v, -np.exp(floats(P["decay"])), P["u"])
    return project(sigmoid(r) * wkv, P["W_o"])


def channel_mix4(X: ArrayLike, P: Parameters) -> Floats:
    """sigma(W_r mix(x, m_r)) W_v relu(W_k mix(x, m_k))^2."""
    return sigmoid(project(mix(X, P["m_r"]), P["W_r"])) * channel_mix7(X, P)


# ---- version 7 ---------------------------------------------------------------------------------------------------


def wkv7_states(w: ArrayLike, k: ArrayLike, v: ArrayLike, c: ArrayLike, a: ArrayLike) -> Floats:
    """S_t after every token, for one head: w, k, c, a (N, K), v (N, V) -> (N, V, K)."""
    w, k, v, c, a = (floats(part) for part in (w, k, v, c, a))
    S = np.zeros((v.shape[1], k.shape[1]))
    states = np.zeros((len(k), *S.shape))
    for t in range(len(k)):
        S = S * w[t] - np.outer(S @ c[t], c[t] * a[t]) + np.outer(v[t], k[t])
        states[t] = S
    return states


def wkv7(r: ArrayLike, w: ArrayLike, k: ArrayLike, v: ArrayLike, c: ArrayLike, a: ArrayLike) -> Floats:
    """y_t = S_t r_t, for one head: (N, V)."""
    r, states = floats(r), wkv7_states(w, k, v, c, a)
    y = np.zeros(floats(v).shape)
    for t in range(len(r)):
        y[t] = states[t] @ r[t]
    return y


def wkv7_map(r: ArrayLike, w: ArrayLike, k: ArrayLike, c: ArrayLike, a: ArrayLike) -> Floats:
    """M (N, N), signed: M_ti = k_i^T A_{i+1} ... A_t r_t with A_j = diag(w_j) - c_j (c_j a_j)^T."""
    r, w, k, c, a = (floats(part) for part in (r, w, k, c, a))
    N = len(r)
    M = np.zeros((N, N))
    for i in range(N):
        row = k[i]
        M[i, i] = row @ r[i]
        for t in range(i + 1, N):
            row = row @ (np.diag(w[t]) - np.outer(c[t], c[t] * a[t]))
            M[t, i] = row @ r[t]
    return M


def _low_rank(X: Floats, P: Parameters, name: str) -> Floats:
    """x_0 + x A B: the adapter of this name, with A (D, rank) and B (rank, D)."""
    return floats(P[f"{name}0"]) + (X @ floats(P[f"{name}1"])) @ floats(P[f"{name}2"])


def _normalize(x: Floats) -> Floats:
    return x / max(math.sqrt(float(sum(x * x))), NORMALIZE_EPSILON)


def time_mix7_parts(X: ArrayLike, P: Parameters, heads: int, v_first: ArrayLike | None = None) -> dict[str, Floats]:
    """r, w, k, v, c, a (heads, N, D / heads), g (N, D), v_first (N, D): what the recurrence and the output read.

    w = exp(-e^{-1/2} sigma(w0 + tanh(x_w A) B));   a = sigma(a0 + x_a A B);   g = sigma(x_g A) B
    c = normalize(k k_k) for every head;   k = k (1 + (a - 1) k_a);   v = v + (v_first - v) sigma(v0 + x_v A B)
    """
    mixed = {name: mix(X, P[f"x_{name}"]) for name in "rwkvag"}
    r, k, v = (project(mixed[name], P[f"W_{name}"]) for name in "rkv")
    N = len(r)
    decay = floats(P["w0"]) + np.tanh(mixed["w"] @ floats(P["w1"])) @ floats(P["w2"])
    w = np.exp(-math.exp(-0.5) * sigmoid(decay))
    a = sigmoid(_low_rank(mixed["a"], P, "a"))
    g = sigmoid(mixed["g"] @ floats(P["g1"])) @ floats(P["g2"])
    first = v
    if v_first is not None:
        first = floats(v_first)
        v = v + (first - v) * sigmoid(_low_rank(mixed["v"], P, "v"))
    c = k * floats(P["k_k"])
    k = k * (1.0 + (a - 1.0) * floats(P["k_a"]))
    split = {name: np.stack(np.split(part, heads, axis=1)) for name, part in
             (("r", r), ("w", w), ("k", k), ("v", v), ("c", c), ("a", a))}
    for h in range(heads):
        for t in range(N):
            split["c"][h, t] = _normalize(split["c"][h, t])
    return {**split, "g": g, "v_first": first}


def time_mix7(X: ArrayLike, P: Parameters, heads: int, v_first: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """W_o (g (group_norm(y) + (sum r k r_k) v)) and the values of the first layer: (N, D) twice.

    `v_first` is None in the first layer, whose values they are.
    """
    parts = time_mix7_parts(X, P, heads, v_first)
    N, D = parts["g"].shape
    gain, bias, r_k = (np.split(floats(P[name]).reshape(-1), heads) for name in ("ln_weight", "ln_bias", "r_k"))
    y = np.zeros((N, D))
    for t in range(N):
        results = []
        for h in range(heads):
            r, w, k, v, c, a = (parts[name][h] for name in "rwkvca")
            own = wkv7(r[:t + 1], w[:t + 1], k[:t + 1], v[:t + 1], c[:t + 1], a[:t + 1])[t]
            bonus = float(sum(r[t] * k[t] * r_k[h]))
            results.append(layer_norm(own, gain[h], bias[h], GROUP_EPSILON) + bonus * v[t])
        y[t] = parts["g"][t] * np.concatenate(results)
    return project(y, P["W_o"], P.get("b_o")), parts["v_first"]


def channel_mix7(X: ArrayLike, P: Parameters) -> Floats:
    """W_v relu(W_k mix(x, m_k))^2."""
    hidden = relu(project(mix(X, P["m_k"]), P["W_k"])) ** 2
    return np.stack([linear(token, P["W_v"]) for token in hidden]) if len(hidden) else np.zeros(floats(X).shape)
