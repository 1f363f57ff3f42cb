"""Attention whose weights are ReLU or sigmoid of a dot product, forward and backward, without a matrix of weights.

    e = scale · q · k + bias        w = f(e) / n        o = Σ w v
    f, n    relu: max(e, 0), the number of keys that the query may attend to    relu_sum: max(e, 0), Σ f    sigmoid: 1

n divides the sum, so a weight can be used before its row is complete. A program has a block of queries and goes through
the keys. In the backward pass one kernel does so for the gradients of queries, and another has a block of keys and goes
through the queries. No two programs add to the same number, so results are the same every time:

    de = f'(e) (dw - δ) / n    dw = do · v    δ = Σ w dw, for relu_sum only, whose n depends on the scores

Sums are in float32. relu_sum computes everything one precision wider than its inputs: float32 in float64, float16 and
bfloat16 in float32. Where the positive scores of a row sum to almost 0, an error of one eps of |q| |k| in a score
changes all weights of the row, and its gradients many times over: two orders of summation differ as much as each of
them errs, and unnormalised float16 weights underflow. For the same reason its three kernels compute a score and dw with
the same operands in blocks of the same size. They agree in every bit, so Σ w = 1 also in the backward pass, and a row
with one positive score has no gradient.

Every query has a range of keys, and blocks of pairs outside of all ranges are skipped. Dropout uses a random number
that is computed from a seed and the indices of the pair, and so is the same in the backward pass.

Triton's interpreter runs the same code on a CPU, for tests. It knows no masks, and does not hide NaN.

Legend: B batch, H heads, Q queries, K keys, D width, E width of the values; in kernels i queries, j keys, d and c
features, and T is a number or a block of them.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor as T

from regard.kernels import launch
from regard.kernels.launch import once_differentiable

INTERPRETED: bool = triton.knobs.runtime.interpret
WIDENED = tl.constexpr(INTERPRETED)
FORWARD: tuple[tuple[int, dict[str, int]], ...] = (
    (128, {"rows": 128, "columns": 64, "num_warps": 4, "num_stages": 3}),
    (256, {"rows": 128, "columns": 64, "num_warps": 8, "num_stages": 2}),
    (512, {"rows": 64, "columns": 64, "num_warps": 8, "num_stages": 2}),
    (1024, {"rows": 32, "columns": 32, "num_warps": 8, "num_stages": 1}))
"""The block sizes for rows of at most the d_out number of bytes: what fits on the chip."""
BACKWARD: tuple[tuple[int, dict[str, int]], ...] = (
    (128, {"rows": 64, "columns": 64, "num_warps": 4, "num_stages": 2}),
    (256, {"rows": 64, "columns": 64, "num_warps": 8, "num_stages": 2}),
    (512, {"rows": 32, "columns": 64, "num_warps": 8, "num_stages": 1}),
    (1024, {"rows": 32, "columns": 32, "num_warps": 8, "num_stages": 1}))
RELU_SUM: tuple[tuple[int, dict[str, int]], ...] = (
    (512, {"rows": 32, "columns": 32, "num_warps": 4, "num_stages": 1}),
    (2048, {"rows": 16, "columns": 16, "num_warps": 4, "num_stages": 1}))
"""Forward and backward, for rows in the wider precision."""


class PointwiseAttention(torch.autograd.Function):
    """o (B, H, Q, E) of query (B, H, Q, D), key (B, key heads, K, D) and value (B, key heads, K, E).

    bias and matrix (bool), or None, are (B, H, Q, K); low and high (B, H, Q); seed one number, or None.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, low: Tensor, high: Tensor,
                matrix: Tensor | None, seed: Tensor | None, scale: float, dropout: float, kind: str) -> Tensor:
        dtype = query.dtype
        if kind == "relu_sum":
            wider = torch.float64 if dtype == torch.float32 else torch.float32
            query, key, value = (tensor.to(wider) for tensor in (query, key, value))
            if matrix is not None and wider == torch.float64:
                matrix = _as_int32(matrix)
        query, key, value, low, high = (tensor.contiguous() for tensor in (query, key, value, low, high))
        (B, H, Q, _), E = query.shape, value.shape[-1]
        out = query.new_empty(B, H, Q, E)
        divisor = query.new_empty(B, H, Q, dtype=_sums(query))
        if out.numel():
            options = _block_options(RELU_SUM if kind == "relu_sum" else FORWARD, query, value)
            launch.launch(_forward, (B * H * triton.cdiv(Q, options["rows"]),), query, key, value,
                          *_matrix_arguments(bias, query), *_matrix_arguments(matrix, query), low, high,
                          query if seed is None else seed,
                          out, divisor, dropout, Q, key.shape[2], H,
                          **_constants(query, key, value, bias, matrix, seed, scale, kind), **options)
        ctx.save_for_backward(query, key, value, bias, low, high, matrix, seed, divisor)
        ctx.scale, ctx.dropout, ctx.kind = scale, dropout, kind
        return out.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, low, high, matrix, seed, divisor = ctx.saved_tensors
        dtype, d_out = upstream[0].dtype, upstream[0].to(query.dtype).contiguous()
        d_query, d_key, d_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
        for_bias = ctx.needs_input_grad[3]
        slopes = torch.zeros(*query.shape[:3], key.shape[2], dtype=dtype,
                             device=query.device) if for_bias else query
        if d_out.numel() and key.shape[2]:
            delta = torch.empty_like(divisor)
            options = _block_options(RELU_SUM if ctx.kind == "relu_sum" else BACKWARD, query, value)
            read = (query, key, value, *_matrix_arguments(bias, query), *_matrix_arguments(matrix, query), low, high,
                    query if seed is None else seed, d_out, divisor, delta)
            numbers = (ctx.dropout, query.shape[2], key.shape[2], query.shape[1])
            constants = _constants(query, key, value, bias, matrix, seed, ctx.scale, ctx.kind)
            blocks = triton.cdiv(query.shape[2], options["rows"])
            launch.launch(_query_gradient, (query.shape[0] * query.shape[1] * blocks,), *read, d_query, slopes,
                          *numbers, for_bias=for_bias, passes=2 if ctx.kind == "relu_sum" else 1, **constants,
                          **options)
            first, last = _query_blocks(low, high, key.shape[2], options["rows"], options["columns"])
            launch.launch(_key_gradient,
                          (key.shape[0] * key.shape[1] * triton.cdiv(key.shape[2], options["columns"]),), *read, first,
                          last, d_key, d_value, *numbers, **constants, **options)
        return d_query.to(dtype), d_key.to(dtype), d_value.to(dtype), slopes if for_bias else None, *(None,) * 7


def _block_options(table: tuple[tuple[int, dict[str, int]], ...], query: Tensor, value: Tensor) -> dict[str, int]:
    """The block sizes for these widths."""
    if INTERPRETED:
        return {"rows": 16, "columns": 16}
    row = max(query.shape[-1], value.shape[-1]) * query.element_size()
    return next(options for bound, options in table if row <= bound)


def _sums(query: Tensor) -> torch.dtype:
    """The dtype of sums over numbers like these."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _constants(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, matrix: Tensor | None,
               seed: Tensor | None, scale: float, kind: str) -> dict[str, Any]:
    """The compile-time arguments of the kernels. The scale is one of them, as any other float is read in float32."""
    widths = [max(16, triton.next_power_of_2(t.shape[-1])) for t in (query, value)]
    return {"width": query.shape[-1], "value_width": value.shape[-1], "groups": query.shape[1] // key.shape[1],
            "kind": kind, "with_bias": bias is not None, "with_matrix": matrix is not None,
            "with_dropout": seed is not None, "scale": scale, "D": widths[0], "E": widths[1],
            "sums": tl.float64 if _sums(query) == torch.float64 else tl.float32}


def _matrix_arguments(matrix: Tensor | None, query: Tensor) -> tuple[Any, ...]:
    """A (B, H, Q, K) tensor and its strides; where there is none, placeholders that are not read."""
    return (query, 0, 0, 0, 0) if matrix is None else (matrix, *matrix.stride())


def _as_int32(matrix: Tensor) -> Tensor:
    """The flags in four bytes each, for products in float64; expanded dimensions stay expanded.

    Triton chooses the layout of a product's operands by the narrowest number that they were computed from, and with
    one byte it chooses one that it cannot compile for float64: "PassManager::run failed" (triton 3.5 to 3.7).
    """
    distinct = tuple(slice(1 if step == 0 else None) for step in matrix.stride())
    return matrix[distinct].to(torch.int32).expand_as(matrix)


def _query_blocks(low: Tensor, high: Tensor, n_keys: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The range of blocks of queries that attend to each block of keys: (B, H, blocks of keys) each."""
    missing = -low.shape[-1] % rows
    low_BHM = torch.nn.functional.pad(low, (0, missing), value=n_keys).unflatten(-1, (-1, rows)).amin(-1)
    high_BHM = torch.nn.functional.pad(high, (0, missing), value=0).unflatten(-1, (-1, rows)).amax(-1)
    start = torch.arange(0, n_keys, columns, device=low.device, dtype=low.dtype).unsqueeze(-1)
    meets = (low_BHM.unsqueeze(-2) < start + columns) & (high_BHM.unsqueeze(-2) > start)
    block = torch.arange(meets.shape[-1], device=low.device, dtype=low.dtype)
    first, last = block.where(meets, meets.shape[-1]).amin(-1), (block + 1).where(meets, 0).amax(-1)
    return first.contiguous(), last.contiguous()


@triton.jit
def _dot(a: T, b: T) -> T:
    """a b, summed in float32, or in float64 if both are.

    The interpreter reads the bits of bfloat16 as integers: there it is widened first.
    """
    if a.dtype == tl.float64:
        return tl.dot(a, b)
    elif WIDENED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, input_precision="tf32x3")  # for float32: three products, as exact as one in float32


@triton.jit
def _at(b: T, h: T, i: T, j: T, of_b: T, of_h: T, of_i: T, of_j: T) -> T:
    """The offset of a pair in a matrix that may have more entries than 32 bits can count."""
    return b * of_b + h * of_h + i.to(tl.int64) * of_i + j.to(tl.int64) * of_j


@triton.jit
def _weight(e: T, kind: tl.constexpr) -> T:
    """f(e)."""
    if kind == "sigmoid":
        return tl.sigmoid(e)
    else:
        return tl.maximum(e, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _slope(e: T, p: T, kind: tl.constexpr) -> T:
    """f'(e), where p is f(e)."""
    if kind == "sigmoid":
        return p * (1.0 - p)
    else:
        return tl.where(e > 0.0, 1.0, 0.0)


@triton.jit
def _kept(seed: T, leading: T, i: T, j: T, dropout: T) -> T:
    """Whether dropout keeps a weight: the same random number for a pair in every pass."""
    place = i + j
    zero = place * 0
    number, _, _, _ = tl.philox(tl.load(seed).to(tl.uint64), zero + i, zero + j, zero + leading.to(tl.int32), zero)
    return tl.uint_to_uniform_float(number) >= dropout


@triton.jit
def _forward(query: T, key: T, value: T, bias: T, bias_b: T, bias_h: T, bias_i: T, bias_j: T,
             matrix: T, matrix_b: T, matrix_h: T, matrix_i: T, matrix_j: T, low: T, high: T, seed: T,
             out: T, divisor: T, dropout: T, n_queries: T, n_keys: T, heads: T,
             width: tl.constexpr, value_width: tl.constexpr, groups: tl.constexpr, kind: tl.constexpr,
             with_bias: tl.constexpr, with_matrix: tl.constexpr, with_dropout: tl.constexpr, scale: tl.constexpr,
             sums: tl.constexpr, D: tl.constexpr, E: tl.constexpr, rows: tl.constexpr,
             columns: tl.constexpr) -> None:
    down = tl.cdiv(n_queries, rows)
    leading = (tl.program_id(0) // down).to(tl.int64)
    b, h, of_key = leading // heads, leading % heads, leading // groups
    i = (tl.program_id(0) % down) * rows + tl.arange(0, rows)
    d, c = tl.arange(0, D), tl.arange(0, E)
    valid_i = i < n_queries
    q = tl.load(query + (leading * n_queries + i[:, None]) * width + d[None, :],
                mask=valid_i[:, None] & (d < width)[None, :], other=0.0)
    lo = tl.load(low + leading * n_queries + i, mask=valid_i, other=n_keys)
    hi = tl.load(high + leading * n_queries + i, mask=valid_i, other=0)
    k_at = key + of_key * n_keys * width + d[:, None]
    v_at = value + of_key * n_keys * value_width + c[None, :]
    total = tl.zeros((rows,), sums)
    acc = tl.zeros((rows, E), sums)
    for start in range(tl.min(lo) // columns * columns, tl.max(hi), columns):
        j = start + tl.arange(0, columns)
        k = tl.load(k_at + j[None, :] * width, mask=(d < width)[:, None] & (j < n_keys)[None, :], other=0.0)
        e = _dot(q, k) * scale
        allowed = (j[None, :] >= lo[:, None]) & (j[None, :] < hi[:, None])
        if with_matrix:
            at = _at(b, h, i[:, None], j[None, :], matrix_b, matrix_h, matrix_i, matrix_j)
            allowed = allowed & (tl.load(matrix + at, mask=allowed, other=0) != 0)
        if with_bias:
            at = _at(b, h, i[:, None], j[None, :], bias_b, bias_h, bias_i, bias_j)
            e += tl.load(bias + at, mask=allowed, other=0.0).to(sums)
            allowed = allowed & (e != float("-inf"))
        p = tl.where(allowed, _weight(e, kind), 0.0)
        if kind == "relu":
            total += tl.sum(allowed.to(sums), axis=1)
        if kind == "relu_sum":
            total += tl.sum(p, axis=1)
        if with_dropout:
            p = tl.where(_kept(seed, leading, i[:, None], j[None, :], dropout), p, 0.0)
        v = tl.load(v_at + j[:, None] * value_width, mask=(j < n_keys)[:, None] & (c < value_width)[None, :], other=0.0)
        acc += _dot(p.to(v.dtype), v)
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(divisor + leading * n_queries + i, total, mask=valid_i)
    acc = acc / (total * (1.0 - dropout))[:, None]
    tl.store(out + (leading * n_queries + i[:, None]) * value_width + c[None, :], acc.to(out.dtype.element_ty),
             mask=valid_i[:, None] & (c < value_width)[None, :])


@triton.jit
def _query_gradient(query: T, key: T, value: T, bias: T, bias_b: T, bias_h: T, bias_i: T, bias_j: T,
                    matrix: T, matrix_b: T, matrix_h: T, matrix_i: T, matrix_j: T, low: T, high: T,
                    seed: T, upstream: T, divisor: T, delta: T, out: T, slopes: T, dropout: T,
                    n_queries: T, n_keys: T, heads: T, width: tl.constexpr, value_width: tl.constexpr,
                    groups: tl.constexpr, kind: tl.constexpr, with_bias: tl.constexpr, with_matrix: tl.constexpr,
                    with_dropout: tl.constexpr, for_bias: tl.constexpr, passes: tl.constexpr, scale: tl.constexpr,
                    sums: tl.constexpr, D: tl.constexpr, E: tl.constexpr, rows: tl.constexpr,
                    columns: tl.constexpr) -> None:
    """out (B, H, Q, D); slopes (B, H, Q, K) are de, where the bias has a gradient; delta (B, H, Q), in two passes.

    δ = Σ w dw is summed over the keys in a pass of its own. As do · o it would be free, but o is rounded, and where n
    is small the difference dw - δ would be wrong.
    """
    down = tl.cdiv(n_queries, rows)
    leading = (tl.program_id(0) // down).to(tl.int64)
    b, h, of_key = leading // heads, leading % heads, leading // groups
    i = (tl.program_id(0) % down) * rows + tl.arange(0, rows)
    d, c = tl.arange(0, D), tl.arange(0, E)
    valid_i = i < n_queries
    valid_q = valid_i[:, None] & (d < width)[None, :]
    q_at = (leading * n_queries + i[:, None]) * width + d[None, :]
    q = tl.load(query + q_at, mask=valid_q, other=0.0)
    g = tl.load(upstream + (leading * n_queries + i[:, None]) * value_width + c[None, :],
                mask=valid_i[:, None] & (c < value_width)[None, :], other=0.0)
    lo = tl.load(low + leading * n_queries + i, mask=valid_i, other=n_keys)
    hi = tl.load(high + leading * n_queries + i, mask=valid_i, other=0)
    n = tl.load(divisor + leading * n_queries + i, mask=valid_i, other=1.0)
    k_at = key + of_key * n_keys * width + d[:, None]
    v_at = value + of_key * n_keys * value_width + c[:, None]
    acc = tl.zeros((rows, D), sums)
    whole = tl.zeros((rows,), sums)
    for step in tl.static_range(passes):
        for start in range(tl.min(lo) // columns * columns, tl.max(hi), columns):
            j = start + tl.arange(0, columns)
            k = tl.load(k_at + j[None, :] * width, mask=(d < width)[:, None] & (j < n_keys)[None, :], other=0.0)
            v = tl.load(v_at + j[None, :] * value_width, mask=(c < value_width)[:, None] & (j < n_keys)[None, :],
                        other=0.0)
            e = _dot(q, k) * scale
            allowed = (j[None, :] >= lo[:, None]) & (j[None, :] < hi[:, None])
            if with_matrix:
                at = _at(b, h, i[:, None], j[None, :], matrix_b, matrix_h, matrix_i, matrix_j)
                allowed = allowed & (tl.load(matrix + at, mask=allowed, other=0) != 0)
            if with_bias:
                at = _at(b, h, i[:, None], j[None, :], bias_b, bias_h, bias_i, bias_j)
                e += tl.load(bias + at, mask=allowed, other=0.0).to(sums)
                allowed = allowed & (e != float("-inf"))
            dw = _dot(g, v)
            if with_dropout:
                dw = tl.where(_kept(seed, leading, i[:, None], j[None, :], dropout), dw / (1.0 - dropout), 0.0)
            p = _weight(e, kind)
            if step < passes - 1:
                whole += tl.sum(tl.where(allowed, p / n[:, None] * dw, 0.0), axis=1)
            else:
                de = tl.where(allowed, _slope(e, p, kind) * (dw - whole[:, None]) / n[:, None], 0.0).to(k.dtype)
                if for_bias:
                    tl.store(slopes + (leading * n_queries + i[:, None]) * n_keys + j[None, :], de,
                             mask=valid_i[:, None] & (j < n_keys)[None, :])
                acc += _dot(de, tl.trans(k))
    if passes > 1:
        tl.store(delta + leading * n_queries + i, whole, mask=valid_i)
    tl.store(out + q_at, (acc * scale).to(out.dtype.element_ty), mask=valid_q)


@triton.jit
def _key_gradient(query: T, key: T, value: T, bias: T, bias_b: T, bias_h: T, bias_i: T, bias_j: T,
                  matrix: T, matrix_b: T, matrix_h: T, matrix_i: T, matrix_j: T, low: T, high: T,
                  seed: T, upstream: T, divisor: T, delta: T, first: T, last: T, out: T, out_value: T,
                  dropout: T, n_queries: T, n_keys: T, heads: T, width: tl.constexpr,
                  value_width: tl.constexpr, groups: tl.constexpr, kind: tl.constexpr, with_bias: tl.constexpr,
                  with_matrix: tl.constexpr, with_dropout: tl.constexpr, scale: tl.constexpr,
                  sums: tl.constexpr, D: tl.constexpr, E: tl.constexpr, rows: tl.constexpr,
                  columns: tl.constexpr) -> None:
    """out (B, key heads, K, D) and out_value (B, key heads, K, E). Tiles are (keys, queries) here."""
    down = tl.cdiv(n_keys, columns)
    block = tl.program_id(0) % down
    of_key = (tl.program_id(0) // down).to(tl.int64)
    j = block * columns + tl.arange(0, columns)
    d, c = tl.arange(0, D), tl.arange(0, E)
    valid_k = (j < n_keys)[:, None] & (d < width)[None, :]
    valid_v = (j < n_keys)[:, None] & (c < value_width)[None, :]
    k_at = (of_key * n_keys + j[:, None]) * width + d[None, :]
    v_at = (of_key * n_keys + j[:, None]) * value_width + c[None, :]
    if kind == "relu_sum":  # (D, columns) and (E, columns), as the other kernels have them
        k = tl.load(key + tl.trans(k_at), mask=tl.trans(valid_k), other=0.0)
        v = tl.load(value + tl.trans(v_at), mask=tl.trans(valid_v), other=0.0)
    else:
        k = tl.load(key + k_at, mask=valid_k, other=0.0)
        v = tl.load(value + v_at, mask=valid_v, other=0.0)
    acc = tl.zeros((columns, D), sums)
    acc_v = tl.zeros((columns, E), sums)
    for group in range(groups):
        leading = of_key * groups + group
        b, h = leading // heads, leading % heads
        begin = tl.load(first + leading * down + block)
        end = tl.load(last + leading * down + block)
        for start in range(begin * rows, end * rows, rows):
            i = start + tl.arange(0, rows)
            valid_i = i < n_queries
            q = tl.load(query + (leading * n_queries + i[:, None]) * width + d[None, :],
                        mask=valid_i[:, None] & (d < width)[None, :], other=0.0)
            g = tl.load(upstream + (leading * n_queries + i[:, None]) * value_width + c[None, :],
                        mask=valid_i[:, None] & (c < value_width)[None, :], other=0.0)
            lo = tl.load(low + leading * n_queries + i, mask=valid_i, other=n_keys)
            hi = tl.load(high + leading * n_queries + i, mask=valid_i, other=0)
            n = tl.load(divisor + leading * n_queries + i, mask=valid_i, other=1.0)
            if kind == "relu_sum":  # the products of the other kernels, bit for bit
                e = tl.trans(_dot(q, k)) * scale
                dw = tl.trans(_dot(g, v))
            else:
                e = _dot(k, tl.trans(q)) * scale
                dw = _dot(v, tl.trans(g))
            allowed = (j[:, None] >= lo[None, :]) & (j[:, None] < hi[None, :])
            if with_matrix:
                at = _at(b, h, i[None, :], j[:, None], matrix_b, matrix_h, matrix_i, matrix_j)
                allowed = allowed & (tl.load(matrix + at, mask=allowed, other=0) != 0)
            if with_bias:
                at = _at(b, h, i[None, :], j[:, None], bias_b, bias_h, bias_i, bias_j)
                e += tl.load(bias + at, mask=allowed, other=0.0).to(sums)
                allowed = allowed & (e != float("-inf"))
            f = _weight(e, kind)
            p = tl.where(allowed, f / n[None, :], 0.0)
            if with_dropout:
                kept = _kept(seed, leading, i[None, :], j[:, None], dropout)
                p = tl.where(kept, p / (1.0 - dropout), 0.0)
                dw = tl.where(kept, dw / (1.0 - dropout), 0.0)
            acc_v += _dot(p.to(g.dtype), g)
            if kind == "relu_sum":
                dw -= tl.load(delta + leading * n_queries + i, mask=valid_i, other=0.0)[None, :]
            de = tl.where(allowed, _slope(e, f, kind) * dw / n[None, :], 0.0)
            acc += _dot(de.to(q.dtype), q)
    tl.store(out + k_at, (acc * scale).to(out.dtype.element_ty), mask=valid_k)
    tl.store(out_value + v_at, acc_v.to(out_value.dtype.element_ty), mask=valid_v)
