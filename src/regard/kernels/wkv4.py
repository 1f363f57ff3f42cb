"""The recurrence of RWKV-4 in Triton, in chunks, forward and backward.

    A_t = e^w A_{t-1} + e^{k_t} v_t,   B_t = e^w B_{t-1} + e^{k_t}                                 every channel
    y_t = (A_{t-1} + e^{u+k_t} v_t) / (B_{t-1} + e^{u+k_t})

So that no exponential overflows, A = a e^p and B = b e^p are stored as a, b and p:

    q_t = max(p_{t-1}, u+k_t)       α = e^{p_{t-1}-q_t},     β = e^{u+k_t-q_t};    y_t = (α a_{t-1} + β v_t) / d_t
    p_t = max(p_{t-1}+w, k_t)       γ = e^{p_{t-1}+w-p_t},   δ = e^{k_t-p_t};      a_t = γ a_{t-1} + δ v_t
                                    d_t = α b_{t-1} + β                            b_t = γ b_{t-1} + δ

Backward, with g_t = ∂y_t / d_t; exponents are constants for gradients, because no quotient depends on their choice:

    ∂a_{t-1} = γ ∂a_t + α g_t                   ∂b_{t-1} = γ ∂b_t - α g_t y_t
    ∂v_t = β g_t + δ ∂a_t                       ∂k_t = β g_t (v_t - y_t) + δ (v_t ∂a_t + ∂b_t)
    ∂u = Σ_t β g_t (v_t - y_t)                  ∂w = Σ_t α g_t (a'_{t-1} - y_t b'_{t-1}) + a'∂a + b'∂b

a' and b' are the derivatives of a and b by w: a'_t = γ (a'_{t-1} + a_{t-1}). They begin with 0 in every chunk, and ∂w
is summed over the chunks; its last two terms are those after the last token of a chunk.

    _sums               a program has a chunk of some channels: a, b and p of its tokens alone
    _carry              a program has some channels of a row, and goes through the chunks: a, b and p before each
    _outputs            a program has a chunk of some channels: y
    _outputs_backward   the same: g, ∂u, what the chunk adds to ∂a and ∂b before it, and a' and b' after it
    _carry_backward     the chunks of a row from the last to the first: ∂a and ∂b after each, ∂w
    _inputs_backward    a program has a chunk of some channels: ∂k and ∂v

Inside of a chunk the tokens follow one another: chunks and channels are enough to fill a GPU. A chunk has about √N
tokens, so that as many steps are needed inside of chunks as between them. Sums over rows and chunks are stored part by
part and added in a fixed order, so that gradients do not change from run to run. An absent token changes no state; its
y is that of a token that is read at its place. Everything is computed in float32. Grids have one dimension, because
CUDA takes at most 65,535 programs in the others; offsets are int64.

Legend: B rows, N tokens, D channels, T chunks, C tokens of a chunk. Planes are tensors of one shape, stored in one.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# (the arguments of kernels have the types of Triton)

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch
from regard.kernels.launch import once_differentiable

EMPTY = tl.constexpr(-1e38)
"""The exponent p of an empty sum."""
MIN_CHUNK = 16
"""Tokens of a chunk, at least."""
MAX_BLOCK = 128
"""Channels of a program, at most; a thread has one of them."""
SIZES = ["N", "T", "C", "plane", "state_plane"]
"""Arguments that change from batch to batch: the kernels are compiled once for all their values."""


@triton.jit
def _channels(program, D, block: tl.constexpr):
    """The row or chunk of a program, its channels, and which of these exist."""
    parts = tl.cdiv(D, block)
    channel = (program % parts).to(tl.int32) * block + tl.arange(0, block)
    return program // parts, channel, channel < D


@triton.jit
def _load(base, at, valid):
    """The numbers at these places in float32; zeros where a channel does not exist."""
    return tl.load(base + at, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def _load_planes(base, plane, at, valid):
    """The numbers at these places of three planes."""
    return _load(base, at, valid), _load(base, at + plane, valid), _load(base, at + plane + plane, valid)


@triton.jit
def _store(base, at, valid, value):
    """Write numbers in the dtype of their memory."""
    tl.store(base + at, value.to(base.dtype.element_ty), mask=valid)


@triton.jit
def _store_planes(base, plane, at, valid, first, second, third):
    """Write numbers to three planes."""
    _store(base, at, valid, first)
    _store(base, at + plane, valid, second)
    _store(base, at + plane + plane, valid, third)


@triton.jit
def _factors(p, other_p):
    """e^p and e^other_p, divided by the larger of them, and its exponent."""
    q = tl.maximum(p, other_p)
    return tl.exp(p - q), tl.exp(other_p - q), q


@triton.jit
def _add(a, b, p, other_a, other_b, other_p):
    """a e^p + other_a e^other_p and the same of b, as a, b and p of the sums."""
    mine, theirs, q = _factors(p, other_p)
    return mine * a + theirs * other_a, mine * b + theirs * other_b, q


@triton.jit
def _count(counts_at, chunk, t, N, C, padded: tl.constexpr):
    """How many tokens of chunk t of a row are present; `chunk` is its number among those of all rows."""
    if padded:
        count = tl.load(counts_at + chunk).to(tl.float32)
    else:
        count = tl.minimum(C, N - t * C).to(tl.float32)
    return count


@triton.jit(do_not_specialize=SIZES)
def _sums(k_at, v_at, w_at, present_at, sums_at, N, D, T, C, plane, block: tl.constexpr, padded: tl.constexpr):
    """a, b and p of every chunk, three planes (B, T, D); k and v are (B, N, D), w is (D,)."""
    chunk, channel, valid = _channels(tl.program_id(0).to(tl.int64), D, block)
    row, first = chunk // T, (chunk % T).to(tl.int32) * C
    w = _load(w_at, channel, valid)
    a, b, p = tl.zeros_like(w), tl.zeros_like(w), tl.zeros_like(w) + EMPTY
    for n in tl.range(first, tl.minimum(first + C, N)):
        at = (row * N + n) * D + channel
        k, v = _load(k_at, at, valid), _load(v_at, at, valid)
        after_a, after_b, after_p = _add(a, b, p + w, v, 1.0, k)
        if padded:
            there = tl.load(present_at + row * N + n)
            after_a, after_b = tl.where(there, after_a, a), tl.where(there, after_b, b)
            after_p = tl.where(there, after_p, p)
        a, b, p = after_a, after_b, after_p
    _store_planes(sums_at, plane, chunk * D + channel, valid, a, b, p)


@triton.jit(do_not_specialize=SIZES)
def _carry(sums_at, w_at, counts_at, state_at, last_at, N, D, T, C, plane, state_plane, block: tl.constexpr,
           padded: tl.constexpr):
    """Replace the sums of every chunk by those of all tokens before it, from `state` on; `last` has all of them."""
    row, channel, valid = _channels(tl.program_id(0).to(tl.int64), D, block)
    w = _load(w_at, channel, valid)
    a, b, p = _load_planes(state_at, state_plane, row * D + channel, valid)
    for t in tl.range(0, T):
        chunk = row * T + t
        at = chunk * D + channel
        own_a, own_b, own_p = _load_planes(sums_at, plane, at, valid)
        _store_planes(sums_at, plane, at, valid, a, b, p)
        passed = w * _count(counts_at, chunk, t, N, C, padded)
        a, b, p = _add(a, b, p + passed, own_a, own_b, own_p)
    _store_planes(last_at, state_plane, row * D + channel, valid, a, b, p)


@triton.jit(do_not_specialize=SIZES)
def _outputs(k_at, v_at, w_at, u_at, present_at, states_at, y_at, N, D, T, C, plane, block: tl.constexpr,
             padded: tl.constexpr):
    """y (B, N, D), from the sums before every chunk."""
    chunk, channel, valid = _channels(tl.program_id(0).to(tl.int64), D, block)
    row, first = chunk // T, (chunk % T).to(tl.int32) * C
    w, u = _load(w_at, channel, valid), _load(u_at, channel, valid)
    a, b, p = _load_planes(states_at, plane, chunk * D + channel, valid)
    for n in tl.range(first, tl.minimum(first + C, N)):
        at = (row * N + n) * D + channel
        k, v = _load(k_at, at, valid), _load(v_at, at, valid)
        numerator, denominator, _ = _add(a, b, p, v, 1.0, u + k)
        _store(y_at, at, valid, numerator / denominator)
        after_a, after_b, after_p = _add(a, b, p + w, v, 1.0, k)
        if padded:
            there = tl.load(present_at + row * N + n)
            after_a, after_b = tl.where(there, after_a, a), tl.where(there, after_b, b)
            after_p = tl.where(there, after_p, p)
        a, b, p = after_a, after_b, after_p


@triton.jit(do_not_specialize=SIZES)
def _outputs_backward(k_at, v_at, w_at, u_at, present_at, states_at, y_at, dy_at, g_at, exponent_at, added_at, ends_at,
                      du_at, N, D, T, C, plane, block: tl.constexpr, padded: tl.constexpr):
    """g and p before every token, and ∂u of every chunk.

    The planes of `added` are what a chunk adds to ∂a and ∂b before it, and the factor by which it multiplies those
    after it; the planes of `ends` are a' and b' after the chunk, and its first term of ∂w.
    """
    chunk, channel, valid = _channels(tl.program_id(0).to(tl.int64), D, block)
    row, first = chunk // T, (chunk % T).to(tl.int32) * C
    w, u = _load(w_at, channel, valid), _load(u_at, channel, valid)
    a, b, p = _load_planes(states_at, plane, chunk * D + channel, valid)
    slope_a, slope_b = tl.zeros_like(w), tl.zeros_like(w)  # a' and b'
    da, db, kept = tl.zeros_like(w), tl.zeros_like(w), tl.zeros_like(w) + 1.0
    dw, du = tl.zeros_like(w), tl.zeros_like(w)
    for n in tl.range(first, tl.minimum(first + C, N)):
        at = (row * N + n) * D + channel
        k, v = _load(k_at, at, valid), _load(v_at, at, valid)
        y, dy = _load(y_at, at, valid), _load(dy_at, at, valid)
        past, own, _ = _factors(p, u + k)
        g = dy / (past * b + own)
        _store(g_at, at, valid, g)
        _store(exponent_at, at, valid, p)
        du += g * own * (v - y)
        dw += g * past * (slope_a - y * slope_b)
        da += kept * past * g
        db -= kept * past * g * y
        past, own, after_p = _factors(p + w, k)
        after_slope_a, after_slope_b = past * (slope_a + a), past * (slope_b + b)
        after_a, after_b = past * a + own * v, past * b + own
        if padded:
            there = tl.load(present_at + row * N + n)
            after_slope_a = tl.where(there, after_slope_a, slope_a)
            after_slope_b = tl.where(there, after_slope_b, slope_b)
            after_a, after_b = tl.where(there, after_a, a), tl.where(there, after_b, b)
            after_p, past = tl.where(there, after_p, p), tl.where(there, past, 1.0)
        slope_a, slope_b, a, b, p = after_slope_a, after_slope_b, after_a, after_b, after_p
        kept *= past
    at = chunk * D + channel
    _store_planes(added_at, plane, at, valid, da, db, kept)
    _store_planes(ends_at, plane, at, valid, slope_a, slope_b, dw)
    _store(du_at, at, valid, du)


@triton.jit(do_not_specialize=SIZES)
def _carry_backward(added_at, ends_at, du_at, da_last_at, db_last_at, da_at, db_at, row_dw_at, row_du_at, D, T, plane,
                    block: tl.constexpr):
    """Replace what every chunk adds to ∂a and ∂b by ∂a and ∂b after it; those of the state, ∂w and ∂u, (B, D).

    p after a chunk and p before the next one differ by rounding, as `_carry` adds w for all tokens of a chunk at once.
    They are taken to be equal: a factor for the difference would bring its errors into the gradients.
    """
    row, channel, valid = _channels(tl.program_id(0).to(tl.int64), D, block)
    own = row * D + channel
    da, db = _load(da_last_at, own, valid), _load(db_last_at, own, valid)
    dw, du = tl.zeros_like(da), tl.zeros_like(da)
    for back in tl.range(0, T):
        at = (row * T + T - 1 - back) * D + channel
        added_a, added_b, kept = _load_planes(added_at, plane, at, valid)
        slope_a, slope_b, chunk_dw = _load_planes(ends_at, plane, at, valid)
        _store(added_at, at, valid, da)
        _store(added_at, at + plane, valid, db)
        dw += chunk_dw + da * slope_a + db * slope_b
        du += _load(du_at, at, valid)
        da, db = kept * da + added_a, kept * db + added_b
    _store(da_at, own, valid, da)
    _store(db_at, own, valid, db)
    _store(row_dw_at, own, valid, dw)
    _store(row_du_at, own, valid, du)


@triton.jit(do_not_specialize=SIZES)
def _inputs_backward(k_at, v_at, w_at, u_at, present_at, y_at, g_at, exponent_at, d_states_at, dk_at, dv_at, N, D, T, C,
                     plane, block: tl.constexpr, padded: tl.constexpr):
    """∂k and ∂v (B, N, D), from ∂a and ∂b after every chunk."""
    chunk, channel, valid = _channels(tl.program_id(0).to(tl.int64), D, block)
    row, first = chunk // T, (chunk % T).to(tl.int32) * C
    last = tl.minimum(first + C, N)
    w, u = _load(w_at, channel, valid), _load(u_at, channel, valid)
    da = _load(d_states_at, chunk * D + channel, valid)
    db = _load(d_states_at, chunk * D + channel + plane, valid)
    for back in tl.range(0, last - first):
        n = last - 1 - back
        at = (row * N + n) * D + channel
        k, v = _load(k_at, at, valid), _load(v_at, at, valid)
        y, g, p = _load(y_at, at, valid), _load(g_at, at, valid), _load(exponent_at, at, valid)
        kept, new, _ = _factors(p + w, k)
        if padded:
            there = tl.load(present_at + row * N + n)
            kept, new = tl.where(there, kept, 1.0), tl.where(there, new, 0.0)
        past, own, _ = _factors(p, u + k)
        _store(dk_at, at, valid, g * own * (v - y) + new * (v * da + db))
        _store(dv_at, at, valid, g * own + new * da)
        da, db = kept * da + past * g, kept * db - past * g * y


class WKV4(torch.autograd.Function):
    """y (B, N, D), and a, b and p after the last token, (B, D), all in float32.

    k and v are (B, N, D), w and u (D,); a, b and p before the first token are (B, D), and the present tokens (B, N) or
    None for all of them. p has no gradient.
    """

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, w: Tensor, u: Tensor, a: Tensor, b: Tensor, p: Tensor,
                present: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        k, v, w, u = (part.contiguous() for part in (k, v, w, u))
        present = None if present is None else present.contiguous()
        state, (B, N, D) = torch.stack([a.float(), b.float(), p.float()]), k.shape
        C = chunk_tokens(N)
        T = -(-N // C)
        counts = None if present is None else _counts(present, T, C)
        states, y = state.new_empty(3, B, T, D), state.new_empty(B, N, D)
        last, (parts, block) = torch.empty_like(state), _parts(D)
        sizes, options = (N, D, T, C, B * T * D), {**block, "padded": present is not None}
        there, number = _pointer(present, k), _pointer(counts, k)
        launch.launch(_sums, (B * T * parts,), k, v, w, there, states, *sizes, **options)
        launch.launch(_carry, (B * parts,), states, w, number, state, last, *sizes, B * D, **options)
        launch.launch(_outputs, (B * T * parts,), k, v, w, u, there, states, y, *sizes, **options)
        after_a, after_b, after_p = (part.clone() for part in last)
        ctx.save_for_backward(k, v, w, u, present, states, y)
        ctx.mark_non_differentiable(after_p)
        return y, after_a, after_b, after_p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        k, v, w, u, present, states, y = ctx.saved_tensors
        dy, da_last, db_last = (part.contiguous() for part in upstream[:3])
        (B, N, D), T = k.shape, states.shape[2]
        parts, block = _parts(D)
        sizes, options = (N, D, T, chunk_tokens(N), B * T * D), {**block, "padded": present is not None}
        there = _pointer(present, k)
        g, exponent = torch.empty_like(y), torch.empty_like(y)
        added, ends, du = torch.empty_like(states), torch.empty_like(states), torch.empty_like(states[0])
        launch.launch(_outputs_backward, (B * T * parts,), k, v, w, u, there, states, y, dy, g, exponent, added, ends,
                      du, *sizes, **options)
        da, db, row_dw, row_du = states.new_empty(4, B, D)
        launch.launch(_carry_backward, (B * parts,), added, ends, du, da_last, db_last, da, db, row_dw, row_du, D, T,
                      B * T * D, **block)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        launch.launch(_inputs_backward, (B * T * parts,), k, v, w, u, there, y, g, exponent, added, dk, dv, *sizes,
                      **options)
        return dk, dv, row_dw.sum(0), row_du.sum(0), da, db, None, None


def chunk_tokens(tokens: int) -> int:
    """The tokens of a chunk: about the square root of all of them."""
    return max(MIN_CHUNK, launch.next_power_of_2(math.isqrt(max(0, tokens - 1)) + 1))


def _counts(present: Tensor, chunks: int, tokens: int) -> Tensor:
    """How many tokens of every chunk are present, (B, T)."""
    padded = F.pad(present, (0, chunks * tokens - present.shape[1]))
    return padded.unflatten(1, (chunks, tokens)).sum(-1, dtype=torch.int32)


def _parts(channels: int) -> tuple[int, dict[str, int]]:
    """The programs that share the channels of a row, and the sizes of each."""
    block = min(MAX_BLOCK, launch.next_power_of_2(channels))
    return -(-channels // block), {"block": block, "num_warps": max(1, block // 32)}


def _pointer(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """The tensor, or another one where it is None and the kernel does not read it."""
    return otherwise if tensor is None else tensor
