"""One sequence of a batch: the look of a row, without padding.

    row(look, 1)    (B, H, n, N) -> (H, n, N) of the tokens that are there

Which tokens are there is told by the mask: a key that no query sees is padding, and where tokens look at each other,
the same is true of the queries. Packed sequences are rows too. It does not know what the tokens are.

Legend: B rows, H heads, n queries, N keys.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard import checks
from regard.attention.look import Look
from regard.attention.mask import All, Allowed, Causal, Mask, Padding, Placed, Window, as_mask
from regard.attention.packed import Packed
from regard.inspection.matrix import Matrix
from regard.inspection.matrix_masks import recognised
from regard.inspection.trace.parts import AnyLook, shape
from regard.position.bias import Bias


def count(look: AnyLook) -> int:
    """How many sequences there are."""
    packed = None if isinstance(look, Matrix) else _packed(look)
    sizes = shape(look)
    return len(packed.query_lengths) if packed is not None else 1 if len(sizes) < 4 else sizes[0]


def row(look: AnyLook, index: int, *, own: bool = False, rows: Tensor | None = None) -> AnyLook:
    """The look of one sequence, (heads, queries, keys).

    Args:
        own: whether tokens look at each other, so that queries and keys are the same tokens.
        rows: the queries that are there, where that is known from elsewhere.
    """
    sizes, index = shape(look), _checked(look, index)
    if isinstance(look, Matrix):
        given = look.given if len(sizes) > 2 else look.given.unsqueeze(0)
        return Matrix(given[index] if len(sizes) == 4 else given)
    packed = _packed(look)
    if packed is not None:
        return _segment(look, packed, index)
    one = _one(look, index)
    return _without_padding(one, own, rows)


def there(look: AnyLook, index: int) -> Tensor:
    """Which queries of a sequence whose tokens look at each other are there: their numbers."""
    index = _checked(look, index)
    one = None if isinstance(look, Matrix) or _packed(look) is not None else _one(look, index)
    keep = None if one is None or one.query.shape[-2] != one.key.shape[-2] else _present(one, True)
    return torch.arange(shape(look)[-2]) if keep is None else keep


def _checked(look: AnyLook, index: int) -> int:
    """The number of a sequence from 0 on; a ValueError where there is none of it."""
    many = count(look)
    if len(shape(look)) > 4:
        raise checks.wrong("look", "one of (batch, heads, queries, keys)", f"of shape {shape(look)}")
    if isinstance(index, bool) or not isinstance(index, int) or not -many <= index < many:
        expected = f"one of the {many} sequences, from 0" if many > 1 else "0, as there is one sequence"
        raise checks.wrong("row", expected, repr(index))
    return index % many


def first(look: AnyLook, queries: int | None, keys: int | None) -> AnyLook:
    """The look of one sequence with its first queries and keys alone, so many where that is fewer than there are."""
    n, N = shape(look)[-2:]
    rows, columns = (None if wanted is None or wanted >= size else torch.arange(wanted)
                     for wanted, size in ((queries, n), (keys, N)))
    if rows is None and columns is None:
        return look
    if isinstance(look, Matrix):
        return Matrix(_pick(look.given, rows, columns))
    return _picked(look, rows, columns)


def _one(look: Look, index: int) -> Look:
    """The row alone, padding and all: (H, n, N)."""
    mask = None if look.mask is None else as_mask(look.mask).each(lambda part: _of_row(part, index))
    bias = look.bias
    if isinstance(bias, Tensor) and bias.dim() > 3:
        bias = bias[index if len(bias) > 1 else 0]
    if isinstance(bias, Tensor):
        mask, bias = _split(mask, bias)
    query, key = (tensor[index if len(tensor) > 1 else 0] if tensor.dim() > 3 else
                  tensor if tensor.dim() > 2 else tensor.unsqueeze(0) for tensor in (look.query, look.key))
    return replace(look, query=query, key=key, value=None, mask=mask, bias=bias)


def _split(mask: Mask | None, bias: Tensor) -> tuple[Mask | None, Tensor | None]:
    """A bias that takes keys away, as other people's models write their masks, is a mask; what is left is a bias."""
    allowed = bias > torch.finfo(bias.dtype).min / 2
    if bool(allowed.all()):
        return mask, bias
    rest = bias.masked_fill(~allowed, 0.0)
    return Allowed(allowed) if mask is None else mask & Allowed(allowed), rest if bool(rest.any()) else None


def _of_row(part: Mask, index: int) -> Mask:
    if isinstance(part, Allowed):
        tensor = part.tensor
        return Allowed(tensor[index if len(tensor) > 1 else 0]) if tensor.dim() > 3 else Allowed(tensor)
    if isinstance(part, Padding) and part.lengths.dim():
        return Padding(part.lengths[index if len(part.lengths) > 1 else 0], part.side)
    if isinstance(part, Placed) and part.start.dim():
        return Placed(part.start[index if len(part.start) > 1 else 0])
    return part


def _present(one: Look, own: bool) -> Tensor | None:
    """The keys that are there: from the first to the last that some query sees. None where that is all of them."""
    if one.mask is None or _by_distance(one.mask):
        return None
    n, N = shape(one)[-2:]
    mask = as_mask(one.mask)
    parts = mask.members if isinstance(mask, All) else (mask,)
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
    keys = _present(one, own)
    n, N = shape(one)[-2:]
    queries = rows if rows is not None else keys if own and n == N else None
    return _picked(one, None if queries is not None and len(queries) == n else queries, keys)


def _picked(one: Look, queries: Tensor | None, keys: Tensor | None) -> Look:
    """These queries and keys, each a run of them (None for all), with what of mask and bias is between them."""
    n, N = shape(one)[-2:]
    mask, bias = None if one.mask is None else as_mask(one.mask), one.bias
    if queries is None and keys is None and (mask is None or _by_distance(mask)):
        return one
    cut = (0 if queries is None else n - len(queries), 0 if keys is None else N - len(keys))
    if cut[0] == cut[1] and (mask is None or (_by_distance(_without(mask)) and not mask.moves)):
        mask = None if mask is None else _without(mask)  # distances stay what they are
    else:
        if isinstance(bias, Bias):
            bias = one.problem.added(one.problem.block())
        if mask is not None:
            mask = recognised(_pick(mask.matrix(n, N, leading=1, device=one.query.device), queries, keys))
    if isinstance(bias, Tensor):
        bias = _pick(bias, queries, keys)
    query, key = (tensor if places is None else tensor[..., places.to(tensor.device), :]
                  for tensor, places in ((one.query, queries), (one.key, keys)))
    return replace(one, query=query, key=key, mask=mask, bias=bias)


def _pick(matrix: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    matrix = matrix[(None,) * max(0, 2 - matrix.dim())]
    if rows is not None and matrix.shape[-2] > 1:
        matrix = matrix[..., rows.to(matrix.device), :]
    return matrix if columns is None or matrix.shape[-1] == 1 else matrix[..., columns.to(matrix.device)]


def _segment(look: Look, packed: Packed, index: int) -> Look:
    """One of several sequences that are packed into one row."""
    queries, keys = packed.on_host(*shape(look)[-2:])
    first, at = sum(queries[:index]), sum(keys[:index])
    mask = None if look.mask is None else _without(as_mask(look.mask))
    if mask is not None and not _by_distance(mask):
        raise checks.wrong("row", "0 where packed sequences have a mask that is a tensor", index)
    if isinstance(look.bias, Tensor):
        raise checks.wrong("row", "0 where packed sequences have a bias that is a tensor", index)
    one = _one(replace(look, mask=None), 0)
    return replace(one, query=one.query[..., first:first + queries[index], :],
                   key=one.key[..., at:at + keys[index], :], mask=mask)


def _packed(look: Look) -> Packed | None:
    mask = look.mask if isinstance(look.mask, Mask) else None
    parts = mask.members if isinstance(mask, All) else (mask,)
    return next((part for part in parts if isinstance(part, Packed)), None)


def _without(mask: Mask) -> Mask | None:
    """The mask without what says which tokens are there."""
    parts = mask.members if isinstance(mask, All) else (mask,)
    others = [part for part in parts if not isinstance(part, Padding | Packed)]
    return None if not others else others[0] if len(others) == 1 else All.of(*others)


def _by_distance(mask: "Mask | Tensor | None") -> bool:
    parts = mask.members if isinstance(mask, All) else (mask,)
    return all(part is None or type(part) in (Causal, Window) for part in parts)
