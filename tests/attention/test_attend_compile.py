"""`attend` inside torch.compile (one graph, compiled once for any lengths) and inside autocast."""

import pytest
import torch
from problems import assert_close, held, normal
from torch._dynamo.testing import CompileCounterWithBackend

import regard

# torch's compiler warns about torch itself on some versions.
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]
MASKS = {
    "none": lambda _: None,
    "causal": lambda _: regard.Causal(),
    "padding": lambda lengths: regard.Padding(lengths),
    "left padding": lambda lengths: regard.Padding(lengths, side="left") & regard.Causal(),
    "packed": lambda lengths: regard.Packed(lengths) & regard.Causal(),
    "placed": lambda lengths: regard.Placed(lengths) & regard.Causal(),
    "tensor": lambda lengths: torch.arange(6) < lengths[:, None, None, None],
}


@pytest.fixture(autouse=True)
def _afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors(dtype=torch.float64):
    return [normal(2, 2, 6, 4, seed=i).to(dtype).requires_grad_() for i in range(3)]


@pytest.mark.thorough
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("backend", ["exact", "sdpa"])
@pytest.mark.parametrize("mask", MASKS)
def test_one_graph_compiled_once_whatever_the_lengths(mask, backend, inner):
    def function(query, key, value, lengths):
        return regard.attend(query, key, value, mask=MASKS[mask](lengths), backend=backend)

    counter = CompileCounterWithBackend(inner)
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for lengths in ([4, 2], [1, 5], [0, 6], [3, 3], [2, 1]):
        given, numbers = tensors(), torch.tensor(lengths)
        got, want = compiled(*given, numbers), function(*given, numbers)
        assert_close(got, want)
        gradients = (torch.autograd.grad(y.square().sum(), given) for y in (got, want))
        for one, other in zip(*gradients, strict=True):
            assert_close(one, other, floor=0.1)
    assert counter.frame_count == 1


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["exact", "sdpa"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "packed"])
def test_changing_sizes_are_compiled_at_most_twice(mask, backend):
    """Once for the first size, once for all of them."""
    def function(query, key, value, lengths):
        return regard.attend(query, key, value, mask=MASKS[mask](lengths), backend=backend)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for size in (6, 7, 9, 12, 20):
        given = [normal(2, 2, size, 4, seed=i) for i in range(3)]
        assert_close(compiled(*given, torch.tensor([2, 3])), function(*given, torch.tensor([2, 3])))
    assert counter.frame_count <= 2


@pytest.mark.thorough
def test_a_score_with_parameters_in_one_graph():
    score = regard.Additive(normal(4, seed=8).requires_grad_())

    def function(query, key, value):
        return regard.attend(query, key, value, score=score, normalize="relu_sum", mask=regard.Window(2, 1))

    given = tensors()
    assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(*given), function(*given))


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("mask", [None, regard.Causal(), regard.Padding([6, 0])], ids=repr)
def test_autocast_gives_the_low_precision_and_is_as_near_as_it_allows(mask, backend):
    given = tensors(torch.float32)
    bias = normal(2, 6, 6, seed=4).float()
    want = regard.attend(*given, mask=mask, bias=bias)
    with torch.autocast("cpu", dtype=torch.bfloat16), held(60):
        got = regard.attend(*given, mask=mask, bias=bias, backend=backend)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    for gradient, tensor in zip(torch.autograd.grad(got.float().square().sum(), given), given, strict=True):
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()
        assert gradient.shape == tensor.shape


@pytest.mark.parametrize("backend", ["exact", "tiled"])
def test_autocast_of_a_score_with_parameters(backend):
    given = tensors(torch.float32)
    score = regard.Additive(normal(4, seed=8).float().requires_grad_())
    want = regard.attend(*given, score=score)
    with torch.autocast("cpu", dtype=torch.bfloat16), held(60):
        got = regard.attend(*given, score=score, backend=backend)
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    (gradient,) = torch.autograd.grad(got.float().sum(), score.weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("score", ["additive", "bilinear"])
@pytest.mark.parametrize("backend", ["exact", "tiled"])
def test_autocast_of_projections_that_are_low_and_parameters_that_are_not(backend, score):
    """What a layer asks inside autocast: its projections come in bfloat16, its parameters stay in float32."""
    given = tensors(torch.float32)
    weight = normal(4, *((4,) if score == "bilinear" else ()), seed=8).float().requires_grad_()
    made = regard.Bilinear(weight) if score == "bilinear" else regard.Additive(weight)
    want = regard.attend(*given, score=made)
    with torch.autocast("cpu", dtype=torch.bfloat16), held(60):
        got = regard.attend(*(t.bfloat16() for t in given), score=made, backend=backend)
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    (gradient,) = torch.autograd.grad(got.float().sum(), weight)
    assert gradient.dtype == torch.float32
    assert gradient.isfinite().all()
