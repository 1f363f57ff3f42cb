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
"""What is found, by kind; where two begin at one place, the first of this list. None of them goes far without an end:
a long text takes a time in proportion to its length."""
_PLACEHOLDER = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS.values()))
_LINE_BREAK = re.compile(rf"{_PLACEHOLDER.pattern}|(?P<end>\r?\n)")
_CODE_LETTERS = "XQZKJW"
"""What stand-ins begin with: capital letters that few words have."""
_PLACEHOLDER_SIGNS = re.compile(r"[%${}<>&@:/\\#;.]")
"""Without these nothing is a placeholder."""


def find_placeholders(text: str) -> list[str]:
    """The placeholders of a text, in order."""
    return _PLACEHOLDER.findall(text)


def split_at_placeholders(text: str) -> tuple[list[str], list[str]]:
    """What stands between the placeholders of a text, one text more than there are of these; and they themselves."""
    texts, place = list[str](), 0
    found = list(_PLACEHOLDER.finditer(text))
    for match in found:
        texts.append(text[place:match.start()])
        place = match.end()
    return [*texts, text[place:]], [match[0] for match in found]


def split_lines(text: str) -> list[str]:
    """The lines of a text, and between each two what breaks them. A placeholder of several lines is not cut."""
    parts, place = list[str](), 0
    for match in _LINE_BREAK.finditer(text):
        if match["end"]:
            parts += [text[place:match.start()], match[0]]
            place = match.end()
    return [*parts, text[place:]]


class CodedText(NamedTuple):
    """A text in which every placeholder is a short code that a model may copy: X1, X2."""

    text: str
    letter: str
    placeholders: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "CodedText | None":
        """The text with codes; None where it has every such code already."""
        found = find_placeholders(text)
        between = _PLACEHOLDER.sub(" ", text)
        letter = next((one for one in _CODE_LETTERS if not _code_pattern(one).search(between)), None)
        if letter is None:
            return None
        numbers = iter(range(1, len(found) + 1))
        return cls(_PLACEHOLDER.sub(lambda _: f"{letter}{next(numbers)}", text), letter, tuple(found))

    def shown(self, translation: str) -> str | None:
        """A translation with the placeholders in place of their codes; None where these are not all there, in order."""
        codes = _code_pattern(self.letter)
        if codes.findall(translation) != [f"{self.letter}{number + 1}" for number in range(len(self.placeholders))]:
            return None
        remaining = iter(self.placeholders)
        return codes.sub(lambda _: next(remaining), translation)


class TextPiece(NamedTuple):
    """A part of a text: `core` is for the model, what is around it stays. Of a placeholder all is in `before`."""

    before: str
    core: str = ""
    after: str = ""


def split_pieces(text: str) -> list[TextPiece]:
    """The text cut at its placeholders: together the pieces are the text.

    White space stays where it is, and so do signs at the beginning of a part, which belong to what is before it. A part
    without a letter has no core.
    """
    found, place = list[TextPiece](), 0
    for match in _PLACEHOLDER.finditer(text):
        found += [_make_piece(text[place:match.start()]), TextPiece(match[0])]
        place = match.end()
    return [*found, _make_piece(text[place:])]


def join_pieces(parts: Sequence[TextPiece], cores: Sequence[str]) -> str | None:
    """The text of these pieces with other cores, in which the placeholders are those that were there.

    What looks like a placeholder in a core is left out; where one comes about between two pieces, so is every sign that
    can be part of one. None where even that does not help.
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
    """A text without what looks like a placeholder, also where one comes about when another is gone."""
    while (shorter := _PLACEHOLDER.sub("", core)) != core:
        core = shorter
    return core


# ---- placeless: A text without its placeholders, for a model to translate, and what belongs back into it.
#
#     Open <b>%s files</b>, {name}!     Open 12 files!
#
# A tag and the one that closes it enclose words; so do two &quot;. A placeholder in a sentence stands for a word, and
# leaves a number behind, which fits where a name or a noun does: what the model makes of that shows where the placeholder
# belongs, and makes room for it. Other placeholders leave nothing: tags by themselves, and what signs set apart from the
# sentence, as a name that is called, or an address at the end. Each takes along what makes no sense without it: letters
# that it is written together with (%sKB), brackets around it, a colon behind it at the beginning, a sign in front where
# another follows. Placeholders without a word between them are one.
#
# What stands where in a translation is for `regard.tasks.placeholder_translation`; nothing is translated here.

OPEN, CLOSE, WORD, ALONE = "open", "close", "word", "alone"
STAND_IN = "12"
"""A model that has seen neither makes more of a number than of a letter."""
CLOSING_SIGNS = ".,:;!?…)]}»”"
"""Signs that have no space in front of them."""
_SENTENCE_ENDS = (".", "!", "?", "…")
_TAG = re.compile(r"<(/?)([A-Za-z0-9][\w:.-]*)[^<>]*?(/?)>")
_QUOTE = "&quot;"
_CODE_CHARACTERS = f"{string.ascii_letters}{string.digits}_=/#+-"
_BRACKETS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`", "«": "»", "“": "”", "‘": "’", "„": "“"}
_SEPARATORS = (",", ":", ";", "|", "=", "/", "–", "—", "-")


class PlaceholderMark(NamedTuple):
    """What is put back, and where it stood."""

    text: str
    kind: str
    start: int
    end: int
    """The characters of the text without placeholders that it left behind; none but for a word."""
    partner: int
    """The number of the mark that it encloses words with; its own where there is none."""
    before: str
    after: str
    """The characters beside it, tags left out: a space, a letter or a sign; "" at an end of the text."""
    glued: bool
    """It is of tags alone, and stays written together with whatever comes to stand beside it."""


class StrippedText(NamedTuple):
    """A text without its placeholders, and these, in order."""

    text: str
    marks: tuple[PlaceholderMark, ...]

    @classmethod
    def of(cls, line: str) -> "StrippedText":
        """What becomes of a line."""
        parts = _MarkedText(*split_at_placeholders(line))
        parts.pair()
        parts.empty()
        parts.wrap()
        parts.close_up()
        parts.wrap()
        parts.set_apart()
        return parts.placeless()


class _MarkedText:
    """Placeholders and the texts around them, while they grow together: text, mark, text, mark, text."""

    def __init__(self, texts: list[str], marks: list[str]) -> None:
        self.texts, self.marks = texts, marks
        self.markup = [mark.startswith("<") or (mark.startswith("&") and mark.endswith(";")) for mark in marks]
        self.kinds = [ALONE if tags else WORD for tags in self.markup]
        self.partners = [*range(len(marks))]

    def pair(self) -> None:
        """Find the tags that belong together."""
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

    def empty(self) -> None:
        """Make one mark of tags that enclose no word, with all that they enclose."""
        number = 0
        while number < len(self.marks):
            end = self.partners[number]
            if self.kinds[number] == OPEN and not any(map(_has_words, self.texts[number + 1:end + 1])):
                self._join(number, end)
            else:
                number += 1

    def wrap(self) -> None:
        """Let marks take letters that they are written together with, and brackets around them."""
        for number in self._single():
            if self.kinds[number] == WORD:
                left, right = self.texts[number:number + 2]
                self._take(number, left.rstrip(_CODE_CHARACTERS), right.lstrip(_CODE_CHARACTERS))
            while _BRACKETS.get(self.texts[number][-1:], "no sign") == self.texts[number + 1][:1]:
                if self.texts[number][-1] in "([":
                    self.kinds[number] = ALONE
                self._take(number, self.texts[number][:-1], self.texts[number + 1][1:])

    def close_up(self) -> None:
        """Make one mark of those that have no word between them."""
        for number in reversed(range(1, len(self.marks))):
            if not _has_words(self.texts[number]) and {OPEN, CLOSE}.isdisjoint(self.kinds[number - 1:number + 1]):
                self._join(number - 1, number)

    def set_apart(self) -> None:
        """Let marks take the signs that part them from a sentence, and leave nothing behind then."""
        for number in self._single():
            text, following = self.texts[number:number + 2]
            left, right = text.rstrip(), following.lstrip()
            if number == 0 and not left:
                taken = right.startswith(_SEPARATORS)
                following = right.lstrip("".join(_SEPARATORS)) if taken else following
            else:
                taken = left.endswith(_SEPARATORS) and not right[:1].isalnum()
                text = left.rstrip("".join(_SEPARATORS)).rstrip() if taken else text
            self._take(number, text, following)
            last = number + 1 == len(self.marks)
            if taken or (last and not right and left.endswith(_SENTENCE_ENDS)):
                self.kinds[number] = ALONE

    def placeless(self) -> StrippedText:
        """The texts put together, without two spaces and without one in front of a sign where there was none."""
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
        marks = [PlaceholderMark(mark, self.kinds[number], min(start, len(text)), min(end, len(text)), self.partners[number],
                      self._before(number), self._after(number), self.markup[number])
                 for number, (mark, (start, end)) in enumerate(zip(self.marks, spans, strict=True))]
        return StrippedText(text, tuple(marks))

    def _single(self) -> list[int]:
        """The numbers of marks that enclose nothing."""
        return [number for number, kind in enumerate(self.kinds) if kind in (WORD, ALONE)]

    def _before(self, number: int) -> str:
        """The character in front of a mark, whatever encloses it."""
        while number and not self.texts[number] and self.kinds[number - 1] in (OPEN, CLOSE):
            number -= 1
        return self.texts[number][-1:]

    def _after(self, number: int) -> str:
        """The character behind a mark, whatever encloses it."""
        while number + 1 < len(self.marks) and not self.texts[number + 1] and self.kinds[number + 1] in (OPEN, CLOSE):
            number += 1
        return self.texts[number + 1][:1]

    def _join(self, first: int, last: int) -> None:
        """Make one mark of several."""
        between = [*self.texts[first + 1:last + 1], ""]
        mark = "".join(mark + text for mark, text in zip(self.marks[first:last + 1], between, strict=True))
        markup, gone = all(self.markup[first:last + 1]), last - first
        kind = WORD if WORD in self.kinds[first:last + 1] else ALONE
        self.marks[first:last + 1], self.texts[first + 1:last + 1] = [mark], []
        self.markup[first:last + 1], self.kinds[first:last + 1] = [markup], [kind]
        self.partners = [partner - gone if partner > last else partner
                         for partner in [*self.partners[:first], first, *self.partners[last + 1:]]]

    def _take(self, number: int, left: str, right: str) -> None:
        """Leave only these of the texts beside a mark, and move the rest into it."""
        before, after = self.texts[number:number + 2]
        self.marks[number] = f"{before[len(left):]}{self.marks[number]}{after[:len(after) - len(right)]}"
        self.texts[number:number + 2] = left, right


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))
