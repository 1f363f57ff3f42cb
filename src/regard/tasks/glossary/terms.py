"""A glossary: these words of a source become these words of its translation.

    dog      chien            a term of the source, a tab, what it is to become
    big      grand            a term that stands on several lines may become any of what they say
    big      gros

    glossary = Glossary.read("terms.tsv")         or Glossary({"dog": "chien", "big": ["grand", "gros"]})
    glossary.found("The big dog.")                [Required(4, 7, ("grand", "gros")), Required(8, 11, ("chien",))]

A term is found where it stands between the borders of words, `regard.data.tokenizer.words` says what these are; so
"dog" is not found in "dogs", and a form that is wanted too has a line of its own. From left to right the longest term
is taken, and none inside another. A term without capitals is found in any case, one with capitals only as it is
written. White space of any length is one space.

What a term becomes appears as it is written, as whole words; where its first word has no capital letters, its first
letter may be one, as at the beginning of a sentence. What stands twice in the source appears at least once.

It knows texts alone. That terms appear is the business of `regard.tasks.glossary.insisting`.
"""

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from regard import checks
from regard.data.doctor.characters import is_blank
from regard.data.pair import DataError, Where
from regard.data.sources.inputs import Input, shown
from regard.data.sources.lines import lines
from regard.data.tokenizer.words import units


class Required(NamedTuple):
    """A term in the characters text[start:end] of a source, and what one of must appear in its translation."""

    start: int
    end: int
    targets: tuple[str, ...]

    def met(self, text: str) -> bool:
        """Whether it appears in a text."""
        every = _units(text)
        return any(_is(every[at:at + len(units)], units) for units in map(_units, self.targets)
                   for at in range(len(every) - len(units) + 1))


class Unit(NamedTuple):
    """A word, or a sign; whether white space is in front of it; and where it ends."""

    text: str
    apart: bool
    start: int
    end: int


class Key(NamedTuple):
    """What tells a word of a term from others."""

    text: str
    apart: bool


Units = tuple[Unit, ...]
Term = tuple[Key, ...]


class Glossary:
    """Terms of sources, each with one choice or several of what it becomes."""

    def __init__(self, entries: Mapping[str, str | Sequence[str]]) -> None:
        if not isinstance(entries, Mapping):
            raise checks.wrong("entries", 'terms with what they become, such as {"dog": "chien"}',
                               *checks.kind(entries))
        for source, target in entries.items():
            if not isinstance(target, Sequence):
                raise checks.wrong("entries", "terms that become a text, or one of several in a list",
                                   f"{checks.kind(target)[0]} for {source!r:.80}")
        self.entries = {source: (target,) if isinstance(target, str) else tuple(target)
                        for source, target in entries.items()}
        self._exact, self._folded = dict[Term, tuple[str, ...]](), dict[Term, tuple[str, ...]]()
        for source, targets in self.entries.items():
            for text in (source, *targets):
                if not isinstance(text, str) or is_blank(text):
                    raise checks.wrong("entries", "terms that are not empty", f"{text!r:.80}")
            if not targets:
                raise checks.wrong("entries", "at least one text that a term becomes", f"none for {source!r:.80}")
            term = _term(_units(source))
            table = self._folded if source == source.lower() else self._exact
            table[term] = (*table.get(term, ()), *targets)
        self._longest = max(map(len, (*self._exact, *self._folded)), default=0)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Glossary":
        """The glossary in a file; a DataError names file and line. Empty lines are passed over."""
        entries = dict[str, list[str]]()
        input = Input(os.fspath(path))
        for where, source, target in _lines(input):
            for text, what in ((source, "term"), (target, "text that it becomes")):
                if is_blank(text):
                    raise DataError(f"{where}: The {what} is missing. A line is a term, a tab, and what it becomes.")
            targets = entries.setdefault(source.strip(), [])
            if target.strip() not in targets:
                targets.append(target.strip())
        if not entries:
            raise DataError(f"{shown(input.name)}: There are no terms in it. A line is a term, a tab, and what it "
                            "becomes.")
        return cls(entries)

    def found(self, text: str) -> list[Required]:
        """What must appear in the translation of a text, in the order of the text."""
        every, place, found = _units(text), 0, list[Required]()
        folded = tuple(unit._replace(text=unit.text.lower()) for unit in every)
        while place < len(every):
            for count in range(min(self._longest, len(every) - place), 0, -1):
                targets = (self._exact.get(_term(every[place:place + count]))
                           or self._folded.get(_term(folded[place:place + count])))
                if targets:
                    found.append(Required(every[place].start, every[place + count - 1].end, targets))
                    place += count - 1
                    break
            place += 1
        return found


def as_glossary(given: "Glossary | Mapping[str, str | Sequence[str]]") -> Glossary:
    """A glossary, or one that is made of a table."""
    return given if isinstance(given, Glossary) else Glossary(given)


def _lines(input: Input) -> Iterator[tuple[Where, str, str]]:
    for number, line in enumerate(lines(input), 1):
        cells, where = line.split("\t"), Where(input.name, number)
        if is_blank(line):
            continue
        if len(cells) != 2:
            raise DataError(f"{where}: {len(cells)} column{'s' * (len(cells) != 1)} instead of 2: a term, a tab, and "
                            "what it becomes.")
        yield where, cells[0], cells[1]


def _units(text: str) -> Units:
    found, end = list[Unit](), 0
    for span in units(text):
        found.append(Unit(unicodedata.normalize("NFC", text[span.start:span.end]), span.start > end, *span))
        end = span.end
    return tuple(found)


def _term(some: Units) -> Term:
    """Units by themselves: what is in front of the first does not count."""
    return tuple(Key(unit.text, unit.apart and at > 0) for at, unit in enumerate(some))


def _is(some: Units, wanted: Units) -> bool:
    """Whether these are the units of a term, perhaps with a capital letter in front."""
    own, term = _term(some), _term(wanted)
    return own[1:] == term[1:] and own[0].text in cased(term[0].text)


def cased(target: str) -> list[str]:
    """A text, and the same with a capital letter, where its first word has none."""
    first = target.split()[0]
    return [target, target[0].upper() + target[1:]] if first == first.lower() else [target]
