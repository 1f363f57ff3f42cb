"""Translate a file into a file of the same format: entry by entry, with bounded memory, resumable.

    document = TextDocument("de.po")
    document.translate(work, "fr.po", asked={"model": "...", "beam": 5})

Entries are translated in blocks and kept in a journal beside the output, which is written at the end, whole or not at
all. An entry that cannot be translated is reported, gets an empty target, and does not stop the others.
`document.flow(work)` yields the targets one by one, for a pipe. This module knows files and texts; what translates is a
function.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

import torch

from regard._version import __version__
from regard.data.sources import formats
from regard.data.sources.formats import format_of
from regard.data.sources.text import DataError, InputFile, Location, TextLine, printable
from regard.storage import folder as manifest
from regard.storage.filesystem import fsync

BLOCK_SIZE = 512
"""Entries that are worked on together, and lost at most when the work is killed."""
_FORBIDDEN_BREAKS = {"plain": re.compile("[\r\n]"), "tsv": re.compile("[\r\n\t]")}
GivenT = TypeVar("GivenT")
DoneT = TypeVar("DoneT")


class HasText(Protocol):
    """What is needed of a translation."""

    @property
    def text(self) -> str:
        """What is written."""


TranslateBlock = Callable[[list[str]], Sequence["HasText | ValueError"]]
"""Gives for each text its translation, or why there is none: `partial(apart, work=...)` makes one."""


class ProgressWatcher(Protocol):
    """Told how the work goes."""

    def begun(self, done: int, total: int) -> None:
        """So many entries were done before, of so many."""

    def went(self, done: int) -> None:
        """So many entries are done now."""

    def failed(self, where: Location, error: ValueError) -> None:
        """This entry cannot be translated."""


class DocumentOutcome(NamedTuple):
    """What came of a work."""

    entries: int
    failed: int
    """Entries without a translation, those of the works before included."""
    before: int
    """Entries that were done already when it went on."""


@dataclass(frozen=True)
class TextDocument:
    """A file to be translated. `format`, `source`, `target` and `entries` as for `regard.data.sources.formats`."""

    path: str
    format: str | None = None
    source: str | None = None
    target: str | None = None
    entries: str = "all"

    @property
    def kind(self) -> str:
        """The format, by its name."""
        return format_of(self.path, self.format)

    def lines(self) -> Iterator[TextLine]:
        """What is to be translated."""
        return formats.read_sources(self.path, **self._options())

    def flow(self, work: TranslateBlock, watcher: ProgressWatcher, *, block: int = BLOCK_SIZE) -> Iterator[str]:
        """The targets, as they come; those that could not be are empty."""
        done = 0
        for targets in self._worked(work, watcher, block, 0):
            yield from (target or "" for target in targets)
            done += len(targets)
            watcher.went(done)

    def write(self, targets: Iterable[str], output: str) -> int:
        """The file with these targets; "-" is standard output. How many there are."""
        return formats.write_translations(self.path, targets, output, **self._options())

    def translate(self, work: TranslateBlock, output: str, *, asked: Mapping[str, Any], watcher: ProgressWatcher,
                  block: int = BLOCK_SIZE) -> DocumentOutcome:
        """Write the translated file as `output`, which must be new, or begun by the same work.

        Args:
            asked: all that the translations depend on besides the file: the model, and how it searches.
        """
        total, place = self._checked(output), Path(output)
        with Journal(place, {"input": files_digest([Path(self.path)]), **self._options(), **asked, "regard": __version__},
                     block) as journal:
            before = journal.count
            if not journal.finished:
                watcher.begun(before, total)
                for targets in self._worked(work, watcher, block, before):
                    journal.add(targets)
                    watcher.went(journal.count)
                self.write((target or "" for target in journal.entries()), str(journal.aside))
            journal.finish()
        return DocumentOutcome(total, journal.failed, before)

    def _checked(self, output: str) -> int:
        """How many entries there are. All that can be wrong with the files is found before hours of work."""
        input = InputFile(self.path)
        if input.single_pass:
            raise DataError(f"{input.name}: It can be read only once, but is needed twice. Save it to a file first.")
        if os.path.exists(output) and os.path.samefile(self.path, output):
            raise DataError(f"{printable(output)}: The output is the input. Give it another name.")
        if os.path.isdir(output):
            raise already_exists(Path(output))
        return sum(1 for _ in self.lines())

    def _worked(self, work: TranslateBlock, watcher: ProgressWatcher, block: int, first: int) -> Iterator[list[str | None]]:
        """Block by block the targets behind the first entries; None where there is none."""
        for lines in split_blocks(islice(self.lines(), first, None), block):
            targets = list[str | None]()
            for line, found in zip(lines, work([line.text for line in lines]), strict=True):
                if isinstance(found, ValueError):
                    watcher.failed(line.location, found)
                targets.append(None if isinstance(found, ValueError) else self._fitting(found.text))
            yield targets

    def _fitting(self, text: str) -> str:
        """A text without what the format cannot hold: a line has no line breaks, a column no tabs, no text a NUL."""
        kind, text = self.kind, text.replace("\0", "")
        return _FORBIDDEN_BREAKS[kind].sub(" ", text) if kind in _FORBIDDEN_BREAKS else text

    def _options(self) -> dict[str, Any]:
        return {"format": self.format, "source": self.source, "target": self.target, "entries": self.entries}


def split_blocks(lines: Iterable[GivenT], block: int) -> Iterator[list[GivenT]]:
    """So many at a time; the last are what is left."""
    remaining = iter(lines)
    while some := list(islice(remaining, block)):
        yield some


def isolate_errors(texts: list[GivenT], work: Callable[[list[GivenT]], Sequence[DoneT]]) -> list[DoneT | ValueError]:
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
    return [*isolate_errors(texts[:half], work), *isolate_errors(texts[half:], work)]


def model_fingerprint(folder: Path) -> str:
    """What tells a model from any other: the sha256 of its manifest, or of all its files where it has none."""
    listed = folder / manifest.MANIFEST_FILE
    return files_digest([listed] if listed.is_file() else sorted(path for path in folder.iterdir() if path.is_file()))


def files_digest(paths: Sequence[Path]) -> str:
    """One sha256 of files, by their contents."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(manifest.hash_file(path).sha256.encode())
    return whole.hexdigest()


# ---- journal: What is done of a long work, kept beside its output, so that a work that was interrupted goes on where it ended.
#
#     output.po.progress/entries.jsonl     {"work": {...}}        what is done: hashes of input and model, options
#                                          "Ouvrir %s"            a line for each entry that is done
#                                          null                   one that could not be
#                                          {"finished": "..."}    the sha256 of the output, just before it gets its name
#     output.po.progress/output.po         the output while it is written
#
# Lines are only added, and are on the disk before the next are worked on. What a kill leaves of the last line is cut off;
# so are entries behind the last whole block, so that every block is worked on with the same neighbours, and the result is
# the same to the last byte. A journal of another work is refused, with what differs. It does not know what is translated.

PROGRESS_SUFFIX, ENTRIES_FILE = ".progress", "entries.jsonl"
WORK_KEY, FINISHED_KEY = "work", "finished"


class Journal:
    """The journal of one output.

    Args:
        output: a file that is not there yet.
        work: what must be the same for a work to go on: words and numbers by name.
        block: how many entries are worked on together.
    """

    def __init__(self, output: Path, work: Mapping[str, Any], block: int) -> None:
        self.output, self.folder = output, output.with_name(output.name + PROGRESS_SUFFIX)
        self.aside = self.folder / output.name
        self.count = self.failed = 0
        """Entries that are done, and those among them that could not be."""
        self.finished = False
        """The output has its name already: all that a kill left to do is `finish`."""
        if output.exists() and not self.folder.exists():
            raise already_exists(output)
        with ExitStack() as failing:
            self._file = failing.enter_context(self._opened())
            self._lock()
            self._begin({WORK_KEY: dict(work)}, block)
            failing.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, entries: Sequence[str | None]) -> None:
        """Keep what was done, None for an entry that could not be."""
        self._write("".join(f"{json.dumps(entry)}\n" for entry in entries))
        self.count += len(entries)
        self.failed += sum(entry is None for entry in entries)

    def entries(self) -> Iterator[str | None]:
        """All that is done, in order."""
        with (self.folder / ENTRIES_FILE).open("rb") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def finish(self) -> None:
        """Give the output, which was written aside, its name, and remove the journal."""
        if not self.finished:
            with self.aside.open("rb") as file:
                os.fsync(file.fileno())
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            self._write(json.dumps({FINISHED_KEY: sha256}) + "\n")
            if self.output.exists():
                raise already_exists(self.output)
            self.aside.rename(self.output)
            fsync(self.output.parent)
        shutil.rmtree(self.folder)

    def _opened(self) -> BinaryIO:
        try:
            self.folder.mkdir(exist_ok=True)
            return open(self.folder / ENTRIES_FILE, "a+b")
        except OSError as error:
            raise DataError(f"{printable(str(self.output))}: It cannot be written: {error.strerror}. Give another name.") \
                from error

    def _lock(self) -> None:
        """Refuse a second process. The lock ends with its holder, even a killed one."""
        if os.name != "posix":
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DataError(f"{printable(str(self.output))}: Another process is writing it. Wait for its end, or give "
                                "another name.") from error
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a file system without locks
                raise

    def _begin(self, header: dict[str, Any], block: int) -> None:
        """Read what is there, and cut it to the last whole block."""
        self._file.seek(0)
        first, ends = self._file.readline(), list[int]()
        if first.endswith(b"\n"):
            self._check(self._read(first), header[WORK_KEY])
            for line in self._file:
                entry = self._read(line) if line.endswith(b"\n") else ...
                if entry is ...:
                    break
                if isinstance(entry, dict):
                    self.finished = self.output.exists() and _sha256(self.output) == entry.get(FINISHED_KEY)
                    break
                self.count += 1
                self.failed += entry is None
                if self.count % block == 0:
                    ends.append(self.failed)
        if self.finished:
            return
        if self.output.exists():
            raise already_exists(self.output)
        self.aside.unlink(missing_ok=True)
        self._cut(first, header, len(ends) * block)
        self.count, self.failed = len(ends) * block, ends[-1] if ends else 0

    def _cut(self, first: bytes, header: dict[str, Any], entries: int) -> None:
        """Leave the first line, which is written where it is missing, and so many entries."""
        self._file.seek(0)
        if not first.endswith(b"\n"):
            self._file.truncate(0)
            self._write(json.dumps(header) + "\n")
            return
        for _ in range(entries + 1):
            self._file.readline()
        self._file.truncate(self._file.tell())

    def _check(self, found: Any, work: dict[str, Any]) -> None:
        """Refuse to go on with another work."""
        if not isinstance(found, dict) or not isinstance(found.get(WORK_KEY), dict):
            raise self._damaged()
        before, now = found[WORK_KEY], json.loads(json.dumps(work))
        differ = [name for name in dict.fromkeys([*now, *before]) if now.get(name) != before.get(name)]
        if differ:
            told = "; ".join(f"{name} was {_short(before.get(name))} and is {_short(now.get(name))}" for name in differ)
            raise DataError(f"{printable(str(self.output))}: It was begun otherwise: {told}. Call it as before to go on; "
                            f"to begin anew, remove {printable(str(self.folder))}.")

    def _read(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise self._damaged() from error

    def _damaged(self) -> DataError:
        return DataError(f"{printable(str(self.folder / ENTRIES_FILE))}: It is damaged, or of another program. Remove "
                         f"{printable(str(self.folder))} to begin anew.")

    def _write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def already_exists(output: Path) -> DataError:
    """The error for an output that would be written over; the caller raises it."""
    return DataError(f"{printable(str(output))}: It is there already, and is not written over. Give another name, or "
                     "remove it.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(value: object) -> str:
    """A value for a message: of a hash its beginning."""
    text = "not there" if value is None else str(value)
    return printable(text if len(text) < 40 else f"{text[:12]}...")
