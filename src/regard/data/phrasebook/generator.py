"""Random pairs of the phrasebook, and how many sentences it has.

`pairs` draws distinct pairs of one split, the same for the same seed. It uses only `random.Random.random`, whose
sequence Python keeps from version to version. The splits share no sentence: a sentence belongs to test if it holds a
combination of the test share, else to validation if it holds one of that share, else to training. Held-out combinations
are not in the tables of training at all, and weigh more in those of the other two, where about every second sentence
drawn holds one; the others are rejected.

`count_sentences` follows each rule once for every way to answer its own choices; the phrases that it asks for are
counted separately, once for the same features, and multiplied. No two derivations give the same English sentence, which
the tests check by writing all sentences of small lexicons.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from regard import checks
from regard.data.phrasebook import grammar
from regard.data.phrasebook import grammar as choosing
from regard.data.phrasebook import realization as writing
from regard.data.phrasebook.derivation import TEST, TRAIN, VALIDATION, Sentence, find_combinations, split_of_combination
from regard.data.phrasebook.grammar import EQUAL_WEIGHTS, SPLIT_WEIGHTS, GrammarTables, Option
from regard.data.phrasebook.lexicon import Lexicon, full_lexicon, small_lexicon
from regard.data.phrasebook.realization import AlignedPair

PATIENCE = 10_000
"""After this many draws in a row without a new pair, there are taken to be no more."""
LEXICONS = {"all": full_lexicon, "few": small_lexicon}


@checks.renamed_arguments(longest="max_words")
def pairs(count: int, *, seed: int = 0, split: str = TRAIN, max_words: int | None = None,
          clauses: int | tuple[int, int] = 1, words: str = "all") -> Iterator[AlignedPair]:
    """Distinct random pairs of a split. The first pairs of a long call are those of a short one.

    Args:
        max_words: the largest number of source words, punctuation included.
        clauses: the number of clauses of a sentence, joined by and, or, but, because; or the smallest and the largest
            number, all equally often.
        words: "all" of the lexicon, or "few" of them.

    A call keeps a hash of each pair, about 100 bytes of memory, to return none twice.
    """
    smallest, largest = (clauses, clauses) if isinstance(clauses, int) else clauses
    if count < 0:
        raise checks.wrong("count", "at least 0", count)
    if not 1 <= smallest <= largest:
        raise checks.wrong("clauses", "a number from 1, or the smallest and the largest", clauses)
    if max_words is not None and max_words < 1:
        raise checks.wrong("max_words", "at least 1, or None", max_words)
    checks.pick("split", split, SPLIT_WEIGHTS)
    checks.pick("words", words, LEXICONS)
    return _draw_pairs(count, seed, split, max_words, range(smallest, largest + 1), words)


def split_of(sentence: Sentence) -> str:
    """The split that a sentence belongs to."""
    shares = {split_of_combination(word, noun) for word, noun in find_combinations(sentence)}
    return TEST if TEST in shares else VALIDATION if VALIDATION in shares else TRAIN


def _draw_pairs(count: int, seed: int, split: str, max_words: int | None, lengths: Sequence[int],
           words: str) -> Iterator[AlignedPair]:
    sampler = RandomChooser(_split_tables(split, words), random.Random(seed).random)
    hashes: set[bytes] = set()
    rejected = 0
    while len(hashes) < count:
        sentence = grammar.sentence_rule(sampler, sampler.pick(lengths))
        rejected += 1
        if rejected > PATIENCE:
            limit = f"at most {len(hashes)} for max_words={max_words}"
            raise checks.wrong("count", limit, count, "Allow longer sentences or more clauses.")
        if split != TRAIN and split_of(sentence) != split:
            continue
        pair = writing.write_pair(sentence)
        if max_words is not None and len(pair.source_words) > max_words:
            continue
        digest = hashlib.blake2b(pair.source.encode(), digest_size=8).digest()
        if digest in hashes:
            continue
        hashes.add(digest)
        rejected = 0
        yield pair


class RandomChooser:
    """Makes every choice at random."""

    persons: tuple[str, ...] = (*choosing.PERSONS, choosing.BOTH)

    def __init__(self, options: GrammarTables, random: Callable[[], float]) -> None:
        self.tables = options
        self.random = random

    def pick(self, options: Sequence[Option]) -> Option:
        return options[int(self.random() * len(options))]

    def phrase(self, rule: Callable[..., Option], *features: Any) -> Option:
        return rule(self, *features)


@cache
def _split_tables(split: str, words: str = "all") -> GrammarTables:
    return GrammarTables(LEXICONS[words](), SPLIT_WEIGHTS[split])


@cache
def count_sentences() -> int:
    """The number of distinct English sentences of one clause, in all splits together.

    Phrases joined by `and` are not counted, nor are sentences of several clauses.
    """
    return count_in_lexicon(full_lexicon())


def count_in_lexicon(words: Lexicon) -> int:
    """The number of sentences of one clause with any lexicon."""
    return DerivationCounter(GrammarTables(words, EQUAL_WEIGHTS)).count(grammar.sentence_rule, 1)


class DerivationCounter:
    """Counts the derivations of a rule."""

    def __init__(self, options: GrammarTables) -> None:
        self.tables = options
        self.cache: dict[tuple[Any, ...], int] = {}

    def count(self, rule: Callable[..., Any], *features: Any) -> int:
        """The number of derivations of a rule with these features."""
        key = (rule, *features)
        if key not in self.cache:
            total = 0
            path: list[int] | None = []
            while path is not None:
                walk = DerivationWalk(self, path)
                total += walk.follow(rule, *features)
                path = walk.next()
            self.cache[key] = total
        return self.cache[key]


class DeadEndError(Exception):
    """A choice without options: this path leads to no sentence."""


class DerivationWalk:
    """One path through a rule: choices follow a script, and after its end the first option."""

    persons: tuple[str, ...] = choosing.PERSONS

    def __init__(self, counter: DerivationCounter, script: list[int]) -> None:
        self.tables = counter.tables
        self.counter = counter
        self.script = script
        self.widths: list[int] = []
        self.product = 1

    def follow(self, rule: Callable[..., Any], *features: Any) -> int:
        """The number of derivations on this path."""
        try:
            rule(self, *features)
        except DeadEndError:
            return 0
        return self.product

    def next(self) -> list[int] | None:
        """The script of the next path, or None after the last."""
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
        return None  # type: ignore[return-value]  # no rule inspects a phrase
