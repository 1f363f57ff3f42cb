"""The small words: determiners, pronouns, adverbs, times, prepositions, conjunctions, names.

A phrase with one form only is written with its links: words of the two sides that share a digit after the slash are
linked; without a slash all are. The adverbs of time are listed by the tense they go with. This file is data alone.
"""

# English, number (s singular, p plural, m mass), masculine, feminine; both before a vowel where they differ.
DETERMINERS: tuple[tuple[str, ...], ...] = (
    ("the", "s", "le", "la"),
    ("the", "p", "les", "les"),
    ("a", "s", "un", "une"),
    ("some", "p", "des", "des"),
    ("some", "m", "de le", "de la"),
    ("this", "s", "ce", "cette", "cet", "cette"),
    ("these", "p", "ces", "ces"),
    ("my", "s", "mon", "ma", "mon", "mon"),
    ("my", "p", "mes", "mes"),
    ("your", "s", "votre", "votre"),
    ("your", "p", "vos", "vos"),
    ("his", "s", "son", "sa", "son", "son"),
    ("his", "p", "ses", "ses"),
    ("her", "s", "son", "sa", "son", "son"),
    ("her", "p", "ses", "ses"),
    ("our", "s", "notre", "notre"),
    ("our", "p", "nos", "nos"),
    ("their", "s", "leur", "leur"),
    ("their", "p", "leurs", "leurs"),
    ("every", "s", "chaque", "chaque"),
    ("several", "p", "plusieurs", "plusieurs"),
    ("many", "p", "beaucoup de", "beaucoup de"),
    ("a few", "p", "quelques", "quelques"),
    ("all the", "p", "tous les", "toutes les"),
)

# English, English object, French, French object, person, gender. `you` is always vous;
# I, you, we and they are masculine.
PRONOUNS: tuple[tuple[str, str, str, str, int, str], ...] = (
    ("I", "me", "je", "me", 0, "m"),
    ("he", "him", "il", "le", 2, "m"),
    ("she", "her", "elle", "la", 2, "f"),
    ("we", "us", "nous", "nous", 3, "m"),
    ("you", "you", "vous", "vous", 4, "m"),
    ("they", "them", "ils", "les", 5, "m"),
)

# Names, and their gender.
NAMES: tuple[tuple[str, str], ...] = (
    ("Paul", "m"), ("Pierre", "m"), ("Lucas", "m"), ("Antoine", "m"), ("Hugo", "m"), ("Olivier", "m"), ("Marc", "m"),
    ("Julien", "m"), ("Thomas", "m"), ("Émile", "m"), ("Marie", "f"), ("Sophie", "f"), ("Alice", "f"), ("Hélène", "f"),
    ("Julie", "f"), ("Emma", "f"), ("Camille", "f"), ("Louise", "f"), ("Inès", "f"), ("Claire", "f"),
)

# What stands in the middle of the verb: English, French, and whether French has `ne` with it.
MIDDLES: tuple[tuple[str, str, bool], ...] = (
    ("not", "pas", True), ("never", "jamais", True), ("no longer", "plus", True),
    ("often", "souvent", False), ("always", "toujours", False), ("sometimes", "parfois", False),
    ("rarely", "rarement", False),
)

# How, after the verb and its object.
MANNERS: tuple[tuple[str, str], ...] = (
    ("slowly", "lentement"), ("quickly", "rapidement"), ("calmly", "calmement"), ("carefully", "prudemment"),
    ("gently", "doucement"), ("patiently", "patiemment"), ("noisily", "bruyamment"), ("easily", "facilement"),
    ("secretly", "secrètement"), ("here", "ici"), ("everywhere", "partout"),
)

PREPOSITIONS: tuple[tuple[str, str, str], ...] = (
    ("in", "dans", "LKH"), ("on", "sur", "S"), ("under", "sous", "S"), ("behind", "derrière", "HV"),
    ("in front of", "devant", "HV"), ("near", "près de", "LKHV"),
)

CITIES: tuple[tuple[str, str], ...] = (
    ("Paris", "Paris"), ("London", "Londres"), ("Brussels", "Bruxelles"), ("Geneva", "Genève"), ("Lisbon", "Lisbonne"),
    ("Athens", "Athènes"), ("Venice", "Venise"), ("Moscow", "Moscou"), ("Warsaw", "Varsovie"), ("Vienna", "Vienne"),
)

WEEKDAYS: tuple[tuple[str, str], ...] = (
    ("Monday", "lundi"), ("Tuesday", "mardi"), ("Wednesday", "mercredi"), ("Thursday", "jeudi"), ("Friday", "vendredi"),
    ("Saturday", "samedi"), ("Sunday", "dimanche"),
)

# English, French, days.
MONTHS: tuple[tuple[str, str, int], ...] = (
    ("January", "janvier", 31), ("February", "février", 28), ("March", "mars", 31), ("April", "avril", 30),
    ("May", "mai", 31), ("June", "juin", 30), ("July", "juillet", 31), ("August", "août", 31),
    ("September", "septembre", 30), ("October", "octobre", 31), ("November", "novembre", 30),
    ("December", "décembre", 31),
)

PRESENT_TIMES: tuple[tuple[str, str], ...] = (
    ("now", "maintenant"), ("every/1 day/2", "chaque/1 jour/2"), ("every/1 morning/2", "chaque/1 matin/2"),
    ("every/1 evening/2", "chaque/1 soir/2"), ("every/1 week/2", "chaque/1 semaine/2"), ("in/1 summer/2", "en/1 été/2"),
    ("in/1 winter/2", "en/1 hiver/2"), ("in/1 spring/2", "au/1 printemps/2"), ("at/1 noon/2", "à/1 midi/2"),
    ("in/1 the/1 morning/2", "le/1 matin/2"), ("in/1 the/1 evening/2", "le/1 soir/2"),
)
PAST_TIMES: tuple[tuple[str, str], ...] = (
    ("yesterday", "hier"), ("yesterday/1 evening/2", "hier/1 soir/2"), ("last/1 week/2", "la/2 semaine/2 dernière/1"),
    ("last/1 month/2", "le/2 mois/2 dernier/1"), ("last/1 year/2", "la/2 année/2 dernière/1"),
)
FUTURE_TIMES: tuple[tuple[str, str], ...] = (
    ("tomorrow", "demain"), ("tomorrow/1 morning/2", "demain/1 matin/2"), ("this/1 evening/2", "ce/1 soir/2"),
    ("next/1 week/2", "la/2 semaine/2 prochaine/1"), ("next/1 month/2", "le/2 mois/2 prochain/1"),
    ("next/1 year/2", "la/2 année/2 prochaine/1"),
)
# Years in which something happened, and in which something will: the first, and the first after the last.
PAST_YEARS = (1970, 2010)
FUTURE_YEARS = (2040, 2060)

# Spans of time: English, French, gender.
UNITS: tuple[tuple[str, str, str], ...] = (
    ("day", "jour", "m"), ("week", "semaine", "f"), ("month", "mois", "m"), ("year", "an", "m"), ("hour", "heure", "f"),
)

JOINERS: tuple[tuple[str, str], ...] = (
    ("and", "et"), ("or", "ou"), (",/1 but/2", ",/1 mais/2"), ("because", "parce que"),
)

QUESTIONS: tuple[tuple[str, str], ...] = (("why", "pourquoi"), ("when", "quand"), ("where", "où"))
DEGREES: tuple[tuple[str, str], ...] = (("very", "très"), ("too", "trop"))
COMPARISONS: tuple[tuple[str, str], ...] = (("more", "plus"), ("less", "moins"), ("as", "aussi"))

# English, third person, negative where it is one word, what comes before the infinitive, French.
MODALS: tuple[tuple[str, str, str, str, str], ...] = (
    ("can", "can", "cannot", "", "pouvoir"), ("must", "must", "", "", "devoir"), ("want", "wants", "", "to", "vouloir"),
)

# Words that the writer brings along, for the list of lemmas.
WOVEN: tuple[tuple[str, str], ...] = (
    ("be", "être"), ("do", "est-ce que"), ("will", "-ra"), ("who", "qui"), ("that", "que"), ("by", "par"), ("to", "à"),
    ("with", "avec"), ("there", "il y a"), ("than", "que"), ("ago", "il y a"), ("'s", "de"),
)
