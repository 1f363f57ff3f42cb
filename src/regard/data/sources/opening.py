"""Files by name: which format each has, which belong together, and all their pairs or lines in the order given.

The format follows from the end of the name (`.tsv`, `.jsonl`, `.po`, `.tmx`, each also with `.gz`), or is said. Files
of these hold pairs, each alone; any other file is plain text, and comes in twos: sources, then targets. `-` is standard
input, which holds TSV where nothing else is said. That a file can be read at all is seen when it is opened here, what
is in it when it is walked through. Nothing is kept in memory. It does not judge the sentences.

    source, target    of TMX the languages; of JSONL the keys; of TSV the columns, "1" being the first.
                      Plain files and PO have no names, and do not look at them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from regard import checks
from regard.data.pair import DataError, Line, Pair
from regard.data.sources import jsonl, plain, po, tmx, tsv
from regard.data.sources.inputs import STANDARD_INPUT, Input, shown
from regard.data.sources.slots import LeftOut

Path = str | os.PathLike[str]
FORMATS = {"plain": "plain text", "tsv": "TSV", "jsonl": "JSONL", "po": "PO", "tmx": "TMX"}
_ENDINGS = {".tsv": "tsv", ".jsonl": "jsonl", ".po": "po", ".pot": "po", ".tmx": "tmx"}


@dataclass(frozen=True)
class Pairs:
    """Pairs from one or more files. It can be walked through again and again, if none of them is a pipe."""

    files: tuple[str, ...]
    """The paths, as they were given."""
    parts: tuple[tuple[str, Callable[[], Iterator[Pair]]], ...]
    """What each part is, in words, and how to read it."""

    def __iter__(self) -> Iterator[Pair]:
        anything = False
        for _, read in self.parts:
            for pair in read():
                anything = True
                yield pair
        if not anything:
            raise DataError(f"{_named(self.files)}: There is not a single pair in it. Give a file with some.")

    def describe(self) -> str:
        """One line for each part: its files and what they are. It reads nothing."""
        return "\n".join(name for name, _ in self.parts)


@dataclass(frozen=True)
class Texts:
    """Lines of text from one or more files. They can be walked through again and again, if none of them is a pipe."""

    files: tuple[str, ...]
    """The paths, as they were given."""
    inputs: tuple[Input, ...]

    def __iter__(self) -> Iterator[Line]:
        anything = False
        for input in self.inputs:
            for line in plain.texts(input):
                anything = True
                yield line
        if not anything:
            raise DataError(f"{_named(self.files)}: There is not a single line in it. Give a file with some.")

    def describe(self) -> str:
        """One line for each file. It reads nothing."""
        return "\n".join(f"{input.name} ({FORMATS['plain']})" for input in self.inputs)


def pairs(paths: Sequence[Path], *, source: str | None = None, target: str | None = None, format: str | None = None,
          left_out: LeftOut | None = None) -> Pairs:
    """The pairs of these files. `left_out` is told of every entry that is there and not given, with the reason."""
    check_names(source, target)
    inputs, parts = _inputs(paths), list[tuple[str, Callable[[], Iterator[Pair]]]]()
    tell = left_out or (lambda where, reason: None)
    position = 0
    while position < len(inputs):
        input, kind = inputs[position], kind_of(inputs[position].path, format)
        if kind == "plain":
            second = inputs[position + 1] if position + 1 < len(inputs) else None
            if second is None or kind_of(second.path, format) != "plain":
                raise DataError(_alone(input, second))
            parts.append((f"{input.name} + {second.name} ({FORMATS[kind]})", _plain(input, second)))
            position += 2
        else:
            if kind == "tsv":
                tsv.columns(source, target)  # refused here, and not when the file is walked through
            about = "; without fuzzy and obsolete entries" if kind == "po" else ""
            parts.append((f"{input.name} ({FORMATS[kind]}{about})", _alone_read(kind, input, source, target, tell)))
            position += 1
    return Pairs(tuple(os.fspath(path) for path in paths), tuple(parts))


def texts(paths: Sequence[Path], *, format: str | None = None) -> Texts:
    """The lines of these files of plain text, for models of one language."""
    inputs = _inputs(paths)
    for input in inputs:
        kind = "plain" if input.path == STANDARD_INPUT and format is None else kind_of(input.path, format)
        if kind != "plain":
            raise DataError(f"{input.name}: This is {FORMATS[kind]}, but plain text is wanted, a text on each line. "
                            'Give such a file; or, if it is one in spite of its name, say format="plain".')
    return Texts(tuple(os.fspath(path) for path in paths), inputs)


def kind_of(path: str, format: str | None) -> str:
    """The format of a file: the one that is said, or what its name ends with."""
    if format is not None:
        checks.pick("format", format, FORMATS)
        return format
    if path == STANDARD_INPUT:
        return "tsv"
    name = path.lower().removesuffix(".gz")
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), "plain")


def check_names(source: str | None, target: str | None) -> None:
    """Both are named, and differ; or neither is."""
    if (source is None) != (target is None):
        raise checks.wrong("source, target", "given both or not at all", f"{source!r} and {target!r}")
    if source is not None and source == target:
        raise checks.wrong("target", "another than the source", repr(target))


def _inputs(paths: Sequence[Path]) -> tuple[Input, ...]:
    if isinstance(paths, str | bytes | os.PathLike):
        raise checks.wrong("paths", "a list of paths", repr(paths), "Put it into a list.")
    if not paths:
        raise checks.wrong("paths", "at least one file", "an empty list")
    if [os.fspath(path) for path in paths].count(STANDARD_INPUT) > 1:
        raise checks.wrong("paths", 'files, and "-" at most once', 'with "-" more than once',
                           "Standard input can be read only once.")
    return tuple(Input(path) for path in paths)


def _plain(first: Input, second: Input) -> Callable[[], Iterator[Pair]]:
    return lambda: plain.pairs(first, second)


def _alone_read(kind: str, input: Input, source: str | None, target: str | None,
                left_out: LeftOut) -> Callable[[], Iterator[Pair]]:
    readers: dict[str, Callable[[], Iterator[Pair]]] = {
        "tsv": lambda: tsv.pairs(input, source, target),
        "jsonl": lambda: jsonl.pairs(input, source, target),
        "po": lambda: po.pairs(input, left_out),
        "tmx": lambda: tmx.pairs(input, source, target, left_out),
    }
    return readers[kind]


def _alone(input: Input, second: Input | None) -> str:
    behind = "nothing comes" if second is None else f"{second.name} comes, which holds pairs itself,"
    endings = ", ".join(f"*{ending}" for ending in _ENDINGS if ending != ".pot")
    return (f"{input.name}: Plain files come in twos, sources and then targets, but {behind} behind this one. Name its "
            f"other half; or, if it holds pairs, say its format, or let its name end so: {endings}.")


def _named(files: Sequence[str]) -> str:
    return ", ".join("standard input" if file == STANDARD_INPUT else shown(file) for file in files)
