"""A small part of the lexicon: the whole grammar, with some four hundred English word forms to learn in place of 1,700.

    few()      a Lexicon

For trainings that have minutes: with fewer words each is met often enough, and what is measured is how a model deals
with sentences, not how fast it learns words. Of every kind of noun there are some, so every verb has what it needs.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

from regard.data.phrasebook.lexicon import Lexicon, lexicon
from regard.data.phrasebook.words import Noun

PEOPLE, OTHERS = 4, 2
"""Nouns of each kind, the first ones."""
EVERY = 4
"""Of verbs and adjectives one in so many; of times and manners one in three."""
NUMBERS, NAMES, CITIES, MONTHS, YEARS = 11, 4, 3, 3, 3
"""How many of these there are, the first ones."""


@cache
def few() -> Lexicon:
    """The small lexicon; made once."""
    words = lexicon()
    return replace(words, nouns=_nouns(words.nouns), verbs=words.verbs[::EVERY], adjectives=words.adjectives[::EVERY],
                   counts=words.counts[:NUMBERS], names=words.names[:NAMES], cities=words.cities[:CITIES],
                   months=words.months[:MONTHS], years={when: some[:YEARS] for when, some in words.years.items()},
                   times={when: some[::3] for when, some in words.times.items()}, manners=words.manners[::3])


def _nouns(nouns: tuple[Noun, ...]) -> tuple[Noun, ...]:
    met: Counter[str] = Counter()
    kept = []
    for noun in nouns:
        met[noun.kind] += 1
        if met[noun.kind] <= (PEOPLE if noun.kind == "P" else OTHERS):
            kept.append(noun)
    return tuple(kept)
