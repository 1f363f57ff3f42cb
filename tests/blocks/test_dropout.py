"""Dropout: the share that is dropped, the mean that stays, the gradient, and the random state that it follows."""

import pytest
import torch

from regard.blocks.sublayer import Dropout, apply_dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.999, 1e-9])
def test_the_share_and_the_mean(probability):
    x = torch.ones(400, 1001)
    y = apply_dropout(x, probability)
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - probability) < 5 * (probability / x.numel()) ** 0.5 + 1e-5
    kept = y[y != 0]
    assert (kept == kept[0]).all()
    assert kept[0].item() == pytest.approx(1 / (1 - probability), rel=2e-2 if probability > 0.9 else 1e-4)
    for dim in (0, 1):  # no row and no column is special
        share = (y == 0).double().mean(dim)
        assert (share - probability).abs().max() < 7 * (probability / min(x.shape)) ** 0.5 + 1e-2


def test_neighbours_are_independent():
    kept = (apply_dropout(torch.ones(1_000_000), 0.5) != 0).double()
    for distance in (1, 2, 3, 4, 5):
        both = (kept[distance:] * kept[:-distance]).mean().item()
        assert abs(both - 0.25) < 0.003


def test_the_gradient_is_of_what_was_kept():
    x = torch.randn(7, 5, dtype=torch.double, requires_grad=True)
    y = apply_dropout(x, 0.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient * x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 5)], ids=str)
def test_shapes_and_dtypes_stay(dtype, shape):
    y = apply_dropout(torch.ones(shape, dtype=dtype), 0.25)
    assert (y.shape, y.dtype) == (shape, dtype)


def test_it_follows_the_random_state():
    x = torch.ones(1000)
    torch.manual_seed(5)
    first = apply_dropout(x, 0.3)
    assert not torch.equal(apply_dropout(x, 0.3), first)
    torch.manual_seed(5)
    assert torch.equal(apply_dropout(x, 0.3), first)


def test_it_works_only_while_training():
    layer, x = Dropout(0.5), torch.ones(1000)
    assert (layer(x) == 0).any()
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x
    with pytest.raises(ValueError, match="`dropout` must be a probability"):
        Dropout(1.0)


def test_a_probability_just_below_one_is_one_too():
    y = apply_dropout(torch.ones(10), 1 - 1e-9)
    assert ((y == 0) | (y == 65536)).all()


def test_it_draws_where_x_is():
    x = torch.ones(1000)
    torch.set_default_device("meta")
    try:
        y = apply_dropout(x, 0.5)
    finally:
        torch.set_default_device(None)
    assert y.device.type == "cpu"
