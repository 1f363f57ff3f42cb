"""Backends on fused kernels: torch's `sdpa` and `flex`, and our own `shared_bias`, `band`, `pointwise` and `agents`.

    sdpa        dot products under softmax, by torch's scaled_dot_product_attention; the usual one
    shared_bias the same with a bias that many rows share, as in triangle attention, by `regard.kernels.shared_bias`
    flex        the same on CUDA, by torch's flex_attention: blocks of pairs that the mask forbids are skipped; also
                with a softcap
    band        the same on CUDA, by `regard.kernels.band`, where each query has one range of keys (packed rows)
    pointwise   dot products under ReLU or sigmoid on CUDA, by `regard.kernels.pointwise`
    agents      agent-aware scores under softmax on a CPU, by `regard.kernels.agent_attention`

A backend brings a problem into the form that its kernel takes, and guards what the kernel does not promise: rows that
may attend to nothing give zeros, NaN and inf in keys that no query may attend to are never read, and causal masks are
aligned to the bottom right (torch aligns to the top left).

Legend: B batch, H heads, Q queries, K keys, N tokens, D width.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.attention.mask import BoolMask, Causal, Mask, PackedSegments, Padding, mask_parts
from regard.attention.mask_cache import (
    MAX_MATRIX_ENTRIES,
    Band,
    CachedMask,
    KeyRanges,
    any_along,
    band_of,
    hide,
    is_band,
    key_ranges,
    may_hold,
)
from regard.attention.normalize import ReLUKeys, ReLUSum, Sigmoid, Softmax
from regard.attention.problem import AttentionProblem
from regard.attention.score import AgentAware, Score, SoftcappedScore, split_agents, wide_product
from regard.kernels import dispatch, launch
from regard.kernels.agent_attention import agent_layout, attend_agents

Backend = dispatch.Backend[AttentionProblem, Tensor]

MAX_WIDTH = 256
"""The widest head that the blocks of our own kernels have room for."""
HOPPER = 9
"""The GPU generation (compute capability) on which torch's kernels were measured against each other."""
FLEX_MIN_KEYS = 2048
"""With fewer keys, skipping blocks saves less than finding them costs."""
POINTWISE_MIN_PAIRS = 1 << 20
"""With fewer pairs the matrix of weights is cheap, and `exact` launches fewer kernels."""
SHARED_BIAS_MAX_WIDTH = 128
"""The widest head that the kernels for a shared bias have room for."""
SHARED_BIAS_MIN_PAIRS = 1 << 20
"""With fewer pairs the matrices are small, and torch's kernels launch less."""
AGENTS_MIN_PAIRS = 1 << 20
"""With fewer pairs the matrix of weights of agent-aware attention is as fast."""
POINTWISE_KINDS = {ReLUKeys: "relu", ReLUSum: "relu_sum", Sigmoid: "sigmoid"}


class SdpaInputs(NamedTuple):
    """A problem in the form of `scaled_dot_product_attention`: query, key and value are (B, H, N, D)."""

    query: Tensor
    key: Tensor
    value: Tensor
    matrix: Tensor | None
    """Which pairs may attend (bool), or what is added to the scores (float)."""
    causal: bool
    scale: float
    empty: Tensor | None
    """The rows that may attend to nothing."""

    @property
    def grouped(self) -> bool:
        """Whether several heads of queries share one head of keys."""
        return self.query.shape[1] != self.key.shape[1]


class SdpaBackend(Backend):
    """torch's `scaled_dot_product_attention`, for dot products under softmax."""

    def refusal(self, problem: AttentionProblem) -> str | None:
        if not isinstance(problem.normalize, Softmax):
            return f"it computes softmax, not {problem.normalize!r}"
        if problem.score.as_dot(problem.query[..., :0, :]) is None:
            return f"it computes dot products, not the score {problem.score!r}"
        return None

    def drawback(self, problem: AttentionProblem) -> str | None:
        if launch.in_torch_func():
            return "torch.func has no batching rule for its kernels, and would call them once for each sample"
        if isinstance(problem.bias, Tensor) and not SHARED_BIAS.refusal(problem) and not SHARED_BIAS.drawback(problem):
            return f"rows share the bias, and its matrix or its gradient would have {problem.n_pairs:,} entries"
        return _matrix_drawback(matrix_entries(problem))

    def detail(self, problem: AttentionProblem) -> str:
        order = sdpa_kernels(problem)
        names = ", ".join(kernel.name.removesuffix("_ATTENTION").lower() for kernel in order)
        return f"the first of torch's kernels that supports it, in the order {names}" if order else (
            "the kernel that torch chooses")

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output of the fused kernel."""
        problem, width = as_dot_problem(problem), problem.value.shape[-1]
        inputs = sdpa_inputs(problem)
        order = sdpa_kernels(problem)
        with kernel_priority([kernel.value for kernel in order]) if order else nullcontext():
            output = scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, inputs.matrix,
                                                  problem.dropout, inputs.causal, scale=inputs.scale,
                                                  enable_gqa=inputs.grouped)
        if output.shape[-1] != width:  # a slice of all features would cost a copy in the backward pass
            output = output[..., :width]
        if problem.bias is not None and inputs.matrix is not None and 0 in (
                *problem.leading, problem.n_queries, problem.n_keys):
            output = output + inputs.matrix.flatten()[:0].sum()  # torch's kernels would give the bias no gradient
        if inputs.empty is not None:
            output = output.masked_fill(inputs.empty, 0.0)
        return output if len(problem.leading) == 2 else output.reshape(*problem.leading, problem.n_queries, width)


SDPA = SdpaBackend()


def sdpa_inputs(problem: AttentionProblem) -> SdpaInputs:
    """The problem in the form of torch's kernels."""
    query, scale = _dot(problem)
    key, value = problem.key, problem.value
    matrix, causal, empty = None, False, None
    if is_square_causal(problem):
        # A single query stands at the last key and may attend to all. (While compiling, comparing sizes gives no bool.)
        causal = True if problem.n_queries > 1 else False  # noqa: SIM210
    elif problem.mask is not None or problem.bias is not None:
        if isinstance(problem.mask, CachedMask) and problem.bias is None:
            matrix, empty = problem.mask.opened, problem.mask.blind
        else:
            query, key, value, matrix, empty = _with_matrix(problem, query)
        if matrix.shape[-1] != problem.n_keys:  # CUDA kernels misread a broadcast last dimension
            matrix = matrix.expand(*matrix.shape[:-1], problem.n_keys).contiguous()
        matrix = _two_leading(matrix, problem.leading)
        empty = None if empty is None else _two_leading(empty, problem.leading)
    query, key, value = (_two_leading(tensor, problem.leading) for tensor in _one_width(query, key, value))
    return SdpaInputs(*_common_batch(query, key, value), matrix, causal, scale, empty)


def is_square_causal(problem: AttentionProblem) -> bool:
    """Whether the mask is `Causal` alone, and torch's alignment (top left) gives the same as ours (bottom right)."""
    if not isinstance(problem.mask, Causal) or problem.bias is not None:
        return False  # first, because each comparison of sizes is one more case for torch.compile
    return problem.n_queries == problem.n_keys or (problem.n_queries == 1 and problem.n_keys > 0)


def matrix_entries(problem: AttentionProblem) -> int:
    """The most entries that the matrix of mask and bias can have; 0 where none grows with both queries and keys."""
    if is_square_causal(problem) or (problem.mask is None and problem.bias is None):
        return 0
    per_pair = [0]
    if problem.mask is not None and problem.mask.is_matrix:
        per_pair.append(math.prod(problem.leading[:problem.mask.leading]))
    if isinstance(problem.bias, Tensor):
        per_pair.append(problem.bias.shape[:-2].numel() if problem.bias.shape[-2] > 1 else 0)
        if problem.mask is not None and problem.mask.leading:  # a bias joined with the masks of all rows
            per_pair.append(math.prod(problem.leading))
    elif problem.bias is not None:
        per_pair.append(math.prod(problem.leading))
    return max(per_pair) * problem.n_queries * problem.n_keys


def sdpa_kernels(problem: AttentionProblem) -> list[SDPBackend]:
    """The kernels to try, fastest first; empty where torch's own choice is the best known.

    Measured on an H200, forward and backward: cuDNN's kernel is up to 1.9 times as fast as flash; the memory-efficient
    one is 1.2 to 1.6 times as fast as cuDNN's for few keys of small width. But cuDNN plans for 100 ms for every new
    shape, and in decoding every step has one: there it comes last.
    """
    query = problem.query
    if query.device.type != "cuda" or torch.compiler.is_compiling() or problem.dropout:
        return []
    if query.dtype not in (torch.float16, torch.bfloat16) or _gpu_generation(query.device) != HOPPER:
        return []
    cudnn, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    flash, plain = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
    if problem.n_queries < 16:
        return [flash, efficient, plain, cudnn]
    if problem.n_keys <= 64 and query.shape[-1] <= 64:
        return [efficient, flash, cudnn, plain]
    return [cudnn, flash, efficient, plain]


@cache
def _gpu_generation(device: torch.device) -> int:
    """The generation of a GPU.

    The first call also lets torch set its own order of kernels, which it does in its first attention. Otherwise
    `kernel_priority` would read the order before that, and put the wrong one back for the whole process.
    """
    tiny = torch.zeros(1, 1, 8, 8, device=device, dtype=torch.float16)
    scaled_dot_product_attention(tiny, tiny, tiny)
    return torch.cuda.get_device_capability(device)[0]


@contextmanager
def kernel_priority(order: list[int]) -> Iterator[None]:
    """Do what `torch.nn.attention.sdpa_kernel(order, set_priority=True)` does, without the 150 µs that it takes."""
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order(order)
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


def as_dot_problem(problem: AttentionProblem) -> AttentionProblem:
    """The problem with its score as a plain dot product, where parameters of the score multiply the query.

    Queries that may attend to nothing are hidden first: the parameters would get a gradient of 0 times their numbers,
    which is NaN where these are not finite.
    """
    if not problem.score.parametric:
        return problem
    if problem.mask is not None and not isinstance(problem.mask, CachedMask):  # whose caller has hidden them
        allowed = problem.allowed(problem.indices())
        assert allowed is not None
        problem = replace(problem, query=problem.query.masked_fill(~any_along(allowed, -1), 0.0))
    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "call refusal() first"
    return replace(problem, query=dot[0], score=ScaledProduct(dot[1]))


@dataclass(frozen=True)
class ScaledProduct(Score):
    """scale · q · k."""

    scale: float
    bounded = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return wide_product(query * self.scale, key.transpose(-2, -1))

    def as_dot(self, query: Tensor) -> tuple[Tensor, float]:
        return query, self.scale


def _dot(problem: AttentionProblem) -> tuple[Tensor, float]:
    """The query and the scale of a score that is a dot product."""
    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "call refusal() first"
    return dot


def _matrix_drawback(entries: int) -> str | None:
    if entries <= MAX_MATRIX_ENTRIES:
        return None
    return f"the mask or bias would be a matrix of {entries:,} entries, more than {MAX_MATRIX_ENTRIES:,}"


def _with_matrix(problem: AttentionProblem, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key and value without what must not be read, the matrix of mask and bias, and the empty rows."""
    block = problem.indices()
    allowed, matrix = problem.allowed(block), problem.block_bias(block)
    key, value = problem.key, problem.value
    if allowed is not None:
        if allowed.dim() > 2 and allowed.shape[-3] != 1:
            problem = problem.repeat_key_heads()  # heads that share a key may differ in which keys they use
        query, key, value = hide(query, problem.key, problem.value, allowed, bounded=True)
        matrix = allowed if matrix is None else matrix.masked_fill(~allowed, -torch.inf)
    assert matrix is not None
    return query, key, value, *_without_empty(matrix)


def _without_empty(matrix: Tensor) -> tuple[Tensor, Tensor | None]:
    """The matrix with the rows that forbid everything opened, and which those are: their outputs must not be used."""
    empty = ~any_along(matrix if matrix.dtype == torch.bool else matrix != -torch.inf, -1)
    if not may_hold(empty):
        return matrix, None
    return (matrix | empty if matrix.dtype == torch.bool else matrix.masked_fill(empty, 0.0)), empty


def _two_leading(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """The tensor with exactly two leading dimensions, batch and heads."""
    missing = max(2, len(leading)) + 2 - tensor.dim()
    if missing:
        tensor = tensor[(None,) * missing]
    if len(leading) <= 2:
        return tensor
    return tensor.expand(*leading[:-1], *tensor.shape[-3:]).flatten(0, len(leading) - 2)


def _one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three with one width, as fused kernels want it: zeros change no dot product, and are cut from the output."""
    width, value_width = query.shape[-1], value.shape[-1]
    if width < value_width:
        return pad(query, (0, value_width - width)), pad(key, (0, value_width - width)), value
    return query, key, pad(value, (0, width - value_width)) if value_width < width else value


def _common_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three with one batch size; key and value with equal heads, and the query's heads a multiple of them."""
    if query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return query, key, value
    (batch,) = torch.broadcast_shapes(query.shape[:1], key.shape[:1], value.shape[:1])
    heads = max(key.shape[1], value.shape[1])
    key, value = (t.expand(batch, heads, -1, -1) for t in (key, value))
    return query.expand(batch, max(heads, query.shape[1]), -1, -1), key, value


class FlexBackend(Backend):
    """torch's `flex_attention` on CUDA, for masks that forbid whole blocks of a long sequence, and for soft caps.

    No matrix of the mask is held while attention runs. The kernel is compiled on its first use, and again for another
    kind of mask or another width, which takes seconds.
    """

    def refusal(self, problem: AttentionProblem) -> str | None:
        problem, _ = _without_softcap(problem)
        other = SDPA.refusal(problem)
        if other is not None:
            return other
        if problem.query.device.type != "cuda":
            return f"it needs a CUDA device, and the query is on {problem.query.device.type}"
        if problem.bias is not None:
            return "it does not support a bias"
        if problem.dropout:
            return "it does not support dropout"
        if problem.query.dtype == torch.float64:
            return "it does not support float64"
        if len(problem.leading) > 2:
            return f"it needs two leading dimensions (batch, heads), and there are {len(problem.leading)}"
        if 0 in problem.query.shape or 0 in problem.key.shape:
            return "there are no queries or no keys"
        return None

    def drawback(self, problem: AttentionProblem) -> str | None:
        if problem.mask is None and not isinstance(problem.score, SoftcappedScore):
            return "there is no mask, so no blocks to skip"
        if problem.n_keys < FLEX_MIN_KEYS:
            return f"it is faster from {FLEX_MIN_KEYS:,} keys on, and there are {problem.n_keys:,}"
        return None

    def detail(self, problem: AttentionProblem) -> str:
        skipped = "" if problem.mask is None else "blocks of query-key pairs that the mask forbids are skipped"
        capped = "the softcap is part of the kernel" if isinstance(problem.score, SoftcappedScore) else ""
        return "; ".join(filter(None, (skipped, capped))) or "all query-key pairs, never stored"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output of the compiled kernel."""
        problem, cap = _without_softcap(problem)
        problem = as_dot_problem(problem)
        inputs = sdpa_inputs(replace(problem, mask=None))
        key, value = _without_unused(problem, inputs.query, inputs.key, inputs.value)
        block_mask = None
        if problem.mask is not None:
            block_mask = _compiled("create_block_mask")(_mask_mod(problem), inputs.query.shape[0],
                                                        inputs.query.shape[1], problem.n_queries, problem.n_keys,
                                                        device=problem.query.device)
        output = _compiled("flex_attention")(inputs.query, key, value, None if cap is None else _softcap_mod(cap),
                                             block_mask, inputs.scale, inputs.query.shape[1] != key.shape[1])
        return output[..., :problem.value.shape[-1]].reshape(*problem.leading, problem.n_queries, -1)


FLEX = FlexBackend()


def _without_softcap(problem: AttentionProblem) -> tuple[AttentionProblem, float | None]:
    """The problem with its score before the soft cap, and the cap; None where it has none."""
    if not isinstance(problem.score, SoftcappedScore):
        return problem, None
    return replace(problem, score=problem.score.score), problem.score.cap


@cache
def _softcap_mod(cap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The soft cap as a function of one score, as flex_attention takes it; one for each cap, which is compiled once."""
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return torch.tanh(score / cap) * cap

    return score_mod


@dataclass(frozen=True)
class ScalarIndices:
    """The indices of one query-key pair inside flex_attention's kernel: every index is a number."""

    batch: Tensor
    head: Tensor
    row: Tensor
    column: Tensor
    position: Tensor
    n_queries: int
    n_keys: int
    leading: int

    def per_sequence(self, numbers: Tensor) -> Tensor:
        return _entry(numbers, (self.batch, self.head)[2 - self.leading:])

    def select(self, matrix: Tensor) -> Tensor:
        return _entry(matrix, (self.batch, self.head, self.row, self.column)[4 - matrix.dim():])

    def at(self, position: Tensor) -> "ScalarIndices":
        return replace(self, position=position)


def _entry(numbers: Tensor, indices: tuple[Tensor, ...]) -> Tensor:
    """The entry at these indices, of which there may be more than dimensions; a size of 1 stands for all."""
    if numbers.dim() == 0:  # a number has no indices, and torch's tracing does not take an empty list of them
        return numbers
    return numbers[tuple(i if size > 1 else 0 for i, size in zip(indices, numbers.shape, strict=False))]


def _mask_mod(problem: AttentionProblem) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask as a function of one pair, as flex_attention takes it."""
    # It must not hold anything of the problem that has a gradient.
    mask, n_queries, n_keys, leading = problem.mask, problem.n_queries, problem.n_keys, len(problem.leading)
    assert mask is not None

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        pair = ScalarIndices(batch, head, row, column, row + (n_keys - n_queries), n_queries, n_keys, leading)
        return mask.allowed(mask.aligned(pair))

    return mask_mod


def _without_unused(problem: AttentionProblem, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with zeros where no query may attend, so that NaN and inf there are never read."""
    if problem.mask is None:
        return key, value
    used = None
    for rows, _ in problem.row_blocks(max(1, (1 << 24) // problem.n_keys)):
        allowed = problem.allowed(problem.indices(rows))
        assert allowed is not None
        used_here = any_along(allowed, -2)
        used = used_here if used is None else used | used_here
    assert used is not None
    used = used[(None,) * (4 - used.dim())]
    if used.shape[1] not in (1, key.shape[1]):  # heads that share a key may differ in which keys they use
        key, value = (t.repeat_interleave(used.shape[1] // t.shape[1], dim=1) for t in (key, value))
    _, key, value = hide(query, key, value, used, bounded=True)
    return key, value


@cache
def _compiled(name: str) -> Any:
    """A function of torch's flex_attention module, compiled once in a process."""
    from torch.nn.attention import flex_attention

    return torch.compile(getattr(flex_attention, name))


class BandBackend(Backend):
    """Dot products under softmax on a GPU, where each query may attend to one range of keys (`regard.kernels.band`).

    Packed sequences, padding, causal masks and windows are bands. The kernels read two numbers a query in place of a
    matrix, and skip blocks of keys outside of the band: what packed rows of short sequences need. Where one sequence
    fills many tiles, torch's own kernels are faster. On a CPU it runs only in Triton's interpreter, for tests.
    """

    def refusal(self, problem: AttentionProblem) -> str | None:
        other = SDPA.refusal(problem)
        if other is not None:
            return other
        if problem.bias is not None:
            return "it does not support a bias"
        if not is_band(problem.mask):
            # Name the kind, not the value: to show a mask would wait for a GPU, and break a compiled graph.
            return f"a mask of type {type(problem.mask).__name__} may allow a query more than one range of keys"
        if problem.query.dtype == torch.float64:
            return "it does not support float64"
        if max(problem.query.shape[-1], problem.value.shape[-1]) > MAX_WIDTH:
            return f"it supports head widths up to {MAX_WIDTH}"
        if not problem.n_pairs or not problem.value.shape[-1]:
            return "there are no queries or no keys"
        return launch.why_not(problem.query.device)

    def drawback(self, problem: AttentionProblem) -> str | None:
        if torch.compiler.is_compiling():
            return "torch.compile cannot trace its kernels"
        if problem.query.device.type == "cpu":
            return "on a CPU its kernels run in Triton's interpreter, which is for tests"
        if not any(isinstance(part, Band | PackedSegments) for part in mask_parts(problem.mask)):
            return "torch's kernels are faster for sequences that are not packed"
        if problem.query.dtype == torch.float32:
            return "in float32 it is not faster than the others"
        return None

    def detail(self, problem: AttentionProblem) -> str:
        return "a Triton kernel with one range of keys for each query, without a mask matrix"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output of the fused kernel."""
        from regard.kernels.band import BandTiles, attend_band, tile_size

        problem = as_dot_problem(problem)
        query, scale = _dot(problem)
        band = band_of(problem.mask, problem.n_queries, problem.n_keys, leading=len(problem.leading),
                       device=query.device)
        assert band is not None, "call refusal() first"
        query, key, value = (problem.as_4d(tensor, heads) for tensor, heads in (
            (query, problem.heads), (problem.key, problem.key_heads), (problem.value, problem.key_heads)))
        first, last, from_query, to_query = (
            problem.as_4d(part.unsqueeze(-1), problem.heads).squeeze(-1)  # a broadcast dimension is not copied
            for part in (band.first, band.last, *band.queries(problem.n_keys)))
        tiles, counts = _band_tiles(band, problem.n_keys, tile_size(query, value))
        parts = BandTiles(first, last, from_query, to_query, problem.as_4d(tiles, 2),
                          problem.as_4d(counts[..., None, None], 2)[..., 0, 0])
        output = attend_band(query, key, value, parts, scale=scale, dropout=problem.dropout)
        return output if len(problem.leading) == 2 else output.reshape(*problem.leading, *output.shape[-2:])


BAND = BandBackend()


def _band_tiles(band: Band, n_keys: int, size: int) -> tuple[Tensor, Tensor]:
    """The tiles of a band, found once: (..., 2, room, 4) and (..., 2), without a dimension of heads.

    Heads share keys and so share tiles: a tile holds every pair that one of them allows.
    """
    from regard.kernels.band import find_tiles

    def find() -> tuple[Tensor, Tensor]:
        first, last = band.first, band.last
        if band.leading:
            one = first.shape[-2] == 1
            first, last = (first[..., 0, :], last[..., 0, :]) if one else (first.amin(-2), last.amax(-2))
        return find_tiles(first, last, n_keys, size)

    return band.cached(("tiles", n_keys, size), find)


class SharedBiasBackend(Backend):
    """Dot products under softmax with a bias that many rows share: AlphaFold's row and triangle attention.

    The bias is never repeated for the rows, and neither it nor its gradient is written out for each of them: memory
    grows with the queries, keys and values, not with the weights. On CUDA Triton kernels compute it
    (`regard.kernels.shared_bias`); elsewhere, and in float64, a chunk of rows after another
    (`regard.kernels.shared_bias_chunks`). A mask may say which keys of a row exist.
    """

    def refusal(self, problem: AttentionProblem) -> str | None:
        if not isinstance(problem.bias, Tensor):
            return "there is no tensor as a bias"
        other = SDPA.refusal(problem)
        if other is not None:
            return other
        if _shared_dims(problem) is None:
            return "the bias must be the same for all rows of the last leading dimensions before the heads"
        if not _is_key_mask(problem.mask, len(problem.leading)):
            return "its mask may only say which keys of a row exist, the same for all queries and heads"
        if problem.dropout:
            return "it does not support dropout"
        if not problem.n_pairs or not problem.value.shape[-1]:
            return "there are no queries or no keys"
        return "torch.func transforms plain torch code only" if launch.in_torch_func() else None

    def drawback(self, problem: AttentionProblem) -> str | None:
        if torch.compiler.is_compiling():
            return "torch.compile cannot trace it"
        if problem.n_pairs < SHARED_BIAS_MIN_PAIRS:
            return f"it is faster from {SHARED_BIAS_MIN_PAIRS:,} query-key pairs on, and there are {problem.n_pairs:,}"
        assert isinstance(problem.bias, Tensor)
        needs_gradient = torch.is_grad_enabled() and problem.bias.requires_grad
        if problem.query.device.type == "cpu" and problem.mask is None and not needs_gradient:
            return "torch's kernel reads a shared bias where it lies, if neither a gradient nor a mask is needed"
        return None

    def detail(self, problem: AttentionProblem) -> str:
        if _shared_bias_in_triton(problem):
            return "Triton kernels that read one bias for all rows, and sum its gradient over them"
        return "a chunk of rows at a time with one bias for all, recomputed in the backward pass"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output, without a matrix for each row."""
        in_triton = _shared_bias_in_triton(problem)
        problem = as_dot_problem(problem.repeat_key_heads())
        query, scale = _dot(problem)
        own = _shared_dims(problem)
        assert own is not None, "call refusal() first"
        assert isinstance(problem.bias, Tensor)
        batch = torch.Size(problem.leading[:-1])
        G, R, H = batch[:own].numel(), batch[own:].numel(), problem.heads
        q_GRHQD, k_GRHKD, v_GRHKE = (
            tensor.expand(*problem.leading, *tensor.shape[-2:]).reshape(G, R, H, *tensor.shape[-2:])
            for tensor in (query, problem.key, problem.value))
        bias = problem.bias[(None,) * (len(problem.leading) + 2 - problem.bias.dim())]
        b_GHQK = bias.expand(*bias.shape[:-3], H, problem.n_queries, problem.n_keys).reshape(
            G, H, problem.n_queries, problem.n_keys)
        present_GRK = None
        if problem.mask is not None:
            allowed = problem.allowed(problem.indices())
            assert allowed is not None
            present_GRK = allowed.expand(*batch, 1, 1, problem.n_keys).reshape(G, R, problem.n_keys)
        output: Tensor = _shared_bias_function(in_triton).apply(q_GRHQD, k_GRHKD, v_GRHKE, b_GHQK, present_GRK, scale)
        return output.reshape(*problem.leading, *output.shape[-2:])


SHARED_BIAS = SharedBiasBackend()


def _shared_dims(problem: AttentionProblem) -> int | None:
    """The number of leading dimensions in which the bias has entries of its own; None if no rows share it.

    They come first; the dimensions that share the bias come last, before the heads.
    """
    assert isinstance(problem.bias, Tensor)
    batch = problem.leading[:-1]
    mine = problem.bias.shape[:-3][-len(batch):] if batch else ()
    mine = (*(1,) * (len(batch) - len(mine)), *mine)
    own = len(mine)
    while own and mine[own - 1] == 1:
        own -= 1
    return own if mine[:own] == tuple(batch[:own]) and math.prod(batch[own:]) > 1 else None


def _is_key_mask(mask: Mask | None, leading: int) -> bool:
    """Whether a mask allows the same keys to all queries and all heads of a row."""
    for part in mask_parts(mask):
        if isinstance(part, BoolMask):
            if part.tensor.shape[-2] != 1 or (part.tensor.dim() > 2 and part.tensor.shape[-3] != 1):
                return False
        elif not isinstance(part, Padding) or part.leading >= leading:
            return False
    return True


def _shared_bias_in_triton(problem: AttentionProblem) -> bool:
    """Whether Triton kernels take this problem."""
    widest = max(problem.key.shape[-1], problem.value.shape[-1])
    return (problem.query.is_cuda and problem.query.dtype in launch.DTYPES and widest <= SHARED_BIAS_MAX_WIDTH
            and launch.installed())


def _shared_bias_function(in_triton: bool) -> Any:
    if in_triton:
        from regard.kernels.shared_bias import SharedBiasAttention

        return SharedBiasAttention
    from regard.kernels.shared_bias_chunks import ChunkedSharedBiasAttention

    return ChunkedSharedBiasAttention


class PointwiseBackend(Backend):
    """Dot products under ReLU or sigmoid on CUDA (`regard.kernels.pointwise`).

    Each weight is a function of its own score, divided by at most one number a row. So no row has to be whole, and no
    matrix of weights is held, forward or backward. Masks that are ranges of keys (causal, windows, padding, packed)
    cost nothing and let blocks of pairs be skipped; any other mask, and a bias, is written out and read. relu_sum is
    computed in float64 for float32, which GPUs for graphics do slowly, and in float32 for float16 and bfloat16.
    """

    def refusal(self, problem: AttentionProblem) -> str | None:
        if type(problem.normalize) not in POINTWISE_KINDS:
            return f"it computes relu, relu_sum and sigmoid, not {problem.normalize!r}"
        if problem.score.as_dot(problem.query[..., :0, :]) is None:
            return f"it computes dot products, not the score {problem.score!r}"
        if problem.query.device.type != "cuda":
            return f"it needs a CUDA device, and the query is on {problem.query.device.type}"
        if problem.query.dtype == torch.float64:
            return "it does not support float64"
        if torch.compiler.is_compiling():
            return "torch.compile cannot trace its kernels"
        if not launch.installed():
            return "triton is not installed"
        widest = max(problem.key.shape[-1], problem.value.shape[-1])
        return f"it supports head widths up to {MAX_WIDTH}, and this one is {widest}" if widest > MAX_WIDTH else None

    def drawback(self, problem: AttentionProblem) -> str | None:
        if isinstance(problem.normalize, ReLUSum):
            return "it computes relu_sum in a wider precision, whose speed was not compared; name it to use it"
        if problem.n_pairs < POINTWISE_MIN_PAIRS:
            return f"it is faster from {POINTWISE_MIN_PAIRS:,} query-key pairs on, and there are {problem.n_pairs:,}"
        return _matrix_drawback(matrix_entries(replace(problem, mask=None) if is_band(problem.mask) else problem))

    def detail(self, problem: AttentionProblem) -> str:
        weights = f"blocks of {POINTWISE_KINDS[type(problem.normalize)]} weights, never stored"
        if problem.mask is None:
            return weights
        return f"{weights}, with {'a range of keys for each query' if is_band(problem.mask) else 'a mask matrix'}"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output of the fused kernels."""
        from regard.kernels.pointwise import PointwiseAttention

        problem = as_dot_problem(problem)
        query, scale = _dot(problem)
        H, key_heads = problem.heads, problem.key_heads
        q_BHQD, k_BHKD, v_BHKD = (problem.as_4d(t, heads) for t, heads in ((query, H), (problem.key, key_heads),
                                                                           (problem.value, key_heads)))
        ranges = key_ranges(problem)
        block = problem.indices()
        matrix = None if is_band(problem.mask) else problem.allowed(block)
        bias = problem.block_bias(block)
        if problem.mask is not None:
            q_BHQD, k_BHKD, v_BHKD = _hide_outside(problem, ranges, matrix, q_BHQD, k_BHKD, v_BHKD)
        low_BHQ, high_BHQ = (problem.as_4d(end.unsqueeze(-1), H).squeeze(-1) for end in ranges)
        matrix, bias = (
            None if t is None else problem.as_4d(t.expand(*t.shape[:-2], problem.n_queries, problem.n_keys), H)
            for t in (matrix, bias))
        # Drawn on the device, and kept: the backward pass draws the same dropout from it once more.
        seed = torch.randint(1 << 31, (1,), device=query.device) if problem.dropout else None
        output: Tensor = PointwiseAttention.apply(q_BHQD, k_BHKD, v_BHKD, bias, low_BHQ, high_BHQ, matrix, seed, scale,
                                                  problem.dropout, POINTWISE_KINDS[type(problem.normalize)])
        return output.view(*problem.leading, problem.n_queries, output.shape[-1])


POINTWISE = PointwiseBackend()


def _hide_outside(problem: AttentionProblem, ranges: KeyRanges, matrix: Tensor | None, query: Tensor, key: Tensor,
                  value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three with zeros in queries that may attend to nothing, and in keys that no query may attend to."""
    H, key_heads = query.shape[1], key.shape[1]
    if matrix is None:
        blind, used = (ranges.low >= ranges.high).unsqueeze(-1), ranges.used_keys(problem.n_keys).unsqueeze(-1)
    else:
        blind, used = ~any_along(matrix, -1), any_along(matrix, -2).mT
    blind = blind.expand(*blind.shape[:-2], problem.n_queries, 1)
    used = used.expand(*used.shape[:-2], problem.n_keys, 1)
    unused = ~problem.as_4d(used, H).unflatten(1, (key_heads, H // key_heads)).any(2)
    return (query.masked_fill(problem.as_4d(blind, H), 0.0), key.masked_fill(unused, 0.0),
            value.masked_fill(unused, 0.0))


class AgentsBackend(Backend):
    """Agent-aware attention on a CPU: torch's fused kernel for other agents, small matrices for the same agent."""

    def refusal(self, problem: AttentionProblem) -> str | None:
        if not isinstance(problem.score, AgentAware):
            return f"it computes agent-aware scores, not the score {problem.score!r}"
        if not isinstance(problem.normalize, Softmax):
            return f"it computes softmax, not {problem.normalize!r}"
        if problem.query.device.type != "cpu":
            return f"it runs on a CPU, and the query is on {problem.query.device.type}"
        if problem.query.dtype not in (torch.float32, torch.float64):
            return f"it computes in float32 and float64, not in {problem.query.dtype}"
        if problem.bias is not None:
            return "it does not support a bias"
        if problem.dropout:
            return "it does not support dropout"
        if torch.compiler.is_compiling() or launch.in_torch_func():
            return "the agents are not known inside torch.compile and torch.func"
        if not problem.n_pairs:
            return "there are no queries or no keys"
        return None

    def drawback(self, problem: AttentionProblem) -> str | None:
        if problem.n_pairs < AGENTS_MIN_PAIRS:
            return f"{problem.n_pairs:,} pairs are fewer than {AGENTS_MIN_PAIRS:,}, and their matrix is as fast"
        return _matrix_drawback(problem.n_queries * problem.n_keys * max(1, math.prod(problem.leading[:-1])))

    def detail(self, problem: AttentionProblem) -> str:
        return "other agents by torch's fused kernel, the tokens of each agent as a batch of small matrices"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output, from the attention to the same agent and the attention to all others."""
        problem, width = problem.repeat_key_heads(), problem.value.shape[-1]
        query, key, value, allowed = problem.query, problem.key, problem.value, problem.allowed(problem.indices())
        if allowed is not None:
            query, key, value = hide(query, key, value, allowed, bounded=True)
            allowed = _two_leading(allowed, problem.leading)
        heads = problem.heads
        query, key, value = (problem.as_4d(tensor, heads) for tensor in (query, key, value))
        agents = [_agent_numbers(tensor) for tensor in (query, key)]
        if any(bool((numbers != numbers[:, :1]).any()) for numbers in agents):  # every head has agents of its own
            query, key, value = (tensor.reshape(-1, 1, *tensor.shape[-2:]) for tensor in (query, key, value))
            agents = [numbers.reshape(-1, 1, numbers.shape[-1]) for numbers in agents]
            if allowed is not None:
                allowed = allowed.expand(query.shape[0] // heads, heads, -1, -1).reshape(-1, 1, *allowed.shape[-2:])
        assert isinstance(problem.score, AgentAware), "call refusal() first"
        scale = problem.score.scale(query.shape[-1])
        layout = agent_layout(agents[0][:, 0], agents[1][:, 0], allowed, query.dtype)
        q_same, q_other, _ = split_agents(query)
        k_same, k_other, _ = split_agents(key)
        q_other, k_other, value = _one_width(q_other, k_other, value)
        output = attend_agents((q_same, k_same), (q_other, k_other), value, layout, scale)[..., :width]
        return output.reshape(*problem.leading, problem.n_queries, width)


def _agent_numbers(tokens: Tensor) -> Tensor:
    """The agents (B, H, N) of queries or keys (B, H, N, 2D + 2)."""
    digits = split_agents(tokens.detach())[2].long()
    return digits[..., 0] + 256 * digits[..., 1]


AGENTS = AgentsBackend()
