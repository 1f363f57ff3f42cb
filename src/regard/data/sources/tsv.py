"""Tab-separated files: sentence pairs, or texts with a label each.

There is no quoting: a quotation mark is a quotation mark. The first line sets the number of columns, and every line
must have as many, because a tab inside a sentence looks like another column. Of three or more columns the first two are
the pair, unless others are chosen by number, or by their names in a header line. Where columns are chosen by number, a
line may have more of them.

A first line is a header if all its cells are known header words or language codes: source and target, src and tgt, en
and fr. Since codes are words too (it, es, no, my), a line of codes is a header only if sentences follow. A header is
not an example; its language codes are the languages of the file. Columns called source_lang and target_lang name the
languages of each line. A labelled text may be empty, its label may not.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from regard import checks
from regard.data.languages import known_code, known_pair
from regard.data.sources.text import (
    DataError,
    DocumentParts,
    InputFile,
    LabelledText,
    Location,
    ReadLog,
    SentencePair,
    TargetSlot,
    encode_line,
    printable,
    read_lines,
    read_lines_with_ends,
)

SOURCE_WORDS = {"source", "src", "source_text", "source text", "source_sentence", "source sentence", "original",
                "input"}
TARGET_WORDS = {"target", "tgt", "trg", "target_text", "target text", "target_sentence", "target sentence",
                "translation", "output", "reference"}
TEXT_WORDS = {"text", "sentence", "review", "document", "comment", "title"}
LABEL_WORDS = {"label", "labels", "class", "category", "sentiment", "target"}
SOURCE_LANG_WORDS = {"source_lang", "src_lang", "source_language", "source lang", "source language"}
TARGET_LANG_WORDS = {"target_lang", "tgt_lang", "trg_lang", "target_language", "target lang", "target language"}
OTHER_WORDS = {"id", "score", "attribution", "license", "licence", "domain", "context", "note", "notes", "comment",
               "alignment", "corpus", "url", "date", *SOURCE_LANG_WORDS, *TARGET_LANG_WORDS}
LineT = TypeVar("LineT")
LINES_AHEAD = 5
"""Lines after a header of language codes that are searched for a sentence."""
_ALIGNMENT = re.compile(r"[0-9]{1,6}-[0-9]{1,6}(?: [0-9]{1,6}-[0-9]{1,6})*")
# Two words; or several characters of a script that does not separate words (Thai, Lao, Burmese, Khmer, CJK).
_SENTENCE = re.compile(r"\S\s+\S|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{4}")


@dataclass(frozen=True)
class TsvLayout:
    """The columns of source and target in a file, counted from 0."""

    source: int = 0
    target: int = 1
    count: int | None = 2
    """The number of columns that every line must have; None if a line may have any columns after these two."""
    header: bool = False
    """Whether the first line is a header."""

    def check(self, cells: Sequence[str], location: Location) -> None:
        """Refuse a line with another number of columns."""
        if len(cells) == self.count:
            return
        got = _column_count(len(cells))
        if self.count is None:
            last = max(self.source, self.target) + 1
            if len(cells) < last:
                raise DataError(f"{location}: {got}, but column {last} was chosen. Fix the line, or choose another "
                                "column.")
        elif self.count == 2:
            remedy = ("Add the tab and the target, or remove the line." if len(cells) < 2 else
                      "Remove the extra tab, or choose columns by number (--source 1 --target 2).")
            raise DataError(f"{location}: {got} instead of 2: a source, a tab, a target. {remedy}")
        else:
            raise DataError(f"{location}: {got}, but line 1 has {self.count}. Fix the line; or, if the others have "
                            "different numbers of columns too, choose columns by number (--source 1 --target 2).")


def parse_columns(source: str | None, target: str | None) -> TsvLayout | None:
    """The layout chosen by column numbers from 1; None if the sides have other names, or none."""
    chosen = [int(name) for name in (source, target) if name is not None and name.isascii() and name.isdigit()]
    if not chosen:
        return None
    if len(chosen) == 1 or chosen[0] == chosen[1] or 0 in chosen:
        raise checks.wrong("source, target", 'two different columns, counted from 1, such as "1" and "2"',
                           f'"{source}" and "{target}"')
    return TsvLayout(chosen[0] - 1, chosen[1] - 1, None)


def detect_layout(name: str, first: str, following: Iterable[str], source: str | None, target: str | None,
                  log: ReadLog) -> TsvLayout:
    """The layout of a file, decided by its first line, and reported to the log if a user may not expect it.

    Args:
        following: the lines after the first, of which a few are read if the first consists of language codes.
        source, target: columns, by number or by their names in a header line.
    """
    cells, chosen = first.split("\t"), parse_columns(source, target)
    header = _find_header(cells, following)
    if chosen is None and source is not None and target is not None:
        named = _named_columns(name, cells, source, target, header)
        if named is not None:
            chosen, header = TsvLayout(*named, len(cells)), header or _Header(*named)
    if chosen is None and header is not None:
        chosen = TsvLayout(header.source, header.target, len(cells))
    if chosen is None:
        chosen = TsvLayout(count=max(2, len(cells)))
    if header is not None:
        log.note(f"{name}: The first line is a header ({', '.join(map(printable, cells))}), not a sentence pair.")
        if max(chosen.source, chosen.target) < len(cells):
            named_pair = known_pair(cells[chosen.source], cells[chosen.target])
            log.languages.update({} if named_pair is None else {name: named_pair})
    elif source is not None and target is not None and parse_columns(source, target) is None:
        left, right = f'"{printable(source)}"', f'"{printable(target)}"'
        if len(cells) > 2:
            raise DataError(f"{name}:1: There is no column {left} or {right}: the first line is no header with these "
                            "names. Choose columns by number (--source 1 --target 2).")
        if known_pair(source, target) is None:  # wrong names, or keys of a JSONL file that is read too
            log.note(f"{name} has no header with the names {left} and {right}: using columns 1 (source) and 2 "
                     "(target).")
    if len(cells) > 2 and source is None:
        log.note(f"{name} has {len(cells)} columns: using columns {chosen.source + 1} (source) and {chosen.target + 1} "
                 "(target). Choose others with --source and --target.")
    return TsvLayout(chosen.source, chosen.target, chosen.count, header is not None)


class _Header(NamedTuple):
    """The columns of source and target that a header line names."""

    source: int
    target: int


def _find_header(cells: Sequence[str], following: Iterable[str]) -> _Header | None:
    """The columns that the cells name as a header line; None if they are an example."""
    names = [cell.strip().casefold() for cell in cells]
    sources = [at for at, name in enumerate(names) if name in SOURCE_WORDS]
    targets = [at for at, name in enumerate(names) if name in TARGET_WORDS]
    codes = [at for at, cell in enumerate(cells) if known_code(cell) is not None]
    known = {*sources, *targets, *codes, *(at for at, name in enumerate(names) if name in OTHER_WORDS)}
    if len(known) < len(cells) or len(set(names)) < len(names):
        return None
    if sources and targets:
        return _Header(sources[0], targets[0])
    if len(codes) >= 2 and any(_SENTENCE.search(cell) for line in islice(following, LINES_AHEAD)
                               for cell in line.split("\t")):
        certain = [at for at in codes if names[at] not in OTHER_WORDS]  # "id" is Indonesian, or a number
        return _Header(*(certain if len(certain) >= 2 else codes)[:2])
    return None


def header_languages(input: InputFile) -> list[str]:
    """The language codes that a header line names as its columns; none if there is no such line."""
    lines = read_lines(input)
    cells = next(lines, "").split("\t")
    header = _find_header(cells, lines)
    if header is None or known_pair(cells[header.source], cells[header.target]) is None:
        return []
    return [cell for at, cell in enumerate(cells)
            if at in header or (known_code(cell) is not None and cell.strip().casefold() not in OTHER_WORDS)]


def _named_columns(name: str, cells: Sequence[str], source: str, target: str,
                   header: _Header | None) -> tuple[int, int] | None:
    """The columns of these names in the first line; None if it has neither of them."""
    names = [cell.strip().casefold() for cell in cells]
    found = [names.index(side.casefold()) if side.casefold() in names else None for side in (source, target)]
    first, second = found
    if first is not None and second is not None:
        return first, second
    if first is None and second is None and (header is None or names[header.source] in SOURCE_WORDS):
        return None
    missing = printable(source if first is None else target)
    there = ", ".join(f'"{printable(cell)}"' for cell in cells[:8])
    raise DataError(f'{name}:1: There is no column "{missing}". The columns of the first line: {there}. Choose two of '
                    "them, or columns by number (--source 1 --target 2).")


def read_pairs(input: InputFile, source: str | None, target: str | None, log: ReadLog) -> Iterator[SentencePair]:
    """The pairs of a file, one per line."""
    name, lines = input.name, read_lines(input)
    first, ahead = next(lines, None), _LookAhead(lines)
    if first is None:
        return
    layout = detect_layout(name, first, ahead, source, target, log)
    left, right, count = layout.source, layout.target, layout.count
    rest = ahead.lines() if layout.header else chain([first], ahead.lines())
    for number, line in enumerate(rest, 1 + layout.header):
        cells = line.split("\t")
        if len(cells) != count:
            layout.check(cells, Location(name, number))
        yield SentencePair(cells[left], cells[right], Location(name, number))


def read_alignments(input: InputFile) -> Iterator[tuple[tuple[int, int], ...]]:
    """For each line the word alignment in its third column, such as "0-0 1-2" (Pharaoh format); empty without one."""
    for line in read_lines(input):
        cells = line.split("\t")
        found = cells[2] if len(cells) > 2 and _ALIGNMENT.fullmatch(cells[2]) else ""
        yield tuple((int(one), int(other)) for one, other in (link.split("-") for link in found.split()))


class LanguageColumns(NamedTuple):
    """The columns of a file whose lines name their languages, counted from 0."""

    source: int
    target: int
    source_lang: int
    target_lang: int


def find_language_columns(first: str) -> LanguageColumns | None:
    """The columns of texts and languages that a header line names; None if it does not name all four."""
    names = [cell.strip().casefold() for cell in first.split("\t")]
    found = [next((at for at, name in enumerate(names) if name in words), None)
             for words in (SOURCE_WORDS, TARGET_WORDS, SOURCE_LANG_WORDS, TARGET_LANG_WORDS)]
    return LanguageColumns(*found) if None not in found else None  # type: ignore[arg-type]


def read_named_languages(input: InputFile) -> Iterator[tuple[str, str, SentencePair]]:
    """The pairs of a file whose header line names columns of languages, each after its two languages."""
    lines = read_lines(input)
    first = next(lines, "")
    columns, count = find_language_columns(first), len(first.split("\t"))
    assert columns is not None, "the caller has looked at the header line"
    layout = TsvLayout(columns.source, columns.target, count, header=True)
    for number, line in enumerate(lines, 2):
        cells, location = line.split("\t"), Location(input.name, number)
        layout.check(cells, location)
        yield cells[columns.source_lang], cells[columns.target_lang], SentencePair(
            cells[columns.source], cells[columns.target], location)


class _LookAhead(Generic[LineT]):
    """Lines, of which some can be read ahead: iterating reads ahead, `lines` gives all of them from the start."""

    def __init__(self, lines: Iterator[LineT]) -> None:
        self._lines, self._ahead = lines, list[LineT]()

    def __iter__(self) -> Iterator[LineT]:
        for line in self._lines:
            self._ahead.append(line)
            yield line

    def lines(self) -> Iterator[LineT]:
        """All lines, those that were read ahead first."""
        return chain(self._ahead, self._lines)


def parse_document(input: InputFile, source: str | None, target: str | None, log: ReadLog) -> DocumentParts:
    """The slots of a file; a header line stays as it is. A line with only the source gets its slot after a tab."""
    lines = read_lines_with_ends(input)
    first, ahead = next(lines, None), _LookAhead(lines)
    if first is None:
        return
    layout = detect_layout(input.name, first[0], (line for line, _ in ahead), source, target, log)
    for number, (line, end) in enumerate(chain([first], ahead.lines()), 1):
        location, cells = Location(input.name, number), line.split("\t")
        if number == 1 and layout.header:
            yield line.encode()
        elif len(cells) == layout.target and layout.source < layout.target and layout.count in (2, None):
            yield f"{line}\t".encode()
            yield TargetSlot(cells[layout.source], "", location, b"", partial(_encode_cell, location))
        else:
            layout.check(cells, location)
            before, raw = "".join(f"{cell}\t" for cell in cells[:layout.target]), cells[layout.target]
            yield before.encode()
            yield TargetSlot(cells[layout.source], raw, location, raw.encode(), partial(_encode_cell, location))
            yield "".join(f"\t{cell}" for cell in cells[layout.target + 1:]).encode()
        yield end.encode("ascii")


def _encode_cell(location: Location, text: str) -> bytes:
    if "\t" in text:
        raise DataError(f"{location}: The translation has a tab, which a column cannot hold. Use JSONL.")
    return encode_line(location, text)


def _column_count(count: int) -> str:
    return checks.plural(count, "column")


def read_labelled_texts(input: InputFile, log: ReadLog | None = None) -> Iterator[LabelledText]:
    """The texts of a file with their labels: a text, a tab, a label on each line, after a header if there is one."""
    for number, line in enumerate(read_lines(input), 1):
        cells = line.split("\t")
        if len(cells) != 2:
            remedy = "Add the tab and the label, or remove the line." if len(cells) < 2 else "Remove the extra tab."
            raise DataError(f"{input.name}:{number}: {_column_count(len(cells))} instead of 2: a text, a tab, a label. "
                            f"{remedy}")
        text, label = cells[0], cells[1].strip()
        if number == 1 and text.strip().casefold() in TEXT_WORDS and label.casefold() in LABEL_WORDS:
            if log is not None:
                log.note(f"{input.name}: The first line is a header ({printable(text)}, {printable(label)}), not "
                         "a labelled text.")
            continue
        if not label:
            raise DataError(f"{input.name}:{number}: There is no label after the tab. Add one, or remove the "
                            "line.")
        yield LabelledText(text, label, Location(input.name, number))
