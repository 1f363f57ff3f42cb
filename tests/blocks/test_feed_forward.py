"""The feed-forward part: the oracle's equations, token by token."""

import numpy as np
import pytest
import torch

from regard.blocks import feed_forward
from regard.blocks.feed_forward import GatedFeedForward, PlainFeedForward
from regard.kernels.packed_linear import PackedForward, packed_linear_layers
from regard.reference import blocks as oracle

ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu"]


def arrays(*linears):
    return [None if t is None else t.detach().numpy() for linear in linears for t in (linear.weight, linear.bias)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_plain_is_the_oracles(activation, bias):
    part, x = PlainFeedForward(4, 7, activation=activation, bias=bias).double(), torch.randn(2, 3, 4).double()
    known = getattr(oracle, activation)
    want = [[oracle.mlp(token, *arrays(part.up, part.down), known) for token in row] for row in x.numpy()]
    np.testing.assert_allclose(part(x).detach().numpy(), want, rtol=1e-12, atol=1e-13)


def test_gated_with_silu_and_no_biases_is_swiglu():
    part, x = GatedFeedForward(4, 7).double(), torch.randn(3, 4).double()
    weights = [linear.weight.detach().numpy() for linear in (part.gate, part.up, part.down)]
    want = [oracle.mlp_swiglu(token, *weights) for token in x.numpy()]
    np.testing.assert_allclose(part(x).detach().numpy(), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", [PlainFeedForward, GatedFeedForward])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_gradients_are_right(kind, activation):
    part = kind(3, 4, activation=activation, bias=True).double()
    assert torch.autograd.gradcheck(part, torch.randn(2, 3).double().requires_grad_())


def test_dropout_is_for_training():
    part, x = PlainFeedForward(4, 50, dropout=0.5), torch.randn(3, 4)
    assert not torch.equal(part(x), part(x))
    assert torch.equal(part.eval()(x), part(x))


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r'`activation` must be .*, but is "gelue" instead. Did you mean "gelu"'):
        PlainFeedForward(4, 4, activation="gelue")
    with pytest.raises(ValueError, match="`dropout` must be a probability"):
        GatedFeedForward(4, 4, dropout=1.5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_in_one_kernel_it_is_the_same(activation, monkeypatch):
    pytest.importorskip("triton")
    from regard.kernels import blocks as activation_kernel

    part, x = PlainFeedForward(4, 7, activation=activation), torch.randn(3, 4, requires_grad=True)
    want = part(x)
    monkeypatch.setattr(feed_forward, "usable", lambda *tensors: True)
    y = part(x)
    monkeypatch.setattr(activation_kernel, "activate_dropout", None)  # whoever calls it fails
    with pytest.raises(TypeError):
        part(x)
    part.eval()(x)
    wanted = [x, *part.parameters()]
    torch.testing.assert_close(y, want)
    for mine, theirs in zip(torch.autograd.grad(y.sum(), wanted), torch.autograd.grad(want.sum(), wanted), strict=True):
        torch.testing.assert_close(mine, theirs)


def unfused(part, x):
    """The layer with ReLU as a pass of its own."""
    return part.down(part.dropout(part.activation(part.up(x))))


@pytest.fixture
def fused_calls(monkeypatch):
    """The inputs of packed products with ReLU."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    calls, with_relu = [], PackedForward.with_relu
    monkeypatch.setattr(PackedForward, "with_relu", lambda self, x: (calls.append(x), with_relu(self, x))[1])
    return calls


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 16), (3, 16), (2, 5, 16), (0, 16), (16,)], ids=str)
def test_packed_relu_is_part_of_the_product_and_exact(shape, bias, fused_calls):
    part, x = PlainFeedForward(16, 24, bias=bias, dropout=0.5).eval(), torch.randn(shape)
    with torch.no_grad():
        plain = part(x)
        with packed_linear_layers(part):
            assert torch.equal(part(x), unfused(part, x))
            torch.testing.assert_close(part(x), plain, rtol=1e-5, atol=1e-6)
    assert len(fused_calls) == 2


@pytest.mark.parametrize("watched", ["up", "dropout"])
def test_packed_with_a_hook_calls_it(watched, fused_calls):
    part, x, seen = PlainFeedForward(16, 24).eval(), torch.randn(4, 16), []
    getattr(part, watched).register_forward_hook(lambda module, given, made: seen.append(made))
    with torch.no_grad(), packed_linear_layers(part):
        part(x)
        assert len(seen) == 1
        assert bool((seen[0] < 0).any()) is (watched == "up")  # the output of `up` is that before ReLU
    assert not fused_calls


def test_packed_with_a_hook_of_all_modules_calls_it(fused_calls):
    part, x, seen = PlainFeedForward(16, 24).eval(), torch.randn(4, 16), []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, given, made: seen.append(module))
    try:
        with torch.no_grad(), packed_linear_layers(part):
            part(x)
    finally:
        handle.remove()
    assert [one for one in seen if one is not part] == [part.up, part.dropout, part.down]
    assert not fused_calls


def test_packed_with_a_replaced_activation_uses_it(fused_calls):
    part, x = PlainFeedForward(16, 24).eval(), torch.randn(4, 16)
    part.activate = lambda x: x * 0
    with torch.no_grad(), packed_linear_layers(part):
        assert torch.equal(part(x), part.down(torch.zeros(4, 24)))
    assert not fused_calls


@pytest.mark.parametrize("broken", ["weight", "bias"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_packed_relu_does_not_hide_nan(broken, value, fused_calls):
    part, x = PlainFeedForward(16, 24).eval(), torch.ones(4, 16)
    with torch.no_grad():
        getattr(part.up, broken).data.view(-1)[3] = value
        with packed_linear_layers(part):
            torch.testing.assert_close(part(x), unfused(part, x), equal_nan=True)
            assert not part(x).isfinite().all()


def test_packed_with_training_gradients_or_another_activation_is_not_fused(fused_calls):
    part, x = PlainFeedForward(16, 200, dropout=0.5), torch.randn(4, 16)
    with torch.no_grad(), packed_linear_layers(part):
        assert not torch.equal(part(x), part(x))  # dropout
    part.eval()
    with packed_linear_layers(part):
        part(x).sum().backward()
    assert part.up.weight.grad is not None
    for other in (PlainFeedForward(16, 24, activation="gelu").eval(), PlainFeedForward(16, 24).eval()):
        if other.activation_name == "relu":
            other.activation = torch.tanh
        with torch.no_grad(), packed_linear_layers(other):
            assert torch.equal(other(x), unfused(other, x))
    assert not fused_calls
