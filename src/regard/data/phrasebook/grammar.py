"""The grammar of clauses: what a sentence can say, as rules that ask for choices.

How rules work, and the rules for phrases, are in choosing.py.

No English sentence has two derivations. Hence relative clauses have neither place nor time of their own, and `Paul and
my sister` has a name first. Nothing follows the relative clause of an object, for one would not know where it belongs.
"""

from typing import NamedTuple

from regard.data.phrasebook.choosing import (
    BARE,
    NOWHERE,
    PLAIN,
    PRONOUN,
    RELATIVE,
    SO,
    SOMETIMES,
    THERE,
    THINGS,
    WITH,
    Choice,
    bare_subject,
    doer,
    middle,
    nominal,
    object_role,
    one,
    place,
    somebody,
    when,
)
from regard.data.phrasebook.tables import TENSES
from regard.data.phrasebook.tree import (
    PRESENT,
    Action,
    Clause,
    Comparison,
    Existence,
    Place,
    Predicate,
    Quality,
    Sentence,
    Subject,
    Suffering,
    Where,
)
from regard.data.phrasebook.words import Fixed, Modal

# Where a time stands, and whether a clause tells or asks.
NEVER, FIRST, LAST = "never", "first", "last"
TELL, ASK = "tell", "ask"

# What is chosen from; an option stands as often as it weighs.
OBJECTS = (*THINGS, PRONOUN, PRONOUN)
MOODS, STATEMENT = (TELL,) * 12 + (ASK,) * 3, (TELL,)
OPEN, CLOSED, OPEN_QUESTION = (NEVER,) * 5 + (FIRST, LAST, LAST), (NEVER, NEVER, FIRST), (NEVER, NEVER, LAST)
WAYS = (NOWHERE,) * 7 + (SO, WITH) + (THERE,) * 3
WAYS_THERE = (NOWHERE,) * 7 + (WITH,) + (THERE,) * 3
WAYS_WITH = (NOWHERE,) * 7 + (WITH,)
WAYS_ALONE = (NOWHERE,) * 7 + (THERE,) * 3


def sentence(c: Choice, clauses: int) -> Sentence:
    """So many clauses joined by conjunctions; a single one may be a question."""
    if clauses == 1:
        return Sentence((c.phrase(c.pick(KINDS), MOODS),))
    parts = tuple(c.phrase(c.pick(KINDS), STATEMENT) for _ in range(clauses))
    return Sentence(parts, tuple(c.pick(c.tables.words.joiners) for _ in range(clauses - 1)))


# Clauses. Each rule takes the moods it may have.


def transitive(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Somebody does something to something."""
    verb = c.pick(c.tables.transitive)
    pronouns = "P" in verb.objects and not verb.preposition
    shape = c.pick(OBJECTS if pronouns else THINGS)
    tense, modal = _mode(c)
    lasts = "lasts" in verb.flags
    moments = CLOSED if shape == RELATIVE else OPEN
    frame = _frame(c, moods, moments, lasts or bool(verb.preposition), lasts and tense == PRESENT)
    pronoun = c.pick(c.tables.words.pronouns) if shape == PRONOUN else None
    thing = pronoun or c.phrase(nominal, c.tables.objects[verb], object_role(verb, frame.negative), shape)
    where = None
    if not frame.question and shape != RELATIVE and not lasts:
        where = c.phrase(place, WAYS_WITH if verb.preposition else WAYS)
    subject = c.phrase(doer, verb, frame.negative, pronoun)
    return _clause(c, subject, Action(verb, tense, modal, thing), frame, tense, where)


def intransitive(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Somebody does something."""
    verb = c.pick(c.tables.intransitive)
    tense, modal = _mode(c)
    frame = _frame(c, moods, OPEN, False, False)
    where = None if frame.question else c.phrase(
        place, WAYS_ALONE if "alone" in verb.flags else WAYS_THERE if verb.flags else WAYS)
    return _clause(c, c.phrase(doer, verb, frame.negative, None), Action(verb, tense, modal), frame, tense, where)


def giving(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Somebody gives something to somebody."""
    verb = c.pick(c.tables.giving)
    tense, modal = _mode(c)
    frame = _frame(c, moods, OPEN, False, False)
    thing = c.phrase(nominal, c.tables.objects[verb], object_role(verb, frame.negative), PLAIN)
    action = Action(verb, tense, modal, thing, c.phrase(somebody))
    return _clause(c, c.phrase(doer, verb, frame.negative, None), action, frame, tense, None)


def quality(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Something is so."""
    word = c.pick(c.tables.words.adjectives)
    tense = c.pick(TENSES)
    frame = _frame(c, moods, OPEN, True, tense == PRESENT)
    degree = None if word.comparative == "-" else c.phrase(one, (None,) * 3 + c.tables.words.degrees)
    subject = c.phrase(bare_subject, c.tables.bearers[word], "P" in word.kinds, frame.negative)
    return _clause(c, subject, Quality(word, tense, degree), frame, tense, None)


def comparison(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Something is more so than something else."""
    word, kind = key = c.pick(c.tables.compared)
    tense = c.pick(TENSES)
    negative = c.pick(SOMETIMES)
    subject = c.phrase(bare_subject, c.tables.alike[key], kind == "P", negative)
    other = c.phrase(nominal, c.tables.kinds[kind], "definite", BARE)
    return Clause(subject, Comparison(word, tense, c.phrase(one, c.tables.words.comparisons), other),
                  c.phrase(middle, negative, True))


def passive(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Something is done by somebody."""
    verb = c.pick(c.tables.passive)
    tense = c.pick(TENSES)
    shape = c.pick(THINGS)
    frame = _frame(c, moods, OPEN, False, False)
    thing = c.phrase(nominal, c.tables.objects[verb], "definite" if frame.negative else "any", shape)
    agent = c.phrase(somebody) if "P" in verb.subjects else c.phrase(
        nominal, c.tables.subjects[verb], "definite", PLAIN)
    return _clause(c, thing, Suffering(verb, tense, agent), frame, tense, None)


def existence(c: Choice, moods: tuple[str, ...]) -> Clause:
    """Something is somewhere."""
    word = c.pick(c.tables.spots)
    where: Where = c.phrase(one, c.tables.words.cities) if word is None else Place(
        word, c.phrase(nominal, c.tables.places[word], "place", PLAIN))
    thing = c.phrase(nominal, c.tables.present[word], "indefinite", PLAIN)
    return Clause(thing, Existence(c.pick(TENSES)), where=where)


KINDS = ((transitive,) * 11 + (intransitive,) * 6 + (giving,) * 4 + (quality,) * 5 + (comparison,) * 3 + (passive,) * 4
         + (existence,) * 3)


def _mode(c: Choice) -> tuple[str, Modal | None]:
    """A tense, or a modal in the present."""
    mode = c.pick(c.tables.modes)
    return (mode, None) if isinstance(mode, str) else (PRESENT, mode)


class Frame(NamedTuple):
    """What surrounds the verb of a clause."""

    asked: bool
    question: Fixed | None
    negative: bool
    moment: str


def _frame(c: Choice, moods: tuple[str, ...], moments: tuple[str, ...], settled: bool, timeless: bool) -> Frame:
    """Of what is `settled`, a state or a way to a place, only why is asked. What is `timeless` has no time."""
    if c.pick(moods) == TELL:
        return Frame(False, None, c.pick(SOMETIMES), NEVER if timeless else c.pick(moments))
    questions = c.tables.words.questions
    question = c.pick((None, None, *(questions[:1] if settled else questions)))
    ends = not question and not timeless and LAST in moments
    return Frame(True, question, False, c.pick(OPEN_QUESTION) if ends else NEVER)


def _clause(c: Choice, subject: Subject, predicate: Predicate, frame: Frame, tense: str, where: Where | None) -> Clause:
    asked, question, negative, moment = frame
    settled = moment != NEVER or question is not None or (
        isinstance(predicate, Action) and "lasts" in predicate.verb.flags)
    return Clause(
        subject, predicate, c.phrase(middle, negative, settled), asked, question,
        c.phrase(when, tense) if moment == FIRST else None, where, c.phrase(when, tense) if moment == LAST else None)
