"""The cache that stays where it is: it gives what the growing one gives, whatever stands in places not reached yet."""

import pytest
import torch
from problems import assert_close, normal

import regard
from regard.attention.cache import StaticCache, StaticMask

WIDTH, PLACES = 4, 7


@pytest.mark.parametrize("rubbish", [0.0, 1e6])
@pytest.mark.parametrize("options", [{}, {"rotary": regard.Rotary(2)}, {"key_heads": 1, "score": "additive"}],
                         ids=["plain", "rotary", "additive"])
def test_steps_are_those_of_a_growing_cache(options, rubbish):
    layer = regard.Attention(WIDTH, heads=2, **options).double()
    grown = layer.start(3, PLACES)
    _, grown = layer.step(normal(3, 2, WIDTH), grown, lengths=torch.tensor([2, 1, 0]))
    key, value = (part.clone().index_fill(2, torch.arange(2, PLACES), rubbish) for part in (grown.key, grown.value))
    for step in range(4):
        x, positions = normal(3, 1, WIDTH, seed=step + 1), grown.positions
        seen = StaticMask((torch.arange(PLACES) <= positions.unsqueeze(-1))[:, None, None])
        steady = StaticCache(key, value, positions, PLACES, False, seen)
        y, after = layer.step(x, steady)
        expected, grown = layer.step(x, grown)
        assert_close(y, expected)
        assert after.key.data_ptr() == key.data_ptr()


def test_it_takes_one_token_a_step_and_nothing_else():
    layer = regard.Attention(WIDTH, heads=2).double()
    start = layer.start(1, 3)
    steady = StaticCache(start.key, start.value, start.positions, 3, False, StaticMask(torch.ones(1, 1, 1, 3).bool()))
    with pytest.raises(AssertionError, match="one token of each row"):
        layer.step(normal(1, 2, WIDTH), steady)
    with pytest.raises(AssertionError, match="one token of each row"):
        layer.step(normal(1, 1, WIDTH), steady, mask=regard.Window(1, None))
