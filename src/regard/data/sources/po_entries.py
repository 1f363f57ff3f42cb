"""The entries of a PO file (gettext), each with its lines as they stand and the places of its strings in them.

One walk serves reading and writing, so both see the same entries in the same order. A library that reads PO is not
asked: it would hold the whole file, forget where its strings stand, wrap them anew, and end lines where none ends.
Strict like gettext's own tools: what they refuse outside of comments is refused here, with its line; and two things
that they read and hardly anyone writes, a string that goes on behind a backslash at the end of its line, and a second
keyword on a line. It does not know which entries are wanted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from regard.data.pair import DataError
from regard.data.sources.inputs import Input, shown
from regard.data.sources.lines import ended_lines

BLANKS = " \t\r\f\v"
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr)(?![a-z_])[ \t]*(?:\[[ \t]*([0-9]{1,9})[ \t]*\])?[ \t]*")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"[ \t\r\f\v]*', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:([abfnrtv\\"])|([0-7]{1,3})|x([0-9A-Fa-f]{2})|(.?))', re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}
_ESCAPES = str.maketrans({letter: f"\\{name}" for name, letter in _LETTERS.items()})


@dataclass
class String:
    """What follows a keyword: a text, and where its quoted parts begin and end in the entry's own text."""

    line: int
    begin: int
    end: int
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class Entry:
    """An entry with the comments before it. The last one of a file may have comments alone."""

    raw: list[str] = field(default_factory=list)
    """Its lines, with their ends."""
    size: int = 0
    flags: set[str] = field(default_factory=set)
    obsolete: bool = False
    context: String | None = None
    id: String | None = None
    plural: String | None = None
    strings: list[String] = field(default_factory=list)
    """Of msgstr; or of msgstr[0], msgstr[1], ... where there is a plural."""
    end: str = "\n"
    """What ends its lines."""


def entries(input: Input) -> Iterator[Entry]:
    """All entries of a file. Their lines together are the file, but for a byte order mark."""
    entry, last = Entry(), None
    for number, (text, end) in enumerate(ended_lines(input), 1):
        place = _directive(text)
        keyword = None if place is None else _KEYWORD.match(text, place)
        starts = text.strip(BLANKS) if place is None else keyword and keyword[1] in ("msgctxt", "msgid")
        if entry.strings and starts:
            yield entry
            entry, last = Entry(), None
        if place is None:
            if text.lstrip(BLANKS).startswith("#,"):
                entry.flags.update(flag.strip() for flag in text.lstrip(BLANKS)[2:].split(","))
        else:
            where = f"{input.name}:{number}"
            if keyword:
                last = String(number, entry.size + keyword.end(), entry.size + keyword.end())
                _place(entry, keyword[1], keyword[2], last, where)
                if last is (entry.context or entry.id):
                    entry.obsolete = _is_obsolete(text)
            if last is None:
                raise DataError(f"{where}: {_excerpt(text)} is neither a comment nor msgctxt, msgid, msgid_plural or "
                                "msgstr. Mend the line; msgfmt -c shows more.")
            if _is_obsolete(text) != entry.obsolete:
                raise DataError(f"{where}: Some lines of this entry are obsolete (#~), some are not. Make them alike.")
            _read(last, text, keyword.end() if keyword else place, entry.size, where)
        entry.raw.append(text + end)
        entry.size += len(text) + len(end)
        entry.end = end or entry.end
    started = entry.id or entry.context
    if started and not entry.strings:
        name = "msgid" if entry.id else "msgctxt"
        raise DataError(f"{input.name}:{started.line}: A {name} without a msgstr. Is the file cut off?")
    if entry.raw:
        yield entry


def escaped(text: str) -> str:
    """A text as it stands between quotation marks."""
    return text.translate(_ESCAPES)


def _directive(text: str) -> int | None:
    """Where a keyword or a string begins, behind #~ if it is obsolete; None where the line is a comment or blank."""
    start = len(text) - len(text.lstrip(BLANKS))
    if text.startswith("#~", start):
        rest = text[start + 2:].lstrip(BLANKS)
        return len(text) - len(rest) if rest.startswith('"') or _KEYWORD.match(rest) else None
    return None if start == len(text) or text[start] == "#" else start


def _is_obsolete(text: str) -> bool:
    return text.lstrip(BLANKS).startswith("#")


def _place(entry: Entry, keyword: str, index: str | None, string: String, where: str) -> None:
    """Put the string of a keyword into the entry, where the order of keywords allows it."""
    if keyword != "msgstr" and index is None:
        name = {"msgctxt": "context", "msgid": "id", "msgid_plural": "plural"}[keyword]
        in_order = not entry.strings and getattr(entry, name) is None and \
            {"msgctxt": entry.id is None, "msgid": True, "msgid_plural": entry.id is not None}[keyword]
        setattr(entry, name, string)
    else:
        expected = len(entry.strings) if entry.plural else None
        in_order = keyword == "msgstr" and entry.id is not None and (int(index) if index else None) == expected \
            and not (entry.strings and index is None)
        entry.strings.append(string)
    if not in_order:
        name = keyword if index is None else f"{keyword}[{index}]"
        raise DataError(f"{where}: {name} does not belong here. An entry is msgctxt (it may be missing), msgid, then "
                        "msgstr; or msgid, msgid_plural, msgstr[0], msgstr[1] and so on.")


def _read(string: String, text: str, place: int, size: int, where: str) -> None:
    """Add the quoted parts of a line, of which the first begins at `place`."""
    while place < len(text.rstrip(BLANKS)):
        match = _STRING.match(text, place)
        if match is None:
            raise DataError(f"{where}: {_excerpt(text[place:])} is not between quotation marks, or one inside has no "
                            "backslash before it. Mend the line.")
        if not string.parts:
            string.begin = size + place
        string.parts.append(_ESCAPE.sub(lambda escape: _unescaped(escape, where), match[1]))
        string.end = size + match.start() + len(match[1]) + 2
        place = match.end()


def _unescaped(escape: "re.Match[str]", where: str) -> str:
    letter, octal, hexadecimal, _ = escape.groups()
    if letter:
        return _LETTERS[letter]
    code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else 0
    if not 0 < code < 128:
        raise DataError(f"{where}: {shown(escape[0])} is no escape of a PO file. A backslash is written \\\\.")
    return chr(code)


def _excerpt(text: str) -> str:
    text = shown(text.strip(BLANKS))
    return text if len(text) <= 40 else f"{text[:40]}..."
