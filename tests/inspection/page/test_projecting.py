"""What a page computes weights from: normalizers and means of blocks in one pass, and an error that is told."""

import pytest
import torch
import traced

from regard.attention.look import Look
from regard.attention.mask import Causal, Padding, Window
from regard.inspection.page import tiles
from regard.inspection.page.tiles import projected_forms
from regard.inspection.records import WeightMatrix
from regard.inspection.trace_format import TracedAttention


def attention(look):
    return TracedAttention("one", "a", "b", look)


@pytest.mark.parametrize("mask", [None, Causal(), Window(4, 0), Window(2, 3), Window(None, 1)])
@pytest.mark.parametrize("shape", [(17, 17), (9, 30), (30, 9)])
@pytest.mark.parametrize("size", [1, 4, 64])
def test_normalizers_and_means_of_blocks(mask, shape, size, monkeypatch):
    monkeypatch.setattr(tiles, "SCORES_AT_ONCE", 60)
    look = traced.looks(4, *shape, mask=mask)
    rounded = Look(look.query.half().float(), look.key[:2].half().float(), mask=mask)
    found, _ = projected_forms(attention(rounded))
    normalizers, means = found.summed(size)
    scores = rounded.query @ rounded.key.repeat_interleave(2, 0).mT / 8 ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.matrix(*shape), -torch.inf)
    torch.testing.assert_close(normalizers, scores.logsumexp(-1))
    torch.testing.assert_close(means, rounded.block_map(size), atol=1e-6, rtol=1e-4)
    assert found.error(attention(rounded), normalizers) < 1e-6


def test_the_error_is_that_of_rounding():
    look = traced.looks(2, 20, 20)
    sharp = Look(look.query * 5, look.key)
    found, _ = projected_forms(attention(sharp))
    normalizers, _ = found.summed(4)
    halves = Look((look.query * 5).half().float(), look.key.half().float())
    want = float((halves.weights() - sharp.weights()).abs().max())
    assert found.error(attention(sharp), normalizers) == pytest.approx(want, rel=0.1)
    assert want > 1e-4


@pytest.mark.parametrize("mask", [None, Causal()])
def test_what_is_left_over_makes_it_exact(mask):
    look = traced.looks(2, 30, 30)
    sharp = attention(Look(look.query * 9, look.key, mask=mask))
    rounded, exact = projected_forms(sharp)
    errors = [form.error(sharp, form.summed(4)[0]) for form in (rounded, exact)]
    assert errors[0] > 5e-4
    assert errors[1] < 2e-5
    assert exact.query.dtype == torch.float16


@pytest.mark.parametrize("look", [
    WeightMatrix(torch.rand(1, 3, 3)), traced.looks(1, 3, 3, normalize="relu"),
    traced.looks(1, 3, 3, bias=torch.rand(3, 3)),
    traced.looks(1, 3, 3, mask=Padding(torch.tensor(2))), traced.additive(1, 3),
    traced.looks(1, 3, 3, mask=Causal() & Window(1, 0)), traced.looks(1, 3, 3, score=lambda q, k: q @ k.mT)])
def test_what_is_no_softmax_of_products_is_not_projected(look):
    assert [*projected_forms(attention(look))] == []


def test_bytes_are_counted():
    found, finer = projected_forms(attention(traced.looks(2, 5, 7, width=3)))
    assert found.nbytes == 2 * (2 * 5 * 3 + 2 * 7 * 3) + 4 * 2 * 5
    assert finer.nbytes == 6 * (2 * 5 * 3 + 2 * 7 * 3) + 4 * 2 * 5
