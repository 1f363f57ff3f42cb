"""Validation pairs in the training data, against sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.doctor import OverlappingPair, ValidationOverlap
from regard.data.filters import fold_text
from regard.data.sources.text import Location, SentencePair

TEXT = st.sampled_from(["a", "A", " a", "a b", "A  B", "é", "e\u0301", "b", "c"])


def pairs(file, texts):
    return [SentencePair(*both, Location(file, line)) for line, both in enumerate(texts, 1)]


@given(st.lists(st.tuples(TEXT, TEXT), max_size=12), st.lists(st.lists(st.tuples(TEXT, TEXT), max_size=6), max_size=4))
def test_it_counts_what_sets_count(validation, training):
    overlap = ValidationOverlap(pairs("dev", validation))
    for block in training:
        overlap.compare(pairs("train", block))
    texts = [both for block in training for both in block]
    assert overlap.pairs == len(validation)
    assert overlap.exact == sum(both in texts for both in validation)
    known = {(fold_text(a), fold_text(b)) for a, b in texts}
    assert overlap.folded == sum((fold_text(a), fold_text(b)) in known for a, b in validation)
    assert overlap.sources == sum(fold_text(a) in {source for source, _ in known} for a, _ in validation)


def test_the_first_places_are_told():
    overlap = ValidationOverlap([*pairs("dev.tsv", [("x", "y"), ("a", "b")]), *pairs("more.tsv", [("c", "d")])])
    overlap.compare(pairs("train.tsv", [("n", "n"), ("C", "d "), ("a", "b"), ("a", "b")]))
    assert overlap.first == [
        OverlappingPair(Location("more.tsv", 1), Location("train.tsv", 2)),
        OverlappingPair(Location("dev.tsv", 2), Location("train.tsv", 3)),
    ]
    assert (overlap.exact, overlap.folded) == (1, 2)


@pytest.mark.parametrize("validation", [[], [("a", "b")]])
def test_nothing_to_compare(validation):
    overlap = ValidationOverlap(pairs("dev", validation))
    overlap.compare([])
    overlap.compare(pairs("train", [("x", "y")]))
    assert (overlap.exact, overlap.folded, overlap.sources, overlap.first) == (0, 0, 0, [])
