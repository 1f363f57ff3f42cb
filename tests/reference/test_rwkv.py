"""RWKV against its sums and products written out, and its maps against its recurrences."""

import math

import numpy as np
import pytest

from regard.reference import rwkv as R

N, D, HEADS = 7, 6, 2


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def assert_close(ours, theirs, tolerance=1e-12):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def parameters7(rng, layer, rank=3):
    """Random parameters of a time mix; those of v only after the first layer."""
    P = {f"x_{name}": rng.uniform(size=D) for name in "rwkvag"}
    P |= {f"W_{name}": rng.normal(size=(D, D)) for name in "rkvo"}
    for name in "wavg" if layer else "wag":
        P |= {f"{name}0": rng.normal(size=D), f"{name}1": rng.normal(size=(D, rank)),
              f"{name}2": rng.normal(size=(rank, D))}
    return P | {name: rng.normal(size=D) for name in ("k_k", "k_a", "r_k", "ln_weight", "ln_bias")}


def test_the_shift_by_hand():
    assert R.token_shift([[1.0], [2.0], [3.0]]).ravel().tolist() == [0, 1, 2]
    assert R.mix([[1.0], [2.0], [4.0]], [0.25]).ravel().tolist() == [0.75, 1.75, 3.5]


def test_version_4_by_hand():
    # w = -log 2 halves what is older; u = log 3 triples the token itself; k = 0 weighs all alike
    y = R.wkv4(np.zeros((3, 1)), [[1.0], [2.0], [4.0]], [-math.log(2)], [math.log(3)])
    assert_close(y.ravel(), [1.0, (1 + 6) / 4, (0.5 * 1 + 2 + 12) / 4.5])


def test_version_4_is_its_map_times_the_values(rng):
    k, v, w, u = rng.normal(size=(N, D)), rng.normal(size=(N, D)), -np.exp(rng.normal(size=D)), rng.normal(size=D)
    M = R.wkv4_map(k, w, u)
    assert_close(np.einsum("cti,ic->tc", M, v), R.wkv4(k, v, w, u))
    assert_close(M.sum(-1), np.ones((D, N)))
    assert (np.triu(M, 1) == 0).all()
    assert (M >= 0).all()


def test_version_4_bears_large_keys(rng):
    k, v, w, u = 500 * rng.normal(size=(N, D)), rng.normal(size=(N, D)), -np.exp(rng.normal(size=D)), rng.normal(size=D)
    assert_close(np.einsum("cti,ic->tc", R.wkv4_map(k, w, u), v), R.wkv4(k, v, w, u))


def test_version_7_by_hand():
    # One feature, so that S is a number: S = S w - S c c a + v k
    r, w, k, v = [[1.0], [2.0]], [[0.5], [0.5]], [[1.0], [3.0]], [[2.0], [1.0]]
    assert_close(R.wkv7(r, w, k, v, [[1.0], [1.0]], [[0.25], [0.25]]).ravel(), [2.0, 2 * (2 * 0.5 - 2 * 0.25 + 3)])


def test_version_7_replaces_what_a_key_stores():
    """With w = 1, a = 1 and a key of length 1 the delta rule overwrites the value of that key, and keeps others."""
    first, second = np.eye(2)
    keys, values = np.array([first, second, first]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    S = R.wkv7_states(np.ones((3, 2)), keys, values, keys, np.ones((3, 2)))[-1]
    assert (S @ first).tolist() == [5, 6]
    assert (S @ second).tolist() == [3, 4]


def test_version_7_is_its_map_times_the_values(rng):
    parts = R.time_mix7_parts(rng.normal(size=(N, D)), parameters7(rng, 0), HEADS)
    for h in range(HEADS):
        r, w, k, v, c, a = (parts[name][h] for name in "rwkvca")
        M = R.wkv7_map(r, w, k, c, a)
        assert_close(M @ v, R.wkv7(r, w, k, v, c, a))
        assert (np.triu(M, 1) == 0).all()
        assert (M < 0).any()
        assert ((w > math.exp(-math.exp(-0.5))) & (w < 1)).all()
        assert_close((c**2).sum(-1), np.ones(N))


def test_later_layers_mix_in_the_values_of_the_first(rng):
    X, P = rng.normal(size=(N, D)), parameters7(rng, 1)
    own, first = R.time_mix7(X, P, HEADS)
    assert_close(first, R.mix(X, P["x_v"]) @ P["W_v"].T)
    P["v0"] = np.full(D, -50.0)  # sigma is 0: nothing of the first layer
    P["v1"] = np.zeros((D, 3))
    assert_close(R.time_mix7(X, P, HEADS, rng.normal(size=(N, D)))[0], own)
    P["v0"] = np.full(D, 50.0)  # sigma is 1: nothing else
    assert_close(R.time_mix7(X, P, HEADS, first)[0], own)


def test_no_token_learns_from_later_ones(rng):
    X, P = rng.normal(size=(N, D)), parameters7(rng, 0)
    P4 = {f"m_{name}": rng.uniform(size=D) for name in "rkv"}
    P4 |= {f"W_{name}": rng.normal(size=(D, D)) for name in "rkvo"}
    P4 |= {"decay": rng.normal(size=D), "u": rng.normal(size=D)}
    other = X.copy()
    other[4:] += 1.0
    assert_close(R.time_mix7(X, P, HEADS)[0][:4], R.time_mix7(other, P, HEADS)[0][:4])
    for layer in (R.time_mix4, R.channel_mix4, R.channel_mix7):
        assert_close(layer(X, P4)[:4], layer(other, P4)[:4])
        assert not np.allclose(layer(X, P4)[4:], layer(other, P4)[4:])
        assert layer(X[:1], P4).shape == (1, D)


def test_channel_mixes_by_hand():
    P = {"m_k": [0.0], "m_r": [1.0], "W_k": [[2.0]], "W_v": [[0.5]], "W_r": [[1.0]]}
    assert R.channel_mix7([[1.0], [-1.0]], P).ravel().tolist() == [2.0, 0.0]
    assert_close(R.channel_mix4([[1.0], [3.0]], P).ravel(), [0.5 * 2.0, 18.0 / (1.0 + math.exp(-1.0))])
