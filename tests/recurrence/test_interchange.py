"""Weights from torch's modules: the cell then computes what the module computes."""

import pytest
import torch
from recurrent import NATIVE, assert_close, make, normal
from torch import nn

from regard.recurrence.cells import load_torch_cell, make_cell, torch_weights, why_not_torch

MODULES = {"rnn": (nn.RNN, nn.RNNCell), "lstm": (nn.LSTM, nn.LSTMCell), "gru after": (nn.GRU, nn.GRUCell)}


def assert_same(kind, made, reference, seed=0):
    """The cell does one step as torch's cell does it."""
    x, state = normal(2, 3, seed=seed), tuple(normal(2, 4, seed=seed + 1 + i) for i in range(made.memories))
    theirs = reference(x, state if len(state) > 1 else state[0])
    for ours, truth in zip(made(x, state), theirs if isinstance(theirs, tuple) else (theirs,), strict=True):
        assert_close(ours, truth)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", NATIVE)
def test_torchs_cells(kind, bias):
    theirs = MODULES[kind][1](3, 4, bias=bias).double()
    made = make(kind, 3, 4)
    load_torch_cell(made, theirs)
    assert_same(kind, made, theirs)


@pytest.mark.parametrize("kind", NATIVE)
@pytest.mark.parametrize("reverse", [False, True])
def test_one_layer_and_direction_of_torchs_modules(kind, reverse):
    module = MODULES[kind][0](3, 4, num_layers=2, bidirectional=True).double()
    theirs = MODULES[kind][1](3, 4).double()
    end = "_l0" + "_reverse" * reverse
    theirs.load_state_dict({name: getattr(module, name + end) for name in theirs.state_dict()})
    made = make(kind, 3, 4)
    load_torch_cell(made, module, 0, reverse=reverse)
    assert_same(kind, made, theirs)


@pytest.mark.parametrize("kind", NATIVE)
def test_to_torch_is_the_other_way_and_carries_gradients(kind):
    made = make(kind, 3, 4)
    theirs = MODULES[kind][1](3, 4).double()
    given = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), torch_weights(made), strict=True))
    x, state = normal(2, 3), tuple(normal(2, 4, seed=1 + i) for i in range(made.memories))
    ours = made(x, state)[0]
    there = torch.func.functional_call(theirs, given, (x, state if len(state) > 1 else state[0]))
    there = there[0] if isinstance(there, tuple) else there
    assert_close(there, ours)
    upstream = normal(2, 4, seed=9)
    for a, b in zip(torch.autograd.grad(there, made.parameters(), upstream),
                    torch.autograd.grad(ours, made.parameters(), upstream), strict=True):
        assert_close(a, b)


def test_loading_copies():
    theirs = nn.LSTMCell(3, 4)
    made = make_cell("lstm", 3, 4)
    load_torch_cell(made, theirs)
    before = made.input_weight.detach().clone()
    nn.init.zeros_(theirs.weight_ih)
    assert torch.equal(made.input_weight, before)
    assert made.input_weight.requires_grad


@pytest.mark.parametrize(("kind", "words"), [
    ("rnn linear", 'activation="linear"'), ("gru", 'reset="after"'), ("mut1", "no MUT1"), ("mut3", "no MUT3")])
def test_what_torch_does_not_have(kind, words):
    assert words in why_not_torch(make(kind, 3, 4))
    with pytest.raises(ValueError, match=words):
        load_torch_cell(make(kind, 3, 4), nn.GRUCell(3, 4))


@pytest.mark.parametrize(("module", "words"), [
    (nn.GRUCell(3, 4), "must be an nn.LSTM or nn.LSTMCell .* a GRUCell"),
    (nn.LSTM, "the class LSTM"),
    (nn.LSTM(3, 4, proj_size=2), "proj_size=0"),
    (nn.LSTM(3, 5), r"weight_ih is of shape \(16, 3\), but is one of shape \(20, 3\)"),
    (nn.LSTM(2, 4), r"weight_ih is of shape \(16, 3\)"),
])
def test_modules_that_do_not_fit(module, words):
    with pytest.raises(ValueError, match=words):
        load_torch_cell(make_cell("lstm", 3, 4), module)


def test_a_layer_that_is_not_there():
    with pytest.raises(ValueError, match='"l1" instead'):
        load_torch_cell(make_cell("lstm", 3, 4), nn.LSTM(3, 4), 1)
    with pytest.raises(ValueError, match='"l0_reverse" instead'):
        load_torch_cell(make_cell("lstm", 3, 4), nn.LSTM(3, 4), reverse=True)
    with pytest.raises(ValueError, match="with tanh"):
        load_torch_cell(make_cell("rnn", 3, 4), nn.RNN(3, 4, nonlinearity="relu"))
