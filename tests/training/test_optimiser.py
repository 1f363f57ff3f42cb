"""The optimiser: which one, what decays, and its rate."""

import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW

from regard.training import optimizer
from regard.training.optimizer import OptimizerConfig


def parameters():
    torch.manual_seed(3)
    return dict(nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).named_parameters())


@pytest.mark.parametrize(("name", "kind"), [("adam", Adam), ("adamw", AdamW)])
def test_what_is_set_is_what_there_is(name, kind):
    made = optimizer.make_optimizer(OptimizerConfig(name=name, beta1=0.7, beta2=0.9, epsilon=1e-4, weight_decay=0.2), parameters())
    assert type(made) is kind
    for group in made.param_groups:
        assert (group["betas"], group["eps"], group["fused"]) == ((0.7, 0.9), 1e-4, True)


def test_only_what_has_two_dimensions_decays():
    """A rate with zero gradients shows it: matrices and tables shrink, biases and norms stay."""
    given = parameters()
    before = {name: one.detach().clone() for name, one in given.items()}
    made = optimizer.make_optimizer(OptimizerConfig(weight_decay=0.5), given)
    optimizer.set_learning_rate(made, 0.1)
    for one in given.values():
        one.grad = torch.zeros_like(one)
    made.step()
    for name, one in given.items():
        torch.testing.assert_close(one.detach(), before[name] * (0.95 if one.dim() > 1 else 1.0))


def test_without_parameters_of_one_sort_there_is_no_group_of_it():
    assert len(optimizer.make_optimizer(OptimizerConfig(), {"weight": nn.Parameter(torch.ones(2, 2))}).param_groups) == 1
    assert len(optimizer.make_optimizer(OptimizerConfig(), {"bias": nn.Parameter(torch.ones(2))}).param_groups) == 1


def test_the_rate_holds_for_all_groups_and_in_place_where_it_is_a_tensor():
    made = optimizer.make_optimizer(OptimizerConfig(), parameters())
    assert [group["lr"] for group in made.param_groups] == [0.0, 0.0]  # nothing is learned before it is set
    optimizer.set_learning_rate(made, 0.25)
    assert [group["lr"] for group in made.param_groups] == [0.25, 0.25]
    place = torch.zeros(())
    made.param_groups[0]["lr"] = place
    optimizer.set_learning_rate(made, 0.5)
    assert made.param_groups[0]["lr"] is place
    assert (place.item(), made.param_groups[1]["lr"]) == (0.5, 0.5)
