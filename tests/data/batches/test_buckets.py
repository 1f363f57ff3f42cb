"""Buckets: like lengths together, where that saves padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.plan import MIN_BATCHES, BatchLimits, split_into_buckets


def table(lengths):
    rows, counts = np.unique(np.array(lengths), axis=0, return_counts=True)
    return rows, counts


def summary(rows, counts, limits):
    """Tokens with padding, tokens, and the batches of each bucket."""
    found = split_into_buckets(rows, counts, limits)
    padded, batches = 0, []
    for bucket in range(found.max() + 1):
        inside = found == bucket
        longest, count = rows[inside].max(axis=0), counts[inside].sum()
        padded += count * longest.sum()
        batches.append(int(limits.batches(count, longest)))
    return padded, (rows.sum(axis=1) * counts).sum(), batches


def test_a_batch_has_as_many_rows_as_the_budget_allows():
    longest = np.array([[5, 5], [50, 51], [60, 0], [0, 0]])
    assert BatchLimits(100, 1000).size(longest).tolist() == [10, 1, 1, 100]
    assert BatchLimits(100, 7).size(longest).tolist() == [7, 1, 1, 7]
    assert BatchLimits(100, 1000).batches(np.array([21, 3, 1, 0]), longest).tolist() == [3, 3, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=200), st.integers(1, 500))
def test_buckets_never_cost_more_than_one_for_all(lengths, budget):
    rows, counts = table(lengths)
    limits = BatchLimits(budget, 10**6)
    found = split_into_buckets(rows, counts, limits)
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))
    padded, _, batches = summary(rows, counts, limits)
    longest, total = rows.max(axis=0), counts.sum()
    whole = 4 * total * longest.sum() + budget * limits.batches(total, longest)
    assert 4 * padded + budget * sum(batches) <= whole


@pytest.mark.parametrize(("count", "most"), [(20_000, 0.08), (200_000, 0.04)])
def test_little_is_padding(lognormal, count, most):
    rows, counts = table(lognormal(count))
    padded, tokens, batches = summary(rows, counts, BatchLimits(4096, 4096))
    assert 1 - tokens / padded < most
    assert sum(batches) < 1.25 * tokens / 4096
    assert np.median(batches) >= MIN_BATCHES


def test_one_side():
    rows, counts = np.arange(1, 101).reshape(-1, 1), np.full(100, 1000)
    padded, tokens, _ = summary(rows, counts, BatchLimits(4096, 4096))
    assert 1 - tokens / padded < 0.04


def test_a_giant_does_not_make_the_batches_of_the_others_small():
    rows, counts = table([(10, 10), (12, 9), (11, 11)] * 300 + [(5000, 8)])
    found = split_into_buckets(rows, counts, BatchLimits(2000, 2000))
    giant = found[-1]
    assert rows[found == giant].tolist() == [[5000, 8]]
    assert sum(summary(rows, counts, BatchLimits(2000, 2000))[2]) < 15


def test_a_small_corpus_stays_together():
    rows, counts = table([(n % 30 + 1, n % 29 + 1) for n in range(100)])
    assert split_into_buckets(rows, counts, BatchLimits(4096, 4096)).tolist() == [0] * len(rows)


def test_no_lengths():
    assert split_into_buckets(np.zeros((0, 2), int), np.zeros(0, int), BatchLimits(10, 10)).tolist() == []
