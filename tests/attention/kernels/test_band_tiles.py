"""Tiles of a band: every query and every key is in one, and nobody in a whole one sees or is seen beyond it."""

import pytest
import torch

from regard import Causal, Packed, Window
from regard.attention.mask_cache import Band, band_of

pytest.importorskip("triton")
from regard.kernels import band as band_tiles
from regard.kernels import band as band_triton

pytestmark = pytest.mark.skipif(not band_triton.INTERPRETED, reason="the kernels are compiled here")


def band(mask, n_queries, n_keys):
    return band_of(mask.prepare(n_queries, n_keys, None), n_queries, n_keys, leading=0, device=torch.device("cpu"))


def found(first, last, n_keys, size):
    """Whole tiles and parts, in order."""
    tiles, counts = band_tiles.find_tiles(first, last, n_keys, size)
    assert (counts <= tiles.shape[1]).all()
    return [sorted(map(tuple, kind[:count].tolist())) for kind, count in zip(tiles, counts, strict=True)]


def drawn(count, longest, seed):
    lengths = torch.randint(0, longest + 1, (count,), generator=torch.Generator().manual_seed(seed))
    return lengths.where(torch.arange(count) % 7 != 5, lengths % 3)


def assert_cut(ends, n_keys, size):
    whole, parts = found(ends.first, ends.last, n_keys, size)
    queries, keys = torch.zeros(ends.first.shape[-1]), torch.zeros(n_keys)
    for start, stop, low, high in whole + parts:
        assert stop - start <= size
        assert high - low <= size
        queries[start:stop] += 1
        keys[low:high] += 1
    assert (queries == 1).all()
    assert (keys == 1).all()
    column = torch.arange(n_keys)
    matrix = (column >= ends.first[:, None]) & (column < ends.last[:, None])
    for start, stop, low, high in whole:
        inside = matrix[start:stop, low:high].sum()
        assert inside == matrix[start:stop].sum() == matrix[:, low:high].sum()
    return whole, parts


def test_as_many_sequences_as_there_is_room_for():
    lengths = Packed([5, 9, 3, 20, 4, 16])
    whole, parts = assert_cut(band(lengths, 57, 57), 57, 16)
    assert whole == [(0, 14, 0, 14), (14, 17, 14, 17), (37, 41, 37, 41), (41, 57, 41, 57)]
    assert parts == [(17, 33, 17, 33), (33, 37, 33, 37)]


def test_either_side_may_be_full_first():
    whole, parts = assert_cut(band(Packed([2, 2, 9, 1], [7, 8, 2, 20]), 14, 37), 37, 16)
    assert whole == [(0, 4, 0, 15), (4, 13, 15, 17)]
    assert parts == [(13, 14, 17, 33), (14, 14, 33, 37)]


@pytest.mark.parametrize("mask", [None, Causal(), Causal() & Window(4, None)])
@pytest.mark.parametrize(("count", "longest", "seed"), [(1, 200, 0), (40, 30, 1), (12, 200, 2), (3, 1, 3)])
def test_any_lengths(mask, count, longest, seed):
    queries, keys = drawn(count, longest, seed), drawn(count, longest, seed + 9)
    n_queries, n_keys = int(queries.sum()) + 1 + seed % 2 * 40, int(keys.sum()) + 1 + seed % 3 * 20
    for both, size in ((Packed(queries), n_queries), (Packed(queries, keys), n_keys)):
        assert_cut(band(both if mask is None else mask & both, n_queries, size), size, 16 if seed else 8)


def test_tokens_that_see_themselves_alone_fill_all_tiles_but_the_last_one_of_a_stretch():
    count = 16 * band_tiles.STRETCH + 24
    whole, parts = assert_cut(band(Packed([1] * count), count, count), count, 16)
    assert not parts
    assert len(whole) == band_tiles.STRETCH + 2


def test_one_sequence_for_all_is_cut():
    whole, parts = assert_cut(band(Causal(), 1000, 1000), 1000, 16)
    assert not whole
    assert len(parts) == 63


def test_rows_have_tiles_of_their_own():
    one, other = band(Packed([30, 3]), 33, 33), band(Packed([3, 2, 28]), 33, 33)
    tiles, counts = band_tiles.find_tiles(*(torch.stack(ends).unsqueeze(0) for ends in (
        (one.first, other.first), (one.last, other.last))), 33, 16)
    assert tiles.shape[:3] == (1, 2, 2)
    for row, ends in enumerate((one, other)):
        mine = [sorted(map(tuple, tiles[0, row, kind, :counts[0, row, kind]].tolist())) for kind in (0, 1)]
        assert mine == found(ends.first, ends.last, 33, 16)


def test_ends_beyond_all_keys_are_those_of_nobody():
    """Who sees nothing may say so by ends that are anywhere, if they only never fall."""
    assert_cut(Band(torch.tensor([0, 0, 3, 9]), torch.tensor([2, 3, 3, 9])), 5, 16)
