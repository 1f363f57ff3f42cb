"""The feed-forward layer of a block, applied to every token by itself.

    plain   W_2 f(W_1 x + b_1) + b_2                        f is ReLU (Vaswani et al. 2017), GELU or SiLU
    gated   W_2 (f(W_g x + b_g) ⊙ (W_1 x + b_1)) + b_2      with f = SiLU and no biases: SwiGLU (Shazeer 2020)

GELU is exact, x Φ(x); "gelu_tanh" is the approximation that GPT-2 was trained with. The layer knows nothing of other
tokens, residuals or norms.
"""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.blocks.sublayer import Dropout
from regard.config import Config, choice, integer, probability, renamed
from regard.kernels.launch import has_global_hooks, has_hooks, usable
from regard.kernels.linear import Linear
from regard.kernels.packed_linear import packed_forward

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}


class FeedForward(nn.Module, ABC):
    """The base of both kinds: (..., width) -> (..., width), with `ffn_width` hidden features."""

    def __init__(self, width: int, ffn_width: int, *, activation: str, bias: bool, dropout: float) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        self.width, self.ffn_width = width, ffn_width
        self.activation = checks.pick("activation", activation, ACTIVATIONS)
        self.up = Linear(width, ffn_width, bias)
        self.down = Linear(ffn_width, width, bias)
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: Xavier for the weights, as in the attention layers, zeros for the biases."""
        for linear in self.children():
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    @property
    def activation_name(self) -> str | None:
        """The name of the activation, which kernels know it by; None for one that a user has set."""
        return next((name for name, function in ACTIVATIONS.items() if function is self.activation), None)

    def activate(self, x: Tensor) -> Tensor:
        """dropout(f(x)); while training on a GPU in one kernel."""
        name = self.activation_name
        if not (self.training and usable(x)) or has_hooks(self.dropout) or name is None:
            return self.dropout(self.activation(x))
        from regard.kernels import blocks  # imports Triton

        return blocks.activate_dropout(x, name, self.dropout.probability)

    def extra_repr(self) -> str:
        return str(self.activation_name or getattr(self.activation, "__name__", type(self.activation).__name__))


class PlainFeedForward(FeedForward):
    """W_2 f(W_1 x + b_1) + b_2, with dropout on the hidden features."""

    def __init__(self, width: int, ffn_width: int, *, activation: str = "relu", bias: bool = True,
                 dropout: float = 0.0) -> None:
        super().__init__(width, ffn_width, activation=activation, bias=bias, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width); with packed weights ReLU is part of the product."""
        packed = packed_forward(self.up)
        if packed is None or not self._is_only_relu():
            return self.down(self.activate(self.up(x)))
        return self.down(packed.with_relu(x))

    def _is_only_relu(self) -> bool:
        """Whether `activate` is nothing but ReLU: without gradients or dropout, and with nothing hooked or replaced."""
        return (self.activation is F.relu and type(self).activate is FeedForward.activate
                and "activate" not in vars(self) and type(self.dropout) is Dropout and not self.dropout.training
                and not has_hooks(self.dropout) and not has_global_hooks() and not torch.is_grad_enabled())


class GatedFeedForward(FeedForward):
    """W_2 (f(W_g x) ⊙ W_1 x): the activation gates the hidden features."""

    def __init__(self, width: int, ffn_width: int, *, activation: str = "silu", bias: bool = False,
                 dropout: float = 0.0) -> None:
        super().__init__(width, ffn_width, activation=activation, bias=bias, dropout=dropout)
        self.gate = Linear(width, ffn_width, bias)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        return self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    """Config of a feed-forward layer."""

    ffn_width: int = integer(minimum=1, old="inner")
    """Hidden features of the feed-forward layer (d_ff)."""
    gated: bool = renamed(False, old="form", old_values={"plain": False, "gated": True})
    """Whether a second projection gates the hidden features (GLU)."""
    activation: str = choice(ACTIVATIONS, "relu")
    """Activation function."""
    bias: bool = True
    """Whether the projections have a bias."""
    dropout: float = probability(0.0)
    """Dropout of the hidden features."""

    def build(self, width: int) -> FeedForward:
        """Build the layer for tokens of this width."""
        return (GatedFeedForward if self.gated else PlainFeedForward)(
            width, self.ffn_width, activation=self.activation, bias=self.bias, dropout=self.dropout)

    def parameters(self, width: int) -> int:
        """The number of parameters."""
        projections = 2 if self.gated else 1  # projections to the hidden features
        return (projections + 1) * width * self.ffn_width + self.bias * (projections * self.ffn_width + width)
