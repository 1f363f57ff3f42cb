"""The hypotheses of a beam search that go on, side by side, and the batch of rows that they belong to.

A row has as many of them as there are beams, from the first: those that are not there yet have a total of −∞. It knows
neither models nor how continuations are chosen.

Legend: B rows, K live hypotheses of a row, J continuations, t tokens of the longest, N states of the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.decoding.candidates import Candidates
from regard.decoding.pool import Pool, rows_joined, widened


@dataclass(frozen=True)
class Live:
    """The hypotheses that go on, the most probable first; one whose total is −∞ only keeps its place."""

    totals: Tensor
    """(B, K): the sum of the log-probabilities."""
    ids: Tensor
    """(B, K, t): what stands behind the count of a row means nothing."""
    logs: Tensor
    """(B, K, t)"""
    tokens: Tensor
    """(B, K): the last token; anything before the first."""
    marks: Tensor
    """(B, K): what the automaton of the row's terms has come to."""
    seen: Tensor
    """(B, K, N): how much each state of the source was looked at; N is 0 where nobody asks."""

    @staticmethod
    def first(totals: Tensor, seen: Tensor) -> "Live":
        """Of which nothing is written: (B, K)."""
        nothing = totals.new_zeros(*totals.shape, 0)
        zeros = torch.zeros_like(totals, dtype=torch.long)
        return Live(totals, nothing.long(), nothing, zeros, zeros, seen)

    def extended(self, candidates: Candidates, counts: Tensor, width: int, marks: Tensor | None = None) -> "Live":
        """The hypotheses that candidates (B, J) make of rows with `counts` (B,) tokens, in storage for `width`."""
        index = candidates.parents.unsqueeze(-1)
        places = counts.view(-1, 1, 1).expand(-1, candidates.tokens.shape[1], 1)
        ids, logs = (widened(old, width).gather(1, index.expand(-1, -1, width)).scatter(-1, places, new.unsqueeze(-1))
                     for old, new in ((self.ids, candidates.tokens), (self.logs, candidates.logs.to(self.logs.dtype))))
        seen = self.seen.gather(1, index.expand(-1, -1, self.seen.shape[-1]))
        marks = self.marks.gather(1, candidates.parents) if marks is None else marks
        return Live(candidates.totals, ids, logs, candidates.tokens, marks, seen)

    def pick(self, index: Tensor | slice, width: int) -> "Live":
        """The hypotheses of these rows, none of which has more than `width` tokens."""
        totals, ids, logs, *others = (part[index] for part in self.parts())
        return Live(totals, ids[..., :width], logs[..., :width], *others)

    def joined(self, other: "Live") -> "Live":
        """Those of these rows, and of others behind them."""
        both = Live(*(rows_joined(pair) for pair in zip(self.parts(), other.parts(), strict=True)))
        # What is no state of a source counts as seen: nobody need look at it.
        return replace(both, seen=rows_joined((self.seen, other.seen), 1.0))

    @staticmethod
    def woven(several: "Sequence[Live]") -> "Live":
        """Of equally many rows, the first row of each, then the second of each, and so on."""
        same = zip(*(one.parts() for one in several), strict=True)
        return Live(*(torch.stack(parts, 1).flatten(0, 1) for parts in same))

    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, in their order."""
        return self.totals, self.ids, self.logs, self.tokens, self.marks, self.seen


@dataclass(frozen=True)
class Beams:
    """The batch: for each number its groups, each with its live hypotheses and its pool."""

    numbers: list[int]
    counts: list[int]
    """How many tokens the live hypotheses have."""
    live: Live
    """As many rows as there are groups of all numbers, one number after another."""
    pool: Pool

    @property
    def groups(self) -> int:
        """How many rows a number has."""
        return len(self.live.totals) // max(1, len(self.numbers))

    @property
    def tokens(self) -> Tensor:
        """The last token of every hypothesis."""
        return self.live.tokens.flatten()

    def pick(self, places: Sequence[int]) -> "Beams":
        """Those in these places."""
        numbers, counts = [self.numbers[place] for place in places], [self.counts[place] for place in places]
        rows = [place * self.groups + group for place in places for group in range(self.groups)]
        index = torch.tensor(rows, dtype=torch.long, device=self.live.totals.device)
        return Beams(numbers, counts, self.live.pick(index, max(counts, default=0)), self.pool.pick(index))

    def joined(self, other: "Beams") -> "Beams":
        """These, and others behind them."""
        return Beams(self.numbers + other.numbers, self.counts + other.counts, self.live.joined(other.live),
                     self.pool.joined(other.pool))
