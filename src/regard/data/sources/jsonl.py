"""JSON Lines: an object on each line, with the texts under the keys `source` and `target`, or others that are named.

Other keys may stand beside them. Written back, an object keeps every byte but those of its target's value; where it
has no target yet, one is added as the last key. A key that comes twice is refused: readers differ in which of the two
they see. It does not know what the texts are.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial

from regard.data.pair import DataError, Pair, Where
from regard.data.sources.inputs import Input, shown
from regard.data.sources.lines import ended_lines, lines
from regard.data.sources.plain import encoded
from regard.data.sources.slots import Pieces, Slot

_BLANKS = re.compile(r"[ \t\r]*")
_KINDS = {int: "a number", float: "a number", bool: "true or false", list: "an array", dict: "an object",
          str: "a string"}


def pairs(input: Input, source: str | None, target: str | None) -> Iterator[Pair]:
    """The pairs of a file."""
    name, first, second, decode = input.name, source or "source", target or "target", _decoder().decode
    for number, line in enumerate(lines(input), 1):
        where = Where(name, number)
        value = _object(decode, line, where)
        yield Pair(_text(value, first, where), _text(value, second, where), where)


def pieces(input: Input, source: str | None, target: str | None) -> Pieces:
    """The targets of a file, or the places where they will be."""
    first, second, decoder = source or "source", target or "target", _decoder()
    for number, (line, end) in enumerate(ended_lines(input), 1):
        where = Where(input.name, number)
        value = _object(decoder.decode, line, where)
        text = _text(value, first, where)
        begin, stop = _span(line, second, decoder)
        yield line[:begin].encode()
        if second in value:
            present, write = _text(value, second, where), partial(_quoted, where)
        else:
            present, write = "", partial(_added, where, second)
        yield Slot(text, present, where, line[begin:stop].encode(), write)
        yield f"{line[stop:]}{end}".encode()


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_unique)


def _unique(items: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(items)
    if len(value) < len(items):
        keys = [key for key, _ in items]
        raise ValueError(f'the key "{shown(next(key for key in keys if keys.count(key) > 1))}" comes twice')
    return value


def _object(decode: Callable[[str], object], line: str, where: Where) -> dict[str, object]:
    try:
        value = decode(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: character {error.pos + 1}: This is not JSON ({error.msg}). "
                        "Each line must be one whole object.") from error
    except RecursionError as error:
        raise DataError(f"{where}: Arrays or objects are nested too deeply. Write a plain object.") from error
    except ValueError as error:  # a key that comes twice, or a number of thousands of digits
        raise DataError(f"{where}: This cannot be read: {error}. Mend the line.") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: This is {_kind(value)} instead of an object such as "
                        '{"source": "...", "target": "..."}. Each line must be one whole object.')
    return value


def _text(value: dict[str, object], key: str, where: Where) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        if key in value:
            raise DataError(f'{where}: "{shown(key)}" is {_kind(text)} instead of a string. Mend the line.')
        there = ", ".join(f'"{shown(name)}"' for name in list(value)[:8]) or "none"
        raise DataError(f'{where}: The key "{shown(key)}" is missing; there are: {there}. Mend the line, or name the '
                        "keys of source and target.")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f'{where}: "{shown(key)}" has half a surrogate pair, which is not text. Mend the line.')
    if "\0" in text:
        raise DataError(f'{where}: "{shown(key)}" has a NUL, which is not text. Mend the line.')
    return text


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null")


def _span(line: str, key: str, decoder: json.JSONDecoder) -> tuple[int, int]:
    """Where the value of a key stands in a line that is an object; without it, the place behind the last value."""
    place = line.index("{") + 1
    while True:
        name, place = decoder.raw_decode(line, line.index('"', place))
        begin = _after(line, line.index(":", place) + 1)
        _, stop = decoder.raw_decode(line, begin)
        place = _after(line, stop)
        if name == key:
            return begin, stop
        if line[place] == "}":
            return stop, stop


def _after(line: str, place: int) -> int:
    blanks = _BLANKS.match(line, place)
    assert blanks is not None, "it matches nothing too"
    return blanks.end()


def _quoted(where: Where, text: str) -> bytes:
    encoded(where, text)  # it must be text: JSON has an escape even for what is none
    return json.dumps(text, ensure_ascii=False).encode()


def _added(where: Where, key: str, text: str) -> bytes:
    return f", {json.dumps(key, ensure_ascii=False)}: ".encode() + _quoted(where, text)
