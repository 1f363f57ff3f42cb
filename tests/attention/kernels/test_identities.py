"""Identities: what fused kernels say about the weights is what `statistics` and the oracle say, which see them.

They serve dot products under softmax alone. The same tests run on CUDA where there is a device; there, and in low
precision, sizes are odd on purpose: kernels like multiples of 8.
"""

import math

import numpy as np
import pytest
import torch
from memory import Largest
from problems import DOTS, normal, scorer

import regard
from regard.attention.problem import build_problem
from regard.attention.statistics import STATISTICS_BACKENDS, StatisticRequest
from regard.reference import attention as oracle
from regard.reference import statistics as oracle_statistics

closed_form, by_rows = STATISTICS_BACKENDS["closed_form"], STATISTICS_BACKENDS["rows"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def problem_of(query, key, *, score="scaled_dot", normalize="softmax", mask=None, bias=None):
    return build_problem(query, key, key, score=score, normalize=normalize, mask=mask, bias=bias, dropout=0.0)


def masks(n_queries, n_keys):
    """Masks by name, with their matrices according to the oracle."""
    size, length = (n_queries, n_keys), n_keys // 2
    tensor = normal(*size, seed=7) > 0
    tensor[-1] = False  # a row that sees nothing
    return {
        "none": (None, np.ones(size, dtype=bool)), "causal": (regard.Causal(), oracle.causal(*size)),
        "window": (regard.Window(2, 1), oracle.window(*size, 2, 1)), "tensor": (tensor, tensor.numpy()),
        "padding": (regard.Padding(length), oracle.padding([length], *size, "right")[0]),
        "nothing": (regard.Padding(0), np.zeros(size, dtype=bool)),
        "both": (regard.Causal() & regard.Padding(length, side="left"),
                 oracle.causal(*size) & oracle.padding([length], *size, "left")[0]),
    }


NAMES = list(masks(3, 3))


def oracles(weights, function, *args):
    results = [function(weights[index], *args) for index in np.ndindex(*weights.shape[:-2])]
    return np.reshape(results, (*weights.shape[:-2], *results[0].shape))


def assert_near(got, want):
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


# ---- double precision: the oracle's numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("leading", [(), (2,), (2, 4), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("score", DOTS)
def test_every_identity_holds(score, name, leading):
    score = score.replace(" heads", "") if not leading else score
    made, known = scorer(score, leading[-1] if leading else None, 3)
    grouped = (*leading[:-1], leading[-1] // 2) if leading else ()
    query, key = normal(*leading, 5, 3), normal(*grouped, 6, 3, seed=1)
    mask, matrix = masks(5, 6)[name]
    weights = oracle.weights_many(query.numpy(), key.numpy(), score=known, mask=matrix)
    problem = problem_of(query, key, score=made, mask=mask)
    assert (closed_form.refusal(StatisticRequest("entropy", problem)) is None) == (name in ("none", "padding", "nothing"))  # the others are matrices
    assert_near(closed_form.entropy(problem), oracles(weights, oracle_statistics.entropy))
    assert_near(closed_form.column_sums(problem), oracles(weights, oracle_statistics.column_sums))
    for size in (1, 2, 4, 9):
        assert_near(closed_form.block_map(problem, size), oracles(weights, oracle_statistics.block_map, size))


@pytest.mark.parametrize("name", NAMES)
def test_sums_and_maps_hold_with_a_bias_too(name):
    query, key, bias = normal(2, 2, 5, 3), normal(2, 1, 6, 3, seed=1), normal(2, 5, 6, seed=2)
    bias[0, 2] = -torch.inf  # forbids a whole row
    mask, matrix = masks(5, 6)[name]
    weights = oracle.weights_many(query.numpy(), key.numpy(), mask=matrix, bias=bias.numpy())
    problem = problem_of(query, key, mask=mask, bias=bias)
    assert_near(closed_form.column_sums(problem), oracles(weights, oracle_statistics.column_sums))
    assert_near(closed_form.block_map(problem, 2), oracles(weights, oracle_statistics.block_map, 2))
    with pytest.raises(AssertionError, match="bias"):
        closed_form.entropy(problem)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 200])
def test_maps_may_have_more_blocks_than_one_kernel_takes(size):
    problem = problem_of(normal(2, 9, 4), normal(2, 131, 4, seed=1), mask=regard.Window(40, 0))
    assert_near(closed_form.block_map(problem, size), by_rows.block_map(problem, size).numpy())


def test_the_entropy_of_sharp_weights_is_not_below_zero_and_loses_few_digits():
    for scale in (1.0, 1e2, 1e4):
        query, key = scale * normal(2, 20, 8), normal(2, 30, 8, seed=1)
        largest = (query @ key.mT).abs().max()
        for dtype in (torch.float64, torch.float32):
            problem = problem_of(query.to(dtype), key.to(dtype), score="dot")
            exact = by_rows.entropy(problem_of(problem.query.double(), problem.key.double(), score="dot"))
            error = (closed_form.entropy(problem).double() - exact).abs().max()
            assert closed_form.entropy(problem).min() >= 0
            assert error <= 8 * torch.finfo(dtype).eps * largest


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("device", DEVICES)
def test_what_no_query_sees_is_not_read(device, filler):
    query, key = normal(2, 5, 8).float().to(device), normal(2, 6, 8, seed=1).float().to(device)
    key[:, 4:] = filler
    padded, cut = problem_of(query, key, mask=regard.Padding(4)), problem_of(query, key[:, :4])
    torch.testing.assert_close(closed_form.entropy(padded), closed_form.entropy(cut))
    sums = closed_form.column_sums(padded)
    torch.testing.assert_close(sums[:, :4], closed_form.column_sums(cut))
    assert (sums[:, 4:] == 0).all()
    torch.testing.assert_close(closed_form.block_map(padded, 2)[..., :2], closed_form.block_map(cut, 2))


# ---- what they do not serve ------------------------------------------------------------------------------------------


def test_other_scores_normalisers_and_masks_are_refused():
    query, key = normal(2, 5, 3), normal(2, 6, 3)
    assert "softmax, not by relu" in closed_form.refusal(StatisticRequest("entropy", problem_of(query, key, normalize="relu")))
    additive = regard.Additive(torch.ones(3).double())
    assert "Additive" in closed_form.refusal(StatisticRequest("entropy", problem_of(query, key, score=additive)))
    assert "matrix" in closed_form.refusal(StatisticRequest("entropy", problem_of(query, key, mask=regard.Window(1, 0))))
    assert "bias" in closed_form.refusal(StatisticRequest("entropy", problem_of(query, key, bias=normal(5, 6))))
    assert closed_form.refusal(StatisticRequest("entropy", problem_of(query, key))) is None


def test_no_queries_and_no_keys_are_refused():
    assert "no queries" in closed_form.refusal(StatisticRequest("entropy", problem_of(normal(2, 0, 3), normal(2, 4, 3))))
    assert "no keys" in closed_form.refusal(StatisticRequest("entropy", problem_of(normal(2, 3, 3), normal(2, 0, 3))))


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, regard.Causal(), regard.Padding(500)], ids=str)
@pytest.mark.parametrize("width", [8, 64, 72])
def test_no_identity_holds_a_matrix(width, mask):
    query, key = (normal(2, 768, width, seed=i).float() for i in range(2))
    problem = problem_of(query, key, mask=mask)
    made = {}
    for name, args in (("entropy", ()), ("column_sums", ()), ("block_map", (64,))):
        with Largest() as largest:
            getattr(closed_form, name)(problem, *args)
        made[name] = largest.elements
    assert max(made.values()) <= 768**2 / 4, made


# ---- low precision, and CUDA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [(50, 70, 16), (50, 70, 20), (33, 33, 64), (1, 13, 8), (64, 64, 7)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_low_precision_errs_at_most_twice_as_much_as_statistics(name, size, dtype, device):
    """Plus a few eps of the largest answer; for the entropy of the largest score too, which is taken away from it."""
    n_queries, n_keys, width = size
    mask = masks(n_queries, n_keys)[name][0]
    query = normal(2, 4, n_queries, width).to(device, dtype)
    key = normal(2, 2, n_keys, width, seed=1).to(device, dtype)
    problem = problem_of(query, key, mask=mask)
    truth = problem_of(query.double().cpu(), key.double().cpu(), mask=mask)
    largest = (truth.query @ truth.repeat_key_heads().key.mT).abs().max() / math.sqrt(width)
    for asked, args in (("entropy", ()), ("column_sums", ()), ("block_map", (8,))):
        want = getattr(by_rows, asked)(truth, *args)
        got, plain = (getattr(module, asked)(problem, *args) for module in (closed_form, by_rows))
        assert got.dtype == dtype
        assert got.device.type == device
        error, allowed = ((t.double().cpu() - want).abs().max() for t in (got, plain))
        scale = max(want.abs().max(), largest) if asked == "entropy" else want.abs().max()
        assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps * scale, asked


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_look_on_cuda_answers_like_one_on_the_cpu(name, dtype):
    query, key = normal(2, 4, 50, 16).to(dtype), normal(2, 2, 70, 16, seed=1).to(dtype)
    mask = masks(50, 70)[name][0]
    here, there = regard.Look(query, key, mask=mask), regard.Look(query.cuda(), key.cuda(), mask=mask)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]
    questions = {"weights": (), "entropy": (), "column_sums": (), "block_map": (16,), "rows": ([0, 49],)}
    for asked, args in questions.items():
        on_cpu, on_cuda = (getattr(look, asked)(*args) for look in (here, there))
        assert on_cuda.device.type == "cuda"
        torch.testing.assert_close(on_cuda.cpu(), on_cpu, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(there.row_max().values.cpu(), here.row_max().values, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(there.top_k(5).values.cpu(), here.top_k(5).values, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
def test_no_keys_and_no_queries_on_cuda():
    for n_queries, n_keys in ((3, 0), (0, 3), (0, 0)):
        look = regard.Look(torch.ones(2, n_queries, 8, device="cuda"), torch.ones(2, n_keys, 8, device="cuda"))
        assert look.entropy().tolist() == [[0.0] * n_queries] * 2
        assert look.column_sums().tolist() == [[0.0] * n_keys] * 2
        assert look.block_map(2).shape == (2, -(-n_queries // 2), -(-n_keys // 2))
