"""A text without its placeholders, for a model to translate, and what belongs back into it.

    Open <b>%s files</b>, {name}!     Open 12 files!

A tag and the one that closes it enclose words; so do two &quot;. A placeholder in a sentence stands for a word, and
leaves a number behind, which fits where a name or a noun does: what the model makes of that shows where the placeholder
belongs, and makes room for it. Other placeholders leave nothing: tags by themselves, and what signs set apart from the
sentence, as a name that is called, or an address at the end. Each takes along what makes no sense without it: letters
that it is written together with (%sKB), brackets around it, a colon behind it at the beginning, a sign in front where
another follows. Placeholders without a word between them are one.

What stands where in a translation is for `regard.tasks.placeholders.placing`; nothing is translated here.
"""

import re
import string
from typing import NamedTuple

from regard.tasks.placeholders.finding import separated

OPEN, CLOSE, WORD, ALONE = "open", "close", "word", "alone"
STAND_IN = "12"
"""A model that has seen neither makes more of a number than of a letter."""
CLOSING = ".,:;!?…)]}»”"
"""Signs that have no space in front of them."""
_ENDS = (".", "!", "?", "…")
_TAG = re.compile(r"<(/?)([A-Za-z0-9][\w:.-]*)[^<>]*?(/?)>")
_QUOTE = "&quot;"
_CODE = f"{string.ascii_letters}{string.digits}_=/#+-"
_AROUND = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`", "«": "»", "“": "”", "‘": "’", "„": "“"}
_SIGNS = (",", ":", ";", "|", "=", "/", "–", "—", "-")


class Mark(NamedTuple):
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


class Placeless(NamedTuple):
    """A text without its placeholders, and these, in order."""

    text: str
    marks: tuple[Mark, ...]

    @classmethod
    def of(cls, line: str) -> "Placeless":
        """What becomes of a line."""
        parts = _Parts(*separated(line))
        parts.pair()
        parts.empty()
        parts.wrap()
        parts.close_up()
        parts.wrap()
        parts.set_apart()
        return parts.placeless()


class _Parts:
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
                self._take(number, left.rstrip(_CODE), right.lstrip(_CODE))
            while _AROUND.get(self.texts[number][-1:], "no sign") == self.texts[number + 1][:1]:
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
                taken = right.startswith(_SIGNS)
                following = right.lstrip("".join(_SIGNS)) if taken else following
            else:
                taken = left.endswith(_SIGNS) and not right[:1].isalnum()
                text = left.rstrip("".join(_SIGNS)).rstrip() if taken else text
            self._take(number, text, following)
            last = number + 1 == len(self.marks)
            if taken or (last and not right and left.endswith(_ENDS)):
                self.kinds[number] = ALONE

    def placeless(self) -> Placeless:
        """The texts put together, without two spaces and without one in front of a sign where there was none."""
        text, spans = self.texts[0], list[tuple[int, int]]()
        for number, following in enumerate(self.texts[1:]):
            left = STAND_IN if self.kinds[number] == WORD else ""
            spans.append((len(text), len(text) + len(left)))
            text += left
            if following and following[0] in CLOSING:
                text = text.rstrip()
                spans = [(min(start, len(text)), min(end, len(text))) for start, end in spans]
            if not text or text[-1].isspace() or (not left and text[-1] in _AROUND):
                following = following.lstrip()
            elif self.kinds[number] == ALONE and self.markup[number] and following[:1].isalnum():
                following = f" {following}"
            text += following
        text = text.rstrip()
        marks = [Mark(mark, self.kinds[number], min(start, len(text)), min(end, len(text)), self.partners[number],
                      self._before(number), self._after(number), self.markup[number])
                 for number, (mark, (start, end)) in enumerate(zip(self.marks, spans, strict=True))]
        return Placeless(text, tuple(marks))

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
