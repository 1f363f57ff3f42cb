"""The `band` backend: dot products under softmax, where every query sees one run of keys.

Packed sequences, padding, causal masks and windows are bands (`regard.attention.mask_cache`): the kernels in `band_triton`
read two numbers a query in the place of a matrix, and touch no block of keys that nobody sees. That is what packed rows
of short sequences need: a tile of them holds several sequences, queries and keys, and needs nothing else. Where one
sequence fills many tiles, torch's own kernels are faster, and are preferred.

On a GPU alone; elsewhere only in Triton's interpreter, for tests. It does not know how a band comes about.
"""

import torch
from torch import Tensor

from regard.attention.mask import PackedSegments
from regard.attention.mask_cache import Band, band_of, is_band, mask_parts
from regard.attention.normalize import Softmax
from regard.attention.problem import AttentionProblem
from regard.kernels import launch

WIDEST = 256
"""Features of a head that its blocks have room for."""


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    if not isinstance(problem.normalize, Softmax):
        return f"its kernels normalise by softmax, not by {problem.normalize!r}"
    if problem.score.as_dot(problem.query[..., :0, :]) is None:
        return f"its kernels compute dot products, and the score {problem.score!r} is none"
    if problem.bias is not None:
        return "its kernels add no bias"
    if not is_band(problem.mask):
        # Kinds are named, not values: to show a mask would wait for a GPU, and break a compiled graph.
        return f"a mask of the kind {type(problem.mask).__name__} may let a query see more than one run of keys"
    if problem.query.dtype == torch.float64:
        return "its kernels have no float64"
    if max(problem.query.shape[-1], problem.value.shape[-1]) > WIDEST:
        return f"its blocks have room for heads of at most {WIDEST} features"
    if not problem.pairs or not problem.value.shape[-1]:
        return "there is nothing to compute"
    return launch.why_not(problem.query.device)


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    if torch.compiler.is_compiling():
        return "torch.compile does not look into its kernels"
    if problem.query.device.type == "cpu":
        return "on a CPU its kernels run in Triton's interpreter, which is for tests"
    if not any(isinstance(part, Band | PackedSegments) for part in mask_parts(problem.mask)):
        return "torch's kernels are faster where sequences are not packed"
    if problem.query.dtype == torch.float32:
        return "in float32 it is not faster than the others"
    return None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    return "one run of keys a query, in Triton; no mask is written out"


def run(problem: AttentionProblem) -> Tensor:
    """The output of the fused kernel."""
    from regard.kernels import band as band_triton

    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "refusal() was not asked"
    query, scale = dot
    band = band_of(problem.mask, problem.n_queries, problem.n_keys, leading=len(problem.leading), device=query.device)
    assert band is not None, "refusal() was not asked"
    query, key, value = (problem.four(tensor, heads) for tensor, heads in (
        (query, problem.heads), (problem.key, problem.key_heads), (problem.value, problem.key_heads)))
    first, last, from_query, to_query = (
        problem.four(part.unsqueeze(-1), problem.heads).squeeze(-1)  # what is the same for many is not repeated
        for part in (band.first, band.last, *band.queries(problem.n_keys)))
    tiles, counts = _tiles(band, problem.n_keys, band_triton.tile_size(query, value))
    runs = band_triton.BandTiles(first, last, from_query, to_query, problem.four(tiles, 2),
                            problem.four(counts[..., None, None], 2)[..., 0, 0])
    output = band_triton.attend_band(query, key, value, runs, scale=scale, dropout=problem.dropout)
    return output if len(problem.leading) == 2 else output.reshape(*problem.leading, *output.shape[-2:])


def _tiles(band: Band, n_keys: int, size: int) -> tuple[Tensor, Tensor]:
    """The tiles of a band, found once for as many keys: (..., 2, room, 4) and (..., 2), without heads, which share keys
    and so share tiles: what one of them sees may be in a tile, and what none of them sees need not."""
    from regard.kernels import band as band_tiles

    def find() -> tuple[Tensor, Tensor]:
        first, last = band.first, band.last
        if band.leading:
            one = first.shape[-2] == 1
            first, last = (first[..., 0, :], last[..., 0, :]) if one else (first.amin(-2), last.amax(-2))
        return band_tiles.find_tiles(first, last, n_keys, size)

    return band.looked_up(("tiles", n_keys, size), find)
