"""RWKV's time mix as a mixer: `RWKV4`, `RWKV7`, and `BothDirections` for encoders.

    x' = the token before x (zeros before the first);   mix(x, m) = x + m ∘ (x' - x)

    version 4   r, k, v = W mix(x, m);   w = -exp(decay);   y = W_o (σ(r) ∘ wkv)
    version 7   w = exp(-e^{-1/2} σ(w0 + tanh(x_w w1) w2));   a = σ(a0 + x_a a1 a2);   g = σ(x_g g1) g2
                c = normalize(k ∘ k_k) for every head;   k ← k ∘ (1 + (a-1) ∘ k_a)
                v ← v + (v_first - v) ∘ σ(v0 + x_v v1 v2)                              in all layers but the first
                y = W_o (g ∘ (GroupNorm(S r) + (Σ r∘k∘r_k) v))

The recurrences themselves, wkv and S, are in `wkv`. The names of the parameters are those of RWKV's own files; x_w is
mix(x, x_w). The values of the first layer, v_first, come to later layers in a `FirstValues`, which a stack makes for
each pass: the first layer writes them, the others read them.

Each mixer has a `tap`, which passes on what its map M is computed from (`maps`) when it runs over all tokens at once.
A step does not, because the earlier tokens are only in its state.

The state of a row has a constant size: the last token, and (a, b, p) in version 4 or S in version 7, in float32 at
least. Without gradients, a step of one token is a packed step (`packed_step`).

Sources: Peng et al. 2023 (RWKV-4), Peng et al. 2025 (RWKV-7); initial values as in BlinkDL/RWKV-LM.

Legend: B rows, N tokens, D width, H heads, K features of a head.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import checks
from regard.attention.look import Tap
from regard.attention.mask import Padding
from regard.attention.mask_cache import present_tokens, zero_absent
from regard.config import Config, integer
from regard.kernels.linear import Linear
from regard.mixer import FirstValues, RowState, check_input
from regard.rwkv.maps import RWKV4Look, RWKV7Look
from regard.rwkv.packed_step import (
    PackedRWKV4,
    PackedRWKV7,
    Stamp,
    can_pack,
    can_run,
    is_hooked,
    stack_padded,
    stack_transposed,
    stamp,
)
from regard.rwkv.wkv import (
    MAX_LOG_DECAY,
    MIN_NORM,
    WKV4State,
    WKV7Inputs,
    wkv4,
    wkv7_chunked,
)

DIRECTIONS = {"forward": False, "backward": True}
"""Whether the tokens are read from the last to the first."""
GROUP_EPSILON = 64e-5
"""ε of version 7's norm over the features of a head."""


class LayerPlace(NamedTuple):
    """The place of a layer in its stack, on which initial values depend."""

    layer: int
    """From 0."""
    layers: int

    @property
    def depth(self) -> float:
        """0 for the first layer, 1 for the last."""
        return self.layer / max(1, self.layers - 1)

    @property
    def remaining(self) -> float:
        """1 for the first layer, 1 / layers for the last."""
        return 1.0 - self.layer / self.layers


@dataclass(frozen=True)
class TimeMixState(RowState):
    """The state of a time mix: the last token of each row, and the recurrence's tensors."""

    packed: PackedRWKV4 | PackedRWKV7 | None = None
    """The parameters of the mixer, packed for steps of one token; None before the first such step."""


def check_place(place: LayerPlace) -> None:
    """Refuse a layer that its stack does not have."""
    checks.whole_number("layers", place.layers, 1)
    if not 0 <= place.layer < place.layers:
        raise checks.wrong("layer", f"from 0 to {place.layers - 1}, the last of the layers", place.layer)


def check_state(state: RowState, x: Tensor, tensors: int) -> None:
    """Refuse a state that has not this number of tensors, or not the rows and the width of x, (B, n, D)."""
    if len(state.tensors) != tensors or state.tensors[0].shape != (x.shape[0], x.shape[-1]):
        got = ", ".join(checks.shape(tensor) for tensor in state.tensors)
        raise checks.wrong("state", f"a state of this mixer, for the {x.shape[0]} rows of x", f"one of shape {got}",
                           f"Get it from start(rows={x.shape[0]}).")


def shift_tokens(x: Tensor, last_BD: Tensor | None = None) -> Tensor:
    """x' (B, N, D): the token before each token; before the first one `last_BD`, by default zeros."""
    if last_BD is None:
        return F.pad(x, (0, 0, 1, 0))[:, :x.shape[1]]
    if x.shape[1] == 1:
        return last_BD.to(x.dtype).unsqueeze(1)
    return torch.cat([last_BD.to(x.dtype).unsqueeze(1), x], 1)[:, :x.shape[1]]


def last_tokens(x: Tensor, last_BD: Tensor, lengths: Tensor | None) -> Tensor:
    """The last token of each row, (B, D): of its `lengths` tokens of x, or `last_BD` where it has none."""
    if x.shape[1] == 0:
        return last_BD
    if lengths is None:
        return x[:, -1].to(last_BD.dtype)
    index = (lengths.to(x.device) - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[-1])
    found = x.gather(1, index).squeeze(1).to(last_BD.dtype)
    return torch.where((lengths.to(x.device) > 0).unsqueeze(-1), found, last_BD)


class TimeMix(nn.Module, ABC):
    """The base of both versions: the direction, the token shift, the state."""

    shares_values: ClassVar[bool] = False
    """Whether the mixer reads or writes the `FirstValues` of a stack."""
    state_tensors: ClassVar[int]
    """The number of tensors of a state: the last token, and those of the recurrence."""

    def __init__(self, width: int, place: LayerPlace, direction: str, output_bias: bool) -> None:
        super().__init__()
        checks.whole_number("width", width, 1)
        check_place(place)
        self.width, self.place, self.direction = width, place, direction
        self.reverse = checks.pick("direction", direction, DIRECTIONS)
        self.receptance, self.key, self.value = (Linear(width, width, bias=False) for _ in range(3))
        self.output = Linear(width, width, bias=output_bias)
        self.tap = Tap()

    @abstractmethod
    def initial(self, rows: int) -> tuple[Tensor, ...]:
        """The recurrence's part of the state before the first token."""

    @abstractmethod
    def pack(self, made: Stamp) -> PackedRWKV4 | PackedRWKV7:
        """Pack the parameters, whose stamp is `made`, for steps of one token."""

    @abstractmethod
    def mix_one(self, x: Tensor, last: Tensor, memory: tuple[Tensor, ...], packed: Any,
                first: FirstValues | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result (B, D) of one token x (B, D), and the recurrence's part of the next state, by a packed step."""

    @abstractmethod
    def mix(self, x: Tensor, shifted: Tensor, memory: tuple[Tensor, ...] | None, there_BN: Tensor | None,
            first: FirstValues | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result (B, N, D) of tokens and their predecessors, and the recurrence's part of the next state."""

    def forward(self, x: Tensor, present: Padding | None = None, first: FirstValues | None = None) -> Tensor:
        """Run over all tokens at once: (B, N, D) -> (B, N, D). Tokens that are not `present` are skipped.

        Args:
            present: the tokens that are not padding. Default: all of them.
            first: the values of the first layer of the stack, in version 7.
        """
        check_input(x, self.width)
        there_BN = present_tokens(x, present)
        x = zero_absent(x, there_BN)
        if self.reverse:
            x, there_BN = x.flip(1), None if there_BN is None else there_BN.flip(1)
        y, _ = self.mix(x, shift_tokens(x), None, there_BN, first)
        y = zero_absent(y, there_BN)
        return y.flip(1) if self.reverse else y

    def start(self, rows: int, capacity: int | None = None) -> RowState:
        """Return the state before the first token. It does not grow with the tokens; `capacity` is not used."""
        return TimeMixState((self.key.weight.new_zeros(rows, self.width), *self.initial(rows)))

    def step(self, x: Tensor, state: RowState, *, lengths: Tensor | None = None,
             first: FirstValues | None = None) -> tuple[Tensor, RowState]:
        """Continue with one token or a chunk of them, (B, n, D). The old state is not changed.

        Args:
            lengths: how many of the n tokens each row has, (B,); the others give zeros. Default: all of them.
            first: the values of the first layer of the stack in this step, in version 7.
        """
        check_input(x, self.width)
        if self.reverse:
            raise checks.wrong("direction", '"forward" to compute step by step', f'"{self.direction}"',
                               "A step cannot read the tokens after it.")
        check_state(state, x, self.state_tensors)
        last_BD, *memory = state.tensors
        packed = state.packed if isinstance(state, TimeMixState) else None
        if lengths is None and x.dtype == last_BD.dtype and can_run(x):
            packed = self._current(packed)
            if packed is not None:
                x = x.squeeze(1)
                y, after = self.mix_one(x, last_BD, tuple(memory), packed, first)
                return y.unsqueeze(1), TimeMixState((x, *after), packed)
        own = None if lengths is None else Padding(lengths)
        there_BN = present_tokens(x, own, "lengths")
        x = zero_absent(x, there_BN)
        y, after = self.mix(x, shift_tokens(x, last_BD), tuple(memory), there_BN, first)
        last_BD = last_tokens(x, last_BD, None if own is None else own.lengths)
        return zero_absent(y, there_BN), TimeMixState((last_BD, *after), packed)

    def _current(self, packed: PackedRWKV4 | PackedRWKV7 | None) -> PackedRWKV4 | PackedRWKV7 | None:
        """The packed parameters as they are now; None where a packed step would not compute the same."""
        layers, parameters = self._packed_modules(), [*self._parameters.values()]
        for layer in layers:
            if is_hooked(layer):
                return None
            parameters += layer._parameters.values()
        given = [parameter for parameter in parameters if parameter is not None]
        if packed is not None and packed.stamp == stamp(given):
            return packed
        return self.pack(stamp(given)) if can_pack(given, layers) else None

    def _packed_modules(self) -> tuple[nn.Module, ...]:
        """The modules whose parameters are packed with those of the mixer."""
        return ()

    def _float_state(self, *shape: int) -> Tensor:
        """Zeros in float32 at least, on the device of the parameters."""
        weight = self.key.weight
        return weight.new_zeros(*shape, dtype=torch.promote_types(weight.dtype, torch.float32))

    def extra_repr(self) -> str:
        return f'{self.width}, direction="{self.direction}"'


class RWKV4(TimeMix):
    """The time mix of RWKV-4, as a mixer: (B, N, width) -> (B, N, width).

    Args:
        width: the width of x and of the result.
        layer: the number of this layer in its stack, from 0; initial values depend on it.
        layers: the number of layers of the stack.
        direction: "forward", or "backward" to read from the last token to the first.

    Its `decay` and `bonus` are those of the equations, a number for each channel.
    """

    state_tensors = 4

    def __init__(self, width: int, *, layer: int = 0, layers: int = 1, direction: str = "forward") -> None:
        super().__init__(width, LayerPlace(layer, layers), direction, output_bias=False)
        self.decay, self.bonus = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.x_r, self.x_k, self.x_v = (nn.Parameter(torch.empty(width)) for _ in range(3))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new initial values: ramps over the channels for the mixes and the decay, zeros for the output."""
        D, place = self.width, self.place
        channel = torch.arange(D, dtype=torch.float64)
        ramp, whole = channel / D, channel / max(1, D - 1)
        self.x_r.copy_(1.0 - ramp ** (0.5 * place.remaining))
        self.x_k.copy_(1.0 - ramp**place.remaining)
        self.x_v.copy_(1.0 - (ramp**place.remaining + 0.3 * place.depth))
        self.decay.copy_(-5.0 + 8.0 * whole ** (0.7 + 1.3 * place.depth))
        self.bonus.copy_(math.log(0.3) + 0.5 * ((channel + 1) % 3 - 1))
        nn.init.orthogonal_(self.value.weight)
        for linear in (self.receptance, self.key, self.output):
            nn.init.zeros_(linear.weight)

    def initial(self, rows: int) -> tuple[Tensor, ...]:
        zeros = self._float_state(rows, self.width)
        return zeros, zeros.clone(), torch.full_like(zeros, -1e38)

    def mix(self, x: Tensor, shifted: Tensor, memory: tuple[Tensor, ...] | None, there_BN: Tensor | None,
            first: FirstValues | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        k, v, w = self._keys(x, shifted)
        r = self.receptance(torch.lerp(x, shifted, self.x_r.to(x.dtype)))
        state = None if memory is None else WKV4State(*memory)
        if state is None and self.tap.listeners:
            self.tap.send(RWKV4Look(_detached(k, w, self.bonus), there_BN, self.reverse))
        wkv, after = wkv4(k, v, w, self.bonus, state, there_BN)
        return self.output((torch.sigmoid(r) * wkv).to(x.dtype)), tuple(after)

    def _keys(self, x: Tensor, shifted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k = self.key(torch.lerp(x, shifted, self.x_k.to(x.dtype)))
        v = self.value(torch.lerp(x, shifted, self.x_v.to(x.dtype)))
        return k, v, self._log_decay()

    def _log_decay(self) -> Tensor:
        return -torch.exp(self.decay.to(torch.promote_types(self.decay.dtype, torch.float32)))

    @torch.no_grad()
    def pack(self, made: Stamp) -> PackedRWKV4:
        w = self._log_decay()
        zero = torch.zeros_like(w)
        return PackedRWKV4(made, self.receptance, self.key, self.value, self.output,
                           mixes=torch.stack([self.x_r, self.x_k, self.x_v]).unsqueeze(1),
                           decay=torch.stack([zero, w]).unsqueeze(1),
                           bonus=torch.stack([self.bonus.to(w.dtype), zero]).unsqueeze(1))

    def mix_one(self, x: Tensor, last: Tensor, memory: tuple[Tensor, ...], packed: PackedRWKV4,
                first: FirstValues | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        return packed.step(x, last, WKV4State(*memory))


class RWKV7(TimeMix):
    """The time mix of RWKV-7, as a mixer: (B, N, width) -> (B, N, width).

    Args:
        width: the width of x and of the result.
        head_width: the features of a head; it divides the width.
        layer: the number of this layer in its stack, from 0. Later layers than the first mix in its values.
        layers: the number of layers of the stack; initial values depend on it.
        direction: "forward", or "backward" to read from the last token to the first.
        ranks: the ranks of the low-rank maps for decay, learning rate, values and gate; by default those of RWKV-LM.
        output_bias: whether the last product has a bias.
    """

    shares_values = True
    state_tensors = 2
    w0: Tensor
    w1: Tensor
    w2: Tensor
    a0: Tensor
    a1: Tensor
    a2: Tensor
    v0: Tensor
    v1: Tensor
    v2: Tensor
    g1: Tensor
    g2: Tensor

    def __init__(self, width: int, *, head_width: int = 64, layer: int = 0, layers: int = 1,
                 direction: str = "forward", ranks: "Ranks | None" = None, output_bias: bool = False) -> None:
        super().__init__(width, LayerPlace(layer, layers), direction, output_bias)
        checks.whole_number("head_width", head_width, 1)
        if width % head_width:
            raise checks.wrong("head_width", f"a divisor of the width, {width}", head_width)
        self.head_width, self.heads = head_width, width // head_width
        self.ranks = default_ranks(width) if ranks is None else ranks
        self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g = (nn.Parameter(torch.empty(width))
                                                                      for _ in range(6))
        for name, rank in self._low_rank().items():
            if name != "g":
                setattr(self, f"{name}0", nn.Parameter(torch.empty(width)))
            setattr(self, f"{name}1", nn.Parameter(torch.empty(width, rank)))
            setattr(self, f"{name}2", nn.Parameter(torch.empty(rank, width)))
        self.k_k, self.k_a, self.r_k = (nn.Parameter(torch.empty(width)) for _ in range(3))
        self.ln_x = nn.GroupNorm(self.heads, width, eps=GROUP_EPSILON)
        self.reset_parameters()

    def _low_rank(self) -> dict[str, int]:
        """The low-rank maps of this layer and their ranks: the first layer has none for values."""
        ranks = {"w": self.ranks.decay, "a": self.ranks.learning_rate, "v": self.ranks.value, "g": self.ranks.gate}
        return {name: rank for name, rank in ranks.items() if name != "v" or self.place.layer}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new initial values: ramps over the channels for mixes and decay, zeros for the output."""
        D, K, place = self.width, self.head_width, self.place
        channel = torch.arange(D, dtype=torch.float64)
        ramp, whole = channel / D, channel / max(1, D - 1)
        within = ((channel % K) - (K - 1) / 2) / max(1.0, (K - 1) / 2)
        zigzag = within * within.abs()
        for name, exponent in (("r", 0.2), ("w", 0.9), ("k", 0.7), ("v", 0.7), ("a", 0.9), ("g", 0.2)):
            getattr(self, f"x_{name}").copy_(1.0 - ramp ** (exponent * place.remaining))
        for name in self._low_rank():
            nn.init.zeros_(getattr(self, f"{name}1"))
            nn.init.orthogonal_(getattr(self, f"{name}2"), gain=0.1)
        self.w0.copy_(-6.0 + 6.0 * whole ** (1.0 + place.depth**0.3) + 0.5 + 2.5 * zigzag)
        self.a0.copy_(-0.19 + 0.3 * zigzag + 0.4 * (whole - 0.5))
        if place.layer:
            self.v0.copy_(0.73 - 0.4 * (whole - 0.5))
        self.k_k.copy_(0.71 - 0.1 * (whole - 0.5))
        nn.init.constant_(self.k_a, 1.02)
        nn.init.constant_(self.r_k, -0.04)
        for linear, scale in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -scale / D**0.5, scale / D**0.5)
        nn.init.zeros_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)
        nn.init.constant_(self.ln_x.weight, ((1 + place.layer) / place.layers) ** 0.7)
        nn.init.zeros_(self.ln_x.bias)

    def initial(self, rows: int) -> tuple[Tensor, ...]:
        return (self._float_state(rows, self.heads, self.head_width, self.head_width),)

    def mix(self, x: Tensor, shifted: Tensor, memory: tuple[Tensor, ...] | None, there_BN: Tensor | None,
            first: FirstValues | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        x_r, x_w, x_k, x_v, x_a, x_g = (torch.lerp(x, shifted, weight.to(x.dtype)) for weight in (
            self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g))
        inputs = self._recurrence_inputs(x_r, x_w, x_k, x_v, x_a, first).without_absent(there_BN)
        bonus = (inputs.r * inputs.k * self._by_head(self.r_k)).sum(-1, keepdim=True)
        if memory is None and self.tap.listeners:
            r, log_w, k, _, c, a = inputs
            self.tap.send(RWKV7Look(_detached(r, log_w, k, c, a, bonus.squeeze(-1)), there_BN, self.reverse))
        y, state = wkv7_chunked(inputs, None if memory is None else memory[0])
        # The group norm of each token; torch's own takes ten times as long for few tokens on a CPU.
        norm, normed = self.ln_x, F.layer_norm(y, (self.head_width,), eps=GROUP_EPSILON)
        normed = torch.addcmul(self._by_head(norm.bias), normed, self._by_head(norm.weight))
        result = torch.addcmul(normed, bonus, inputs.v).transpose(1, 2).flatten(-2)
        return self.output((result * (torch.sigmoid(x_g @ self.g1) @ self.g2)).to(x.dtype)), (state,)

    def _recurrence_inputs(self, x_r: Tensor, x_w: Tensor, x_k: Tensor, x_v: Tensor, x_a: Tensor,
                           first: FirstValues | None) -> WKV7Inputs:
        """What the recurrence reads of every token, (B, H, N, K) each; from (B, N, D)."""
        r, k, v = self.receptance(x_r), self.key(x_k), self.value(x_v)
        early = self._early_values(first, v)
        if early is not None:
            v = torch.lerp(v, early, torch.sigmoid(F.linear(x_v @ self.v1, self.v2.mT, self.v0)).to(v.dtype))
        decay = F.linear(torch.tanh(x_w @ self.w1), self.w2.mT, self.w0)
        log_w = torch.sigmoid(decay.to(torch.promote_types(decay.dtype, torch.float32))) * -MAX_LOG_DECAY
        a = torch.sigmoid(F.linear(x_a @ self.a1, self.a2.mT, self.a0))
        c = self._split_heads(k * self.k_k)
        c = c / torch.linalg.vector_norm(c, dim=-1, keepdim=True).clamp_min(MIN_NORM)
        replaced = k * self.k_a
        k = torch.addcmul(k - replaced, replaced, a)
        r, log_w, k, v, a = (self._split_heads(part) for part in (r, log_w, k, v, a))
        return WKV7Inputs(r, log_w, k, v, c, a)

    def _early_values(self, first: FirstValues | None, own: Tensor | None = None) -> Tensor | None:
        """The values of the first layer, (B, N, D); the first layer writes its own ones into `first`, and gets None."""
        if self.place.layer == 0:
            if first is not None and own is not None:
                first.values[self.direction] = own
            return None
        if first is None or self.direction not in first.values:
            raise checks.wrong("first", f"the values of the first layer, for layer {self.place.layer}", None,
                               "Run the first layer with the same FirstValues before.")
        return first.values[self.direction]

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, H, N, K)."""
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def _by_head(self, parameter: Tensor) -> Tensor:
        """(D,) -> (H, 1, K)."""
        return parameter.view(self.heads, 1, self.head_width)

    def _packed_modules(self) -> tuple[nn.Module, ...]:
        return tuple(self._modules.values())  # type: ignore[arg-type]

    @torch.no_grad()
    def pack(self, made: Stamp) -> PackedRWKV7:
        names = [name for name in "vaw" if name in self._low_rank()]
        wide = torch.promote_types(self.k_k.dtype, torch.float32)
        k_k, k_a, r_k, weight, bias = (self._by_head(parameter.to(wide)) for parameter in (
            self.k_k, self.k_a, self.r_k, self.ln_x.weight, self.ln_x.bias))
        mixes: list[Tensor] = [self.x_r, self.x_k, self.x_v, self.x_a, self.x_w, self.x_g]
        projections = [layer.weight for layer in (self.receptance, self.key, self.value)]
        return PackedRWKV7(
            made, mixes=torch.stack(mixes).unsqueeze(1), projections=stack_transposed(projections),
            output=stack_transposed([self.output.weight])[0], output_bias=self.output.bias,
            first=stack_padded([getattr(self, f"{name}1") for name in names]),
            second=stack_padded([getattr(self, f"{name}2") for name in names]),
            constant=torch.stack([getattr(self, f"{name}0") for name in names]).unsqueeze(1),
            g1=self.g1, g2=self.g2, k_k=k_k, k_a=k_a, r_k=r_k,
            norm_weight=weight, norm_bias=bias, epsilon=self.ln_x.eps)

    def mix_one(self, x: Tensor, last: Tensor, memory: tuple[Tensor, ...], packed: PackedRWKV7,
                first: FirstValues | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, after, own = packed.step(x, last, memory[0], self._early_values(first))
        if first is not None:
            self._early_values(first, own.view_as(x).unsqueeze(1).to(x.dtype))
        return y, (after,)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, head_width={self.head_width}, layer={self.place.layer}"


def _detached(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.detach() for tensor in tensors)


class Ranks(NamedTuple):
    """The ranks of RWKV-7's low-rank maps."""

    decay: int
    learning_rate: int
    value: int
    gate: int


def default_ranks(width: int) -> Ranks:
    """The ranks of RWKV-LM: multiples of 32 that grow with the square root of the width."""
    return Ranks(*(max(32, 32 * round(factor * width**0.5 / 32)) for factor in (2.5, 2.5, 1.7, 5.0)))


class BothDirections(nn.Module):
    """The sum of a mixer that reads forward and one that reads backward, each with its own parameters."""

    def __init__(self, onward: TimeMix, backward: TimeMix) -> None:
        super().__init__()
        if (onward.direction, backward.direction) != ("forward", "backward"):
            raise checks.wrong("direction", '"forward" of the first mixer and "backward" of the second',
                               f'"{onward.direction}" and "{backward.direction}"')
        self.onward, self.backward = onward, backward
        self.shares_values = onward.shares_values

    def forward(self, x: Tensor, present: Padding | None = None, first: FirstValues | None = None) -> Tensor:
        """Run over all tokens at once: (B, N, D) -> (B, N, D); the arguments are those of `TimeMix.forward`."""
        return self.onward(x, present, first) + self.backward(x, present, first)

    def start(self, rows: int, capacity: int | None = None) -> RowState:
        """Refuse: a token depends on later ones."""
        raise checks.wrong("mixer", "a mixer that reads forward, to compute step by step", "one of both directions")

    def step(self, x: Tensor, state: RowState, *, lengths: Tensor | None = None) -> tuple[Tensor, RowState]:
        """Refuse: a token depends on later ones."""
        return self.start(len(x)), state  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class RWKV4Config(Config):
    """Config of an `RWKV4` mixer, the time mix of RWKV-4."""

    kind: ClassVar[str] = "rwkv4"

    def mixer(self, width: int, causal: bool, layer: int, layers: int) -> nn.Module:
        """Build the mixer of a layer, counted from 0; it reads in both directions unless the model is causal."""
        onward, *backward = (RWKV4(width, layer=layer, layers=layers, direction=direction)
                             for direction in (["forward"] if causal else DIRECTIONS))
        return BothDirections(onward, *backward) if backward else onward

    def parameters(self, width: int, causal: bool = True, layer: int = 0) -> int:
        """The number of parameters of the mixer of a layer."""
        return (1 if causal else 2) * (4 * width**2 + 5 * width)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit: none."""
        return iter(())


@dataclass(frozen=True, kw_only=True)
class RWKV7Config(Config):
    """Config of an `RWKV7` mixer, the time mix of RWKV-7."""

    kind: ClassVar[str] = "rwkv7"
    head_width: int = integer(64, minimum=1)
    """Features of a head; they divide the width of the model."""
    decay_rank: int | None = integer(None, minimum=1)
    """Rank of the map to the decay; by default a multiple of 32 that grows with the square root of the width."""
    learning_rate_rank: int | None = integer(None, minimum=1)
    """Rank of the map to the in-context learning rate; by default as for the decay."""
    value_rank: int | None = integer(None, minimum=1)
    """Rank of the map to the share of the first layer's values; by default as for the decay, but smaller."""
    gate_rank: int | None = integer(None, minimum=1)
    """Rank of the map to the gate; by default as for the decay, but larger."""
    output_bias: bool = False
    """Whether the last product has a bias."""

    def ranks(self, width: int) -> Ranks:
        """The ranks, with the defaults for those that are not set."""
        given = (self.decay_rank, self.learning_rate_rank, self.value_rank, self.gate_rank)
        return Ranks(*(rank or default for rank, default in zip(given, default_ranks(width), strict=True)))

    def mixer(self, width: int, causal: bool, layer: int, layers: int) -> nn.Module:
        """Build the mixer of a layer, counted from 0; it reads in both directions unless the model is causal."""
        onward, *backward = (RWKV7(width, head_width=self.head_width, layer=layer, layers=layers, direction=direction,
                                   ranks=self.ranks(width), output_bias=self.output_bias)
                             for direction in (["forward"] if causal else DIRECTIONS))
        return BothDirections(onward, *backward) if backward else onward

    def parameters(self, width: int, causal: bool = True, layer: int = 0) -> int:
        """The number of parameters of the mixer of a layer; the first has no map to the share of values."""
        ranks = self.ranks(width)
        vectors = 13 + self.output_bias + (1 if layer else 0)
        low = ranks.decay + ranks.learning_rate + ranks.gate + (ranks.value if layer else 0)
        return (1 if causal else 2) * (4 * width**2 + vectors * width + 2 * width * low)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit this width."""
        if width % self.head_width:
            yield "head_width", f"it must divide the width of the model, {width}, but is {self.head_width}"
