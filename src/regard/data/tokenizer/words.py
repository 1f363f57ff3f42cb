"""Where the words of a text are, and which tokens make each up.

First the text alone is cut into units:

- letters, digits, marks and underscores that follow each other are one unit, and so are those around one hyphen
  between letters (well-known) and around one point or comma between digits (3.5);
- an apostrophe between letters belongs to what follows it where that is an English ending (dog 's, we 're), to what is
  before it where that is as short as a French article (l' homme, qu' il), and to both otherwise (aujourd'hui);
- a sign of punctuation, or a symbol, is a unit, and so is a run of one sign (...);
- what is written without spaces (Han, kana, Thai, Lao, Khmer, Burmese, Tibetan) has a unit for each character;
- marks, joiners, variation selectors and skin tones stay with what is in front of them, what follows a joiner (U+200D)
  stays too, and two regional indicators make one flag;
- white space, the no-break spaces and U+200B belong to no unit.

Then units that share a token are put together, because a weight of attention cannot be divided. So there are words in
texts without spaces too: they are the tokenizer's own. Every token belongs to one word: one of white space alone to the
word that follows, or else to the last; only where there is no word at all does it belong to none.

This file does not know how tokens came to be.
"""

import functools
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

SPACE, WORD, ALONE, EXTENDS, SIGN, FLAG = "space", "word", "alone", "extends", "sign", "flag"
JOINER, ZERO_SPACE = "\u200d", "\u200b"
APOSTROPHES, HYPHENS, POINTS = "'\u2019", "-\u2010\u2011", ".,"
ENDINGS = ("s", "t", "re", "ve", "ll", "d", "m")
SHORT = 2
"""Letters in front of an apostrophe that make it end a word: l', qu'."""
# First and last code point of what is written without spaces.
UNSPACED = (
    (0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19FF), (0x1A20, 0x1AAF), (0x3005, 0x3007),
    (0x3031, 0x3035), (0x303B, 0x303C), (0x3041, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xA9E0, 0xA9FF), (0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFD),
)
_FIRSTS = [first for first, _ in UNSPACED]


class Span(NamedTuple):
    """The characters text[start:end]."""

    start: int
    end: int


class Word(NamedTuple):
    """The characters text[start:end], and the tokens from the first to the last, which is one of them."""

    start: int
    end: int
    first_token: int
    last_token: int


def units(text: str) -> list[Span]:
    """The units of a text, in order."""
    found: list[Span] = []
    start, before = 0, SPACE
    for at, character in enumerate(text):
        kind = _kind(character)
        joins = _joins(text, at, before, kind)
        if kind == SIGN and before == WORD and _between(text, at):
            kind = WORD
            joins = character not in APOSTROPHES or not _opens_ending(text, at)
        elif kind == WORD and before == WORD and text[at - 1] in APOSTROPHES:
            joins = at - 1 == start or at - 1 - start > SHORT
        if not joins:
            if before != SPACE:
                found.append(Span(start, at))
            start = at
            before = SIGN if kind == EXTENDS else kind
        elif kind == FLAG:
            before = SIGN  # a flag is complete with its second half
    if before != SPACE:
        found.append(Span(start, len(text)))
    return found


def group(text: str, spans: Sequence[Span], apart: Sequence[bool] | None = None) -> list[Word]:
    """The words of a text whose tokens have these spans; tokens that are `apart` belong to no word."""
    found = units(text)
    owner = _owners(found, len(text))
    words: list[Word] = []
    waiting: int | None = None  # the first of some tokens of white space, which go to the word that follows
    last_unit = -1
    for token, span in enumerate(spans):
        if apart is not None and apart[token]:
            continue
        touched = [owner[at] for at in range(span.start, span.end) if owner[at] >= 0]
        if not touched:
            waiting = token if waiting is None else waiting
        elif touched[0] <= last_unit:
            word = words[-1]
            words[-1] = word._replace(end=max(word.end, found[touched[-1]].end), last_token=token)
            waiting = None
        else:
            words.append(Word(found[touched[0]].start, found[touched[-1]].end, token if waiting is None else waiting,
                              token))
            waiting = None
        last_unit = max(last_unit, touched[-1]) if touched else last_unit
    if waiting is not None and words:
        last = max(token for token in range(len(spans)) if apart is None or not apart[token])
        words[-1] = words[-1]._replace(last_token=last)
    return words


def _owners(found: Sequence[Span], length: int) -> list[int]:
    """For each of so many characters the number of its unit, or -1."""
    owner = [-1] * length
    for index, (start, end) in enumerate(found):
        owner[start:end] = [index] * (end - start)
    return owner


def _joins(text: str, at: int, before: str, kind: str) -> bool:
    """Whether the character stays in the unit in front of it, whose kind is `before`."""
    if kind == SPACE or before == SPACE:
        return kind == before
    if kind == EXTENDS or text[at - 1] == JOINER:
        return True
    if kind == SIGN:
        return before == SIGN and text[at - 1] == text[at]
    return kind == before and kind != ALONE


def _between(text: str, at: int) -> bool:
    """Whether this is an apostrophe or a hyphen between letters, or a point between digits."""
    if not 0 < at < len(text) - 1:
        return False
    before, after = text[at - 1], text[at + 1]
    if text[at] in APOSTROPHES or text[at] in HYPHENS:
        return _kind(after) == WORD and not before.isdigit() and not after.isdigit()
    return text[at] in POINTS and before.isdigit() and after.isdigit()


def _opens_ending(text: str, at: int) -> bool:
    """Whether the letters behind this apostrophe are one of the endings, and the word is over then."""
    end = at + 1
    while end < len(text) and end - at <= SHORT + 1 and _kind(text[end]) in (WORD, EXTENDS):
        end += 1
    return text[at + 1:end].lower() in ENDINGS


@functools.lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if character.isspace() or character == ZERO_SPACE:
        return SPACE
    if category[0] == "M" or category == "Cf" or 0x1F3FB <= code <= 0x1F3FF:
        return EXTENDS
    if 0x1F1E6 <= code <= 0x1F1FF:
        return FLAG
    place = bisect_right(_FIRSTS, code) - 1
    if category[0] in "LN" and place >= 0 and code <= UNSPACED[place][1]:
        return ALONE
    return WORD if category[0] in "LN" or character == "_" else SIGN
