"""The optimizer and the learning-rate schedule."""

import math

import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW

from regard.toml import ConfigError
from regard.training import optimizer
from regard.training.optimizer import SCHEDULES, OptimizerConfig, ScheduleConfig


def parameters():
    torch.manual_seed(3)
    return dict(nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).named_parameters())


@pytest.mark.parametrize(("name", "kind"), [("adam", Adam), ("adamw", AdamW)])
def test_what_is_set_is_what_there_is(name, kind):
    made = optimizer.make_optimizer(OptimizerConfig(name=name, beta1=0.7, beta2=0.9, epsilon=1e-4, weight_decay=0.2),
                                    parameters())
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
    assert len(optimizer.make_optimizer(OptimizerConfig(), {"weight": nn.Parameter(torch.ones(2,
                                                                                              2))}).param_groups) == 1
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


def test_the_papers_schedule():
    schedule = ScheduleConfig(shape="inverse_sqrt", learning_rate=512**-0.5 * 4000**-0.5, warmup_steps=4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        assert schedule.rate(step) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12)


@pytest.mark.parametrize("shape", SCHEDULES)
def test_the_warm_up_is_a_straight_line_to_the_peak(shape):
    schedule = ScheduleConfig(shape=shape, learning_rate=2.0, warmup_steps=10, max_steps=100)
    assert [schedule.rate(step) for step in (1, 5, 10)] == pytest.approx([0.2, 1.0, 2.0])
    assert max(schedule.rate(step) for step in range(1, 101)) == 2.0
    assert ScheduleConfig(shape=shape, learning_rate=2.0, max_steps=100).rate(1) > 1.9


def test_cosine_and_linear_come_to_their_last_rate():
    for shape in ("cosine", "linear"):
        schedule = ScheduleConfig(shape=shape, learning_rate=2.0, warmup_steps=10, max_steps=110, final_fraction=0.1)
        assert schedule.rate(60) == pytest.approx(1.1)
        assert schedule.rate(110) == schedule.rate(500) == pytest.approx(0.2)
    quarter = ScheduleConfig(shape="cosine", learning_rate=1.0, max_steps=100).rate(25)
    assert quarter == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))


def test_constant_then_decay():
    schedule = ScheduleConfig(shape="linear", learning_rate=1.0, warmup_steps=10, max_steps=100, constant_fraction=0.5)
    assert {schedule.rate(step) for step in range(10, 51)} == {1.0}
    assert schedule.rate(75) == pytest.approx(0.5)


def test_what_does_not_go_together():
    with pytest.raises(ConfigError, match=r'steps.*"cosine"'):
        ScheduleConfig(shape="cosine")
    with pytest.raises(ConfigError, match="11 steps of warm-up are more than all 10 steps"):
        ScheduleConfig(shape="constant", warmup_steps=11, max_steps=10)


@pytest.mark.parametrize("shape", SCHEDULES)
@pytest.mark.parametrize("options", [{"warmup_steps": 20}, {"warmup_steps": 5}, {"constant_fraction": 1.0}], ids=str)
def test_after_the_last_step_its_rate_stays(shape, options):
    schedule = ScheduleConfig(shape=shape, learning_rate=2.0, max_steps=20, **options)
    assert schedule.rate(21) == schedule.rate(1000) == schedule.rate(20)


def test_hold_is_not_a_step_too_short():
    schedule = ScheduleConfig(shape="linear", learning_rate=1.0, max_steps=100,
                              constant_fraction=0.29)  # 0.29 * 100 is just below 29
    assert schedule.rate(29) == 1.0 > schedule.rate(30)
