"""The order of a padded scan: every token once, in its turn, and nothing of the padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import normal

import regard
from regard.recurrence.packing import PackedOrder, PaddedOrder, scan_order

batches = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def tokens(lengths, side, columns):
    """x (B, N, 1): token t of row b is 10·b + t + 1; NaN in the padding."""
    x = torch.full((len(lengths), columns, 1), torch.nan)
    for row, length in enumerate(lengths):
        first = 0 if side == "right" else columns - length
        x[row, first:first + length, 0] = 10.0 * row + 1 + torch.arange(length)
    return x


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_example_of_the_docstring(side):
    lengths = [3, 1, 2]
    x = tokens(lengths, side, 4)
    order = PackedOrder.of(x, regard.Padding(lengths, side))
    assert order.sizes == (3, 2, 1)
    assert order.order.tolist() == [0, 2, 1]
    assert order.gather(x).flatten().tolist() == [1, 21, 11, 2, 22, 3]
    assert order.reverse(order.gather(x)).flatten().tolist() == [3, 22, 11, 2, 21, 1]
    back = order.scatter(order.gather(x))
    assert torch.equal(back, x.nan_to_num(0.0))


@given(batches, st.sampled_from(("right", "left")), st.integers(0, 3))
def test_packed_order_has_every_token_once(lengths, side, more):
    x = tokens(lengths, side, max(lengths) + more)
    order = PackedOrder.of(x, regard.Padding(lengths, side))
    assert list(order.sizes) == [sum(length > t for length in lengths) for t in range(max(lengths))]
    by_length = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    forward = [10.0 * row + 1 + t for t in range(max(lengths)) for row in by_length if t < lengths[row]]
    backward = [10.0 * row + lengths[row] - t for t in range(max(lengths)) for row in by_length if t < lengths[row]]
    read = order.gather(x)
    assert read.flatten().tolist() == forward
    assert order.reverse(read).flatten().tolist() == backward
    assert torch.equal(order.reverse(order.reverse(read)), read)
    assert torch.equal(order.scatter(read), x.nan_to_num(0.0))


@given(batches, st.integers(0, 3))
def test_states_are_arranged_and_restored(lengths, more):
    x = tokens(lengths, "right", max(lengths) + more)
    order = PackedOrder.of(x, regard.Padding(lengths))
    before = (normal(len(lengths), 2), normal(len(lengths), 3, seed=1))
    arranged = order.arrange(before)
    by_length = [row for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]) if lengths[row]]
    for memory, mine in zip(before, arranged, strict=True):
        assert torch.equal(mine, memory[by_length])
    for memory, mine, after in zip(before, arranged, order.restore([m + 1 for m in arranged], before), strict=True):
        assert len(mine) == len(by_length)
        assert torch.equal(after, memory + (torch.tensor(lengths) > 0).unsqueeze(-1))


def test_without_padding_there_is_no_index():
    x = normal(2, 3, 1)
    for present in (None, regard.Padding([3, 3]), regard.Padding(3)):
        order = PackedOrder.of(x, present)
        assert (order.sizes, order.index, order.order, order.mirror) == ((2, 2, 2), None, None, None)
        assert torch.equal(order.gather(x), x.transpose(0, 1).flatten(0, 1))
        assert torch.equal(order.reverse(order.gather(x)), x.flip(1).transpose(0, 1).flatten(0, 1))
        assert torch.equal(order.scatter(order.gather(x)), x)


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (0, 0, 2)])
@pytest.mark.parametrize("padded", [False, True])
def test_no_rows_or_no_tokens(shape, padded):
    x = normal(*shape)
    order = PackedOrder.of(x, regard.Padding(torch.zeros(shape[0], dtype=torch.long)) if padded else None)
    assert order.sizes == ()
    assert order.scatter(order.reverse(order.gather(x))).shape == shape
    assert order.arrange((normal(shape[0], 4),))[0].shape == (0, 4)


def test_errors():
    x = normal(2, 3, 1)
    with pytest.raises(ValueError, match=r"`present` must be a regard\.Padding or None, but is a Causal"):
        PackedOrder.of(x, regard.Causal())
    with pytest.raises(ValueError, match="`lengths` must be at most the number of tokens, 3, but is 4"):
        PackedOrder.of(x, regard.Padding([4, 1]))
    with pytest.raises(ValueError, match=r"`lengths` must be one for each of the 2 rows, but is of shape \(3,\)"):
        PackedOrder.of(x, regard.Padding([1, 1, 1]))


sides = st.sampled_from(("right", "left"))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_padded_example_of_the_docstring(side):
    lengths = [3, 1, 2]
    x = tokens(lengths, side, 3)
    order = PaddedOrder.of(x, regard.Padding(lengths, side))
    assert order.sizes == (3, 3, 3)
    assert order.gather(x).flatten().tolist() == [1, 11, 21, 2, 0, 22, 3, 0, 0]
    assert order.reverse(order.gather(x)).flatten().tolist() == [3, 11, 22, 2, 0, 21, 1, 0, 0]
    assert torch.equal(order.scatter(order.gather(x)), x.nan_to_num(0.0))


@given(batches, sides, st.integers(0, 3))
def test_padded_order_has_every_token_then_zeros(lengths, side, more):
    columns = max(lengths) + more
    x = tokens(lengths, side, columns)
    order = PaddedOrder.of(x, regard.Padding(lengths, side))
    there = [(t, row, length) for t in range(columns) for row, length in enumerate(lengths)]
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


def test_the_order_depends_on_the_device():
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


def test_impossible_lengths_are_clamped():
    """Lengths on a device are not checked, and an index outside of a tensor would end the process."""
    present = regard.Padding([1, 1])
    present.lengths.copy_(torch.tensor([-4, 9]))
    assert PaddedOrder.of(normal(2, 3, 1), present).lengths.tolist() == [0, 3]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (0, 0, 2)])
def test_padded_order_without_rows_or_tokens(shape, side):
    x = normal(*shape)
    order = PaddedOrder.of(x, regard.Padding(torch.zeros(shape[0], dtype=torch.long), side))
    assert order.sizes == ()
    assert order.scatter(order.reverse(order.gather(x))).shape == shape


def test_errors_of_the_padded_order():
    x = normal(2, 3, 1).to("meta")
    with pytest.raises(ValueError, match=r"`present` must be a regard\.Padding or None, but is a Causal"):
        scan_order(x, regard.Causal())
    with pytest.raises(ValueError, match=r"`lengths` must be one for each of the 2 rows, but is of shape \(3,\)"):
        scan_order(x, regard.Padding(torch.zeros(3, dtype=torch.long, device="meta")))
