"""Attention records, and parts of them: one sequence of a batch without padding, or one head.

A record is a `Look`, which has queries and keys and computes weights when they are asked for, or a `WeightMatrix` of
weights that are given; both answer the same questions.

    sequence_record(record, 1)    (B, H, n, N) -> (H, n, N), only the tokens that are not padding
    single_head(record, 3)        (H, n, N) -> (1, n, N)

Which tokens are padding follows from the mask: a key that no query may attend to is padding, and in self-attention so
is its query. Packed sequences count as rows. This file does not know models, nor what the tokens are.

Legend: ... leading dimensions, heads last; B rows, H heads, n queries (rows), N keys (columns), M blocks of a map.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import checks
from regard.attention.look import Look, Peaks, row_indices
from regard.attention.mask import AndMask, BoolMask, Causal, Mask, Packed, Padding, Placed, Window, as_mask
from regard.attention.score import Additive, Bilinear, Dot, Score, as_score
from regard.position.bias import Bias


@dataclass(frozen=True, eq=False)
class WeightMatrix:
    """Weights (..., heads, n, N). They need not sum to 1, and may be negative: nothing here changes them."""

    given: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.given, Tensor):
            raise checks.wrong("given", "a tensor", *checks.kind(self.given))
        if self.given.dim() < 2 or not self.given.is_floating_point():
            raise checks.wrong("given", "floating-point numbers of shape (..., rows, columns)",
                               f"{self.given.dtype} of shape {checks.shape(self.given)}")
        object.__setattr__(self, "given", self.given.detach())

    def __repr__(self) -> str:
        return f"Matrix({checks.shape(self.given)})"

    def weights(self) -> Tensor:
        """All of them, (..., n, N)."""
        return self.given

    def rows(self, indices: "int | list[int] | Tensor") -> Tensor:
        """The weights of these queries, (..., N) for one index and (..., indices, N) for several."""
        return self.given[..., row_indices(indices, self.given.shape[-2], self.given.device), :]

    def entropy(self) -> Tensor:
        """-Σ w log w of every row in nats, (..., n). A row with a negative weight has none: NaN."""
        negative = (self.given < 0).any(dim=-1)
        entropy = torch.special.entr(self._wide()).sum(-1)
        return entropy.masked_fill(negative, torch.nan).to(self.given.dtype)

    def row_max(self) -> Peaks:
        """The largest weight of every row and the first key that has it, (..., n); 0 and 0 where there is no key."""
        full = self.given if self.given.shape[-1] else torch.nn.functional.pad(self.given, (0, 1))
        return Peaks(*full.max(dim=-1))

    def column_sums(self) -> Tensor:
        """What every key receives from all queries, (..., N)."""
        return self._wide().sum(dim=-2).to(self.given.dtype)

    def top_k(self, count: int) -> Peaks:
        """The `count` largest weights of every row, largest first, (..., n, count)."""
        if not 0 < count <= self.given.shape[-1]:
            raise checks.wrong("count", f"from 1 to the number of keys, {self.given.shape[-1]}", count)
        values, positions = torch.sort(self.given, dim=-1, descending=True, stable=True)  # equal: the first key first
        return Peaks(values[..., :count], positions[..., :count])

    def block_map(self, size: int) -> Tensor:
        """The mean weight of every block of `size` queries and `size` keys, (..., M, M); those at the ends may be
        smaller."""
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
        """Sums of many numbers need more digits than the half-width types have."""
        return self.given.to(torch.promote_types(self.given.dtype, torch.float32))


# ---- matrix_masks: Masks that were written out, recognised again.
#
# A model writes the mask of a padded batch out as a matrix. Of one sequence of it, without padding, what is left is often
# no mask at all, or a causal one: kernels are fast for these, and a file needs no matrix. It knows masks and no looks.

ROWS_COMPARED = 1024
"""Rows that are compared at a time."""


def recognize_mask(matrix: Tensor) -> Mask | None:
    """The mask of a matrix (..., n, N) by its meaning: None where all may attend, `Causal()`, or as it is."""
    if bool(matrix.all()):
        return None
    n, N = matrix.shape[-2:]
    columns = torch.arange(N, device=matrix.device)
    for first in range(0, n, ROWS_COMPARED):
        rows = torch.arange(first, min(first + ROWS_COMPARED, n), device=matrix.device).unsqueeze(-1)
        if not bool((matrix[..., first:first + ROWS_COMPARED, :] == (columns <= rows + (N - n))).all()):
            return BoolMask(matrix)
    return Causal()


# ---- parts: The parts of a trace: sides, attentions, what was written, and the tree of a search.
#
# They are values without behaviour, in the words of docs/trace.md. What must fit between them is checked where they are
# put together (`trace`); how they are written down is not known here.

AttentionRecord = Look | WeightMatrix


# ---- rows: One sequence of a batch: the look of a row, without padding.
#
#     row(look, 1)    (B, H, n, N) -> (H, n, N) of the tokens that are there
#
# Which tokens are there is told by the mask: a key that no query sees is padding, and where tokens look at each other,
# the same is true of the queries. Packed sequences are rows too. It does not know what the tokens are.
#
# Legend: B rows, H heads, n queries, N keys.


def count_sequences(look: AttentionRecord) -> int:
    """How many sequences there are."""
    packed = None if isinstance(look, WeightMatrix) else _packed_mask(look)
    sizes = record_shape(look)
    return len(packed.query_lengths) if packed is not None else 1 if len(sizes) < 4 else sizes[0]


def sequence_record(look: AttentionRecord, index: int, *, own: bool = False, rows: Tensor | None = None) -> AttentionRecord:
    """The look of one sequence, (heads, queries, keys).

    Args:
        own: whether tokens look at each other, so that queries and keys are the same tokens.
        rows: the queries that are there, where that is known from elsewhere.
    """
    sizes, index = record_shape(look), _check_index(look, index)
    if isinstance(look, WeightMatrix):
        given = look.given if len(sizes) > 2 else look.given.unsqueeze(0)
        return WeightMatrix(given[index] if len(sizes) == 4 else given)
    packed = _packed_mask(look)
    if packed is not None:
        return _packed_segment(look, packed, index)
    one = _batch_row(look, index)
    return _without_padding(one, own, rows)


def present_queries(look: AttentionRecord, index: int) -> Tensor:
    """Which queries of a sequence whose tokens look at each other are there: their numbers."""
    index = _check_index(look, index)
    one = None if isinstance(look, WeightMatrix) or _packed_mask(look) is not None else _batch_row(look, index)
    keep = None if one is None or one.query.shape[-2] != one.key.shape[-2] else _present_keys(one, True)
    return torch.arange(record_shape(look)[-2]) if keep is None else keep


def _check_index(look: AttentionRecord, index: int) -> int:
    """The number of a sequence from 0 on; a ValueError where there is none of it."""
    many = count_sequences(look)
    if len(record_shape(look)) > 4:
        raise checks.wrong("look", "one of (batch, heads, queries, keys)", f"of shape {record_shape(look)}")
    if isinstance(index, bool) or not isinstance(index, int) or not -many <= index < many:
        expected = f"one of the {many} sequences, from 0" if many > 1 else "0, as there is one sequence"
        raise checks.wrong("row", expected, repr(index))
    return index % many


def truncate_record(look: AttentionRecord, queries: int | None, keys: int | None) -> AttentionRecord:
    """The look of one sequence with its first queries and keys alone, so many where that is fewer than there are."""
    n, N = record_shape(look)[-2:]
    rows, columns = (None if wanted is None or wanted >= size else torch.arange(wanted)
                     for wanted, size in ((queries, n), (keys, N)))
    if rows is None and columns is None:
        return look
    if isinstance(look, WeightMatrix):
        return WeightMatrix(_select_entries(look.given, rows, columns))
    return _select_tokens(look, rows, columns)


def _batch_row(look: Look, index: int) -> Look:
    """The row alone, padding and all: (H, n, N)."""
    mask = None if look.mask is None else as_mask(look.mask).each(lambda part: _mask_of_row(part, index))
    bias = look.bias
    if isinstance(bias, Tensor) and bias.dim() > 3:
        bias = bias[index if len(bias) > 1 else 0]
    if isinstance(bias, Tensor):
        mask, bias = _split_bias(mask, bias)
    query, key = (tensor[index if len(tensor) > 1 else 0] if tensor.dim() > 3 else
                  tensor if tensor.dim() > 2 else tensor.unsqueeze(0) for tensor in (look.query, look.key))
    return replace(look, query=query, key=key, value=None, mask=mask, bias=bias)


def _split_bias(mask: Mask | None, bias: Tensor) -> tuple[Mask | None, Tensor | None]:
    """A bias that takes keys away, as other people's models write their masks, is a mask; what is left is a bias."""
    allowed = bias > torch.finfo(bias.dtype).min / 2
    if bool(allowed.all()):
        return mask, bias
    rest = bias.masked_fill(~allowed, 0.0)
    return BoolMask(allowed) if mask is None else mask & BoolMask(allowed), rest if bool(rest.any()) else None


def _mask_of_row(part: Mask, index: int) -> Mask:
    if isinstance(part, BoolMask):
        tensor = part.tensor
        return BoolMask(tensor[index if len(tensor) > 1 else 0]) if tensor.dim() > 3 else BoolMask(tensor)
    if isinstance(part, Padding) and part.lengths.dim():
        return Padding(part.lengths[index if len(part.lengths) > 1 else 0], part.side)
    if isinstance(part, Placed) and part.start.dim():
        return Placed(part.start[index if len(part.start) > 1 else 0])
    return part


def _present_keys(one: Look, own: bool) -> Tensor | None:
    """The keys that are there: from the first to the last that some query sees. None where that is all of them."""
    if one.mask is None or _is_distance_mask(one.mask):
        return None
    n, N = record_shape(one)[-2:]
    mask = as_mask(one.mask)
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    if all(type(part) in (Causal, Window, Padding) for part in parts):  # known without the matrix
        flags = [part.matrix(1, N, leading=1, device=one.query.device) for part in parts if isinstance(part, Padding)]
        seen = torch.stack([flag.reshape(N) for flag in flags]).all(dim=0)
    else:
        matrix = mask.matrix(n, N, leading=1, device=one.query.device).reshape(-1, n, N).any(dim=0)
        seen = matrix.any(dim=0)
        if own and n == N and not bool(matrix.diagonal().any()):  # nobody sees itself: who sees something is there
            seen = seen | matrix.any(dim=1)
            seen[0] |= not bool(seen.any())  # one token alone sees nothing, and is seen by nobody
    places = seen.nonzero().squeeze(-1)
    first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
    return None if (first, last) == (0, N - 1) else torch.arange(first, last + 1, device=seen.device)


def _without_padding(one: Look, own: bool, rows: Tensor | None) -> Look:
    keys = _present_keys(one, own)
    n, N = record_shape(one)[-2:]
    queries = rows if rows is not None else keys if own and n == N else None
    return _select_tokens(one, None if queries is not None and len(queries) == n else queries, keys)


def _select_tokens(one: Look, queries: Tensor | None, keys: Tensor | None) -> Look:
    """These queries and keys, each a run of them (None for all), with what of mask and bias is between them."""
    n, N = record_shape(one)[-2:]
    mask, bias = None if one.mask is None else as_mask(one.mask), one.bias
    if queries is None and keys is None and (mask is None or _is_distance_mask(mask)):
        return one
    cut = (0 if queries is None else n - len(queries), 0 if keys is None else N - len(keys))
    if cut[0] == cut[1] and (mask is None or (_is_distance_mask(_without_lengths(mask)) and not mask.moves)):
        mask = None if mask is None else _without_lengths(mask)  # distances stay what they are
    else:
        if isinstance(bias, Bias):
            bias = one.problem.added(one.problem.block())
        if mask is not None:
            mask = recognize_mask(_select_entries(mask.matrix(n, N, leading=1, device=one.query.device), queries, keys))
    if isinstance(bias, Tensor):
        bias = _select_entries(bias, queries, keys)
    query, key = (tensor if places is None else tensor[..., places.to(tensor.device), :]
                  for tensor, places in ((one.query, queries), (one.key, keys)))
    return replace(one, query=query, key=key, mask=mask, bias=bias)


def _select_entries(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    matrix = matrix[(None,) * max(0, 2 - matrix.dim())]
    if rows is not None and matrix.shape[-2] > 1:
        matrix = matrix[..., rows.to(matrix.device), :]
    return matrix if columns is None or matrix.shape[-1] == 1 else matrix[..., columns.to(matrix.device)]


def _packed_segment(look: Look, packed: Packed, index: int) -> Look:
    """One of several sequences that are packed into one row."""
    queries, keys = packed.on_host(*record_shape(look)[-2:])
    first, at = sum(queries[:index]), sum(keys[:index])
    mask = None if look.mask is None else _without_lengths(as_mask(look.mask))
    if mask is not None and not _is_distance_mask(mask):
        raise checks.wrong("row", "0 where packed sequences have a mask that is a tensor", index)
    if isinstance(look.bias, Tensor):
        raise checks.wrong("row", "0 where packed sequences have a bias that is a tensor", index)
    one = _batch_row(replace(look, mask=None), 0)
    return replace(one, query=one.query[..., first:first + queries[index], :],
                   key=one.key[..., at:at + keys[index], :], mask=mask)


def _packed_mask(look: Look) -> Packed | None:
    mask = look.mask if isinstance(look.mask, Mask) else None
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    return next((part for part in parts if isinstance(part, Packed)), None)


def _without_lengths(mask: Mask) -> Mask | None:
    """The mask without what says which tokens are there."""
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    others = [part for part in parts if not isinstance(part, Padding | Packed)]
    return None if not others else others[0] if len(others) == 1 else AndMask.of(*others)


def _is_distance_mask(mask: "Mask | Tensor | None") -> bool:
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    return all(part is None or type(part) in (Causal, Window) for part in parts)


# ---- heads: One head of an attention, by itself.
#
# To show one head of many, the others need not be computed. Where what belongs to one head can be cut out, it is; where
# it cannot (a function of a user's, a bias by distance), all heads are computed and one is taken. The numbers are the
# same.
#
# It knows looks and matrices. It does not know pages, nor what is shown.

RowFunction = Callable[[list[int]], Tensor]
"""From row numbers to their weights, (rows, columns)."""


def head_rows(look: AttentionRecord, head: int) -> RowFunction:
    """What gives the rows of one head."""
    alone = single_head(look, head)
    if alone is None:
        return lambda indices: look.rows(indices)[head]
    return lambda indices: alone.rows(indices)[0]


def single_head(look: AttentionRecord, head: int) -> AttentionRecord | None:
    """The head as an attention of one head, (1, rows, columns); None where it cannot be cut out."""
    if isinstance(look, WeightMatrix):
        return WeightMatrix(look.given[head:head + 1])
    heads = record_shape(look)[0]
    score = _head_score(as_score(look.score), head)
    mask = None if look.mask is None else _head_mask(as_mask(look.mask), head)
    bias = _head_part(look.bias, head) if isinstance(look.bias, Tensor) else None
    if score is None or (mask is None) != (look.mask is None) or (bias is None) != (look.bias is None):
        return None
    own = head // (heads // look.key.shape[0])
    return replace(look, query=_head_part(look.query, head), key=look.key[own:own + 1], value=None, score=score, mask=mask,
                   bias=bias)


def _head_score(score: Score, head: int) -> Score | None:
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
    """Of (heads, ...) one; a dimension of 1 stands for all heads. Without heads there is nothing to cut."""
    return tensor[:1] if tensor.shape[0] == 1 else tensor[head:head + 1]


def record_shape(look: AttentionRecord) -> tuple[int, ...]:
    """(..., heads, queries, keys) of the weights, which are not computed for it."""
    if isinstance(look, WeightMatrix):
        return tuple(look.given.shape)
    return (*look.problem.leading, look.problem.n_queries, look.problem.n_keys)
