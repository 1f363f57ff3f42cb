"""A layer whose projections are one product, as on a GPU: the same output and gradients, and who is left to itself."""

import pytest
import torch
from problems import normal

import regard
from regard import Causal
from regard.kernels import linear

OPTIONS = {"plain": {"heads": 2}, "grouped": {"heads": 4, "key_heads": 2}, "no bias": {"heads": 2, "bias": False},
           "wide values": {"heads": 2, "value_width": 5}}


@pytest.fixture
def products(monkeypatch):
    """How many layers each joint product had."""
    pytest.importorskip("triton")
    counts, apply = [], linear._JointLinear.apply
    monkeypatch.setattr(linear, "usable", lambda *tensors: True)

    def counted(x, count, *given):
        counts.append(count)
        return apply(x, count, *given)

    monkeypatch.setattr(linear._JointLinear, "apply", counted)
    return counts


def layer(**options):
    made = regard.Attention(8, **options)
    for seed, parameter in enumerate(made.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed).float() / 3
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("cross", [False, True], ids=["own", "cross"])
def test_output_and_gradients_are_the_same(products, monkeypatch, name, cross):
    made, x = layer(**OPTIONS[name]), normal(2, 5, 8).float().requires_grad_()
    context = normal(2, 7, 8, seed=3).float().requires_grad_() if cross else None
    of = [x, *([context] if cross else []), *made.parameters()]
    found = []
    for usable in (lambda *tensors: True, lambda *tensors: False):
        monkeypatch.setattr(linear, "usable", usable)
        y = made(x, context, mask=Causal())
        found.append([y, *torch.autograd.grad(y, of, normal(2, 5, 8, seed=4).float())])
    assert products == [2 if cross else 3]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_who_listens_or_projects_otherwise_gets_each_part_alone(products):
    made, x, looks = layer(heads=2), normal(2, 5, 8).float(), []
    with made.tap.listen(looks.append):
        made(x)
    assert len(looks) == 1
    made.key.register_forward_hook(lambda *given: None)
    made(x)

    class Other(regard.Attention):
        def queries(self, x):
            return 2 * super().queries(x)

    other, plain = Other(8, heads=2), layer(heads=2)
    other.load_state_dict(plain.state_dict())
    assert not torch.allclose(other(x), plain(x))
    assert products == [3]  # of the plain layer alone
