"""How many sentences the phrasebook has, counted by its grammar.

A rule is followed once for every way to answer its own choices; the phrases that it asks for are counted apart, once
for the same features, and multiplied. Nothing is written: that no two derivations give the same English sentence is the
grammar's promise, which the tests check by writing all sentences of small lexicons.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from regard.data.phrasebook import choosing, grammar
from regard.data.phrasebook.choosing import Option
from regard.data.phrasebook.lexicon import Lexicon, lexicon
from regard.data.phrasebook.tables import WHOLE, Tables, tables


@cache
def sentences() -> int:
    """How many distinct English sentences of one clause there are, in all splits together.

    Phrases joined by `and` are not counted, nor are sentences of several clauses.
    """
    return count(lexicon())


def count(words: Lexicon) -> int:
    """The same for any lexicon."""
    return Counter(tables(words, WHOLE)).count(grammar.sentence, 1)


class Counter:
    """Counts the derivations of a rule."""

    def __init__(self, options: Tables) -> None:
        self.tables = options
        self.known: dict[tuple[Any, ...], int] = {}

    def count(self, rule: Callable[..., Any], *features: Any) -> int:
        """How many derivations the rule has with these features."""
        key = (rule, *features)
        if key not in self.known:
            total = 0
            path: list[int] | None = []
            while path is not None:
                walk = Walk(self, path)
                total += walk.follow(rule, *features)
                path = walk.next()
            self.known[key] = total
        return self.known[key]


class DeadEndError(Exception):
    """A choice without an option: this way leads to no sentence."""


class Walk:
    """One way through a rule: it answers by a script, and with the first option after its end."""

    persons: tuple[str, ...] = choosing.PERSONS

    def __init__(self, counter: Counter, script: list[int]) -> None:
        self.tables = counter.tables
        self.counter = counter
        self.script = script
        self.widths: list[int] = []
        self.product = 1

    def follow(self, rule: Callable[..., Any], *features: Any) -> int:
        """How many derivations go this way."""
        try:
            rule(self, *features)
        except DeadEndError:
            return 0
        return self.product

    def next(self) -> list[int] | None:
        """The script of the next way, or None after the last."""
        script = self.script[: len(self.widths)]
        while script and script[-1] + 1 == self.widths[len(script) - 1]:
            script.pop()
        return [*script[:-1], script[-1] + 1] if script else None

    def pick(self, options: Sequence[Option]) -> Option:
        distinct = list(dict.fromkeys(options))
        if not distinct:
            raise DeadEndError
        step = len(self.widths)
        if step == len(self.script):
            self.script.append(0)
        self.widths.append(len(distinct))
        return distinct[self.script[step]]

    def phrase(self, rule: Callable[..., Option], *features: Any) -> Option:
        self.product *= self.counter.count(rule, *features)
        return None  # type: ignore[return-value]  # no rule looks into a phrase
