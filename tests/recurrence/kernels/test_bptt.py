"""The `bptt` backend: its written-out backward is the derivative of the loop, and of finite differences."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import KINDS, assert_close, kinds, make, normal, seeds, widths

from regard.recurrence.cells import LSTMCell
from regard.recurrence.kernels import bptt, loop
from regard.recurrence.kernels.problem import ScanProblem

sizes_of_steps = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(lambda sizes: tuple(sorted(sizes)[::-1]))


def problem(kind, input_width, width, sizes, seed=0):
    made = make(kind, input_width, width, seed)
    state = tuple(normal(sizes[0], width, seed=seed + i).requires_grad_() for i in range(made.memories))
    return ScanProblem(made, normal(sum(sizes), input_width, seed=seed + 9).requires_grad_(), sizes, state)


@given(kinds, widths, widths, sizes_of_steps, seeds)
def test_it_is_the_loop_with_all_gradients(kind, input_width, width, sizes, seed):
    asked = problem(kind, input_width, width, sizes, seed)
    results = []
    for backend in (loop, bptt):
        hidden, final = backend.run(asked)
        upstream = [normal(*tensor.shape, seed=seed + 20 + i) for i, tensor in enumerate((hidden, *final))]
        wanted = (asked.inputs, *asked.state, *asked.cell.parameters())
        gradients = torch.autograd.grad((hidden, *final), wanted, upstream)
        results.append((hidden, *final, *gradients))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 1)], ids=["even", "ragged"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind, sizes):
    asked = problem(kind, 2, 2, sizes)
    names, parameters = zip(*asked.cell.named_parameters(), strict=True)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = asked.cell

        def forward(self, x, *state):
            hidden, final = bptt.run(ScanProblem(self.cell, x, sizes, state))
            return hidden, *final

    def run(x, *rest):
        count = asked.cell.memories
        given = {f"cell.{name}": tensor for name, tensor in zip(names, rest[count:], strict=True)}
        return torch.func.functional_call(Whole(), given, (x, *rest[:count]))

    assert torch.autograd.gradcheck(run, (asked.inputs, *asked.state, *parameters))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 1)], ids=["even", "ragged"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_to_come_it_computes_the_same(kind, sizes):
    asked = problem(kind, 2, 3, sizes)
    hidden, final = bptt.run(asked)
    with torch.no_grad():
        again, end = bptt.run(asked)
    for ours, theirs in zip((again, *end), (hidden, *final), strict=True):
        assert not ours.requires_grad
        assert theirs.requires_grad
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_finds_what_the_first_found(kind):
    """Nothing that is kept is written over, and neither are the results nor the gradients that come in."""
    asked = problem(kind, 2, 3, (3, 2, 2))
    hidden, final = bptt.run(asked)
    upstream = torch.ones_like(hidden)
    kept = [tensor.clone() for tensor in (hidden, *final)]
    first, second = (torch.autograd.grad((hidden, *final), asked.inputs, [upstream, *map(torch.ones_like, final)],
                                         retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(upstream, torch.ones_like(upstream))
    assert all(map(torch.equal, (hidden, *final), kept))


@pytest.mark.parametrize("kind", KINDS)
def test_only_some_gradients_are_asked_for(kind):
    asked = problem(kind, 2, 3, (2, 2))
    asked.cell.requires_grad_(False)
    hidden, _ = bptt.run(asked)
    truth, _ = loop.run(asked)
    assert_close(torch.autograd.grad(hidden.sum(), asked.inputs)[0], torch.autograd.grad(truth.sum(), asked.inputs)[0])
    asked = ScanProblem(make(kind, 2, 3), asked.inputs.detach(), asked.sizes, tuple(m.detach() for m in asked.state))
    hidden, _ = bptt.run(asked)
    truth, _ = loop.run(asked)
    for ours, theirs in zip(torch.autograd.grad(hidden.sum(), asked.cell.parameters()),
                            torch.autograd.grad(truth.sum(), asked.cell.parameters()), strict=True):
        assert_close(ours, theirs)


def test_its_gradient_cannot_be_differentiated_and_says_so():
    asked = problem("lstm", 2, 3, (2, 2))
    hidden, _ = bptt.run(asked)
    with pytest.raises(ValueError, match='`backend` must be "loop" where a gradient is differentiated again'):
        torch.autograd.grad(hidden.sum(), asked.inputs, create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_the_projection_decides(kind):
    asked = problem(kind, 4, 4, (2, 2))
    asked.cell.float()
    asked = ScanProblem(asked.cell, normal(4, 4, dtype=torch.float32), (2, 2), asked.cell.initial(2))
    truth, _ = bptt.run(asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, _ = bptt.run(asked)
        gradients = torch.autograd.grad(hidden.float().sum(), asked.cell.parameters())
    assert_close(hidden.float(), truth, 0.1)
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)


def test_what_it_refuses():
    class Other(LSTMCell):
        """A subclass may compute something else."""

    asked = problem("lstm", 2, 3, (2, 2))
    assert bptt.refusal(asked) is None
    assert bptt.drawback(asked) is None
    assert "Other is not written out" in bptt.refusal(ScanProblem(Other(2, 3), asked.inputs, asked.sizes, asked.state))
    with torch.no_grad():
        assert "fewer than 32" in bptt.drawback(asked)
        assert bptt.drawback(problem("lstm", 2, 3, (2,) * bptt.FEW)) is None
    assert bptt.drawback(ScanProblem(asked.cell, asked.inputs[:0], (), asked.state)) == "there is no token"
    hidden, _ = bptt.run(ScanProblem(asked.cell, asked.inputs[:0], (), asked.state))
    assert hidden.shape == (0, 3)
    assert bptt.detail(asked) == "2 steps of LSTM, their backward written out"
