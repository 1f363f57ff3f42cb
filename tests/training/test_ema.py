"""The exponential moving average of the parameters."""

import pytest
import torch
from torch import nn

from regard.training.engine import EMA


def stepped(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_it_is_the_formula():
    model = nn.Linear(3, 2)
    average, want = EMA(model, 0.9), model.weight.detach().clone()
    for step in range(1, 200):
        stepped(model, step)
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        want = decay * want + (1 - decay) * model.weight.detach()
        torch.testing.assert_close(average.mean["weight"], want)


def test_it_is_used_and_put_away_again():
    model = nn.Linear(3, 2).bfloat16()
    average = EMA(model, 0.5)
    stepped(model, 1)
    average.update()
    before = model.weight.detach().clone()

    def use():
        with average.applied():
            assert torch.equal(model.weight, average.mean["weight"].bfloat16())
            assert not torch.equal(model.weight, before)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        use()
    assert torch.equal(model.weight, before)


def test_it_goes_on_from_its_state():
    model = nn.Linear(3, 2)
    one = EMA(model, 0.9)
    stepped(model, 1)
    one.update()
    two = EMA(model, 0.9)
    two.resume(one.state())
    stepped(model, 2)
    one.update()
    two.update()
    assert all(torch.equal(one.mean[name], two.mean[name]) for name in one.mean)
    with pytest.raises(ValueError, match=r"'weight'"):
        two.resume({})
    with pytest.raises(ValueError, match=r"of shape \(2, 3\), but is of shape \(1, 3\)"):
        two.resume({**one.state(), "weight": torch.zeros(1, 3)})


def test_a_state_that_does_not_fit_changes_nothing():
    model = nn.Linear(3, 2)
    average = EMA(model, 0.9)
    before = {name: mean.clone() for name, mean in average.state().items()}
    other = {"weight": torch.ones(2, 3), "bias": torch.ones(5), "steps": torch.tensor(7)}
    with pytest.raises(ValueError, match=r"of shape \(2,\), but is of shape \(5,\)"):
        average.resume(other)
    with pytest.raises(ValueError, match="one with 'more', which the model"):
        average.resume({**before, "more": torch.ones(1)})
    assert all(torch.equal(mean, before[name]) for name, mean in average.state().items())
