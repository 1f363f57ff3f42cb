"""JSON Lines: an object on each line, with the texts under the keys `source` and `target`, or others that are named.

Other keys may stand beside them. Written back, an object keeps every byte but those of its target's value; where it
has no target yet, one is added as the last key. A key that comes twice is refused: readers differ in which of the two
they see. It does not know what the texts are.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial

from regard.data.sources.text import (
    DataError,
    DocumentParts,
    InputFile,
    Location,
    SentencePair,
    TargetSlot,
    encode_text,
    printable,
    read_lines,
    read_lines_with_ends,
)

_BLANKS = re.compile(r"[ \t\r]*")
_JSON_TYPES = {int: "a number", float: "a number", bool: "true or false", list: "an array", dict: "an object",
          str: "a string"}


def read_pairs(input: InputFile, source: str | None, target: str | None) -> Iterator[SentencePair]:
    """The pairs of a file."""
    name, first, second, decode = input.name, source or "source", target or "target", _decoder().decode
    for number, line in enumerate(read_lines(input), 1):
        where = Location(name, number)
        value = _parse_object(decode, line, where)
        yield SentencePair(_text_at_key(value, first, where), _text_at_key(value, second, where), where)


def pieces(input: InputFile, source: str | None, target: str | None) -> DocumentParts:
    """The targets of a file, or the places where they will be."""
    first, second, decoder = source or "source", target or "target", _decoder()
    for number, (line, end) in enumerate(read_lines_with_ends(input), 1):
        where = Location(input.name, number)
        value = _parse_object(decoder.decode, line, where)
        text = _text_at_key(value, first, where)
        begin, stop = _value_span(line, second, decoder)
        yield line[:begin].encode()
        if second in value:
            present, write = _text_at_key(value, second, where), partial(_encode_string, where)
        else:
            present, write = "", partial(_encode_new_key, where, second)
        yield TargetSlot(text, present, where, line[begin:stop].encode(), write)
        yield f"{line[stop:]}{end}".encode()


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_refuse_duplicate_keys)


def _refuse_duplicate_keys(items: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(items)
    if len(value) < len(items):
        keys = [key for key, _ in items]
        raise ValueError(f'the key "{printable(next(key for key in keys if keys.count(key) > 1))}" comes twice')
    return value


def _parse_object(decode: Callable[[str], object], line: str, where: Location) -> dict[str, object]:
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
        raise DataError(f"{where}: This is {_json_type(value)} instead of an object such as "
                        '{"source": "...", "target": "..."}. Each line must be one whole object.')
    return value


def _text_at_key(value: dict[str, object], key: str, where: Location) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        if key in value:
            raise DataError(f'{where}: "{printable(key)}" is {_json_type(text)} instead of a string. Mend the line.')
        there = ", ".join(f'"{printable(name)}"' for name in list(value)[:8]) or "none"
        raise DataError(f'{where}: The key "{printable(key)}" is missing; there are: {there}. Mend the line, or name the '
                        "keys of source and target.")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f'{where}: "{printable(key)}" has half a surrogate pair, which is not text. Mend the line.')
    if "\0" in text:
        raise DataError(f'{where}: "{printable(key)}" has a NUL, which is not text. Mend the line.')
    return text


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "null")


def _value_span(line: str, key: str, decoder: json.JSONDecoder) -> tuple[int, int]:
    """Where the value of a key stands in a line that is an object; without it, the place behind the last value."""
    place = line.index("{") + 1
    while True:
        name, place = decoder.raw_decode(line, line.index('"', place))
        begin = _skip_blanks(line, line.index(":", place) + 1)
        _, stop = decoder.raw_decode(line, begin)
        place = _skip_blanks(line, stop)
        if name == key:
            return begin, stop
        if line[place] == "}":
            return stop, stop


def _skip_blanks(line: str, place: int) -> int:
    blanks = _BLANKS.match(line, place)
    assert blanks is not None, "it matches nothing too"
    return blanks.end()


def _encode_string(where: Location, text: str) -> bytes:
    encode_text(where, text)  # it must be text: JSON has an escape even for what is none
    return json.dumps(text, ensure_ascii=False).encode()


def _encode_new_key(where: Location, key: str, text: str) -> bytes:
    return f", {json.dumps(key, ensure_ascii=False)}: ".encode() + _encode_string(where, text)
