"""Looks: every answer about the weights is the oracle's answer about the oracle's weights, whatever the weights are.

Sizes of 0 are asked in a process of their own: a kernel of torch that divides by a size would end this one.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from memory import Largest
from problems import NORMALIZERS, ORACLE_NORMALIZERS, SCORES, Case, cases, held, normal, normalizer, scorer

import regard
from regard.reference import attention as oracle
from regard.reference import statistics as oracle_statistics


def look_of(case):
    return regard.Look(case.query, case.key, **case.options)


def each(function, weights, *args):
    """What a function of one matrix gives for every matrix of (..., queries, keys)."""
    leading = weights.shape[:-2]
    results = [function(weights[index], *args) for index in np.ndindex(*leading)]
    if isinstance(results[0], tuple):
        return tuple(np.stack(part).reshape(leading + part[0].shape) for part in zip(*results, strict=True))
    return np.stack(results).reshape(leading + results[0].shape)


def assert_near(got, want):
    """The same shape, and no number farther off than 1e-12 of itself and 1e-12."""
    assert tuple(got.shape) == want.shape
    assert got.dtype == torch.float64
    assert not got.requires_grad
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def check_peaks(got, want, weights):
    """The largest weights, and the keys that have them; which of two that differ by a rounding comes first is open."""
    assert_near(got.values, want[0])
    assert got.positions.dtype == torch.int64
    assert got.positions.shape == got.values.shape
    found = np.sort(weights, axis=-1)
    gaps = np.diff(found, axis=-1)
    if not ((gaps < 1e-9) & (found[..., 1:] > 0)).any():
        np.testing.assert_array_equal(got.positions.numpy(), want[1])


def check(look, weights):
    """Every answer."""
    n_queries, n_keys = weights.shape[-2:]
    assert_near(look.weights(), weights)
    assert_near(look.entropy(), each(oracle_statistics.entropy, weights))
    assert_near(look.column_sums(), each(oracle_statistics.column_sums, weights))
    for size in (1, 2, 5):
        assert_near(look.block_map(size), each(oracle_statistics.block_map, weights, size))
    if n_keys:
        check_peaks(look.row_max(), each(oracle_statistics.row_max, weights), weights)
        for count in {1, (n_keys + 1) // 2, n_keys}:
            check_peaks(look.top_k(count), each(oracle_statistics.top_k, weights, count), weights)
    if n_queries:
        for i in {0, n_queries - 1, -1}:
            assert_near(look.rows(i), weights[..., i, :])
    chosen = [i % max(1, n_queries) for i in (2, 0, 2)][:3 * n_queries]
    assert_near(look.rows(torch.tensor(chosen, dtype=torch.long)), weights[..., chosen, :])


# ---- the same answers as the oracle ----------------------------------------------------------------------------------


@pytest.mark.thorough
@given(cases(), st.sampled_from((1, 5, 40, 1 << 21)))
def test_every_answer_is_the_oracles(case, numbers):
    assume(case.query.shape[-2] and case.key.shape[-2])
    with held(numbers):
        check(look_of(case), case.weights())


MASKS = {
    "none": (None, np.ones((5, 6), dtype=bool)), "causal": (regard.Causal(), oracle.causal(5, 6)),
    "window": (regard.Window(1, 0), oracle.window(5, 6, 1, 0)),
    "padding": (regard.Padding([0, 4], side="left"), oracle.padding([0, 4], 5, 6, "left")[:, None]),
    "packed": (regard.Packed([2, 1], [3, 2]) & regard.Causal(), oracle.packed_causal([2, 1], [3, 2], 5, 6)),
    "placed": (regard.Placed(1) & regard.Causal(), oracle.placed_causal(1, 5, 6) & oracle.placed(1, 5, 6)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
def test_for_every_score_and_normaliser_under_every_mask(score, normalize):
    query, key = normal(2, 2, 5, 3), normal(2, 1, 6, 3, seed=1)  # grouped heads
    made, known = scorer(score, 2, 3)
    for mask, matrix in MASKS.values():
        options = {"score": made, "normalize": normalizer(normalize), "mask": mask}
        words = {"score": known, "normalize": ORACLE_NORMALIZERS[normalize], "mask": matrix}
        case = Case(query, key, key, options, words)
        with held(50):
            check(look_of(case), case.weights())


@pytest.mark.parametrize("n_queries", [0, 1, 3])
@pytest.mark.parametrize("normalize", ["relu", "relu_sum", "sigmoid"])
def test_no_keys_or_no_queries_or_one_of_them(normalize, n_queries):
    for n_keys in (0, 1, 3):
        query, key = normal(2, n_queries, 3), normal(2, n_keys, 3, seed=1)
        case = Case(query, key, key, {"normalize": normalize}, {"normalize": ORACLE_NORMALIZERS[normalize]})
        check(look_of(case), case.weights())
    nothing = regard.Look(normal(2, n_queries, 3), normal(2, 0, 3), normalize=normalize).row_max()
    assert nothing.values.tolist() == nothing.positions.tolist() == [[0] * n_queries] * 2


EMPTY = """
import torch, regard
for n_queries, n_keys in ((3, 0), (0, 3), (0, 0)):
    for mask in (None, regard.Causal(), regard.Padding(0)):
        look = regard.Look(torch.ones(2, n_queries, 4), torch.ones(2, n_keys, 4), mask=mask)
        assert look.weights().shape == (2, n_queries, n_keys)
        assert torch.equal(look.column_sums(), torch.zeros(2, n_keys))
        assert torch.equal(look.row_max().values, torch.zeros(2, n_queries))
        %s
"""


@pytest.mark.thorough
@pytest.mark.parametrize("question", [
    "assert torch.equal(look.entropy(), torch.zeros(2, n_queries))",
    "assert look.block_map(2).shape == (2, -(-n_queries // 2), -(-n_keys // 2))",
], ids=["entropy", "block_map"])
def test_fused_kernels_answer_for_no_keys_and_no_queries(question):
    done = subprocess.run([sys.executable, "-c", EMPTY % question], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:] or f"the process was ended by signal {-done.returncode}"


def test_of_equal_weights_the_first_key_comes_first():
    look = regard.Look(torch.zeros(2, 4, 3), normal(2, 7, 3).float(), mask=regard.Causal())
    peaks = look.top_k(7)
    assert (peaks.positions == torch.arange(7)).all()  # 1/n for the keys that are seen, then 0, each in order
    torch.testing.assert_close(peaks.values[0], torch.ones(4, 7).tril(3) / torch.arange(4, 8)[:, None])
    assert (look.row_max().positions == 0).all()
    torch.testing.assert_close(look.entropy(), torch.arange(4, 8).log().expand(2, 4))


def test_weights_may_be_negative():
    """A user's normaliser that leaves the scores as they are (linear attention)."""
    query, key = -normal(1, 4, 3).abs(), normal(1, 6, 3, seed=1).abs()
    masks = [(None, True), (regard.Causal(), oracle.causal(4, 6)), (regard.Window(0, 0), oracle.window(4, 6, 0, 0))]
    for mask, matrix in masks:
        weights = np.where(matrix, (query @ key.mT).numpy() / math.sqrt(3), 0.0)
        look = regard.Look(query, key, normalize=lambda e: e.masked_fill(e == -torch.inf, 0.0), mask=mask)
        for numbers in (6, 1 << 21):
            with held(numbers):
                assert_near(look.column_sums(), each(oracle_statistics.column_sums, weights))
                assert_near(look.top_k(6).values, each(oracle_statistics.top_k, weights, 6)[0])
                values, positions = look.row_max()
                want = each(oracle_statistics.row_max, weights)
                assert_near(values, want[0])
                np.testing.assert_array_equal(positions.numpy(), want[1])


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_no_answer_has_a_gradient(score):
    torch.set_default_dtype(torch.float64)
    layer, looks = regard.Attention(4, heads=2, score=score, position_bias=regard.RelativeBias(2, max_distance=1)), []
    with layer.tap.listen(looks.append):
        layer(normal(1, 3, 4).requires_grad_())
    (look,) = looks
    answers = [look.weights(), look.rows(1), look.entropy(), look.column_sums(), look.block_map(2), *look.row_max(),
               *look.top_k(2)]
    assert not any(answer.requires_grad for answer in answers)
    untapped = regard.Look(normal(3, 4).requires_grad_(), normal(3, 4).requires_grad_())
    assert not any(t.requires_grad for t in (untapped.weights(), untapped.entropy(), untapped.column_sums()))


# ---- memory ----------------------------------------------------------------------------------------------------------


TOKENS, HEADS = 512, 2
ANSWERS = {"entropy": (), "row_max": (), "column_sums": (), "top_k": (4,), "block_map": (64,), "rows": ([3, 5],)}
LONG = {"none": None, "causal": regard.Causal(), "padding": regard.Padding([500]),
        "causal and padding": regard.Causal() & regard.Padding([500]), "window": regard.Window(20, 0)}


@pytest.mark.thorough
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("mask", LONG)
@pytest.mark.parametrize("normalize", ["softmax", "relu"])
def test_no_answer_but_the_weights_holds_a_matrix(normalize, mask, answer):
    query, key = (normal(1, HEADS, TOKENS, 8, seed=i).float() for i in range(2))
    look = regard.Look(query, key, normalize=normalize, mask=LONG[mask])
    look.problem  # noqa: B018 made once, and kept
    with held(1 << 14), Largest() as largest:
        getattr(look, answer)(*ANSWERS[answer])
    assert 0 < largest.elements <= TOKENS**2 // 4
    with Largest() as whole:
        look.weights()
    assert whole.elements == HEADS * TOKENS**2  # the measure sees a matrix where there is one


# ---- questions that make no sense ------------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [5, -6, [0, 5], [-6], torch.tensor([7])], ids=str)
def test_rows_that_are_not_there_are_an_error(indices):
    with pytest.raises(ValueError, match=r"`indices` must be rows of the 5 queries, but is "):
        regard.Look(normal(5, 3), normal(4, 3)).rows(indices)


@pytest.mark.parametrize("indices", [1.0, [0.5], [True], torch.zeros(1, 1, dtype=torch.long)], ids=str)
def test_rows_are_chosen_by_an_integer_or_a_list_of_them(indices):
    with pytest.raises(ValueError, match=r"`indices` must be an integer or a list of integers, but is "):
        regard.Look(normal(5, 3), normal(4, 3)).rows(indices)


def test_no_rows_are_an_answer_too():
    look = regard.Look(normal(2, 5, 3), normal(2, 4, 3))
    assert look.rows(torch.zeros(0, dtype=torch.long)).shape == (2, 0, 4)
    assert look.rows([]).shape == (2, 0, 4)


@pytest.mark.parametrize(("ask", "message"), [
    (lambda look: look.top_k(0), r"`count` must be from 1 to the number of keys, 4, but is 0"),
    (lambda look: look.top_k(5), r"`count` must be from 1 to the number of keys, 4, but is 5"),
    (lambda look: look.top_k(-1), r"`count` must be .*, but is -1"),
    (lambda look: look.block_map(0), r"`size` must be at least 1, but is 0"),
    (lambda look: look.block_map(-2), r"`size` must be at least 1, but is -2"),
])
def test_counts_and_sizes_out_of_range_are_errors(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(regard.Look(normal(5, 3), normal(4, 3)))


def test_a_look_is_told_in_short():
    query, key = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)
    assert repr(regard.Look(query, key)) == "Look(queries (2, 3, 4), keys (2, 5, 4), scaled_dot, softmax)"
    told = repr(regard.Look(query, key, mask=torch.ones(3, 5) > 0, score="dot", bias=regard.ALiBi.for_heads(2)))
    assert told.endswith("dot, softmax, mask (3, 5), ALiBi)")
    told = repr(regard.Look(query, key, mask=regard.Causal(), bias=torch.zeros(3, 5)))
    assert told.endswith("softmax, Causal(), bias (3, 5))")


def test_the_old_name_of_the_argument_of_explain_still_works():
    look = regard.Look(normal(3, 2), normal(4, 2))
    with pytest.warns(FutureWarning, match="statistic"):
        assert look.explain(asked="entropy") == look.explain("entropy")
