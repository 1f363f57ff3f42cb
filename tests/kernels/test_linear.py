"""`Linear` is torch's in all; tensors that are adjacent in memory are joined without a copy."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.kernels import launch
from regard.kernels import linear as module
from regard.kernels.linear import Linear, adjacent_tensor, concatenate, empty_like_parts, linear

pytestmark = pytest.mark.thorough


def gradients(y, *of):
    torch.manual_seed(1)
    return torch.autograd.grad(y, of, torch.randn_like(y))


def test_it_is_torchs_layer():
    torch.manual_seed(0)
    mine = Linear(5, 7)
    torch.manual_seed(0)
    theirs = nn.Linear(5, 7)
    assert repr(mine) == repr(theirs)
    assert all(map(torch.equal, mine.state_dict().values(), theirs.state_dict().values()))
    x = torch.randn(2, 3, 5)
    assert torch.equal(mine(x), theirs(x))
    without = Linear(5, 7, bias=False)
    assert torch.equal(without(x), F.linear(x, without.weight))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3)], ids=str)
def test_with_the_kernel_the_gradients_are_the_same(shape, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    layer, x = Linear(3, 6), torch.randn(shape, requires_grad=True)
    y, want = layer(x), F.linear(x, layer.weight, layer.bias)
    assert type(y.grad_fn).__name__ == "_LinearWithBiasBackward"
    assert torch.equal(y, want)
    of = (x, layer.weight, layer.bias)
    for mine, theirs in zip(gradients(y, *of), gradients(want, *of), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_second_derivatives_are_there_too(monkeypatch):
    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    given = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in ((4, 3), (5, 3), (5,))]
    every = []
    for function in (linear, F.linear):
        first = torch.autograd.grad((function(*given) ** 3).sum(), given, create_graph=True)
        every.append([second for one in first for second in torch.autograd.grad((one**2).sum(), given,
                                                                                retain_graph=True)])
    for mine, theirs in zip(*every, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)  # the kernel sums in float32


def test_without_need_it_is_torchs_function(monkeypatch):
    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    layer, x = Linear(3, 6), torch.randn(2, 3)
    with torch.no_grad():
        assert layer(x).grad_fn is None
    layer.bias.requires_grad_(False)
    assert type(layer(x).grad_fn).__name__ != "_LinearWithBiasBackward"
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.randn(2, 4))


@pytest.mark.gpu
def test_on_a_gpu_the_kernel_is_taken():
    layer, x = Linear(64, 200).cuda().to(torch.bfloat16), torch.randn(5, 300, 64, device="cuda", dtype=torch.bfloat16)
    y = layer(x)
    assert type(y.grad_fn).__name__ == "_LinearWithBiasBackward"
    g = torch.randn_like(y)
    (mine,) = torch.autograd.grad(y, layer.bias, g)
    torch.testing.assert_close(mine, g.double().sum((0, 1)).to(torch.bfloat16), rtol=1e-2, atol=1e-2)
    with torch.autocast("cuda", torch.bfloat16):
        assert layer.float()(x.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("part", ["activation", "norm"])
def test_sums_that_a_kernel_made_on_the_way_are_used(part, monkeypatch):
    """The gradient of a bias does not read the gradient of a result whose maker has summed it already."""
    pytest.importorskip("triton")
    from regard.kernels import blocks, column_sums

    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    layer, x, g = Linear(5, 16), torch.randn(2, 20, 5), torch.randn(2, 20, 16)
    form = blocks.NormParameters(True, None, None, 1e-5)

    def passed(y):
        if part == "activation":
            return blocks.activate_dropout(y, "gelu", 0.0)
        return blocks.add_dropout_norm(torch.ones_like(y), y, 0.0, form, y.dtype)

    want = torch.autograd.grad(passed(F.linear(x, layer.weight, layer.bias)), layer.bias, g)[0]
    heights, run = [], launch._run

    def counted(kernel, grid, given, sizes):
        if kernel is column_sums._column_sums_kernel:
            heights.append(given[2])
        run(kernel, grid, given, sizes)

    monkeypatch.setattr(launch, "_run", counted)
    torch.testing.assert_close(torch.autograd.grad(passed(layer(x)), layer.bias, g)[0], want, rtol=1e-4, atol=1e-5)
    assert heights
    assert max(heights) < 40 if part == "activation" else len(heights) == 1


@pytest.mark.parametrize(("shape", "sizes", "dim"), [
    ((6, 4), (1, 2, 3), 0), ((3, 6), (2, 4), 1), ((2, 3, 6), (1, 5), -1), ((2, 6, 3), (4, 2), 1), ((7,), (3, 4), 0)],
                         ids=str)
def test_slices_in_their_order_are_the_tensor_they_were_cut_from(shape, sizes, dim):
    tensor = torch.randn(shape)
    parts = tensor.split(sizes, dim)
    found = adjacent_tensor(parts, dim)
    assert torch.equal(found, tensor)
    assert found.data_ptr() == tensor.data_ptr()
    with torch.no_grad():
        assert concatenate(parts, dim).data_ptr() == tensor.data_ptr()
    inner = adjacent_tensor(parts[1:], dim)  # a run that does not begin at the beginning
    assert torch.equal(inner, torch.cat(parts[1:], dim))
    assert inner.data_ptr() == parts[1].data_ptr()


def test_what_is_not_beside_each_other_is_copied():
    tensor = torch.randn(3, 8)
    a, b, c, d = tensor.split(2, 1)
    others = [(b, a), (a, c), (a, a), (a, b.clone()), (a, b.clone().t().contiguous().t()), (a, b[:2]), (a, b[:, :1], d),
              (a, b.double()), (tensor[:2], tensor[2:].clone()), (a, tensor.clone()[:, 2:4])]
    for parts in others:
        dim = 0 if parts[0].shape[1] == 8 else 1
        assert adjacent_tensor(parts, dim) is None
    for parts in others[:5]:
        with torch.no_grad():
            assert torch.equal(concatenate(parts, 1), torch.cat(parts, 1))


def test_where_gradients_are_asked_for_it_is_a_copy_that_has_them():
    leaf = torch.randn(3, 4, requires_grad=True)
    parts = leaf.split(2, 1)
    made = concatenate(parts, 1)
    assert made.data_ptr() != leaf.data_ptr()
    made.square().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * leaf.detach())
    assert not adjacent_tensor(parts, 1).requires_grad


def test_room_is_laid_out_as_what_it_is_for():
    made = torch.randn(2, 5, 12)
    query, key, value = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in made.split((4, 4, 4), -1))
    new = empty_like_parts((query, key, value), 1)
    assert [part.shape for part in new] == [query.shape, key.shape, value.shape]
    flat = [part.transpose(1, 2).flatten(-2) for part in new]  # the way back, without a copy
    assert adjacent_tensor(flat, -1).shape == made.shape
    assert adjacent_tensor(flat, -1).is_contiguous()
    apart = empty_like_parts((query, key.clone(), value), 1)
    assert adjacent_tensor(apart, 1) is None
    assert apart[0].transpose(1, 2).is_contiguous()
    spread = empty_like_parts((torch.randn(1, 3, 4).expand(2, 3, 4),), 1)[0]
    assert spread.is_contiguous()
