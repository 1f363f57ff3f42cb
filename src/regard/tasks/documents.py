"""A file translated into a file of the same format: entry by entry, with bounded memory, to go on after any end.

    document = Document("de.po")
    document.translate(work, "fr.po", asked={"model": "...", "beam": 5})

The entries are worked on in blocks and kept in a journal beside the output, which is written at the end, whole or not
at all. An entry that cannot be translated is named, has an empty target, and holds up no other. `document.flow(work)`
gives the targets as they come, for a pipe. It knows files and texts; what translates is a function.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from regard._version import __version__
from regard.data.pair import DataError, Line, Where
from regard.data.sources import writing
from regard.data.sources.inputs import Input, shown
from regard.data.sources.opening import kind_of
from regard.storage import manifest
from regard.tasks.journal import Journal, there_already

BLOCK = 512
"""Entries that are worked on together, and lost at most when the work is killed."""
_BREAKS = {"plain": re.compile("[\r\n]"), "tsv": re.compile("[\r\n\t]")}
Given = TypeVar("Given")
Done = TypeVar("Done")


class Text(Protocol):
    """What is needed of a translation."""

    @property
    def text(self) -> str:
        """What is written."""


Work = Callable[[list[str]], Sequence["Text | ValueError"]]
"""Gives for each text its translation, or why there is none: `partial(apart, work=...)` makes one."""


class Watcher(Protocol):
    """Told how the work goes."""

    def begun(self, done: int, total: int) -> None:
        """So many entries were done before, of so many."""

    def went(self, done: int) -> None:
        """So many entries are done now."""

    def failed(self, where: Where, error: ValueError) -> None:
        """This entry cannot be translated."""


class Outcome(NamedTuple):
    """What came of a work."""

    entries: int
    failed: int
    """Entries without a translation, those of the works before included."""
    before: int
    """Entries that were done already when it went on."""


@dataclass(frozen=True)
class Document:
    """A file to be translated. `format`, `source`, `target` and `entries` as for `regard.data.sources.writing`."""

    path: str
    format: str | None = None
    source: str | None = None
    target: str | None = None
    entries: str = "all"

    @property
    def kind(self) -> str:
        """The format, by its name."""
        return kind_of(self.path, self.format)

    def lines(self) -> Iterator[Line]:
        """What is to be translated."""
        return writing.sources(self.path, **self._options())

    def flow(self, work: Work, watcher: Watcher, *, block: int = BLOCK) -> Iterator[str]:
        """The targets, as they come; those that could not be are empty."""
        done = 0
        for targets in self._worked(work, watcher, block, 0):
            yield from (target or "" for target in targets)
            done += len(targets)
            watcher.went(done)

    def write(self, targets: Iterable[str], output: str) -> int:
        """The file with these targets; "-" is standard output. How many there are."""
        return writing.translated(self.path, targets, output, **self._options())

    def translate(self, work: Work, output: str, *, asked: Mapping[str, Any], watcher: Watcher,
                  block: int = BLOCK) -> Outcome:
        """Write the translated file as `output`, which must be new, or begun by the same work.

        Args:
            asked: all that the translations depend on besides the file: the model, and how it searches.
        """
        total, place = self._checked(output), Path(output)
        with Journal(place, {"input": digest([Path(self.path)]), **self._options(), **asked, "regard": __version__},
                     block) as journal:
            before = journal.count
            if not journal.finished:
                watcher.begun(before, total)
                for targets in self._worked(work, watcher, block, before):
                    journal.add(targets)
                    watcher.went(journal.count)
                self.write((target or "" for target in journal.entries()), str(journal.aside))
            journal.finish()
        return Outcome(total, journal.failed, before)

    def _checked(self, output: str) -> int:
        """How many entries there are. All that can be wrong with the files is found before hours of work."""
        input = Input(self.path)
        if input.once:
            raise DataError(f"{input.name}: It can be read only once, but is needed twice. Save it to a file first.")
        if os.path.exists(output) and os.path.samefile(self.path, output):
            raise DataError(f"{shown(output)}: The output is the input. Give it another name.")
        if os.path.isdir(output):
            raise there_already(Path(output))
        return sum(1 for _ in self.lines())

    def _worked(self, work: Work, watcher: Watcher, block: int, first: int) -> Iterator[list[str | None]]:
        """Block by block the targets behind the first entries; None where there is none."""
        for lines in blocks(islice(self.lines(), first, None), block):
            targets = list[str | None]()
            for line, found in zip(lines, work([line.text for line in lines]), strict=True):
                if isinstance(found, ValueError):
                    watcher.failed(line.where, found)
                targets.append(None if isinstance(found, ValueError) else self._fitting(found.text))
            yield targets

    def _fitting(self, text: str) -> str:
        """A text without what the format cannot hold: a line has no line breaks, a column no tabs, no text a NUL."""
        kind, text = self.kind, text.replace("\0", "")
        return _BREAKS[kind].sub(" ", text) if kind in _BREAKS else text

    def _options(self) -> dict[str, Any]:
        return {"format": self.format, "source": self.source, "target": self.target, "entries": self.entries}


def blocks(lines: Iterable[Given], block: int) -> Iterator[list[Given]]:
    """So many at a time; the last are what is left."""
    remaining = iter(lines)
    while some := list(islice(remaining, block)):
        yield some


def apart(texts: list[Given], work: Callable[[list[Given]], Sequence[Done]]) -> list[Done | ValueError]:
    """What `work` makes of each; for one that it cannot do, the reason.

    All are tried together. Where that fails each half is, until those that it fails for are alone.
    """
    try:
        return list(work(texts))
    except ValueError as error:
        reason = error
    except (MemoryError, torch.OutOfMemoryError):
        reason = ValueError("It is too long for the memory of this device.")
    if len(texts) == 1:
        return [reason]
    half = len(texts) // 2
    return [*apart(texts[:half], work), *apart(texts[half:], work)]


def fingerprint(folder: Path) -> str:
    """What tells a model from any other: the sha256 of its manifest, or of all its files where it has none."""
    listed = folder / manifest.NAME
    return digest([listed] if listed.is_file() else sorted(path for path in folder.iterdir() if path.is_file()))


def digest(paths: Sequence[Path]) -> str:
    """One sha256 of files, by their contents."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(manifest.digest(path).sha256.encode())
    return whole.hexdigest()
