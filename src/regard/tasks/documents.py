"""Translate a file into a file of the same format: entry by entry, with bounded memory, resumable.

    document = TextDocument("de.po")
    document.translate(work, "fr.po", settings={"model": "...", "beam": 5}, watcher=watcher)

Entries are translated in blocks and kept in a journal beside the output, which is written at the end, whole or not at
all. An entry that cannot be translated is reported, gets an empty target, and does not stop the others.
`document.stream(work, watcher)` yields the targets one by one, for a pipe. This module knows files and texts; what
translates is a function.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from regard._version import __version__
from regard.data.sources import formats
from regard.data.sources.text import DataError, InputFile, Location, ReadLog, TextLine, printable
from regard.storage import folder as folders
from regard.storage.filesystem import file_in_errors, fsync

BLOCK_SIZE = 512
"""Entries that are translated together; at most these are lost when the process is killed."""
PROGRESS_SUFFIX, ENTRIES_FILE = ".progress", "entries.jsonl"
WORK_KEY, FINISHED_KEY = "work", "finished"
_FORBIDDEN_BREAKS = {"plain": re.compile("[\r\n]"), "tsv": re.compile("[\r\n\t]")}
GivenT = TypeVar("GivenT")


class HasText(Protocol):
    """A translation."""

    @property
    def text(self) -> str:
        """The translated text."""


TranslateBlock = Callable[[list[str]], Sequence["HasText | ValueError"]]
"""Returns for each text its translation or an error; `partial(isolate_errors, work=...)` makes such a function."""


class ProgressWatcher(Protocol):
    """Told about the progress of a translation."""

    def begin(self, done: int, total: int) -> None:
        """Of `total` entries, `done` were translated before."""

    def advance(self, done: int) -> None:
        """`done` entries are translated now."""

    def fail(self, location: Location, error: ValueError) -> None:
        """This entry cannot be translated."""


class DocumentOutcome(NamedTuple):
    """The result of a translation."""

    entries: int
    failed: int
    """Entries without a translation, those of earlier runs included."""
    resumed: int
    """Entries that an earlier run had translated."""


@dataclass(frozen=True)
class TextDocument:
    """A file to be translated; its `format`, `source`, `target` and `entries` as in `regard.data.sources.formats`."""

    path: str
    format: str | None = None
    source: str | None = None
    target: str | None = None
    entries: str = "all"
    log: ReadLog = field(default_factory=ReadLog, compare=False)
    """Notes for the user about how the file was read."""

    @property
    def kind(self) -> str:
        """The name of the format."""
        return formats.format_of(self.path, self.format)

    def lines(self) -> Iterator[TextLine]:
        """The texts to be translated."""
        return formats.read_sources(self.path, **self._options(), log=self.log)

    def stream(self, work: TranslateBlock, watcher: ProgressWatcher, *, block: int = BLOCK_SIZE) -> Iterator[str]:
        """The targets one by one; a failed one is empty."""
        done = 0
        for targets in self._translate_blocks(work, watcher, block, 0):
            yield from (target or "" for target in targets)
            done += len(targets)
            watcher.advance(done)

    def write(self, targets: Iterable[str], output: str) -> int:
        """Write the file with these targets, and return their number; "-" is standard output."""
        return formats.write_translations(self.path, targets, output, **self._options())

    def translate(self, work: TranslateBlock, output: str, *, settings: Mapping[str, Any], watcher: ProgressWatcher,
                  block: int = BLOCK_SIZE) -> DocumentOutcome:
        """Write the translated file as `output`, which must be new or begun with the same settings.

        Args:
            settings: everything besides the file that the translations depend on: the model and the search options.
        """
        total, path = self._count_entries(output), Path(output)
        all_settings = {"input": files_digest([Path(self.path)]), **self._options(), **settings, "regard": __version__}
        with Journal(path, all_settings, block) as journal:
            resumed = journal.count
            if not journal.finished:
                watcher.begin(resumed, total)
                for targets in self._translate_blocks(work, watcher, block, resumed):
                    journal.add(targets)
                    watcher.advance(journal.count)
                self.write((target or "" for target in journal.entries()), str(journal.partial_output))
            journal.finish()
        return DocumentOutcome(total, journal.failed, resumed)

    def _count_entries(self, output: str) -> int:
        """The number of entries. Problems with the files are found here, before hours of work."""
        file = InputFile(self.path)
        if file.single_pass:
            raise DataError(f"{file.name}: Translating a file reads it twice, but this can be read only once. Save it "
                            "to a file first.")
        if os.path.exists(output) and os.path.samefile(self.path, output):
            raise DataError(f"{printable(output)}: The output is the input. Choose another name.")
        if os.path.isdir(output):
            raise already_exists(Path(output))
        return sum(1 for _ in self.lines())

    def _translate_blocks(self, work: TranslateBlock, watcher: ProgressWatcher, block: int,
                          first: int) -> Iterator[list[str | None]]:
        """The targets after the first entries, block by block; None for a failed entry."""
        for lines in split_blocks(islice(self.lines(), first, None), block):
            targets = list[str | None]()
            for line, found in zip(lines, work([line.text for line in lines]), strict=True):
                if isinstance(found, ValueError):
                    watcher.fail(line.location, found)
                targets.append(None if isinstance(found, ValueError) else self._writable(found.text))
            yield targets

    def _writable(self, text: str) -> str:
        """A text without what the format cannot hold: line breaks in lines, tabs in columns, NUL anywhere."""
        kind, text = self.kind, text.replace("\0", "")
        return _FORBIDDEN_BREAKS[kind].sub(" ", text) if kind in _FORBIDDEN_BREAKS else text

    def _options(self) -> dict[str, Any]:
        return {"format": self.format, "source": self.source, "target": self.target, "entries": self.entries}


def split_blocks(lines: Iterable[GivenT], size: int) -> Iterator[list[GivenT]]:
    """Blocks of `size` elements; the last may be smaller."""
    remaining = iter(lines)
    while block := list(islice(remaining, size)):
        yield block


def model_fingerprint(folder: Path) -> str:
    """The sha256 of a model's manifest, or of all its files if it has none."""
    manifest = folder / folders.MANIFEST_FILE
    return files_digest([manifest] if manifest.is_file() else sorted(one for one in folder.iterdir() if one.is_file()))


def files_digest(paths: Sequence[Path]) -> str:
    """One sha256 of the contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(folders.hash_file(path).sha256.encode())
    return digest.hexdigest()


class Journal:
    """The finished entries of a translation, kept beside its output, so that an interrupted one can be resumed.

        output.po.progress/entries.jsonl     {"work": {...}}        the settings: hashes of input and model, options
                                             "Ouvrir %s"            a line for each finished entry
                                             null                   a failed entry
                                             {"finished": "..."}    the sha256 of the output, just before it is renamed
        output.po.progress/output.po         the output while it is written

    Lines are only appended, and are on disk before the next block begins. When a journal is opened, a partial last line
    is cut off, and so are entries after the last whole block: every block is translated with the same neighbours, so
    the result is the same to the last byte. A journal with other settings is refused, with what differs.

    Args:
        output: a file that does not exist yet.
        settings: what must be the same for a translation to be resumed: text and numbers by name.
        block: the number of entries that are translated together.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], block: int) -> None:
        self.output, self.folder = output, output.with_name(output.name + PROGRESS_SUFFIX)
        self.partial_output = self.folder / output.name
        self.count = self.failed = 0
        """The finished entries, and the failed ones among them."""
        self.finished = False
        """Whether the output already has its name: then only `finish` is left to do."""
        if output.exists() and not self.folder.exists():
            raise already_exists(output)
        with file_in_errors(self.folder / ENTRIES_FILE), ExitStack() as on_error:
            self._file = on_error.enter_context(self._open())
            self._lock()
            self._resume({WORK_KEY: dict(settings)}, block)
            on_error.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with file_in_errors(self.folder / ENTRIES_FILE):  # what is not yet written is written now
            self._file.close()

    def add(self, entries: Sequence[str | None]) -> None:
        """Store finished entries, None for a failed one."""
        self._write("".join(f"{json.dumps(entry)}\n" for entry in entries))
        self.count += len(entries)
        self.failed += sum(entry is None for entry in entries)

    def entries(self) -> Iterator[str | None]:
        """All finished entries, in order."""
        with (self.folder / ENTRIES_FILE).open("rb") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def finish(self) -> None:
        """Move the output into place, and remove the journal."""
        if not self.finished:
            with self.partial_output.open("rb") as file:
                os.fsync(file.fileno())
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            self._write(json.dumps({FINISHED_KEY: sha256}) + "\n")
            if self.output.exists():
                raise already_exists(self.output)
            self.partial_output.rename(self.output)
            fsync(self.output.parent)
        shutil.rmtree(self.folder)

    def _open(self) -> BinaryIO:
        try:
            self.folder.mkdir(exist_ok=True)
            return open(self.folder / ENTRIES_FILE, "a+b")
        except OSError as error:
            raise DataError(f"{printable(str(self.output))}: It cannot be written: {error.strerror}. Choose another "
                            "name.") from error

    def _lock(self) -> None:
        """Refuse a second process. The lock ends with its process, even a killed one."""
        if os.name != "posix":
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DataError(f"{printable(str(self.output))}: Another process is writing it. Wait for it to end, or "
                                "choose another name.") from error
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a file system without locks
                raise

    def _resume(self, header: dict[str, Any], block: int) -> None:
        """Read the journal, and truncate it to the last whole block."""
        self._file.seek(0)
        first, failed_by_block = self._file.readline(), list[int]()
        if first.endswith(b"\n"):
            self._check_settings(self._parse(first), header[WORK_KEY])
            for line in self._file:
                entry = self._parse(line) if line.endswith(b"\n") else ...
                if entry is ...:
                    break
                if isinstance(entry, dict):
                    self.finished = self.output.exists() and _sha256(self.output) == entry.get(FINISHED_KEY)
                    break
                self.count += 1
                self.failed += entry is None
                if self.count % block == 0:
                    failed_by_block.append(self.failed)
        if self.finished:
            return
        if self.output.exists():
            raise already_exists(self.output)
        self.partial_output.unlink(missing_ok=True)
        self.count = len(failed_by_block) * block
        self.failed = failed_by_block[-1] if failed_by_block else 0
        self._truncate(first, header, self.count)

    def _truncate(self, first: bytes, header: dict[str, Any], entries: int) -> None:
        """Keep the header, which is written if it is missing, and the first entries."""
        self._file.seek(0)
        if not first.endswith(b"\n"):
            self._file.truncate(0)
            self._write(json.dumps(header) + "\n")
            return
        for _ in range(entries + 1):
            self._file.readline()
        self._file.truncate(self._file.tell())

    def _check_settings(self, header: Any, settings: dict[str, Any]) -> None:
        """Refuse to resume with other settings."""
        if not isinstance(header, dict) or not isinstance(header.get(WORK_KEY), dict):
            raise self._damaged()
        before, now = header[WORK_KEY], json.loads(json.dumps(settings))
        differ = [name for name in dict.fromkeys([*now, *before]) if now.get(name) != before.get(name)]
        if differ:
            changes = "; ".join(f"{name} was {_short(before.get(name))} and is {_short(now.get(name))}"
                                for name in differ)
            raise DataError(f"{printable(str(self.output))}: It was begun with other settings: {changes}. Repeat the "
                            f"earlier call to resume, or remove {printable(str(self.folder))} to start again.")

    def _parse(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise self._damaged() from error

    def _damaged(self) -> DataError:
        return DataError(f"{printable(str(self.folder / ENTRIES_FILE))} is damaged, or was written by another program. "
                         f"Remove {printable(str(self.folder))} to start again.")

    def _write(self, text: str) -> None:
        with file_in_errors(self.folder / ENTRIES_FILE):
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())


def already_exists(output: Path) -> DataError:
    """The error for an output that would be overwritten; the caller raises it."""
    return DataError(f"{printable(str(output))}: The file exists already and is not overwritten. Choose another name, "
                     "or remove it.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(value: object) -> str:
    """A value for a message; of a hash the beginning."""
    text = "not set" if value is None else str(value)
    return printable(text if len(text) < 40 else f"{text[:12]}...")
