"""Derivation trees of the phrasebook, and the word combinations that are held out of training.

One tree is the origin of both languages. Every node is a plain tuple of words and nodes, so a sentence can be built by
hand, compared and taken apart. The tree says what is meant: number, tense, who does what; agreement, order and spelling
are decided in `realization`.

A combination is a noun with an adjective (before it, after it, or predicated of it: `the apple is red`), or a verb with
the noun it acts on (its object, the subject of its passive, the noun before its relative clause). The split of each
follows from the spelling of the two lemmas alone, so it is the same on every machine and does not change when words are
added.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from regard.data.phrasebook.lexicon import (
    Adjective,
    Determiner,
    FixedPhrase,
    MiddleAdverb,
    Modal,
    Month,
    Noun,
    NumberWord,
    PersonName,
    Preposition,
    Pronoun,
    Verb,
)

PRESENT, PAST, FUTURE = "present", "past", "future"


class SubjectRelative(NamedTuple):
    """A relative clause whose subject is the noun before it: `who eats the apple`."""

    verb: Verb
    tense: str
    middle: MiddleAdverb | None
    object: "NounPhrase | None"


class ObjectRelative(NamedTuple):
    """A relative clause whose object is the noun before it: `that the man eats`."""

    verb: Verb
    tense: str
    middle: MiddleAdverb | None
    subject: "Subject"


class NounPhrase(NamedTuple):
    """A noun with its dependents. With an owner the determiner is `the`, written as `'s`: `the king's castle`."""

    determiner: Determiner | NumberWord
    noun: Noun
    before: Adjective | None = None
    after: Adjective | None = None
    owner: "NounPhrase | PersonName | None" = None
    relative: SubjectRelative | ObjectRelative | None = None

    @property
    def plural(self) -> bool:
        return self.determiner.plural


class Coordination(NamedTuple):
    """Two subjects: `Paul and my sister`."""

    first: PersonName
    second: NounPhrase


Subject = NounPhrase | PersonName | Pronoun | Coordination


class ActionPredicate(NamedTuple):
    """A verb with its object and its recipient; with a modal the tense is the present."""

    verb: Verb
    tense: str
    modal: Modal | None = None
    object: NounPhrase | Pronoun | None = None
    recipient: NounPhrase | PersonName | None = None


class AdjectivePredicate(NamedTuple):
    """A quality: `is very big`."""

    adjective: Adjective
    tense: str
    degree: FixedPhrase | None = None


class ComparisonPredicate(NamedTuple):
    """A comparison: `is bigger than the cat`, `is less big than`, `is as big as`."""

    adjective: Adjective
    tense: str
    comparison: FixedPhrase
    other: NounPhrase


class PassivePredicate(NamedTuple):
    """The passive: `is eaten by the man`."""

    verb: Verb
    tense: str
    agent: NounPhrase | PersonName


class ExistencePredicate(NamedTuple):
    """`There is`; the subject of the clause is what exists."""

    tense: str


Predicate = ActionPredicate | AdjectivePredicate | ComparisonPredicate | PassivePredicate | ExistencePredicate


class PlacePhrase(NamedTuple):
    """A place: `near the house`."""

    preposition: Preposition
    phrase: NounPhrase


class CompanyPhrase(NamedTuple):
    """Company: `with my friend`."""

    phrase: NounPhrase | PersonName


class DatePhrase(NamedTuple):
    """A date: `on 3 May 1998`."""

    day: int
    month: Month
    year: int


class YearPhrase(NamedTuple):
    """A year: `in 1998`."""

    year: int


class AgoPhrase(NamedTuple):
    """A past time: `three days ago`."""

    number: NumberWord
    unit: Noun


class HencePhrase(NamedTuple):
    """A future time: `in three days`."""

    number: NumberWord
    unit: Noun


TimePhrase = FixedPhrase | DatePhrase | YearPhrase | AgoPhrase | HencePhrase
WherePhrase = FixedPhrase | PlacePhrase | CompanyPhrase


class Clause(NamedTuple):
    """A statement or a question."""

    subject: Subject
    predicate: Predicate
    middle: MiddleAdverb | None = None
    asked: bool = False
    """Whether it is a question."""
    question: FixedPhrase | None = None
    """Why, when, where."""
    front: TimePhrase | None = None
    where: WherePhrase | None = None
    last: TimePhrase | None = None


class Sentence(NamedTuple):
    """Clauses, and the conjunctions between them. A question has one clause."""

    clauses: tuple[Clause, ...]
    joiners: tuple[FixedPhrase, ...] = ()


TRAIN, VALIDATION, TEST = "train", "validation", "test"
TENTHS = {0: TEST, 1: VALIDATION}

Combination = tuple[Adjective | Verb, Noun]


@cache
def split_of_combination(word: Adjective | Verb, noun: Noun) -> str:
    """The split of a combination: a tenth of all belong to test, a tenth to validation."""
    spelt = f"{'verb' if isinstance(word, Verb) else 'adjective'} {word.lemma} {noun.lemma}"
    digest = hashlib.blake2b(spelt.encode(), digest_size=8).digest()
    return TENTHS.get(int.from_bytes(digest, "big") % 10, TRAIN)


def find_combinations(sentence: Sentence) -> Iterator[Combination]:
    """All combinations in a sentence."""
    for clause in sentence.clauses:
        yield from _clause_combinations(clause)


def _clause_combinations(clause: Clause) -> Iterator[Combination]:
    predicate, subject = clause.predicate, clause.subject
    yield from _phrase_combinations(subject)
    if isinstance(predicate, ActionPredicate):
        if isinstance(predicate.object, NounPhrase):
            yield predicate.verb, predicate.object.noun
            yield from _phrase_combinations(predicate.object)
        if predicate.recipient:
            yield from _phrase_combinations(predicate.recipient)
    elif isinstance(predicate, PassivePredicate):
        yield from ((predicate.verb, noun) for noun in _described_nouns(subject))
        yield from _phrase_combinations(predicate.agent)
    elif isinstance(predicate, AdjectivePredicate | ComparisonPredicate):
        yield from ((predicate.adjective, noun) for noun in _described_nouns(subject))
        if isinstance(predicate, ComparisonPredicate):
            yield from _phrase_combinations(predicate.other)
    if isinstance(clause.where, PlacePhrase | CompanyPhrase):
        yield from _phrase_combinations(clause.where.phrase)


def _described_nouns(subject: Subject) -> list[Noun]:
    """The nouns that a predicate describes."""
    if isinstance(subject, Coordination):
        return [subject.second.noun]
    return [subject.noun] if isinstance(subject, NounPhrase) else []


def _phrase_combinations(phrase: Subject) -> Iterator[Combination]:
    if isinstance(phrase, PersonName | Pronoun):
        return
    if isinstance(phrase, Coordination):
        phrase = phrase.second
    if phrase.before:
        yield phrase.before, phrase.noun
    if phrase.after:
        yield phrase.after, phrase.noun
    if phrase.owner:
        yield from _phrase_combinations(phrase.owner)
    if isinstance(phrase.relative, ObjectRelative):
        yield phrase.relative.verb, phrase.noun
        yield from _phrase_combinations(phrase.relative.subject)
    elif phrase.relative and phrase.relative.object:
        yield phrase.relative.verb, phrase.relative.object.noun
        yield from _phrase_combinations(phrase.relative.object)
