"""The recurrences of RWKV against the oracle: step by step, all at once, in chunks of any size, and their maps."""

import math

import numpy as np
import pytest
import torch

from regard.reference import rwkv as oracle
from regard.rwkv import wkv

B, D, HEADS, FEATURES = 2, 6, 3, 4


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def version4(count, size=1.0):
    """k, v (B, N, D) and w, u (D,)."""
    return (size * numbers(B, count, D), numbers(B, count, D, seed=1), -torch.exp(numbers(D, seed=2)),
            numbers(D, seed=3))


def version7(count, seed=0, heads=HEADS, features=FEATURES):
    r, k, v, c, rate, decay = (numbers(B, heads, count, features, seed=10 * seed + i) for i in range(6))
    log_w = -math.exp(-0.5) * torch.sigmoid(3 * decay)
    return wkv.WKV7Inputs(r, log_w, k, v, torch.nn.functional.normalize(c, dim=-1), torch.sigmoid(rate))


def assert_close(ours, theirs, tolerance=1e-12):
    ours, theirs = (torch.as_tensor(part).detach().double() for part in (ours, theirs))
    assert ours.shape == theirs.shape
    scale = theirs.abs().max().clamp(min=1.0) if theirs.numel() else 1.0
    assert theirs.numel() == 0 or (ours - theirs).abs().max() <= tolerance * scale


def oracle7(inputs):
    """The oracle's result of every row and head."""
    r, log_w, k, v, c, a = (part.numpy() for part in inputs)
    return np.array([[oracle.wkv7(r[b, h], np.exp(log_w[b, h]), k[b, h], v[b, h], c[b, h], a[b, h])
                      for h in range(r.shape[1])] for b in range(len(r))])


# ---- version 4 ----


@pytest.mark.parametrize("count", [1, 2, 5, 16, 40])
@pytest.mark.parametrize("size", [1.0, 300.0])
def test_the_scan_of_version_4_is_the_oracles_recurrence(count, size):
    k, v, w, u = version4(count, size)
    y, _ = wkv.wkv4(k, v, w, u)
    for b in range(B):
        assert_close(y[b], oracle.wkv4(k[b].numpy(), v[b].numpy(), w.numpy(), u.numpy()))


def test_version_4_continues_from_a_state():
    k, v, w, u = version4(11)
    whole, last = wkv.wkv4(k, v, w, u)
    y, state = wkv.wkv4(k[:, :4], v[:, :4], w, u)
    assert_close(y, whole[:, :4])
    for t in range(4, 6):
        y, state = wkv.wkv4_step(k[:, t], v[:, t], w, u, state)
        assert_close(y, whole[:, t])
    y, state = wkv.wkv4(k[:, 6:], v[:, 6:], w, u, state)
    assert_close(y, whole[:, 6:])
    for mine, theirs in zip((state.a, state.b), (last.a, last.b), strict=True):
        assert_close(mine * torch.exp(state.p - last.p), theirs)


def test_gradients_of_the_scan_are_those_of_the_steps():
    k, v, w, u = (part.requires_grad_() for part in version4(13))
    weight = numbers(B, 13, D, seed=7)
    state, results = wkv.empty_wkv4(k[:, 0].detach()), []
    for t in range(13):
        y, state = wkv.wkv4_step(k[:, t], v[:, t], w, u, state)
        results.append(y)
    theirs = torch.autograd.grad((torch.stack(results, 1) * weight).sum(), (k, v, w, u))
    ours = torch.autograd.grad((wkv.wkv4(k, v, w, u)[0] * weight).sum(), (k, v, w, u))
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other)


def test_the_map_of_version_4_is_the_oracles():
    k, v, w, u = version4(9)
    M = wkv.wkv4_map(k, w, u)
    for b in range(B):
        assert_close(M[b], oracle.wkv4_map(k[b].numpy(), w.numpy(), u.numpy()), 1e-10)
    assert_close(torch.einsum("bcti,bic->btc", M, v), wkv.wkv4(k, v, w, u)[0], 1e-10)
    assert_close(M.sum(-1), torch.ones(B, D, 9))


# ---- version 7 ----


@pytest.mark.parametrize("count", [1, 3, 32, 70])
@pytest.mark.parametrize("chunk", [1, 8, 32, 64])
def test_chunks_of_version_7_are_the_oracles_recurrence(count, chunk):
    inputs = version7(count)
    y, _ = wkv.wkv7_chunked(inputs, chunk=chunk)
    assert_close(y, oracle7(inputs))


def test_chunks_of_64_and_the_recurrence_agree_over_long_texts():
    inputs = version7(500)
    want, last = wkv.wkv7_recurrent(inputs)
    for chunk in (32, 64, 128):
        y, state = wkv.wkv7_chunked(inputs, chunk=chunk)
        assert_close(y, want)
        assert_close(state, last)


def test_version_7_continues_from_a_state():
    inputs = version7(50)
    whole, last = wkv.wkv7_recurrent(inputs)
    first, second = (wkv.WKV7Inputs(*(part[:, :, at] for part in inputs)) for at in (slice(20), slice(20, None)))
    y, state = wkv.wkv7_chunked(first)
    assert_close(y, whole[:, :, :20])
    y, state = wkv.wkv7_chunked(second, state)
    assert_close(y, whole[:, :, 20:])
    assert_close(state, last)


def test_gradients_of_chunks_are_those_of_the_recurrence():
    inputs = wkv.WKV7Inputs(*(part.requires_grad_() for part in version7(45)))
    weight, before = numbers(B, HEADS, 45, FEATURES, seed=99), numbers(B, HEADS, FEATURES, FEATURES).requires_grad_()
    results = []
    for run in (wkv.wkv7_recurrent, wkv.wkv7_chunked):
        y, state = run(inputs, before)
        results.append(torch.autograd.grad((y * weight).sum() + state.square().sum(), (*inputs, before)))
    for theirs, ours in zip(*results, strict=True):
        assert_close(ours, theirs)


def test_the_map_of_version_7_is_the_oracles():
    inputs = version7(37)
    M = wkv.wkv7_map(inputs)
    assert_close(M @ inputs.v, wkv.wkv7_recurrent(inputs)[0], 1e-10)
    r, log_w, k, _, c, a = (part[1, 2].numpy() for part in inputs)
    assert_close(M[1, 2], oracle.wkv7_map(r, np.exp(log_w), k, c, a), 1e-10)
    assert (M < 0).any()


def test_float32_keeps_its_digits():
    """The strongest decay, in chunks of 32 and 64: e^{-G} grows to 1e17, and the products stay small."""
    inputs = version7(256, features=16)
    inputs = inputs._replace(log_w=torch.full_like(inputs.log_w, -math.exp(-0.5)))
    want, _ = wkv.wkv7_recurrent(inputs)
    low = wkv.WKV7Inputs(*(part.float().requires_grad_() for part in inputs))
    for chunk in (32, 64):
        y, _ = wkv.wkv7_chunked(low, chunk=chunk)
        assert_close(y, want, 1e-5)
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.square().sum(), low))


def test_bfloat16_and_autocast_compute_in_float32():
    inputs = version7(20)
    low = wkv.WKV7Inputs(*(part.bfloat16() for part in inputs))
    exact = wkv.WKV7Inputs(*(part.double() for part in low))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = wkv.wkv7_chunked(low)
    assert y.dtype == state.dtype == torch.float32
    assert_close(y, wkv.wkv7_recurrent(exact)[0], 1e-5)


def test_absent_tokens_change_nothing():
    inputs, there = version7(9), torch.tensor([[True] * 9, [False, True, True, False, True] + [False] * 4])
    y, state = wkv.wkv7_chunked(inputs.without_absent(there))
    alone = wkv.WKV7Inputs(*(part[1:, :, there[1]] for part in inputs))
    want, last = wkv.wkv7_recurrent(alone)
    assert_close(y[1:, :, there[1]], want)
    assert_close(state[1:], last)
    k, v, w, u = version4(9)
    y4, state4 = wkv.wkv4(k, v, w, u, present_BN=there)
    want4, last4 = wkv.wkv4(k[1:, there[1]], v[1:, there[1]], w, u)
    assert_close(y4[1:, there[1]], want4)
    assert_close(state4.a[1:] * torch.exp(state4.p[1:] - last4.p), last4.a)
