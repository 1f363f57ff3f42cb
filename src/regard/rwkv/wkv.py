"""The recurrences of RWKV on plain tensors: step by step, all at once, and as maps from values to results.

    version 4   wkv_t = (Σ_{i<t} e^{(t-1-i)w + k_i} v_i + e^{u+k_t} v_t) / (the same without v)        every channel
    version 7   S_t = S_{t-1} diag(w_t) - (S_{t-1} c_t)(c_t ∘ a_t)ᵀ + v_t k_tᵀ;   y_t = S_t r_t        every head

All at once, version 4 is a scan in log space: a sum is stored as a e^p and b e^p, all chunks run through their tokens
side by side, and what came before a chunk is added afterwards. Version 7 is chunked: with G = cumsum(log w) in a chunk,

    Ã = -c e^{G - log w},  K̃ = k e^{-G},  B̃ = (c∘a) e^{-G},  R̃ = r e^G
    U = (I - tril₋₁(ÃB̃ᵀ))⁻¹ (Ã Sᵀ + tril₋₁(ÃK̃ᵀ) V);   Y = R̃Sᵀ + tril(R̃K̃ᵀ) V + tril(R̃B̃ᵀ) U
    S' = S e^{G_C} + Vᵀ(K̃ e^{G_C}) + Uᵀ(B̃ e^{G_C})

Because log w > -e^{-1/2}, no e^{-G} of a chunk overflows. Everything is computed in float32 at least, whatever autocast
says. An absent token changes neither a state nor the results of others. This module knows neither layers nor shifts.

Legend: B rows, N tokens, D channels, H heads, K key features, V value features, T chunks, C tokens of a chunk.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.kernels.launch import usable

EMPTY = -1e38
"""The exponent p of an empty sum in version 4."""
CHUNK = 32
"""Tokens of a chunk in version 7."""
MAX_LOG_DECAY = math.exp(-0.5)
"""-log w of version 7 is below this number."""
MIN_NORM = 1e-12
"""The least divisor when version 7's removal keys are divided by their length."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _without_autocast(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function whose products autocast must not lower."""
    @wraps(function)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        device = next(one.device.type for one in arguments if isinstance(one, Tensor | WKV7Inputs))
        if not torch.is_autocast_enabled(device):
            return function(*arguments, **options)
        with torch.autocast(device, enabled=False):
            return function(*arguments, **options)

    return run


def _at_least_float32(*tensors: Tensor) -> list[Tensor]:
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


# ---- version 4 -------------------------------------------------------------------------------------------------------


class WKV4State(NamedTuple):
    """Numerator a e^p and denominator b e^p of version 4, (..., D) each."""

    a: Tensor
    b: Tensor
    p: Tensor

    def decayed(self, exponent: Tensor) -> "WKV4State":
        """The state, multiplied by e^exponent."""
        return WKV4State(self.a, self.b, self.p + exponent)

    def add(self, other: "WKV4State") -> "WKV4State":
        """The sum of both. The exponents are constants for gradients: the quotient does not depend on their choice."""
        q = torch.maximum(self.p, other.p).detach()
        mine, theirs = torch.exp(self.p - q), torch.exp(other.p - q)
        return WKV4State(mine * self.a + theirs * other.a, mine * self.b + theirs * other.b, q)

    def quotient(self) -> Tensor:
        """a / b."""
        return self.a / self.b


def empty_wkv4(like: Tensor) -> WKV4State:
    """The state before the first token, in the shape of `like`."""
    return WKV4State(torch.zeros_like(like), torch.zeros_like(like), torch.full_like(like, EMPTY))


@_without_autocast
def wkv4_step(k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: WKV4State) -> tuple[Tensor, WKV4State]:
    """One token: k, v (B, D); w, u (D,) -> wkv (B, D) and the next state."""
    k, v, w, u = _at_least_float32(k, v, w, u)
    zero = torch.zeros_like(w)
    return wkv4_token(k, v, torch.stack([zero, w]).unsqueeze(1), torch.stack([u, zero]).unsqueeze(1), state)


def wkv4_token(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: WKV4State) -> tuple[Tensor, WKV4State]:
    """One token as in `wkv4_step`; decay and bonus (2, 1, D) in one dtype: 0 and u for y, w and 0 for the state."""
    past, own = state.p + decay, k + bonus  # the exponents of what came before, and of this token
    q = torch.maximum(past, own).detach()
    past, own = torch.exp(past - q), torch.exp(own - q)
    numerator, denominator = torch.addcmul(own * v, past, state.a), torch.addcmul(own, past, state.b)
    return numerator[0] / denominator[0], WKV4State(numerator[1], denominator[1], q[1])


@_without_autocast
def wkv4(k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: WKV4State | None = None,
         present_BN: Tensor | None = None) -> tuple[Tensor, WKV4State]:
    """All tokens at once: k, v (B, N, D); w, u (D,) -> wkv (B, N, D) and the state after the last token.

    An absent token gets the result of a token that is read at its place. On a GPU in kernels of our own.
    """
    if usable(k, v, w, u, *(state or ())):
        from regard.kernels import wkv4 as kernels  # imports Triton

        before = empty_wkv4(k[:, 0].float()) if state is None else state
        y, *after = kernels.WKV4.apply(k, v, w, u, *before, present_BN)
        return y, WKV4State(*after)
    return wkv4_scan(k, v, w, u, state, present_BN)


@_without_autocast
def wkv4_scan(k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: WKV4State | None = None,
              present_BN: Tensor | None = None) -> tuple[Tensor, WKV4State]:
    """The same as `wkv4` in plain torch operations, on any device."""
    k, v, w, u = _at_least_float32(k, v, w, u)
    B, N, D = k.shape
    before = empty_wkv4(k.new_zeros(B, D)) if state is None else WKV4State(*_at_least_float32(*state))
    if N == 0:
        return v, before
    C = math.ceil(math.sqrt(N))  # so that as many steps are needed inside of chunks as between them
    T = -(-N // C)
    there = k.new_ones(B, N) if present_BN is None else present_BN.to(k.dtype)
    padding = T * C - N
    k_BTCD, v_BTCD = (F.pad(part, (0, 0, 0, padding)).view(B, T, C, D) for part in (k, v))
    there_BTC1 = F.pad(there, (0, padding)).view(B, T, C, 1)
    seen_BTC1 = there_BTC1.cumsum(2)
    inside, total = _scan_chunks(k_BTCD, v_BTCD, w, there_BTC1)
    carried = []
    for t in range(T):
        carried.append(before)
        before = before.decayed(w * seen_BTC1[:, t, -1]).add(WKV4State(*(part[:, t] for part in total)))
    earlier = WKV4State(*(torch.stack(parts, 1).unsqueeze(2) for parts in zip(*carried, strict=True)))
    past = earlier.decayed(w * (seen_BTC1 - there_BTC1)).add(inside)
    y = past.add(WKV4State(v_BTCD, torch.ones_like(v_BTCD), u + k_BTCD)).quotient()
    return y.view(B, T * C, D)[:, :N], before


def _scan_chunks(k_BTCD: Tensor, v_BTCD: Tensor, w: Tensor, there_BTC1: Tensor) -> tuple[WKV4State, WKV4State]:
    """The sums over the earlier tokens of the same chunk, (B, T, C, D), and over whole chunks, (B, T, D)."""
    states, state = [], empty_wkv4(k_BTCD[:, :, 0])
    for k, v, there in zip(k_BTCD.unbind(2), v_BTCD.unbind(2), there_BTC1.unbind(2), strict=True):
        states.append(state)
        exponent = k.masked_fill(there == 0, EMPTY)
        state = state.decayed(w * there).add(WKV4State(v * there, there.expand_as(v), exponent))
    return WKV4State(*(torch.stack(parts, 2) for parts in zip(*states, strict=True))), state


@_without_autocast
def wkv4_map(k: Tensor, w: Tensor, u: Tensor, present_BN: Tensor | None = None) -> Tensor:
    """M (B, D, N, N) with M·v = wkv for every channel, in closed form; rows of present tokens sum to 1."""
    k, w, u = _at_least_float32(k, w, u)
    B, N, D = k.shape
    position = torch.arange(N, device=k.device)
    distance = position.unsqueeze(-1) - 1 - position
    scores = k.mT.unsqueeze(2) + distance.to(k.dtype) * w[:, None, None]
    own = (k + u).mT.unsqueeze(-1).expand(B, D, N, N)
    scores = torch.where(distance == -1, own, scores).masked_fill(distance < -1, -math.inf)
    if present_BN is not None:
        scores = scores.masked_fill(~present_BN[:, None, None], -math.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) * (1.0 if present_BN is None else present_BN[:, None, :, None])


# ---- version 7 -------------------------------------------------------------------------------------------------------


class WKV7Inputs(NamedTuple):
    """What version 7 reads of every token: (B, H, N, K) each, v (B, H, N, V)."""

    r: Tensor
    log_w: Tensor
    """log of the decay w, from -e^{-1/2} to 0."""
    k: Tensor
    v: Tensor
    c: Tensor
    """The removal key, of length 1 for every head; κ̂ in the paper."""
    a: Tensor
    """The in-context learning rate."""

    @property
    def device(self) -> torch.device:
        return self.r.device

    def wide(self) -> "WKV7Inputs":
        """The same in one dtype, float32 at least."""
        r, log_w, k, v, c, a = self
        if r.dtype == log_w.dtype == k.dtype == v.dtype == c.dtype == a.dtype and r.dtype.itemsize >= 4:
            return self
        return WKV7Inputs(*_at_least_float32(*self))

    def without_absent(self, present_BN: Tensor | None) -> "WKV7Inputs":
        """The same with absent tokens that neither decay, remove nor add anything."""
        if present_BN is None:
            return self
        absent = ~present_BN[:, None, :, None]
        log_w, k, c = (part.masked_fill(absent, 0.0) for part in (self.log_w, self.k, self.c))
        return self._replace(log_w=log_w, k=k, c=c)


def empty_wkv7(inputs: WKV7Inputs) -> Tensor:
    """S before the first token, (B, H, V, K)."""
    B, H, _, K = inputs.k.shape
    return inputs.k.new_zeros(B, H, inputs.v.shape[-1], K)


@_without_autocast
def wkv7_step(inputs: WKV7Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token: inputs (B, H, 1, K), S (B, H, V, K) -> y (B, H, 1, V) and the next S."""
    r, log_w, k, v, c, a = inputs.wide()
    return wkv7_token(r, torch.exp(log_w), k, v, c, c * a, state.to(r.dtype))


def wkv7_token(r: Tensor, w: Tensor, k: Tensor, v: Tensor, c: Tensor, b: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One token as in `wkv7_step`, of tensors in one dtype, with w itself and b = c∘a."""
    # Row vectors times matrices: on a CPU, `bmm` takes four times as long for matrices times column vectors.
    removed = c @ S.mT
    after = (S * w).addcmul_(v.mT, k).addcmul_(removed.mT, b, value=-1.0)
    return r @ after.mT, after


@_without_autocast
def wkv7_recurrent(inputs: WKV7Inputs, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One token after another: y (B, H, N, V), and S after the last token."""
    inputs = inputs.wide()
    state = empty_wkv7(inputs) if state is None else state
    results = [inputs.v[:, :, :0]]
    for t in range(inputs.r.shape[2]):
        y, state = wkv7_step(WKV7Inputs(*(part[:, :, t:t + 1] for part in inputs)), state)
        results.append(y)
    return torch.cat(results, 2), state


@_without_autocast
def wkv7_chunked(inputs: WKV7Inputs, state: Tensor | None = None, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """All tokens at once, in chunks: y (B, H, N, V), and S after the last token. On a GPU in kernels of our own."""
    if chunk == CHUNK and inputs.k.shape[2] > 1 and usable(*inputs):
        from regard.kernels import wkv7  # imports Triton

        if wkv7.fits(*inputs):
            before = empty_wkv7(inputs) if state is None else state
            y, after = wkv7.WKV7.apply(*(part.transpose(1, 2) for part in inputs), before)
            return y.transpose(1, 2), after
    inputs = inputs.wide()
    B, H, N, K = inputs.k.shape
    V, C = inputs.v.shape[-1], max(1, min(chunk, N))
    S = (empty_wkv7(inputs) if state is None else state.to(inputs.r.dtype))
    if N == 0:
        return inputs.v, S
    T = -(-N // C)
    r, log_w, k, v, c, a = (F.pad(part, (0, 0, 0, T * C - N)).unflatten(2, (T, C)) for part in inputs)
    G = log_w.cumsum(-2)
    growth, shrinkage, end = torch.exp(-G), torch.exp(G), torch.exp(G[..., -1:, :] - G)
    rate = c * a
    remover, reader = -c * torch.exp(G - log_w), r * shrinkage  # Ã and R̃
    written = torch.cat([k * growth, rate * growth], -2).mT  # K̃ and B̃ side by side
    remover_keys, remover_rates = _lower_blocks(remover @ written, -1)
    reader_keys, reader_rates = _lower_blocks(reader @ written, 0)
    identity = torch.eye(C, dtype=r.dtype, device=r.device)
    solved = torch.linalg.solve_triangular(identity - remover_rates, torch.cat([remover, remover_keys @ v], -1),
                                           upper=False, unitriangular=True)
    P, Q = solved.split([K, V], -1)  # U = P Sᵀ + Q
    query, own = reader + reader_rates @ P, reader_keys @ v + reader_rates @ Q  # Y = query Sᵀ + own
    rate_end = rate * end
    keep = torch.diag_embed(shrinkage[..., -1, :]) + P.mT @ rate_end  # S' = S keep + new
    new = v.mT @ (k * end) + Q.mT @ rate_end
    states = []
    for kept, added in zip(keep.unbind(2), new.unbind(2), strict=True):
        states.append(S)
        S = S @ kept + added
    y = query @ torch.stack(states, 2).mT + own
    return y.reshape(B, H, T * C, V)[:, :, :N], S


def _lower_blocks(product: Tensor, diagonal: int) -> tuple[Tensor, Tensor]:
    """The lower triangles of the two square halves of (..., C, 2C)."""
    first, second = product.chunk(2, -1)
    return first.tril(diagonal), second.tril(diagonal)


def wkv7_map(inputs: WKV7Inputs) -> Tensor:
    """M (B, H, N, N), signed, with M·v = y: the results for values that are one-hot vectors of their token."""
    B, H, N, _ = inputs.k.shape
    one_hot = torch.eye(N, dtype=inputs.v.dtype, device=inputs.v.device).expand(B, H, N, N)
    return wkv7_chunked(inputs._replace(v=one_hot))[0]
