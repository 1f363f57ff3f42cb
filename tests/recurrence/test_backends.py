"""The backends of a scan: each equals the loop with all gradients, says what it refuses, and the right one runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent import KINDS, NATIVE, assert_close, kinds, make, normal, options, oracle_scan, seeds, widths

import regard
from regard.kernels.recurrence.bptt import last_states, previous_states
from regard.recurrence.backends import BACKENDS, ScanProblem
from regard.recurrence.cells import LSTMCell
from regard.recurrence.scan import Recurrence

loop, bptt, native = BACKENDS["loop"], BACKENDS["bptt"], BACKENDS["native"]


def problem(kind, sizes, seed=0):
    made = make(kind, 2, 3, seed)
    state = tuple(normal(sizes[0] if sizes else 2, 3, seed=seed + i) for i in range(made.memories))
    return ScanProblem(made, normal(sum(sizes), 2, seed=seed + 9), sizes, state)


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 1, 1), (4, 2), (1,)])
@pytest.mark.parametrize("kind", KINDS)
def test_loop_is_the_oracle_row_by_row(kind, sizes):
    asked = problem(kind, sizes)
    hidden, final = loop.run(asked)
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    for row in range(sizes[0]):
        turns = [start + row for start, n in zip(starts, sizes, strict=True) if row < n]
        truth, end = oracle_scan(kind, asked.cell, asked.inputs[turns].numpy(), [m[row].numpy() for m in asked.state])
        assert_close(hidden[turns], truth)
        for ours, theirs in zip(final, end, strict=True):
            assert_close(ours[row], theirs)


def test_loop_without_a_step():
    asked = problem("lstm", ())
    hidden, final = loop.run(asked)
    assert hidden.shape == (0, 3)
    assert final == asked.state
    assert hidden.requires_grad


@pytest.mark.parametrize("kind", ["rnn", "lstm", "mut3"])
def test_the_gradient_of_loop_can_be_differentiated(kind):
    asked = problem(kind, (2, 2, 1))

    def run(x):
        return loop.run(ScanProblem(asked.cell, x, asked.sizes, asked.state))[0]

    assert torch.autograd.gradgradcheck(run, asked.inputs.requires_grad_())


def test_loop_takes_everything():
    assert loop.refusal(problem("mut1", ())) is None
    assert loop.drawback(problem("mut1", ())) is None
    assert loop.detail(problem("mut1", (2, 1))) .startswith("2 steps of MUT1, ")


bptt, loop = BACKENDS["bptt"], BACKENDS["loop"]
sizes_of_steps = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(lambda sizes: tuple(sorted(sizes)[::-1]))


def problem_bptt(kind, input_width, width, sizes, seed=0):
    made = make(kind, input_width, width, seed)
    state = tuple(normal(sizes[0], width, seed=seed + i).requires_grad_() for i in range(made.memories))
    return ScanProblem(made, normal(sum(sizes), input_width, seed=seed + 9).requires_grad_(), sizes, state)


@given(kinds, widths, widths, sizes_of_steps, seeds)
def test_bptt_is_the_loop_with_all_gradients(kind, input_width, width, sizes, seed):
    asked = problem_bptt(kind, input_width, width, sizes, seed)
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
def test_gradients_of_bptt_are_those_of_finite_differences(kind, sizes):
    asked = problem_bptt(kind, 2, 2, sizes)
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
def test_bptt_without_gradients_computes_the_same(kind, sizes):
    asked = problem_bptt(kind, 2, 3, sizes)
    hidden, final = bptt.run(asked)
    with torch.no_grad():
        again, end = bptt.run(asked)
    for ours, theirs in zip((again, *end), (hidden, *final), strict=True):
        assert not ours.requires_grad
        assert theirs.requires_grad
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_of_bptt_equals_the_first(kind):
    """Nothing that is kept is written over, and neither are the results nor the gradients that come in."""
    asked = problem_bptt(kind, 2, 3, (3, 2, 2))
    hidden, final = bptt.run(asked)
    upstream = torch.ones_like(hidden)
    kept = [tensor.clone() for tensor in (hidden, *final)]
    first, second = (torch.autograd.grad((hidden, *final), asked.inputs, [upstream, *map(torch.ones_like, final)],
                                         retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(upstream, torch.ones_like(upstream))
    assert all(map(torch.equal, (hidden, *final), kept))


@pytest.mark.parametrize("kind", KINDS)
def test_bptt_with_only_some_gradients(kind):
    asked = problem_bptt(kind, 2, 3, (2, 2))
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


def test_the_gradient_of_bptt_cannot_be_differentiated():
    asked = problem_bptt("lstm", 2, 3, (2, 2))
    hidden, _ = bptt.run(asked)
    with pytest.raises(ValueError, match=r'`backend` must be "loop" .*create_graph=True'):
        torch.autograd.grad(hidden.sum(), asked.inputs, create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_bptt_under_autocast_has_the_precision_of_the_projection(kind):
    asked = problem_bptt(kind, 4, 4, (2, 2))
    asked.cell.float()
    asked = ScanProblem(asked.cell, normal(4, 4, dtype=torch.float32), (2, 2), asked.cell.initial(2))
    truth, _ = bptt.run(asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, _ = bptt.run(asked)
        gradients = torch.autograd.grad(hidden.float().sum(), asked.cell.parameters())
    assert_close(hidden.float(), truth, 0.1)
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)


def test_what_bptt_refuses():
    class Other(LSTMCell):
        """A subclass may compute something else."""

    asked = problem_bptt("lstm", 2, 3, (2, 2))
    assert bptt.refusal(asked) is None
    assert bptt.drawback(asked) is None
    assert "Other" in bptt.refusal(ScanProblem(Other(2, 3), asked.inputs, asked.sizes, asked.state))
    with torch.no_grad():
        assert "32 steps" in bptt.drawback(asked)
        assert bptt.drawback(problem_bptt("lstm", 2, 3, (2,) * bptt.min_steps)) is None
    assert bptt.drawback(ScanProblem(asked.cell, asked.inputs[:0], (), asked.state)) == "there are no tokens"
    hidden, _ = bptt.run(ScanProblem(asked.cell, asked.inputs[:0], (), asked.state))
    assert hidden.shape == (0, 3)
    assert bptt.detail(asked) .startswith("2 steps of LSTM, ")




def problem_native(kind, sizes, dtype=torch.float64):
    made = make(kind, 2, 3).to(dtype)
    state = tuple(normal(sizes[0], 3, seed=i, dtype=dtype).requires_grad_() for i in range(made.memories))
    return ScanProblem(made, normal(sum(sizes), 2, seed=9, dtype=dtype).requires_grad_(), sizes, state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # oneDNN's LSTM is in float32
@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 2, 1), (1,)])
@pytest.mark.parametrize("kind", NATIVE)
def test_native_is_the_loop_with_all_gradients(kind, sizes, dtype):
    asked = problem_native(kind, sizes, dtype)
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
def test_gradients_of_native_are_those_of_finite_differences(kind, sizes):
    asked = problem_native(kind, sizes)

    def run(x, *state):
        hidden, final = native.run(ScanProblem(asked.cell, x, sizes, state))
        return hidden, *final

    assert torch.autograd.gradcheck(run, (asked.inputs, *asked.state))


@pytest.mark.parametrize("kind", KINDS)
def test_what_native_refuses(kind):
    reason = native.refusal(problem_native(kind, (2, 2)))
    assert (reason is None) == (kind in NATIVE)
    words = {"rnn linear": "linear", "gru": 'reset="after"', "mut1": "MUT1", "mut2": "MUT2", "mut3": "MUT3"}
    assert words.get(kind, "") in (reason or "")
    asked = problem_native(kind, (2, 2))
    assert native.refusal(ScanProblem(asked.cell, asked.inputs[:0], (), asked.state)) == "there are no tokens"


def test_when_native_is_not_chosen_on_a_cpu():
    many = (2,) * native.min_steps
    assert native.drawback(problem_native("lstm", many, torch.float32)) is None
    assert "16 steps" in native.drawback(problem_native("lstm", many[1:], torch.float32))
    for slow in (problem_native("lstm", many), problem_native("gru after", many, torch.float32),
                 problem_native("rnn", many, torch.float32), problem_native("lstm", (3, *many), torch.float32)):
        assert "LSTM in float32" in native.drawback(slow)
        with torch.no_grad():
            assert native.drawback(slow) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in native.drawback(problem_native("lstm", many, torch.float32))


def test_native_weights_are_contiguous_on_a_gpu():
    """As cuDNN wants them; seen here on a device without memory."""
    weights = [torch.empty(8, 3, device="meta"), torch.empty(8, 2, device="meta"), torch.empty(8, device="meta")]
    together = native._contiguous(weights)
    assert [weight.shape for weight in together] == [weight.shape for weight in weights]
    assert [weight.storage_offset() for weight in together] == [0, 24, 40]
    assert all(weight.is_contiguous() for weight in together)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 2, 1)])
@pytest.mark.parametrize("kind", NATIVE)
def test_cudnn_is_the_loop(kind, sizes, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default for cuDNN rounds to 10 bits
    asked = problem_native(kind, sizes, torch.float32)
    truth = loop.run(asked)[0]
    there = ScanProblem(asked.cell.cuda(), asked.inputs.detach().cuda().requires_grad_(), sizes,
                        tuple(memory.detach().cuda() for memory in asked.state))
    assert native.drawback(there) is None
    hidden, _ = native.run(there)
    assert_close(hidden.cpu(), truth, 1e-5)
    hidden.sum().backward()
    assert there.inputs.grad.isfinite().all()


LONG, SHORT = torch.zeros(2, 20, 4), torch.zeros(2, 3, 4)


def network(kind, **more):
    return Recurrence(4, **options(kind), **more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_backend_that_is_chosen(kind):
    made = network(kind)
    assert made.explain(LONG).backend == ("native" if kind == "lstm" else "bptt")
    assert made.explain(SHORT).backend == "bptt"
    assert made.explain(LONG, regard.Padding([20, 7])).backend == "bptt"
    assert made.explain(LONG, regard.Padding([0, 0])).backend == "loop"
    with torch.no_grad():
        assert made.explain(LONG).backend == ("native" if kind in NATIVE else "loop")
        assert made.explain(LONG.repeat(1, 2, 1)).backend == ("native" if kind in NATIVE else "bptt")
        assert made.explain(SHORT).backend == "loop"
    assert made.double().explain(LONG.double()).backend == "bptt"


def test_an_explanation_in_words():
    first, *others = str(network("gru").explain(LONG)).splitlines()
    assert first.startswith("bptt runs: 20 steps of GRU, ")
    assert others == ["fused does not run: on a CPU its kernels run in Triton's interpreter, which is for tests.",
                      'native does not run: torch computes another GRU, the one with reset="after".']
    reasons = network("mut2", backend="loop").explain(LONG).reasons
    assert reasons.pop("fused").startswith("on a CPU")
    assert reasons == {"native": "torch has no MUT2", "bptt": '"loop" was requested'}


@pytest.mark.parametrize("backend", ["fused", "native", "bptt", "loop"])
def test_the_backend_that_is_named_runs(backend, monkeypatch):
    """Each other one would raise."""
    def refuse(problem):
        raise AssertionError("another backend ran")

    for name, module in BACKENDS.items():
        if name != backend:
            monkeypatch.setattr(module, "run", refuse)
    assert network("lstm", layers=2, direction="both", backend=backend)(SHORT).shape == SHORT.shape


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NATIVE])
def test_a_backend_that_cannot_is_an_error_and_never_another_backend(kind, monkeypatch):
    for module in BACKENDS.values():
        monkeypatch.setattr(module, "run", lambda problem: pytest.fail("something ran"))
    made = network(kind, backend="native")
    for ask in (made, made.explain):
        with pytest.raises(ValueError, match=r'one that supports this call \("fused", "bptt", "loop"\).*torch'):
            ask(LONG)


def test_the_last_backend_takes_everything():
    *_, last = BACKENDS
    assert last == "loop"


def test_previous_and_last_states_of_ragged_rows():
    """Three rows of 3, 2 and 1 tokens: a1 b1 c1 | a2 b2 | a3."""
    steps = torch.tensor([11, 21, 31, 12, 22, 13]).unsqueeze(-1)
    first = torch.tensor([10, 20, 30]).unsqueeze(-1)
    assert previous_states(first, steps, (3, 2, 1)).flatten().tolist() == [10, 20, 30, 11, 21, 12]
    assert last_states(steps, (3, 2, 1)).flatten().tolist() == [13, 22, 31]


def test_previous_and_last_states_of_even_rows():
    steps = torch.tensor([11, 21, 12, 22]).unsqueeze(-1)
    first = torch.tensor([10, 20]).unsqueeze(-1)
    assert previous_states(first, steps, (2, 2)).flatten().tolist() == [10, 20, 11, 21]
    assert last_states(steps, (2, 2)).flatten().tolist() == [12, 22]
    assert previous_states(first, steps[:2], (2,)).flatten().tolist() == [10, 20]


def test_properties_of_a_problem():
    made = make("gru", 2, 3)
    asked = ScanProblem(made, normal(4, 2), (2, 2), made.initial(2))
    assert asked.even
    assert asked.training
    assert not ScanProblem(made, normal(3, 2), (2, 1), made.initial(2)).even
    with torch.no_grad():
        assert not asked.training
    made.requires_grad_(False)
    assert not asked.training
    assert ScanProblem(made, normal(4, 2).requires_grad_(), (2, 2), made.initial(2)).training
