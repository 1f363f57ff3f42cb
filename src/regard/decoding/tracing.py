"""What a beam search has written, read from steps back that have come to the CPU.

    texts(steps, pool, old)      of each row what its pool holds, the best first

A ledger keeps at each place of a text a token and the hypothesis that it continued (`regard.decoding.kernels.turn`). On
the device a kernel follows them, for batches that go on; here they are followed for texts that are done, while the
device does something else; by numpy, for what torch's threads cost when they are woken. It knows neither models nor
searches.

Legend: B rows, K hypotheses of each, P places of a pool, T places of tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.kernels.turn import Ended, Steps
from regard.decoding.pool import hypothesis

Old = Callable[[int, int, int], tuple[list[int], list[float]]]
"""Of a row, the tokens and log-probabilities of a place of the pool that came in with it, so many."""


class Place(NamedTuple):
    """One place of a pool, in the order of `Ended`."""

    score: float
    cut: int
    length: int
    beam: int
    token: int
    log: float

    @property
    def behind(self) -> int:
        """How many tokens are found by steps back: not the end, and nothing of what came in."""
        return 0 if self.beam < 0 else self.length - (self.cut == 0)


def texts(steps: Steps, pool: Ended, old: Old) -> list[list[Hypothesis]]:
    """What the pool (B, P) of each row holds, by the steps (B, K, T) of its hypotheses."""
    rows = [[Place(*one) for one in zip(*row, strict=True)]
            for row in zip(*(part.tolist() for part in pool), strict=True)]
    taken = [(row, one) for row, several in enumerate(rows) for one in several if one.score > -torch.inf]
    written, found = _written(steps, taken), [list[Hypothesis]() for _ in rows]
    for (row, one), (ids, logs) in zip(taken, written, strict=True):
        if one.beam < 0:
            ids, logs = old(row, -1 - one.beam, one.length)
        elif not one.cut:
            ids, logs = [*ids, one.token], [*logs, one.log]
        found[row].append(hypothesis(one.score, bool(one.cut), one.length, ids, logs))
    return found


def _written(steps: Steps, taken: list[tuple[int, Place]]) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of places in rows, the end not with them."""
    rows, beams, lengths = (np.array(some, np.int64) for some in (
        [row for row, _ in taken], [one.beam for _, one in taken], [one.behind for _, one in taken]))
    longest = int(lengths.max(initial=0))
    tokens, logs, parents = (part[:, :, :longest].numpy() for part in steps)
    ids = np.zeros((len(taken), longest), tokens.dtype)
    values = np.zeros_like(ids, logs.dtype)
    for place in range(longest - 1, -1, -1):
        there = np.flatnonzero(lengths > place)
        at = rows[there], beams[there], place
        ids[there, place], values[there, place], beams[there] = tokens[at], logs[at], parents[at]
    return [(line[:length], log[:length])
            for line, log, length in zip(ids.tolist(), values.tolist(), lengths.tolist(), strict=True)]
