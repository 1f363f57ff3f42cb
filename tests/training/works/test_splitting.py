"""What is held out: a share of the different examples, equal ones together, and something of every label left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.training.tasks.common import default_validation_fraction, hash_bytes, select_validation

examples = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=80)


@given(examples, st.floats(0.01, 0.9))
def test_equal_examples_are_on_one_side(found, share):
    hashes = np.array([hash_bytes(bytes([value])) for value, _ in found], np.uint64)
    labels = np.array([label for _, label in found], np.int64)
    held = select_validation(hashes, share, labels)
    sides = {value: set() for value, _ in found}
    for (value, _), one in zip(found, held, strict=True):
        sides[value].add(bool(one))
    assert all(len(side) == 1 for side in sides.values())
    assert set(labels[~held].tolist()) == set(labels.tolist())  # something of every label is learned from
    many = len({value for (value, _), one in zip(found, held, strict=True) if one})
    assert many <= max(1, round(share * len(sides)))


@given(examples, st.floats(0.01, 0.9), st.randoms())
def test_the_order_does_not_matter(found, share, chance):
    def chosen(given):
        hashes = np.array([hash_bytes(bytes([value])) for value, _ in given], np.uint64)
        return {value for (value, _), one in zip(given, select_validation(hashes, share), strict=True) if one}

    mixed = list(found)
    chance.shuffle(mixed)
    assert chosen(mixed) == chosen(found)


def test_shares_are_exact_and_at_least_one():
    hashes = np.array([hash_bytes(str(number).encode()) for number in range(1000)], np.uint64)
    assert select_validation(hashes, 0.1).sum() == 100
    assert select_validation(hashes[:3], 0.01).sum() == 1
    assert select_validation(hashes, 0.0).sum() == 0
    assert select_validation(np.repeat(hashes[:1], 9), 0.5).sum() == 0  # all are the same: nothing can be held out
    assert select_validation(hashes[:0], 0.5).tolist() == []


@pytest.mark.parametrize(("count", "share"), [(0, 0.0), (19, 0.0), (20, 0.1), (20_000, 0.1), (200_000, 0.01)])
def test_how_much(count, share):
    assert default_validation_fraction(count) == share
