"""The fused scan: its Triton kernels step by step in the interpreter, and all steps in one launch on a GPU."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from recurrent import KINDS, assert_close, make, normal, options, oracle_layers

import regard
from regard.kernels import launch
from regard.recurrence.backends import BACKENDS, ScanProblem
from regard.recurrence.cells import LSTMCell
from regard.recurrence.packing import PackedOrder, PaddedOrder
from regard.recurrence.scan import Recurrence

pytestmark = pytest.mark.thorough

triton_scan = pytest.importorskip("regard.kernels.recurrence.triton_scan")
bptt, fused, loop = BACKENDS["bptt"], BACKENDS["fused"], BACKENDS["loop"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 2e-6
EVEN, RAGGED = (3,) * 5, (4, 3, 3, 1)


def problem(kind, input_width, width, sizes, dtype=torch.float32, lengths=None, seed=0):
    """A problem with the same numbers in every precision."""
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
    if asked.lengths is not None:  # results of padding are not used
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
    """Fill new memory with NaN."""
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
    of = triton_scan.ScanLayout.of
    monkeypatch.setattr(triton_scan.ScanLayout, "of", lambda *given: replace(of(*given), block_rows=16))
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
    y, _ = made._scan(given, order.of(given, regard.Padding(lengths, side)), None)
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
    with pytest.raises(ValueError, match=r'`backend` must be "loop" .*create_graph=True'):
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
    assert "Other" in fused.refusal(replace(asked, cell=Other(2, 3)))
    assert fused.refusal(replace(asked, sizes=())) == "there are no tokens"
    assert fused.refusal(problem("lstm", 2, 3, (2, 2), torch.float64)) == f"it does not support float64 on {DEVICE}"
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
    assert "interpreter" in fused.drawback(asked)
    assert fused.refusal(replace(asked, inputs=asked.inputs.bfloat16())) == "it does not support bfloat16 on cpu"
    monkeypatch.delenv("TRITON_INTERPRET")
    assert fused.refusal(asked) == "it needs a CUDA device, and the inputs are on cpu"
    assert fused.detail(asked) == "2 steps of LSTM in one kernel"


def test_when_it_is_not_the_one_to_choose(monkeypatch):
    """On a GPU; here only its name is asked for."""
    few = replace(problem("lstm", 2, 3, (2,) * (fused.min_steps - 1)),
                  inputs=SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32))
    many = replace(few, sizes=(2,) * fused.min_steps)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    assert f"{fused.min_steps} steps" in fused.drawback(few)
    assert fused.drawback(many) is None
    assert "too wide" in fused.drawback(replace(many, sizes=(64 * 133,) * fused.min_steps))


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [None, [37, 0, 20, 1, 36]], ids=["even", "padded"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rnn linear"])
def test_all_steps_in_one_launch(kind, lengths):
    asked = problem(kind, 48, 48, (5,) * 37, lengths=lengths)
    assert triton_scan.ScanLayout.of(5, 48, torch.float32, asked.inputs.device).resident
    assert_is_the_loop(kind, 48, 48, (5,) * 37, lengths=lengths, tolerance=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rnn linear"])
def test_many_programs_that_wait_are_the_launches_one_by_one(kind, monkeypatch):
    asked = problem(kind, 512, 512, (200,) * 24)
    of = triton_scan.ScanLayout.of
    assert of(200, 512, torch.float32, asked.inputs.device).resident
    together = everything(fused, asked)
    monkeypatch.setattr(triton_scan.ScanLayout, "of", lambda *given: replace(of(*given), resident=False))
    for ours, theirs in zip(together, everything(fused, asked), strict=True):
        assert_close(ours, theirs, 1e-5)


pytest.importorskip("triton")

CUDA = torch.device("cuda")


@pytest.fixture
def _h200(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


@pytest.mark.usefixtures("_h200")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 20, 512, 1000, 4096])
@pytest.mark.parametrize("rows", [1, 5, 64, 65, 256, 4000])
def test_every_row_and_feature_is_covered_and_those_that_wait_fit(rows, width, dtype):
    made = triton_scan.ScanLayout.of(rows, width, dtype, CUDA)
    blocks, groups = made.grid
    assert blocks * made.block_width >= width > (blocks - 1) * made.block_width
    assert groups * made.block_rows >= rows > (groups - 1) * made.block_rows
    assert not made.resident or blocks * groups <= 132


@pytest.mark.usefixtures("_h200")
def test_what_is_resident():
    assert triton_scan.ScanLayout.of(64, 512, torch.bfloat16, CUDA).resident
    assert triton_scan.ScanLayout.of(256, 1024, torch.float32, CUDA).resident
    assert not triton_scan.ScanLayout.of(4000, 1024, torch.float32, CUDA).resident
    assert not triton_scan.ScanLayout.of(64, 512, torch.float32, torch.device("cpu")).resident


def test_the_launches():
    """One that does all steps, or one for each phase of each step, in the order that is given."""
    calls = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **constants: calls.append((grid, given[-3:], constants.get("PHASE")))

    made = triton_scan.ScanLayout(5, 20, False, 16, 16, 16)
    tensor = torch.zeros(1)
    made.launch(Kernel(), [tensor], range(2, -1, -1), 1)
    assert calls == [((2, 1), (t, t + 1, 5), None) for t in (2, 1, 0)]
    calls.clear()
    made.launch(Kernel(), [tensor], range(2), 2)
    assert calls == [((2, 1), (t, t + 1, 5), phase) for t in (0, 1) for phase in (1, 2)]


def test_the_precision_of_products():
    before = torch.get_float32_matmul_precision()
    try:
        for asked, given in (("highest", "tf32x3"), ("high", "tf32")):
            torch.set_float32_matmul_precision(asked)
            assert triton_scan.dot_precision(torch.float32) == given
            assert triton_scan.dot_precision(torch.bfloat16) == "tf32"  # which triton asks for, and does not use
    finally:
        torch.set_float32_matmul_precision(before)


triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
steps = pytest.importorskip("regard.kernels.recurrence.triton_steps")


@triton.jit
def squash(x, y, SIZE: tl.constexpr):  # noqa: N803
    place = tl.arange(0, SIZE)
    tl.store(y + place, steps.tanh(tl.load(x + place)))


@triton.jit
def multiply(a, b, out, rows, columns, DEPTH: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr):  # noqa: N803
    row, column = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    place = out + row[:, None] * columns + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    first, second, third, fourth = steps.gate_products(
        a, row * DEPTH, row < rows, b, column * DEPTH, column < columns, columns * DEPTH, COUNT, BLOCK, BLOCK, DEPTH,
        BLOCK, "tf32x3")
    first = steps.add_product(first, a, row * DEPTH, row < rows, b, column * DEPTH, column < columns, DEPTH, BLOCK,
                              "tf32x3")
    tl.store(place, first, mask=mask)
    tl.store(place + rows * columns, second, mask=mask)
    tl.store(place + 2 * rows * columns, third, mask=mask)
    tl.store(place + 3 * rows * columns, fourth, mask=mask)


def test_tanh():
    large, small = np.linspace(-20.0, 20.0, 2000), np.logspace(-30, 0, 2090)
    ends = [0.0, -0.0, np.inf, -np.inf, 0.125, -0.125]
    x = torch.from_numpy(np.concatenate([large, small, ends])).float().to(DEVICE)
    y = torch.empty_like(x)
    squash[(1,)](x, y, SIZE=4096)
    truth = x.double().tanh()
    assert len(x) == 4096
    assert ((y.double() - truth).abs() <= 5e-7 * truth.abs()).all()
    assert torch.equal(y[-6:-2].cpu(), torch.tensor([0.0, 0.0, 1.0, -1.0]))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (16, 16, 32), (5, 7, 37)])
def test_products(rows, columns, depth, count):
    """The first one is added to itself. Memory after the numbers is not read."""
    a, b = normal(rows, depth, dtype=torch.float32), normal(4 * columns, depth, seed=1, dtype=torch.float32)
    truth = (a.double() @ b.double().T).unflatten(1, (4, columns)).transpose(0, 1)
    truth[0] *= 2.0
    truth[count:] = 0.0
    after = torch.full((1, depth), torch.nan)
    out = torch.full((4, rows, columns), torch.nan, device=DEVICE)
    b[count * columns:] = torch.nan
    multiply[(1,)](torch.cat([a, after]).to(DEVICE), torch.cat([b, after]).to(DEVICE), out, rows, columns,
                   DEPTH=depth, BLOCK=16, COUNT=count)
    assert (out.cpu() - truth).abs().max() < 1e-5 * truth.abs().max().clamp(min=1.0)
