"""What may be given as a size or as positions, and how positions meet the tokens they belong to.

    tokens     (B, H, N, D)     any number of dimensions between the first and N
    positions  (N,)             the same for all rows
    positions  (B, N)           each row its own: matched from the left, B meets B, and H is passed over

It knows nothing of what is done with a position afterwards. Positions count from 0.
"""

import math

import torch
from torch import Tensor

from regard.checks import shape, wrong


def whole(argument: str, value: object, least: int, remedy: str = "") -> int:
    """`value`, if it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(argument, f"an integer of at least {least}", repr(value), remedy)
    return value


def finite(argument: str, value: object) -> float:
    """`value` as a float, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(argument, "a finite number", repr(value))
    return float(value)


def positive(argument: str, value: object) -> float:
    """`value` as a float, if it is a finite number above 0."""
    if finite(argument, value) <= 0:
        raise wrong(argument, "a number above 0", repr(value))
    return finite(argument, value)


def check_numbers(positions: object) -> None:
    """Refuses positions that are no numbers: lists, masks, complex tensors."""
    if not isinstance(positions, Tensor):
        got = type(positions).__name__
        raise wrong("positions", "a tensor of integers or floats", got, "Use torch.tensor(positions).")
    if positions.dtype == torch.bool or positions.is_complex():
        remedy = "A mask becomes positions by mask.cumsum(-1) - 1." if positions.dtype == torch.bool else ""
        raise wrong("positions", "a tensor of integers or floats", f"of dtype {positions.dtype}", remedy)


def check_tokens(x: object) -> None:
    """Refuses what is not a floating tensor of shape (..., N, D)."""
    if not isinstance(x, Tensor):
        raise wrong("x", "a floating tensor of shape (..., N, D)", type(x).__name__)
    if not x.is_floating_point():
        raise wrong("x", "a floating tensor", f"of dtype {x.dtype}", "Embed token ids first.")
    if x.dim() < 2:
        raise wrong("x", "of shape (..., N, D), tokens as rows", f"of shape {shape(x)}")


def row_shape(x: Tensor, given: Tensor, dims: int) -> tuple[int, ...]:
    """The shape in which the first `dims` dimensions of `given` broadcast over the tokens of x: (B, N) gives (B, 1, N).

    `given` is the positions, or what was computed from them; the last of these dimensions counts the tokens.
    """
    tokens, places = tuple(x.shape[:-1]), tuple(given.shape[:dims])
    fits = 1 <= len(places) <= len(tokens) and places[-1] == tokens[-1]
    if not fits or any(mine not in (1, theirs) for mine, theirs in zip(places[:-1], tokens, strict=False)):
        expected = f"of shape ({tokens[-1]},) or (B, {tokens[-1]}), B being the first of x {shape(x)}"
        raise wrong("positions", expected, f"of shape {places}", "Give every token one, matched from the left.")
    if given.device != x.device:
        raise wrong("positions", f"on the device of x, {x.device}", f"on {given.device}", "Use positions.to(x.device).")
    return (*places[:-1], *(1,) * (len(tokens) - len(places)), places[-1])
