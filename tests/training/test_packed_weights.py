"""Products with weights that are packed for oneDNN."""

import pytest
import torch

from regard.training import loss

needs_it = pytest.mark.skipif(not loss.onednn_usable(torch.ones(1)), reason="torch has no oneDNN here")


@needs_it
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_they_are_torchs_products(bias, turned):
    torch.manual_seed(0)
    x, weight = torch.randn(37, 20), torch.randn(20, 51).t() if turned else torch.randn(51, 20)
    added = torch.randn(51) if bias else None
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if added is None else added.double())
    plain = torch.nn.functional.linear(x, weight, added)
    for weights in (weight, loss.onednn_weight(weight)):
        found = loss.onednn_linear(x, weights, added)
        assert found.shape == (37, 51)
        assert (found - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-6


@needs_it
def test_a_layout_is_a_copy():
    weight = torch.nn.Parameter(torch.randn(6, 4))
    x, laid_out = torch.randn(3, 4), loss.onednn_weight(weight)
    before = loss.onednn_linear(x, laid_out)
    with torch.no_grad():
        weight.zero_()
    assert torch.equal(loss.onednn_linear(x, laid_out), before)
    assert not before.requires_grad


@pytest.mark.parametrize("tensor", [torch.ones(3, dtype=torch.double), torch.ones(3, dtype=torch.bfloat16),
                                    torch.ones(3, device="meta"), torch.ones(0)], ids=str)
def test_other_numbers_and_places_are_refused(tensor):
    assert not loss.onednn_usable(torch.ones(2, 3), tensor)
