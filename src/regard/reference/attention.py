"""Attention: masks, scores of a pair, normalisers of a row, weights, the weighted sum, and the forms of layers.

Masks are bool matrices, written out cell by cell: row i is a query, column j a key, True means *may attend*. Unless a
start is given, the last query stands on the last key ("aligned to the bottom right"): query i stands at the key
position i + n_keys - n_queries. (torch's `is_causal` is aligned to the top left instead: with fewer queries than keys
it gives another matrix.)

A score takes one query and one key; a normaliser one row of scores; neither knows masks' shapes, heads or batches.
`weights` and `attend` are about one matrix of queries; `weights_many` and `attend_many` about batches and heads.
Nothing here knows models or positions.

Sources: Bahdanau, Cho, Bengio 2015 (additive); Luong, Pham, Manning 2015 (dot, bilinear); Vaswani et al. 2017
(scaled dot, heads); Wortsman et al. 2023 (ReLU over the number of keys); Gemma Team 2024 (soft-capped scores); Yuan et
al. 2021 (agent-aware attention).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import blocks
from .arrays import Bools, Floats, Ints, floats, linear, project, same_width

Score = Callable[[Floats, Floats], float]
Normalizer = Callable[[ArrayLike, ArrayLike], Floats]

# ---- masks: bool matrices ----------------------------------------------------------------------------------------


def distances(n_queries: int, n_keys: int, start: int | None = None) -> Ints:
    """d_ij = j - p_i, key position minus query position; p_i = start + i, or i + n_keys - n_queries without start."""
    if start is None:
        start = n_keys - n_queries
    matrix = np.zeros((n_queries, n_keys), dtype=np.int64)
    for i in range(n_queries):
        for j in range(n_keys):
            matrix[i, j] = j - (start + i)
    return matrix


def _where(matrix: Ints, may_attend: Callable[[int], bool]) -> Bools:
    """The mask that asks one question of every distance."""
    mask = np.zeros(matrix.shape, dtype=np.bool_)
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            mask[i, j] = may_attend(int(matrix[i, j]))
    return mask


def _inside(distance: int, left: int | None, right: int | None) -> bool:
    """-left <= distance <= right; None is no limit."""
    return (left is None or -left <= distance) and (right is None or distance <= right)


def causal(n_queries: int, n_keys: int) -> Bools:
    """j <= i + n_keys - n_queries. With more queries than keys the first queries may attend to nothing."""
    return _where(distances(n_queries, n_keys), lambda distance: distance <= 0)


def window(n_queries: int, n_keys: int, left: int | None, right: int | None) -> Bools:
    """-left <= d_ij <= right, d_ij = j - (i + n_keys - n_queries). None on a side is no limit on that side."""
    return _where(distances(n_queries, n_keys), lambda distance: _inside(distance, left, right))


def padding(lengths: Sequence[int], n_queries: int, n_keys: int, side: str) -> Bools:
    """Key j of sequence b is real: j < lengths[b] (padding on the right), j >= n_keys - lengths[b] (on the left).

    -> (B, n_queries, n_keys). Only keys are masked: a query that is padding itself still attends.
    """
    if side not in ("left", "right"):
        raise ValueError(f"`side` must be 'left' or 'right', but is {side!r} instead.")
    mask = np.zeros((len(lengths), n_queries, n_keys), dtype=np.bool_)
    for b, length in enumerate(lengths):
        for i in range(n_queries):
            for j in range(n_keys):
                mask[b, i, j] = j < length if side == "right" else j >= n_keys - length
    return mask


def _blocks(query_lengths: Sequence[int], key_lengths: Sequence[int] | None, n_queries: int | None, n_keys: int | None,
            block: Callable[[int, int], Bools]) -> Bools:
    """Puts block(n_queries, n_keys) of every segment on the diagonal; everything else may not attend."""
    if key_lengths is None:
        key_lengths = query_lengths
    if len(query_lengths) != len(key_lengths):
        raise ValueError(
            "`key_lengths` must have as many segments as `query_lengths`, "
            f"but has {len(key_lengths)} instead of {len(query_lengths)}."
        )
    n_queries = sum(query_lengths) if n_queries is None else n_queries
    n_keys = sum(key_lengths) if n_keys is None else n_keys
    if n_queries < sum(query_lengths) or n_keys < sum(key_lengths):
        raise ValueError(
            f"the segments need ({sum(query_lengths)}, {sum(key_lengths)}) positions, "
            f"but `n_queries`, `n_keys` are ({n_queries}, {n_keys}) instead."
        )
    mask = np.zeros((n_queries, n_keys), dtype=np.bool_)
    first_query = first_key = 0
    for queries, keys in zip(query_lengths, key_lengths, strict=True):
        mask[first_query : first_query + queries, first_key : first_key + keys] = block(queries, keys)
        first_query += queries
        first_key += keys
    return mask


def packed(query_lengths: Sequence[int], key_lengths: Sequence[int] | None = None, n_queries: int | None = None,
           n_keys: int | None = None) -> Bools:
    """Several sequences laid end to end: a query sees the keys of its own segment. -> (sum of queries, sum of keys).

    Without key_lengths, keys are cut like queries. What lies beyond the sums (where n_queries or n_keys is larger)
    attends to nothing, and nothing attends to it.
    """
    return _blocks(query_lengths, key_lengths, n_queries, n_keys, lambda q, k: np.ones((q, k), dtype=np.bool_))


def packed_causal(query_lengths: Sequence[int], key_lengths: Sequence[int] | None = None, n_queries: int | None = None,
                  n_keys: int | None = None) -> Bools:
    """Packed, and causal inside every segment, aligned to the bottom right of that segment."""
    return _blocks(query_lengths, key_lengths, n_queries, n_keys, causal)


def packed_window(query_lengths: Sequence[int], key_lengths: Sequence[int] | None, left: int | None, right: int | None,
                  n_queries: int | None = None, n_keys: int | None = None) -> Bools:
    """Packed, and a window inside every segment, aligned to the bottom right of that segment."""
    return _blocks(query_lengths, key_lengths, n_queries, n_keys, lambda q, k: window(q, k, left, right))


def placed(start: int, n_queries: int, n_keys: int) -> Bools:
    """Query i stands at key position start + i of a cache; keys from start + n_queries on do not exist yet."""
    mask = np.zeros((n_queries, n_keys), dtype=np.bool_)
    for i in range(n_queries):
        for j in range(n_keys):
            mask[i, j] = j < start + n_queries
    return mask


def placed_causal(start: int, n_queries: int, n_keys: int) -> Bools:
    """Query i stands at key position start + i: j <= start + i."""
    return _where(distances(n_queries, n_keys, start), lambda distance: distance <= 0)


def placed_window(start: int, n_queries: int, n_keys: int, left: int | None, right: int | None) -> Bools:
    """Query i stands at key position start + i: -left <= j - (start + i) <= right, among the keys that exist."""
    inside = _where(distances(n_queries, n_keys, start), lambda distance: _inside(distance, left, right))
    return inside & placed(start, n_queries, n_keys)


# ---- scores: one query, one key ----------------------------------------------------------------------------------


def dot(q: ArrayLike, k: ArrayLike) -> float:
    """e = q . k (Luong et al. 2015, "dot")."""
    return float(floats(q) @ floats(k))


def scaled_dot(q: ArrayLike, k: ArrayLike) -> float:
    """e = q . k / sqrt(D_Q), D_Q the width of the query (Vaswani et al. 2017)."""
    return dot(q, k) / math.sqrt(len(floats(q)))


def scaled_dot_d(q: ArrayLike, k: ArrayLike) -> float:
    """e = q . k / d: one source divides by d, not by its root."""
    # Departure: d is the width of the hidden state in that source; here it is the width of the query.
    return dot(q, k) / len(floats(q))


def additive(q: ArrayLike, k: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> float:
    """e = w . tanh(q + k + b) on queries and keys that are already projected to one width."""
    q, k = floats(q), floats(k)
    same_width("q", q, "k", k)
    inner = q + k if bias is None else q + k + floats(bias)
    return float(floats(weight) @ np.tanh(inner))


def mlp_score(q: ArrayLike, k: ArrayLike, W1: ArrayLike, W2: ArrayLike, weight: ArrayLike,
              bias: ArrayLike | None = None) -> float:
    """e = w . tanh(W_1 q + W_2 k + b), the additive score as Bahdanau et al. 2015 write it (they have no b)."""
    return additive(linear(q, W1), linear(k, W2), weight, bias)


def bilinear(q: ArrayLike, k: ArrayLike, weight: ArrayLike) -> float:
    """e = q W k, W (D_Q, D_K) (Luong et al. 2015, "general")."""
    return float(floats(q) @ floats(weight) @ floats(k))


def with_scale(scale: float) -> Score:
    """e = scale (q . k): a dot product with a scale of the caller's, in the place of 1 / sqrt(D_Q)."""
    return lambda q, k: scale * dot(q, k)


def softcapped(score: Score, cap: float) -> Score:
    """e = c tanh(e' / c), e' another score: between -c and c, and about e' where that is small (Gemma 2, 2024)."""
    if not cap > 0:
        raise ValueError(f"`cap` must be above 0, but is {cap} instead.")
    return lambda q, k: cap * math.tanh(score(q, k) / cap)


# ---- normalisers: one row of scores ------------------------------------------------------------------------------
# A key that is not allowed has weight exactly 0 whatever its score is, NaN included; a score of -inf (from a bias of
# -inf, say) counts as not allowed. A row that is allowed nothing is all zeros: the sources leave that case undefined
# (0/0), and torch's softmax of a row of -inf is NaN.


def _keys(scores: Floats, allowed: ArrayLike) -> list[int]:
    """The keys that count in this row."""
    allowed = np.asarray(allowed, dtype=np.bool_)
    return [j for j in range(len(scores)) if allowed[j] and scores[j] != -math.inf]


def softmax(scores: ArrayLike, allowed: ArrayLike) -> Floats:
    """a_j = exp(e_j) / sum_i exp(e_i) over the allowed keys."""
    scores = floats(scores)
    row, keys = np.zeros(len(scores)), _keys(scores, allowed)
    if not keys:
        return row
    largest = np.max([scores[j] for j in keys])  # the same number taken from all scores changes no weight
    for j in keys:
        row[j] = np.exp(scores[j] - largest)
    return row / sum(row)


def relu_keys(scores: ArrayLike, allowed: ArrayLike) -> Floats:
    """a_j = max(e_j, 0) / n, n the number of keys that the query may attend to. The weights do not sum to 1."""
    # Departure: Wortsman et al. 2023 divide by the sequence length; under a mask that would count hidden keys.
    scores = floats(scores)
    row, keys = np.zeros(len(scores)), _keys(scores, allowed)
    for j in keys:
        row[j] = np.maximum(scores[j], 0.0) / len(keys)
    return row


def relu_sum(scores: ArrayLike, allowed: ArrayLike) -> Floats:
    """a_j = max(e_j, 0) / sum_i max(e_i, 0) over the allowed keys; where all of them are 0, the weights are 0."""
    scores = floats(scores)
    row = np.zeros(len(scores))
    for j in _keys(scores, allowed):
        row[j] = np.maximum(scores[j], 0.0)
    total = sum(row)
    return row if total == 0.0 else row / total


def sigmoid(scores: ArrayLike, allowed: ArrayLike) -> Floats:
    """a_j = 1 / (1 + exp(-e_j)) for every allowed key by itself. Nothing makes the weights sum to 1."""
    scores = floats(scores)
    row = np.zeros(len(scores))
    for j in _keys(scores, allowed):
        row[j] = blocks.sigmoid(scores[j])
    return row


# ---- weights and weighted sums: one matrix of queries ------------------------------------------------------------


def _mask(mask: ArrayLike | None, shape: tuple[int, ...]) -> Bools:
    """The mask in full; no mask allows everything. Only bools: 0.0 is "yes" where masks are added, "no" as a bool."""
    allowed = np.asarray(True if mask is None else mask)
    if allowed.dtype != np.bool_:
        raise ValueError(f"`mask` must be of bools, but is of {allowed.dtype} instead.")
    return np.broadcast_to(allowed, shape)


def _bias(bias: ArrayLike | None, shape: tuple[int, ...]) -> Floats:
    """The bias in full; no bias adds nothing."""
    return np.broadcast_to(floats(0.0 if bias is None else bias), shape)


def _scores(query: Floats, key: Floats, score: Score, mask: ArrayLike | None,
            bias: ArrayLike | None) -> tuple[Floats, Bools]:
    """e_ij = score(q_i, k_j) + bias_ij of the allowed pairs, and which those are. No other pair is computed."""
    shape = (len(query), len(key))
    allowed, added = _mask(mask, shape), _bias(bias, shape)
    scores = np.full(shape, -math.inf)
    for i in range(len(query)):
        for j in range(len(key)):
            if allowed[i, j]:
                scores[i, j] = score(query[i], key[j]) + added[i, j]
    return scores, allowed


def weights(query: ArrayLike, key: ArrayLike, *, score: Score = scaled_dot, normalize: Normalizer = softmax,
            mask: ArrayLike | None = None, bias: ArrayLike | None = None) -> Floats:
    """A, row i = normalize over j of score(q_i, k_j) + bias_ij. query (Nq, Dq), key (Nk, Dk) -> (Nq, Nk)."""
    scores, allowed = _scores(floats(query), floats(key), score, mask, bias)
    A = np.zeros(scores.shape)
    for i in range(len(A)):
        A[i] = normalize(scores[i], allowed[i])
    return A


def attend(query: ArrayLike, key: ArrayLike, value: ArrayLike, *, score: Score = scaled_dot,
           normalize: Normalizer = softmax, mask: ArrayLike | None = None, bias: ArrayLike | None = None) -> Floats:
    """y_i = sum_j a_ij v_j over the allowed keys. value (Nk, Dv) -> (Nq, Dv).

    A value that is not allowed, or whose score is -inf, is not read.
    """
    query, key, value = floats(query), floats(key), floats(value)
    if len(value) != len(key):
        raise ValueError(f"`value` must have one row a key ({len(key)}), but has {len(value)} instead.")
    scores, allowed = _scores(query, key, score, mask, bias)
    Y = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        row = normalize(scores[i], allowed[i])
        for j in _keys(scores[i], allowed[i]):
            Y[i] += row[j] * value[j]
    return Y


# ---- the same over batches and heads -----------------------------------------------------------------------------


def _leading(*tensors: Floats) -> tuple[int, ...]:
    """The leading dimensions of the result: those before the heads broadcast, then the number of heads, the largest."""
    if all(x.ndim == 2 for x in tensors):
        return ()
    heads = [x.shape[-3] if x.ndim > 2 else 1 for x in tensors]
    if heads[0] not in (1, max(heads)) or any(max(heads) % h for h in heads):
        raise ValueError(
            f"heads of keys and values must divide those of queries, but query, key (, value) have {heads}."
        )
    return (*np.broadcast_shapes(*(x.shape[:-3] for x in tensors)), max(heads))


def _spread(x: Floats, leading: tuple[int, ...]) -> Floats:
    """x with all leading dimensions of the result; with fewer heads, head h of the result reads head h // (H / own)."""
    if leading and x.ndim > 2:
        group = leading[-1] // x.shape[-3]
        x = np.stack([x[..., h // group, :, :] for h in range(leading[-1])], axis=-3)
    return np.broadcast_to(x, leading + x.shape[-2:])


def _score_of_head(score: Score | Sequence[Score], index: tuple[int, ...], heads: int) -> Score:
    """The one score, or that of the head at the end of the index."""
    if callable(score):
        return score
    if len(score) != heads:
        raise ValueError(f"`score` must have one function a head ({heads}), but has {len(score)} instead.")
    return score[index[-1] if index else 0]


def weights_many(query: ArrayLike, key: ArrayLike, *, score: Score | Sequence[Score] = scaled_dot,
                 normalize: Normalizer = softmax, mask: ArrayLike | None = None,
                 bias: ArrayLike | None = None) -> Floats:
    """`weights` for every head of every sequence: query (..., Hq, Nq, Dq), key (..., Hk, Nk, Dk) -> (..., H, Nq, Nk).

    The dimension before N is heads; query head h reads key head h // (Hq / Hk). Those before it broadcast, mask and
    bias broadcast to the result. `score` is one function, or a list of one a head.
    """
    query, key = floats(query), floats(key)
    leading = _leading(query, key)
    query, key = _spread(query, leading), _spread(key, leading)
    shape = (*leading, query.shape[-2], key.shape[-2])
    mask, bias = _mask(mask, shape), _bias(bias, shape)
    A = np.zeros(shape)
    for index in np.ndindex(*leading):
        own = _score_of_head(score, index, leading[-1] if leading else 1)
        A[index] = weights(query[index], key[index], score=own, normalize=normalize, mask=mask[index], bias=bias[index])
    return A


def attend_many(query: ArrayLike, key: ArrayLike, value: ArrayLike, *, score: Score | Sequence[Score] = scaled_dot,
                normalize: Normalizer = softmax, mask: ArrayLike | None = None,
                bias: ArrayLike | None = None) -> Floats:
    """`attend` for every head of every sequence, value (..., Hv, Nk, Dv) -> (..., H, Nq, Dv); see `weights_many`."""
    query, key, value = floats(query), floats(key), floats(value)
    leading = _leading(query, key, value)
    query, key, value = _spread(query, leading), _spread(key, leading), _spread(value, leading)
    shape = (*leading, query.shape[-2], key.shape[-2])
    mask, bias = _mask(mask, shape), _bias(bias, shape)
    Y = np.zeros((*leading, query.shape[-2], value.shape[-1]))
    for index in np.ndindex(*leading):
        own = _score_of_head(score, index, leading[-1] if leading else 1)
        q, k, v = query[index], key[index], value[index]
        Y[index] = attend(q, k, v, score=own, normalize=normalize, mask=mask[index], bias=bias[index])
    return Y


# ---- layers ------------------------------------------------------------------------------------------------------


def plain_attention(X: ArrayLike, queries: ArrayLike, *, score: Score = scaled_dot, normalize: Normalizer = softmax,
                    mask: ArrayLike | None = None) -> Floats:
    """Y = A X: queries against the inputs themselves, which are the values too. Nothing is learned in the layer."""
    return attend(queries, X, X, score=score, normalize=normalize, mask=mask)


def basic_attention(Z: ArrayLike, X: ArrayLike, W_Q: ArrayLike, W_K: ArrayLike, *, score: Score = scaled_dot,
                    normalize: Normalizer = softmax, mask: ArrayLike | None = None) -> Floats:
    """Queries W_Q x_i, keys W_K z_j, and the values are the states z_j as they are ("basic attention")."""
    return attend(project(X, W_Q), project(Z, W_K), Z, score=score, normalize=normalize, mask=mask)


@dataclass(frozen=True)
class Head:
    """The matrices of one head: W_Q (Dq, D of X), W_K (Dk, D of context), W_V (Dv, D of context), and their biases."""

    W_Q: ArrayLike
    W_K: ArrayLike
    W_V: ArrayLike
    b_Q: ArrayLike | None = None
    b_K: ArrayLike | None = None
    b_V: ArrayLike | None = None


def attention_layer(X: ArrayLike, context: ArrayLike, W_Q: ArrayLike, W_K: ArrayLike, W_V: ArrayLike,
                    b_Q: ArrayLike | None = None, b_K: ArrayLike | None = None, b_V: ArrayLike | None = None, *,
                    score: Score = scaled_dot, normalize: Normalizer = softmax, mask: ArrayLike | None = None,
                    bias: ArrayLike | None = None) -> Floats:
    """Attn(context, X): q_i = W_Q x_i + b_Q, k_j = W_K c_j + b_K, v_j = W_V c_j + b_V; y_i = sum_j a_ij v_j."""
    query, key, value = project(X, W_Q, b_Q), project(context, W_K, b_K), project(context, W_V, b_V)
    return attend(query, key, value, score=score, normalize=normalize, mask=mask, bias=bias)


def self_attention(X: ArrayLike, W_Q: ArrayLike, W_K: ArrayLike, W_V: ArrayLike, **options: object) -> Floats:
    """Attn(X, X). Permutation equivariant: f(s(X)) = s(f(X)). The options are those of `attention_layer`."""
    return attention_layer(X, X, W_Q, W_K, W_V, **options)  # type: ignore[arg-type]


def multi_head(X: ArrayLike, context: ArrayLike, heads: Sequence[Head], W_O: ArrayLike, b_O: ArrayLike | None = None, *,
               score: Score | Sequence[Score] = scaled_dot, normalize: Normalizer = softmax,
               mask: ArrayLike | None = None, bias: ArrayLike | None = None) -> Floats:
    """y_i = W_O [y_i^1; ...; y_i^H] + b_O, y^h the output of head h (Vaswani et al. 2017, 3.2.2).

    mask and bias are (Nq, Nk) for all heads, or (H, Nq, Nk) for each.
    """
    shape = (len(heads), len(floats(X)), len(floats(context)))
    mask, bias = _mask(mask, shape), _bias(bias, shape)
    outputs = []
    for h, p in enumerate(heads):
        own = _score_of_head(score, (h,), len(heads))
        matrices = (p.W_Q, p.W_K, p.W_V, p.b_Q, p.b_K, p.b_V)
        y = attention_layer(X, context, *matrices, score=own, normalize=normalize, mask=mask[h], bias=bias[h])
        outputs.append(y)
    return project(np.concatenate(outputs, axis=1), W_O, b_O)


# ---- agent-aware attention: tokens of several agents -------------------------------------------------------------


def agent_aware_weights(same: tuple[ArrayLike, ArrayLike], other: tuple[ArrayLike, ArrayLike],
                        query_agents: Sequence[int], key_agents: Sequence[int], *, score: Score = scaled_dot,
                        normalize: Normalizer = softmax, mask: ArrayLike | None = None,
                        bias: ArrayLike | None = None) -> Floats:
    """A_ij from M_ij score(qs_i, ks_j) + (1 - M_ij) score(qo_i, ko_j), M_ij = 1 for one agent (Yuan et al. 2021).

    `same` has the queries (Nq, D) and keys (Nk, D) for tokens of the same agent, `other` those for tokens of others.
    """
    (qs, ks), (qo, ko) = ([floats(part) for part in pair] for pair in (same, other))
    shape = (len(qs), len(ks))
    allowed, added = _mask(mask, shape), _bias(bias, shape)
    A = np.zeros(shape)
    for i in range(len(qs)):
        row = np.full(len(ks), -math.inf)
        for j in range(len(ks)):
            if allowed[i, j]:
                one = query_agents[i] == key_agents[j]
                row[j] = (score(qs[i], ks[j]) if one else score(qo[i], ko[j])) + added[i, j]
        A[i] = normalize(row, allowed[i])
    return A


@dataclass(frozen=True)
class AgentAwareHead:
    """The matrices of one head: queries and keys for the same agent (s) and for others (o), one for values."""

    W_Qs: ArrayLike
    W_Ks: ArrayLike
    W_Qo: ArrayLike
    W_Ko: ArrayLike
    W_V: ArrayLike
    b_Qs: ArrayLike | None = None
    b_Ks: ArrayLike | None = None
    b_Qo: ArrayLike | None = None
    b_Ko: ArrayLike | None = None
    b_V: ArrayLike | None = None


def agent_aware_layer(X: ArrayLike, context: ArrayLike, agents: Sequence[int], context_agents: Sequence[int],
                      heads: Sequence[AgentAwareHead], W_O: ArrayLike, b_O: ArrayLike | None = None, *,
                      normalize: Normalizer = softmax, mask: ArrayLike | None = None,
                      bias: ArrayLike | None = None) -> Floats:
    """y_i = W_O [y_i^1; ...; y_i^H] + b_O, y_i^h = sum_j a_ij v_j over the allowed keys; mask, bias as `multi_head`."""
    shape = (len(heads), len(floats(X)), len(floats(context)))
    mask, bias = _mask(mask, shape), _bias(bias, shape)
    outputs = []
    for h, p in enumerate(heads):
        same = project(X, p.W_Qs, p.b_Qs), project(context, p.W_Ks, p.b_Ks)
        other = project(X, p.W_Qo, p.b_Qo), project(context, p.W_Ko, p.b_Ko)
        value = project(context, p.W_V, p.b_V)
        A = agent_aware_weights(same, other, agents, context_agents, normalize=normalize, mask=mask[h], bias=bias[h])
        y = np.zeros((len(A), value.shape[1]))
        for i in range(len(A)):
            for j in range(len(value)):
                if A[i, j]:
                    y[i] += A[i, j] * value[j]
        outputs.append(y)
    return project(np.concatenate(outputs, axis=1), W_O, b_O)


# ---- the recurrent decoder ---------------------------------------------------------------------------------------


def decoder_context(s_previous: ArrayLike, H: ArrayLike, score: Score, *, normalize: Normalizer = softmax,
                    allowed: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """e_i = f_att(s_{t-1}, h_i), a = softmax(e), c_t = sum_i a_i h_i (Bahdanau et al. 2015) -> (c_t, a).

    `allowed` (T,) says which states h_i are real.
    """
    query, mask = floats(s_previous)[None, :], None if allowed is None else np.asarray(allowed, dtype=np.bool_)[None, :]
    row = weights(query, H, score=score, normalize=normalize, mask=mask)[0]
    return attend(query, H, H, score=score, normalize=normalize, mask=mask)[0], row


def decoder_context_qkv(s: ArrayLike, H: ArrayLike, W_Q: ArrayLike, W_K: ArrayLike, W_V: ArrayLike) -> Floats:
    """q = W_Q s, k_i = W_K h_i, v_i = W_V h_i, alpha = softmax(K q), c = sum_i alpha_i v_i."""
    # Departure from Vaswani et al.: that source does not scale the scores.
    return floats(attention_layer(floats(s)[None, :], H, W_Q, W_K, W_V, score=dot)[0])
