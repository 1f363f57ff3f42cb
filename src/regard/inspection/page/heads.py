"""One head of an attention, by itself.

To show one head of many, the others need not be computed. Where what belongs to one head can be cut out, it is; where
it cannot (a function of a user's, a bias by distance), all heads are computed and one is taken. The numbers are the
same.

It knows looks and matrices. It does not know pages, nor what is shown.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from regard.attention.mask import Allowed, Causal, Mask, Window, as_mask
from regard.attention.score import Additive, Bilinear, Dot, Score, as_score
from regard.inspection.matrix import Matrix
from regard.inspection.trace.parts import AnyLook, shape

Rows = Callable[[list[int]], Tensor]
"""From row numbers to their weights, (rows, columns)."""


def rows_of(look: AnyLook, head: int) -> Rows:
    """What gives the rows of one head."""
    alone = single(look, head)
    if alone is None:
        return lambda indices: look.rows(indices)[head]
    return lambda indices: alone.rows(indices)[0]


def single(look: AnyLook, head: int) -> AnyLook | None:
    """The head as an attention of one head, (1, rows, columns); None where it cannot be cut out."""
    if isinstance(look, Matrix):
        return Matrix(look.given[head:head + 1])
    heads = shape(look)[0]
    score = _score(as_score(look.score), head)
    mask = None if look.mask is None else _mask(as_mask(look.mask), head)
    bias = _part(look.bias, head) if isinstance(look.bias, Tensor) else None
    if score is None or (mask is None) != (look.mask is None) or (bias is None) != (look.bias is None):
        return None
    own = head // (heads // look.key.shape[0])
    return replace(look, query=_part(look.query, head), key=look.key[own:own + 1], value=None, score=score, mask=mask,
                   bias=bias)


def _score(score: Score, head: int) -> Score | None:
    if isinstance(score, Dot):
        return score
    if isinstance(score, Additive):
        if score.weight.dim() == 1:
            return score
        return Additive(_part(score.weight, head), None if score.bias is None else _part(score.bias, head))
    if isinstance(score, Bilinear):
        return score if score.weight.dim() == 2 else Bilinear(_part(score.weight, head))
    return None


def _mask(mask: Mask, head: int) -> Mask | None:
    if isinstance(mask, Causal | Window):
        return mask
    if isinstance(mask, Allowed):
        return Allowed(mask.tensor if mask.tensor.dim() < 3 else _part(mask.tensor, head))
    return None


def _part(tensor: Tensor, head: int) -> Tensor:
    """Of (heads, ...) one; a dimension of 1 stands for all heads. Without heads there is nothing to cut."""
    return tensor[:1] if tensor.shape[0] == 1 else tensor[head:head + 1]
