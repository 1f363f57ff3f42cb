"""Tab-separated pairs: a source, a tab, a target on each line.

There is no quoting: a quotation mark is a quotation mark. Where columns are chosen by number, there may be more of
them; without, a third is an error, because a tab inside a sentence looks the same. It knows no header line.
"""

from collections.abc import Iterator
from functools import partial

from regard import checks
from regard.data.pair import DataError, Pair, Where
from regard.data.sources.inputs import Input
from regard.data.sources.lines import ended_lines, lines
from regard.data.sources.plain import one_line
from regard.data.sources.slots import Pieces, Slot

Columns = tuple[int, int] | None
"""Of source and target, from 0; None where each line is just these two."""


def columns(source: str | None, target: str | None) -> Columns:
    """The columns that numbers from 1 stand for. Names, such as languages, choose none: then a line is the pair."""
    chosen = [int(name) for name in (source, target) if name is not None and name.isascii() and name.isdigit()]
    if not chosen:
        return None
    if len(chosen) == 1 or chosen[0] == chosen[1] or 0 in chosen:
        raise checks.wrong("source, target", 'two different columns, counted from 1, such as "1" and "2"',
                           f'"{source}" and "{target}"')
    return chosen[0] - 1, chosen[1] - 1


def pairs(input: Input, source: str | None, target: str | None) -> Iterator[Pair]:
    """The pairs of a file."""
    name, chosen = input.name, columns(source, target)
    first, second = chosen or (0, 1)
    for number, line in enumerate(lines(input), 1):
        cells = line.split("\t")
        if len(cells) != 2 or chosen is not None:
            _check(cells, chosen, Where(name, number))
        yield Pair(cells[first], cells[second], Where(name, number))


def pieces(input: Input, source: str | None, target: str | None) -> Pieces:
    """The targets of a file. A line may have the source alone: then the target comes behind it."""
    chosen = columns(source, target)
    first, second = chosen or (0, 1)
    for number, (line, end) in enumerate(ended_lines(input), 1):
        where, cells = Where(input.name, number), line.split("\t")
        if len(cells) == second and first < second:
            yield f"{line}\t".encode()
            yield Slot(cells[first], "", where, b"", partial(_cell, where))
        else:
            _check(cells, chosen, where)
            before, raw = "".join(f"{cell}\t" for cell in cells[:second]), cells[second]
            yield before.encode()
            yield Slot(cells[first], raw, where, raw.encode(), partial(_cell, where))
            yield "".join(f"\t{cell}" for cell in cells[second + 1:]).encode()
        yield end.encode("ascii")


def _check(cells: list[str], chosen: Columns, where: Where) -> None:
    got = f"{len(cells)} column{'s' * (len(cells) != 1)}"
    if chosen is None and len(cells) != 2:
        raise DataError(f"{where}: {got} instead of 2: a source, a tab, a target. Remove the tab that is too many or "
                        "add the one that is missing, or choose columns by number (--source 1 --target 2).")
    if chosen is not None and len(cells) <= max(chosen):
        raise DataError(f"{where}: {got}, but column {max(chosen) + 1} was chosen. Mend the line, or choose another.")


def _cell(where: Where, text: str) -> bytes:
    if "\t" in text:
        raise DataError(f"{where}: A target with a tab of its own does not fit into a column. Use JSONL.")
    return one_line(where, text)
