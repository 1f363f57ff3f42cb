"""Statistics of attention weights and of word alignments, by hand."""

import math

import numpy as np
import pytest
import torch

from regard.reference import statistics
from regard.reference.statistics import alignment_error_rate, held_out_log_likelihood, normalize_columns


def test_entropy_by_hand():
    weights = [[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    np.testing.assert_allclose(statistics.entropy(weights), [math.log(4), 0.0, 0.0, math.log(2)], rtol=1e-15)


def test_entropy_does_not_rescale_rows():
    assert statistics.entropy([[0.5, 0.0]])[0] == pytest.approx(-0.5 * math.log(0.5), rel=1e-15)
    assert statistics.entropy([[2.0]])[0] == pytest.approx(-2 * math.log(2), rel=1e-15)


def test_entropy_is_torchs():
    weights = torch.softmax(torch.randn(3, 7, dtype=torch.float64), -1)
    np.testing.assert_allclose(statistics.entropy(weights), torch.special.entr(weights).sum(-1), rtol=1e-13)


def test_row_max_takes_the_first():
    values, positions = statistics.row_max([[0.1, 0.4, 0.4, 0.1], [0.9, 0.0, 0.1, 0.0]])
    assert values.tolist() == [0.4, 0.9]
    assert positions.tolist() == [1, 0]
    assert statistics.row_max([[0.5]])[0].tolist() == [0.5]


def test_column_sums():
    assert statistics.column_sums([[1.0, 2.0, 0.0], [4.0, 8.0, 0.5]]).tolist() == [5.0, 10.0, 0.5]


def test_top_k_with_ties():
    values, positions = statistics.top_k([[0.2, 0.3, 0.2, 0.3], [0.0, 0.0, 1.0, 0.0]], 3)
    assert values.tolist() == [[0.3, 0.3, 0.2], [1.0, 0.0, 0.0]]
    assert positions.tolist() == [[1, 3, 0], [2, 0, 1]]
    assert statistics.top_k([[0.5]], 0)[0].shape == (1, 0)
    with pytest.raises(ValueError, match="`k` must be between 0 and the number of keys"):
        statistics.top_k([[0.5, 0.5]], 3)


def test_block_map_with_smaller_last_blocks():
    weights = np.arange(15.0).reshape(3, 5)
    expected = [[(0 + 1 + 5 + 6) / 4, (2 + 3 + 7 + 8) / 4, (4 + 9) / 2], [10.5, 12.5, 14.0]]
    assert statistics.block_map(weights, 2).tolist() == expected
    assert statistics.block_map(weights, 1).tolist() == weights.tolist()
    assert statistics.block_map(weights, 8).tolist() == [[7.0]]


def test_the_error_rate_by_hand():
    found, sure, possible = {(0, 0), (1, 2), (2, 1), (3, 3)}, {(0, 0), (1, 1), (2, 1)}, {(0, 0), (1, 1), (2, 1), (3, 3)}
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert alignment_error_rate(found, sure, set()) == pytest.approx(1 - (2 + 2) / (4 + 3))  # what is sure is possible
    assert alignment_error_rate(sure, sure, sure) == 0
    assert alignment_error_rate({(5, 5)}, sure, possible) == 1


def test_shares_by_hand():
    first, second = normalize_columns([[0.6, 0.2], [0.3, 0.0]], 0.1).tolist()
    assert (first, second) == (pytest.approx([0.6, 2 / 3]), pytest.approx([0.3, 0.0]))
    first, second = normalize_columns([[0.6, 0.2], [0.3, 0.0]], 0.1, 2).tolist()
    looks = 0.8 * 0.6 / (0.6 + 2 / 3), 0.8 * (2 / 3) / (0.6 + 2 / 3)  # those of the first; the second has one alone
    assert first == pytest.approx([looks[0] / (looks[0] + 0.3 + 0.1), looks[1] / (looks[1] + 0.1)])
    assert second == pytest.approx([0.3 / (looks[0] + 0.3 + 0.1), 0.0])


def test_how_well_links_foretell_by_hand():
    """Of three sentences the first two agree; V = 2."""
    sentences = [[("a", "x")], [("a", "x")], [("a", "y")]]
    agreed = (1 + (1 + 1) / (2 + 2)) / (2 + 1)  # one of two links is the same, and so is x in one of two
    alone = (0 + (0 + 1) / (2 + 2)) / (2 + 1)
    assert held_out_log_likelihood(sentences) == pytest.approx((2 * math.log(agreed) + math.log(alone)) / 3)


def test_influence_by_hand():
    """Two targets: one is as probable as the source is long, the other only where there is a 7."""
    def logs(source):
        return [-1.0 / len(source), 0.0 if 7 in source else -4.0]

    values = statistics.influence(logs, [5, 7, 6, 7], [[0], [1, 3], [2]])
    assert values.tolist() == [pytest.approx([1 / 3 - 1 / 4, 1 / 2 - 1 / 4, 1 / 3 - 1 / 4]), [0.0, 4.0, 0.0]]
    assert statistics.without_effect(values, 0.15) == [0, 2]
    assert statistics.without_effect(values, 1 / 3 - 1 / 4) == []  # a change of just this size is an effect
    first, second = statistics.influence_shares(values - [[0, 0, 1], [0, 0, 0]], 0.3).tolist()
    assert first == pytest.approx([1 / 4, 3 / 4, 0.0])  # 1/12 and 3/12; what is negative has no share
    assert second == [0.0, 1.0, 0.0]
    assert statistics.influence_shares(values, 0.5).tolist() == [[0.0] * 3, [0.0, 1.0, 0.0]]
