"""`AttentionProblem`: the arguments of one attention, checked, in the form that backends read.

`build_problem` turns the arguments of a call into a problem, or raises a ValueError that names the wrong one. A problem
has all arguments and sizes; it does not compute, and does not know which backend will.

Legend: B batch, N tokens, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import BlockIndices, Mask, as_mask
from regard.attention.normalize import Normalizer, NormalizerLike, as_normalizer
from regard.attention.score import Score, ScoreLike, as_score
from regard.position.bias import Bias


@dataclass(frozen=True)
class AttentionProblem:
    """The arguments of one attention, checked. `leading` is the common shape of all leading dimensions, heads last."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: Score
    normalize: Normalizer
    mask: Mask | None
    bias: Tensor | Bias | None
    dropout: float
    leading: tuple[int, ...]

    @property
    def n_queries(self) -> int:
        return self.query.shape[-2]

    @property
    def n_keys(self) -> int:
        return self.key.shape[-2]

    @property
    def n_pairs(self) -> int:
        """The number of scores, over all leading dimensions."""
        count = self.n_queries * self.n_keys
        for size in self.leading:
            count *= size
        return count

    @property
    def heads(self) -> int:
        return self.leading[-1] if self.leading else 1

    @property
    def key_heads(self) -> int:
        """The heads of keys and values: the larger number, where one of the two has a single head for all."""
        return max(tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (self.key, self.value))

    def indices(self, rows: "slice | Tensor | None" = None, columns: slice | None = None) -> BlockIndices:
        """The indices of these queries and keys (default: all), with the positions that the mask gives them."""
        block = BlockIndices.of(self.n_queries, self.n_keys, leading=len(self.leading), device=self.query.device,
                                rows=rows, columns=columns)
        return block if self.mask is None else self.mask.aligned(block)  # type: ignore[return-value]

    def allowed(self, block: BlockIndices) -> Tensor | None:
        """Which pairs of the block may attend; None where all may."""
        return None if self.mask is None else self.mask.allowed(block)

    def block_bias(self, block: BlockIndices) -> Tensor | None:
        """The bias of the block; None where there is no bias."""
        if self.bias is None:
            return None
        if isinstance(self.bias, Tensor):
            return block.select(self.bias)
        return self.bias(block.column - block.position).to(self.query.dtype)

    def row_blocks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Blocks of `size` rows in order, each with a range of keys that holds all its rows may attend to.

        Without any rows there is one empty block.
        """
        for first in range(0, max(1, self.n_queries), size):
            last = min(first + size, self.n_queries)
            start, stop = 0, self.n_keys
            if self.mask is not None:
                start, stop = self.mask.span(first, last, self.n_queries, self.n_keys)
            yield slice(first, last), slice(start, stop)

    def repeat_key_heads(self) -> "AttentionProblem":
        """The same problem with every key and value head repeated for the query heads that share it."""
        return replace(self, key=_repeat_heads(self.key, self.heads), value=_repeat_heads(self.value, self.heads))

    def as_4d(self, tensor: Tensor, heads: int) -> Tensor:
        """(B, heads, N, D) of (..., N, D), broadcast: all leading dimensions before the heads become one."""
        batch = self.leading[:-1]
        tensor = tensor.expand(*batch, heads, *tensor.shape[-2:])
        return tensor.reshape(torch.Size(batch).numel(), *tensor.shape[len(batch):])


def build_problem(query: Tensor, key: Tensor, value: Tensor, *, score: ScoreLike, normalize: NormalizerLike,
                  mask: Mask | Tensor | None, bias: Tensor | Bias | None, dropout: float) -> AttentionProblem:
    """The problem that these arguments describe; a ValueError names the argument that does not fit."""
    _check_tensors(query, key, value)
    leading = _common_leading(query, key, value)
    scorer = as_score(score)
    scorer.check(query.shape[-1], key.shape[-1], leading[-1] if leading else None)
    if scorer.per_head and (query.dim() == 2 or query.shape[-3] == 1):  # only the values have heads
        query = query.expand(*query.shape[:-3], leading[-1], *query.shape[-2:])
    checks.probability("dropout", dropout)
    shape = (*leading, query.shape[-2], key.shape[-2])
    prepared = _check_mask(mask, shape, query.device)
    return AttentionProblem(query, key, value, scorer, as_normalizer(normalize), prepared,
                            _check_bias(bias, shape, query, prepared), dropout, leading)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise checks.wrong(argument, "a tensor", f"a {type(tensor).__name__}")
        if tensor.dim() < 2:
            raise checks.wrong(argument, "of shape (..., tokens, width)", f"of shape {checks.shape(tensor)}",
                               "Make a single vector one token: tensor.unsqueeze(-2).")
        if not tensor.is_floating_point():
            raise checks.wrong(argument, "a tensor of floating-point numbers", f"of dtype {tensor.dtype}")
        if tensor.dtype != query.dtype:
            raise checks.wrong(argument, f"of the query's dtype {query.dtype}", f"{tensor.dtype}")
        if tensor.device != query.device:
            raise checks.wrong(argument, f"on the query's device {query.device}", f"on {tensor.device}")
    for argument, tensor in (("query", query), ("key", key)):
        if tensor.shape[-1] == 0:
            raise checks.wrong(argument, "of a width of at least 1", f"of shape {checks.shape(tensor)}")
    if key.shape[-2] != value.shape[-2]:
        raise checks.wrong("value", f"of as many rows as the key, {key.shape[-2]}", f"of shape {checks.shape(value)}")


def _common_leading(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The common leading shape; a key or value head may serve several query heads."""
    heads = query.shape[-3] if query.dim() > 2 else 1
    for argument, tensor in (("key", key), ("value", value)):
        own = tensor.shape[-3] if tensor.dim() > 2 else 1
        if heads != 1 and (own == 0 or heads % own):
            expected = f"a tensor with as many heads as the query, {heads}, or a divisor of that"
            got = f"one of shape {checks.shape(tensor)}, with {checks.plural(own, 'head')}"
            raise checks.wrong(argument, expected, got, "Tensors are (..., heads, tokens, width).")
    key_heads, value_heads = (t.shape[-3] if t.dim() > 2 else 1 for t in (key, value))
    if 1 not in (key_heads, value_heads) and key_heads != value_heads:
        raise checks.wrong("value", f"a tensor with as many heads as the key, {key_heads}", f"one with {value_heads}")
    if max(query.dim(), key.dim(), value.dim()) == 2:
        return ()
    batch = query.shape[:-3]
    if not batch == key.shape[:-3] == value.shape[:-3]:  # torch.broadcast_shapes is slow for equal shapes
        try:
            batch = torch.broadcast_shapes(batch, key.shape[:-3], value.shape[:-3])
        except RuntimeError:
            shapes = ", ".join(checks.shape(t) for t in (query, key, value))
            raise ValueError("The leading dimensions of `query`, `key` and `value` must broadcast, but their shapes "
                             f"are {shapes}.") from None
    return (*batch, max(heads, key_heads, value_heads))


def _check_mask(mask: Mask | Tensor | None, shape: tuple[int, ...], device: torch.device) -> Mask | None:
    if mask is None:
        return None
    mask = as_mask(mask)
    if not mask.fits(shape[:-2]):
        raise checks.wrong("mask", f"broadcastable to {shape} (..., queries, keys)", repr(mask))
    return mask.prepare(shape[-2], shape[-1], device)


def _check_bias(bias: Tensor | Bias | None, shape: tuple[int, ...], query: Tensor,
                mask: Mask | None) -> Tensor | Bias | None:
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        if not bias.is_floating_point():
            remedy = "A bool tensor of pairs that may attend goes into `mask`." if bias.dtype == torch.bool else ""
            raise checks.wrong("bias", "a tensor of floating-point numbers", f"of dtype {bias.dtype}", remedy)
        bias = bias[(None,) * max(0, 2 - bias.dim())]
        try:
            fits = torch.broadcast_shapes(bias.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits:
            expected = f"broadcastable to {shape} (..., queries, keys)"
            raise checks.wrong("bias", expected, f"of shape {checks.shape(bias)}")
        return bias.to(query)
    if not isinstance(bias, Bias):
        raise checks.wrong("bias", "a tensor, or a Bias such as regard.ALiBi.for_heads(8)", *checks.kind(bias))
    if len(shape) == 2 or (mask is not None and mask.sets_positions and mask.leading == len(shape) - 2):
        got = f"a {type(bias).__name__} for {checks.plural(bias.heads, 'head')}"
        raise checks.wrong("bias", "a tensor where the query has no dimension of heads", got,
                           "Make the query (batch, heads, tokens, width).")
    if bias.heads != shape[-3]:
        raise checks.wrong("bias", f"for as many heads as the query has, {shape[-3]}", f"for {bias.heads}")
    return bias


def _repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    """The tensor with each of its heads repeated, so that query head h reads head h // (heads / own)."""
    own = tensor.shape[-3] if tensor.dim() > 2 else 1
    return tensor if own in (1, heads) else tensor.repeat_interleave(heads // own, dim=-3)
