"""French verbs against forms typed by hand."""

import pytest

from regard.data.phrasebook.lexicon import IRREGULAR_VERBS, conjugate, full_lexicon

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
    used = {verb.french.infinitive for verb in full_lexicon().verbs} | {verb.french.infinitive for verb in full_lexicon().modals}
    for infinitive, (present, _, _) in IRREGULAR_VERBS.items():
        assert len(present.split()) == 6
        assert infinitive in used | {"être", "avoir"}
