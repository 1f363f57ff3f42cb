"""Statistics of attention weights in fused passes on a GPU: two of them at most, and nothing of size N² is held.

For scores that are dot products, under softmax, and masks that are one range of keys a query. The passes are Triton
kernels, in `fused_passes` and `fused_maps`; here a problem is brought into their form, and the tiles are chosen. What
each function computes is defined in `Look`. No gradients flow from here.

On a CPU the kernels run only in Triton's interpreter, to be tested.

Legend: ... leading dimensions, S sequences (all leading dimensions together), Q queries, K keys, M blocks of a map.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention import mask_cache
from regard.attention.kernels import sdpa
from regard.attention.kernels.statistics import block_counts
from regard.attention.mask_cache import KeyRanges
from regard.attention.problem import AttentionProblem
from regard.kernels import launch

WIDEST = 256
"""Features of a query that a tile holds."""
MOST = 16
"""Largest weights of a row that are found together."""
SMALLEST = 32
"""The smallest blocks of a map that need not be a power of two: smaller ones would leave tiles nearly empty."""
TYPES = (torch.float16, torch.bfloat16, torch.float32)


class TileSizes(NamedTuple):
    """Queries and keys of a tile, how a program works on it, and how it multiplies float32: triton's word for it.

    "tf32x3" makes three products of fewer digits from one, on the tensor cores; "ieee" uses none of these.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    precision: str = "tf32x3"


def refusal(problem: AttentionProblem) -> str | None:
    """Why the passes cannot do the work; None when they can."""
    if not launch.installed():
        return "triton is not installed"
    if problem.query.device.type != "cuda" and not launch.interpreted():
        return f"it needs a CUDA device, and the query is on {problem.query.device.type}"
    if problem.query.device.type != "cuda" and problem.query.dtype == torch.bfloat16:
        return "triton's interpreter takes the bits of bfloat16 for whole numbers"
    if problem.query.dtype not in TYPES:
        return f"it does not compute in {problem.query.dtype}"
    if problem.query.numel() == 0 or problem.key.numel() == 0:
        return "there are no queries or no keys"
    if problem.bias is not None:
        return "it takes no bias"
    other = sdpa.refusal(problem)
    if other is not None:
        return other
    dot = problem.score.as_dot(problem.query[..., :0, :])
    assert dot is not None
    query, scale = dot
    if query.shape[-1] > WIDEST:
        return f"it takes widths up to {WIDEST}, and the query's is {query.shape[-1]}"
    if not scale > 0:
        return f"it takes a positive scale, and the score {problem.score!r} has {scale}"
    return mask_cache.range_refusal(problem)


def refused_size(size: int) -> str | None:
    """Why maps of such blocks are not made here; None when they are."""
    if size < SMALLEST and size & (size - 1):
        return f"it takes blocks of a power of two or of at least {SMALLEST}, and the size is {size}"
    return None


def refused_count(count: int) -> str | None:
    """Why so many weights of a row are not found here; None when they are."""
    return f"it finds up to {MOST} weights of a row, and {count} are asked for" if count > MOST else None


@torch.no_grad()
def entropy(problem: AttentionProblem, tiles: TileSizes | None = None) -> Tensor:
    """-Σ w log w of every row: (..., Q)."""
    return _answer(problem, _normalised(_form(problem), tiles, "entropy").kept)


@torch.no_grad()
def row_max(problem: AttentionProblem, tiles: TileSizes | None = None) -> tuple[Tensor, Tensor]:
    """The largest weight of every row and the first key that has it: (..., Q) each."""
    rows = _normalised(_form(problem), tiles, "spot")
    return _answer(problem, rows.inverse), rows.kept.long().reshape(*problem.leading, -1)


@torch.no_grad()
def column_sums(problem: AttentionProblem, tiles: TileSizes | None = None) -> Tensor:
    """What each key receives in all: (..., K)."""
    from regard.kernels import statistics

    form = _form(problem)
    rows = _normalised(form, tiles, "normaliser")
    chosen = tiles or _tiles(form)
    chosen = chosen._replace(queries=chosen.keys, keys=chosen.queries)  # the keys stay, and the queries go by
    visited = mask_cache.tile_schedule(form.ranges, form.n_keys, chosen.queries, chosen.keys)
    visited = visited.reshape(-1, *visited.shape[-2:])
    sums_SK = torch.empty(form.sequences, form.n_keys, device=form.query.device)
    count = -(-form.n_keys // chosen.keys)
    launch.launch(statistics.column_pass, (count * form.sequences,), form.query, form.key, *form.ranges, rows.peak,
                   rows.inverse, visited, sums_SK, *form.sizes(count), visited.stride(0) if form.ranged else 0,
                   **form.constants(), QUERIES=chosen.queries, KEYS=chosen.keys, **_work(chosen))
    return _answer(problem, sums_SK)


@torch.no_grad()
def top_k(problem: AttentionProblem, count: int, tiles: TileSizes | None = None) -> tuple[Tensor, Tensor]:
    """The `count` largest weights of every row, largest first, and their keys: (..., Q, count) each."""
    from regard.kernels import statistics

    form = _form(problem)
    chosen = tiles or _tiles(form)
    room = 1 << (count - 1).bit_length()
    peak, inverse = (torch.empty(form.sequences, form.n_queries, device=form.query.device) for _ in range(2))
    lead = torch.empty(*peak.shape, room, dtype=torch.int64, device=peak.device)
    number = -(-form.n_queries // chosen.queries)
    launch.launch(statistics.leader_pass, (number * form.sequences,), form.query, form.key, *form.ranges, peak, inverse,
                   lead, *form.sizes(number), **form.constants(), QUERIES=chosen.queries, KEYS=chosen.keys, COUNT=room,
                   **_work(chosen))
    value = torch.empty(*peak.shape, count, device=peak.device)
    position = torch.empty(*peak.shape, count, dtype=torch.int64, device=peak.device)
    launch.launch(statistics.top_k_pass, (form.n_queries * form.sequences,), form.query, form.key, *form.ranges, peak,
                   inverse, lead, value, position, *form.sizes(form.n_queries), **form.constants(), KEYS=chosen.keys,
                   COUNT=room, ASKED=count, num_warps=4)
    return _answer(problem, value, count), position.reshape(*problem.leading, form.n_queries, count)


@torch.no_grad()
def block_map(problem: AttentionProblem, size: int, tiles: TileSizes | None = None) -> Tensor:
    """The mean weight of every size × size block: (..., M queries, M keys)."""
    form = _form(problem)
    rows = _normalised(form, tiles, "normaliser")
    chosen = tiles or _tiles(form)
    smaller = min(chosen.queries, chosen.keys)
    make = _fine if size & (size - 1) == 0 and size <= smaller else _coarse
    sums_SMM = make(form, rows, size, chosen)
    return (sums_SMM.reshape(*problem.leading, *sums_SMM.shape[1:]) / block_counts(problem, size)).to(form.query.dtype)


@dataclass(frozen=True)
class _StatisticsInputs:
    """A problem in the form of the kernels: query (B, H, Q, D) and key (B, H or fewer, K, D) with features in a row."""

    query: Tensor
    key: Tensor
    ranges: KeyRanges
    factor: float

    @property
    def sequences(self) -> int:
        return self.query.shape[0] * self.query.shape[1]

    @property
    def n_queries(self) -> int:
        return self.query.shape[-2]

    @property
    def n_keys(self) -> int:
        return self.key.shape[-2]

    @property
    def ranged(self) -> bool:
        """Whether every sequence has ranges of its own."""
        return self.ranges.low.dim() > 1

    def sizes(self, tiles: int) -> tuple[int | float, ...]:
        """The numbers that every pass takes, in order."""
        heads = self.query.shape[1]
        return (self.n_queries, self.n_keys, tiles, heads, heads // self.key.shape[1], self.factor,
                *self.query.stride()[:3], *self.key.stride()[:3], self.n_queries if self.ranged else 0)

    def constants(self) -> dict[str, Any]:
        """What the passes are compiled for."""
        width = self.query.shape[-1]
        return {"WIDTH": width, "D": max(16, 1 << (width - 1).bit_length())}


class _RowNormalisers(NamedTuple):
    """Of every row (S, Q): its peak in powers of two, one over its sum, and what else was kept."""

    peak: Tensor
    inverse: Tensor
    kept: Tensor


def _form(problem: AttentionProblem) -> _StatisticsInputs:
    shaped = sdpa.sdpa_inputs(replace(problem, mask=None))
    query, key = (t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous() for t in (shaped.query, shaped.key))
    return _StatisticsInputs(query, key, mask_cache.sequence_ranges(problem), shaped.scale * math.log2(math.e))


def _normalised(form: _StatisticsInputs, tiles: TileSizes | None, kept: str) -> _RowNormalisers:
    """The normaliser of every row, and its "entropy" or the "spot" of its largest score where that is to be kept."""
    from regard.kernels import statistics

    chosen = tiles or _tiles(form)
    peak, inverse = (torch.empty(form.sequences, form.n_queries, device=form.query.device) for _ in range(2))
    found = {"normaliser": peak, "entropy": torch.empty_like(peak), "spot": torch.empty_like(peak, dtype=torch.int32)}
    count = -(-form.n_queries // chosen.queries)
    launch.launch(statistics.row_pass, (count * form.sequences,), form.query, form.key, *form.ranges, peak, inverse,
                   found["entropy"], found["spot"], *form.sizes(count), **form.constants(), QUERIES=chosen.queries,
                   KEYS=chosen.keys, KEPT=kept, **_work(chosen))
    return _RowNormalisers(peak, inverse, found[kept])


def _coarse(form: _StatisticsInputs, rows: _RowNormalisers, size: int, tiles: TileSizes) -> Tensor:
    """The sums of blocks of any size, (S, M, M)."""
    from regard.kernels import statistics

    down, across = (-(-n // size) for n in (form.n_queries, form.n_keys))
    pieces = -(-size // tiles.queries)
    count = down * pieces
    sums = torch.zeros(form.sequences, count, across, device=form.query.device)
    launch.launch(statistics.coarse_map_pass, (count * form.sequences,), form.query, form.key, *form.ranges, rows.peak,
                   rows.inverse, sums, *form.sizes(count), size, down, across, pieces, **form.constants(),
                   QUERIES=tiles.queries, KEYS=tiles.keys, EVEN=size % tiles.keys == 0, **_work(tiles))
    return sums.unflatten(1, (down, pieces)).sum(2)


def _fine(form: _StatisticsInputs, rows: _RowNormalisers, size: int, tiles: TileSizes) -> Tensor:
    """The sums of blocks of a power of two that is at most a tile, (S, M, M)."""
    from regard.kernels import statistics

    down, across = (-(-n // size) for n in (form.n_queries, form.n_keys))
    count = -(-form.n_queries // tiles.queries)
    sums = torch.zeros(form.sequences, down, across, device=form.query.device)
    launch.launch(statistics.fine_map_pass, (count * form.sequences,), form.query, form.key, *form.ranges, rows.peak,
                   rows.inverse, sums, *form.sizes(count), down, across, **form.constants(), QUERIES=tiles.queries,
                   KEYS=tiles.keys, SIZE=size, **_work(tiles))
    return sums


def _tiles(form: _StatisticsInputs) -> TileSizes:
    """The tiles for a width and a type, within the memory of a multiprocessor."""
    width = form.query.shape[-1]
    if form.query.dtype == torch.float32:
        return TileSizes(64, 64, 4, 2) if width <= 64 else TileSizes(64, 32, 4, 2 if width <= 128 else 1)
    # Several programs on a multiprocessor: while one waits for its product, another takes exponentials.
    if width <= 64:
        return TileSizes(128, 128, 4, 2)
    return TileSizes(128, 64, 4, 2) if width <= 128 else TileSizes(128, 64, 8, 2)


def _work(tiles: TileSizes) -> dict[str, Any]:
    return {"PRECISION": tiles.precision, "num_warps": tiles.warps, "num_stages": tiles.stages}


def _answer(problem: AttentionProblem, numbers: Tensor, *last: int) -> Tensor:
    return numbers.to(problem.query.dtype).reshape(*problem.leading, -1, *last)
