"""The words: enough of them, each once, and none whose form hides its number or its tense."""

from collections import Counter

from regard.data import phrasebook
from regard.data.phrasebook.lexicon import fixed_phrase, full_lexicon


def test_lemmas():
    lemmas = phrasebook.lemmas()
    assert len(lemmas) >= 400
    assert len({(lemma.category, lemma.english) for lemma in lemmas}) == len(lemmas)
    assert all(lemma.english and lemma.french and "*" not in lemma.french for lemma in lemmas)
    of_category = Counter(lemma.category for lemma in lemmas)
    assert of_category["noun"] >= 200
    assert of_category["verb"] >= 100
    assert of_category["adjective"] >= 70


def test_forms_tell_number_and_tense():
    words = full_lexicon()
    assert all(noun.english[0] != noun.english[1] for noun in words.nouns)
    assert all(verb.past not in (verb.base, verb.third) for verb in words.verbs)
    every = [form for noun in words.nouns for form in noun.english]
    assert len(set(every)) == len(every)


def test_a_form_of_a_verb_belongs_to_one_verb():
    """But for verbs with different particles, and a verb that has none of them without an object."""
    words = full_lexicon()
    assert len({verb.lemma for verb in words.verbs}) == len(words.verbs)
    for attribute in ("base", "third", "past"):
        lemmas_of = {}
        for verb in words.verbs:
            lemmas_of.setdefault((getattr(verb, attribute), verb.particle), []).append(verb.lemma)
        assert all(len(lemmas) == 1 for lemmas in lemmas_of.values())


def test_particles_are_no_prepositions_of_place_or_company():
    words = full_lexicon()
    places = {word for preposition in words.prepositions for word, _ in preposition.words.english} | {"with", "by"}
    with_object = [verb for verb in words.verbs if verb.objects and verb.particle not in ("", "of")]
    assert with_object
    assert not {verb.particle for verb in with_object} & places


def test_a_passive_is_no_adjective():
    words = full_lexicon()
    adjectives = {word.lemma for word in words.adjectives}
    assert not adjectives & {verb.participle for verb in words.verbs if verb.objects}


def test_templates():
    phrase = fixed_phrase("last/1 week/2", "la/2 semaine/2 dernière/1")
    assert phrase.english == (("last", 1), ("week", 2))
    assert phrase.french == (("la", 2), ("semaine", 2), ("dernière", 1))
    assert fixed_phrase("on/1 Monday/2", "lundi/12").french == (("lundi", 3),)
    assert (fixed_phrase("because", "parce que").width, phrase.width) == (1, 2)
