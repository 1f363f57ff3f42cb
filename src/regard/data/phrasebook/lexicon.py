"""The lexicon of the phrasebook: every word with all its English and French forms.

The tables of `vocabulary` become values, one a lemma. They are compared by identity: two lemmas may share a spelling
(`porter` is both `wear` and `carry`). A lexicon is a plain value: one with fewer words in any field makes a smaller
language. `small_lexicon` keeps the whole grammar with about 400 English word forms in place of 1,700, for trainings of
minutes, where each word must be seen often enough. Regular French verbs follow their endings, with the spelling changes
of -er verbs; the others are in a table. Nothing is elided before a French form that begins with `*` (an aspirated h,
huit, onze); the star is not written. This module knows nothing of sentences.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from regard.data.phrasebook import vocabulary

LinkedWords = tuple[tuple[str, int], ...]
"""Words with the bits of their derivation nodes. Words of the two sides that share a bit are linked."""
VOWELS = frozenset("aàâeéèêëiîïoôuûhœAÀÂEÉÈÊIÎOÔUHŒ")
SMALL_PEOPLE, SMALL_OTHERS = 4, 2
"""The small lexicon has the first nouns of each kind: of people, and of other kinds,"""
SMALL_EVERY = 4
"""one verb and adjective in this many, and one time and manner in three,"""
SMALL_NUMBERS, SMALL_NAMES, SMALL_CITIES, SMALL_MONTHS, SMALL_YEARS = 11, 4, 3, 3, 3
"""and the first of these."""
ENGLISH_ONES = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SILENT_H = ("honest", "hour", "honour")
SPOKEN_Y = ("use", "uni", "euro", "one")
FRENCH_ONES = ("", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "*huit", "neuf", "dix", "*onze", "douze",
               "treize", "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf")
FRENCH_TENS = ("", "", "vingt", "trente", "quarante", "cinquante", "soixante", "soixante", "quatre-vingt",
               "quatre-vingt")
# Infinitive: present, stem of the future, participle. The imparfait has the stem of the first person plural.
IRREGULAR_VERBS: dict[str, tuple[str, str, str]] = {
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
# The stem of an -er verb with an open e: in the singular, the third person plural and, except for é, the future.
OPEN_STEMS = {"acheter": "achèt", "appeler": "appell", "jeter": "jett", "lever": "lèv", "préférer": "préfèr",
              "protéger": "protèg", "nettoyer": "nettoi"}
IMPERFECT_ENDINGS = ("ais", "ais", "ait", "ions", "iez", "aient")
FUTURE_ENDINGS = ("ai", "as", "a", "ons", "ez", "ont")


def begins_with_vowel(form: str) -> bool:
    """Whether this French form elides the word before it."""
    return form[0] in VOWELS


@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A noun; `kind` is one letter, by which verbs and adjectives select it."""

    english: tuple[str, str]
    """Singular, plural."""
    french: tuple[str, str]
    feminine: bool
    kind: str
    mass: bool

    @property
    def lemma(self) -> str:
        return self.english[0]


@dataclass(frozen=True, eq=False, slots=True)
class PersonName:
    """A person's name, the same in both languages."""

    lemma: str
    feminine: bool


@dataclass(frozen=True, eq=False, slots=True)
class Adjective:
    """An adjective; in French it precedes or follows its noun."""

    lemma: str
    comparative: str
    """`bigger`; empty if English says `more`, `-` if the word is not compared."""
    french: tuple[str, str, str, str]
    """Masculine, feminine, masculine plural, feminine plural."""
    liaison: str
    """The masculine singular before a vowel: bel, vieil, nouvel."""
    before: bool
    kinds: str


@dataclass(frozen=True, eq=False, slots=True)
class Conjugation:
    """The forms of a French verb: six persons per tense, and four participles as for adjectives."""

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    future: tuple[str, ...]
    participle: tuple[str, str, str, str]


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb with the nouns that it selects."""

    base: str
    third: str
    past: str
    participle: str
    particle: str
    """English: look `at`."""
    french: Conjugation
    preposition: str
    """French: obéir `à`."""
    subjects: str
    """The kinds of nouns that can be the subject."""
    objects: str
    """The kinds of nouns that can be the object; empty for an intransitive verb."""
    flags: frozenset[str]
    """See `vocabulary.VERBS`."""

    @property
    def lemma(self) -> str:
        return f"{self.base} {self.particle}".strip()


@dataclass(frozen=True, eq=False, slots=True)
class Pronoun:
    """A personal pronoun; `person` is 0 to 5: I, (thou), he or she, we, you, they."""

    english: str
    english_object: str
    french: str
    french_object: str
    person: int
    feminine: bool

    @property
    def lemma(self) -> str:
        return self.english


@dataclass(frozen=True, eq=False, slots=True)
class Determiner:
    """A determiner, for one number of the noun."""

    english: tuple[str, ...]
    plural: bool
    french: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    """Masculine, feminine; masculine and feminine before a vowel."""
    indefinite: bool
    """`a`, `some`: in French `de` if the verb is negated."""

    @property
    def lemma(self) -> str:
        return " ".join(self.english)


@dataclass(frozen=True, eq=False, slots=True)
class FixedPhrase:
    """A phrase with a single form and its own links."""

    english: LinkedWords
    french: LinkedWords
    width: int
    """The number of bits of the links."""

    @property
    def lemma(self) -> str:
        return " ".join(word for word, _ in self.english)


@dataclass(frozen=True, eq=False, slots=True)
class NumberWord:
    """A number as a determiner; French ones that end in `un` have a gender."""

    value: int
    masculine: FixedPhrase
    feminine: FixedPhrase

    @property
    def plural(self) -> bool:
        return self.value > 1


@dataclass(frozen=True, eq=False, slots=True)
class Preposition:
    """A preposition of place, with the kinds of nouns that may follow."""

    words: FixedPhrase
    kinds: str

    @property
    def lemma(self) -> str:
        return self.words.lemma


@dataclass(frozen=True, eq=False, slots=True)
class Modal:
    """A verb before an infinitive: can, must, want to."""

    lemma: str
    third: str
    negative: str
    """`cannot`; empty if English says `do not`."""
    infinitive: tuple[str, ...]
    """The English words between it and the infinitive: `to`, or nothing."""
    french: Conjugation


@dataclass(frozen=True, eq=False, slots=True)
class MiddleAdverb:
    """An adverb inside the verb group; a negative one has `ne` as well in French."""

    english: tuple[str, ...]
    french: str
    negative: bool

    @property
    def lemma(self) -> str:
        return " ".join(self.english)


@dataclass(frozen=True, eq=False, slots=True)
class Month:
    lemma: str
    french: str
    days: int


class Lemma(NamedTuple):
    """An entry of the dictionary."""

    category: str
    english: str
    french: str


@dataclass(frozen=True, eq=False)
class Lexicon:
    """All words, by their use in the grammar."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    determiners: tuple[Determiner, ...]
    counts: tuple[NumberWord, ...]
    pronouns: tuple[Pronoun, ...]
    names: tuple[PersonName, ...]
    middles: tuple[MiddleAdverb, ...]
    manners: tuple[FixedPhrase, ...]
    prepositions: tuple[Preposition, ...]
    cities: tuple[FixedPhrase, ...]
    modals: tuple[Modal, ...]
    questions: tuple[FixedPhrase, ...]
    degrees: tuple[FixedPhrase, ...]
    comparisons: tuple[FixedPhrase, ...]
    joiners: tuple[FixedPhrase, ...]
    times: dict[str, tuple[FixedPhrase, ...]]
    """By tense: present, past, future."""
    months: tuple[Month, ...]
    years: dict[str, tuple[int, ...]]
    units: tuple[Noun, ...]


@cache
def full_lexicon() -> Lexicon:
    """The whole lexicon, built once."""
    weekdays = tuple(fixed_phrase(f"on/1 {day}/2", f"{jour}/12") for day, jour in vocabulary.WEEKDAYS)
    mondays = tuple(fixed_phrase(f"on/1 {day}s/2", f"le/1 {jour}/2") for day, jour in vocabulary.WEEKDAYS)
    return Lexicon(
        nouns=tuple(_make_noun(*row) for row in vocabulary.NOUNS),
        verbs=tuple(_make_verb(*row) for row in vocabulary.VERBS),
        adjectives=tuple(_make_adjective(*row) for row in vocabulary.ADJECTIVES),
        determiners=tuple(_make_determiner(*row) for row in vocabulary.DETERMINERS),
        counts=tuple(number_word(value) for value in range(2, 1000)),
        pronouns=tuple(Pronoun(*row[:5], row[5] == "f") for row in vocabulary.PRONOUNS),
        names=tuple(PersonName(name, gender == "f") for name, gender in vocabulary.NAMES),
        middles=tuple(MiddleAdverb(tuple(en.split()), fr, negative) for en, fr, negative in vocabulary.MIDDLES),
        manners=_fixed_phrases(vocabulary.MANNERS),
        prepositions=tuple(Preposition(fixed_phrase(en, fr), kinds) for en, fr, kinds in vocabulary.PREPOSITIONS),
        cities=tuple(fixed_phrase(f"in/1 {en}/2", f"à/1 {fr}/2") for en, fr in vocabulary.CITIES),
        modals=tuple(Modal(base, third, negative, tuple(to.split()), conjugate(fr))
                     for base, third, negative, to, fr in vocabulary.MODALS),
        questions=_fixed_phrases(vocabulary.QUESTIONS),
        degrees=_fixed_phrases(vocabulary.DEGREES),
        comparisons=_fixed_phrases(vocabulary.COMPARISONS),
        joiners=_fixed_phrases(vocabulary.JOINERS),
        times={"present": _fixed_phrases(vocabulary.PRESENT_TIMES) + mondays,
               "past": _fixed_phrases(vocabulary.PAST_TIMES) + weekdays,
               "future": _fixed_phrases(vocabulary.FUTURE_TIMES) + weekdays},
        months=tuple(Month(*row) for row in vocabulary.MONTHS),
        years={"past": tuple(range(*vocabulary.PAST_YEARS)), "future": tuple(range(*vocabulary.FUTURE_YEARS))},
        units=tuple(_make_noun(en, fr, gender, "time") for en, fr, gender in vocabulary.UNITS),
    )


def lemmas() -> list[Lemma]:
    """The dictionary: every lemma with its category and translation."""
    words = full_lexicon()
    found = [Lemma("noun", noun.lemma, noun.french[0].strip("*")) for noun in words.nouns + words.units]
    found += [Lemma("verb", verb.lemma, f"{verb.french.infinitive} {verb.preposition}".strip()) for verb in words.verbs]
    found += [Lemma("verb", modal.lemma, modal.french.infinitive) for modal in words.modals]
    found += [Lemma("adjective", word.lemma, word.french[0].strip("*")) for word in words.adjectives]
    found += [Lemma("name", name.lemma, name.lemma) for name in words.names]
    found += [Lemma("determiner", row[0], row[2]) for row in {row[0]: row for row in vocabulary.DETERMINERS}.values()]
    found += [Lemma("pronoun", word.english, word.french) for word in words.pronouns]
    for category, rows in (
        ("adverb", [row[:2] for row in vocabulary.MIDDLES]),
        ("adverb", list(vocabulary.MANNERS + vocabulary.DEGREES + vocabulary.COMPARISONS)),
        ("adverb", [("now", "maintenant"), ("yesterday", "hier"), ("tomorrow", "demain")]),
        ("preposition", [row[:2] for row in vocabulary.PREPOSITIONS]),
        ("name", list(vocabulary.CITIES)),
        ("weekday", list(vocabulary.WEEKDAYS)),
        ("month", [row[:2] for row in vocabulary.MONTHS]),
        ("conjunction", [("and", "et"), ("or", "ou"), ("but", "mais"), ("because", "parce que")]),
        ("question word", list(vocabulary.QUESTIONS)),
        ("function word", list(vocabulary.WOVEN)),
        ("number", [(en, fr.strip("*")) for en, fr in zip(ENGLISH_ONES[1:], FRENCH_ONES[1:], strict=True)]),
        ("number", list(zip(ENGLISH_TENS[2:], ("vingt", "trente", "quarante", "cinquante", "soixante", "soixante-dix",
                                               "quatre-vingts", "quatre-vingt-dix"), strict=True))),
        ("number", [("hundred", "cent")]),
    ):
        found += [Lemma(category, en, fr) for en, fr in rows]
    return found


def fixed_phrase(english_text: str, french_text: str) -> FixedPhrase:
    """A phrase from its template: `last/1 week/2` and `la/2 semaine/2 dernière/1`."""
    en, fr = _parse_links(english_text), _parse_links(french_text)
    return FixedPhrase(en, fr, max(mark.bit_length() for _, mark in en + fr))


def number_word(value: int) -> NumberWord:
    """A number in words, from 1 to 999."""
    return NumberWord(value, _number_phrase(value, "m"), _number_phrase(value, "f"))


def _number_phrase(value: int, gender: str) -> FixedPhrase:
    """A number with its links: hundreds part by part, the rest as a whole; English `and` has no link."""
    hundreds, rest = divmod(value, 100)
    en: list[tuple[str, int]] = []
    fr: list[tuple[str, int]] = []
    if hundreds:
        en += [(ENGLISH_ONES[hundreds], 1), ("hundred", 2)]
        if hundreds > 1:
            fr.append((FRENCH_ONES[hundreds], 1))
        fr.append(("cents" if hundreds > 1 and not rest else "cent", 2 if hundreds > 1 else 3))
    if rest:
        en += [("and", 0)] if hundreds else []
        en.append((english_number(rest), 4))
        fr += [(word, 4) for word in french_number(rest, gender)]
    return FixedPhrase(tuple(en), tuple(fr), 3)


def _parse_links(template: str) -> LinkedWords:
    parts = (part.partition("/") for part in template.split())
    return tuple((word, sum(1 << int(digit) - 1 for digit in digits or "1")) for word, _, digits in parts)


def _fixed_phrases(rows: tuple[tuple[str, str], ...]) -> tuple[FixedPhrase, ...]:
    return tuple(fixed_phrase(en, fr) for en, fr in rows)


def _make_noun(en: str, fr: str, gender: str, kind: str, en_plural: str = "", fr_plural: str = "") -> Noun:
    plurals = en_plural or add_s(en), fr_plural or french_plural(fr)
    return Noun((en, plurals[0]), (fr, plurals[1]), gender == "f", kind, kind in "MD")


def _make_adjective(en: str, comparative: str, fr: str, feminine: str, side: str, kinds: str,
               liaison: str = "") -> Adjective:
    forms = four_forms(fr, feminine or french_feminine(fr))
    return Adjective(en, comparative, forms, liaison or fr, side == "before", kinds)


def _make_verb(en: str, past: str, participle: str, fr: str, subjects: str, objects: str, *flags: str) -> Verb:
    base, _, particle = en.partition(" ")
    infinitive, _, preposition = fr.partition(" ")
    return Verb(base, third_person(base), past, participle, particle, conjugate(infinitive), preposition, subjects,
                objects, frozenset(flags))


def _make_determiner(en: str, number: str, masculine: str, feminine: str, *liaison: str) -> Determiner:
    forms = [tuple(form.split()) for form in (masculine, feminine, *(liaison or (masculine, feminine)))]
    return Determiner(tuple(en.split()), number == "p", (forms[0], forms[1], forms[2], forms[3]), en in ("a", "some"))


@cache
def small_lexicon() -> Lexicon:
    """The small lexicon, built once."""
    words = full_lexicon()
    return replace(
        words, nouns=_first_nouns(words.nouns), verbs=words.verbs[::SMALL_EVERY],
        adjectives=words.adjectives[::SMALL_EVERY], counts=words.counts[:SMALL_NUMBERS],
        names=words.names[:SMALL_NAMES], cities=words.cities[:SMALL_CITIES], months=words.months[:SMALL_MONTHS],
        years={tense: years[:SMALL_YEARS] for tense, years in words.years.items()},
        times={tense: times[::3] for tense, times in words.times.items()}, manners=words.manners[::3])


def _first_nouns(nouns: tuple[Noun, ...]) -> tuple[Noun, ...]:
    seen: Counter[str] = Counter()
    kept = []
    for noun in nouns:
        seen[noun.kind] += 1
        if seen[noun.kind] <= (SMALL_PEOPLE if noun.kind == "P" else SMALL_OTHERS):
            kept.append(noun)
    return tuple(kept)


def conjugate(infinitive: str) -> Conjugation:
    """All forms of a French verb."""
    if infinitive in IRREGULAR_VERBS:
        present_text, future, participle = IRREGULAR_VERBS[infinitive]
        present = tuple(present_text.split())
    elif infinitive.endswith("er"):
        present, future, participle = _conjugate_er(infinitive)
    elif infinitive.endswith("ir"):
        stem = infinitive[:-1]
        present = tuple(stem + end for end in ("s", "s", "t", "ssons", "ssez", "ssent"))
        future, participle = infinitive, stem
    else:
        stem = infinitive[:-2]
        present = tuple(stem + end for end in ("s", "s", "", "ons", "ez", "ent"))
        future, participle = infinitive[:-1], stem + "u"
    return Conjugation(
        infinitive, present, _imperfect_forms(infinitive, present[3].removesuffix("ons")),
        tuple(future + end for end in FUTURE_ENDINGS), four_forms(participle, participle + "e"),
    )


def _conjugate_er(infinitive: str) -> tuple[tuple[str, ...], str, str]:
    stem = infinitive[:-2]
    opened = OPEN_STEMS.get(infinitive, stem)
    softened = _soften_stem(stem)
    present = (opened + "e", opened + "es", opened + "e", softened + "ons", stem + "ez", opened + "ent")
    future = infinitive if opened == stem or stem[-2] == "é" else opened + "er"
    return present, future, stem + "é"


def _soften_stem(stem: str) -> str:
    """The stem before a or o: mange-ons, commenç-ons."""
    if stem.endswith("g"):
        return stem + "e"
    return stem[:-1] + "ç" if stem.endswith("c") else stem


def _imperfect_forms(infinitive: str, stem: str) -> tuple[str, ...]:
    """être has a stem of its own; before i the spelling of -er verbs is that of the infinitive: mangions."""
    if infinitive == "être":
        stem = "ét"
    before_i = infinitive[:-2] if infinitive.endswith(("ger", "cer")) else stem
    return tuple((before_i if end.startswith("i") else stem) + end for end in IMPERFECT_ENDINGS)


def add_s(word: str) -> str:
    """The regular plural of a noun or third person of a verb: boxes, cherries, keys."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeou":
        return word[:-1] + "ies"
    return word + "s"


def third_person(base: str) -> str:
    """The third person singular of the present tense."""
    return {"have": "has", "go": "goes"}.get(base) or add_s(base)


def indefinite_article(following: str) -> str:
    """`an` before a vowel sound, `a` otherwise."""
    if following.startswith(SILENT_H):
        return "an"
    return "an" if following[0].lower() in "aeiou" and not following.startswith(SPOKEN_Y) else "a"


def english_number(value: int) -> str:
    """The English word for 1 to 99: forty-two."""
    if value < 20:
        return ENGLISH_ONES[value]
    return ENGLISH_TENS[value // 10] + (f"-{ENGLISH_ONES[value % 10]}" if value % 10 else "")


def french_plural(form: str) -> str:
    """The regular plural of a noun or a masculine adjective: chevaux, gâteaux, jeux, souris."""
    if form.endswith(("s", "x", "z")):
        return form
    if form.endswith("al"):
        return form[:-1] + "ux"
    return form + ("x" if form.endswith(("eau", "jeu")) else "s")


def french_feminine(form: str) -> str:
    """The regular feminine of an adjective: heureuse, légère, italienne, rouge."""
    if form.endswith("e"):
        return form
    if form.endswith("x"):
        return form[:-1] + "se"
    if form.endswith("er"):
        return form[:-2] + "ère"
    if form.endswith("en"):
        return form + "ne"
    return form + "e"


def four_forms(masculine: str, feminine_form: str) -> tuple[str, str, str, str]:
    """Masculine, feminine, masculine plural, feminine plural."""
    return masculine, feminine_form, french_plural(masculine), feminine_form + "s"


def french_number(value: int, gender: str) -> tuple[str, ...]:
    """The French words for 1 to 99: vingt et une, soixante-douze, quatre-vingts."""
    one = "une" if gender == "f" else "un"
    if value < 20:
        return (one if value == 1 else FRENCH_ONES[value],)
    if value == 80:
        return ("quatre-vingts",)
    tens, rest = FRENCH_TENS[value // 10], value % 10 + (10 if value // 10 in (7, 9) else 0)
    if not rest:
        return (tens,)
    if rest in (1, 11) and value < 80:
        return tens, "et", one if rest == 1 else "onze"
    return (f"{tens}-{one if rest == 1 else FRENCH_ONES[rest].removeprefix('*')}",)
