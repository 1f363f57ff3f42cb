"""Activations with dropout: torch's in float64, their slopes, and one mask for both ways."""

import pytest
import torch

pytest.importorskip("triton")
from regard.blocks.feed_forward import ACTIVATIONS
from regard.kernels import blocks, column_sums
from regard.kernels.blocks import activate_dropout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(1,), (3, 7), (2, 3, 700), (5, 1048), (2, 5, 40), pytest.param((5000, 2048), marks=pytest.mark.gpu)]


def both_ways(y, x, g):
    return [y, *torch.autograd.grad(y, x, g)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_without_dropout_it_is_torchs(name, shape, dtype):
    x = (3 * torch.randn(shape, device=DEVICE)).to(dtype).requires_grad_()
    g, plain = torch.randn_like(x), ACTIVATIONS[name]
    every = zip(both_ways(activate_dropout(x, name, 0.0), x, g), both_ways(plain(x), x, g),
                both_ways(plain(x.double()), x, g.double()), strict=True)
    for mine, theirs, right in every:
        assert (mine.dtype, mine.shape) == (dtype, x.shape)
        right = right.double()
        largest = right.abs().max() + g.abs().max()  # a slope near 0 is a difference of larger numbers
        bound = 2 * (theirs.double() - right).abs().max() + 4 * torch.finfo(dtype).eps * largest
        assert (mine.double() - right).abs().max() <= bound


@pytest.mark.parametrize("shape", [(2, 9), (4, 700), (3, 1048), (40, 24), (5, 16)], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_with_dropout_the_gradient_has_the_same_mask(name, shape):
    x = (torch.rand(shape, device=DEVICE) + 0.1).requires_grad_()  # above 0, where no activation is 0
    y, g = activate_dropout(x, name, 0.25), torch.randn_like(x)
    (gradient,) = torch.autograd.grad(y, x, g)
    plain = ACTIVATIONS[name](x)
    (slope,) = torch.autograd.grad(plain, x, g)
    mask = (y != 0).float() / 0.75
    assert 0 < (mask == 0).sum() < 0.6 * mask.numel()
    torch.testing.assert_close(y, mask * plain)
    torch.testing.assert_close(gradient, mask * slope)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_large_numbers_do_not_overflow_and_nan_is_not_hidden(name):
    x = torch.tensor([-1e4, -50.0, 50.0, 1e4, float("nan")], device=DEVICE, requires_grad=True)
    y = activate_dropout(x, name, 0.0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, ACTIVATIONS[name](x), equal_nan=True)
    assert gradient[:4].tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=1e-6)


def test_each_call_draws_anew_and_the_share_is_right():
    x = torch.ones(100, 300, device=DEVICE)
    first, second = activate_dropout(x, "relu", 0.1), activate_dropout(x, "relu", 0.1)
    assert not torch.equal(first, second)
    assert abs((first == 0).double().mean().item() - 0.1) < 0.01


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("shape", [(3, 8), (70, 24), (9, 1048), (2, 30, 1024)], ids=str)
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_sum_of_the_gradient_is_noted(name, shape, dropout, monkeypatch):
    monkeypatch.setattr(blocks, "ACTIVATION_BACKWARD_PROGRAMS", 4)
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    seen = []
    y = activate_dropout(x.view_as(x), name, dropout)  # the gradient as it comes out of the kernel is that of the view
    y.grad_fn.register_hook(lambda gradients, upstream: seen.append(gradients[0]))
    y.backward(torch.randn_like(x))
    sums = vars(seen[0])[column_sums.NOTE][1]
    torch.testing.assert_close(sums.sum(0), seen[0].flatten(0, -2).sum(0))
    assert len(sums) <= 4
