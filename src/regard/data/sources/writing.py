"""Translations written back into the format they came from: the targets change, and no other byte.

    plain    a file of sources becomes a file of targets, line for line
    TSV      the target's column; a line that has only the source gets it behind a tab
    JSONL    the value of the target's key, which is added where it is missing
    PO       msgstr of every entry that is not obsolete; flags stay, fuzzy ones too
    TMX      the segments in the target language

`sources` says what is to be translated, `translated` takes the translations, in the same order and number. A target
that is what stood there already leaves its place untouched, down to its quoting. It translates nothing itself.
"""

import gzip
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, cast

from regard import checks
from regard.data.pair import DataError, Line
from regard.data.sources import jsonl, plain, po, tmx, tsv
from regard.data.sources.inputs import STANDARD_INPUT, Input, shown
from regard.data.sources.lines import BOM, marked
from regard.data.sources.opening import Path, check_names, kind_of
from regard.data.sources.slots import Pieces, Slot

ENTRIES = {"all": "every one", "missing": "those whose target is empty"}


def sources(path: Path, *, source: str | None = None, target: str | None = None, format: str | None = None,
            entries: str = "all") -> Iterator[Line]:
    """What `translated` wants a target for, in its order: all entries, or those whose target is "missing"."""
    checks.pick("entries", entries, ENTRIES)
    return (Line(slot.source, slot.where) for slot in _pieces(Input(path), source, target, format)
            if isinstance(slot, Slot) and _wanted(slot, entries))


def translated(path: Path, targets: Iterable[str], output: Path, *, source: str | None = None,
               target: str | None = None, format: str | None = None, entries: str = "all") -> int:
    """Write the file again as `output`, which must be new ("-" is standard output), with these targets; their count.

    A name that ends with .gz is written as gzip. Where anything is wrong, no output is left behind.
    """
    checks.pick("entries", entries, ENTRIES)
    input, remaining, count = Input(path), iter(targets), 0
    if input.once:
        raise DataError(f"{input.name}: It can be read only once, but is needed twice. Save it to a file first.")
    with _created(input, os.fspath(output)) as file:
        if kind_of(input.path, format) != "tmx" and marked(input):
            file.write(BOM)
        for piece in _pieces(input, source, target, format):
            if not isinstance(piece, Slot):
                file.write(piece)
            elif not _wanted(piece, entries):
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


def _wanted(slot: Slot, entries: str) -> bool:
    return entries == "all" or not slot.target


def _pieces(input: Input, source: str | None, target: str | None, format: str | None) -> Pieces:
    check_names(source, target)
    kind = "plain" if input.path == STANDARD_INPUT and format is None else kind_of(input.path, format)
    if kind == "plain":
        return plain.pieces(input)
    if kind == "po":
        return po.pieces(input)
    return {"tsv": tsv, "jsonl": jsonl, "tmx": tmx}[kind].pieces(input, source, target)


@contextmanager
def _created(input: Input, output: str) -> Iterator[BinaryIO]:
    """A new file, which is removed again where the work fails."""
    if output == STANDARD_INPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(output) and os.path.samefile(input.path, output):
        raise DataError(f"{shown(output)}: The output is the input. Give it another name.")
    with ExitStack() as failing, ExitStack() as files:
        try:
            file: BinaryIO = files.enter_context(open(output, "xb"))
        except FileExistsError as error:
            raise DataError(f"{shown(output)}: It is there already, and is not written over. Give another name.") \
                from error
        except OSError as error:
            raise DataError(f"{shown(output)}: It cannot be written: {error.strerror}. Give another name.") from error
        failing.callback(os.unlink, output)
        if output.lower().endswith(".gz"):
            file = cast(BinaryIO, files.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
        yield file
        files.close()  # only what is written out has not failed
        failing.pop_all()
