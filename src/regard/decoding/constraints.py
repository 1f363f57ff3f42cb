"""Constraints on what a search may or must generate.

    constraint(log-probabilities (R, V), prefixes) -> log-probabilities (R, V)

A constraint may lower a log-probability, to −∞ where it forbids a token. It never raises one: a search stops when no
continuation can win any more, and relies on that. The result is not normalised again, so a hypothesis keeps the
probabilities that the model gave. A constraint keeps no state, since hypotheses change places between steps; it reads
what it needs from the tokens generated so far.

Required terms are different: they decide which hypotheses a beam search keeps. A term has alternatives, sequences of
ids, one of which must appear. A `TermAutomaton` reads the generated tokens and tells how many tokens the missing terms
still need; hypotheses that need equally many form a bank, and the beams are divided among the banks (dynamic beam
allocation, Post and Vilar 2018).

    ForbiddenAfter([[[5, 6], [7]]], [8])             in row 0, token 8 never follows 5 6 or 7 directly
    TermAutomaton([[[5, 6], [7]], [[8]]])            5 6 or 7, and 8, in any order

This module knows neither models nor searches.

Legend: B prompts, N tokens before the generated ones, R hypotheses, t tokens generated so far, n tokens of a sequence,
W n-grams of a hypothesis, A sequences of a prompt, V vocabulary; T = N + t.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number

ANY_TOKEN, NO_TOKEN, NEVER_EQUAL = -1, -2, -3
"""In place of a token id: matches every token, stands where there is no token, matches nothing."""


@dataclass(frozen=True)
class Prefixes:
    """The tokens that the hypotheses of a search have so far."""

    ids: Tensor
    """(R, t): the tokens after the prompt. Entries after the length of a hypothesis are undefined."""
    rows: Tensor
    """(R,): the index of the prompt that each hypothesis continues."""
    lengths: Tensor
    """(R,): the number of tokens of each hypothesis. They differ if prompts entered the batch one after another."""
    samples: Tensor
    """(R,): which sample of its prompt each hypothesis is, from 0."""


class Constraint(Protocol):
    """A function that lowers log-probabilities of the next token."""

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """(R, V) -> (R, V), nowhere higher. It may change its argument in place."""


class ForbiddenTokens:
    """Some tokens are never generated."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted(check_ids("ids", ids))
        self.index = torch.tensor(self.ids, dtype=torch.long)

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """−∞ for the forbidden tokens."""
        check_vocabulary("ids", self.ids, log_probabilities.shape[-1])
        if self.index.device != log_probabilities.device:  # once: a copy at every step would keep the device idle
            self.index = self.index.to(log_probabilities.device)
        return log_probabilities.index_fill_(-1, self.index, -torch.inf)


class MinLength:
    """Some tokens, the end tokens, come only after `min_length` other tokens."""

    def __init__(self, min_length: int, ids: Iterable[int]) -> None:
        self.min_length, self.forbidden = whole_number("min_length", min_length), ForbiddenTokens(ids)

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """−∞ for the tokens in hypotheses that are too short."""
        long_enough_R1 = (prefixes.lengths >= self.min_length).unsqueeze(-1)
        return torch.where(long_enough_R1, log_probabilities, self.forbidden(log_probabilities.clone(), prefixes))


class NoRepeatNgram:
    """No n-gram of `size` tokens is generated twice. The prompt does not count; see `WithPrefix`."""

    def __init__(self, size: int) -> None:
        self.size = whole_number("size", size, 1)

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """−∞ for tokens that would complete an n-gram which is already there."""
        if prefixes.ids.shape[-1] < self.size:
            return log_probabilities
        tokens_RW, repeated_RW = self.completions(prefixes)
        # A token that completes several n-grams occurs several times: the lowest of its entries counts.
        lowered_RW = torch.full_like(repeated_RW, torch.inf, dtype=log_probabilities.dtype)
        return log_probabilities.scatter_reduce(-1, tokens_RW, lowered_RW.masked_fill(repeated_RW, -torch.inf), "amin")

    def completions(self, prefixes: Prefixes) -> tuple[Tensor, Tensor]:
        """The last token of each n-gram (R, W), and whether it would complete the n-gram again."""
        ngrams_RWn = prefixes.ids.unfold(-1, self.size, 1)
        back_n = torch.arange(1 - self.size, 0, device=prefixes.ids.device)
        last_Rn = prefixes.ids.gather(-1, (prefixes.lengths.unsqueeze(-1) + back_n).clamp(min=0))
        ends_W = torch.arange(self.size, prefixes.ids.shape[-1] + 1, device=prefixes.ids.device)
        same_RW = (ngrams_RWn[..., :-1] == last_Rn.unsqueeze(1)).all(-1) & (ends_W <= prefixes.lengths.unsqueeze(-1))
        return ngrams_RWn[..., -1], same_RW


class WithPrefix:
    """Another constraint that also sees tokens before the generated ones, such as the end of the prompt."""

    def __init__(self, constraint: Constraint, before: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, before), default=0)
        self.constraint = constraint
        self.before_BN = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in before],
                                      dtype=torch.long).view(len(before), longest)
        self.lengths_B = torch.tensor([*map(len, before)], dtype=torch.long)

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """The result of the other constraint."""
        device, N = prefixes.ids.device, self.before_BN.shape[-1]
        both_RT = torch.cat([self.before_BN.to(device, non_blocking=True)[prefixes.rows], prefixes.ids], dim=-1)
        length_R1 = self.lengths_B.to(device, non_blocking=True)[prefixes.rows].unsqueeze(-1)
        place_T = torch.arange(both_RT.shape[-1], device=device)
        # Where fewer than N tokens stand before a row, the generated tokens move up to them.
        from_RT = torch.where(place_T < length_R1, place_T, place_T + N - length_R1).clamp(max=both_RT.shape[-1] - 1)
        return self.constraint(log_probabilities, replace(prefixes, ids=both_RT.gather(-1, from_RT),
                                                          lengths=prefixes.lengths + length_R1.squeeze(-1)))


class ForbiddenAfter:
    """Some tokens, the same for all prompts, never follow directly after certain sequences of each prompt."""

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], ids: Sequence[int]) -> None:
        for sequences in rows:
            for sequence in sequences:
                if not check_ids("rows", sequence):
                    raise checks.wrong("rows", "lists of sequences of at least one id", "a list with an empty one")
        most = max((len(sequences) for sequences in rows), default=0)
        longest = max((len(sequence) for sequences in rows for sequence in sequences), default=0)
        padded = [[[*[ANY_TOKEN] * (longest - len(sequence)), *sequence] for sequence in sequences]
                  for sequences in rows]
        none = [NEVER_EQUAL] * longest
        self.ids_BAn = torch.tensor([[*row, *[none] * (most - len(row))] for row in padded],
                                    dtype=torch.long).view(len(rows), most, longest)
        self.forbidden = ForbiddenTokens(ids)

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """−∞ for these tokens in every hypothesis that ends with one of the sequences of its prompt."""
        device, count = prefixes.ids.device, self.ids_BAn.shape[-1]
        if not self.ids_BAn.numel():
            return log_probabilities
        wanted_RAn = self.ids_BAn.to(device, non_blocking=True)[prefixes.rows]
        padded_Rt = torch.cat([prefixes.ids.new_full((len(prefixes.ids), count), NO_TOKEN), prefixes.ids], dim=-1)
        last_Rn = padded_Rt.gather(-1, prefixes.lengths.unsqueeze(-1) + torch.arange(count, device=device))
        same_RAn = (wanted_RAn == last_Rn.unsqueeze(1)) | (wanted_RAn == ANY_TOKEN)
        matches_R1 = same_RAn.all(-1).any(-1).unsqueeze(-1)
        return torch.where(matches_R1, self.forbidden(log_probabilities.clone(), prefixes), log_probabilities)


def check_ids(argument: str, ids: Iterable[int]) -> set[int]:
    """The set of these token ids; a ValueError for anything that is not an id."""
    found = list(ids) if isinstance(ids, Iterable) else [ids]
    if {*map(type, found)} == {int} and min(found) >= 0:  # the usual case, without a loop in Python
        return set(found)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise checks.wrong(argument, "token ids, whole numbers of at least 0", repr(value))
    return set(found)


def check_vocabulary(argument: str, ids: Iterable[int], vocabulary: int) -> None:
    """Refuse ids for which the model has no logit."""
    for value in ids:
        if value >= vocabulary:
            raise checks.wrong(argument, f"token ids below {vocabulary:,}, the vocabulary size", value)


MAX_EXACT_TERMS = 6
"""With more missing terms, finding the shortest text that has all of them would take too long."""
TermIds = Sequence[int]
TermAlternatives = Sequence[TermIds]
"""The ways to write one term."""


class TermAutomaton:
    """The required terms of one prompt, as an automaton over the generated tokens.

    Terms may overlap: one token may serve several. States are numbers, created on first use; the first state is 0.
    """

    def __init__(self, terms: Sequence[TermAlternatives]) -> None:
        self.terms = tuple(tuple(tuple(ids) for ids in alternatives) for alternatives in terms)
        self.shortest = [min(map(len, alternatives)) for alternatives in self.terms]
        self.longest = max((len(ids) for alternatives in self.terms for ids in alternatives), default=0)
        self._lengths = dict[tuple[frozenset[int], tuple[int, ...]], int]()
        self._states = list[tuple[frozenset[int], tuple[int, ...]]]()  # missing terms, and the start of one of them
        self._numbers = dict[tuple[frozenset[int], tuple[int, ...]], int]()
        self._next = dict[tuple[int, int], int]()
        self._needed, self._wanted = list[int](), list[list[int]]()
        self._number(frozenset(range(len(self.terms))), ())

    def next_state(self, state: int, token: int) -> int:
        """The state after one more token."""
        key = (state, token)
        if key not in self._next:
            missing, begun = self._states[state]
            text = (*begun, token)
            met = {term for term in missing if any(_ends_with(text, ids) for ids in self.terms[term])}
            self._next[key] = self._number(missing - met, text)
        return self._next[key]

    def needed(self, state: int) -> int:
        """The number of tokens that all missing terms need; with many terms a number that is enough.

        Terms share tokens where they overlap, and a term that is given twice, or is part of another, needs none.
        """
        return self._needed[state]

    def wanted(self, state: int) -> list[int]:
        """The tokens that begin a missing term or continue one."""
        return self._wanted[state]

    def _number(self, missing: frozenset[int], text: tuple[int, ...]) -> int:
        """The number of a state; of the text, only what may begin a missing term counts."""
        alternatives = [(term, ids) for term in sorted(missing) for ids in self.terms[term]]
        begun = {ids: _matched_prefix(text, ids) for _, ids in alternatives}
        longest = max(begun.values(), default=0)
        state = (missing, text[len(text) - longest:])
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
            self._needed.append(self._shortest(*state) if len(missing) <= MAX_EXACT_TERMS else
                                self._one_after_another(missing, begun))
            self._wanted.append(sorted({ids[place] for ids, count in begun.items() for place in {0, count}}))
        return self._numbers[state]

    def _shortest(self, missing: frozenset[int], text: tuple[int, ...]) -> int:
        """The fewest tokens after this text with which all missing terms appear."""
        if not missing:
            return 0
        key = (missing, text[len(text) - self.longest:] if len(text) > self.longest else text)
        if key not in self._lengths:
            found = []
            for ids in {ids for term in missing for ids in self.terms[term]}:  # the one that is complete first
                added = ids[_matched_prefix(text, ids):]
                after, left = text, missing
                for token in added:
                    after = (*after, token)
                    left = left - {term for term in left if any(_ends_with(after, other) for other in self.terms[term])}
                found.append(len(added) + self._shortest(left, after))
            self._lengths[key] = min(found)
        return self._lengths[key]

    def _one_after_another(self, missing: frozenset[int], begun: Mapping[tuple[int, ...], int]) -> int:
        """As many tokens as all missing terms have; continuing an alternative that is begun may save some."""
        saved = max(self.shortest[term] - len(ids) + begun[ids] for term in missing for ids in self.terms[term])
        return sum(self.shortest[term] for term in missing) - max(0, saved)


def allocate_beams(needed: Sequence[int], count: int) -> list[int]:
    """Divide `count` beams among banks: the indices of the candidates to keep, in order.

    `needed` has the number of tokens that each candidate still needs, the best candidate first. The best of each bank
    is kept first, banks that need fewer tokens before others; then the second best of each bank, and so on.
    """
    banks = dict[int, list[int]]()
    for place, need in enumerate(needed):
        banks.setdefault(need, []).append(place)
    rounds = zip_longest(*(banks[need] for need in sorted(banks)))
    kept = [place for one in rounds for place in one if place is not None]
    return sorted(kept[:count])


def build_automata(terms: Sequence[Sequence[TermAlternatives]], ends: Iterable[int],
                   max_lengths: Sequence[int]) -> list[TermAutomaton]:
    """An automaton for each prompt; a ValueError if a term is empty, contains an end token, or is too long."""
    if len(terms) != len(max_lengths):
        expected = f"one list of terms for each row, {len(max_lengths)} in all"
        raise checks.wrong("terms", expected, checks.plural(len(terms), "list"))
    made = []
    for row, (required, max_length) in enumerate(zip(terms, max_lengths, strict=True)):
        for alternatives in required:
            _check_term(alternatives, set(ends), row)
        made.append(TermAutomaton(required))
        if made[-1].needed(0) > max_length:
            expected = f"terms that fit into the maximum length, {checks.plural(max_length, 'token')}"
            raise checks.wrong("terms", expected, f"{made[-1].needed(0)} in row {row}", "Raise `max_length`.")
    return made


def check_term_vocabulary(automata: Iterable[TermAutomaton], vocabulary: int) -> None:
    """Refuse terms with ids for which the model has no logit."""
    for automaton in automata:
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
            raise checks.wrong("terms", "made of ids that are not end tokens", f"{[*ids]} in row {row}")


def _is_nonempty_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0


def _ends_with(text: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return text[len(text) - len(ids):] == ids if len(ids) <= len(text) else False


def _matched_prefix(text: tuple[int, ...], ids: tuple[int, ...]) -> int:
    """The length of the longest proper prefix of `ids` with which the text ends."""
    most = min(len(text), len(ids) - 1)
    return next((count for count in range(most, 0, -1) if text[len(text) - count:] == ids[:count]), 0)
