"""How French verbs are conjugated: present, imparfait, futur simple, past participle.

Regular verbs follow their endings, with the changes of spelling in -er verbs; the others are in a table. It knows
neither the words of the phrasebook nor how verbs are used.
"""

from regard.data.phrasebook.french import four
from regard.data.phrasebook.words import Conjugation

# infinitive: present, stem of the future, participle. The imparfait has the stem of the first person plural.
IRREGULAR: dict[str, tuple[str, str, str]] = {
    "être": ("suis es est sommes êtes sont", "ser", "été"),
    "avoir": ("ai as a avons avez ont", "aur", "eu"),
    "aller": ("vais vas va allons allez vont", "ir", "allé"),
    "boire": ("bois bois boit buvons buvez boivent", "boir", "bu"),
    "comprendre": ("comprends comprends comprend comprenons comprenez comprennent", "comprendr", "compris"),
    "conduire": ("conduis conduis conduit conduisons conduisez conduisent", "conduir", "conduit"),
    "connaître": ("connais connais connaît connaissons connaissez connaissent", "connaîtr", "connu"),
    "construire": ("construis construis construit construisons construisez construisent", "construir", "construit"),
    "courir": ("cours cours court courons courez courent", "courr", "couru"),
    "décrire": ("décris décris décrit décrivons décrivez décrivent", "décrir", "décrit"),
    "découvrir": ("découvre découvres découvre découvrons découvrez découvrent", "découvrir", "découvert"),
    "détruire": ("détruis détruis détruit détruisons détruisez détruisent", "détruir", "détruit"),
    "devoir": ("dois dois doit devons devez doivent", "devr", "dû"),
    "dormir": ("dors dors dort dormons dormez dorment", "dormir", "dormi"),
    "écrire": ("écris écris écrit écrivons écrivez écrivent", "écrir", "écrit"),
    "endormir": ("endors endors endort endormons endormez endorment", "endormir", "endormi"),
    "envoyer": ("envoie envoies envoie envoyons envoyez envoient", "enverr", "envoyé"),
    "offrir": ("offre offres offre offrons offrez offrent", "offrir", "offert"),
    "ouvrir": ("ouvre ouvres ouvre ouvrons ouvrez ouvrent", "ouvrir", "ouvert"),
    "partir": ("pars pars part partons partez partent", "partir", "parti"),
    "peindre": ("peins peins peint peignons peignez peignent", "peindr", "peint"),
    "pouvoir": ("peux peux peut pouvons pouvez peuvent", "pourr", "pu"),
    "recevoir": ("reçois reçois reçoit recevons recevez reçoivent", "recevr", "reçu"),
    "revenir": ("reviens reviens revient revenons revenez reviennent", "reviendr", "revenu"),
    "rire": ("ris ris rit rions riez rient", "rir", "ri"),
    "sortir": ("sors sors sort sortons sortez sortent", "sortir", "sorti"),
    "sourire": ("souris souris sourit sourions souriez sourient", "sourir", "souri"),
    "suivre": ("suis suis suit suivons suivez suivent", "suivr", "suivi"),
    "venir": ("viens viens vient venons venez viennent", "viendr", "venu"),
    "voir": ("vois vois voit voyons voyez voient", "verr", "vu"),
    "vouloir": ("veux veux veut voulons voulez veulent", "voudr", "voulu"),
}
# The stem of an -er verb where its last e or é is heard: in the singular, the third person plural and, but for é, the
# future.
OPEN_STEMS = {"acheter": "achèt", "appeler": "appell", "jeter": "jett", "lever": "lèv", "préférer": "préfèr",
              "protéger": "protèg", "nettoyer": "nettoi"}
IMPERFECT = ("ais", "ais", "ait", "ions", "iez", "aient")
FUTURE = ("ai", "as", "a", "ons", "ez", "ont")


def conjugate(infinitive: str) -> Conjugation:
    """All forms of a verb."""
    if infinitive in IRREGULAR:
        present_text, future, participle = IRREGULAR[infinitive]
        present = tuple(present_text.split())
    elif infinitive.endswith("er"):
        present, future, participle = _er(infinitive)
    elif infinitive.endswith("ir"):
        stem = infinitive[:-1]
        present = tuple(stem + end for end in ("s", "s", "t", "ssons", "ssez", "ssent"))
        future, participle = infinitive, stem
    else:
        stem = infinitive[:-2]
        present = tuple(stem + end for end in ("s", "s", "", "ons", "ez", "ent"))
        future, participle = infinitive[:-1], stem + "u"
    return Conjugation(
        infinitive, present, _imperfect(infinitive, present[3].removesuffix("ons")),
        tuple(future + end for end in FUTURE), four(participle, participle + "e"),
    )


def _er(infinitive: str) -> tuple[tuple[str, ...], str, str]:
    stem = infinitive[:-2]
    opened = OPEN_STEMS.get(infinitive, stem)
    softened = _soft(stem)
    present = (opened + "e", opened + "es", opened + "e", softened + "ons", stem + "ez", opened + "ent")
    future = infinitive if opened == stem or stem[-2] == "é" else opened + "er"
    return present, future, stem + "é"


def _soft(stem: str) -> str:
    """The stem before a or o: mange-ons, commenç-ons."""
    if stem.endswith("g"):
        return stem + "e"
    return stem[:-1] + "ç" if stem.endswith("c") else stem


def _imperfect(infinitive: str, stem: str) -> tuple[str, ...]:
    """être has a stem of its own; before i the spelling of -er verbs is that of the infinitive: mangions."""
    if infinitive == "être":
        stem = "ét"
    before_i = infinitive[:-2] if infinitive.endswith(("ger", "cer")) else stem
    return tuple((before_i if end.startswith("i") else stem) + end for end in IMPERFECT)
