"""Recurrence against torch's cells, the source's equations in torch functions, finite differences and known spectra."""

# ruff: noqa: N806

import math
from functools import partial

import numpy as np
import pytest
import torch

from regard.reference import recurrence as R

D, H = 3, 4
SIGMOID, TANH = torch.sigmoid, torch.tanh


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def x(rng):
    return rng.normal(size=D)


@pytest.fixture
def h(rng):
    return rng.normal(size=H)


def assert_close(ours, theirs, tolerance=1e-12):
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    assert np.shape(ours) == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def matrices(rng, names, width=D):
    """A matrix or bias for every name: W_x* reads x, W_h* reads h, b_* is a bias."""
    shapes = {"W_x": (H, width), "W_h": (H, H), "b_": (H,)}
    return {n: rng.normal(size=shapes[n[:3] if n[0] == "W" else "b_"]) for n in names.split()}


def torch_of(parameters):
    return {name: torch.from_numpy(value) for name, value in parameters.items()}


def torch_parameters(cell):
    """Names of torch's cell parameters -> ours."""
    names = {"weight_ih": "W_ih", "weight_hh": "W_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    return {names[name]: value.detach().numpy() for name, value in cell.named_parameters()}


# ---- one step ----


def test_rnn_step_is_torchs(x, h):
    cell = torch.nn.RNNCell(D, H, dtype=torch.float64)
    p = torch_parameters(cell)
    ours = R.rnn_step(x, h, W_xh=p["W_ih"], W_hh=p["W_hh"], b_h=p["b_ih"] + p["b_hh"])
    assert_close(ours, cell(torch.tensor(x), torch.tensor(h)))


def test_rnn_step_is_one_matrix_on_h_and_x(rng, x, h):
    W = rng.normal(size=(H, H + D))
    assert_close(R.rnn_step(x, h, W_hh=W[:, :H], W_xh=W[:, H:]), np.tanh(W @ np.concatenate([h, x])))


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_step_torch_is_torchs(rng, x, h, bias):
    cell = torch.nn.LSTMCell(D, H, bias=bias, dtype=torch.float64)
    c = rng.normal(size=H)
    ours = R.lstm_step_torch(x, (h, c), **torch_parameters(cell))
    for a, b in zip(ours, cell(torch.tensor(x), (torch.tensor(h), torch.tensor(c))), strict=True):
        assert_close(a, b)


def test_lstm_step_is_torchs_with_the_gates_in_the_sources_order(rng, x, h):
    cell = torch.nn.LSTMCell(D, H, dtype=torch.float64)
    p, c = torch_parameters(cell), rng.normal(size=H)
    i, f, g, o = np.split(np.hstack([p["W_hh"], p["W_ih"]]), 4)
    b_i, b_f, b_g, b_o = np.split(p["b_ih"] + p["b_hh"], 4)
    ours = R.lstm_step(x, (h, c), W=np.vstack([i, f, o, g]), b=np.concatenate([b_i, b_f, b_o, b_g]))
    for a, b in zip(ours, cell(torch.tensor(x), (torch.tensor(h), torch.tensor(c))), strict=True):
        assert_close(a, b)


def test_lstm_step_by_hand():
    # One unit, one input; W reads [h; x], gates i, f, o, g. Every gate has its own number, so an exchange shows.
    W, b = [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]], [0.0, 0.0, 0.0, 0.5]
    sigma = [1 / (1 + math.exp(-a)) for a in (0.1, 0.2, 0.3)]
    c = sigma[1] * 0.7 + sigma[0] * math.tanh(0.9)
    h, c_next = R.lstm_step([0.1], ([5.0], [0.7]), W=W, b=b)
    assert c_next[0] == pytest.approx(c, rel=1e-14)
    assert h[0] == pytest.approx(sigma[2] * math.tanh(c), rel=1e-14)


@pytest.mark.parametrize("bias", [True, False])
def test_gru_step_torch_is_torchs(x, h, bias):
    cell = torch.nn.GRUCell(D, H, bias=bias, dtype=torch.float64)
    assert_close(R.gru_step_torch(x, h, **torch_parameters(cell)), cell(torch.tensor(x), torch.tensor(h)))


GRU = "W_xr W_hr b_r W_xz W_hz b_z W_xh W_hh b_h"


def test_gru_step_is_the_sources(rng, x, h):
    p = matrices(rng, GRU)
    t, X, S = torch_of(p), torch.tensor(x), torch.tensor(h)
    r = SIGMOID(t["W_xr"] @ X + t["W_hr"] @ S + t["b_r"])
    z = SIGMOID(t["W_xz"] @ X + t["W_hz"] @ S + t["b_z"])
    new = TANH(t["W_xh"] @ X + t["W_hh"] @ (r * S) + t["b_h"])
    assert_close(R.gru_step(x, h, **p), z * S + (1 - z) * new)


def test_the_two_grus_agree_where_the_reset_does_nothing_and_differ_elsewhere(rng, x, h):
    p = matrices(rng, GRU)

    def stacked(p):
        W_ih, W_hh = np.vstack([p["W_xr"], p["W_xz"], p["W_xh"]]), np.vstack([p["W_hr"], p["W_hz"], p["W_hh"]])
        return {"W_ih": W_ih, "W_hh": W_hh, "b_ih": np.concatenate([p["b_r"], p["b_z"], p["b_h"]])}

    assert np.abs(R.gru_step(x, h, **p) - R.gru_step_torch(x, h, **stacked(p))).max() > 1e-3
    p["b_r"] = np.full(H, 60.0)  # r = 1
    assert_close(R.gru_step(x, h, **p), R.gru_step_torch(x, h, **stacked(p)))


def test_gru_by_hand():
    p = {name: [[0.0]] if name[0] == "W" else [0.0] for name in GRU.split()}
    p |= {"b_z": [60.0]}  # z = 1 keeps the old state
    assert R.gru_step([3.0], [0.7], **p)[0] == pytest.approx(0.7)
    p |= {"b_z": [-60.0], "W_hh": [[2.0]]}  # z = 0 takes the new one; r = 1/2
    assert R.gru_step([3.0], [0.7], **p)[0] == pytest.approx(math.tanh(0.7))


MUT1, MUT2 = "W_xz b_z W_xr W_hr b_r W_hh b_h", "W_xz W_hz b_z W_hr b_r W_xh W_hh b_h"


@pytest.mark.parametrize("width", [H, D])
def test_mut1(rng, h, width):
    x, p = rng.normal(size=width), matrices(rng, MUT1, width)
    W_xx = np.eye(H) if width == H else rng.normal(size=(H, width))
    t, X, S = torch_of(p), torch.tensor(x), torch.tensor(h)
    z = SIGMOID(t["W_xz"] @ X + t["b_z"])
    r = SIGMOID(t["W_xr"] @ X + t["W_hr"] @ S + t["b_r"])
    new = TANH(t["W_hh"] @ (r * S) + TANH(torch.tensor(W_xx) @ X) + t["b_h"])
    assert_close(R.mut1_step(x, h, **p, W_xx=None if width == H else W_xx), new * z + S * (1 - z))


@pytest.mark.parametrize("width", [H, D])
def test_mut2(rng, h, width):
    x, p = rng.normal(size=width), matrices(rng, MUT2, width)
    W_xx = np.eye(H) if width == H else rng.normal(size=(H, width))
    t, X, S = torch_of(p), torch.tensor(x), torch.tensor(h)
    z = SIGMOID(t["W_xz"] @ X + t["W_hz"] @ S + t["b_z"])
    r = SIGMOID(torch.tensor(W_xx) @ X + t["W_hr"] @ S + t["b_r"])
    new = TANH(t["W_hh"] @ (r * S) + t["W_xh"] @ X + t["b_h"])
    assert_close(R.mut2_step(x, h, **p, W_xx=None if width == H else W_xx), new * z + S * (1 - z))


def test_mut3(rng, x, h):
    p = matrices(rng, "W_xz W_hz b_z W_xr W_hr b_r W_xh W_hh b_h")
    t, X, S = torch_of(p), torch.tensor(x), torch.tensor(h)
    z = SIGMOID(t["W_xz"] @ X + t["W_hz"] @ TANH(S) + t["b_z"])
    r = SIGMOID(t["W_xr"] @ X + t["W_hr"] @ S + t["b_r"])
    new = TANH(t["W_hh"] @ (r * S) + t["W_xh"] @ X + t["b_h"])
    assert_close(R.mut3_step(x, h, **p), new * z + S * (1 - z))


@pytest.mark.parametrize(("step", "names"), [(R.mut1_step, MUT1), (R.mut2_step, MUT2)])
@pytest.mark.parametrize("width", [1, D])
def test_mut_cells_refuse_an_input_of_another_width(rng, h, step, names, width):
    with pytest.raises(ValueError, match="`x` and `h` must have one shape"):
        step(np.ones(width), h, **matrices(rng, names, width))


# ---- self-attention in a recurrent network ----


def lstmn(rng, attention=5):
    shapes = {"v": (attention,), "W_h": (attention, H), "W_x": (attention, D), "W_s": (attention, H)}
    return {name: rng.normal(size=shape) for name, shape in (shapes | {"W": (4 * H, H + D), "b": (4 * H,)}).items()}


def test_lstmn_step_in_torch(rng, x):
    p = lstmn(rng)
    hs, cs, s = rng.normal(size=(3, H)), rng.normal(size=(3, H)), rng.normal(size=H)
    t = torch_of(p | {"x": x, "hs": hs, "cs": cs, "s": s})
    row = torch.softmax(TANH(t["hs"] @ t["W_h"].T + t["W_x"] @ t["x"] + t["W_s"] @ t["s"]) @ t["v"], 0)
    summary, memory = row @ t["hs"], row @ t["cs"]
    i, f, o, g = (t["W"] @ torch.cat([summary, t["x"]]) + t["b"]).chunk(4)
    c = SIGMOID(f) * memory + SIGMOID(i) * TANH(g)
    ours = R.lstmn_step(x, hs, cs, s, **p)
    for a, b in zip(ours, (SIGMOID(o) * TANH(c), c, summary, row), strict=True):
        assert_close(a, b)


def test_lstmn_with_one_past_state_is_an_lstm(rng, x, h):
    p, c = lstmn(rng), rng.normal(size=H)
    h_next, c_next, summary, row = R.lstmn_step(x, [h], [c], np.zeros(H), **p)
    for a, b in zip((h_next, c_next), R.lstm_step(x, (h, c), W=p["W"], b=p["b"]), strict=True):
        assert_close(a, b)
    assert row.tolist() == [1.0]
    assert summary.tolist() == h.tolist()


def test_lstmn_without_a_past_starts_from_zeros(rng, x):
    p = lstmn(rng)
    h_next, _, summary, row = R.lstmn_step(x, [], [], rng.normal(size=H), **p)
    assert_close(h_next, R.lstm_step(x, (np.zeros(H), np.zeros(H)), W=p["W"], b=p["b"])[0])
    assert summary.tolist() == [0.0] * H
    assert len(row) == 0


# ---- over time ----


def test_scan_and_its_reverse_are_torchs_bidirectional_lstm(rng):
    xs = rng.normal(size=(6, D))
    net = torch.nn.LSTM(D, H, bidirectional=True, dtype=torch.float64)
    out = net(torch.tensor(xs))[0]
    zeros = (np.zeros(H), np.zeros(H))
    for driver, ending, columns in ((R.scan, "_l0", slice(0, H)), (R.scan_reverse, "_l0_reverse", slice(H, None))):
        names = {"W_ih": "weight_ih", "W_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
        p = {ours: getattr(net, theirs + ending).detach().numpy() for ours, theirs in names.items()}
        states = driver(partial(R.lstm_step_torch, **p), xs, zeros)
        assert_close([R.hidden_state(state) for state in states], out[:, columns])


def test_scan_of_a_gru_is_torchs(rng):
    xs = rng.normal(size=(5, D))
    net = torch.nn.GRU(D, H, dtype=torch.float64)
    p = {"W_ih": net.weight_ih_l0, "W_hh": net.weight_hh_l0, "b_ih": net.bias_ih_l0, "b_hh": net.bias_hh_l0}
    p = {name: value.detach().numpy() for name, value in p.items()}
    assert_close(R.scan(partial(R.gru_step_torch, **p), xs, np.zeros(H)), net(torch.tensor(xs))[0])


def test_last_valid_is_the_state_after_the_last_real_token(rng):
    hs = rng.normal(size=(4, H))
    assert R.last_valid(hs, 2).tolist() == hs[1].tolist()
    assert R.last_valid(hs, 1).tolist() == hs[0].tolist()
    assert R.last_valid(hs, 4).tolist() == hs[3].tolist()
    for length in (0, 5):
        with pytest.raises(ValueError, match="between 1 and 4"):
            R.last_valid(hs, length)


# ---- gradients ----


def differences(function, point, size=1e-6):
    """The jacobian by central differences."""
    columns = []
    for j in range(len(point)):
        step = np.zeros(len(point))
        step[j] = size
        columns.append((function(point + step) - function(point - step)) / (2 * size))
    return np.stack(columns, axis=1)


def test_rnn_jacobian_by_differences(rng, x, h):
    p = matrices(rng, "W_xh W_hh b_h")
    expected = differences(lambda s: R.rnn_step(x, s, **p), h)
    assert_close(R.rnn_jacobian(R.rnn_step(x, h, **p), p["W_hh"]), expected, 1e-8)


def test_lstm_cell_jacobian_by_differences(rng, x, h):
    W, b, c = rng.normal(size=(4 * H, H + D)), rng.normal(size=4 * H), rng.normal(size=H)
    expected = differences(lambda s: R.lstm_step(x, (h, s), W=W, b=b)[1], c)
    assert_close(R.lstm_cell_jacobian(x, (h, c), W=W, b=b), expected, 1e-8)


def test_gradient_flow_by_differences_through_the_whole_scan(rng, h):
    p, xs = matrices(rng, "W_xh W_hh b_h"), rng.normal(size=(5, D))
    step = partial(R.rnn_step, **p)
    hs = R.scan(step, xs, h)
    norms = R.gradient_flow(p["W_hh"], hs)
    assert len(norms) == 6
    assert norms[0] == 1.0
    for k in (1, 3, 5):
        start = h if k == 5 else hs[4 - k]
        jacobian = differences(lambda s, k=k: R.scan(step, xs[5 - k :], s)[-1], start)
        assert norms[k] == pytest.approx(np.linalg.svd(jacobian)[1][0], rel=1e-6)


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5])
def test_linear_gradient_flow_of_a_normal_matrix_is_a_power_of_its_radius(radius):
    turn = radius * np.array([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]])
    assert_close(R.linear_gradient_flow(turn, 6), radius ** np.arange(7))


def test_linear_gradient_flow_of_a_non_normal_matrix_grows_first_then_vanishes():
    W = np.array([[0.5, 8.0], [0.0, 0.5]])  # eigenvalues 1/2, largest singular value above 8
    norms = R.linear_gradient_flow(W, 60)
    # W^k = [[2^-k, 16 k 2^-k], [0, 2^-k]]
    for k in (1, 2, 10):
        expected = np.linalg.svd(np.array([[1.0, 16.0 * k], [0.0, 1.0]]) / 2.0**k)[1][0]
        assert norms[k] == pytest.approx(expected, rel=1e-12)
    assert norms[1] > 8.0
    assert norms[2] > 8.0
    assert norms[60] < 1e-12


def test_gradient_flow_without_saturation_is_the_linear_one(rng):
    W = rng.normal(size=(3, 3))
    assert_close(R.gradient_flow(W, np.zeros((4, 3))), R.linear_gradient_flow(W, 4))
