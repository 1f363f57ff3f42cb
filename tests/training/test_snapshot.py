"""Snapshots, and the state of optimisers: what is resumed goes on as if never interrupted, and nothing else fits."""

import pytest
import torch
from refusals import assert_named
from torch import nn

from regard.training.snapshot import Snapshot, TensorShard, optimizer_state, optimizer_templates, restore_optimizer

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
