"""A sentence in two languages, with the links between its words; and how written words become one.

Words are split at spaces and after an elision (`l'` and `homme`), in English before `'s` or the apostrophe of a plural;
punctuation is a word of its own. A French question mark has a plain space before it. This file knows how French words
change where they meet (elision, contraction); it knows nothing of grammar.
"""

from collections.abc import Sequence
from typing import NamedTuple

from regard.data.phrasebook.words import VOWELS, Fixed

ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "que": "qu'", "je": "j'", "me": "m'", "se": "s'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


class Pair(NamedTuple):
    """An English sentence, its French translation, and the gold alignment between their words."""

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    """sorted links (index of a source word, index of a target word)"""

    @property
    def source_offsets(self) -> tuple[tuple[int, int], ...]:
        """Where each source word stands: source[start:end]."""
        return _offsets(self.source, self.source_words)

    @property
    def target_offsets(self) -> tuple[tuple[int, int], ...]:
        """Where each target word stands: target[start:end]."""
        return _offsets(self.target, self.target_words)


class Page:
    """What has been written of one clause: words of both sides, with the bits of the nodes they came from."""

    __slots__ = ("bit", "english", "french")

    def __init__(self) -> None:
        self.english: list[tuple[str, int]] = []
        self.french: list[tuple[str, int]] = []
        self.bit = 1

    def mark(self) -> int:
        """A bit for a new node."""
        bit = self.bit
        self.bit = bit << 1
        return bit

    def word(self, english: str, french: str) -> None:
        """One word on each side, linked."""
        bit = self.mark()
        self.english.append((english, bit))
        self.french.append((french, bit))

    def fixed(self, phrase: Fixed) -> None:
        """A phrase with links of its own."""
        bit = self.bit
        self.bit = bit << phrase.width
        self.english += [(word, mark * bit) for word, mark in phrase.english]
        self.french += [(word, mark * bit) for word, mark in phrase.french]


def joined(pages: Sequence[Page], end: str) -> Pair:
    """The pair that the pages make one after the other. `end` is the last punctuation mark."""
    source: list[str] = []
    target: list[str] = []
    links: list[tuple[int, int]] = []
    for page in pages:
        words, marks = _met(page.french)
        first, second = len(source), len(target)
        links += [(first + i, second + j)
                  for i, (_, mark) in enumerate(page.english) for j, other in enumerate(marks) if mark & other]
        source += [word for word, _ in page.english]
        target += words
    links.append((len(source), len(target)))
    source[0] = source[0][0].upper() + source[0][1:]
    target[0] = target[0][0].upper() + target[0][1:]
    english = " ".join(source).replace(" '", "'").replace(" ,", ",") + end
    french = " ".join(target).replace("' ", "'").replace(" ,", ",") + (" ?" if end == "?" else end)
    return Pair(english, french, (*source, end), (*target, end), tuple(links))


def _met(written: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """French words as they are where they meet: `de le` is du, `le homme` l'homme; stars are gone."""
    words: list[str] = []
    marks: list[int] = []
    last = len(written) - 1
    taken = False
    for index, (word, mark) in enumerate(written):
        if taken:  # by a contraction with the word before
            taken = False
            continue
        if index < last and (word in ELIDED or word == "à"):
            following, other = written[index + 1]
            if following[0] in VOWELS:
                word = ELIDED.get(word, word)
            elif (word, following) in CONTRACTED and not (following == "le" and written[index + 2][0][0] in VOWELS):
                word, mark, taken = CONTRACTED[word, following], mark | other, True
        words.append(word[1:] if word[0] == "*" else word)
        marks.append(mark)
    return words, marks


def _offsets(text: str, words: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    places = []
    end = 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        places.append((start, end))
    return tuple(places)
