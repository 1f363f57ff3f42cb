"""Rotary positions: pairs of features are turned by an angle that grows with the position (Su et al. 2021).

    (a, b) at position m  ->  (a cos mθ_i - b sin mθ_i,  a sin mθ_i + b cos mθ_i),      θ_i = base^(-2i/width)

Queries and keys turned this way keep their lengths, and the product of a query at m and a key at n depends on n - m
alone. Our names and the paper's: `width` is d, `base` 10000, `positions` m; the paper counts i from 1 and writes
2(i - 1), we count from 0.

Which features make pair i is `pairing`: `interleaved` is the paper's (2i, 2i + 1), `halves` is (i, i + width/2), as in
GPT-NeoX and Llama. The two differ by a permutation of features: weights trained with one are wrong with the other.

It knows nothing of attention: it turns what it is given, x (..., N, D), by the positions it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import pick, shape, wrong
from regard.config import Config, choice, number
from regard.position.positions import (
    broadcast_shape,
    check_integer,
    check_positions,
    check_positive,
    check_tokens,
    position_angles,
    round_to,
)


class Rotations(NamedTuple):
    """The cosines and sines of every angle, each (*positions.shape, width/2)."""

    cosine: Tensor
    sine: Tensor


class Rotary(nn.Module):
    """Turns the first `width` features of every token by its position; the others, if there are any, pass untouched.

    Angles are exact at any position (`position/angle.py`); the turning is done in float32 at least, and the result has
    the dtype of x. It has no parameters and no buffers: nothing to store, to move or to spoil by a cast.

        rotary(x, positions)                    one tensor
        turns = rotary.turns(positions, dtype)  many tensors at the same positions: all layers of a model share the
        rotary.turn(x, turns)                   cosines and sines, which cost more than the turning
    """

    def __init__(self, width: int, base: float = 10000.0, pairing: str = "halves"):
        super().__init__()
        if check_integer("width", width, 2) % 2:
            raise wrong("width", "even: features are turned in pairs", width)
        self.width, self.base, self.pairing = width, check_positive("base", base), pairing
        self._pairing = pick("pairing", pairing, _PAIRINGS)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (..., N, D), positions (N,) or, for x (B, H, N, D), (B, N) -> x turned, its shape and dtype kept."""
        check_tokens(x)
        return self.turn(x, self.turns(positions, x.dtype))

    def turns(self, positions: Tensor, dtype: torch.dtype) -> Rotations:
        """The cosines and sines for positions of any shape, to turn tensors of `dtype`; in float32 at least."""
        check_positions(positions)
        dtype = torch.promote_types(dtype, torch.float32)
        angle = position_angles(positions, self.width // 2, self.width, self.base)
        return Rotations(round_to(angle.cos(), dtype, positions.device), round_to(angle.sin(), dtype, positions.device))

    def turn(self, x: Tensor, turns: Rotations) -> Tensor:
        """x (..., N, D) turned by what `turns` gave for its positions."""
        check_tokens(x)
        if x.shape[-1] < self.width:
            expected = f"at least {self.width} features wide, as many as are turned"
            raise wrong("x", expected, f"of shape {shape(x)}", "Give Rotary the width of one head.")
        self._check_turns(turns, x)
        rows = broadcast_shape(x, turns.cosine, turns.cosine.dim() - 1)
        cosine, sine = (wave.reshape(*rows, self.width // 2) for wave in turns)
        split, join = self._pairing
        # float32 cosines lift a bfloat16 x to float32: it is rounded once, at the end.
        a, b = split(x[..., : self.width])
        turned = join(a * cosine - b * sine, a * sine + b * cosine).to(x.dtype)
        return turned if x.shape[-1] == self.width else torch.cat((turned, x[..., self.width :]), -1)

    def _check_turns(self, turns: Rotations, x: Tensor) -> None:
        if turns.cosine.shape[-1] != self.width // 2:
            raise wrong("turns", f"{self.width // 2} angles wide", f"{turns.cosine.shape[-1]} wide", "Make them here.")
        if torch.promote_types(turns.cosine.dtype, x.dtype) != turns.cosine.dtype:
            got = f"of dtype {turns.cosine.dtype}"
            raise wrong("turns", f"as precise as x, {x.dtype}", got, "Use turns(positions, x.dtype).")

    def extra_repr(self) -> str:
        return f"width={self.width}, base={self.base}, pairing={self.pairing!r}"


def _split_halves(x: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _join_halves(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), -1)


def _split_interleaved(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


def _join_interleaved(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2)


class _Pairing(NamedTuple):
    split: Callable[[Tensor], tuple[Tensor, Tensor]]
    join: Callable[[Tensor, Tensor], Tensor]


_PAIRINGS = {
    "halves": _Pairing(_split_halves, _join_halves),
    "interleaved": _Pairing(_split_interleaved, _join_interleaved),
}


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(Config):
    """`Rotary` over the whole width of a head, as a table of a config file."""

    kind: ClassVar[str] = "rotary"
    base: float = number(10000.0, above=0.0)
    pairing: str = choice(_PAIRINGS, "halves")

    def build(self, width: int) -> Rotary:
        """The rotation of heads of this width."""
        return Rotary(width, self.base, self.pairing)
