"""Token ids on disk, memory-mapped: a corpus of any size with random access to its sequences.

    opened = open_or_make_pairs(folder, key, make, vocabularies=(8000, 8000))
    opened.store[7]                    (source ids, target ids), as views of the file
    opened.notes                       why an existing store could not be used, if there was one

A store is made once for a key, which identifies the data, the tokenizer and every setting that the ids depend on, and
opened from then on. On disk it is a folder of flat little-endian files, two per side:

    folder/lock                        held while the store is opened or made
    folder/new/                        the store while it is made
    folder/tokens/source.ids           all ids one after another, 1, 2 or 4 bytes each, depending on the vocabulary
    folder/tokens/source.offsets       where each sequence begins, and the end of the last one, 8 bytes each
    folder/tokens/header.json          the key, the counts and the sha256 of every file; written last

A store is written to a temporary folder, synced, and moved into place by a rename, so a killed process leaves a
complete store or none. Processes that open the same store at the same time wait for the one that makes it. An open
store stays valid when it is replaced. Only files that a store writes are ever removed: a folder with anything else is
refused. A text can be stored too: its UTF-8 bytes are ids below 256.

This module knows ids and files. It does not know tokenizers, batches or models, and does not import torch.
"""

import errno
import hashlib
import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard._version import __version__
from regard.data.sources.text import DataError

IntArray = NDArray[np.int64]
Ids = Sequence[int] | NDArray[Any] | bytes
AnyStore = TypeVar("AnyStore", bound="TokenStore")
STORE_FORMAT = 1
HEADER = "header.json"
IDS, OFFSETS = "ids", "offsets"
OFFSET_DTYPE = "<i8"
BLOCK_IDS = 2**16
"""Ids that are buffered before they are written."""
STORE_FILES = re.compile(r"header\.json|\w+\.(ids|offsets)|buckets-[0-9a-f]+\.(index|json)(\.[0-9a-f]+)?")
"""The names of the files of a store, and of the batch indexes that are kept beside them."""


class Ragged(NamedTuple):
    """Sequences of different lengths: all their ids one after another, and the length of each."""

    ids: IntArray
    lengths: IntArray


class MappedArray:
    """A memory-mapped file of numbers."""

    def __init__(self, path: Path, dtype: str, count: int) -> None:
        self._map: mmap.mmap | None = None
        self.numbers: NDArray[Any] = np.zeros(0, dtype)
        if count:  # an empty file cannot be mapped
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.numbers = np.frombuffer(self._map, dtype, count)

    def release(self) -> None:
        """Release the memory of pages that were read; the system reads them again on demand."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class StoredSequences:
    """One side of a store."""

    def __init__(self, ids: MappedArray, offsets: MappedArray) -> None:
        self._ids, self._offsets = ids, offsets

    def __len__(self) -> int:
        return len(self._offsets.numbers) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        """The ids of one sequence, as a read-only view."""
        first, last = self._offsets.numbers[range(len(self))[number]:][:2]
        return self._ids.numbers[first:last]

    @property
    def ids(self) -> NDArray[Any]:
        """All ids, one sequence after another."""
        return self._ids.numbers

    def lengths(self, first: int, last: int) -> IntArray:
        """The lengths of the sequences from `first` up to, but not including, `last`."""
        return np.diff(self._offsets.numbers[first:last + 1])

    def gather(self, numbers: IntArray) -> Ragged:
        """A copy of the sequences with these numbers."""
        starts = self._offsets.numbers[numbers]
        lengths = self._offsets.numbers[numbers + 1] - starts
        ends = np.cumsum(lengths)
        index = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        return Ragged(self._ids.numbers[index].astype(np.int64), lengths.astype(np.int64))

    def release(self) -> None:
        """Release the memory of what was read."""
        self._ids.release()
        self._offsets.release()


@dataclass(frozen=True)
class TokenStore:
    """What stores of pairs and of texts share: sides with the same number of sequences."""

    folder: Path
    """The folder of its files. Files that are derived from them may be kept beside them."""
    fingerprint: str
    """The sha256 of its header, and so of all its content."""
    sides: tuple[StoredSequences, ...]

    def __len__(self) -> int:
        return len(self.sides[0])

    def gather(self, numbers: IntArray) -> tuple[Ragged, ...]:
        """A copy of the sequences with these numbers, of every side; the memory of the mapped files is released."""
        found = tuple(side.gather(numbers) for side in self.sides)
        self.release()
        return found

    def release(self) -> None:
        """Release the memory of what was read; views stay valid."""
        for side in self.sides:
            side.release()


class PairStore(TokenStore):
    """Pairs of a source and a target."""

    def __getitem__(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of the source and of the target."""
        source, target = self.sides
        return source[number], target[number]


class TextStore(TokenStore):
    """Texts, which together are also one long text."""

    def __getitem__(self, number: int) -> NDArray[Any]:
        """The ids of one text."""
        return self.sides[0][number]

    @property
    def stream(self) -> NDArray[Any]:
        """The ids of all texts, one after another."""
        return self.sides[0].ids


class OpenedStore(NamedTuple, Generic[AnyStore]):
    """A store, and the reasons why an existing one could not be used."""

    store: AnyStore
    notes: list[str]


def file_digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file; a DataError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: The file cannot be read: {error.strerror}. Check its name and "
                        "permissions.") from error


def store_key(data: Sequence[str], tokenizer: str, settings: Mapping[str, Any]) -> str:
    """The key of a store: a hash of everything that its ids depend on, including the version of regard.

    Args:
        data: identifies the data, in its order, such as the `file_digest` of every file.
        tokenizer: identifies the tokenizer, such as the sha256 of its files.
        settings: everything else that the ids depend on, such as filters, as plain values.
    """
    parts = {"version": [STORE_FORMAT, __version__], "data": list(data), "tokenizer": tokenizer,
             "settings": dict(settings)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def open_or_make_pairs(folder: str | os.PathLike[str], key: str, make: Callable[[], Iterable[tuple[Ids, Ids]]], *,
                       vocabularies: tuple[int, int]) -> OpenedStore[PairStore]:
    """Open the store of this key, or make it from the pairs of `make` if it is missing or damaged.

    Args:
        folder: the folder for this one store, created if missing. A store of another key in it is replaced.
        make: called only if the store must be made; its pairs are written as they come.
        vocabularies: the ids of each side are below these.
    """
    return _open_or_make(PairStore, Path(folder), key, make,
                         dict(zip(("source", "target"), vocabularies, strict=True)))


def open_or_make_texts(folder: str | os.PathLike[str], key: str, make: Callable[[], Iterable[Ids]], *,
                       vocabulary: int) -> OpenedStore[TextStore]:
    """Open the store of this key, or make it from the texts of `make`; see `open_or_make_pairs`."""
    return _open_or_make(TextStore, Path(folder), key, lambda: ((text,) for text in make()), {"text": vocabulary})


def _open_or_make(kind: type[AnyStore], path: Path, key: str, make: Callable[[], Iterable[tuple[Ids, ...]]],
                  vocabularies: Mapping[str, int]) -> OpenedStore[AnyStore]:
    for name, vocabulary in vocabularies.items():
        if not 1 <= vocabulary <= 2**32:
            raise checks.wrong("vocabulary", "from 1 to 2**32", f"{vocabulary} for the {name}")
    with open_store_folder(path) as folder:
        folder.lock_shared()
        if not folder.has_leftovers():
            try:
                return OpenedStore(_open_store(kind, folder.tokens, key, vocabularies), [])
            except UnusableStoreError:
                pass  # another process may be making it right now
        folder.lock_exclusive()
        folder.remove_leftovers()
        notes: list[str] = []
        try:
            return OpenedStore(_open_store(kind, folder.tokens, key, vocabularies), notes)
        except UnusableStoreError as reason:
            if folder.tokens.exists():
                notes = [f"{reason}: the data is tokenized again."]
        write_store(folder.new, key, make(), vocabularies)
        folder.replace_tokens()
        return OpenedStore(_open_store(kind, folder.tokens, key, vocabularies), notes)


def _open_store(kind: type[AnyStore], folder: Path, key: str, vocabularies: Mapping[str, int]) -> AnyStore:
    header = read_header(folder, key, vocabularies)
    sides = tuple(StoredSequences(MappedArray(folder / f"{name}.{IDS}", side.dtype, side.ids),
                                  MappedArray(folder / f"{name}.{OFFSETS}", OFFSET_DTYPE, side.count + 1))
                  for name, side in header.sides.items())
    return kind(folder, hashlib.sha256(header.encoded()).hexdigest(), sides)


class UnusableStoreError(ValueError):
    """A store is missing, damaged, or has another key; the message says which."""


@dataclass(frozen=True)
class SideHeader:
    """The part of the header about one side; its fields are keys of header.json."""

    count: int
    """Sequences."""
    ids: int
    vocabulary: int
    sha256: dict[str, str]
    """Of the file of ids and of the file of offsets."""

    @property
    def dtype(self) -> str:
        """The smallest type that holds the vocabulary."""
        return "<u1" if self.vocabulary <= 2**8 else "<u2" if self.vocabulary <= 2**16 else "<u4"

    def file_sizes(self) -> dict[str, int]:
        """The size of each file in bytes."""
        return {IDS: self.ids * np.dtype(self.dtype).itemsize,
                OFFSETS: (self.count + 1) * np.dtype(OFFSET_DTYPE).itemsize}


@dataclass(frozen=True)
class StoreHeader:
    """The key and the sides of a store."""

    key: str
    sides: dict[str, SideHeader]

    def encoded(self) -> bytes:
        """The content of header.json; there is one way to write it, so a changed byte is noticed."""
        sides = {name: asdict(side) for name, side in self.sides.items()}
        content = {"format": STORE_FORMAT, "key": self.key, "sides": sides}
        return json.dumps(content, indent=2).encode() + b"\n"


class StoreFolder:
    """The folder around a store: its lock, the store itself, and the one that is being made."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock
        self.tokens, self.new, self._old = path / "tokens", path / "new", path / "old"

    def lock_shared(self) -> None:
        """Wait until no process makes a store here. The lock ends with its process, even a killed one."""
        _flock(self._lock, "LOCK_SH", self.path)

    def lock_exclusive(self) -> None:
        """Wait until no other process opens or makes a store here."""
        _flock(self._lock, "LOCK_EX", self.path)

    def has_leftovers(self) -> bool:
        """Whether a killed process left files here. The lock must be held."""
        return os.path.lexists(self.new) or os.path.lexists(self._old)

    def remove_leftovers(self) -> None:
        """Remove what a killed process left. The lock must be held exclusively."""
        for folder in (self.new, self._old):
            _remove_folder(folder)

    def replace_tokens(self) -> None:
        """Move the new store into place. The lock must be held exclusively."""
        if os.path.lexists(self.tokens):
            _check_ours(self.tokens)
            os.rename(self.tokens, self._old)
        os.rename(self.new, self.tokens)
        sync_folder(self.path)
        _remove_folder(self._old)


@contextmanager
def open_store_folder(path: Path) -> Iterator[StoreFolder]:
    """The folder at this path, created if missing, with its lock file open."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            handle = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)  # a store that may be read but not made
    except OSError as error:
        raise ValueError(f"{path}: The folder cannot be written to: {error.strerror}. Choose another one.") from error
    try:
        yield StoreFolder(path, handle)
    finally:
        os.close(handle)


def write_store(folder: Path, key: str, rows: Iterable[tuple[Ids, ...]], vocabularies: Mapping[str, int]) -> None:
    """Write a new folder with these rows, which have one entry for each side. If that fails, nothing of it remains."""
    folder.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        with ExitStack() as files:
            writers = [files.enter_context(_open_side_writer(folder, name, size))
                       for name, size in vocabularies.items()]
            for row in rows:
                if len(row) != len(writers):
                    raise checks.wrong("row", f"of {len(writers)} sides, {', '.join(vocabularies)}", f"of {len(row)}")
                for writer, ids in zip(writers, row, strict=True):
                    writer.add(ids)
            header = StoreHeader(key, {writer.name: writer.finish() for writer in writers})
        with _name_file_in_errors(folder / HEADER), (folder / HEADER).open("wb") as file:
            file.write(header.encoded())
            _flush_and_sync(file)
        sync_folder(folder)
        undo.pop_all()


def read_header(folder: Path, key: str, vocabularies: Mapping[str, int]) -> StoreHeader:
    """The header of the store in this folder; an UnusableStoreError if it is incomplete or has another key."""
    path = folder / HEADER
    try:
        data = path.read_bytes()
        content = json.loads(data)
        header = StoreHeader(content["key"], {name: SideHeader(**side) for name, side in content["sides"].items()})
        intact = header.encoded() == data
    except FileNotFoundError:
        raise UnusableStoreError(f"{path} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        intact = False
    if not intact:
        raise UnusableStoreError(f"{path} is damaged")
    if header.key != key or {name: side.vocabulary for name, side in header.sides.items()} != dict(vocabularies):
        raise UnusableStoreError(f"{folder} belongs to other data, settings or versions")
    for check in (_check_sizes, _check_digests):  # all sizes before any sha256, which takes time
        for name, side in header.sides.items():
            check(folder, name, side)
    return header


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems write names at once and cannot sync folders
            raise
    finally:
        os.close(handle)


class _SideWriter:
    """Writes one side, a block at a time."""

    def __init__(self, name: str, vocabulary: int, ids: BinaryIO, offsets: BinaryIO) -> None:
        self.name, self._ids, self._offsets = name, ids, offsets
        self._side = SideHeader(0, 0, vocabulary, {})
        self._digests = {IDS: hashlib.sha256(), OFFSETS: hashlib.sha256()}
        self._pending: list[NDArray[Any]] = []
        self._pending_ids = 0
        self._write(self._offsets, OFFSETS, np.zeros(1, OFFSET_DTYPE))

    def add(self, ids: Ids) -> None:
        """Append a sequence."""
        array = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise checks.wrong("ids", "whole numbers in a row", f"{array.dtype} of shape {checks.shape(array)}",
                               self._describe(len(self._pending)))
        self._pending.append(array)
        self._pending_ids += array.size + 1
        if self._pending_ids > BLOCK_IDS:
            self._flush()

    def finish(self) -> SideHeader:
        """Write what is pending, and sync. Returns the header of this side."""
        self._flush()
        for file in (self._ids, self._offsets):
            with _name_file_in_errors(file.name):
                _flush_and_sync(file)
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        return SideHeader(self._side.count, self._side.ids, self._side.vocabulary, digests)

    def _flush(self) -> None:
        if not self._pending:
            return
        joined = np.concatenate([array.astype(np.int64) for array in self._pending])
        ends = np.cumsum([array.size for array in self._pending])
        invalid = np.flatnonzero((joined < 0) | (joined >= self._side.vocabulary))
        if invalid.size:
            which = int(np.searchsorted(ends, invalid[0], side="right"))
            raise checks.wrong("ids", f"from 0 to {self._side.vocabulary - 1}", joined[invalid[0]],
                               self._describe(which))
        self._write(self._ids, IDS, joined.astype(self._side.dtype))
        self._write(self._offsets, OFFSETS, (ends + self._side.ids).astype(OFFSET_DTYPE))
        self._side = SideHeader(self._side.count + len(ends), self._side.ids + len(joined), self._side.vocabulary, {})
        self._pending, self._pending_ids = [], 0

    def _write(self, file: BinaryIO, name: str, numbers: NDArray[Any]) -> None:
        data = numbers.tobytes()
        with _name_file_in_errors(file.name):
            file.write(data)
        self._digests[name].update(data)

    def _describe(self, pending: int) -> str:
        return f"It is in sequence {self._side.count + pending} of the {self.name}, counted from 0."


@contextmanager
def _open_side_writer(folder: Path, name: str, vocabulary: int) -> Iterator[_SideWriter]:
    with (folder / f"{name}.{IDS}").open("wb") as ids, (folder / f"{name}.{OFFSETS}").open("wb") as offsets:
        yield _SideWriter(name, vocabulary, ids, offsets)


def _check_sizes(folder: Path, name: str, side: SideHeader) -> None:
    for kind, size in side.file_sizes().items():
        path = folder / f"{name}.{kind}"
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise UnusableStoreError(f"{path} is missing" if found is None else
                                     f"{path} has {found} bytes instead of {size}")


def _check_digests(folder: Path, name: str, side: SideHeader) -> None:
    for kind in side.file_sizes():
        path = folder / f"{name}.{kind}"
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != side.sha256.get(kind):
                raise UnusableStoreError(f"{path} was changed after it was written")


def _remove_folder(folder: Path) -> None:
    if os.path.lexists(folder):
        _check_ours(folder)
        shutil.rmtree(folder)


def _check_ours(folder: Path) -> None:
    """Refuse to remove what a store did not write."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    names = [path.name for path in folder.iterdir()] if is_folder else []
    foreign = sorted(name for name in names if not STORE_FILES.fullmatch(name))
    if not is_folder or foreign:
        raise ValueError(f"{folder}: " + (f"The folder has files that are not token ids, such as {foreign[0]!r}."
                                          if foreign else "This is not a folder.")
                         + " Move it away, or choose another folder.")


def _flock(handle: int, mode: str, path: Path) -> None:
    if os.name != "posix":
        raise OSError(errno.ENOTSUP, f"Stores need a POSIX system (Linux, macOS), but this one is {os.name}.")
    import fcntl

    try:
        fcntl.flock(handle, getattr(fcntl, mode))
    except OSError as error:
        raise OSError(error.errno, f"no locks on this file system: {error.strerror}", str(path / "lock")) from error


def _flush_and_sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _name_file_in_errors(path: "Path | str") -> Iterator[None]:
    """Add this file's name to errors of the system that name none, such as those of writing."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
