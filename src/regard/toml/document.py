"""A TOML document: read, changed, and able to say what is wrong with it, file and line first.

    document = read("train.toml")
    document.tables["model"]["width"]         512
    document.line(("model", "width"))         12
    changed(document, {"model.width": 256})

It does not know which keys there may be, nor what values are good: whoever does hands it the problems it found, and
`Document.error` words them all in one error. The same form serves a configuration that never was in a file.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from regard import checks
from regard.toml.lines import KEY, KeyPath, keys, lines
from regard.toml.writing import dotted, escaped, quoted, shown

_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_NAME = re.compile(r"'([^']*)'")
_NAMES = re.compile(r"\(('[^']*'(?:, '[^']*')*),?\)")


class Problem(NamedTuple):
    """What is wrong with the key at `path`; the two texts stand around its name."""

    path: KeyPath
    before: str
    after: str

    def __str__(self) -> str:
        last = max(at for at, part in enumerate(self.path) if isinstance(part, str))
        element = dotted(self.path[last + 1:])
        table = f" in [{dotted(self.path[:last])}]" if last else ""
        return f"{self.before}{quoted(str(self.path[last]))}{element}{table}{self.after}"


class ConfigError(ValueError):
    """Everything that is wrong with a configuration: `problems` has a line for each, `found` also which key it is."""

    def __init__(self, problems: Iterable[str], found: Iterable[Problem] = ()) -> None:
        self.problems, self.found = tuple(problems), tuple(found)
        super().__init__(self.problems, self.found)

    def __str__(self) -> str:
        return "\n".join(self.problems)


@dataclass(frozen=True)
class Document:
    """Tables, the name of what they were read from, and where it has lines, the line of each key."""

    tables: Mapping[str, Any]
    name: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    changes: frozenset[KeyPath] = frozenset()
    """The keys whose values are not the ones that were read."""

    def line(self, path: KeyPath) -> int | None:
        """Where a key stands; where it is missing, the line of the nearest table around it."""
        if self._is_changed(path):
            return None
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)

    def error(self, found: Iterable[Problem]) -> ConfigError:
        """The error that says all of this, in the order of the lines; the caller raises it."""
        ordered = sorted(found, key=lambda problem: self.line(problem.path) or 0)
        return ConfigError([f"{self._place(problem.path)}: {problem}" for problem in ordered], ordered)

    def _place(self, path: KeyPath) -> str:
        if self._is_changed(path):
            return f"{self.name}, as changed"
        line = self.line(path)
        return self.name if line is None else f"{self.name}:{line}"

    def _is_changed(self, path: KeyPath) -> bool:
        return any(path[:n] in self.changes for n in range(1, len(path) + 1))


def read(path: str | os.PathLike[str]) -> Document:
    """The document in a file: UTF-8, with or without a byte order mark. A ConfigError where it cannot be read."""
    file = escaped(os.fspath(path))
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ConfigError([f"{file}: there is no such file"]) from error
    except IsADirectoryError as error:
        raise ConfigError([f"{file}: expected a TOML file, but it is a directory"]) from error
    except PermissionError as error:
        raise ConfigError([f"{file}: there is no permission to read it"]) from error
    except (OSError, ValueError) as error:  # a ValueError: no file can have this name
        raise ConfigError([f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = error.start - data.rfind(b"\n", 0, error.start)
        what = f"0x{data[error.start]:02X} is not UTF-8; save the file as UTF-8"
        raise ConfigError([f"{file}:{line}: byte {byte}: {what}"]) from error
    return parse(text, file)


def parse(text: str, name: str) -> Document:
    """The document in a text, called `name` in messages; a ConfigError with the line where it is not TOML."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        return Document(tomllib.loads(text), name, lines(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{name}:{_syntax(str(error), text)}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{name}: tables or arrays are nested too deeply to be read"]) from error
    except ValueError as error:  # Python reads no number of thousands of digits
        raise ConfigError([f"{name}: a number has too many digits to be read"]) from error


def given(tables: Mapping[str, Any], name: str = "config") -> Document:
    """A document of tables that are at hand. It has no lines."""
    if not isinstance(tables, Mapping):
        raise checks.wrong("tables", "a mapping of names to tables", checks.kind(tables)[0])
    return Document(tables, name)


def changed(document: Document, changes: Mapping[str, Any]) -> Document:
    """The document with other values: {"model.width": 512}. Tables on the way that are not there are made.

    A number leads into an array: "model.layers.0.width". A key with a dot in it is quoted, as in TOML.
    """
    tables, paths = document.tables, set(document.changes)
    for key, value in changes.items():
        if KEY.fullmatch(key) is None:
            raise ConfigError([f"{shown(key)}: expected a key, such as model.width"])
        tables, path = _put(tables, keys(key), value, (), document)
        paths.add(path)
    return replace(document, tables=tables, changes=frozenset(paths))


def assignment(text: str) -> tuple[str, Any]:
    """Key and value of "model.width=512", in the form that `changed` takes. What is no TOML value is text."""
    key = KEY.match(text)
    if key is None or not text.startswith("=", key.end()):
        raise ConfigError([f"{shown(text)}: expected a key and its value, such as model.width=512"])
    value = text[key.end() + 1:].strip()
    try:
        tables = parse(f"value = {value}", "value").tables
    except ConfigError:
        return key[0].strip(), value
    return key[0].strip(), tables["value"] if len(tables) == 1 else value


def _put(within: Any, path: tuple[str, ...], value: Any, above: KeyPath, document: Document) -> tuple[Any, KeyPath]:
    """A copy of the table or array with the value at the path below it, and the path from the top of the document."""
    if not path:
        return value, above
    first, rest = path[0], path[1:]
    if isinstance(within, Mapping):
        inner, full = _put(within.get(first, {}), rest, value, (*above, first), document)
        return {**within, first: inner}, full
    if isinstance(within, list | tuple) and first in map(str, range(len(within))):
        index = int(first)
        inner, full = _put(within[index], rest, value, (*above, index), document)
        return [*within[:index], inner, *within[index + 1:]], full
    expected = f"an index below {len(within)}" if isinstance(within, list | tuple) else f"a table with {quoted(first)}"
    got = quoted(first) if isinstance(within, list | tuple) else shown(within)
    raise document.error([Problem(above, "cannot change ", f": expected {expected}, but got {got}")])


def _syntax(message: str, text: str) -> str:
    """What the standard library says of a text that is not TOML, with the line first."""
    place = _PLACE.fullmatch(message)
    what = place[1] if place else message
    last = text.rstrip("\n").count("\n") + 1
    line, column = (place[2], f" (column {place[3]})") if place and place[2] else (last, " (at the end)")
    if what == "Cannot overwrite a value":
        what = "a key or table of this name is there already"
    what = _NAMES.sub(lambda match: f"[{'.'.join(_NAME.findall(match[1]))}]", what)  # ('a', 'b') is [a.b]
    return f"{line}: not TOML: {what[:1].lower()}{what[1:]}{column}"
