"""Dropout, residual connections and norms around a sublayer: their numbers, and when they are one kernel."""

import pytest
import torch
from torch import nn

from regard.blocks import sublayer as module
from regard.blocks.sublayer import (
    NORMS,
    Dropout,
    PostNorm,
    PreNorm,
    add_residual,
    add_residual_and_norm,
    apply_dropout,
    apply_norm,
)


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


KERNELS = {"_AddDropoutBackward", "_AddDropoutNormBackward"}


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "usable", lambda *tensors: True)


def fused(y):
    return type(y.grad_fn).__name__ in KERNELS


def operands(width=6):
    return [torch.randn(2, 3, width, requires_grad=True) for _ in range(2)]


def norm(name, width=6):
    layer = NORMS[name](width, 1e-5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def test_on_a_cpu_it_is_the_modules():
    x, part = operands()
    layer = norm("layer")
    assert torch.equal(add_residual_and_norm(x, part, Dropout(0.0), layer), layer(x + part))
    assert torch.equal(add_residual(x, part, Dropout(0.0)), x + part)
    assert not fused(add_residual_and_norm(x, part, Dropout(0.5), layer))


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("name", NORMS)
def test_the_kernel_computes_what_the_modules_do(name):
    x, part = operands()
    layer, g = norm(name), torch.randn(2, 3, 6)
    mine, theirs = add_residual_and_norm(x, part, Dropout(0.0), layer), layer(x + part)
    assert fused(mine)
    wanted = [x, part, *layer.parameters()]
    for one, other in zip([mine, *torch.autograd.grad(mine, wanted, g)],
                          [theirs, *torch.autograd.grad(theirs, wanted, g)], strict=True):
        torch.testing.assert_close(one, other)
    assert fused(add_residual(x, part, Dropout(0.0)))
    torch.testing.assert_close(add_residual(x, part, Dropout(0.0)), x + part)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_alone_is_the_module_s(name):
    x, g, layer = operands()[0], torch.randn(2, 3, 6), norm(name)
    mine, theirs = apply_norm(x, layer), layer(x)
    assert fused(mine)
    wanted = [x, *layer.parameters()]
    for one, other in zip([mine, *torch.autograd.grad(mine, wanted, g)],
                          [theirs, *torch.autograd.grad(theirs, wanted, g)], strict=True):
        torch.testing.assert_close(one, other)
    assert not fused(apply_norm(x, layer.eval()))


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_rms_norm_with_torchs_own_epsilon():
    x, part = (1e-4 * leaf for leaf in operands())
    layer = nn.RMSNorm(6)
    assert fused(add_residual_and_norm(x, part, Dropout(0.0), layer))
    torch.testing.assert_close(add_residual_and_norm(x, part, Dropout(0.0), layer), layer(x + part))


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("order", [PostNorm, PreNorm])
def test_the_orders_take_it_while_training_and_not_otherwise(order):
    x, around = operands()[0], order(norm("layer"), 0.5)
    assert fused(around(x, lambda normed: 2 * normed))
    y = around.eval()(x, lambda normed: 2 * normed)
    assert not fused(y)
    want = around.norm(x + 2 * x) if order is PostNorm else x + 2 * around.norm(x)
    torch.testing.assert_close(y, want)


def _hook(layer, dropout):
    layer.register_forward_pre_hook(lambda *given: None)


def _hook_on_dropout(layer, dropout):
    dropout.register_forward_hook(lambda *given: None)


def _another_forward(layer, dropout):
    vars(layer)["forward"] = lambda x: x


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("listen", [_hook, _hook_on_dropout, _another_forward])
def test_modules_with_hooks_are_called(listen):
    x, part = operands()
    layer, dropout = norm("layer"), Dropout(0.1)
    assert fused(add_residual_and_norm(x, part, dropout, layer))
    listen(layer, dropout)
    assert not fused(add_residual_and_norm(x, part, dropout, layer))


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_what_the_kernels_do_not_take():
    x, part = operands()
    assert not fused(add_residual_and_norm(x, part, Dropout(0.0), nn.LayerNorm((3, 6))))
    assert not fused(add_residual_and_norm(x, part, Dropout(0.0), nn.Identity()))
    assert not fused(add_residual(x, part[:, :1], Dropout(0.0)))
    wide = torch.randn(1, module.MAX_FUSED_WIDTH + 1, requires_grad=True)
    assert not fused(add_residual(wide, wide, Dropout(0.0)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.double])
def test_on_a_gpu(dtype):
    x = torch.randn(4, 5, 24, device="cuda", dtype=dtype, requires_grad=True)
    around = PostNorm(nn.LayerNorm(24), 0.0).to("cuda", dtype)
    y = around(x, lambda t: 2 * t)
    assert fused(y) == (dtype != torch.double)
    wide = torch.promote_types(dtype, torch.float32)  # the sum is not rounded on its way to the norm
    torch.testing.assert_close(y, nn.LayerNorm(24).to("cuda", wide)(3 * x.to(wide)).to(dtype))
    with torch.autocast("cuda", torch.bfloat16):
        assert around(x, lambda t: 2 * t).dtype == around.norm(x).dtype
