"""What is done to a text before it is cut into pieces, and where each character of the result came from.

    exact    nothing
    nfc      canonical composition (NFC): e and U+0301 become é; what looks alike but means another thing stays
    line     NFC, and then every run of white space becomes one space, and none is left at the ends

White space is what Python's `str.isspace` says, line breaks and U+3000 among it, less the three no-break spaces U+00A0,
U+2007 and U+202F: they are part of how French and others are written, and stay as they are. Nothing else is changed:
no letter case, no compatibility forms (NFKC would make x² into x2), no zero-width and no control characters.

All three give back their own results: normalise(normalise(text)) == normalise(text). This file knows no pieces.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from regard.data.tokenizer.contract import check_text
from regard.data.tokenizer.words import Span

_WHITE = re.compile("[\t-\r\x1c-\x20\x85\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]+")


@dataclass(frozen=True)
class Traced:
    """A normalised text, and for each of its characters those of the given text that it was made of."""

    text: str
    spans: list[Span]
    """Where several characters were changed together, each of them has the span of all."""


def exact(text: str) -> str:
    """The text itself."""
    return check_text(text)


def nfc(text: str) -> str:
    """The text in canonical composition."""
    return text if check_text(text).isascii() else unicodedata.normalize("NFC", text)


def line(text: str) -> str:
    """The text in canonical composition, with one space for every run of white space, and none at the ends."""
    if check_text(text).isascii():
        return " ".join(text.split())
    return _WHITE.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


NORMALISATIONS: dict[str, Callable[[str], str]] = {"exact": exact, "nfc": nfc, "line": line}


def trace(name: str, text: str) -> Traced:
    """The normalised text, with where each of its characters came from."""
    check_text(text)
    if name == "exact":
        return unchanged(text)
    composed = _composed(text)
    return _folded(composed) if name == "line" else composed


def unchanged(text: str) -> Traced:
    """A text that is as it was given."""
    return Traced(text, [Span(at, at + 1) for at in range(len(text))])


def _composed(text: str) -> Traced:
    """NFC, one group of characters after another, as no two groups change each other."""
    if unicodedata.is_normalized("NFC", text):
        return unchanged(text)
    characters: list[str] = []
    spans: list[Span] = []
    for start, end in _groups(text):
        group = text[start:end]
        composed = unicodedata.normalize("NFC", group)
        characters.append(composed)
        kept = [Span(at, at + 1) for at in range(start, end)]
        spans += kept if composed == group else [Span(start, end)] * len(composed)
    return Traced("".join(characters), spans)


def _groups(text: str) -> list[Span]:
    """The text in groups: a new one begins where a character neither reorders nor composes with what is before it."""
    groups, start = [], 0
    for at in range(1, len(text)):
        before, character = text[start:at], text[at]
        if unicodedata.combining(unicodedata.normalize("NFD", character)[0]):
            continue
        together = unicodedata.normalize("NFC", before + character)
        if together == unicodedata.normalize("NFC", before) + unicodedata.normalize("NFC", character):
            groups.append(Span(start, at))
            start = at
    return [*groups, Span(start, len(text))]


def _folded(traced: Traced) -> Traced:
    """One space for every run of white space, with the span of the run, and none at the ends."""
    parts: list[str] = []
    spans: list[Span] = []
    end, white = 0, Span(0, 0)
    for run in [*_WHITE.finditer(traced.text), None]:
        start = len(traced.text) if run is None else run.start()
        if start > end:
            if parts:
                parts.append(" ")
                spans.append(white)
            parts.append(traced.text[end:start])
            spans += traced.spans[end:start]
        if run is not None:
            end = run.end()
            white = Span(traced.spans[run.start()].start, traced.spans[end - 1].end)
    return Traced("".join(parts), spans)
