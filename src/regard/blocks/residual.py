"""Residuals: what a part computed, added to what it was computed from, with dropout and norm.

    added(x, part, dropout)            x + dropout(part)
    normed(x, part, dropout, norm)     norm(x + dropout(part))
    normed_alone(x, norm)              norm(x)

While training on a GPU each is one kernel, and one more for the gradients; everywhere else, and where somebody listens
to a module, the modules are called one after another. It does not know what the part is.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.dropout import Dropout
from regard.kernels import listened_to, usable

WIDEST = 8192
"""Features of a token that a kernel takes: it holds them all at once."""


def added(x: Tensor, part: Tensor, dropout: Dropout) -> Tensor:
    """x + dropout(part), both (..., D)."""
    if not _fused(x, part, dropout):
        return x + dropout(part)
    from regard.blocks.kernels import residual  # imports Triton

    return residual.added(x, part, dropout.probability)


def normed(x: Tensor, part: Tensor, dropout: Dropout, norm: nn.Module) -> Tensor:
    """norm(x + dropout(part)), both (..., D)."""
    if not (_takes(norm, x) and _fused(x, part, dropout)):
        return norm(x + dropout(part))
    from regard.blocks.kernels import residual  # imports Triton

    dtype = _result(torch.promote_types(x.dtype, part.dtype))
    return residual.normed(x, part, dropout.probability, residual.Form(**_form(norm, dtype)), dtype)


def normed_alone(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), x (..., D)."""
    if not (_takes(norm, x) and usable(x)):
        return norm(x)
    from regard.blocks.kernels import residual  # imports Triton

    dtype = _result(x.dtype)
    return residual.normed_alone(x, residual.Form(**_form(norm, dtype)), dtype)


def _result(dtype: torch.dtype) -> torch.dtype:
    """Of a norm of numbers of this dtype: autocast computes norms in float32."""
    return torch.float32 if torch.is_autocast_enabled("cuda") else dtype


def _form(norm: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """What the kernels know of a norm."""
    if isinstance(norm, nn.LayerNorm):
        return {"centred": True, "gain": norm.weight, "shift": norm.bias, "epsilon": norm.eps}
    assert isinstance(norm, nn.RMSNorm)
    epsilon = torch.finfo(dtype).eps if norm.eps is None else norm.eps  # as torch's
    return {"centred": False, "gain": norm.weight, "shift": None, "epsilon": epsilon}


def _takes(norm: nn.Module, x: Tensor) -> bool:
    """Whether the kernels compute this norm."""
    return (isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.normalized_shape == x.shape[-1:]
            and x.shape[-1] <= WIDEST and norm.training and not listened_to(norm))


def _fused(x: Tensor, part: Tensor, dropout: Dropout) -> bool:
    """Whether the kernels are taken."""
    return (dropout.training and x.shape == part.shape and x.shape[-1] <= WIDEST and usable(x, part)
            and not listened_to(dropout))
