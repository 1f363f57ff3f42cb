"""Positions as tensors: which ones are valid, how they broadcast over tokens, and the exact angles made from them.

    tokens     (B, H, N, D)     any number of dimensions between the first and N
    positions  (N,)             the same for all rows
    positions  (B, N)           each row has its own: matched from the left, B with B; H is skipped

    angle(position, i) = position / base^(2i / width)

An angle is needed modulo 2π, so its absolute error counts, and that grows with the position: in float32 it is up to
0.06 at position 1,000,000. Angles are therefore computed in float64 (1e-9 there), and only their sine and cosine are
rounded, once, to the requested precision. Nothing is stored: `model.half()` has no table to spoil, and there is no
longest length.

Positions count from 0.
"""

import math

import torch
from torch import Tensor

from regard.checks import shape, wrong


def check_integer(argument: str, value: object, least: int, remedy: str = "") -> int:
    """Return `value` if it is an integer of at least `least`; else raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(argument, f"an integer of at least {least}", repr(value), remedy)
    return value


def check_finite(argument: str, value: object) -> float:
    """Return `value` as a float if it is a finite number; else raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(argument, "a finite number", repr(value))
    return float(value)


def check_positive(argument: str, value: object) -> float:
    """Return `value` as a float if it is a finite number above 0; else raise a ValueError."""
    if check_finite(argument, value) <= 0:
        raise wrong(argument, "a number above 0", repr(value))
    return check_finite(argument, value)


def check_positions(positions: object) -> None:
    """Raise a ValueError for positions that are not real numbers: lists, masks, complex tensors."""
    if not isinstance(positions, Tensor):
        got = type(positions).__name__
        raise wrong("positions", "a tensor of integers or floats", got, "Use torch.tensor(positions).")
    if positions.dtype == torch.bool or positions.is_complex():
        remedy = "A mask becomes positions by mask.cumsum(-1) - 1." if positions.dtype == torch.bool else ""
        raise wrong("positions", "a tensor of integers or floats", f"of dtype {positions.dtype}", remedy)


def check_tokens(x: object) -> None:
    """Raise a ValueError for anything but a floating-point tensor of shape (..., N, D)."""
    if not isinstance(x, Tensor):
        raise wrong("x", "a floating tensor of shape (..., N, D)", type(x).__name__)
    if not x.is_floating_point():
        raise wrong("x", "a floating tensor", f"of dtype {x.dtype}", "Embed token ids first.")
    if x.dim() < 2:
        raise wrong("x", "of shape (..., N, D), tokens as rows", f"of shape {shape(x)}")


def broadcast_shape(x: Tensor, given: Tensor, dims: int) -> tuple[int, ...]:
    """The shape in which the first `dims` dimensions of `given` broadcast over the tokens of x: (B, N) gives (B, 1, N).

    `given` is the positions, or a tensor computed from them; the last of these dimensions is that of the tokens.
    """
    tokens, sizes = tuple(x.shape[:-1]), tuple(given.shape[:dims])
    fits = 1 <= len(sizes) <= len(tokens) and sizes[-1] == tokens[-1]
    if not fits or any(size not in (1, wanted) for size, wanted in zip(sizes[:-1], tokens, strict=False)):
        expected = f"of shape ({tokens[-1]},) or (B, {tokens[-1]}), where B is the first size of x {shape(x)}"
        raise wrong("positions", expected, f"of shape {sizes}", "Give every token one, matched from the left.")
    if given.device != x.device:
        raise wrong("positions", f"on the device of x, {x.device}", f"on {given.device}", "Use positions.to(x.device).")
    return (*sizes[:-1], *(1,) * (len(tokens) - len(sizes)), sizes[-1])


def float64_device(device: torch.device) -> torch.device:
    """The device for float64 computations on a tensor on `device`: the CPU for Apple's GPUs, which lack float64."""
    return torch.device("cpu") if device.type == "mps" else device


def as_float64(positions: Tensor) -> Tensor:
    """Positions in float64 (integers are exact up to 2^53)."""
    # Move first and cast afterwards: the original device may not have float64.
    return positions.to(float64_device(positions.device)).to(torch.float64)


def position_angles(positions: Tensor, count: int, width: int, base: float, first: int = 0) -> Tensor:
    """The angles for i = first, ..., first + count - 1, in float64: (*positions.shape, count)."""
    position = as_float64(positions)
    order = torch.arange(first, first + count, dtype=torch.float64, device=position.device)
    return position.unsqueeze(-1) / torch.pow(base, 2 * order / width)


def round_to(values: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """Float64 values rounded to `dtype` (default: torch's default dtype), on the device of the positions."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise wrong("dtype", "a floating dtype", dtype)
    return values.to(dtype).to(device)
