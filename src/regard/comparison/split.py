"""What all models of a comparison learn from, are judged by and are tested on: three files in its folder.

    files = of_data(["pairs.tsv"], place)          some pairs are held out, those whose source has a small hash
    files = of_phrasebook(place)                   the embedded grammar, with sentences from short to long

Pairs with the same source are all in one file, whatever their order. The files are JSONL whatever the data was, so that
every model reads the same. It does not know models, nor what is done with the pairs.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data import phrasebook
from regard.data.doctor.filters import kept
from regard.data.doctor.rules import FilterConfig
from regard.data.pair import DataError
from regard.data.sources import opening

NAMES = ("train", "validation", "test")
SHARE, MOST = 0.05, 1000
"""How much of the data is held out to judge by, and as much again to test on; and how many pairs of each at most."""
FEWEST = 20
"""Pairs that a comparison needs."""
CLAUSES = (1, 3)
"""Of the sentences from the phrasebook: the fewest and the most."""
WORDS = "few"
"""Of the phrasebook: what is compared is how models deal with sentences, not how fast they learn words."""
DRAWN = {"train": (30_000, 1), "validation": (200, 2), "test": (500, 3)}
"""How many pairs of each split of the phrasebook are drawn, and from which seed."""

Texts = tuple[str, str]


class Files(NamedTuple):
    """Three files of pairs."""

    train: Path
    validation: Path
    test: Path

    @staticmethod
    def at(place: Path) -> "Files":
        """Where they are in a folder."""
        return Files(*(place / f"{name}.jsonl" for name in NAMES))

    def digests(self) -> dict[str, str]:
        """The sha256 of each by its name."""
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in zip(NAMES, self, strict=True)}


def of_data(data: Sequence[str], place: Path, *, validation: Sequence[str] = (), test: Sequence[str] = (),
            source: str | None = None, target: str | None = None, format: str | None = None) -> Files:
    """The pairs of these files, without those that no training would learn from; some held out where none are given."""
    def read(paths: Sequence[str]) -> Iterator[Texts]:
        pairs = opening.pairs(paths, source=source, target=target, format=format)
        return ((pair.source, pair.target) for pair in kept(pairs, FilterConfig()))

    given = {name: [*read(paths)] for name, paths in (("validation", validation), ("test", test)) if paths}
    for name, pairs in given.items():
        if not pairs:
            raise DataError(f"{', '.join(validation if name == 'validation' else test)}: No pair of it is kept.")
    all_pairs = [*read(data)]
    tested = {pair[0] for pair in given.get("test", ())}
    all_pairs = [pair for pair in all_pairs if pair[0] not in tested]
    found = _held(all_pairs, [name for name in NAMES[1:] if name not in given])
    if len(found["train"]) < FEWEST:
        raise DataError(f"{', '.join(data)}: A comparison needs at least {FEWEST} pairs to learn from, and "
                        f"{len(found['train'])} are left.")
    return _written(place, {**found, **given})


def of_phrasebook(place: Path) -> Files:
    """Sentences of the embedded grammar; those of the test have combinations of words that the others do not have."""
    def drawn(name: str) -> Iterator[Texts]:
        count, seed = DRAWN[name]
        pairs = phrasebook.pairs(count, split=name, seed=seed, clauses=CLAUSES, words=WORDS)
        return ((pair.source, pair.target) for pair in pairs)

    return _written(place, {name: drawn(name) for name in NAMES})


def pairs_of(path: Path) -> list[Texts]:
    """The pairs of such a file."""
    with path.open(encoding="utf-8") as lines:
        return [(pair["source"], pair["target"]) for pair in map(json.loads, lines)]


def _held(pairs: Sequence[Texts], wanted: Sequence[str]) -> dict[str, list[Texts]]:
    """The pairs by the part that they belong to: so many different sources with the smallest hashes for each wanted."""
    hashes = sorted({_hash(pair[0]) for pair in pairs})
    count = min(MOST, round(SHARE * len(hashes))) if len(hashes) < FEWEST * 2 else \
        min(MOST, max(5, round(SHARE * len(hashes))))
    limits = [hashes[count * place] if count else 0 for place in range(1, len(wanted) + 1)]
    found: dict[str, list[Texts]] = {name: [] for name in ("train", *wanted)}
    for pair in pairs:
        own = _hash(pair[0])
        found[next((name for name, limit in zip(wanted, limits, strict=True) if own < limit), "train")].append(pair)
    for name in wanted:
        if not found[name]:
            raise DataError(f"{len(pairs)} pairs are too few to hold some out for {name}. Give --{name}.")
    return found


def _hash(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _written(place: Path, parts: Mapping[str, Iterable[Texts]]) -> Files:
    place.mkdir(parents=True, exist_ok=True)
    files = Files.at(place)
    for name, path in zip(NAMES, files, strict=True):
        aside = path.with_suffix(".part")  # a killed command leaves no half of a file that looks like a whole one
        with aside.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(_lines(parts[name]))
        os.replace(aside, path)
    return files


def _lines(pairs: Iterable[Texts]) -> Iterator[str]:
    return (json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n" for source, target in pairs)
