"""Which backend computes an attention problem, and the backends in plain torch: `exact`, `tiled` and `segments`.

    exact       the definition itself: the whole matrix of weights at once
    tiled       a block of rows at a time, in memory that grows with N and not with N²
    segments    packed sequences, each computed by itself, by the backend that is best for it

The backends on fused kernels are in `fused`. `BACKENDS` lists all, the preferred ones first; `choose_backend` takes the
first one that can do the work and has no drawback. `exact` and `tiled` serve every score, normaliser, mask and bias.

Legend: ... leading dimensions, S segments of a run, H heads, Q queries, K keys, N tokens of a run, n of one segment, D
width; P and C are the queries and keys of a piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.fused import (
    AGENTS,
    BAND,
    FLEX,
    POINTWISE,
    SDPA,
    SHARED_BIAS,
    Backend,
    as_dot_problem,
    matrix_entries,
)
from regard.attention.mask import AndMask, BoolMask, Causal, CombinedMask, Mask, PackedSegments, Window, mask_parts
from regard.attention.mask_cache import MAX_MATRIX_ENTRIES, any_along, hide, may_hold
from regard.attention.normalize import Softmax
from regard.attention.problem import AttentionProblem
from regard.attention.score import Additive, Score, SoftcappedScore
from regard.checks import plural
from regard.kernels import dispatch, launch
from regard.kernels.short_segments import attend_segments, worth_batching

EXACT_MAX_NUMBERS = 1 << 25
"""The most numbers that `exact` may hold before `tiled`, which holds none, is preferred: 128 MiB in float32.

Below it `exact` is also faster where `tiled` has fused kernels: both wait for the launches, and it has fewer.
"""
TILE_NUMBERS_CPU = 1 << 21
TILE_NUMBERS_GPU = 1 << 26
"""The numbers that `tiled` holds for the pairs of a block: about a cache on a CPU, enough to fill the chip on a GPU."""
MAX_KEPT_SCORES = 1 << 25
"""Scores of fused kernels that are kept for the backward pass: 64 MiB in bfloat16, and as much for their weights."""
PIECE_CPU = 1 << 20
PIECE_GPU = 1 << 26
"""Numbers in the workspace of additive scores: 4 MiB in float32 on a CPU, about its cache; enough to fill a GPU."""


def weigh(problem: AttentionProblem, rows: "slice | Tensor", columns: slice,
          query: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weights (..., queries, keys) of these rows, and the values (..., keys, width) that they weigh.

    Rows are whole, because a normaliser may need them whole: `columns` holds every key that the rows may attend to. Key
    heads are already repeated. `query` has the queries of the rows, if the caller has sliced them already.
    """
    block = problem.indices(rows, columns)
    query = problem.query[..., rows, :] if query is None else query
    key, value = problem.key[..., columns, :], problem.value[..., columns, :]
    allowed, bias = problem.allowed(block), problem.block_bias(block)
    if allowed is not None:
        query, key, value = hide(query, key, value, allowed, bounded=problem.score.bounded)
    scores = problem.score.checked(query, key)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return _normalize_rows(problem, scores, allowed, bias).to(value.dtype), value


def _normalize_rows(problem: AttentionProblem, scores: Tensor, allowed: Tensor | None, bias: Tensor | None) -> Tensor:
    """The weights of whole rows of scores; zeros where a row may attend to nothing."""
    if scores.shape[-1] == 0:
        return scores
    if bias is None and problem.score.bounded:  # then only the mask forbids, and it is small: heads share it
        if allowed is None:
            return problem.normalize(scores)
        empty = ~any_along(allowed, -1)
    else:
        empty = ~any_along(scores != -torch.inf, -1)  # a bias or a user's score of -inf forbids as well
    if not may_hold(empty):
        return problem.normalize(scores)
    return problem.normalize(scores.masked_fill(empty, 0.0)).masked_fill(empty, 0.0)


def _attend_rows(problem: AttentionProblem, rows: slice, columns: slice, query: Tensor | None = None) -> Tensor:
    """The output (..., queries, width) of these rows."""
    weights, value = weigh(problem, rows, columns, query)
    if problem.dropout:
        weights = torch.nn.functional.dropout(weights, problem.dropout)
    return weights @ value


class ExactBackend(Backend):
    """The definition itself. It holds the whole matrix of weights, and takes everything."""

    def refusal(self, problem: AttentionProblem) -> str | None:
        return None

    def drawback(self, problem: AttentionProblem) -> str | None:
        held = problem.n_pairs * problem.score.numbers_per_pair(problem.query.shape[-1])
        if held <= EXACT_MAX_NUMBERS:
            return None
        if has_fused_scores(problem):
            return f"it would store {held:,} numbers at once, and `tiled` has fused kernels that store none"
        return f"it would store {held:,} numbers at once, more than {EXACT_MAX_NUMBERS:,}"

    def detail(self, problem: AttentionProblem) -> str:
        return f"the whole {problem.n_queries} × {problem.n_keys} matrix of weights at once"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output, from the whole matrix of weights."""
        problem = problem.repeat_key_heads()
        return _attend_rows(problem, slice(0, problem.n_queries), slice(0, problem.n_keys))


EXACT = ExactBackend()


def exact_weights(problem: AttentionProblem) -> Tensor:
    """The weights, (*leading, queries, keys)."""
    weights, _ = weigh(problem.repeat_key_heads(), slice(0, problem.n_queries), slice(0, problem.n_keys))
    return weights.expand(*problem.leading, *weights.shape[-2:])


class TiledBackend(Backend):
    """A block of whole rows after another, none of which is kept: the backward pass computes each block once more.

    It trades time (one more forward pass) for memory, runs on every device, and differentiates through any user's
    score, parameters included. Scores of fused kernels that are few enough are one block, and kept: recomputing them
    would cost most of the work.
    """

    def refusal(self, problem: AttentionProblem) -> str | None:
        return None

    def drawback(self, problem: AttentionProblem) -> str | None:
        return None

    def detail(self, problem: AttentionProblem) -> str:
        later = "stored for the backward pass" if _keeps_scores(problem) else "recomputed in the backward pass"
        scores = ", scores by fused kernels" if has_fused_scores(problem) else ""
        return f"{plural(rows_per_block(with_tiled_score(problem)), 'row')} at a time, {later}{scores}"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The output, a block of rows at a time."""
        problem = with_tiled_score(problem.repeat_key_heads())
        pieces = []
        size = rows_per_block(problem)
        recompute = torch.is_grad_enabled() and not _keeps_scores(problem) and not launch.in_torch_func()
        for query, (rows, columns) in zip(problem.query.split(size, dim=-2), problem.row_blocks(size), strict=True):
            if recompute:
                piece = checkpoint(_attend_rows, problem, rows, columns, query, use_reentrant=False,
                                   preserve_rng_state=problem.dropout > 0, determinism_check="none")
            else:
                piece = _attend_rows(problem, rows, columns, query)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)


TILED = TiledBackend()


def rows_per_block(problem: AttentionProblem) -> int:
    """The rows of a block: as many as keep its pairs within the bound, at least one."""
    most = TILE_NUMBERS_CPU if problem.query.device.type == "cpu" else TILE_NUMBERS_GPU
    row = problem.n_pairs // max(1, problem.n_queries) * problem.score.numbers_per_pair(problem.query.shape[-1])
    return max(1, min(most // max(1, row), problem.n_queries))


def _keeps_scores(problem: AttentionProblem) -> bool:
    """Whether scores and weights are kept for the backward pass, and not computed once more."""
    return (has_fused_scores(problem) and problem.n_pairs <= MAX_KEPT_SCORES
            and rows_per_block(with_tiled_score(problem)) == problem.n_queries)


def has_fused_scores(problem: AttentionProblem) -> bool:
    """Whether fused kernels compute the scores: additive ones, on CUDA, where Triton is installed."""
    score = problem.score.score if isinstance(problem.score, SoftcappedScore) else problem.score
    return isinstance(score, Additive | TiledAdditive) and _triton_takes(problem.query)


def with_tiled_score(problem: AttentionProblem) -> AttentionProblem:
    """The problem with additive scores that are computed a piece at a time."""
    score = problem.score
    if launch.in_torch_func():  # which does not take its gradient
        return problem
    if isinstance(score, SoftcappedScore) and isinstance(score.score, Additive):
        return replace(problem, score=replace(score, score=TiledAdditive(score.score)))
    return replace(problem, score=TiledAdditive(score)) if isinstance(score, Additive) else problem


@dataclass(frozen=True, eq=False)
class TiledAdditive(Score):
    """`Additive`, without holding a number for every pair and feature.

    The literal score holds Q·K·D numbers, and so does its backward pass. This one goes through them in a workspace as
    large as a cache, keeps only the Q·K scores, and computes each piece once more in the backward pass. On a GPU fused
    kernels take its place (`regard.kernels.additive`), which have no workspace at all.
    """

    score: Additive
    bounded = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        if self.score.bias is not None:
            query = query + self.score.bias.to(query.dtype).unsqueeze(-2)
        weight = self.score.weight.to(query.dtype)
        if _triton_takes(query):
            from regard.kernels.additive import AdditiveScores

            return AdditiveScores.apply(query, key, weight)
        scores: Tensor = _TiledScores.apply(query, key, weight)
        return scores

    def numbers_per_pair(self, query_width: int) -> int:
        return 1

    def __repr__(self) -> str:
        return repr(self.score)


class _TiledScores(torch.autograd.Function):
    """e = w · tanh(q + k);  de/dw = tanh,  de/dq = de/dk = w (1 - tanh²)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, weight)
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], weight.shape[:-1])
        scores = query.new_empty(*leading, query.shape[-2], key.shape[-2])
        column = weight.unsqueeze(-1) if weight.dim() == 1 else weight[:, None, :, None]
        for rows, columns, hidden_PCD in _tanh_pieces(query, key, leading):
            scores[..., rows, columns] = (hidden_PCD @ column).squeeze(-1)
        return scores

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (d_scores_QK,) = upstream
        query, key, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph: the gradients need gradients of their own
            return _literal_gradients(d_scores_QK, query, key, weight)
        leading = d_scores_QK.shape[:-2]
        wide = torch.promote_types(query.dtype, torch.float32)  # sums over many pieces need the digits
        d_query, d_key = (d_scores_QK.new_zeros(*leading, *t.shape[-2:], dtype=wide) for t in (query, key))
        d_weight = d_scores_QK.new_zeros(*leading, weight.shape[-1], dtype=wide)
        for rows, columns, hidden_PCD in _tanh_pieces(query, key, leading):
            d_PC1 = d_scores_QK[..., rows, columns].unsqueeze(-1)
            d_weight += (d_PC1.flatten(-3, -2).transpose(-2, -1) @ hidden_PCD.flatten(-3, -2)).squeeze(-2)
            slope_PCD = hidden_PCD.square_().neg_().add_(1.0).mul_(d_PC1)
            d_query[..., rows, :] += slope_PCD.sum(-2, dtype=wide)
            d_key[..., columns, :] += slope_PCD.sum(-3, dtype=wide)
        w_D = weight.unsqueeze(-2)
        return ((d_query * w_D).sum_to_size(query.shape).to(query.dtype),
                (d_key * w_D).sum_to_size(key.shape).to(key.dtype),
                d_weight.sum_to_size(weight.shape).to(weight.dtype))


def _literal_gradients(d_scores_QK: Tensor, query: Tensor, key: Tensor,
                       weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of e = w · tanh(q + k), all pairs and features at once, in operations that have gradients."""
    hidden_QKD = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh()
    d_QK1 = d_scores_QK.unsqueeze(-1)
    w_QKD = weight if weight.dim() == 1 else weight[:, None, None, :]
    slope_QKD = d_QK1 * w_QKD * (1 - hidden_QKD.square())
    return (slope_QKD.sum(-2).sum_to_size(query.shape), slope_QKD.sum(-3).sum_to_size(key.shape),
            (d_QK1 * hidden_QKD).sum((-3, -2)).sum_to_size(weight.shape))


def _triton_takes(query: Tensor) -> bool:
    """Whether the fused kernels take such a tensor. A compiler gets torch's own operations, to fuse with others."""
    if torch.compiler.is_compiling() or query.device.type != "cuda" or query.dtype == torch.float64:
        return False
    return launch.installed() and not launch.in_torch_func()


def _tanh_pieces(query: Tensor, key: Tensor, leading: torch.Size) -> Iterator[tuple[slice, slice, Tensor]]:
    """tanh(q + k) of every piece, in a workspace that the next piece overwrites."""
    n_queries, n_keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    pairs = max(1, (PIECE_CPU if query.device.type == "cpu" else PIECE_GPU) // max(1, leading.numel() * width))
    columns = max(1, min(n_keys, pairs))
    rows = max(1, min(n_queries, pairs // columns))
    workspace = query.new_empty(leading.numel() * rows * columns * width)
    for first in range(0, n_queries, rows):
        row = slice(first, min(first + rows, n_queries))
        for start in range(0, n_keys, columns):
            column = slice(start, min(start + columns, n_keys))
            shape = (*leading, row.stop - row.start, column.stop - column.start, width)
            hidden = workspace[:torch.Size(shape).numel()].view(shape)
            torch.add(query[..., row, :].unsqueeze(-2), key[..., column, :].unsqueeze(-3), out=hidden)
            yield row, column, hidden.tanh_()


class SegmentRun(NamedTuple):
    """Segments of equal lengths, one after another: their number, and the queries and keys of each."""

    segments: int
    queries: int
    keys: int


class SegmentsBackend(Backend):
    """Packed sequences, each computed by itself: output = [attend(q_1, k_1, v_1), attend(q_2, k_2, v_2), ..., 0].

    Under a `Packed` mask the other backends compute all N·M pairs of a query and a key, and discard those between
    segments. This one splits query, key and value where the segments end, and the work is Σ n·m. Neighbours of the same
    lengths are one batch. Each piece goes to the backend that is best for it, with the rest of the mask: both count
    from the bottom right of a segment, so causal masks, windows and distances come out the same. Many short segments of
    nearly one length go through `regard.kernels.short_segments`, all at once.

    The lengths must be known on the host: it is not for compiled graphs, and lengths on a GPU are waited for. On a GPU
    it was not measured, and runs only when it is named.
    """

    def refusal(self, problem: AttentionProblem) -> str | None:
        # Name the kind, not the value: to show the lengths of a mask would wait for a GPU, and break a compiled graph.
        parts = mask_parts(problem.mask)
        if sum(isinstance(part, PackedSegments) for part in parts) != 1:
            return "it needs a mask with one Packed, alone or joined with others by &"
        others = [part for part in parts if not isinstance(part, PackedSegments | Causal | Window | BoolMask)]
        return f"it cannot split a mask of type {type(others[0]).__name__} into segments" if others else None

    def drawback(self, problem: AttentionProblem) -> str | None:
        if torch.compiler.is_compiling() or launch.in_torch_func():
            return "the lengths are not known inside torch.compile and torch.func"
        if problem.query.device.type != "cpu":
            return f"it has not been measured on {problem.query.device.type}, and runs there only if requested by name"
        packed = _split_mask(problem)[0].packed
        if not packed.query_lengths.device.type == packed.key_lengths.device.type == "cpu":
            return "the lengths are on a device, and reading them would wait for it"
        return None

    def detail(self, problem: AttentionProblem) -> str:
        count = len(_split_mask(problem)[0].packed.query_lengths)
        if _batches_segments(problem, *_segment_lengths(problem)):
            return f"{plural(count, 'segment')} at once, padded to one length"
        calls = sum(1 for run in _segment_runs(problem) if run.queries and run.keys)
        return f"{plural(count, 'segment')} in {plural(calls, 'call')}: neighbours of equal length are one batch"

    def run(self, problem: AttentionProblem) -> Tensor:
        """The outputs of all segments, one after another, and zeros for the queries that have no keys."""
        lengths = _segment_lengths(problem)
        if _batches_segments(problem, *lengths):
            return _run_batched(problem, *lengths)
        runs = _segment_runs(problem)
        works = [_batch_run(piece, run) for piece, run in zip(_split_problem(problem, runs), runs, strict=True)]
        table = _affordable_backends(works)
        outputs = []
        for work, (segments, queries, keys) in zip(works, runs, strict=True):
            shape = (*problem.leading, segments * queries, problem.value.shape[-1])
            if queries and keys:
                output = dispatch.choose_backend(table, work, None).run(work)
                outputs.append((output if segments == 1 else output.transpose(-4, -3)).reshape(shape))
            else:
                outputs.append(_zero_of(work).expand(shape).contiguous())
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2)


SEGMENTS = SegmentsBackend()

BACKENDS: dict[str, Backend] = {"sdpa": SDPA, "shared_bias": SHARED_BIAS, "flex": FLEX, "pointwise": POINTWISE,
                                "agents": AGENTS,
                                "exact": EXACT, "segments": SEGMENTS, "band": BAND, "tiled": TILED}
"""Every backend by name, the preferred ones first. They give the output (*leading, queries, value width)."""
PACKED_BACKENDS: dict[str, Backend] = {"segments": SEGMENTS, "band": BAND, **BACKENDS}
"""The same for masks with packed segments: first those that skip the pairs between segments."""
SEGMENT_BACKENDS: dict[str, Backend] = {"sdpa": SDPA, "shared_bias": SHARED_BIAS, "flex": FLEX, "pointwise": POINTWISE,
                                        "agents": AGENTS,
                                        "exact": EXACT, "tiled": TILED}
"""The backends for one segment by itself."""


def choose_backend(problem: AttentionProblem, backend: str | None = None) -> Backend:
    """The backend that runs this problem; a ValueError where the named one cannot."""
    # Without packed segments the first one refuses, and the others follow.
    return dispatch.choose_backend(PACKED_BACKENDS, problem, backend)


def explain_choice(problem: AttentionProblem, backend: str | None = None) -> dispatch.Explanation:
    """The choice, in words. It mentions segments first only where the mask has any."""
    packed = problem.mask is not None and _has_segments(problem.mask)
    return dispatch.explain_choice(PACKED_BACKENDS if packed else BACKENDS, problem, backend)


def _has_segments(mask: Mask) -> bool:
    """Whether there is a `Packed` anywhere in the mask."""
    if isinstance(mask, CombinedMask):
        return any(_has_segments(member) for member in mask.members)
    return isinstance(mask, PackedSegments)


def _split_mask(problem: AttentionProblem) -> tuple[PackedSegments, list[Mask]]:
    """The segments of the mask, and its other parts."""
    parts = mask_parts(problem.mask)
    (segments,) = (part for part in parts if isinstance(part, PackedSegments))
    return segments, [part for part in parts if part is not segments]


def _segment_lengths(problem: AttentionProblem) -> tuple[list[int], list[int]]:
    """The number of queries and of keys of each segment."""
    return _split_mask(problem)[0].packed.on_host(problem.n_queries, problem.n_keys)


def _batches_segments(problem: AttentionProblem, queries: list[int], keys: list[int]) -> bool:
    """Whether all segments are computed in one batch of small matrices."""
    if not (problem.query.dtype == problem.key.dtype == problem.value.dtype in (torch.float32, torch.float64)
            and problem.query.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
            and not launch.in_torch_func()):
        return False
    if not (isinstance(problem.normalize, Softmax) and problem.score.as_dot(problem.query[..., :0, :]) is not None
            and problem.bias is None and all(isinstance(part, Causal) for part in _split_mask(problem)[1])):
        return False
    if (len(problem.leading) < 1 or any(size != 1 for size in problem.leading[:-1])
        or any(tensor.dim() < 3 or tensor.shape[-3] != problem.heads
               for tensor in (problem.query, problem.key, problem.value))):
        return False
    return (worth_batching(queries, keys, problem.heads)
            and (sum(queries), sum(keys)) == (problem.n_queries, problem.n_keys))


def _run_batched(problem: AttentionProblem, queries: list[int], keys: list[int]) -> Tensor:
    """The output of all segments in one batch of small matrices."""
    problem = as_dot_problem(problem)
    dot = problem.score.as_dot(problem.query)
    assert dot is not None, "call _batches_segments() first"
    query, scale = dot
    query, key, value = (tensor.reshape(*tensor.shape[-3:]) for tensor in (query, problem.key, problem.value))
    output = attend_segments(query, key, value, queries, keys, causal=bool(_split_mask(problem)[1]), scale=scale,
                             dropout=problem.dropout)
    return output.reshape(*problem.leading, problem.n_queries, -1)


def _segment_runs(problem: AttentionProblem) -> list[SegmentRun]:
    """All queries, in runs. Those after the last segment, if any, are a segment without keys."""
    others = _split_mask(problem)[1]
    queries, keys = _segment_lengths(problem)
    rest = problem.n_queries - sum(queries)
    if rest or not queries:
        queries, keys = [*queries, rest], [*keys, 0]
    lengths = zip(queries, keys, strict=True)
    if isinstance(problem.bias, Tensor) or any(isinstance(part, BoolMask) for part in others):
        return [SegmentRun(1, *pair) for pair in lengths]  # every segment has numbers of its own
    return [SegmentRun(len(list(same)), *pair) for pair, same in groupby(lengths)]


def _split_problem(problem: AttentionProblem, runs: Sequence[SegmentRun]) -> list[AttentionProblem]:
    """The problem of each run, with the other parts of the mask."""
    queries, keys = [run.segments * run.queries for run in runs], [run.segments * run.keys for run in runs]
    # A split, and not a slice for every run: its backward pass joins all pieces at once, with zeros for the rest.
    query = problem.query.split(queries, dim=-2)
    key, value = (_split_keys(tensor, keys, dim=-2) for tensor in (problem.key, problem.value))
    bias = (_diagonal_blocks(problem.bias, queries, keys) if isinstance(problem.bias, Tensor)
            else [problem.bias] * len(runs))
    masks = [[BoolMask(block) for block in _diagonal_blocks(part.tensor, queries, keys)]
             if isinstance(part, BoolMask) else [part] * len(runs) for part in _split_mask(problem)[1]]
    return [replace(problem, query=query[i], key=key[i], value=value[i], bias=bias[i],
                    mask=_join_masks([parts[i] for parts in masks])) for i in range(len(runs))]


def _batch_run(piece: AttentionProblem, run: SegmentRun) -> AttentionProblem:
    """The problem of a run with its segments as a leading dimension before the heads."""
    if run.segments == 1:
        return piece
    query = _segments_leading(piece.query, run.segments, run.queries)
    key, value = (_segments_leading(tensor, run.segments, run.keys) for tensor in (piece.key, piece.value))
    leading = (*piece.leading[:-1], run.segments, piece.leading[-1] if piece.leading else 1)
    return replace(piece, query=query, key=key, value=value, leading=leading)


def _segments_leading(tensor: Tensor, segments: int, length: int) -> Tensor:
    """(..., H, N, D) -> (..., S, H, n, D)."""
    tensor = tensor if tensor.dim() > 2 else tensor.unsqueeze(0)
    return tensor.unflatten(-2, (segments, length)).transpose(-4, -3)


def _affordable_backends(works: Sequence[AttentionProblem]) -> dict[str, Backend]:
    """The backends, without those that would hold more for all pieces together than they should hold for one.

    What they hold is kept until the backward pass, so it adds up.
    """
    entries = sum(matrix_entries(work) for work in works)
    numbers = sum(work.n_pairs * work.score.numbers_per_pair(work.query.shape[-1]) for work in works)
    too_much = {"sdpa": entries > MAX_MATRIX_ENTRIES, "exact": numbers > EXACT_MAX_NUMBERS}
    return {name: backend for name, backend in SEGMENT_BACKENDS.items() if not too_much.get(name, False)}


def _zero_of(piece: AttentionProblem) -> Tensor:
    """0, (1, 1), for queries without keys.

    As a product over no tokens it is tied to the inputs, whose gradients are then zeros and not missing, and has the
    dtype that autocast gives to the products of the other pieces.
    """
    query, key, value = (tensor[..., :0, :].reshape(1, 0) for tensor in (piece.query, piece.key, piece.value))
    return query @ key.mT + value @ value.mT


def _diagonal_blocks(matrix: Tensor, queries: list[int], keys: list[int]) -> Sequence[Tensor]:
    """The blocks of the pieces in a matrix (..., queries, keys); a size of 1 stands for all queries, or all keys."""
    if matrix.shape[-2] == 1:
        return [matrix] * len(queries) if matrix.shape[-1] == 1 else _split_keys(matrix, keys, dim=-1)
    rows = matrix.split(queries, dim=-2)
    if matrix.shape[-1] == 1:
        return rows
    starts = accumulate(keys, initial=0)
    return [row.narrow(-1, start, length) for row, start, length in zip(rows, starts, keys, strict=False)]


def _split_keys(tensor: Tensor, keys: list[int], dim: int) -> Sequence[Tensor]:
    """The keys of each piece; the last element holds the keys after the last segment, which no piece uses."""
    return tensor.split([*keys, tensor.shape[dim] - sum(keys)], dim)


def _join_masks(parts: Sequence[Mask]) -> Mask | None:
    """The masks as one. A single one stays what it is, so that a backend recognises it."""
    return AndMask(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None
