"""AlphaFold's layers: attention along an axis with a gate and a pair bias, triangles, the Evoformer block.

A multiple sequence alignment (MSA) m (S, N, C) has a row for each of S related sequences and a column for each of N
residues; a pair representation z (N, N, C) has a vector for each pair of residues. `present` is bool: True where a
token (of the MSA, or a pair) exists. Absent tokens are not read, and their outputs are zeros: the sources compute
numbers there that nothing uses.

Sources: Jumper et al. 2021, supplement 1.6, Algorithms 6 to 15, in their order; Qiu et al. 2025 (arXiv 2505.06708) for
the gate in language models. Dropout is left out. Everything is a loop over the tokens, in the indices of the paper:
s, t sequences; i, j, k residues; h heads.
"""
# ruff: noqa: N803

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import blocks
from .arrays import Bools, Floats, each_token, floats, linear, project
from .attention import attend


@dataclass(frozen=True)
class Affine:
    """A linear map with a bias, or the gain and bias of a layer norm."""

    weight: ArrayLike
    bias: ArrayLike | None = None

    def __call__(self, x: ArrayLike) -> Floats:
        return linear(x, self.weight, self.bias)

    def norm(self, x: ArrayLike) -> Floats:
        """Layer norm of one vector with this gain and bias."""
        return blocks.layer_norm(x, self.weight, 0.0 if self.bias is None else self.bias)


@dataclass(frozen=True)
class GatedHeads:
    """The maps of a gated attention: queries, keys, values and gate are (heads · c, C), the output (C, heads · c)."""

    heads: int
    query: Affine
    key: Affine
    value: Affine
    gate: Affine
    output: Affine


def gated_attention(X: ArrayLike, context: ArrayLike, maps: GatedHeads, *, mask: ArrayLike | None = None,
                    bias: ArrayLike | None = None) -> Floats:
    """y_i = W_O concat_h( sigmoid(W_G x_i + b_G)^h * sum_j a_ij^h v_j^h ) + b_O.

    a_ij = softmax_j(q_i . k_j / sqrt(c) + bias_ij). X (N, C), context (M, C); mask (N, M); bias (heads, N, M).
    """
    X, context = floats(X), floats(context)
    query, key = project(X, maps.query.weight, maps.query.bias), project(context, maps.key.weight, maps.key.bias)
    value, gate = project(context, maps.value.weight, maps.value.bias), project(X, maps.gate.weight, maps.gate.bias)
    parts = []
    for h in range(maps.heads):
        own = [np.split(part, maps.heads, axis=1)[h] for part in (query, key, value, gate)]
        added = None if bias is None else floats(bias)[h]
        parts.append(blocks.sigmoid(own[3]) * attend(own[0], own[1], own[2], mask=mask, bias=added))
    return project(np.concatenate(parts, axis=1), maps.output.weight, maps.output.bias)


def row_attention(X: ArrayLike, maps: GatedHeads, *, present: ArrayLike | None = None,
                  bias: ArrayLike | None = None) -> Floats:
    """Gated attention of X (I, J, C) inside every row: from j to k at a fixed i. bias (heads, J, J), for all rows."""
    X = floats(X)
    there = _present(present, X)
    Y = np.zeros((*X.shape[:2], len(floats(maps.output.weight))))
    for i in range(len(X)):
        js = np.flatnonzero(there[i])
        added = None if bias is None else floats(bias)[:, js][:, :, js]
        if len(js):
            Y[i, js] = gated_attention(X[i, js], X[i, js], maps, bias=added)
    return Y


def column_attention(X: ArrayLike, maps: GatedHeads, *, present: ArrayLike | None = None,
                     bias: ArrayLike | None = None) -> Floats:
    """Gated attention of X (I, J, C) inside every column: from i to k at a fixed j. bias (heads, I, I)."""
    there = _present(present, floats(X)).T
    return row_attention(floats(X).swapaxes(0, 1), maps, present=there, bias=bias).swapaxes(0, 1)


def pair_bias(z: ArrayLike, weight: ArrayLike) -> Floats:
    """b_ij^h = w^h . z_ij, without a constant: (N, N, C) -> (heads, N, N)."""
    return np.moveaxis(each_token(lambda x: linear(x, weight), z), -1, 0)


def msa_row_attention_with_pair_bias(m: ArrayLike, z: ArrayLike, norm: Affine, pair_norm: Affine, W_b: ArrayLike,
                                     maps: GatedHeads, present: ArrayLike | None = None) -> Floats:
    """Algorithm 7. a_sij = softmax_j(q_si . k_sj / sqrt(c) + b_ij), b_ij = W_b LN(z_ij)."""
    bias = pair_bias(each_token(pair_norm.norm, z), W_b)
    return row_attention(each_token(norm.norm, m), maps, present=present, bias=bias)


def msa_column_attention(m: ArrayLike, norm: Affine, maps: GatedHeads, present: ArrayLike | None = None) -> Floats:
    """Algorithm 8. a_sti = softmax_t(q_si . k_ti / sqrt(c)): from sequence to sequence at one residue."""
    return column_attention(each_token(norm.norm, m), maps, present=present)


def transition(x: ArrayLike, norm: Affine, up: Affine, down: Affine, present: ArrayLike | None = None) -> Floats:
    """Algorithms 9 (of the MSA) and 15 (of the pairs): y = down(relu(up(LN(x)))) for every token."""
    return _absent_to_zero(each_token(lambda one: down(blocks.relu(up(norm.norm(one)))), x), present)


def outer_product_mean(m: ArrayLike, norm: Affine, left: Affine, right: Affine, output: Affine,
                       present: ArrayLike | None = None) -> Floats:
    """Algorithm 10. z_ij = W flatten(mean_s(a_si ⊗ b_sj)) + b, over the sequences s that have both residues.

    The mean is 0 where no sequence has both. Departure: the code of AlphaFold divides after the map, by 0.001 more than
    the number of sequences, so that its constant b is divided too; the paper's algorithm is the one here.
    """
    normed = each_token(norm.norm, m)
    there = _present(present, normed)
    a, b = each_token(left, normed), each_token(right, normed)
    S, N, c = a.shape
    Z = np.zeros((N, N, len(floats(output.weight))))
    for i in range(N):
        for j in range(N):
            both = [s for s in range(S) if there[s, i] and there[s, j]]
            mean = np.zeros((c, b.shape[2]))
            for s in both:
                mean += np.outer(a[s, i], b[s, j]) / len(both)
            Z[i, j] = output(mean.ravel())
    return Z


@dataclass(frozen=True)
class TriangleMaps:
    """The maps of a triangle multiplication: a and b with their gates, the norm of the sums, the output, its gate."""

    norm: Affine
    left: Affine
    left_gate: Affine
    right: Affine
    right_gate: Affine
    sum_norm: Affine
    output: Affine
    output_gate: Affine


def triangle_multiplication_outgoing(z: ArrayLike, maps: TriangleMaps, present: ArrayLike | None = None) -> Floats:
    """Algorithm 11. y_ij = g_ij * W LN(sum_k a_ik * b_jk): the edges that leave i and j for the same k."""
    return _triangle(z, maps, present, lambda a, b, i, j, k: a[i, k] * b[j, k])


def triangle_multiplication_incoming(z: ArrayLike, maps: TriangleMaps, present: ArrayLike | None = None) -> Floats:
    """Algorithm 12. y_ij = g_ij * W LN(sum_k a_ki * b_kj): the edges that come from the same k to i and j."""
    return _triangle(z, maps, present, lambda a, b, i, j, k: a[k, i] * b[k, j])


def _triangle(z: ArrayLike, maps: TriangleMaps, present: ArrayLike | None,
              product: Callable[[Floats, Floats, int, int, int], Floats]) -> Floats:
    """a, b = sigmoid(gate(LN z)) * map(LN z), zeros for absent pairs; then the sums over k."""
    normed = each_token(maps.norm.norm, z)
    a = each_token(lambda x: blocks.sigmoid(maps.left_gate(x)) * maps.left(x), normed)
    b = each_token(lambda x: blocks.sigmoid(maps.right_gate(x)) * maps.right(x), normed)
    a, b = _absent_to_zero(a, present), _absent_to_zero(b, present)
    N = len(normed)
    Y = np.zeros((N, N, len(floats(maps.output.weight))))
    for i in range(N):
        for j in range(N):
            total = np.zeros(a.shape[2])
            for k in range(N):
                total += product(a, b, i, j, k)
            Y[i, j] = blocks.sigmoid(maps.output_gate(normed[i, j])) * maps.output(maps.sum_norm.norm(total))
    return _absent_to_zero(Y, present)


def triangle_attention_starting_node(z: ArrayLike, norm: Affine, W_b: ArrayLike, maps: GatedHeads,
                                     present: ArrayLike | None = None) -> Floats:
    """Algorithm 13. a_ijk = softmax_k(q_ij . k_ik / sqrt(c) + b_jk), y_ij from the values v_ik; b = W_b LN(z)."""
    normed = each_token(norm.norm, z)
    return row_attention(normed, maps, present=present, bias=pair_bias(normed, W_b))


def triangle_attention_ending_node(z: ArrayLike, norm: Affine, W_b: ArrayLike, maps: GatedHeads,
                                   present: ArrayLike | None = None) -> Floats:
    """Algorithm 14. a_ijk = softmax_k(q_ij . k_kj / sqrt(c) + b_ki), y_ij from the values v_kj; b = W_b LN(z)."""
    normed = each_token(norm.norm, z)
    b = pair_bias(normed, W_b)
    from_query_to_key = np.stack([b[h].T for h in range(len(b))])  # row i, column k: b_ki
    return column_attention(normed, maps, present=present, bias=from_query_to_key)


Update = Callable[[Floats, Floats], Floats]


def evoformer_block(m: ArrayLike, z: ArrayLike, *, msa_updates: tuple[Update, ...],
                    pair_updates: tuple[Update, ...]) -> tuple[Floats, Floats]:
    """Algorithm 6, one block without dropout: residual updates of the MSA, then of the pairs, in this order.

    msa_updates: Algorithms 7, 8, 9. pair_updates: Algorithms 10, 11, 12, 13, 14, 15. Each is a function of (m, z).
    """
    m, z = floats(m), floats(z)
    for update in msa_updates:
        m = m + update(m, z)
    for update in pair_updates:
        z = z + update(m, z)
    return m, z


def _present(present: ArrayLike | None, X: Floats) -> Bools:
    return np.ones(X.shape[:2], dtype=np.bool_) if present is None else np.asarray(present, dtype=np.bool_)


def _absent_to_zero(X: Floats, present: ArrayLike | None) -> Floats:
    Y = X.copy()
    Y[~_present(present, X)] = 0.0
    return Y
