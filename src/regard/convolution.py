"""1-D convolution as a mixer: every token takes information from neighbours at fixed distances.

    y_n = b + Σ_j W_j x_{n + o_j}       full: W_j is a matrix; depthwise: a number for every feature
    causal    o_j = -(K - 1 - j) d      the token itself and those before it: it can be computed step by step
    centred   o_j = (j - (K-1)/2) d     as many before as after: K is odd
    GLU       y = a ⊙ σ(b)              a and b are two convolutions of the same tokens (Dauphin et al. 2017)

K is the kernel size, the number of taps; d the dilation, the distance between two of them. Positions before the first
token, after the last one and in padding count as zeros. A convolution knows nothing of positions, norms, residuals or
other layers; `receptive_field` says how many tokens a stack of them covers.

Its state is the last (K-1)·d inputs of every row, for any number of tokens.

Legend: B rows, N tokens, D width, E features before the gate, K taps, S span (K-1)·d of the taps.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import checks
from regard.attention.mask import Padding
from regard.attention.mask_cache import present_tokens, zero_absent
from regard.config import Config, choice, integer
from regard.mixer import RowState, check_input

PLACEMENTS = {"causal": None, "centred": None}
GROUPS = {"full": None, "depthwise": None}
GATES = {"none": 1, "glu": 2}
"""The number of convolutions for each kind of gate."""

FEW_TOKENS = 256
"""Below this many tokens in a batch, copying the weights to channels-last costs more than it saves."""


class Convolution(nn.Module):
    """A convolution over tokens, as a mixer: (B, N, width) -> (B, N, width).

    Args:
        width: the width of x and of the result.
        kernel_size: the number of taps.
        dilation: the distance between two taps.
        placement: "causal": the token itself and those before it; "centred": as many before as after.
        groups: "full": every feature reads all features; "depthwise": only itself.
        gate: "none"; or "glu": the result is a ⊙ σ(b), of two convolutions a and b.
        bias: whether there is a bias b.

    The parameters are those of an `nn.Conv1d`: `weight` (E, D, K), or (E, 1, K) for "depthwise", and `bias` (E,), where
    E = 2·width for "glu": first a, then b. Initially the result has about the variance of x.
    """

    @checks.renamed_arguments(kernel="kernel_size")
    def __init__(self, width: int, *, kernel_size: int, dilation: int = 1, placement: str = "causal",
                 groups: str = "full", gate: str = "none", bias: bool = True) -> None:
        super().__init__()
        for argument, value in (("width", width), ("kernel_size", kernel_size), ("dilation", dilation)):
            checks.whole_number(argument, value, 1)
        checks.pick("placement", placement, PLACEMENTS)
        checks.pick("groups", groups, GROUPS)
        features = width * checks.pick("gate", gate, GATES)
        if placement == "centred" and kernel_size % 2 == 0:
            raise checks.wrong("kernel_size", 'odd with placement="centred"', kernel_size)
        self.width, self.kernel_size, self.dilation = width, kernel_size, dilation
        self.placement, self.groups, self.gate = placement, groups, gate
        self.weight = nn.Parameter(torch.empty(features, width if groups == "full" else 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: uniform, variance 1 / fan-in; 4 / fan-in before a GLU, as in Gehring et al. 2017."""
        bound = math.sqrt(3.0 / self.weight[0].numel()) * (2.0 if self.gate == "glu" else 1.0)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def receptive_field(self) -> int:
        """The number of tokens that one output depends on, from the first to the last: (K-1)·d + 1."""
        return self._span + 1

    @property
    def _span(self) -> int:
        return (self.kernel_size - 1) * self.dilation

    def forward(self, x: Tensor, present: Padding | None = None) -> Tensor:
        """Run over all tokens: (B, N, D) -> (B, N, D). Tokens that are not `present` count as zeros and give zeros."""
        check_input(x, self.width)
        there_BN = present_tokens(x, present)
        before = self._span if self.placement == "causal" else self._span // 2
        return self._mix(F.pad(zero_absent(x, there_BN), (0, 0, before, self._span - before)), there_BN)

    def start(self, rows: int, capacity: int | None = None) -> RowState:
        """Return the state before the first token: zeros (rows, S, D), for sequences of any number of tokens."""
        self._check_causal()
        return RowState((self.weight.new_zeros(rows, self._span, self.width),))

    def step(self, x: Tensor, state: RowState, *, lengths: Tensor | None = None) -> tuple[Tensor, RowState]:
        """Continue with one token or a chunk of them, (B, n, D).

        Where rows have fewer than n tokens, `lengths` (B,) says how many; the others give zeros. The old state is not
        changed.
        """
        self._check_causal()
        check_input(x, self.width)
        (past_BSD,) = state.tensors
        if past_BSD.shape != (x.shape[0], self._span, self.width):
            raise checks.wrong("state", f"a state of this convolution, for the {x.shape[0]} rows of x",
                               f"one of shape {checks.shape(past_BSD)}", f"Get it from start(rows={x.shape[0]}).")
        own = None if lengths is None else Padding(lengths)
        there_BN = present_tokens(x, own, "lengths")
        seen = torch.cat([past_BSD.to(x.dtype), zero_absent(x, there_BN)], 1)
        return self._mix(seen, there_BN), RowState((self._last(seen, None if own is None else own.lengths),))

    def _mix(self, seen: Tensor, there_BN: Tensor | None) -> Tensor:
        """The result from all tokens that it depends on, (B, N + S, D) -> (B, N, D), with zeros for absent tokens."""
        if seen.shape[1] == self._span:
            return seen[:, :0].clone()
        pieces = GATES[self.gate]
        weights, biases = self.weight.chunk(pieces), (None,) if self.bias is None else self.bias.chunk(pieces)
        # Two convolutions for a gate instead of one twice as wide: as fast with full groups, and three times as fast
        # (9 against 27 ms) with depthwise groups, because the fast kernels need as many output as input features.
        parts = [self._convolve(seen, weight, biases[i % len(biases)]) for i, weight in enumerate(weights)]
        y = parts[0] if self.gate == "none" else parts[0] * torch.sigmoid(parts[1])
        return zero_absent(y, there_BN)

    def _convolve(self, seen: Tensor, weight_EDK: Tensor, bias_E: Tensor | None) -> Tensor:
        """One convolution without a gate. Tokens are rows here, and columns in torch's convolutions.

        Measured on two cores in float32, forward and backward, B=32, N=256, D=256, in ms:

            kernel                                   3     5     7        depthwise:  3     5     7
            conv1d of (B, D, N), a transposed copy   68    87   118                   9.2  13.6  15.5
            conv2d of (B, D, 1, N), channels last    50    79   109                   4.1   9.9  10.3
            windows side by side, one product        66   120   192
            sum over shifted tokens                  70   110   156                  15    21    29

        With channels last the tokens are already in the right layout, and only the weights are copied. For a step of a
        few tokens that copy is too expensive: 240 against 35 µs for one token of width 256.
        """
        groups = self.width if self.groups == "depthwise" else 1
        if groups == 1 and seen.shape[0] * (seen.shape[1] - self._span) < FEW_TOKENS:
            return F.conv1d(seen.mT, weight_EDK, bias_E, dilation=self.dilation).mT
        image_BD1N = seen.unsqueeze(1).permute(0, 3, 1, 2)
        y = F.conv2d(image_BD1N, weight_EDK.unsqueeze(2), bias_E, dilation=(1, self.dilation), groups=groups)
        return y.permute(0, 2, 3, 1).squeeze(1)

    def _last(self, seen: Tensor, lengths: Tensor | None) -> Tensor:
        """The last S tokens of every row, in storage of their own."""
        if lengths is None:
            return seen[:, seen.shape[1] - self._span:].clone()
        index_BS = lengths.to(seen.device).unsqueeze(-1) + torch.arange(self._span, device=seen.device)
        return seen.gather(1, index_BS.unsqueeze(-1).expand(seen.shape[0], -1, self.width))

    def _check_causal(self) -> None:
        if self.placement != "causal":
            remedy = "A centred convolution depends on later tokens."
            raise checks.wrong("placement", '"causal" to compute step by step', f'"{self.placement}"', remedy)

    def extra_repr(self) -> str:
        chosen = (("placement", self.placement), ("groups", self.groups), ("gate", self.gate))
        return (f"{self.width}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
                + ", ".join(f'{name}="{value}"' for name, value in chosen) + f", bias={self.bias is not None}")


def receptive_field(convolutions: Iterable[Convolution]) -> int:
    """The number of tokens that one output of a stack depends on: 1 + Σ (K-1)·d."""
    return 1 + sum(convolution.receptive_field - 1 for convolution in convolutions)


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(Config):
    """Config of a `Convolution` mixer."""

    kind: ClassVar[str] = "convolution"
    kernel_size: int = integer(3, minimum=1, old="kernel")
    """Tokens that one output depends on."""
    dilation: int = integer(1, minimum=1)
    """Distance between these tokens in the first layer."""
    dilation_growth: int = integer(1, minimum=1, old="growth")
    """Factor by which the dilation grows from layer to layer."""
    groups: str = choice(GROUPS, "full")
    """Whether every output feature reads all input features (full), or only its own (depthwise)."""
    gate: str = choice(GATES, "none")
    """Gate of the output: none, or a gated linear unit (GLU)."""
    bias: bool = True
    """Whether the convolution has a bias."""

    def mixer(self, width: int, causal: bool, layer: int, layers: int) -> Convolution:
        """Build the mixer of a layer, counted from 0; taps are on both sides unless the model is causal."""
        return Convolution(width, kernel_size=self.kernel_size, dilation=self.dilation * self.dilation_growth**layer,
                           placement="causal" if causal else "centred", groups=self.groups, gate=self.gate,
                           bias=self.bias)

    def parameters(self, width: int, causal: bool = True, layer: int = 0) -> int:
        """The number of parameters of the mixer of a layer."""
        features = width * GATES[self.gate]
        return features * (width if self.groups == "full" else 1) * self.kernel_size + self.bias * features

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit this use."""
        if not causal and self.kernel_size % 2 == 0:
            yield "kernel_size", f"a centred convolution needs an odd kernel size, but it is {self.kernel_size}"
