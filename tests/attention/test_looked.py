"""Masks that are looked up once: the same as those they were made of, with what was found out about them."""

import pytest
import torch

import regard
from regard.attention import mask_cache as module
from regard.attention import fused
from regard.attention.mask_cache import CachedMask, CachedPadding

LENGTHS = torch.tensor([3, 0, 4])


def test_what_was_found_out_is_the_masks():
    allowed = regard.Padding(LENGTHS).matrix(1, 4, leading=2)
    mask = CachedMask(allowed)
    assert mask.tensor is allowed
    assert mask.blind.flatten().tolist() == [False, True, False]
    assert mask.opened[:, 0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert CachedMask(allowed, "any").blind is None
    assert CachedMask(allowed[::2]).blind is None  # all rows see something
    assert CachedMask(allowed[::2]).opened is not None
    assert mask.pick(torch.tensor([1, 1])).blind.flatten().tolist() == [True, True]


@pytest.mark.parametrize("backend", ["sdpa", "exact", "tiled"])
@pytest.mark.parametrize("bias", [None, regard.ALiBi.for_heads(2)], ids=["", "alibi"])
def test_attention_is_the_same(backend, bias):
    torch.manual_seed(1)
    query, key, value = (torch.randn(3, 2, n, 5, dtype=torch.double) for n in (2, 4, 4))
    mask = regard.Padding(LENGTHS)
    want = regard.attend(query, key, value, mask=mask, bias=bias, backend="exact")
    got = regard.attend(query, key, value, mask=CachedMask(mask.matrix(1, 4, leading=2)), bias=bias, backend=backend)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("own", [None, regard.Causal(), regard.Causal() & regard.Window(1, 1)], ids=str)
def test_a_pass_looks_up_each_mask_once(side, own):
    padding = regard.Padding(LENGTHS, side)
    shared = CachedPadding(padding)
    there = shared.present(4, torch.device("cpu"))
    assert torch.equal(there, padding.matrix(1, 4).squeeze(-2))
    assert shared.present(4, torch.device("cpu")) is there
    looked = shared.under(own, 4, torch.device("cpu"))
    both = padding if own is None else own & padding
    assert torch.equal(looked.tensor.expand(3, 1, 4, 4), both.matrix(4, 4, leading=2).expand(3, 1, 4, 4))
    assert looked.opened.expand(3, 1, 4, 4).any(-1).all()
    assert shared.under(own, 4, torch.device("cpu")) is looked
    other = shared.under(regard.Window(0, 2), 4, torch.device("cpu"))
    assert other is not looked


def test_equal_masks_are_looked_up_once_and_equal_names_are_not_equal_masks():
    shared, device = CachedPadding(regard.Padding(LENGTHS)), torch.device("cpu")
    first, second = (regard.Causal() & flags for flags in (torch.eye(4).bool(), torch.ones(4, 4).bool()))
    assert repr(first) == repr(second)
    assert not torch.equal(shared.under(first, 4, device).tensor, shared.under(second, 4, device).tensor)
    assert shared.under(first, 4, device) is shared.under(first, 4, device)
    assert shared.under(regard.Causal(), 4, device) is shared.under(regard.Causal(), 4, device)


def test_a_matrix_that_is_too_large_is_not_written_out(monkeypatch):
    assert fused.MAX_MATRIX_ENTRIES == module.MAX_MATRIX_ENTRIES
    monkeypatch.setattr(module, "MAX_MATRIX_ENTRIES", 3 * 4 * 4 - 1)
    shared, device = CachedPadding(regard.Padding(LENGTHS)), torch.device("cpu")
    assert repr(shared.under(regard.Causal(), 4, device)) == repr(regard.Causal() & regard.Padding(LENGTHS))
    alone = shared.under(None, 4, device)  # a row of keys for each sequence, however many queries there are
    assert alone.tensor.shape == (3, 1, 1, 4)
    assert not alone.is_matrix
