"""Activations, norms, the MLP and the block: their equations by hand, and against torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import attention, blocks
from regard.reference.arrays import each_token

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


WIDTH, HEADS, HIDDEN = 6, 2, 8


def array(parameter):
    return parameter.detach().numpy()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [(blocks.relu, functional.relu), (blocks.gelu, functional.gelu)])
def test_a_block_is_torchs_encoder_layer(norm_first, ours, theirs):
    torch.set_default_dtype(torch.float64)
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=theirs, batch_first=True, norm_first=norm_first
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    W_Q, W_K, W_V = array(layer.self_attn.in_proj_weight).reshape(3, HEADS, -1, WIDTH)
    b_Q, b_K, b_V = array(layer.self_attn.in_proj_bias).reshape(3, HEADS, -1)
    heads = [attention.Head(W_Q[h], W_K[h], W_V[h], b_Q[h], b_K[h], b_V[h]) for h in range(HEADS)]
    out, mask = layer.self_attn.out_proj, attention.causal(5, 5)
    parts = {
        "mixer": lambda X: attention.multi_head(X, X, heads, array(out.weight), array(out.bias), mask=mask),
        "norm_1": lambda x: blocks.layer_norm(x, array(layer.norm1.weight), array(layer.norm1.bias)),
        "norm_2": lambda x: blocks.layer_norm(x, array(layer.norm2.weight), array(layer.norm2.bias)),
        "mlp": lambda x: blocks.mlp(
            x, *map(array, (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)), ours
        ),
    }
    X = np.random.default_rng(1).normal(size=(5, WIDTH))
    result = (blocks.pre_norm_block if norm_first else blocks.post_norm_block)(X, **parts)
    expected = layer(torch.tensor(X)[None], src_mask=torch.tensor(~mask))[0]
    np.testing.assert_allclose(result, array(expected), rtol=1e-11, atol=1e-12)


def test_mlp_swiglu():
    rng = np.random.default_rng(2)
    x, gate, up, down = rng.normal(size=3), rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.normal(size=(2, 4))
    inner = functional.silu(torch.tensor(gate @ x)).numpy() * (up @ x)
    np.testing.assert_allclose(blocks.mlp_swiglu(x, gate, up, down), down @ inner, rtol=1e-12)
