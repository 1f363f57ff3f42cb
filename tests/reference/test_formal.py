"""Formal algorithms 1 to 7, with columns as the paper has them on the other side of the comparison."""

# ruff: noqa: N806

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import formal_algorithms

L_X, L_Z, D_X, D_Z, D_ATTN, D_OUT = 3, 4, 5, 6, 2, 3


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def parameters(rng, d_x=D_X, d_z=D_Z):
    shapes = {
        "W_q": (D_ATTN, d_x),
        "b_q": D_ATTN,
        "W_k": (D_ATTN, d_z),
        "b_k": D_ATTN,
        "W_v": (D_OUT, d_z),
        "b_v": D_OUT,
    }
    return formal_algorithms.AttentionParameters(**{name: rng.normal(size=shape) for name, shape in shapes.items()})


def by_columns(X, Z, p, mask):
    """Algorithm 4 in torch with tokens as columns: S = K^T Q, softmax over the context, V softmax(S)."""
    X, Z = torch.tensor(X).T, torch.tensor(Z).T
    Q = torch.tensor(p.W_q) @ X + torch.tensor(p.b_q)[:, None]
    K = torch.tensor(p.W_k) @ Z + torch.tensor(p.b_k)[:, None]
    V = torch.tensor(p.W_v) @ Z + torch.tensor(p.b_v)[:, None]
    S = (K.T @ Q).masked_fill(~torch.tensor(mask).T, -torch.inf)
    return (V @ torch.softmax(S / D_ATTN**0.5, dim=0)).T.numpy()


def test_embeddings_are_rows_and_positions_count_from_one(rng):
    W_e, W_p = rng.normal(size=(7, 4)), rng.normal(size=(5, 4))
    assert formal_algorithms.token_embedding(6, W_e).tolist() == W_e[6].tolist()
    assert formal_algorithms.positional_embedding(1, W_p).tolist() == W_p[0].tolist()
    assert formal_algorithms.positional_embedding(5, W_p).tolist() == W_p[4].tolist()
    expected = functional.embedding(torch.tensor([3, 0, 3]), torch.tensor(W_e)).numpy() + W_p[:3]
    assert formal_algorithms.embed([3, 0, 3], W_e, W_p).tolist() == expected.tolist()


@pytest.mark.parametrize("v", [-1, 7])
def test_a_token_outside_the_vocabulary_is_refused(v):
    with pytest.raises(ValueError, match="`v` must be a token from 0 to 6"):
        formal_algorithms.token_embedding(v, np.zeros((7, 2)))


@pytest.mark.parametrize("t", [0, 6])
def test_a_position_beyond_l_max_is_refused(t):
    with pytest.raises(ValueError, match="l_max = 5"):
        formal_algorithms.positional_embedding(t, np.zeros((5, 2)))


def test_attention_is_the_papers_by_columns(rng):
    X, Z, p = rng.normal(size=(L_X, D_X)), rng.normal(size=(L_Z, D_Z)), parameters(rng)
    mask = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    np.testing.assert_allclose(formal_algorithms.attention(X, Z, p, mask), by_columns(X, Z, p, mask), rtol=1e-12)


def test_single_query_attention_is_one_row_of_attention(rng):
    X, Z, p = rng.normal(size=(L_X, D_X)), rng.normal(size=(L_Z, D_Z)), parameters(rng)
    rows = formal_algorithms.attention(X, Z, p, formal_algorithms.mask_all(L_X, L_Z))
    for t in range(L_X):
        np.testing.assert_allclose(formal_algorithms.single_query_attention(X[t], Z, p), rows[t], rtol=1e-12)


def test_a_token_that_sees_nothing_gets_zeros(rng):
    X, Z = rng.normal(size=(1, D_X)), rng.normal(size=(2, D_Z))
    assert formal_algorithms.attention(X, Z, parameters(rng), [[False, False]]).tolist() == [[0.0] * D_OUT]


def test_mh_attention_stacks_heads_and_projects(rng):
    X, Z, heads = rng.normal(size=(L_X, D_X)), rng.normal(size=(L_Z, D_Z)), [parameters(rng) for _ in range(3)]
    W_o, b_o, mask = rng.normal(size=(4, 3 * D_OUT)), rng.normal(size=4), formal_algorithms.mask_all(L_X, L_Z)
    stacked = np.hstack([by_columns(X, Z, p, mask) for p in heads])
    ours = formal_algorithms.mh_attention(X, Z, formal_algorithms.MultiHeadParameters(heads, W_o, b_o), mask)
    np.testing.assert_allclose(ours, stacked @ W_o.T + b_o, rtol=1e-12, atol=1e-13)


def test_layer_norm_rows_is_torchs_without_eps(rng):
    X, gamma, beta = rng.normal(size=(3, 5)), rng.normal(size=5), rng.normal(size=5)
    theirs = functional.layer_norm(torch.tensor(X), (5,), torch.tensor(gamma), torch.tensor(beta), eps=0.0)
    np.testing.assert_allclose(formal_algorithms.layer_norm_rows(X, gamma, beta), theirs.numpy(), rtol=1e-12, atol=1e-14)


def test_unembedding_is_a_distribution(rng):
    e, W_u = rng.normal(size=3), rng.normal(size=(6, 3))
    p = formal_algorithms.unembedding(e, W_u)
    np.testing.assert_allclose(p, torch.softmax(torch.tensor(W_u @ e), 0).numpy(), rtol=1e-13)
    assert p.sum() == pytest.approx(1.0, rel=1e-15)


def test_mask_unidirectional():
    assert formal_algorithms.mask_unidirectional(3).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
