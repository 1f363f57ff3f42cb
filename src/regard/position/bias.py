"""Additive terms of the attention scores, made from the distance between a key and a query.

    ALiBi          b(h, distance) = -slope_h |distance|                                  (Press et al. 2022)
    RelativeBias   b(h, distance) = table[clip(distance, -m, m), h], m = max_distance   (clipping of Shaw et al. 2018)
    BucketedBias   b(h, distance) = table[bucket(distance), h]                           (Raffel et al. 2020: T5)

distance is the position of the key minus that of the query: negative for keys of the past.

A bias is a function of distances: it knows neither queries, keys, masks nor layers. A backend that never holds the
whole matrix calls it for one block of distances at a time, and once more in its backward pass.

Legend: H heads, Q queries, K keys, B rows of a batch.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.checks import renamed_arguments, shape, wrong
from regard.config import Config
from regard.config import integer as whole_number
from regard.position.positions import check_finite, check_integer


class Bias(nn.Module, ABC):
    """A number for every head and every distance. A subclass defines `heads` and `forward`."""

    heads: int

    @abstractmethod
    def forward(self, distance: Tensor) -> Tensor:
        """distance (Q, K) or (B, 1, Q, K), integers -> the bias of these pairs, (H, Q, K) or (B, H, Q, K)."""


class ALiBi(Bias):
    """Attention with linear biases: the farther a key, the lower its score.

        b = -slope_h |distance|

    The paper's bias is one-sided, for keys of the past (with a causal mask); this one is symmetric. The result is in
    float32 at least: float16 cannot represent 2,049, and bfloat16 not 257.

    Args:
        slopes: one for each head, (H,): numbers, which stay exact through every cast (.half() leaves them in float32,
            .double() restores all their digits); a tensor, which is moved and cast like any buffer; or a parameter,
            which is learned and stored. `ALiBi.for_heads` has the paper's.
    """

    slopes: Tensor

    def __init__(self, slopes: Tensor | Sequence[float]):
        super().__init__()
        self.numbers: tuple[float, ...] | None = None
        if isinstance(slopes, nn.Parameter):
            self.slopes = slopes
        elif isinstance(slopes, Tensor):
            self.register_buffer("slopes", slopes, persistent=False)
        elif isinstance(slopes, Sequence):
            self.numbers = tuple(check_finite("slopes", slope) for slope in slopes)
            self.register_buffer("slopes", torch.tensor(self.numbers, dtype=_wide(torch.get_default_dtype())), False)
        else:
            raise wrong("slopes", "a slope for each head", repr(slopes), _FOR_HEADS)
        if self.slopes.dim() != 1 or not len(self.slopes) or not self.slopes.is_floating_point():
            got = f"of shape {shape(self.slopes)} and dtype {self.slopes.dtype}"
            raise wrong("slopes", "a slope for each head, floats of shape (heads,)", got, _FOR_HEADS)
        self.heads = len(self.slopes)

    @classmethod
    def for_heads(cls, heads: int) -> "ALiBi":
        """Return the bias with the paper's slopes: for n heads, a power of two, 2^(-8/n), 2^(-16/n), ..., 2^-8.

        Otherwise those of the next lower power of two, then every second one of twice that power (as in its code).
        """
        lower = 1 << (check_integer("heads", heads, 1).bit_length() - 1)
        return cls(_geometric(lower) + _geometric(2 * lower)[::2][: heads - lower])

    def forward(self, distance: Tensor) -> Tensor:
        _check_distance(distance)
        # Moved to the device of the distances, so that a bias made in the call of attend needs no .to().
        slopes = self.slopes.to(distance.device, _wide(self.slopes.dtype))
        return slopes[:, None, None] * -distance.abs()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ALiBi":
        super()._apply(fn, recurse)
        if self.numbers is not None:  # rounded, or left empty by to_empty: restore them from the numbers
            self.slopes = torch.tensor(self.numbers, dtype=_wide(self.slopes.dtype), device=self.slopes.device)
        return self

    def extra_repr(self) -> str:
        learned = ", learned" if self.slopes.requires_grad else ""
        if self.slopes.is_meta:
            return f"heads={self.heads}{learned}"
        return f"slopes=[{', '.join(f'{slope:.4g}' for slope in self.slopes.tolist())}]{learned}"


class RelativeBias(Bias):
    """A learned bias for each head and each distance up to `max_distance`.

        b = table[clip(distance, -m, m) + m, h],    m = max_distance

    All keys farther than `max_distance` share the number of that distance. Shaw et al. learn a vector for each clipped
    distance and multiply it with the query; a number added to the score is the simpler form that T5 continued with. The
    table starts with zeros.

    Args:
        heads: the number of heads, each with its own numbers.
        max_distance: the largest distance with a number of its own, in both directions.
    """

    @renamed_arguments(limit="max_distance")
    def __init__(self, heads: int, *, max_distance: int):
        super().__init__()
        self.heads, self.max_distance = check_integer("heads", heads, 1), check_integer("max_distance", max_distance, 0)
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def forward(self, distance: Tensor) -> Tensor:
        _check_distance(distance)
        return _look_up(distance.clamp(-self.max_distance, self.max_distance) + self.max_distance, self.table)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, max_distance={self.max_distance}"


class BucketedBias(Bias):
    """The relative bias of T5: every near distance has a learned number, farther ones share wider and wider buckets.

        b = table[bucket(distance), h]

    With n buckets for one direction and e = n // 2, a key d tokens away falls into bucket d while d < e, then into
    e + floor(log(d/e) / log(max_distance/e) · (n - e)), and from `max_distance` on into the last.

    T5 takes the floor of a floating-point logarithm, which can fall on the wrong side of an integer; here the first
    distance of every bucket is found in integers. The table starts with zeros.

    Args:
        heads: the number of heads, each with its own numbers.
        num_buckets: the number of buckets of both directions together.
        max_distance: the distance from which on all keys share the last bucket.
        bidirectional: whether half of the buckets are for the past and half for the future; otherwise all are for the
            past, and the future falls into bucket 0 (causal masks hide it).
    """

    starts: Tensor

    @renamed_arguments(buckets="num_buckets", both_ways="bidirectional")
    def __init__(self, heads: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True):
        super().__init__()
        self.heads, self.num_buckets, self.bidirectional = check_integer("heads", heads, 1), num_buckets, bidirectional
        if check_integer("num_buckets", num_buckets, 4 if bidirectional else 2) % 2 and bidirectional:
            remedy = "Or use bidirectional=False."
            raise wrong("num_buckets", "even, half of them for each direction", num_buckets, remedy)
        self.per_direction = num_buckets // 2 if bidirectional else num_buckets
        exact = self.per_direction // 2
        remedy = f"The first {exact} distances have a bucket each: make it greater, or take fewer buckets."
        self.max_distance = check_integer("max_distance", max_distance, exact + 1, remedy)
        self.register_buffer("starts", self._starts(), persistent=False)
        self.table = nn.Parameter(torch.empty(num_buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def bucket(self, distance: Tensor) -> Tensor:
        """The row of the table for each distance."""
        future = (distance > 0).long() * self.per_direction if self.bidirectional else 0
        far = distance.abs() if self.bidirectional else -distance.clamp(max=0)
        return torch.bucketize(far.long(), self.starts, right=True) + future

    def forward(self, distance: Tensor) -> Tensor:
        _check_distance(distance)
        return _look_up(self.bucket(distance), self.table)

    def _starts(self, device: torch.device | None = None) -> Tensor:
        return torch.tensor(_bucket_starts(self.per_direction, self.max_distance), dtype=torch.long, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BucketedBias":
        super()._apply(fn, recurse)
        self.starts = self._starts(self.starts.device)  # to_empty would leave it empty
        return self

    def extra_repr(self) -> str:
        sizes = f"heads={self.heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}"
        return f"{sizes}, bidirectional={self.bidirectional}"


_FOR_HEADS = "ALiBi.for_heads(n) has the paper's."


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _geometric(heads: int) -> list[float]:
    return [2.0 ** (-8 * i / heads) for i in range(1, heads + 1)]


def _bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The first distance of each bucket but the first, which begins at 0.

    Past the exact ones, bucket e + k begins at the least d with (d/e)^m >= (max_distance/e)^k, where m = buckets - e;
    multiplied by e^m, whole numbers are compared with whole numbers.
    """
    exact = buckets // 2
    steps = buckets - exact
    starts = list(range(1, exact + 1))
    for k in range(1, steps):
        least = max_distance**k * exact ** (steps - k)
        starts.append(bisect_left(range(max_distance), least, key=lambda d: d**steps))
    return starts


def _look_up(rows: Tensor, table: Tensor) -> Tensor:
    """Table rows for indices (Q, K) or (B, 1, Q, K), with the heads moved before the queries."""
    pairs = rows if rows.dim() == 2 else rows.squeeze(-3)
    # Twice as fast, forward and backward together, as table[rows] with the heads moved afterwards, and contiguous.
    bias = table.t().index_select(1, pairs.flatten()).reshape(table.shape[1], *pairs.shape)
    return bias.movedim(0, -3)


def _check_distance(distance: Tensor) -> None:
    if distance.dtype not in (torch.int32, torch.int64):  # the shorter ones overflow in abs and clamp
        raise wrong("distance", "of dtype int32 or int64, key position minus query position", distance.dtype)
    if distance.dim() < 2 or (distance.dim() > 2 and distance.shape[-3] != 1):
        remedy = "The heads come from the bias: leave 1 in their place."
        raise wrong("distance", "of shape (Q, K) or (B, 1, Q, K)", f"of shape {shape(distance)}", remedy)


@dataclass(frozen=True, kw_only=True)
class ALiBiConfig(Config):
    """`ALiBi` with the paper's slopes, as a table of a config file."""

    kind: ClassVar[str] = "alibi"

    def build(self, heads: int, causal: bool) -> Bias:
        """Build the bias for this number of heads."""
        return ALiBi.for_heads(heads)

    def parameters(self, heads: int) -> int:
        """The number of parameters."""
        return 0


@dataclass(frozen=True, kw_only=True)
class RelativeBiasConfig(Config):
    """`RelativeBias`, as a table of a config file."""

    kind: ClassVar[str] = "relative"
    max_distance: int = whole_number(16, minimum=0, old="limit")
    """Farther keys share the bias of this distance, in tokens."""

    def build(self, heads: int, causal: bool) -> Bias:
        """Build the bias for this number of heads."""
        return RelativeBias(heads, max_distance=self.max_distance)

    def parameters(self, heads: int) -> int:
        """The number of parameters."""
        return (2 * self.max_distance + 1) * heads


@dataclass(frozen=True, kw_only=True)
class BucketedBiasConfig(Config):
    """`BucketedBias`, as a table of a config file; where attention is causal, all buckets are for the past."""

    kind: ClassVar[str] = "bucketed"
    num_buckets: int = whole_number(32, minimum=4, old="buckets")
    """Number of learned biases per head."""
    max_distance: int = whole_number(128, minimum=1)
    """Keys at this distance or farther share the last bucket, in tokens."""

    def build(self, heads: int, causal: bool) -> Bias:
        """Build the bias for this number of heads."""
        return BucketedBias(heads, num_buckets=self.num_buckets, max_distance=self.max_distance,
                            bidirectional=not causal)

    def parameters(self, heads: int) -> int:
        """The number of parameters."""
        return self.num_buckets * heads
