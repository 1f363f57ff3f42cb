"""The four shapes of a recurrent network, each a few lines on a `Recurrence`.

    one to one       a label for one vector         (no recurrence to speak of)
    one to many      a caption for an image
    many to one      a class for a sentence
    many to many     a tag for every word; with `many_to_one` then `one_to_many`, a sentence for a sentence

They know no vocabulary and no loss. Legend: B rows, N tokens, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Padding
from regard.mixer import RowState
from regard.recurrence.scan import DIRECTIONS, Recurrence


def one_to_one(recurrence: Recurrence, x: Tensor) -> Tensor:
    """(B, input width) -> (B, width).

        y
        ↑
        h
        ↑
        x
    """
    return recurrence(x.unsqueeze(1)).squeeze(1)


def one_to_many(recurrence: Recurrence, x: Tensor, steps: int, *, feed: Callable[[Tensor], Tensor] | None = None,
                state: RowState | None = None) -> Tensor:
    """(B, input width) -> (B, steps, width). The input is read once; after it zeros, or what `feed` makes of y.

        y1   y2   y3            y1   y2   y3
        ↑    ↑    ↑             ↑  ↘ ↑  ↘ ↑
        h1 → h2 → h3            h1 → h2 → h3
        ↑                       ↑
        x                       x                 feed: y (B, width) -> the next input (B, input width)
    """
    if steps < 1:
        raise checks.wrong("steps", "at least 1", steps)
    state = recurrence.start(len(x)) if state is None else state
    if feed is None:
        rest = x.new_zeros(len(x), steps - 1, x.shape[-1])
        return recurrence.step(torch.cat([x.unsqueeze(1), rest], 1), state)[0]
    outputs = []
    for _ in range(steps):
        y, state = recurrence.step(x.unsqueeze(1), state)
        outputs.append(y)
        x = feed(y.squeeze(1))
    return torch.cat(outputs, 1)


def many_to_one(recurrence: Recurrence, x: Tensor, present: Padding | None = None) -> Tensor:
    """(B, N, input width) -> (B, width): the last layer's hidden vector after the last token that is there.

                  y
                  ↑
        h1 → h2 → h3            with direction="both": [h3 of the forward one; h1 of the backward one]
        ↑    ↑    ↑             a row without tokens: the state before the first, zeros
        x1   x2   x3
    """
    _, state = recurrence.run(x, present)
    memories = recurrence.scans[-1].memories
    last_layer = state.tensors[-len(DIRECTIONS[recurrence.direction]) * memories:]
    return torch.cat(last_layer[::memories], -1)


def many_to_many(recurrence: Recurrence, x: Tensor, present: Padding | None = None) -> Tensor:
    """(B, N, input width) -> (B, N, width).

        y1   y2   y3
        ↑    ↑    ↑
        h1 → h2 → h3
        ↑    ↑    ↑
        x1   x2   x3
    """
    return recurrence(x, present)
