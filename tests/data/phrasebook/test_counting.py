"""The count of sentences, against all sentences of small lexicons written one by one."""

import dataclasses

import pytest

from regard.data import phrasebook
from regard.data.phrasebook import generator, grammar
from regard.data.phrasebook import grammar as choosing
from regard.data.phrasebook.grammar import EQUAL_WEIGHTS, make_tables
from regard.data.phrasebook.lexicon import Month


class Everything:
    """Answers the choices of a whole derivation by a script, and then with the first option."""

    persons = choosing.PERSONS

    def __init__(self, options, script):
        self.tables = options
        self.script = script
        self.widths = []

    def pick(self, options):
        distinct = list(dict.fromkeys(options))
        if not distinct:
            raise LookupError
        place = len(self.widths)
        self.widths.append(len(distinct))
        return distinct[self.script[place] if place < len(self.script) else 0]

    def phrase(self, rule, *features):
        return rule(self, *features)


def written(words):
    """Every derivation of a lexicon, written."""
    options = make_tables(words, EQUAL_WEIGHTS)
    script = []
    while True:
        answers = Everything(options, script)
        try:
            sentence = grammar.sentence_rule(answers, 1)
        except LookupError:
            pass
        else:
            yield phrasebook.write_pair(sentence)
        script = [script[place] if place < len(script) else 0 for place in range(len(answers.widths))]
        while script and script[-1] + 1 == answers.widths[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1


NOTHING = dict.fromkeys(
    ("nouns", "verbs", "adjectives", "counts", "pronouns", "names", "manners", "prepositions", "cities", "modals",
     "questions", "degrees", "comparisons", "times", "months", "years", "units"), ())
BASE = {**NOTHING, "determiners": ["the"], "middles": ["not"], "names": ["Paul"]}
SMALL = {
    "object": {"nouns": ["apple"], "verbs": ["sleep", "eat"], "pronouns": ["he"], "adjectives": ["red"]},
    "relative": {"nouns": ["man"], "verbs": ["look at"], "names": (), "middles": ()},
    "pronouns": {"nouns": ["dog"], "verbs": ["help"], "pronouns": ["I", "we", "she", "they"], "modals": ["can"],
                 "middles": ["not", "often"]},
    "recipient": {"nouns": ["book"], "verbs": ["give", "write"], "pronouns": ["you"], "middles": ()},
    "adjectives": {"nouns": ["cat"], "verbs": ["rest"], "adjectives": ["big", "young", "sick"], "names": (),
                   "middles": (), "comparisons": ["more", "as"], "degrees": ["very"]},
    "places": {"nouns": ["lion", "bread", "table", "park"], "verbs": ["run"], "prepositions": ["on", "in"],
               "cities": ["in Paris"], "determiners": ["the", "a", "some", "many", "my"], "counts": [2, 21],
               "middles": (), "manners": ["slowly"]},
    "times": {"nouns": ["man"], "verbs": ["work"], "years": [1998, 2040], "times": ["now", "yesterday", "on Monday"],
              "counts": [3], "units": ["day"], "modals": ["can", "want"], "questions": ["why", "when"]},
    "states": {"nouns": ["wine", "poem"], "verbs": ["love", "prefer"], "times": ["now", "yesterday"],
               "middles": ["not", "never"], "questions": ["why", "where"]},
}


@pytest.mark.parametrize("name", SMALL)
def test_the_count_is_the_number_of_distinct_sentences(small, name):
    words = small(**{**BASE, **SMALL[name]})
    if name == "times":
        words = dataclasses.replace(words, months=(Month("May", "mai", 2),))
    pairs = list(written(words))
    assert len(pairs) > 300
    assert len({pair.source for pair in pairs}) == len(pairs) == generator.count_in_lexicon(words)
    translation = {pair.source: pair.target for pair in pairs}
    assert all(translation[pair.source] == pair.target for pair in pairs)


def test_one_english_sentence_has_one_derivation(whole_sample):
    derivations = {}
    for sentence in whole_sample:
        assert derivations.setdefault(phrasebook.write_pair(sentence).source, sentence) == sentence


def test_there_are_more_than_a_billion():
    assert phrasebook.count_sentences() > 10**9
