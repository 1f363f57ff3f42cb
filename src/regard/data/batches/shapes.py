"""Batches of few shapes, for devices that replay what they have recorded once for each shape.

    plan = plan_batches(store, limits, seed=1, most=MOST)
    fitted(batch, plan.shapes, padding)          the batch, filled up to the smallest of them that contains it
    Fitted(make, plan.shapes, padding)           makes batches as `make` does, and fits each

What is added is padding: more places in a row, and rows without tokens (of length 0), whose labels are IGNORED. It adds
nothing to a loss and changes no gradient. A batch that fits into none of the shapes, because its texts were cut into
other subwords than the plan counted, gets rows and lengths that are multiples of STEP: shapes that were not foreseen,
but not many either.

It does not know devices, nor what is recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.data.batches.batch import Batch
from regard.data.batches.buckets import Numbers
from regard.data.batches.plan import Shape
from regard.models.contract import IGNORED, AnyTokens, Tokens

MOST = 24
"""Shapes that are few. Fewer would need more padding, more would need more recordings."""
STEP = 8


def fitted(batch: Batch, shapes: Sequence[Shape], padding: int = 0) -> Batch:
    """The batch filled up to the smallest of the shapes that contains it."""
    source, inputs = None if batch.source is None else _rows(batch.source), _rows(batch.inputs)
    sides = [inputs] if source is None else [source, inputs]
    own = Shape(inputs.rows, tuple(side.ids.shape[1] for side in sides))
    shape = _smallest(own, shapes)
    filled = [_filled_tokens(side, shape.rows, length, padding)
              for side, length in zip(sides, shape.lengths, strict=True)]
    labels = _filled(batch.labels, shape.rows, shape.lengths[-1], IGNORED)
    return Batch(None if source is None else filled[0], filled[-1], labels, batch.numbers, batch.tokens)


@dataclass(frozen=True)
class Fitted:
    """Makes batches as another maker does, in these shapes."""

    maker: Callable[[Numbers, int], Batch]
    shapes: tuple[Shape, ...]
    padding: int = 0

    def __call__(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, rows without tokens."""
        return fitted(self.maker(numbers, epoch), self.shapes, self.padding)


def _smallest(own: Shape, shapes: Sequence[Shape]) -> Shape:
    """The smallest shape that contains this one: of those given, or one of multiples of STEP."""
    containing = [shape for shape in shapes
                  if shape.rows >= own.rows and all(map(int.__ge__, shape.lengths, own.lengths))]
    rounded = Shape(_up(own.rows), tuple(map(_up, own.lengths)))
    return min(containing, key=lambda shape: shape.tokens, default=rounded)


def _up(number: int) -> int:
    return -(-number // STEP) * STEP


def _rows(tokens: AnyTokens) -> Tokens:
    if not isinstance(tokens, Tokens) or tokens.side != "right":
        got = "filled up on the left" if isinstance(tokens, Tokens) else "packed"
        raise checks.wrong("batch", "of rows that are filled up on the right", got)
    return tokens


def _filled_tokens(tokens: Tokens, rows: int, length: int, padding: int) -> Tokens:
    lengths = tokens.lengths
    if lengths is None:
        lengths = tokens.ids.new_full((tokens.rows,), tokens.ids.shape[1])
    segments = None if tokens.segments is None else _filled(tokens.segments, rows, length, 0)
    more = lengths.new_zeros(rows - len(lengths))
    return Tokens(_filled(tokens.ids, rows, length, padding), torch.cat([lengths, more]), segments=segments)


def _filled(ids: Tensor, rows: int, length: int, padding: int) -> Tensor:
    filled = ids.new_full((rows, length), padding)
    filled[:ids.shape[0], :ids.shape[1]] = ids
    return filled
