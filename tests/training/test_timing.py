"""The duration of a training: measured without a trace, estimated, and kept within a limit as the machine changes."""

import itertools
import math
import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import Line, Made, numbers, settings

from regard.training.checkpoints import CheckpointManager
from regard.training.logging import ALL_STEPS_DONE, PATIENCE_ENDED, TIME_IS_UP
from regard.training.loop import TrainingState, learning_rate, stop_reason, stored_training_state
from regard.training.optimizer import ScheduleConfig
from regard.training.timing import (
    FEW_STEPS,
    FittedPlan,
    Pace,
    extrapolate,
    few_steps_warning,
    fit_plan,
    fit_schedule,
    parse_duration,
    refit_plan,
)


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.parametrize(("text", "seconds"), [
    ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1h0m5s", 3605), ("1.5h", 5400), ("20S", 20)])
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "30", "0s", "0h0m", "-5m", "30 minutes", "m", "5m1h", "1h-5m", "nan", "ten"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="1h30m") as error:
        parse_duration(text)
    assert repr(text) in str(error.value)


class Machine:
    """A clock that only steps and validations move; how long they take is a function of the time."""

    def __init__(self, step=0.1, validation=1.0, speed=lambda now: 1.0):
        self.now, self.step, self.validation, self.speed = 0.0, step, validation, speed

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds / self.speed(self.now)

    def runs(self, made):
        """Let this training run on this machine."""
        engine, task = made.training.engine, made.training.training_task
        made.training.clock = self
        step, validate, part = engine.step, task.validate, task.try_validation
        engine.step = lambda *given: (self.work(self.step), step(*given))[1]
        task.validate = lambda *given: (self.work(self.validation), validate(*given))[1]
        task.try_validation = lambda *given: (self.work(0.5 * self.validation), part(*given))[1]
        self.rates = []
        made.training.engine.step = lambda number, batches, rate: (self.rates.append((number, rate)),
                                                                   self.work(self.step), step(number, batches, rate))
        return made


def limited(seconds, steps=1000, every=100, shape="linear", warmup=0, **options):
    config = settings(steps, every=every, store=10**6, max_time=seconds, log_every=10, **options)
    return replace(config, schedule=ScheduleConfig(shape=shape, learning_rate=0.05, max_steps=steps,
                                                   warmup_steps=warmup, constant_fraction=0.5))


def run(folder, config, machine, work=None):
    made = machine.runs(Made(folder, work or Line(), config))
    state = made.training.measure(TrainingState())
    measured, machine.rates[:] = machine.now, []
    return made, made.training.run(state), machine.now - measured


@pytest.mark.parametrize("times", [1, 3])
def test_measuring_changes_nothing(tmp_path, times):
    """Weights, moments, EMA, sums and random state, before the first step and in the middle; and so all later steps."""
    config = settings(every=4, ema_decay=0.9, gradient_accumulation=2)
    plain = Made(tmp_path / "plain", config=config)
    plain.training.run(TrainingState())
    made = Made(tmp_path / "measured", config=config)
    before, random_state = numbers(made.training.engine), torch.get_rng_state()
    for _ in range(times):
        made.training.measure(TrainingState())
    assert torch.equal(numbers(made.training.engine), before)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert made.training.engine.ema.steps == 0
    assert not made.training.engine.optimizer.state
    assert made.training.engine.read()[:5] == (0.0, 0.0, 0, 0.0, 0)
    state = made.training.run(TrainingState())
    assert torch.equal(numbers(made.training.engine), numbers(plain.training.engine))
    made.training.measure(replace(state, step=4))
    assert torch.equal(numbers(made.training.engine), numbers(plain.training.engine))
    assert made.training.engine.ema.steps == 8


def test_a_measurement_is_real_steps(tmp_path):
    """The parameters do change while it is timed: it is not a step without its update."""
    made = Made(tmp_path / "checkpoints")
    engine, before, seen = made.training.engine, None, []
    before = engine.parameters[0].detach().clone()
    update = engine._update
    engine._update = lambda: (update(), seen.append(torch.equal(engine.parameters[0], before)))
    made.training.measure(TrainingState())
    assert seen
    assert not any(seen)


@pytest.mark.parametrize(("steps", "measured"), [(1, 1), (6, 2), (99, 2), (500, 11), (100_000, 41)])
def test_how_many_steps_are_timed(tmp_path, steps, measured):
    """At most two percent, and one more; few are enough."""
    machine = Machine(step=0.001)
    made = machine.runs(Made(tmp_path / "checkpoints", config=settings(steps, every=steps)))
    made.training.measure(TrainingState())
    assert len(machine.rates) == measured


def test_slow_steps_are_timed_less_often(tmp_path):
    machine = Machine(step=0.4)
    made = machine.runs(Made(tmp_path / "checkpoints", config=settings(100_000, every=1000)))
    made.training.measure(TrainingState())
    assert len(machine.rates) == 3


def test_the_estimate_has_steps_and_validations(tmp_path):
    machine = Machine(step=0.1, validation=7.0)
    made = machine.runs(Made(tmp_path / "checkpoints", config=settings(1000, every=300)))
    made.training.measure(TrainingState())
    (estimate,) = made.events("TimeEstimated")
    assert estimate.seconds == pytest.approx(1000 * 0.1 + 4 * 7.0)
    assert (estimate.steps, estimate.step_seconds) == (1000, pytest.approx(0.1))
    assert "CPU core" in estimate.device
    made.training.measure(TrainingState(step=600))
    assert made.events("TimeEstimated")[1].seconds == pytest.approx(400 * 0.1 + 2 * 7.0)


def test_the_time_left_has_the_validations_to_come(tmp_path):
    machine = Machine(step=0.1, validation=7.0)
    made, _, _ = run(tmp_path / "checkpoints", settings(100, every=40, store=1000, log_every=10), machine)
    left = {event.step: event.seconds_left for event in made.events("TrainingProgress")}
    assert left[10] == pytest.approx(90 * 0.1 + 3 * 7.0)
    assert left[40] == pytest.approx(60 * 0.1 + 3 * 7.0)  # that of this step is still to come
    assert left[50] == pytest.approx(50 * 0.1 + 2 * 7.0)
    assert left[100] == pytest.approx(7.0)
    speeds = {round(event.tokens_per_second, 6) for event in made.events("TrainingProgress")}
    assert speeds == {30.0}  # a validation does not count as slow steps


def slower(now):
    return 1.0 if now < 60 else 0.5


def faster(now):
    return 1.0 if now < 60 else 2.0


def noisy(now):
    return 0.6 + 0.8 * ((now * 7.3) % 1.0)


@pytest.mark.parametrize("speed", [lambda now: 1.0, slower, faster, noisy], ids=["steady", "slower", "faster", "noisy"])
@pytest.mark.parametrize("shape", ["linear", "cosine", "inverse_sqrt", "constant"])
def test_the_limit_is_kept_and_the_learning_rate_reaches_its_end(tmp_path, shape, speed):
    machine = Machine(step=0.4, validation=1.0, speed=speed)
    config = limited(120.0, steps=1250, every=125, shape=shape, warmup=125)
    made, state, seconds = run(tmp_path / "checkpoints", config, machine)
    assert 0.93 * 120 <= seconds <= 120 + 3.6
    assert state.seconds == pytest.approx(seconds)
    assert made.events("TrainingEnded")[0].reason == TIME_IS_UP
    assert state.plan.position == state.plan.steps
    assert stop_reason(state, config) == TIME_IS_UP
    rates = [rate for _, rate in machine.rates]
    assert len(rates) == state.step == made.events("TrainingEnded")[0].steps
    if shape in ("linear", "cosine"):
        assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    jumps = [abs(one - other) for one, other in itertools.pairwise(rates)]
    assert max(jumps) <= 0.05 * 4 / 28  # the warm-up of 28 steps is the steepest part, and may get steeper
    assert made.events("Validated")[-1].step == state.step
    assert 8 <= len(made.events("Validated")) <= 12
    assert CheckpointManager(tmp_path / "checkpoints", keep=1).load().step == state.step


def test_a_slower_machine_makes_fewer_steps_and_a_faster_one_more(tmp_path):
    done = {}
    for name, speed in (("steady", lambda now: 1.0), ("slower", slower), ("faster", faster)):
        made, state, _ = run(tmp_path / name, limited(120.0, steps=1250, every=125),
                             Machine(step=0.4, speed=speed))
        totals = [event.steps for event in made.events("TrainingProgress")]
        done[name] = state.step
        assert state.plan.steps == pytest.approx(272, abs=5)  # of the schedule: as fitted at first
        assert len(set(totals)) < 20  # it does not change at every line
    assert done["slower"] == pytest.approx(0.75 * done["steady"], rel=0.05)
    assert done["faster"] == pytest.approx(1.5 * done["steady"], rel=0.05)


def test_enough_time_changes_nothing(tmp_path):
    """The same steps at the same rates, bit for bit, with the validations of the settings."""
    plain = Made(tmp_path / "plain", config=limited(None, steps=60, every=20, warmup=7))
    plain.training.run(TrainingState())
    machine = Machine(step=0.1, validation=1.0)
    made, state, _ = run(tmp_path / "limited", limited(60.0, steps=60, every=20, warmup=7), machine)
    assert torch.equal(numbers(made.training.engine), numbers(plain.training.engine))
    assert [event.step for event in made.events("Validated")] == [20, 40, 60]
    assert made.events("TrainingEnded")[0].reason == ALL_STEPS_DONE
    assert state.step == 60


def test_never_more_steps_than_the_settings_have(tmp_path):
    machine = Machine(step=0.1, validation=0.1, speed=lambda now: 1.0 if now < 10 else 100.0)
    made, state, seconds = run(tmp_path / "limited", limited(30.0, steps=400, every=50), machine)
    assert state.step == 400
    assert made.events("TrainingEnded")[0].reason == ALL_STEPS_DONE
    assert machine.rates[-1][1] == pytest.approx(0.0, abs=1e-12)
    assert seconds < 30


@pytest.mark.parametrize("limit", [0.05, 1.0, 2.0])
def test_too_little_time_is_one_step_and_one_validation(tmp_path, limit):
    made, state, _ = run(tmp_path / "limited", limited(limit, steps=100, every=10), Machine(step=1.0, validation=5.0))
    assert state.step == 1
    assert [event.step for event in made.events("Validated")] == [1]
    assert made.kept[0][0] == 1
    assert made.events("TimeEstimated")[0].seconds == pytest.approx(6.0)


def test_a_machine_that_stops_for_a_while_ends_in_time(tmp_path):
    """One step takes a minute: the next one is the last."""
    machine = Machine(step=0.4, validation=1.0, speed=lambda now: 0.4 / 100 if 20 < now < 21 else 1.0)
    made, state, seconds = run(tmp_path / "limited", limited(60.0, steps=1250, every=125), machine)
    assert seconds < 60 + 100
    assert made.order[-3:] == [("Validated", state.step), ("CheckpointSaved", state.step),
                               ("TrainingEnded", state.step)]
    assert stop_reason(state, made.training.settings) == TIME_IS_UP


def test_a_measurement_that_was_far_too_slow_is_corrected_at_once(tmp_path):
    """Another program kept the machine busy while it was measured: only a few steps seemed to fit."""
    machine = Machine(step=0.2, validation=0.1, speed=lambda now: 0.04 if now < 8 else 1.0)
    made, state, seconds = run(tmp_path / "limited", limited(20.0, steps=1250, every=125), machine)
    assert made.events("TimeEstimated")[0].steps <= 4
    assert state.step > 20
    assert 15 < seconds <= 20
    assert machine.rates[-1][1] == pytest.approx(0.0, abs=1e-12)


def test_validations_take_a_tenth_of_the_time_at_most(tmp_path):
    made, _, seconds = run(tmp_path / "limited", limited(200.0, steps=1250, every=25),
                           Machine(step=0.4, validation=4.0))
    assert len(made.events("Validated")) in (4, 5)
    assert seconds <= 206


def test_patience_ends_it_before_the_time(tmp_path):
    config = limited(100.0, steps=1250, every=125)
    config = replace(config, validation=replace(config.validation, patience=2))
    made, state, _ = run(tmp_path / "limited", config, Machine(step=0.4), Line(scores=[1.0, *[2.0] * 9]))
    assert made.events("TrainingEnded")[0].reason == PATIENCE_ENDED
    assert (state.waited, made.events("TrainingEnded")[0].waited) == (2, 2)
    assert len(made.events("Validated")) == 7  # of ten; the first five do not count
    assert state.step < 0.8 * state.plan.total


def test_resumed_with_the_plan_of_the_checkpoint(tmp_path):
    """The position in the schedule, the time that is used up, and the total are those of the stored state."""
    config = limited(60.0, steps=1250, every=125, warmup=15)

    def stopping(event):
        if getattr(event, "step", 0) > 50:
            raise ConnectionError

    machine = Machine(step=0.4)
    made = machine.runs(Made(tmp_path / "parts", Line(), replace(config, checkpoints=replace(config.checkpoints,
                                                                                           every=10))))
    state = made.training.measure(TrainingState())
    made.training.report = stopping
    with pytest.raises(ConnectionError):
        made.training.run(state)
    last = [rate for step, rate in machine.rates if step == 50][-1]
    loaded = CheckpointManager(tmp_path / "parts", keep=2).load()
    stored = stored_training_state(loaded.snapshot)
    assert stored.step == 50
    assert 20 < stored.seconds < 25
    assert learning_rate(stored, config) == last
    second = Machine(step=0.2)  # another machine, twice as fast
    made = second.runs(Made(tmp_path / "parts", Line(), config))
    made.training.resume(loaded.snapshot)
    state = made.training.measure(stored)
    assert state.plan.steps == stored.plan.steps
    second.rates.clear()
    end = made.training.run(state)
    assert second.rates[0][0] == 51
    assert abs(second.rates[0][1] - last) < 0.05 / 15
    assert 57 <= end.seconds <= 63
    assert second.rates[-1][1] == pytest.approx(0.0, abs=1e-12)
    assert end.step > 1.3 * stored.plan.total


def test_a_state_without_a_plan_is_stored_as_before():
    """Earlier versions read it; and theirs is read."""
    assert set(TrainingState().table()) == {"step", "best", "best_step", "best_scores", "waited", "tokens", "seconds"}
    planned = TrainingState(plan=FittedPlan(10, 12, 5, 2.5))
    assert planned.table()["plan"] == {"steps": 10, "total": 12, "validation_every": 5, "position": 2.5}


def test_the_warm_up_fits_the_steps():
    schedule = ScheduleConfig(shape="linear", learning_rate=1.0, max_steps=10_000, warmup_steps=500)
    for steps, warmup in ((10_000, 500), (9000, 500), (2000, 200), (100, 10), (1, 1)):
        fitted = fit_schedule(schedule, FittedPlan(steps, steps, 1))
        assert (fitted.max_steps, fitted.warmup_steps) == (steps, warmup)
    half = ScheduleConfig(shape="linear", learning_rate=1.0, max_steps=1000, warmup_steps=500)
    assert fit_schedule(half, FittedPlan(100, 100, 1)).warmup_steps == 50


@given(st.floats(0.001, 100), st.floats(0, 100), st.floats(0.1, 1e5), st.integers(1, 10**5), st.integers(1, 10**4),
       st.floats(0, 1), st.floats(0, 2))
def test_plans_of_any_pace(step, validation, limit, steps, every, done, used):
    config, pace = limited(limit, steps=steps, every=every), Pace()
    pace.add_steps(1, step)
    pace.validation_seconds = validation
    plan = fit_plan(config, pace)
    assert 1 <= plan.steps == plan.total <= steps
    assert plan.total == 1 or pace.seconds(plan.total, plan.validations_left - 1) <= limit * 1.001
    at = int(done * (plan.total - 1))
    plan = replace(plan, position=float(at))
    again = refit_plan(plan, config, pace, at, used * limit)
    assert at < again.total <= max(steps, plan.total)
    assert again.validation_every <= plan.validation_every
    assert replace(again, total=plan.total, validation_every=plan.validation_every) == plan
    while at < min(again.total, 10**3):
        at += 1
        after = again.advanced(at)
        assert again.position <= after.position <= plan.steps
        again = after


def test_the_pace_forgets_what_is_long_ago():
    pace = Pace(window=10.0)
    assert pace.step_seconds == 0
    pace.add_steps(10, 100.0)
    assert pace.step_seconds == 10
    pace.add_steps(0, 5.0)
    for _ in range(11):
        pace.add_steps(10, 1.0)
    assert pace.step_seconds == pytest.approx(0.1)


def test_few_steps_are_warned_of_with_a_batch_size_that_gives_more():
    config, pace = limited(100.0), Pace()
    pace.add_steps(1, 1.0)
    plan = fit_plan(config, pace)
    size = config.batches.max_tokens * plan.steps // FEW_STEPS
    assert plan.steps < 100 < size
    assert f"training.batches.max_tokens={size}" in few_steps_warning(config, plan)
    assert few_steps_warning(limited(100.0, steps=plan.steps), plan) is None  # the user asked for no more
    pace.add_steps(10**6, 1.0)
    assert few_steps_warning(config, fit_plan(config, pace)) is None


def test_there_are_some_validations_if_the_first_estimate_is_slow():
    config, pace = limited(600.0, steps=10_000, every=625), Pace()
    pace.add_steps(100, 10.0)
    pace.validation_seconds = 40.0  # 10 % of the limit would allow for one
    plan = fit_plan(config, pace)
    assert math.ceil(plan.steps / plan.validation_every) == 4
    pace.validation_seconds = 400.0  # more than one would leave nothing for steps
    assert math.ceil(fit_plan(config, pace).steps / fit_plan(config, pace).validation_every) == 1


def test_a_wrong_estimate_of_a_validation_leaves_time_for_most_steps(tmp_path):
    """It was made while the machine was busy, say: a whole validation takes a second, as the first one shows."""
    machine = Machine(step=0.1, validation=1.0)
    made = machine.runs(Made(tmp_path / "checkpoints", Line(), limited(100.0, steps=2000)))
    part = made.training.training_task.try_validation
    made.training.training_task.try_validation = lambda *given: (machine.work(300.0), part(*given))[1]
    state = made.training.measure(TrainingState())
    assert made.events("TimeEstimated")[0].seconds > 300
    start = machine.now
    assert made.training.run(state).step > 700
    assert machine.now - start <= 100


def test_a_validation_is_estimated_from_its_parts():
    assert extrapolate([(0.1, 2.0)]) == 20.0
    assert extrapolate([(0.1, 2.0), (0.4, 2.3)]) == pytest.approx(2.9)
    assert extrapolate([(0.1, 2.0), (0.4, 1.0)]) == 1.0
    assert extrapolate([(1.0, 3.0)]) == 3.0
    assert extrapolate([(0.5, 1.0), (0.5, 2.0)]) == 4.0
    assert extrapolate([(0.0, 0.0)]) == 0.0


def test_faster_validations_become_more_frequent():
    config, pace = limited(600.0, steps=10_000, every=625), Pace()
    pace.add_steps(100, 10.0)
    pace.validation_seconds = 40.0
    plan = fit_plan(config, pace)
    plan = replace(plan, position=plan.steps / 4)
    pace.validation_seconds = 3.0
    again = refit_plan(plan, config, pace, plan.steps // 4, 160.0)
    planned = math.ceil(again.steps / again.validation_every)
    assert 4 < planned <= 16
    assert planned * 3.0 <= 60.0
    assert again.position == plan.position
    pace.validation_seconds = 0.001
    assert math.ceil(again.steps / refit_plan(again, config, pace, 1000, 160.0).validation_every) == 16
