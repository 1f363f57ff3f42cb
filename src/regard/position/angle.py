"""The angles of sinusoidal and rotary positions, exact at any length.

    angle(position, i) = position / base^(2i / width)

An angle is needed modulo 2π, so what counts is its absolute error, which grows with the position: in float32, at
position 1,000,000, it is up to 0.06. Angles are therefore made in float64 (1e-9 there), and only their sine and cosine
are rounded, once, to the precision asked for. Nothing is stored: the numbers come from `width` and `base` at every
call, so that model.half() has no table to spoil, and no length is the longest.

It knows nothing of which feature gets which angle.
"""

import torch
from torch import Tensor

from regard.checks import wrong


def float64_device(device: torch.device) -> torch.device:
    """Where to compute in float64 for a tensor on `device`: there, but on the CPU for Apple's GPUs, which lack it."""
    return torch.device("cpu") if device.type == "mps" else device


def precise(positions: Tensor) -> Tensor:
    """Positions in float64 (integers are exact up to 2^53)."""
    # Moved first and cast afterwards: the device it comes from may not know float64.
    return positions.to(float64_device(positions.device)).to(torch.float64)


def angles(positions: Tensor, count: int, width: int, base: float, first: int = 0) -> Tensor:
    """(*positions.shape, count), float64: the angles for i = first, ..., first + count - 1."""
    position = precise(positions)
    order = torch.arange(first, first + count, dtype=torch.float64, device=position.device)
    return position.unsqueeze(-1) / torch.pow(base, 2 * order / width)


def rounded(values: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """Float64 values in the precision asked for (without one: torch's default), on the device of the positions."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise wrong("dtype", "a floating dtype", dtype)
    return values.to(dtype).to(device)
