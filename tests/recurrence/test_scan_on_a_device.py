"""A scan that does not ask for lengths, as on a GPU: the same numbers and gradients as one that counts its steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import BACKENDS, KINDS, assert_close, normal, options, oracle_layers, randomize, seeds
from unasked import unasked

import regard
from regard.mixer import RowState
from regard.recurrence.cells import Cell
from regard.recurrence.packing import PackedOrder, PaddedOrder
from regard.recurrence.scan import Recurrence

pytestmark = pytest.mark.thorough

DIRECTIONS = ("forward", "backward", "both")
CUDNN = ("rnn", "lstm", "gru after")
"""What cuDNN runs, whose error in float32 is 1.5e-4 on an H200, TF32 or not; that of our own scans is 6e-7."""
ABLE = [(kind, backend) for kind, backend in BACKENDS if (kind, backend) != ("rnn linear", "bptt")]


def network(kind="lstm", width=4, seed=0, **more):
    """A recurrence with random weights, in float64."""
    return randomize(Recurrence(width, **options(kind), **more), seed, 0.7)


def states(recurrence, rows, seed=0):
    """A random state of it, that wants gradients."""
    zeros = recurrence.start(rows).tensors
    return RowState(tuple(normal(*memory.shape, seed=seed + i).requires_grad_() for i, memory in enumerate(zeros)))


def placed(rows, side, places, fill=torch.nan):
    """Sequences (length, D) in one tensor (B, places, D), with `fill` in the padding."""
    x = torch.full((len(rows), places, rows[0].shape[-1]), fill, dtype=rows[0].dtype)
    for row, sequence in enumerate(rows):
        x[row, slice(0, len(sequence)) if side == "right" else slice(places - len(sequence), places)] = sequence
    return x


def there(lengths, side, places):
    """(B, N, 1): which places have a token."""
    place, lengths = torch.arange(places), torch.tensor(lengths).unsqueeze(-1)
    return (place < lengths if side == "right" else place >= places - lengths).unsqueeze(-1)


@st.composite
def cases(draw):
    kind, backend = draw(st.sampled_from(ABLE))
    made = network(kind, draw(st.sampled_from((2, 4))), draw(seeds), input_width=draw(st.integers(1, 3)),
                   layers=draw(st.integers(1, 2)), direction=draw(st.sampled_from(DIRECTIONS)), backend=backend)
    lengths = draw(st.lists(st.sampled_from((0, 1, 2, 3, 6)), min_size=1, max_size=4))
    if not max(lengths):
        lengths[0] = 1
    return kind, made, lengths, draw(st.sampled_from(("right", "left"))), max(lengths) + draw(st.integers(0, 2))


@given(cases(), seeds)
def test_every_row_is_the_oracles(case, seed):
    kind, made, lengths, side, places = case
    rows = [normal(length, made.input_width, seed=seed + i) for i, length in enumerate(lengths)]
    x, before = placed(rows, side, places), states(made, len(lengths), seed + 50)
    y, after = made._scan(x, PaddedOrder.of(x, regard.Padding(lengths, side)), before)
    assert y.shape == (len(lengths), places, made.width)
    is_there = there(lengths, side, places).squeeze(-1)
    assert not y[~is_there].any()
    for row in range(len(lengths)):
        memories = [memory[row].detach().numpy() for memory in before.tensors]
        hidden, end = oracle_layers(kind, made, rows[row].numpy(), memories)
        assert_close(y[row][is_there[row]], hidden)
        for ours, theirs in zip(after.tensors, end, strict=True):
            assert_close(ours[row], theirs)


@given(cases(), seeds, st.sampled_from((torch.nan, torch.inf, 1e300)))
def test_it_is_the_counted_scan_with_all_gradients(case, seed, fill):
    _, made, lengths, side, places = case
    rows = [normal(length, made.input_width, seed=seed + i) for i, length in enumerate(lengths)]
    x = placed(rows, side, places, fill).requires_grad_()
    before, is_there = states(made, len(lengths), seed + 50), there(lengths, side, places)
    results = []
    for order in (PaddedOrder, PackedOrder):
        y, after = made._scan(x, order.of(x, regard.Padding(lengths, side)), before)
        given_back = normal(*y.shape, seed=seed + 80).masked_fill(~is_there, torch.nan)  # not used in padding
        upstream = [given_back, *(normal(*memory.shape, seed=seed + 81 + i) for i, memory in enumerate(after.tensors))]
        wanted = (x, *before.tensors, *made.parameters())
        results.append((y, *after.tensors, *torch.autograd.grad((y, *after.tensors), wanted, upstream)))
    for ours, theirs in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert_close(ours, theirs)
    assert not results[0][1 + len(before.tensors)].masked_select(~is_there).any()  # the gradient of x in the padding


@given(cases(), seeds)
def test_without_gradients_too(case, seed):
    _, made, lengths, side, places = case
    x = placed([normal(length, made.input_width, seed=seed + i) for i, length in enumerate(lengths)], side, places)
    with torch.no_grad():
        (y, after), (truth, end) = (made._scan(x, order.of(x, regard.Padding(lengths, side)), None)
                                    for order in (PaddedOrder, PackedOrder))
    for ours, theirs in zip((y, *after.tensors), (truth, *end.tensors), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize(("kind", "backend"), ABLE)
def test_a_long_padding_moves_nothing(kind, backend):
    """Steps after the end are many: no state grows, none drifts, in float32 as it is used."""
    made = network(kind, layers=2, direction="both", backend=backend).float()
    x = torch.cat([normal(2, 3, 4, dtype=torch.float32), torch.full((2, 100, 4), torch.nan)], 1).requires_grad_()
    results = []
    for order in (PaddedOrder, PackedOrder):
        y, after = made._scan(x, order.of(x, regard.Padding([3, 1])), None)
        tensors = (y, *after.tensors)
        upstream = [normal(*tensor.shape, seed=i, dtype=torch.float32) for i, tensor in enumerate(tensors)]
        results.append((*tensors, *torch.autograd.grad(tensors, (x, *made.parameters()), upstream)))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, 1e-5)


def test_a_linear_cell_is_not_left_to_grow():
    made = network("rnn linear")
    x = normal(2, 3, 4).to("meta")
    present = regard.Padding(torch.zeros(2, dtype=torch.long, device="meta"))
    explained = made.to("meta").explain(x, present)
    assert explained.backend == "loop"
    assert "linear cell" in str(explained)
    assert network("rnn linear").explain(torch.randn(2, 3, 4).requires_grad_()).backend == "bptt"


def test_a_cell_of_the_users_own():
    class Decay(Cell):
        """h' = 2 h + x, with nothing learned."""

        def project(self, x):
            return x

        def advance(self, projected, state):
            return (2.0 * state[0] + projected,)

    made, x = Recurrence(1, cell=Decay), torch.ones(2, 2000, 1)
    y, after = made._scan(x, PaddedOrder.of(x, regard.Padding([3, 1])), None)
    assert y[:, :4, 0].tolist() == [[1.0, 3.0, 7.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    assert after.tensors[0].flatten().tolist() == [7.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_on_a_device_that_cannot_be_asked(kind, direction, monkeypatch):
    made = network(kind, direction=direction, layers=2).to("meta")
    x = torch.empty(3, 5, 4, dtype=torch.float64, device="meta", requires_grad=True)
    with unasked(monkeypatch):
        y, after = made.run(x, regard.Padding(torch.empty(3, dtype=torch.long, device="meta")))
        (y.sum() + sum(memory.sum() for memory in after.tensors)).backward()
    assert x.grad.shape == x.shape
    assert all(weight.grad is not None for weight in made.parameters())


@pytest.mark.parametrize("kind", ["lstm", "gru", "gru after"])
def test_autocast(kind):
    made = network(kind, layers=2, direction="both").float()
    x = normal(3, 6, 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        (y, after), (truth, end) = (made._scan(x, order.of(x, regard.Padding([6, 0, 2])), None)
                                    for order in (PaddedOrder, PackedOrder))
    for ours, theirs in zip((y, *after.tensors), (truth, *end.tensors), strict=True):
        assert ours.dtype == theirs.dtype
        assert_close(ours.float(), theirs.float(), 0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_recorded_once_and_replayed_with_other_lengths(kind, side, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    host = network(kind, width=8, layers=2, direction="both").float()
    made = network(kind, width=8, layers=2, direction="both").float().cuda()
    x, lengths = torch.randn(4, 7, 8), torch.tensor([7, 0, 3, 1])
    place, its_lengths = x.cuda(), lengths.cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.cat([tensor.flatten() for tensor in _both(made, place, its_lengths, side)])
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            results = _both(made, place, its_lengths, side)
    for new in (lengths, torch.tensor([2, 7, 5, 0])):
        its_lengths.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        for ours, theirs in zip(results, _both(host, x, new, side), strict=True):
            assert_close(ours.cpu(), theirs, 5e-4 if kind in CUDNN else 1e-5)


def _both(made, x, lengths, side):
    """Outputs, final states, and gradients of the weights."""
    y, after = made.run(x, regard.Padding(lengths, side))
    tensors = (y, *after.tensors)
    loss = sum(tensor.square().sum() for tensor in tensors)
    return *tensors, *torch.autograd.grad(loss, list(made.parameters()))
