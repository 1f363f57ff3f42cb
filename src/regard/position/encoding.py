"""Absolute positional encodings: a vector for every position, added to the token's vector or concatenated with it.

    LinearEncoding             PE(pos)        = a pos + b
    SinusoidalEncoding         PE(pos, 2i)    = sin(pos / base^(2i/d)),     PE(pos, 2i+1) = cos(same),     i = 0, 1, ...
    FormalSinusoidalEncoding   W_p[2i-1, t]   = sin(t / l_max^(2i/d_e)),    W_p[2i, t]    = cos(same),     i = 1, 2, ...
    LearnedEncoding            PE(pos)        = row pos of a table

Our names and the sources': `slope`, `offset` are a, b; `width` is d, d_model (Vaswani et al. 2017) and d_e (Phuong and
Hutter 2022); `base` is 10000; `max_length` is l_max; `max_positions` is the number of rows of the table.

Positions are explicit arguments, tensors of any shape, and count from 0. An encoding does not know the tokens;
`AddPositions` and `ConcatenatePositions` combine the two, in the precision of the tokens, so that model.double() and
model.half() need no conversion.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checks import pick, shape, wrong
from regard.config import Config, choice, number
from regard.config import integer as whole_number
from regard.kernels.launch import is_readable
from regard.position.positions import (
    as_float64,
    broadcast_shape,
    check_finite,
    check_integer,
    check_positions,
    check_positive,
    check_tokens,
    position_angles,
    round_to,
)

SINUSOID_LAYOUTS = {"interleaved": -1, "halves": -2}
"""The dimension along which sines and cosines are stacked for each layout."""

MIN_REPEATED = 64
"""With fewer positions it does not pay to look for repeated ones."""


class PositionalEncoding(nn.Module, ABC):
    """The base of encodings: a vector of `width` features for every position.

    `limit` is the number of positions that it has vectors for, from 0 on; None means no limit.
    """

    width: int
    limit: int | None = None

    @abstractmethod
    def forward(self, positions: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """positions of any shape -> (*positions.shape, width), in `dtype`."""


class LinearEncoding(PositionalEncoding):
    """PE(pos) = slope · pos + offset: one number, which grows with the length of the sequence.

    With `width` 1 (the default) `AddPositions` adds it to every feature and `ConcatenatePositions` appends it as one
    more feature; a larger `width` repeats it. Float16 ends at 65504: choose a slope that stays below.
    """

    def __init__(self, slope: float = 1.0, offset: float = 0.0, width: int = 1):
        super().__init__()
        self.slope, self.offset = check_finite("slope", slope), check_finite("offset", offset)
        self.width = check_integer("width", width, 1)

    def forward(self, positions: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """positions of any shape -> (*positions.shape, width); without `dtype`, in torch's default."""
        check_positions(positions)
        value = round_to(self.slope * as_float64(positions) + self.offset, dtype, positions.device)
        return value.unsqueeze(-1).expand(*positions.shape, self.width)

    def extra_repr(self) -> str:
        return f"slope={self.slope}, offset={self.offset}, width={self.width}"


class SinusoidalEncoding(PositionalEncoding):
    """PE(pos, 2i) = sin(pos / base^(2i/width)), PE(pos, 2i+1) = cos(same) (Vaswani et al. 2017, section 3.5).

    Any position, however large, is exact to about the last digit of the requested dtype. The paper's widths are even;
    in an odd width the last feature is a sine without its cosine. `layout` is "interleaved", sines and cosines
    alternating, as in the paper, or "halves", first all sines, then all cosines, as in Marian.
    """

    def __init__(self, width: int, base: float = 10000.0, layout: str = "interleaved"):
        super().__init__()
        self.width, self.base, self.layout = check_integer("width", width, 1), check_positive("base", base), layout
        pick("layout", layout, SINUSOID_LAYOUTS)

    def forward(self, positions: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """positions of any shape -> (*positions.shape, width); without `dtype`, in torch's default."""
        check_positions(positions)
        angle = position_angles(positions, (self.width + 1) // 2, self.width, self.base)
        return _waves(angle, self.width, positions, dtype, self.layout)

    def extra_repr(self) -> str:
        return f"width={self.width}, base={self.base}, layout={self.layout}"


class FormalSinusoidalEncoding(PositionalEncoding):
    """W_p[2i-1, t] = sin(t / max_length^(2i/width)), W_p[2i, t] = cos(same), 0 < i <= width/2 (Phuong and Hutter 2022).

    The same idea as `SinusoidalEncoding` with other numbers: `max_length` (l_max) in place of 10000, and i from 1, so
    that no feature has a period of 2π tokens. Positions from `max_length` on are valid, but begin to look alike.
    """

    def __init__(self, width: int, max_length: int):
        super().__init__()
        if check_integer("width", width, 2) % 2:
            raise wrong("width", "even: the paper has pairs of rows", width, "SinusoidalEncoding takes odd widths.")
        self.width, self.max_length = width, check_integer("max_length", max_length, 1)

    def forward(self, positions: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """positions of any shape -> (*positions.shape, width); without `dtype`, in torch's default."""
        check_positions(positions)
        # The paper's first token is t = 1, ours is position 0.
        angle = position_angles(as_float64(positions) + 1, self.width // 2, self.width, float(self.max_length), first=1)
        return _waves(angle, self.width, positions, dtype)

    def extra_repr(self) -> str:
        return f"width={self.width}, max_length={self.max_length}"


class LearnedEncoding(PositionalEncoding):
    """PE(pos) = table[pos]: one learned vector for each of the first `max_positions` positions.

    A position outside the table is a ValueError on the CPU. On other devices a check would make every call wait for the
    device, so there, and in compiled code, torch's own bounds check applies. `AddPositions` and `ConcatenatePositions`,
    when they count the positions themselves, refuse a sequence longer than the table on every device.
    """

    def __init__(self, max_positions: int, width: int):
        super().__init__()
        self.limit, self.width = check_integer("max_positions", max_positions, 1), check_integer("width", width, 1)
        self.table = nn.Parameter(torch.empty(max_positions, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from a normal distribution of standard deviation 0.02, as in BERT and GPT-2."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, positions: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """integer positions of any shape -> (*positions.shape, width); without `dtype`, in that of the table."""
        check_positions(positions)
        if positions.is_floating_point():
            raise wrong("positions", "integers, rows of a table", f"of dtype {positions.dtype}", "Use .long() on them.")
        if is_readable(positions):
            self._check_range(positions)
        vectors = F.embedding(positions.long(), self.table)
        return vectors if dtype is None else vectors.to(dtype)

    def _check_range(self, positions: Tensor) -> None:
        count = self.table.shape[0]
        outside = positions[(positions < 0) | (positions >= count)]
        if outside.numel():
            raise wrong("positions", f"from 0 to {count - 1}: the table has {count} rows", int(outside[0]), _LONGER)

    def extra_repr(self) -> str:
        return f"max_positions={self.limit}, width={self.width}"


class AddPositions(nn.Module):
    """y = x + PE(pos), as in the Transformer. An encoding of width 1 is added to every feature."""

    def __init__(self, encoding: PositionalEncoding):
        super().__init__()
        self.encoding = _check_encoding(encoding)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x (..., N, D), positions (N,) or (B, N) (without them 0, 1, ..., N - 1) -> (..., N, D)."""
        vectors = _position_vectors(self.encoding, x, positions)
        if vectors.shape[-1] not in (1, x.shape[-1]):
            expected = f"as wide as the encoding it is added to, {vectors.shape[-1]}"
            raise wrong("x", expected, f"of shape {shape(x)}", "Widen one of them, or use ConcatenatePositions.")
        return x + vectors


class ConcatenatePositions(nn.Module):
    """y = [x, PE(pos)]: the encoding is appended to the features, D + encoding.width in all."""

    def __init__(self, encoding: PositionalEncoding):
        super().__init__()
        self.encoding = _check_encoding(encoding)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x (..., N, D), positions (N,) or (B, N) (without them 0, 1, ..., N - 1) -> (..., N, D + encoding.width)."""
        vectors = _position_vectors(self.encoding, x, positions)
        return torch.cat((x, vectors.expand(*x.shape[:-1], vectors.shape[-1])), -1)


_LONGER = "Make the table longer, or use an encoding without a limit, such as SinusoidalEncoding."


def _waves(angle: Tensor, width: int, positions: Tensor, dtype: torch.dtype | None,
           layout: str = "interleaved") -> Tensor:
    """Sines and cosines, rounded once."""
    # Stacked along a new last dimension they alternate; along the one before it, they are halves.
    if _written_at_once(angle):
        like = round_to(angle.new_empty(0), dtype, positions.device)
        halves = SINUSOID_LAYOUTS[layout] == -2
        made = like.new_empty(*angle.shape[:-1], *((2, angle.shape[-1]) if halves else (angle.shape[-1], 2)))
        for function, part in zip((torch.sin, torch.cos), made.unbind(SINUSOID_LAYOUTS[layout]), strict=True):
            function(angle, out=part)
        return made.flatten(-2)[..., :width]
    waves = torch.stack((angle.sin(), angle.cos()), SINUSOID_LAYOUTS[layout]).flatten(-2)[..., :width]
    return round_to(waves, dtype, positions.device)


def _written_at_once(angle: Tensor) -> bool:
    """Whether waves are written directly in the requested precision.

    A GPU computes them faster than it moves them about in float64. The numbers are the same.
    """
    return angle.is_cuda and not angle.requires_grad and not torch.compiler.is_compiling()


def _check_encoding(encoding: object) -> PositionalEncoding:
    if not isinstance(encoding, PositionalEncoding):
        raise wrong("encoding", "an Encoding, such as SinusoidalEncoding(width)", repr(encoding))
    return encoding


def _position_vectors(encoding: PositionalEncoding, x: Tensor, positions: Tensor | None) -> Tensor:
    """The vectors for the tokens of x, in the dtype of x, in a shape that broadcasts over them."""
    check_tokens(x)
    if positions is None:
        positions = _default_positions(encoding, x)
    check_positions(positions)
    places = positions.reshape(broadcast_shape(x, positions, positions.dim()))
    count = _distinct_count(encoding, places)
    if count is None:
        vectors: Tensor = encoding(places, dtype=x.dtype)
        return vectors
    return F.embedding(places.long(), encoding(torch.arange(count, device=places.device), dtype=x.dtype))


def _distinct_count(encoding: PositionalEncoding, positions: Tensor) -> int | None:
    """An upper bound of the distinct positions, counted from 0, if it is small enough to encode each of them once.

    Packed sequences repeat the same positions. None where encoding each position is cheaper, or looking would wait for
    the device.
    """
    if (not is_readable(positions) or positions.is_floating_point()
        or encoding.limit is not None or positions.numel() < MIN_REPEATED):
        return None
    low, high = (int(bound) for bound in torch.aminmax(positions))
    return high + 1 if low >= 0 and high < positions.numel() // 2 else None


def _default_positions(encoding: PositionalEncoding, x: Tensor) -> Tensor:
    count = x.shape[-2]
    if encoding.limit is not None and count > encoding.limit:
        expected = f"at most {encoding.limit} tokens long, as many as the table has rows"
        raise wrong("x", expected, f"{count} tokens long", _LONGER)
    return torch.arange(count, device=x.device)


class PositionalEncodingConfig(Config, ABC):
    """The base of the configs of all encodings."""

    @abstractmethod
    def build(self, width: int) -> PositionalEncoding:
        """Build the encoding for this width."""

    def parameters(self, width: int) -> int:
        """The number of parameters."""
        return 0


@dataclass(frozen=True, kw_only=True)
class LinearConfig(PositionalEncodingConfig):
    """`LinearEncoding`, as a table of a config file."""

    kind: ClassVar[str] = "linear"
    slope: float = number(1.0)
    """Factor of the position."""
    offset: float = number(0.0)
    """Number that is added to the scaled position."""

    def build(self, width: int) -> PositionalEncoding:
        return LinearEncoding(self.slope, self.offset, width)


@dataclass(frozen=True, kw_only=True)
class SinusoidalConfig(PositionalEncodingConfig):
    """`SinusoidalEncoding`, as a table of a config file."""

    kind: ClassVar[str] = "sinusoidal"
    base: float = number(10000.0, above=0.0)
    """Base of the wavelengths."""
    layout: str = choice(SINUSOID_LAYOUTS, "interleaved")
    """Whether sines and cosines alternate, or all sines come first (halves)."""

    def build(self, width: int) -> PositionalEncoding:
        return SinusoidalEncoding(width, self.base, self.layout)


@dataclass(frozen=True, kw_only=True)
class FormalSinusoidalConfig(PositionalEncodingConfig):
    """`FormalSinusoidalEncoding`, as a table of a config file."""

    kind: ClassVar[str] = "formal"
    max_length: int = whole_number(minimum=1, old="longest")
    """Longest sequence, which the wavelengths depend on."""

    def build(self, width: int) -> PositionalEncoding:
        return FormalSinusoidalEncoding(width, self.max_length)


@dataclass(frozen=True, kw_only=True)
class LearnedConfig(PositionalEncodingConfig):
    """`LearnedEncoding`, as a table of a config file: a model with it takes at most `max_positions` positions."""

    kind: ClassVar[str] = "learned"
    max_positions: int = whole_number(minimum=1, old="count")
    """Positions in the table: the longest input of the model, in tokens."""

    def build(self, width: int) -> PositionalEncoding:
        return LearnedEncoding(self.max_positions, width)

    def parameters(self, width: int) -> int:
        return self.max_positions * width


EncodingConfig = SinusoidalConfig | LearnedConfig | LinearConfig | FormalSinusoidalConfig
