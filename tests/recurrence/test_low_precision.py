"""Low precision: no backend errs more than twice as much as the plain loop in the same precision.

The rule is flash-attention's. Truth is the oracle's answer, in float64, to the same (rounded) numbers.
"""

import numpy as np
import pytest
import torch
from recurrent import BACKENDS, normal, options, oracle_layers

import regard
from regard.recurrence.scan import Recurrence

pytestmark = pytest.mark.thorough

LENGTHS = [20, 7, 1]


def plain(made, x, lengths):
    """The loop over cells, row by row, in the precision of x."""
    hidden = torch.zeros(*x.shape[:2], made.width, dtype=x.dtype)
    for row, length in enumerate(lengths):
        state = made.cells[0].initial(1)
        for t in range(length):
            state = made.cells[0](x[row:row + 1, t], state)
            hidden[row, t] = state[0][0]
    return hidden


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "backend"), BACKENDS)
def test_the_error_is_at_most_twice_that_of_the_plain_computation(kind, backend, dtype, padded):
    made = Recurrence(16, **options(kind), backend=backend).to(dtype)
    x = normal(3, 20, 16, dtype=dtype)
    lengths = LENGTHS if padded else [20] * 3
    with torch.no_grad():
        simple = plain(made, x, lengths)
    y = made(x, regard.Padding(lengths) if padded else None).detach()
    assert y.dtype == dtype
    truth = np.zeros((3, 20, 16))
    for row, length in enumerate(lengths):
        zeros = [np.zeros(16)] * made.cells[0].memories
        truth[row, :length] = oracle_layers(kind, made, x[row, :length].double().numpy(), zeros)[0]
    truth = torch.from_numpy(truth)
    error, allowed = ((result.double() - truth).abs().max() for result in (y, simple))
    assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps * truth.abs().max()


@pytest.mark.parametrize("backend", [None, "loop", "bptt"])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "gru after", "mut1", "mut2", "mut3"])
def test_under_autocast_a_training_and_a_step_work(kind, backend):
    made = Recurrence(16, **options(kind), layers=2, backend=backend)
    x, present = normal(3, 20, 16, dtype=torch.float32), regard.Padding(LENGTHS)
    truth = made(x, present).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = made.run(x, present)
        y.float().sum().backward()
        made.step(x[:, :2], state, lengths=torch.tensor([2, 0, 1]))
        with torch.no_grad():
            made.step(x[:, :1], made.start(3))
    assert (y.float() - truth).abs().max() < 0.1
    assert all(parameter.grad.isfinite().all() for parameter in made.parameters())
