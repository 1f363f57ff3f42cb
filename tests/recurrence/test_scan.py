"""A cell over time is the oracle's scan: layers, directions, padding, chunks and states, on every backend."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import BACKENDS, KINDS, NATIVE, assert_close, kinds, normal, options, oracle_layers, randomize, seeds
from torch import nn

import regard
from regard.mixer import RowState
from regard.recurrence.cells import Cell
from regard.recurrence.scan import Recurrence

DIRECTIONS = ("forward", "backward", "both")
TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru after": nn.GRU}


def network(kind="lstm", width=4, seed=0, **more):
    """A recurrence with random weights, in float64."""
    return randomize(Recurrence(width, **options(kind), **more), seed, 0.7)


def states(recurrence, rows, seed=0):
    """A random state of it."""
    zeros = recurrence.start(rows).tensors
    return RowState(tuple(normal(*memory.shape, seed=seed + i) for i, memory in enumerate(zeros)))


def placed(rows, side, places, fill=torch.nan):
    """Sequences (length, D) in one tensor (B, places, D), with `fill` in the padding."""
    x = torch.full((len(rows), places, rows[0].shape[-1]), fill, dtype=rows[0].dtype)
    for row, sequence in enumerate(rows):
        x[row, slice(0, len(sequence)) if side == "right" else slice(places - len(sequence), places)] = sequence
    return x


def taken(y, row, length, side):
    """The tokens of one row that are there, and those that are not."""
    split = length if side == "right" else y.shape[1] - length
    first, second = y[row, :split], y[row, split:]
    return (first, second) if side == "right" else (second, first)


@st.composite
def cases(draw):
    kind, backend = draw(st.sampled_from(BACKENDS))
    direction, layers = draw(st.sampled_from(DIRECTIONS)), draw(st.integers(1, 2))
    made = network(kind, draw(st.sampled_from((2, 4))), draw(seeds), input_width=draw(st.integers(1, 3)), layers=layers,
                   direction=direction, backend=backend)
    lengths = draw(st.lists(st.sampled_from((0, 1, 2, 3, 6)), min_size=1, max_size=4))
    if backend == "native" and not max(lengths):
        lengths[0] = 1
    return kind, made, lengths, draw(st.sampled_from(("right", "left"))), max(lengths) + draw(st.integers(0, 2))


@given(cases(), seeds, st.booleans())
def test_every_row_is_the_oracles(case, seed, from_zeros):
    kind, made, lengths, side, places = case
    rows = [normal(length, made.input_width, seed=seed + i) for i, length in enumerate(lengths)]
    before = made.start(len(lengths)) if from_zeros else states(made, len(lengths), seed + 50)
    x = placed(rows, side, places)
    y, after = made.run(x, regard.Padding(lengths, side), None if from_zeros else before)
    assert y.shape == (len(lengths), places, made.width)
    for row, length in enumerate(lengths):
        memories = [memory[row].numpy() for memory in before.tensors]
        hidden, end = oracle_layers(kind, made, rows[row].numpy(), memories)
        there, absent = taken(y, row, length, side)
        assert_close(there, hidden)
        assert not absent.any()
        for ours, theirs in zip(after.tensors, end, strict=True):
            assert_close(ours[row], theirs)
    if from_zeros:
        assert torch.equal(made(x, regard.Padding(lengths, side)), y)


@given(cases(), seeds, st.sampled_from((torch.nan, torch.inf, 1e300)))
def test_padding_changes_nothing_not_even_a_gradient(case, seed, fill):
    _, made, lengths, side, places = case
    rows = [normal(length, made.input_width, seed=seed + i).requires_grad_() for i, length in enumerate(lengths)]
    weights = list(made.parameters())

    def gradients(x, present):
        y, after = made.run(x, present)
        loss = sum((tensor * torch.arange(1.0, tensor[0].numel() + 1).view(tensor.shape[1:])).sum()
                   for tensor in after.tensors)
        ends = [taken(y, i, len(row), present.side)[0] for i, row in enumerate(rows)]
        loss = loss + sum((end.cumsum(0) ** 2).sum() for end in ends)
        return *torch.autograd.grad(loss, (*rows, *weights), allow_unused=True), *ends, *after.tensors

    bad = gradients(placed(rows, side, places, fill), regard.Padding(lengths, side))
    good = gradients(placed(rows, "right", max(lengths), 0.0), regard.Padding(lengths))
    for ours, theirs in zip(bad, good, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.isfinite().all()
            assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gradients_of_padding_are_zero_and_gradients_there_are_ignored(kind, direction):
    made = network(kind, direction=direction)
    lengths = torch.tensor([2, 0, 4])
    x = placed([normal(int(n), 4, seed=int(n)) for n in lengths], "right", 5).requires_grad_()
    there = torch.arange(5) < lengths.unsqueeze(-1)
    y = made(x, regard.Padding(lengths))
    upstream = torch.where(there.unsqueeze(-1), torch.ones_like(y), torch.nan)
    gradients = torch.autograd.grad(y, [x, *made.parameters()], upstream)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][~there].any()
    assert gradients[0][there].all()


@given(cases(), seeds)
def test_neighbours_change_nothing(case, seed):
    _, made, lengths, side, places = case
    rows = [normal(length, made.input_width, seed=seed + i) for i, length in enumerate(lengths)]
    y, after = made.run(placed(rows, side, places), regard.Padding(lengths, side))
    for row, length in enumerate(lengths):
        if length:
            alone, end = made.run(rows[row].unsqueeze(0))
            assert_close(taken(y, row, length, side)[0], alone[0])
            for ours, theirs in zip(after.tensors, end.tensors, strict=True):
                assert_close(ours[row], theirs[0])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("backend", ["loop", "bptt", "native"])
@pytest.mark.parametrize("kind", NATIVE)
def test_torchs_modules(kind, backend, direction, layers, packed):
    both = direction == "both"
    theirs = TORCH[kind](3, 4, num_layers=layers, bidirectional=both, batch_first=True).double()
    made = network(kind, 8 if both else 4, input_width=3, layers=layers, direction=direction, backend=backend)
    made.load_torch(theirs)
    x, lengths = normal(3, 6, 3).requires_grad_(), torch.tensor([4, 6, 1])
    if packed:
        pack = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        truth, end = theirs(pack)
        truth, _ = nn.utils.rnn.pad_packed_sequence(truth, batch_first=True)
    else:
        truth, end = theirs(x)
    y, after = made.run(x, regard.Padding(lengths) if packed else None)
    assert_close(y, truth)
    end = end if isinstance(end, tuple) else (end,)
    for ours, memory in zip(zip(*[iter(after.tensors)] * len(end), strict=True), zip(*end, strict=True), strict=True):
        for a, b in zip(ours, memory, strict=True):
            assert_close(a, b)
    upstream = normal(*y.shape, seed=4)
    assert_close(torch.autograd.grad(y, x, upstream)[0], torch.autograd.grad(truth, x, upstream)[0])


@pytest.mark.parametrize("kind", ["rnn", "lstm", "mut3"])
def test_a_missing_gradient_of_y_or_of_the_state_is_no_gradient(kind):
    made = network(kind)
    x = normal(2, 5, 4).requires_grad_()
    for backend in ("bptt", "loop"):
        made.backend = backend
        y, after = made.run(x)
        grads = [torch.autograd.grad(tensor.sum(), x, retain_graph=True)[0] for tensor in (y, *after.tensors)]
        if backend == "bptt":
            first = grads
    for ours, theirs in zip(first, grads, strict=True):
        assert_close(ours, theirs)


def test_layers_and_directions_have_the_widths_that_they_say():
    made = Recurrence(6, cell="gru", input_width=5, layers=3, direction="both")
    assert [(cell.input_width, cell.width) for cell in made.cells] == [(5, 3), (5, 3), *[(6, 3)] * 4]
    assert made(torch.randn(2, 7, 5)).shape == (2, 7, 6)
    assert [tuple(memory.shape) for memory in made.start(4).tensors] == [(4, 3)] * 6
    assert Recurrence(6)(torch.randn(2, 7, 6)).shape == (2, 7, 6)


def test_dropout_is_between_layers_while_training():
    x = normal(2, 5, 4)
    one, two = network(layers=1, dropout=0.5), network(layers=2, dropout=0.5)
    assert torch.equal(one(x), one.eval()(x))
    assert not torch.equal(two(x), two(x))
    two.eval()
    assert torch.equal(two(x), two(x))
    plain = network(layers=2)
    plain.load_state_dict(two.state_dict())
    assert torch.equal(two(x), plain(x))


def test_a_cell_of_the_users_own():
    class Decay(Cell):
        """h' = h/2 + x, with nothing learned."""

        def project(self, x):
            return x

        def advance(self, projected, state):
            return (0.5 * state[0] + projected,)

    made = Recurrence(2, cell=Decay)
    assert made(torch.ones(1, 3, 2))[0, :, 0].tolist() == [1.0, 1.5, 1.75]
    assert made.explain(torch.ones(1, 3, 2)).backend == "loop"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_rows_or_no_tokens(shape, direction):
    made = network(direction=direction, layers=2)
    before = states(made, shape[0])
    y, after = made.run(normal(*shape, 4), None, before)
    assert y.shape == (*shape, 4)
    assert all(map(torch.equal, after.tensors, before.tensors))
    y = made(normal(3, 2, 4), regard.Padding([0, 0, 0]))
    assert not y.any()
    y.sum().backward()  # a batch of empty rows does not stop a training


@pytest.mark.parametrize(("call", "words"), [
    (lambda: Recurrence(4, cell="lstn"), 'Did you mean "lstm"'),
    (lambda: Recurrence(4, direction="backwards"), 'Did you mean "backward"'),
    (lambda: Recurrence(4, backend="nativ"), 'Did you mean "native"'),
    (lambda: Recurrence(5, direction="both"), "`width` must be even .* but is 5"),
    (lambda: Recurrence(4, layers=0), "`layers` must be"),
    (lambda: Recurrence(4, dropout=1.0), "`dropout` must be a probability"),
    (lambda: Recurrence(4, cell="gru", reset="now"), "`reset` must be"),
    (lambda: Recurrence(4)(torch.zeros(2, 3, 5)), r"`x` must be of shape \(rows, tokens, 4\).*\(2, 3, 5\)"),
    (lambda: Recurrence(4)(torch.zeros(3, 4)), r"`x` must be .*\(3, 4\)"),
    (lambda: Recurrence(4)(torch.zeros(2, 3, 4), torch.ones(2, 3)), "`present` must be a regard.Padding"),
    (lambda: Recurrence(4).run(torch.zeros(2, 3, 4), None, Recurrence(4).start(3)), r"`state` must be .*\(3, 4\)"),
    (lambda: Recurrence(4).run(torch.zeros(2, 3, 4), None, Recurrence(4, cell="gru").start(2)), "of 2 tensors"),
    (lambda: Recurrence(4).load_torch(nn.LSTM(4, 4, 2)), "of 1 layer with the direction forward"),
    (lambda: Recurrence(4).load_torch(nn.LSTMCell(4, 4)), "an nn.RNN, nn.LSTM or nn.GRU, but is a LSTMCell"),
    (lambda: Recurrence(4, direction="both").step(torch.zeros(2, 1, 4), None), '`direction` must be "forward"'),
])
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def same(ours, theirs, rows=slice(None)):
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert_close(a[rows], b[rows])


@given(kinds, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 2), seeds)
def test_chunk_by_chunk_is_all_at_once(kind, sizes, layers, seed):
    made = network(kind, seed=seed, layers=layers)
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
    made = network(kind, seed=seed)
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
