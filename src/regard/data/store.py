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
AnyStore = TypeVar("AnyStore", bound="TokenStore")
PAIR, TEXT = ("source", "target"), ("text",)


class Ragged(NamedTuple):
    """Sequences of different lengths: all their ids one after another, and the length of each."""

    ids: IntArray
    lengths: IntArray


class MappedArray:
    """A file of numbers, of which only what is looked at is in memory."""

    def __init__(self, path: Path, dtype: str, count: int) -> None:
        self._map: mmap.mmap | None = None
        self.numbers: NDArray[Any] = np.zeros(0, dtype)
        if count:  # a file of no bytes cannot be mapped
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.numbers = np.frombuffer(self._map, dtype, count)

    def release(self) -> None:
        """Give back the memory of what was looked at; the system reads it again when it is wanted."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class StoredSequences:
    """One side of a store."""

    def __init__(self, ids: MappedArray, offsets: MappedArray) -> None:
        self._ids, self._offsets = ids, offsets

    def __len__(self) -> int:
        return len(self._offsets.numbers) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        """The ids of one sequence: a view that cannot be written to."""
        first, last = self._offsets.numbers[range(len(self))[number]:][:2]
        return self._ids.numbers[first:last]

    @property
    def ids(self) -> NDArray[Any]:
        """All ids, one sequence after another."""
        return self._ids.numbers

    def lengths(self, first: int, last: int) -> IntArray:
        """How long the sequences from `first` up to `last`, which is not among them, are."""
        return np.diff(self._offsets.numbers[first:last + 1])

    def gather(self, numbers: IntArray) -> Ragged:
        """The sequences of these numbers, copied."""
        starts = self._offsets.numbers[numbers]
        lengths = self._offsets.numbers[numbers + 1] - starts
        ends = np.cumsum(lengths)
        index = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        return Ragged(self._ids.numbers[index].astype(np.int64), lengths.astype(np.int64))

    def release(self) -> None:
        """Give back the memory of what was looked at."""
        self._ids.release()
        self._offsets.release()


@dataclass(frozen=True)
class TokenStore:
    """What stores of pairs and of texts share: sides of equally many sequences."""

    folder: Path
    """Where its files are. What follows from them alone may be kept beside them."""
    identity: str
    """The sha256 of its header, and so of all that it holds."""
    sides: tuple[StoredSequences, ...]

    def __len__(self) -> int:
        return len(self.sides[0])

    def gather(self, numbers: IntArray) -> tuple[Ragged, ...]:
        """The sequences of these numbers, of every side, copied. Memory does not grow with what was read before."""
        found = tuple(side.gather(numbers) for side in self.sides)
        self.release()
        return found

    def release(self) -> None:
        """Give back the memory of what was looked at; views stay good."""
        for side in self.sides:
            side.release()


class PairStore(TokenStore):
    """Pairs of a source and a target."""

    def __getitem__(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of the source and of the target."""
        source, target = self.sides
        return source[number], target[number]


class TextStore(TokenStore):
    """Texts, which are also one long text."""

    def __getitem__(self, number: int) -> NDArray[Any]:
        """The ids of one text."""
        return self.sides[0][number]

    @property
    def stream(self) -> NDArray[Any]:
        """The ids of all texts, one after another."""
        return self.sides[0].ids


class OpenedStore(NamedTuple, Generic[AnyStore]):
    """A store, and why one that was there before could not be used."""

    store: AnyStore
    notes: list[str]


def file_digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of what a file holds; a DataError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: cannot be read: {error.strerror}. "
                        f"Check its name and its permissions.") from error


def store_key(data: Sequence[str], tokenizer: str, settings: Mapping[str, Any]) -> str:
    """The key of a store, which stands for all that its ids depend on, the version of regard with them.

    Args:
        data: what stands for the data, in its order, such as the `file_digest` of every file.
        tokenizer: what stands for the tokenizer, such as the sha256 of its files.
        settings: all else that the ids depend on, such as filters: plain values.
    """
    parts = {"version": [STORE_FORMAT, __version__], "data": list(data), "tokenizer": tokenizer, "settings": dict(settings)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# ---- storing: How a store of ids comes to be on disk, and how it is known to be whole.
#
#     write(folder, key, rows, vocabularies)     a new folder: flat files, synced, the header last
#     read(folder, key, vocabularies)            the header of one whose files are all as they were written
#     at(path)                                   the folder around it: its lock, what is left over, the change of names
#
# Only what a store writes is ever removed: a folder that holds anything else is refused. It knows bytes and names. It
# does not know how a store is used; `regard.data.store` tells what the files are.

Ids = Sequence[int] | NDArray[Any] | bytes


def open_or_make_pairs(place: str | os.PathLike[str], key: str, make: Callable[[], Iterable[tuple[Ids, Ids]]], *,
                       vocabularies: tuple[int, int]) -> OpenedStore[PairStore]:
    """The store of this key at this place; made there from the pairs of `make` where there is none, or a damaged one.

    Args:
        place: a folder for this one store, made where it is not there. A store of another key in it is replaced.
        make: called only where the store must be made; what it gives is written as it comes.
        vocabularies: the ids of each side are below these.
    """
    return _open_or_make(PairStore, Path(place), key, make, dict(zip(PAIR, vocabularies, strict=True)))


def open_or_make_texts(place: str | os.PathLike[str], key: str, make: Callable[[], Iterable[Ids]], *,
                       vocabulary: int) -> OpenedStore[TextStore]:
    """The same for texts."""
    return _open_or_make(TextStore, Path(place), key, lambda: ((text,) for text in make()),
                         dict(zip(TEXT, (vocabulary,), strict=True)))


def _open_or_make(kind: type[AnyStore], place: Path, key: str, make: Callable[[], Iterable[tuple[Ids, ...]]],
                  vocabularies: Mapping[str, int]) -> OpenedStore[AnyStore]:
    for name, vocabulary in vocabularies.items():
        if not 1 <= vocabulary <= 2**32:
            raise checks.wrong("vocabulary", "from 1 to 2**32", f"{vocabulary} for the {name}")
    with open_store_folder(place) as here:
        here.share()
        if not here.left():
            try:
                return OpenedStore(_open_store(kind, here.tokens, key, vocabularies), [])
            except UnusableStoreError:
                pass  # unless others are making it right now
        here.own()
        here.clear()
        notes: list[str] = []
        try:
            return OpenedStore(_open_store(kind, here.tokens, key, vocabularies), notes)
        except UnusableStoreError as reason:
            if here.tokens.exists():
                notes = [f"{reason}: the tokens are made anew."]
        write_store(here.new, key, make(), vocabularies)
        here.put()
        return OpenedStore(_open_store(kind, here.tokens, key, vocabularies), notes)


def _open_store(kind: type[AnyStore], folder: Path, key: str, vocabularies: Mapping[str, int]) -> AnyStore:
    header = read_header(folder, key, vocabularies)
    sides = tuple(StoredSequences(MappedArray(folder / f"{name}.{IDS}", side.dtype, side.ids),
                            MappedArray(folder / f"{name}.{OFFSETS}", OFFSET, side.count + 1))
                  for name, side in header.sides.items())
    return kind(folder, hashlib.sha256(header.encoded()).hexdigest(), sides)


STORE_FORMAT = 1
HEADER = "header.json"
IDS, OFFSETS = "ids", "offsets"
OFFSET = "<i8"
BLOCK_IDS = 2**16
"""Ids that are gathered before they are written."""
STORE_FILES = re.compile(r"header\.json|\w+\.(ids|offsets)|buckets-[0-9a-f]+\.(index|json)(\.[0-9a-f]+)?")
"""The names of the files of a store, and of what is kept beside them."""


class UnusableStoreError(ValueError):
    """There is no store, or not the one that is asked for, or it is damaged: the reason."""


@dataclass(frozen=True)
class SideHeader:
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
class StoreHeader:
    """The key and the sides of a store."""

    key: str
    sides: dict[str, SideHeader]

    def encoded(self) -> bytes:
        """The one way to write this header."""
        sides = {name: asdict(side) for name, side in self.sides.items()}
        content = {"format": STORE_FORMAT, "key": self.key, "sides": sides}
        return json.dumps(content, indent=2).encode() + b"\n"


class StoreFolder:
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
            _remove_folder(folder)

    def put(self) -> None:
        """Let the new folder take the place of the one that was there. The lock must be owned."""
        if os.path.lexists(self.tokens):
            _check_ours(self.tokens)
            os.rename(self.tokens, self._old)
        os.rename(self.new, self.tokens)
        sync_folder(self.path)
        _remove_folder(self._old)


@contextmanager
def open_store_folder(path: Path) -> Iterator[StoreFolder]:
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
        yield StoreFolder(path, handle)
    finally:
        os.close(handle)


def write_store(folder: Path, key: str, rows: Iterable[tuple[Ids, ...]], vocabularies: Mapping[str, int]) -> None:
    """Write a new folder with these rows, an entry for each side, as they come. Nothing of it stays if that fails."""
    folder.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        with ExitStack() as files:
            writers = [files.enter_context(_open_side_writer(folder, name, size)) for name, size in vocabularies.items()]
            for row in rows:
                if len(row) != len(writers):
                    raise checks.wrong("row", f"of {len(writers)} sides, {', '.join(vocabularies)}", f"of {len(row)}")
                for writer, ids in zip(writers, row, strict=True):
                    writer.add(ids)
            header = StoreHeader(key, {writer.name: writer.end() for writer in writers})
        with _name_file_in_errors(folder / HEADER), (folder / HEADER).open("wb") as file:
            file.write(header.encoded())
            _flush_and_sync(file)
        sync_folder(folder)
        undo.pop_all()


def read_header(folder: Path, key: str, vocabularies: Mapping[str, int]) -> StoreHeader:
    """The header of the store in this folder; UnusableError says why it is not whole, or not the one asked for."""
    path = folder / HEADER
    try:
        data = path.read_bytes()
        content = json.loads(data)
        header = StoreHeader(content["key"], {name: SideHeader(**side) for name, side in content["sides"].items()})
        whole = header.encoded() == data
    except FileNotFoundError:
        raise UnusableStoreError(f"{path} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise UnusableStoreError(f"{path} is damaged")
    if header.key != key or {name: side.vocabulary for name, side in header.sides.items()} != dict(vocabularies):
        raise UnusableStoreError(f"{folder} was made from other data, with another tokenizer, settings or version")
    for measure in (_check_lengths, _check_digests):  # all lengths before any sha256, which takes its time
        for name, side in header.sides.items():
            measure(folder, name, side)
    return header


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems write names at once, and know no syncing of folders
            raise
    finally:
        os.close(handle)


class _SideWriter:
    """Writes one side, a block at a time."""

    def __init__(self, name: str, vocabulary: int, ids: BinaryIO, offsets: BinaryIO) -> None:
        self.name, self._ids, self._offsets = name, ids, offsets
        self._side = SideHeader(0, 0, vocabulary, {})
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
        if self._waiting > BLOCK_IDS:
            self._flush()

    def end(self) -> SideHeader:
        """Write what waits, and sync. Returns what the header says of this side."""
        self._flush()
        for file in (self._ids, self._offsets):
            with _name_file_in_errors(file.name):
                _flush_and_sync(file)
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        return SideHeader(self._side.count, self._side.ids, self._side.vocabulary, digests)

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
        self._side = SideHeader(self._side.count + len(ends), self._side.ids + len(joined), self._side.vocabulary, {})
        self._sequences, self._waiting = [], 0

    def _write(self, file: BinaryIO, name: str, numbers: NDArray[Any]) -> None:
        data = numbers.tobytes()
        with _name_file_in_errors(file.name):
            file.write(data)
        self._digests[name].update(data)

    def _which(self, waiting: int) -> str:
        return f"It is in sequence {self._side.count + waiting} of the {self.name}, counted from 0."


@contextmanager
def _open_side_writer(folder: Path, name: str, vocabulary: int) -> Iterator[_SideWriter]:
    with (folder / f"{name}.{IDS}").open("wb") as ids, (folder / f"{name}.{OFFSETS}").open("wb") as offsets:
        yield _SideWriter(name, vocabulary, ids, offsets)


def _check_lengths(folder: Path, name: str, side: SideHeader) -> None:
    for kind, length in side.lengths().items():
        path = folder / f"{name}.{kind}"
        found = path.stat().st_size if path.is_file() else None
        if found != length:
            how = "is missing" if found is None else f"has {found} bytes in place of {length}"
            raise UnusableStoreError(f"{path} {how}")


def _check_digests(folder: Path, name: str, side: SideHeader) -> None:
    for kind in side.lengths():
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
    plain = folder.is_dir() and not folder.is_symlink()
    strange = sorted(path.name for path in folder.iterdir() if not STORE_FILES.fullmatch(path.name)) if plain else []
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


def _flush_and_sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _name_file_in_errors(path: "Path | str") -> Iterator[None]:
    """Errors of the system inside name this file where they name none, as those of writing do not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
