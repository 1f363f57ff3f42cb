"""Norms against torch's, and the three written forms against each other."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import blocks
from regard.reference.arrays import each_token


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return rng.normal(2.0, 3.0, size=(4, 6)), rng.normal(size=6), rng.normal(size=6)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_layer_norm_is_torchs(data, eps):
    X, gain, bias = data
    ours = each_token(lambda x: blocks.layer_norm(x, gain, bias, eps), X)
    theirs = functional.layer_norm(*map(torch.from_numpy, (X,)), (6,), torch.tensor(gain), torch.tensor(bias), eps)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-14)


def test_eps_is_1e_5_unless_said(data):
    x, gain, bias = data[0][0] * 1e-3, data[1], data[2]
    assert blocks.layer_norm(x, gain, bias).tolist() == blocks.layer_norm(x, gain, bias, 1e-5).tolist()
    assert blocks.rms_norm(x, gain).tolist() == blocks.rms_norm(x, gain, 1e-5).tolist()


def test_layer_norm_of_equal_numbers_is_the_bias():
    assert blocks.layer_norm([3.0, 3.0], [1.0, 2.0], [0.5, 0.25]).tolist() == [0.5, 0.25]


def test_the_formal_one_has_no_eps(data):
    X, gain, bias = data
    x = X[0] * 1e-4  # small enough for an eps of 1e-5 to be seen
    deviation = np.std(x)  # NumPy's is the biased one
    np.testing.assert_allclose(
        blocks.layer_norm_formal(x, gain, bias), (x - x.mean()) / deviation * gain + bias, rtol=1e-12
    )
    assert not np.allclose(blocks.layer_norm_formal(x, gain, bias), blocks.layer_norm(x, gain, bias), rtol=1e-3)


def test_the_unscaled_one_gives_unit_length(data):
    y = blocks.layer_norm_unscaled(data[0][1], 1.0, 0.0)
    assert np.linalg.norm(y) == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_allclose(y * np.sqrt(6), blocks.layer_norm_formal(data[0][1], 1.0, 0.0), rtol=1e-13)
    _, gain, bias = data
    np.testing.assert_allclose(blocks.layer_norm_unscaled(data[0][1], gain, bias), y * gain + bias, rtol=1e-13)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1e-2])
def test_rms_norm_is_torchs(data, eps):
    X, gain, _ = data
    ours = each_token(lambda x: blocks.rms_norm(x, gain, eps), X)
    theirs = functional.rms_norm(torch.from_numpy(X), (6,), torch.tensor(gain), eps)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-14)
