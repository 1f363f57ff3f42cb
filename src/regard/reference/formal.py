"""Formal Algorithms for Transformers (Phuong & Hutter 2022), algorithms 1 to 7: the parts. The models are in
formal_models.py.

In the paper tokens are columns; here they are rows. So X is (length, d), the embedding matrices W_e (N_V, d_e) and
W_p (l_max, d_e) are the paper's transposed, and masks are [query, key] where the paper's are [key, query]. Matrices
that map vectors (W_q, W_o, W_mlp1, W_f, W_u, ...) are (out, in) as in the paper. Tokens are counted from 0 (there from
1); positions are counted from 1, as there. Nothing here knows of padding or of batches: one sequence at a time.
"""

# ruff: noqa: N803, N806
# (the names of matrices are those of the sources: W_xh, W_e)

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Bools, Floats, each_token, floats, linear, project
from .attention import softmax
from .norm import layer_norm_formal


@dataclass(frozen=True)
class AttentionParameters:
    """W_qkv of algorithms 3 and 4: W_q (d_attn, d_x), W_k (d_attn, d_z), W_v (d_out, d_z), and b_q, b_k, b_v."""

    W_q: ArrayLike
    b_q: ArrayLike
    W_k: ArrayLike
    b_k: ArrayLike
    W_v: ArrayLike
    b_v: ArrayLike


@dataclass(frozen=True)
class MultiHeadParameters:
    """W of algorithm 5: W_qkv^h for every head h, W_o (d_out, H d_mid), b_o (d_out,)."""

    heads: Sequence[AttentionParameters]
    W_o: ArrayLike
    b_o: ArrayLike


def token_embedding(v: int, W_e: ArrayLike) -> Floats:
    """Algorithm 1: e = W_e[:, v]. The paper does not multiply by sqrt(d_e)."""
    W_e = floats(W_e)
    if not 0 <= v < len(W_e):
        raise ValueError(f"`v` must be a token from 0 to {len(W_e) - 1}, but is {v} instead.")
    return floats(W_e[v])


def positional_embedding(t: int, W_p: ArrayLike) -> Floats:
    """Algorithm 2: e_p = W_p[:, t], t from 1 to l_max."""
    W_p = floats(W_p)
    if not 1 <= t <= len(W_p):
        raise ValueError(f"`t` must be a position from 1 to l_max = {len(W_p)}, but is {t} instead.")
    return floats(W_p[t - 1])


def embed(x: Sequence[int], W_e: ArrayLike, W_p: ArrayLike) -> Floats:
    """e_t = W_e[:, x[t]] + W_p[:, t] for t = 1 .. length(x): the first lines of algorithms 8, 9 and 10."""
    X = np.zeros((len(x), floats(W_e).shape[1]))
    for t in range(1, len(x) + 1):
        X[t - 1] = token_embedding(x[t - 1], W_e) + positional_embedding(t, W_p)
    return X


def single_query_attention(e: ArrayLike, context: ArrayLike, parameters: AttentionParameters) -> Floats:
    """Algorithm 3: q = W_q e + b_q, k_t = W_k e_t + b_k, v_t = W_v e_t + b_v;
    alpha_t = exp(q . k_t / sqrt(d_attn)) / sum_u exp(q . k_u / sqrt(d_attn)); sum_t alpha_t v_t."""
    p = parameters
    q = linear(e, p.W_q, p.b_q)
    keys, values = project(context, p.W_k, p.b_k), project(context, p.W_v, p.b_v)
    scores = [float(q @ k) / math.sqrt(len(q)) for k in keys]
    result = np.zeros(values.shape[1])
    for alpha, v in zip(softmax(scores, [True] * len(scores)), values, strict=True):
        result += alpha * v
    return result


def attention(X: ArrayLike, Z: ArrayLike, parameters: AttentionParameters, mask: ArrayLike) -> Floats:
    """Algorithm 4: Q = W_q X + b_q, K = W_k Z + b_k, V = W_v Z + b_v; S = K^T Q, S = -inf where the mask is 0;
    V softmax(S / sqrt(d_attn)). X (l_x, d_x) asks, Z (l_z, d_z) answers, mask (l_x, l_z)."""
    p = parameters
    Q, K, V = project(X, p.W_q, p.b_q), project(Z, p.W_k, p.b_k), project(Z, p.W_v, p.b_v)
    allowed = np.asarray(mask, dtype=np.bool_)
    result = np.zeros((len(Q), V.shape[1]))
    for t_x in range(len(Q)):
        S = np.full(len(K), -math.inf)
        for t_z in range(len(K)):
            if allowed[t_x, t_z]:
                S[t_z] = float(K[t_z] @ Q[t_x])
        # Departure: where the mask leaves nothing the paper's softmax is 0/0; ours is zeros.
        result[t_x] = softmax(S / math.sqrt(Q.shape[1]), allowed[t_x]) @ V
    return result


def mh_attention(X: ArrayLike, Z: ArrayLike, parameters: MultiHeadParameters, mask: ArrayLike) -> Floats:
    """Algorithm 5: Y^h = Attention(X, Z | W_qkv^h, mask); W_o [Y^1; ...; Y^H] + b_o."""
    outputs = [attention(X, Z, head, mask) for head in parameters.heads]
    return project(np.concatenate(outputs, axis=1), parameters.W_o, parameters.b_o)


def layer_norm(e: ArrayLike, gamma: ArrayLike, beta: ArrayLike) -> Floats:
    """Algorithm 6: (e - m) / sqrt(v) gamma + beta, biased variance, no eps."""
    return layer_norm_formal(e, gamma, beta)


def layer_norm_rows(X: ArrayLike, gamma: ArrayLike, beta: ArrayLike) -> Floats:
    """Algorithm 6 for every token of X: the inner loops of algorithms 8, 9 and 10."""
    return each_token(lambda e: layer_norm(e, gamma, beta), X)


def unembedding(e: ArrayLike, W_u: ArrayLike) -> Floats:
    """Algorithm 7: p = softmax(W_u e), without bias."""
    logits = linear(e, W_u)
    return softmax(logits, [True] * len(logits))


def mask_all(l_x: int, l_z: int) -> Bools:
    """Mask = 1: every token sees every token of the context."""
    return np.ones((l_x, l_z), dtype=np.bool_)


def mask_unidirectional(length: int) -> Bools:
    """Mask[t_z, t_x] = [[t_z <= t_x]], here [t_x, t_z]."""
    mask = np.zeros((length, length), dtype=np.bool_)
    for t_x in range(length):
        for t_z in range(length):
            mask[t_x, t_z] = t_z <= t_x
    return mask
