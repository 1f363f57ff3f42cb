"""The state of a training: snapshots of an engine, the optimizer, and shards in files."""

import json
import os
import pickle

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import Squares, model, numbers, points, settings
from refusals import assert_named
from together import Translating, batch
from torch import nn

from regard.storage import weights
from regard.training.checkpoints import CheckpointManager
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.snapshot import (
    SHARDS_KEY,
    Snapshot,
    StoredState,
    TensorShard,
    chunk_bounds,
    local_shard,
    optimizer_state,
    optimizer_templates,
    restore_optimizer,
    restore_snapshot,
    take_snapshot,
    write_shards,
)

KINDS = {"adam": (torch.optim.Adam, {}), "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
         "fused": (torch.optim.AdamW, {"fused": True}), "foreach": (torch.optim.Adam, {"foreach": True}),
         "single": (torch.optim.AdamW, {"foreach": False})}


def made(kind="fused", seed=1, dtype=torch.float32):
    """A model and its optimiser, in two groups."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to(dtype)
    build, options = KINDS[kind]
    weights, biases = ([one for name, one in model.named_parameters() if end in name] for end in ("weight", "bias"))
    return model, build([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.1, **options)


def steps(model, optimiser, count):
    for _ in range(count):
        model(torch.randn(4, 3, dtype=next(model.parameters()).dtype)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()


def named(model):
    return dict(model.named_parameters())


def copied(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_names_are_joined():
    part = TensorShard(torch.ones(1), (2,), (0,))
    snapshot = Snapshot.of({"model": {"a.b": torch.ones(2)}, "carried": {"state": part}}, {"step": 3})
    assert list(snapshot.tensors) == ["model.a.b", "carried.state"]
    assert snapshot.tensors["carried.state"] is part
    assert snapshot.values == {"step": 3}
    assert_named(lambda: Snapshot.of({"a.b": {}}, {}), ["`parts`", "without a dot", "'a.b'"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_a_resumed_optimiser_goes_on_bit_for_bit(kind, dtype, default):
    torch.set_default_dtype(default)
    model, optimiser = made(kind, dtype=dtype)
    steps(model, optimiser, 3)
    state, weights = copied(optimizer_state(optimiser, named(model))), copied(model.state_dict())
    other, resumed = made(kind, seed=2, dtype=dtype)
    other.load_state_dict(weights)
    restore_optimizer(resumed, named(other), state)
    for one, same in zip(model.parameters(), other.parameters(), strict=True):  # as torch would have made it
        for key, value in optimiser.state[one].items():
            assert resumed.state[same][key].dtype == value.dtype
            assert torch.equal(resumed.state[same][key], value)
    for pair in ((model, optimiser), (other, resumed)):
        torch.manual_seed(9)
        steps(*pair, 4)
    assert all(torch.equal(one, same) for one, same in zip(model.parameters(), other.parameters(), strict=True))


def test_names_of_the_state():
    model, optimiser = made()
    state = optimizer_state(optimiser, named(model))
    assert set(state) == {f"{kind}.{name}" for kind in ("first", "second", "step") for name in named(model)}
    assert set(optimizer_templates(optimiser, named(model))) == {name for name in state if not name.startswith("step")}
    assert optimizer_templates(optimiser, named(model))["first.0.weight"].shape == (5, 3)


def test_the_state_is_that_of_the_named_parameter():
    """Another order of parameters, which torch would take for one of other parameters."""
    model, optimiser = made()
    steps(model, optimiser, 2)
    other, turned = made(seed=2)
    turned.param_groups[0]["params"].reverse()
    restore_optimizer(turned, named(other), optimizer_state(optimiser, named(model)))
    assert torch.equal(turned.state[other[0].weight]["exp_avg"], optimiser.state[model[0].weight]["exp_avg"])


@pytest.mark.parametrize("kind", ["fused", "adam"])
def test_parameters_without_gradients_have_the_state_of_a_first_step(kind):
    model, optimiser = made(kind)
    model[1].weight.requires_grad_(False)
    steps(model, optimiser, 2)
    state = copied(optimizer_state(optimiser, named(model)))
    assert not state["first.1.weight"].any()
    assert (state["step.1.weight"], state["step.0.weight"]) == (0, 2)
    assert model[1].weight not in optimiser.state
    other, resumed = made(kind, seed=2)
    other.load_state_dict(model.state_dict())
    restore_optimizer(resumed, named(other), state)
    model[1].weight.requires_grad_(True)
    for pair in ((model, optimiser), (other, resumed)):
        torch.manual_seed(9)
        steps(*pair, 3)
    assert torch.equal(model[1].weight, other[1].weight)


def test_a_state_that_is_there_is_written_in_its_place():
    model, optimiser = made()
    steps(model, optimiser, 2)
    state = copied(optimizer_state(optimiser, named(model)))
    before = {name: tensor.data_ptr() for name, tensor in optimizer_state(optimiser, named(model)).items()}
    steps(model, optimiser, 1)
    restore_optimizer(optimiser, named(model), state)
    after = optimizer_state(optimiser, named(model))
    assert {name: tensor.data_ptr() for name, tensor in after.items()} == before
    assert all(torch.equal(after[name], state[name]) for name in state)


@pytest.mark.parametrize(("options", "device"), [({"capturable": True}, "meta"), ({}, "cpu")])
def test_the_count_of_steps_is_where_the_kernels_read_it(options, device):
    """The device that is not there stands for one that is not the CPU."""
    parameter = nn.Parameter(torch.ones(2, device="meta"))
    state = optimizer_state(torch.optim.AdamW([parameter], **options), {"a": parameter})
    assert state["step.a"].device.type == device
    assert state["first.a"].device.type == "meta"


def changed(state, **new):
    """The state with other tensors; None removes one."""
    names = {"moment": "first.0.weight", "step": "step.1.bias", "more": "second.2.weight"}
    result = {**state, **{names[key]: tensor for key, tensor in new.items()}}
    return {name: tensor for name, tensor in result.items() if tensor is not None}


@pytest.mark.parametrize(("new", "parts"), [
    ({"moment": None}, ["AdamW", "missing: 'first.0.weight'"]),
    ({"step": None}, ["missing: 'step.1.bias'"]),
    ({"more": torch.ones(2)}, ["unexpected: 'second.2.weight'"]),
    ({"moment": torch.ones(3, 5)}, ["'first.0.weight'", "(5, 3)", "(3, 5)"]),
    ({"moment": torch.ones(1, 1)}, ["'first.0.weight'", "(5, 3)", "(1, 1)"]),  # which would be copied to all
    ({"step": torch.ones(1)}, ["'step.1.bias'", "()", "(1,)"]),
    ({"moment": torch.ones(5, 3, dtype=torch.float64)}, ["first.0.weight", "torch.float32", "torch.float64"]),
    ({"moment": torch.ones(5, 3, dtype=torch.int64)}, ["'first.0.weight'", "torch.int64"]),
    ({"step": torch.ones((), dtype=torch.int64)}, ["'step.1.bias'", "torch.int64"]),
])
@pytest.mark.parametrize("began", [False, True])
def test_a_state_that_does_not_fit_changes_nothing(new, parts, began):
    model, optimiser = made()
    steps(model, optimiser, 2)
    state = copied(optimizer_state(optimiser, named(model)))
    other, resumed = made(seed=2)
    steps(other, resumed, 1 if began else 0)
    before = copied(optimizer_state(resumed, named(other)))
    assert_named(lambda: restore_optimizer(resumed, named(other), changed(state, **new)), parts)
    after = optimizer_state(resumed, named(other))
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert bool(resumed.state) == began


def test_what_is_shared_otherwise_is_refused():
    class Parted(torch.Tensor):
        placements = ("Shard(0)",)

    model, optimiser = made()
    state = copied(optimizer_state(optimiser, named(model)))
    state["first.0.weight"] = state["first.0.weight"].as_subclass(Parted)
    assert_named(lambda: restore_optimizer(optimiser, named(model), state), ["first.0.weight", "Shard(0)"])


def test_other_optimisers_are_refused():
    model, optimiser = made()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert_named(lambda: optimizer_state(sgd, named(model)), ["`optimizer`", "Adam", "a SGD"])
    largest = torch.optim.AdamW(model.parameters(), amsgrad=True)
    assert_named(lambda: optimizer_state(largest, named(model)), ["amsgrad"])
    few = {"0.weight": model[0].weight}
    assert_named(lambda: optimizer_state(optimiser, few), ["`parameters`", "without one of shape"])
    assert_named(lambda: restore_optimizer(optimiser, few, {}), ["`parameters`", "without one of shape"])


SOME = [([3, 4, 5], [6, 7]), ([5, 6], [4])]


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def engine(config=None, network=None, objective=Squares):
    return TrainingEngine(objective(network or model(0.3)), config or settings(ema_decay=0.9),
                          DistributedContext.alone())


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


def parts_of(tensor, processes, dimension=0):
    """What each of so many processes would hold."""
    cut = [chunk_bounds(tuple(tensor.shape), dimension, rank, processes) for rank in range(processes)]
    return [TensorShard(tensor[tuple(slice(first, first + size) for first, size in zip(offsets, extent, strict=True))],
                 tuple(tensor.shape), offsets) for offsets, extent in cut]


def stored_in_shards(folder, *files):
    """Each of these in a file of its own."""
    paths = [folder / f"{number}.safetensors" for number in range(len(files))]
    for path, tensors in zip(paths, files, strict=True):
        write_shards(path, tensors)
    return StoredState.of(paths, {"step": 1})


@given(st.integers(0, 20), st.integers(1, 9), st.integers(0, 2))
def test_chunks_are_those_of_torch(size, processes, dimension):
    """As `Shard` cuts: torch.chunk, and empty parts for those for whom nothing is left."""
    shape = [2, 3, 4]
    shape[dimension] = size
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    chunks = tensor.chunk(processes, dimension) if size else []
    for rank, part in enumerate(parts_of(tensor, processes, dimension)):
        if rank < len(chunks):
            assert torch.equal(part.tensor, chunks[rank])
        else:
            assert part.tensor.shape[dimension] == 0


@pytest.mark.parametrize("dtype", list(weights.DTYPES.values()), ids=str)
def test_every_dtype_comes_back(tmp_path, dtype):
    tensor = torch.randint(0, 2, (5, 3)).to(dtype)
    files = [{"a": part} for part in parts_of(tensor, 2)]
    files[0]["b"] = tensor[0, 1]
    found = stored_in_shards(tmp_path, *files)
    assert found.tensors == {"a": (dtype, (5, 3)), "b": (dtype, ())}
    for name, want in (("a", tensor), ("b", tensor[0, 1])):
        assert found.tensor(name).dtype == dtype
        assert torch.equal(found.tensor(name).to(torch.complex64), want.to(torch.complex64))


@given(data=st.data())
def test_any_piece_of_any_parts(tmp_path_factory, data):
    """However a tensor was cut, a piece of it is the piece of the whole."""
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    dimension = data.draw(st.integers(0, len(shape) - 1))
    cut = parts_of(tensor, data.draw(st.integers(1, 4)), dimension)
    found = stored_in_shards(tmp_path_factory.mktemp("pieces"), *({"a": part} for part in cut))
    spans = [sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2))) for size in shape]
    piece = found.part("a", [start for start, _ in spans], [end - start for start, end in spans])
    assert torch.equal(piece, tensor[tuple(slice(*span) for span in spans)])
    assert torch.equal(found.tensor("a"), tensor)


def test_whole_tensors_tied_ones_and_values(tmp_path):
    tied, scalar = torch.randn(4, 3), torch.tensor(7)
    found = stored_in_shards(tmp_path, {"model.a": tied, "model.b": tied, "average.a": tied + 1, "steps": scalar,
                              "models": torch.ones(1)})
    assert set(found.under("model")) == {"a", "b"}
    assert torch.equal(found.under("model")["b"], tied)
    assert torch.equal(found.under("average")["a"], tied + 1)
    assert found.under("optimiser") == {}
    assert found.tensor("steps") == 7
    assert found.values == {"step": 1}
    assert (tmp_path / "0.safetensors").stat().st_size < 3 * 4 * 3 * 4 + 1000  # the tied one is there once


def test_what_is_read_is_no_view_of_the_file(tmp_path):
    found = stored_in_shards(tmp_path, {"a": torch.ones(3)})
    tensor, path = found.tensor("a"), tmp_path / "0.safetensors"
    with path.open("r+b") as file:
        file.seek(-12, os.SEEK_END)
        file.write(bytes(12))
    assert torch.equal(tensor, torch.ones(3))
    tensor.zero_()


def test_like_another(tmp_path):
    found = stored_in_shards(tmp_path, {"model.a": torch.ones(3, 2), "model.b": torch.ones(2)})
    assert torch.equal(found.like("model.a", torch.zeros(3, 2)), torch.ones(3, 2))
    assert set(found.under("model", like={"a": torch.zeros(3, 2), "c": torch.zeros(1)})) == {"a", "b"}
    assert_named(lambda: found.like("model.a", torch.zeros(2, 3)), ["`model.a`", "(2, 3)", "(3, 2)"])
    assert_named(lambda: found.under("model", like={"b": torch.zeros(3)}), ["`model.b`", "(3,)", "(2,)"])
    assert_named(lambda: found.tensor("modle.a"), ["2 stored tensors", "'modle.a'", 'Did you mean "model.a"?'])
    for offsets, shape in (((1, 0), (3, 2)), ((-1, 0), (1, 2)), ((0,), (3,)), ((0, 0), (3, -1))):
        assert_named(lambda offsets=offsets, shape=shape: found.part("model.a", offsets, shape),
                     ["'model.a'", "(3, 2)", str(shape)])


def test_plain_tensors_are_their_own_part():
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    assert local_shard(tensor) is tensor
    assert local_shard(parameter) is parameter
    assert local_shard(torch.ones(2).as_subclass(type("Other", (torch.Tensor,), {}))).shape == (2,)


@pytest.mark.parametrize(("shape", "offsets"), [((3, 2), (2, 0)), ((3, 2), (0,)), ((3, 2), (-1, 0)), ((2,), (0, 0))])
def test_a_part_must_lie_in_the_whole(shape, offsets):
    assert_named(lambda: TensorShard(torch.ones(2, 2), shape, offsets),
                 ["`tensor`", "a shard of", str(shape), str(offsets)])


whole = torch.arange(12.0).view(4, 3)


@pytest.mark.parametrize("files", [
    [{"a": TensorShard(whole[:2], (4, 3), (0, 0))}],                                                        # the end
    [{"a": TensorShard(whole[2:], (4, 3),
                       (2, 0))}],                                                        # the beginning
    [{"a": TensorShard(whole[:1], (4, 3), (0, 0))}, {"a": TensorShard(whole[2:], (4, 3), (2, 0))}],
                                   # the middle
    [{"a": TensorShard(whole[:3], (4, 3), (0, 0))}, {"a": TensorShard(whole[2:], (4, 3), (2, 0))}],
                                   # a row twice
    [{"a": TensorShard(whole[:2], (4, 3), (0, 0))}, {"a": TensorShard(whole[:2], (4, 3), (0, 0))}],
                                   # the same twice
    [{"a": whole}, {"a": whole}],                                                                    # all of it twice
    [{"a": TensorShard(whole[:2, :1], (4, 3), (0, 0))}, {"a": TensorShard(whole[2:, 1:], (4, 3), (2, 1))}],
                                   # in two directions
])
def test_parts_that_do_not_make_the_whole(tmp_path, files):
    assert_named(lambda: stored_in_shards(tmp_path, *files), ["shards of a ", "shape (4, 3)", "0.safetensors"])


def test_parts_of_other_wholes(tmp_path):
    parts = [TensorShard(whole[:2], (4, 3), (0, 0)), TensorShard(whole[2:], (5, 3), (2, 0)),
             TensorShard(whole[2:].double(), (4, 3), (2, 0))]
    for other in parts[1:]:
        assert_named(lambda other=other: stored_in_shards(tmp_path, {"a": parts[0]}, {"a": other}),
                     ["1.safetensors: a", "part"])


@pytest.mark.parametrize("told", [
    "[]", "{", '{"a": 3}', '{"a": {"shape": [4, 3]}}', '{"a": {"shape": 4, "offsets": 0}}',
    '{"a": {"shape": ["x"], "offsets": [0]}}', '{"a": {"shape": [1], "offsets": [0]}}'])
def test_headers_that_make_no_sense(tmp_path, told):
    weights.write_tensors(tmp_path / "a.safetensors", {"a": whole}, {SHARDS_KEY: told})
    assert_named(lambda: StoredState.of([tmp_path / "a.safetensors"], {}), ["a.safetensors"])


def test_the_header_is_json_and_nothing_is_pickled(tmp_path):
    write_shards(tmp_path / "a.safetensors", {"a": TensorShard(whole[:2], (4, 3), (0, 0)), "b": whole})
    told = weights.read_header(tmp_path / "a.safetensors").metadata
    assert json.loads(told[SHARDS_KEY]) == {"a": {"shape": [4, 3], "offsets": [0, 0]}}
    (tmp_path / "b.safetensors").write_bytes(pickle.dumps({"a": 1}))
    assert_named(lambda: StoredState.of([tmp_path / "b.safetensors"], {}), ["b.safetensors", "a pickle"])


def test_a_file_that_is_gone_is_told(tmp_path):
    found = stored_in_shards(tmp_path, {"a": whole})
    (tmp_path / "0.safetensors").unlink()
    assert_named(lambda: found.tensor("a"), ["0.safetensors", "read before it is removed"])
