"""Guards: unused keys are hidden whenever they could do harm, and left alone only when they cannot."""

import math

import pytest
import torch

from regard.attention import mask_cache


@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 3, 4), (3, 1), (1, 4), (0, 4), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("dim", [-1, -2])
def test_any_along_is_torchs_any(shape, dim):
    for likely in (0.0, 0.3, 1.0):
        flags = torch.rand(shape) < likely
        assert torch.equal(mask_cache.any_along(flags, dim), flags.any(dim, keepdim=True))


def test_any_along_takes_what_was_expanded_or_turned():
    flags = torch.rand(3, 1, 4) < 0.3
    for view in (flags.expand(3, 5, 4), flags.mT, flags.expand(3, 5, 4)[:, ::2, 1:]):
        for dim in (-1, -2):
            assert torch.equal(mask_cache.any_along(view, dim), view.any(dim, keepdim=True))


def tensors(filler, dtype=torch.float32):
    """Queries, keys and values of which the last key is unused and holds `filler`, and who may attend."""
    query, key, value = (torch.randn(2, n, 3, dtype=dtype) for n in (4, 5, 5))
    key[:, -1], value[:, -1] = filler, filler
    allowed = torch.ones(4, 5, dtype=torch.bool)
    allowed[:, -1] = False
    return query, key, value, allowed


@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf, 3e38])
def test_what_could_do_harm_is_hidden(filler):
    query, key, value, allowed = tensors(filler)
    query *= 100  # 3e38 is finite, and its product with the query is not
    _, *both = mask_cache.hide(query, key, value, allowed, bounded=True)
    for hidden, given in zip(both, (key, value), strict=True):
        assert torch.equal(hidden[:, -1], torch.zeros(2, 3))
        assert torch.equal(hidden[:, :-1], given[:, :-1])


def test_in_half_precision_smaller_numbers_do_harm():
    query, key, value, allowed = tensors(60000.0, torch.float16)
    assert (mask_cache.hide(query, key, value, allowed, bounded=True)[1][:, -1] == 0).all()


def test_a_score_that_norms_do_not_bound_is_always_guarded():
    query, key, value, allowed = tensors(7.0)
    assert (mask_cache.hide(query, key, value, allowed, bounded=False)[1][:, -1] == 0).all()


def test_queries_that_see_nothing_are_hidden_too():
    query, key, value, allowed = tensors(0.0)
    allowed[1] = False
    query[:, 1] = math.nan
    hidden, *_ = mask_cache.hide(query, key, value, allowed, bounded=True)
    assert (hidden[:, 1] == 0).all()
    assert torch.equal(hidden[:, [0, 2, 3]], query[:, [0, 2, 3]])


def test_what_can_do_no_harm_is_left_where_it_is():
    query, key, value, allowed = tensors(7.0)
    assert mask_cache.hide(query, key, value, allowed, bounded=True) == (query, key, value)
    allowed[0, -1] = True
    query, key, value, _ = tensors(math.nan)
    assert mask_cache.hide(query, key, value, allowed, bounded=True) == (query, key, value)  # it is used


def test_while_compiling_nothing_is_looked_at():
    query, key, value, allowed = tensors(math.nan)
    compiled = torch.compile(mask_cache.hide, backend="eager", fullgraph=True)
    for hidden in compiled(query, key, value, allowed, bounded=True):
        assert torch.isfinite(hidden).all()
