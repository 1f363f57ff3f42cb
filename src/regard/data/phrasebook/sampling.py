"""Pairs drawn at random from the phrasebook: distinct, the same for the same seed, of one split.

Only `random.Random.random` is drawn from, whose sequence Python keeps from version to version. The splits share no
sentence: a sentence belongs to test when it holds a combination of the test share, else to validation when it holds one
of that share, else to training. Held-out combinations are not in the tables of training at all, and weigh more in those
of the other two, where about every second sentence drawn holds one; the others are thrown away.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from regard import checks
from regard.data.phrasebook import choosing, grammar
from regard.data.phrasebook import clauses as writing
from regard.data.phrasebook.choosing import Option
from regard.data.phrasebook.combinations import TEST, TRAIN, VALIDATION, combinations, share
from regard.data.phrasebook.few import few
from regard.data.phrasebook.lexicon import lexicon
from regard.data.phrasebook.pair import Pair
from regard.data.phrasebook.tables import WEIGHTS, Tables, tables
from regard.data.phrasebook.tree import Sentence

PATIENCE = 10_000
"""draws in a row that give nothing new, after which there is taken to be nothing more"""
LEXICONS = {"all": lexicon, "few": few}


def pairs(count: int, *, seed: int = 0, split: str = TRAIN, longest: int | None = None,
          clauses: int | tuple[int, int] = 1, words: str = "all") -> Iterator[Pair]:
    """So many distinct pairs of a split, one after the other.

    `longest` is the largest number of source words, punctuation counted. `clauses` is how many clauses a sentence has,
    joined by and, or, but, because: a number, or the fewest and the most, all equally often. `words` are "all" of the
    lexicon, or "few" of them. The first pairs of a long call are those of a short one. To give none twice, a call keeps
    a digest of each: some 100 bytes of memory a pair.
    """
    fewest, most = (clauses, clauses) if isinstance(clauses, int) else clauses
    if count < 0:
        raise checks.wrong("count", "at least 0", count)
    if not 1 <= fewest <= most:
        raise checks.wrong("clauses", "a number from 1, or the fewest and the most", clauses)
    if longest is not None and longest < 1:
        raise checks.wrong("longest", "at least 1, or None", longest)
    checks.pick("split", split, WEIGHTS)
    checks.pick("words", words, LEXICONS)
    return _pairs(count, seed, split, longest, range(fewest, most + 1), words)


def split_of(sentence: Sentence) -> str:
    """The split that a sentence belongs to."""
    shares = {share(word, noun) for word, noun in combinations(sentence)}
    return TEST if TEST in shares else VALIDATION if VALIDATION in shares else TRAIN


def _pairs(count: int, seed: int, split: str, longest: int | None, lengths: Sequence[int],
           words: str) -> Iterator[Pair]:
    sampler = Sampler(_tables(split, words), random.Random(seed).random)
    given: set[bytes] = set()
    vain = 0
    while len(given) < count:
        sentence = grammar.sentence(sampler, sampler.pick(lengths))
        vain += 1
        if vain > PATIENCE:
            limit = f"at most {len(given)} for longest={longest}"
            raise checks.wrong("count", limit, count, "Allow longer sentences or more clauses.")
        if split != TRAIN and split_of(sentence) != split:
            continue
        pair = writing.write(sentence)
        if longest is not None and len(pair.source_words) > longest:
            continue
        digest = hashlib.blake2b(pair.source.encode(), digest_size=8).digest()
        if digest in given:
            continue
        given.add(digest)
        vain = 0
        yield pair


class Sampler:
    """Answers every choice at random."""

    persons: tuple[str, ...] = (*choosing.PERSONS, choosing.BOTH)

    def __init__(self, options: Tables, random: Callable[[], float]) -> None:
        self.tables = options
        self.random = random

    def pick(self, options: Sequence[Option]) -> Option:
        return options[int(self.random() * len(options))]

    def phrase(self, rule: Callable[..., Option], *features: Any) -> Option:
        return rule(self, *features)


@cache
def _tables(split: str, words: str = "all") -> Tables:
    return tables(LEXICONS[words](), WEIGHTS[split])
