"""The backend for a bias that rows share: when it runs, that it equals the others, and what it holds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory import Largest
from problems import normal
from torch.autograd.graph import saved_tensors_hooks

import regard
from regard import AxialAttention
from regard.attention import fused
from regard.kernels import shared_bias_chunks


def empty(*shape, grad=False):
    """A tensor of any size that takes no memory."""
    tensor = torch.empty(1, requires_grad=grad)
    return tensor.expand(shape)


N = 160


@pytest.mark.parametrize(("bias", "mask", "chosen"), [
    ((4, N, N), None, True), ((1, 4, N, N), None, True), ((N, N), None, True), ((1, 1, 4, N, N), None, False),
    ((N, 4, N, N), None, False), ((4, N, N), torch.ones(N, 1, 1, N, dtype=torch.bool), True),
    ((4, N, N), torch.ones(N, dtype=torch.bool), True), ((4, N, N), regard.Padding([N] * N), True),
    ((4, N, N), regard.Causal(), False), ((4, N, N), torch.ones(N, N, dtype=torch.bool), False),
    ((4, N, N), torch.ones(4, 1, N, dtype=torch.bool), False),
], ids=str)
def test_when_it_runs(bias, mask, chosen):
    leading = (N, 4) if len(bias) < 5 else (1, 1, 4)
    tensors = [empty(*leading, N, 32) for _ in range(3)]
    found = regard.explain(*tensors, bias=empty(*bias, grad=True), mask=mask)
    assert (found.backend == "shared_bias") == chosen
    if chosen:
        assert f"{N * 4 * N * N:,}" in found.reasons["sdpa"]


def test_torch_reads_a_bias_without_a_gradient_where_it_lies():
    tensors = [empty(N, 4, N, 32) for _ in range(3)]
    assert regard.explain(*tensors, bias=empty(4, N, N)).backend == "sdpa"
    with torch.no_grad():
        assert regard.explain(*tensors, bias=empty(4, N, N, grad=True)).backend == "sdpa"


def test_small_problems_and_dropout_are_left_to_others():
    tensors = [empty(8, 4, 8, 32) for _ in range(3)]
    assert regard.explain(*tensors, bias=empty(4, 8, 8, grad=True)).backend == "sdpa"
    tensors = [empty(N, 4, N, 32) for _ in range(3)]
    assert regard.explain(*tensors, bias=empty(4, N, N, grad=True), dropout=0.1).backend != "shared_bias"
    with pytest.raises(ValueError, match=r'"shared_bias".*dropout'):
        regard.attend(*tensors, bias=empty(4, N, N), dropout=0.1, backend="shared_bias")
    with pytest.raises(ValueError, match=r'"shared_bias".*bias'):
        regard.attend(*tensors, backend="shared_bias")


def results(tensors, bias, backend, **options):
    asked = [tensor.clone().requires_grad_() for tensor in (*tensors, bias)]
    output = regard.attend(*asked[:3], bias=asked[3], backend=backend, **options)
    above = normal(*output.shape, seed=8)
    return [output.detach(), *torch.autograd.grad(output, asked, above)]


@pytest.mark.thorough
@given(st.sampled_from([((3,), ()), ((2, 3), (2, 1)), ((2, 3), (1, 1)), ((2, 3), ()), ((2, 2, 3), (2, 1, 1)),
                        ((2, 2, 3), (2, 2, 1)), ((1, 3), (1, 1))]),
       st.sampled_from([(2, 2, 2), (4, 2, 2), (2, 1, 2), (2, 2, 1)]), st.integers(1, 5), st.integers(1, 5),
       st.booleans(), st.sampled_from(["scaled_dot", "dot", "bilinear"]))
def test_it_equals_the_definition(leading, heads, queries, keys, masked, score):
    """Any leading dimensions, grouped heads, a bias for one head or all, a score with parameters."""
    batch, own = leading
    H, key_heads, bias_heads = heads
    tensors = [normal(*batch, H, queries, 4), normal(*batch, key_heads, keys, 4, seed=1),
               normal(*batch, key_heads, keys, 3, seed=2)]
    bias = normal(*own, min(bias_heads, H) if bias_heads == 1 else H, queries, keys, seed=3)
    options = {"score": regard.Bilinear(normal(4, 4, seed=4)) if score == "bilinear" else score}
    if masked:
        options["mask"] = normal(*batch, 1, 1, keys, seed=5) > 0
    for one, other in zip(results(tensors, bias, "shared_bias", **options), results(tensors, bias, "exact", **options),
                          strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.thorough
def test_memory_grows_with_the_pairs_and_not_with_the_triangles(monkeypatch):
    """Nothing is as large as the weights of all rows, and nothing of them is kept for the backward pass."""
    n, heads, width = 72, 4, 8
    monkeypatch.setattr(shared_bias_chunks, "CHUNK_NUMBERS_CPU", 2 * heads * n * n)
    tensors = [torch.randn(n, heads, n, width, requires_grad=True) for _ in range(3)]
    bias = torch.randn(heads, n, n, requires_grad=True)

    def measured(backend):
        kept = []
        with Largest() as largest, saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
            regard.attend(*tensors, bias=bias, backend=backend).sum().backward()
        return largest.elements, sum(kept)

    assert regard.explain(*tensors, bias=bias).backend == "shared_bias"
    largest, kept = measured(None)
    assert largest <= heads * n * n * width  # as many numbers as the queries have; a chunk has fewer
    assert kept <= 5 * heads * n * n * width
    largest, kept = measured("exact")  # that the measurement can see it
    assert largest >= heads * n**3
    assert kept >= heads * n**3


def test_a_mask_of_rows_counts_in_the_matrix_of_a_bias():
    """A bias joined with a mask of every row is a matrix for every row: torch's kernel does not get it."""
    tensors = [empty(600, 4, 600, 32) for _ in range(3)]
    mask, bias = torch.ones(600, 1, 1, 600, dtype=torch.bool), empty(4, 600, 600)
    problem = fused.SDPA.drawback(regard.attention.problem.build_problem(
        *tensors, score="scaled_dot", normalize="softmax", mask=mask, bias=bias, dropout=0.1))
    assert f"{600 * 4 * 600 * 600:,}" in problem


def test_autocast_keeps_the_dtype_of_the_queries():
    layer = AxialAttention(8, heads=2, axis=-2, pair_width=4, backend="shared_bias")
    torch.nn.init.normal_(layer.attention.output.weight)
    x, pairs = torch.randn(3, 5, 8), torch.randn(5, 5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(x, pairs)
        low.sum().backward()
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), layer(x, pairs), rtol=0.05, atol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [-2, -3])
def test_memory_on_a_gpu(axis):
    """Twice as many residues take four times the memory, forward and backward, and not eight times."""
    def peak(n):
        layer = AxialAttention(128, heads=4, head_width=32, axis=axis, pair_width=128).cuda().bfloat16()
        x, pairs = (torch.randn(n, n, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        layer(x, pairs).sum().backward()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer(x, pairs).sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    assert peak(384) < 5 * peak(192)
