"""PO files (gettext): sentence pairs, and the slots of translations.

As pairs, an entry is its msgid and its msgstr. Fuzzy and obsolete entries are skipped, as programs skip them; an
untranslated entry is a pair with an empty target. In an entry with plurals, the form that Plural-Forms selects for one
item belongs to msgid, every other form to msgid_plural. When translations are written back, fuzzy entries are slots
too, and keep their flag. Contexts and comments are kept and not interpreted.

One parser serves reading and writing, so both see the same entries in the same order. An existing PO library would hold
the whole file, lose the offsets of its strings and wrap them anew. The parser is as strict as gettext's own tools, and
additionally refuses a string that continues after a backslash at the end of its line and a second keyword on a line.
Only UTF-8 is read; a header that declares another charset is believed, and the file refused.
"""

import gettext
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from regard.data.languages import LanguagePair, normalize_code
from regard.data.sources.text import (
    MAX_LINE_BYTES,
    DataError,
    DocumentParts,
    InputFile,
    Location,
    ReadLog,
    SentencePair,
    SkipCallback,
    TargetSlot,
    encode_text,
    printable,
    read_lines_with_ends,
    too_long_error,
)

BLANKS = " \t\r\f\v"
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr)(?![a-z_])[ \t]*(?:\[[ \t]*([0-9]{1,9})[ \t]*\])?[ \t]*")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"[ \t\r\f\v]*', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:([abfnrtv\\"])|([0-7]{1,3})|x([0-9A-Fa-f]{2})|(.?))', re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}
_ESCAPES = str.maketrans({letter: f"\\{name}" for name, letter in _LETTERS.items()})
_CHARSET = re.compile(r"^Content-Type:.*?charset=([^\s;]+)", re.MULTILINE | re.IGNORECASE)
_PLURALS = re.compile(r"^Plural-Forms:\s*nplurals\s*=\s*([0-9]+)\s*;\s*plural\s*=([^;\n]+)",
                      re.MULTILINE | re.IGNORECASE)
_LANGUAGE = re.compile(r"^(Language|X-Source-Language):[ \t]*([A-Za-z0-9_-]+)", re.MULTILINE | re.IGNORECASE)
_READABLE = {"utf-8", "utf8", "us-ascii", "ascii", "charset"}  # the last is the placeholder of templates


@dataclass
class PoString:
    """The string after a keyword, and the offsets of its quoted parts in the text of the entry."""

    line: int
    begin: int
    end: int
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class PoEntry:
    """An entry with the comments before it. The last one of a file may have only comments."""

    raw: list[str] = field(default_factory=list)
    """Its lines with their ends."""
    size: int = 0
    flags: set[str] = field(default_factory=set)
    obsolete: bool = False
    context: PoString | None = None
    id: PoString | None = None
    plural: PoString | None = None
    strings: list[PoString] = field(default_factory=list)
    """msgstr; with plurals msgstr[0], msgstr[1], ..."""
    end: str = "\n"
    """The line end."""


def read_entries(input: InputFile) -> Iterator[PoEntry]:
    """All entries of a file. Their lines together are the whole file, except a byte order mark."""
    entry, last = PoEntry(), None
    for number, (text, end) in enumerate(read_lines_with_ends(input), 1):
        position = _directive_start(text)
        keyword = None if position is None else _KEYWORD.match(text, position)
        starts = text.strip(BLANKS) if position is None else keyword and keyword[1] in ("msgctxt", "msgid")
        if entry.strings and starts:
            yield entry
            entry, last = PoEntry(), None
        if position is None:
            if text.lstrip(BLANKS).startswith("#,"):
                entry.flags.update(flag.strip() for flag in text.lstrip(BLANKS)[2:].split(","))
        else:
            location = f"{input.name}:{number}"
            if keyword:
                last = PoString(number, entry.size + keyword.end(), entry.size + keyword.end())
                _assign_string(entry, keyword[1], keyword[2], last, location)
                if last is (entry.context or entry.id):
                    entry.obsolete = _is_obsolete(text)
            if last is None:
                raise DataError(f"{location}: {_excerpt(text)} is neither a comment nor msgctxt, msgid, msgid_plural "
                                "or msgstr. Fix the line; msgfmt -c shows more.")
            if _is_obsolete(text) != entry.obsolete:
                raise DataError(f"{location}: Some lines of this entry are obsolete (#~), some are not. "
                                "Mark all of them or none.")
            _read_strings(last, text, keyword.end() if keyword else position, entry.size, location)
        entry.raw.append(text + end)
        entry.size += len(text) + len(end)
        if entry.size > MAX_LINE_BYTES:
            raise too_long_error(Location(input.name, number), "entry", MAX_LINE_BYTES)
        entry.end = end or entry.end
    started = entry.id or entry.context
    if started and not entry.strings:
        name = "msgid" if entry.id else "msgctxt"
        raise DataError(f"{input.name}:{started.line}: A {name} without a msgstr. Is the file truncated?")
    if entry.raw:
        yield entry


def escape_string(text: str) -> str:
    """A text with the escapes of a PO string."""
    return text.translate(_ESCAPES)


def _directive_start(text: str) -> int | None:
    """The offset of a keyword or a string, after #~ if it is obsolete; None if the line is a comment or blank."""
    start = len(text) - len(text.lstrip(BLANKS))
    if text.startswith("#~", start):
        rest = text[start + 2:].lstrip(BLANKS)
        return len(text) - len(rest) if rest.startswith('"') or _KEYWORD.match(rest) else None
    return None if start == len(text) or text[start] == "#" else start


def _is_obsolete(text: str) -> bool:
    return text.lstrip(BLANKS).startswith("#")


def _assign_string(entry: PoEntry, keyword: str, index: str | None, string: PoString, location: str) -> None:
    """Put the string of a keyword into the entry; a DataError if the keywords are out of order."""
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
        raise DataError(f"{location}: {name} does not belong here. An entry is msgctxt (it may be missing), msgid, "
                        "then msgstr; or msgid, msgid_plural, msgstr[0], msgstr[1] and so on.")


def _read_strings(string: PoString, text: str, position: int, size: int, location: str) -> None:
    """Append the quoted parts of a line, the first of which begins at `position`."""
    while position < len(text.rstrip(BLANKS)):
        match = _STRING.match(text, position)
        if match is None:
            raise DataError(f"{location}: {_excerpt(text[position:])} is not between quotation marks, or one inside is "
                            "not escaped by a backslash. Fix the line.")
        if not string.parts:
            string.begin = size + position
        string.parts.append(_ESCAPE.sub(lambda escape: _unescape(escape, location), match[1]))
        string.end = size + match.start() + len(match[1]) + 2
        position = match.end()


def _unescape(escape: "re.Match[str]", location: str) -> str:
    letter, octal, hexadecimal, _ = escape.groups()
    if letter:
        return _LETTERS[letter]
    code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else 0
    if not 0 < code < 128:
        raise DataError(f"{location}: {printable(escape[0])} is not an escape of PO. A backslash is written \\\\.")
    return chr(code)


def _excerpt(text: str) -> str:
    text = printable(text.strip(BLANKS))
    return text if len(text) <= 40 else f"{text[:40]}..."


def read_pairs(input: InputFile, skipped: SkipCallback, log: ReadLog) -> Iterator[SentencePair]:
    """The pairs of a file, without fuzzy and obsolete entries; `skipped` is called for each of those."""
    singular = 0
    for entry in read_entries(input):
        location = _entry_location(input, entry)
        if _is_header(entry):
            singular = _read_header(input, entry)
            _log_languages(input, entry.strings[0].text, log)
        elif entry.strings and (entry.obsolete or "fuzzy" in entry.flags):  # comments alone are not an entry
            skipped(location, "obsolete" if entry.obsolete else "fuzzy")
        else:
            for index, string in enumerate(entry.strings):
                yield SentencePair(_source_text(entry, index, singular), string.text, location)


def parse_document(input: InputFile) -> DocumentParts:
    """The slots of a file: the translations of every entry that is not obsolete."""
    singular = 0
    for entry in read_entries(input):
        text, position = "".join(entry.raw), 0
        if _is_header(entry):
            singular = _read_header(input, entry)
        elif not entry.obsolete:
            location = _entry_location(input, entry)
            for index, string in enumerate(entry.strings):
                yield text[position:string.begin].encode()
                raw = text[string.begin:string.end].encode()
                write = partial(_encode_target, location, entry.end)
                yield TargetSlot(_source_text(entry, index, singular), string.text, location, raw, write)
                position = string.end
        yield text[position:].encode()


def _entry_location(input: InputFile, entry: PoEntry) -> Location:
    return Location(input.name, entry.id.line if entry.id else 0)


def _is_header(entry: PoEntry) -> bool:
    return entry.context is None and entry.id is not None and not entry.id.text and not entry.obsolete


def _read_header(input: InputFile, entry: PoEntry) -> int:
    """Check the charset; returns the index of the plural form for one item, or -1 if there is only one form."""
    text, line = entry.strings[0].text, entry.strings[0].line
    charset = _CHARSET.search(text)
    if charset and charset[1].lower() not in _READABLE:
        raise DataError(f'{input.name}:{line}: The charset is "{printable(charset[1])}", but only UTF-8 is read. '
                        "Convert the file: msgconv -t UTF-8.")
    plurals = _PLURALS.search(text)
    if plurals is None:
        return 0
    try:
        return -1 if int(plurals[1]) == 1 else gettext.c2py(plurals[2].strip())(1)
    except (ValueError, ZeroDivisionError) as error:
        reason = printable(str(error))
        raise DataError(f"{input.name}:{line}: Plural-Forms cannot be evaluated ({reason}). Fix it.") from error


def _log_languages(input: InputFile, header: str, log: ReadLog) -> None:
    """Log the languages that a header declares. Sources are English by convention."""
    declared = {name.lower(): normalize_code(value) for name, value in _LANGUAGE.findall(header)}
    target = declared.get("language")
    if target:
        log.languages[input.name] = LanguagePair(declared.get("x-source-language") or "en", target)


def _source_text(entry: PoEntry, index: int, singular: int) -> str:
    assert entry.id is not None, "a msgstr follows a msgid"
    return (entry.id if entry.plural is None or index == singular else entry.plural).text


def _encode_target(location: Location, end: str, text: str) -> bytes:
    """A text in quotation marks, split after its line breaks as gettext's tools do."""
    *inner, last = text.split("\n")
    parts = [f"{part}\n" for part in inner] + [last] * bool(last)
    quoted = [f'"{escape_string(part)}"' for part in parts] or ['""']
    encode_text(location, text)
    return end.join(['""', *quoted] if len(quoted) > 1 else quoted).encode()
