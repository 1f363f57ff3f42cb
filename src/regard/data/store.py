"""Sequences of token ids on disk, mapped into memory: a corpus of any size, any sequence of it at once.

    opened = open_or_make_pairs(place, key, make, vocabularies=(8000, 8000))
    opened.store[7]                    (source ids, target ids), as views of the file
    opened.notes                       why the store that was there before could not be used, where there was one

A store is made once for a key, which stands for the data, the tokenizer and all that was done to them, and opened from
then on. On disk it is a folder of flat little-endian files, two a side:

    place/lock                         held while the store is looked at or made
    place/new/                         the store while it is made
    place/tokens/source.ids            all ids one after another, 1, 2 or 4 bytes each, as the vocabulary asks
    place/tokens/source.offsets        where each sequence begins, and at the end where the last one ends, 8 bytes each
    place/tokens/header.json           the key, the counts, and the sha256 of every file; written last

It is made aside and put in place by a rename: killed at any moment, there is a whole store or none. Processes that ask
for the same store at the same time wait for the one that makes it. What is open stays good when the store is replaced;
but nobody may write to its files. A text can be kept too: its bytes are ids below 256.

It knows ids and files. It does not know tokenizers, batches or models, and does not import torch.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard._version import __version__
from regard.data import storing
from regard.data.pair import DataError
from regard.data.storing import FORMAT, IDS, OFFSET, OFFSETS, Ids, UnusableError

Numbers = NDArray[np.int64]
AnyStore = TypeVar("AnyStore", bound="Store")
PAIR, TEXT = ("source", "target"), ("text",)


class Ragged(NamedTuple):
    """Sequences of different lengths: all their ids one after another, and the length of each."""

    ids: Numbers
    lengths: Numbers


class Mapped:
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


class Sequences:
    """One side of a store."""

    def __init__(self, ids: Mapped, offsets: Mapped) -> None:
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

    def lengths(self, first: int, last: int) -> Numbers:
        """How long the sequences from `first` up to `last`, which is not among them, are."""
        return np.diff(self._offsets.numbers[first:last + 1])

    def gather(self, numbers: Numbers) -> Ragged:
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
class Store:
    """What stores of pairs and of texts share: sides of equally many sequences."""

    folder: Path
    """Where its files are. What follows from them alone may be kept beside them."""
    identity: str
    """The sha256 of its header, and so of all that it holds."""
    sides: tuple[Sequences, ...]

    def __len__(self) -> int:
        return len(self.sides[0])

    def gather(self, numbers: Numbers) -> tuple[Ragged, ...]:
        """The sequences of these numbers, of every side, copied. Memory does not grow with what was read before."""
        found = tuple(side.gather(numbers) for side in self.sides)
        self.release()
        return found

    def release(self) -> None:
        """Give back the memory of what was looked at; views stay good."""
        for side in self.sides:
            side.release()


class PairStore(Store):
    """Pairs of a source and a target."""

    def __getitem__(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of the source and of the target."""
        source, target = self.sides
        return source[number], target[number]


class TextStore(Store):
    """Texts, which are also one long text."""

    def __getitem__(self, number: int) -> NDArray[Any]:
        """The ids of one text."""
        return self.sides[0][number]

    @property
    def stream(self) -> NDArray[Any]:
        """The ids of all texts, one after another."""
        return self.sides[0].ids


class Opened(NamedTuple, Generic[AnyStore]):
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
    parts = {"version": [FORMAT, __version__], "data": list(data), "tokenizer": tokenizer, "settings": dict(settings)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def open_or_make_pairs(place: str | os.PathLike[str], key: str, make: Callable[[], Iterable[tuple[Ids, Ids]]], *,
                       vocabularies: tuple[int, int]) -> Opened[PairStore]:
    """The store of this key at this place; made there from the pairs of `make` where there is none, or a damaged one.

    Args:
        place: a folder for this one store, made where it is not there. A store of another key in it is replaced.
        make: called only where the store must be made; what it gives is written as it comes.
        vocabularies: the ids of each side are below these.
    """
    return _open_or_make(PairStore, Path(place), key, make, dict(zip(PAIR, vocabularies, strict=True)))


def open_or_make_texts(place: str | os.PathLike[str], key: str, make: Callable[[], Iterable[Ids]], *,
                       vocabulary: int) -> Opened[TextStore]:
    """The same for texts."""
    return _open_or_make(TextStore, Path(place), key, lambda: ((text,) for text in make()),
                         dict(zip(TEXT, (vocabulary,), strict=True)))


def _open_or_make(kind: type[AnyStore], place: Path, key: str, make: Callable[[], Iterable[tuple[Ids, ...]]],
                  vocabularies: Mapping[str, int]) -> Opened[AnyStore]:
    for name, vocabulary in vocabularies.items():
        if not 1 <= vocabulary <= 2**32:
            raise checks.wrong("vocabulary", "from 1 to 2**32", f"{vocabulary} for the {name}")
    with storing.at(place) as here:
        here.share()
        if not here.left():
            try:
                return Opened(_open(kind, here.tokens, key, vocabularies), [])
            except UnusableError:
                pass  # unless others are making it right now
        here.own()
        here.clear()
        notes: list[str] = []
        try:
            return Opened(_open(kind, here.tokens, key, vocabularies), notes)
        except UnusableError as reason:
            if here.tokens.exists():
                notes = [f"{reason}: the tokens are made anew."]
        storing.write(here.new, key, make(), vocabularies)
        here.put()
        return Opened(_open(kind, here.tokens, key, vocabularies), notes)


def _open(kind: type[AnyStore], folder: Path, key: str, vocabularies: Mapping[str, int]) -> AnyStore:
    header = storing.read(folder, key, vocabularies)
    sides = tuple(Sequences(Mapped(folder / f"{name}.{IDS}", side.dtype, side.ids),
                            Mapped(folder / f"{name}.{OFFSETS}", OFFSET, side.count + 1))
                  for name, side in header.sides.items())
    return kind(folder, hashlib.sha256(header.encoded()).hexdigest(), sides)
