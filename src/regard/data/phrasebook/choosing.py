"""How a derivation is chosen: who answers, and the rules for phrases.

A rule asks for choices and does not make them. Whoever answers decides what comes of it: at random, one sentence; all
answers in turn, every sentence; a count of the answers, how many sentences there are. So that counting is possible, a
rule may look at what it picked, but not into a phrase that it asked for: what others depend on is picked first.

The rules for clauses are in grammar.py. Nothing here writes a word.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from regard.data.phrasebook.lexicon import Middle
from regard.data.phrasebook.tables import Tables
from regard.data.phrasebook.tree import (
    FUTURE,
    PAST,
    PRESENT,
    Ago,
    Both,
    Company,
    Date,
    Hence,
    Nominal,
    ObjectRelative,
    Place,
    Relative,
    Subject,
    When,
    Where,
    Year,
)
from regard.data.phrasebook.words import Count, Determiner, Fixed, Name, Noun, Pronoun, Verb

Option = TypeVar("Option")

# Shapes of a phrase; a bare one has no adjectives.
PLAIN, BARE, OWNED, RELATIVE, PRONOUN, NAME, BOTH = "plain", "bare", "owned", "relative", "pronoun", "name", "both"
NOWHERE, THERE, SO, WITH = "nowhere", "there", "so", "with"

# What is chosen from; an option stands as often as it weighs.
PERSONS = (PLAIN,) * 8 + (PRONOUN,) * 6 + (NAME,) * 3 + (OWNED, RELATIVE)
THINGS = (PLAIN,) * 8 + (OWNED,) * 2 + (RELATIVE,)
BARE_PERSONS = (BARE,) * 8 + (PRONOUN,) * 6 + (NAME,) * 3 + (OWNED,)
BARE_THINGS = (BARE,) * 8 + (OWNED,) * 2
SOMETIMES = (False, False, False, True)
RELATIVE_TENSES = (PRESENT, PRESENT, PAST, PAST, FUTURE)


class Choice(Protocol):
    """Who answers. `pick` gives one of the options, which stand as often as they weigh; `phrase` follows a rule."""

    tables: Tables
    persons: tuple[str, ...]
    """the shapes of a phrase for a person: PERSONS, with or without BOTH"""

    def pick(self, options: Sequence[Option]) -> Option: ...

    def phrase(self, rule: Callable[..., Option], *features: Any) -> Option: ...


def one(c: Choice, options: Sequence[Option]) -> Option:
    """One of these, when nothing else depends on which."""
    return c.pick(options)


def doer(c: Choice, verb: Verb, negative: bool, beside: Pronoun | None) -> Subject:
    """The subject of a verb, beside a pronoun as its object."""
    if "P" not in verb.subjects:
        return c.phrase(nominal, c.tables.subjects[verb], "definite" if negative else "any", c.pick(THINGS))
    shape = c.pick(c.persons)
    if shape == PRONOUN:
        return c.phrase(one, c.tables.beside[beside])
    if shape == NAME:
        return c.phrase(one, c.tables.words.names)
    if shape == BOTH:
        return Both(c.phrase(one, c.tables.words.names), c.phrase(nominal, c.tables.subjects[verb], "definite", PLAIN))
    return c.phrase(nominal, c.tables.subjects[verb], "definite" if negative else "any", shape)


def bare_subject(c: Choice, nouns: tuple[Noun, ...], persons: bool, negative: bool) -> Subject:
    """What an adjective is said of, itself without adjectives: `the wild cat is wild` says nothing."""
    shape = c.pick(BARE_PERSONS if persons else BARE_THINGS)
    if shape == PRONOUN:
        return c.phrase(one, c.tables.words.pronouns)
    if shape == NAME:
        return c.phrase(one, c.tables.words.names)
    if shape == OWNED:
        noun = c.pick(nouns)
        return Nominal(c.phrase(determined, "only the", noun.mass), noun, owner=c.phrase(somebody))
    return c.phrase(nominal, nouns, "definite" if negative else "any", BARE)


def somebody(c: Choice) -> Nominal | Name:
    """A certain person."""
    if c.pick((PLAIN, PLAIN, PLAIN, NAME)) == NAME:
        return c.phrase(one, c.tables.words.names)
    return c.phrase(nominal, c.tables.people, "definite", PLAIN)


def nominal(c: Choice, nouns: tuple[Noun, ...], role: str, shape: str) -> Nominal:
    """One of these nouns with what belongs to it."""
    return c.phrase(described, c.pick(nouns), role, shape)


def described(c: Choice, noun: Noun, role: str, shape: str) -> Nominal:
    """This noun: bare or with adjectives, with an owner, or with a relative clause."""
    before, after = c.tables.before[noun], c.tables.after[noun]
    has_before, has_after = (False, False) if shape == BARE else c.pick(
        c.tables.patterns[bool(before), bool(after), shape == PLAIN])
    return Nominal(
        c.phrase(determined, role if shape in (PLAIN, BARE) else "only the", noun.mass), noun,
        c.phrase(one, before) if has_before else None, c.phrase(one, after) if has_after else None,
        c.phrase(somebody) if shape == OWNED else None, c.phrase(relative, noun) if shape == RELATIVE else None)


def object_role(verb: Verb, negative: bool) -> str:
    """The role of the object of a verb."""
    return "definite" if verb.preposition or "definite" in verb.flags else "denied" if negative else "any"


def determined(c: Choice, role: str, mass: bool) -> Determiner | Count:
    """A determiner that fits the role."""
    word = c.pick(c.tables.determiners[role, mass])
    return word if isinstance(word, Determiner) else c.phrase(one, c.tables.counts)


def relative(c: Choice, noun: Noun) -> Relative | ObjectRelative:
    """What the noun does, or what is done to it."""
    tables = c.tables
    doers = tables.doers.get(noun.kind, ())
    takers = tables.takers[noun]
    tense = c.pick(RELATIVE_TENSES)
    negative = c.pick(SOMETIMES)
    if c.pick((True,) * (2 * bool(doers)) + (False,) * bool(takers)):
        verb = c.pick(doers)
        thing = c.phrase(nominal, tables.objects[verb], object_role(verb, negative), PLAIN) if verb.objects else None
        return Relative(verb, tense, c.phrase(middle, negative, "lasts" in verb.flags), thing)
    verb = c.pick(takers)
    adverb = c.phrase(middle, negative, "lasts" in verb.flags)
    return ObjectRelative(verb, tense, adverb, c.phrase(short_doer, verb))


def short_doer(c: Choice, verb: Verb) -> Subject:
    """The subject inside a relative clause."""
    if "P" in verb.subjects:
        shape = c.pick((PLAIN, PLAIN, PRONOUN, PRONOUN, NAME))
        if shape != PLAIN:
            return c.phrase(one, c.tables.words.pronouns if shape == PRONOUN else c.tables.words.names)
    return c.phrase(nominal, c.tables.subjects[verb], "definite", PLAIN)


def middle(c: Choice, negative: bool, settled: bool) -> Middle | None:
    """Not, never, often, or nothing; where a time, a question or a state settles how often, only not or nothing."""
    return c.pick(c.tables.middles[negative, settled])


def place(c: Choice, ways: tuple[str, ...]) -> Where | None:
    """Where, how or with whom."""
    words = c.tables.words
    sort = c.pick(ways)
    if sort == SO:
        return c.phrase(one, words.manners)
    if sort == WITH:
        return Company(c.phrase(somebody))
    if sort == NOWHERE:
        return None
    word = c.pick(c.tables.spots)
    if word is None:
        return c.phrase(one, words.cities)
    return Place(word, c.phrase(nominal, c.tables.places[word], "place", PLAIN))


def when(c: Choice, tense: str) -> When:
    """A time that fits the tense."""
    words = c.tables.words
    fixed = words.times[tense]
    if tense == PRESENT:
        return c.phrase(one, fixed)
    years = words.years[tense]
    sort = c.pick((Fixed, Fixed, Date, Date, Year, Ago if tense == PAST else Hence))
    if sort is Date:
        month = c.pick(words.months)
        return Date(c.phrase(one, range(1, month.days + 1)), month, c.phrase(one, years))
    if sort is Year:
        return Year(c.phrase(one, years))
    if sort is Fixed:
        return c.phrase(one, fixed)
    count, unit = c.phrase(one, c.tables.few), c.phrase(one, words.units)
    return Ago(count, unit) if sort is Ago else Hence(count, unit)
