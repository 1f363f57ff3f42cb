"""What the grammar may choose from: for every word, the words that can stand with it.

A table is a tuple in which an option stands as often as it weighs. Tables are made from a lexicon and from how often a
combination of each share is to stand in them: none at all keeps it out. They know nothing of sentences.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from regard.data.phrasebook.combinations import TEST, TRAIN, VALIDATION, share
from regard.data.phrasebook.lexicon import Lexicon, Middle
from regard.data.phrasebook.tree import FUTURE, PAST, PRESENT
from regard.data.phrasebook.words import Adjective, Count, Determiner, Modal, Noun, Preposition, Pronoun, Verb

Word = TypeVar("Word", Adjective, Verb)

# How often a combination of each share stands in the tables of a split. Those held out together weigh as much as the
# others together, so that about every second choice is one of them.
WEIGHTS: dict[str, dict[str, int]] = {
    TRAIN: {TRAIN: 1, VALIDATION: 0, TEST: 0},
    VALIDATION: {TRAIN: 1, VALIDATION: 8, TEST: 0},
    TEST: {TRAIN: 1, VALIDATION: 1, TEST: 9},
}
WHOLE = {TRAIN: 1, VALIDATION: 1, TEST: 1}

NUMBER = "number"
Determining = Determiner | str
# Roles of a phrase: how often each determiner stands there. `number` is any number in words.
POSSESSIVE = dict.fromkeys(("my", "your", "his", "her", "our", "their"), 1)
DEFINITE = {"the": 9, "this": 2, "these": 2, **POSSESSIVE}
ROLES: dict[str, dict[str, int]] = {
    "definite": DEFINITE,
    "any": {**DEFINITE, "a": 8, "some": 4, "every": 2, "several": 2, "many": 2, "a few": 2, "all the": 2, NUMBER: 5},
    "denied": {**DEFINITE, "a": 8, "some": 6},
    "indefinite": {"a": 5, "some": 3, "several": 1, "many": 1, "a few": 1, NUMBER: 3},
    "place": {"the": 9, "this": 2, "a": 3, **POSSESSIVE},
    "only the": {"the": 1},
}
TENSES = (PRESENT,) * 4 + (PAST,) * 3 + (FUTURE,) * 2
LIVING, LARGE, SMALL = "PA", "PAV", "TCFWBM"
"""kinds of what is in a place, of what is before it or in a city, and of what is on or under a piece of furniture"""


@dataclass(frozen=True, eq=False)
class Tables:
    """The options, by what they go with."""

    words: Lexicon
    subjects: Mapping[Verb, tuple[Noun, ...]]
    objects: Mapping[Verb, tuple[Noun, ...]]
    takers: Mapping[Noun, tuple[Verb, ...]]
    """verbs that can act on a noun, and can stand in its relative clause"""
    doers: Mapping[str, tuple[Verb, ...]]
    """verbs that a kind of noun can be the subject of"""
    before: Mapping[Noun, tuple[Adjective, ...]]
    after: Mapping[Noun, tuple[Adjective, ...]]
    bearers: Mapping[Adjective, tuple[Noun, ...]]
    """nouns of which an adjective can be said"""
    compared: tuple[tuple[Adjective, str], ...]
    """adjectives that are compared, each with the kinds of nouns it is said of"""
    alike: Mapping[tuple[Adjective, str], tuple[Noun, ...]]
    """the bearers of one kind"""
    kinds: Mapping[str, tuple[Noun, ...]]
    transitive: tuple[Verb, ...]
    intransitive: tuple[Verb, ...]
    giving: tuple[Verb, ...]
    passive: tuple[Verb, ...]
    people: tuple[Noun, ...]
    places: Mapping[Preposition, tuple[Noun, ...]]
    present: Mapping[Preposition | None, tuple[Noun, ...]]
    """what can be there, by the preposition of the place; None is for cities"""
    determiners: Mapping[tuple[str, bool], tuple[Determining, ...]]
    """by role, and by whether the noun is a mass"""
    patterns: Mapping[tuple[bool, bool, bool], tuple[tuple[bool, bool], ...]]
    """whether a noun has adjectives before and after it; by whether there are any for each side, and both may be"""
    modes: tuple[str | Modal, ...]
    """tenses, and modals in the present"""
    middles: Mapping[tuple[bool, bool], tuple[Middle | None, ...]]
    """by whether the verb is negated, and whether it is settled how often: then only `not`; `often yesterday` is odd"""
    spots: tuple[Preposition | None, ...]
    """prepositions of place; None is for cities"""
    beside: Mapping[Pronoun | None, tuple[Pronoun, ...]]
    """pronouns that can be the subject where another one is the object: not `I` beside `us`"""
    counts: tuple[Count, ...]
    few: tuple[Count, ...]


def tables(words: Lexicon, weights: Mapping[str, int]) -> Tables:
    """The tables of a language in which combinations of each share weigh as said."""
    nouns = words.nouns
    acted = {verb: [noun for noun in nouns if noun.kind in verb.objects] for verb in words.verbs}
    said = {word: [noun for noun in nouns if noun.kind in word.kinds] for word in words.adjectives}
    objects = {verb: tuple(noun for noun in acted[verb] for _ in range(weights[share(verb, noun)])) for verb in acted}
    bearers = {word: tuple(noun for noun in said[word] for _ in range(weights[share(word, noun)])) for word in said}
    transitive = tuple(verb for verb in words.verbs if objects[verb] and "only gives" not in verb.flags)
    intransitive = tuple(verb for verb in words.verbs if not verb.objects)
    alike = {(word, kind): _of_kinds(bearers[word], kind) for word in bearers for kind in word.kinds}
    simple = [verb for verb in transitive if not verb.preposition]
    return Tables(
        words=words,
        subjects={verb: _of_kinds(nouns, verb.subjects) for verb in words.verbs},
        objects=objects,
        takers=_turned({verb: objects[verb] for verb in simple}, nouns),
        doers={kind: tuple(verb for verb in intransitive + transitive if kind in verb.subjects) for kind in "PA"},
        before=_turned({word: bearers[word] for word in bearers if word.before}, nouns),
        after=_turned({word: bearers[word] for word in bearers if not word.before}, nouns),
        bearers=bearers,
        compared=tuple(key for key, found in alike.items() if found and key[0].comparative != "-"),
        alike=alike,
        kinds={kind: _of_kinds(nouns, kind) for kind in {noun.kind: None for noun in nouns}},
        transitive=transitive,
        intransitive=intransitive,
        giving=tuple(verb for verb in words.verbs if objects[verb] and verb.flags & {"gives", "only gives"}),
        passive=tuple(verb for verb in simple if "lasts" not in verb.flags),
        people=_of_kinds(nouns, "P"),
        places={word: _of_kinds(nouns, word.kinds) for word in words.prepositions},
        present={None: _of_kinds(nouns, LARGE)} | {
            word: _of_kinds(nouns, SMALL if word.kinds == "S" else LARGE if "V" in word.kinds else LIVING)
            for word in words.prepositions},
        determiners={(role, mass): _determiners(words, role, mass) for role in ROLES for mass in (False, True)},
        patterns={(before, after, both): _patterns(before, after, both)
                  for before, after, both in itertools.product((False, True), repeat=3)},
        modes=(*TENSES * 2, *words.modals),
        middles=_middles(words),
        spots=(None, None, *(word for word in words.prepositions for _ in range(1 if word.kinds == "S" else 2))),
        beside={None: words.pronouns} | {word: _beside(word, words.pronouns) for word in words.pronouns},
        counts=tuple(count for count in words.counts for _ in range(_weight(count.value))),
        few=tuple(count for count in words.counts if count.value <= 12),
    )


def _of_kinds(nouns: Iterable[Noun], kinds: str) -> tuple[Noun, ...]:
    return tuple(noun for noun in nouns if noun.kind in kinds)


def _turned(table: Mapping[Word, Iterable[Noun]], nouns: Iterable[Noun]) -> dict[Noun, tuple[Word, ...]]:
    """From nouns by word to words by noun; weights are kept."""
    turned: dict[Noun, list[Word]] = {noun: [] for noun in nouns}
    for word, found in table.items():
        for noun in found:
            turned[noun].append(word)
    return {noun: tuple(found) for noun, found in turned.items()}


def _determiners(words: Lexicon, role: str, mass: bool) -> tuple[Determining, ...]:
    """A mass is never counted: only singulars, and of `some` the form that is for it."""
    found: list[Determining] = []
    for word in words.determiners:
        partitive = len(word.french[0]) == 2 and word.lemma == "some"
        if role == "place" and word.plural:
            continue
        singular = not word.plural and word.lemma not in ("a", "every")
        fits = partitive or singular if mass else not partitive
        found += [word] * (ROLES[role].get(word.lemma, 0) if fits else 0)
    return (*found, *[NUMBER] * (0 if mass else ROLES[role].get(NUMBER, 0)))


def _beside(word: Pronoun, others: tuple[Pronoun, ...]) -> tuple[Pronoun, ...]:
    """Nobody does anything to himself: with the first or the second person as the object, another as the subject."""
    third = word.person % 3 == 2
    return tuple(other for other in others if third or other.person % 3 != word.person % 3)


def _patterns(before: bool, after: bool, both: bool) -> tuple[tuple[bool, bool], ...]:
    options = (False, False), (True, False), (False, True), (True, True)
    weights = 6, 2 * before, 2 * after, before and after and both
    return tuple(option for option, weight in zip(options, weights, strict=True) for _ in range(weight))


def _middles(words: Lexicon) -> dict[tuple[bool, bool], tuple[Middle | None, ...]]:
    negative = tuple(word for word in words.middles if word.negative)
    plain = tuple(word for word in negative if word.lemma == "not")
    adverbs = tuple(word for word in words.middles if not word.negative)
    return {(True, True): plain, (True, False): plain * 2 + negative, (False, True): (None,),
            (False, False): (None,) * max(1, 4 * len(adverbs)) + adverbs}


def _weight(value: int) -> int:
    """Small numbers are said more often: about two fifths up to twelve, as many up to a hundred."""
    return 160 if value <= 12 else 20 if value < 100 else 1
