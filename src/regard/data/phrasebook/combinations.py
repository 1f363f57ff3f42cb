"""Which words stand together in a sentence, and which of these combinations are held out of training.

A combination is a noun with an adjective (before it, after it, or said of it: `the apple is red`), or a verb with the
noun it acts on (its object, the subject of its passive, the noun before its relative clause). The share of each follows
from the spelling of the two lemmas alone, so it is the same on every machine and does not change when words are added.
It knows neither how sentences are drawn nor how they are written.
"""

import hashlib
from collections.abc import Iterator
from functools import cache

from regard.data.phrasebook.tree import (
    Action,
    Both,
    Clause,
    Company,
    Comparison,
    Nominal,
    ObjectRelative,
    Place,
    Quality,
    Sentence,
    Subject,
    Suffering,
)
from regard.data.phrasebook.words import Adjective, Name, Noun, Pronoun, Verb

TRAIN, VALIDATION, TEST = "train", "validation", "test"
TENTHS = {0: TEST, 1: VALIDATION}

Combination = tuple[Adjective | Verb, Noun]


@cache
def share(word: Adjective | Verb, noun: Noun) -> str:
    """The split that holds this combination: a tenth of all are for test, a tenth for validation."""
    spelt = f"{'verb' if isinstance(word, Verb) else 'adjective'} {word.lemma} {noun.lemma}"
    digest = hashlib.blake2b(spelt.encode(), digest_size=8).digest()
    return TENTHS.get(int.from_bytes(digest, "big") % 10, TRAIN)


def combinations(sentence: Sentence) -> Iterator[Combination]:
    """Every combination in a sentence."""
    for clause in sentence.clauses:
        yield from _clause(clause)


def _clause(clause: Clause) -> Iterator[Combination]:
    predicate, subject = clause.predicate, clause.subject
    yield from _phrase(subject)
    if isinstance(predicate, Action):
        if isinstance(predicate.object, Nominal):
            yield predicate.verb, predicate.object.noun
            yield from _phrase(predicate.object)
        if predicate.recipient:
            yield from _phrase(predicate.recipient)
    elif isinstance(predicate, Suffering):
        yield from ((predicate.verb, noun) for noun in _nouns(subject))
        yield from _phrase(predicate.agent)
    elif isinstance(predicate, Quality | Comparison):
        yield from ((predicate.adjective, noun) for noun in _nouns(subject))
        if isinstance(predicate, Comparison):
            yield from _phrase(predicate.other)
    if isinstance(clause.where, Place | Company):
        yield from _phrase(clause.where.phrase)


def _nouns(subject: Subject) -> list[Noun]:
    """The nouns of which something is said."""
    if isinstance(subject, Both):
        return [subject.second.noun]
    return [subject.noun] if isinstance(subject, Nominal) else []


def _phrase(phrase: Subject) -> Iterator[Combination]:
    if isinstance(phrase, Name | Pronoun):
        return
    if isinstance(phrase, Both):
        phrase = phrase.second
    if phrase.before:
        yield phrase.before, phrase.noun
    if phrase.after:
        yield phrase.after, phrase.noun
    if phrase.owner:
        yield from _phrase(phrase.owner)
    if isinstance(phrase.relative, ObjectRelative):
        yield phrase.relative.verb, phrase.noun
        yield from _phrase(phrase.relative.subject)
    elif phrase.relative and phrase.relative.object:
        yield phrase.relative.verb, phrase.relative.object.noun
        yield from _phrase(phrase.relative.object)
