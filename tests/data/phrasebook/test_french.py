"""Plurals, feminines and numbers against forms typed by hand."""

import pytest

from regard.data.phrasebook import lexicon
from regard.data.phrasebook.lexicon import full_lexicon, number_word


@pytest.mark.parametrize(("singular", "plural"), [
    ("chien", "chiens"), ("cheval", "chevaux"), ("hôpital", "hôpitaux"), ("oiseau", "oiseaux"), ("jeu", "jeux"),
    ("souris", "souris"), ("noix", "noix"), ("beau", "beaux"), ("loyal", "loyaux"), ("vieux", "vieux"),
    ("bleu", "bleus"),
])
def test_plurals(singular, plural):
    assert lexicon.french_plural(singular) == plural


def test_adjectives():
    forms = {word.lemma: " ".join(word.french) for word in full_lexicon().adjectives}
    expected = {
        "beautiful": "beau belle beaux belles", "old": "vieux vieille vieux vieilles",
        "new": "nouveau nouvelle nouveaux nouvelles", "white": "blanc blanche blancs blanches",
        "long": "long longue longs longues", "happy": "heureux heureuse heureux heureuses",
        "light": "léger légère légers légères", "expensive": "cher chère chers chères",
        "proud": "fier fière fiers fières",
        "Italian": "italien italienne italiens italiennes", "French": "français française français françaises",
        "kind": "gentil gentille gentils gentilles", "loyal": "loyal loyale loyaux loyales",
        "jealous": "jaloux jalouse jaloux jalouses", "false": "faux fausse faux fausses",
        "fresh": "frais fraîche frais fraîches", "good": "bon bonne bons bonnes", "grey": "gris grise gris grises",
        "red": "rouge rouge rouges rouges", "tired": "fatigué fatiguée fatigués fatiguées",
        "fat": "gros grosse gros grosses", "bad": "mauvais mauvaise mauvais mauvaises",
        "blue": "bleu bleue bleus bleues", "polite": "poli polie polis polies",
    }
    assert {lemma: forms[lemma] for lemma in expected} == expected


@pytest.mark.parametrize(("value", "english", "masculine", "feminine"), [
    (2, "two", "deux", None), (8, "eight", "*huit", None), (11, "eleven", "*onze", None),
    (17, "seventeen", "dix-sept", None),
    (20, "twenty", "vingt", None), (21, "twenty-one", "vingt et un", "vingt et une"),
    (22, "twenty-two", "vingt-deux", None),
    (28, "twenty-eight", "vingt-huit", None), (31, "thirty-one", "trente et un", "trente et une"),
    (61, "sixty-one", "soixante et un", "soixante et une"), (70, "seventy", "soixante-dix", None),
    (71, "seventy-one", "soixante et onze", None), (72, "seventy-two", "soixante-douze", None),
    (80, "eighty", "quatre-vingts", None), (81, "eighty-one", "quatre-vingt-un", "quatre-vingt-une"),
    (90, "ninety", "quatre-vingt-dix", None), (91, "ninety-one", "quatre-vingt-onze", None),
    (99, "ninety-nine", "quatre-vingt-dix-neuf", None), (100, "one hundred", "cent", None),
    (101, "one hundred and one", "cent un", "cent une"), (180, "one hundred and eighty", "cent quatre-vingts", None),
    (200, "two hundred", "deux cents", None), (221, "two hundred and twenty-one", "deux cent vingt et un",
                                               "deux cent vingt et une"),
    (800, "eight hundred", "*huit cents", None),
    (971, "nine hundred and seventy-one", "neuf cent soixante et onze", None),
])
def test_numbers(value, english, masculine, feminine):
    number = number_word(value)
    assert number.masculine.lemma == english
    assert " ".join(word for word, _ in number.masculine.french) == masculine
    assert " ".join(word for word, _ in number.feminine.french) == (feminine or masculine)


def test_numbers_differ():
    counts = full_lexicon().counts
    for form in (lambda number: number.masculine.english, lambda number: number.feminine.french):
        assert len({" ".join(word for word, _ in form(number)) for number in counts}) == len(counts) == 998
