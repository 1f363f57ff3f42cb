"""The data of a comparison: training, validation and test pairs in three JSONL files.

    split_data(["pairs.tsv"], folder)       validation and test pairs are those whose source has the smallest hash
    split_phrasebook(folder)                generated sentences, from short to long

Pairs with the same source are all in one file, in any order of the data. This module does not know models.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard.checks import plural
from regard.data import phrasebook
from regard.data.filters import FilterConfig, filter_pairs
from regard.data.sources import formats
from regard.data.sources.text import DataError
from regard.storage.filesystem import write_file
from regard.training.tasks.common import file_digests, open_inputs

SPLIT_NAMES = ("train", "validation", "test")
HELD_OUT_FRACTION, MAX_HELD_OUT = 0.05, 1000
"""The fraction of the data that is held out for validation, and again for testing; at most this many pairs each."""
MIN_TRAINING_PAIRS = 20
"""The minimum number of training pairs."""
PHRASEBOOK_CLAUSES = (1, 3)
"""Minimum and maximum number of clauses of a phrasebook sentence."""
PHRASEBOOK_WORDS = "few"
"""A small phrasebook vocabulary: the comparison is about sentences, not about learning words."""
PHRASEBOOK_DRAWS = {"train": (30_000, 1), "validation": (200, 2), "test": (500, 3)}
"""Number of pairs and seed of each phrasebook split."""

TextPair = tuple[str, str]


@dataclass(frozen=True)
class DataFiles:
    """The files of a comparison, and how they are read."""

    data: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    source: str | None = None
    target: str | None = None
    format: str | None = None

    def identity(self) -> dict[str, Any]:
        """The sha256 of every file, and how they are read."""
        open_inputs((*self.data, *self.validation, *self.test))
        found = {name: file_digests(getattr(self, name)) for name in ("data", "validation", "test")}
        return {**found, **{name: getattr(self, name) for name in ("source", "target", "format")}}


class SplitFiles(NamedTuple):
    """The paths of the three files."""

    train: Path
    validation: Path
    test: Path

    @staticmethod
    def at(place: Path) -> "SplitFiles":
        """The files in a folder."""
        return SplitFiles(*(place / f"{name}.jsonl" for name in SPLIT_NAMES))

    def digests(self) -> dict[str, str]:
        """The sha256 of each file by its name."""
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name,
                path in zip(SPLIT_NAMES, self, strict=True)}


def split_data(data: Sequence[str], place: Path, *, validation: Sequence[str] = (), test: Sequence[str] = (),
               source: str | None = None, target: str | None = None, format: str | None = None,
               note: Callable[[str], None] = lambda text: None) -> SplitFiles:
    """Filter the pairs of these files as for training, and hold out validation and test pairs that are not given.

    Args:
        note: called with what the user should know about how the files were read.
    """
    def read(paths: Sequence[str]) -> list[TextPair]:
        pairs = formats.read_pairs(paths, source=source, target=target, format=format)
        kept = [(pair.source, pair.target) for pair in filter_pairs(pairs, FilterConfig())]
        for text in pairs.log.notes:
            note(text)
        return kept

    given = {name: read(paths) for name, paths in (("validation", validation), ("test", test)) if paths}
    for name, pairs in given.items():
        if not pairs:
            raise DataError(f"{', '.join(validation if name == 'validation' else test)}: No pair passes the filters.")
    all_pairs = read(data)
    tested = {pair[0] for pair in given.get("test", ())}
    all_pairs = [pair for pair in all_pairs if pair[0] not in tested]
    found = hold_out(all_pairs, [name for name in SPLIT_NAMES[1:] if name not in given], itemgetter(0), "pair")
    if len(found["train"]) < MIN_TRAINING_PAIRS:
        raise DataError(f"{', '.join(data)}: A comparison needs at least {MIN_TRAINING_PAIRS:,} training pairs, but "
                        f"only {plural(len(found['train']), 'pair')} remain after filtering and splitting.")
    return write_splits(place, {name: _jsonl_lines(pairs) for name, pairs in {**found, **given}.items()})


def split_phrasebook(place: Path) -> SplitFiles:
    """Generate sentences; those of the test set have word combinations that the others do not have."""
    def drawn(name: str) -> Iterator[TextPair]:
        count, seed = PHRASEBOOK_DRAWS[name]
        pairs = phrasebook.pairs(count, split=name, seed=seed, clauses=PHRASEBOOK_CLAUSES, words=PHRASEBOOK_WORDS)
        return ((pair.source, pair.target) for pair in pairs)

    return write_splits(place, {name: _jsonl_lines(drawn(name)) for name in SPLIT_NAMES})


def read_pairs(path: Path) -> list[TextPair]:
    """The pairs of one of these files."""
    with path.open(encoding="utf-8") as lines:
        return [(pair["source"], pair["target"]) for pair in map(json.loads, lines)]


ItemT = TypeVar("ItemT")


def hold_out(items: Sequence[ItemT], wanted: Sequence[str], text: Callable[[ItemT], str],
             noun: str) -> dict[str, list[ItemT]]:
    """Divide the items: each wanted split gets the texts with the smallest hashes, the rest is for training.

    Args:
        text: the text of an item, by which it is placed.
        noun: what an item is called in messages.
    """
    hashes = sorted({_hash_source(text(item)) for item in items})
    count = min(MAX_HELD_OUT, round(HELD_OUT_FRACTION * len(hashes))) if len(hashes) < MIN_TRAINING_PAIRS * 2 else \
        min(MAX_HELD_OUT, max(5, round(HELD_OUT_FRACTION * len(hashes))))
    limits = [hashes[count * place] if count else 0 for place in range(1, len(wanted) + 1)]
    found: dict[str, list[ItemT]] = {name: [] for name in ("train", *wanted)}
    for item in items:
        own = _hash_source(text(item))
        found[next((name for name, limit in zip(wanted, limits, strict=True) if own < limit), "train")].append(item)
    for name in wanted:
        if not found[name]:
            raise DataError(f"{plural(len(items), noun)}: too few to hold out a {name} set. Give one with --{name}.")
    return found


def _hash_source(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def write_splits(place: Path, parts: Mapping[str, Iterable[str]]) -> SplitFiles:
    """Write the lines of each split into its file."""
    place.mkdir(parents=True, exist_ok=True)
    files = SplitFiles.at(place)
    for name, path in zip(SPLIT_NAMES, files, strict=True):
        write_file(path, "".join(parts[name]).encode())
    return files


def _jsonl_lines(pairs: Iterable[TextPair]) -> Iterator[str]:
    return (json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n" for source, target in pairs)
