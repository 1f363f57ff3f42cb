"""The ways to write a word in tokens: subwords depend on what stands in front of a word, and letters on a sentence.

    Spelling(tokenizer).ways("homme")      ▁homme    ' homme    ▁l' homme    - homme    ▁Homme    ...

It also tells which tokens, directly behind a word, would make another word of it. It knows tokenizers and words; it
does not know what is translated.
"""

from functools import cached_property, lru_cache

from regard import checks
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.words import APOSTROPHES, HYPHENS, units
from regard.tasks.glossary.terms import cased

SIGNS = ("'", "\u2019", '"', "\u201c", "(", "[", "\u00ab", "\u00ab\u00a0", "-", "/", "\u00a0", "\u202f")
"""What a word may follow on without a space."""
ELIDED = 7
"""Letters in front of an apostrophe, with it, at most: quelqu'."""


class Spelling:
    """How words are written in the tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ways = lru_cache(maxsize=None)(self._ways)
        """All ways to write a text as whole words, wherever it stands."""

    def at(self, text: str, glued: bool) -> tuple[int, ...]:
        """The way to write a text behind a space, or else directly behind a sign; none where there is no such way."""
        normal = self.tokenizer.normalise(text)
        return self._behind("l'", 2, normal) if glued else self._behind("a ", 1, normal)

    @cached_property
    def joining(self) -> list[int]:
        """The tokens that, directly behind a word, would be part of it."""
        return [id_ for id_, text in self._added if _joins(text)]

    @cached_property
    def eliding(self) -> list[int]:
        """The tokens behind which a word begins without a space: l', qu'."""
        return [id_ for id_, text in self._added if text[-1:] in APOSTROPHES and text[:-1].strip().isalpha()
                and len(text.strip()) <= ELIDED]

    @cached_property
    def _added(self) -> list[tuple[int, str]]:
        """What each token adds to the text of a word."""
        anchor, special = self.tokenizer.encode("a"), self.tokenizer.special.ids()
        before = len(self.tokenizer.decode(anchor))
        every = (id_ for id_ in range(self.tokenizer.size) if id_ not in special)
        return [(id_, text) for id_ in every if (text := self.tokenizer.decode([*anchor, id_])[before:])]

    def _ways(self, target: str) -> tuple[tuple[int, ...], ...]:
        """With and without a capital letter, behind a space, a sign or an apostrophe.

        Every way begins at the beginning of a word: it has in it what is in front of the term, a space or a sign.
        Without either it could stand inside a word; only a capital letter speaks against it.
        """
        ways = dict[tuple[int, ...], None]()
        for text in cased(self.tokenizer.normalise(target)):
            ways |= dict.fromkeys([self._behind("a ", 1, text)])
            if text[0].isupper():
                ways |= dict.fromkeys([tuple(self.tokenizer.encode(text))])
            inner = self._behind("l'", 2, text)
            signed = (self._behind(f"a{sign}", 1, text) for sign in SIGNS)
            ways |= dict.fromkeys(way for way in signed if not inner or len(way) <= len(inner) + 1)
            ways |= dict.fromkeys((id_, *inner) for id_ in self.eliding if inner)
            if len(units("a" + text[0])) == 2:  # of what is written without spaces: every letter may begin a word
                ways |= dict.fromkeys([self._behind("a", 1, text)])
        ways.pop((), None)
        if not ways:
            raise checks.wrong("glossary", "made of what the model has tokens for", f"{target!r:.80}",
                               "Take the term out of the glossary.")
        return tuple(ways)

    def _behind(self, left: str, sign: int, text: str) -> tuple[int, ...]:
        """The tokens of a text behind another, from this place of the other on; none where one of them is shared."""
        ids, spans = self.tokenizer.encode(left + text), self.tokenizer.spans(left + text)
        own = tuple(id_ for id_, span in zip(ids, spans, strict=True) if span.end > max(sign, span.start))
        if not own or self.tokenizer.special.unknown in own:
            return ()
        return own if self.tokenizer.decode(own).strip() == (left[sign:] + text).strip() else ()


def _joins(added: str) -> bool:
    """Whether this, directly behind a word, makes another one of it: half a character may, and so may a hyphen or an
    apostrophe, by what follows on it."""
    whole = f"{added}a" if not added.strip(HYPHENS + APOSTROPHES) else added
    return added[0] == "\ufffd" or any(units(word + whole)[0].end > len(word) for word in ("a", "aaaa"))


def goes_on(target: str) -> bool:
    """Whether a letter behind it would make another word of its last one."""
    return len(units(target[-1] + "a")) == 1
