"""Convolution against torch's conv1d in float64 and against sums worked out by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.reference import convolution as C

D, E, N = 3, 4, 7
SHAPES = [(1, 1), (2, 1), (3, 1), (3, 2), (5, 1), (4, 3), (3, 9)]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def torchs(X, W, b, dilation, left, right, groups=1):
    """conv1d of tokens as rows, with so many zeros on the left and on the right."""
    columns = F.pad(torch.from_numpy(X).T[None], (left, right))
    bias = None if b is None else torch.from_numpy(b)
    return F.conv1d(columns, torch.from_numpy(W), bias, dilation=dilation, groups=groups)[0].T.numpy()


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


# ---- by hand ----


def test_causal_by_hand():
    # weights 1, 10, 100 from the token before the last to the token itself
    Y = C.convolution([[1], [2], [3], [4]], [[[1, 10, 100]]], [0.5], offsets=C.causal_offsets(3))
    assert Y.ravel().tolist() == [100.5, 210.5, 321.5, 432.5]


def test_centred_by_hand():
    Y = C.convolution([[1], [2], [3], [4]], [[[1, 10, 100]]], offsets=C.centred_offsets(3))
    assert Y.ravel().tolist() == [210, 321, 432, 43]


def test_dilated_by_hand():
    Y = C.convolution([[1], [2], [3], [4]], [[[1, 10]]], offsets=C.causal_offsets(2, dilation=2))
    assert Y.ravel().tolist() == [10, 20, 31, 42]


def test_depthwise_by_hand():
    Y = C.depthwise_convolution([[1, 5], [2, 6]], [[1, 10], [2, 20]], [0, 1], offsets=C.causal_offsets(2))
    assert Y.tolist() == [[10, 101], [21, 131]]


def test_full_reads_every_feature_by_hand():
    Y = C.convolution([[1, 5], [2, 6]], [[[0, 1], [1, 0]]], offsets=C.causal_offsets(2))  # y_n = x_n[0] + x_{n-1}[1]
    assert Y.tolist() == [[1], [7]]


def test_offsets_by_hand():
    assert C.causal_offsets(3) == [-2, -1, 0]
    assert C.causal_offsets(3, 4) == [-8, -4, 0]
    assert C.centred_offsets(5) == [-2, -1, 0, 1, 2]
    assert C.centred_offsets(3, 4) == [-4, 0, 4]
    assert C.causal_offsets(1) == C.centred_offsets(1) == [0]


def test_an_even_kernel_has_no_middle():
    with pytest.raises(ValueError, match="`kernel` must be odd"):
        C.centred_offsets(4)


def test_glu_by_hand():
    np.testing.assert_allclose(C.glu([[2.0, 3.0]], [[0.0, np.log(3.0)]]), [[1.0, 2.25]], rtol=1e-15)
    with pytest.raises(ValueError, match="must have one shape"):
        C.glu([[1.0, 2.0]], [[1.0]])


def test_glu_is_torchs(rng):
    a, b = rng.normal(size=(2, N, D)) * 3
    assert_close(C.glu(a, b), F.glu(torch.from_numpy(np.concatenate([a, b], -1)), -1).numpy())


# ---- torch ----


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "dilation"), SHAPES)
def test_causal_is_torchs(rng, kernel, dilation, bias):
    X, W, b = rng.normal(size=(N, D)), rng.normal(size=(E, D, kernel)), rng.normal(size=E) if bias else None
    span = (kernel - 1) * dilation
    assert_close(C.convolution(X, W, b, offsets=C.causal_offsets(kernel, dilation)), torchs(X, W, b, dilation, span, 0))
    w, b = rng.normal(size=(D, kernel)), rng.normal(size=D) if bias else None
    assert_close(C.depthwise_convolution(X, w, b, offsets=C.causal_offsets(kernel, dilation)),
                 torchs(X, w[:, None], b, dilation, span, 0, groups=D))


@pytest.mark.parametrize(("kernel", "dilation"), [shape for shape in SHAPES if shape[0] % 2])
def test_centred_is_torchs(rng, kernel, dilation):
    X, W, b = rng.normal(size=(N, D)), rng.normal(size=(E, D, kernel)), rng.normal(size=E)
    half = kernel // 2 * dilation
    assert_close(C.convolution(X, W, b, offsets=C.centred_offsets(kernel, dilation)),
                 torchs(X, W, b, dilation, half, half))
    w, b = rng.normal(size=(D, kernel)), rng.normal(size=D)
    assert_close(C.depthwise_convolution(X, w, b, offsets=C.centred_offsets(kernel, dilation)),
                 torchs(X, w[:, None], b, dilation, half, half, groups=D))


def test_depthwise_is_a_full_one_with_a_diagonal(rng):
    X, w, b = rng.normal(size=(N, D)), rng.normal(size=(D, 3)), rng.normal(size=D)
    W = np.zeros((D, D, 3))
    W[range(D), range(D)] = w
    offsets = C.centred_offsets(3, 2)
    assert_close(C.depthwise_convolution(X, w, b, offsets=offsets), C.convolution(X, W, b, offsets=offsets))


# ---- padding ----


@pytest.mark.parametrize("present", [[1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [0] * 7])
@pytest.mark.parametrize("offsets", [C.causal_offsets(3), C.centred_offsets(3, 2)], ids=str)
def test_padding_is_never_read_and_gives_zeros(rng, present, offsets):
    X, W, b = rng.normal(size=(N, D)), rng.normal(size=(D, D, 3)), rng.normal(size=D)
    there = np.array(present, dtype=bool)
    X[~there] = np.nan
    for function, weight in ((C.convolution, W), (C.depthwise_convolution, W[0])):
        Y = function(X, weight, b, offsets=offsets, present=there)
        assert_close(Y[there], function(X[there], weight, b, offsets=offsets))  # real tokens stand by themselves
        assert (Y[~there] == 0).all()


def test_present_has_an_entry_for_every_token():
    with pytest.raises(ValueError, match="`present` must have one entry a token, 2, but has 1"):
        C.convolution([[1], [2]], [[[1]]], offsets=[0], present=[True])


def test_no_tokens_at_all():
    assert C.convolution(np.zeros((0, D)), np.ones((E, D, 2)), offsets=C.causal_offsets(2)).shape == (0, E)
    assert C.depthwise_convolution(np.zeros((0, D)), np.ones((D, 2)), offsets=C.causal_offsets(2)).shape == (0, D)


# ---- the receptive field ----


@pytest.mark.parametrize(("kernels", "dilations", "field"), [
    ([], [], 1), ([1], [5], 1), ([3], [1], 3), ([3, 3, 3], [1, 2, 4], 15), ([2, 5], [3, 1], 8)])
def test_receptive_field_is_how_far_an_impulse_goes(kernels, dilations, field):
    X = np.zeros((20, 1))
    X[0] = 1.0
    for kernel, dilation in zip(kernels, dilations, strict=True):
        X = C.convolution(X, np.ones((1, 1, kernel)), offsets=C.causal_offsets(kernel, dilation))
    assert np.flatnonzero(X[:, 0]).max() + 1 == field == C.receptive_field(kernels, dilations)
