"""The losses of the oracle, against numbers worked out by hand and against torch."""

import math

import pytest
import torch
from torch.nn import functional as F

from regard.reference import loss


def test_cross_entropy_by_hand():
    z = [math.log(1), math.log(3)]  # p = 1/4, 3/4
    assert loss.cross_entropy(z, 1) == pytest.approx(math.log(4 / 3), rel=1e-15)
    assert loss.cross_entropy(z, 1, 0.2) == pytest.approx(0.9 * math.log(4 / 3) + 0.1 * math.log(4), rel=1e-15)


def test_divergence_by_hand():
    p, q = [math.log(1), math.log(3)], [0.0, 0.0]  # 1/4, 3/4 and 1/2, 1/2
    assert loss.kl_divergence(p, q) == pytest.approx(0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2), rel=1e-14)
    assert loss.kl_divergence(q, p) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-14)
    assert loss.kl_divergence(p, p) == 0.0


def test_agreement_by_hand():
    p, q = [math.log(1), math.log(3)], [0.0, 0.0]
    entropies = math.log(4 / 3) + math.log(2)
    divergences = 0.25 * math.log(3)  # (3/4 - 1/2) log(3/2) + (1/4 - 1/2) log(1/2)
    assert loss.rdrop_loss(p, q, 1, 0.0, 5.0) == pytest.approx(entropies / 2 + 5 * divergences / 4, rel=1e-14)


def test_they_are_torchs():
    z, other = torch.randn(2, 9, dtype=torch.float64) * 4
    assert loss.cross_entropy(z, 3, 0.1) == pytest.approx(
        F.cross_entropy(z, torch.tensor(3), label_smoothing=0.1).item(), rel=1e-13)
    assert loss.kl_divergence(z, other) == pytest.approx(
        F.kl_div(other.log_softmax(-1), z.log_softmax(-1), log_target=True, reduction="sum").item(), rel=1e-13)


def test_large_logits_do_not_overflow():
    assert loss.cross_entropy([0.0, 5000.0], 0) == pytest.approx(5000.0)
    assert loss.kl_divergence([0.0, 5000.0], [5000.0, 0.0]) == pytest.approx(5000.0)
