"""The options of each split: none is empty where the grammar picks, and what is held out is where it should be."""

import pytest

from regard.data.phrasebook.derivation import TEST, TRAIN, VALIDATION, split_of_combination
from regard.data.phrasebook.grammar import EQUAL_WEIGHTS, SPLIT_WEIGHTS, make_tables
from regard.data.phrasebook.lexicon import full_lexicon


@pytest.mark.parametrize("split", [TRAIN, VALIDATION, TEST])
def test_every_word_can_be_used(split):
    words = full_lexicon()
    options = make_tables(words, SPLIT_WEIGHTS[split])
    assert all(options.objects[verb] for verb in words.verbs if verb.objects)
    assert all(options.subjects[verb] for verb in words.verbs)
    assert all(options.bearers[word] for word in words.adjectives)
    for noun in words.nouns:
        assert options.takers[noun], noun.lemma
        assert options.before[noun] + options.after[noun], noun.lemma
    assert {noun for found in options.objects.values() for noun in found} == set(words.nouns)
    assert all(options.places.values())
    assert all(options.present.values())
    assert all(found for (role, mass), found in options.determiners.items() if not (mass and role == "place"))


def test_shares_are_where_they_should_be():
    words = full_lexicon()
    for split, kept in ((TRAIN, {TRAIN}), (VALIDATION, {TRAIN, VALIDATION}), (TEST, {TRAIN, VALIDATION, TEST})):
        options = make_tables(words, SPLIT_WEIGHTS[split])
        found = {split_of_combination(verb, noun) for verb, nouns in options.objects.items() for noun in nouns}
        found |= {split_of_combination(word, noun) for word, nouns in options.bearers.items() for noun in nouns}
        found |= {split_of_combination(word, noun) for noun, owned in options.before.items() for word in owned}
        found |= {split_of_combination(verb, noun) for noun, verbs in options.takers.items() for verb in verbs}
        assert found == kept


def test_a_verb_and_its_noun_fit():
    options = make_tables(full_lexicon(), EQUAL_WEIGHTS)
    by_lemma = {verb.lemma: {noun.lemma for noun in nouns} for verb, nouns in options.objects.items()}
    assert by_lemma["drink"] == {"water", "milk", "coffee", "tea", "wine", "beer"}
    assert "lion" not in by_lemma["wear"]
    assert by_lemma["open"] == {"door", "window", "box", "drawer", "suitcase", "cupboard"}
    assert {noun.lemma for noun in options.people} > {"man", "queen", "baker"}


def test_masses_are_not_counted():
    options = make_tables(full_lexicon(), EQUAL_WEIGHTS)
    for role in ("any", "definite", "denied", "indefinite", "only the"):
        mass, counted = options.determiners[role, True], options.determiners[role, False]
        assert not any(word == "number" or word.plural or word.lemma in ("a", "every") for word in mass)
        assert all(word == "number" or word.french[0] != ("de", "le") for word in counted)


@pytest.mark.parametrize(("pronoun", "beside"), [
    ("I", {"he", "she", "they", "you"}), ("we", {"he", "she", "they", "you"}),
    ("you", {"I", "we", "he", "she", "they"}),
    ("she", {"I", "you", "he", "she", "we", "they"}),
])
def test_pronouns_beside_each_other(words, pronoun, beside):
    options = make_tables(full_lexicon(), EQUAL_WEIGHTS)
    assert {word.english for word in options.beside[words.pronouns[pronoun]]} == beside
