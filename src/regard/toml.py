"""TOML documents: read with the line of every key, changed, and written.

    document = read_document("train.toml")
    document.tables["model"]["width"]                    512
    document.line(("model", "width"))                    12
    override(document, {"model.width": 256})
    dumps({"model": {"width": 256}})                     TOML text
    dumps({"seed": 1}, {"seed": "set by you"})           seed = 1  # set by you

The standard library parses TOML but does not report where a key stands, so the text is scanned a second time for line
numbers, and for the comments after values. A `TomlDocument` knows neither which keys are allowed nor which values are
valid: the reader of the configuration (`regard.config`) collects all problems, and `TomlDocument.error` reports them
together, file and line first.
"""

import math
import os
import re
import textwrap
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from regard import checks

KeyPath = tuple[str | int, ...]
"""The path from the top of a document to a key, through tables and arrays: ("model", "layers", 0, "width")."""

_BASIC, _LITERAL = r'"(?:\\.|[^"\\\n])*"', r"'[^'\n]*'"
_PART = re.compile(rf"[A-Za-z0-9_-]+|{_BASIC}|{_LITERAL}")
KEY_PATTERN = re.compile(rf"[ \t]*(?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*[ \t]*")
"""A key, dotted or not, with surrounding blanks."""
# Three quotes end a multi-line string; up to two more before them belong to it.
_LONG = r'(?s:"{3}(?:\\.|[^\\])*?"{3,5}|' r"'{3}.*?'{3,5})"
_SCALAR = re.compile(rf"{_LONG}|{_BASIC}|{_LITERAL}|[^,\]}}#\n]+")  # a date and a time may be separated by a blank
_COMMENT = re.compile(r"[ \t]*#[^\n]*(?:\n[ \t]+#[^\n]*)*")
_BETWEEN = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line number, from 1, of every key, table and array element of a TOML text with LF line ends.

    A table has the line of its header, or without a header, of the first key that leads into it.
    """
    return _LineScanner(text).scan()


def read_comments(text: str) -> dict[str, str]:
    """The comment after each value of a TOML text, by the dotted key; `dumps` writes it again.

    It begins on the line where the value ends. Lines below with nothing but a comment that is indented belong to it.
    """
    scanner = _LineScanner(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    scanner.scan()
    return scanner.comments


def split_key(text: str) -> tuple[str, ...]:
    """The parts of a key that matches KEY_PATTERN, without quotes."""
    parts = (match[0] for match in _PART.finditer(text))
    return tuple(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part for part in parts)


class _LineScanner:
    """Scans a TOML text for the lines of its keys; it relies on the text being valid."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]
        self.found: dict[KeyPath, int] = {}
        self.elements: dict[KeyPath, int] = {}  # how many tables each [[array]] has so far
        self.comments: dict[str, str] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while (character := self._next()) != "":
            if character == "[":
                table = self._header()
            else:
                path = self._pair(table)
                comment = _COMMENT.match(self.text, self.position)
                if comment is not None:
                    self.comments[dotted_key(path)] = " ".join(line.strip(" \t#") for line in comment[0].split("\n"))
        return self.found

    def _next(self) -> str:
        """Skip blanks, comments and commas; return the next character, or "" at the end."""
        self._over(_BETWEEN)
        return self.text[self.position:self.position + 1]

    def _over(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        assert match is not None, "the text is TOML"
        self.position = match.end()
        return match[0]

    def _line(self) -> int:
        return bisect_left(self.breaks, self.position) + 1

    def _header(self) -> KeyPath:
        """Read [table] or [[array of tables]], and return the path of the table."""
        line, brackets = self._line(), 2 if self.text.startswith("[[", self.position) else 1
        self.position += brackets
        *outer, last = split_key(self._over(KEY_PATTERN))
        self.position += brackets
        path: KeyPath = ()
        for key in outer:
            path = (*path, key)
            self.found.setdefault(path, line)
            if path in self.elements:  # a table inside the last element of an array of tables
                path = (*path, self.elements[path] - 1)
        path = (*path, last)
        if brackets == 2:
            self.found.setdefault(path, line)
            self.elements[path] = self.elements.get(path, 0) + 1
            path = (*path, self.elements[path] - 1)
        self.found[path] = line  # its own header counts more than an earlier header of a table inside it
        return path

    def _pair(self, table: KeyPath) -> KeyPath:
        """Read a key and its value, and return the path of the key."""
        line = self._line()
        *outer, last = split_key(self._over(KEY_PATTERN))
        for key in outer:
            table = (*table, key)
            self.found.setdefault(table, line)
        self.found[*table, last] = line
        self.position += 1  # the equals sign
        self._value((*table, last))
        return (*table, last)

    def _value(self, path: KeyPath) -> None:
        opening = self._next()
        if opening not in ("[", "{"):
            self._over(_SCALAR)
            return
        self.position += 1
        index = 0
        while self._next() not in ("]", "}"):
            if opening == "{":
                self._pair(path)
            else:
                self.found[*path, index] = self._line()
                self._value((*path, index))
                index += 1
        self.position += 1


# Quote and backslash, control characters, other line ends, text direction marks, lone surrogates.
_UNSAFE = re.compile("[\"\\\\\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
MAX_TOML_BYTES, MAX_KEY_PARTS = 1 << 24, 100
_MAX_ARRAY_LINE = 100
"""A longer array is written with one element a line."""
_MAX_SHOWN = 60
_MAX_COMMENTED_LINE, _MIN_COMMENT = 100, 40
"""The length of a line with a comment, which is wrapped below the value; and of the comment on each, at least."""


def dumps(tables: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """The tables as TOML text, without None; a ValueError for a value that TOML cannot express.

    Each table has its values first, then the tables inside it under their full names. Equal tables give equal text.

    Args:
        comments: by dotted key, a comment that is written after the value. Keys that are not in the tables are ignored.
    """
    _check_keys(tables)
    return "\n".join(_sections(tables, (), "", comments or {}))


def dotted_key(path: KeyPath) -> str:
    """A path as TOML writes it, with array elements as an index: a.layers[0].b."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_format_key(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def format_value(value: object) -> str:
    """A value for a message: short, in TOML syntax, safe for a terminal."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value)) if fits_64_bits(value) else "a number beyond 64 bits"
    if isinstance(value, str):
        return quote(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "...")
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, Mapping):
        return "a table"
    return "an array" if isinstance(value, list | tuple) else "nothing" if value is None else checks.kind(value)[0]


def quote(text: str) -> str:
    """The text as a single-line TOML string."""
    return f'"{escape(text)}"'


def escape(text: str) -> str:
    """The text with TOML escapes for all characters that are unsafe in a line."""
    return _UNSAFE.sub(lambda match: _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


def escape_control(text: str) -> str:
    """The text for a comment: without line ends, and with escapes for control characters."""
    line = " ".join(text.split())
    return _UNSAFE.sub(lambda match: match[0] if match[0] in '"\\' else f"\\u{ord(match[0]):04x}", line)


def fits_64_bits(value: int) -> bool:
    """Whether an integer fits into 64 bits, the range that TOML guarantees."""
    return -(2**63) <= value < 2**63


def is_encodable(text: str) -> bool:
    """Whether a text has no lone surrogates, which UTF-8 cannot encode."""
    return re.search("[\ud800-\udfff]", text) is None


def _sections(table: Mapping[str, Any], path: tuple[str, ...], header: str,
              comments: Mapping[str, str]) -> Iterator[str]:
    """The text of a table under its header, then the tables inside it."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _are_tables(value)}
    values = {key: value for key, value in table.items() if key not in inner and value is not None}
    own = [_add_comment(pair, comments.get(dotted_key((*path, key)), "")) + "\n"
           for key, pair in zip(values, _format_pairs(values, path), strict=True)]
    if own or header.startswith("[[") or (header and not inner):
        yield header + "".join(own)
    for key, value in inner.items():
        below = (*path, key)
        if isinstance(value, Mapping):
            yield from _sections(value, below, f"[{dotted_key(below)}]\n", comments)
        else:
            for element in value:
                yield from _sections(element, below, f"[[{dotted_key(below)}]]\n", comments)


def _add_comment(pair: str, comment: str) -> str:
    """A key and its value, with a comment after it, wrapped below its first line."""
    last = pair.rpartition("\n")[2]
    room = max(_MIN_COMMENT, _MAX_COMMENTED_LINE - len(last) - 4)
    lines = textwrap.wrap(escape_control(comment), room, break_long_words=False, break_on_hyphens=False)
    if not lines:
        return pair
    indent = "\n" + " " * len(last) + "  # "
    return f"{pair}  # {indent.join(lines)}"


def _check_keys(value: object) -> None:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not is_encodable(key):
                raise checks.wrong("key", "text", format_value(key))
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_keys(part)


def _are_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(part, Mapping) for part in value)


def _format_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else quote(key)


def _format_pairs(table: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            yield f"{_format_key(key)} = {_format_toml(value, (*path, key))}"


def _format_toml(value: Any, path: KeyPath) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_format_pairs(value, path))} }}"
    if isinstance(value, list | tuple):
        parts = [_format_toml(part, (*path, index)) for index, part in enumerate(value)]
        line = f"[{', '.join(parts)}]"
        return line if len(line) <= _MAX_ARRAY_LINE else "[\n" + "".join(f"    {part},\n" for part in parts) + "]"
    if isinstance(value, str) and is_encodable(value):
        return quote(value)
    if isinstance(value, bool) or (isinstance(value, int) and fits_64_bits(value)):
        return format_value(value)
    if isinstance(value, float) and math.isfinite(value):
        return format_value(value)
    raise checks.wrong(dotted_key(path), "text, a finite number, true, false, an array or a table", format_value(value))


_ERROR_LOCATION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_NAME = re.compile(r"'([^']*)'")
_NAMES = re.compile(r"\(('[^']*'(?:, '[^']*')*),?\)")


class ConfigProblem(NamedTuple):
    """A problem with the key at `path`; the message is `before`, the name of the key, `after`."""

    path: KeyPath
    before: str
    after: str

    def __str__(self) -> str:
        last = max(at for at, part in enumerate(self.path) if isinstance(part, str))
        element = dotted_key(self.path[last + 1:])
        table = f" in [{dotted_key(self.path[:last])}]" if last else ""
        return f"{self.before}{quote(str(self.path[last]))}{element}{table}{self.after}"


class ConfigError(ValueError):
    """A config has errors: all of them are reported at once.

    `problems` has a line for each error, `found` also its key.
    """

    def __init__(self, problems: Iterable[str], found: Iterable[ConfigProblem] = ()) -> None:
        self.problems, self.found = tuple(problems), tuple(found)
        super().__init__(self.problems, self.found)

    def __str__(self) -> str:
        return "\n".join(self.problems)


@dataclass(frozen=True)
class TomlDocument:
    """The tables of a TOML file, its name, and the line of each key."""

    tables: Mapping[str, Any]
    name: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    changes: frozenset[KeyPath] = frozenset()
    """The keys whose values were overridden."""
    sources: Mapping[KeyPath, str] = field(default_factory=dict)
    """Where overriding values come from, for messages: "--set", or an option such as "--width 30"."""

    def line(self, path: KeyPath) -> int | None:
        """The line of a key; for a missing key, the line of the nearest table around it."""
        if self._is_changed(path):
            return None
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)

    def source(self, path: KeyPath) -> str | None:
        """Where the overriding value of a key, or of the nearest table around it, comes from."""
        return next((self.sources[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.sources), None)

    def error(self, found: Iterable[ConfigProblem]) -> ConfigError:
        """The error with all of these problems, in the order of their lines; the caller raises it."""
        ordered = sorted(found, key=lambda problem: self.line(problem.path) or 0)
        return ConfigError([f"{self._place(problem.path)}: {problem}" for problem in ordered], ordered)

    def _place(self, path: KeyPath) -> str:
        source = self.source(path)
        if source is not None:
            return source
        if self._is_changed(path):
            return f"{self.name} (overridden)"
        line = self.line(path)
        return self.name if line is None else f"{self.name}:{line}"

    def _is_changed(self, path: KeyPath) -> bool:
        return any(path[:n] in self.changes for n in range(1, len(path) + 1))


def read_document(path: str | os.PathLike[str]) -> TomlDocument:
    """Read a TOML file, UTF-8 with or without a byte order mark; a ConfigError if it cannot be read."""
    file = escape(os.fspath(path))
    try:
        with open(path, "rb") as opened:
            data = opened.read(MAX_TOML_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError([f"{file}: there is no such file"]) from error
    except IsADirectoryError as error:
        raise ConfigError([f"{file}: this is a folder, not a TOML file"]) from error
    except PermissionError as error:
        raise ConfigError([f"{file}: permission denied"]) from error
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        raise ConfigError([f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    if len(data) > MAX_TOML_BYTES:
        raise ConfigError([f"{file}: larger than {MAX_TOML_BYTES >> 20} MiB, which no config is"])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = error.start - data.rfind(b"\n", 0, error.start)
        what = f"0x{data[error.start]:02X} is not UTF-8; save the file as UTF-8"
        raise ConfigError([f"{file}:{line}: byte {byte}: {what}"]) from error
    return parse_document(text, file)


def parse_document(text: str, name: str) -> TomlDocument:
    """Parse a TOML text, called `name` in messages; a ConfigError has the line of a syntax error."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        key = line.partition("=")[0].strip(" \t[]")
        if key.count(".") > MAX_KEY_PARTS and KEY_PATTERN.fullmatch(key):  # tomllib would take quadratic time
            raise ConfigError([f"{name}:{number}: a key has more than {MAX_KEY_PARTS} parts"])
    try:
        return TomlDocument(tomllib.loads(text), name, key_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{name}:{_describe_syntax_error(str(error), text)}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{name}: tables or arrays are nested too deeply to be read"]) from error
    except ValueError as error:  # Python does not read numbers of thousands of digits
        raise ConfigError([f"{name}: a number has too many digits to be read"]) from error


def document_of(tables: Mapping[str, Any], name: str = "config") -> TomlDocument:
    """A document of tables that were not read from a file; it has no lines."""
    if not isinstance(tables, Mapping):
        raise checks.wrong("tables", "a mapping of names to tables", checks.kind(tables)[0])
    return TomlDocument(tables, name)


def override(document: TomlDocument, changes: Mapping[str, Any], source: str | None = None) -> TomlDocument:
    """The document with other values: {"model.width": 512}. Missing tables on the path are created.

    A number is the index of an array element: "model.layers.0.width". A key that contains a dot is quoted, as in TOML.

    Args:
        source: where the values come from, for messages, such as "--set".
    """
    tables, paths, sources = document.tables, set(document.changes), dict(document.sources)
    for key, value in changes.items():
        if KEY_PATTERN.fullmatch(key) is None:
            raise ConfigError([f"{format_value(key)}: expected a key, such as model.width"])
        tables, path = _put(tables, split_key(key), value, (), document)
        paths.add(path)
        sources.pop(path, None)
        if source is not None:
            sources[path] = source
    return replace(document, tables=tables, changes=frozenset(paths), sources=sources)


def flatten_tables(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every entry that is not a table."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten_tables(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parse_override(text: str) -> tuple[str, Any]:
    """Key and value of "model.width=512", as `override` takes them. A value that is not TOML is text."""
    key = KEY_PATTERN.match(text)
    if key is None or not text.startswith("=", key.end()):
        raise ConfigError([f"--set {format_value(text)}: expected KEY=VALUE, such as model.width=512"])
    value = text[key.end() + 1:].strip()
    try:
        tables = parse_document(f"value = {value}", "value").tables
    except ConfigError:
        return key[0].strip(), value
    return key[0].strip(), tables["value"] if len(tables) == 1 else value


def _put(within: Any, path: tuple[str, ...], value: Any, above: KeyPath, document: TomlDocument) -> tuple[Any, KeyPath]:
    """A copy of a table or array with the value at this path below it, and the full path from the top."""
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
    expected = f"an index below {len(within)}" if isinstance(within, list | tuple) else f"a table with {quote(first)}"
    got = quote(first) if isinstance(within, list | tuple) else format_value(within)
    raise document.error([ConfigProblem(above, "cannot change ", f": expected {expected}, but got {got}")])


def _describe_syntax_error(message: str, text: str) -> str:
    """The message of the standard library for invalid TOML, with the line first."""
    place = _ERROR_LOCATION.fullmatch(message)
    what = place[1] if place else message
    last = text.rstrip("\n").count("\n") + 1
    line, column = (place[2], f" (column {place[3]})") if place and place[2] else (last, " (at the end)")
    if what == "Cannot overwrite a value":
        what = "a key or table of this name exists already"
    what = _NAMES.sub(lambda match: f"[{'.'.join(_NAME.findall(match[1]))}]", what)  # ('a', 'b') is [a.b]
    return f"{line}: invalid TOML: {what[:1].lower()}{what[1:]}{column}"
