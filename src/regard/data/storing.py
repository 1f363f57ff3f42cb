"""How a store of ids comes to be on disk, and how it is known to be whole.

    write(folder, key, rows, vocabularies)     a new folder: flat files, synced, the header last
    read(folder, key, vocabularies)            the header of one whose files are all as they were written
    at(path)                                   the folder around it: its lock, what is left over, the change of names

Only what a store writes is ever removed: a folder that holds anything else is refused. It knows bytes and names. It
does not know how a store is used; `regard.data.store` tells what the files are.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from regard import checks

FORMAT = 1
HEADER = "header.json"
IDS, OFFSETS = "ids", "offsets"
OFFSET = "<i8"
BLOCK = 2**16
"""Ids that are gathered before they are written."""
OURS = re.compile(r"header\.json|\w+\.(ids|offsets)|buckets-[0-9a-f]+\.(index|json)(\.[0-9a-f]+)?")
"""The names of the files of a store, and of what is kept beside them."""

Ids = Sequence[int] | NDArray[Any] | bytes


class UnusableError(ValueError):
    """There is no store, or not the one that is asked for, or it is damaged: the reason."""


@dataclass(frozen=True)
class Side:
    """What the header knows of one side: how many sequences and ids it has, and its two files."""

    count: int
    ids: int
    vocabulary: int
    sha256: dict[str, str]

    @property
    def dtype(self) -> str:
        """How an id is written: in as few bytes as the vocabulary allows."""
        return "<u1" if self.vocabulary <= 2**8 else "<u2" if self.vocabulary <= 2**16 else "<u4"

    def lengths(self) -> dict[str, int]:
        """How many bytes each file has."""
        return {IDS: self.ids * np.dtype(self.dtype).itemsize, OFFSETS: (self.count + 1) * np.dtype(OFFSET).itemsize}


@dataclass(frozen=True)
class Header:
    """The key and the sides of a store."""

    key: str
    sides: dict[str, Side]

    def encoded(self) -> bytes:
        """The one way to write this header."""
        sides = {name: asdict(side) for name, side in self.sides.items()}
        content = {"format": FORMAT, "key": self.key, "sides": sides}
        return json.dumps(content, indent=2).encode() + b"\n"


class Place:
    """The folder of a store, `path/tokens`, with its lock, and the one that is being made."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock
        self.tokens, self.new, self._old = path / "tokens", path / "new", path / "old"

    def share(self) -> None:
        """Wait until nobody makes a store here. The lock ends with its holder, even a killed one."""
        _flock(self._lock, "LOCK_SH", self.path)

    def own(self) -> None:
        """Wait until nobody else looks at or makes a store here."""
        _flock(self._lock, "LOCK_EX", self.path)

    def left(self) -> bool:
        """Whether a killed process left something here; asked while the lock is held."""
        return os.path.lexists(self.new) or os.path.lexists(self._old)

    def clear(self) -> None:
        """Remove what a killed process left. The lock must be owned."""
        for folder in (self.new, self._old):
            _remove(folder)

    def put(self) -> None:
        """Let the new folder take the place of the one that was there. The lock must be owned."""
        if os.path.lexists(self.tokens):
            _check_ours(self.tokens)
            os.rename(self.tokens, self._old)
        os.rename(self.new, self.tokens)
        sync(self.path)
        _remove(self._old)


@contextmanager
def at(path: Path) -> Iterator[Place]:
    """The place at this path, a folder that is made where it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            handle = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)  # a store that may be read, and not be made
    except OSError as error:
        raise checks.wrong("place", "a folder that can be written to", f"{path} ({error.strerror})",
                           "Choose another place.") from error
    try:
        yield Place(path, handle)
    finally:
        os.close(handle)


def write(folder: Path, key: str, rows: Iterable[tuple[Ids, ...]], vocabularies: Mapping[str, int]) -> None:
    """Write a new folder with these rows, an entry for each side, as they come. Nothing of it stays if that fails."""
    folder.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        with ExitStack() as files:
            writers = [files.enter_context(_writer(folder, name, size)) for name, size in vocabularies.items()]
            for row in rows:
                if len(row) != len(writers):
                    raise checks.wrong("row", f"of {len(writers)} sides, {', '.join(vocabularies)}", f"of {len(row)}")
                for writer, ids in zip(writers, row, strict=True):
                    writer.add(ids)
            header = Header(key, {writer.name: writer.end() for writer in writers})
        with _named(folder / HEADER), (folder / HEADER).open("wb") as file:
            file.write(header.encoded())
            _flush(file)
        sync(folder)
        undo.pop_all()


def read(folder: Path, key: str, vocabularies: Mapping[str, int]) -> Header:
    """The header of the store in this folder; UnusableError says why it is not whole, or not the one asked for."""
    path = folder / HEADER
    try:
        data = path.read_bytes()
        content = json.loads(data)
        header = Header(content["key"], {name: Side(**side) for name, side in content["sides"].items()})
        whole = header.encoded() == data
    except FileNotFoundError:
        raise UnusableError(f"{path} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise UnusableError(f"{path} is damaged")
    if header.key != key or {name: side.vocabulary for name, side in header.sides.items()} != dict(vocabularies):
        raise UnusableError(f"{folder} was made from other data, with another tokenizer, settings or version")
    for measure in (_check_lengths, _check_digests):  # all lengths before any sha256, which takes its time
        for name, side in header.sides.items():
            measure(folder, name, side)
    return header


def sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems write names at once, and know no syncing of folders
            raise
    finally:
        os.close(handle)


class _Writer:
    """Writes one side, a block at a time."""

    def __init__(self, name: str, vocabulary: int, ids: BinaryIO, offsets: BinaryIO) -> None:
        self.name, self._ids, self._offsets = name, ids, offsets
        self._side = Side(0, 0, vocabulary, {})
        self._digests = {IDS: hashlib.sha256(), OFFSETS: hashlib.sha256()}
        self._sequences: list[NDArray[Any]] = []
        self._waiting = 0
        self._write(self._offsets, OFFSETS, np.zeros(1, OFFSET))

    def add(self, ids: Ids) -> None:
        """One more sequence."""
        array = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise checks.wrong("ids", "whole numbers in a row", f"{array.dtype} of shape {checks.shape(array)}",
                               self._which(len(self._sequences)))
        self._sequences.append(array)
        self._waiting += array.size + 1
        if self._waiting > BLOCK:
            self._flush()

    def end(self) -> Side:
        """Write what waits, and sync. Returns what the header says of this side."""
        self._flush()
        for file in (self._ids, self._offsets):
            with _named(file.name):
                _flush(file)
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        return Side(self._side.count, self._side.ids, self._side.vocabulary, digests)

    def _flush(self) -> None:
        if not self._sequences:
            return
        joined = np.concatenate([array.astype(np.int64) for array in self._sequences])
        ends = np.cumsum([array.size for array in self._sequences])
        strange = np.flatnonzero((joined < 0) | (joined >= self._side.vocabulary))
        if strange.size:
            which = int(np.searchsorted(ends, strange[0], side="right"))
            raise checks.wrong("ids", f"from 0 to {self._side.vocabulary - 1}", joined[strange[0]], self._which(which))
        self._write(self._ids, IDS, joined.astype(self._side.dtype))
        self._write(self._offsets, OFFSETS, (ends + self._side.ids).astype(OFFSET))
        self._side = Side(self._side.count + len(ends), self._side.ids + len(joined), self._side.vocabulary, {})
        self._sequences, self._waiting = [], 0

    def _write(self, file: BinaryIO, name: str, numbers: NDArray[Any]) -> None:
        data = numbers.tobytes()
        with _named(file.name):
            file.write(data)
        self._digests[name].update(data)

    def _which(self, waiting: int) -> str:
        return f"It is in sequence {self._side.count + waiting} of the {self.name}, counted from 0."


@contextmanager
def _writer(folder: Path, name: str, vocabulary: int) -> Iterator[_Writer]:
    with (folder / f"{name}.{IDS}").open("wb") as ids, (folder / f"{name}.{OFFSETS}").open("wb") as offsets:
        yield _Writer(name, vocabulary, ids, offsets)


def _check_lengths(folder: Path, name: str, side: Side) -> None:
    for kind, length in side.lengths().items():
        path = folder / f"{name}.{kind}"
        found = path.stat().st_size if path.is_file() else None
        if found != length:
            how = "is missing" if found is None else f"has {found} bytes in place of {length}"
            raise UnusableError(f"{path} {how}")


def _check_digests(folder: Path, name: str, side: Side) -> None:
    for kind in side.lengths():
        path = folder / f"{name}.{kind}"
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != side.sha256.get(kind):
                raise UnusableError(f"{path} was changed after it was written")


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        _check_ours(folder)
        shutil.rmtree(folder)


def _check_ours(folder: Path) -> None:
    """Refuse to remove what a store did not write."""
    plain = folder.is_dir() and not folder.is_symlink()
    strange = sorted(path.name for path in folder.iterdir() if not OURS.fullmatch(path.name)) if plain else []
    if not plain or strange:
        got = f"one with {strange[0]!r}" if strange else "not a folder"
        raise checks.wrong(str(folder), "a folder with the files of a store alone", got,
                           "Move it away, or choose another place.")


def _flock(handle: int, mode: str, path: Path) -> None:
    if os.name != "posix":
        raise OSError(errno.ENOTSUP, f"Stores need a POSIX system (Linux, macOS), but this one is {os.name}.")
    import fcntl

    try:
        fcntl.flock(handle, getattr(fcntl, mode))
    except OSError as error:
        raise OSError(error.errno, f"no locks on this file system: {error.strerror}", str(path / "lock")) from error


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _named(path: "Path | str") -> Iterator[None]:
    """Errors of the system inside name this file where they name none, as those of writing do not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
