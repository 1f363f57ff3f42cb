"""Additive terms of the attention scores, made from the distance between a key and a query.

    ALiBi          b(h, distance) = -slope_h |distance|                       (Press et al. 2022)
    RelativeBias   b(h, distance) = table[clip(distance, -limit, limit), h]   (the clipping of Shaw et al. 2018)
    BucketedBias   b(h, distance) = table[bucket(distance), h]                (Raffel et al. 2020: T5)

distance is the position of the key minus that of the query: negative for keys of the past.

A bias is a value: it says what is added, and knows neither queries nor keys, neither masks nor layers. A kernel that
never holds the whole matrix asks for one block of distances at a time, and for the same again in its backward pass.
Letters on shapes: H heads, Q queries, K keys, B rows of a batch.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.checks import shape, wrong
from regard.config import Config
from regard.config import integer as whole_number
from regard.position.positions import check_finite, check_integer


class Bias(nn.Module, ABC):
    """A number for every head and every distance. A bias of your own says `heads` and `forward`."""

    heads: int

    @abstractmethod
    def forward(self, distance: Tensor) -> Tensor:
        """distance (Q, K) or (B, 1, Q, K), integers -> the bias of these pairs, (H, Q, K) or (B, H, Q, K)."""


class ALiBi(Bias):
    """b = -slope_h |distance|: the farther a key, the lower its score.

    The paper's is one-sided, over keys of the past (with a causal mask); this one falls to both sides alike.

    `slopes` may be numbers, which stay exact through every cast (.half() leaves them in float32, .double() finds all
    their digits); a tensor, which is moved and cast like any buffer; or a parameter, which is learned and stored.
    The block comes in float32 at least: float16 has no 2,049, and bfloat16 no 257.
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
        """The paper's slopes. For n heads, a power of two: 2^(-8/n), 2^(-16/n), ..., 2^-8.

        Otherwise those of the next lower power of two, then every second one of twice that power (as in its code).
        """
        lower = 1 << (check_integer("heads", heads, 1).bit_length() - 1)
        return cls(_geometric(lower) + _geometric(2 * lower)[::2][: heads - lower])

    def forward(self, distance: Tensor) -> Tensor:
        _check_distance(distance)
        # To the device of the distances, so that a bias made in the call of attend needs no .to().
        slopes = self.slopes.to(distance.device, _wide(self.slopes.dtype))
        return slopes[:, None, None] * -distance.abs()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ALiBi":
        super()._apply(fn, recurse)
        if self.numbers is not None:  # rounded, or left empty by to_empty: begin again from the numbers
            self.slopes = torch.tensor(self.numbers, dtype=_wide(self.slopes.dtype), device=self.slopes.device)
        return self

    def extra_repr(self) -> str:
        learned = ", learned" if self.slopes.requires_grad else ""
        if self.slopes.is_meta:
            return f"heads={self.heads}{learned}"
        return f"slopes=[{', '.join(f'{slope:.4g}' for slope in self.slopes.tolist())}]{learned}"


class RelativeBias(Bias):
    """b = table[clip(distance, -limit, limit) + limit, h]: one learned number for each head and each near distance.

    All keys farther than `limit` share the number of the farthest. Shaw et al. learn a vector for each clipped distance
    and multiply it with the query; a number added to the score is the simpler form that T5 went on with. The table
    begins with zeros: at first distance says nothing.
    """

    def __init__(self, heads: int, *, limit: int):
        super().__init__()
        self.heads, self.limit = check_integer("heads", heads, 1), check_integer("limit", limit, 0)
        self.table = nn.Parameter(torch.empty(2 * limit + 1, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def forward(self, distance: Tensor) -> Tensor:
        _check_distance(distance)
        return _look_up(distance.clamp(-self.limit, self.limit) + self.limit, self.table)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, limit={self.limit}"


class BucketedBias(Bias):
    """b = table[bucket(distance), h], T5's: every near distance has a bucket, farther ones share wider and wider ones.

    With n buckets for one direction and e = n // 2, a key d tokens away falls into bucket d while d < e, then into
    e + floor(log(d/e) / log(max_distance/e) · (n - e)), and from `max_distance` on into the last.

    `both_ways` (T5's `bidirectional`) gives half of the buckets to the past and half to the future; without it all are
    for the past, and the future falls into bucket 0 (it is there for causal masks to hide).

    T5 takes the floor of a floating logarithm, which can fall on the wrong side of a whole number; here the first
    distance of every bucket is found in integers. The table begins with zeros: at first distance says nothing.
    """

    starts: Tensor

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, both_ways: bool = True):
        super().__init__()
        self.heads, self.buckets, self.both_ways = check_integer("heads", heads, 1), buckets, both_ways
        if check_integer("buckets", buckets, 4 if both_ways else 2) % 2 and both_ways:
            raise wrong("buckets", "even, half of them for each way", buckets, "Or use both_ways=False.")
        self.one_way = buckets // 2 if both_ways else buckets
        exact = self.one_way // 2
        remedy = f"The first {exact} distances have a bucket each: make it greater, or take fewer buckets."
        self.max_distance = check_integer("max_distance", max_distance, exact + 1, remedy)
        self.register_buffer("starts", self._starts(), persistent=False)
        self.table = nn.Parameter(torch.empty(buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def bucket(self, distance: Tensor) -> Tensor:
        """Which row of the table each distance reads."""
        future = (distance > 0).long() * self.one_way if self.both_ways else 0
        far = distance.abs() if self.both_ways else -distance.clamp(max=0)
        return torch.bucketize(far.long(), self.starts, right=True) + future

    def forward(self, distance: Tensor) -> Tensor:
        _check_distance(distance)
        return _look_up(self.bucket(distance), self.table)

    def _starts(self, device: torch.device | None = None) -> Tensor:
        return torch.tensor(_bucket_starts(self.one_way, self.max_distance), dtype=torch.long, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BucketedBias":
        super()._apply(fn, recurse)
        self.starts = self._starts(self.starts.device)  # to_empty would leave it empty
        return self

    def extra_repr(self) -> str:
        sizes = f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}"
        return f"{sizes}, both_ways={self.both_ways}"


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
    """The rows of the table that (Q, K) or (B, 1, Q, K) names, heads in their place: (H, Q, K) or (B, H, Q, K)."""
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
        """The bias of so many heads."""
        return ALiBi.for_heads(heads)

    def parameters(self, heads: int) -> int:
        """How many learned numbers it has."""
        return 0


@dataclass(frozen=True, kw_only=True)
class RelativeBiasConfig(Config):
    """`RelativeBias`, as a table of a config file."""

    kind: ClassVar[str] = "relative"
    max_distance: int = whole_number(16, minimum=0, old="limit")

    def build(self, heads: int, causal: bool) -> Bias:
        """The bias of so many heads."""
        return RelativeBias(heads, limit=self.max_distance)

    def parameters(self, heads: int) -> int:
        """How many learned numbers it has."""
        return (2 * self.max_distance + 1) * heads


@dataclass(frozen=True, kw_only=True)
class BucketedBiasConfig(Config):
    """`BucketedBias`, as a table of a config file; where attention is causal, all buckets are for the past."""

    kind: ClassVar[str] = "bucketed"
    num_buckets: int = whole_number(32, minimum=4, old="buckets")
    max_distance: int = whole_number(128, minimum=1)

    def build(self, heads: int, causal: bool) -> Bias:
        """The bias of so many heads."""
        return BucketedBias(heads, buckets=self.num_buckets, max_distance=self.max_distance, both_ways=not causal)

    def parameters(self, heads: int) -> int:
        """How many learned numbers it has."""
        return self.num_buckets * heads
