"""Every mask against its matrix written out by hand: 1 may attend, 0 may not."""

import numpy as np
import pytest
import torch

from regard.reference import attention
from regard.reference import attention as masks


def assert_same(mask, rows):
    """The mask is exactly this picture."""
    assert mask.dtype == np.bool_
    assert ["".join("01"[int(cell)] for cell in row) for row in mask] == rows


def test_distances_are_key_minus_query_aligned_to_the_bottom_right():
    assert masks.distances(2, 4).tolist() == [[-2, -1, 0, 1], [-3, -2, -1, 0]]
    assert masks.distances(3, 2).tolist() == [[1, 2], [0, 1], [-1, 0]]


def test_distances_from_a_start():
    assert masks.distances(2, 4, start=0).tolist() == [[0, 1, 2, 3], [-1, 0, 1, 2]]
    assert masks.distances(2, 4, start=1).tolist() == [[-1, 0, 1, 2], [-2, -1, 0, 1]]


def test_causal():
    assert_same(masks.causal(4, 4), ["1000", "1100", "1110", "1111"])
    assert_same(masks.causal(2, 4), ["1110", "1111"])
    assert_same(masks.causal(4, 2), ["00", "00", "10", "11"])
    assert_same(masks.causal(1, 3), ["111"])


def test_causal_differs_from_torch_with_fewer_queries_than_keys():
    top_left = torch.ones(2, 4, dtype=torch.bool).tril().numpy()
    assert not np.array_equal(masks.causal(2, 4), top_left)
    assert np.array_equal(masks.causal(4, 4), torch.ones(4, 4, dtype=torch.bool).tril().numpy())


def test_padding_on_either_side():
    right = masks.padding([2, 0, 3], 2, 3, "right")
    assert_same(right[0], ["110", "110"])
    assert_same(right[1], ["000", "000"])
    assert_same(right[2], ["111", "111"])
    assert_same(masks.padding([2], 1, 3, "left")[0], ["011"])
    with pytest.raises(ValueError, match="`side` must be 'left' or 'right', but is 'up'"):
        masks.padding([1], 1, 1, "up")


def test_window():
    assert_same(masks.window(4, 4, 1, 0), ["1000", "1100", "0110", "0011"])
    assert_same(masks.window(4, 4, 1, 1), ["1100", "1110", "0111", "0011"])
    assert_same(masks.window(2, 4, 1, 0), ["0110", "0011"])
    assert_same(masks.window(3, 3, None, 0), ["100", "110", "111"])
    assert_same(masks.window(3, 3, 0, None), ["111", "011", "001"])
    assert_same(masks.window(2, 2, None, None), ["11", "11"])


def test_packed():
    assert_same(masks.packed([2, 1]), ["110", "110", "001"])
    assert_same(masks.packed([1, 2], [2, 1]), ["110", "001", "001"])
    assert_same(masks.packed([1, 0, 1], [1, 1, 1]), ["100", "001"])


def test_packed_leaves_out_what_lies_beyond_the_segments():
    assert_same(masks.packed([1, 1], [1, 1], 3, 4), ["1000", "0100", "0000"])
    with pytest.raises(ValueError, match="positions"):
        masks.packed([2, 2], n_queries=3)
    with pytest.raises(ValueError, match="as many segments"):
        masks.packed([2, 2], [4])


def test_packed_causal_is_aligned_in_every_segment():
    assert_same(masks.packed_causal([2, 2]), ["1000", "1100", "0010", "0011"])
    assert_same(masks.packed_causal([1, 2], [3, 2]), ["11100", "00010", "00011"])
    assert_same(masks.packed_causal([2, 1], [1, 2]), ["000", "100", "011"])


def test_packed_window():
    assert_same(masks.packed_window([3, 2], None, 1, 0), ["10000", "11000", "01100", "00010", "00011"])
    assert_same(masks.packed_window([1, 1], [3, 2], 1, 0, 3, 6), ["011000", "000110", "000000"])


def test_placed():
    assert_same(masks.placed(1, 2, 5), ["11100", "11100"])
    assert_same(masks.placed_causal(1, 2, 5), ["11000", "11100"])
    assert_same(masks.placed_window(2, 2, 5, 1, None), ["01110", "00110"])


def test_placed_at_the_end_is_the_bottom_right():
    assert np.array_equal(masks.placed_causal(3, 2, 5), masks.causal(2, 5))
    assert np.array_equal(masks.placed_window(3, 2, 5, 2, 1), masks.window(2, 5, 2, 1))


def test_attention_knows_the_masks_by_name():
    for name in ("causal", "padding", "window", "packed", "packed_causal", "packed_window", "placed", "placed_causal"):
        assert getattr(attention, name) is getattr(masks, name)
