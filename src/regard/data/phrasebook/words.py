"""What a word of the phrasebook is: one value a lemma, with every form that the grammar may ask for.

The values are compared by identity: two lemmas may share a spelling (`porter` is both `wear` and `carry`). Nothing is
elided before a French form that begins with `*` (an aspirated h, huit, onze); the star is not written. Nothing here
knows how forms are made, nor how they are put together.
"""

from dataclasses import dataclass

Marked = tuple[tuple[str, int], ...]
"""Words with the set of derivation nodes each came from, as bits. Words of two sides that share a bit are linked."""

VOWELS = frozenset("aàâeéèêëiîïoôuûhœAÀÂEÉÈÊIÎOÔUHŒ")


def vowel(form: str) -> bool:
    """Whether the word before this French form is elided."""
    return form[0] in VOWELS


@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A noun; `kind` is one letter, by which verbs and adjectives select it."""

    english: tuple[str, str]
    """singular, plural"""
    french: tuple[str, str]
    feminine: bool
    kind: str
    mass: bool

    @property
    def lemma(self) -> str:
        return self.english[0]


@dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A person's name, the same in both languages."""

    lemma: str
    feminine: bool


@dataclass(frozen=True, eq=False, slots=True)
class Adjective:
    """An adjective; French ones stand before or after their noun."""

    lemma: str
    comparative: str
    """`bigger`; empty where English says `more`, `-` where the word is not compared"""
    french: tuple[str, str, str, str]
    """masculine, feminine, masculine plural, feminine plural"""
    liaison: str
    """the masculine singular before a vowel: bel, vieil, nouvel"""
    before: bool
    kinds: str


@dataclass(frozen=True, eq=False, slots=True)
class Conjugation:
    """The forms of a French verb; six persons, and four participles as for adjectives."""

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    future: tuple[str, ...]
    participle: tuple[str, str, str, str]


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb with all that it selects."""

    base: str
    third: str
    past: str
    participle: str
    particle: str
    """English: look `at`"""
    french: Conjugation
    preposition: str
    """French: obéir `à`"""
    subjects: str
    """kinds of nouns that can be the subject"""
    objects: str
    """kinds of nouns that can be the object; empty for an intransitive verb"""
    flags: frozenset[str]
    """`moves`, `reflexive`, `lasts`, `definite`, `gives`, `only gives`, `alone`: see verbs.py"""

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
    """What stands before a noun, for one number of the noun."""

    english: tuple[str, ...]
    plural: bool
    french: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    """masculine, feminine; masculine and feminine before a vowel"""
    indefinite: bool
    """`a`, `some`: in French `de` when the verb is negated"""

    @property
    def lemma(self) -> str:
        return " ".join(self.english)


@dataclass(frozen=True, eq=False, slots=True)
class Fixed:
    """A phrase that has one form only, with its own links."""

    english: Marked
    french: Marked
    width: int
    """how many bits the links use"""

    @property
    def lemma(self) -> str:
        return " ".join(word for word, _ in self.english)


@dataclass(frozen=True, eq=False, slots=True)
class Count:
    """A number as a determiner: French ones that end in `un` know gender."""

    value: int
    masculine: Fixed
    feminine: Fixed

    @property
    def plural(self) -> bool:
        return self.value > 1


@dataclass(frozen=True, eq=False, slots=True)
class Preposition:
    """A preposition of place, with the kinds of nouns it makes sense with."""

    words: Fixed
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
    """`cannot`; empty where English says `do not`"""
    infinitive: tuple[str, ...]
    """what English puts between it and the infinitive: `to`, or nothing"""
    french: Conjugation
