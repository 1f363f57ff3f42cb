"""The kernels of RWKV-7 against the plain recurrence: results, states and all gradients."""

import math

import pytest
import torch

from regard.rwkv import wkv

pytest.importorskip("triton")
from interpreting import only_interpreted  # noqa: F401

from regard.kernels import wkv7

SHAPES = [(1, 1, 5, 16), (2, 2, 33, 16), (1, 2, 70, 32), (1, 1, 32, 32), (1, 1, 40, 64)]
"""Rows, heads, tokens, features: less than a chunk, one more, two chunks and a part, one chunk, a chunk and a part."""


def inputs_of(B, H, N, D, dtype=torch.float32, device="cpu", decay=2.0):
    generator = torch.Generator().manual_seed(N)
    r, w, k, v, c, a = (torch.randn(B, N, H, D, generator=generator) for _ in range(6))
    log_w = -math.exp(-0.5) * torch.sigmoid(decay * w)
    made = (r, log_w, k, v, torch.nn.functional.normalize(c, dim=-1), torch.sigmoid(a))
    state = torch.randn(B, H, D, D, generator=generator)
    above = torch.randn(B, N, H, D, generator=generator), torch.randn(B, H, D, D, generator=generator)
    return ([part.to(device, torch.float32 if number == 1 else dtype) for number, part in enumerate(made)],
            state.to(device), [part.to(device) for part in above])


def plain(*given):
    """The recurrence, one token after another."""
    *inputs, state = given
    y, last = wkv.wkv7_recurrent(wkv.WKV7Inputs(*(part.transpose(1, 2) for part in inputs)), state)
    return y.transpose(1, 2), last


def results(function, inputs, state, above, dtype=None):
    given = [part.to(dtype or part.dtype).detach().requires_grad_() for part in (*inputs, state)]
    y, last = function(*given)
    together = (y * above[0].to(y.dtype)).sum() + (last * above[1].to(y.dtype)).sum()
    return [y.detach(), last.detach(), *torch.autograd.grad(together, given)]


def assert_near(inputs, state, above):
    """The error is at most twice that of the plain chunks in the same precision, and some eps."""
    def chunks(*given):
        *parts, before = given
        wide = wkv.WKV7Inputs(*(part.transpose(1, 2) for part in parts))
        y, last = wkv.wkv7_chunked(wide, before, chunk=31)  # another chunk: never the kernels
        return y.transpose(1, 2), last

    truth = results(plain, inputs, state, above, torch.float64)
    theirs = results(chunks, inputs, state, above)
    mine = results(wkv7.WKV7.apply, inputs, state, above)
    names = ("y", "last", "r", "log_w", "k", "v", "c", "a", "state")
    for name, want, one, other in zip(names, truth, theirs, mine, strict=True):
        error, plainly = ((found.double() - want).abs().max() for found in (other, one))
        assert error <= 2 * plainly + 16 * torch.finfo(inputs[0].dtype).eps * want.abs().max(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_are_the_recurrence(shape, dtype):
    assert_near(*inputs_of(*shape, dtype))


def test_the_tokens_after_the_last_one_are_never_read():
    """A part of longer tensors, whose other numbers are not finite: the last chunk ends with them."""
    inputs, state, above = inputs_of(1, 2, 40, 16)
    longer = [torch.cat([part, torch.full_like(part[:, :24], math.nan)], 1)[:, :40] for part in inputs]
    for ours, theirs in zip(results(wkv7.WKV7.apply, longer, state, above),
                            results(wkv7.WKV7.apply, inputs, state, above), strict=True):
        assert torch.equal(ours, theirs)


def test_inputs_of_several_dtypes():
    """Under autocast, projections are bfloat16, and normalized keys float32."""
    inputs, state, above = inputs_of(1, 2, 40, 16)
    assert_near([part if number in (1, 4) else part.bfloat16() for number, part in enumerate(inputs)], state, above)


def test_the_strongest_decay_and_repeated_keys():
    """e^{-G} is largest, and powers of the triangle would cancel."""
    inputs, state, above = inputs_of(1, 1, 40, 16, decay=50.0)
    inputs[4] = inputs[4][:, :1].expand_as(inputs[4]).contiguous()
    inputs[5] = torch.ones_like(inputs[5])
    assert_near(inputs, state, above)


def test_a_single_token():
    assert_near(*inputs_of(2, 1, 1, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_numbers(dtype):
    inputs, state, above = inputs_of(1, 2, 40, 16, dtype)
    assert_near(inputs, state, above)
    y, last = wkv7.WKV7.apply(*inputs, state)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)


def repeated(inputs, state, above):
    """Nothing fades, and every token removes what the ones before it wrote."""
    r, log_w, k, v, c, a = inputs
    return [r, torch.zeros_like(log_w), k, v, c[:, :1].expand_as(c).contiguous(), torch.ones_like(a)], state, above


def test_repeated_keys_without_decay():
    assert_near(*repeated(*inputs_of(1, 1, 70, 16)))


@pytest.mark.parametrize("changes", [{"chunk": 16}, {"chunk": 64}, {"key_block": 16}, {"value_block": 64}], ids=str)
def test_other_sizes_of_the_kernels(changes, monkeypatch):
    monkeypatch.setitem(wkv7.BLOCKS, torch.float32, wkv7.BLOCKS[torch.float32]._replace(**changes))
    assert_near(*inputs_of(1, 1, 70, 32))


def test_widths_that_do_not_fit_are_left_to_the_plain_chunks():
    assert wkv7.fits(torch.zeros(1, 1, 2, 64), torch.zeros(1, 1, 2, 64))
    assert not wkv7.fits(torch.zeros(1, 1, 2, 48), torch.zeros(1, 1, 2, 48))
    assert not wkv7.fits(torch.zeros(1, 1, 2, 64), torch.zeros(1, 1, 2, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 200, 64), (1, 2, 1000, 32), (1, 1, 77, 128), (2, 1, 33, 16)], ids=str)
def test_on_a_gpu(shape, dtype):
    assert_near(*inputs_of(*shape, dtype, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeated_keys_on_a_gpu(dtype):
    """The interpreter truncates numbers to bfloat16, which a GPU rounds: this case shows the difference."""
    assert_near(*repeated(*inputs_of(1, 1, 300, 64, dtype, "cuda")))


@pytest.mark.gpu
@pytest.mark.parametrize(("changes", "dtype"), [({"chunk": 64}, torch.bfloat16), ({"key_block": 32}, torch.bfloat16),
                                                ({"key_block": 32}, torch.float32)], ids=str)
def test_other_sizes_on_a_gpu(changes, dtype, monkeypatch):
    """In float32, chunks of 64 tokens lose more digits than the bound of these tests allows."""
    monkeypatch.setitem(wkv7.BLOCKS, dtype, wkv7.BLOCKS[dtype]._replace(**changes))
    assert_near(*inputs_of(1, 2, 200, 64, dtype, "cuda"))


@pytest.mark.gpu
def test_more_rows_than_the_second_dimension_of_a_grid_has():
    assert_near(*inputs_of(70_000, 1, 3, 16, device="cuda"))
