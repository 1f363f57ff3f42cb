"""The derivation: one tree that both languages are written from.

Every node is a plain tuple of words and nodes, so a sentence can be built by hand, compared and taken apart. The tree
says what is meant: number, tense, who does what; agreement, order and spelling are the writer's.
"""

from typing import NamedTuple

from regard.data.phrasebook.lexicon import Middle, Month
from regard.data.phrasebook.words import (
    Adjective,
    Count,
    Determiner,
    Fixed,
    Modal,
    Name,
    Noun,
    Preposition,
    Pronoun,
    Verb,
)

PRESENT, PAST, FUTURE = "present", "past", "future"


class Relative(NamedTuple):
    """`who eats the apple`, where the noun before it is the subject; its object is None for an intransitive verb."""

    verb: Verb
    tense: str
    middle: Middle | None
    object: "Nominal | None"


class ObjectRelative(NamedTuple):
    """`that the man eats`, where the noun before it is the object."""

    verb: Verb
    tense: str
    middle: Middle | None
    subject: "Subject"


class Nominal(NamedTuple):
    """A noun with what belongs to it. With an owner the determiner is `the`, written as `'s`: `the king's castle`."""

    determiner: Determiner | Count
    noun: Noun
    before: Adjective | None = None
    after: Adjective | None = None
    owner: "Nominal | Name | None" = None
    relative: Relative | ObjectRelative | None = None

    @property
    def plural(self) -> bool:
        return self.determiner.plural


class Both(NamedTuple):
    """`Paul and my sister`."""

    first: Name
    second: Nominal


Subject = Nominal | Name | Pronoun | Both


class Action(NamedTuple):
    """A verb with its object and its recipient; under a modal the tense is the present."""

    verb: Verb
    tense: str
    modal: Modal | None = None
    object: Nominal | Pronoun | None = None
    recipient: Nominal | Name | None = None


class Quality(NamedTuple):
    """`is very big`."""

    adjective: Adjective
    tense: str
    degree: Fixed | None = None


class Comparison(NamedTuple):
    """`is bigger than the cat`, `is less big than`, `is as big as`."""

    adjective: Adjective
    tense: str
    comparison: Fixed
    other: Nominal


class Suffering(NamedTuple):
    """The passive: `is eaten by the man`."""

    verb: Verb
    tense: str
    agent: Nominal | Name


class Existence(NamedTuple):
    """`There is`; what is there is the subject of the clause."""

    tense: str


Predicate = Action | Quality | Comparison | Suffering | Existence


class Place(NamedTuple):
    """`near the house`."""

    preposition: Preposition
    phrase: Nominal


class Company(NamedTuple):
    """`with my friend`."""

    phrase: Nominal | Name


class Date(NamedTuple):
    """`on 3 May 1998`."""

    day: int
    month: Month
    year: int


class Year(NamedTuple):
    """`in 1998`."""

    year: int


class Ago(NamedTuple):
    """`three days ago`."""

    number: Count
    unit: Noun


class Hence(NamedTuple):
    """`in three days`."""

    number: Count
    unit: Noun


When = Fixed | Date | Year | Ago | Hence
Where = Fixed | Place | Company


class Clause(NamedTuple):
    """One statement or question."""

    subject: Subject
    predicate: Predicate
    middle: Middle | None = None
    asked: bool = False
    """whether it is a question"""
    question: Fixed | None = None
    """why, when, where"""
    front: When | None = None
    where: Where | None = None
    last: When | None = None


class Sentence(NamedTuple):
    """Clauses, and between them conjunctions: one fewer. A question has one clause."""

    clauses: tuple[Clause, ...]
    joiners: tuple[Fixed, ...] = ()
