"""Which candidates of a beam search end, and which go on: freely by their probability, or so that terms appear.

It knows neither models nor scores.

Legend: B rows, K live hypotheses of a row, C candidates of a row, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.candidates import Candidates, Find
from regard.decoding.live import Live
from regard.decoding.request import Request
from regard.decoding.terms import Automaton, check_vocabulary, shared_out


class Chosen(NamedTuple):
    """What becomes of the candidates of each row."""

    ended: Candidates
    """(B, K): those that end and are offered to the pool; totals of −∞ in places that are none."""
    following: Candidates
    """(B, K): those that go on, the most probable first; totals of −∞ where there are fewer."""
    marks: Tensor | None
    """(B, K): what the automaton of the terms has come to in those that go on."""
    broken: Tensor
    """(B,): whether the model gave no number."""
    unsure: Tensor
    """A bool: whether equals were found whose order is not known."""


def freely(candidates: Candidates, is_end: Tensor, count: int, unsure: Tensor) -> Chosen:
    """Those among the best `count` that end, and the best `count` of the others; `is_end` is (B, C)."""
    best = candidates.first(count)
    ended = Candidates(best.totals.masked_fill(~is_end[:, :count], -torch.inf), best.parents, best.tokens, best.logs)
    return Chosen(ended, candidates.without(is_end, count), None, _broken(candidates), unsure)


def with_terms(live: Live, logs: Tensor, considered: int, find: Find, handicap: Tensor | None,
               terms: Sequence[Automaton], left: Sequence[int], request: Request) -> Chosen:
    """The same for rows with terms, `left` tokens before the limit after this one. It asks the device.

    Every token that brings a term nearer is a candidate. One that would leave too little room for the open terms is
    none, and an end only where none is open. Those that go on are shared out among the banks; those that end are
    those among the best K candidates that have no open term.
    """
    check_vocabulary(terms, logs.shape[-1])
    count, marks = live.totals.shape[1], live.marks.tolist()
    candidates, unsure = Candidates.of(live.totals, logs, considered, find, handicap,
                                       _wanted(terms, marks).to(logs.device))
    is_end = request.is_end(candidates.tokens, logs.shape[-1]).tolist()
    parts = (part.tolist() for part in (candidates.totals, candidates.parents, candidates.tokens))
    ended, going, reached = list[list[int]](), list[list[int]](), list[list[int]]()
    for row, (totals, parents, tokens) in enumerate(zip(*parts, strict=True)):
        automaton, complete = terms[row], list[int]()
        open_ways = list[tuple[int, int]]()  # place among the candidates, mark
        for place, (total, parent, token) in enumerate(zip(totals, parents, tokens, strict=True)):
            mark = marks[row][parent]
            if not total > -math.inf:
                continue
            if not is_end[row][place]:
                mark = automaton.after(mark, token)
                if automaton.needed(mark) <= left[row]:
                    open_ways.append((place, mark))
            if automaton.needed(mark) == 0:
                complete.append(place)
        kept = [open_ways[way] for way in shared_out([automaton.needed(mark) for _, mark in open_ways], count)]
        ended.append([place for place in complete[:count] if is_end[row][place]])
        going.append([place for place, _ in kept])
        reached.append([mark for _, mark in kept])
    device = logs.device
    return Chosen(candidates.pick(*_index(ended, count, device)), candidates.pick(*_index(going, count, device)),
                  _index(reached, count, device)[0], _broken(candidates), unsure)


def _wanted(terms: Sequence[Automaton], marks: Sequence[Sequence[int]]) -> Tensor:
    """(B, K, W): the tokens that each hypothesis may want, −1 where there are fewer."""
    wanted = [[automaton.wanted(mark) for mark in row] for automaton, row in zip(terms, marks, strict=True)]
    most = max((len(tokens) for row in wanted for tokens in row), default=0)
    return torch.tensor([[tokens + [-1] * (most - len(tokens)) for tokens in row] for row in wanted], dtype=torch.long)


def _index(places: Sequence[Sequence[int]], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places of each row as (B, count), and which of them are none."""
    filled = torch.tensor([[*row, *[-1] * (count - len(row))] for row in places], dtype=torch.long).to(device)
    return filled.clamp(min=0), filled < 0


def _broken(candidates: Candidates) -> Tensor:
    """(B,): NaN is sorted to the front."""
    return candidates.totals[:, 0].isnan()
