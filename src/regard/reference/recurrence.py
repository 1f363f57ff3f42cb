"""Recurrence: one step of every cell, the scan over time, the jacobians of a step, and gradient flow through time.

A step takes the input vector x_t and the state, and gives the next state: `step(x, state, *, parameters) -> state`. The
state is h, or (h, c) for the LSTM. Matrices are (out, in), vectors (width,). Biases may be None. The steps know nothing
of batches, padding or layers; only `last_valid` knows that a sequence may be shorter than its array.

Sources: Elman 1990 (RNN); Hochreiter & Schmidhuber 1997, Gers et al. 2000 (LSTM); Cho et al. 2014 (GRU);
Jozefowicz, Zaremba, Sutskever 2015 (MUT1, MUT2, MUT3); Cheng, Dong, Lapata 2016 (LSTMN).
"""
# ruff: noqa: N803

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats, linear, same_width
from .attention import softmax
from .blocks import sigmoid

LSTMState = tuple[Floats, Floats]
State = TypeVar("State")

# ---- one step ----------------------------------------------------------------------------------------------------


def rnn_step(x: ArrayLike, h: ArrayLike, *, W_xh: ArrayLike, W_hh: ArrayLike, b_h: ArrayLike | None = None) -> Floats:
    """h_t = tanh(W_hh h_{t-1} + W_xh x_t + b_h), which is tanh(W [h_{t-1}; x_t]) with W = [W_hh, W_xh]."""
    return np.tanh(linear(h, W_hh, b_h) + linear(x, W_xh))


def _lstm_gates(z: ArrayLike, W: ArrayLike, b: ArrayLike | None) -> tuple[Floats, Floats, Floats, Floats]:
    """(i, f, o, g) = (sigma, sigma, sigma, tanh)(W z + b), the rows of W in four equal parts in that order."""
    a_i, a_f, a_o, a_g = np.split(linear(z, W, b), 4)
    return sigmoid(a_i), sigmoid(a_f), sigmoid(a_o), np.tanh(a_g)


def lstm_step(x: ArrayLike, state: tuple[ArrayLike, ArrayLike], *, W: ArrayLike,
              b: ArrayLike | None = None) -> LSTMState:
    """(i, f, o, g) = (sigma, sigma, sigma, tanh)(W [h_{t-1}; x_t] + b); c_t = f c_{t-1} + i g; h_t = o tanh(c_t).

    W (4H, H + D): the gate order of the source is i, f, o, g. -> (h_t, c_t)
    """
    h, c = floats(state[0]), floats(state[1])
    i, f, o, g = _lstm_gates(np.concatenate([h, floats(x)]), W, b)
    c_next = f * c + i * g
    return o * np.tanh(c_next), c_next


def lstm_step_torch(x: ArrayLike, state: tuple[ArrayLike, ArrayLike], *, W_ih: ArrayLike, W_hh: ArrayLike,
                    b_ih: ArrayLike | None = None, b_hh: ArrayLike | None = None) -> LSTMState:
    """The same LSTM in torch's layout: W_ih (4H, D), W_hh (4H, H), and two biases that are only ever added."""
    # Departure: the gates' order is i, f, g, o; the source's is i, f, o, g.
    a_i, a_f, a_g, a_o = np.split(linear(x, W_ih, b_ih) + linear(state[0], W_hh, b_hh), 4)
    c_next = sigmoid(a_f) * floats(state[1]) + sigmoid(a_i) * np.tanh(a_g)
    return sigmoid(a_o) * np.tanh(c_next), c_next


def gru_step(x: ArrayLike, h: ArrayLike, *, W_xr: ArrayLike, W_hr: ArrayLike, W_xz: ArrayLike, W_hz: ArrayLike,
             W_xh: ArrayLike, W_hh: ArrayLike, b_r: ArrayLike | None = None, b_z: ArrayLike | None = None,
             b_h: ArrayLike | None = None) -> Floats:
    """r = sigma(W_xr x + W_hr h + b_r); z = sigma(W_xz x + W_hz h + b_z);
    h~ = tanh(W_xh x + W_hh (r h) + b_h); h_t = z h + (1 - z) h~. The reset comes before the matrix product."""
    h = floats(h)
    r = sigmoid(linear(x, W_xr, b_r) + linear(h, W_hr))
    z = sigmoid(linear(x, W_xz, b_z) + linear(h, W_hz))
    candidate = np.tanh(linear(x, W_xh, b_h) + linear(r * h, W_hh))
    return z * h + (1.0 - z) * candidate


def gru_step_torch(x: ArrayLike, h: ArrayLike, *, W_ih: ArrayLike, W_hh: ArrayLike, b_ih: ArrayLike | None = None,
                   b_hh: ArrayLike | None = None) -> Floats:
    """torch's and cuDNN's GRU, which is another function: n = tanh(W_in x + b_in + r (W_hn h + b_hn)),
    h_t = (1 - z) n + z h. Layout r, z, n: W_ih (3H, D), W_hh (3H, H)."""
    h = floats(h)
    x_r, x_z, x_n = np.split(linear(x, W_ih, b_ih), 3)
    h_r, h_z, h_n = np.split(linear(h, W_hh, b_hh), 3)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)  # Departure: the reset comes after the matrix product, and scales b_hn too.
    return (1.0 - z) * n + z * h


def _bare_input(x: ArrayLike, h: Floats, W_xx: ArrayLike | None) -> Floats:
    """x where MUT1 and MUT2 add it to a hidden vector as it is; W_xx x where the widths differ."""
    # Departure: the source assumes that input and state have one width, and has no W_xx.
    bare = floats(x) if W_xx is None else linear(x, W_xx)
    same_width("x" if W_xx is None else "W_xx x", bare, "h", h)
    return bare


def mut1_step(x: ArrayLike, h: ArrayLike, *, W_xz: ArrayLike, W_xr: ArrayLike, W_hr: ArrayLike, W_hh: ArrayLike,
              b_z: ArrayLike | None = None, b_r: ArrayLike | None = None, b_h: ArrayLike | None = None,
              W_xx: ArrayLike | None = None) -> Floats:
    """z = sigma(W_xz x + b_z); r = sigma(W_xr x + W_hr h + b_r);
    h_t = tanh(W_hh (r h) + tanh(x) + b_h) z + h (1 - z). Here z lets the new in; in the GRU it keeps the old."""
    h = floats(h)
    bare = _bare_input(x, h, W_xx)
    z = sigmoid(linear(x, W_xz, b_z))
    r = sigmoid(linear(x, W_xr, b_r) + linear(h, W_hr))
    return np.tanh(linear(r * h, W_hh, b_h) + np.tanh(bare)) * z + h * (1.0 - z)


def mut2_step(x: ArrayLike, h: ArrayLike, *, W_xz: ArrayLike, W_hz: ArrayLike, W_hr: ArrayLike, W_xh: ArrayLike,
              W_hh: ArrayLike, b_z: ArrayLike | None = None, b_r: ArrayLike | None = None, b_h: ArrayLike | None = None,
              W_xx: ArrayLike | None = None) -> Floats:
    """z = sigma(W_xz x + W_hz h + b_z); r = sigma(x + W_hr h + b_r);
    h_t = tanh(W_hh (r h) + W_xh x + b_h) z + h (1 - z)."""
    h = floats(h)
    bare = _bare_input(x, h, W_xx)
    z = sigmoid(linear(x, W_xz, b_z) + linear(h, W_hz))
    r = sigmoid(bare + linear(h, W_hr, b_r))
    return np.tanh(linear(r * h, W_hh, b_h) + linear(x, W_xh)) * z + h * (1.0 - z)


def mut3_step(x: ArrayLike, h: ArrayLike, *, W_xz: ArrayLike, W_hz: ArrayLike, W_xr: ArrayLike, W_hr: ArrayLike,
              W_xh: ArrayLike, W_hh: ArrayLike, b_z: ArrayLike | None = None, b_r: ArrayLike | None = None,
              b_h: ArrayLike | None = None) -> Floats:
    """z = sigma(W_xz x + W_hz tanh(h) + b_z); r = sigma(W_xr x + W_hr h + b_r);
    h_t = tanh(W_hh (r h) + W_xh x + b_h) z + h (1 - z)."""
    h = floats(h)
    z = sigmoid(linear(x, W_xz, b_z) + linear(np.tanh(h), W_hz))
    r = sigmoid(linear(x, W_xr, b_r) + linear(h, W_hr))
    return np.tanh(linear(r * h, W_hh, b_h) + linear(x, W_xh)) * z + h * (1.0 - z)


# ---- self-attention in a recurrent network -----------------------------------------------------------------------


def lstmn_step(x: ArrayLike, hidden_tape: Sequence[ArrayLike], memory_tape: Sequence[ArrayLike],
               previous_summary: ArrayLike, *, v: ArrayLike, W_h: ArrayLike, W_x: ArrayLike, W_s: ArrayLike,
               W: ArrayLike, b: ArrayLike | None = None) -> tuple[Floats, Floats, Floats, Floats]:
    """a_i = v . tanh(W_h h_i + W_x x_t + W_s h~_{t-1}); s = softmax(a); h~_t = sum s_i h_i; c~_t = sum s_i c_i;
    (i, f, o, g) = (sigma, sigma, sigma, tanh)(W [h~_t; x_t] + b); c_t = f c~_t + i g; h_t = o tanh(c_t).

    The tapes are h_1 .. h_{t-1} and c_1 .. c_{t-1}; W_s is the paper's W_h~. -> (h_t, c_t, h~_t, s)
    The first step has no past to attend to: h~_1 and c~_1 are zero there, and s is empty (the paper does not say).
    """
    hidden, memory = [floats(h) for h in hidden_tape], [floats(c) for c in memory_tape]
    summary, memory_summary = np.zeros_like(floats(previous_summary)), np.zeros_like(floats(previous_summary))
    rest = linear(x, W_x) + linear(previous_summary, W_s)
    scores = [float(floats(v) @ np.tanh(linear(h, W_h) + rest)) for h in hidden]
    s = softmax(scores, [True] * len(scores))
    for weight, h, c in zip(s, hidden, memory, strict=True):
        summary += weight * h
        memory_summary += weight * c
    i, f, o, g = _lstm_gates(np.concatenate([summary, floats(x)]), W, b)
    c_next = f * memory_summary + i * g
    return o * np.tanh(c_next), c_next, summary, s


# ---- over time ---------------------------------------------------------------------------------------------------


def scan(step: Callable[[Floats, State], State], xs: ArrayLike, state: State) -> list[State]:
    """state_t = step(x_t, state_{t-1}) for t = 1 .. T. -> [state_1, ..., state_T]"""
    states = []
    for x in floats(xs):
        state = step(x, state)
        states.append(state)
    return states


def scan_reverse(step: Callable[[Floats, State], State], xs: ArrayLike, state: State) -> list[State]:
    """state_t = step(x_t, state_{t+1}) for t = T .. 1, given in the order of positions: entry t has read x_T .. x_t."""
    return scan(step, floats(xs)[::-1], state)[::-1]


def hidden_state(state: ArrayLike | tuple[ArrayLike, ArrayLike]) -> Floats:
    """The hidden vector of a state: h itself, or the h of (h, c)."""
    return floats(state[0]) if isinstance(state, tuple) else floats(state)


def last_valid(hs: Sequence[State], length: int) -> State:
    """The state after the last real token of a sequence that is padded on the right: hs[length - 1]."""
    if not 1 <= length <= len(hs):
        raise ValueError(f"`length` must be between 1 and {len(hs)}, but is {length} instead.")
    return hs[length - 1]


# ---- gradients ---------------------------------------------------------------------------------------------------


def rnn_jacobian(h: ArrayLike, W_hh: ArrayLike) -> Floats:
    """dh_t / dh_{t-1} = diag(1 - h_t^2) W_hh, of the state h_t that the step gave."""
    return np.diag(1.0 - floats(h) ** 2) @ floats(W_hh)


def lstm_cell_jacobian(x: ArrayLike, state: tuple[ArrayLike, ArrayLike], *, W: ArrayLike,
                       b: ArrayLike | None = None) -> Floats:
    """dc_t / dc_{t-1} = diag(f_t), through the cell alone: h_{t-1} is held still."""
    _, f, _, _ = _lstm_gates(np.concatenate([floats(state[0]), floats(x)]), W, b)
    return np.diag(f)


def gradient_flow(W_hh: ArrayLike, hs: ArrayLike) -> Floats:
    """The norms of dh_T / dh_{T-k} = J_T J_{T-1} .. J_{T-k+1}, k = 0 .. T, J_t = diag(1 - h_t^2) W_hh. -> (T + 1,)

    hs (T, H) are h_1 .. h_T of a vanilla RNN. The norm is the spectral one, the largest singular value.
    """
    hs = floats(hs)
    product = np.eye(hs.shape[1])
    norms = [_spectral_norm(product)]
    for h in hs[::-1]:
        product = product @ rnn_jacobian(h, W_hh)
        norms.append(_spectral_norm(product))
    return floats(norms)


def linear_gradient_flow(W: ArrayLike, steps: int) -> Floats:
    """The norms of W^k, k = 0 .. steps: gradient flow with no non-linearity. -> (steps + 1,)

    In the end the largest eigenvalue in modulus decides (above 1 explodes, below 1 vanishes), not the largest singular
    value: a non-normal W with singular value above 1 and eigenvalues below 1 grows first, then vanishes.
    """
    W = floats(W)
    product = np.eye(len(W))
    norms = [_spectral_norm(product)]
    for _ in range(steps):
        product = product @ W
        norms.append(_spectral_norm(product))
    return floats(norms)


def _spectral_norm(matrix: Floats) -> float:
    return float(np.linalg.norm(matrix, ord=2))
