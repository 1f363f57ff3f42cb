"""Sequences with a label for every token: TSV, CoNLL or JSONL, recognised by their content.

    TSV     MKVLA<tab>CHHHC                          characters: as many in one column as in the other
            The cat sleeps<tab>DET NOUN VERB         words between spaces: as many in one column as in the other
    CoNLL   The DET                                  a token and its label on each line, blank lines between sentences
    JSONL   {"tokens": ["The", "cat"], "labels": ["DET", "NOUN"]}        lists; or strings, as the columns of TSV

A token is a character or a word: that is the unit of the data. Lists and CoNLL files whose tokens are all of one
character have characters, others words. A TSV file has words if most of its lines have as many words in one column as
in the other, and more than one of them; it is CoNLL if most lines fit neither units.

In CoNLL the first column is the token and the last one the label, separated by tabs or spaces; other columns are chosen
by number. -DOCSTART- and comments (lines that begin with # and have another number of columns) are skipped. A file with
ten columns that begin with a number is CoNLL-U: its second column is the token and its fourth, the universal part of
speech, the label.

A sequence without tokens is skipped. A line whose two sides differ in length is an error that names file and line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from regard import checks
from regard.checks import plural
from regard.data.sources import jsonl
from regard.data.sources.formats import check_side_names
from regard.data.sources.text import DataError, InputFile, Location, ReadLog, printable, read_lines

UNITS = ("character", "word")
FORMATS = {"tsv": "TSV", "conll": "CoNLL", "jsonl": "JSONL"}
TOKEN_NAMES = ("tokens", "words", "text", "sequence", "sentence", "source")
LABEL_NAMES = ("labels", "tags", "label", "ner_tags", "pos_tags", "target")
"""Names of the two columns in a header line of TSV and of the keys in JSONL, the usual ones first."""
SAMPLE_LINES = 1000
"""Lines by which the format of a file is recognised."""
MOSTLY, NEARLY_ALL = 0.5, 0.9
DOCUMENT_START, COMMENT = "-DOCSTART-", "#"
CONLLU_COLUMNS, CONLLU_TOKEN, CONLLU_LABEL = 10, 1, 3
_CONLLU_NUMBER, _CONLLU_RANGE = re.compile(r"\d+"), re.compile(r"\d+[-.]\d+")


class LabelledSequence(NamedTuple):
    """The tokens of a sequence, a label for each of them, and the location of the first."""

    tokens: tuple[str, ...]
    labels: tuple[str, ...]
    location: Location

    def text(self, unit: str) -> str:
        """The tokens as one text: characters side by side, words with a space between them."""
        return join_tokens(self.tokens, unit)


@dataclass(frozen=True)
class TokenLabelLayout:
    """How the sequences of a file are written."""

    format: str
    unit: str
    token: int = 0
    """The column of the tokens, counted from 0."""
    label: int = 1
    """The column of the labels; -1 for the last one."""
    columns: int | None = None
    """The number of columns that every line of CoNLL must have; None for any."""
    header: bool = False
    """Whether the first line is a header."""
    labels: frozenset[str] = frozenset()
    """The labels of the first lines of CoNLL, which tell a comment from a token #."""

    def describe(self) -> str:
        """How the file was read, for people."""
        return f"{FORMATS[self.format]}, a label for every {self.unit}"


def join_tokens(tokens: Sequence[str], unit: str) -> str:
    """The tokens as one text: characters side by side, words with a space between them."""
    return ("" if unit == "character" else " ").join(tokens)


def split_tokens(text: str, unit: str) -> tuple[str, ...]:
    """The tokens of a text: its characters, or what is between its spaces."""
    return tuple(text) if unit == "character" else tuple(part for part in text.split(" ") if part)


class LabelledFile:
    """The labelled sequences of one file, whose layout is recognised when it is opened.

    Args:
        input: the file; it is opened anew for every iteration.
        unit: "character" or "word"; None to recognise it.
        format: "tsv", "conll" or "jsonl"; None to recognise it.
        source, target: the columns of tokens and labels, by number from 1 (in JSONL: their keys).
        log: takes notes about a header line and about columns.
    """

    def __init__(self, input: InputFile, *, unit: str | None = None, format: str | None = None,
                 source: str | None = None, target: str | None = None, log: ReadLog | None = None) -> None:
        for name, value, known in (("unit", unit, UNITS), ("format", format, FORMATS)):
            if value is not None:
                checks.pick(name, value, dict.fromkeys(known))
        check_side_names(source, target)
        self.input, self._keys = input, None if source is None or target is None else (source, target)
        self._lines: Iterator[str] | None = read_lines(input)
        sample = list(islice(self._lines, SAMPLE_LINES))
        self._lines = chain(sample, self._lines)
        self.layout = _recognise(input.name, sample, unit, format, self._keys, log or ReadLog())

    def __iter__(self) -> Iterator[LabelledSequence]:
        return self.read([])

    def read(self, empty: list[Location]) -> Iterator[LabelledSequence]:
        """The sequences; the locations of those without tokens are added to `empty`."""
        lines, self._lines = self._lines if self._lines is not None else read_lines(self.input), None
        name = self.input.name
        if self.layout.format == "conll":
            found = _read_conll(name, lines, self.layout)
        else:
            numbered = enumerate(lines, 1)
            if self.layout.format == "jsonl":
                found = (_parse_json(Location(name, number), line, self.layout.unit, self._keys)
                         for number, line in numbered if line.strip())
            else:
                found = (_parse_line(Location(name, number), line, self.layout) for number, line in numbered
                         if number > 1 or not self.layout.header)
        for one in found:
            if one.tokens:
                yield one
            else:
                empty.append(one.location)


def _recognise(name: str, sample: Sequence[str], unit: str | None, format: str | None,
               chosen: tuple[str, str] | None, log: ReadLog) -> TokenLabelLayout:
    """The layout of a file that begins with these lines."""
    filled = [line for line in sample if line.strip() and not line.startswith(DOCUMENT_START)]
    if not filled:
        raise DataError(f"{name}: There are no labelled sequences: every line is empty.")
    if format == "jsonl" or (format is None and filled[0].lstrip().startswith("{")):
        return TokenLabelLayout("jsonl", unit or _json_unit(name, sample, chosen))
    columns = None if chosen is None else _column_numbers(*chosen)
    found = None if format == "conll" else _recognise_tsv(name, sample, filled, unit, columns, format == "tsv", log)
    return _recognise_conll(name, sample, filled, unit, columns, log) if found is None else found


def _column_numbers(source: str, target: str) -> tuple[int, int]:
    if not all(side.isascii() and side.isdigit() and side != "0" for side in (source, target)) or source == target:
        raise checks.wrong("source, target", 'two different columns, counted from 1, such as "1" and "4"',
                           f'"{source}" and "{target}"')
    return int(source) - 1, int(target) - 1


def _recognise_tsv(name: str, sample: Sequence[str], filled: Sequence[str], unit: str | None,
                   columns: tuple[int, int] | None, certain: bool, log: ReadLog) -> TokenLabelLayout | None:
    """The layout of TSV; None if the file is CoNLL.

    Args:
        certain: whether the user says that it is TSV.
    """
    rows = [cells for line in filled if len(cells := line.split("\t")) > 1]
    if not certain and len(rows) <= MOSTLY * len(filled):
        return None
    token, label = columns or (0, 1)
    pairs = [(cells[token], cells[label]) for cells in rows if len(cells) > max(token, label)]
    header = bool(pairs) and filled[0] == sample[0] and _is_header(*pairs[0])
    pairs = pairs[1:] if header else pairs
    words = [len(split_tokens(one, "word")) == len(split_tokens(other, "word")) > 1 for one, other in pairs]
    characters = [len(one) == len(other) > 1 for one, other in pairs]
    spaced = [" " in one.strip(" ") or " " in other.strip(" ") for one, other in pairs]
    fitting = sum(map(max, words, characters))
    enough = NEARLY_ALL if any(not line.strip() for line in sample[:-1]) else MOSTLY
    if not (certain or fitting >= max(1, enough * len(pairs)) or sum(spaced) > MOSTLY * len(pairs)
            or len(filled) == 1):
        return None
    if header:
        log.note(f"{name}: The first line is a header ({', '.join(map(printable, filled[0].split(chr(9))))}), not a "
                 "labelled sequence.")
    elif len(rows) and len(rows[0]) > 2 and columns is None:
        log.note(f"{name} has {len(rows[0])} columns: using columns 1 (tokens) and 2 (labels). Choose others with "
                 "--source and --target.")
    found = unit or ("word" if sum(words) > 0 and sum(words) >= sum(characters) else
                     "character" if any(characters) or not any(spaced) else "word")
    return TokenLabelLayout("tsv", found, token, label, header=header)


def _is_header(token: str, label: str) -> bool:
    return token.strip().casefold() in TOKEN_NAMES and label.strip().casefold() in LABEL_NAMES


def _recognise_conll(name: str, sample: Sequence[str], filled: Sequence[str], unit: str | None,
                     columns: tuple[int, int] | None, log: ReadLog) -> TokenLabelLayout:
    rows = [_split_columns(line) for line in filled if not line.startswith(COMMENT)]
    if not rows:
        raise DataError(f"{name}: There are no labelled sequences: every line is empty or a comment.")
    count = len(rows[0])
    if count == 1:
        raise DataError(f"{name}: There are no labels: the first line has one column. Write a sequence, a tab and its "
                        "labels on each line (TSV), or a token and its label on each line (CoNLL).")
    universal = count == CONLLU_COLUMNS and _CONLLU_NUMBER.match(rows[0][0]) is not None
    token, label = columns or ((CONLLU_TOKEN, CONLLU_LABEL) if universal else (0, -1))
    if columns is None and universal:
        log.note(f"{name} is CoNLL-U: the labels are the universal parts of speech, column 4. Choose others with "
                 "--source 2 --target N.")
    elif columns is None and count > 2:
        log.note(f"{name} has {count} columns: using columns 1 (tokens) and {count} (labels). Choose others with "
                 "--source and --target.")
    if len(rows) > 1 and all(line.strip() and not line.startswith(DOCUMENT_START) for line in sample):
        log.note(f"{name} has no blank line between its first {len(rows):,} lines, so they are one sentence. For one "
                 "label for the text of each line, use --task classify.")
    whole = [cells for cells in rows if len(cells) == count and max(token, label) < count]
    single = unit is None and all(len(cells[token]) == 1 for cells in whole) and bool(whole)
    return TokenLabelLayout("conll", unit or ("character" if single else "word"), token, label, count,
                            labels=frozenset(cells[label] for cells in whole))


def _split_columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else [part for part in line.split(" ") if part]


def _read_conll(name: str, lines: Iterator[str], layout: TokenLabelLayout) -> Iterator[LabelledSequence]:
    tokens, labels, first = list[str](), list[str](), 0
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith(DOCUMENT_START):
            cell = _parse_token(Location(name, number), line, layout, at_start=not tokens)
            if cell is not None:
                first = first or number
                tokens.append(cell[0])
                labels.append(cell[1])
            continue
        if tokens:
            yield LabelledSequence(tuple(tokens), tuple(labels), Location(name, first))
        tokens, labels, first = [], [], 0
    if tokens:
        yield LabelledSequence(tuple(tokens), tuple(labels), Location(name, first))


def _parse_token(location: Location, line: str, layout: TokenLabelLayout, at_start: bool) -> tuple[str, str] | None:
    """The token and the label of a line; None for a comment, and for a line of CoNLL-U that is not a word."""
    cells = _split_columns(line)
    if line.startswith(COMMENT) and (len(cells) != layout.columns
                                     or (at_start and cells[layout.label] not in layout.labels)):
        return None
    if len(cells) == layout.columns and max(layout.token, layout.label) >= len(cells):
        raise _missing_column(location, cells, layout)
    if len(cells) != layout.columns:
        remedy = "Each line has a token and its label" if layout.columns == 2 else "Every line needs as many"
        raise DataError(f"{location}: {plural(len(cells), 'column')}, but the first line has {layout.columns}. "
                        f"{remedy}: correct it.")
    if layout.columns == CONLLU_COLUMNS and _CONLLU_RANGE.fullmatch(cells[0]):
        return None
    token, label = cells[layout.token], cells[layout.label]
    if not token or not label:
        raise DataError(f"{location}: The {'label' if token else 'token'} is empty. Fill it in, or remove the line.")
    if layout.unit == "character" and len(token) > 1:
        raise DataError(f'{location}: The token "{printable(token)}" has {len(token)} characters, but the tokens '
                        "before it are single characters. If they are words, use --set data.label_unit=word.")
    return token, label


def _missing_column(location: Location, cells: Sequence[str], layout: TokenLabelLayout) -> DataError:
    """The error for a line that does not have a column that was chosen."""
    return DataError(f"{location}: There is no column {max(layout.token, layout.label) + 1}: the line has "
                     f"{plural(len(cells), 'column')}. Correct the line, or choose others with --source and --target.")


def _parse_line(location: Location, line: str, layout: TokenLabelLayout) -> LabelledSequence:
    """The sequence of a line of TSV."""
    if not line.strip():
        return LabelledSequence((), (), location)
    cells = line.split("\t")
    if max(layout.token, layout.label) >= len(cells):
        if {layout.token, layout.label} != {0, 1}:
            raise _missing_column(location, cells, layout)
        raise DataError(f"{location}: {plural(len(cells), 'column')} instead of 2: a sequence, a tab, its labels. Add "
                        "the missing one, or remove the line.")
    if layout.label == 1 and layout.token == 0 and len(cells) > 2 and not cells[2].strip() and len(cells) == 3:
        raise DataError(f"{location}: There is a tab at the end of the line. Remove it.")
    return _pair_up(location, split_tokens(cells[layout.token], layout.unit),
                    split_tokens(cells[layout.label], layout.unit), layout.unit)


def _pair_up(location: Location, tokens: tuple[str, ...], labels: tuple[str, ...], unit: str) -> LabelledSequence:
    if len(tokens) != len(labels):
        one = len(labels) == 1 and unit == "word"
        remedy = " For one label for the whole text, use --task classify." if one else ""
        raise DataError(f"{location}: {plural(len(tokens), unit)}, but {plural(len(labels), 'label')}. Every {unit} "
                        f"needs one label: correct the line, or remove it.{remedy}")
    return LabelledSequence(tokens, labels, location)


def _json_unit(name: str, lines: Sequence[str], keys: tuple[str, str] | None) -> str:
    """The unit of JSONL: of strings as for TSV, of lists by their tokens."""
    words, characters = 0, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        tokens, labels = _json_values(Location(name, number), line, keys)
        if isinstance(tokens, str):
            spaced = " " in tokens.strip(" ") and (not isinstance(labels, str) or " " in labels.strip(" "))
            words, characters = words + spaced, characters + (not spaced and len(tokens) == len(labels))
        else:
            longer = any(len(token) > 1 for token in tokens)
            words, characters = words + longer, characters + (not longer and bool(tokens))
    return "character" if characters > words else "word"


def _parse_json(location: Location, line: str, unit: str, keys: tuple[str, str] | None) -> LabelledSequence:
    tokens, labels = (split_tokens(value, unit) if isinstance(value, str) else value
                      for value in _json_values(location, line, keys))
    if unit == "character":
        for token in tokens:
            if len(token) != 1:
                raise DataError(f'{location}: The token "{printable(token)}" has {len(token)} characters, but the '
                                "others are single characters. If they are words, use --set data.label_unit=word.")
    return _pair_up(location, tuple(tokens), tuple(labels), unit)


def _json_values(location: Location, line: str,
                 keys: tuple[str, str] | None) -> tuple[str | tuple[str, ...], str | tuple[str, ...]]:
    """The values of tokens and labels: strings, or lists of strings."""
    value = jsonl.parse_object(line, location)
    names = keys or tuple(next((name for name in known if name in value), known[0])
                          for known in (TOKEN_NAMES, LABEL_NAMES))
    tokens, labels = (_json_side(value, key, location) for key in names)
    return tokens, labels


def _json_side(value: Mapping[str, object], key: str, location: Location) -> str | tuple[str, ...]:
    found = value.get(key)
    if not isinstance(found, list):
        return jsonl.text_at_key(value, key, location)
    parts = []
    for part in found:
        if isinstance(part, int) and not isinstance(part, bool):
            part = str(part)  # datasets number their labels
        if not isinstance(part, str) or not part:
            raise DataError(f'{location}: "{printable(key)}" must be a list of strings that are not empty, but has '
                            f"{part!r:.40}. Fix the line.")
        parts.append(jsonl.text_at_key({key: part}, key, location))
    return tuple(parts)
