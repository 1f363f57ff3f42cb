"""Formal Algorithms for Transformers (Phuong & Hutter 2022), algorithms 1 to 15: parts, models, losses, inference.

In the paper tokens are columns; here they are rows. So X is (length, d), the embedding matrices W_e (N_V, d_e) and
W_p (l_max, d_e) are the paper's transposed, and masks are [query, key] where the paper's are [key, query]. Matrices
that map vectors (W_q, W_o, W_mlp1, W_f, W_u, ...) are (out, in) as in the paper. Tokens are counted from 0 (there
from 1); positions are counted from 1, as there. P (length, N_V) has one distribution a row. Algorithms 11, 12 and 13
are here as the loss of one sequence, the sum over its tokens, without the paper's step of gradient descent. Nothing
here knows padding or batches: one sequence at a time.
"""
# ruff: noqa: N803, N806

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Bools, Floats, each_token, floats, linear, project
from .attention import softmax
from .blocks import gelu, layer_norm_formal, relu

# ---- parts: algorithms 1 to 7 ------------------------------------------------------------------------------------


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


# ---- models, losses, inference: algorithms 8 to 15 ---------------------------------------------------------------


@dataclass(frozen=True)
class LayerParameters:
    """One layer l of ETransformer, DTransformer, or of EDTransformer's encoder: attention is W_l (W_l^enc), gamma_1,
    beta_1, gamma_2, beta_2 the two norms, W_mlp1 (d_mlp, d_e), b_mlp1, W_mlp2 (d_e, d_mlp), b_mlp2 the MLP."""

    attention: MultiHeadParameters
    gamma_1: ArrayLike
    beta_1: ArrayLike
    W_mlp1: ArrayLike
    b_mlp1: ArrayLike
    W_mlp2: ArrayLike
    b_mlp2: ArrayLike
    gamma_2: ArrayLike
    beta_2: ArrayLike


@dataclass(frozen=True)
class DecoderLayerParameters:
    """One layer l of EDTransformer's decoder: attention is W_l^dec, cross W_l^e/d, then norms 3, 4, 5 and MLP 3, 4."""

    attention: MultiHeadParameters
    gamma_3: ArrayLike
    beta_3: ArrayLike
    cross: MultiHeadParameters
    gamma_4: ArrayLike
    beta_4: ArrayLike
    W_mlp3: ArrayLike
    b_mlp3: ArrayLike
    W_mlp4: ArrayLike
    b_mlp4: ArrayLike
    gamma_5: ArrayLike
    beta_5: ArrayLike


@dataclass(frozen=True)
class EDParameters:
    """theta of algorithm 8: one W_e (N_V, d_e) and W_p (l_max, d_e) for both sequences, W_u (N_V, d_e)."""

    W_e: ArrayLike
    W_p: ArrayLike
    encoder: Sequence[LayerParameters]
    decoder: Sequence[DecoderLayerParameters]
    W_u: ArrayLike


@dataclass(frozen=True)
class EParameters:
    """theta of algorithm 9: W_e, W_p, the layers, W_f (d_f, d_e), b_f, gamma, beta (d_f,), W_u (N_V, d_f)."""

    W_e: ArrayLike
    W_p: ArrayLike
    layers: Sequence[LayerParameters]
    W_f: ArrayLike
    b_f: ArrayLike
    gamma: ArrayLike
    beta: ArrayLike
    W_u: ArrayLike  # Departure: the paper writes (N_V, d_e), but it multiplies vectors of width d_f.


@dataclass(frozen=True)
class DParameters:
    """theta of algorithm 10: W_e, W_p, the layers, the last norm gamma, beta (d_e,), W_u (N_V, d_e)."""

    W_e: ArrayLike
    W_p: ArrayLike
    layers: Sequence[LayerParameters]
    gamma: ArrayLike
    beta: ArrayLike
    W_u: ArrayLike


def _mlp(X: Floats, W_in: ArrayLike, b_in: ArrayLike, W_out: ArrayLike, b_out: ArrayLike,
         activation: Callable[[ArrayLike], Floats]) -> Floats:
    """W_out act(W_in X + b_in) + b_out for every token."""
    return project(activation(project(X, W_in, b_in)), W_out, b_out)


def _post_norm_layer(X: Floats, layer: LayerParameters, activation: Callable[[ArrayLike], Floats]) -> Floats:
    """The loop of algorithm 9, and of algorithm 8's encoder: unmasked attention, norm, MLP, norm."""
    X = X + mh_attention(X, X, layer.attention, mask_all(len(X), len(X)))
    X = layer_norm_rows(X, layer.gamma_1, layer.beta_1)
    X = X + _mlp(X, layer.W_mlp1, layer.b_mlp1, layer.W_mlp2, layer.b_mlp2, activation)
    return layer_norm_rows(X, layer.gamma_2, layer.beta_2)


def ed_transformer(z: Sequence[int], x: Sequence[int], theta: EDParameters) -> Floats:
    """Algorithm 8, EDTransformer(z, x | theta): post-norm, ReLU; encoder and cross unmasked, decoder causal.

    z is the source, x what has been written so far. -> P (length(x), N_V), P[t] distributes the token after x[t]
    """
    Z = embed(z, theta.W_e, theta.W_p)
    for layer in theta.encoder:
        Z = _post_norm_layer(Z, layer, relu)
    X = embed(x, theta.W_e, theta.W_p)
    for own in theta.decoder:
        X = X + mh_attention(X, X, own.attention, mask_unidirectional(len(X)))
        X = layer_norm_rows(X, own.gamma_3, own.beta_3)
        X = X + mh_attention(X, Z, own.cross, mask_all(len(X), len(Z)))
        X = layer_norm_rows(X, own.gamma_4, own.beta_4)
        X = X + _mlp(X, own.W_mlp3, own.b_mlp3, own.W_mlp4, own.b_mlp4, relu)
        X = layer_norm_rows(X, own.gamma_5, own.beta_5)
    return each_token(lambda e: unembedding(e, theta.W_u), X)


def e_transformer(x: Sequence[int], theta: EParameters) -> Floats:
    """Algorithm 9, ETransformer(x | theta): post-norm, GELU, unmasked; then GELU(W_f X + b_f), norm, unembedding."""
    X = embed(x, theta.W_e, theta.W_p)
    for layer in theta.layers:
        X = _post_norm_layer(X, layer, gelu)
    X = each_token(lambda e: gelu(linear(e, theta.W_f, theta.b_f)), X)
    X = layer_norm_rows(X, theta.gamma, theta.beta)
    return each_token(lambda e: unembedding(e, theta.W_u), X)


def d_transformer(x: Sequence[int], theta: DParameters) -> Floats:
    """Algorithm 10, DTransformer(x | theta): pre-norm, GELU, causal, a last norm, unembedding."""
    X = embed(x, theta.W_e, theta.W_p)
    for layer in theta.layers:
        normed = layer_norm_rows(X, layer.gamma_1, layer.beta_1)
        X = X + mh_attention(normed, normed, layer.attention, mask_unidirectional(len(X)))
        normed = layer_norm_rows(X, layer.gamma_2, layer.beta_2)
        X = X + _mlp(normed, layer.W_mlp1, layer.b_mlp1, layer.W_mlp2, layer.b_mlp2, gelu)
    X = layer_norm_rows(X, theta.gamma, theta.beta)
    return each_token(lambda e: unembedding(e, theta.W_u), X)


def _next_token_loss(P: Floats, x: Sequence[int]) -> float:
    """-sum_{t=1}^{length-1} log P[x[t+1], t]."""
    return -sum(float(np.log(P[t, x[t + 1]])) for t in range(len(x) - 1))


def ed_loss(z: Sequence[int], x: Sequence[int], theta: EDParameters) -> float:
    """Algorithm 11, the loss of one pair: -sum_t log P[x[t+1], t], P = EDTransformer(z, x | theta); x starts at bos."""
    return _next_token_loss(ed_transformer(z, x, theta), x)


def choose_masked(length: int, p_mask: float, rng: np.random.Generator) -> list[bool]:
    """Algorithm 12: every position is chosen with probability p_mask, by itself."""
    return [bool(rng.random() < p_mask) for _ in range(length)]


def e_loss(x: Sequence[int], chosen: Sequence[bool], mask_token: int, theta: EParameters) -> float:
    """Algorithm 12, the loss of one sequence: x~[t] is mask_token where chosen, x[t] elsewhere; -sum over the positions
    that hold mask_token of log P[x[t], t], P = ETransformer(x~ | theta). None chosen: 0."""
    masked = [mask_token if yes else token for token, yes in zip(x, chosen, strict=True)]
    P = e_transformer(masked, theta)
    return -sum(float(np.log(P[t, x[t]])) for t in range(len(x)) if masked[t] == mask_token)


def d_loss(x: Sequence[int], theta: DParameters) -> float:
    """Algorithm 13, the loss of one sequence: -sum_t log P[x[t+1], t], P = DTransformer(x | theta)."""
    return _next_token_loss(d_transformer(x, theta), x)


def apply_temperature(p: ArrayLike, tau: float) -> Floats:
    """q proportional to p^(1/tau). tau = 0 is the limit: all on the first of the largest (the paper has tau > 0)."""
    p = floats(p)
    if tau < 0.0:
        raise ValueError(f"`tau` must not be negative, but is {tau} instead.")
    if tau == 0.0:
        q = np.zeros(len(p))
        q[int(np.argmax(p))] = 1.0
        return q
    q = (p / np.max(p)) ** (1.0 / tau)  # by the largest first, so that a small tau cannot make all of them 0
    return q / sum(q)


def _sample(p: Floats, tau: float, rng: np.random.Generator) -> int:
    return int(rng.choice(len(p), p=apply_temperature(p, tau)))


def d_inference(x: Sequence[int], l_gen: int, tau: float, theta: DParameters, rng: np.random.Generator) -> list[int]:
    """Algorithm 14, DInference: l_gen times, p = the last row of DTransformer(x), y sampled from p^(1/tau), x = [x, y].

    -> the new tokens alone
    """
    written = list(x)
    for _ in range(l_gen):
        P = d_transformer(written, theta)
        written.append(_sample(P[len(written) - 1], tau, rng))
    return written[len(x) :]


def ed_inference(z: Sequence[int], tau: float, theta: EDParameters, rng: np.random.Generator, *, bos: int, eos: int,
                 limit: int) -> list[int]:
    """Algorithm 15, EDInference: from x = [bos], sample from the last row of EDTransformer(z, x) until eos.

    -> x with bos, and with eos where it was reached
    """
    written = [bos]
    # Departure: the paper goes on until eos, however long; here at most `limit` tokens are added.
    for _ in range(limit):
        P = ed_transformer(z, written, theta)
        token = _sample(P[len(written) - 1], tau, rng)
        written.append(token)
        if token == eos:
            break
    return written
