"""Packed plans: every pair once an epoch, batches of one size, and room for nearly all of them."""

import numpy as np
import pytest

from regard.data.batches.plan import BatchLimits, plan_packed, rows_with_padding


def lengths(count, seed=0, longest=12):
    chance = np.random.default_rng(seed)
    return [tuple(int(one) for one in chance.integers(1, longest, 2)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 7, 300])
def test_every_pair_comes_once_an_epoch_in_an_order_that_follows_from_the_seed(stored, count):
    plan = plan_packed(stored(lengths(count)), BatchLimits(200, 50), seed=3)
    epochs = [[plan.batch(epoch, index) for index in range(plan.count)] for epoch in (0, 1)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(count))
        sizes = {len(batch) for batch in batches}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= min(50, plan.rows)
    again = plan_packed(stored(lengths(count)), BatchLimits(200, 50), seed=3)
    assert all((again.batch(1, index) == batch).all() for index, batch in enumerate(epochs[1]))
    if count > 50:
        assert (epochs[0][0] != epochs[1][0]).any()
        other = plan_packed(stored(lengths(count)), BatchLimits(200, 50), seed=4)
        assert (other.batch(0, 0) != epochs[0][0]).any()


def test_the_room_is_within_the_budget_and_enough_for_all_but_a_few(stored):
    pairs = lengths(6000, seed=1)
    plan = plan_packed(stored(pairs), BatchLimits(2000, 10_000), seed=1)
    ((rows, room),) = plan.shapes
    assert sum(room) <= 2000
    assert rows == rows_with_padding(plan.rows)
    table = np.array(pairs) + np.array([0, 1])
    totals = np.array([table[plan.batch(epoch, index)].sum(axis=0) for epoch in range(20) for index in
                       range(plan.count)])
    assert (totals <= np.array(room)).all(axis=1).mean() > 0.999
    assert (totals / np.array(room)).mean() > 0.8  # of 100 pairs; larger batches vary less


def test_a_pair_that_is_longer_than_the_budget_still_has_room(stored):
    plan = plan_packed(stored([(3, 3), (50, 2), (4, 70)]), BatchLimits(20, 10), seed=1)
    (shape,) = plan.shapes
    assert shape.lengths[0] >= 50
    assert shape.lengths[1] >= 71
    assert {1, 2} <= set(np.concatenate(plan.largest()))


def test_a_store_without_pairs_has_no_batches(stored):
    assert plan_packed(stored([]), BatchLimits(20, 10), seed=1).count == 0


def test_of_long_sequences_only_what_is_read_counts(stored):
    plan = plan_packed(stored([(3, 3), (500, 2), (4, 700)]), BatchLimits(200, 10), seed=1, longest=20)
    assert [(side.total, side.longest, side.longest_number) for side in plan.sides] == [(27, 20, 1), (28, 21, 2)]
    assert plan.shapes[0].lengths == (64, 64)
