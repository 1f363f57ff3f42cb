"""The data of the page's maps: windows of attention weights at any scale, without the whole matrix.

    tiles.window(attention, head, TileWindow(top=0, left=0, rows=256, columns=256), size=1)    the weights themselves
    tiles.window(attention, head, TileWindow(0, 0, 16384, 16384), size=64)                     means of 64 × 64 weights

Rows are computed in slices. Means are computed for whole stripes of the matrix, because a row is normalised over all
its keys; recently used stripes and overviews are cached.

A page without a server computes weights itself, from queries and keys rounded to a few bits:

    weight of row i for key j = exp(scale · query_i · key_j − normalizer_i)

This holds where the score is a dot product and the normaliser softmax. The normalizer of a row, its log-sum-exp, needs
all keys and is computed here, together with the overview; the rounding error is measured and reported.

Legend: H heads, h key heads, n rows, N columns, D width, S size of a block.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.attention.look import Look
from regard.attention.mask import Causal, Mask, Window, as_mask
from regard.attention.normalize import Softmax
from regard.inspection.records import ScoreParts, head_rows, score_parts, single_head
from regard.inspection.trace_format import TracedAttention

WEIGHTS_AT_ONCE = 1 << 22
"""The number of weights or scores computed at once."""
MAX_ANSWER = 1 << 20
"""The number of blocks of a window."""
STRIPE_BLOCKS = 64
"""The number of block rows computed together."""
CACHE_BYTES = 64 << 20
MAX_OVERVIEW = 1 << 18
"""The number of blocks up to which the map of a head is computed whole."""
SAMPLED_ROWS = 64
"""The number of rows in which rounded weights are compared with exact ones."""


class TileWindow(NamedTuple):
    """A window of a matrix, in tokens."""

    top: int
    left: int
    rows: int
    columns: int


class TileCache:
    """Computes and caches windows of attentions. Threads may share it; it serves one at a time."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit = limit
        self._cache: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock, self._closed = threading.Lock(), False

    def close(self) -> None:
        """Wait for the current computation, and refuse further ones: a process must not end in the middle of one."""
        with self._lock:
            self._closed = True

    @torch.no_grad()
    def window(self, attention: TracedAttention, head: int, window: TileWindow, size: int = 1) -> Tensor:
        """The means of `size` × `size` blocks of a window, (block rows, block columns), float32.

        The window must begin at the edge of a block, and is cut at the end of the matrix, where blocks may be smaller.
        """
        window = _check_window(attention, head, window, size)
        with self._lock:
            self._check_open()
            if size == 1:
                return _window_weights(attention, head, window)
            top, left = window.top // size, window.left // size
            rows, columns = -(-window.rows // size), -(-window.columns // size)
            if _block_count(attention, size) <= MAX_OVERVIEW:
                return self._head_map(attention, head, size)[top:top + rows, left:left + columns]
            first, last = top // STRIPE_BLOCKS, -(-(top + rows) // STRIPE_BLOCKS)
            stripes = torch.cat([self._stripe(attention, head, size, number) for number in range(first, last)])
            return stripes[top - first * STRIPE_BLOCKS:top - first * STRIPE_BLOCKS + rows, left:left + columns]

    def score(self, attention: TracedAttention, head: int, row: int, column: int) -> ScoreParts | None:
        """The score of one weight by dimension; None if it is not a dot product."""
        for name, number, count in (("head", head, attention.heads), ("row", row, attention.rows),
                                    ("column", column, attention.columns)):
            if not 0 <= number < count:
                raise checks.wrong(name, f"at least 0 and below {count}", number)
        with self._lock:
            self._check_open()
            return score_parts(attention.look, head, row, column)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("The server is shutting down.")

    def _head_map(self, attention: TracedAttention, head: int, size: int) -> Tensor:
        """The whole map of one head, computed from the finest one that is small enough, which is cached."""
        finest = size
        while finest % 2 == 0 and _block_count(attention, finest // 2) <= MAX_OVERVIEW:
            finest //= 2
        if finest == 1:  # single weights are not an overview
            finest = size
        fine = self._cached((attention, head, finest), lambda: head_overview(attention, head, finest))
        return fine if finest == size else _coarser(fine, attention, finest, size)

    def _stripe(self, attention: TracedAttention, head: int, size: int, number: int) -> Tensor:
        first = number * STRIPE_BLOCKS * size
        last = min(attention.rows, first + STRIPE_BLOCKS * size)
        return self._cached((attention, head, size, number), lambda: _block_means(attention, head, first, last, size))

    def _cached(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        found = self._cache.pop(key, None)
        if found is None:
            found = make()
        self._cache[key] = found
        while len(self._cache) > 1 and sum(one.nbytes for one in self._cache.values()) > self.limit:
            self._cache.popitem(last=False)
        return found


@torch.no_grad()
def head_overview(attention: TracedAttention, head: int, size: int) -> Tensor:
    """The means of all blocks of one head, (block rows, block columns), float32."""
    alone = single_head(attention.look, head)
    if alone is None:
        return _block_means(attention, head, 0, attention.rows, size)
    return alone.block_map(size)[0].float().cpu()


def overview_block_size(attention: TracedAttention, blocks: int) -> int:
    """The smallest power of two with at most this number of blocks in each direction."""
    longest = max(attention.rows, attention.columns)
    return 1 << max(0, math.ceil(math.log2(longest / blocks)) if longest > blocks else 0)


def _coarser(fine: Tensor, attention: TracedAttention, finest: int, size: int) -> Tensor:
    """Means of larger blocks from means of smaller ones, weighted by their numbers of weights."""
    counts = _block_counts(attention.rows, attention.columns, finest)
    sums, times = fine.double() * counts, size // finest
    for dim in (0, 1):
        blocks = torch.arange(sums.shape[dim]) // times
        shape = [-(-part // times) if place == dim else part for place, part in enumerate(sums.shape)]
        sums = sums.new_zeros(shape).index_add_(dim, blocks, sums)
    return (sums / _block_counts(attention.rows, attention.columns, size)).float()


def _block_count(attention: TracedAttention, size: int) -> int:
    return -(-attention.rows // size) * -(-attention.columns // size)


def _block_counts(rows: int, columns: int, size: int) -> Tensor:
    """The number of weights of each block; the last blocks may be smaller."""
    heights, widths = ((count - torch.arange(0, count, size)).clamp(max=size) for count in (rows, columns))
    return heights.unsqueeze(-1) * widths


def _window_weights(attention: TracedAttention, head: int, window: TileWindow) -> Tensor:
    rows = head_rows(attention.look, head)
    slices = []
    for indices in _row_slices(window.top, window.top + window.rows, attention.columns):
        part = rows(indices)[:, window.left:window.left + window.columns]
        slices.append(part.to(device="cpu", dtype=torch.float32))
    return torch.cat(slices)


def _block_means(attention: TracedAttention, head: int, first: int, last: int, size: int) -> Tensor:
    """The means of the blocks of rows `first` to `last`; a block begins at `first`."""
    rows, across = head_rows(attention.look, head), -(-attention.columns // size)
    sums = torch.zeros(-(-(last - first) // size), across, dtype=torch.float64)
    block_of_column = torch.arange(attention.columns) // size
    for indices in _row_slices(first, last, attention.columns):
        weights = rows(indices).to(device="cpu", dtype=torch.float32)
        part = torch.zeros(len(indices), across).index_add_(1, block_of_column, weights)
        sums.index_add_(0, (torch.tensor(indices) - first) // size, part.double())
    return (sums / _block_counts(last - first, attention.columns, size)).float()


def _row_slices(first: int, last: int, columns: int) -> Iterator[list[int]]:
    step = max(1, WEIGHTS_AT_ONCE // max(1, columns))
    for start in range(first, last, step):
        yield list(range(start, min(last, start + step)))


def _check_window(attention: TracedAttention, head: int, window: TileWindow, size: int) -> TileWindow:
    """Check a window, and cut it to the matrix."""
    if not 0 <= head < attention.heads:
        raise checks.wrong("head", f"from 0 to {attention.heads - 1}, one of the heads", head)
    if size < 1:
        raise checks.wrong("size", "at least 1", size)
    for name, start, count in (("top", window.top, attention.rows), ("left", window.left, attention.columns)):
        if not 0 <= start < count:
            raise checks.wrong(name, f"at least 0 and below {count}", start)
        if start % size:
            raise checks.wrong(name, f"a multiple of the block size, {size}", start)
    for name, count in (("rows", window.rows), ("columns", window.columns)):
        if count < 1:
            raise checks.wrong(name, "at least 1", count)
    rows = min(window.rows, attention.rows - window.top)
    columns = min(window.columns, attention.columns - window.left)
    if -(-rows // size) * -(-columns // size) > MAX_ANSWER:
        raise checks.wrong("window", f"of at most {MAX_ANSWER:,} blocks", f"{rows:,} × {columns:,} tokens by {size}",
                           "Request a smaller window, or larger blocks.")
    return TileWindow(window.top, window.left, rows, columns)


class Projection(NamedTuple):
    """Queries and keys whose products, scaled, are the scores of an attention with softmax."""

    query: Tensor
    """(H, n, D), float32."""
    key: Tensor
    """(h, N, D), float32."""
    scale: float
    mask: Mask | None

    @classmethod
    def of(cls, attention: TracedAttention) -> "Projection | None":
        """The projection of an attention; None if its weights are not a softmax of dot products."""
        look = attention.look
        if not isinstance(look, Look) or look.bias is not None:
            return None
        problem, mask = look.problem, None if look.mask is None else as_mask(look.mask)
        dot = problem.score.as_dot(problem.query)
        if dot is None or type(problem.normalize) is not Softmax or type(mask) not in (Causal, Window, type(None)):
            return None
        query, key = (part.float().cpu() for part in (dot[0].expand(*problem.leading, -1, -1), problem.key))
        return cls(query, key, dot[1], mask) if bool(query.isfinite().all() and key.isfinite().all()) else None

    def nbytes(self, bits: int) -> int:
        """The size in bytes of queries and keys of this number of bits, with the normalizers."""
        sizes = [len(part) * -(-part[0].numel() * bits // 8) for part in (self.query, self.key)]
        return sum(sizes) + 4 * self.query.shape[0] * self.query.shape[1]

    def rounded(self, bits: int) -> "ProjectedWeights":
        """Queries and keys as whole multiples of a step, which reaches to the largest number of each head."""
        steps = [part.abs().amax(dim=(1, 2)).double() / (2 ** (bits - 1) - 1) for part in (self.query, self.key)]
        of_query, of_key = (one.masked_fill(one == 0, 1.0) for one in steps)
        return ProjectedWeights((self.query.double() / of_query[:, None, None]).round().int(),
                                (self.key.double() / of_key[:, None, None]).round().int(), self.scale, self.mask, bits,
                                (of_query.tolist(), of_key.tolist()))


@dataclass(frozen=True)
class ProjectedWeights:
    """Rounded queries and keys from which the page computes weights."""

    query: Tensor
    """(H, n, D), int32, whole multiples of the step of their head."""
    key: Tensor
    """(h, N, D), int32."""
    scale: float
    mask: Mask | None
    bits: int
    """The number of bits of a query or key, with its sign."""
    steps: tuple[list[float], list[float]]
    """What 1 stands for in the queries of each head, and in the keys of each key head."""

    @torch.no_grad()
    def normalizers_and_means(self, size: int) -> tuple[Tensor, Tensor]:
        """The normalizers (H, n), −∞ for a row without visible keys, and the means of blocks (H, ...), float32."""
        H, n, _ = self.query.shape
        N = self.key.shape[1]
        normalizers = torch.empty(H, n)
        sums = torch.zeros(H, -(-n // size), -(-N // size))
        step = size * max(1, WEIGHTS_AT_ONCE // max(1, N * size))
        for head in range(H):
            query, key = self._head(head)
            for first in range(0, n, step):
                rows = slice(first, min(n, first + step))
                start, stop = (0, N) if self.mask is None else self.mask.span(rows.start, rows.stop, n, N)
                start, stop = start // size * size, min(N, -(-stop // size) * size)
                if start >= stop:  # with fewer keys than queries, the first queries see none
                    normalizers[head, rows] = -torch.inf
                    continue
                scores = self._scores(query, key, rows, slice(start, stop))
                normalizers[head, rows] = scores.logsumexp(-1)
                whole = torch.nn.functional.pad(_weights_from_scores(scores, normalizers[head, rows]),
                                                (0, -scores.shape[1] % size, 0, -scores.shape[0] % size))
                blocks = whole.view(-1, size, whole.shape[1] // size, size).sum(dim=(1, 3))
                sums[head, first // size:first // size + len(blocks), start // size:-(-stop // size)] = blocks
        return normalizers, sums / _block_counts(n, N, size)

    @torch.no_grad()
    def error(self, attention: TracedAttention) -> float:
        """The largest difference to the exact weights, in evenly spaced rows, of what the page computes.

        The page computes in double precision, from queries, keys and normalizers in single precision.
        """
        n, N = attention.rows, attention.columns
        indices = sorted({n * part // SAMPLED_ROWS for part in range(SAMPLED_ROWS)} | {n - 1})
        exact, largest = attention.look.rows(indices).float().cpu(), 0.0
        for head in range(attention.heads):
            query, key = self._head(head)
            wide_query, wide_key = query.double(), key.double()
            for place, row in enumerate(indices):
                normalizers = self._scores(query, key, slice(row, row + 1), slice(0, N)).logsumexp(-1).double()
                scores = self._scores(wide_query, wide_key, slice(row, row + 1), slice(0, N))
                rounded = _weights_from_scores(scores, normalizers)
                largest = max(largest, float((rounded[0] - exact[head, place]).abs().max()))
        return largest

    def _head(self, head: int) -> tuple[Tensor, Tensor]:
        """The scaled queries and the keys of one head, in single precision."""
        key_head = head // (len(self.query) // len(self.key))
        return (self.query[head].float() * (self.steps[0][head] * self.scale),
                self.key[key_head].float() * self.steps[1][key_head])

    def _scores(self, query: Tensor, key: Tensor, rows: slice, columns: slice) -> Tensor:
        scores = query[rows] @ key[columns].T
        if self.mask is None:
            return scores
        distance = torch.arange(columns.start, columns.stop) - (
            torch.arange(rows.start, rows.stop).unsqueeze(-1) + len(key) - len(query))
        left, right = (None, 0) if isinstance(self.mask, Causal) else (self.mask.left, self.mask.right)  # type: ignore[attr-defined]
        hidden = torch.zeros_like(distance, dtype=torch.bool) if left is None else distance < -left
        return scores.masked_fill_(hidden if right is None else hidden | (distance > right), -torch.inf)


def _weights_from_scores(scores: Tensor, normalizers: Tensor) -> Tensor:
    """The softmax of scores, in place; 0 in a row without visible keys."""
    return scores.sub_(normalizers.masked_fill(normalizers == -torch.inf, 0.0).unsqueeze(-1)).exp_()
