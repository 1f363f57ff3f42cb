"""RWKV's channel mix, in the place of a feed-forward layer: it reads a token and the one before it.

    version 7   W_v relu(W_k mix(x, x_k))²                           mix(x, m) = x + m ∘ (x' - x), x' the token before
    version 4   σ(W_r mix(x, x_r)) ∘ W_v relu(W_k mix(x, x_k))²      gated

In an encoder it also reads the token after: mix(x, m, n) = x + m ∘ (x' - x) + n ∘ (x'' - x). It has the interface of a
mixer, because its state is the last token of each row.

Legend: B rows, N tokens, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.mask import Padding
from regard.attention.mask_cache import present_tokens, zero_absent
from regard.config import Config, integer
from regard.kernels.linear import Linear
from regard.mixer import RowState, check_input
from regard.rwkv.time_mix import LayerPlace, check_place, check_state, last_tokens, shift_tokens

DIRECTIONS = {"forward": False, "both": True}
"""Whether the token after is read too."""


class ChannelMix(nn.Module):
    """The channel mix of RWKV, as a mixer: (B, N, width) -> (B, N, width).

    Args:
        width: the width of x and of the result.
        ffn_width: the hidden features.
        gated: whether a second projection gates the result, as in version 4.
        layer: the number of this layer in its stack, from 0; initial values depend on it.
        layers: the number of layers of the stack.
        direction: "forward": the token before is mixed in; "both": the token after, too.
    """

    def __init__(self, width: int, ffn_width: int, *, gated: bool = False, layer: int = 0, layers: int = 1,
                 direction: str = "forward") -> None:
        super().__init__()
        checks.whole_number("width", width, 1)
        checks.whole_number("ffn_width", ffn_width, 1)
        check_place(LayerPlace(layer, layers))
        self.width, self.ffn_width, self.place, self.direction = width, ffn_width, LayerPlace(layer, layers), direction
        self.reads_after = checks.pick("direction", direction, DIRECTIONS)
        self.key, self.value = Linear(width, ffn_width, bias=False), Linear(ffn_width, width, bias=False)
        self.x_k = nn.Parameter(torch.empty(width))
        self.x_k_after = nn.Parameter(torch.empty(width)) if self.reads_after else None
        self.receptance = Linear(width, width, bias=False) if gated else None
        self.x_r = nn.Parameter(torch.empty(width)) if gated else None
        self.x_r_after = nn.Parameter(torch.empty(width)) if gated and self.reads_after else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new initial values: ramps over the channels for the mixes, zeros for what the result is made by."""
        ramp = torch.arange(self.width, dtype=torch.float64) / self.width
        exponent = self.place.remaining if self.receptance is not None else self.place.remaining**4
        for before, after in ((self.x_k, self.x_k_after), (self.x_r, self.x_r_after)):
            for mix in (before, after):
                if mix is not None:  # both neighbours share what one of them has alone
                    mix.copy_((1.0 - ramp**exponent) * (0.5 if self.reads_after else 1.0))
        if self.receptance is None:
            nn.init.uniform_(self.key.weight, -0.5 / self.width**0.5, 0.5 / self.width**0.5)
        else:
            nn.init.orthogonal_(self.key.weight, gain=max(1.0, (self.ffn_width / self.width) ** 0.5))
            nn.init.zeros_(self.receptance.weight)
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor, present: Padding | None = None) -> Tensor:
        """Run over all tokens at once: (B, N, D) -> (B, N, D). Tokens that are not `present` count as zeros."""
        check_input(x, self.width)
        there_BN = present_tokens(x, present)
        x = zero_absent(x, there_BN)
        after = shift_tokens(x.flip(1)).flip(1) if self.reads_after else None
        return zero_absent(self._mix(x, shift_tokens(x), after), there_BN)

    def start(self, rows: int, capacity: int | None = None) -> RowState:
        """Return the state before the first token: zeros (rows, D), the last token."""
        self._check_forward()
        return RowState((self.key.weight.new_zeros(rows, self.width),))

    def step(self, x: Tensor, state: RowState, *, lengths: Tensor | None = None) -> tuple[Tensor, RowState]:
        """Continue with one token or a chunk of them, (B, n, D); where rows have fewer, `lengths` (B,) says how many.

        The old state is not changed.
        """
        self._check_forward()
        check_input(x, self.width)
        check_state(state, x, 1)
        (last_BD,) = state.tensors
        own = None if lengths is None else Padding(lengths)
        there_BN = present_tokens(x, own, "lengths")
        x = zero_absent(x, there_BN)
        y = zero_absent(self._mix(x, shift_tokens(x, last_BD), None), there_BN)
        return y, RowState((last_tokens(x, last_BD, None if own is None else own.lengths),))

    def _mix(self, x: Tensor, before: Tensor, after: Tensor | None) -> Tensor:
        hidden = torch.relu(self.key(_mixed(x, before, self.x_k, after, self.x_k_after)))
        y = self.value(hidden * hidden)
        if self.receptance is None or self.x_r is None:
            return y
        return torch.sigmoid(self.receptance(_mixed(x, before, self.x_r, after, self.x_r_after))) * y

    def _check_forward(self) -> None:
        if self.reads_after:
            raise checks.wrong("direction", '"forward" to compute step by step', f'"{self.direction}"',
                               "A step cannot read the token after it.")

    def extra_repr(self) -> str:
        gated = self.receptance is not None
        return f'{self.width}, ffn_width={self.ffn_width}, gated={gated}, direction="{self.direction}"'


def _mixed(x: Tensor, before: Tensor, weight: Tensor, after: Tensor | None, after_weight: Tensor | None) -> Tensor:
    mixed = torch.lerp(x, before, weight.to(x.dtype))
    if after is None or after_weight is None:
        return mixed
    return mixed + after_weight.to(x.dtype) * (after - x)


@dataclass(frozen=True, kw_only=True)
class ChannelMixConfig(Config):
    """Config of RWKV's channel mix."""

    ffn_width: int = integer(minimum=1)
    """Hidden features."""
    gated: bool = False
    """Whether a second projection gates the result, as in RWKV-4."""

    def build(self, width: int, causal: bool, layer: int, layers: int) -> ChannelMix:
        """Build the channel mix of a layer, counted from 0; unless the model is causal it reads both neighbours."""
        return ChannelMix(width, self.ffn_width, gated=self.gated, layer=layer, layers=layers,
                          direction="forward" if causal else "both")

    def parameters(self, width: int, causal: bool) -> int:
        """The number of parameters."""
        mixes = (2 if self.gated else 1) * (1 if causal else 2) * width
        return 2 * width * self.ffn_width + self.gated * width**2 + mixes
