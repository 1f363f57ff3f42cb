"""Rotary positions: pairs of features are rotated by an angle that grows with the position (Su et al. 2021).

    (a, b) at position m  ->  (a cos mθ_i - b sin mθ_i,  a sin mθ_i + b cos mθ_i),      θ_i = base^(-2i/width)

Rotated queries and keys keep their lengths, and the product of a query at m and a key at n depends on n - m only. Our
names and the paper's: `width` is d, `base` 10000, `positions` m; the paper counts i from 1 and writes 2(i - 1), we
count from 0.

Which features make pair i is `pairing`: `interleaved` is the paper's (2i, 2i + 1), `halves` is (i, i + width/2), as in
GPT-NeoX and Llama. The two differ by a permutation of features: weights trained with one do not work with the other.

Texts longer than those of the training get other angles by a `rope_scaling` (`regard.position.rope_scaling`).

It does not know attention: it rotates any x (..., N, D) by the given positions.
"""

from collections.abc import Callable, Iterator
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
from regard.position.rope_scaling import RopeScaling, RopeScalingConfig


class Rotations(NamedTuple):
    """The cosines and sines of every angle, each (*positions.shape, width/2)."""

    cosine: Tensor
    sine: Tensor


class Rotary(nn.Module):
    """Rotary positions (RoPE): pairs of features are rotated by an angle in proportion to the position.

    Applied to queries and keys, the score depends on their distance only. Pass it to `Attention(..., rotary=...)`.

    Args:
        width: the number of features that are rotated, an even number; further features pass unchanged.
        base: pair i has the angle position / base^(2i/width).
        pairing: "halves" pairs feature i with i + width/2, as most code does; "interleaved" 2i with 2i + 1, as the
            paper does.
        rope_scaling: other angles, for texts longer than those of the training: `LinearRopeScaling`,
            `DynamicRopeScaling`, `Llama3RopeScaling`, `YarnRopeScaling`; None for none.

    Angles are exact at any position (`regard.position.positions`); the rotation is computed in float32 at least, and
    the result has the dtype of x. The module has no parameters and no buffers: nothing to store, to move or to cast.

        rotary(x, positions)                            one tensor
        rotations = rotary.rotations(positions, dtype)  many tensors at the same positions: all layers of a model share
        rotary.rotate(x, rotations)                     the cosines and sines, which cost more than the rotation
    """

    def __init__(self, width: int, base: float = 10000.0, pairing: str = "halves",
                 rope_scaling: RopeScaling | None = None):
        super().__init__()
        if check_integer("width", width, 2) % 2:
            raise wrong("width", "even: features are rotated in pairs", width)
        self.width, self.base, self.pairing = width, check_positive("base", base), pairing
        self._pairing = pick("pairing", pairing, _PAIRINGS)
        if rope_scaling is not None:
            if not isinstance(rope_scaling, RopeScaling):
                raise wrong("rope_scaling", "a RopeScaling, such as LinearRopeScaling(factor=2.0)", repr(rope_scaling))
            for why in rope_scaling.clashes(width, self.base):
                raise ValueError(f"`rope_scaling` does not fit: {why}.")
        self.rope_scaling = rope_scaling

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x by its positions; the result has the shape and dtype of x.

        Args:
            x: (..., N, D), of which the first `width` features are rotated.
            positions: (N,); or (B, N) for x (B, H, N, D).
        """
        check_tokens(x)
        return self.rotate(x, self.rotations(positions, x.dtype))

    def rotations(self, positions: Tensor, dtype: torch.dtype) -> Rotations:
        """Compute cosines and sines of positions of any shape, in float32 at least, to rotate tensors of `dtype`."""
        check_positions(positions)
        dtype = torch.promote_types(dtype, torch.float32)
        if self.rope_scaling is None:
            angle = position_angles(positions, self.width // 2, self.width, self.base)
            cosine, sine = angle.cos(), angle.sin()
        else:
            factor = self.rope_scaling.rotation_factor
            angle = self.rope_scaling.angles(positions, self.width, self.base)
            cosine, sine = angle.cos() * factor, angle.sin() * factor
        return Rotations(round_to(cosine, dtype, positions.device), round_to(sine, dtype, positions.device))

    def rotate(self, x: Tensor, rotations: Rotations) -> Tensor:
        """Rotate x (..., N, D) by the `rotations` of its positions."""
        check_tokens(x)
        if x.shape[-1] < self.width:
            expected = f"at least {self.width} features wide, the features to rotate"
            raise wrong("x", expected, f"of shape {shape(x)}", "Give Rotary the width of one head.")
        self._check_rotations(rotations, x)
        rows = broadcast_shape(x, rotations.cosine, rotations.cosine.dim() - 1)
        cosine, sine = (wave.reshape(*rows, self.width // 2) for wave in rotations)
        split, join = self._pairing
        # float32 cosines promote a bfloat16 x to float32, which is rounded once, at the end.
        a, b = split(x[..., : self.width])
        rotated = join(a * cosine - b * sine, a * sine + b * cosine).to(x.dtype)
        return rotated if x.shape[-1] == self.width else torch.cat((rotated, x[..., self.width :]), -1)

    def _check_rotations(self, rotations: Rotations, x: Tensor) -> None:
        if rotations.cosine.shape[-1] != self.width // 2:
            got = f"{rotations.cosine.shape[-1]} wide"
            raise wrong("rotations", f"{self.width // 2} angles wide", got, "Use the rotations of this module.")
        if torch.promote_types(rotations.cosine.dtype, x.dtype) != rotations.cosine.dtype:
            got = f"of dtype {rotations.cosine.dtype}"
            raise wrong("rotations", f"as precise as x, {x.dtype}", got, "Use rotations(positions, x.dtype).")

    def extra_repr(self) -> str:
        scaling = "" if self.rope_scaling is None else f", rope_scaling={self.rope_scaling}"
        return f"width={self.width}, base={self.base}, pairing={self.pairing!r}{scaling}"


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
    """`Rotary` over the whole width of a head, as a table of a config file.

    `rope_scaling` changes the angles for texts longer than those of the training. Default: no change.
    """

    kind: ClassVar[str] = "rotary"
    base: float = number(10000.0, above=0.0)
    """Base of the wavelengths (rope_theta)."""
    pairing: str = choice(_PAIRINGS, "halves")
    """Which features are rotated together: of the two halves, or neighbours (interleaved)."""
    rope_scaling: RopeScalingConfig | None = None
    """RoPE scaling, for texts longer than those of the training."""

    def build(self, width: int) -> Rotary:
        """Build the rotation for heads of this width."""
        return Rotary(width, self.base, self.pairing, self.rope_scaling)

    def clashes(self, width: int) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit heads of this width; the key "" is the table."""
        if width % 2:
            yield "", f"rotary positions need an even head width, but it is {width}"
        for why in () if self.rope_scaling is None else self.rope_scaling.clashes(width, self.base):
            yield "rope_scaling", why
