"""The recurrence of RWKV-7 in Triton, in chunks, forward and backward.

    S_t = S_{t-1} diag(w_t) - (S_{t-1} c_t)(c_t∘a_t)ᵀ + v_t k_tᵀ;   y_t = S_t r_t

With G = cumsum(log w) in a chunk of C tokens, β = c∘a and tril₋₁ the triangle below the diagonal:

    Ã = -c e^{G - log w},  R̃ = r e^G,  K̃ = k e^{-G},  B̃ = β e^{-G},  K_e = k e^{G_C - G},  B_e = β e^{G_C - G}
    X = (I - tril₋₁(ÃB̃ᵀ))⁻¹,   P = XÃ,   Q = X tril₋₁(ÃK̃ᵀ) V
    query = R̃ + tril(R̃B̃ᵀ) P,   own = tril(R̃K̃ᵀ) V + tril(R̃B̃ᵀ) Q            Y  = query Sᵀ + own
    keep = diag(e^{G_C}) + Pᵀ B_e,   new = Vᵀ K_e + Qᵀ B_e                     S' = S keep + new

    chunks      a program has a chunk of a head: query, own, keep and new
    states      a program has some value features of a head, and goes through the chunks: S before each of them
    gradients   the same backward: ∂S after each chunk; then a program has a chunk again, with all gradients of inputs

X is found by forward substitution: powers of the triangle would cancel where keys repeat. The states are multiplied in
full float32. Triton's interpreter runs the same code on a CPU, for tests. There is no padding here: an absent token has
log w = 0, k = 0 and c = 0.

Legend: B rows, H heads, N tokens, T chunks, C tokens of a chunk, D features of a head, keys and values alike.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.launch import once_differentiable

INTERPRETED: bool = triton.knobs.runtime.interpret
CHUNK = 32
"""Tokens of a chunk: e^{-G} stays below e^20."""
WIDTHS = (16, 32, 64, 128)
"""The features of a head that the kernels take."""
VALUE_BLOCK = 16
"""Value features of a program that goes through the states."""


@triton.jit
def _load(base, n, valid, stride, D: tl.constexpr):
    """(C, D) numbers of the tokens n, in float32; zeros where a token is not valid."""
    at = n.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(base + at, mask=valid[:, None], other=0.0).to(tl.float32)


@triton.jit
def _store(base, n, valid, stride, D: tl.constexpr, value):
    at = n.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(base + at, value.to(base.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _square(base, rows: tl.constexpr, columns: tl.constexpr):
    """The places of a dense matrix."""
    return base + tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]


@triton.jit
def _inverse(A, C: tl.constexpr):
    """(I - A)⁻¹ of a matrix that is 0 on and above its diagonal, row by row."""
    row = tl.arange(0, C)
    X = A
    for i in range(1, C):
        own = tl.sum(tl.where(row[None, :] == i, tl.trans(A), 0.0), 1)  # A_i, as a column
        later = tl.sum(tl.where(row[:, None] < i, own[:, None] * X, 0.0), 0)  # Σ_j A_ij X_j
        X = tl.where(row[:, None] == i, X + later[None, :], X)
    return X + tl.where(row[:, None] == row[None, :], 1.0, 0.0)


@triton.jit
def _scaled(r_at, w_at, k_at, c_at, a_at, n, valid, stride, C: tl.constexpr, D: tl.constexpr):
    """Everything of a chunk that is made of one token and the decays: G, its end, and the scaled inputs."""
    log_w = _load(w_at, n, valid, stride, D)
    row = tl.arange(0, C)
    ones = tl.where(row[:, None] >= row[None, :], 1.0, 0.0)
    G = tl.dot(ones, log_w, input_precision="ieee")
    end = tl.sum(log_w, 0)
    r, k, c, a = (_load(r_at, n, valid, stride, D), _load(k_at, n, valid, stride, D), _load(c_at, n, valid, stride, D),
                  _load(a_at, n, valid, stride, D))
    return log_w, G, end, r, k, c, a


@triton.jit
def _chunks(r_at, w_at, k_at, v_at, c_at, a_at, query_at, own_at, keep_at, new_at, H, N, T, C: tl.constexpr,
            D: tl.constexpr, precision: tl.constexpr):
    """query, own (B·H, T, C, D), keep and new (B·H, T, D, D) of a chunk; inputs are (B, N, H, D)."""
    t, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n, row, first = t * C + tl.arange(0, C), tl.arange(0, C), (bh // H * N * H + bh % H) * D
    valid, stride = n < N, H * D
    log_w, G, end, r, k, c, a = _scaled(r_at + first, w_at + first, k_at + first, c_at + first, a_at + first, n, valid,
                                        stride, C, D)
    v = _load(v_at + first, n, valid, stride, D)
    below, until = row[:, None] > row[None, :], row[:, None] >= row[None, :]
    rate, growth, tail = c * a, tl.exp(-G), tl.exp(end[None, :] - G)
    remover, reader, keys, rates = -c * tl.exp(G - log_w), r * tl.exp(G), k * growth, rate * growth
    X = _inverse(tl.where(below, tl.dot(remover, tl.trans(rates), input_precision=precision), 0.0), C)
    remover_keys = tl.where(below, tl.dot(remover, tl.trans(keys), input_precision=precision), 0.0)
    P = tl.dot(X, remover, input_precision=precision)
    Q = tl.dot(X, tl.dot(remover_keys, v, input_precision=precision), input_precision=precision)
    reader_keys = tl.where(until, tl.dot(reader, tl.trans(keys), input_precision=precision), 0.0)
    reader_rates = tl.where(until, tl.dot(reader, tl.trans(rates), input_precision=precision), 0.0)
    chunk = bh * T + t
    tl.store(_square(query_at + chunk * C * D, C, D), reader + tl.dot(reader_rates, P, input_precision=precision))
    tl.store(_square(own_at + chunk * C * D, C, D),
             tl.dot(reader_keys, v, input_precision=precision) + tl.dot(reader_rates, Q, input_precision=precision))
    feature = tl.arange(0, D)
    diagonal = tl.where(feature[:, None] == feature[None, :], tl.exp(end)[None, :], 0.0)
    tl.store(_square(keep_at + chunk * D * D, D, D),
             diagonal + tl.dot(tl.trans(P), rate * tail, input_precision=precision))
    tl.store(_square(new_at + chunk * D * D, D, D),
             tl.dot(tl.trans(v), k * tail, input_precision=precision)
             + tl.dot(tl.trans(Q), rate * tail, input_precision=precision))


@triton.jit
def _states(keep_at, new_at, state_at, states_at, last_at, T, D: tl.constexpr, E: tl.constexpr):
    """S before each chunk, (B·H, T, D, D), and after the last; a program has E of its rows."""
    part, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = part * E * D
    S = tl.load(_square(state_at + bh * D * D + rows, E, D))
    for t in range(T):
        at = (bh * T + t) * D * D
        tl.store(_square(states_at + at + rows, E, D), S)
        S = tl.dot(S, tl.load(_square(keep_at + at, D, D)), input_precision="ieee")
        S += tl.load(_square(new_at + at + rows, E, D))
    tl.store(_square(last_at + bh * D * D + rows, E, D), S)


@triton.jit
def _states_backward(keep_at, query_at, above_at, d_last_at, d_states_at, d_state_at, H, N, T, C: tl.constexpr,
                     D: tl.constexpr, E: tl.constexpr):
    """∂S after each chunk, (B·H, T, D, D), and before the first; `above` (B, N, H, D) is the gradient of y."""
    part, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, first = part * E * D, (bh // H * N * H + bh % H) * D + part * E
    d_after = tl.load(_square(d_last_at + bh * D * D + rows, E, D))
    for back in range(T):
        t = T - 1 - back
        at, n = (bh * T + t) * D * D, t * C + tl.arange(0, C)
        tl.store(_square(d_states_at + at + rows, E, D), d_after)
        above = _load(above_at + first, n, n < N, H * D, E)
        query = tl.load(_square(query_at + (bh * T + t) * C * D, C, D))
        d_after = tl.dot(d_after, tl.trans(tl.load(_square(keep_at + at, D, D))), input_precision="ieee")
        d_after += tl.dot(tl.trans(above), query, input_precision="ieee")
    tl.store(_square(d_state_at + bh * D * D + rows, E, D), d_after)


@triton.jit
def _chunks_backward(r_at, w_at, k_at, v_at, c_at, a_at, above_at, states_at, d_states_at, dr_at, dw_at, dk_at, dv_at,
                     dc_at, da_at, H, N, T, C: tl.constexpr, D: tl.constexpr, precision: tl.constexpr):
    """The gradients of all inputs of a chunk, from those of y and of S after it."""
    t, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n, row, first = t * C + tl.arange(0, C), tl.arange(0, C), (bh // H * N * H + bh % H) * D
    valid, stride = n < N, H * D
    log_w, G, end, r, k, c, a = _scaled(r_at + first, w_at + first, k_at + first, c_at + first, a_at + first, n, valid,
                                        stride, C, D)
    v, above = _load(v_at + first, n, valid, stride, D), _load(above_at + first, n, valid, stride, D)
    below, until = row[:, None] > row[None, :], row[:, None] >= row[None, :]
    S = tl.load(_square(states_at + (bh * T + t) * D * D, D, D))
    d_after = tl.load(_square(d_states_at + (bh * T + t) * D * D, D, D))
    growth, tail = tl.exp(-G), tl.exp(end[None, :] - G)
    remover, reader, keys, rates = -c * tl.exp(G - log_w), r * tl.exp(G), k * growth, c * a * growth
    keys_end, rates_end = k * tail, c * a * tail
    X = _inverse(tl.where(below, tl.dot(remover, tl.trans(rates), input_precision=precision), 0.0), C)
    remover_keys = tl.where(below, tl.dot(remover, tl.trans(keys), input_precision=precision), 0.0)
    P = tl.dot(X, remover, input_precision=precision)
    Q = tl.dot(X, tl.dot(remover_keys, v, input_precision=precision), input_precision=precision)
    reader_keys = tl.where(until, tl.dot(reader, tl.trans(keys), input_precision=precision), 0.0)
    reader_rates = tl.where(until, tl.dot(reader, tl.trans(rates), input_precision=precision), 0.0)
    # Y = query Sᵀ + own,  S' = S keep + new
    d_query = tl.dot(above, S, input_precision=precision)
    d_reader_rates = tl.where(until, tl.dot(d_query, tl.trans(P), input_precision=precision)
                   + tl.dot(above, tl.trans(Q), input_precision=precision), 0.0)
    d_reader_keys = tl.where(until, tl.dot(above, tl.trans(v), input_precision=precision), 0.0)
    onto = tl.dot(rates_end, tl.trans(d_after), input_precision=precision)  # B_e ∂S'ᵀ
    d_p = tl.dot(tl.trans(reader_rates), d_query, input_precision=precision)
    d_p += tl.dot(onto, S, input_precision=precision)
    d_q = tl.dot(tl.trans(reader_rates), above, input_precision=precision) + onto
    removed = tl.dot(P, tl.trans(S), input_precision=precision) + Q  # U
    d_rates_end = tl.dot(removed, d_after, input_precision=precision)
    d_keys_end = tl.dot(v, d_after, input_precision=precision)
    # P = X Ã,  Q = X (remover_keys V)
    d_remover = tl.dot(tl.trans(X), d_p, input_precision=precision)
    d_z = tl.dot(tl.trans(X), d_q, input_precision=precision)
    d_remover_rates = tl.where(below, tl.dot(d_remover, tl.trans(P), input_precision=precision)
                   + tl.dot(d_z, tl.trans(Q), input_precision=precision), 0.0)
    d_remover_keys = tl.where(below, tl.dot(d_z, tl.trans(v), input_precision=precision), 0.0)
    dv = (tl.dot(keys_end, tl.trans(d_after), input_precision=precision)
          + tl.dot(tl.trans(reader_keys), above, input_precision=precision)
          + tl.dot(tl.trans(remover_keys), d_z, input_precision=precision))
    _store(dv_at + first, n, valid, stride, D, dv)
    d_remover += tl.dot(d_remover_rates, rates, input_precision=precision)
    d_remover += tl.dot(d_remover_keys, keys, input_precision=precision)
    d_reader = d_query + tl.dot(d_reader_keys, keys, input_precision=precision)
    d_reader += tl.dot(d_reader_rates, rates, input_precision=precision)
    d_rates = (tl.dot(tl.trans(d_remover_rates), remover, input_precision=precision)
               + tl.dot(tl.trans(d_reader_rates), reader, input_precision=precision))
    d_keys = (tl.dot(tl.trans(d_remover_keys), remover, input_precision=precision)
              + tl.dot(tl.trans(d_reader_keys), reader, input_precision=precision))
    _store(dr_at + first, n, valid, stride, D, d_reader * tl.exp(G))
    _store(dk_at + first, n, valid, stride, D, d_keys * growth + d_keys_end * tail)
    d_rate = d_rates * growth + d_rates_end * tail
    _store(dc_at + first, n, valid, stride, D, d_rate * a - d_remover * tl.exp(G - log_w))
    _store(da_at + first, n, valid, stride, D, d_rate * c)
    # The decays: G is in every scale, G_C in those of the end, log w itself in that of Ã
    ends = d_keys_end * keys_end + d_rates_end * rates_end
    of_remover = d_remover * remover
    d_g = d_reader * reader + of_remover - d_keys * keys - d_rates * rates - ends
    d_end = tl.sum(ends, 0) + tl.sum(S * d_after, 0) * tl.exp(end)
    later = tl.where(row[:, None] <= row[None, :], 1.0, 0.0)
    d_log_w = tl.dot(later, d_g, input_precision="ieee") + d_end[None, :] - of_remover
    _store(dw_at + first, n, valid, stride, D, d_log_w)


class WKV7(torch.autograd.Function):
    """y (B, N, H, D) and S after the last token, (B, H, D, D), in float32; from inputs (B, N, H, D) and S before."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, c: Tensor, a: Tensor,
                state: Tensor) -> tuple[Tensor, Tensor]:
        inputs = [part.contiguous() for part in (r, log_w, k, v, c, a)]
        state = state.float().contiguous()
        B, N, H, D = r.shape
        T, precision = -(-N // CHUNK), _precision(r)
        query, own = (torch.empty(B * H, T, CHUNK, D, device=r.device) for _ in range(2))
        keep, new, states = (torch.empty(B * H, T, D, D, device=r.device) for _ in range(3))
        last = torch.empty_like(state)
        launch.launch(_chunks, (T, B * H), *inputs, query, own, keep, new, H, N, T, C=CHUNK, D=D, precision=precision,
                      num_warps=4)
        launch.launch(_states, (D // VALUE_BLOCK, B * H), keep, new, state, states, last, T, D=D, E=VALUE_BLOCK,
                      num_warps=4)
        y = torch.baddbmm(own.flatten(0, 1), query.flatten(0, 1), states.flatten(0, 1).mT)
        ctx.save_for_backward(*inputs, query, keep, states)
        y = y.view(B, H, T * CHUNK, D)[:, :, :N].transpose(1, 2)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        *inputs, query, keep, states = ctx.saved_tensors
        above, d_last = (part.float().contiguous() for part in upstream)
        B, N, H, D = inputs[0].shape
        T = states.shape[1]
        d_states, d_state = torch.empty_like(states), torch.empty_like(d_last)
        launch.launch(_states_backward, (D // VALUE_BLOCK, B * H), keep, query, above, d_last, d_states, d_state, H, N,
                      T, C=CHUNK, D=D, E=VALUE_BLOCK, num_warps=4)
        gradients = [torch.empty_like(part) for part in inputs]
        launch.launch(_chunks_backward, (T, B * H), *inputs, above, states, d_states, *gradients, H, N, T, C=CHUNK, D=D,
                      precision=_precision(inputs[0]), num_warps=8)
        return *gradients, d_state


def _precision(like: Tensor) -> str:
    """Products of float32 as exact as in float32; of shorter numbers in TF32, which has more bits than they have."""
    return "ieee" if INTERPRETED else "tf32x3" if like.dtype == torch.float32 else "tf32"


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels take heads of this width: inputs (B, H, N, D), keys and values alike."""
    return len({tensor.shape for tensor in tensors}) == 1 and tensors[0].shape[-1] in WIDTHS
