"""Attention records, and parts of them: one sequence of a batch without padding, or one head.

A record is a `Look`, which has queries and keys and computes weights on demand, or a `WeightMatrix` of
weights that are given; both answer the same questions.

    sequence_record(record, 1)    (B, H, n, N) -> (H, n, N), only the tokens that are not padding
    single_head(record, 3)        (H, n, N) -> (1, n, N)
    score_parts(record, 3, 0, 1)  the score of one query and one key by dimension

Which tokens are padding follows from the mask: a key that no query may attend to is padding, and in self-attention so
is its query. Packed sequences count as rows. This file does not know models, nor what the tokens are.

Legend: ... leading dimensions, heads last; B rows, H heads, n queries (rows), N keys (columns), M blocks of a map.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.attention.look import Look, Peaks, row_indices
from regard.attention.mask import AndMask, BoolMask, Causal, Mask, Packed, Padding, Placed, Window, as_mask
from regard.attention.score import Additive, Bilinear, Dot, Score, SoftcappedScore, as_score
from regard.position.bias import Bias

ROWS_COMPARED = 1024
"""Rows of a mask that are compared at a time."""


@dataclass(frozen=True, eq=False)
class WeightMatrix:
    """Weights (..., heads, n, N) that are given, with the methods of a `Look`.

    They need not sum to 1 and may be negative; nothing here changes them.
    """

    given: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.given, Tensor):
            raise checks.wrong("given", "a tensor", *checks.kind(self.given))
        if self.given.dim() < 2 or not self.given.is_floating_point():
            raise checks.wrong("given", "floating-point numbers of shape (..., rows, columns)",
                               f"{self.given.dtype} of shape {checks.shape(self.given)}")
        object.__setattr__(self, "given", self.given.detach())

    def __repr__(self) -> str:
        return f"WeightMatrix({checks.shape(self.given)})"

    def weights(self) -> Tensor:
        """All weights, (..., n, N)."""
        return self.given

    def rows(self, indices: "int | list[int] | Tensor") -> Tensor:
        """The weights of these queries, (..., N) for one index and (..., indices, N) for several."""
        return self.given[..., row_indices(indices, self.given.shape[-2], self.given.device), :]

    def entropy(self) -> Tensor:
        """-Σ w log w of every row in nats, (..., n). It is NaN for a row with a negative weight."""
        negative = (self.given < 0).any(dim=-1)
        entropy = torch.special.entr(self._wide()).sum(-1)
        return entropy.masked_fill(negative, torch.nan).to(self.given.dtype)

    def row_max(self) -> Peaks:
        """The largest weight of every row and the first key that has it, (..., n); 0 and 0 without keys."""
        full = self.given if self.given.shape[-1] else torch.nn.functional.pad(self.given, (0, 1))
        return Peaks(*full.max(dim=-1))

    def column_sums(self) -> Tensor:
        """The sum of the weights of every key over all queries, (..., N)."""
        return self._wide().sum(dim=-2).to(self.given.dtype)

    def top_k(self, count: int) -> Peaks:
        """The `count` largest weights of every row, largest first, (..., n, count)."""
        if not 0 < count <= self.given.shape[-1]:
            raise checks.wrong("count", f"from 1 to the number of keys, {self.given.shape[-1]}", count)
        values, positions = torch.sort(self.given, dim=-1, descending=True, stable=True)  # equal: the first key first
        return Peaks(values[..., :count], positions[..., :count])

    def block_map(self, size: int) -> Tensor:
        """The mean weight of every block of `size` queries and `size` keys, (..., M, M); the last may be smaller."""
        if size < 1:
            raise checks.wrong("size", "at least 1", size)
        means = self._wide()
        for dim in (-1, -2):
            count = means.shape[dim]
            edges = torch.arange(0, count, size, device=means.device)
            added = means.new_zeros(*means.shape[:-2], *((len(edges), means.shape[-1]) if dim == -2 else
                                                         (means.shape[-2], len(edges))))
            added.index_add_(dim, torch.arange(count, device=means.device) // size, means)
            sizes = (count - edges).clamp(max=size)
            means = added / (sizes if dim == -1 else sizes.unsqueeze(-1))
        return means.to(self.given.dtype)

    def _wide(self) -> Tensor:
        """The weights in at least single precision, for sums."""
        return self.given.to(torch.promote_types(self.given.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class MixerMap(WeightMatrix):
    """The map M of a mixer without queries and keys, (..., heads, N, N): its results are M times its values.

    In RWKV-4 it is the mean over channels, and rows sum to 1. In RWKV-7 it is signed: it has no probabilities.
    """

    bonus: Tensor | None = None
    """(..., heads, N): the weight of each token's own value that is added apart, in RWKV-7."""
    present: Tensor | None = None
    """(B, N): the tokens that are not padding; None for all."""
    channel_maps: Callable[[], Tensor] | None = None

    def __repr__(self) -> str:
        return f"MixerMap({checks.shape(self.given)}{', mean over channels' if self.channel_maps else ''})"

    def channels(self) -> Tensor:
        """The maps of all channels, (..., channels, N, N), in RWKV-4."""
        if self.channel_maps is None:
            raise ValueError("This mixer has a map for every head, not for every channel: see weights().")
        return self.channel_maps()

    def sequence(self, index: int) -> "MixerMap":
        """One sequence of a batch, (heads, n, n), without padding."""
        if self.given.dim() < 4:
            return self
        count = self.given.shape[-1]
        kept = (torch.arange(count, device=self.given.device) if self.present is None else
                self.present[index].nonzero().squeeze(-1))
        maps = self.channel_maps
        return MixerMap(self.given[index][:, kept][..., kept],
                        None if self.bonus is None else self.bonus[index][:, kept], None,
                        None if maps is None else lambda: maps()[index][:, kept][..., kept])


AttentionRecord = Look | WeightMatrix


def record_shape(record: AttentionRecord) -> tuple[int, ...]:
    """The shape (..., heads, queries, keys) of the weights, which are not computed for it."""
    if isinstance(record, WeightMatrix):
        return tuple(record.given.shape)
    return (*record.problem.leading, record.problem.n_queries, record.problem.n_keys)


def sequence_record(record: AttentionRecord, index: int, *, self_attention: bool = False,
                    queries: Tensor | None = None) -> AttentionRecord:
    """The record of one sequence of a batch, (heads, queries, keys), without padding.

    Args:
        record: (batch, heads, queries, keys), or packed sequences.
        index: the number of the sequence.
        self_attention: whether queries and keys are the same tokens.
        queries: the positions of the queries that are not padding, if they are known from elsewhere.
    """
    sizes, index = record_shape(record), _check_index(record, index)
    if isinstance(record, MixerMap):
        return record.sequence(index)
    if isinstance(record, WeightMatrix):
        given = record.given if len(sizes) > 2 else record.given.unsqueeze(0)
        return WeightMatrix(given[index] if len(sizes) == 4 else given)
    packed = _packed_mask(record)
    if packed is not None:
        return _packed_segment(record, packed, index)
    row = _batch_row(record, index)
    keys, (n, N) = _present_keys(row, self_attention), record_shape(row)[-2:]
    if queries is None and self_attention and n == N:
        queries = keys
    return _select_tokens(row, None if queries is not None and len(queries) == n else queries, keys)


def present_queries(record: AttentionRecord, index: int) -> Tensor:
    """The positions of the queries of one sequence that are not padding, from its self-attention."""
    index = _check_index(record, index)
    present = None
    if isinstance(record, MixerMap) and record.present is not None:
        return record.present[index].nonzero().squeeze(-1).cpu()
    if isinstance(record, Look) and _packed_mask(record) is None:
        row = _batch_row(record, index)
        present = _present_keys(row, True) if row.query.shape[-2] == row.key.shape[-2] else None
    return torch.arange(record_shape(record)[-2]) if present is None else present


def truncate_record(record: AttentionRecord, queries: int | None, keys: int | None) -> AttentionRecord:
    """The record of one sequence with at most this many first queries and keys; None keeps all."""
    rows, columns = (None if wanted is None or wanted >= size else torch.arange(wanted)
                     for wanted, size in zip((queries, keys), record_shape(record)[-2:], strict=True))
    if rows is None and columns is None:
        return record
    if isinstance(record, WeightMatrix):
        return WeightMatrix(_select_entries(record.given, rows, columns))
    return _select_tokens(record, rows, columns)


def single_head(record: AttentionRecord, head: int) -> AttentionRecord | None:
    """One head as a record (1, rows, columns), so that the others are not computed.

    It is None where a head has no parts of its own: a custom score, a bias by distance, a composed mask.
    """
    if isinstance(record, WeightMatrix):
        return WeightMatrix(record.given[head:head + 1])
    heads = record_shape(record)[0]
    score = _head_score(as_score(record.score), head)
    mask = None if record.mask is None else _head_mask(as_mask(record.mask), head)
    bias = _head_part(record.bias, head) if isinstance(record.bias, Tensor) else None
    if score is None or (mask is None) != (record.mask is None) or (bias is None) != (record.bias is None):
        return None
    key_head = head // (heads // record.key.shape[0])
    return replace(record, query=_head_part(record.query, head), key=record.key[key_head:key_head + 1], value=None,
                   score=score, mask=mask, bias=bias)


def head_rows(record: AttentionRecord, head: int) -> Callable[[list[int]], Tensor]:
    """A function from row numbers to the weights (rows, columns) of one head."""
    alone = single_head(record, head)
    if alone is None:
        return lambda indices: record.rows(indices)[head]
    return lambda indices: alone.rows(indices)[0]


class ScoreParts(NamedTuple):
    """The score of one query and one key of a head, and its parts: score = scale · Σ products + bias."""

    products: tuple[float, ...]
    """q_d · k_d for each dimension d, in double precision."""
    scale: float
    bias: float | None
    """None where nothing is added to the scores."""
    masked: bool
    """Whether the query may not attend to the key."""
    weight: float
    """What the normaliser makes of the score, among the scores of the row."""

    @property
    def product(self) -> float:
        """q · k, the sum of the products."""
        return math.fsum(self.products)

    @property
    def score(self) -> float:
        """The score before the normaliser."""
        return self.scale * self.product + (self.bias or 0.0)


@torch.no_grad()
def score_parts(record: AttentionRecord, head: int, row: int, column: int) -> ScoreParts | None:
    """The parts of the score of one query and one key; None if the record has no queries, or scores of another kind.

    Args:
        record: of shape (H, n, N).
        head: the number of the head.
        row: the number of the query.
        column: the number of the key.
    """
    dot = None if isinstance(record, WeightMatrix) else record.problem.score.as_dot(record.problem.query)
    if isinstance(record, WeightMatrix) or dot is None:
        return None
    problem, H = record.problem, record_shape(record)[0]
    key = problem.key.reshape(-1, *problem.key.shape[-2:])
    query_D = dot[0].expand(H, -1, -1)[head, row].double()
    key_D = key[head // (H // len(key)), column].double()
    block = problem.indices(slice(row, row + 1), slice(column, column + 1))
    bias, allowed = problem.block_bias(block), problem.allowed(block)
    return ScoreParts(tuple((query_D * key_D).tolist()), dot[1],
                      None if bias is None else float(bias.expand(H, 1, 1)[head]),
                      allowed is not None and not bool(allowed.expand(H, 1, 1)[head]),
                      float(head_rows(record, head)([row])[0, column]))


def recognize_mask(matrix: Tensor) -> Mask | None:
    """A mask matrix (..., n, N) by its meaning: None if everything is allowed, `Causal()`, or the matrix as it is.

    A model writes the mask of a padded batch as a matrix. For one sequence without padding it is often trivial or
    causal; kernels are fast for these, and a file needs no matrix.
    """
    if bool(matrix.all()):
        return None
    n, N = matrix.shape[-2:]
    columns = torch.arange(N, device=matrix.device)
    for first in range(0, n, ROWS_COMPARED):
        rows = torch.arange(first, min(first + ROWS_COMPARED, n), device=matrix.device).unsqueeze(-1)
        if not bool((matrix[..., first:first + ROWS_COMPARED, :] == (columns <= rows + (N - n))).all()):
            return BoolMask(matrix)
    return Causal()


def is_distance_mask(mask: "Mask | Tensor | None") -> bool:
    """Whether a mask depends only on the distance of query and key: causal masks, windows, and none."""
    return all(part is None or type(part) in (Causal, Window) for part in _mask_parts(mask))


def _check_index(record: AttentionRecord, index: int) -> int:
    """The number of a sequence, from 0 on; a ValueError if there is no such sequence."""
    sizes = record_shape(record)
    if len(sizes) > 4:
        raise checks.wrong("record", "a record of shape (batch, heads, queries, keys)", f"one of shape {sizes}")
    packed = _packed_mask(record) if isinstance(record, Look) else None
    count = len(packed.query_lengths) if packed is not None else 1 if len(sizes) < 4 else sizes[0]
    if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
        expected = f"one of the {count} sequences, from 0" if count > 1 else "0, as there is one sequence"
        raise checks.wrong("row", expected, repr(index))
    return index % count


def _batch_row(look: Look, index: int) -> Look:
    """One row of a batch, with its padding: (H, n, N)."""
    mask = None if look.mask is None else as_mask(look.mask).map_parts(lambda part: _mask_of_row(part, index))
    bias = look.bias
    if isinstance(bias, Tensor) and bias.dim() > 3:
        bias = _row_of(bias, index)
    if isinstance(bias, Tensor):
        mask, bias = _split_bias(mask, bias)
    query, key = (_row_of(tensor, index) if tensor.dim() > 3 else tensor if tensor.dim() > 2 else tensor.unsqueeze(0)
                  for tensor in (look.query, look.key))
    return replace(look, query=query, key=key, value=None, mask=mask, bias=bias)


def _row_of(tensor: Tensor, index: int) -> Tensor:
    """One row of (B, ...); a batch of 1 stands for all rows."""
    return tensor[index if len(tensor) > 1 else 0]


def _mask_of_row(part: Mask, index: int) -> Mask:
    if isinstance(part, BoolMask):
        return BoolMask(_row_of(part.tensor, index) if part.tensor.dim() > 3 else part.tensor)
    if isinstance(part, Padding) and part.lengths.dim():
        return Padding(_row_of(part.lengths, index), part.side)
    if isinstance(part, Placed) and part.start.dim():
        return Placed(_row_of(part.start, index))
    return part


def _split_bias(mask: Mask | None, bias: Tensor) -> tuple[Mask | None, Tensor | None]:
    """Split a bias that hides keys by very negative numbers, as other libraries do, into a mask and the rest."""
    allowed = bias > torch.finfo(bias.dtype).min / 2
    if bool(allowed.all()):
        return mask, bias
    rest = bias.masked_fill(~allowed, 0.0)
    return BoolMask(allowed) if mask is None else mask & BoolMask(allowed), rest if bool(rest.any()) else None


def _present_keys(row: Look, self_attention: bool) -> Tensor | None:
    """The positions of the keys that are not padding, from the first to the last visible one; None for all of them."""
    if row.mask is None or is_distance_mask(row.mask):
        return None
    n, N = record_shape(row)[-2:]
    mask = as_mask(row.mask)
    parts = _mask_parts(mask)
    if all(type(part) in (Causal, Window, Padding) for part in parts):  # known without the matrix
        flags = [part.matrix(1, N, leading=1, device=row.query.device) for part in parts if isinstance(part, Padding)]
        visible = torch.stack([flag.reshape(N) for flag in flags]).all(dim=0)
    else:
        matrix = mask.matrix(n, N, leading=1, device=row.query.device).reshape(-1, n, N).any(dim=0)
        visible = matrix.any(dim=0)
        if self_attention and n == N and not bool(matrix.diagonal().any()):
            # No token attends to itself: a token is present if it attends to another one or another one to it, and
            # a sequence of one token has neither.
            visible = visible | matrix.any(dim=1)
            visible[0] |= not bool(visible.any())
    positions = visible.nonzero().squeeze(-1)
    first, last = (int(positions[0]), int(positions[-1])) if len(positions) else (0, -1)
    return None if (first, last) == (0, N - 1) else torch.arange(first, last + 1, device=visible.device)


def _select_tokens(look: Look, queries: Tensor | None, keys: Tensor | None) -> Look:
    """A look with these consecutive queries and keys (None for all), and the part of mask and bias between them."""
    n, N = record_shape(look)[-2:]
    mask, bias = None if look.mask is None else as_mask(look.mask), look.bias
    if queries is None and keys is None and (mask is None or is_distance_mask(mask)):
        return look
    same_shift = (0 if queries is None else n - len(queries)) == (0 if keys is None else N - len(keys))
    if same_shift and (mask is None or (is_distance_mask(_without_lengths(mask)) and not mask.sets_positions)):
        mask = None if mask is None else _without_lengths(mask)  # distances stay the same
    else:
        if isinstance(bias, Bias):
            bias = look.problem.block_bias(look.problem.indices())
        if mask is not None:
            matrix = mask.matrix(n, N, leading=1, device=look.query.device)
            mask = recognize_mask(_select_entries(matrix, queries, keys))
    if isinstance(bias, Tensor):
        bias = _select_entries(bias, queries, keys)
    query, key = (tensor if positions is None else tensor[..., positions.to(tensor.device), :]
                  for tensor, positions in ((look.query, queries), (look.key, keys)))
    return replace(look, query=query, key=key, mask=mask, bias=bias)


def _select_entries(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    matrix = matrix[(None,) * max(0, 2 - matrix.dim())]
    if rows is not None and matrix.shape[-2] > 1:
        matrix = matrix[..., rows.to(matrix.device), :]
    return matrix if columns is None or matrix.shape[-1] == 1 else matrix[..., columns.to(matrix.device)]


def _packed_segment(look: Look, packed: Packed, index: int) -> Look:
    """One of several sequences that are packed into one row."""
    query_lengths, key_lengths = packed.on_host(*record_shape(look)[-2:])
    first_query, first_key = sum(query_lengths[:index]), sum(key_lengths[:index])
    mask = None if look.mask is None else _without_lengths(as_mask(look.mask))
    if mask is not None and not is_distance_mask(mask):
        raise checks.wrong("row", "0 for packed sequences with a mask that is a tensor", index)
    if isinstance(look.bias, Tensor):
        raise checks.wrong("row", "0 for packed sequences with a bias that is a tensor", index)
    row = _batch_row(replace(look, mask=None), 0)
    return replace(row, query=row.query[..., first_query:first_query + query_lengths[index], :],
                   key=row.key[..., first_key:first_key + key_lengths[index], :], mask=mask)


def _mask_parts(mask: "Mask | Tensor | None") -> "tuple[Mask | Tensor | None, ...]":
    return mask.members if isinstance(mask, AndMask) else (mask,)


def _packed_mask(look: Look) -> Packed | None:
    return next((part for part in _mask_parts(look.mask) if isinstance(part, Packed)), None)


def _without_lengths(mask: Mask) -> Mask | None:
    """The mask without the parts that say which tokens are present."""
    others = [part for part in _mask_parts(mask) if isinstance(part, Mask) and not isinstance(part, Padding | Packed)]
    return None if not others else others[0] if len(others) == 1 else AndMask.of(*others)


def _head_score(score: Score, head: int) -> Score | None:
    if isinstance(score, SoftcappedScore):
        inner = _head_score(score.score, head)
        return None if inner is None else SoftcappedScore(inner, score.cap)
    if isinstance(score, Dot):
        return score
    if isinstance(score, Additive):
        if score.weight.dim() == 1:
            return score
        return Additive(_head_part(score.weight, head), None if score.bias is None else _head_part(score.bias, head))
    if isinstance(score, Bilinear):
        return score if score.weight.dim() == 2 else Bilinear(_head_part(score.weight, head))
    return None


def _head_mask(mask: Mask, head: int) -> Mask | None:
    if isinstance(mask, Causal | Window):
        return mask
    if isinstance(mask, BoolMask):
        return BoolMask(mask.tensor if mask.tensor.dim() < 3 else _head_part(mask.tensor, head))
    return None


def _head_part(tensor: Tensor, head: int) -> Tensor:
    """The part (1, ...) of one head; a dimension of 1 stands for all heads."""
    return tensor[:1] if tensor.shape[0] == 1 else tensor[head:head + 1]
