"""Where each key of a TOML text stands.

The standard library reads TOML and forgets the lines; a user whose key is wrong wants them. So the text is walked a
second time, only to note lines. The walk trusts that the library has found the text to be TOML: it checks nothing, and
does not know the values.
"""

import re
import tomllib
from bisect import bisect_left

KeyPath = tuple[str | int, ...]
"""From the top of a document down to a key, through tables and arrays: ("model", "layers", 0, "width")."""

_BASIC, _LITERAL = r'"(?:\\.|[^"\\\n])*"', r"'[^'\n]*'"
_PART = re.compile(rf"[A-Za-z0-9_-]+|{_BASIC}|{_LITERAL}")
KEY = re.compile(rf"[ \t]*(?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*[ \t]*")
"""A key, dotted or not, with the blanks around it."""
# Three quotes end a text of many lines; up to two more before them belong to it.
_LONG = r'(?s:"{3}(?:\\.|[^\\])*?"{3,5}|' r"'{3}.*?'{3,5})"
_SCALAR = re.compile(rf"{_LONG}|{_BASIC}|{_LITERAL}|[^,\]}}#\n]+")  # a date and its time may have a blank between them
_BETWEEN = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")


def lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of every key, table and element of an array of a TOML text whose lines end with LF.

    A table has the line of its header, or where it has none, of the first key that leads into it.
    """
    return _Walk(text).whole()


def keys(text: str) -> tuple[str, ...]:
    """The parts of a text that matches KEY, without their quotes."""
    parts = (match[0] for match in _PART.finditer(text))
    return tuple(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part for part in parts)


class _Walk:
    """One way through the text."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]
        self.found: dict[KeyPath, int] = {}
        self.elements: dict[KeyPath, int] = {}  # how many tables each [[array]] has so far

    def whole(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while (character := self._next()) != "":
            if character == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.found

    def _next(self) -> str:
        """Go on to what follows blanks, comments and commas; its first character, or nothing at the end."""
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
        """[table] or [[array of tables]]: the path of the table that the keys below it belong to."""
        line, brackets = self._line(), 2 if self.text.startswith("[[", self.position) else 1
        self.position += brackets
        *outer, last = keys(self._over(KEY))
        self.position += brackets
        path: KeyPath = ()
        for key in outer:
            path = (*path, key)
            self.found.setdefault(path, line)
            if path in self.elements:  # below an array of tables: in its last one
                path = (*path, self.elements[path] - 1)
        path = (*path, last)
        if brackets == 2:
            self.found.setdefault(path, line)
            self.elements[path] = self.elements.get(path, 0) + 1
            path = (*path, self.elements[path] - 1)
        self.found[path] = line  # a header of its own counts more than one below it that came first
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        *outer, last = keys(self._over(KEY))
        for key in outer:
            table = (*table, key)
            self.found.setdefault(table, line)
        self.found[*table, last] = line
        self.position += 1  # the equals sign
        self._value((*table, last))

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
