"""Statistics of weights: every backend equals the oracle, in blocks of rows and in closed form; which backend runs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from memory import Largest
from problems import DOTS, cases, held, normal, scorer

import regard
from regard.attention import backends
from regard.attention.problem import build_problem
from regard.attention.statistics import (
    STATISTICS,
    STATISTICS_BACKENDS,
    StatisticRequest,
    _block_counts,
    compute_statistic,
    explain_statistic,
    some_rows,
)
from regard.reference import attention as oracle
from regard.reference import statistics as oracle_statistics

by_rows, closed_form = STATISTICS_BACKENDS["rows"], STATISTICS_BACKENDS["closed_form"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def problem_of(query, key, *, score="scaled_dot", normalize="softmax", mask=None, bias=None):
    return build_problem(query, key, key, score=score, normalize=normalize, mask=mask, bias=bias, dropout=0.0)


def flat(weights):
    """The matrices of (..., queries, keys), one after another."""
    return [weights[index] for index in np.ndindex(*weights.shape[:-2])]


def every(problem, size=3, count=2):
    """All that can be asked, one tensor each."""
    values, keys = by_rows.row_max(problem)
    best, places = by_rows.top_k(problem, min(count, problem.n_keys))
    return {"entropy": by_rows.entropy(problem), "largest": values, "of key": keys,
            "column sums": by_rows.column_sums(problem), "best": best, "best keys": places,
            "map": by_rows.block_map(problem, size)}


# ---- blocks ----------------------------------------------------------------------------------------------------------


@given(cases(), st.integers(1, 60), st.integers(1, 7), st.integers(1, 6))
def test_how_rows_are_cut_into_blocks_changes_nothing(case, numbers, size, count):
    assume(case.query.shape[-2] and case.key.shape[-2])
    problem = problem_of(case.query, case.key, **case.options)
    whole = every(problem, size, count)
    with held(numbers):
        cut = every(problem, size, count)
    for name, expected in whole.items():
        torch.testing.assert_close(cut[name], expected, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.thorough
@given(cases(), st.integers(1, 60), st.integers(1, 7), st.data())
def test_every_statistic_is_the_oracles(case, numbers, size, data):
    assume(case.query.shape[-2] and case.key.shape[-2])
    problem, weights = problem_of(case.query, case.key, **case.options), case.weights()
    rows = data.draw(st.lists(st.integers(0, problem.n_queries - 1), max_size=3))
    with held(numbers):
        got = every(problem, size, problem.n_keys)
        chosen = some_rows(problem, torch.tensor(rows, dtype=torch.long))
    want = {"entropy": [oracle_statistics.entropy(w) for w in flat(weights)],
            "largest": [oracle_statistics.row_max(w)[0] for w in flat(weights)],
            "column sums": [oracle_statistics.column_sums(w) for w in flat(weights)],
            "best": [oracle_statistics.top_k(w, problem.n_keys)[0] for w in flat(weights)],
            "map": [oracle_statistics.block_map(w, size) for w in flat(weights)]}
    for name, expected in want.items():
        shaped = np.reshape(expected, (*problem.leading, *expected[0].shape))
        np.testing.assert_allclose(got[name].numpy(), shaped, rtol=1e-12, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(chosen.numpy(), weights[..., rows, :], rtol=1e-12, atol=1e-12)
    for values, keys in ((got["largest"][..., None], got["of key"][..., None]), (got["best"], got["best keys"])):
        found = np.take_along_axis(weights, keys.numpy(), axis=-1)  # the keys are keys that have these weights
        np.testing.assert_allclose(found, values.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 0), (2, 2), (None, 0)])
def test_a_map_whose_blocks_begin_in_the_middle_of_others(left, right):
    """Blocks of rows hold a run of keys that begins anywhere in the grid of the map."""
    query, key = normal(2, 11, 4), normal(2, 17, 4, seed=1)
    problem, matrix = problem_of(query, key, mask=regard.Window(left, right)), oracle.window(11, 17, left, right)
    weights = oracle.weights_many(query.numpy(), key.numpy(), mask=matrix)
    for numbers in (34, 100, 150):
        for size in (1, 2, 3, 5, 16, 40):
            with held(numbers):
                assert backends.rows_per_block(problem) < 11
                got = by_rows.block_map(problem, size)
            want = np.stack([oracle_statistics.block_map(w, size) for w in weights])
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9])
def test_block_counts_say_how_many_pairs_each_block_has(size):
    problem = problem_of(normal(5, 2), normal(7, 2))
    counts = np.zeros((-(-5 // size), -(-7 // size)), dtype=int)
    for i in range(5):
        for j in range(7):
            counts[i // size, j // size] += 1
    assert _block_counts(problem, size).tolist() == counts.tolist()
    total = (by_rows.block_map(problem, size) * torch.from_numpy(counts)).sum()
    torch.testing.assert_close(total, torch.tensor(5.0, dtype=torch.float64))  # every row sums to 1


def test_the_entropy_is_right_at_its_ends():
    one = problem_of(normal(3, 2), normal(1, 2))
    assert by_rows.entropy(one).tolist() == [0.0] * 3
    alike = problem_of(torch.zeros(3, 2), normal(8, 2).float())
    torch.testing.assert_close(by_rows.entropy(alike), torch.full((3,), 8.0).log())
    sharp = problem_of(1e4 * torch.eye(4), torch.eye(4), score="dot")
    assert by_rows.entropy(sharp).tolist() == [0.0] * 4
    hidden = problem_of(normal(3, 2), normal(5, 2), mask=torch.tensor(False))
    assert by_rows.entropy(hidden).tolist() == [0.0] * 3


# ---- precision -------------------------------------------------------------------------------------------------------


def plain_statistics(weights, size):
    """The statistics of materialised weights, in their own precision."""
    n_queries, n_keys = weights.shape[-2:]
    down, across = -(-n_queries // size), -(-n_keys // size)
    filled = torch.nn.functional.pad(weights, (0, across * size - n_keys, 0, down * size - n_queries))
    sums = filled.unflatten(-1, (across, size)).sum(-1).unflatten(-2, (down, size)).sum(-2)
    counts = torch.ones(n_queries, n_keys, device=weights.device)
    counts = torch.nn.functional.pad(counts, (0, across * size - n_keys, 0, down * size - n_queries))
    counts = counts.unflatten(-1, (across, size)).sum(-1).unflatten(-2, (down, size)).sum(-2)
    return {"entropy": torch.special.entr(weights).sum(-1), "largest": weights.amax(-1), "column sums": weights.sum(-2),
            "best": weights.sort(dim=-1, descending=True).values[..., :2], "map": sums / counts.to(weights.dtype)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalize", ["softmax", "relu", "sigmoid"])
@pytest.mark.parametrize("masked", [False, True], ids=["open", "causal"])
def test_low_precision_errs_at_most_twice_as_much_as_the_plain_computation(masked, normalize, dtype, device):
    query, key = (normal(2, n, 16, seed=i).to(device, dtype) for i, n in enumerate((30, 40)))
    problem = problem_of(query, key, normalize=normalize, mask=regard.Causal() if masked else None)
    allowed = torch.tensor(oracle.causal(30, 40) if masked else np.ones((30, 40), dtype=bool))
    scores = (query @ key.mT * 0.25).masked_fill(~allowed.to(device), -torch.inf)
    made = {"softmax": lambda: scores.softmax(-1), "sigmoid": scores.sigmoid,
            "relu": lambda: scores.relu() / allowed.sum(-1, keepdim=True).to(device)}[normalize]()
    words = {"softmax": oracle.softmax, "relu": oracle.relu_keys, "sigmoid": oracle.sigmoid}[normalize]
    inputs = (t.double().cpu().numpy() for t in (query, key))
    truth = torch.from_numpy(oracle.weights_many(*inputs, normalize=words, mask=allowed.numpy()))
    with held(400):
        got = every(problem)
    for name, simple in plain_statistics(made, 3).items():
        want = plain_statistics(truth, 3)[name]
        error, allowance = ((t.double().cpu() - want).abs().max() for t in (got[name], simple))
        assert got[name].dtype == dtype
        assert error <= 2 * allowance + 4 * torch.finfo(dtype).eps * want.abs().max(), name


# ---- memory ----------------------------------------------------------------------------------------------------------


BOUND = 1 << 13
ASKED = {"entropy": by_rows.entropy, "row_max": by_rows.row_max, "column_sums": by_rows.column_sums,
         "top_k": lambda problem: by_rows.top_k(problem, 4), "block_map": lambda p: by_rows.block_map(p, 64),
         "some_rows": lambda problem: some_rows(problem, torch.tensor([0, 5, 99]))}
OPTIONS = {"dot": {}, "additive": {"score": regard.Additive(torch.ones(4))}, "relu": {"normalize": "relu"},
           "window": {"mask": regard.Window(9, 0)}, "padding": {"mask": regard.Causal() & regard.Padding([300])},
           "alibi": {"bias": regard.ALiBi.for_heads(2), "mask": regard.Placed([7]) & regard.Causal()}}


@pytest.mark.thorough
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("asked", ASKED)
def test_no_statistic_holds_more_than_its_blocks(asked, options, monkeypatch):
    monkeypatch.setattr(backends, "PIECE_CPU", BOUND)
    query, key = (normal(1, 2, 512, 4, seed=i).float() for i in range(2))
    problem = problem_of(query, key, **OPTIONS[options])
    with held(BOUND), Largest() as largest:
        ASKED[asked](problem)
    rows = 3 * 2 * 512 * 4 if asked == "some_rows" else BOUND  # some rows are held whole: three of them, two heads
    assert 0 < largest.elements <= max(rows, query.numel())
    assert largest.elements < 512**2 / 8


def test_no_gradients_flow_from_statistics():
    query, key, weight = (normal(n, 2, seed=n).requires_grad_() for n in (3, 4, 2))
    look = regard.Look(query, key, score=regard.Bilinear(weight))
    answers = {"entropy": look.entropy(), "row_max": look.row_max().values, "column_sums": look.column_sums(),
               "top_k": look.top_k(2).values, "block_map": look.block_map(3)}
    assert not any(answer.requires_grad for answer in answers.values())


def masks_and_matrices(n_queries, n_keys):
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


MASK_NAMES = list(masks_and_matrices(3, 3))


def oracles(weights, function, *args):
    results = [function(weights[index], *args) for index in np.ndindex(*weights.shape[:-2])]
    return np.reshape(results, (*weights.shape[:-2], *results[0].shape))


def assert_near(got, want):
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


# ---- double precision: the oracle's numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("leading", [(), (2,), (2, 4), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("name", MASK_NAMES)
@pytest.mark.parametrize("score", DOTS)
def test_every_identity_holds(score, name, leading):
    score = score.replace(" heads", "") if not leading else score
    made, known = scorer(score, leading[-1] if leading else None, 3)
    grouped = (*leading[:-1], leading[-1] // 2) if leading else ()
    query, key = normal(*leading, 5, 3), normal(*grouped, 6, 3, seed=1)
    mask, matrix = masks_and_matrices(5, 6)[name]
    weights = oracle.weights_many(query.numpy(), key.numpy(), score=known, mask=matrix)
    problem = problem_of(query, key, score=made, mask=mask)
    refusal = closed_form.refusal(StatisticRequest("entropy", problem))
    assert (refusal is None) == (name in ("none", "padding", "nothing"))  # the others are matrices
    assert_near(closed_form.entropy(problem), oracles(weights, oracle_statistics.entropy))
    assert_near(closed_form.column_sums(problem), oracles(weights, oracle_statistics.column_sums))
    for size in (1, 2, 4, 9):
        assert_near(closed_form.block_map(problem, size), oracles(weights, oracle_statistics.block_map, size))


@pytest.mark.parametrize("name", MASK_NAMES)
def test_sums_and_maps_hold_with_a_bias_too(name):
    query, key, bias = normal(2, 2, 5, 3), normal(2, 1, 6, 3, seed=1), normal(2, 5, 6, seed=2)
    bias[0, 2] = -torch.inf  # forbids a whole row
    mask, matrix = masks_and_matrices(5, 6)[name]
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
    assert "softmax, not relu" in closed_form.refusal(StatisticRequest("entropy",
                                                                          problem_of(query, key, normalize="relu")))
    additive = regard.Additive(torch.ones(3).double())
    assert "Additive" in closed_form.refusal(StatisticRequest("entropy", problem_of(query, key, score=additive)))
    assert "matrix" in closed_form.refusal(StatisticRequest("entropy",
                                                            problem_of(query, key, mask=regard.Window(1, 0))))
    assert "bias" in closed_form.refusal(StatisticRequest("entropy", problem_of(query, key, bias=normal(5, 6))))
    assert closed_form.refusal(StatisticRequest("entropy", problem_of(query, key))) is None


def test_no_queries_and_no_keys_are_refused():
    assert "no queries" in closed_form.refusal(StatisticRequest("entropy",
                                                                problem_of(normal(2, 0, 3), normal(2, 4, 3))))
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
@pytest.mark.parametrize("name", MASK_NAMES)
def test_low_precision_errs_at_most_twice_as_much_as_statistics(name, size, dtype, device):
    """Plus a few eps of the largest answer; for the entropy of the largest score too, which is taken away from it."""
    n_queries, n_keys, width = size
    mask = masks_and_matrices(n_queries, n_keys)[name][0]
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
@pytest.mark.parametrize("name", MASK_NAMES)
def test_a_look_on_cuda_answers_like_one_on_the_cpu(name, dtype):
    query, key = normal(2, 4, 50, 16).to(dtype), normal(2, 2, 70, 16, seed=1).to(dtype)
    mask = masks_and_matrices(50, 70)[name][0]
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


NUMBERS = {"top_k": 3, "block_map": 2}


def request(asked, **options):
    look = regard.Look(normal(2, 5, 3).float(), normal(2, 6, 3, seed=1).float(), **options)
    return StatisticRequest(asked, look.problem, NUMBERS.get(asked))


def assert_same(one, other):
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    for left, right in pairs:
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("asked", STATISTICS)
def test_every_way_gives_the_answer_of_the_plain_one_or_refuses(asked):
    want = compute_statistic(request(asked), "rows")
    for name, way in STATISTICS_BACKENDS.items():
        if way.refusal(request(asked)) is None:
            assert_same(compute_statistic(request(asked), name), want)
        else:
            with pytest.raises(ValueError, match=f'`backend` must be .*, but is "{name}"'):
                compute_statistic(request(asked), name)


def test_on_a_cpu_the_choice_is_told():
    assert explain_statistic(request("entropy")).backend == "closed_form"
    assert explain_statistic(request("block_map")).backend == "closed_form"
    told = explain_statistic(request("column_sums"))
    assert told.backend == "rows"
    assert "gradient" in told.reasons["closed_form"]
    for asked in ("row_max", "top_k"):
        assert "no closed form" in explain_statistic(request(asked)).reasons["closed_form"]
    fine = StatisticRequest("block_map", regard.Look(torch.ones(9, 2), torch.ones(200, 2)).problem, 3)
    assert "coarse maps" in explain_statistic(fine).reasons["closed_form"]


def test_a_look_tells_it_too():
    look = regard.Look(normal(5, 3), normal(6, 3), mask=regard.Window(1, 0))
    assert look.explain("entropy").backend == "rows"
    assert "matrix" in look.explain("entropy").reasons["closed_form"]
    reason = look.explain("top_k", 2).reasons["fused"]
    assert "float64" in reason or "triton" in reason or "CUDA" in reason
    with pytest.raises(ValueError, match=r'`statistic` must be one of .*"entropi"'):
        look.explain("entropi")


@pytest.mark.gpu
@pytest.mark.parametrize("asked", STATISTICS)
def test_on_a_gpu_fused_passes_answer(asked):
    query, key = normal(2, 5, 3).cuda().half(), normal(2, 6, 3, seed=1).cuda().half()
    assert regard.Look(query, key, mask=regard.Causal()).explain(asked, NUMBERS.get(asked)).backend == "fused"
    assert regard.Look(query, key, mask=torch.ones(5, 6, device="cuda") > 0).explain(
        asked, NUMBERS.get(asked)).backend == "rows"
