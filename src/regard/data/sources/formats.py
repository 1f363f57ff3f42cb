"""Files of any format: their sentence pairs or lines, and translations written back into the same format.

    read_pairs(["train.de", "train.en", "more.tsv.gz"])     pairs of all files, in the order given
    read_texts(["corpus.txt"])                              lines of plain text
    read_sources("app.po")                                  what is to be translated
    write_translations("app.po", targets, "app.fr.po")      the same file with these targets, other bytes unchanged

The format follows from the suffix (`.tsv`, `.jsonl`, `.po`, `.tmx`, each also with `.gz`) or is given. A file of these
formats holds pairs; any other file is plain text, and two of them make pairs: sources, then targets. `-` is standard
input, TSV by default. Files are checked for readability when they are opened here, for their content when they are
iterated. `source` and `target` are languages in TMX, keys in JSONL, columns in TSV ("1" is the first); plain files and
PO ignore them.

    plain    a file of sources becomes a file of targets, line for line
    TSV      the target's column; a line with only the source gets the target after a tab
    JSONL    the value of the target's key, which is added where it is missing
    PO       msgstr of every entry that is not obsolete; flags stay, fuzzy ones too
    TMX      the segments in the target language

A target equal to the existing one leaves its slot untouched, down to its quoting.
"""

import gzip
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from regard import checks
from regard.data.sources import jsonl, po, text, tmx, tsv
from regard.data.sources import text as plain
from regard.data.sources.text import (
    BOM,
    STANDARD_INPUT,
    DataError,
    DocumentParts,
    InputFile,
    SentencePair,
    SkipCallback,
    TargetSlot,
    TextLine,
    has_bom,
    printable,
)

AnyPath = str | os.PathLike[str]
FORMATS = {"plain": "plain text", "tsv": "TSV", "jsonl": "JSONL", "po": "PO", "tmx": "TMX"}
_SUFFIXES = {".tsv": "tsv", ".jsonl": "jsonl", ".po": "po", ".pot": "po", ".tmx": "tmx"}


@dataclass(frozen=True)
class PairCorpus:
    """Pairs from one or more files. It can be walked through again and again, if none of them is a pipe."""

    files: tuple[str, ...]
    """The paths, as they were given."""
    parts: tuple[tuple[str, Callable[[], Iterator[SentencePair]]], ...]
    """What each part is, in words, and how to read it."""

    def __iter__(self) -> Iterator[SentencePair]:
        anything = False
        for _, read in self.parts:
            for pair in read():
                anything = True
                yield pair
        if not anything:
            raise DataError(f"{_join_names(self.files)}: There is not a single pair in it. Give a file with some.")

    def describe(self) -> str:
        """One line for each part: its files and what they are. It reads nothing."""
        return "\n".join(name for name, _ in self.parts)


@dataclass(frozen=True)
class TextCorpus:
    """Lines of text from one or more files. They can be walked through again and again, if none of them is a pipe."""

    files: tuple[str, ...]
    """The paths, as they were given."""
    inputs: tuple[InputFile, ...]

    def __iter__(self) -> Iterator[TextLine]:
        anything = False
        for input in self.inputs:
            for line in text.read_text_lines(input):
                anything = True
                yield line
        if not anything:
            raise DataError(f"{_join_names(self.files)}: There is not a single line in it. Give a file with some.")

    def describe(self) -> str:
        """One line for each file. It reads nothing."""
        return "\n".join(f"{input.name} ({FORMATS['plain']})" for input in self.inputs)


def read_pairs(paths: Sequence[AnyPath], *, source: str | None = None, target: str | None = None, format: str | None = None,
          left_out: SkipCallback | None = None) -> PairCorpus:
    """The pairs of these files. `left_out` is told of every entry that is there and not given, with the reason."""
    check_side_names(source, target)
    inputs, parts = _open_inputs(paths), list[tuple[str, Callable[[], Iterator[SentencePair]]]]()
    tell = left_out or (lambda where, reason: None)
    position = 0
    while position < len(inputs):
        input, kind = inputs[position], format_of(inputs[position].path, format)
        if kind == "plain":
            second = inputs[position + 1] if position + 1 < len(inputs) else None
            if second is None or format_of(second.path, format) != "plain":
                raise DataError(_unpaired_message(input, second))
            parts.append((f"{input.name} + {second.name} ({FORMATS[kind]})", _aligned_reader(input, second)))
            position += 2
        else:
            if kind == "tsv":
                tsv.parse_columns(source, target)  # refused here, and not when the file is walked through
            about = "; without fuzzy and obsolete entries" if kind == "po" else ""
            parts.append((f"{input.name} ({FORMATS[kind]}{about})", _pair_reader(kind, input, source, target, tell)))
            position += 1
    return PairCorpus(tuple(os.fspath(path) for path in paths), tuple(parts))


def read_texts(paths: Sequence[AnyPath], *, format: str | None = None) -> TextCorpus:
    """The lines of these files of plain text, for models of one language."""
    inputs = _open_inputs(paths)
    for input in inputs:
        kind = "plain" if input.path == STANDARD_INPUT and format is None else format_of(input.path, format)
        if kind != "plain":
            raise DataError(f"{input.name}: This is {FORMATS[kind]}, but plain text is wanted, a text on each line. "
                            'Give such a file; or, if it is one in spite of its name, say format="plain".')
    return TextCorpus(tuple(os.fspath(path) for path in paths), inputs)


def format_of(path: str, format: str | None) -> str:
    """The format of a file: the one that is said, or what its name ends with."""
    if format is not None:
        checks.pick("format", format, FORMATS)
        return format
    if path == STANDARD_INPUT:
        return "tsv"
    name = path.lower().removesuffix(".gz")
    return next((kind for ending, kind in _SUFFIXES.items() if name.endswith(ending)), "plain")


def check_side_names(source: str | None, target: str | None) -> None:
    """Both are named, and differ; or neither is."""
    if (source is None) != (target is None):
        raise checks.wrong("source, target", "given both or not at all", f"{source!r} and {target!r}")
    if source is not None and source == target:
        raise checks.wrong("target", "another than the source", repr(target))


def _open_inputs(paths: Sequence[AnyPath]) -> tuple[InputFile, ...]:
    if isinstance(paths, str | bytes | os.PathLike):
        raise checks.wrong("paths", "a list of paths", repr(paths), "Put it into a list.")
    if not paths:
        raise checks.wrong("paths", "at least one file", "an empty list")
    if [os.fspath(path) for path in paths].count(STANDARD_INPUT) > 1:
        raise checks.wrong("paths", 'files, and "-" at most once', 'with "-" more than once',
                           "Standard input can be read only once.")
    return tuple(InputFile(path) for path in paths)


def _aligned_reader(first: InputFile, second: InputFile) -> Callable[[], Iterator[SentencePair]]:
    return lambda: text.read_aligned_lines(first, second)


def _pair_reader(kind: str, input: InputFile, source: str | None, target: str | None,
                left_out: SkipCallback) -> Callable[[], Iterator[SentencePair]]:
    readers: dict[str, Callable[[], Iterator[SentencePair]]] = {
        "tsv": lambda: tsv.read_pairs(input, source, target),
        "jsonl": lambda: jsonl.read_pairs(input, source, target),
        "po": lambda: po.read_pairs(input, left_out),
        "tmx": lambda: tmx.read_pairs(input, source, target, left_out),
    }
    return readers[kind]


def _unpaired_message(input: InputFile, second: InputFile | None) -> str:
    behind = "nothing comes" if second is None else f"{second.name} comes, which holds pairs itself,"
    endings = ", ".join(f"*{ending}" for ending in _SUFFIXES if ending != ".pot")
    return (f"{input.name}: Plain files come in twos, sources and then targets, but {behind} behind this one. Name its "
            f"other half; or, if it holds pairs, say its format, or let its name end so: {endings}.")


def _join_names(files: Sequence[str]) -> str:
    return ", ".join("standard input" if file == STANDARD_INPUT else printable(file) for file in files)


# ---- writing: Translations written back into the format they came from: the targets change, and no other byte.
#
#     plain    a file of sources becomes a file of targets, line for line
#     TSV      the target's column; a line that has only the source gets it behind a tab
#     JSONL    the value of the target's key, which is added where it is missing
#     PO       msgstr of every entry that is not obsolete; flags stay, fuzzy ones too
#     TMX      the segments in the target language
#
# `sources` says what is to be translated, `translated` takes the translations, in the same order and number. A target
# that is what stood there already leaves its place untouched, down to its quoting. It translates nothing itself.

ENTRIES = {"all": "every one", "missing": "those whose target is empty"}


def read_sources(path: AnyPath, *, source: str | None = None, target: str | None = None, format: str | None = None,
            entries: str = "all") -> Iterator[TextLine]:
    """What `translated` wants a target for, in its order: all entries, or those whose target is "missing"."""
    checks.pick("entries", entries, ENTRIES)
    return (TextLine(slot.source, slot.where) for slot in _parse_document(InputFile(path), source, target, format)
            if isinstance(slot, TargetSlot) and _is_wanted(slot, entries))


def write_translations(path: AnyPath, targets: Iterable[str], output: AnyPath, *, source: str | None = None,
               target: str | None = None, format: str | None = None, entries: str = "all") -> int:
    """Write the file again as `output`, which must be new ("-" is standard output), with these targets; their count.

    A name that ends with .gz is written as gzip. Where anything is wrong, no output is left behind.
    """
    checks.pick("entries", entries, ENTRIES)
    input, remaining, count = InputFile(path), iter(targets), 0
    if input.once:
        raise DataError(f"{input.name}: It can be read only once, but is needed twice. Save it to a file first.")
    with _create_output(input, os.fspath(output)) as file:
        if format_of(input.path, format) != "tmx" and has_bom(input):
            file.write(BOM)
        for piece in _parse_document(input, source, target, format):
            if not isinstance(piece, TargetSlot):
                file.write(piece)
            elif not _is_wanted(piece, entries):
                file.write(piece.raw)
            else:
                text = next(remaining, None)
                if text is None:
                    raise checks.wrong("targets", f"as many as {input.name} has sources", f"only {count:,}",
                                       f"The first without one stands at {piece.where}.")
                file.write(piece.raw if text == piece.target else piece.write(text))
                count += 1
        if next(remaining, None) is not None:
            raise checks.wrong("targets", f"as many as {input.name} has sources, {count:,}", "more")
    return count


def _is_wanted(slot: TargetSlot, entries: str) -> bool:
    return entries == "all" or not slot.target


def _parse_document(input: InputFile, source: str | None, target: str | None, format: str | None) -> DocumentParts:
    check_side_names(source, target)
    kind = "plain" if input.path == STANDARD_INPUT and format is None else format_of(input.path, format)
    if kind == "plain":
        return plain.parse_plain_document(input)
    if kind == "po":
        return po.pieces(input)
    return {"tsv": tsv, "jsonl": jsonl, "tmx": tmx}[kind].pieces(input, source, target)


@contextmanager
def _create_output(input: InputFile, output: str) -> Iterator[BinaryIO]:
    """A new file, which is removed again where the work fails."""
    if output == STANDARD_INPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(output) and os.path.samefile(input.path, output):
        raise DataError(f"{printable(output)}: The output is the input. Give it another name.")
    with ExitStack() as failing, ExitStack() as files:
        try:
            file: BinaryIO = files.enter_context(open(output, "xb"))
        except FileExistsError as error:
            raise DataError(f"{printable(output)}: It is there already, and is not written over. Give another name.") \
                from error
        except OSError as error:
            raise DataError(f"{printable(output)}: It cannot be written: {error.strerror}. Give another name.") from error
        failing.callback(os.unlink, output)
        if output.lower().endswith(".gz"):
            file = cast(BinaryIO, files.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
        yield file
        files.close()  # only what is written out has not failed
        failing.pop_all()
