"""Residuals: what a part computed, added to what it was computed from, with dropout and norm.

    added(x, part, dropout)            x + dropout(part)
    normed(x, part, dropout, norm)     norm(x + dropout(part))

While training on a GPU each is one kernel, and one more for the gradients; everywhere else, and where somebody listens
to a module, the modules are called one after another. It does not know what the part is.
"""

from torch import Tensor, is_autocast_enabled, nn, promote_types
from torch import float32 as wide

from regard.attention.kernels.compiled import usable
from regard.blocks.dropout import Dropout

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
    if not (isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.normalized_shape == x.shape[-1:] and norm.training
            and not listened_to(norm) and _fused(x, part, dropout)):
        return norm(x + dropout(part))
    from regard.blocks.kernels import residual  # imports Triton

    dtype = wide if is_autocast_enabled("cuda") else promote_types(x.dtype, part.dtype)  # as of torch's norms
    centred = isinstance(norm, nn.LayerNorm)
    epsilon = norm.eps if norm.eps is not None else 2.0 ** -23  # what torch's RMSNorm takes where none is given
    form = residual.Form(centred, norm.weight, norm.bias if centred else None, epsilon)
    return residual.normed(x, part, dropout.probability, form, dtype)


def _fused(x: Tensor, part: Tensor, dropout: Dropout) -> bool:
    """Whether the kernels are taken."""
    return (dropout.training and x.shape == part.shape and x.shape[-1] <= WIDEST and usable(x, part)
            and not listened_to(dropout))


def listened_to(module: nn.Module) -> bool:
    """Whether hooks wait for a call of the module, or somebody has put another forward pass in its place."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or "forward" in vars(module))
