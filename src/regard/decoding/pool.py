"""The pool of a beam search: the best hypotheses of each row that need no further step.

What has ended goes before what was cut, whatever their scores; among either the higher score, and among equal scores
the one that came first. It stays on the device of the model. It knows neither models nor how scores are made.

Legend: B rows, P places of a row, J hypotheses offered to a row, t tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.decoding.hypothesis import Hypothesis


@dataclass(frozen=True)
class Pool:
    """P places for each row, the best first. A place whose score is −∞ is free."""

    scores: Tensor
    """(B, P)"""
    cut: Tensor
    """(B, P): whether no end token came; True where the place is free."""
    lengths: Tensor
    """(B, P): how many tokens there are, the end token with them."""
    ids: Tensor
    """(B, P, t), filled up behind the length."""
    logs: Tensor
    """(B, P, t)"""

    @staticmethod
    def empty(rows: int, places: int, totals: Tensor) -> "Pool":
        """All places free; scores will have the dtype of the totals."""
        scores = totals.new_full((rows, places), -torch.inf)
        ids = torch.zeros(rows, places, 0, dtype=torch.long, device=totals.device)
        return Pool(scores, torch.ones_like(scores, dtype=torch.bool), ids.new_zeros(rows, places), ids,
                    totals.new_zeros(rows, places, 0))

    @property
    def bar(self) -> Tensor:
        """(B,): the score that a hypothesis must exceed to come in; −∞ while not all places hold one that has ended."""
        return self.scores[:, -1].masked_fill(self.cut[:, -1], -torch.inf)

    def end(self, ids: Tensor, logs: Tensor, lengths: Tensor, scores: Tensor) -> "Pool":
        """Offer hypotheses (B, J, t) that have ended, `lengths` (B,) long, with scores (B, J); −∞ is not taken."""
        return self._offer(ids, logs, lengths, scores, scores == -torch.inf)

    def fill(self, ids: Tensor, logs: Tensor, lengths: Tensor, scores: Tensor) -> "Pool":
        """Offer hypotheses that were cut: they come in where places are free."""
        return self._offer(ids, logs, lengths, scores, torch.ones_like(scores, dtype=torch.bool))

    def pick(self, index: Tensor | slice) -> "Pool":
        """The pool of these rows."""
        return Pool(*(part[index] for part in self.parts()))

    def joined(self, other: "Pool") -> "Pool":
        """The pool of these rows, and of others behind them."""
        return Pool(*(rows_joined(pair) for pair in zip(self.parts(), other.parts(), strict=True)))

    @staticmethod
    def woven(pools: "Sequence[Pool]") -> "Pool":
        """Of pools of equally many rows, the first row of each, then the second of each, and so on."""
        longest = max(pool.ids.shape[-1] for pool in pools)
        filled = [replace(pool, ids=widened(pool.ids, longest), logs=widened(pool.logs, longest)) for pool in pools]
        return Pool(*(torch.stack(parts, 1).flatten(0, 1)
                      for parts in zip(*(pool.parts() for pool in filled), strict=True)))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What is in the places of each row."""
        parts = (part.tolist() for part in self.parts())
        return [[hypothesis(*place) for place in zip(*row, strict=True) if place[0] > -torch.inf]
                for row in zip(*parts, strict=True)]

    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, in their order."""
        return self.scores, self.cut, self.lengths, self.ids, self.logs

    def _offer(self, ids: Tensor, logs: Tensor, lengths_B: Tensor, scores: Tensor, cut: Tensor) -> "Pool":
        lengths = torch.cat([self.lengths, lengths_B.unsqueeze(-1).expand_as(cut)], dim=-1)
        scores, places = torch.cat([self.scores, scores], dim=-1), self.scores.shape[-1]
        cut = torch.cat([self.cut, cut], dim=-1)
        by_score = scores.sort(dim=-1, descending=True, stable=True).indices
        order = by_score.gather(-1, cut.gather(-1, by_score).long().sort(dim=-1, stable=True).indices)[:, :places]
        tokens = order.unsqueeze(-1).expand(-1, -1, max(self.ids.shape[-1], ids.shape[-1]))
        ids, logs = _joined(self.ids, ids).gather(1, tokens), _joined(self.logs, logs).gather(1, tokens)
        return Pool(scores.gather(-1, order), cut.gather(-1, order), lengths.gather(-1, order), ids, logs)


def widened(part: Tensor, width: int, value: float = 0) -> Tensor:
    """(..., t) filled up to (..., width)."""
    return pad(part, (0, width - part.shape[-1]), value=value)


def rows_joined(parts: Sequence[Tensor], value: float = 0) -> Tensor:
    """(B, ..., t) and (C, ..., t) -> (B + C, ..., t), the shorter ones filled up."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([widened(part, longest, value) for part in parts])


def _joined(mine: Tensor, theirs: Tensor) -> Tensor:
    """(B, P, t) and (B, J, t) -> (B, P + J, t), the shorter ones filled up."""
    longest = max(mine.shape[-1], theirs.shape[-1])
    return torch.cat([widened(part, longest) for part in (mine, theirs)], dim=1)


def hypothesis(score: float, cut: bool, length: int, ids: list[int], logs: list[float]) -> Hypothesis:
    """What a place holds, of whose tokens the first `length` count, with the end."""
    ids, logs = ids[:length], logs[:length]
    return Hypothesis(ids, logs, score, None) if cut else Hypothesis(ids[:-1], logs, score, ids[-1])
