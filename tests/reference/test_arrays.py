"""The helpers: a map over tokens is the map of each token, and a linear map is torch's."""

import numpy as np
import pytest
import torch

from regard.reference import arrays


def test_floats_are_float64():
    assert arrays.floats(np.float32(0.1)).dtype == np.float64
    assert arrays.floats([1, 2]).dtype == np.float64


def test_each_token_keeps_leading_dimensions_and_may_change_the_width():
    X = np.arange(24.0).reshape(2, 3, 4)
    assert arrays.each_token(lambda x: x[:2] * 10, X).tolist() == (X[..., :2] * 10).tolist()
    assert arrays.each_token(lambda x: x + 1, X[:1, :1]).tolist() == (X[:1, :1] + 1).tolist()
    assert arrays.each_token(lambda x: x + 1, X[0, 0]).tolist() == (X[0, 0] + 1).tolist()
    with pytest.raises(ValueError, match="at least one token"):
        arrays.each_token(lambda x: x, np.zeros((0, 4)))


def test_project_is_torchs_linear():
    X, weight, bias = torch.randn(5, 3).double(), torch.randn(2, 3).double(), torch.randn(2).double()
    theirs = torch.nn.functional.linear(X, weight, bias).numpy()
    np.testing.assert_allclose(arrays.project(X, weight, bias), theirs, rtol=1e-13, atol=1e-13)
    assert arrays.project(np.zeros((0, 3)), weight).shape == (0, 2)


def test_same_width_refuses_what_numpy_would_stretch():
    with pytest.raises(ValueError, match=r"`a` and `b` must have one shape, but are \(1,\) and \(2,\)"):
        arrays.same_width("a", np.zeros(1), "b", np.zeros(2))
