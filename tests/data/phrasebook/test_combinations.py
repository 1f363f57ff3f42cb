"""Which words stand together, and how many combinations are held out."""

from collections import Counter

from regard.data.phrasebook.derivation import (
    ActionPredicate,
    AdjectivePredicate,
    CompanyPhrase,
    ComparisonPredicate,
    Coordination,
    ObjectRelative,
    PassivePredicate,
    PlacePhrase,
    SubjectRelative,
    find_combinations,
    split_of_combination,
)
from regard.data.phrasebook.lexicon import full_lexicon


def found(sentence):
    return sorted((word.lemma, noun.lemma) for word, noun in find_combinations(sentence))


def test_adjectives_and_objects(words):
    thing = words.phrase("a new red hat")
    sentence = words.sentence("the old king", ActionPredicate(words.verbs["wear"], "present", None, thing),
                              where=PlacePhrase(words.prepositions["in"], words.phrase("the big garden")))
    assert found(sentence) == [
        ("big", "garden"), ("new", "hat"), ("old", "king"), ("red", "hat"), ("wear", "hat")]


def test_recipients_owners_and_company(words):
    owned = words.phrase("the book", owner=words.phrase("my kind aunt"))
    action = ActionPredicate(words.verbs["give"], "past", None, owned, words.phrase("the small girl"))
    sentence = words.sentence("she", action, where=CompanyPhrase(words.phrase("a sick dog")))
    assert found(sentence) == [("give", "book"), ("kind", "aunt"), ("sick", "dog"), ("small", "girl")]


def test_what_is_said_of_a_noun(words):
    assert found(words.sentence("the apple", AdjectivePredicate(words.adjectives["red"], "present"))) == [("red", "apple")]
    assert found(words.sentence("she", AdjectivePredicate(words.adjectives["tired"], "present"))) == []
    both = Coordination(words.names["Paul"], words.phrase("my aunt"))
    assert found(words.sentence(both, AdjectivePredicate(words.adjectives["tired"], "present"))) == [("tired", "aunt")]
    train = words.phrase("the red train")
    comparison = ComparisonPredicate(words.adjectives["fast"], "present", words.comparisons["more"], train)
    assert found(words.sentence("the car", comparison)) == [("fast", "car"), ("red", "train")]


def test_passives_and_relative_clauses(words):
    suffering = PassivePredicate(words.verbs["eat"], "past", words.phrase("the wild wolf"))
    assert found(words.sentence("the apple", suffering)) == [("eat", "apple"), ("wild", "wolf")]
    doing = SubjectRelative(words.verbs["drive"], "past", None, words.phrase("the old car"))
    suffered = ObjectRelative(words.verbs["see"], "past", None, words.phrase("a young boy"))
    sleep = ActionPredicate(words.verbs["sleep"], "present")
    for relative, expected in ((doing, [("drive", "car"), ("old", "car")]),
                               (suffered, [("see", "man"), ("young", "boy")])):
        assert found(words.sentence(words.phrase("the man", relative=relative), sleep)) == expected


def test_a_pronoun_is_no_combination(words):
    assert found(words.sentence("he", ActionPredicate(words.verbs["see"], "past", None, words.pronouns["she"]))) == []


def test_a_tenth_is_for_test_and_a_tenth_for_validation():
    words = full_lexicon()
    pairs = [(verb, noun) for verb in words.verbs for noun in words.nouns if noun.kind in verb.objects]
    pairs += [(word, noun) for word in words.adjectives for noun in words.nouns if noun.kind in word.kinds]
    shares = Counter(split_of_combination(*pair) for pair in pairs)
    assert 0.08 < shares["test"] / len(pairs) < 0.12
    assert 0.08 < shares["validation"] / len(pairs) < 0.12
    assert sum(shares.values()) == len(pairs) > 5000
