"""Learning rates: the formulas, their ends, and that every step stands for itself."""

import math

import pytest

from regard.toml import ConfigError
from regard.training.optimizer import SCHEDULES, ScheduleConfig


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
    schedule = ScheduleConfig(shape="linear", learning_rate=1.0, max_steps=100, constant_fraction=0.29)  # 0.29 * 100 is just below 29
    assert schedule.rate(29) == 1.0 > schedule.rate(30)
