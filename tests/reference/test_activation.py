"""The point-wise functions against torch's in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import blocks

X = np.concatenate([np.linspace(-6, 6, 49), [-40.0, 40.0, -800.0, 800.0]]).reshape(1, -1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (blocks.relu, functional.relu),
        (blocks.gelu, functional.gelu),
        (blocks.gelu_tanh, lambda x: functional.gelu(x, approximate="tanh")),
        (blocks.silu, functional.silu),
        (blocks.sigmoid, torch.sigmoid),
    ],
)
def test_is_torchs(ours, theirs):
    result = ours(X)
    assert result.shape == X.shape
    np.testing.assert_allclose(result, theirs(torch.from_numpy(X)).numpy(), rtol=1e-12, atol=1e-15)


def test_the_two_gelus_differ():
    assert abs(blocks.gelu(2.0) - blocks.gelu_tanh(2.0)) > 1e-5


def test_gelu_keeps_its_digits_far_to_the_left():
    # Phi(-10) = 7.61985302416052606597e-24 (tables of the normal distribution)
    assert float(blocks.gelu(-10.0)) == pytest.approx(-7.61985302416052606597e-23, rel=1e-13)


def test_relu_does_not_hide_a_nan():
    assert np.isnan(blocks.relu(np.nan))


def test_swiglu():
    gate, up = np.array([1.0, -2.0]), np.array([3.0, 5.0])
    np.testing.assert_allclose(blocks.swiglu(gate, up), functional.silu(torch.from_numpy(gate)).numpy() * up)
    with pytest.raises(ValueError, match="one shape"):
        blocks.swiglu([1.0], [1.0, 2.0])
