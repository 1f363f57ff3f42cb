"""Gradient flow: the oracle's for the vanilla network, known spectra without a non-linearity, autograd for the rest."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import KINDS, assert_close, kinds, make, normal, options, randomize, seeds

from regard.recurrence.gradient_flow import gradient_flow, loss_flow
from regard.recurrence.scan import Recurrence
from regard.reference import recurrence as oracle

STEPS = 60


def linear(matrix):
    """A vanilla network without a non-linearity and with this recurrent matrix."""
    made = make("rnn linear", 1, len(matrix))
    made.hidden_weight.data = torch.as_tensor(matrix, dtype=torch.float64)
    return made


def flow(matrix, steps=STEPS):
    return gradient_flow(linear(matrix), normal(1, steps, 1))[:, 0].numpy()


def normal_matrix(radius, width=4):
    """A symmetric matrix whose eigenvalues are the radius and smaller ones: its norm is its spectral radius."""
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))[0]
    return basis @ np.diag(radius * np.linspace(1.0, 0.3, width) * (-1.0) ** np.arange(width)) @ basis.T


@pytest.mark.parametrize("radius", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_it_grows_and_decays_as_the_largest_eigenvalue_says(radius):
    norms = flow(normal_matrix(radius))
    np.testing.assert_allclose(norms, radius ** np.arange(STEPS + 1.0), rtol=1e-9)


def test_a_non_normal_matrix_grows_first_then_vanishes():
    """σ > 1 and ρ < 1: what counts in the end is the eigenvalue."""
    matrix = np.array([[0.8, 3.0], [0.0, 0.7]])
    assert np.linalg.norm(matrix, 2) > 3.0
    assert np.abs(np.linalg.eigvals(matrix)).max() == pytest.approx(0.8)
    norms = flow(matrix)
    peak = int(norms.argmax())
    assert norms[peak] > 5.0
    assert 1 <= peak <= 10
    assert (np.diff(norms[peak:]) < 0).all()
    assert norms[-1] < 1e-3
    assert norms[-1] / norms[-2] == pytest.approx(0.8, rel=1e-2)


def test_eigenvalues_below_1_and_singular_values_below_1_never_grow():
    norms = flow(0.9 * np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0])
    np.testing.assert_allclose(norms, 0.9 ** np.arange(STEPS + 1.0), rtol=1e-9)


@given(st.integers(1, 4), st.integers(0, 8), seeds)
def test_a_linear_cell_gives_the_powers_of_its_matrix(width, steps, seed):
    matrix = normal(width, width, seed=seed).numpy()
    np.testing.assert_allclose(flow(matrix, steps), oracle.linear_gradient_flow(matrix, steps), rtol=1e-9, atol=1e-12)


@given(st.integers(1, 4), st.integers(0, 8), seeds)
def test_the_vanilla_network_has_the_oracles_flow(width, steps, seed):
    made, x = make("rnn", 2, width, seed), normal(2, steps, 2, seed=seed)
    ours = gradient_flow(made, x)
    assert ours.shape == (steps + 1, 2)
    for row in range(2):
        h, hidden = made.initial(1), []
        for t in range(steps):
            h = made(x[row:row + 1, t], h)
            hidden.append(h[0][0].detach().numpy())
        matrix = made.hidden_weight.detach().numpy()
        truth = oracle.gradient_flow(matrix, np.array(hidden).reshape(steps, width))
        np.testing.assert_allclose(ours[:, row], truth, rtol=1e-9, atol=1e-12)


@given(kinds, st.integers(1, 4), seeds)
def test_any_cell_has_autograds_jacobian(kind, steps, seed):
    made, x = make(kind, 2, 3, seed), normal(1, steps, 2, seed=seed)
    before = tuple(normal(1, 3, seed=seed + 1 + i) for i in range(made.memories))

    def end(start, *state):
        for t in range(start, steps):
            state = made(x[:, t], state)
        return state[0][0]

    ours = gradient_flow(made, x, before)
    state = before
    for t in range(steps + 1):
        parts = torch.autograd.functional.jacobian(lambda *given, t=t: end(t, *given), tuple(state))
        truth = torch.linalg.matrix_norm(torch.cat([part[:, 0] for part in parts], -1), 2)
        assert_close(ours[steps - t, 0], truth, 1e-10)
        if t < steps:
            state = tuple(memory.detach() for memory in made(x[:, t], state))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrence_of_one_layer_flows_as_its_cell(kind):
    made = randomize(Recurrence(3, **options(kind)))
    x = normal(2, 6, 3)
    assert_close(gradient_flow(made, x), gradient_flow(made.cells[0], x))
    assert_close(loss_flow(made, x, lambda h: (h**2).sum()), loss_flow(made.cells[0], x, lambda h: (h**2).sum()))


def test_the_layers_of_a_recurrence_are_one_state():
    """Two linear layers: the state's matrix is block triangular, and its last rows are those of the second layer."""
    made = randomize(Recurrence(2, **options("rnn linear"), layers=2), scale=0.5)
    first, second = made.cells
    A, C, U = (weight.detach() for weight in (first.hidden_weight, second.hidden_weight, second.input_weight))
    matrix = torch.cat([torch.cat([A, torch.zeros(2, 2)], 1), torch.cat([U @ A, C], 1)])
    ours = gradient_flow(made, normal(1, 5, 2))[:, 0]
    for k in range(6):
        assert_close(ours[k], torch.linalg.matrix_norm(torch.linalg.matrix_power(matrix, k)[2:], 2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_a_loss(kind):
    """dL/ds_t by autograd on a run that begins at s_t, for the part of the loss that it can still change."""
    made, x = make(kind, 2, 3), normal(2, 4, 2)
    weights = normal(4, 3, seed=7)

    def loss(h):
        return (torch.tanh(h) * weights).sum()

    ours = loss_flow(made, x, loss)
    state = made.initial(2)
    for t in range(5):
        given = tuple(memory.detach().requires_grad_() for memory in state)
        now, own = given, (torch.tanh(given[0]) * weights[t - 1]).sum() if t else 0.0 * given[0].sum()
        for later in range(t, 4):
            now = made(x[:, later], now)
            own = own + (torch.tanh(now[0]) * weights[later]).sum()
        gradients = torch.autograd.grad(own, given, materialize_grads=True)
        assert_close(ours[4 - t], torch.cat(gradients, -1).norm(dim=-1))
        if t < 4:
            state = made(x[:, t], given)


def test_the_lstm_carries_what_the_vanilla_network_loses():
    """With a forget gate that stays open the gradient arrives; with tanh of a contraction it does not."""
    lstm = make("lstm", 1, 3)
    for parameter in lstm.parameters():
        torch.nn.init.zeros_(parameter)
    lstm.bias.data[3:6] = 8.0  # f = σ(8)
    vanilla = make("rnn", 1, 3)
    vanilla.hidden_weight.data = 0.5 * torch.eye(3, dtype=torch.float64)
    x = normal(1, 50, 1)
    open_gate = torch.sigmoid(torch.tensor(8.0, dtype=torch.float64))
    assert_close(gradient_flow(lstm, x)[-1, 0], 0.5 * open_gate**50, 1e-9)  # o = ½, tanh' = 1 at c = 0
    assert gradient_flow(vanilla, x)[-1, 0] < 1e-14


def test_no_gradients_are_left_in_the_parameters():
    made, x = make("lstm", 2, 3), normal(1, 3, 2).requires_grad_()
    assert not gradient_flow(made, x).requires_grad
    assert x.grad is None
    assert all(parameter.grad is None for parameter in made.parameters())


def test_a_backward_recurrence_is_refused():
    with pytest.raises(ValueError, match='"forward" to compute step by step'):
        gradient_flow(Recurrence(2, direction="both"), torch.zeros(1, 3, 2))
