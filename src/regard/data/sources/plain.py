"""Plain text: two aligned files, of which line n of one belongs to line n of the other; or one file for itself.

It knows lines and nothing of what is in them: empty ones are given too.
"""

from collections.abc import Iterator
from functools import partial
from itertools import zip_longest

from regard.data.pair import DataError, Line, Pair, Where
from regard.data.sources.inputs import Input
from regard.data.sources.lines import ended_lines, lines
from regard.data.sources.slots import Pieces, Slot


def pairs(sources: Input, targets: Input) -> Iterator[Pair]:
    """The lines of two files, side by side. That one has more is found at its end, and is an error."""
    number, name = 0, sources.name
    together = zip_longest(lines(sources), lines(targets))
    for number, (source, target) in enumerate(together, 1):
        if source is None or target is None:
            break
        yield Pair(source, target, Where(name, number))
    else:
        return
    longer, shorter = (sources, targets) if target is None else (targets, sources)
    longest = number + sum(1 for _ in together)
    raise DataError(f"{longer.name} has {_lines(longest)}, but {shorter.name} has {_lines(number - 1)}. Line n of one "
                    "must belong to line n of the other: find the line that only one of them has.")


def texts(input: Input) -> Iterator[Line]:
    """The lines of one file."""
    name = input.name
    for number, text in enumerate(lines(input), 1):
        yield Line(text, Where(name, number))


def pieces(input: Input) -> Pieces:
    """A file of sources becomes a file of targets: as many lines, each ended as it was."""
    for number, (text, end) in enumerate(ended_lines(input), 1):
        where = Where(input.name, number)
        yield Slot(text, "", where, b"", partial(one_line, where))
        yield end.encode("ascii")


def one_line(where: Where, text: str) -> bytes:
    """A text as a line of a file, which must not become two."""
    if "\n" in text or text.endswith("\r"):
        raise DataError(f"{where}: A target with a line break of its own does not fit into a line. Use JSONL.")
    return encoded(where, text)


def encoded(where: Where, text: str) -> bytes:
    """A text in UTF-8."""
    if "\0" in text:
        raise DataError(f"{where}: A target with a NUL is not text.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: A target with half a surrogate pair, at character {error.start + 1}, is not text.") \
            from error


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"
