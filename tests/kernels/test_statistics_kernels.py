"""Statistics in fused passes equal the oracle's; no tile of the schedule is missed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import normal

import regard
from regard.attention.mask_cache import KeyRanges, is_band, key_ranges
from regard.attention.problem import build_problem
from regard.attention.statistics import STATISTICS_BACKENDS, StatisticRequest
from regard.kernels import launch
from regard.reference import attention as oracle
from regard.reference import statistics as oracle_statistics

pytest.importorskip("triton")

from regard.kernels.statistics import TileSizes, tile_schedule

pytestmark = pytest.mark.thorough

fused, by_rows = STATISTICS_BACKENDS["fused"], STATISTICS_BACKENDS["rows"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = TileSizes(16, 16, 4, 1)


def problem_of(query, key, *, score="scaled_dot", mask=None):
    return build_problem(query.to(DEVICE), key.to(DEVICE), key.to(DEVICE), score=score, normalize="softmax", mask=mask,
                         bias=None, dropout=0.0)


def masks(n_queries, n_keys):
    """Masks of two sequences by name, with their matrices according to the oracle."""
    size, half = (n_queries, n_keys), n_keys // 2
    lengths = [n_queries // 2, 0, n_queries // 3]
    keys = [n_keys // 3, 2, n_keys // 2]
    return {
        "none": (None, np.ones(size, dtype=bool)),
        "causal": (regard.Causal(), oracle.causal(*size)),
        "window": (regard.Window(4, 1), oracle.window(*size, 4, 1)),
        "one side": (regard.Window(None, 2), oracle.window(*size, None, 2)),
        "padding": (regard.Padding([half, 0]), oracle.padding([half, 0], *size, "right")),
        "padding left": (regard.Padding([half, n_keys], side="left"), oracle.padding([half, n_keys], *size, "left")),
        "causal padding": (regard.Causal() & regard.Padding([3, half], side="left"),
                           oracle.causal(*size) & oracle.padding([3, half], *size, "left")),
        "packed": (regard.Packed(lengths, keys), oracle.packed(lengths, keys, *size)),
        "packed causal": (regard.Packed(lengths, keys) & regard.Causal(), oracle.packed_causal(lengths, keys, *size)),
        "placed": (regard.Placed(1) & regard.Causal(), oracle.placed_causal(1, *size) & oracle.placed(1, *size)),
    }


def weights_of(problem, matrix):
    """The oracle's weights, of the inputs as they are in their own precision."""
    query, key = (t.double().cpu().numpy() for t in (problem.query, problem.key))
    score = {"scaled_dot": oracle.scaled_dot, "dot": oracle.dot}[repr(problem.score)]
    matrix = matrix if matrix.ndim == 2 else matrix[:, None]
    return oracle.weights_many(query, key, score=score, mask=matrix)


def each(function, weights, *args):
    """What a function of one matrix gives for every matrix of (..., queries, keys)."""
    leading = weights.shape[:-2]
    results = [function(weights[index], *args) for index in np.ndindex(*leading)]
    if isinstance(results[0], tuple):
        return tuple(np.stack(part).reshape(leading + part[0].shape) for part in zip(*results, strict=True))
    return np.stack(results).reshape(leading + results[0].shape)


def assert_near(got, want, plain=0.0):
    """The error is at most twice that of the plain computation, and a few eps of the largest answer."""
    assert tuple(got.shape) == want.shape
    error = np.abs(got.double().cpu().numpy() - want).max()
    assert error <= 2 * plain + 8 * torch.finfo(got.dtype).eps * max(1e-3, np.abs(want).max())


def check(problem, matrix, sizes=(4, 40), tiles=SMALL):
    """Entropy, largest weights, sums and maps."""
    assert fused.refusal(StatisticRequest("entropy", problem)) is None
    weights = weights_of(problem, matrix)
    rough = {"entropy": by_rows.entropy(problem), "sums": by_rows.column_sums(problem)}
    want = {"entropy": each(oracle_statistics.entropy, weights), "sums": each(oracle_statistics.column_sums, weights)}
    plain = {name: np.abs(rough[name].double().cpu().numpy() - want[name]).max() for name in want}
    assert_near(fused.entropy(problem, tiles=tiles), want["entropy"], plain["entropy"])
    assert_near(fused.column_sums(problem, tiles=tiles), want["sums"], plain["sums"])
    values, positions = fused.row_max(problem, tiles=tiles)
    assert_peaks(values.unsqueeze(-1), positions.unsqueeze(-1), weights, 1)
    for size in sizes:
        assert_near(fused.block_map(problem, size, tiles=tiles), each(oracle_statistics.block_map, weights, size))


def assert_peaks(values, positions, weights, count):
    """The largest weights and where they are; which of two that differ by a rounding comes first is open."""
    want, places = each(oracle_statistics.top_k, weights, count)
    assert_near(values, want)
    assert positions.dtype == torch.int64
    found = np.take_along_axis(weights, positions.cpu().numpy(), axis=-1)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-12)
    clear = np.isclose(found, want, rtol=1e-9, atol=0)
    np.testing.assert_array_equal(positions.cpu().numpy()[clear & (want == 0)], places[clear & (want == 0)])


# ---- the oracle's answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", masks(12, 12))
def test_every_statistic_is_the_oracles_under_every_range_mask(name):
    query, key = normal(2, 1, 18, 5).float(), normal(2, 1, 34, 5, seed=1).float()
    mask, matrix = masks(18, 34)[name]
    check(problem_of(query, key, mask=mask), matrix)


@pytest.mark.parametrize("name", ["none", "window", "packed causal", "causal padding"])
def test_the_best_keys_are_the_oracles(name):
    query, key = normal(2, 1, 3, 5).float(), normal(2, 1, 35, 5, seed=1).float()
    mask, matrix = masks(3, 35)[name]
    problem = problem_of(query, key, mask=mask)
    assert_peaks(*fused.top_k(problem, 5, tiles=SMALL), weights_of(problem, matrix), 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)],
                         ids=str)
def test_heads_may_share_keys_in_every_type(dtype):
    query, key = normal(1, 4, 3, 20).to(dtype), normal(1, 2, 17, 20, seed=1).to(dtype)
    check(problem_of(query, key, score="dot"), np.ones((3, 17), dtype=bool), sizes=(2,))


@pytest.mark.parametrize(("n_queries", "n_keys", "width"), [(1, 1, 1), (1, 20, 3), (17, 1, 33)])
def test_odd_sizes(n_queries, n_keys, width):
    query, key = normal(1, 1, n_queries, width).float(), normal(1, 1, n_keys, width, seed=1).float()
    check(problem_of(query, key, mask=regard.Causal()), oracle.causal(n_queries, n_keys), sizes=(1, 2))


@pytest.mark.parametrize("size", [1, 2, 16, 32, 33, 48])
def test_maps_of_every_size(size):
    query, key = normal(1, 1, 50, 4).float(), normal(1, 1, 70, 4, seed=1).float()
    problem = problem_of(query, key, mask=regard.Causal())
    want = each(oracle_statistics.block_map, weights_of(problem, oracle.causal(50, 70)), size)
    assert fused.refusal(StatisticRequest("block_map", problem, size)) is None
    assert_near(fused.block_map(problem, size, tiles=SMALL), want)


def test_of_equal_weights_the_first_key_comes_first():
    problem = problem_of(torch.zeros(1, 4, 3), normal(1, 20, 3).float(), mask=regard.Causal())
    values, positions = fused.top_k(problem, 8, tiles=SMALL)
    assert (positions == torch.arange(8, device=DEVICE)).all()
    torch.testing.assert_close(values[0], (1 / torch.arange(17.0, 21.0))[:, None].expand(4, 8).to(DEVICE))
    assert (fused.row_max(problem, tiles=SMALL)[1] == 0).all()
    # Two keys alike in different tiles, the others worse; then what is not seen, in order.
    key = -torch.ones(1, 20, 2)
    key[:, 5] = key[:, 18] = 1.0
    problem = problem_of(torch.ones(1, 1, 2), key, mask=regard.Padding(19))
    assert fused.top_k(problem, 3, tiles=SMALL)[1].tolist() == [[[5, 18, 0]]]
    seen = problem_of(torch.ones(1, 1, 2), key, mask=regard.Padding(2, side="left") & regard.Padding(19))
    values, positions = fused.top_k(seen, 4, tiles=SMALL)
    assert positions.tolist() == [[[18, 0, 1, 2]]]
    assert values.tolist() == [[[1.0, 0.0, 0.0, 0.0]]]


def test_queries_that_see_nothing_have_zeros():
    problem = problem_of(normal(2, 17, 4).float(), normal(2, 18, 4, seed=1).float(), mask=regard.Padding([0, 0]))
    assert not fused.entropy(problem, tiles=SMALL).any()
    assert not fused.column_sums(problem, tiles=SMALL).any()
    assert not fused.block_map(problem, 4, tiles=SMALL).any()
    assert not fused.block_map(problem, 40, tiles=SMALL).any()
    assert not any(part.any() for part in fused.row_max(problem, tiles=SMALL))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter computes it, and drops it
@pytest.mark.parametrize("filler", [math.nan, math.inf])
def test_what_no_query_sees_is_not_read(filler):
    query, key = normal(1, 3, 8).float(), normal(1, 20, 8, seed=1).float()
    key[:, 17:] = filler
    padded, cut = problem_of(query, key, mask=regard.Padding(17)), problem_of(query, key[:, :17])
    torch.testing.assert_close(fused.entropy(padded, tiles=SMALL), fused.entropy(cut, tiles=SMALL))
    sums = fused.column_sums(padded, tiles=SMALL)
    torch.testing.assert_close(sums[:, :17], fused.column_sums(cut, tiles=SMALL))
    assert (sums[:, 17:] == 0).all()
    for got, want in zip(fused.top_k(padded, 2, tiles=SMALL), fused.top_k(cut, 2, tiles=SMALL), strict=True):
        torch.testing.assert_close(got, want)
    for size in (1, 34):
        got, want = (fused.block_map(p, size, tiles=SMALL) for p in (padded, cut))
        scale = 20 / 17 if size == 34 else 1.0
        torch.testing.assert_close(got[..., :want.shape[-1]] * scale, want)


def test_sharp_weights_keep_their_digits():
    """Scores in the hundreds: the entropy has no term that is large, and the largest weight is 1."""
    query, key = 100 * normal(1, 5, 8).float(), normal(1, 17, 8, seed=1).float()
    problem = problem_of(query, key, score="dot")
    weights = weights_of(problem, np.ones((5, 17), dtype=bool))
    got = fused.entropy(problem, tiles=SMALL).cpu().numpy()
    np.testing.assert_allclose(got, each(oracle_statistics.entropy, weights), rtol=1e-2, atol=1e-4)
    assert (got >= 0).all()


# ---- what they do not serve ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "reason"), [
    ({"normalize": "relu"}, "softmax, not relu"), ({"mask": torch.ones(5, 6) > 0}, "one range of keys"),
    ({"mask": regard.Causal() | regard.Window(1, 1)}, "one range of keys"), ({"mask": ~regard.Causal()}, "one range"),
    ({"bias": torch.zeros(5, 6)}, "a bias"), ({"score": lambda q, k: q @ k.mT}, "dot products"),
])
def test_other_problems_are_refused(change, reason):
    query, key = torch.ones(2, 5, 3, device=DEVICE), torch.ones(2, 6, 3, device=DEVICE)
    change = {name: part.to(DEVICE) if isinstance(part, torch.Tensor) else part for name, part in change.items()}
    words = {"score": "dot", "normalize": "softmax", "mask": None, "bias": None, **change}
    assert reason in fused.refusal(StatisticRequest("entropy", build_problem(query, key, key, dropout=0.0, **words)))


def test_other_types_and_sizes_are_refused():
    ones = torch.ones(2, 5, 3)
    if DEVICE == "cpu":
        assert "interpreter" in fused.refusal(StatisticRequest("entropy", problem_of(ones.bfloat16(), ones.bfloat16())))
    assert "float64" in fused.refusal(StatisticRequest("entropy", problem_of(ones.double(), ones.double())))
    assert "no keys" in fused.refusal(StatisticRequest("entropy", problem_of(ones, ones[:, :0])))
    assert "256" in fused.refusal(StatisticRequest("entropy", problem_of(torch.ones(2, 5, 300), torch.ones(2, 5, 300))))
    problem = problem_of(ones, ones)
    assert "power of two" in fused.refusal(StatisticRequest("block_map", problem, 5))
    assert "16" in fused.refusal(StatisticRequest("top_k", problem, 17))
    assert fused.refusal(StatisticRequest("top_k", problem, 16)) is None


def test_without_triton_or_a_gpu_they_are_refused(monkeypatch):
    problem = build_problem(*[torch.ones(2, 5, 3)] * 3, score="dot", normalize="softmax", mask=None, bias=None,
                            dropout=0.0)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "CUDA device" in fused.refusal(StatisticRequest("entropy", problem))
    monkeypatch.setattr(launch, "installed", lambda: False)
    assert fused.refusal(StatisticRequest("entropy", problem)) == "triton is not installed"


# ---- on a GPU, at its own tiles --------------------------------------------------------------------------------------


AT_LENGTH = [*((name, 64, dtype) for name in masks(12, 12) for dtype in (torch.bfloat16, torch.float32)),
             ("causal", 17, torch.float16), ("causal", 128, torch.bfloat16), ("packed", 256, torch.bfloat16),
             ("causal", 200, torch.float32)]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "width", "dtype"), AT_LENGTH, ids=str)
def test_at_length_the_error_is_at_most_twice_that_of_the_plain_computation(name, width, dtype):
    query, key = normal(2, 4, 700, width).to(dtype), normal(2, 2, 900, width, seed=1).to(dtype)
    mask = masks(700, 900)[name][0]
    problem, truth = problem_of(query, key, mask=mask), problem_of(query.double(), key.double(), mask=mask)
    for asked, args in (("entropy", ()), ("row_max", ()), ("column_sums", ()), ("top_k", (7,)), ("block_map", (16,)),
                        ("block_map", (100,)), ("block_map", (256,))):
        got, again, plain = (getattr(module, asked)(problem, *args) for module in (fused, fused, by_rows))
        want = getattr(by_rows, asked)(truth, *args)
        if isinstance(got, tuple):
            assert torch.equal(got[1], again[1])
            got, again, plain, want = got[0], again[0], plain[0], want[0]
        assert torch.equal(got, again), "the same question has the same answer"
        assert_near(got, want.cpu().numpy(), float((plain.double() - want).abs().max()))


def zero_problem(mask, n_queries, n_keys, leading=(2, 3)):
    query, key = torch.zeros(*leading, n_queries, 1), torch.zeros(*leading, n_keys, 1)
    return build_problem(query, key, key, score="dot", normalize="softmax", mask=mask, bias=None, dropout=0.0)


def written_out(found, n_keys):
    """The matrix of which these are the visits."""
    column = torch.arange(n_keys)
    return ((column >= found.low.unsqueeze(-1)) & (column < found.high.unsqueeze(-1))).numpy()


@st.composite
def range_masks(draw):
    """A conjunction of masks that are ranges, the sizes, and its matrix for two sequences, made of the oracle's."""
    n_queries, n_keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    size = (n_queries, n_keys)
    parts, matrix = [], np.ones((2, *size), dtype=bool)
    lengths = draw(st.lists(st.integers(0, n_keys), min_size=2, max_size=2))
    if draw(st.booleans()):
        side = draw(st.sampled_from(("left", "right")))
        parts.append(regard.Padding(lengths, side=side))
        matrix = matrix & oracle.padding(lengths, *size, side)
    left, right = (draw(st.none() | st.integers(0, 4)) for _ in range(2))
    if draw(st.booleans()):
        parts.append(regard.Window(left, right))
        matrix = matrix & oracle.window(*size, left, right)
    if draw(st.booleans()):
        parts.append(regard.Causal())
        matrix = matrix & oracle.causal(*size)
    mask = None
    for part in draw(st.permutations(parts)):
        mask = part if mask is None else mask & part
    return mask, n_queries, n_keys, matrix


@given(range_masks())
def test_ranges_are_the_mask(case):
    mask, n_queries, n_keys, matrix = case
    problem = zero_problem(mask, n_queries, n_keys)
    assert is_band(problem.mask)
    found = key_ranges(problem)
    assert found.low.dtype == found.high.dtype == torch.int32
    got = written_out(found, n_keys)
    assert np.array_equal(np.broadcast_to(got, (2, 3, n_queries, n_keys)),
                          np.broadcast_to(matrix[:, None], (2, 3, n_queries, n_keys)))


@pytest.mark.parametrize(("mask", "matrix"), [
    (regard.Packed([2, 0, 3], [4, 1, 2]), oracle.packed([2, 0, 3], [4, 1, 2], 7, 9)),
    (regard.Packed([2, 0, 3], [4, 1, 2]) & regard.Causal(), oracle.packed_causal([2, 0, 3], [4, 1, 2], 7, 9)),
    (regard.Placed(2) & regard.Causal(), oracle.placed_causal(2, 7, 9) & oracle.placed(2, 7, 9)),
    (regard.Placed(1), oracle.placed(1, 7, 9)),
], ids=repr)
def test_masks_that_say_where_queries_stand(mask, matrix):
    got = written_out(key_ranges(zero_problem(mask, 7, 9)), 9)
    assert np.array_equal(np.broadcast_to(got, (2, 3, 7, 9)), np.broadcast_to(matrix, (2, 3, 7, 9)))


def test_one_mask_for_all_sequences_is_kept_once():
    assert key_ranges(zero_problem(regard.Causal(), 4, 5)).low.shape == (4,)
    assert key_ranges(zero_problem(regard.Padding([3, 5]), 4, 5)).low.shape == (2, 1, 4)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 6), st.integers(1, 6), st.data())
def test_every_tile_that_sees_a_key_is_visited(n_queries, n_keys, rows, columns, data):
    """For any ranges, ordered or not; those in the middle see all keys of the tile."""
    bounds = st.tuples(st.integers(0, n_keys), st.integers(0, n_keys)).map(sorted).map(
        lambda pair: pair if pair[0] < pair[1] else (n_keys, 0))
    first, last = zip(*data.draw(st.lists(bounds, min_size=n_queries, max_size=n_queries)), strict=True)
    found = KeyRanges(*(torch.tensor(side, dtype=torch.int32) for side in (first, last)))
    visited = tile_schedule(*found, n_keys, rows, columns)
    seen = written_out(found, n_keys)
    tiles = -(-n_queries // rows)
    assert visited.shape == (-(-n_keys // columns), 4)
    for number, (begin, full, until, end) in enumerate(visited.tolist()):
        assert 0 <= begin <= full <= until <= end <= tiles
        for tile in range(tiles):
            block = seen[tile * rows:(tile + 1) * rows, number * columns:(number + 1) * columns]
            assert begin <= tile < end or not block.any()
            assert not full <= tile < until or block.all()


def test_causal_tiles_are_skipped_and_left_unmasked():
    found = key_ranges(zero_problem(regard.Causal(), 64, 64))
    assert tile_schedule(*found, 64, 16, 16).tolist() == [[0, 1, 4, 4], [1, 2, 4, 4], [2, 3, 4, 4], [3, 4, 4, 4]]


@pytest.mark.parametrize("mask", [torch.ones(3, 4) > 0, ~regard.Causal(), regard.Causal() | regard.Window(1, 1),
                                  regard.Causal() & (torch.ones(3, 4) > 0)], ids=["tensor", "not", "or", "and"])
def test_other_masks_are_no_ranges(mask):
    assert not is_band(zero_problem(mask, 3, 4).mask)
