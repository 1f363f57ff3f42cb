"""The order of reading: every token once, in its turn, and nothing of the padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import normal

import regard
from regard.recurrence.packing import PackedOrder

batches = st.lists(st.integers(0, 5), min_size=1, max_size=5)


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
    x = tokens(lengths, side, 4)
    reading = PackedOrder.of(x, regard.Padding(lengths, side))
    assert reading.sizes == (3, 2, 1)
    assert reading.order.tolist() == [0, 2, 1]
    assert reading.gather(x).flatten().tolist() == [1, 21, 11, 2, 22, 3]
    assert reading.reverse(reading.gather(x)).flatten().tolist() == [3, 22, 11, 2, 21, 1]
    back = reading.scatter(reading.gather(x))
    assert torch.equal(back, x.nan_to_num(0.0))


@given(batches, st.sampled_from(("right", "left")), st.integers(0, 3))
def test_every_token_is_read_once_in_its_turn(lengths, side, more):
    x = tokens(lengths, side, max(lengths) + more)
    reading = PackedOrder.of(x, regard.Padding(lengths, side))
    assert list(reading.sizes) == [sum(length > t for length in lengths) for t in range(max(lengths))]
    by_length = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    forward = [10.0 * row + 1 + t for t in range(max(lengths)) for row in by_length if t < lengths[row]]
    backward = [10.0 * row + lengths[row] - t for t in range(max(lengths)) for row in by_length if t < lengths[row]]
    read = reading.gather(x)
    assert read.flatten().tolist() == forward
    assert reading.reverse(read).flatten().tolist() == backward
    assert torch.equal(reading.reverse(reading.reverse(read)), read)
    assert torch.equal(reading.scatter(read), x.nan_to_num(0.0))


@given(batches, st.integers(0, 3))
def test_states_go_to_the_rows_that_are_read_and_back(lengths, more):
    x = tokens(lengths, "right", max(lengths) + more)
    reading = PackedOrder.of(x, regard.Padding(lengths))
    before = (normal(len(lengths), 2), normal(len(lengths), 3, seed=1))
    arranged = reading.arrange(before)
    by_length = [row for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]) if lengths[row]]
    for memory, mine in zip(before, arranged, strict=True):
        assert torch.equal(mine, memory[by_length])
    for memory, mine, after in zip(before, arranged, reading.restore([m + 1 for m in arranged], before), strict=True):
        assert len(mine) == len(by_length)
        assert torch.equal(after, memory + (torch.tensor(lengths) > 0).unsqueeze(-1))


def test_without_padding_nothing_is_looked_up():
    x = normal(2, 3, 1)
    for present in (None, regard.Padding([3, 3]), regard.Padding(3)):
        reading = PackedOrder.of(x, present)
        assert (reading.sizes, reading.index, reading.order, reading.mirror) == ((2, 2, 2), None, None, None)
        assert torch.equal(reading.gather(x), x.transpose(0, 1).flatten(0, 1))
        assert torch.equal(reading.reverse(reading.gather(x)), x.flip(1).transpose(0, 1).flatten(0, 1))
        assert torch.equal(reading.scatter(reading.gather(x)), x)


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (0, 0, 2)])
@pytest.mark.parametrize("padded", [False, True])
def test_no_rows_or_no_tokens(shape, padded):
    x = normal(*shape)
    reading = PackedOrder.of(x, regard.Padding(torch.zeros(shape[0], dtype=torch.long)) if padded else None)
    assert reading.sizes == ()
    assert reading.scatter(reading.reverse(reading.gather(x))).shape == shape
    assert reading.arrange((normal(shape[0], 4),))[0].shape == (0, 4)


def test_errors():
    x = normal(2, 3, 1)
    with pytest.raises(ValueError, match=r"`present` must be a regard\.Padding or None, but is a Causal"):
        PackedOrder.of(x, regard.Causal())
    with pytest.raises(ValueError, match="`lengths` must be at most the number of tokens, 3, but is as long as 4"):
        PackedOrder.of(x, regard.Padding([4, 1]))
    with pytest.raises(ValueError, match=r"`lengths` must be one for each of the 2 rows, but is of shape \(3,\)"):
        PackedOrder.of(x, regard.Padding([1, 1, 1]))
