"""What a search knows of its rows, in memory that stays where it is, so that its turns can be recorded.

    board = board_for(search, rows, places, dtype)   storage, for searches of this kind
    board.load(batch, search)                     an ordinary batch comes in
    board.choose(logits)                          in a recording: what the turn makes of the rows, set aside
    board.settle()                                asks the device which rows have finished
    board.commit()                                in a recording: what was set aside becomes what is
    board.batch(places)                           an ordinary batch comes out

The turn itself is that of the search: here are only the places that it reads and writes. A row that has finished stays
as it is, whatever is computed in its place. A board knows neither models nor when rows come and go. Of rules and
rankings it takes those whose work is known to ask the device for nothing: our own.

Legend: B rows (prompts), K hypotheses of each, T places of tokens, P places of a pool, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.decoding import search as beams
from regard.decoding import writing
from regard.decoding.candidates import Find, exact, quick
from regard.decoding.live import Beams, Live
from regard.decoding.pool import Pool
from regard.decoding.ranking import Mean, Power, Sum
from regard.decoding.request import Request, no_number
from regard.decoding.rules import Forbidden, Least, NoRepeat, Rule, Written
from regard.decoding.search import After, BeamSearch, Rows
from regard.decoding.writing import Lines, Writing, highest

EVERY = 4
"""Turns of greedy search after which the device is asked once: what is written behind an end costs less."""


class Board(ABC):
    """What all boards have; `rows` of the model's state belong to each place."""

    request: Request
    numbers: list[int]
    width: int

    @abstractmethod
    def load(self, batch: Any, search: Any) -> None:
        """Take in a batch in which nobody has finished."""

    @abstractmethod
    def choose(self, logits: Tensor) -> None:
        """The turn of all rows, from logits (B · K, V). It asks nothing of the device."""

    @abstractmethod
    def settle(self, logits: Tensor) -> list[bool] | None:
        """Which places are still open; None where nobody has asked."""

    @abstractmethod
    def commit(self) -> tuple[Tensor | None, Tensor]:
        """Go on: which row of the state each continues (None for its own), and the token that it reads."""

    @abstractmethod
    def batch(self, places: Sequence[int]) -> Any:
        """What is in these places, as an ordinary batch of its own."""


class GreedyBoard(Board):
    """Of `Writing` with the most probable token."""

    width = 1

    def __init__(self, request: Request, rows: int, places: int, dtype: torch.dtype) -> None:
        self.request, self.numbers, self.turns = _bare(request), list[int](), 0
        device = request.device
        with torch.inference_mode(False):
            self.ids = torch.zeros(rows, places, dtype=torch.long, device=device)
            self.logs = torch.zeros(rows, places, dtype=torch.promote_types(dtype, torch.float32), device=device)
            self.counts, self.limits, self.verdicts, self.tokens = (torch.zeros_like(self.ids[:, 0]) for _ in range(4))
            self.none = torch.zeros_like(self.tokens)

    def load(self, batch: Lines, search: Writing) -> None:
        self.numbers, self.asking, self.turns = [*batch.numbers], search.request, 0
        given = torch.tensor([batch.counts, [search.request.limit(number) for number in batch.numbers]])
        count, width = len(batch.numbers), batch.ids.shape[1]
        self.verdicts.fill_(writing.ENDED)
        self.verdicts[:count] = writing.GOES_ON
        self.counts[:count], self.limits[:count] = given.to(self.ids.device)
        self.counts[count:] = 0
        self.ids[:count, :width], self.logs[:count, :width] = batch.ids, batch.logs
        self.most = max(search.request.limit(number) - before for number, before in
                        zip(batch.numbers, batch.counts, strict=True)) + 1

    def choose(self, logits: Tensor) -> None:
        written = Written(self.ids, self.none, self.counts, self.none)
        logs_BV = self.request.log_probabilities(logits, written)
        token_B = highest(logs_BV, written)
        log_B = logs_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1)
        new_B = writing.verdict(log_B, self.request.is_end(token_B, logits.shape[-1]))
        new_B = torch.where((new_B == writing.GOES_ON) & (self.counts >= self.limits), writing.CUT, new_B)
        was_open = self.verdicts == writing.GOES_ON
        at_B1 = self.counts.clamp(max=self.ids.shape[1] - 1).unsqueeze(-1)  # one that has ended may be full
        for storage, new in ((self.ids, token_B), (self.logs, log_B)):
            old_B = storage.gather(1, at_B1).squeeze(-1)
            storage.scatter_(1, at_B1, torch.where(was_open, new, old_B).unsqueeze(-1))
        self.tokens.copy_(token_B)
        self.counts.add_(was_open & (new_B != writing.CUT) & (new_B != writing.BROKEN))
        self.verdicts.copy_(torch.where(was_open, new_B, self.verdicts))

    def settle(self, logits: Tensor) -> list[bool] | None:
        self.turns += 1
        if self.turns % EVERY and self.turns < self.most:
            return None
        verdicts = self.verdicts[:len(self.numbers)].tolist()
        if writing.BROKEN in verdicts:
            place = verdicts.index(writing.BROKEN)
            raise no_number(self.asking.prompt(self.numbers[place]), int(self.counts[place]))
        return [one == writing.GOES_ON for one in verdicts]

    def commit(self) -> tuple[Tensor | None, Tensor]:
        return None, self.tokens

    def batch(self, places: Sequence[int]) -> Lines:
        index = torch.tensor(places, dtype=torch.long, device=self.ids.device)
        counts, verdicts = torch.stack([self.counts[index], self.verdicts[index]]).tolist()
        width = max(counts, default=0)
        return Lines(self.ids[index, :width], self.logs[index, :width], [self.numbers[place] for place in places],
                     counts, verdicts, self.tokens[index])


class BeamBoard(Board):
    """Of `BeamSearch` without groups, terms and coverage."""

    def __init__(self, search: BeamSearch, rows: int, places: int) -> None:
        self.request, self.numbers, self.width = _bare(search.request), list[int](), search.beams
        self.search, self.places = replace(search, request=self.request), places
        with torch.inference_mode(False):
            batch = self.search.first([0] * rows, None)
            one = [torch.zeros(*part.shape[:-1], places, dtype=part.dtype, device=part.device)
                   for part in (batch.live.ids, batch.live.logs, batch.pool.ids, batch.pool.logs)]
            self.live = Live(*(part.clone() for part in replace(batch.live, ids=one[0], logs=one[1]).parts()))
            self.pool = Pool(*(part.clone() for part in replace(batch.pool, ids=one[2], logs=one[3]).parts()))
            self.counts = torch.zeros(rows, dtype=torch.long, device=search.request.device)
            self.limits, self.done = torch.zeros_like(self.counts), torch.zeros_like(self.counts, dtype=torch.bool)
            self.none = torch.zeros(rows * search.beams, dtype=torch.long, device=search.request.device)
            self.first = torch.arange(rows, device=search.request.device).unsqueeze(-1) * search.beams
            parents = torch.zeros_like(self.live.tokens)
            self.after = After(Live(*(part.clone() for part in self.live.parts())),
                               Pool(*(part.clone() for part in self.pool.parts())), parents,
                               torch.zeros_like(parents, dtype=torch.bool), torch.zeros_like(self.counts),
                               torch.zeros((), dtype=torch.bool, device=parents.device))

    def load(self, batch: Beams, search: BeamSearch) -> None:
        self.numbers, self.asking, count = [*batch.numbers], search.request, len(batch.numbers)
        self.open = [True] * count
        given = torch.tensor([batch.counts, [search.request.limit(number) for number in batch.numbers]])
        self.counts.zero_()
        self.counts[:count], self.limits[:count] = given.to(self.counts.device)
        self.done.fill_(True)
        self.done[:count] = False
        for mine, theirs in zip((*self.live.parts(), *self.pool.parts()), (*batch.live.parts(), *batch.pool.parts()),
                                strict=True):
            mine[:count][..., :theirs.shape[-1]] = theirs
            mine[count:] = mine[:1]

    def choose(self, logits: Tensor) -> None:
        self._put(self._turn(logits, quick))

    def settle(self, logits: Tensor) -> list[bool] | None:
        *verdicts, unsure = torch.cat([self.after.verdict, self.after.unsure.long().unsqueeze(0)]).tolist()
        verdicts = verdicts[:len(self.numbers)]
        if unsure:
            self._put(self._turn(logits, exact))
            verdicts = self.after.verdict.tolist()[:len(self.numbers)]
        now = [one for one, is_open in zip(verdicts, self.open, strict=True) if is_open]
        if beams.BROKEN in now:
            place = next(place for place, one in enumerate(verdicts) if one == beams.BROKEN and self.open[place])
            raise no_number(self.asking.prompt(self.numbers[place]), int(self.counts[place]))
        if beams.CUT in now:
            filled = self.search.filled(self.live, self._rows(), self.after)
            for mine, new in zip(self.after.pool.parts(), filled.parts(), strict=True):
                mine.copy_(new)
        self.open = [is_open and one == beams.GOES_ON for one, is_open in zip(verdicts, self.open, strict=True)]
        return self.open

    def commit(self) -> tuple[Tensor | None, Tensor]:
        for mine, new in zip(self.live.parts(), self.after.live.parts(), strict=True):
            mine.copy_(new)
        for mine, new in zip(self.pool.parts(), self.after.pool.parts(), strict=True):
            stays = self.done.view(-1, *[1] * (new.dim() - 1))
            mine.copy_(torch.where(stays, mine, new))
        self.done.logical_or_(self.after.verdict != beams.GOES_ON)
        self.counts.add_(~self.done)
        return (self.after.parents + self.first).flatten(), self.live.tokens.flatten()

    def batch(self, places: Sequence[int]) -> Beams:
        index = torch.tensor(places, dtype=torch.long, device=self.counts.device)
        counts = self.counts[index].tolist()
        width = max(counts, default=0)
        pool = self.pool.pick(index)
        longest = max(1, int(pool.lengths.max()) if pool.lengths.numel() else 1)
        return Beams([self.numbers[place] for place in places], counts, self.live.pick(index, width),
                     replace(pool, ids=pool.ids[..., :longest], logs=pool.logs[..., :longest]))

    def _rows(self) -> Rows:
        return Rows(self.counts, self.limits, self.places)

    def _turn(self, logits: Tensor, find: Find) -> After:
        B, K, _ = self.live.ids.shape
        counts_R = self.counts.unsqueeze(-1).expand(B, K).reshape(-1)
        written = Written(self.live.ids.view(B * K, -1), self.none, counts_R, self.none)
        logs_BKV = self.request.log_probabilities(logits, written).view(B, K, -1)
        return self.search.turned(self.live, self.pool, self._rows(), logs_BKV, find)

    def _put(self, after: After) -> None:
        mine = (*self.after.live.parts(), *self.after.pool.parts(), *self.after[2:])
        for place, new in zip(mine, (*after.live.parts(), *after.pool.parts(), *after[2:]), strict=True):
            place.copy_(new)


@dataclass(frozen=True)
class Kind:
    """What a recording of a search has in it: two that are equal can use the same."""

    name: str
    ends: tuple[int, ...]
    rules: tuple[Any, ...]
    options: tuple[Any, ...] = ()


def kind_of(search: object) -> Kind | None:
    """The kind of a search; None for one that cannot be recorded."""
    if isinstance(search, Writing) and search.choose is highest:
        name, options = "greedy", tuple[Any, ...]()
    elif type(search) is BeamSearch and (search.groups, search.coverage, search.terms) == (1, None, None):
        ranking = search.ranking
        if type(ranking) not in (Sum, Mean, Power):
            return None
        name, options = "beam", (search.beams, search.nbest, type(ranking), getattr(ranking, "alpha", None))
    else:
        return None
    rules = [_rule(rule) for rule in search.request.rules]
    if None in rules:
        return None
    return Kind(name, tuple(search.request.ends), tuple(rules), options)


def board_for(search: Any, rows: int, places: int, dtype: torch.dtype) -> Board:
    """Storage for a search that has a kind, of a model whose logits have this dtype."""
    if isinstance(search, BeamSearch):
        return BeamBoard(search, rows, places)
    return GreedyBoard(search.request, rows, places, dtype)


def _rule(rule: Rule) -> tuple[Any, ...] | None:
    if type(rule) is Forbidden:
        return (Forbidden, *rule.ids)
    if type(rule) is Least:
        return (Least, rule.count, *rule.forbidden.ids)
    return (NoRepeat, rule.size) if type(rule) is NoRepeat else None


def _bare(request: Request) -> Request:
    """What is asked of every search of this kind, without its prompts."""
    return replace(request, prompts=[], limits=[])
