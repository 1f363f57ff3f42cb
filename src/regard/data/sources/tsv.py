"""Tab-separated files: sentence pairs, or texts with a label each.

There is no quoting and no header line: a quotation mark is a quotation mark, and the first line is an example. Where
columns are chosen by number a line may have more of them; otherwise a third column is an error, because a tab inside a
sentence looks the same. A labelled text may be empty, its label may not.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from regard import checks
from regard.data.sources.text import (
    DataError,
    DocumentParts,
    InputFile,
    Location,
    SentencePair,
    TargetSlot,
    encode_line,
    read_lines,
    read_lines_with_ends,
)

Columns = tuple[int, int] | None
"""The columns of source and target, from 0; None if a line has just these two."""


def parse_columns(source: str | None, target: str | None) -> Columns:
    """The columns chosen by numbers from 1. Other names, such as languages, choose none: then a line is the pair."""
    chosen = [int(name) for name in (source, target) if name is not None and name.isascii() and name.isdigit()]
    if not chosen:
        return None
    if len(chosen) == 1 or chosen[0] == chosen[1] or 0 in chosen:
        raise checks.wrong("source, target", 'two different columns, counted from 1, such as "1" and "2"',
                           f'"{source}" and "{target}"')
    return chosen[0] - 1, chosen[1] - 1


def read_pairs(input: InputFile, source: str | None, target: str | None) -> Iterator[SentencePair]:
    """The pairs of a file, one per line."""
    name, chosen = input.name, parse_columns(source, target)
    first, second = chosen or (0, 1)
    for number, line in enumerate(read_lines(input), 1):
        cells = line.split("\t")
        if len(cells) != 2 or chosen is not None:
            _check_columns(cells, chosen, Location(name, number))
        yield SentencePair(cells[first], cells[second], Location(name, number))


def parse_document(input: InputFile, source: str | None, target: str | None) -> DocumentParts:
    """The slots of a file. A line with only the source gets its slot after a tab."""
    chosen = parse_columns(source, target)
    first, second = chosen or (0, 1)
    for number, (line, end) in enumerate(read_lines_with_ends(input), 1):
        location, cells = Location(input.name, number), line.split("\t")
        if len(cells) == second and first < second:
            yield f"{line}\t".encode()
            yield TargetSlot(cells[first], "", location, b"", partial(_encode_cell, location))
        else:
            _check_columns(cells, chosen, location)
            before, raw = "".join(f"{cell}\t" for cell in cells[:second]), cells[second]
            yield before.encode()
            yield TargetSlot(cells[first], raw, location, raw.encode(), partial(_encode_cell, location))
            yield "".join(f"\t{cell}" for cell in cells[second + 1:]).encode()
        yield end.encode("ascii")


def _check_columns(cells: list[str], chosen: Columns, location: Location) -> None:
    got = f"{len(cells)} column{'s' * (len(cells) != 1)}"
    if chosen is None and len(cells) != 2:
        raise DataError(f"{location}: {got} instead of 2: a source, a tab, a target. Remove the extra tab or add "
                        "the missing one, or choose columns by number (--source 1 --target 2).")
    if chosen is not None and len(cells) <= max(chosen):
        raise DataError(f"{location}: {got}, but column {max(chosen) + 1} was chosen. Fix the line, or "
                        "choose another column.")


def _encode_cell(location: Location, text: str) -> bytes:
    if "\t" in text:
        raise DataError(f"{location}: A target with a tab of its own does not fit into a column. Use JSONL.")
    return encode_line(location, text)


class LabelledText(NamedTuple):
    """A text, its label, and its location."""

    text: str
    label: str
    location: Location


def read_labelled_texts(input: InputFile) -> Iterator[LabelledText]:
    """The texts of a file with their labels: a text, a tab, a label on each line."""
    for number, line in enumerate(read_lines(input), 1):
        cells = line.split("\t")
        if len(cells) != 2:
            got = f"{len(cells)} column{'s' * (len(cells) != 1)}"
            raise DataError(f"{input.name}:{number}: {got} instead of 2: a text, a tab, a label. Remove the extra "
                            "tab, or add the missing one.")
        text, label = cells[0], cells[1].strip()
        if not label:
            raise DataError(f"{input.name}:{number}: There is no label after the tab. Add one, or remove the "
                            "line.")
        yield LabelledText(text, label, Location(input.name, number))
