"""Data in memory: rows of Python values, written to a file that training reads like any other.

    write_pairs([("Good day.", "Guten Tag."), ...], "pairs.jsonl")          sources and targets
    write_labelled_texts(frame, "reviews.jsonl", text="review")             texts and labels
    write_labelled_sequences([(["The", "cat"], ["DET", "NOUN"])], "s.jsonl") tokens and their labels
    write_texts(["One text.", "Another."], "corpus.txt")                    texts

The rows may be

    pairs                       tuples or lists of two; named tuples and dicts with the names of the columns
    a table                     a pandas or polars DataFrame, or a dict of columns
    a Hugging Face dataset      one split of it; also with pairs as {"translation": {"de": ..., "en": ...}}
    any iterable of such rows   a generator, too: rows are read once, one at a time

pandas and datasets are not imported: what counts is what an object can do. Columns are found by the default names
(source and target, text and label), or are the only ones, or are named. A missing value, a number, bytes, or characters
that no text file can hold are refused with row and column; rows are counted from 0. Tabs and line breaks are kept:
pairs and labelled texts are written as JSONL.
"""

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, NamedTuple

from regard import checks
from regard.data.sources.text import DataError, printable

PAIR_COLUMNS, LABELLED_COLUMNS, TEXT_COLUMNS = ("source", "target"), ("text", "label"), ("text",)
SEQUENCE_COLUMNS = ("tokens", "labels")
NESTED_COLUMN = "translation"
"""The column of Hugging Face datasets whose values have a text for each language."""
ROW_EXAMPLES = {PAIR_COLUMNS: '("Good day.", "Guten Tag.")', LABELLED_COLUMNS: '("A fine film.", "positive")',
                TEXT_COLUMNS: '"A text."', SEQUENCE_COLUMNS: '(["The", "cat"], ["DET", "NOUN"])'}
Row = tuple[Any, ...]


class ColumnNames(NamedTuple):
    """The columns that are needed: their default names, and those that the user chose."""

    defaults: tuple[str, ...]
    chosen: tuple[str | None, ...]
    argument: str = "data"
    """The argument that has the rows, for messages."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column: the chosen one, or the default."""
        return tuple(chosen or default for chosen, default in zip(self.chosen, self.defaults, strict=True))

    def find(self, present: Sequence[Any]) -> tuple[Any, ...]:
        """The columns of a table that has these: by name, or the only ones."""
        columns = {str(name): name for name in present}
        if all(name in columns for name in self.names):
            return tuple(columns[name] for name in self.names)
        if not any(self.chosen) and len(present) == len(self.defaults):
            return tuple(present)
        missing = [name for name in self.names if name not in columns]
        there = ", ".join(f'"{printable(name)}"' for name in columns) or "none"
        raise DataError(f"`{self.argument}` has no column {_quoted(missing)}; its columns are: {there}. Name the right "
                        f"ones with {' and '.join(f'{name}=...' for name in self.options)}, or rename them.")

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of `regard.train` that choose the columns."""
        return PAIR_COLUMNS[:len(self.defaults)]


class CellError(ValueError):
    """What is wrong with one cell; the message continues the name of the cell."""


def write_pairs(data: Iterable[Any], path: str | os.PathLike[str], *, source: str | None = None,
                target: str | None = None, argument: str = "data") -> int:
    """Write sentence pairs as JSONL, under the names of the columns; the number of pairs.

    Args:
        source, target: the columns; by default "source" and "target", or the only two.
        argument: the name of the argument in messages.
    """
    columns = ColumnNames(PAIR_COLUMNS, (source, target), argument)
    return _write(path, columns, _rows(data, columns), (_check_text, _check_text), _json_line(columns.names))


def write_labelled_texts(data: Iterable[Any], path: str | os.PathLike[str], *, text: str | None = None,
                         label: str | None = None, argument: str = "data") -> int:
    """Write texts and labels as JSONL with the keys "text" and "label"; the number of texts.

    A label may be a whole number; where a Hugging Face dataset names its labels, their names are written.
    """
    columns = ColumnNames(LABELLED_COLUMNS, (text, label), argument)
    names = _label_names(data, columns)

    def check_label(value: Any) -> str:
        found = _check_label(value)
        return names[int(found)] if names and found.isdecimal() and int(found) < len(names) else found

    return _write(path, columns, _rows(data, columns), (_check_text, check_label), _json_line(LABELLED_COLUMNS))


def write_labelled_sequences(data: Iterable[Any], path: str | os.PathLike[str], *, tokens: str | None = None,
                             labels: str | None = None, argument: str = "data") -> int:
    """Write sequences of tokens with their labels as JSONL with the keys "tokens" and "labels"; their number.

    Both are lists, or texts as in TSV. A label may be a whole number; where a Hugging Face dataset names its labels,
    their names are written.
    """
    columns = ColumnNames(SEQUENCE_COLUMNS, (tokens, labels), argument)
    names = _label_names(data, columns)

    def check_label(value: Any) -> str:
        found = _check_label(value)
        return names[int(found)] if names and found.isdecimal() and int(found) < len(names) else found

    return _write(path, columns, _rows(data, columns), (partial(_check_parts, _check_text),
                                                        partial(_check_parts, check_label)),
                  '{{"tokens": {}, "labels": {}}}\n'.format)


def _check_parts(check: Callable[[Any], str], value: Any) -> str:
    """A text, or a list of them, as JSON."""
    if isinstance(value, str) or _is_missing(value):
        return encode_basestring(_check_text(value))
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise CellError(f"must be a text or a list of texts, but is {checks.kind(value)[0]} instead: {value!r:.60}")
    return f"[{', '.join(encode_basestring(check(part)) for part in value)}]"


def write_texts(data: "Iterable[Any] | str", path: str | os.PathLike[str], *, text: str | None = None,
                one_line_each: bool = False, argument: str = "data") -> int:
    """Write texts as plain text, each ended by a line break; the number of texts.

    Args:
        data: one text, or several.
        text: the column of a table; by default "text", or the only one.
        one_line_each: whether a text is a line, so that one with a line break is refused. One text alone may have
            several lines.
    """
    columns = ColumnNames(TEXT_COLUMNS, (text,), argument)
    if isinstance(data, str):
        return _write(path, columns, [(0, (data,))], (_check_text,), "{}\n".format)
    check = _check_line if one_line_each else _check_text
    return _write(path, columns, _rows(data, columns), (check,), "{}\n".format)


def _write(path: str | os.PathLike[str], columns: ColumnNames, rows: Iterable[tuple[int, Row]],
           check: tuple[Callable[[Any], str], ...], line: Callable[..., str]) -> int:
    """Write a line for each row into a new file; if a row is wrong, no file remains."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    count = at = 0
    with ExitStack() as on_failure:
        on_failure.callback(Path(path).unlink, missing_ok=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for number, row in rows:
                try:
                    texts = []
                    for at, test in enumerate(check):
                        texts.append(test(row[at]))
                except CellError as error:
                    raise DataError(f'`{columns.argument}`, row {number:,}, column "{printable(columns.names[at])}" '
                                    f"{error}") from None
                file.write(line(*texts))
                count += 1
        if not count:
            raise DataError(f"`{columns.argument}` is empty: it has no row such as "
                            f"{ROW_EXAMPLES[columns.defaults]}.")
        on_failure.pop_all()
    return count


def _json_line(names: tuple[str, ...]) -> Callable[..., str]:
    """A function from texts to a line of JSON; it takes less than half the time of `json.dumps` of a dict."""
    keys = [f"{', ' if number else '{'}{encode_basestring(name)}: " for number, name in enumerate(names)]

    def line(*texts: str) -> str:
        return "".join([part for key, text in zip(keys, texts, strict=True) for part in (key, encode_basestring(text))]
                       ) + "}\n"

    return line


def _rows(data: Any, columns: ColumnNames) -> Iterator[tuple[int, Row]]:
    """The rows with their numbers, each with a value for every column."""
    if isinstance(getattr(data, "column_names", None), Mapping):
        splits = ", ".join(f'"{printable(str(name))}"' for name in data)
        raise DataError(f"`{columns.argument}` has several splits: {splits}. Choose one, such as "
                        f"dataset[{next(iter(data), 'train')!r}].")
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _dataset_rows(data, columns)
    if isinstance(data, Mapping):
        return _table_rows(data, list(data), columns)
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return _table_rows(data, list(data.columns), columns)
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise checks.wrong(columns.argument, f"a path, or rows such as {ROW_EXAMPLES[columns.defaults]}",
                           *checks.kind(data))
    return ((number, _row_values(row, number, columns)) for number, row in enumerate(data))


def _table_rows(table: Any, present: list[Any], columns: ColumnNames) -> Iterator[tuple[int, Row]]:
    """The rows of a table that gives a column by its name."""
    chosen = [table[name] for name in columns.find(present)]
    sizes = [len(column) for column in chosen]
    if len(set(sizes)) > 1:
        found = " and ".join(f'"{name}" has {size:,}' for name, size in zip(columns.names, sizes, strict=True))
        raise DataError(f"The columns of `{columns.argument}` must have the same number of rows, but {found}.")
    return enumerate(zip(*chosen, strict=True))


def _dataset_rows(dataset: Any, columns: ColumnNames) -> Iterator[tuple[int, Row]]:
    """The rows of a Hugging Face dataset, whose iterator gives dicts."""
    present = dataset.column_names
    if present is None:  # a streamed dataset of unknown columns: each row has its own
        return ((number, _row_values(row, number, columns)) for number, row in enumerate(dataset))
    if NESTED_COLUMN in present and not all(name in present for name in columns.names):
        return ((number, _row_values(row[NESTED_COLUMN], number, columns)) for number, row in enumerate(dataset))
    names = columns.find(list(present))
    return ((number, tuple(row[name] for name in names)) for number, row in enumerate(dataset))


def _row_values(row: Any, number: int, columns: ColumnNames) -> Row:
    """The values of one row: a dict, a named tuple, a tuple, or where one column is needed the text itself."""
    where = f"`{columns.argument}`, row {number:,}"
    if isinstance(row, Mapping):
        if NESTED_COLUMN in row and isinstance(row[NESTED_COLUMN], Mapping):
            row = row[NESTED_COLUMN]
        try:
            return tuple(row[name] for name in columns.find(list(row)))
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
    if isinstance(row, str) and len(columns.defaults) == 1:
        return (row,)
    fields = getattr(row, "_fields", ())
    if fields and all(name in fields for name in columns.names):
        return tuple(getattr(row, name) for name in columns.names)
    if isinstance(row, list | tuple) and len(row) == len(columns.defaults):
        return tuple(row)
    got = f"a {type(row).__name__} of {len(row)}" if isinstance(row, list | tuple) else checks.kind(row)[0]
    raise DataError(f"{where} must be like {ROW_EXAMPLES[columns.defaults]}, but is {got} instead.")


def _check_text(value: Any) -> str:
    """The value if it is text that a file can hold."""
    if not isinstance(value, str):
        if _is_missing(value):
            raise CellError(f"is missing: {value!r:.20}. Remove the row, or fill it in.")
        raise CellError(f"must be text, but is {checks.kind(value)[0]} instead: {value!r:.60}")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise CellError(f"has half a surrogate pair, which is not text: {value!r:.60}")
    if "\0" in value:
        raise CellError(f"has a NUL character, which is not text: {value!r:.60}")
    return value


def _check_line(value: Any) -> str:
    """A text without a line break."""
    found = _check_text(value)
    if "\n" in found or found.endswith("\r"):
        raise CellError(f"has a line break, but each text is one line here: {value!r:.60}. Split it, or replace its "
                        "line breaks by spaces.")
    return found


def _check_label(value: Any) -> str:
    """A label as text; whole numbers are labels too."""
    if isinstance(value, str) or _is_missing(value):
        name = _check_text(value).strip()
        if not name:
            raise CellError("is an empty label. Remove the row, or fill it in.")
        return name
    try:  # a column of whole numbers with a gap has floats
        return str(operator.index(int(value) if isinstance(value, float) and value.is_integer() else value))
    except TypeError:
        raise CellError(f"must be text or a whole number, but is {checks.kind(value)[0]} instead: "
                        f"{value!r:.60}") from None


def _is_missing(value: Any) -> bool:
    """Whether a cell has no value: None, NaN, or the NA and NaT of pandas."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float)
                                                                              and value != value)


def _label_names(data: Any, columns: ColumnNames) -> Sequence[str]:
    """The names of the labels, where a Hugging Face dataset has numbers and their names."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping) or isinstance(getattr(data, "column_names", None), Mapping):
        return ()
    found = features.get(columns.find(list(features))[1])
    return getattr(found, "names", None) or getattr(getattr(found, "feature", None), "names", None) or ()


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f'"{printable(name)}"' for name in names)
