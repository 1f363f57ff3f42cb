"""Tables as TOML text, and a value as a message shows it.

The text is for people first: of each table its values, then the tables in it, each under its full name. The same tables
always give the same text, and reading it gives the same tables. It knows no files and no config classes.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from regard import checks
from regard.toml.lines import KeyPath

# TOML's own two, control characters, other ends of lines, what turns the direction of text, lone surrogates.
_UNSAFE = re.compile("[\"\\\\\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_ARRAY = 100
"""Characters; a longer one gets a line for each element."""
_LONGEST_SHOWN = 60


def dumps(tables: Mapping[str, Any]) -> str:
    """The tables as TOML. None is left out; a ValueError where TOML has no form for a value."""
    _check_keys(tables)
    return "\n".join(_sections(tables, (), ""))


def dotted(path: KeyPath) -> str:
    """A path as TOML writes it; elements of arrays, for which TOML has no name, with their index: a.layers[0].b."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def shown(value: object) -> str:
    """A value as a message names it: short, in TOML's words, safe for a terminal."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value)) if fits(value) else "a number beyond 64 bits"
    if isinstance(value, str):
        return quoted(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "...")
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, Mapping):
        return "a table"
    return "an array" if isinstance(value, list | tuple) else "nothing" if value is None else checks.kind(value)[0]


def quoted(text: str) -> str:
    """The text as a TOML string on one line."""
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """The text with TOML's escapes in place of all that would disturb a line."""
    return _UNSAFE.sub(lambda match: _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


def fits(value: int) -> bool:
    """Whether a whole number has at most 64 bits, which is what TOML promises to keep."""
    return -(2**63) <= value < 2**63


def encodable(text: str) -> bool:
    """Whether a text has no lone surrogates, which no file can keep."""
    return re.search("[\ud800-\udfff]", text) is None


def _sections(table: Mapping[str, Any], path: tuple[str, ...], header: str) -> Iterator[str]:
    """The text of a table, under its header, and of the tables in it."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _are_tables(value)}
    own = [f"{pair}\n" for pair in _pairs({key: table[key] for key in table if key not in inner}, path)]
    if own or header.startswith("[[") or (header and not inner):
        yield header + "".join(own)
    for key, value in inner.items():
        below = (*path, key)
        if isinstance(value, Mapping):
            yield from _sections(value, below, f"[{dotted(below)}]\n")
        else:
            for element in value:
                yield from _sections(element, below, f"[[{dotted(below)}]]\n")


def _check_keys(value: object) -> None:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not encodable(key):
                raise checks.wrong("key", "text", shown(key))
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_keys(part)


def _are_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(part, Mapping) for part in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else quoted(key)


def _pairs(table: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            yield f"{_key(key)} = {_written(value, (*path, key))}"


def _written(value: Any, path: KeyPath) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value, path))} }}"
    if isinstance(value, list | tuple):
        parts = [_written(part, (*path, index)) for index, part in enumerate(value)]
        line = f"[{', '.join(parts)}]"
        return line if len(line) <= _LONGEST_ARRAY else "[\n" + "".join(f"    {part},\n" for part in parts) + "]"
    if isinstance(value, str) and encodable(value):
        return quoted(value)
    if isinstance(value, bool) or (isinstance(value, int) and fits(value)):
        return shown(value)
    if isinstance(value, float) and math.isfinite(value):
        return shown(value)
    raise checks.wrong(dotted(path), "text, a finite number, true, false, an array or a table", shown(value))
