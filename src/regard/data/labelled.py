"""Texts with a label each, tab-separated: a text, a tab, a label on each line.

There is no quoting and no header line: a quotation mark is a quotation mark, and the first line is an example. A text
may be empty, a label may not. It does not know which labels there are, nor what becomes of empty texts.
"""

from collections.abc import Iterator
from typing import NamedTuple

from regard.data.pair import DataError, Where
from regard.data.sources.inputs import Input
from regard.data.sources.lines import lines


class LabelledText(NamedTuple):
    """A text and its label, as they stand in the data."""

    text: str
    label: str
    where: Where


def labelled_texts(input: Input) -> Iterator[LabelledText]:
    """The texts of a file, with their labels."""
    for number, line in enumerate(lines(input), 1):
        cells = line.split("\t")
        if len(cells) != 2:
            got = f"{len(cells)} column{'s' * (len(cells) != 1)}"
            raise DataError(f"{input.name}:{number}: {got} instead of 2: a text, a tab, a label. Remove the tab "
                            "that is too many, or add the one that is missing.")
        text, label = cells[0], cells[1].strip()
        if not label:
            raise DataError(f"{input.name}:{number}: There is no label behind the tab. Give the text one, or "
                            "remove the line.")
        yield LabelledText(text, label, Where(input.name, number))
