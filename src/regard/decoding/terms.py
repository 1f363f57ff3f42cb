"""Terms that must appear in what is written, and which continuations of hypotheses come nearer to that.

A term has alternatives, sequences of ids, one of which must appear. What is written is read by an automaton: which
terms are still open, and how much of an open one the last tokens are the beginning of. Terms may overlap: one token may
serve several. `needed` tells how many tokens all open terms need, one after another; hypotheses that need equally many
make a bank, and the places of a beam are shared out among the banks (dynamic beam allocation, Post and Vilar 2018).
It knows neither models nor probabilities.

    automaton = Automaton([[[5, 6], [7]], [[8]]])      5 6 or 7, and 8, in any order
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeGuard

from regard import checks
from regard.decoding.rules import as_ids, below_vocabulary

Ids = Sequence[int]
Alternatives = Sequence[Ids]
"""Ways to write one term."""


class Automaton:
    """The terms of one row. Its states are numbers, made when they are first come to; the first is 0."""

    def __init__(self, terms: Sequence[Alternatives]) -> None:
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
        begun = {ids: _begun(text, ids) for _, ids in alternatives}
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


def shared_out(needed: Sequence[int], count: int) -> list[int]:
    """Of candidates, the best first, each with the number of tokens it needs, the `count` that are kept, in order.

    The best of each bank, those that need least first; then the second of each; and so on.
    """
    banks = dict[int, list[int]]()
    for place, need in enumerate(needed):
        banks.setdefault(need, []).append(place)
    turns = zip_longest(*(banks[need] for need in sorted(banks)))
    kept = [place for turn in turns for place in turn if place is not None]
    return sorted(kept[:count])


def automata(terms: Sequence[Sequence[Alternatives]], ends: Iterable[int], limits: Sequence[int]) -> list[Automaton]:
    """One for each row; a ValueError where a term is empty, has an end in it, or does not fit into the limit."""
    if len(terms) != len(limits):
        raise checks.wrong("terms", f"a list of terms for each of the {len(limits)} rows", f"{len(terms)} of them")
    made = []
    for row, (required, limit) in enumerate(zip(terms, limits, strict=True)):
        for alternatives in required:
            _check(alternatives, set(ends), row)
        made.append(Automaton(required))
        if made[-1].needed(0) > limit:
            expected = f"terms that fit into the limit of {limit} tokens"
            raise checks.wrong("terms", expected, f"{made[-1].needed(0)} tokens in row {row}", "Raise the limit.")
    return made


def check_vocabulary(made: Iterable[Automaton], vocabulary: int) -> None:
    """Refuse ids that the model has no logit for."""
    for automaton in made:
        for alternatives in automaton.terms:
            for ids in alternatives:
                below_vocabulary("terms", ids, vocabulary)


def _check(alternatives: object, ends: set[int], row: int) -> None:
    form = "lists of alternatives, each of at least one id, such as [[[5, 6], [7]], [[8]]]"
    if not _filled(alternatives):
        raise checks.wrong("terms", form, f"{alternatives!r} in row {row}")
    for ids in alternatives:
        if not _filled(ids):
            raise checks.wrong("terms", form, f"{ids!r} in row {row}")
        if as_ids("terms", ids) & ends:
            raise checks.wrong("terms", "made of tokens that are no end", f"{[*ids]} in row {row}")


def _filled(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0


def _ends_with(text: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return text[len(text) - len(ids):] == ids if len(ids) <= len(text) else False


def _begun(text: tuple[int, ...], ids: tuple[int, ...]) -> int:
    """How many of the first ids, but not all, are the last of the text."""
    most = min(len(text), len(ids) - 1)
    return next((count for count in range(most, 0, -1) if text[len(text) - count:] == ids[:count]), 0)
