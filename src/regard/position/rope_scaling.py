"""RoPE scaling: rotary angles for texts longer than those of the training, in the forms that published models use.

A scaling changes the frequencies θ_i = base^(-2i/width) of `Rotary`, or multiplies the rotated vectors by a number. The
kinds and keys have the names of `rope_scaling` in a config.json of `transformers`; s is `factor`, L
`original_max_position_embeddings`, and r_i = L θ_i / 2π is how often the wave of pair i fits into L positions.

    linear    θ_i / s: position interpolation (Chen et al. 2023)
    dynamic   θ_i of the base · (s l/L - (s - 1))^(width/(width-2)): dynamic NTK, a larger base from L tokens on
    llama3    θ_i for r_i > high_freq_factor, θ_i / s for r_i < low_freq_factor, mixed between them (Llama 3.1)
    yarn      the same with another ramp, and rotated vectors times the attention factor (Peng et al. 2023)

Dynamic NTK depends on the length l of the text. Here l is the position of each token + 1 (at least L), so that a token
does not change when later ones come: step by step equals all at once, and rows of a batch do not affect each other. Up
to L tokens this equals `transformers`; beyond L it equals `transformers` generating one token after another. Given more
than L tokens at once, `transformers` rotates all of them by the angles of the whole length, which no step by step can.

Like `Rotary`, it knows no attention, and it keeps nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.config import Config, integer, number
from regard.position.positions import as_float64


class RopeScaling(Config, ABC):
    """The base of all scalings of rotary angles."""

    kind: ClassVar[str]

    @abstractmethod
    def angles(self, positions: Tensor, width: int, base: float) -> Tensor:
        """Compute the angles of positions of any shape, in float64: (*positions.shape, width/2)."""

    @property
    def rotation_factor(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 1.0

    def clashes(self, width: int, base: float) -> Iterator[str]:
        """The reasons why this scaling cannot serve heads of this width with this base."""
        return iter(())


@dataclass(frozen=True, kw_only=True)
class LinearRopeScaling(RopeScaling):
    """Position interpolation: all angles are divided by `factor`."""

    kind: ClassVar[str] = "linear"
    factor: float = number(minimum=1.0)
    """How many times longer texts may be than those of the training."""

    def angles(self, positions: Tensor, width: int, base: float) -> Tensor:
        position = as_float64(positions).unsqueeze(-1)
        return position * (_frequencies(width, base, position.device) / self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicRopeScaling(RopeScaling):
    """Dynamic NTK: from `original_max_position_embeddings` tokens on, the base grows with the position of the token."""

    kind: ClassVar[str] = "dynamic"
    factor: float = number(minimum=1.0)
    """How many times longer texts may be than those of the training."""
    original_max_position_embeddings: int = integer(minimum=1)
    """Number of positions of the original training."""

    def angles(self, positions: Tensor, width: int, base: float) -> Tensor:
        position, original = as_float64(positions).unsqueeze(-1), self.original_max_position_embeddings
        length = (position + 1).clamp(min=original)
        bases = base * (self.factor * length / original - (self.factor - 1)) ** (width / (width - 2))
        return position * bases ** _exponents(width, position.device)

    def clashes(self, width: int, base: float) -> Iterator[str]:
        if width < 4:
            yield f"dynamic RoPE scaling needs heads of width 4 or more, but they have {width}"


@dataclass(frozen=True, kw_only=True)
class Llama3RopeScaling(RopeScaling):
    """The scaling of Llama 3.1: slow waves are `factor` times slower, fast ones stay as they are.

    A wave is slow if it fits at most `low_freq_factor` times into `original_max_position_embeddings` positions, and
    fast if it fits at least `high_freq_factor` times.
    """

    kind: ClassVar[str] = "llama3"
    factor: float = number(minimum=1.0)
    """How many times longer texts may be than those of the training."""
    low_freq_factor: float = number(above=0.0)
    """Waves that fit at most this many times into the original positions are slowed down."""
    high_freq_factor: float = number(above=0.0)
    """Waves that fit at least this many times into the original positions stay as they are."""
    original_max_position_embeddings: int = integer(minimum=1)
    """Number of positions of the original training."""

    def angles(self, positions: Tensor, width: int, base: float) -> Tensor:
        position = as_float64(positions).unsqueeze(-1)
        frequencies = _frequencies(width, base, position.device)
        waves = frequencies * (self.original_max_position_embeddings / (2 * math.pi))
        mix = ((waves - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0.0, 1.0)
        return position * ((1 - mix) * frequencies / self.factor + mix * frequencies)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        if self.high_freq_factor <= self.low_freq_factor:
            yield "high_freq_factor", f"it must be above low_freq_factor, {self.low_freq_factor}"


@dataclass(frozen=True, kw_only=True)
class YarnRopeScaling(RopeScaling):
    """YaRN: slow waves are `factor` times slower, fast ones stay, and the attention is sharper.

    A wave is fast if it fits at least `beta_fast` times into `original_max_position_embeddings` positions, and slow if
    it fits at most `beta_slow` times; with `truncate` the pairs of these two waves are rounded outwards. The default
    `attention_factor` is 0.1 ln(factor) + 1.
    """

    kind: ClassVar[str] = "yarn"
    factor: float = number(minimum=1.0)
    """How many times longer texts may be than those of the training."""
    original_max_position_embeddings: int = integer(minimum=1)
    """Number of positions of the original training."""
    attention_factor: float | None = number(None, above=0.0)
    """Factor of rotated queries and keys; by default 0.1 ln(factor) + 1."""
    beta_fast: float = number(32.0, above=0.0)
    """Waves that fit at least this many times into the original positions stay as they are."""
    beta_slow: float = number(1.0, above=0.0)
    """Waves that fit at most this many times into the original positions are slowed down."""
    truncate: bool = True
    """Whether the ends of the range between slow and fast waves are rounded to whole pairs."""

    def angles(self, positions: Tensor, width: int, base: float) -> Tensor:
        position = as_float64(positions).unsqueeze(-1)
        first, last = self._ramp_ends(width, base)
        pairs = torch.arange(width // 2, dtype=torch.float64, device=position.device)
        ramp = ((pairs - first) / (last - first)).clamp(0.0, 1.0)
        frequencies = _frequencies(width, base, position.device)
        return position * ((1 - ramp) * frequencies + ramp * frequencies / self.factor)

    def _ramp_ends(self, width: int, base: float) -> tuple[float, float]:
        """The pairs of features at which the ramp begins and ends."""
        waves = self.original_max_position_embeddings / (2 * math.pi)
        first, last = (width * math.log(waves / times) / (2 * math.log(base))
                       for times in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        return first, last + 0.001 if first == last else last  # so does the authors' program, to not divide by 0

    @property
    def rotation_factor(self) -> float:
        return yarn_magnitude(self.factor) if self.attention_factor is None else self.attention_factor

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        if self.beta_fast < self.beta_slow:
            yield "beta_fast", f"it must be at least beta_slow, {self.beta_slow}"

    def clashes(self, width: int, base: float) -> Iterator[str]:
        if base <= 1.0:
            yield f"YaRN needs a base above 1, but it is {base}"


RopeScalingConfig = LinearRopeScaling | DynamicRopeScaling | Llama3RopeScaling | YarnRopeScaling
"""Every scaling, as a table of a config file."""


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1, at least 1: YaRN's factor of queries and keys."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _exponents(width: int, device: torch.device) -> Tensor:
    """-2i / width for every pair i."""
    return torch.arange(width // 2, dtype=torch.float64, device=device) * (-2 / width)


def _frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """θ_i = base^(-2i/width) for every pair i."""
    return torch.pow(base, _exponents(width, device))
