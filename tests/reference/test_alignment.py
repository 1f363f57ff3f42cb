"""The oracle of alignments, against what was worked out on paper."""

import math

import pytest

from regard.reference.statistics import alignment_error_rate, held_out_log_likelihood, normalize_columns


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
