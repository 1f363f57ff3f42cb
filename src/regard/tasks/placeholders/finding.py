r"""Placeholders: what stands in a text and must come out of its translation as it is, as often and in the same order.

    addresses     https://example.org/a?b=1   www.example.org   me@example.org
    tags          <b>   </b>   <br/>   <a href="...">   <!-- ... -->   &amp;   &#160;
    braces        {name}   {0}   {}   {{name}}   ${x}   %{x}   {n, plural, one {# file} other {# files}}
    percent       %s   %-5.2f   %(name)d   %1$s   %@   %1   %L1   %%   %NAME%
    dollar        $name

Where one stands inside another, as an address in a tag, the outer one counts. A percent sign before a space is just
that ("100% sure"), and so is a dollar sign before a digit ("$5"). Braces may be nested once.

This file finds them, hides them behind stand-ins, and cuts a text between them. It does not know what translates.
"""

import re
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
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS.values()))
_BREAKS = re.compile(rf"{_ANY.pattern}|(?P<end>\r?\n)")
_LETTERS = "XQZKJW"
"""What stand-ins begin with: capital letters that few words have."""
_SIGNS = re.compile(r"[%${}<>&@:/\\#;.]")
"""Without these nothing is a placeholder."""


def placeholders(text: str) -> list[str]:
    """The placeholders of a text, in order."""
    return _ANY.findall(text)


def separated(text: str) -> tuple[list[str], list[str]]:
    """What stands between the placeholders of a text, one text more than there are of these; and they themselves."""
    texts, place = list[str](), 0
    found = list(_ANY.finditer(text))
    for match in found:
        texts.append(text[place:match.start()])
        place = match.end()
    return [*texts, text[place:]], [match[0] for match in found]


def cut_lines(text: str) -> list[str]:
    """The lines of a text, and between each two what breaks them. A placeholder of several lines is not cut."""
    parts, place = list[str](), 0
    for match in _BREAKS.finditer(text):
        if match["end"]:
            parts += [text[place:match.start()], match[0]]
            place = match.end()
    return [*parts, text[place:]]


class Hidden(NamedTuple):
    """A text in which every placeholder is a short code that a model may copy: X1, X2."""

    text: str
    letter: str
    placeholders: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Hidden | None":
        """The text with codes; None where it has every such code already."""
        found = placeholders(text)
        between = _ANY.sub(" ", text)
        letter = next((one for one in _LETTERS if not _codes(one).search(between)), None)
        if letter is None:
            return None
        numbers = iter(range(1, len(found) + 1))
        return cls(_ANY.sub(lambda _: f"{letter}{next(numbers)}", text), letter, tuple(found))

    def shown(self, translation: str) -> str | None:
        """A translation with the placeholders in place of their codes; None where these are not all there, in order."""
        codes = _codes(self.letter)
        if codes.findall(translation) != [f"{self.letter}{number + 1}" for number in range(len(self.placeholders))]:
            return None
        remaining = iter(self.placeholders)
        return codes.sub(lambda _: next(remaining), translation)


class Piece(NamedTuple):
    """A part of a text: `core` is for the model, what is around it stays. Of a placeholder all is in `before`."""

    before: str
    core: str = ""
    after: str = ""


def pieces(text: str) -> list[Piece]:
    """The text cut at its placeholders: together the pieces are the text.

    White space stays where it is, and so do signs at the beginning of a part, which belong to what is before it. A part
    without a letter has no core.
    """
    found, place = list[Piece](), 0
    for match in _ANY.finditer(text):
        found += [_piece(text[place:match.start()]), Piece(match[0])]
        place = match.end()
    return [*found, _piece(text[place:])]


def joined(parts: Sequence[Piece], cores: Sequence[str]) -> str | None:
    """The text of these pieces with other cores, in which the placeholders are those that were there.

    What looks like a placeholder in a core is left out; where one comes about between two pieces, so is every sign that
    can be part of one. None where even that does not help.
    """
    kept = [part.before for part in parts if not (part.core or part.after) and placeholders(part.before)]
    for clean in (_without, lambda core: _SIGNS.sub("", core)):
        remaining = iter(cores)
        text = "".join(part.before + (clean(next(remaining)).strip() if part.core else "") + part.after
                       for part in parts)
        if placeholders(text) == kept:
            return text
    return None


def _codes(letter: str) -> re.Pattern[str]:
    return re.compile(rf"{letter}[0-9]+")


def _piece(text: str) -> Piece:
    begin = next((place for place, letter in enumerate(text) if letter.isalnum()), len(text))
    end = len(text.rstrip())
    if not any(map(str.isalpha, text)):
        return Piece(text)
    return Piece(text[:begin], text[begin:end], text[end:])


def _without(core: str) -> str:
    """A text without what looks like a placeholder, also where one comes about when another is gone."""
    while (shorter := _ANY.sub("", core)) != core:
        core = shorter
    return core
