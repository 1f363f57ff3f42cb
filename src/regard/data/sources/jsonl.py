"""JSON Lines: one object per line, with texts under the keys `source` and `target`, or under other keys.

A line of labelled texts has the keys `text` and `label`. `source_lang` and `target_lang` may name the languages of a
pair.

An object may have more keys. When translations are written back, only the bytes of the target's value change; where
the key is missing it is added as the last one. A duplicate key is refused: JSON parsers differ in which value they use.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from regard.data.sources.text import (
    DataError,
    DocumentParts,
    InputFile,
    LabelledText,
    Location,
    SentencePair,
    TargetSlot,
    encode_text,
    printable,
    read_lines,
    read_lines_with_ends,
)

SOURCE_LANG_KEYS, TARGET_LANG_KEYS = ("source_lang", "src_lang"), ("target_lang", "tgt_lang")
_BLANKS = re.compile(r"[ \t\r]*")
_JSON_TYPES = {int: "a number", float: "a number", bool: "true or false", list: "an array", dict: "an object",
               str: "a string"}


def read_pairs(input: InputFile, source: str | None, target: str | None) -> Iterator[SentencePair]:
    """The pairs of a file, one per line."""
    name, first, second, decode = input.name, source or "source", target or "target", _decoder().decode
    for number, line in enumerate(read_lines(input), 1):
        location = Location(name, number)
        value = _parse_object(decode, line, location)
        yield SentencePair(text_at_key(value, first, location), text_at_key(value, second, location), location)


def read_keys(line: str) -> frozenset[str]:
    """The keys of a line; none if it is not an object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    return frozenset(value) if isinstance(value, dict) else frozenset()


def read_named_languages(input: InputFile) -> Iterator[tuple[str, str, SentencePair]]:
    """The pairs of a file whose lines name their languages, each after its two languages."""
    decode = _decoder().decode
    for number, line in enumerate(read_lines(input), 1):
        location = Location(input.name, number)
        value = _parse_object(decode, line, location)
        codes = [text_at_key(value, next((key for key in keys if key in value), keys[0]), location)
                 for keys in (SOURCE_LANG_KEYS, TARGET_LANG_KEYS)]
        yield codes[0], codes[1], SentencePair(text_at_key(value, "source", location),
                                               text_at_key(value, "target", location), location)


def read_labelled_texts(input: InputFile) -> Iterator[LabelledText]:
    """The texts of a file with their labels, which may not be empty."""
    decode = _decoder().decode
    for number, line in enumerate(read_lines(input), 1):
        location = Location(input.name, number)
        value = _parse_object(decode, line, location)
        text, label = text_at_key(value, "text", location), text_at_key(value, "label", location).strip()
        if not label:
            raise DataError(f'{location}: "label" is empty. Fill it in, or remove the line.')
        yield LabelledText(text, label, location)


def parse_document(input: InputFile, source: str | None, target: str | None) -> DocumentParts:
    """The slots of a file: the values of the target's key, or the positions where it will be added."""
    first, second, decoder = source or "source", target or "target", _decoder()
    for number, (line, end) in enumerate(read_lines_with_ends(input), 1):
        location = Location(input.name, number)
        value = _parse_object(decoder.decode, line, location)
        text = text_at_key(value, first, location)
        begin, stop = _value_span(line, second, decoder)
        yield line[:begin].encode()
        if second in value:
            present, write = text_at_key(value, second, location), partial(_encode_string, location)
        else:
            present, write = "", partial(_encode_new_key, location, second)
        yield TargetSlot(text, present, location, line[begin:stop].encode(), write)
        yield f"{line[stop:]}{end}".encode()


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_refuse_duplicate_keys)


def _refuse_duplicate_keys(items: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(items)
    if len(value) < len(items):
        keys = [key for key, _ in items]
        raise ValueError(f'the key "{printable(next(key for key in keys if keys.count(key) > 1))}" occurs twice')
    return value


def parse_object(line: str, location: Location) -> dict[str, object]:
    """The object of a line; a DataError if it is none."""
    return _parse_object(_decoder().decode, line, location)


def _parse_object(decode: Callable[[str], object], line: str, location: Location) -> dict[str, object]:
    try:
        value = decode(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{location}: character {error.pos + 1}: This is not JSON ({error.msg}). "
                        "Each line must be one whole object.") from error
    except RecursionError as error:
        raise DataError(f"{location}: Arrays or objects are nested too deeply. Write a plain object.") from error
    except ValueError as error:  # a duplicate key, or a number of thousands of digits
        raise DataError(f"{location}: This cannot be read: {error}. Fix the line.") from error
    if not isinstance(value, dict):
        raise DataError(f"{location}: This is {_json_type(value)} instead of an object such as "
                        '{"source": "...", "target": "..."}. Each line must be one whole object.')
    return value


def text_at_key(value: Mapping[str, object], key: str, location: Location) -> str:
    """The text under a key of an object; a DataError if there is none."""
    text = value.get(key)
    if not isinstance(text, str):
        if key in value:
            raise DataError(f'{location}: "{printable(key)}" is {_json_type(text)} instead of a string. Fix the line.')
        there = ", ".join(f'"{printable(name)}"' for name in list(value)[:8]) or "none"
        raise DataError(f'{location}: The key "{printable(key)}" is missing; the line has: {there}. Fix the '
                        "line, or choose keys with --source and --target.")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f'{location}: "{printable(key)}" has half a surrogate pair, which is not valid text. Fix the '
                        "line.")
    if "\0" in text:
        raise DataError(f'{location}: "{printable(key)}" has a NUL character, which is not valid text. Fix the line.')
    return text


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "null")


def _value_span(line: str, key: str, decoder: json.JSONDecoder) -> tuple[int, int]:
    """The range of a key's value in a line that is an object; without the key, the position after the last value."""
    position = line.index("{") + 1
    while True:
        name, position = decoder.raw_decode(line, line.index('"', position))
        begin = _skip_blanks(line, line.index(":", position) + 1)
        _, stop = decoder.raw_decode(line, begin)
        position = _skip_blanks(line, stop)
        if name == key:
            return begin, stop
        if line[position] == "}":
            return stop, stop


def _skip_blanks(line: str, position: int) -> int:
    blanks = _BLANKS.match(line, position)
    assert blanks is not None, "the pattern matches the empty string"
    return blanks.end()


def _encode_string(location: Location, text: str) -> bytes:
    encode_text(location, text)  # refuses what is not text: JSON could escape even that
    return json.dumps(text, ensure_ascii=False).encode()


def _encode_new_key(location: Location, key: str, text: str) -> bytes:
    return f", {json.dumps(key, ensure_ascii=False)}: ".encode() + _encode_string(location, text)
