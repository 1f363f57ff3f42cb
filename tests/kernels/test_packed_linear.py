"""Weights that are laid out: the same products, as long as the weights are the same."""

import gc

import pytest
import torch
from torch import nn

from regard.kernels import packed_linear as packing
from regard.kernels.packed_linear import PACKED_WEIGHTS, packed_linear_layers

pytestmark = [pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here"),
              pytest.mark.thorough]


def layers():
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5, bias=False))


def of(model, x):
    with torch.no_grad(), packed_linear_layers(model):
        return model(x)


@pytest.mark.parametrize("shape", [(1, 16), (2, 16), (5, 3, 16), (1, 1, 16), (0, 16), (16,)], ids=str)
@pytest.mark.parametrize("alone", [False, True], ids=["threads", "one thread"])
def test_products_are_the_same(shape, alone, monkeypatch):
    monkeypatch.setattr(packing, "single_threaded", lambda: alone)
    model, x = layers(), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(of(model, x), model(x), rtol=1e-5, atol=1e-6)


def test_weights_are_laid_out_once_and_forgotten_with_their_layer(monkeypatch):
    model = layers()
    of(model, torch.randn(3, 16))
    first = PACKED_WEIGHTS.kept[model[0]]
    assert first.blocked is not None
    assert first.transposed is None
    monkeypatch.setattr(packing, "single_threaded", lambda: True)
    of(model, torch.randn(1, 16))
    assert PACKED_WEIGHTS.kept[model[0]] is first
    assert first.transposed is not None
    count = len(PACKED_WEIGHTS.kept)
    del model, first
    gc.collect()
    assert len(PACKED_WEIGHTS.kept) == count - 2


@pytest.mark.parametrize("change", [
    lambda weight: weight.mul_(3.0), lambda weight: weight.data.mul_(3.0),
    lambda weight: weight.data.copy_(torch.randn_like(weight)),
], ids=["in place", "through data", "copied"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("alone", [False, True], ids=["threads", "one thread"])
def test_weights_that_change_are_laid_out_again(change, rows, alone, monkeypatch):
    monkeypatch.setattr(packing, "single_threaded", lambda: alone)
    model, x = layers(), torch.randn(rows, 16)
    of(model, x)
    with torch.no_grad():
        change(model[0].weight)
        torch.testing.assert_close(of(model, x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", [*range(24)])
def test_a_single_row_that_changes_through_data_is_seen(row):
    model, x = layers(), torch.randn(4, 16)
    of(model, x)
    model[0].weight.data[row] += 1.0
    with torch.no_grad():
        torch.testing.assert_close(of(model, x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [lambda weight: weight.mul_(3.0), lambda weight: weight.data.mul_(3.0)],
                         ids=["in place", "through data"])
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_layers_joint_are_one_product_of_their_weights_as_they_are(change, rows):
    model = nn.ModuleList([nn.Linear(16, size) for size in (8, 12, 4)])
    x = torch.randn(rows, 16)

    def together():
        with torch.no_grad(), packed_linear_layers(model):
            bias = torch.cat([layer.bias for layer in model])
            return PACKED_WEIGHTS.of(*model).product(x, [layer.weight for layer in model], bias, "relu")[:rows]

    def apart():
        with torch.no_grad():
            return torch.cat([layer(x) for layer in model], -1).relu()

    torch.testing.assert_close(together(), apart(), rtol=1e-5, atol=1e-6)
    first = PACKED_WEIGHTS.joint[model[0]]
    together()
    assert PACKED_WEIGHTS.joint[model[0]] is first
    with torch.no_grad():
        change(model[1].weight)  # not the one that they are kept with
    torch.testing.assert_close(together(), apart(), rtol=1e-5, atol=1e-5)


def test_weights_that_change_inside_are_laid_out_again():
    model, x = layers(), torch.randn(4, 16)
    with torch.no_grad(), packed_linear_layers(model):
        model(x)
        model[0].weight.zero_()
        inside = model(x)
    with torch.no_grad():
        torch.testing.assert_close(inside, model(x))


def test_other_weights_are_seen():
    model, x = layers(), torch.randn(4, 16)
    of(model, x)
    model[0].weight = nn.Parameter(torch.randn(24, 16))
    with torch.no_grad():
        torch.testing.assert_close(of(model, x), model(x), rtol=1e-5, atol=1e-5)


def test_a_layer_is_itself_again_afterwards_and_an_outer_block_keeps_it():
    model, x = layers(), torch.randn(2, 16)
    with packed_linear_layers(model):
        with packed_linear_layers(model):
            assert "forward" in vars(model[0])
        assert "forward" in vars(model[0])
    assert "forward" not in vars(model[0])
    with pytest.raises(RuntimeError, match="on purpose"), packed_linear_layers(model):
        raise RuntimeError("on purpose")
    assert "forward" not in vars(model[0])
    model(x).sum().backward()
    assert model[0].weight.grad is not None


def test_gradients_and_other_numbers_take_the_usual_way():
    model, x = layers(), torch.randn(2, 16)
    with packed_linear_layers(model):
        model(x).sum().backward()
    assert model[0].weight.grad is not None
    double = layers().double()
    with torch.no_grad(), packed_linear_layers(double):
        assert double(x.double()).dtype == torch.float64
    assert double[0] not in PACKED_WEIGHTS.kept
    with torch.no_grad(), packed_linear_layers(model), torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_hooks_are_called():
    model, called = layers(), []
    model[0].register_forward_hook(lambda *given: called.append(given))
    of(model, torch.randn(2, 16))
    assert len(called) == 1


def test_large_models_and_what_is_no_module_are_left(monkeypatch):
    model = layers()
    monkeypatch.setattr(packing, "MAX_BYTES", 24 * 16 * 4)
    with packed_linear_layers(model):
        assert "forward" not in vars(model[0])
    with packed_linear_layers(object()):
        pass


def test_what_was_laid_out_in_inference_mode_is_of_use_outside():
    model, x = layers(), torch.randn(2, 16)
    with torch.inference_mode(), packed_linear_layers(model):
        model(x)
    with torch.no_grad():
        torch.testing.assert_close(of(model, x), model(x), rtol=1e-5, atol=1e-6)
