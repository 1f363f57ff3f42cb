"""The `sdpa` backend: torch's fused kernels, for scores that are dot products, under softmax.

It brings a problem into the form that `scaled_dot_product_attention` takes (four dimensions, one width, a mask as a
matrix), guards what torch's kernels do not promise, and names the fastest of them for the device and the shape.

Guarded here: rows that may attend to nothing (cuDNN's kernel leaves garbage in them, the others zeros), NaN and inf in
keys to which no query may attend, and the alignment of causal masks (torch aligns to the top left).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.attention import mask_cache
from regard.attention.mask import Causal
from regard.attention.mask_cache import MAX_MATRIX_ENTRIES, CachedMask
from regard.attention.normalize import Softmax
from regard.attention.problem import AttentionProblem

HELD = MAX_MATRIX_ENTRIES
"""Entries that the matrix of a mask or a bias may have before a backend that needs no matrix is preferred."""
HOPPER = 9
"""The generation of GPU whose kernels were measured against each other."""


class SdpaInputs(NamedTuple):
    """A problem in the form of torch's kernels: B batch, H heads, N tokens, D width."""

    query: Tensor
    key: Tensor
    value: Tensor
    matrix: Tensor | None  # who may attend (bool), or what is added (float)
    causal: bool
    scale: float
    empty: Tensor | None  # rows that may attend to nothing


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    if not isinstance(problem.normalize, Softmax):
        return f"its kernels normalise by softmax, not by {problem.normalize!r}"
    if problem.score.as_dot(problem.query[..., :0, :]) is None:
        return f"its kernels compute dot products, and the score {problem.score!r} is none"
    return None


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    entries = matrix_entries(problem)
    return f"the mask or bias would be a matrix of {entries:,} entries, more than {HELD:,}" if entries > HELD else None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    order = kernels(problem)
    tried = ", ".join(kernel.name.removesuffix("_ATTENTION").lower() for kernel in order)
    return f"the first of torch's kernels that takes it, in the order {tried}" if order else "the kernel torch chooses"


def run(problem: AttentionProblem) -> Tensor:
    """The output of the fused kernel."""
    width = problem.value.shape[-1]
    form = sdpa_inputs(problem)
    order = kernels(problem)
    with kernel_priority([kernel.value for kernel in order]) if order else nullcontext():
        output = scaled_dot_product_attention(form.query, form.key, form.value, form.matrix, problem.dropout,
                                              form.causal, scale=form.scale, enable_gqa=grouped(form))
    # What changes nothing is left out: a slice of all features would cost a copy in the backward pass.
    if output.shape[-1] != width:
        output = output[..., :width]
    if form.empty is not None:
        output = output.masked_fill(form.empty, 0.0)
    return output if len(problem.leading) == 2 else output.reshape(*problem.leading, problem.n_queries, width)


def sdpa_inputs(problem: AttentionProblem) -> SdpaInputs:
    """The problem in the kernels' form."""
    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "refusal() was not asked"
    query, scale = dot
    key, value = problem.key, problem.value
    matrix, causal, empty = None, False, None
    if is_square_causal(problem):
        # A single query stands at the last key and sees all. (A comparison of sizes is no bool while compiling.)
        causal = True if problem.n_queries > 1 else False  # noqa: SIM210
    elif problem.mask is not None or problem.bias is not None:
        if isinstance(problem.mask, CachedMask) and problem.bias is None:
            matrix, empty = problem.mask.opened, problem.mask.blind
        else:
            query, key, value, matrix, empty = _written_out(problem, query)
        if matrix.shape[-1] != problem.n_keys:  # fused kernels read rows of keys, and a GPU's read them wrongly
            matrix = matrix.expand(*matrix.shape[:-1], problem.n_keys).contiguous()
        matrix = _four(matrix, problem.leading)
        empty = None if empty is None else _four(empty, problem.leading)
    query, key, value = (_four(tensor, problem.leading) for tensor in _one_width(query, key, value))
    return SdpaInputs(*_common(query, key, value), matrix, causal, scale, empty)


def _written_out(problem: AttentionProblem, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key and value without what must not be read, the matrix of mask and bias, and which rows see nothing."""
    place = problem.block()
    allowed, matrix = problem.allowed(place), problem.added(place)
    key, value = problem.key, problem.value
    if allowed is not None:
        if allowed.dim() > 2 and allowed.shape[-3] != 1:
            problem = problem.spread()  # heads that share a key may differ in which keys they use
        query, key, value = mask_cache.hide(query, problem.key, problem.value, allowed, bounded=True)
        matrix = allowed if matrix is None else matrix.masked_fill(~allowed, -torch.inf)
    assert matrix is not None
    return query, key, value, *_without_empty(matrix)


def matrix_entries(problem: AttentionProblem) -> int:
    """How many entries the matrix of mask and bias has at most; 0 where none grows with both queries and keys."""
    if is_square_causal(problem) or (problem.mask is None and problem.bias is None):
        return 0
    per_pair = [0]
    if problem.mask is not None and problem.mask.square:
        per_pair.append(math.prod(problem.leading[:problem.mask.leading]))
    if isinstance(problem.bias, Tensor):
        per_pair.append(problem.bias.shape[:-2].numel() if problem.bias.shape[-2] > 1 else 0)
    elif problem.bias is not None:
        per_pair.append(math.prod(problem.leading))
    return max(per_pair) * problem.n_queries * problem.n_keys


def kernels(problem: AttentionProblem) -> list[SDPBackend]:
    """The kernels to try, fastest first; none where torch's own choice is the best known.

    Measured on an H200, forward and backward: cuDNN's kernel is up to 1.9 times as fast as flash; the memory-efficient
    one is 1.2 to 1.6 times as fast as cuDNN's for few keys of small width. But cuDNN plans for 100 ms whenever it meets
    a new shape, and in decoding every step has one: there it is left out.
    """
    query = problem.query
    if query.device.type != "cuda" or torch.compiler.is_compiling() or problem.dropout:
        return []
    if query.dtype not in (torch.float16, torch.bfloat16):
        return []
    if _generation(query.device) != HOPPER:
        return []
    cudnn, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    flash, plain = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
    if problem.n_queries < 16:
        return [flash, efficient, plain, cudnn]
    if problem.n_keys <= 64 and query.shape[-1] <= 64:
        return [efficient, flash, cudnn, plain]
    return [cudnn, flash, efficient, plain]


@cache
def _generation(device: torch.device) -> int:
    """The generation of a GPU. The first call also lets torch settle its own order of kernels, which it does inside its
    first attention: an order that is read before and put back afterwards would undo it for the whole process.
    """
    tiny = torch.zeros(1, 1, 8, 8, device=device, dtype=torch.float16)
    scaled_dot_product_attention(tiny, tiny, tiny)
    return torch.cuda.get_device_capability(device)[0]


@contextmanager
def kernel_priority(order: list[int]) -> Iterator[None]:
    """What `torch.nn.attention.sdpa_kernel(order, set_priority=True)` does, without the 150 µs that it takes."""
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order(order)
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


def _without_empty(matrix: Tensor) -> tuple[Tensor, Tensor | None]:
    """The matrix with the rows that forbid everything opened, and which those are: their outputs are not to be used."""
    empty = ~mask_cache.any_along(matrix if matrix.dtype == torch.bool else matrix != -torch.inf, -1)
    if not mask_cache.may_hold(empty):
        return matrix, None
    return (matrix | empty if matrix.dtype == torch.bool else matrix.masked_fill(empty, 0.0)), empty


def is_square_causal(problem: AttentionProblem) -> bool:
    """Causal alone, where torch's alignment (top left) and ours (bottom right) are the same, or one query sees all."""
    if not isinstance(problem.mask, Causal) or problem.bias is not None:
        return False  # before sizes are compared: each comparison is one more case for torch.compile
    return problem.n_queries == problem.n_keys or (problem.n_queries == 1 and problem.n_keys > 0)


def grouped(form: SdpaInputs) -> bool:
    """Whether several heads of queries share one of keys."""
    return form.query.shape[1] != form.key.shape[1]


def _four(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """The tensor with exactly two leading dimensions, batch and heads."""
    missing = max(2, len(leading)) + 2 - tensor.dim()
    if missing:
        tensor = tensor[(None,) * missing]
    if len(leading) <= 2:
        return tensor
    return tensor.expand(*leading[:-1], *tensor.shape[-3:]).flatten(0, len(leading) - 2)


def _one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fused kernels want one width for all three: zeros change no dot product, and are cut from the output."""
    width, value_width = query.shape[-1], value.shape[-1]
    if width < value_width:
        return pad(query, (0, value_width - width)), pad(key, (0, value_width - width)), value
    return query, key, pad(value, (0, width - value_width)) if value_width < width else value


def _common(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Batch dimensions made equal; key and value heads made equal, and the query's made a multiple of them."""
    if query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return query, key, value
    (batch,) = torch.broadcast_shapes(query.shape[:1], key.shape[:1], value.shape[:1])
    heads = max(key.shape[1], value.shape[1])
    key, value = (t.expand(batch, heads, -1, -1) for t in (key, value))
    return query.expand(batch, max(heads, query.shape[1]), -1, -1), key, value
