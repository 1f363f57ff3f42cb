"""Dropout, residual connections and norms, which surround every sublayer of a block.

    PostNorm   norm(x + dropout(sublayer(x)))       Vaswani et al. 2017
    PreNorm    x + dropout(sublayer(norm(x)))       GPT-2 and later; the stack ends with one more norm
    NoNorm     dropout(sublayer(x))                 stacked recurrent layers, as they were before

Norms are torch's: LayerNorm over the features of one token, with the biased variance and ε (the paper writes
neither), or RMSNorm. While training on a GPU each combination of dropout, residual and norm is one Triton kernel, and
one more for its gradients. Everywhere else, and where a module has hooks, the modules are called one after another.

Dropout equals torch's on a GPU. On a CPU torch draws one random number for every feature on one thread, which took 16 %
of the training time of a small Transformer; here one draw of 64 bits serves four features. The probability is then a
multiple of 1/65536, and the scale matches it exactly. It follows torch's random state like any other draw.

This module does not know what the sublayer computes.

Legend: B rows, N tokens, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.kernels.launch import has_hooks, is_readable, usable

Sublayer = Callable[[Tensor], Tensor]
"""The inner function of a sublayer: (B, N, D) -> (B, N, D)."""
PROBABILITY_STEPS = 1 << 16
"""The number of different dropout probabilities on a CPU."""
MAX_FUSED_WIDTH = 8192
"""The largest width of a token that the kernels take: a program holds all of its features at once."""


def apply_dropout(x: Tensor, probability: float) -> Tensor:
    """Drop features of x at random, and scale the others up."""
    if not is_readable(x):
        return F.dropout(x, probability)
    dropped = min(round(probability * PROBABILITY_STEPS), PROBABILITY_STEPS - 1)  # p stays below 1
    drawn = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
    numbers = drawn.view(torch.int16)[:x.numel()].view(x.shape)  # -32768 to 32767, all equally often
    # Compare directly into the dtype of x: by way of bools it takes five times as long.
    kept = torch.ge(numbers, dropped - PROBABILITY_STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return x * kept.mul_(PROBABILITY_STEPS / (PROBABILITY_STEPS - dropped))


class Dropout(nn.Module):
    """Dropout while training; the identity otherwise."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        checks.probability("dropout", probability)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """x, with features dropped while training."""
        return apply_dropout(x, self.probability) if self.training and self.probability else x

    def extra_repr(self) -> str:
        return f"{self.probability}"


class PostNorm(nn.Module):
    """norm(x + dropout(sublayer(x)))."""

    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """x (B, N, D) after the sublayer and its residual connection."""
        return add_residual_and_norm(x, sublayer(x), self.dropout, self.norm)


class PreNorm(nn.Module):
    """x + dropout(sublayer(norm(x)))."""

    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """x (B, N, D) after the sublayer and its residual connection."""
        return add_residual(x, sublayer(apply_norm(x, self.norm)), self.dropout)


class NoNorm(nn.Module):
    """dropout(sublayer(x)): neither norm nor residual."""

    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """x (B, N, D) after the sublayer."""
        return self.dropout(sublayer(x))


NORM_POSITIONS: dict[str, Callable[[nn.Module, float], nn.Module]] = {"post": PostNorm, "pre": PreNorm, "none": NoNorm}
"""What surrounds a sublayer, made from a norm and the probability of dropout."""
NORMS: dict[str, Callable[[int, float], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
"""The norms by name, made from a width and ε."""


def make_norm(name: str, width: int, epsilon: float = 1e-5) -> nn.Module:
    """Make the norm of this name over the features of a token."""
    return checks.pick("norm", name, NORMS)(width, epsilon)


def add_residual(x: Tensor, part: Tensor, dropout: Dropout) -> Tensor:
    """x + dropout(part), both (..., D)."""
    if not _can_fuse(x, part, dropout):
        return x + dropout(part)
    from regard.kernels import blocks  # imports Triton

    return blocks.add_dropout(x, part, dropout.probability)


def add_residual_and_norm(x: Tensor, part: Tensor, dropout: Dropout, norm: nn.Module) -> Tensor:
    """norm(x + dropout(part)), both (..., D)."""
    if not (_can_fuse_norm(norm, x) and _can_fuse(x, part, dropout)):
        return norm(x + dropout(part))
    from regard.kernels import blocks  # imports Triton

    dtype = _norm_dtype(torch.promote_types(x.dtype, part.dtype))
    parameters = blocks.NormParameters(**_norm_parameters(norm, dtype))
    return blocks.add_dropout_norm(x, part, dropout.probability, parameters, dtype)


def apply_norm(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), x (..., D)."""
    if not (_can_fuse_norm(norm, x) and usable(x)):
        return norm(x)
    from regard.kernels import blocks  # imports Triton

    dtype = _norm_dtype(x.dtype)
    return blocks.fused_norm(x, blocks.NormParameters(**_norm_parameters(norm, dtype)), dtype)


def _norm_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the norm of numbers of this dtype: autocast computes norms in float32."""
    return torch.float32 if torch.is_autocast_enabled("cuda") else dtype


def _norm_parameters(norm: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """The norm as the kernels take it."""
    if isinstance(norm, nn.LayerNorm):
        return {"centred": True, "gain": norm.weight, "shift": norm.bias, "epsilon": norm.eps}
    assert isinstance(norm, nn.RMSNorm)
    epsilon = torch.finfo(dtype).eps if norm.eps is None else norm.eps  # like torch
    return {"centred": False, "gain": norm.weight, "shift": None, "epsilon": epsilon}


def _can_fuse_norm(norm: nn.Module, x: Tensor) -> bool:
    """Whether the kernels can compute this norm."""
    return (isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.normalized_shape == x.shape[-1:]
            and x.shape[-1] <= MAX_FUSED_WIDTH and norm.training and not has_hooks(norm))


def _can_fuse(x: Tensor, part: Tensor, dropout: Dropout) -> bool:
    """Whether the kernels can and should compute this residual."""
    return (dropout.training and x.shape == part.shape and x.shape[-1] <= MAX_FUSED_WIDTH and usable(x, part)
            and not has_hooks(dropout))
