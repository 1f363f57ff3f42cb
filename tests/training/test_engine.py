"""Engine: a step is the sum over all tokens divided by their number, and depends on nothing but its number."""

import contextlib
import math

import learning
import numpy as np
import pytest
import together
import torch
from learning import Line, Squares, model, numbers, points, settings

from regard.training.distributed import DistributedContext
from regard.training.engine import LowPrecisionCopy, TrainingEngine
from regard.training.optimizer import OptimizerConfig


def engine(dropout=0.0, config=None, objective=Squares):
    made = TrainingEngine(objective(model(dropout)), config or settings(), DistributedContext.alone())
    made.module.train()
    return made


def weights(made):
    return {name: tensor.detach().clone() for name, tensor in made.named_parameters.items()}


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4, 5]], [[0], [1, 2, 3, 4, 5]], [[0, 1], [2], [], [3, 4, 5]]])
def test_micro_batches_are_one_batch_and_adamw_as_it_is_written(parts):
    """Uneven parts, an empty one among them: the step of Kingma and Ba, and Loshchilov and Hutter, by hand."""
    config = settings(optimizer=OptimizerConfig(beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1))
    made = engine(config=config)
    by_hand = model().double()
    moments = {name: (0.0, 0.0) for name in made.named_parameters}
    for step, rate in ((1, 0.03), (2, 0.02)):
        made.step(step, [points(part) for part in parts], rate)
        whole = points([number for part in parts for number in part])
        errors = (by_hand(whole.given.double()) - whole.wanted).square().sum() / 6
        gradients = torch.autograd.grad(errors, list(by_hand.parameters()))
        for (name, parameter), gradient in zip(by_hand.named_parameters(), gradients, strict=True):
            first, second = moments[name]
            first, second = 0.8 * first + 0.2 * gradient, 0.95 * second + 0.05 * gradient**2
            moments[name] = first, second
            decayed = parameter.detach() * (1 - rate * (0.1 if parameter.dim() > 1 else 0.0))
            change = first / (1 - 0.8**step) / ((second / (1 - 0.95**step)).sqrt() + 1e-6)
            parameter.data = decayed - rate * change
    for name, parameter in by_hand.named_parameters():
        torch.testing.assert_close(made.named_parameters[name].detach().double(), parameter.detach(), rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", ["attention", "seq2seq"])
def test_micro_batches_of_a_translator_are_one_batch(name):
    """Padding of one part is not that of another. Compared are the first moments, a tenth of the gradients: Adam
    makes large steps of gradients that are but rounding."""
    def learned(parts):
        made = TrainingEngine(together.objective(name), settings(), DistributedContext.alone())
        made.step(1, [together.batch(part) for part in parts], 0.1)
        return made, made.read()

    (one, whole), (three, totals) = learned([together.LONG]), learned([together.LONG[:1], together.LONG[1:3],
                                                                     together.LONG[3:]])
    for key in one.named_parameters:
        gradients = [made.optimizer.state[made.named_parameters[key]]["exp_avg"] for made in (one, three)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    assert max(float(state["exp_avg"].abs().max()) for state in one.optimizer.state.values()) > 1e-3
    assert (totals.tokens, totals.steps, totals.bad) == (whole.tokens, 1, None)
    assert totals.tokens == sum(len(target) for _, target in together.LONG)
    assert totals[:2] == pytest.approx(whole[:2], rel=1e-12)
    assert totals.norm == pytest.approx(whole.norm, rel=1e-9)


def test_a_step_without_tokens_changes_nothing():
    made = engine(config=settings(ema_decay=0.9))
    before = numbers(made)
    made.step(1, [points([]), points([])], 0.1)
    assert torch.equal(numbers(made), before)
    assert not made.optimizer.state
    assert made.ema.steps == 0
    assert made.read() == (0.0, 0.0, 0, 0.0, 0, None)


def test_totals_are_sums_over_the_steps_since_the_last_reading():
    made = engine()
    expected = []
    for step in (1, 2):
        batch = points(range(step, step + 3))
        errors = Squares(made.objective.model)(batch).total
        gradient = torch.autograd.grad(errors / 3, made.parameters)
        expected.append((errors.item(), math.sqrt(sum(float(part.square().sum()) for part in gradient))))
        made.step(step, [batch], 0.1)
    totals = made.read()
    assert totals.total == totals.nll == pytest.approx(sum(error for error, _ in expected), rel=1e-6)
    assert totals.norm == pytest.approx(sum(norm for _, norm in expected), rel=1e-5)
    assert (totals.tokens, totals.steps, totals.bad) == (6, 2, None)
    assert made.read().steps == 0


def test_gradients_are_clipped_to_a_length():
    """With Adam a first step hides the length; its moments do not."""
    free, clipped = engine(), engine(config=settings(max_grad_norm=0.01))
    for made in (free, clipped):
        made.step(1, [points(range(6))], 0.1)
    norm = free.read().norm
    assert norm > 0.1
    assert clipped.read().norm == pytest.approx(norm)  # what is told is the length before
    for name in free.named_parameters:
        first = [made.optimizer.state[made.named_parameters[name]]["exp_avg"] for made in (free, clipped)]
        torch.testing.assert_close(first[1], first[0] * (0.01 / norm), rtol=1e-4, atol=1e-9)


def test_dropout_follows_from_seed_number_and_process():
    def learned(step, seed=1, disturbed=False, rank=0):
        torch.manual_seed(17 if disturbed else 1)
        made = TrainingEngine(Squares(model(0.5)), settings(seed=seed), DistributedContext(rank, 1, 0))
        made.module.train()
        if disturbed:
            torch.rand(1000)
        made.step(step, [points(range(6))], 0.1)
        return numbers(made)

    assert torch.equal(learned(7), learned(7, disturbed=True))
    for other in (learned(8), learned(7, seed=2), learned(7, rank=1)):
        assert not torch.equal(learned(7), other)


def test_the_first_step_that_is_not_finite_is_told():
    made = engine()
    made.step(1, [points(range(3))], 0.1)
    assert made.bad_step() is None
    with torch.no_grad():
        made.parameters[0].fill_(math.nan)
    for step in (2, 3):
        made.step(step, [points(range(3))], 0.1)
    assert made.bad_step() == 2
    assert made.read().bad == 2


def test_a_gradient_that_is_not_finite_is_told_though_the_loss_is():
    made = engine()
    with torch.no_grad():
        made.named_parameters["3.weight"].zero_()
    batch = points(range(3))
    batch.wanted.fill_(0.0)
    made.named_parameters["3.weight"].register_hook(lambda gradient: gradient * math.inf)
    made.step(4, [batch], 0.1)
    assert made.bad_step() == 4


def test_what_is_tried_is_forgotten():
    made = engine(0.5, settings(ema_decay=0.9))
    made.step(1, [points(range(6))], 0.1)
    before, sums = numbers(made), made.sums.clone()
    assert sums[4] == 1
    made.read()
    made.try_batch(points(range(12)))
    assert torch.equal(numbers(made), before)
    assert all(parameter.grad is None for parameter in made.parameters)
    assert made.read().tokens == 0
    assert made.bad_step() is None


def test_inside_averaged_the_model_has_the_mean():
    made = engine(config=settings(ema_decay=0.5))
    start = weights(made)
    made.step(1, [points(range(6))], 0.1)
    now = weights(made)
    with made.averaged():
        inside = weights(made)
    kept = 2 / 11  # the decay of a first step, below the one that is set
    for name in start:
        torch.testing.assert_close(inside[name], kept * start[name] + (1 - kept) * now[name])
        assert torch.equal(made.named_parameters[name], now[name])


def test_the_mean_loss_of_batches():
    made = engine()
    made.module.eval()
    batches = [points([0, 1, 2]), points([]), points([3])]
    whole = float(Squares(made.objective.model)(points([0, 1, 2, 3])).nll)
    assert made.mean_loss(batches) == pytest.approx(whole / 4, rel=1e-6)
    assert made.mean_loss([]) == 0.0
    assert all(parameter.grad is None for parameter in made.parameters)


def test_bfloat16_where_it_is_set():
    seen = []

    class Watched(Squares):
        def forward(self, batch):
            seen.append(self.model(batch.given).dtype)
            return super().forward(batch)

    for precision in ("float32", "bfloat16"):
        made = engine(config=settings(precision=precision), objective=Watched)
        made.step(1, [points(range(3))], 0.1)
        assert all(parameter.dtype == torch.float32 for parameter in made.parameters)
    assert seen == [torch.float32, torch.bfloat16]


def test_memory_is_some_bytes():
    assert 2**24 < engine().memory() < 2**40


class Stream:
    """A stream that tells for whom it waits."""

    def __init__(self, name, told):
        self.name, self.told = name, told

    def wait_stream(self, other):
        self.told.append(f"{self.name} waits for {other.name}")


def test_what_comes_after_a_step_waits_for_it(monkeypatch):
    """On a GPU a step is in a stream of its own, and validation and checkpoints read parameters in another."""
    told, made = [], engine()
    made._stream, common = Stream("own", told), Stream("common", told)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: common)
    monkeypatch.setattr(torch.cuda, "stream",
                        lambda stream: contextlib.nullcontext(told.append(f"{stream.name} works")))
    made.step(1, [points([0, 1])], 0.1)
    assert told == ["own waits for common", "own works", "common waits for own"]


def test_a_recorded_change_is_not_used_for_parameters_that_have_their_first_gradient():
    """On a GPU gradients stay, as zeros, from the first one on; a graph changes what had one when it was recorded."""
    recorded, made = [], engine()
    made._captured = lambda work: recorded.append(work) or work
    late = made.parameters[-1].requires_grad_(False)
    before = late.detach().clone()
    for step in (1, 2, 3, 4):
        late.requires_grad_(step > 2)
        made.step(step, [points([0, 1])], 0.1)
        assert len(recorded) == (1 if step <= 2 else 2)
    assert not torch.equal(late, before)


@pytest.mark.gpu
def test_on_a_gpu_steps_are_replayed_and_equal_those_on_the_cpu():
    """Shapes that come back are replayed as graphs, with new numbers, rates and steps."""
    config = settings(ema_decay=0.9, max_grad_norm=0.5)
    made = [TrainingEngine(Squares(model().to(device)), config,
                           DistributedContext.alone()) for device in ("cpu", "cuda")]
    for step in range(1, 9):
        parts = [points(range(step, step + 3)), points(range(2 * (step % 2), 5))]
        for one in made:
            one.step(step, parts, 0.1 / step)
    totals = [one.read() for one in made]
    assert totals[1] == pytest.approx(totals[0], rel=1e-4)
    torch.testing.assert_close(numbers(made[1]).cpu(), numbers(made[0]), rtol=1e-3, atol=1e-4)
    assert made[1]._first_backward.graphs


def test_points_are_told_apart():
    """The helper of these tests: batches differ, and the work of a line is one."""
    assert not np.array_equal(points([0]).given, points([1]).given)
    assert learning.Line().feed(0, 1).at(4).numbers.tolist() == [0, 1, 2]
    assert Line().validate(model()).scores["loss"] > 0


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4, 5]], [[0], [1, 2, 3, 4, 5]], [[0, 1], [2], [], [3, 4, 5]]])
def test_with_a_copy_of_the_parameters_steps_are_the_same(parts):
    """The copy has all digits here. The gradients of a step begin anew, and those of its batches add up."""
    plain, copied = engine(), engine()
    copied._low = LowPrecisionCopy(copied.objective, torch.float32)
    copied._next_backward = copied._add_gradients
    for step in (1, 2, 3):
        for made in (plain, copied):
            made.step(step, [points(part) for part in parts], 0.03)
            made.optimizer.zero_grad(set_to_none=False)  # as on a GPU: gradients stay where they are
    for name, parameter in plain.named_parameters.items():
        torch.testing.assert_close(copied.named_parameters[name], parameter, rtol=0, atol=1e-6)
    one, other = plain.read(), copied.read()
    assert other[:4] == pytest.approx(one[:4], rel=1e-6)


def test_one_batch_twice_counts_twice():
    once, twice = engine(), engine()
    twice._low = LowPrecisionCopy(twice.objective, torch.float32)
    twice._next_backward = twice._add_gradients
    batch = points([0, 1, 2])
    once.step(1, [batch], 0.03)
    twice.step(1, [batch, batch], 0.03)
    assert twice.read().norm == pytest.approx(once.read().norm, rel=1e-6)
