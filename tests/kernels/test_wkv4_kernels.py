"""The kernels of RWKV-4 against the plain recurrence: results, states and all gradients."""

import math

import numpy as np
import pytest
import torch

import regard
from regard.reference import rwkv as oracle
from regard.rwkv import wkv

pytest.importorskip("triton")
from interpreting import only_interpreted  # noqa: F401

from regard.kernels import launch, wkv4

SHAPES = [(1, 1, 16), (2, 5, 3), (1, 16, 32), (2, 17, 40), (1, 50, 130)]
"""Rows, tokens, channels: a token, less than a chunk, a chunk, one more, several chunks in two programs."""
NAMES = ("y", "a", "b", "k", "v", "w", "u", "a before", "b before")


def inputs_of(B, N, D, dtype=torch.float32, device="cpu", size=1.0):
    """k, v, w, u, a state, the present tokens (all of them), and gradients of y, a and b."""
    generator = torch.Generator().manual_seed(N)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    k, v = size * drawn(B, N, D), drawn(B, N, D)
    w, u = -torch.exp(2 * drawn(D) - 2), drawn(D)
    state = [drawn(B, D), torch.exp(drawn(B, D)), size * drawn(B, D)]
    given = [k.to(dtype), v.to(dtype), w, u, *state]
    above = [drawn(B, N, D), drawn(B, D), drawn(B, D)]
    return [part.to(device) for part in given], None, [part.to(device) for part in above]


def kernels(k, v, w, u, a, b, p, present):
    y, *after = wkv4.WKV4.apply(k, v, w, u, a, b, p, present)
    return y, wkv.WKV4State(*after)


def scan(k, v, w, u, a, b, p, present):
    """The scan in plain torch operations."""
    return wkv.wkv4_scan(k, v, w, u, wkv.WKV4State(a, b, p), present)


def results(function, given, present, above, dtype=None, exponent=None):
    """y, a and b, with the exponent that is given, and the gradients of all inputs but p."""
    *varied, p = (part.to(dtype or part.dtype).detach() for part in given)
    varied = [part.requires_grad_() for part in varied]
    y, after = function(*varied, p, present)
    scale = 1.0 if exponent is None else torch.exp(after.p - exponent.to(after.p.dtype))
    found = [y, after.a * scale, after.b * scale]
    together = sum((one * other.to(one.dtype)).sum() for one, other in zip(found, above, strict=True))
    return [part.detach() for part in found] + list(torch.autograd.grad(together, varied)), after.p


def assert_near(given, present, above):
    """The error is at most twice that of the scan in the same precision, and some eps, more for large exponents.

    p + w is rounded after every token, and where the decay is slow these errors add up like a random walk.
    """
    rounding = torch.finfo(torch.float32).eps * (max(given[0].abs().max(), 1.0) + math.sqrt(given[0].shape[1]))
    truth, exponent = results(scan, given, present, above, torch.float64)
    theirs, _ = results(scan, given, present, above, exponent=exponent)
    mine, _ = results(kernels, given, present, above, exponent=exponent)
    for name, want, one, other in zip(NAMES, truth, theirs, mine, strict=True):
        assert other.isfinite().all(), name
        error, plainly = ((found.double() - want).abs().max() for found in (other, one))
        assert error <= 2 * plainly + (rounding + 16 * torch.finfo(other.dtype).eps) * want.abs().max(), name


def absent(B, N, device="cpu"):
    """Present tokens with gaps; the last row has none."""
    present = torch.rand(B, N, generator=torch.Generator().manual_seed(1)) < 0.6
    present[-1] = False
    return present.to(device)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_are_the_scan(shape):
    assert_near(*inputs_of(*shape))


def test_kernels_are_the_oracles_recurrence():
    (k, v, w, u, *_), _, _ = inputs_of(2, 40, 5)
    y, _ = kernels(k, v, w, u, *wkv.empty_wkv4(k[:, 0]), None)
    for b in range(2):
        want = oracle.wkv4(*(part.double().numpy() for part in (k[b], v[b], w, u)))
        assert np.abs(y[b].numpy() - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_absent_tokens(shape):
    given, _, above = inputs_of(*shape)
    assert_near(given, absent(*shape[:2]), above)


def test_absent_tokens_change_neither_the_state_nor_others():
    (k, v, w, u, *state), _, _ = inputs_of(1, 40, 3)
    present = absent(2, 40)[:1]
    k, v = (part.masked_fill(~present.unsqueeze(-1), math.nan) for part in (k, v))
    y, after = kernels(k, v, w, u, *state, present)
    alone, last = kernels(k[:, present[0]], v[:, present[0]], w, u, *state, None)
    torch.testing.assert_close(y[:, present[0]], alone)
    torch.testing.assert_close(after.a * torch.exp(after.p - last.p), last.a)
    torch.testing.assert_close(after.b * torch.exp(after.p - last.p), last.b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_numbers(dtype):
    given, _, above = inputs_of(2, 33, 8, dtype)
    assert_near(given, None, above)
    y, after = kernels(*given, None)
    assert y.dtype == after.a.dtype == torch.float32
    assert [part.dtype for part in results(kernels, given, None, above)[0][3:5]] == [dtype, dtype]


@pytest.mark.parametrize("size", [100.0, 1000.0])
def test_large_keys(size):
    """e^k overflows in float32 from 89 on."""
    assert_near(*inputs_of(2, 40, 8, size=size))


@pytest.mark.parametrize("offset", [-500.0, 500.0])
def test_keys_that_are_all_large(offset):
    (k, *others, p), present, above = inputs_of(2, 40, 8)
    assert_near([k + offset, *others, p + offset], present, above)


@pytest.mark.parametrize("w", [0.0, -1e-4, -50.0, -1e5])
def test_from_no_decay_to_the_strongest(w):
    (k, v, decay, *others), present, above = inputs_of(2, 40, 8)
    assert_near([k, v, torch.full_like(decay, w), *others], present, above)


@pytest.mark.parametrize("present", [None, absent(2, 40)], ids=["all", "gaps"])
def test_an_empty_state(present):
    (k, v, w, u, *_), _, above = inputs_of(2, 40, 8)
    assert_near([k, v, w, u, *wkv.empty_wkv4(k[:, 0])], present, above)


def test_a_sequence_in_two_parts():
    """Gradients pass through the state between them."""
    given, _, above = inputs_of(2, 40, 8)

    def halves(k, v, w, u, a, b, p, present):
        first, state = kernels(k[:, :23], v[:, :23], w, u, a, b, p, present)
        second, after = kernels(k[:, 23:], v[:, 23:], w, u, *state, present)
        return torch.cat([first, second], 1), after

    whole, exponent = results(kernels, given, None, above)
    parts, _ = results(halves, given, None, above, exponent=exponent)
    for name, want, found in zip(NAMES, whole, parts, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()), msg=name)


def test_the_door_chooses_the_kernels(monkeypatch):
    """With a state, without one, and under autocast; float64 and empty texts are left to the scan."""
    (k, v, w, u, *state), _, _ = inputs_of(2, 20, 8)
    want = [scan(k, v, w, u, *wkv.empty_wkv4(k[:, 0]), None)[0], scan(k, v, w, u, *state, None)[0]]
    launched, run = [], launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, *rest: launched.append(kernel) or run(kernel, *rest))
    monkeypatch.setattr(wkv, "usable", lambda *tensors: all(one.dtype in launch.DTYPES and one.numel()
                                                            for one in tensors))
    torch.testing.assert_close(wkv.wkv4(k, v, w, u)[0], want[0])
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(wkv.wkv4(k, v, w, u, wkv.WKV4State(*state))[0], want[1])
    assert len(launched) == 6
    wkv.wkv4(*(part.double() for part in (k, v, w, u)))
    wkv.wkv4(k[:, :0], v[:, :0], w, u)
    assert len(launched) == 6


def test_there_are_no_second_derivatives():
    given, _, _ = inputs_of(1, 5, 3)
    k = given[0].requires_grad_()
    with pytest.raises(ValueError, match="create_graph"):
        torch.autograd.grad(kernels(*given, None)[0].sum(), k, create_graph=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 300, 64), (1, 1000, 40), (3, 77, 200), (2, 1, 16)], ids=str)
def test_on_a_gpu(shape, dtype):
    given, _, above = inputs_of(*shape, dtype, "cuda")
    assert_near(given, None, above)
    assert_near(given, absent(*shape[:2], "cuda"), above)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [100.0, 1000.0])
def test_large_keys_on_a_gpu(size):
    assert_near(*inputs_of(2, 300, 64, device="cuda", size=size))


@pytest.mark.gpu
@pytest.mark.parametrize("w", [0.0, -1e-4, -50.0, -1e5])
def test_every_decay_on_a_gpu(w):
    (k, v, decay, *others), present, above = inputs_of(2, 300, 64, device="cuda")
    assert_near([k, v, torch.full_like(decay, w), *others], present, above)


@pytest.mark.gpu
def test_a_long_text_on_a_gpu():
    assert_near(*inputs_of(1, 16_384, 64, device="cuda"))


@pytest.mark.gpu
def test_more_rows_than_the_second_dimension_of_a_grid_has():
    assert_near(*inputs_of(70_000, 3, 16, device="cuda"))


@pytest.mark.gpu
def test_gradients_do_not_change_from_run_to_run():
    given, _, above = inputs_of(8, 1000, 64, device="cuda")
    first, second = (results(kernels, given, None, above)[0] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.gpu
def test_the_door_is_open_on_a_gpu(monkeypatch):
    (k, v, w, u, *state), _, _ = inputs_of(2, 100, 64, torch.bfloat16, "cuda")
    launched, run = [], launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, *rest: launched.append(kernel) or run(kernel, *rest))
    y, after = wkv.wkv4(k, v, w, u, wkv.WKV4State(*state), absent(2, 100, "cuda"))
    assert len(launched) == 3
    torch.testing.assert_close(y, scan(k, v, w, u, *state, absent(2, 100, "cuda"))[0])
    assert after.p.dtype == torch.float32


@pytest.mark.gpu
def test_the_mixer_gives_the_same_on_a_gpu_all_at_once_and_in_steps():
    torch.manual_seed(0)
    mixer = regard.RWKV4(48).double()
    for parameter in (mixer.receptance.weight, mixer.key.weight, mixer.output.weight):  # new ones are zeros
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(2, 70, 48, dtype=torch.float64)
    padding = regard.Padding(torch.tensor([70, 33]))
    want = mixer(x, padding)
    mixer, x, padding = mixer.cuda().float(), x.cuda().float(), regard.Padding(torch.tensor([70, 33]).cuda())
    found = mixer(x, padding)
    assert (found.cpu() - want).abs().max() <= 1e-5 * want.abs().max()
    state, parts = mixer.start(2), []
    for part in x.split([40, 1, 29], 1):
        y, state = mixer.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), mixer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_cuda_graph_has_the_same_results():
    given, _, above = inputs_of(2, 100, 64, device="cuda")
    want, _ = results(kernels, given, None, above)  # compiles the kernels
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results(kernels, given, None, above)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        found, _ = results(kernels, given, None, above)
    graph.replay()
    for name, one, other in zip(NAMES, want, found, strict=True):
        assert torch.equal(one, other), name
