"""Layers of one input as one product: what each would make, the same gradients, and who is left to itself."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.kernels import linear as module
from regard.kernels.linear import Linear, apply_jointly

pytestmark = pytest.mark.thorough

SIZES = (6, 4, 4)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "usable", lambda *tensors: True)


class Counted(TorchDispatchMode):
    """How often each operation ran."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def layers(bias=True, dtype=torch.float32):
    return [Linear(5, size, bias).to(dtype) for size in SIZES]


def lying_together(made):
    for name in ("weight", "bias") if made[0].bias is not None else ("weight",):
        flat = torch.cat([getattr(layer, name).data.flatten() for layer in made])
        parts = flat.split([getattr(layer, name).numel() for layer in made])
        for layer, part in zip(made, parts, strict=True):
            parameter = getattr(layer, name)
            parameter.data = part.view(parameter.shape)
    return made


def joint(outputs):
    return {type(output.grad_fn).__name__ for output in outputs} == {"_JointLinearBackward"}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("placed", [list, lying_together], ids=["apart", "together"])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)], ids=str)
def test_results_and_gradients_are_those_of_each(as_on_a_gpu, shape, placed, bias):
    made = placed(layers(bias))
    x = torch.randn(shape, requires_grad=True)
    of = [x, *nn.ModuleList(made).parameters()]
    mine, theirs = apply_jointly(x, made), [nn.functional.linear(x, layer.weight, layer.bias) for layer in made]
    assert joint(mine)
    assert [y.shape for y in mine] == [y.shape for y in theirs]
    above = [torch.randn_like(y) for y in theirs]
    for one, other in zip((*mine, *torch.autograd.grad(mine, of, above)),
                          (*theirs, *torch.autograd.grad(theirs, of, above)), strict=True):
        torch.testing.assert_close(one, other)


def test_in_float64_the_gradients_are_exact(as_on_a_gpu):
    made = layers(bias=False, dtype=torch.double)
    x = torch.randn(2, 3, 5, dtype=torch.double, requires_grad=True)
    of = (x, *(layer.weight for layer in made))

    def given(x, *weights):
        return module._JointLinear.apply(x, 3, *weights)

    assert torch.autograd.gradcheck(given, of)
    assert torch.autograd.gradgradcheck(given, of)


def test_a_layer_nobody_looks_at_gets_zeros(as_on_a_gpu):
    made, x = layers(), torch.randn(3, 5)
    made_of = apply_jointly(x, made)
    (made_of[0].sum() + made_of[2].sum()).backward()
    assert (made[1].weight.grad == 0).all()
    torch.testing.assert_close(made[0].weight.grad, x.sum(0).expand(6, 5))
    torch.testing.assert_close(made[2].bias.grad, torch.full((4,), 3.0))


def test_what_lies_together_is_not_copied(as_on_a_gpu):
    made, x = lying_together(layers(bias=False)), torch.randn(7, 5, requires_grad=True)
    with Counted() as seen:
        outputs = apply_jointly(x, made)
        whole = torch.randn(7, sum(SIZES))
        torch.autograd.backward(outputs, whole.split(SIZES, -1))
    assert seen.counts["mm"] == 3
    assert not {"cat", "clone", "copy_", "add"} & seen.counts.keys()
    places = {layer.weight.grad.untyped_storage().data_ptr() for layer in made}
    assert len(places) == 1  # the gradient of the one product


def hooked(made):
    made[1].register_forward_hook(lambda *given: None)


def frozen(made):
    made[0].weight.requires_grad_(False)


def foreign(made):
    made[2] = nn.Linear(5, 4)


def replaced(made):
    vars(made[2])["forward"] = lambda x: x[..., :4] * 2


def half_biased(made):
    made[1] = Linear(5, 4, bias=False)


def wider(made):
    made[1].double()


@pytest.mark.parametrize("changed", [hooked, frozen, foreign, replaced, half_biased])
def test_who_is_no_plain_layer_is_called_as_it_is(as_on_a_gpu, changed):
    made = layers()
    changed(made)
    x = torch.randn(3, 5)
    outputs = apply_jointly(x, made)
    assert not joint(outputs)
    for output, layer in zip(outputs, made, strict=True):
        torch.testing.assert_close(output, layer(x))


def test_hooks_and_replacements_are_called(as_on_a_gpu):
    made, calls = layers(), []
    made[1].register_forward_hook(lambda *given: calls.append(1))
    apply_jointly(torch.randn(3, 5), made)
    assert calls == [1]
    replaced(made)
    x = torch.randn(3, 5)
    assert torch.equal(apply_jointly(x, made)[2], 2 * x[..., :4])


def test_other_numbers_and_no_gradients_are_left_to_torch(as_on_a_gpu):
    made = layers()
    wider(made)
    with pytest.raises(RuntimeError, match="dtype"):
        apply_jointly(torch.randn(3, 5), made)
    with torch.no_grad():
        assert all(output.grad_fn is None for output in apply_jointly(torch.randn(3, 5), layers()))


def test_on_a_cpu_each_is_called():
    assert not joint(apply_jointly(torch.randn(3, 5), layers()))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu_it_is_one_product(dtype):
    made = [Linear(64, 64).cuda().to(dtype) for _ in range(3)]
    x = torch.randn(2, 300, 64, device="cuda", dtype=dtype, requires_grad=True)
    of = [x, *nn.ModuleList(made).parameters()]
    mine, theirs = apply_jointly(x, made), [layer(x) for layer in made]
    assert joint(mine)
    above = [torch.randn_like(y) for y in theirs]
    found, wanted = torch.autograd.grad(mine, of, above), torch.autograd.grad(theirs, of, above)
    for one, other in zip(found, wanted, strict=True):
        bound = 4 * torch.finfo(dtype).eps * other.abs().max() + 0.02 * other.abs().max() * (dtype == torch.float32)
        assert (one - other).abs().max() <= bound
    with torch.autocast("cuda", torch.bfloat16):
        assert not joint(apply_jointly(x.float(), [layer.float() for layer in made]))
