"""Coverage: the formula, once more, and what is no state of a source."""

import math

import pytest
import torch
from refusals import assert_named

from regard.decoding.scoring import MIN_COVERAGE, CoveragePenalty, as_coverage_penalty, initial_coverage


def test_the_score_is_that_of_the_formula():
    seen = torch.tensor([[[0.5, 2.0, 0.25], [1.0, 1.0, 3.0]]], dtype=torch.float64)
    got = CoveragePenalty(0.3).score(seen)
    assert got.tolist()[0] == pytest.approx([0.3 * (math.log(0.5) + math.log(0.25)), 0.0])
    assert CoveragePenalty(1.0).score(torch.zeros(1, 1, 1)).item() == pytest.approx(math.log(MIN_COVERAGE))


def test_of_layers_and_heads_the_mean_or_one_layer():
    cross = torch.rand(2, 3, 4, 5)
    torch.testing.assert_close(CoveragePenalty(1.0).attended(cross), cross.sum(dim=(1, 2)) / 12)
    torch.testing.assert_close(CoveragePenalty(1.0, 2).attended(cross), cross[:, 2].sum(dim=1) / 4)
    assert_named(lambda: CoveragePenalty(1.0, 3).attended(cross), ["`layer`", "decoder's 3", "is 3"])


def test_before_the_first_look_only_what_is_not_there_counts_as_seen():
    got = initial_coverage(torch.tensor([[True, False], [True, True]]), 2, torch.zeros(1, dtype=torch.float64))
    assert got.tolist() == [[[0, 1], [0, 1]], [[0, 0], [0, 0]]]
    assert got.dtype == torch.float64


def test_numbers_and_objects():
    assert as_coverage_penalty(None) is None
    assert as_coverage_penalty(0.2) == CoveragePenalty(0.2)
    assert as_coverage_penalty(CoveragePenalty(1, 2)) == CoveragePenalty(1, 2)


@pytest.mark.parametrize(("value", "parts"), [
    (-1, ["`weight`", "at least 0"]), (math.nan, ["`weight`", "nan"]), (True, ["`coverage_penalty`", "bool"]),
    ("a", ["`coverage_penalty`", "str"]), (CoveragePenalty, ["`coverage_penalty`", "Make one of it"]),
])
def test_what_is_no_coverage(value, parts):
    assert_named(lambda: as_coverage_penalty(value), parts)
