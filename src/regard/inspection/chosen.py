"""The one map of a trace that shows most, for where there is room for one: a terminal, a picture.

It is where the trace says that words are found; else, of the attentions from one side to another, the one that points
at words most clearly; else the last. Rows and columns are words where both sides have them and differ, and tokens
otherwise. A word looks as its tokens do on average, and is looked at as much as all its tokens together.

It knows traces. It does not draw.

Legend: m, M words of the rows and columns; n, N tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.tokenizer.words import Word
from regard.inspection.trace.parts import Attention, Side
from regard.inspection.trace.trace import Trace

LARGE = 1 << 22
"""Weights beyond which nothing is computed only to choose."""


@dataclass(frozen=True)
class Chosen:
    """A map with names for its rows and columns."""

    attention: Attention
    head: int | None
    """None for the mean of all."""
    offset: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    words: tuple[Sequence[Word], Sequence[Word]] | None
    """Those of the rows and those of the columns; None for tokens."""

    @property
    def name(self) -> str:
        """Which it is, for people."""
        which = "mean of the heads" if self.head is None else f"head {self.head}"
        return self.attention.name if self.attention.heads == 1 else f"{self.attention.name}, {which}"

    @torch.no_grad()
    def weights(self, most: int | None = None) -> Tensor:
        """The weights between rows and columns, or between the first `most` of them: (m, M) or (n, N)."""
        count = self.attention.rows
        wanted = [min(max(row, 0), count - 1) for row in self._rows(most)]
        found = self.attention.look.rows(wanted).float().cpu()
        chosen = found.mean(dim=0) if self.head is None else found[self.head]
        if self.words is None:
            return chosen[:, :most]
        rows, columns = self.words
        return word_weights(chosen, columns[:most], rows[:most])

    def _rows(self, most: int | None) -> list[int]:
        """The rows of the matrix that are needed, in order."""
        if self.words is None:
            return list(range(self.attention.rows)[:most])
        last = max((word.last_token for word in self.words[0][:most]), default=-1)
        return [token + self.offset for token in range(last + 1)]


def chosen(trace: Trace) -> Chosen:
    """The map of a trace that shows most."""
    if not trace.attentions:
        raise ValueError("There is nothing to see: this model has no attention.")
    if trace.alignment is not None:
        where = trace.alignment
        return _of(trace, trace.attentions[where.attention], where.head, where.offset)
    across = [one for one in trace.attentions if one.queries != one.keys and one.kind == "cross"]
    if not across:
        return _of(trace, trace.attentions[-1], None, 0)
    maps = [_of(trace, one, None, 0) for one in across]
    if sum(one.heads * one.rows * one.columns for one in across) > LARGE:
        return maps[-1]
    return max(maps, key=_clearness)


def _of(trace: Trace, attention: Attention, head: int | None, offset: int) -> Chosen:
    rows, columns = trace.sides[attention.queries], trace.sides[attention.keys]
    if attention.queries != attention.keys and rows.words and columns.words:
        return Chosen(attention, head, offset, _names(rows), _names(columns), (rows.words, columns.words))
    return Chosen(attention, head, 0, rows.tokens, columns.tokens, None)


def _names(side: Side) -> tuple[str, ...]:
    return tuple((side.text or "")[word.start:word.end] for word in side.words)


def _clearness(one: Chosen) -> float:
    """The highest weight of a row, on average."""
    weights = one.weights()
    return float(weights.amax(dim=-1).mean()) if weights.numel() else 0.0


def word_weights(weights: Tensor, columns: Sequence[Word], rows: Sequence[Word], offset: int = 0) -> Tensor:
    """(..., m, M) from (..., n, N): between words, from those between tokens.

    Args:
        offset: a token looks as the row so many behind its own does; where there is none, as the one nearest to it.
    """
    tokens, words, counts = _tokens(rows, weights.device)
    picked = weights[..., (tokens + offset).clamp(0, max(weights.shape[-2] - 1, 0)), :]
    looks = weights.new_zeros(*weights.shape[:-2], len(rows), weights.shape[-1]).index_add_(-2, words, picked)
    looks /= counts.unsqueeze(-1)
    tokens, words, _ = _tokens(columns, weights.device)
    return weights.new_zeros(*looks.shape[:-1], len(columns)).index_add_(-1, words, looks[..., tokens])


def _tokens(words: Sequence[Word], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of all words, the number of the word of each, and how many tokens each word has."""
    ranges = [range(word.first_token, word.last_token + 1) for word in words]
    tokens = [token for some in ranges for token in some]
    numbers = [number for number, some in enumerate(ranges) for _ in some]
    first, second, third = (torch.tensor(some, dtype=torch.long, device=device)
                            for some in (tokens, numbers, [*map(len, ranges)]))
    return first, second, third
