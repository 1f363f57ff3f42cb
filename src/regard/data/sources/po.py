"""PO files (gettext): pairs to learn from, and the places of translations to be written.

As pairs, an entry is its msgid and its msgstr. Fuzzy and obsolete entries are left out, as programs leave them out; an
untranslated one is a pair with an empty target. Of an entry with plurals, the form that the file's Plural-Forms takes
for one thing belongs to msgid, every other to msgid_plural. Written back, the fuzzy ones are places too, and keep their
flag: whether a translation is good is not for this file to say. Contexts and comments are kept, and not looked at.

Only UTF-8 is read. A header that says otherwise is believed, and the file refused.
"""

import gettext
import re
from collections.abc import Iterator
from functools import partial

from regard.data.pair import DataError, Pair, Where
from regard.data.sources.inputs import Input, shown
from regard.data.sources.plain import encoded
from regard.data.sources.po_entries import Entry, String, entries, escaped
from regard.data.sources.slots import LeftOut, Pieces, Slot

_CHARSET = re.compile(r"^Content-Type:.*?charset=([^\s;]+)", re.MULTILINE | re.IGNORECASE)
_PLURALS = re.compile(r"^Plural-Forms:\s*nplurals\s*=\s*([0-9]+)\s*;\s*plural\s*=([^;\n]+)",
                      re.MULTILINE | re.IGNORECASE)
_READABLE = {"utf-8", "utf8", "us-ascii", "ascii", "charset"}  # the last stands in templates


def pairs(input: Input, left_out: LeftOut) -> Iterator[Pair]:
    """The pairs of a file."""
    one = 0
    for entry in entries(input):
        where = _where(input, entry)
        if _is_header(entry):
            one = _header(input, entry)
        elif entry.strings and (entry.obsolete or "fuzzy" in entry.flags):  # comments alone leave nothing out
            left_out(where, "obsolete" if entry.obsolete else "fuzzy")
        else:
            for index, string in enumerate(entry.strings):
                yield Pair(_source(entry, index, one), string.text, where)


def pieces(input: Input) -> Pieces:
    """The translations of a file: of every entry that is not obsolete."""
    one = 0
    for entry in entries(input):
        text, place = "".join(entry.raw), 0
        if _is_header(entry):
            one = _header(input, entry)
        elif not entry.obsolete:
            where = _where(input, entry)
            for index, string in enumerate(entry.strings):
                yield text[place:string.begin].encode()
                raw = text[string.begin:string.end].encode()
                yield Slot(_source(entry, index, one), string.text, where, raw, partial(_written, where, entry.end))
                place = string.end
        yield text[place:].encode()


def _where(input: Input, entry: Entry) -> Where:
    return Where(input.name, entry.id.line if entry.id else 0)


def _is_header(entry: Entry) -> bool:
    return entry.context is None and entry.id is not None and not entry.id.text and not entry.obsolete


def _header(input: Input, entry: Entry) -> int:
    """Check what the header says of the file; the index of the plural form for one thing, or -1 where all share one."""
    text, line = entry.strings[0].text, entry.strings[0].line
    charset = _CHARSET.search(text)
    if charset and charset[1].lower() not in _READABLE:
        raise DataError(f'{input.name}:{line}: The charset is "{shown(charset[1])}", but only UTF-8 is read. '
                        "Convert the file: msgconv -t UTF-8.")
    plurals = _PLURALS.search(text)
    if plurals is None:
        return 0
    try:
        return -1 if int(plurals[1]) == 1 else gettext.c2py(plurals[2].strip())(1)
    except (ValueError, ZeroDivisionError) as error:
        reason = shown(str(error))
        raise DataError(f"{input.name}:{line}: Plural-Forms cannot be computed ({reason}). Mend it.") from error


def _source(entry: Entry, index: int, one: int) -> str:
    assert entry.id is not None, "there is a msgstr only behind a msgid"
    chosen: String = entry.id if entry.plural is None or index == one else entry.plural
    return chosen.text


def _written(where: Where, end: str, text: str) -> bytes:
    """A text in quotation marks, cut behind its line breaks as gettext's tools do."""
    *inner, last = text.split("\n")
    parts = [f"{part}\n" for part in inner] + [last] * bool(last)
    quoted = [f'"{escaped(part)}"' for part in parts] or ['""']
    encoded(where, text)
    return end.join(['""', *quoted] if len(quoted) > 1 else quoted).encode()
