"""Masks against matrices drawn by hand and against the oracle; indices of blocks; packed sequences."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import cuts, held, masks, normal, some_masks

import regard
from regard import Causal, Packed, Padding, Placed, Window
from regard.attention.mask import BlockIndices, as_mask
from regard.reference import attention as oracle

lenient = settings(suppress_health_check=list(HealthCheck))


def drawn(tensor):
    """A bool matrix as it is drawn in these tests."""
    return ["".join("1" if x else "0" for x in row) for row in tensor]


def tensor(*rows):
    """The bool matrix that is drawn."""
    return torch.tensor([[x == "1" for x in row] for row in rows])


# mask, queries, keys, the matrix
DRAWN = [
    (Causal(), 4, 4, ["1000", "1100", "1110", "1111"]),
    (Causal(), 2, 5, ["11110", "11111"]),
    (Causal(), 1, 3, ["111"]),
    (Causal(), 5, 2, ["00", "00", "00", "10", "11"]),
    (Window(1, 0), 4, 4, ["1000", "1100", "0110", "0011"]),
    (Window(0, 2), 4, 4, ["1110", "0111", "0011", "0001"]),
    (Window(None, 1), 3, 4, ["1110", "1111", "1111"]),
    (Window(1, None), 3, 4, ["1111", "0111", "0011"]),
    (Window(None, None), 2, 3, ["111", "111"]),
    (Window(0, 0), 3, 5, ["00100", "00010", "00001"]),
    (Window(1, 1), 5, 3, ["000", "100", "110", "111", "011"]),
    (Padding(2), 2, 4, ["1100", "1100"]),
    (Padding(2, side="left"), 2, 4, ["0011", "0011"]),
    (Padding(0), 2, 3, ["000", "000"]),
    (Padding(3), 1, 3, ["111"]),
    (Placed(1), 2, 4, ["1110", "1110"]),
    (Placed(3), 2, 4, ["1111", "1111"]),
    (Causal() & Placed(0), 3, 4, ["1000", "1100", "1110"]),
    (Placed(1) & Causal(), 2, 4, ["1100", "1110"]),
    (Causal() & Placed(5), 2, 4, ["1111", "1111"]),
    (Window(1, 0) & Placed(1), 2, 5, ["11000", "01100"]),
    (Window(0, 5) & Placed(1), 2, 5, ["01100", "00100"]),
    (Causal() & Window(1, None), 4, 4, ["1000", "1100", "0110", "0011"]),
    (Causal() & Padding(2), 3, 3, ["100", "110", "110"]),
    (Causal() | Window(0, 1), 3, 3, ["110", "111", "111"]),
    (~Causal(), 3, 3, ["011", "001", "000"]),
    (~Padding(1), 2, 3, ["011", "011"]),
    (~(Causal() & Placed(1)), 2, 4, ["0011", "0001"]),
    (Causal() & tensor("011", "101", "111"), 3, 3, ["000", "100", "111"]),
    (tensor("011", "101", "111") & Causal(), 3, 3, ["000", "100", "111"]),
    (Causal() | tensor("001"), 3, 3, ["101", "111", "111"]),
    (tensor("001") | Causal(), 3, 3, ["101", "111", "111"]),
    (tensor("1", "0", "1") & Causal(), 3, 3, ["100", "000", "111"]),
    (as_mask(torch.tensor(True)), 2, 3, ["111", "111"]),
    (as_mask(torch.tensor([True, False])), 3, 2, ["10", "10", "10"]),
    (Causal() | Causal() & Placed(0), 2, 3, ["110", "111"]),  # each side stands where it says
    ((Causal() | Window(0, 1)) & Placed(0), 2, 4, ["1100", "1100"]),  # Placed says it for all
]


@pytest.mark.parametrize(("mask", "n_queries", "n_keys", "matrix"), DRAWN, ids=[repr(case[0]) for case in DRAWN])
def test_the_matrix_of_a_mask(mask, n_queries, n_keys, matrix):
    assert drawn(mask.matrix(n_queries, n_keys)) == matrix


def test_the_matrix_of_every_sequence():
    right = Padding([2, 0, 3]).matrix(2, 3)
    assert right.shape == (3, 2, 3)
    assert [drawn(m) for m in right] == [["110"] * 2, ["000"] * 2, ["111"] * 2]
    left = Padding(torch.tensor([2, 0, 3]), side="left").matrix(2, 3)
    assert [drawn(m) for m in left] == [["011"] * 2, ["000"] * 2, ["111"] * 2]
    placed = (Causal() & Placed([0, 2])).matrix(2, 4)
    assert [drawn(m) for m in placed] == [["1000", "1100"], ["1110", "1111"]]


def test_the_matrix_under_leading_dimensions():
    """Lengths are aligned from the left: the first leading dimension is the batch, heads come after."""
    assert Padding([1, 2]).matrix(3, 4, leading=2).shape == (2, 1, 3, 4)
    assert Padding([[1, 2, 3]]).matrix(3, 4, leading=3).shape == (1, 3, 1, 3, 4)
    assert Causal().matrix(3, 4, leading=2).shape == (3, 4)
    both = (Padding([1, 4]) & torch.ones(5, 3, 1, dtype=torch.bool)).matrix(3, 4, leading=2)
    assert both.shape == (2, 5, 3, 4)
    assert drawn(both[0, 4]) == ["1000"] * 3
    assert drawn(both[1, 0]) == ["1111"] * 3


@lenient
@given(st.data(), st.integers(0, 5), st.integers(0, 5), st.sampled_from(((), (2,), (1, 2), (2, 2, 1))))
def test_any_combination_of_masks_is_the_oracles(data, n_queries, n_keys, leading):
    known = data.draw(masks(leading, n_queries, n_keys, depth=3))
    matrix = as_mask(known.mask).matrix(n_queries, n_keys, leading=len(leading))
    full = (*leading, n_queries, n_keys)
    assert np.array_equal(np.broadcast_to(matrix.numpy(), full), np.broadcast_to(known.matrix, full))


@lenient
@given(st.data(), st.integers(0, 5), st.integers(0, 5))
def test_de_morgan(data, n_queries, n_keys):
    """For masks that agree on where the queries stand."""
    a, b = (as_mask(data.draw(some_masks((2,), n_queries, n_keys)).mask) for _ in range(2))

    def shown(mask):
        return mask.matrix(n_queries, n_keys, leading=1).expand(2, n_queries, n_keys)

    assert torch.equal(shown(~(a & b)), shown(~a | ~b))
    assert torch.equal(shown(~(a | b)), shown(~a & ~b))
    assert torch.equal(shown(~~a), shown(a))
    assert torch.equal(shown(a & b), shown(a) & shown(b))
    assert torch.equal(shown(a | b), shown(a) | shown(b))


@settings(suppress_health_check=list(HealthCheck), max_examples=150)
@given(st.data(), st.integers(0, 7), st.integers(0, 7))
def test_the_span_is_never_too_narrow(data, n_queries, n_keys):
    known = data.draw(masks((2,), n_queries, n_keys, depth=2))
    mask = as_mask(known.mask)
    matrix = np.broadcast_to(known.matrix, (2, n_queries, n_keys)).any(axis=0)
    for first in range(n_queries):
        for last in range(first + 1, n_queries + 1):
            start, stop = mask.span(first, last, n_queries, n_keys)
            assert 0 <= start <= stop <= n_keys
            outside = np.ones(n_keys, dtype=bool)
            outside[start:stop] = False
            assert not matrix[first:last, outside].any()


@pytest.mark.parametrize(("mask", "span"), [
    (Causal(), (0, 6)), (Window(2, 0), (2, 6)), (Window(1, 1) & Causal(), (3, 6)), (Causal() & Placed(0), (0, 8)),
    (Window(0, 0) | Causal(), (0, 8)), (Padding(3), (0, 8)),
], ids=repr)
def test_the_span_is_narrow_where_that_saves_work(mask, span):
    """Queries 4 and 5 of eight, which stand at keys 4 and 5."""
    assert mask.span(4, 6, 8, 8) == span


@pytest.mark.parametrize(("mask", "words"), [
    (Causal(), "Causal()"), (Window(3, None), "Window(3, None)"), (Padding(4), 'Padding(4, side="right")'),
    (Padding([4, 2], side="left"), 'Padding([4, 2], side="left")'), (Placed([1, 2]), "Placed([1, 2])"),
    (Padding(list(range(9))), 'Padding([0, 1, 2, 3, 4, 5, …], side="right")'),
    (Causal() & Window(1, 1) & Padding(2), 'Causal() & Window(1, 1) & Padding(2, side="right")'),
    ((Causal() | Window(1, 1)) & Packed([2]), "(Causal() | Window(1, 1)) & Packed([2])"),
    (Causal() & Window(1, 1) | Packed([2], [3]), "Causal() & Window(1, 1) | Packed([2], [3])"),
    (~Causal(), "~Causal()"), (~(Causal() | Placed(1)), "~(Causal() | Placed(1))"),
    (~(Causal() & Placed(1)), "~(Causal() & Placed(1))"), (~~Causal(), "~~Causal()"),
    (Causal() & tensor("10", "11"), "Causal() & BoolMask(bool tensor of shape (2, 2))"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_a_mask_says_what_it_is(mask, words):
    assert repr(mask) == words


def test_lengths_of_any_whole_dtype_mean_the_same():
    """The number of keys may not fit into the dtype of the lengths."""
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        numbers = torch.tensor([5, 100], dtype=dtype)
        for side in ("left", "right"):
            want = oracle.padding([5, 100], 2, 300, side)
            assert np.array_equal(Padding(numbers, side=side).matrix(2, 300).numpy(), want)
        placed = np.stack([oracle.placed_causal(start, 200, 300) for start in (5, 100)])
        assert np.array_equal((Placed(numbers) & Causal()).matrix(200, 300).numpy(), placed)
        packed = oracle.packed_causal([5, 100], None, 200, 300)
        assert np.array_equal((Packed(numbers) & Causal()).matrix(200, 300).numpy(), packed)


def test_masks_are_not_changed_by_being_combined_or_used():
    causal, padding = Causal(), Padding([2, 1])
    both = causal & padding
    assert drawn((both & Window(0, 0)).matrix(2, 2)[0]) == ["10", "01"]
    assert drawn(both.matrix(2, 2)[1]) == ["10", "10"]
    for size in (2, 5, 3):  # the same mask serves any size
        assert np.array_equal(causal.matrix(size, size).numpy(), oracle.causal(size, size))
        regard.attend(torch.zeros(2, size, 1), torch.zeros(2, size, 1), torch.zeros(2, size, 1), mask=both)


@pytest.mark.parametrize("wrong", [torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int64)])
def test_only_bool_tensors_combine(wrong):
    for combine in (lambda: Causal() & wrong, lambda: wrong & Causal(),
                    lambda: Causal() | wrong, lambda: wrong | Causal()):
        with pytest.raises(ValueError, match="`mask` must be a bool tensor"):
            combine()
    with pytest.raises(ValueError, match="`mask` must be a bool tensor or a mask"):
        Causal() & True


@pytest.mark.parametrize("mask", [Padding([1, 1]), Packed([1]), Placed(1), as_mask(tensor("11"))], ids=repr)
def test_a_mask_is_moved_to_the_device_it_is_asked_for(mask):
    assert mask.matrix(1, 2, device="meta").device.type == "meta"
    assert (Causal() & ~mask | Causal()).matrix(1, 2, device="meta").device.type == "meta"


# mask, queries, keys, the matrix
DRAWN_PACKED = [
    (Packed([2, 3]), 5, 5, ["11000", "11000", "00111", "00111", "00111"]),
    (Packed([1, 2]), 4, 5, ["10000", "01100", "01100", "00000"]),  # room behind neither sees nor is seen
    (Packed([2, 1], [1, 3]), 3, 4, ["1000", "1000", "0111"]),
    (Packed([2, 0, 1], [0, 2, 1]), 3, 3, ["000", "000", "001"]),  # a segment without keys, and one without queries
    (Packed([]), 2, 2, ["00", "00"]),
    (Packed([0, 0]), 1, 1, ["0"]),
    (Causal() & Packed([2, 3]), 5, 5, ["10000", "11000", "00100", "00110", "00111"]),
    (Packed([1, 3], [3, 2]) & Causal(), 4, 5, ["11100", "00000", "00010", "00011"]),  # aligned per segment
    (Causal() & Packed([1, 1]), 3, 3, ["100", "010", "000"]),
    (Window(1, 0) & Packed([3, 2]), 5, 5, ["10000", "11000", "01100", "00010", "00011"]),
    (Window(0, 1) & Packed([2, 2], [3, 2]), 4, 5, ["01100", "00100", "00011", "00001"]),
    (Window(1, None) & Causal() & Packed([3]), 3, 3, ["100", "110", "011"]),
    (Packed([2]) & torch.tensor([True, False, True]), 3, 3, ["100", "100", "000"]),
    (~Packed([1, 1]), 3, 3, ["011", "101", "111"]),
    (Packed([1]) | Causal(), 2, 2, ["10", "11"]),
    ((Causal() | Window(0, 1)) & Packed([1, 2]), 3, 3, ["100", "011", "011"]),
]


@pytest.mark.parametrize(("mask", "n_queries", "n_keys", "matrix"), DRAWN_PACKED,
                         ids=[repr(case[0]) for case in DRAWN_PACKED])
def test_the_matrix_of_segments(mask, n_queries, n_keys, matrix):
    assert drawn(mask.matrix(n_queries, n_keys)) == matrix


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("inner", [None, Causal(), Window(1, 2)], ids=repr)
@given(st.data(), st.integers(0, 7), st.integers(0, 7), st.integers(1, 3))
@settings(suppress_health_check=list(HealthCheck))
def test_every_segment_is_as_if_it_were_alone(inner, backend, data, n_queries, n_keys, segments):
    queries, keys = data.draw(cuts(n_queries, segments)), data.draw(cuts(n_keys, segments))
    query, key, value = normal(2, n_queries, 3, seed=1), normal(2, n_keys, 3, seed=2), normal(2, n_keys, 2, seed=3)
    mask = Packed(queries, keys) if inner is None else inner & Packed(queries, keys)
    bias = regard.ALiBi([0.5, 0.1]).double()
    with held(30):
        packed = regard.attend(query, key, value, mask=mask, bias=bias, backend=backend)
    q = k = 0
    for nq, nk in zip(queries, keys, strict=True):
        own = (query[:, q:q + nq], key[:, k:k + nk], value[:, k:k + nk])
        alone = regard.attend(*own, mask=inner, bias=bias, backend="exact")
        torch.testing.assert_close(packed[:, q:q + nq], alone, rtol=1e-12, atol=1e-14)
        q, k = q + nq, k + nk
    assert (packed[:, q:] == 0).all()


def test_what_segments_say():
    assert repr(Packed([2, 3])) == "Packed([2, 3])"
    assert repr(Packed([2, 3], [1, 4])) == "Packed([2, 3], [1, 4])"
    assert repr(Packed([2]).prepare(2, 2, None)) == "Packed([2])"
    assert Packed([2]).sets_positions
    assert (Packed([2]) & Causal()).sets_positions
    assert not (~Packed([2])).sets_positions


def test_lengths_may_be_a_tensor():
    want = Packed([2, 1]).matrix(3, 3)
    for dtype in (torch.int32, torch.int64):
        assert torch.equal(Packed(torch.tensor([2, 1], dtype=dtype)).matrix(3, 3), want)


def test_segments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"`query_lengths` must be lengths that add up to at most 3,.*add up to 4"):
        Packed([2, 2]).matrix(3, 4)
    with pytest.raises(ValueError, match=r"`key_lengths` must be lengths that add up to at most 3,.*add up to 4"):
        Packed([2, 1], [2, 2]).matrix(3, 3)


def test_rows_columns_and_positions():
    """3 queries, 5 keys: the last query stands at the last key."""
    whole = BlockIndices.of(3, 5, leading=0)
    assert whole.row.tolist() == [[0], [1], [2]]
    assert whole.column.tolist() == [0, 1, 2, 3, 4]
    assert whole.position.tolist() == [[2], [3], [4]]
    part = BlockIndices.of(3, 5, leading=0, rows=slice(1, 3), columns=slice(2, 4))
    assert (part.row.tolist(), part.column.tolist(), part.position.tolist()) == ([[1], [2]], [2, 3], [[3], [4]])
    some = BlockIndices.of(3, 5, leading=0, rows=torch.tensor([2, 0]))
    assert (some.row.tolist(), some.position.tolist()) == ([[2], [0]], [[4], [2]])
    more = BlockIndices.of(4, 1, leading=0)
    assert more.position.tolist() == [[-3], [-2], [-1], [0]]


@pytest.mark.parametrize(("shape", "leading", "expected"), [
    ((), 0, (1, 1)), ((), 2, (1, 1, 1, 1)), ((2,), 1, (2, 1, 1)), ((2,), 3, (2, 1, 1, 1, 1)),
    ((2, 3), 2, (2, 3, 1, 1)), ((2, 3), 3, (2, 3, 1, 1, 1)),
])
def test_numbers_of_sequences_are_aligned_from_the_left(shape, leading, expected):
    numbers = torch.arange(6)[: torch.Size(shape).numel()].view(shape)
    got = BlockIndices.of(3, 5, leading=leading).per_sequence(numbers)
    assert got.shape == expected
    assert got.flatten().tolist() == numbers.flatten().tolist()


def test_entries_of_a_matrix():
    matrix = torch.arange(15).view(3, 5)
    place = BlockIndices.of(3, 5, leading=0, rows=slice(1, 3), columns=slice(2, 4))
    assert place.select(matrix).tolist() == [[7, 8], [12, 13]]
    assert place.select(matrix[:1]).tolist() == [[2, 3]]  # one row stands for all
    assert place.select(matrix[:, :1]).tolist() == [[5], [10]]
    assert place.select(matrix[:1, :1]).tolist() == [[0]]
    rows = BlockIndices.of(3, 5, leading=0, rows=torch.tensor([2, 0, 2]))
    assert rows.select(matrix).tolist() == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


def test_standing_elsewhere_changes_the_position_alone():
    place = BlockIndices.of(2, 4, leading=0)
    moved = place.at(place.row + 7)
    assert moved.position.tolist() == [[7], [8]]
    assert moved.row is place.row
    assert place.position.tolist() == [[2], [3]]
    assert Placed(1).aligned(place).position.tolist() == [[1], [2]]
    assert Causal().aligned(place) is place


@given(st.data(), st.integers(1, 6), st.integers(1, 6))
@settings(suppress_health_check=list(HealthCheck))
def test_a_mask_of_a_block_is_cut_from_the_mask_of_all(data, n_queries, n_keys):
    mask = as_mask(data.draw(masks((2,), n_queries, n_keys)).mask).prepare(n_queries, n_keys, None)
    whole = BlockIndices.of(n_queries, n_keys, leading=1)
    matrix = mask.allowed(mask.aligned(whole)).expand(2, n_queries, n_keys)
    first, start = data.draw(st.integers(0, n_queries)), data.draw(st.integers(0, n_keys))
    last, stop = data.draw(st.integers(first, n_queries)), data.draw(st.integers(start, n_keys))
    rows = data.draw(st.sampled_from((slice(first, last), torch.arange(first, last).flip(0))))
    block = BlockIndices.of(n_queries, n_keys, leading=1, rows=rows, columns=slice(start, stop))
    got = mask.allowed(mask.aligned(block))
    want = matrix[:, rows, start:stop]
    assert torch.equal(got.expand(want.shape), want)
