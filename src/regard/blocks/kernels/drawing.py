"""Dropout inside of kernels: which features are kept, drawn from a seed and the place of a feature alone.

    kept(seed, row, group) = (16 random bits of the feature) ≥ p · 65536          scale = 1 / (1 - p)

A mask is not stored: the backward pass draws it again from the same seed. The generator is Philox with seven rounds
(Salmon et al. 2011), one call of which gives 128 bits and serves the eight features of a group; p is then a multiple of
1/65536, and the scale is made for that p exactly. The seed is drawn by torch on the device: so it follows torch's
random state, and is another one at each replay of a CUDA graph. It does not know what is dropped.

Legend: R rows of a tile, G groups of eight columns, D columns.
"""

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

STEPS = 1 << 16
"""How many values of p there are."""
GROUP = 8
"""Features that one call of the generator serves; blocks of columns are multiples of it."""


class Chance(NamedTuple):
    """What a kernel must know to drop features."""

    seed: Tensor | None
    """One int64 on the device; None where nothing is dropped."""
    dropped: int
    """p · 65536."""
    scale: float
    """Of what is kept."""


def drawn(probability: float, like: Tensor) -> Chance:
    """A new seed, where features are dropped with this probability."""
    dropped = min(round(probability * STEPS), STEPS - 1)
    seed = torch.empty(1, dtype=torch.int64, device=like.device).random_() if dropped else None
    return Chance(seed, dropped, STEPS / (STEPS - dropped))


@triton.jit
def _halves(bits: tl.tensor, dropped: tl.tensor) -> tl.tensor:
    """(R, G) of 32 bits -> (R, G, 2): whether each half keeps its feature."""
    return tl.join(((bits & 0xFFFF) >= dropped).to(tl.int8), ((bits >> 16) >= dropped).to(tl.int8))


@triton.jit
def kept(seed: tl.tensor, row: tl.tensor, group: tl.tensor, groups: tl.tensor, dropped: tl.tensor, rows: tl.constexpr,
         block: tl.constexpr) -> tl.tensor:
    """(R, D) bool: whether a feature is kept, of rows (R,) and groups (G,) out of `groups` in a row."""
    place = row[:, None].to(tl.int64) * groups + group[None, :]
    a, b, c, d = tl.randint4x(seed, place, 7)
    first = tl.join(_halves(a, dropped), _halves(b, dropped))
    second = tl.join(_halves(c, dropped), _halves(d, dropped))
    return tl.reshape(tl.join(first, second), (rows, block)) != 0
