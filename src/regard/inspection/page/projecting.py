"""Queries and keys from which a page computes weights itself, at any length, to the digits there is room for.

    weight of row i for key j = exp(scale · query_i · key_j − normalizer_i)

That is so where the score is a product and the normaliser a softmax. The normalizer of a row is the logarithm of what
its exponentials add up to; it is computed here, because it needs all keys, and so are the means of blocks for an
overview, in the same pass. How far the rounding has moved the weights is measured, and told.

It knows attentions. It does not know documents, nor how a page computes.

Legend: H heads, h heads of keys, n rows, N columns, D width, S size of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.look import Look
from regard.attention.mask import Causal, Mask, Window, as_mask
from regard.attention.normalize import Softmax
from regard.inspection.trace.parts import Attention

HELD = 1 << 22
"""Scores that are computed at once."""
SAMPLED = 64
"""Rows in which rounded weights are compared with those that were used."""


def forms(attention: Attention) -> Iterator["Projected"]:
    """The queries and keys of an attention, each form more exact than the one before, and larger; none where its
    weights are no softmax of products, or where half precision has no such numbers.

    The second has what rounding has left over, q = q' + q", beside what was rounded, in three times the width:
    [q', q', q"] · [k', k", k'] = q·k but for q"·k", which is smaller than single precision tells.
    """
    look = attention.look
    if not isinstance(look, Look) or look.bias is not None:
        return
    problem, mask = look.problem, None if look.mask is None else as_mask(look.mask)
    found = problem.score.as_dot(problem.query)
    if found is None or type(problem.normalize) is not Softmax or type(mask) not in (Causal, Window, type(None)):
        return
    query, key = (part.float().cpu() for part in (found[0].expand(*problem.leading, -1, -1), problem.key))
    (q, q_left), (k, k_left) = _halves(query), _halves(key)
    if bool(q.isfinite().all()) and bool(k.isfinite().all()):
        yield Projected(q, k, found[1], mask)
        yield Projected(torch.cat([q, q, q_left], -1), torch.cat([k, k_left, k], -1), found[1], mask)


def _halves(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers in half precision, and what is left over."""
    rounded = numbers.half()
    return rounded, (numbers - rounded.float()).half()


@dataclass(frozen=True)
class Projected:
    """What weights are made from."""

    query: Tensor
    """(H, n, D), float16."""
    key: Tensor
    """(h, N, D), float16."""
    scale: float
    mask: Mask | None

    @property
    def nbytes(self) -> int:
        """Of all that a page needs, but for an overview."""
        return self.query.nbytes + self.key.nbytes + 4 * self.query.shape[0] * self.query.shape[1]

    @torch.no_grad()
    def summed(self, size: int) -> tuple[Tensor, Tensor]:
        """The normalizers (H, n), −∞ for a row that sees nothing, and the means of blocks, float32."""
        H, n, _ = self.query.shape
        N = self.key.shape[1]
        normalizers = torch.empty(H, n)
        sums = torch.zeros(H, -(-n // size), -(-N // size))
        step = size * max(1, HELD // max(1, N * size))
        for head in range(H):
            query, key = self._head(head)
            for first in range(0, n, step):
                rows = slice(first, min(n, first + step))
                start, stop = (0, N) if self.mask is None else self.mask.span(rows.start, rows.stop, n, N)
                start, stop = start // size * size, min(N, -(-stop // size) * size)
                if start >= stop:  # with fewer keys than queries, the first ones see nothing
                    normalizers[head, rows] = -torch.inf
                    continue
                scores = self._scores(query, key, rows, slice(start, stop))
                normalizers[head, rows] = scores.logsumexp(-1)
                whole = torch.nn.functional.pad(_weights(scores, normalizers[head, rows]),
                                                (0, -scores.shape[1] % size, 0, -scores.shape[0] % size))
                blocks = whole.view(-1, size, whole.shape[1] // size, size).sum(dim=(1, 3))
                sums[head, first // size:first // size + len(blocks), start // size:-(-stop // size)] = blocks
        heights, widths = ((count - torch.arange(0, count, size)).clamp(max=size) for count in (n, N))
        return normalizers, sums / (heights.unsqueeze(-1) * widths)

    @torch.no_grad()
    def error(self, attention: Attention, normalizers: Tensor) -> float:
        """The largest difference to the weights that were used, in rows from everywhere."""
        n, N = attention.rows, attention.columns
        indices = sorted({n * part // SAMPLED for part in range(SAMPLED)} | {n - 1})
        used, largest = attention.look.rows(indices).float().cpu(), 0.0
        for head in range(attention.heads):
            query, key = self._head(head)
            for place, row in enumerate(indices):
                scores = self._scores(query, key, slice(row, row + 1), slice(0, N))
                mine = _weights(scores, normalizers[head, row:row + 1])
                largest = max(largest, float((mine[0] - used[head, place]).abs().max()))
        return largest

    def _head(self, head: int) -> tuple[Tensor, Tensor]:
        """Queries, scaled, and keys of one head, in single precision."""
        own = head // (len(self.query) // len(self.key))
        return self.query[head].float() * self.scale, self.key[own].float()

    def _scores(self, query: Tensor, key: Tensor, rows: slice, columns: slice) -> Tensor:
        scores = query[rows] @ key[columns].T
        if self.mask is None:
            return scores
        distance = torch.arange(columns.start, columns.stop) - (
            torch.arange(rows.start, rows.stop).unsqueeze(-1) + len(key) - len(query))
        left, right = (None, 0) if isinstance(self.mask, Causal) else (self.mask.left, self.mask.right)  # type: ignore[attr-defined]
        hidden = torch.zeros_like(distance, dtype=torch.bool) if left is None else distance < -left
        return scores.masked_fill_(hidden if right is None else hidden | (distance > right), -torch.inf)


def _weights(scores: Tensor, normalizers: Tensor) -> Tensor:
    """Softmax of scores, in place; 0 in a row that sees nothing."""
    return scores.sub_(normalizers.masked_fill(normalizers == -torch.inf, 0.0).unsqueeze(-1)).exp_()
