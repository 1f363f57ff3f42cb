"""Placeholders: parts of a text that must come out of its translation unchanged, as many and in the same order.

    addresses     https://example.org/a?b=1   www.example.org   me@example.org
    tags          <b>   </b>   <br/>   <a href="...">   <!-- ... -->   &amp;   &#160;
    braces        {name}   {0}   {}   {{name}}   ${x}   %{x}   {n, plural, one {# file} other {# files}}
    percent       %s   %-5.2f   %(name)d   %1$s   %@   %1   %L1   %%   %NAME%
    dollar        $name

If one stands inside another, such as an address in a tag, the outer one counts. A percent sign before a space is plain
text ("100% sure"), and so is a dollar sign before a digit ("$5"). Braces may be nested once.

This module finds placeholders and takes them out of a text in three ways: `CodedText` replaces each by a short code,
`split_pieces` splits the text between them, `StrippedText` removes them and remembers where they stood. How texts are
translated with them: `regard.tasks.placeholder_translation`.
"""

import re
import string
from collections.abc import Sequence
from typing import NamedTuple

PATTERNS = {
    "address": r"(?:https?|ftp)://[!#-;=?-~]+(?<![.,:;!?')\]])"
               r"|(?<![\w.])www\.[!#-;=?-~]+(?<![.,:;!?')\]])"
               r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "comment": r"<!--[^<>]*-->",
    "tag": r"</?[A-Za-z0-9][^<>]*>",
    "entity": r"&(?:[A-Za-z][A-Za-z0-9]{0,30}|\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6});",
    "braces": r"[$%]?\{(?:[^{}]|\{[^{}]*\})*\}",
    "variable": r"%[A-Za-z_][A-Za-z0-9_]*%|\$[A-Za-z_][A-Za-z0-9_]*",
    "conversion": r"%(?:\([^()\s]*\))?(?:[0-9]{1,3}\$)?[-+#0']{0,5}(?:[0-9]{1,4}|\*)?(?:\.(?:[0-9]{1,4}|\*)?)?"
                  r"(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGaAcCsSpn@%]|%L?[0-9]{1,3}",
}
"""Patterns by kind; of two that match at one place the first wins. Each is bounded: matching takes linear time."""
_PLACEHOLDER = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS.values()))
_LINE_BREAK = re.compile(rf"{_PLACEHOLDER.pattern}|(?P<end>\r?\n)")
_CODE_LETTERS = "XQZKJW"
"""Codes begin with one of these rare capital letters."""
_PLACEHOLDER_SIGNS = re.compile(r"[%${}<>&@:/\\#;.]")
"""Every placeholder has one of these signs."""
OPEN, CLOSE, WORD, ALONE = "open", "close", "word", "alone"
"""Kinds of marks: an opening and a closing tag, a word of the sentence, and a mark that leaves nothing."""
STAND_IN = "12"
"""The word that stands for a placeholder: models translate a number better than a single letter."""
CLOSING_SIGNS = ".,:;!?…)]}»”"
"""Signs without a space before them."""
_SENTENCE_ENDS = (".", "!", "?", "…")
_TAG = re.compile(r"<(/?)([A-Za-z0-9][\w:.-]*)[^<>]*?(/?)>")
_QUOTE = "&quot;"
_CODE_CHARACTERS = f"{string.ascii_letters}{string.digits}_=/#+-"
_BRACKETS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`", "«": "»", "“": "”", "‘": "’", "„": "“"}
_SEPARATORS = (",", ":", ";", "|", "=", "/", "–", "—", "-")


def find_placeholders(text: str) -> list[str]:
    """The placeholders of a text, in order."""
    return _PLACEHOLDER.findall(text)


def split_at_placeholders(text: str) -> tuple[list[str], list[str]]:
    """The texts between the placeholders, one more than there are placeholders; and the placeholders."""
    texts, place = list[str](), 0
    found = list(_PLACEHOLDER.finditer(text))
    for match in found:
        texts.append(text[place:match.start()])
        place = match.end()
    return [*texts, text[place:]], [match[0] for match in found]


def split_lines(text: str) -> list[str]:
    """The lines of a text, alternating with their line breaks. A placeholder of several lines is not split."""
    parts, place = list[str](), 0
    for match in _LINE_BREAK.finditer(text):
        if match["end"]:
            parts += [text[place:match.start()], match[0]]
            place = match.end()
    return [*parts, text[place:]]


class CodedText(NamedTuple):
    """A text whose placeholders are replaced by short codes that a model may copy: X1, X2."""

    text: str
    letter: str
    placeholders: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "CodedText | None":
        """The text with codes; None if it has codes of every letter already."""
        found = find_placeholders(text)
        between = _PLACEHOLDER.sub(" ", text)
        letter = next((one for one in _CODE_LETTERS if not _code_pattern(one).search(between)), None)
        if letter is None:
            return None
        numbers = iter(range(1, len(found) + 1))
        return cls(_PLACEHOLDER.sub(lambda _: f"{letter}{next(numbers)}", text), letter, tuple(found))

    def restore(self, translation: str) -> str | None:
        """A translation with placeholders instead of codes; None unless it has all codes in order."""
        codes = _code_pattern(self.letter)
        if codes.findall(translation) != [f"{self.letter}{number + 1}" for number in range(len(self.placeholders))]:
            return None
        remaining = iter(self.placeholders)
        return codes.sub(lambda _: next(remaining), translation)


class TextPiece(NamedTuple):
    """A part of a text: only `core` is translated. A placeholder is a piece with only `before`."""

    before: str
    core: str = ""
    after: str = ""


def split_pieces(text: str) -> list[TextPiece]:
    """Split a text at its placeholders; joined, the pieces are the text.

    White space and signs at the beginning of a part are not translated. A part without a letter has no core.
    """
    found, place = list[TextPiece](), 0
    for match in _PLACEHOLDER.finditer(text):
        found += [_make_piece(text[place:match.start()]), TextPiece(match[0])]
        place = match.end()
    return [*found, _make_piece(text[place:])]


def join_pieces(parts: Sequence[TextPiece], cores: Sequence[str]) -> str | None:
    """Join pieces with translated cores, so that the text has exactly the original placeholders.

    Anything in a core that looks like a placeholder is removed; if a new one appears between two pieces, so are all
    signs that can be part of one. None if even that does not help.
    """
    kept = [part.before for part in parts if not (part.core or part.after) and find_placeholders(part.before)]
    for clean in (_remove_placeholders, lambda core: _PLACEHOLDER_SIGNS.sub("", core)):
        remaining = iter(cores)
        text = "".join(part.before + (clean(next(remaining)).strip() if part.core else "") + part.after
                       for part in parts)
        if find_placeholders(text) == kept:
            return text
    return None


def _code_pattern(letter: str) -> re.Pattern[str]:
    return re.compile(rf"{letter}[0-9]+")


def _make_piece(text: str) -> TextPiece:
    begin = next((place for place, letter in enumerate(text) if letter.isalnum()), len(text))
    end = len(text.rstrip())
    if not any(map(str.isalpha, text)):
        return TextPiece(text)
    return TextPiece(text[:begin], text[begin:end], text[end:])


def _remove_placeholders(core: str) -> str:
    """A text without placeholders, even those that appear when others are removed."""
    while (shorter := _PLACEHOLDER.sub("", core)) != core:
        core = shorter
    return core


class PlaceholderMark(NamedTuple):
    """A placeholder, or several joined ones, and where it stood in the text."""

    text: str
    kind: str
    start: int
    end: int
    """The characters of its stand-in in the stripped text; empty unless the kind is WORD."""
    partner: int
    """The number of the mark that closes or opens this tag; its own number if there is none."""
    before: str
    after: str
    """The characters beside it, tags ignored: a space, a letter or a sign; "" at an end of the text."""
    glued: bool
    """Whether it consists of tags only, and so never gets a space of its own."""


class StrippedText(NamedTuple):
    """A text without its placeholders, and its placeholders in order.

        Open <b>%s files</b>, {name}!     Open 12 files!

    A tag and its closing tag enclose words; so do two &quot;. A placeholder in a sentence stands for a word, and is
    replaced by a number, which fits where a name or a noun does: its translation shows where the placeholder belongs.
    Other placeholders are removed: single tags, and placeholders that signs separate from the sentence, such as a name
    at the end. Each takes along what makes no sense without it: adjoining letters (%sKB), brackets around it, a colon
    after it at the beginning, a sign before it if another sign follows. Placeholders without a word between them are
    joined.
    """

    text: str
    marks: tuple[PlaceholderMark, ...]

    @classmethod
    def of(cls, line: str) -> "StrippedText":
        """Strip a line."""
        parts = _MarkedText(*split_at_placeholders(line))
        parts.pair_tags()
        parts.join_empty_tags()
        parts.absorb_neighbours()
        parts.join_adjacent()
        parts.absorb_neighbours()
        parts.absorb_separators()
        return parts.stripped()


class _MarkedText:
    """Placeholders and the texts around them while they are merged: text, mark, text, mark, text."""

    def __init__(self, texts: list[str], marks: list[str]) -> None:
        self.texts, self.marks = texts, marks
        self.markup = [mark.startswith("<") or (mark.startswith("&") and mark.endswith(";")) for mark in marks]
        self.kinds = [ALONE if tags else WORD for tags in self.markup]
        self.partners = [*range(len(marks))]

    def pair_tags(self) -> None:
        """Pair opening and closing tags."""
        waiting = list[tuple[str, int]]()
        for number, mark in enumerate(self.marks):
            tag = _TAG.fullmatch(mark)
            if mark != _QUOTE and (tag is None or tag[3]):
                continue
            name = tag[2].lower() if tag else _QUOTE
            there = [place for place, (other, _) in enumerate(waiting) if other == name]
            if there and (tag is None or tag[1]):
                other = waiting[there[-1]][1]
                del waiting[there[-1]:]
                self.kinds[other], self.kinds[number] = OPEN, CLOSE
                self.partners[other], self.partners[number] = number, other
            elif tag is None or not tag[1]:
                waiting.append((name, number))

    def join_empty_tags(self) -> None:
        """Join tags that enclose no word into one mark."""
        number = 0
        while number < len(self.marks):
            end = self.partners[number]
            if self.kinds[number] == OPEN and not any(map(_has_words, self.texts[number + 1:end + 1])):
                self._join(number, end)
            else:
                number += 1

    def absorb_neighbours(self) -> None:
        """Extend marks by letters that adjoin them, and by brackets around them."""
        for number in self._single():
            if self.kinds[number] == WORD:
                left, right = self.texts[number:number + 2]
                self._absorb(number, left.rstrip(_CODE_CHARACTERS), right.lstrip(_CODE_CHARACTERS))
            while _BRACKETS.get(self.texts[number][-1:], "no sign") == self.texts[number + 1][:1]:
                if self.texts[number][-1] in "([":
                    self.kinds[number] = ALONE
                self._absorb(number, self.texts[number][:-1], self.texts[number + 1][1:])

    def join_adjacent(self) -> None:
        """Join marks without a word between them."""
        for number in reversed(range(1, len(self.marks))):
            if not _has_words(self.texts[number]) and {OPEN, CLOSE}.isdisjoint(self.kinds[number - 1:number + 1]):
                self._join(number - 1, number)

    def absorb_separators(self) -> None:
        """Extend marks by the signs that separate them from the sentence; such marks need no stand-in."""
        for number in self._single():
            text, following = self.texts[number:number + 2]
            left, right = text.rstrip(), following.lstrip()
            if number == 0 and not left:
                taken = right.startswith(_SEPARATORS)
                following = right.lstrip("".join(_SEPARATORS)) if taken else following
            else:
                taken = left.endswith(_SEPARATORS) and not right[:1].isalnum()
                text = left.rstrip("".join(_SEPARATORS)).rstrip() if taken else text
            self._absorb(number, text, following)
            last = number + 1 == len(self.marks)
            if taken or (last and not right and left.endswith(_SENTENCE_ENDS)):
                self.kinds[number] = ALONE

    def stripped(self) -> StrippedText:
        """Join the texts, without double spaces and without new spaces before signs."""
        text, spans = self.texts[0], list[tuple[int, int]]()
        for number, following in enumerate(self.texts[1:]):
            left = STAND_IN if self.kinds[number] == WORD else ""
            spans.append((len(text), len(text) + len(left)))
            text += left
            if following and following[0] in CLOSING_SIGNS:
                text = text.rstrip()
                spans = [(min(start, len(text)), min(end, len(text))) for start, end in spans]
            if not text or text[-1].isspace() or (not left and text[-1] in _BRACKETS):
                following = following.lstrip()
            elif self.kinds[number] == ALONE and self.markup[number] and following[:1].isalnum():
                following = f" {following}"
            text += following
        text = text.rstrip()
        marks = [PlaceholderMark(mark, self.kinds[number], min(start, len(text)), min(end, len(text)),
                                 self.partners[number], self._before(number), self._after(number), self.markup[number])
                 for number, (mark, (start, end)) in enumerate(zip(self.marks, spans, strict=True))]
        return StrippedText(text, tuple(marks))

    def _single(self) -> list[int]:
        """The numbers of marks that are not tags of a pair."""
        return [number for number, kind in enumerate(self.kinds) if kind in (WORD, ALONE)]

    def _before(self, number: int) -> str:
        """The character before a mark, tags ignored."""
        while number and not self.texts[number] and self.kinds[number - 1] in (OPEN, CLOSE):
            number -= 1
        return self.texts[number][-1:]

    def _after(self, number: int) -> str:
        """The character after a mark, tags ignored."""
        while number + 1 < len(self.marks) and not self.texts[number + 1] and self.kinds[number + 1] in (OPEN, CLOSE):
            number += 1
        return self.texts[number + 1][:1]

    def _join(self, first: int, last: int) -> None:
        """Join several marks into one."""
        between = [*self.texts[first + 1:last + 1], ""]
        mark = "".join(mark + text for mark, text in zip(self.marks[first:last + 1], between, strict=True))
        markup, gone = all(self.markup[first:last + 1]), last - first
        kind = WORD if WORD in self.kinds[first:last + 1] else ALONE
        self.marks[first:last + 1], self.texts[first + 1:last + 1] = [mark], []
        self.markup[first:last + 1], self.kinds[first:last + 1] = [markup], [kind]
        self.partners = [partner - gone if partner > last else partner
                         for partner in [*self.partners[:first], first, *self.partners[last + 1:]]]

    def _absorb(self, number: int, left: str, right: str) -> None:
        """Keep `left` and `right` of the texts beside a mark, and move the rest into the mark."""
        before, after = self.texts[number:number + 2]
        self.marks[number] = f"{before[len(left):]}{self.marks[number]}{after[:len(after) - len(right)]}"
        self.texts[number:number + 2] = left, right


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))
