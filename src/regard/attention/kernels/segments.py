"""The `segments` backend: packed sequences, each computed by itself.

    output = [attend(q_1, k_1, v_1), attend(q_2, k_2, v_2), ..., 0]

Under a `Packed` mask the other backends go through all N·M pairs of a query and a key, and throw away those between
segments. This one cuts query, key and value where the segments end, and the work is Σ n·m. Neighbours of the same
lengths are one batch. Each piece goes to the backend that is the best for it alone, with what else the mask says: both
count from the bottom right of a segment, so causal masks, windows and distances come out the same. Many short segments
of nearly one length, as batches of sentences are, go through `levelled` instead, all at once.

To cut, the lengths must be known on the host: it is not for compiled graphs, and lengths on a GPU are waited for. On a
GPU it was not measured, and there it runs only when it is asked for. It does not know how a piece is computed.

Legend: S segments of a run, H heads, N tokens of the run, n of one segment, D width.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.kernels import exact, flex, levelled, pointwise, sdpa, tiled
from regard.attention.mask import AndMask, BoolMask, Causal, Mask, NotMask, OrMask, PackedSegments, Window
from regard.attention.problem import AttentionProblem
from regard.kernels import dispatch

Backend = dispatch.Backend[AttentionProblem, Tensor]
OF_ONE: dict[str, Backend] = {"sdpa": sdpa, "flex": flex, "pointwise": pointwise, "exact": exact, "tiled": tiled}
"""The backends for a segment by itself, the preferred ones first."""


class SegmentRun(NamedTuple):
    """Segments of the same lengths, one after another: how many, and the queries and keys of each."""

    segments: int
    queries: int
    keys: int


def concerns(problem: AttentionProblem) -> bool:
    """Whether the mask speaks of segments at all. Where it does not, nobody expects this backend."""
    return problem.mask is not None and _speaks_of_segments(problem.mask)


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    # Kinds are named, not values: to show the lengths of a mask would wait for a GPU, and break a compiled graph.
    parts = _parts(problem.mask)
    if sum(isinstance(part, PackedSegments) for part in parts) != 1:
        return "it is for masks of one Packed, alone or joined to others by &"
    others = [part for part in parts if not isinstance(part, PackedSegments | Causal | Window | BoolMask)]
    return f"it cannot cut a mask of the kind {type(others[0]).__name__} into segments" if others else None


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    if torch.compiler.is_compiling():
        return "the lengths are not known while compiling"
    if problem.query.device.type != "cpu":
        return f"on {problem.query.device.type} it was not measured, and runs only when asked for"
    packed = _opened(problem)[0].packed
    if not packed.query_lengths.device.type == packed.key_lengths.device.type == "cpu":
        return "the lengths are not on the host, and it would wait for them"
    return None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    count = len(_opened(problem)[0].packed.query_lengths)
    if levelled.fits(problem, *_lengths(problem), _opened(problem)[1]):
        return f"all segments at once, filled up to one length; segments: {count}"
    calls = sum(1 for own in _runs(problem) if own.queries and own.keys)
    return f"each segment by itself, equal neighbours together; segments: {count}, calls: {calls}"


def run(problem: AttentionProblem) -> Tensor:
    """The outputs of all segments, one after another, and zeros for the queries that have no keys."""
    lengths, inside = _lengths(problem), _opened(problem)[1]
    if levelled.fits(problem, *lengths, inside):
        return levelled.run(problem, *lengths, inside)
    runs = _runs(problem)
    works = [_batch(piece, own) for piece, own in zip(_cut(problem, runs), runs, strict=True)]
    table = _affordable(works)
    outputs = []
    for work, (segments, queries, keys) in zip(works, runs, strict=True):
        shape = (*problem.leading, segments * queries, problem.value.shape[-1])
        if queries and keys:
            output = dispatch.choose_backend(table, work, None).run(work)
            outputs.append((output if segments == 1 else output.transpose(-4, -3)).reshape(shape))
        else:
            outputs.append(_nothing(work).expand(shape).contiguous())
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2)


def _lengths(problem: AttentionProblem) -> tuple[list[int], list[int]]:
    """The queries and the keys of each segment."""
    return _opened(problem)[0].packed.on_host(problem.n_queries, problem.n_keys)


def _runs(problem: AttentionProblem) -> list[SegmentRun]:
    """All queries, in runs. Those behind the last segment, where there are any, are a segment without keys."""
    others = _opened(problem)[1]
    queries, keys = _lengths(problem)
    rest = problem.n_queries - sum(queries)
    if rest or not queries:
        queries, keys = [*queries, rest], [*keys, 0]
    lengths = zip(queries, keys, strict=True)
    if isinstance(problem.bias, Tensor) or any(isinstance(part, BoolMask) for part in others):
        return [SegmentRun(1, *pair) for pair in lengths]  # every segment has numbers of its own
    return [SegmentRun(len(list(same)), *pair) for pair, same in groupby(lengths)]


def _cut(problem: AttentionProblem, runs: Sequence[SegmentRun]) -> list[AttentionProblem]:
    """The problem of each run, with what the mask says beside the segments."""
    queries, keys = [one.segments * one.queries for one in runs], [one.segments * one.keys for one in runs]
    # A split, and not a slice for every run: its backward pass joins all pieces at once, with zeros for what is left.
    query = problem.query.split(queries, dim=-2)
    key, value = (_split_keys(tensor, keys, dim=-2) for tensor in (problem.key, problem.value))
    bias = _diagonal(problem.bias, queries, keys) if isinstance(problem.bias, Tensor) else [problem.bias] * len(runs)
    masks = [[BoolMask(block) for block in _diagonal(part.tensor, queries, keys)] if isinstance(part, BoolMask)
             else [part] * len(runs) for part in _opened(problem)[1]]
    return [replace(problem, query=query[i], key=key[i], value=value[i], bias=bias[i],
                    mask=_joined([parts[i] for parts in masks])) for i in range(len(runs))]


def _batch(piece: AttentionProblem, own: SegmentRun) -> AttentionProblem:
    """The problem of a run with its segments side by side, as a leading dimension before the heads."""
    if own.segments == 1:
        return piece
    query = _side_by_side(piece.query, own.segments, own.queries)
    key, value = (_side_by_side(tensor, own.segments, own.keys) for tensor in (piece.key, piece.value))
    leading = (*piece.leading[:-1], own.segments, piece.leading[-1] if piece.leading else 1)
    return replace(piece, query=query, key=key, value=value, leading=leading)


def _side_by_side(tensor: Tensor, segments: int, length: int) -> Tensor:
    """(..., H, N, D) -> (..., S, H, n, D)."""
    tensor = tensor if tensor.dim() > 2 else tensor.unsqueeze(0)
    return tensor.unflatten(-2, (segments, length)).transpose(-4, -3)


def _affordable(works: Sequence[AttentionProblem]) -> dict[str, Backend]:
    """The backends, without those that would hold more for all pieces together than they should hold for one.

    What they hold is kept until the backward pass, so it adds up.
    """
    entries = sum(sdpa.matrix_entries(work) for work in works)
    numbers = sum(work.pairs * work.score.numbers_per_pair(work.query.shape[-1]) for work in works)
    too_much = {"sdpa": entries > sdpa.HELD, "exact": numbers > exact.HELD}
    return {name: backend for name, backend in OF_ONE.items() if not too_much.get(name, False)}


def _nothing(piece: AttentionProblem) -> Tensor:
    """0, (1, 1), for queries without keys.

    As a product over no tokens it is tied to the inputs, whose gradients are then zeros and not missing, and has the
    dtype that autocast gives to the products of the other pieces.
    """
    query, key, value = (tensor[..., :0, :].reshape(1, 0) for tensor in (piece.query, piece.key, piece.value))
    return query @ key.mT + value @ value.mT


def _diagonal(matrix: Tensor, queries: list[int], keys: list[int]) -> Sequence[Tensor]:
    """The blocks of the pieces in a matrix (..., queries, keys); a size of 1 stands for all queries, or all keys."""
    if matrix.shape[-2] == 1:
        return [matrix] * len(queries) if matrix.shape[-1] == 1 else _split_keys(matrix, keys, dim=-1)
    rows = matrix.split(queries, dim=-2)
    if matrix.shape[-1] == 1:
        return rows
    starts = accumulate(keys, initial=0)
    return [row.narrow(-1, start, length) for row, start, length in zip(rows, starts, keys, strict=False)]


def _split_keys(tensor: Tensor, keys: list[int], dim: int) -> Sequence[Tensor]:
    """The keys of each piece. Those behind the last segment come after them, and nobody takes them."""
    return tensor.split([*keys, tensor.shape[dim] - sum(keys)], dim)


def _opened(problem: AttentionProblem) -> tuple[PackedSegments, list[Mask]]:
    """The segments of the mask, and what else it says."""
    parts = _parts(problem.mask)
    (segments,) = (part for part in parts if isinstance(part, PackedSegments))
    return segments, [part for part in parts if part is not segments]


def _parts(mask: Mask | None) -> tuple[Mask, ...]:
    """What a mask joins by &."""
    return () if mask is None else mask.members if isinstance(mask, AndMask) else (mask,)


def _joined(parts: Sequence[Mask]) -> Mask | None:
    """The masks as one. A single one stays what it is, so that a backend recognises it."""
    return AndMask(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None


def _speaks_of_segments(mask: Mask) -> bool:
    """Whether there is a `Packed` anywhere in the mask."""
    if isinstance(mask, AndMask):
        return any(_speaks_of_segments(member) for member in mask.members)
    if isinstance(mask, OrMask):
        return _speaks_of_segments(mask.left) or _speaks_of_segments(mask.right)
    return _speaks_of_segments(mask.inner) if isinstance(mask, NotMask) else isinstance(mask, PackedSegments)
