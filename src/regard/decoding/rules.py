"""Rules say what may be written: each turns the log-probabilities of the next token into others.

    rule(log-probabilities (R, V), what is written so far) -> log-probabilities (R, V)

A rule may lower a log-probability, to −∞ where it forbids a token; it never raises one, because searches stop when no
continuation can win any more, and count on it that one never gains. What is left is not normalised again: a hypothesis
keeps the probabilities that the model gave. A rule remembers nothing, since hypotheses change places between steps;
what it needs is read off what is written. It knows neither models nor searches.

Legend: B rows, N tokens in front of them, R hypotheses, t tokens written so far, n of a sequence, W sequences of the
text, V vocabulary; T = N + t.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from regard import checks


@dataclass(frozen=True)
class Written:
    """The hypotheses that a search follows."""

    ids: Tensor
    """(R, t): the tokens after the prompt. Where some have fewer than t, what stands behind them means nothing."""
    rows: Tensor
    """(R,): which prompt each hypothesis continues, from 0."""
    lengths: Tensor
    """(R,): how many tokens each has. All have t, but where prompts wait for their turn."""
    tries: Tensor
    """(R,): which of several tries of one prompt each is, from 0."""


class Rule(Protocol):
    """A function of the log-probabilities of the next token and of what is written so far."""

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """(R, V) -> (R, V), nowhere higher. What is given may be written into: nobody else reads it."""


class Forbidden:
    """Some tokens are never written."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted(as_ids("ids", ids))
        self.index = torch.tensor(self.ids, dtype=torch.long)

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """−∞ for the forbidden tokens."""
        below_vocabulary("ids", self.ids, log_probabilities.shape[-1])
        if self.index.device != log_probabilities.device:  # once: to copy it at every step would keep a device idle
            self.index = self.index.to(log_probabilities.device)
        return log_probabilities.index_fill_(-1, self.index, -torch.inf)


class Least:
    """Some tokens, the ends, do not come before `count` others are written."""

    def __init__(self, count: int, ids: Iterable[int]) -> None:
        self.count, self.forbidden = whole("count", count), Forbidden(ids)

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """−∞ for the tokens, as long as too few are written."""
        enough_R1 = (written.lengths >= self.count).unsqueeze(-1)
        return torch.where(enough_R1, log_probabilities, self.forbidden(log_probabilities.clone(), written))


class NoRepeat:
    """No sequence of `size` tokens is written twice. What stands in the prompt does not count; `Behind` lets it."""

    def __init__(self, size: int) -> None:
        self.size = whole("size", size, 1)

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """−∞ for tokens that would complete a sequence that is there."""
        t = written.ids.shape[-1]
        if t < self.size:
            return log_probabilities
        there_RWn = written.ids.unfold(-1, self.size, 1)
        back_n = torch.arange(1 - self.size, 0, device=written.ids.device)
        last_Rn = written.ids.gather(-1, (written.lengths.unsqueeze(-1) + back_n).clamp(min=0))
        ends_W = torch.arange(self.size, t + 1, device=written.ids.device)
        same_RW = (there_RWn[..., :-1] == last_Rn.unsqueeze(1)).all(-1) & (ends_W <= written.lengths.unsqueeze(-1))
        # A token that completes several of them is named several times: the lowest of its entries counts.
        lowered_RW = torch.full_like(same_RW, torch.inf, dtype=log_probabilities.dtype).masked_fill(same_RW, -torch.inf)
        return log_probabilities.scatter_reduce(-1, there_RWn[..., -1], lowered_RW, "amin")


class Behind:
    """Another rule, for which what stands in front of a row, such as the end of its prompt, is written too."""

    def __init__(self, rule: Rule, before: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, before), default=0)
        self.rule = rule
        self.before_BN = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in before],
                                      dtype=torch.long).view(len(before), longest)
        self.counts_B = torch.tensor([*map(len, before)], dtype=torch.long)

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """What the rule makes of it."""
        device, N = written.ids.device, self.before_BN.shape[-1]
        both_RT = torch.cat([self.before_BN.to(device, non_blocking=True)[written.rows], written.ids], dim=-1)
        count_R1 = self.counts_B.to(device, non_blocking=True)[written.rows].unsqueeze(-1)
        place_T = torch.arange(both_RT.shape[-1], device=device)
        # Where less than N stands in front, what is written moves up to it.
        from_RT = torch.where(place_T < count_R1, place_T, place_T + N - count_R1).clamp(max=both_RT.shape[-1] - 1)
        return self.rule(log_probabilities, replace(written, ids=both_RT.gather(-1, from_RT),
                                                    lengths=written.lengths + count_R1.squeeze(-1)))


def whole(argument: str, value: object, least: int = 0) -> int:
    """A whole number, at least `least`; a ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise checks.wrong(argument, f"a whole number, at least {least}", repr(value))
    return value


def as_ids(argument: str, ids: Iterable[int]) -> set[int]:
    """Ids of tokens, from 0 on; a ValueError for anything else."""
    found = list(ids) if isinstance(ids, Iterable) else [ids]
    if {*map(type, found)} == {int} and min(found) >= 0:  # the usual, without a loop in Python
        return set(found)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise checks.wrong(argument, "made of ids, whole numbers from 0 on", repr(value))
    return set(found)


def below_vocabulary(argument: str, ids: Iterable[int], vocabulary: int) -> None:
    """Refuse ids that the model has no logit for."""
    for value in ids:
        if value >= vocabulary:
            raise checks.wrong(argument, f"ids of the vocabulary, below {vocabulary}", value)
