"""What is done of a long work, kept beside its output, so that a work that was interrupted goes on where it ended.

    output.po.progress/entries.jsonl     {"work": {...}}        what is done: hashes of input and model, options
                                         "Ouvrir %s"            a line for each entry that is done
                                         null                   one that could not be
                                         {"finished": "..."}    the sha256 of the output, just before it gets its name
    output.po.progress/output.po         the output while it is written

Lines are only added, and are on the disk before the next are worked on. What a kill leaves of the last line is cut off;
so are entries behind the last whole block, so that every block is worked on with the same neighbours, and the result is
the same to the last byte. A journal of another work is refused, with what differs. It does not know what is translated.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from regard.data.pair import DataError
from regard.data.sources.inputs import shown
from regard.storage.system import sync

ENDING, ENTRIES = ".progress", "entries.jsonl"
WORK, FINISHED = "work", "finished"


class Journal:
    """The journal of one output.

    Args:
        output: a file that is not there yet.
        work: what must be the same for a work to go on: words and numbers by name.
        block: how many entries are worked on together.
    """

    def __init__(self, output: Path, work: Mapping[str, Any], block: int) -> None:
        self.output, self.folder = output, output.with_name(output.name + ENDING)
        self.aside = self.folder / output.name
        self.count = self.failed = 0
        """Entries that are done, and those among them that could not be."""
        self.finished = False
        """The output has its name already: all that a kill left to do is `finish`."""
        if output.exists() and not self.folder.exists():
            raise there_already(output)
        with ExitStack() as failing:
            self._file = failing.enter_context(self._opened())
            self._lock()
            self._begin({WORK: dict(work)}, block)
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
        with (self.folder / ENTRIES).open("rb") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def finish(self) -> None:
        """Give the output, which was written aside, its name, and remove the journal."""
        if not self.finished:
            with self.aside.open("rb") as file:
                os.fsync(file.fileno())
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            self._write(json.dumps({FINISHED: sha256}) + "\n")
            if self.output.exists():
                raise there_already(self.output)
            self.aside.rename(self.output)
            sync(self.output.parent)
        shutil.rmtree(self.folder)

    def _opened(self) -> BinaryIO:
        try:
            self.folder.mkdir(exist_ok=True)
            return open(self.folder / ENTRIES, "a+b")
        except OSError as error:
            raise DataError(f"{shown(str(self.output))}: It cannot be written: {error.strerror}. Give another name.") \
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
                raise DataError(f"{shown(str(self.output))}: Another process is writing it. Wait for its end, or give "
                                "another name.") from error
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a file system without locks
                raise

    def _begin(self, header: dict[str, Any], block: int) -> None:
        """Read what is there, and cut it to the last whole block."""
        self._file.seek(0)
        first, ends = self._file.readline(), list[int]()
        if first.endswith(b"\n"):
            self._check(self._read(first), header[WORK])
            for line in self._file:
                entry = self._read(line) if line.endswith(b"\n") else ...
                if entry is ...:
                    break
                if isinstance(entry, dict):
                    self.finished = self.output.exists() and _sha256(self.output) == entry.get(FINISHED)
                    break
                self.count += 1
                self.failed += entry is None
                if self.count % block == 0:
                    ends.append(self.failed)
        if self.finished:
            return
        if self.output.exists():
            raise there_already(self.output)
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
        if not isinstance(found, dict) or not isinstance(found.get(WORK), dict):
            raise self._damaged()
        before, now = found[WORK], json.loads(json.dumps(work))
        differ = [name for name in dict.fromkeys([*now, *before]) if now.get(name) != before.get(name)]
        if differ:
            told = "; ".join(f"{name} was {_short(before.get(name))} and is {_short(now.get(name))}" for name in differ)
            raise DataError(f"{shown(str(self.output))}: It was begun otherwise: {told}. Call it as before to go on; "
                            f"to begin anew, remove {shown(str(self.folder))}.")

    def _read(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise self._damaged() from error

    def _damaged(self) -> DataError:
        return DataError(f"{shown(str(self.folder / ENTRIES))}: It is damaged, or of another program. Remove "
                         f"{shown(str(self.folder))} to begin anew.")

    def _write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def there_already(output: Path) -> DataError:
    """The error for an output that would be written over; the caller raises it."""
    return DataError(f"{shown(str(output))}: It is there already, and is not written over. Give another name, or "
                     "remove it.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(value: object) -> str:
    """A value for a message: of a hash its beginning."""
    text = "not there" if value is None else str(value)
    return shown(text if len(text) < 40 else f"{text[:12]}...")
