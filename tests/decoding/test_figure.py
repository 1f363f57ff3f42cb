"""Figures of models: all that makes a recording wrong is noticed, and what does not is let pass."""

import copy

import pytest
import torch
from tiny import TRANSLATING, built
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from regard.attention.mask import Window
from regard.decoding.cuda_graph import ModelFingerprint, all_modules, has_hooks, why_not_plain
from regard.tokens import Tokens


def model():
    return built(TRANSLATING["attention"]).eval()


def layer(of):
    """An attention layer."""
    return of.decoder.stack.blocks[0].mixer.layer


def swapped(of):
    of.decoder.stack.blocks[0].feed_forward = copy.deepcopy(of.decoder.stack.blocks[0].feed_forward)


def shared(of):
    """Another module with the very same parameters."""
    old = layer(of).query
    new = nn.Linear(old.in_features, old.out_features).eval()
    new.weight, new.bias = old.weight, old.bias
    layer(of).query = new


def of_another_shape(of):
    weight = layer(of).query.weight
    weight.data = weight.data.t()  # in the same place


def of_fewer_rows(of):
    weight = of.decoder.embedding.tokens.weight
    weight.data = weight.data[:5]


def assigned(of):
    of.load_state_dict({name: part.clone() for name, part in of.state_dict().items()}, assign=True)


def attribute(name, value, of=layer):
    return lambda found: setattr(of(found), name, value)


CHANGES = {
    "another dtype": lambda of: of.bfloat16(),
    "there and back": lambda of: of.bfloat16().double(),
    "loaded by assigning": assigned,
    "another parameter": lambda of: setattr(of.output, "weight", nn.Parameter(of.output.weight.detach().clone())),
    "other data": lambda of: setattr(of.output.weight, "data", of.output.weight.data.clone()),
    "turned": of_another_shape,
    "fewer rows": of_fewer_rows,
    "a module swapped": swapped,
    "a module of the same parameters": shared,
    "a module more": lambda of: of.decoder.add_module("more", nn.Identity()),
    "a module less": lambda of: setattr(layer(of), "output", None),
    "another buffer": lambda of: setattr(layer(of), "like", torch.empty(0)),
    "another mask": attribute("mask", Window(2, 0), lambda of: of.decoder.stack.blocks[0].mixer),
    "another dropout": attribute("dropout", 0.25),
    "training": lambda of: layer(of).train(),
    "a forward pass": attribute("forward", lambda x: x),
    "computed": lambda of: parametrize.register_parametrization(layer(of).query, "weight", nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_makes_recordings_wrong_is_noticed(change):
    one = model()
    figure = ModelFingerprint(one)
    assert figure.fits()
    change(one)
    assert not figure.fits()
    assert ModelFingerprint(one).fits()


@torch.no_grad()
def test_what_recordings_see_themselves_is_let_pass():
    one = model()
    figure, memory = ModelFingerprint(one), one.encode(Tokens.of([[5, 6]]))
    one.output.weight.mul_(2.0)
    one.load_state_dict({name: part.clone() for name, part in one.state_dict().items()})
    one.train().eval()
    one.requires_grad_(False)
    one.decode(Tokens.of([[1, 5]]), memory)  # no module keeps something of a call
    assert figure.fits()


def test_hooks_and_listeners_touch_and_change_nothing_else():
    one = model()
    figure = ModelFingerprint(one)
    assert not figure.is_touched()
    assert not has_hooks(all_modules(one))
    for register in (layer(one).register_forward_hook, one.encoder.register_forward_pre_hook,
                     register_module_forward_hook):
        handle = register(lambda *given: None)
        assert figure.is_touched()
        assert has_hooks(all_modules(one))
        handle.remove()
    with layer(one).tap.listen(print):
        assert figure.is_touched()
    assert not figure.is_touched()
    assert figure.fits()


def test_what_is_computed_otherwise_is_said():
    one = model()
    assert why_not_plain(all_modules(one)) is None
    assert "training" in why_not_plain(all_modules(model().train()))
    layer(one).query.forward = lambda x: x
    assert "forward" in why_not_plain(all_modules(one))
    other = model()
    parametrize.register_parametrization(layer(other).query, "weight", nn.Identity())
    assert "computed" in why_not_plain(all_modules(other))


def test_every_module_is_found():
    one = model()
    assert {*map(id, all_modules(one))} == {id(module) for module in one.modules()}
