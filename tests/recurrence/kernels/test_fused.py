"""The `fused` backend: each kernel step by step in Triton's interpreter, and all steps in one launch on a GPU."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from recurrent import KINDS, assert_close, make, normal, options, oracle_layers

import regard
from regard.kernels import launch
from regard.recurrence.cells import LSTMCell
from regard.recurrence.kernels import bptt, fused, loop
from regard.recurrence.kernels.problem import ScanProblem
from regard.recurrence.packing import PackedOrder, PaddedOrder
from regard.recurrence.scan import Recurrence

layouts = pytest.importorskip("regard.recurrence.kernels.triton_scan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 2e-6
EVEN, RAGGED = (3,) * 5, (4, 3, 3, 1)


def problem(kind, input_width, width, sizes, dtype=torch.float32, lengths=None, seed=0):
    """With the same numbers whatever the precision is."""
    made = make(kind, input_width, width, seed)
    for parameter in made.parameters():
        parameter.data = (parameter.data / width**0.5).float().to(dtype)
    made = made.to(DEVICE, dtype)

    def random(rows, columns, seed):
        return normal(rows, columns, seed=seed, dtype=torch.float32).to(DEVICE, dtype).requires_grad_()

    state = tuple(random(sizes[0], width, seed + i) for i in range(made.memories))
    given = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    return ScanProblem(made, random(sum(sizes), input_width, seed + 9), sizes, state, given)


def everything(backend, asked):
    """The results, and the gradients of all that is given."""
    hidden, final = backend.run(asked)
    if asked.lengths is not None:  # nobody asks what is made of padding
        hidden = hidden.masked_fill(asked.absent, 0.0)
    upstream = [normal(*tensor.shape, seed=20 + i).to(tensor) for i, tensor in enumerate((hidden, *final))]
    wanted = (asked.inputs, *asked.state, *asked.cell.parameters())
    return hidden, *final, *torch.autograd.grad((hidden, *final), wanted, upstream)


def assert_is_the_loop(kind, *shape, tolerance=TOLERANCE, **more):
    """In float32, beside the loop in float64."""
    truth = everything(loop, problem(kind, *shape, dtype=torch.float64, **more))
    for ours, theirs in zip(everything(fused, problem(kind, *shape, **more)), truth, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours, theirs, tolerance)


@pytest.mark.parametrize("shape", [(3, 20, EVEN), (5, 17, RAGGED), (16, 16, (2, 2)), (1, 1, (1,))], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_loop_with_all_gradients(kind, shape):
    assert_is_the_loop(kind, *shape)


@pytest.fixture
def _poisoned():
    """Memory that nobody has written to is full of what is not a number."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.filterwarnings("ignore:.*[Dd]eterministic:UserWarning")  # cuBLAS is not, which is not the question here
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_have_ended_keep_their_state(kind):
    assert torch.empty(3).isnan().all()
    assert_is_the_loop(kind, 3, 18, EVEN, lengths=[5, 0, 2])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_several_groups_of_rows(kind, monkeypatch):
    of = layouts.Layout.of
    monkeypatch.setattr(layouts.Layout, "of", lambda *given: replace(of(*given), block_rows=16))
    assert_is_the_loop(kind, 3, 18, (35,) * 2, lengths=[1, 2, 0, 2, 2] * 7)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_bptt_in_its_own_precision(kind):
    for ours, theirs in zip(everything(fused, problem(kind, 4, 6, EVEN)), everything(bptt, problem(kind, 4, 6, EVEN)),
                            strict=True):
        assert_close(ours, theirs, 2 * TOLERANCE)


@pytest.mark.parametrize(("side", "order"), [("right", PaddedOrder), ("left", PackedOrder)])
@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_are_the_oracle(kind, side, order):
    """Padded, on whichever device the lengths are; what stands there is not a number, and touches nothing."""
    made = Recurrence(6, **options(kind), direction="both", backend="fused").to(DEVICE)
    host = Recurrence(6, **options(kind), direction="both")
    host.load_state_dict(made.state_dict())
    lengths, x, truth = [3, 0, 2], torch.full((3, 3, 6), torch.nan), np.zeros((3, 3, 6))
    for row, n in enumerate(lengths):
        there = slice(0, n) if side == "right" else slice(3 - n, 3)
        x[row, there] = normal(n, 6, seed=row, dtype=torch.float32)
        zeros = [np.zeros(3)] * sum(cell.memories for cell in host.cells)
        truth[row, there] = oracle_layers(kind, host, x[row, there].double().numpy(), zeros)[0]
    given = x.to(DEVICE).requires_grad_()
    y, _ = made._read(given, order.of(given, regard.Padding(lengths, side)), None)
    assert_close(y.cpu(), truth, TOLERANCE)
    gradients = torch.autograd.grad(y.sum(), (given, *made.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][given.isnan()].any()


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_at_most_twice_that_of_the_plain_computation(kind, dtype):
    asked, plain, exact = (problem(kind, 16, 16, (3,) * 6, each) for each in (dtype, dtype, torch.float64))
    for low, high in zip((asked.inputs, *asked.state, *asked.cell.parameters()),
                         (exact.inputs, *exact.state, *exact.cell.parameters()), strict=True):
        high.data = low.data.double()
    for ours, simple, truth in zip(*(everything(*pair) for pair in ((fused, asked), (loop, plain), (loop, exact))),
                                   strict=True):
        error, allowed = ((result.double() - truth).abs().max() for result in (ours, simple))
        assert ours.dtype == dtype
        assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps * truth.abs().max()


@pytest.mark.parametrize("kind", ["lstm", "mut3"])
def test_without_gradients_to_come_it_computes_the_same(kind):
    asked = problem(kind, 3, 5, RAGGED)
    hidden, final = fused.run(asked)
    with torch.no_grad():
        again, end = fused.run(asked)
    assert not again.requires_grad
    assert all(map(torch.equal, (again, *end), (hidden, *final)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_finds_what_the_first_found(kind):
    """Nothing that is kept is written over, and neither are the results nor the gradients that come in."""
    asked = problem(kind, 2, 3, (2, 2))
    hidden, final = fused.run(asked)
    upstream = [normal(*tensor.shape, seed=i).to(tensor) for i, tensor in enumerate((hidden, *final))]
    kept = [tensor.clone() for tensor in (hidden, *final, *upstream)]
    wanted = (asked.inputs, *asked.state, *asked.cell.parameters())
    first, second = (torch.autograd.grad((hidden, *final), wanted, upstream, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, (hidden, *final, *upstream), kept))


def test_its_gradient_cannot_be_differentiated_and_says_so():
    asked = problem("lstm", 2, 3, (2, 2))
    with pytest.raises(ValueError, match='`backend` must be "loop" where a gradient is differentiated again'):
        torch.autograd.grad(fused.run(asked)[0].sum(), asked.inputs, create_graph=True)


def test_under_autocast_the_projection_decides():
    asked = problem("gru", 4, 4, (2, 2))
    truth = fused.run(asked)[0]
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert fused.refusal(asked) is None
        hidden = fused.run(asked)[0]
        gradients = torch.autograd.grad(hidden.float().sum(), asked.cell.parameters())
    assert hidden.dtype == torch.float16
    assert_close(hidden.float(), truth, 0.01)
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)


def test_what_it_refuses(monkeypatch):
    class Other(LSTMCell):
        """A subclass may compute something else."""

    asked = problem("lstm", 2, 3, (2, 2))
    assert fused.refusal(asked) is None
    assert "Other is not written out" in fused.refusal(replace(asked, cell=Other(2, 3)))
    assert fused.refusal(replace(asked, sizes=())) == "there is no token"
    assert fused.refusal(problem("lstm", 2, 3, (2, 2), torch.float64)) == f"it has no float64 on {DEVICE}"
    assert "the inputs are on meta" in fused.refusal(replace(asked, inputs=asked.inputs.to("meta")))
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert "torch.compile" in fused.refusal(asked)
    monkeypatch.setattr(launch, "installed", lambda: False)
    assert fused.refusal(asked) == "triton is not installed"


def test_on_a_cpu_it_is_interpreted_or_refuses(monkeypatch):
    asked = problem("lstm", 2, 3, (2, 2))
    asked = replace(asked, inputs=asked.inputs.cpu())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert fused.refusal(asked) is None
    assert "interpreted" in fused.drawback(asked)
    assert fused.refusal(replace(asked, inputs=asked.inputs.bfloat16())) == "it has no bfloat16 on cpu"
    monkeypatch.delenv("TRITON_INTERPRET")
    assert fused.refusal(asked) == "it runs on a CUDA device, and the inputs are on cpu"
    assert fused.detail(asked) == "2 steps of LSTM in one kernel"


def test_when_it_is_not_the_one_to_choose(monkeypatch):
    """On a GPU; here only its name is asked for."""
    few = replace(problem("lstm", 2, 3, (2,) * (fused.FEW - 1)), inputs=SimpleNamespace(device=torch.device("cuda"),
                                                                                        dtype=torch.float32))
    many = replace(few, sizes=(2,) * fused.FEW)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    assert f"fewer than {fused.FEW}" in fused.drawback(few)
    assert fused.drawback(many) is None
    assert "all at once" in fused.drawback(replace(many, sizes=(64 * 133,) * fused.FEW))


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [None, [37, 0, 20, 1, 36]], ids=["even", "padded"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rnn linear"])
def test_all_steps_in_one_launch(kind, lengths):
    asked = problem(kind, 48, 48, (5,) * 37, lengths=lengths)
    assert layouts.Layout.of(5, 48, torch.float32, asked.inputs.device).resident
    assert_is_the_loop(kind, 48, 48, (5,) * 37, lengths=lengths, tolerance=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rnn linear"])
def test_many_programs_that_wait_are_the_launches_one_by_one(kind, monkeypatch):
    asked = problem(kind, 512, 512, (200,) * 24)
    of = layouts.Layout.of
    assert of(200, 512, torch.float32, asked.inputs.device).resident
    together = everything(fused, asked)
    monkeypatch.setattr(layouts.Layout, "of", lambda *given: replace(of(*given), resident=False))
    for ours, theirs in zip(together, everything(fused, asked), strict=True):
        assert_close(ours, theirs, 1e-5)
