"""Statistics, asked directly: equal to the oracle's and to brute force, however the rows are cut into blocks.

What a user sees of them, for every score, normaliser and mask, is in `test_look`; here are the blocks, the precision
and the memory.
"""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from memory import Largest
from problems import cases, held, normal

import regard
from regard.attention import backends
from regard.attention.problem import build_problem
from regard.attention.statistics import STATISTICS_BACKENDS, _block_counts, some_rows
from regard.reference import attention as oracle
from regard.reference import statistics as oracle_statistics

by_rows = STATISTICS_BACKENDS["rows"]
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


def plain(weights, size):
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
    for name, simple in plain(made, 3).items():
        want = plain(truth, 3)[name]
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
