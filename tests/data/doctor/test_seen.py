"""The table of numbers, against a Python set."""

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from regard.data import filters

# Numbers that want the same place, the last place, and few different ones, so that many are there already.
SAME_PLACE = st.integers(1, 9).map(lambda n: n * 2**20 - 1)


@given(st.lists(st.one_of(st.integers(1, 40), SAME_PLACE, st.integers(1, 2**64 - 1))))
def test_it_is_a_set(values):
    table, known = filters.HashSet(), set()
    for value in values:
        assert table.add(value) == (value not in known)
        known.add(value)
        assert len(table) == len(known)


def test_it_grows_and_forgets_nothing():
    table = filters.HashSet()
    values = [filters.hash_texts(str(index)) for index in range(20_000)]
    assert all(map(table.add, values))
    assert not any(map(table.add, values))
    assert len(table._slots) * 8 <= 24 * len(values)


def test_numbers_that_all_want_the_last_places():
    table = filters.HashSet()
    values = [(index << 32) - 1 for index in range(1, 3000)]
    assert all(map(table.add, values))
    assert not any(map(table.add, values))


def test_the_odds_that_are_promised():
    text = " ".join(filters.HashSet.__doc__.split())
    for n, odds in ((10**6, "37 million"), (50 * 10**6, "15,000")):
        promised = float(odds.replace(",", "").replace(" million", "e6"))
        assert abs(2**65 / n**2 / promised - 1) < 0.03
        assert f"one in {odds}" in text


@given(st.text(), st.text(), st.text(), st.text())
def test_different_pairs_have_different_numbers(a, b, c, d):
    assert (filters.hash_texts(a, b) == filters.hash_texts(c, d)) == ((a, b) == (c, d))


def test_where_a_pair_is_parted_matters():
    texts = "1 2", "12", "1 1", "\udcff", "\n", ""
    pairs = [(a, b) for a in texts for b in texts]
    assert len({filters.hash_texts(*pair) for pair in pairs}) == len(pairs)


def test_the_same_number_in_every_process():
    code = "from regard.data.filters import hash_texts; print(hash_texts('é', 'b'))"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")]  # fmt: skip
    assert runs == [f"{filters.hash_texts('é', 'b')}\n"] * 2
