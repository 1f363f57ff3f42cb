"""Permutations and random numbers: every number exactly once, without a pattern, the same everywhere."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regard.data.batches import plan
from regard.data.batches.plan import Permutation, derive_key, random_below, random_bits, random_uniform

ALL = 2**64 - 1


def mixed(word):
    """The finaliser of SplitMix64, with Python's numbers."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & ALL
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & ALL
    return word ^ (word >> 31)


def slow(count, seed, place):
    """The network for one place, with Python's numbers."""
    columns = math.isqrt(count - 1) + 1
    rows = -(-count // columns)
    while True:
        row, column = divmod(place, columns)
        for turn in range(plan.ROUNDS):
            row = (row + mixed(mixed(column + 0x9E3779B97F4A7C15 & ALL) ^ derive_key(seed, turn, 0))) % rows
            column = (column + mixed(mixed(row + 0x9E3779B97F4A7C15 & ALL) ^ derive_key(seed, turn, 1))) % columns
        place = row * columns + column
        if place < count:
            return place


def test_the_mixer_is_that_of_splitmix64():
    # The first numbers of java.util.SplittableRandom's algorithm for the seed 1234567, as published for it.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    states = [1234567 + turn * 0x9E3779B97F4A7C15 & ALL for turn in range(1, 6)]
    assert [mixed(state) for state in states] == known
    assert plan._mix_array(np.array(states, np.uint64)).tolist() == known
    assert [plan._mix(state) for state in states] == known


@pytest.mark.thorough
@pytest.mark.parametrize("counts", [range(1, 700), range(700, 3000, 37), [10**5, 2**16, 2**16 + 1, 999_983]])
def test_every_number_comes_exactly_once(counts):
    for count in counts:
        found = Permutation(count, derive_key(count))(np.arange(count))
        assert found.dtype == np.int64
        assert np.array_equal(np.sort(found), np.arange(count)), count


@given(st.integers(1, 2**48), st.integers(0, ALL), st.data())
def test_large_orders(count, seed, data):
    places = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=40)))
    found = Permutation(count, seed)(places).tolist()
    assert len(set(found)) == len(places)
    assert found == [slow(count, seed, place) for place in places]
    assert Permutation(count, seed)(places[0]).tolist() == found[0]  # one by itself is as among others


@pytest.mark.thorough
def test_every_order_of_few_is_equally_probable():
    for count in (2, 3, 4, 5):
        tries = 20 * math.factorial(count)
        found = Counter(tuple(Permutation(count,
                                          derive_key(5, seed))(np.arange(count)).tolist()) for seed in range(tries))
        times = [*found.values(), *[0] * (math.factorial(count) - len(found))]
        assert stats.chisquare(times).pvalue > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("count", [7, 16, 30])
def test_every_number_is_equally_probable_at_every_place(count):
    tries, times = 1000, np.zeros((count, count))
    followers = np.zeros((count, count))
    for seed in range(tries):
        found = Permutation(count, derive_key(seed, 1))(np.arange(count))
        times[np.arange(count), found] += 1
        followers[found[:-1], found[1:]] += 1
    even = tries / count
    assert stats.chi2.sf(((times - even) ** 2).sum() / even * (count - 1) / count, (count - 1) ** 2) > 1e-3
    beside = followers[~np.eye(count, dtype=bool)]  # which comes after which: all pairs alike
    assert followers.trace() == 0
    assert stats.chisquare(beside).pvalue > 1e-3


def test_no_pattern_in_a_long_order():
    count = 100_000
    found = Permutation(count, derive_key(3))(np.arange(count))
    assert abs(stats.pearsonr(np.arange(count), found)[0]) < 0.02
    assert abs(stats.pearsonr(found[:-1], found[1:])[0]) < 0.02
    assert stats.kstest(np.diff(found) / count, stats.triang(0.5, -1, 2).cdf).pvalue > 1e-3
    assert (found == np.arange(count)).sum() < 10  # fixed places: one is expected
    # As many ascending runs as chance makes: each step up or down with equal probability.
    assert abs((np.diff(found) > 0).mean() - 0.5) < 0.01


def test_other_keys_give_other_orders():
    places = np.arange(1000)
    orders = [Permutation(1000, derive_key(seed, epoch,
                                           what))(places) for seed in range(4) for epoch in range(4) for what in (0, 1)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert (one == other).sum() < 10


def test_keys_differ_by_every_number_and_by_their_order():
    parts = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (2**64 - 1,), (0, 0, 0)]
    assert len({derive_key(*each) for each in parts}) == len(parts)
    bits = np.unpackbits(np.array([derive_key(1, number) ^ derive_key(1, number + 1) for number in range(500)],
                                  ">u8").view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.02  # half of all bits change


@pytest.mark.parametrize("part", [-1, 2**64, 1.0, True, "1"])
def test_what_is_no_part_of_a_key(part):
    with pytest.raises(ValueError, match="`parts` must be whole numbers from 0"):
        derive_key(1, part)


@pytest.mark.parametrize(("count", "places", "message"), [
    (5, [5], "`positions` must be from 0 to 4, but is 5 to 5"),
    (5, [0, -1], "`positions` must be from 0 to 4, but is -1 to 0"),
    (0, [0], "`positions`"),
    (-1, [], "`count` must be from 0"),
    (2**48 + 1, [], "`count` must be from 0"),
])
def test_what_is_no_place(count, places, message):
    with pytest.raises(ValueError, match=message):
        Permutation(count, 0)(places)


def test_nothing_of_nothing():
    assert Permutation(0, 0)([]).tolist() == []
    assert Permutation(9, 0)(np.zeros((0, 2), int)).shape == (0, 2)


def test_numbers_by_chance():
    found = random_uniform(derive_key(1), np.arange(20_000))
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert 0 <= found.min() <= found.max() < 1
    assert stats.chisquare(np.bincount(random_below(7, derive_key(2), np.arange(20_000)), minlength=7)).pvalue > 1e-3
    assert random_bits(5, np.arange(6).reshape(2, 3)).tolist() == [random_bits(5, row).tolist() for row in ([0, 1, 2],
                                                                                                            [3, 4, 5])]
    assert not np.array_equal(random_bits(5, np.arange(6)), random_bits(6, np.arange(6)))
