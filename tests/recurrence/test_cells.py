"""Cells: each is the oracle's equation, has the gradients of finite differences, and takes torch's weights."""

import pytest
import torch
from hypothesis import given
from recurrent import KINDS, NATIVE, assert_close, kinds, make, normal, seeds, step_of, widths
from torch import nn

from regard.recurrence import cells
from regard.recurrence.cells import CELLS, load_torch_cell, make_cell, torch_weights, why_not_torch


@given(kinds, widths, widths, seeds)
def test_a_step_is_the_oracles(kind, input_width, width, seed):
    made = make(kind, input_width, width, seed)
    x = normal(3, input_width, seed=seed + 1)
    state = tuple(normal(3, width, seed=seed + 2 + i) for i in range(made.memories))
    step = step_of(kind, made)
    for _ in range(3):
        after = made(x, state)
        for row in range(3):
            before = tuple(memory[row].detach().numpy() for memory in state)
            theirs = step(x[row].numpy(), before if len(before) > 1 else before[0])
            for ours, truth in zip(after, theirs if isinstance(theirs, tuple) else (theirs,), strict=True):
                assert_close(ours[row], truth)
        state = after


@pytest.mark.parametrize("input_width", [3, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind, input_width):
    made = make(kind, input_width, 3)
    names, parameters = zip(*made.named_parameters(), strict=True)
    x = normal(2, input_width).requires_grad_()
    state = [normal(2, 3, seed=i).requires_grad_() for i in range(made.memories)]

    def step(x, *rest):
        given = dict(zip(names, rest[made.memories:], strict=True))
        return torch.func.functional_call(made, given, (x, rest[:made.memories]))

    assert torch.autograd.gradcheck(step, (x, *state, *parameters))


@pytest.mark.parametrize("kind", KINDS)
def test_projecting_all_steps_at_once_is_projecting_each(kind):
    made = make(kind, 3, 4)
    x, state = normal(2, 5, 3), made.initial(5)
    assert made.project(x).shape[:2] == (2, 5)
    assert_close(made.project(x)[1], made.project(x[1]))
    for ours, theirs in zip(made.advance(made.project(x)[0], state), made(x[0], state), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_initial_state_is_zeros_like_the_parameters(kind, dtype):
    made = make(kind, 3, 4).to(dtype)
    state = made.initial(5)
    assert len(state) == (2 if kind == "lstm" else 1)
    for memory in state:
        assert memory.shape == (5, 4)
        assert memory.dtype == dtype
        assert not memory.any()
    assert all(memory.dtype == dtype for memory in made(normal(5, 3, dtype=dtype), state))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_leaves_the_cell_and_the_state_as_they_were(kind):
    made = make(kind, 3, 3)
    x, state = normal(2, 3), tuple(normal(2, 3, seed=i) for i in range(made.memories))
    kept = [tensor.clone() for tensor in (*state, *made.state_dict().values())]
    first, second = made(x, state), made(x, state)
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, (*state, *made.state_dict().values()), kept))


@pytest.mark.parametrize("name", CELLS)
def test_initial_values(name):
    made = make_cell(name, 6, 4)
    for gate in made.hidden_weight.split(4):
        assert_close(gate @ gate.T, torch.eye(4), 1e-5)
    for gate in made.input_weight.split(4):
        assert 0 < gate.abs().max() <= (6 / 10) ** 0.5  # Xavier's, of one gate and not of all
    expected = torch.zeros_like(made.bias)
    if name == "lstm":
        expected[4:8] = 1.0
    assert torch.equal(made.bias, expected)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    made.reset_parameters()
    assert not torch.equal(made.hidden_weight, before["hidden_weight"])
    assert torch.equal(made.bias, before["bias"])


def test_the_forget_bias_is_that_of_the_forget_gate():
    """With all else zero, c' = σ(bias) c: other gates would give another number."""
    made = make_cell("lstm", 1, 2, forget_bias=-3.0)
    torch.nn.init.zeros_(made.input_weight)
    torch.nn.init.zeros_(made.hidden_weight)
    h, c = made(torch.ones(1, 1), (torch.zeros(1, 2), torch.ones(1, 2)))
    assert_close(c, torch.full((1, 2), torch.sigmoid(torch.tensor(-3.0)).item()), 1e-6)
    assert_close(h, 0.5 * torch.tanh(c), 1e-6)


@pytest.mark.parametrize(("name", "has"), [("mut1", True), ("mut2", True), ("mut3", False), ("gru", False)])
def test_x_is_projected_only_where_the_widths_differ(name, has):
    assert not hasattr(make_cell(name, 4, 4), "bare_weight")
    assert hasattr(make_cell(name, 3, 4), "bare_weight") == has
    assert ("W_xx" in make_cell(name, 3, 4).named()) == has


def test_x_itself_is_added_where_the_widths_agree():
    """MUT2 with no weights but b: r = σ(x), and h' = tanh(0)·½ + h·½; MUT1: h' = tanh(tanh(x))·½ + h·½."""
    x, h = torch.tensor([[0.3, -2.0]]), torch.tensor([[0.5, 0.7]])
    for name, expected in (("mut1", torch.tanh(torch.tanh(x)) / 2 + h / 2), ("mut2", h / 2)):
        made = make_cell(name, 2, 2)
        for parameter in made.parameters():
            torch.nn.init.zeros_(parameter)
        assert_close(made(x, (h,))[0], expected, 1e-6)
    torch.nn.init.eye_(made.hidden_weight.data[4:])  # W_hh of MUT2: now r is seen
    assert_close(made(x, (h,))[0], torch.tanh(torch.sigmoid(x) * h) / 2 + h / 2, 1e-6)


def test_the_two_grus_differ():
    before, after = make("gru", 3, 4), make("gru after", 3, 4)
    torch.nn.init.zeros_(after.hidden_bias)
    after.load_state_dict(before.state_dict(), strict=False)
    x, state = normal(2, 3), (normal(2, 4, seed=1),)
    assert (before(x, state)[0] - after(x, state)[0]).abs().max() > 0.01


def test_the_table_has_every_cell():
    assert set(CELLS) == {"rnn", "lstm", "gru", "mut1", "mut2", "mut3"}
    for name, kind in CELLS.items():
        made = make_cell(name, 2, 3)
        assert made.name.lower() == name
        assert type(made) is kind is getattr(cells, f"{name.upper()}Cell")
        assert (made.input_width, made.width) == (2, 3)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: make_cell("lstn", 2, 3), '`cell` must be one of .*"lstn" instead. Did you mean "lstm"'),
    (lambda: make_cell("gru", 2, 3, reset="befor"), '`reset` must be .*Did you mean "before"'),
    (lambda: make_cell("rnn", 2, 3, activation="tan"), '`activation` must be .*Did you mean "tanh"'),
    (lambda: make_cell("rnn", 0, 3), "`input_width` must be .* at least 1, but is 0"),
    (lambda: make_cell("rnn", 2, -1), "`width` must be .* at least 1, but is -1"),
    (lambda: make_cell("rnn", 2, 1.5), "`width` must be a whole number"),
    (lambda: make_cell("rnn", 2, 3)(torch.zeros(1, 4), (torch.zeros(1, 3),)), r"input width 2.*shape \(1, 4\)"),
])
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()


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
