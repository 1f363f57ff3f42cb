"""Chance: the words of splitmix64, spread evenly, and nothing that a batch could change."""

import pytest
import torch
from refusals import assert_named

from regard.decoding.sampling import row_seeds, seed_tensor, splitmix64, uniform_numbers

CPU, WORD = torch.device("cpu"), 1 << 64


def splitmix(state):
    """The word at a state, once more, with Python's numbers."""
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


def test_the_words_are_those_of_splitmix64():
    seeds = [0, 1, 2, 1234567, WORD // 2, WORD - 1, 0x9E3779B97F4A7C15]
    assert [word % WORD for word in splitmix64(seed_tensor(seeds, CPU)).tolist()] == [splitmix(seed) for seed in seeds]
    # Published with the algorithm: what a generator with the seed 1234567 gives first.
    assert splitmix(1234567) == 6457827717110365317


def test_numbers_follow_from_seed_try_and_place():
    got = uniform_numbers(seed_tensor([7, 7, 7, 8], CPU), torch.tensor([0, 0, 1, 0]),
                          torch.tensor([0, 1, 0, 0])).tolist()
    assert len(set(got)) == 4
    word = splitmix((splitmix((splitmix(7) + 0) % WORD) + 1) % WORD)
    assert got[1] == (word >> 11) / 2 ** 53


def test_numbers_are_spread_evenly():
    count = 100_000
    got = uniform_numbers(torch.full((count,), 3), torch.arange(count) % 100, torch.arange(count) // 100)
    assert 0 <= got.min() < got.max() < 1
    shares = torch.histc(got, 10, 0, 1) / count
    torch.testing.assert_close(shares, torch.full((10,), 0.1, dtype=torch.float64), rtol=0, atol=0.005)
    assert abs(torch.corrcoef(torch.stack([got[:-1], got[1:]]))[0, 1]) < 0.015
    assert abs(torch.corrcoef(torch.stack([got[:-100], got[100:]]))[0, 1]) < 0.015


def test_every_row_has_a_seed_of_its_own_by_its_number():
    whole = row_seeds(5, range(100))
    assert len(set(whole)) == 100
    assert row_seeds(5, [7, 3]) == [whole[7], whole[3]]
    assert row_seeds(6, [7]) != [whole[7]]
    assert seed_tensor(whole, CPU).dtype == torch.long


@pytest.mark.parametrize("seed", [-1, 0.5, True, "1"])
def test_what_is_no_seed(seed):
    assert_named(lambda: row_seeds(seed, [0]), ["`seed`", "at least 0", repr(seed)])
    assert_named(lambda: seed_tensor([seed], CPU), ["`seed`", "at least 0", repr(seed)])
