"""All words of the phrasebook, with their forms made: what the tables say becomes values that the grammar can use.

A lexicon is a plain value: a smaller one, with fewer words in any field, makes a smaller language. It knows nothing of
sentences, nor of which words may stand together beyond what each word says itself.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from regard.data.phrasebook import adjectives, closed, english, french, nouns, verbs
from regard.data.phrasebook.conjugation import conjugate
from regard.data.phrasebook.words import (
    Adjective,
    Conjugation,
    Count,
    Determiner,
    Fixed,
    Marked,
    Modal,
    Name,
    Noun,
    Preposition,
    Pronoun,
    Verb,
)


@dataclass(frozen=True, eq=False, slots=True)
class Middle:
    """An adverb in the middle of the verb; with a negative one French has `ne` as well."""

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
    """One line of the dictionary."""

    category: str
    english: str
    french: str


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The words by their use in the grammar."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    determiners: tuple[Determiner, ...]
    counts: tuple[Count, ...]
    pronouns: tuple[Pronoun, ...]
    names: tuple[Name, ...]
    middles: tuple[Middle, ...]
    manners: tuple[Fixed, ...]
    prepositions: tuple[Preposition, ...]
    cities: tuple[Fixed, ...]
    modals: tuple[Modal, ...]
    questions: tuple[Fixed, ...]
    degrees: tuple[Fixed, ...]
    comparisons: tuple[Fixed, ...]
    joiners: tuple[Fixed, ...]
    times: dict[str, tuple[Fixed, ...]]
    """by tense: present, past, future"""
    months: tuple[Month, ...]
    years: dict[str, tuple[int, ...]]
    units: tuple[Noun, ...]


@cache
def lexicon() -> Lexicon:
    """The whole lexicon; made once."""
    weekdays = tuple(fixed(f"on/1 {day}/2", f"{jour}/12") for day, jour in closed.WEEKDAYS)
    mondays = tuple(fixed(f"on/1 {day}s/2", f"le/1 {jour}/2") for day, jour in closed.WEEKDAYS)
    return Lexicon(
        nouns=tuple(_noun(*row) for row in nouns.NOUNS),
        verbs=tuple(_verb(*row) for row in verbs.VERBS),
        adjectives=tuple(_adjective(*row) for row in adjectives.ADJECTIVES),
        determiners=tuple(_determiner(*row) for row in closed.DETERMINERS),
        counts=tuple(count(value) for value in range(2, 1000)),
        pronouns=tuple(Pronoun(*row[:5], row[5] == "f") for row in closed.PRONOUNS),
        names=tuple(Name(name, gender == "f") for name, gender in closed.NAMES),
        middles=tuple(Middle(tuple(en.split()), fr, negative) for en, fr, negative in closed.MIDDLES),
        manners=_all_fixed(closed.MANNERS),
        prepositions=tuple(Preposition(fixed(en, fr), kinds) for en, fr, kinds in closed.PREPOSITIONS),
        cities=tuple(fixed(f"in/1 {en}/2", f"à/1 {fr}/2") for en, fr in closed.CITIES),
        modals=tuple(Modal(base, third, negative, tuple(to.split()), conjugate(fr))
                     for base, third, negative, to, fr in closed.MODALS),
        questions=_all_fixed(closed.QUESTIONS),
        degrees=_all_fixed(closed.DEGREES),
        comparisons=_all_fixed(closed.COMPARISONS),
        joiners=_all_fixed(closed.JOINERS),
        times={"present": _all_fixed(closed.PRESENT_TIMES) + mondays,
               "past": _all_fixed(closed.PAST_TIMES) + weekdays,
               "future": _all_fixed(closed.FUTURE_TIMES) + weekdays},
        months=tuple(Month(*row) for row in closed.MONTHS),
        years={"past": tuple(range(*closed.PAST_YEARS)), "future": tuple(range(*closed.FUTURE_YEARS))},
        units=tuple(_noun(en, fr, gender, "time") for en, fr, gender in closed.UNITS),
    )


def lemmas() -> list[Lemma]:
    """The dictionary: every lemma once, with its category."""
    words = lexicon()
    found = [Lemma("noun", noun.lemma, noun.french[0].strip("*")) for noun in words.nouns + words.units]
    found += [Lemma("verb", verb.lemma, f"{verb.french.infinitive} {verb.preposition}".strip()) for verb in words.verbs]
    found += [Lemma("verb", modal.lemma, modal.french.infinitive) for modal in words.modals]
    found += [Lemma("adjective", word.lemma, word.french[0].strip("*")) for word in words.adjectives]
    found += [Lemma("name", name.lemma, name.lemma) for name in words.names]
    found += [Lemma("determiner", row[0], row[2]) for row in {row[0]: row for row in closed.DETERMINERS}.values()]
    found += [Lemma("pronoun", word.english, word.french) for word in words.pronouns]
    for category, rows in (
        ("adverb", [row[:2] for row in closed.MIDDLES] + list(closed.MANNERS + closed.DEGREES + closed.COMPARISONS)),
        ("adverb", [("now", "maintenant"), ("yesterday", "hier"), ("tomorrow", "demain")]),
        ("preposition", [row[:2] for row in closed.PREPOSITIONS]),
        ("name", list(closed.CITIES)),
        ("weekday", list(closed.WEEKDAYS)),
        ("month", [row[:2] for row in closed.MONTHS]),
        ("conjunction", [("and", "et"), ("or", "ou"), ("but", "mais"), ("because", "parce que")]),
        ("question word", list(closed.QUESTIONS)),
        ("function word", list(closed.WOVEN)),
        ("number", [(en, fr.strip("*")) for en, fr in zip(english.ONES[1:], french.ONES[1:], strict=True)]),
        ("number", list(zip(english.TENS[2:], ("vingt", "trente", "quarante", "cinquante", "soixante", "soixante-dix",
                                               "quatre-vingts", "quatre-vingt-dix"), strict=True))),
        ("number", [("hundred", "cent")]),
    ):
        found += [Lemma(category, en, fr) for en, fr in rows]
    return found


def fixed(english_text: str, french_text: str) -> Fixed:
    """A phrase from its template: `last/1 week/2` and `la/2 semaine/2 dernière/1`."""
    en, fr = _marked(english_text), _marked(french_text)
    return Fixed(en, fr, max(mark.bit_length() for _, mark in en + fr))


def count(value: int) -> Count:
    """A number in words, from 1 to 999."""
    return Count(value, _number(value, "m"), _number(value, "f"))


def _number(value: int, gender: str) -> Fixed:
    """Hundreds are linked part by part, what is below a hundred as a whole; English `and` is linked to nothing."""
    hundreds, rest = divmod(value, 100)
    en: list[tuple[str, int]] = []
    fr: list[tuple[str, int]] = []
    if hundreds:
        en += [(english.ONES[hundreds], 1), ("hundred", 2)]
        if hundreds > 1:
            fr.append((french.ONES[hundreds], 1))
        fr.append(("cents" if hundreds > 1 and not rest else "cent", 2 if hundreds > 1 else 3))
    if rest:
        en += [("and", 0)] if hundreds else []
        en.append((english.below_hundred(rest), 4))
        fr += [(word, 4) for word in french.below_hundred(rest, gender)]
    return Fixed(tuple(en), tuple(fr), 3)


def _marked(template: str) -> Marked:
    parts = (part.partition("/") for part in template.split())
    return tuple((word, sum(1 << int(digit) - 1 for digit in digits or "1")) for word, _, digits in parts)


def _all_fixed(rows: tuple[tuple[str, str], ...]) -> tuple[Fixed, ...]:
    return tuple(fixed(en, fr) for en, fr in rows)


def _noun(en: str, fr: str, gender: str, kind: str, en_plural: str = "", fr_plural: str = "") -> Noun:
    plurals = en_plural or english.with_s(en), fr_plural or french.plural(fr)
    return Noun((en, plurals[0]), (fr, plurals[1]), gender == "f", kind, kind in "MD")


def _adjective(en: str, comparative: str, fr: str, feminine: str, side: str, kinds: str,
               liaison: str = "") -> Adjective:
    forms = french.four(fr, feminine or french.feminine(fr))
    return Adjective(en, comparative, forms, liaison or fr, side == "before", kinds)


def _verb(en: str, past: str, participle: str, fr: str, subjects: str, objects: str, *flags: str) -> Verb:
    base, _, particle = en.partition(" ")
    infinitive, _, preposition = fr.partition(" ")
    conjugation: Conjugation = conjugate(infinitive)
    return Verb(base, english.third(base), past, participle, particle, conjugation, preposition, subjects, objects,
                frozenset(flags))


def _determiner(en: str, number: str, masculine: str, feminine: str, *liaison: str) -> Determiner:
    forms = [tuple(form.split()) for form in (masculine, feminine, *(liaison or (masculine, feminine)))]
    return Determiner(tuple(en.split()), number == "p", (forms[0], forms[1], forms[2], forms[3]), en in ("a", "some"))
