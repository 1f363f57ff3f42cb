"""Constraints on what a search may or must generate.

    constraint(log-probabilities (R, V), prefixes) -> log-probabilities (R, V)

A constraint may lower a log-probability, to −∞ where it forbids a token. It never raises one: a search stops when no
continuation can win any more, and relies on that. The result is not normalised again, so a hypothesis keeps the
probabilities that the model gave. A constraint keeps no state, since hypotheses change places between steps; it reads
what it needs from the tokens generated so far.

Required terms are different: they decide which hypotheses a beam search keeps. A term has alternatives, sequences of
ids, one of which must appear. A `TermAutomaton` reads the generated tokens and tells how many tokens the open terms
still need; hypotheses that need equally many form a bank, and the beams are divided among the banks (dynamic beam
allocation, Post and Vilar 2018).

    ForbiddenAfter([[[5, 6], [7]]], [8])             in row 0, token 8 never follows 5 6 or 7 directly
    TermAutomaton([[[5, 6], [7]], [[8]]])            5 6 or 7, and 8, in any order

This module knows neither models nor searches.

Legend: B rows, N tokens before them, R hypotheses, t tokens generated so far, n tokens of a sequence, W n-grams of a
hypothesis, A sequences of a row, V vocabulary; T = N + t.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number


@dataclass(frozen=True)
class Prefixes:
    """The hypotheses that a search follows."""

    ids: Tensor
    """(R, t): the tokens after the prompt. Where some have fewer than t, what stands behind them means nothing."""
    rows: Tensor
    """(R,): which prompt each hypothesis continues, from 0."""
    lengths: Tensor
    """(R,): how many tokens each has. All have t, but where prompts wait for their turn."""
    tries: Tensor
    """(R,): which of several tries of one prompt each is, from 0."""


class Constraint(Protocol):
    """A function of the log-probabilities of the next token and of what is written so far."""

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
        """(R, V) -> (R, V), nowhere higher. What is given may be written into: nobody else reads it."""


class ForbiddenTokens:
    """Some tokens are never written."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted(check_ids("ids", ids))
        self.index = torch.tensor(self.ids, dtype=torch.long)

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
        """−∞ for the forbidden tokens."""
        check_vocabulary("ids", self.ids, log_probabilities.shape[-1])
        if self.index.device != log_probabilities.device:  # once: to copy it at every step would keep a device idle
            self.index = self.index.to(log_probabilities.device)
        return log_probabilities.index_fill_(-1, self.index, -torch.inf)


class MinLength:
    """Some tokens, the ends, do not come before `count` others are written."""

    def __init__(self, count: int, ids: Iterable[int]) -> None:
        self.count, self.forbidden = whole_number("count", count), ForbiddenTokens(ids)

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
        """−∞ for the tokens, as long as too few are written."""
        enough_R1 = (written.lengths >= self.count).unsqueeze(-1)
        return torch.where(enough_R1, log_probabilities, self.forbidden(log_probabilities.clone(), written))


class NoRepeatNgram:
    """No sequence of `size` tokens is written twice. What stands in the prompt does not count; `Behind` lets it."""

    def __init__(self, size: int) -> None:
        self.size = whole_number("size", size, 1)

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
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


class WithPrefix:
    """Another rule, for which what stands in front of a row, such as the end of its prompt, is written too."""

    def __init__(self, rule: Constraint, before: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, before), default=0)
        self.rule = rule
        self.before_BN = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in before],
                                      dtype=torch.long).view(len(before), longest)
        self.counts_B = torch.tensor([*map(len, before)], dtype=torch.long)

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
        """What the rule makes of it."""
        device, N = written.ids.device, self.before_BN.shape[-1]
        both_RT = torch.cat([self.before_BN.to(device, non_blocking=True)[written.rows], written.ids], dim=-1)
        count_R1 = self.counts_B.to(device, non_blocking=True)[written.rows].unsqueeze(-1)
        place_T = torch.arange(both_RT.shape[-1], device=device)
        # Where less than N stands in front, what is written moves up to it.
        from_RT = torch.where(place_T < count_R1, place_T, place_T + N - count_R1).clamp(max=both_RT.shape[-1] - 1)
        return self.rule(log_probabilities, replace(written, ids=both_RT.gather(-1, from_RT),
                                                    lengths=written.lengths + count_R1.squeeze(-1)))


def check_ids(argument: str, ids: Iterable[int]) -> set[int]:
    """Ids of tokens, from 0 on; a ValueError for anything else."""
    found = list(ids) if isinstance(ids, Iterable) else [ids]
    if {*map(type, found)} == {int} and min(found) >= 0:  # the usual, without a loop in Python
        return set(found)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise checks.wrong(argument, "made of ids, whole numbers from 0 on", repr(value))
    return set(found)


def check_vocabulary(argument: str, ids: Iterable[int], vocabulary: int) -> None:
    """Refuse ids that the model has no logit for."""
    for value in ids:
        if value >= vocabulary:
            raise checks.wrong(argument, f"ids of the vocabulary, below {vocabulary}", value)


# ---- following: What does not follow directly on some sequences of tokens.
#
#     Unfollowed([[[5, 6], [7]]], [8])    in this row no 8 comes directly behind 5 6, nor behind 7
#
# It is a rule as `regard.decoding.constraints` says: it forbids, raises nothing and remembers nothing. It knows neither models
# nor what the tokens mean.
#
# Legend: B rows, R hypotheses, t tokens written so far, n of a sequence, A sequences of a row, V vocabulary.

ANY_TOKEN, NO_TOKEN, NEVER_EQUAL = -1, -2, -3
"""In the place of a token: whatever it is, that there is none, and what never is."""


class ForbiddenAfter:
    """In each row some tokens, the same for all, do not follow directly on some sequences of its own."""

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], ids: Sequence[int]) -> None:
        for sequences in rows:
            for sequence in sequences:
                if not check_ids("rows", sequence):
                    raise checks.wrong("rows", "sequences of at least one id", "an empty one")
        most = max((len(sequences) for sequences in rows), default=0)
        longest = max((len(sequence) for sequences in rows for sequence in sequences), default=0)
        filled = [[[*[ANY_TOKEN] * (longest - len(sequence)), *sequence] for sequence in sequences] for sequences in rows]
        none = [NEVER_EQUAL] * longest  # which equals nothing, not even what is not there
        self.ids_BAn = torch.tensor([[*row, *[none] * (most - len(row))] for row in filled],
                                    dtype=torch.long).view(len(rows), most, longest)
        self.forbidden = ForbiddenTokens(ids)

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
        """−∞ for these tokens in every row that ends with one of its sequences."""
        device, count = written.ids.device, self.ids_BAn.shape[-1]
        if not self.ids_BAn.numel():
            return log_probabilities
        wanted_RAn = self.ids_BAn.to(device, non_blocking=True)[written.rows]
        whole_Rt = torch.cat([written.ids.new_full((len(written.ids), count), NO_TOKEN), written.ids], dim=-1)
        last_Rn = whole_Rt.gather(-1, written.lengths.unsqueeze(-1) + torch.arange(count, device=device))
        same_RAn = (wanted_RAn == last_Rn.unsqueeze(1)) | (wanted_RAn == ANY_TOKEN)
        ends_R = same_RAn.all(-1).any(-1)
        return torch.where(ends_R.unsqueeze(-1), self.forbidden(log_probabilities.clone(), written), log_probabilities)


# ---- terms: Terms that must appear in what is written, and which continuations of hypotheses come nearer to that.
#
# A term has alternatives, sequences of ids, one of which must appear. What is written is read by an automaton: which
# terms are still open, and how much of an open one the last tokens are the beginning of. Terms may overlap: one token may
# serve several. `needed` tells how many tokens all open terms need, one after another; hypotheses that need equally many
# make a bank, and the places of a beam are shared out among the banks (dynamic beam allocation, Post and Vilar 2018).
# It knows neither models nor probabilities.
#
#     automaton = Automaton([[[5, 6], [7]], [[8]]])      5 6 or 7, and 8, in any order

TermIds = Sequence[int]
TermAlternatives = Sequence[TermIds]
"""Ways to write one term."""


class TermAutomaton:
    """The terms of one row. Its states are numbers, made when they are first come to; the first is 0."""

    def __init__(self, terms: Sequence[TermAlternatives]) -> None:
        self.terms = tuple(tuple(tuple(ids) for ids in alternatives) for alternatives in terms)
        self.shortest = [min(map(len, alternatives)) for alternatives in self.terms]
        self._states = list[tuple[frozenset[int], tuple[int, ...]]]()  # the open terms, and what one may have begun
        self._numbers = dict[tuple[frozenset[int], tuple[int, ...]], int]()
        self._after = dict[tuple[int, int], int]()
        self._needed, self._wanted = list[int](), list[list[int]]()
        self._number(frozenset(range(len(self.terms))), ())

    def after(self, state: int, token: int) -> int:
        """The state when one more token is written."""
        key = (state, token)
        if key not in self._after:
            still, begun = self._states[state]
            text = (*begun, token)
            met = {term for term in still if any(_ends_with(text, ids) for ids in self.terms[term])}
            self._after[key] = self._number(still - met, text)
        return self._after[key]

    def needed(self, state: int) -> int:
        """How many tokens are enough for all open terms."""
        return self._needed[state]

    def wanted(self, state: int) -> list[int]:
        """The tokens that begin an open term, or go on with one."""
        return self._wanted[state]

    def _number(self, still: frozenset[int], text: tuple[int, ...]) -> int:
        """The number of a state; of the text only what an open term may begin with counts."""
        alternatives = [(term, ids) for term in sorted(still) for ids in self.terms[term]]
        begun = {ids: _matched_prefix(text, ids) for _, ids in alternatives}
        longest = max(begun.values(), default=0)
        state = (still, text[len(text) - longest:])
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
            # Going on with what is begun may spare tokens; only one term can be gone on with.
            spared = max((self.shortest[term] - len(ids) + begun[ids] for term, ids in alternatives), default=0)
            self._needed.append(sum(self.shortest[term] for term in still) - max(0, spared))
            self._wanted.append(sorted({ids[place] for ids, count in begun.items() for place in {0, count}}))
        return self._numbers[state]


def allocate_beams(needed: Sequence[int], count: int) -> list[int]:
    """Of candidates, the best first, each with the number of tokens it needs, the `count` that are kept, in order.

    The best of each bank, those that need least first; then the second of each; and so on.
    """
    banks = dict[int, list[int]]()
    for place, need in enumerate(needed):
        banks.setdefault(need, []).append(place)
    turns = zip_longest(*(banks[need] for need in sorted(banks)))
    kept = [place for turn in turns for place in turn if place is not None]
    return sorted(kept[:count])


def build_automata(terms: Sequence[Sequence[TermAlternatives]], ends: Iterable[int], limits: Sequence[int]) -> list[TermAutomaton]:
    """One for each row; a ValueError where a term is empty, has an end in it, or does not fit into the limit."""
    if len(terms) != len(limits):
        raise checks.wrong("terms", f"a list of terms for each of the {len(limits)} rows", f"{len(terms)} of them")
    made = []
    for row, (required, limit) in enumerate(zip(terms, limits, strict=True)):
        for alternatives in required:
            _check_term(alternatives, set(ends), row)
        made.append(TermAutomaton(required))
        if made[-1].needed(0) > limit:
            expected = f"terms that fit into the limit of {limit} tokens"
            raise checks.wrong("terms", expected, f"{made[-1].needed(0)} tokens in row {row}", "Raise the limit.")
    return made


def check_term_vocabulary(made: Iterable[TermAutomaton], vocabulary: int) -> None:
    """Refuse ids that the model has no logit for."""
    for automaton in made:
        for alternatives in automaton.terms:
            for ids in alternatives:
                check_vocabulary("terms", ids, vocabulary)


def _check_term(alternatives: object, ends: set[int], row: int) -> None:
    form = "lists of alternatives, each of at least one id, such as [[[5, 6], [7]], [[8]]]"
    if not _is_nonempty_sequence(alternatives):
        raise checks.wrong("terms", form, f"{alternatives!r} in row {row}")
    for ids in alternatives:
        if not _is_nonempty_sequence(ids):
            raise checks.wrong("terms", form, f"{ids!r} in row {row}")
        if check_ids("terms", ids) & ends:
            raise checks.wrong("terms", "made of tokens that are no end", f"{[*ids]} in row {row}")


def _is_nonempty_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0


def _ends_with(text: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return text[len(text) - len(ids):] == ids if len(ids) <= len(text) else False


def _matched_prefix(text: tuple[int, ...], ids: tuple[int, ...]) -> int:
    """How many of the first ids, but not all, are the last of the text."""
    most = min(len(text), len(ids) - 1)
    return next((count for count in range(most, 0, -1) if text[len(text) - count:] == ids[:count]), 0)
