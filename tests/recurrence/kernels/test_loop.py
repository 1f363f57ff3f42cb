"""The `loop` backend: the definition, step by step, and what only it can do."""

import pytest
import torch
from recurrent import KINDS, assert_close, make, normal, oracle_scan

from regard.recurrence.kernels import loop
from regard.recurrence.kernels.problem import ScanProblem


def problem(kind, sizes, seed=0):
    made = make(kind, 2, 3, seed)
    state = tuple(normal(sizes[0] if sizes else 2, 3, seed=seed + i) for i in range(made.memories))
    return ScanProblem(made, normal(sum(sizes), 2, seed=seed + 9), sizes, state)


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 1, 1), (4, 2), (1,)])
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_the_oracles(kind, sizes):
    asked = problem(kind, sizes)
    hidden, final = loop.run(asked)
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    for row in range(sizes[0]):
        turns = [start + row for start, n in zip(starts, sizes, strict=True) if row < n]
        truth, end = oracle_scan(kind, asked.cell, asked.inputs[turns].numpy(), [m[row].numpy() for m in asked.state])
        assert_close(hidden[turns], truth)
        for ours, theirs in zip(final, end, strict=True):
            assert_close(ours[row], theirs)


def test_no_step():
    asked = problem("lstm", ())
    hidden, final = loop.run(asked)
    assert hidden.shape == (0, 3)
    assert final == asked.state
    assert hidden.requires_grad


@pytest.mark.parametrize("kind", ["rnn", "lstm", "mut3"])
def test_its_gradient_can_be_differentiated(kind):
    asked = problem(kind, (2, 2, 1))

    def run(x):
        return loop.run(ScanProblem(asked.cell, x, asked.sizes, asked.state))[0]

    assert torch.autograd.gradgradcheck(run, asked.inputs.requires_grad_())


def test_it_takes_everything():
    assert loop.refusal(problem("mut1", ())) is None
    assert loop.drawback(problem("mut1", ())) is None
    assert loop.detail(problem("mut1", (2, 1))) == "2 steps of MUT1, recorded one by one"
