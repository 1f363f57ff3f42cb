"""Validation pairs in the training data, against sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.doctor.characters import folded
from regard.data.doctor.overlap import Both, Overlap
from regard.data.pair import Pair, Where

TEXT = st.sampled_from(["a", "A", " a", "a b", "A  B", "é", "e\u0301", "b", "c"])


def pairs(file, texts):
    return [Pair(*both, Where(file, line)) for line, both in enumerate(texts, 1)]


@given(st.lists(st.tuples(TEXT, TEXT), max_size=12), st.lists(st.lists(st.tuples(TEXT, TEXT), max_size=6), max_size=4))
def test_it_counts_what_sets_count(validation, training):
    overlap = Overlap(pairs("dev", validation))
    for block in training:
        overlap.compare(pairs("train", block))
    texts = [both for block in training for both in block]
    assert overlap.pairs == len(validation)
    assert overlap.exact == sum(both in texts for both in validation)
    known = {(folded(a), folded(b)) for a, b in texts}
    assert overlap.folded == sum((folded(a), folded(b)) in known for a, b in validation)
    assert overlap.sources == sum(folded(a) in {source for source, _ in known} for a, _ in validation)


def test_the_first_places_are_told():
    overlap = Overlap([*pairs("dev.tsv", [("x", "y"), ("a", "b")]), *pairs("more.tsv", [("c", "d")])])
    overlap.compare(pairs("train.tsv", [("n", "n"), ("C", "d "), ("a", "b"), ("a", "b")]))
    assert overlap.first == [
        Both(Where("more.tsv", 1), Where("train.tsv", 2)),
        Both(Where("dev.tsv", 2), Where("train.tsv", 3)),
    ]
    assert (overlap.exact, overlap.folded) == (1, 2)


@pytest.mark.parametrize("validation", [[], [("a", "b")]])
def test_nothing_to_compare(validation):
    overlap = Overlap(pairs("dev", validation))
    overlap.compare([])
    overlap.compare(pairs("train", [("x", "y")]))
    assert (overlap.exact, overlap.folded, overlap.sources, overlap.first) == (0, 0, 0, [])
