"""The `native` backend: torch's scans, where they are the same function; elsewhere it says why not."""

import pytest
import torch
from recurrent import KINDS, NATIVE, assert_close, make, normal

from regard.recurrence.kernels import loop, native
from regard.recurrence.kernels.problem import ScanProblem


def problem(kind, sizes, dtype=torch.float64):
    made = make(kind, 2, 3).to(dtype)
    state = tuple(normal(sizes[0], 3, seed=i, dtype=dtype).requires_grad_() for i in range(made.memories))
    return ScanProblem(made, normal(sum(sizes), 2, seed=9, dtype=dtype).requires_grad_(), sizes, state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # oneDNN's LSTM is in float32
@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 2, 1), (1,)])
@pytest.mark.parametrize("kind", NATIVE)
def test_it_is_the_loop_with_all_gradients(kind, sizes, dtype):
    asked = problem(kind, sizes, dtype)
    results = []
    for backend in (loop, native):
        hidden, final = backend.run(asked)
        upstream = [normal(*tensor.shape, seed=20 + i, dtype=dtype) for i, tensor in enumerate((hidden, *final))]
        wanted = (asked.inputs, *asked.state, *asked.cell.parameters())
        results.append((hidden, *final, *torch.autograd.grad((hidden, *final), wanted, upstream)))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, 1e-12 if dtype == torch.float64 else 1e-5)
    with torch.no_grad():
        again, end = native.run(asked)
    for ours, theirs in zip((again, *end), results[0], strict=False):
        assert_close(ours, theirs, 1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 1)])
@pytest.mark.parametrize("kind", NATIVE)
def test_gradients_are_those_of_finite_differences(kind, sizes):
    asked = problem(kind, sizes)

    def run(x, *state):
        hidden, final = native.run(ScanProblem(asked.cell, x, sizes, state))
        return hidden, *final

    assert torch.autograd.gradcheck(run, (asked.inputs, *asked.state))


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_refuses(kind):
    reason = native.refusal(problem(kind, (2, 2)))
    assert (reason is None) == (kind in NATIVE)
    words = {"rnn linear": "linear", "gru": 'reset="after"', "mut1": "MUT1", "mut2": "MUT2", "mut3": "MUT3"}
    assert words.get(kind, "") in (reason or "")
    asked = problem(kind, (2, 2))
    assert native.refusal(ScanProblem(asked.cell, asked.inputs[:0], (), asked.state)) == "there is no token"


def test_when_it_is_not_the_one_to_choose_on_a_cpu():
    many = (2,) * native.FEW
    assert native.drawback(problem("lstm", many, torch.float32)) is None
    assert "fewer than 16" in native.drawback(problem("lstm", many[1:], torch.float32))
    for slow in (problem("lstm", many), problem("gru after", many, torch.float32), problem("rnn", many, torch.float32),
                 problem("lstm", (3, *many), torch.float32)):
        assert "only the backward of an LSTM in float32" in native.drawback(slow)
        with torch.no_grad():
            assert native.drawback(slow) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in native.drawback(problem("lstm", many, torch.float32))


def test_on_a_gpu_the_weights_lie_in_one_piece():
    """As cuDNN wants them; seen here on a device without memory."""
    weights = [torch.empty(8, 3, device="meta"), torch.empty(8, 2, device="meta"), torch.empty(8, device="meta")]
    together = native._together(weights)
    assert [weight.shape for weight in together] == [weight.shape for weight in weights]
    assert [weight.storage_offset() for weight in together] == [0, 24, 40]
    assert all(weight.is_contiguous() for weight in together)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 2, 1)])
@pytest.mark.parametrize("kind", NATIVE)
def test_cudnn_is_the_loop(kind, sizes, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default for cuDNN rounds to 10 bits
    asked = problem(kind, sizes, torch.float32)
    truth = loop.run(asked)[0]
    there = ScanProblem(asked.cell.cuda(), asked.inputs.detach().cuda().requires_grad_(), sizes,
                    tuple(memory.detach().cuda() for memory in asked.state))
    assert native.drawback(there) is None
    hidden, _ = native.run(there)
    assert_close(hidden.cpu(), truth, 1e-5)
    hidden.sum().backward()
    assert there.inputs.grad.isfinite().all()
