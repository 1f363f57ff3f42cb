"""What a source of data gives: a pair of sentences, or a line of text, and where it stands.

Every message about data begins with the place: file and line. This file knows no format.
"""

from typing import NamedTuple


class DataError(ValueError):
    """Data that cannot be read as what it should be: the file, the line, what is wrong, and what to do."""


class Where(NamedTuple):
    """A line of a file, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Pair(NamedTuple):
    """A source and its target, as they stand in the data."""

    source: str
    target: str
    where: Where


class Line(NamedTuple):
    """A line of text."""

    text: str
    where: Where
