"""The lexicon: every form of every word, against literal tables."""

from collections import Counter

import pytest

from regard.data import phrasebook
from regard.data.phrasebook import lexicon
from regard.data.phrasebook.lexicon import (
    IRREGULAR_VERBS,
    conjugate,
    fixed_phrase,
    full_lexicon,
    number_word,
    small_lexicon,
)


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


def test_it_is_a_part_of_the_lexicon_with_every_kind_of_noun():
    small, whole = small_lexicon(), full_lexicon()
    assert set(small.nouns) < set(whole.nouns)
    assert set(small.verbs) < set(whole.verbs)
    assert {noun.kind for noun in small.nouns} == {noun.kind for noun in whole.nouns}


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_sentences_of_every_split_and_length_can_be_made_of_it(split):
    pairs = [*phrasebook.pairs(1500, seed=4, split=split, clauses=(1, 3), words="few")]
    words = {word.lower() for pair in pairs for word in pair.source_words}
    assert 250 < len(words) < 450
    lengths = sorted(len(pair.source_words) for pair in pairs)
    assert lengths[0] < 8
    assert lengths[-1] > 35
    wider = {word.lower() for pair in phrasebook.pairs(1500, seed=4, split=split, clauses=(1, 3))
             for word in pair.source_words}
    assert len(wider) > 2 * len(words)


def test_an_unknown_lexicon_is_refused():
    with pytest.raises(ValueError, match='"few"'):
        next(phrasebook.pairs(1, words="some"))


@pytest.mark.parametrize(("base", "form"), [
    ("dog", "dogs"), ("box", "boxes"), ("church", "churches"), ("bench", "benches"), ("cherry", "cherries"),
    ("key", "keys"),
    ("princess", "princesses"), ("toy", "toys"), ("wash", "washes"), ("carry", "carries"), ("buy", "buys"),
])
def test_s(base, form):
    assert lexicon.add_s(base) == form
    assert lexicon.third_person(base) == form


def test_irregular_third_persons():
    assert (lexicon.third_person("have"), lexicon.third_person("go")) == ("has", "goes")


@pytest.mark.parametrize(("following", "article"), [
    ("dog", "a"), ("apple", "an"), ("old", "an"), ("honest", "an"), ("hotel", "a"), ("uniform", "a"), ("useful", "a"),
    ("umbrella", "an"), ("English", "an"), ("French", "a"), ("uncle", "an"), ("Italian", "an"), ("ugly", "an"),
])
def test_a_or_an(following, article):
    assert lexicon.indefinite_article(following) == article


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


# infinitive: je, il, nous, vous, ils in the present; il in the imparfait and nous in it; il in the future; participles.
FORMS = {
    "manger": "mange mange mangeons mangez mangent mangeait mangions mangera mangé mangée mangés mangées",
    "commencer": "commence commence commençons commencez commencent commençait commencions commencera "
                 "commencé commencée commencés commencées",
    "acheter": "achète achète achetons achetez achètent achetait achetions achètera acheté achetée achetés achetées",
    "appeler": "appelle appelle appelons appelez appellent appelait appelions appellera "
               "appelé appelée appelés appelées",
    "jeter": "jette jette jetons jetez jettent jetait jetions jettera jeté jetée jetés jetées",
    "préférer": "préfère préfère préférons préférez préfèrent préférait préférions préférera "
                "préféré préférée préférés préférées",
    "protéger": "protège protège protégeons protégez protègent protégeait protégions protégera "
                "protégé protégée protégés protégées",
    "nettoyer": "nettoie nettoie nettoyons nettoyez nettoient nettoyait nettoyions nettoiera "
                "nettoyé nettoyée nettoyés nettoyées",
    "étudier": "étudie étudie étudions étudiez étudient étudiait étudiions étudiera étudié étudiée étudiés étudiées",
    "finir": "finis finit finissons finissez finissent finissait finissions finira fini finie finis finies",
    "vendre": "vends vend vendons vendez vendent vendait vendions vendra vendu vendue vendus vendues",
    "comprendre": "comprends comprend comprenons comprenez comprennent comprenait comprenions comprendra "
                  "compris comprise compris comprises",
    "être": "suis est sommes êtes sont était étions sera été étée étés étées",
    "avoir": "ai a avons avez ont avait avions aura eu eue eus eues",
    "aller": "vais va allons allez vont allait allions ira allé allée allés allées",
    "voir": "vois voit voyons voyez voient voyait voyions verra vu vue vus vues",
    "boire": "bois boit buvons buvez boivent buvait buvions boira bu bue bus bues",
    "écrire": "écris écrit écrivons écrivez écrivent écrivait écrivions écrira écrit écrite écrits écrites",
    "ouvrir": "ouvre ouvre ouvrons ouvrez ouvrent ouvrait ouvrions ouvrira ouvert ouverte ouverts ouvertes",
    "peindre": "peins peint peignons peignez peignent peignait peignions peindra peint peinte peints peintes",
    "connaître": "connais connaît connaissons connaissez connaissent connaissait connaissions connaîtra "
                 "connu connue connus connues",
    "recevoir": "reçois reçoit recevons recevez reçoivent recevait recevions recevra reçu reçue reçus reçues",
    "envoyer": "envoie envoie envoyons envoyez envoient envoyait envoyions enverra envoyé envoyée envoyés envoyées",
    "courir": "cours court courons courez courent courait courions courra couru courue courus courues",
    "venir": "viens vient venons venez viennent venait venions viendra venu venue venus venues",
    "rire": "ris rit rions riez rient riait riions rira ri rie ris ries",
}


@pytest.mark.parametrize("infinitive", FORMS)
def test_forms(infinitive):
    verb = conjugate(infinitive)
    present = [verb.present[person] for person in (0, 2, 3, 4, 5)]
    made = [*present, verb.imperfect[2], verb.imperfect[3], verb.future[2], *verb.participle]
    assert " ".join(made) == FORMS[infinitive]


def test_endings_of_all_verbs():
    for verb in full_lexicon().verbs:
        forms = verb.french
        for made, ends in ((forms.future, "rai ras ra rons rez ront"), (forms.imperfect, "ais ais ait ions iez aient")):
            assert all(map(str.endswith, made, ends.split())), forms.infinitive
        assert forms.present[5].endswith("nt")
        assert forms.present[3].endswith("ons")


def test_every_irregular_verb_has_six_forms_and_is_needed():
    words = full_lexicon()
    used = {verb.french.infinitive for verb in words.verbs + words.modals}
    for infinitive, (present, _, _) in IRREGULAR_VERBS.items():
        assert len(present.split()) == 6
        assert infinitive in used | {"être", "avoir"}
