"""The `pointwise` backend: ReLU and sigmoid weights for scores that are dot products, by fused kernels on CUDA.

Each weight is a function of its own score, divided by one number a row at most. So no row has to be whole, and no
matrix of weights is held, forward or backward. Masks of ranges (causal, windows, padding, packed) cost nothing and let
blocks of pairs be skipped; any other mask, and a bias, is written out and read.

It brings the problem into the form of the kernels (`pointwise_triton`) and guards what they do not promise: NaN and inf
in queries that see nothing and in keys that nobody sees.

Legend: B leading dimensions but the heads in one, H heads, Q queries, K keys, D width.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.attention import mask_cache
from regard.attention.kernels import sdpa
from regard.attention.mask_cache import is_band
from regard.attention.normalize import ReLUKeys, ReLUSum, Sigmoid
from regard.attention.problem import AttentionProblem
from regard.kernels import launch

KINDS = {ReLUKeys: "relu", ReLUSum: "relu_sum", Sigmoid: "sigmoid"}
WIDEST = 256
"""Features of a query, a key or a value that fit on the chip beside a block of weights."""
SHORT = 1 << 20
"""Below this many pairs the matrix is cheap, and the launches of `exact` are fewer."""


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    if type(problem.normalize) not in KINDS:
        return f"its kernels have weights of relu, relu_sum and sigmoid, not of {problem.normalize!r}"
    if problem.score.as_dot(problem.query[..., :0, :]) is None:
        return f"its kernels compute dot products, and the score {problem.score!r} is none"
    if problem.query.device.type != "cuda":
        return f"it needs a CUDA device, and the query is on {problem.query.device.type}"
    if problem.query.dtype == torch.float64:
        return "it does not compute in float64"
    if torch.compiler.is_compiling():
        return "it does not run inside of a compiled graph"
    if not launch.installed():
        return "it needs the package triton"
    widest = max(problem.key.shape[-1], problem.value.shape[-1])
    return f"it takes at most {WIDEST} features, and there are {widest}" if widest > WIDEST else None


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    if isinstance(problem.normalize, ReLUSum):  # scores are summed twice, and may differ by as much as a tiny sum has
        return "gradients err where the positive scores of a row add up to almost nothing; it runs only when asked for"
    if problem.pairs < SHORT:
        return f"it pays from {SHORT:,} pairs on, and there are {problem.pairs:,}"
    written = replace(problem, mask=None if is_band(problem.mask) else problem.mask)
    entries = sdpa.matrix_entries(written)
    if entries > sdpa.HELD:
        return f"the mask or bias would be a matrix of {entries:,} entries, more than {sdpa.HELD:,}"
    return None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    mask = "ranges of keys" if is_band(problem.mask) else "a mask that is written out"
    return f"blocks of {KINDS[type(problem.normalize)]} weights that are never held" + (
        "" if problem.mask is None else f", under {mask}")


def run(problem: AttentionProblem) -> Tensor:
    """The output of the fused kernels."""
    from regard.kernels import pointwise

    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "refusal() was not asked"
    query, scale = dot
    H, key_heads = problem.heads, problem.key_heads
    q_BHQD, k_BHKD, v_BHKD = (problem.four(t, heads) for t, heads in ((query, H), (problem.key, key_heads),
                                                                      (problem.value, key_heads)))
    limits = mask_cache.key_ranges(problem)
    place = problem.block()
    matrix = None if is_band(problem.mask) else problem.allowed(place)
    bias = problem.added(place)
    if problem.mask is not None:
        q_BHQD, k_BHKD, v_BHKD = _hidden(problem, limits, matrix, q_BHQD, k_BHKD, v_BHKD)
    low_BHQ, high_BHQ = (problem.four(end.unsqueeze(-1), H).squeeze(-1) for end in limits)
    matrix, bias = (None if t is None else problem.four(t.expand(*t.shape[:-2], problem.n_queries, problem.n_keys), H)
                    for t in (matrix, bias))
    # Drawn on the device, and kept: the backward pass draws the same weights from it once more.
    seed = torch.randint(1 << 31, (1,), device=query.device) if problem.dropout else None
    output: Tensor = pointwise.PointwiseAttention.apply(q_BHQD, k_BHKD, v_BHKD, bias, low_BHQ, high_BHQ, matrix, seed,
                                                   scale, problem.dropout, KINDS[type(problem.normalize)])
    return output.view(*problem.leading, problem.n_queries, output.shape[-1])


def _hidden(problem: AttentionProblem, limits: mask_cache.KeyRanges, matrix: Tensor | None, query: Tensor, key: Tensor,
            value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with zeros in queries that see nothing, and in keys and values that nothing sees."""
    H, key_heads = query.shape[1], key.shape[1]
    if matrix is None:
        blind, seen = (limits.low >= limits.high).unsqueeze(-1), limits.seen(problem.n_keys).unsqueeze(-1)
    else:
        blind, seen = ~mask_cache.any_along(matrix, -1), mask_cache.any_along(matrix, -2).mT
    blind = blind.expand(*blind.shape[:-2], problem.n_queries, 1)
    seen = seen.expand(*seen.shape[:-2], problem.n_keys, 1)
    unused = ~problem.four(seen, H).unflatten(1, (key_heads, H // key_heads)).any(2)
    return (query.masked_fill(problem.four(blind, H), 0.0), key.masked_fill(unused, 0.0),
            value.masked_fill(unused, 0.0))
