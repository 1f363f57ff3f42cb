"""Length penalties and the coverage penalty, by themselves and in beam search."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import LAYERS, Moving, kept, weights_of
from refusals import assert_named
from tiny import TRANSLATING, built
from writers import Table, drawn, every, keyed, plain_beam

from regard.decoding.beam import beam
from regard.decoding.forced import with_cross
from regard.decoding.request import Sources
from regard.decoding.scoring import (
    MIN_COVERAGE,
    CoveragePenalty,
    LengthPenalty,
    MeanLengthPenalty,
    NoLengthPenalty,
    PowerLengthPenalty,
    as_coverage_penalty,
    as_length_penalty,
    initial_coverage,
)
from regard.tokens import Tokens


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


@pytest.mark.parametrize(("penalty", "want"), [
    ("none", lambda n: -6.0), ("mean", lambda n: -6.0 / n), (0, lambda n: -6.0),
    (0.6, lambda n: -6.0 / ((5 + n) / 6) ** 0.6), (1.0, lambda n: -36.0 / (5 + n)),
])
def test_scores_are_those_of_the_formulas(penalty, want):
    ranking = as_length_penalty(penalty)
    for length in (1, 2, 7, 100):
        assert ranking.score(number(-6), number(length)).item() == pytest.approx(want(length), rel=1e-15)


def test_one_token_has_no_penalty_and_no_token_is_no_division_by_zero():
    for ranking in (NoLengthPenalty(), MeanLengthPenalty(), PowerLengthPenalty(0.7)):
        assert ranking.score(number(-2), number(1)).item() == -2
        assert ranking.score(number(0), number(0)).item() == 0
        assert ranking.score(number(-math.inf), number(3)).item() == -math.inf


@given(penalty=st.one_of(st.sampled_from(["none", "mean"]), st.floats(0, 3)), total=st.floats(-50, 0),
       length=st.integers(1, 30), more=st.integers(0, 30), further=st.integers(0, 30), lost=st.floats(0, 5))
def test_no_continuation_scores_higher_than_what_is_attainable(penalty, total, length, more, further, lost):
    ranking = as_length_penalty(penalty)
    reach = ranking.attainable(number(total), number(length), number(length + more + further))
    assert ranking.score(number(total - lost), number(length + more)) <= reach
    # It is no looser than need be: tokens that are certain, up to the longest, reach it.
    assert ranking.score(number(total), number(length + more + further)) == reach


def test_a_ranking_of_ones_own_is_taken_as_it_is():
    class Own(LengthPenalty):
        def score(self, total, length):
            return total

        def attainable(self, total, length, longest):
            return total

    own = Own()
    assert as_length_penalty(own) is own


@pytest.mark.parametrize(("penalty", "parts"), [
    ("maen", ["`length_penalty`", '"none"', "maen", 'Did you mean "mean"?']), (True, ["`length_penalty`", "bool"]),
    (None, ["`length_penalty`", "NoneType"]), (-0.5, ["`length_penalty`", "at least 0", "-0.5"]),
    (math.nan, ["`length_penalty`", "nan"]), (math.inf, ["`length_penalty`", "inf"]),
    (MeanLengthPenalty, ["`length_penalty`", "instance"]),
])
def test_what_is_no_length_penalty(penalty, parts):
    assert_named(lambda: as_length_penalty(penalty), parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_penalties_of_any_size_give_numbers(dtype):
    """−∞ stays −∞, everything else is finite, and a more probable hypothesis of the same length is no worse."""
    length = torch.tensor([0, 1, 2, 1000], dtype=dtype)
    for alpha in (50.0, 1e30, 1e300):
        scores = [PowerLengthPenalty(alpha).score(length.new_full((4,), total), length) for total in (-9, -2, 0)]
        assert all(one.isfinite().all() for one in scores)
        assert (scores[0] <= scores[1]).all()
        assert (scores[1] <= scores[2]).all()
        lost = PowerLengthPenalty(alpha).score(length.new_full((4,), -math.inf), length)
        assert (lost == -math.inf).all()
    covered = CoveragePenalty(1e300).score(torch.tensor([[1.0, 1.0], [1.0, 0.5], [0.0, 0.0]], dtype=dtype))
    assert covered.isfinite().all()
    assert covered[0] == 0 > covered[1] > covered[2]


def test_the_score_is_that_of_the_formula():
    seen = torch.tensor([[[0.5, 2.0, 0.25], [1.0, 1.0, 3.0]]], dtype=torch.float64)
    got = CoveragePenalty(0.3).score(seen)
    assert got.tolist()[0] == pytest.approx([0.3 * (math.log(0.5) + math.log(0.25)), 0.0])
    assert CoveragePenalty(1.0).score(torch.zeros(1, 1, 1)).item() == pytest.approx(math.log(MIN_COVERAGE))


def test_of_layers_and_heads_the_mean_or_one_layer():
    cross = torch.rand(2, 3, 4, 5)
    torch.testing.assert_close(CoveragePenalty(1.0).attended(cross), cross.sum(dim=(1, 2)) / 12)
    torch.testing.assert_close(CoveragePenalty(1.0, 2).attended(cross), cross[:, 2].sum(dim=1) / 4)
    assert_named(lambda: CoveragePenalty(1.0, 3).attended(cross), ["`layer`", "from 0 to 2", "is 3"])


def test_padding_counts_as_covered_from_the_start():
    got = initial_coverage(torch.tensor([[True, False], [True, True]]), 2, torch.zeros(1, dtype=torch.float64))
    assert got.tolist() == [[[0, 1], [0, 1]], [[0, 0], [0, 0]]]
    assert got.dtype == torch.float64


def test_numbers_and_objects():
    assert as_coverage_penalty(None) is None
    assert as_coverage_penalty(0.2) == CoveragePenalty(0.2)
    assert as_coverage_penalty(CoveragePenalty(1, 2)) == CoveragePenalty(1, 2)


@pytest.mark.parametrize(("value", "parts"), [
    (-1, ["`coverage_penalty`", "at least 0"]), (math.nan, ["`coverage_penalty`", "nan"]),
    (10**400, ["`coverage_penalty`"]), (True, ["`coverage_penalty`", "bool"]),
    ("a", ["`coverage_penalty`", "str"]), (CoveragePenalty, ["`coverage_penalty`", "instance"]),
])
def test_what_is_no_coverage(value, parts):
    assert_named(lambda: as_coverage_penalty(value), parts)


PENALTIES = st.sampled_from(["none", "mean", 0.6, 1.0])


def covered(found, key, prompt, source, weight, layer, nbest):
    """(score, ids, end) with the coverage of each, the best first: what has ended, then what was cut."""
    layers = range(LAYERS) if layer is None else [layer]
    again = []
    for score, ids, end in found:
        seen = [0.0] * source
        for count in range(len(ids) + (end is not None)):
            for number in layers:
                look = weights_of(key, (*prompt, *ids[:count]), source, number)
                seen = [so_far + here / len(layers) for so_far, here in zip(seen, look, strict=True)]
        again.append((score + weight * sum(math.log(max(1e-10, min(one, 1.0))) for one in seen), ids, end))
    return sorted(again, key=lambda one: (one[2] is None, -one[0]))[:nbest]


def assert_same(got, want):
    assert [(one.ids, one.end) for one in got] == [(ids, end) for _, ids, end in want]
    assert [one.score for one in got] == pytest.approx([score for score, _, _ in want], rel=1e-6, abs=1e-6)


@pytest.mark.thorough
@given(seed=st.integers(0, 1000), penalty=PENALTIES, weight=st.sampled_from([0.1, 1.0, 5.0]),
       min_length=st.integers(0, 2),
       layer=st.sampled_from([None, 0, 1]))
def test_over_everything_it_is_brute_force(seed, penalty, weight, min_length, layer):
    function = drawn(4, seed)
    got = beam(Moving(function), kept([3, 5], [2, 4]), prompts=[[2]] * 2, end=0, max_length=3, min_length=min_length,
               beams=4 * 3 ** 3,
               nbest=8, length_penalty=penalty, coverage_penalty=CoveragePenalty(weight, layer))
    for row, (key, source) in enumerate([(3, 2), (5, 4)]):
        assert_same(got[row], covered(every(function, key, (2,), [0], 3, min_length, penalty), key, (2,), source,
                                      weight,
                                      layer, 8))


@given(seed=st.integers(0, 10_000), penalty=PENALTIES, weight=st.sampled_from([0.2, 3.0]), beams=st.integers(1, 5),
       max_length=st.integers(0, 6), nbest=st.integers(1, 5), min_length=st.integers(0, 2))
def test_stopping_early_finds_what_a_search_to_the_maximum_length_finds(seed, penalty, weight, beams, max_length, nbest,
                                                               min_length):
    function, nbest, min_length = drawn(5, seed, spread=2.0), min(nbest, beams), min(min_length, max_length)
    sources, prompts = [3, 1], [(2,), (1, 4)]
    got = beam(Moving(function), kept([0, 1], sources), prompts=prompts, end=0, max_length=max_length,
               min_length=min_length, beams=beams,
               nbest=nbest, length_penalty=penalty, coverage_penalty=weight)
    for row in range(2):
        want = plain_beam(function, row, prompts[row], [0], max_length, beams, min_length, penalty)
        assert_same(got[row], covered(want, row, prompts[row], sources[row], weight, None, nbest))


def test_coverage_with_prompts_that_wait_for_a_slot():
    keys, sources = [*range(9)], [1, 4, 2, 3, 3, 1, 4, 2, 2]
    options = {"prompts": [[1]] * 9, "end": 0, "max_length": 6, "beams": 3, "nbest": 2, "coverage_penalty": 0.7}
    model = Moving(drawn(5, seed=3))
    together = beam(model, kept(keys, sources), **options)
    later = Sources(9, lambda numbers: kept([keys[one] for one in numbers], [sources[one] for one in numbers]))
    for token_budget in (20, 80):  # memories of different lengths come together
        again = beam(model, later, token_budget=token_budget, **options)
        assert [[(one.ids, one.end) for one in row] for row in again] == [
            [(one.ids, one.end) for one in row] for row in together]
        for row, other in zip(again, together, strict=True):
            assert [one.score for one in row] == pytest.approx([one.score for one in other], rel=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "seq2seq-attention"])
def test_the_weights_are_those_of_the_model(kind):
    model, sources = built(TRANSLATING[kind]), [[1, 2, 3, 4], [5], [6, 1]]
    memory, prompts = model.encode(Tokens.of(sources)), [[1], [1, 3, 4], [2]]
    for row, [one] in enumerate(beam(model, memory, prompts=prompts, end=0, max_length=5, beams=3,
                                     coverage_penalty=0.5)):
        [seen] = with_cross(model, memory.pick([row]), [one], prompts=[prompts[row]])
        total = seen.cross.mean(dim=(0, 1)).sum(dim=0).clamp(max=1).log().sum().item()
        assert one.score == pytest.approx(sum(one.log_probabilities) + 0.5 * total, rel=1e-6)


def test_what_is_refused():
    options = {"prompts": [[1]], "end": 0, "max_length": 3, "beams": 2, "coverage_penalty": 0.5}
    assert_named(lambda: beam(Moving(drawn(3)), **options), ["`coverage_penalty`", "without a source", "0.5"])
    assert_named(lambda: beam(Table(drawn(3)), keyed([1]), **options), ["`model`", "cross-attention", "Table"])
