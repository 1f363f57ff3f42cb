"""What the package promises of every backend, where torch does not: the rows and the keys that must not count.

A query that may attend to nothing gets zeros and zero gradients; what stands in keys to which no query may attend (NaN,
inf, 1e30) is never read. Keeping this costs passes over whole tensors. In eager mode on a CPU, where a look at a number
is free, they are saved whenever the numbers show that there is nothing to guard against.
"""

import torch
from torch import Tensor


def any_along(flags: Tensor, dim: int) -> Tensor:
    """`flags.any(dim, keepdim=True)`, twenty times as fast on a CPU (measured: 0.07 against 1.4 ms for 2 M flags)."""
    if flags.shape[dim] == 1:
        return flags
    if flags.shape[dim] == 0:
        return flags.any(dim, keepdim=True)
    return flags.view(torch.uint8).amax(dim, keepdim=True).view(torch.bool)


def may_hold(flags: Tensor) -> bool:
    """Whether a flag may be set. On a GPU, or while compiling, looking would cost more than it saves: it may."""
    if torch.compiler.is_compiling() or flags.device.type != "cpu":
        return True
    return flags.numel() > 0 and bool(flags.any())


def hide_unused(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros where no query may look; untouched where what stands there can do no harm."""
    unused = ~any_along(allowed, -2).transpose(-2, -1)
    if not may_hold(unused) or _harmless(query, key, value):
        return key, value
    return key.masked_fill(unused, 0.0), value.masked_fill(unused, 0.0)


def _harmless(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether no score can overflow and no value is NaN or inf: then a weight of 0 hides a key completely.

    |q · k| ≤ |q| |k|, so the norms of the whole tensors bound every score. NaN and inf show in a norm.
    """
    if torch.compiler.is_compiling() or query.device.type != "cpu":
        return False
    wide = torch.promote_types(query.dtype, torch.float32)
    norms = [float(torch.linalg.vector_norm(tensor.detach(), dtype=wide)) for tensor in (query, key, value)]
    most = torch.finfo(query.dtype).max
    return norms[0] * norms[1] < most and norms[2] < most
