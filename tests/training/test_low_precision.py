"""The low-precision copy of an objective."""

from itertools import pairwise

import pytest
import tiny
import together
import torch

from regard.attention.layer import Attention
from regard.kernels.linear import adjacent_tensor
from regard.training import engine
from regard.training.engine import LowPrecisionCopy

NAMES = sorted(name for name, config in tiny.TRANSLATING.items()
               if not any(word in name for word in ("seq2seq", "recurrence", "mut1", "lstmn")))


def made(name):
    torch.manual_seed(1)
    return together.Translating(tiny.TRANSLATING[name].build()).train()


@pytest.mark.parametrize("name", NAMES)
def test_all_models_are_computed_with_low_parameters_alone(name):
    objective = made(name)
    low = LowPrecisionCopy(objective, torch.bfloat16)
    low.refresh()
    states = []
    for module in low.module.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, given, output: states.append((given[0].dtype, output.dtype)))
    loss = low.module(together.batch(together.LONG))
    loss.total.backward()
    low.add_gradients()
    assert set(states) <= {(torch.bfloat16, torch.bfloat16)}
    assert loss.total.dtype == torch.float32
    assert all(parameter.grad is None or parameter.grad.dtype == torch.float32 for parameter in objective.parameters())
    plain = made(name)
    exact = plain(together.batch(together.LONG))
    exact.total.backward()
    assert float(loss.total.detach()) == pytest.approx(float(exact.total.detach()), rel=0.03)
    for (key, parameter), theirs in zip(objective.named_parameters(), plain.parameters(), strict=True):
        if theirs.grad is None:
            assert parameter.grad is None, key
            continue
        error = (parameter.grad - theirs.grad).norm()
        assert error <= 0.15 * theirs.grad.norm() + 0.02 * len(together.LONG), key


def test_the_copy_follows_the_parameters_and_gradients_add_up():
    objective = made("attention")
    low = LowPrecisionCopy(objective, torch.bfloat16)
    batch = together.batch(together.LONG)
    gradients = []
    for _ in range(2):
        low.refresh()
        low.module(batch).total.backward()
        low.add_gradients()
        gradients.append({name: parameter.grad.clone() for name, parameter in objective.named_parameters()})
    for name, first in gradients[0].items():
        assert torch.equal(gradients[1][name], 2 * first), name
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.mul_(1.5)
    low.refresh()
    for mine, theirs in zip(low.module.parameters(), objective.parameters(), strict=True):
        assert mine.dtype == torch.bfloat16
        assert torch.equal(mine, theirs.bfloat16())
    assert low.module is not objective


def test_shared_tables_stay_shared():
    objective = made("post-norm")
    low = LowPrecisionCopy(objective, torch.bfloat16)
    model = low.module.model
    assert model.decoder.output.weight is model.encoder.embedding.tokens.weight
    assert len(low.copies) == len(low.masters)


def test_what_is_better_left_to_autocast():
    cuda = torch.device("cuda")
    assert engine.why_no_low_precision(made("attention"), cuda) is None
    assert "recurrence" in engine.why_no_low_precision(made("recurrence"), cuda)
    assert "recurrence" in engine.why_no_low_precision(made("seq2seq"), cuda)
    assert "recurrence" in engine.why_no_low_precision(made("lstmn"), cuda)
    assert "GPU" in engine.why_no_low_precision(made("attention"), torch.device("cpu"))
    assert "float32" in engine.why_no_low_precision(made("attention").bfloat16(), cuda)


def test_projections_that_read_one_input_lie_beside_each_other():
    low = LowPrecisionCopy(made("attention"), torch.bfloat16)
    layers = [module for module in low.module.modules() if isinstance(module, Attention)]
    assert layers
    for _ in range(2):
        low.refresh()
        for layer in layers:
            parts = (layer.query, layer.key, layer.value)
            for name in ("weight", "bias"):
                own = [getattr(part, name) for part in parts]
                found = adjacent_tensor(own, 0)
                assert found is not None
                assert torch.equal(found, torch.cat([*own]))
    assert all(parameter.data_ptr() % 16 == 0 for parameter in low.module.parameters())
    places = sorted((parameter.data_ptr(), parameter.nbytes) for parameter in low.module.parameters())
    assert all(one + size <= other for (one, size), (other, _) in pairwise(places))


def test_gradients_are_given_where_none_are_there():
    objective = made("attention")
    low, batch = LowPrecisionCopy(objective, torch.bfloat16), together.batch(together.LONG)
    idle = torch.nn.Parameter(torch.ones(3))  # one that has no part
    low.masters.append(idle)
    low.copies.append(torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)))
    low.buffers.append(torch.zeros(3))
    found = []
    for passed in (low.add_gradients, low.copy_gradients, low.copy_gradients):
        low.refresh()
        low.module(batch).total.backward()
        if passed == low.add_gradients:
            for parameter in objective.parameters():
                parameter.grad = None
        passed()
        assert all(parameter.grad is None for parameter in low.copies)
        found.append([parameter.grad.clone() for parameter in objective.parameters()])
    for added, given, again in zip(*found, strict=True):
        assert given.dtype == torch.float32
        assert torch.equal(added, given)
        assert torch.equal(added, again)  # not added to
    assert idle.grad is None
    assert sum(float(gradient.abs().sum()) for gradient in found[0]) > 0
