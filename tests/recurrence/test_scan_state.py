"""The state between calls: chunks, single tokens, rows that come and go, and the cut of truncated back-propagation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import KINDS, assert_close, kinds, normal, options, randomize, seeds

import regard
from regard.recurrence.scan import Recurrence


def network(kind="lstm", seed=0, **more):
    return randomize(Recurrence(4, **options(kind), **more), seed, 0.7)


def same(ours, theirs, rows=slice(None)):
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert_close(a[rows], b[rows])


@given(kinds, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 2), seeds)
def test_chunk_by_chunk_is_all_at_once(kind, sizes, layers, seed):
    made = network(kind, seed, layers=layers)
    x = normal(3, sum(sizes), 4, seed=seed)
    truth, end = made.run(x)
    state, outputs = made.start(3, capacity=99), []
    for chunk in x.split(sizes, 1):
        y, state = made.step(chunk, state)
        outputs.append(y)
    assert_close(torch.cat(outputs, 1), truth)
    same(state, end)


@given(kinds, st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=4), seeds)
def test_chunks_of_which_rows_have_their_own_lengths(kind, chunks, seed):
    """Each row gets its own tokens, however they are cut; NaN fills up the chunks."""
    made = network(kind, seed)
    totals = [sum(lengths[row] for lengths in chunks) for row in range(2)]
    rows = [normal(total, 4, seed=seed + row) for row, total in enumerate(totals)]
    state, seen, outputs = made.start(2), [0, 0], [[], []]
    for lengths in chunks:
        chunk = torch.full((2, 4, 4), torch.nan, dtype=torch.float64)
        for row, length in enumerate(lengths):
            chunk[row, :length] = rows[row][seen[row]:seen[row] + length]
            seen[row] += length
        y, state = made.step(chunk, state, lengths=torch.tensor(lengths))
        for row, length in enumerate(lengths):
            outputs[row].append(y[row, :length])
            assert not y[row, length:].any()
    for row in range(2):
        truth, end = made.run(rows[row].unsqueeze(0))
        assert_close(torch.cat(outputs[row]), truth[0])
        for ours, theirs in zip(state.tensors, end.tensors, strict=True):
            assert_close(ours[row], theirs[0])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_picked_put_and_copied(kind):
    made = network(kind, layers=2)
    x, more = normal(3, 4, 4), normal(3, 2, 4, seed=1)
    truth, end = made.run(torch.cat([x, more], 1))
    _, state = made.run(x)
    kept = state.copy()
    _, after = made.step(more[[2, 0, 2]], state.pick([2, 0, 2]))
    same(after, end.pick([2, 0, 2]))
    # Row 1 is replaced by one that has just begun; the others go on.
    fresh = made.start(1)
    y, after = made.step(more, state.put([1], fresh))
    alone, begun = made.run(more[1:2])
    assert_close(y[1], alone[0])
    assert_close(y[[0, 2]], truth[[0, 2], 4:])
    same(after.pick([1]), begun)
    same(state, kept)


@pytest.mark.parametrize("backend", ["loop", "bptt", "native"])
@pytest.mark.parametrize("present", [None, regard.Padding([3, 5])])
def test_truncated_back_propagation_through_time(present, backend):
    """Cut: the values are those of the uncut run, and no gradient crosses."""
    made = network("lstm", backend=backend, layers=2)
    first, second = normal(2, 5, 4).requires_grad_(), normal(2, 5, 4, seed=1).requires_grad_()
    uncut, end = made.run(torch.cat([first, second], 1))
    _, state = made.run(first)
    y, after = made.run(second, state=state.detach())
    assert_close(y, uncut[:, 5:])
    same(after, end)
    _, state = made.run(first, present)
    for cut in (False, True):
        y, _ = made.run(second, present, state.detach() if cut else state)
        ours = torch.autograd.grad(y.sum(), [first, second], allow_unused=True, retain_graph=True)
        assert (ours[0] is None) == cut
        assert ours[1].any()
    detached = state.detach()
    tensors = [memory.requires_grad_() for memory in detached.tensors]
    y, _ = made.run(second, present, detached)
    assert all(gradient.any() for gradient in torch.autograd.grad(y.sum(), tensors))


def test_the_gradient_of_a_cut_run_is_that_of_its_last_part():
    """Weights: a cut after 3 of 6 tokens leaves what the last 3 say from a given state."""
    made = network("gru")
    x = normal(2, 6, 4)
    _, state = made.run(x[:, :3])
    cut = torch.autograd.grad(made.run(x[:, 3:], state=state.detach())[0].sum(), made.parameters())
    whole = torch.autograd.grad(made(x)[:, 3:].sum(), made.parameters())
    given_state = made.run(x[:, :3])[1].copy().detach()
    again = torch.autograd.grad(made.run(x[:, 3:], state=given_state)[0].sum(), made.parameters())
    for a, b, c in zip(cut, again, whole, strict=True):
        assert_close(a, b)
        assert not torch.allclose(a, c)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_that_goes_in_is_not_written(kind):
    for backend in ("loop", "bptt"):
        made = network(kind, backend=backend)
        _, state = made.run(normal(2, 3, 4))
        state = state.detach()
        kept = state.copy()
        made.step(normal(2, 3, 4, seed=1), state)
        with torch.no_grad():
            made.step(normal(2, 3, 4, seed=1), state)
        assert all(map(torch.equal, state.tensors, kept.tensors))
