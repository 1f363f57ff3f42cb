"""The recurrence of RWKV-7 in Triton, in chunks, forward and backward.

    S_t = S_{t-1} diag(w_t) - (S_{t-1} c_t)(c_t∘a_t)ᵀ + v_t k_tᵀ;   y_t = S_t r_t

With G = cumsum(log w) in a chunk of C tokens, β = c∘a and tril₋₁ the triangle below the diagonal:

    Ã = -c e^{G - log w},  R̃ = r e^G,  K̃ = k e^{-G},  B̃ = β e^{-G},  K_e = k e^{G_C - G},  B_e = β e^{G_C - G}
    X = (I - tril₋₁(ÃB̃ᵀ))⁻¹,   P = XÃ,   Q = X tril₋₁(ÃK̃ᵀ) V
    query = R̃ + tril(R̃B̃ᵀ) P,   own = tril(R̃K̃ᵀ) V + tril(R̃B̃ᵀ) Q            Y  = query Sᵀ + own
    change = Pᵀ B_e,   new = Vᵀ K_e + Qᵀ B_e                                   S' = S diag(e^{G_C}) + S change + new

Backward, with U = P Sᵀ + Q, which is X Z for Z = ÃSᵀ + tril₋₁(ÃK̃ᵀ) V:

    ∂S = ∂S' diag(e^{G_C}) + ∂S' changeᵀ + ∂Yᵀ query;     ∂U = tril(R̃B̃ᵀ)ᵀ ∂Y + B_e ∂S'ᵀ,   ∂Z = Xᵀ ∂U
    ∂R̃ = ∂Y S + tril(∂YVᵀ) K̃ + tril(∂YUᵀ) B̃              ∂K̃ = tril(∂YVᵀ)ᵀ R̃ + tril₋₁(∂ZVᵀ)ᵀ Ã,   ∂K_e = V ∂S'
    ∂Ã = ∂Z S + tril₋₁(∂ZVᵀ) K̃ + tril₋₁(∂ZUᵀ) B̃          ∂B̃ = tril(∂YUᵀ)ᵀ R̃ + tril₋₁(∂ZUᵀ)ᵀ Ã,   ∂B_e = U ∂S'
    ∂V = tril(R̃K̃ᵀ)ᵀ ∂Y + tril₋₁(ÃK̃ᵀ)ᵀ ∂Z + K_e ∂S'ᵀ

    _chunks             a program has a chunk of a head: X, query, own, change and new
    _states             a program has some value features of a head, and goes through the chunks: Y, and S before each
    _states_backward    the same in the other direction: ∂S after each chunk
    _values_backward    a program has a chunk of a head: U, ∂Z and ∂V
    _keys_backward      a program has a chunk of a head: the gradients of all other inputs

The gradients of a chunk take two kernels because one would need more registers than a GPU has. X is joined from blocks
of 1, 2, 4, … tokens: powers of the triangle would cancel where keys repeat. Where the inputs are bfloat16, so are the
factors of products, but not X, and sums are in float32. S goes from chunk to chunk in float32: its products are as
exact as in float32, and diag(e^{G_C}) is not part of them, because S may pass through thousands of chunks. Triton's
interpreter runs the same code on a CPU, for tests; it truncates where a GPU rounds to bfloat16. There is no padding
here: an absent token has log w = 0, k = 0 and c = 0, and so have the tokens after the last one in the last chunk. Grids
have one dimension, because CUDA takes at most 65,535 programs in the others; offsets are int64.

Legend: B rows, H heads, N tokens, T chunks, C tokens of a chunk, D features of a head, keys and values alike.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.launch import once_differentiable

INTERPRETED: bool = triton.knobs.runtime.interpret
WIDENED = tl.constexpr(INTERPRETED)
WIDTHS = (16, 32, 64, 128)
"""The features of a head that the kernels take."""


class Blocks(NamedTuple):
    """The sizes of the kernels. `benchmarks/rwkv.py blocks` times others."""

    chunk: int = 32
    """Tokens of a chunk, 16, 32 or 64: e^{-G} stays below e^20 in chunks of 32 tokens, below e^39 in chunks of 64."""
    value_block: int = 16
    """Value features of a program of `_states` and `_states_backward`."""
    key_block: int = 64
    """Key features of a program of `_keys_backward`, at most."""
    chunks_warps: int = 4
    states_warps: int = 4
    values_warps: int = 4
    keys_warps: int = 4
    stages: int = 2
    """Chunks that `_states` and `_states_backward` have in shared memory."""
    registers: int = 255
    """Registers of a thread, at most. Without a limit the assembler may choose 32 where 255 are too few."""
    states_registers: int = 128
    """The same for `_states` and `_states_backward`, of which four programs fit onto a multiprocessor with 128."""

    def for_width(self, width: int) -> "Blocks":
        """The same for heads of this width: more warps and registers above 64 features."""
        if width <= 64:
            return self
        return self._replace(chunks_warps=8, states_warps=8, values_warps=8, keys_warps=8, states_registers=255)


BLOCKS = {torch.bfloat16: Blocks(),
          torch.float32: Blocks(chunks_warps=8, values_warps=8, keys_warps=8, states_registers=255)}
"""By the dtype in which factors are multiplied: those of float32 take more registers."""


@triton.jit
def _tokens(bh, t, H, N, C: tl.constexpr, D: tl.constexpr):
    """The tokens n of chunk t, which of them exist, and where the head bh begins in a tensor (B, N, H, D)."""
    n = t * C + tl.arange(0, C)
    return n, n < N, (bh // H * N * H + bh % H) * D


@triton.jit
def _triangles(C: tl.constexpr):
    """Where a (C, C) matrix is below its diagonal, and where it is below or on it."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return row > column, row >= column


@triton.jit
def _load(base, n, valid, stride, D: tl.constexpr):
    """(C, D) numbers of the tokens n; zeros where a token is not valid."""
    at = n.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(base + at, mask=valid[:, None], other=0.0)


@triton.jit
def _wide(base, n, valid, stride, D: tl.constexpr):
    """The same in float32."""
    return _load(base, n, valid, stride, D).to(tl.float32)


@triton.jit
def _store(base, n, valid, stride, D: tl.constexpr, value):
    at = n.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(base + at, value.to(base.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _square(base, rows: tl.constexpr, columns: tl.constexpr):
    """The places of a dense matrix."""
    return base + tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]


@triton.jit
def _put(base, rows: tl.constexpr, columns: tl.constexpr, value):
    """Write a dense matrix in the dtype of its memory."""
    tl.store(_square(base, rows, columns), value.to(base.dtype.element_ty))


@triton.jit
def _dot(x, y, precision: tl.constexpr):
    """x y, summed in float32. The interpreter reads the bits of bfloat16 as integers: there it is widened first."""
    if WIDENED:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, input_precision=precision)


@triton.jit
def _add_dot(total, x, y, precision: tl.constexpr):
    """total + x y, the same way."""
    if WIDENED:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, total, input_precision=precision)


@triton.jit
def _join(X, A, size: tl.constexpr, C: tl.constexpr, precision: tl.constexpr):
    """Inverses of blocks of twice as many rows, from those of `size` rows.

    Below the diagonal X₂ L X₁ is missing, for two neighbouring inverses and the block L of A below the first.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    L = tl.where((row // (2 * size) == column // (2 * size)) & (row // size > column // size), A, 0.0)
    return X + _dot(_dot(X, L, precision), X, precision)


@triton.jit
def _inverse(A, C: tl.constexpr, precision: tl.constexpr):
    """(I - A)⁻¹ of a matrix of at most 64 rows that is 0 on and above its diagonal."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    X = tl.where(row == column, 1.0, tl.where(row // 2 == column // 2, A, 0.0))
    for level in tl.static_range(1, 6):
        if (1 << level) < C:
            X = _join(X, A, 1 << level, C, precision)
    return X


@triton.jit
def _chunks(r_at, w_at, k_at, v_at, c_at, a_at, inverse_at, query_at, own_at, decay_at, change_at, new_at, H, N, T,
            C: tl.constexpr, D: tl.constexpr, precision: tl.constexpr):
    """X (B·H, T, C, C), query and own (B·H, T, C, D), e^{G_C} (B·H, T, D), change and new (B·H, T, D, D) of a chunk.

    Inputs are (B, N, H, D). Products are computed in the dtype of `query`.
    """
    chunk = tl.program_id(0).to(tl.int64)
    bh, t, stride = chunk // T, (chunk % T).to(tl.int32), H * D
    n, valid, first = _tokens(bh, t, H, N, C, D)
    dtype: tl.constexpr = query_at.dtype.element_ty
    below, until = _triangles(C)
    log_w = _wide(w_at + first, n, valid, stride, D)
    G, end = tl.cumsum(log_w, 0), tl.sum(log_w, 0)
    growth, tail = tl.exp(-G), tl.exp(end[None, :] - G)
    c = _wide(c_at + first, n, valid, stride, D)
    rate = c * _wide(a_at + first, n, valid, stride, D)
    remover, rates = (-c * tl.exp(G - log_w)).to(dtype), (rate * growth).to(dtype)
    A = tl.where(below, _dot(remover, tl.trans(rates), precision), 0.0)
    X = _inverse(A, C, precision)
    _put(inverse_at + chunk * C * C, C, C, X)
    P = _dot(X, remover.to(tl.float32), precision).to(dtype)
    rates_end = (rate * tail).to(dtype)
    _put(change_at + chunk * D * D, D, D, _dot(tl.trans(P), rates_end, precision))
    tl.store(decay_at + chunk * D + tl.arange(0, D), tl.exp(end))
    k, v = _wide(k_at + first, n, valid, stride, D), _load(v_at + first, n, valid, stride, D).to(dtype)
    keys = (k * growth).to(dtype)
    remover_keys = tl.where(below, _dot(remover, tl.trans(keys), precision), 0.0).to(dtype)
    Q = _dot(X, _dot(remover_keys, v, precision), precision).to(dtype)
    new = _dot(tl.trans(v), (k * tail).to(dtype), precision)
    _put(new_at + chunk * D * D, D, D, _add_dot(new, tl.trans(Q), rates_end, precision))
    reader = _wide(r_at + first, n, valid, stride, D) * tl.exp(G)
    low_reader = reader.to(dtype)
    reader_rates = tl.where(until, _dot(low_reader, tl.trans(rates), precision), 0.0).to(dtype)
    _put(query_at + chunk * C * D, C, D, _add_dot(reader, reader_rates, P, precision))
    reader_keys = tl.where(until, _dot(low_reader, tl.trans(keys), precision), 0.0).to(dtype)
    own = _dot(reader_keys, v, precision)
    _put(own_at + chunk * C * D, C, D, _add_dot(own, reader_rates, Q, precision))


@triton.jit
def _states(query_at, own_at, decay_at, change_at, new_at, state_at, y_at, states_at, last_at, H, N, T,
            C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, precision: tl.constexpr, exact: tl.constexpr,
            stages: tl.constexpr):
    """Y (B, N, H, D), S before each chunk, (B·H, T, D, D), and after the last; a program has E rows of S."""
    program = tl.program_id(0).to(tl.int64)
    bh, part = program // (D // E), program % (D // E)
    rows, feature = part * E * D, tl.arange(0, D)
    own_places = tl.arange(0, C)[:, None] * D + part * E + tl.arange(0, E)[None, :]
    S = tl.load(_square(state_at + bh * D * D + rows, E, D))
    for t in tl.range(0, T, num_stages=stages):
        chunk = bh * T + t
        n, valid, first = _tokens(bh, t, H, N, C, D)
        at = chunk * D * D
        query = tl.load(_square(query_at + chunk * C * D, C, D))
        own = tl.load(own_at + chunk * C * D + own_places).to(tl.float32)
        change, new = tl.load(_square(change_at + at, D, D)), tl.load(_square(new_at + at + rows, E, D))
        decay = tl.load(decay_at + chunk * D + feature)[None, :]
        _put(states_at + at + rows, E, D, S)
        y = _add_dot(own, query, tl.trans(S.to(query.dtype)), precision)
        _store(y_at + first + part * E, n, valid, H * D, E, y)
        S = tl.fma(S, tl.broadcast_to(decay, (E, D)), _add_dot(new, S, change, exact))
    tl.store(_square(last_at + bh * D * D + rows, E, D), S)


@triton.jit
def _states_backward(query_at, decay_at, change_at, dy_at, d_last_at, d_states_at, d_state_at, H, N, T,
                     C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, precision: tl.constexpr, exact: tl.constexpr,
                     stages: tl.constexpr):
    """∂S after each chunk, (B·H, T, D, D), and before the first; dy is (B, N, H, D)."""
    program = tl.program_id(0).to(tl.int64)
    bh, part = program // (D // E), program % (D // E)
    rows, feature = part * E * D, tl.arange(0, D)
    d_after = tl.load(_square(d_last_at + bh * D * D + rows, E, D))
    for back in tl.range(0, T, num_stages=stages):
        t = T - 1 - back
        chunk = bh * T + t
        n, valid, first = _tokens(bh, t, H, N, C, D)
        query = tl.load(_square(query_at + chunk * C * D, C, D))
        change = tl.load(_square(change_at + chunk * D * D, D, D))
        decay = tl.load(decay_at + chunk * D + feature)[None, :]
        dy = _load(dy_at + first + part * E, n, valid, H * D, E).to(query.dtype)
        _put(d_states_at + chunk * D * D + rows, E, D, d_after)
        d_before = _add_dot(_dot(tl.trans(dy), query, precision), d_after, tl.trans(change), exact)
        d_after = tl.fma(d_after, tl.broadcast_to(decay, (E, D)), d_before)
    tl.store(_square(d_state_at + bh * D * D + rows, E, D), d_after)


@triton.jit
def _values_backward(r_at, w_at, k_at, v_at, c_at, a_at, inverse_at, dy_at, states_at, d_states_at, u_at, dz_at, dv_at,
                     H, N, T, C: tl.constexpr, D: tl.constexpr, precision: tl.constexpr):
    """U and ∂Z of a chunk, (B·H, T, C, D), and ∂V."""
    chunk = tl.program_id(0).to(tl.int64)
    bh, t, stride = chunk // T, (chunk % T).to(tl.int32), H * D
    n, valid, first = _tokens(bh, t, H, N, C, D)
    dtype: tl.constexpr = u_at.dtype.element_ty
    below, until = _triangles(C)
    log_w = _wide(w_at + first, n, valid, stride, D)
    G, end = tl.cumsum(log_w, 0), tl.sum(log_w, 0)
    growth, tail = tl.exp(-G), tl.exp(end[None, :] - G)
    c = _wide(c_at + first, n, valid, stride, D)
    remover = (-c * tl.exp(G - log_w)).to(dtype)
    S = tl.load(_square(states_at + chunk * D * D, D, D))
    Z = _dot(remover, tl.trans(S), precision)
    k = _wide(k_at + first, n, valid, stride, D)
    keys = (k * growth).to(dtype)
    remover_keys = tl.where(below, _dot(remover, tl.trans(keys), precision), 0.0).to(dtype)
    Z = _add_dot(Z, remover_keys, _load(v_at + first, n, valid, stride, D).to(dtype), precision)
    X = tl.load(_square(inverse_at + chunk * C * C, C, C))
    _put(u_at + chunk * C * D, C, D, _dot(X, Z, precision))
    d_after = tl.load(_square(d_states_at + chunk * D * D, D, D))
    dy = _load(dy_at + first, n, valid, stride, D).to(dtype)
    rate, reader = c * _wide(a_at + first, n, valid, stride, D), _wide(r_at + first, n, valid, stride, D)
    reader, rates = (reader * tl.exp(G)).to(dtype), (rate * growth).to(dtype)
    reader_rates = tl.where(until, _dot(reader, tl.trans(rates), precision), 0.0).to(dtype)
    du = _dot((rate * tail).to(dtype), tl.trans(d_after), precision)
    du = _add_dot(du, tl.trans(reader_rates), dy, precision)
    dz = _dot(tl.trans(X), du, precision).to(dtype)
    _put(dz_at + chunk * C * D, C, D, dz)
    reader_keys = tl.where(until, _dot(reader, tl.trans(keys), precision), 0.0).to(dtype)
    dv = _dot((k * tail).to(dtype), tl.trans(d_after), precision)
    dv = _add_dot(dv, tl.trans(reader_keys), dy, precision)
    dv = _add_dot(dv, tl.trans(remover_keys), dz, precision)
    _store(dv_at + first, n, valid, stride, D, dv)


@triton.jit
def _keys_backward(r_at, w_at, k_at, v_at, c_at, a_at, dy_at, states_at, d_states_at, u_at, dz_at, dr_at, dw_at, dk_at,
                   dc_at, da_at, H, N, T, C: tl.constexpr, D: tl.constexpr, F: tl.constexpr, precision: tl.constexpr):
    """The gradients of r, log w, k, c and a of F key features of a chunk.

    A gradient times its input is the same with every scale: ∂G = r∘∂r + Ã∘∂Ã - k∘∂k - β∘∂β.
    """
    program = tl.program_id(0).to(tl.int64)
    chunk, part = program // (D // F), program % (D // F) * F
    bh, t, stride = chunk // T, (chunk % T).to(tl.int32), H * D
    n, valid, first = _tokens(bh, t, H, N, C, D)
    dtype: tl.constexpr = u_at.dtype.element_ty
    below, until = _triangles(C)
    v, dy = _load(v_at + first, n, valid, stride, D).to(dtype), _load(dy_at + first, n, valid, stride, D).to(dtype)
    U, dz = tl.load(_square(u_at + chunk * C * D, C, D)), tl.load(_square(dz_at + chunk * C * D, C, D))
    d_reader_keys = tl.where(until, _dot(dy, tl.trans(v), precision), 0.0).to(dtype)
    d_reader_rates = tl.where(until, _dot(dy, tl.trans(U), precision), 0.0).to(dtype)
    d_remover_keys = tl.where(below, _dot(dz, tl.trans(v), precision), 0.0).to(dtype)
    d_remover_rates = tl.where(below, _dot(dz, tl.trans(U), precision), 0.0).to(dtype)
    at, places = first + part, chunk * D * D + part + tl.arange(0, D)[:, None] * D + tl.arange(0, F)[None, :]
    S, d_after = tl.load(states_at + places), tl.load(d_states_at + places)
    log_w = _wide(w_at + at, n, valid, stride, F)
    c, a = _wide(c_at + at, n, valid, stride, F), _wide(a_at + at, n, valid, stride, F)
    r, k = _wide(r_at + at, n, valid, stride, F), _wide(k_at + at, n, valid, stride, F)
    G, end = tl.cumsum(log_w, 0), tl.exp(tl.sum(log_w, 0))
    growth, shrinkage, before = tl.exp(-G), tl.exp(G), tl.exp(G - log_w)
    keys, rates = (k * growth).to(dtype), (c * a * growth).to(dtype)
    dr = _add_dot(_dot(dy, S, precision), d_reader_keys, keys, precision)
    dr = _add_dot(dr, d_reader_rates, rates, precision) * shrinkage
    _store(dr_at + at, n, valid, stride, F, dr)
    d_remover = _add_dot(_dot(dz, S, precision), d_remover_keys, keys, precision)
    d_remover = _add_dot(d_remover, d_remover_rates, rates, precision) * before
    d_end = tl.sum(S.to(tl.float32) * d_after.to(tl.float32), 0) * end
    reader, remover = (r * shrinkage).to(dtype), (-c * before).to(dtype)
    dk, d_rate = _dot(v, d_after, precision) * end[None, :], _dot(U, d_after, precision) * end[None, :]
    d_end += tl.sum((dk * k + d_rate * c * a) * growth, 0)
    dk = _add_dot(dk, tl.trans(d_reader_keys), reader, precision)
    dk = _add_dot(dk, tl.trans(d_remover_keys), remover, precision) * growth
    _store(dk_at + at, n, valid, stride, F, dk)
    d_rate = _add_dot(d_rate, tl.trans(d_reader_rates), reader, precision)
    d_rate = _add_dot(d_rate, tl.trans(d_remover_rates), remover, precision) * growth
    _store(da_at + at, n, valid, stride, F, d_rate * c)
    _store(dc_at + at, n, valid, stride, F, d_rate * a - d_remover)
    # G of a token sums its log w and those before it, so ∂log w sums ∂G of a token and of those after it: all of them
    # less those before. G_C is in the scales of the end, and Ã has G - log w.
    d_g = dr * r - d_remover * c - dk * k - d_rate * c * a
    d_log_w = (tl.sum(d_g, 0) + d_end)[None, :] - tl.cumsum(d_g, 0) + d_g + d_remover * c
    _store(dw_at + at, n, valid, stride, F, d_log_w)


class WKV7(torch.autograd.Function):
    """y (B, N, H, D) in the dtype of r, and S after the last token, (B, H, D, D), in float32.

    Inputs are (B, N, H, D); S before them, (B, H, D, D).
    """

    @staticmethod
    def forward(ctx: Any, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, c: Tensor, a: Tensor,
                state: Tensor) -> tuple[Tensor, Tensor]:
        inputs = [part.contiguous() for part in (r, log_w, k, v, c, a)]
        state, (B, N, H, D) = state.float().contiguous(), r.shape
        dtype, precision = _product_dtype(r), _precision(r)
        blocks = BLOCKS[dtype].for_width(D)
        C, E = blocks.chunk, min(D, blocks.value_block)
        T = -(-N // C)
        query, own, states = (r.new_empty(B * H, T, *shape, dtype=dtype) for shape in ((C, D), (C, D), (D, D)))
        X, decay, change, new = (r.new_empty(B * H, T, *shape, dtype=torch.float32)
                                 for shape in ((C, C), (D,), (D, D), (D, D)))
        y, last = torch.empty_like(inputs[0]), torch.empty_like(state)
        sizes = {"C": C, "D": D, "precision": precision}
        launch.launch(_chunks, (B * H * T,), *inputs, X, query, own, decay, change, new, H, N, T, **sizes,
                      num_warps=blocks.chunks_warps, maxnreg=blocks.registers)
        launch.launch(_states, (B * H * (D // E),), query, own, decay, change, new, state, y, states, last, H, N, T,
                      **sizes, E=E, exact=_exact(), stages=blocks.stages, num_warps=blocks.states_warps,
                      maxnreg=blocks.states_registers)
        ctx.save_for_backward(*inputs, X, query, decay, change, states)
        ctx.blocks = blocks
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        *inputs, X, query, decay, change, states = ctx.saved_tensors
        dy, d_last = upstream[0].contiguous(), upstream[1].float().contiguous()
        blocks, (B, N, H, D), T = ctx.blocks, inputs[0].shape, states.shape[1]
        E, F = min(D, blocks.value_block), min(D, blocks.key_block)
        sizes = {"C": blocks.chunk, "D": D, "precision": _precision(inputs[0])}
        d_states, d_state = torch.empty_like(states), torch.empty_like(d_last)
        launch.launch(_states_backward, (B * H * (D // E),), query, decay, change, dy, d_last, d_states, d_state, H, N,
                      T, **sizes, E=E, exact=_exact(), stages=blocks.stages, num_warps=blocks.states_warps,
                      maxnreg=blocks.states_registers)
        U, dz = torch.empty_like(query), torch.empty_like(query)
        dr, dw, dk, dv, dc, da = (torch.empty_like(part) for part in inputs)
        launch.launch(_values_backward, (B * H * T,), *inputs, X, dy, states, d_states, U, dz, dv, H, N, T, **sizes,
                      num_warps=blocks.values_warps, maxnreg=blocks.registers)
        launch.launch(_keys_backward, (B * H * T * (D // F),), *inputs, dy, states, d_states, U, dz, dr, dw, dk, dc,
                      da, H, N, T, **sizes, F=F, num_warps=blocks.keys_warps, maxnreg=blocks.registers)
        return dr, dw, dk, dv, dc, da, d_state


def _product_dtype(like: Tensor) -> torch.dtype:
    """The dtype of the factors of products. e^{-G} is too large for float16."""
    return torch.bfloat16 if like.dtype == torch.bfloat16 else torch.float32


def _precision(like: Tensor) -> str:
    """Products of float32 as exact as in float32; of shorter numbers in TF32, unless their dtype is bfloat16."""
    return "ieee" if INTERPRETED else "tf32x3" if like.dtype == torch.float32 else "tf32"


def _exact() -> str:
    """The precision of the products of S, which is that of float32."""
    return "ieee" if INTERPRETED else "tf32x3"


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels take heads of this width: inputs (B, H, N, D), keys and values alike."""
    return len({tensor.shape for tensor in tensors}) == 1 and tensors[0].shape[-1] in WIDTHS
