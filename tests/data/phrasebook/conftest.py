"""What the tests of the phrasebook share: derivations built by hand from lemmas, and small lexicons."""

import dataclasses
import random

import pytest

from regard.data.phrasebook import grammar
from regard.data.phrasebook.derivation import Clause, NounPhrase, Sentence
from regard.data.phrasebook.generator import RandomChooser
from regard.data.phrasebook.grammar import EQUAL_WEIGHTS, GrammarTables
from regard.data.phrasebook.lexicon import full_lexicon, number_word
from regard.data.phrasebook.realization import write_pair


class Words:
    """Finds words by their English lemma, and builds phrases of them."""

    def __init__(self):
        self.lexicon = full_lexicon()
        for field in dataclasses.fields(self.lexicon):
            value = getattr(self.lexicon, field.name)
            if isinstance(value, tuple) and value and hasattr(value[0], "lemma"):
                setattr(self, field.name, {word.lemma: word for word in value})
        self.pronouns = {word.english: word for word in self.lexicon.pronouns}
        self.times = {when.lemma: when for group in self.lexicon.times.values() for when in group}

    def phrase(self, text, **more):
        """`the[+] [before] [after] noun`: a plus makes `the`, `my` and the like plural; a number counts."""
        determiner, *described, lemma = text.split()
        noun = self.nouns[lemma]
        adjectives = [self.adjectives[word] for word in described]
        return NounPhrase(
            self.determiner(determiner, noun), noun,
            next((word for word in adjectives if word.before), None),
            next((word for word in adjectives if not word.before), None), **more)

    def determiner(self, text, noun):
        if text.isdigit():
            return number_word(int(text))
        lemma = text.rstrip("+").replace("_", " ")
        fits = [word for word in self.lexicon.determiners if word.lemma == lemma]
        if lemma == "some":
            return fits[noun.mass]
        return next(word for word in fits if word.plural == text.endswith("+")) if len(fits) > 1 else fits[0]

    def sentence(self, subject, predicate, middle=None, **more):
        subject = self.subject(subject)
        return Sentence((Clause(subject, predicate, self.middles[middle] if middle else None, **more),))

    def subject(self, text):
        if not isinstance(text, str):
            return text
        return self.pronouns.get(text) or self.names.get(text) or self.phrase(text)


@pytest.fixture(scope="session")
def words():
    return Words()


def small(**kept):
    """The lexicon with only these lemmas in each field named; other fields are whole."""
    whole = full_lexicon()
    fields = {}
    for name, lemmas in kept.items():
        value = getattr(whole, name)
        if isinstance(value, dict):
            fields[name] = {tense: tuple(word for word in group if getattr(word, "lemma", word) in lemmas)
                            for tense, group in value.items()}
        elif name == "counts":
            fields[name] = tuple(word for word in value if word.value in lemmas)
        else:
            fields[name] = tuple(word for word in value if word.lemma in lemmas)
    return dataclasses.replace(whole, **fields)


@pytest.fixture(scope="session", name="small")
def small_fixture():
    return small


@pytest.fixture(scope="session")
def whole_sample():
    """Derivations of the whole language, of one to three clauses; some come twice."""
    sampler = RandomChooser(GrammarTables(full_lexicon(), EQUAL_WEIGHTS), random.Random(7).random)
    return [grammar.sentence_rule(sampler, sampler.pick((1, 1, 1, 2, 3))) for _ in range(20_000)]


@pytest.fixture(scope="session")
def whole_pairs(whole_sample):
    """The same, written."""
    return [write_pair(sentence) for sentence in whole_sample]
