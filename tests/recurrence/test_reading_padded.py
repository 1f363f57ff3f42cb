"""The order of reading without asking for lengths: every token in its turn, then zeros for what is padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import normal

import regard
from regard.recurrence.packing import PackedOrder, PaddedOrder, scan_order

batches = st.lists(st.integers(0, 5), min_size=1, max_size=5)
sides = st.sampled_from(("right", "left"))


def tokens(lengths, side, places):
    """x (B, N, 1): token t of row b is 10·b + t + 1; NaN in the padding."""
    x = torch.full((len(lengths), places, 1), torch.nan)
    for row, length in enumerate(lengths):
        first = 0 if side == "right" else places - length
        x[row, first:first + length, 0] = 10.0 * row + 1 + torch.arange(length)
    return x


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_example_of_the_docstring(side):
    lengths = [3, 1, 2]
    x = tokens(lengths, side, 3)
    order = PaddedOrder.of(x, regard.Padding(lengths, side))
    assert order.sizes == (3, 3, 3)
    assert order.gather(x).flatten().tolist() == [1, 11, 21, 2, 0, 22, 3, 0, 0]
    assert order.reverse(order.gather(x)).flatten().tolist() == [3, 11, 22, 2, 0, 21, 1, 0, 0]
    assert torch.equal(order.scatter(order.gather(x)), x.nan_to_num(0.0))


@given(batches, sides, st.integers(0, 3))
def test_every_token_is_read_in_its_turn(lengths, side, more):
    places = max(lengths) + more
    x = tokens(lengths, side, places)
    order = PaddedOrder.of(x, regard.Padding(lengths, side))
    there = [(t, row, length) for t in range(places) for row, length in enumerate(lengths)]
    read = order.gather(x)
    assert read.flatten().tolist() == [10.0 * row + 1 + t if t < length else 0.0 for t, row, length in there]
    backward = [10.0 * row + length - t if t < length else 0.0 for t, row, length in there]
    assert order.reverse(read).flatten().tolist() == backward
    made = normal(len(read), 2)  # what a scan makes of padding is anything
    assert torch.equal(order.reverse(order.reverse(made)), made)
    assert torch.equal(order.scatter(read), x.nan_to_num(0.0))
    assert torch.equal(order.scatter(read + 1), torch.where(x.isnan(), 0.0, x + 1))


@given(batches, sides)
def test_gradients_go_where_the_tokens_are(lengths, side):
    x = tokens(lengths, side, 5).requires_grad_()
    order = PaddedOrder.of(x, regard.Padding(lengths, side))
    upstream = torch.where(x.isnan(), torch.nan, torch.arange(1.0, 1 + x.numel()).view_as(x))
    (gradient,) = torch.autograd.grad(order.scatter(order.reverse(order.reverse(order.gather(x)))), x, upstream)
    assert torch.equal(gradient, upstream.nan_to_num(0.0))


def test_which_reading_it_is_follows_from_where_things_are():
    x, present = normal(2, 3, 1), regard.Padding([1, 3])
    there = regard.Padding(present.lengths.to("meta"))  # a device of which nothing can be asked
    assert isinstance(scan_order(x, present), PackedOrder)
    assert isinstance(scan_order(x.to("meta"), None), PackedOrder)
    assert isinstance(scan_order(x.to("meta"), there), PaddedOrder)
    with pytest.raises(NotImplementedError, match="no data"):
        scan_order(x, there)


def test_one_length_is_that_of_all_rows():
    x = normal(2, 3, 1)
    for lengths in (2, [2]):
        assert PaddedOrder.of(x, regard.Padding(lengths)).lengths.tolist() == [2, 2]


def test_lengths_that_cannot_be_are_the_nearest_that_can():
    """On a device nobody looks, and an index outside of a tensor would end the process."""
    present = regard.Padding([1, 1])
    present.lengths.copy_(torch.tensor([-4, 9]))
    assert PaddedOrder.of(normal(2, 3, 1), present).lengths.tolist() == [0, 3]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (0, 0, 2)])
def test_no_rows_or_no_tokens(shape, side):
    x = normal(*shape)
    order = PaddedOrder.of(x, regard.Padding(torch.zeros(shape[0], dtype=torch.long), side))
    assert order.sizes == ()
    assert order.scatter(order.reverse(order.gather(x))).shape == shape


def test_errors():
    x = normal(2, 3, 1).to("meta")
    with pytest.raises(ValueError, match=r"`present` must be a regard\.Padding or None, but is a Causal"):
        scan_order(x, regard.Causal())
    with pytest.raises(ValueError, match=r"`lengths` must be one for each of the 2 rows, but is of shape \(3,\)"):
        scan_order(x, regard.Padding(torch.zeros(3, dtype=torch.long, device="meta")))
