"""The state of an engine: all of it comes back, and the state of another training changes nothing."""

import os

import pytest
import tiny
import torch
from learning import Squares, model, numbers, points, settings
from together import Translating, batch
from torch import nn

from regard.training.checkpoints import CheckpointManager
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.snapshot import Snapshot, StoredState, TensorShard, restore_snapshot, take_snapshot, write_shards

SOME = [([3, 4, 5], [6, 7]), ([5, 6], [4])]


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def engine(config=None, network=None, objective=Squares):
    return TrainingEngine(objective(network or model(0.3)), config or settings(ema_decay=0.9), DistributedContext.alone())


def stored(folder, made, values=None):
    """What comes back from the disk."""
    place = CheckpointManager(folder, keep=9)
    place.save(1, take_snapshot(made, values or {}))
    return place.load().snapshot


def learn(made, steps):
    for step in steps:
        made.step(step, [points(range(step, step + 3))], 0.05)


def test_an_engine_goes_on_as_if_nothing_had_been(tmp_path):
    one, other = engine(), engine()
    learn(one, range(1, 5))
    learn(other, range(1, 3))  # what is there is written over
    restore_snapshot(other, stored(tmp_path / "checkpoints", one, {"step": 4}))
    assert torch.equal(numbers(other), numbers(one))
    assert torch.equal(other.sums, one.sums)
    assert other.ema.steps == 4
    for made in (one, other):
        learn(made, range(5, 9))
    assert torch.equal(numbers(other), numbers(one))
    assert one.read() == other.read()


def test_before_the_first_step(tmp_path):
    one, other = engine(), engine(network=nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1)))
    restore_snapshot(other, stored(tmp_path / "checkpoints", one))
    for made in (one, other):
        learn(made, range(1, 4))
    assert torch.equal(numbers(other), numbers(one))


@pytest.mark.parametrize("name", ["post-norm", "seq2seq-attention"])
def test_weights_with_two_names_are_stored_once(tmp_path, name):
    """Tied tables; and models in float64 keep all their digits."""
    one, other = (engine(network=tiny.built(tiny.TRANSLATING[name]), objective=Translating) for _ in range(2))
    one.step(1, [batch(SOME)], 0.05)
    found = stored(tmp_path / "checkpoints", one)
    assert found.under("model").keys() == one.named_parameters.keys()
    restore_snapshot(other, found)
    for made in (one, other):
        made.step(2, [batch(SOME)], 0.05)
    assert torch.equal(numbers(other), numbers(one))


class Carrying(Squares):
    """Keeps something from step to step."""

    def __init__(self, network):
        super().__init__(network)
        self.kept = {}

    def carried(self):
        return self.kept

    def resume(self, carried):
        self.kept = dict(carried)


def test_what_the_objective_carries_comes_back(tmp_path):
    one, other = (engine(objective=Carrying) for _ in range(2))
    one.objective.kept = {"layer.0": torch.arange(6.0).view(2, 3), "layer.1": torch.zeros(0)}
    restore_snapshot(other, stored(tmp_path / "checkpoints", one))
    assert other.objective.kept.keys() == one.objective.kept.keys()
    assert torch.equal(other.objective.kept["layer.0"], torch.arange(6.0).view(2, 3))
    one.objective.kept = {}
    restore_snapshot(other, stored(tmp_path / "again", one))
    assert other.objective.kept == {}


def without(prefix):
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}


@pytest.mark.parametrize(("change", "message"), [
    (without("optimiser.first.0.bias"), r"missing: 'optimiser\.first\.0\.bias'"),
    (without("optimiser."), "missing: 'optimiser"),
    (without("average."), "missing: 'average"),
    (without("model.3"), r"missing: 'model\.3\.weight'"),
    (without("engine."), r"missing: 'engine\.sums'"),
    (lambda tensors: {**tensors, "model.4.weight": torch.ones(2)}, r"unexpected: 'model\.4\.weight'"),
    (lambda tensors: {**tensors, "optimiser.second.0.weight": torch.ones(6, 5)},
     r"different: 'optimiser\.second\.0\.weight' must be .*\(6, 4\), but is .*\(6, 5\)"),
    (lambda tensors: {**tensors, "average.3.bias": torch.ones(2)}, r"different: 'average\.3\.bias'"),
])
def test_the_state_of_another_training_changes_nothing(tmp_path, change, message):
    made = engine()
    learn(made, range(1, 3))
    place = CheckpointManager(tmp_path / "checkpoints", keep=1)
    place.save(1, Snapshot(change(dict(take_snapshot(made, {}).tensors)), {}))
    learn(made, [3])
    before, sums = numbers(made), made.sums.clone()
    with pytest.raises(ValueError, match=message):
        restore_snapshot(made, place.load().snapshot)
    assert torch.equal(numbers(made), before)
    assert torch.equal(made.sums, sums)
    assert made.ema.steps == 3


def test_a_mean_that_nobody_asks_for_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"unexpected: 'average\."):
        restore_snapshot(engine(settings()), stored(tmp_path / "checkpoints", engine()))


class Some(DistributedContext):
    """One of several processes, of which all carry five rows."""

    def sum(self, number):
        return 5


class Rows(Squares):
    """Carries the rows that it is given."""

    kept = torch.zeros(0, 2)

    def carried(self):
        return {"rows": self.kept}

    def resume(self, carried):
        self.kept = carried["rows"]


def test_what_several_processes_carry_goes_on_with_any_number_of_them(tmp_path):
    rows = torch.arange(10.0).reshape(5, 2)
    parts = []
    for rank, own in enumerate((rows[:2], rows[2:])):
        made = engine(objective=Rows)
        made.objective.kept, made.processes = own, Some(rank, 2, 0)
        taken = take_snapshot(made, {})
        write_shards(tmp_path / f"{rank}.safetensors", {name: tensor for name, tensor in taken.tensors.items()
                                                 if rank == 0 or isinstance(tensor, TensorShard)})
        parts.append(tmp_path / f"{rank}.safetensors")
    found = StoredState.of(parts, {})
    for count, shares in ((1, [rows]), (2, [rows[:2], rows[2:]]), (3, [rows[:1], rows[1:3], rows[3:]])):
        for rank, share in enumerate(shares):
            made = engine(objective=Rows)
            made.processes = Some(rank, count, 0)
            restore_snapshot(made, found)
            assert torch.equal(made.objective.kept, share)
