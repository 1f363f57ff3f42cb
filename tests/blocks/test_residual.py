"""Which way a residual takes: one kernel while training, the modules one after another where somebody listens."""

import pytest
import torch
from torch import nn

from regard.blocks import sublayer as module
from regard.blocks.sublayer import NORMS, Dropout, PostNorm, PreNorm, add_residual, add_residual_and_norm, apply_norm

KERNELS = {"_AddedBackward", "_NormedBackward"}


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
def test_where_somebody_listens_the_modules_are_called(listen):
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
