"""Batches of few shapes, for devices that replay what they have recorded once for each shape.

    plan = plan_batches(store, limits, seed=1, most=MOST)      of padded rows
    plan = plan_packed(store, limits, seed=1)                  of packed ones
    fitted(batch, plan.shapes, padding)          the batch, filled up to the smallest of them that contains it
    Fitted(make, plan.shapes, padding)           makes batches as `make` does, and fits each

What is added is padding: more places in a row, and rows without tokens (of length 0), whose labels are IGNORED. Behind
packed sequences come others of padding, none longer than the longest, and then some of length 0; a batch without any
sequence gets padding of even lengths. It adds nothing to a loss and changes no gradient. A batch that fits into none of
the shapes, because its texts were cut into other subwords than the plan counted, gets rows and lengths that are
multiples of STEP (of packed tokens: STEP_PACKED): shapes that were not foreseen, but not many either.

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
from regard.models.contract import IGNORED, AnyTokens, PackedTokens, Tokens

MOST = 24
"""Shapes that are few. Fewer would need more padding, more would need more recordings."""
STEP, STEP_PACKED = 8, 256


def fitted(batch: Batch, shapes: Sequence[Shape], padding: int = 0) -> Batch:
    """The batch filled up to the smallest of the shapes that contains it."""
    if isinstance(batch.inputs, PackedTokens):
        return _fitted_packed(batch, shapes, padding)
    source, inputs = None if batch.source is None else _rows(batch.source), _rows(batch.inputs)
    sides = [inputs] if source is None else [source, inputs]
    own = Shape(inputs.rows, tuple(side.ids.shape[1] for side in sides))
    shape = _smallest(own, shapes)
    filled = [_filled_tokens(side, shape.rows, length, padding)
              for side, length in zip(sides, shape.lengths, strict=True)]
    labels = _filled(batch.labels, shape.rows, shape.lengths[-1], IGNORED)
    return Batch(None if source is None else filled[0], filled[-1], labels, batch.numbers, batch.tokens)


def _fitted_packed(batch: Batch, shapes: Sequence[Shape], padding: int) -> Batch:
    """Of packed rows, whose shape is how many sequences there are, and the tokens of each side."""
    sides = [side for side in (batch.source, batch.inputs) if isinstance(side, PackedTokens)]
    own = Shape(batch.rows, tuple(side.ids.shape[1] for side in sides))
    for shape in sorted(shapes, key=lambda shape: sum(shape.lengths)):
        pieces = [_pieces(side.lengths, length, shape.rows) for side, length in zip(sides, shape.lengths, strict=True)]
        if None not in pieces:
            break
    else:
        lengths = tuple(-(-length // STEP_PACKED) * STEP_PACKED for length in own.lengths)
        shape = Shape(-(-(own.rows + STEP_PACKED) // STEP_PACKED) * STEP_PACKED, lengths)  # each may fill up alone
        pieces = [_pieces(side.lengths, length, shape.rows) for side, length in zip(sides, lengths, strict=True)]
    filled = [PackedTokens(_filled(side.ids, 1, length, padding), all_lengths, None if side.segments is None else
                           _filled(side.segments, 1, length, 0))
              for side, length, all_lengths in zip(sides, shape.lengths, pieces, strict=True)
              if all_lengths is not None]
    labels = _filled(batch.labels, 1, shape.lengths[-1], IGNORED)
    return Batch(filled[0] if len(sides) == 2 else None, filled[-1], labels, batch.numbers, batch.tokens)


def _pieces(lengths: Tensor, total: int, rows: int) -> Tensor | None:
    """The lengths of `rows` sequences: these, some that fill up to the total, and empty ones; None without room."""
    left = total - int(lengths.sum())
    if left < 0 or len(lengths) > rows:
        return None
    # Without any sequence nothing tells how long one may be: even ones are no longer than those that fill a batch up.
    longest = max(1, int(lengths.max()) if len(lengths) else -(-left // max(1, rows)))
    full, rest = divmod(left, longest)
    behind = [longest] * full + [rest] * (rest > 0)
    if len(lengths) + len(behind) > rows:
        return None
    return torch.cat([lengths, lengths.new_tensor(behind + [0] * (rows - len(lengths) - len(behind)))])


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
        raise checks.wrong("batch", "of rows that are filled up on the right, or packed", "filled up on the left")
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
