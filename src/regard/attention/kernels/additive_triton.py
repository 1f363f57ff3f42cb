"""Additive scores on a GPU: w · tanh(q + k), and its gradients, without a number for every pair and feature.

A tanh costs one of the few special-function units, and there is one for every pair and feature. With u = exp(2q) and
v = exp(2k), made once for each token,

    tanh(q + k) = 1 - 2s = (u·v - 1) / (u·v + 1)     s = 1 / (1 + u·v)     d tanh / dq = 4 s (1 - s)

and some of these fractions share one reciprocal: w/a + w'/b = (w·b + w'·a) / (a·b), 1/a = b · 1/(a·b). So a pass takes
a half or a quarter of the special functions that tanh would. The product of denominators must not overflow: where a |q|
or |k| is beyond `LARGE`, exp(2(q + k)) is computed for every pair instead.

    scores      a program has a block of queries and a block of keys, and goes through the features, four at a time
    gradients   a program has a span of queries, a span of keys and some features, and makes the sums over both from the
                same fractions. Each has a place of its own to write to, and what they wrote is summed in one order:
                results are the same every time. There are as many as run at once, with as many pairs each

In float32 1 - 2s has not the digits that are wanted of a small tanh. There scores, and the gradient of the weight, are
sums of the other form, two at a time, with reciprocals that are exact to the last digit in the scores. Where all q and
k are small, scores are sums of (tanh q + tanh k) / (1 + tanh q · tanh k) there.

What a pair-and-feature costs, in instructions: scores 3.5 and a quarter of a reciprocal; gradients 6.5 and a half. A
Hopper multiprocessor starts 128 instructions a clock and has 16 special functions a clock, so that a reciprocal takes
as long as 8 others: all wait for the instructions. For 2^33 pairs-and-features on 132 of them at 1.755 GHz that is at
least 1.1 ms and 2.0 ms. As compiled for them it is 4.4 and 8.5 instructions, with loads, conversions and sums, which
must be shared by many pairs: hence the sizes of the blocks. So large a block takes registers, and leaves room for few
warps, which cannot hide that a load takes hundreds of clocks: hence gradients load ahead.

The scores are written out: one number for the work of D, which is little beside it. So masks, normalisers and values
can be left to torch, and this file does not know them.

Legend: L leading dimensions in one, H heads, Q queries, K keys, D width.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels
from regard.attention.kernels import additive_passes as passes
from regard.kernels import once_differentiable

INTERPRETED: bool = triton.knobs.runtime.interpret
ROWS, COLUMNS, WARPS = (16, 16, 4) if INTERPRETED else (64, 64, 4)
"""Of a block of scores. Each side is shorter than the threads are many: then a load of one side goes to the threads
that need it, and not through shared memory, with a barrier, in every turn of the loop."""
TOKENS, FEATURES = (8, 16) if INTERPRETED else (16, 64)
"""Keys that a program for gradients has in its registers at a time, and features."""
REGISTERS = 168
"""At most so many for a thread of gradients: then twelve warps fit on a multiprocessor."""
PROGRAMS = 8 if INTERPRETED else 1584
"""For gradients: so many warps of them an H200 has at once. One more, and it would be alone, after all the others."""
PAIRS = 1 << 24
"""Of which gradients are computed at once. The fewer, the fewer sums of programs are kept until they are summed."""
WRITTEN = 8
"""Pairs of which the gradients take as long as to write a sum and to read it again: 8 bytes."""
KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Scores(torch.autograd.Function):
    """e (..., Q, K) of query (..., Q, D), key (..., K, D) and weight (D,) or (H, D), whose leading sizes broadcast."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], weight.shape[:-1])
        ranges = _ranges(query, key)
        ctx.save_for_backward(query, key, weight, ranges)
        out = scores(_flat(query, leading), _flat(key, leading), torch.atleast_2d(weight), ranges)
        return out.view(*leading, *out.shape[-2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight, ranges = ctx.saved_tensors
        leading = upstream[0].shape[:-2]
        given, q_LQD, k_LKD = (_flat(tensor, leading) for tensor in (upstream[0], query, key))
        kinds = tuple(one.dtype if one.numel() == flat.numel() else torch.float32  # those of a batch are summed below
                      for one, flat in ((query, q_LQD), (key, k_LKD)))
        d_query, d_key, d_weight = gradients(given, q_LQD, k_LKD, torch.atleast_2d(weight), ranges, *kinds)
        return (d_query.view(*leading, *query.shape[-2:]).sum_to_size(query.shape).to(query.dtype),
                d_key.view(*leading, *key.shape[-2:]).sum_to_size(key.shape).to(key.dtype),
                d_weight.view(weight.shape).to(weight.dtype))


def scores(query: Tensor, key: Tensor, weight: Tensor, ranges: Tensor) -> Tensor:
    """(L, Q, K) of query (L, Q, D), key (L, K, D), weight (H, D): row l has the weight of head l modulo H."""
    (L, Q, D), K = query.shape, key.shape[1]
    out = query.new_empty(L, Q, K)
    if out.numel() and D:
        exact = query.dtype == torch.float32
        sizes = [_whole(Q, ROWS), _whole(K, COLUMNS), _whole(D, 4)]
        scale = 1.0 if exact else float(passes.SCALE.value)
        u_LDQ, v_LDK = (_exponentials(tensor, ranges, size, sizes[2], factor, across=True)
                        for tensor, size, factor in ((query, sizes[0], scale), (key, sizes[1], 1.0)))
        grid = (L * triton.cdiv(Q, ROWS) * triton.cdiv(K, COLUMNS),)
        kernels.launch(passes.scores, grid, u_LDQ, v_LDK, _padded(weight.float(), sizes[2]), ranges, out, Q, K, *sizes,
                       weight.shape[0], rows=ROWS, columns=COLUMNS, exact=exact, num_warps=WARPS)
    return out if D else out.zero_()


def gradients(upstream: Tensor, query: Tensor, key: Tensor, weight: Tensor, ranges: Tensor, q_kind: torch.dtype,
              k_kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Of query (L, Q, D) and key (L, K, D), in these kinds of numbers, and of weight (H, D), in float32.

    upstream (L, Q, K) is the gradient of the scores. That of keys may be in float32 where another is asked for.
    """
    (L, Q, D), K = query.shape, key.shape[1]
    sums = upstream.new_zeros(L, D, dtype=torch.float32)
    if not (upstream.numel() and D):
        return torch.zeros_like(query), torch.zeros_like(key), sums.view(L // weight.shape[0], *weight.shape).sum(0)
    pieces = list(_pieces(L, Q, K))
    once = pieces[0][1].stop >= Q  # else keys meet the queries of their row in several pieces
    d_query = query.new_empty(L, Q, D, dtype=q_kind)
    d_key = key.new_empty(L, K, D, dtype=k_kind if once else torch.float32)
    for rows, some in pieces:
        of_query, of_key, of_weight = _piece(upstream[rows, some], query[rows, some], key[rows], ranges)
        _sum(of_query, weight, d_query[rows, some], rows.start, 0)
        _sum(of_key, weight, d_key[rows], rows.start, some.start)
        sums[rows] += of_weight.sum(1)
        del of_query, of_key, of_weight  # before those of the next piece are made
    if query.dtype != torch.float32:  # then it is Σ g s, and Σ g tanh = Σ g - 2 Σ g s
        sums = upstream.sum((1, 2), dtype=torch.float32).unsqueeze(-1) - 2.0 * sums
    return d_query, d_key, sums.view(L // weight.shape[0], *weight.shape).sum(0)


def _pieces(L: int, Q: int, K: int) -> Iterator[tuple[slice, slice]]:
    """Rows of the batch and queries, of at most about `PAIRS` pairs: some rows, or some queries of one."""
    rows, queries = max(1, PAIRS // (Q * K)), max(4, PAIRS // K)
    rows = triton.cdiv(L, triton.cdiv(L, rows))  # all alike
    for first in range(0, L, rows):
        for start in range(0, Q, queries):
            yield slice(first, first + rows), slice(start, start + queries)


def _piece(upstream: Tensor, query: Tensor, key: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ g s (1 - s) (L, some, Q, D) and (L, some, K, D), and Σ g s or Σ g tanh (L, some, D), to be summed."""
    (L, Q, D), K = query.shape, key.shape[1]
    features = FEATURES if _whole(D, FEATURES) == _whole(D, FEATURES // 2) else FEATURES // 2  # the fewer are padding
    queries, keys, width = _whole(Q, 4), _whole(K, TOKENS), _whole(D, features)
    q_span, k_span = _spans(queries, keys, max(1, PROGRAMS // (L * (width // features))))
    q_blocks, k_blocks = triton.cdiv(queries, q_span), triton.cdiv(keys, k_span)
    u_LQD = _exponentials(query, ranges, queries, width, 1.0, across=False)
    v_LKD = _exponentials(key, ranges, keys, width, 1.0, across=False)
    d_query, d_key, sums = (u_LQD.new_empty(L, *shape, width) for shape in (
        (k_blocks, queries), (q_blocks, keys), (q_blocks * k_blocks,)))
    grid = (L * (width // features), q_blocks, k_blocks)
    kernels.launch(passes.gradients, grid, u_LQD, v_LKD, _words(_padded(upstream, queries, keys)), ranges, d_query,
                   d_key, sums, 0, queries, keys, width, q_span, k_span, tokens=TOKENS, features=features,
                   kind=KINDS[upstream.dtype], num_warps=1, maxnreg=REGISTERS)
    return d_query, d_key, sums[..., :D]


def _spans(queries: int, keys: int, programs: int) -> tuple[int, int]:
    """Of queries and keys that a program gets, where no more than so many share them.

    All wait for the one with the most pairs. A sum that is written, to be read again, takes as long as `WRITTEN` pairs.
    """
    found = []
    for q_blocks in (factor << power for power in range(min(programs, queries // 4).bit_length()) for factor in (1, 3)):
        q_span, k_span = _part(queries, q_blocks, 4), _part(keys, max(1, programs // q_blocks), TOKENS)
        written = keys * -(-queries // q_span) + queries * -(-keys // k_span)
        if q_blocks <= programs:
            found.append((q_span * k_span * programs + WRITTEN * written, q_span, k_span))
    return min(found)[1:]


def _part(count: int, parts: int, block: int) -> int:
    """So many for each of the parts, in whole blocks."""
    return _whole(-(-count // parts), block)


def _sum(parts: Tensor, weight: Tensor, out: Tensor, first: int, more: int) -> None:
    """out (L, N, D): 4 · w times the sum of parts (L, some, N, D) over some, for rows from the first; `more`: added."""
    (L, some, tokens, width), (_, N, D) = parts.shape, out.shape
    grid = (L * triton.cdiv(N, 16), triton.cdiv(D, 64))
    kernels.launch(passes.summed, grid, parts, weight.detach().contiguous(), out, some, tokens, width, first,
                   weight.shape[0], N, D, out.stride(0), more, tokens=16, features=64, num_warps=4)


def _words(tensor: Tensor) -> Tensor:
    """Two neighbours in one number, of twice as many bits."""
    whole = tensor.clone() if tensor.storage_offset() % 2 else tensor
    return whole.view(torch.int64 if tensor.dtype == torch.float32 else torch.int32)


def _flat(tensor: Tensor, leading: torch.Size) -> Tensor:
    """(L, N, D) of (..., N, D)."""
    return tensor.expand(*leading, *tensor.shape[-2:]).reshape(leading.numel(), *tensor.shape[-2:])


def _ranges(query: Tensor, key: Tensor) -> Tensor:
    """The smallest and the largest query, and of keys (4,): kernels look at them, and nobody else waits for them."""
    if not (query.numel() and key.numel()):
        return query.new_zeros(4)
    return torch.stack([*torch.aminmax(query.detach()), *torch.aminmax(key.detach())])


def _exponentials(tensor: Tensor, ranges: Tensor, tokens: int, width: int, factor: float, *, across: bool) -> Tensor:
    """factor · exp(2 · tensor), in float32 and with zeros at its edges: (L, tokens, width), or with tokens across.

    Across, for scores, it is the tanh in the place of exponentials where float32 needs it.
    """
    L, N, D = tensor.shape
    shape, strides = ((L, width, tokens), (1, tokens)) if across else ((L, tokens, width), (width, 1))
    out = tensor.new_empty(shape, dtype=torch.float32)
    exact, grid = tensor.dtype == torch.float32, (L * triton.cdiv(tokens, 32), triton.cdiv(width, 32))
    kernels.launch(passes.exponentials, grid, tensor.detach().contiguous(), ranges, out, N, D, tokens, width, *strides,
                   factor, tokens=32, features=32, exact=exact, with_tanh=exact and across, num_warps=4)
    return out


def _padded(tensor: Tensor, *sizes: int) -> Tensor:
    """Zeros behind it, up to these sizes of its last dimensions."""
    if tensor.shape[-len(sizes):] == sizes:
        return tensor.contiguous()
    behind = [(0, size - have) for size, have in zip(sizes, tensor.shape[-len(sizes):], strict=True)]
    return torch.nn.functional.pad(tensor.detach(), [number for pair in reversed(behind) for number in pair])


def _whole(count: int, block: int) -> int:
    """So many that they are whole blocks."""
    return -(-count // block) * block
