"""Files of any format: their sentence pairs or lines, and translations written back into the same format.

    read_pairs(["train.de", "train.en", "more.tsv.gz"])     pairs of all files, in the order given
    read_texts(["corpus.txt"])                              lines of plain text
    read_sources("app.po")                                  what is to be translated
    write_translations("app.po", targets, "app.fr.po")      the same file with these targets, other bytes unchanged

The format follows from the suffix (`.tsv`, `.jsonl`, `.po`, `.tmx`, each also with `.gz`) or is given. A file of these
formats holds pairs; any other file is plain text, and two of them make pairs: sources, then targets. `-` is standard
input, TSV by default. Files are checked for readability when they are opened here, for their content when they are
iterated. `source` and `target` are languages in TMX, keys in JSONL, columns in TSV (by number, "1" is the first, or by
their names in a header line); plain files and PO ignore them. What readers learn on the way, such as a skipped header
line or the languages of a file, is in `Corpus.log`.

    plain    a file of sources becomes a file of targets, line for line
    TSV      the target's column; a line with only the source gets the target after a tab; a header line stays
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
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Generic, TypeVar, cast

from regard import checks
from regard.data import languages
from regard.data.sources import jsonl, po, text, tmx, tsv
from regard.data.sources.text import (
    BOM,
    STANDARD_INPUT,
    DataError,
    DocumentParts,
    InputFile,
    LabelledText,
    ReadLog,
    SentencePair,
    SkipCallback,
    TargetSlot,
    TextLine,
    has_bom,
    printable,
)

AnyPath = str | os.PathLike[str]
Entry = TypeVar("Entry", SentencePair, TextLine)
PairReader = Callable[[], Iterator[SentencePair]]
FORMATS = {"plain": "plain text", "tsv": "TSV", "jsonl": "JSONL", "po": "PO", "tmx": "TMX"}
ENTRIES = {"all": "every entry", "missing": "entries whose target is empty"}
_SUFFIXES = {".tsv": "tsv", ".jsonl": "jsonl", ".po": "po", ".pot": "po", ".tmx": "tmx"}


@dataclass(frozen=True)
class Corpus(Generic[Entry]):
    """Pairs or lines of one or more files. It can be iterated repeatedly, unless one of them is a pipe."""

    files: tuple[str, ...]
    """The paths as they were given."""
    kind: str
    """"pair" or "line"."""
    parts: tuple[tuple[str, Callable[[], Iterator[Entry]]], ...]
    """The description and the reader of each part."""
    log: ReadLog = field(default_factory=ReadLog, compare=False)
    """Notes for the user and languages of files; complete after the first iteration."""

    def __iter__(self) -> Iterator[Entry]:
        empty = True
        for _, read in self.parts:
            for entry in read():
                empty = False
                yield entry
        if empty:
            names = ", ".join("standard input" if file == STANDARD_INPUT else printable(file) for file in self.files)
            raise DataError(f"{names}: No {self.kind}s found. Check that it is the right file, and not empty.")

    def describe(self) -> str:
        """One line for each part: its files and their format. It reads nothing."""
        return "\n".join(description for description, _ in self.parts)


PairCorpus = Corpus[SentencePair]
TextCorpus = Corpus[TextLine]


def read_pairs(paths: Sequence[AnyPath], *, source: str | None = None, target: str | None = None,
               format: str | None = None, skipped: SkipCallback | None = None,
               log: ReadLog | None = None) -> PairCorpus:
    """The pairs of these files. `skipped` is called for every entry that is not returned, with the reason."""
    check_side_names(source, target)
    inputs, parts = list(_open_inputs(paths)), list[tuple[str, PairReader]]()
    report, log = skipped or (lambda location, reason: None), ReadLog() if log is None else log
    named = languages.known_pair(source, target)
    while inputs:
        input = inputs.pop(0)
        kind = format_of(input.path, format)
        if kind == "plain":
            if not inputs or format_of(inputs[0].path, format) != "plain":
                raise DataError(_unpaired_message(input, inputs[0] if inputs else None))
            other = inputs.pop(0)
            _log_languages(log, f"{input.name} + {other.name}", languages.languages_in_names(input.path, other.path))
            parts.append((f"{input.name} + {other.name} ({FORMATS[kind]})",
                          partial(text.read_aligned_lines, input, other)))
            continue
        if kind == "tsv":
            tsv.parse_columns(source, target)  # refuses wrong columns here rather than during iteration
        readers: dict[str, PairReader] = {
            "tsv": partial(tsv.read_pairs, input, source, target, log),
            "jsonl": partial(jsonl.read_pairs, input, source, target),
            "po": partial(po.read_pairs, input, report, log),
            "tmx": partial(tmx.read_pairs, input, source, target, report, log),
        }
        if kind in ("tsv", "jsonl"):
            _log_languages(log, input.name, named or languages.languages_in_names(input.path))
        about = "; without fuzzy and obsolete entries" if kind == "po" else ""
        parts.append((f"{input.name} ({FORMATS[kind]}{about})", readers[kind]))
    return PairCorpus(tuple(os.fspath(path) for path in paths), "pair", tuple(parts), log)


def _log_languages(log: ReadLog, name: str, found: languages.LanguagePair | None) -> None:
    if found is not None:
        log.languages[name] = found


def read_texts(paths: Sequence[AnyPath], *, format: str | None = None) -> TextCorpus:
    """The lines of these plain files, for models of one language."""
    inputs = _open_inputs(paths)
    for input in inputs:
        kind = _document_format(input, format)
        if kind != "plain":
            raise DataError(f"{input.name}: This is {FORMATS[kind]}, but plain text is expected, one text per line. "
                            'Name another file; or, if it is plain text in spite of its name, use format="plain".')
    parts = tuple((f"{input.name} ({FORMATS['plain']})", partial(text.read_text_lines, input)) for input in inputs)
    return TextCorpus(tuple(os.fspath(path) for path in paths), "line", parts)


def read_labelled_texts(input: InputFile, log: ReadLog | None = None) -> Iterator[LabelledText]:
    """The texts of a TSV or JSONL file with their labels; `log` takes a note about a header line."""
    if format_of(input.path, None) == "jsonl":
        return jsonl.read_labelled_texts(input)
    return tsv.read_labelled_texts(input, log)


def read_sources(path: AnyPath, *, source: str | None = None, target: str | None = None, format: str | None = None,
                 entries: str = "all", log: ReadLog | None = None) -> Iterator[TextLine]:
    """The texts that `write_translations` needs targets for: all, or those whose target is "missing"."""
    checks.pick("entries", entries, ENTRIES)
    parts = _parse_document(InputFile(path), source, target, format, log or ReadLog())
    return (TextLine(slot.source, slot.location) for slot in parts
            if isinstance(slot, TargetSlot) and _is_wanted(slot, entries))


def write_translations(path: AnyPath, targets: Iterable[str], output: AnyPath, *, source: str | None = None,
                       target: str | None = None, format: str | None = None, entries: str = "all") -> int:
    """Write the file with these targets as `output`, which must be new ("-" is standard output); returns their count.

    A name that ends with .gz is written as gzip. If anything fails, no output remains.
    """
    checks.pick("entries", entries, ENTRIES)
    input, remaining, count = InputFile(path), iter(targets), 0
    if input.single_pass:
        raise DataError(f"{input.name}: The input is read twice, but a pipe can be read only once. Save it to a file "
                        "first.")
    with _create_output(input, os.fspath(output)) as file:
        if format_of(input.path, format) != "tmx" and has_bom(input):
            file.write(BOM)
        for part in _parse_document(input, source, target, format, ReadLog()):
            if not isinstance(part, TargetSlot):
                file.write(part)
            elif not _is_wanted(part, entries):
                file.write(part.raw)
            else:
                new = next(remaining, None)
                if new is None:
                    raise checks.wrong("targets", f"as many as {input.name} has sources", f"only {count:,}",
                                       f"The first source without one is at {part.location}.")
                file.write(part.raw if new == part.target else part.write(new))
                count += 1
        if next(remaining, None) is not None:
            raise checks.wrong("targets", f"as many as {input.name} has sources, {count:,}", "more")
    return count


def format_of(path: str, format: str | None) -> str:
    """The format of a file: the given one, or what its suffix says."""
    if format is not None:
        checks.pick("format", format, FORMATS)
        return format
    if path == STANDARD_INPUT:
        return "tsv"
    name = path.lower().removesuffix(".gz")
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "plain")


def check_side_names(source: str | None, target: str | None) -> None:
    """Refuse names of source and target unless both are given and differ, or neither is."""
    if (source is None) != (target is None):
        given, missing = ("source", "target") if target is None else ("target", "source")
        raise checks.wrong("source, target", "given together", f'{given} "{source or target}" without {missing}')
    if source is not None and source == target:
        raise checks.wrong("source, target", "different", f'"{source}" and "{target}"')


def _open_inputs(paths: Sequence[AnyPath]) -> tuple[InputFile, ...]:
    if isinstance(paths, str | bytes | os.PathLike):
        raise checks.wrong("paths", "a list of paths", repr(paths), "Put it into a list.")
    if not paths:
        raise checks.wrong("paths", "at least one file", "an empty list")
    if [os.fspath(path) for path in paths].count(STANDARD_INPUT) > 1:
        raise checks.wrong("paths", 'files, and "-" at most once', 'with "-" more than once',
                           "Standard input can be read only once.")
    return tuple(InputFile(path) for path in paths)


def _unpaired_message(input: InputFile, other: InputFile | None) -> str:
    following = "no other file follows" if other is None else f"{other.name}, which follows, holds pairs itself"
    suffixes = ", ".join(f"*{suffix}" for suffix in _SUFFIXES if suffix != ".pot")
    return (f"{input.name}: Pairs in plain text need two files, sources and then targets, but {following}. Name the "
            f"second file; or, if this one holds pairs, set --format, or rename it ({suffixes})."
            f"{' If it holds tracks of agents, set --task tracks.' if '.csv' in input.name.lower() else ''}")


def _is_wanted(slot: TargetSlot, entries: str) -> bool:
    return entries == "all" or not slot.target


def _document_format(input: InputFile, format: str | None) -> str:
    """The format of a document: as `format_of`, but standard input is plain text by default."""
    return "plain" if input.path == STANDARD_INPUT and format is None else format_of(input.path, format)


def _parse_document(input: InputFile, source: str | None, target: str | None, format: str | None,
                    log: ReadLog) -> DocumentParts:
    check_side_names(source, target)
    kind = _document_format(input, format)
    if kind == "plain":
        return text.parse_document(input)
    if kind == "po":
        return po.parse_document(input)
    if kind == "tsv":
        return tsv.parse_document(input, source, target, log)
    return {"jsonl": jsonl, "tmx": tmx}[kind].parse_document(input, source, target)


@contextmanager
def _create_output(input: InputFile, output: str) -> Iterator[BinaryIO]:
    """A new file, which is removed if the work fails."""
    if output == STANDARD_INPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(output) and os.path.samefile(input.path, output):
        raise DataError(f"{printable(output)}: The output file is the input file. Choose another name.")
    with ExitStack() as on_failure, ExitStack() as files:
        try:
            file: BinaryIO = files.enter_context(open(output, "xb"))
        except FileExistsError as error:
            raise DataError(f"{printable(output)}: The file exists already and is not overwritten. Choose another "
                            "name.") from error
        except OSError as error:
            raise DataError(f"{printable(output)}: The file cannot be written: {error.strerror}. Choose another "
                            "name.") from error
        on_failure.callback(os.unlink, output)
        if output.lower().endswith(".gz"):
            file = cast(BinaryIO, files.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
        try:
            yield file
            files.close()  # writing the last bytes may still fail
        except OSError as error:
            error.filename = error.filename or output
            raise
        on_failure.pop_all()
