"""The three files of a comparison: nothing is in two of them, and the split does not depend on the order."""

import json
import random

import pytest

from regard.comparison import splits
from regard.comparison.splits import SplitFiles, read_pairs, split_data, split_phrasebook
from regard.data import phrasebook
from regard.data.sources.text import DataError

PAIRS = [(pair.source, pair.target) for pair in phrasebook.pairs(200, seed=3)]


def written(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def test_all_pairs_are_in_one_of_the_files_and_the_order_does_not_matter(tmp_path):
    files = split_data([written(tmp_path / "a.tsv", PAIRS)], tmp_path / "one")
    parts = [read_pairs(path) for path in files]
    assert sorted(pair for part in parts for pair in part) == sorted(PAIRS)
    assert [len(part) for part in parts[1:]] == [10, 10]
    mixed = random.Random(1).sample(PAIRS, len(PAIRS))
    others = split_data([written(tmp_path / "b.tsv", mixed)], tmp_path / "two")
    assert [sorted(read_pairs(path)) for path in others] == [sorted(part) for part in parts]
    assert files.digests().keys() == {"train", "validation", "test"}


def test_pairs_with_the_same_source_are_in_one_file(tmp_path):
    twice = [*PAIRS, *((source, f"{target} !") for source, target in PAIRS)]
    files = split_data([written(tmp_path / "a.tsv", twice)], tmp_path / "one")
    sources = [{pair[0] for pair in read_pairs(path)} for path in files]
    assert not sources[0] & sources[1]
    assert not sources[0] & sources[2]
    assert not sources[1] & sources[2]


def test_what_is_tested_on_is_not_learned_from(tmp_path):
    test = written(tmp_path / "test.tsv", PAIRS[:30])
    files = split_data([written(tmp_path / "a.tsv", PAIRS)], tmp_path / "one", test=[test])
    tested = read_pairs(files.test)
    assert tested == PAIRS[:30]
    assert not {pair[0] for path in files[:2] for pair in read_pairs(path)} & {pair[0] for pair in tested}


def test_too_little_data_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"too few|at least 20"):
        split_data([written(tmp_path / "a.tsv", PAIRS[:8])], tmp_path / "one")
    with pytest.raises(DataError, match="at least 20"):
        split_data([written(tmp_path / "a.tsv", PAIRS[:18])], tmp_path / "one",
                   test=[written(tmp_path / "t.tsv", PAIRS[20:30])])


def test_the_phrasebook_has_short_and_long_sentences(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "PHRASEBOOK_DRAWS", {"train": (60, 1), "validation": (5, 2), "test": (40, 3)})
    files = split_phrasebook(tmp_path / "one")
    assert [len(read_pairs(path)) for path in files] == [60, 5, 40]
    lengths = [len(source.split()) for source, _ in read_pairs(files.test)]
    assert min(lengths) <= 10
    assert max(lengths) > 30
    assert files == SplitFiles.at(tmp_path / "one")
    assert all("source" in json.loads(line) for line in files.test.read_text(encoding="utf-8").splitlines())
