"""Attention with a bias that rows share, in Triton and in chunks: equal to the definition, forward and backward."""

import pytest
import torch
from problems import normal

import regard
from regard.kernels import launch, shared_bias_chunks
from regard.kernels.shared_bias_chunks import ChunkedSharedBiasAttention

pytest.importorskip("triton")
from regard.kernels import shared_bias
from regard.kernels.shared_bias import SharedBiasAttention

INTERPRETED = pytest.mark.skipif(not shared_bias.INTERPRETED, reason="the kernels are compiled here")
SHAPES = [  # groups, rows, heads, queries, keys, width, width of the values
    (1, 3, 2, 17, 17, 8, 8), (2, 2, 1, 20, 33, 5, 7), (1, 2, 1, 1, 1, 16, 16), (2, 3, 1, 9, 20, 20, 3),
]


def problem(shape, dtype=torch.float32, device="cpu", seed=0):
    """Query, key, value, bias, and what comes from above."""
    G, R, H, Q, K, D, E = shape
    sizes = [(G, R, Q, H, D), (G, R, K, H, D), (G, R, K, H, E), (G, H, Q, K), (G, R, Q, H, E)]
    made = [normal(*size, seed=seed + number).to(device, dtype) for number, size in enumerate(sizes)]
    q, k, v, u = (made[number].transpose(2, 3) for number in (0, 1, 2, 4))  # as projections give them
    return [q, k, v, made[3]], u


def flags(shape, seed=9):
    """Which keys exist; one row has none."""
    present = normal(shape[0], shape[1], shape[4], seed=seed) > -0.4
    present[0, -1] = False
    return present


def definition(q, k, v, b, present, scale):
    """All weights at once."""
    mask = None if present is None else present[:, :, None, None]
    return regard.attend(q, k, v, bias=b.unsqueeze(1), mask=mask, scale=scale, backend="exact")


def results(function, tensors, above, present, scale, dtype):
    asked = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    output = function(*asked, present, scale)
    return [output.detach(), *torch.autograd.grad(output, asked, above.to(dtype))]


def assert_near(function, tensors, above, present, scale=0.3):
    """The error is at most twice that of the plain computation in the same precision, and some eps."""
    dtype = tensors[0].dtype
    truth = results(definition, tensors, above, present, scale, torch.float64)
    plain = results(definition, tensors, above, present, scale, dtype)
    mine = results(function, tensors, above, present, scale, dtype)
    largest = max(want.abs().max() for want in truth)  # with one key the gradient of a query is a difference of equals
    for name, want, one, other in zip(("output", "query", "key", "value", "bias"), truth, plain, mine, strict=True):
        error, theirs = ((found.double() - want).abs().max() for found in (other, one))
        assert error <= 2 * theirs + 8 * torch.finfo(dtype).eps * largest, name


@INTERPRETED
@pytest.mark.thorough
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_kernels(shape, masked):
    assert_near(SharedBiasAttention.apply, *problem(shape), flags(shape) if masked else None)


@INTERPRETED
@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_in_half_precision(dtype):
    shape = (1, 3, 2, 18, 21, 16, 16)
    assert_near(SharedBiasAttention.apply, *problem(shape, dtype), flags(shape))


@INTERPRETED
@pytest.mark.thorough
def test_rows_are_split_for_the_bias_where_tiles_are_few(monkeypatch):
    grids = []
    run = launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, grid, given, options: (
        grids.append((kernel, grid)), run(kernel, grid, given, options)))
    monkeypatch.setattr(shared_bias, "BIAS_PROGRAMS", 6)
    assert_near(SharedBiasAttention.apply, *problem((1, 7, 2, 9, 9, 4, 4)), None)
    assert [grid for kernel, grid in grids if kernel is shared_bias._bias_gradient] == [(1, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("numbers", [1, 1500, 1 << 30], ids=["row by row", "some rows", "all rows"])
def test_chunks_are_the_definition(shape, masked, numbers, monkeypatch):
    monkeypatch.setattr(shared_bias_chunks, "CHUNK_NUMBERS_CPU", numbers)
    tensors, above = problem(shape, torch.float64)
    present = flags(shape) if masked else None
    mine, truth = (results(function, tensors, above, present, 0.3, torch.float64)
                   for function in (ChunkedSharedBiasAttention.apply, definition))
    for one, other in zip(mine, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_chunks_have_second_derivatives():
    shape = (1, 2, 1, 3, 4, 2, 2)
    tensors, _ = problem(shape, torch.float64)
    asked = [tensor.contiguous().requires_grad_() for tensor in tensors]
    present = flags(shape)
    assert torch.autograd.gradcheck(lambda *given: ChunkedSharedBiasAttention.apply(*given, present, 0.3), asked)
    assert torch.autograd.gradgradcheck(lambda *given: ChunkedSharedBiasAttention.apply(*given, present, 0.3), asked)


@pytest.mark.parametrize("function", [
    pytest.param(SharedBiasAttention.apply, marks=[INTERPRETED, pytest.mark.thorough]),
    ChunkedSharedBiasAttention.apply])
def test_absent_keys_are_not_read(function):
    """NaN in keys and values that do not exist, and in queries of rows without keys, changes nothing."""
    shape = (1, 3, 2, 17, 19, 8, 8)
    tensors, above = problem(shape)
    present = flags(shape)
    want = results(function, tensors, above, present, 0.3, torch.float32)
    absent = ~present[:, :, None, :, None]
    q, k, v, b = tensors
    spoiled = [q.masked_fill(~present.any(-1)[:, :, None, None, None], torch.nan), k.masked_fill(absent, torch.nan),
               v.masked_fill(absent, torch.inf), b]
    for one, other in zip(results(function, spoiled, above, present, 0.3, torch.float32), want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not want[0][0, -1].any()
    assert all(not gradient[0, -1].any() for gradient in want[1:4])


@pytest.mark.parametrize("function", [
    pytest.param(SharedBiasAttention.apply, marks=[INTERPRETED, pytest.mark.thorough]),
    ChunkedSharedBiasAttention.apply])
def test_a_bias_of_minus_infinity_forbids(function):
    tensors, above = problem((1, 2, 1, 5, 18, 4, 4))
    tensors[3][0, 0, 2] = -torch.inf
    tensors[3][0, 0, 3, 4:] = -torch.inf
    found = results(function, tensors, above, None, 0.3, torch.float32)
    assert not found[0][:, :, :, 2].any()
    truth = results(definition, tensors, above, None, 0.3, torch.float64)
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@INTERPRETED
@pytest.mark.thorough
def test_columns_are_read_where_they_lie(monkeypatch):
    """Attention along the other axis gives transposed tensors, which are not copied."""
    grid = [normal(6, 5, 2, 8, seed=number).float().requires_grad_() for number in range(3)]
    views = [tensor.permute(1, 2, 0, 3).unsqueeze(0) for tensor in grid]  # (1, columns, heads, rows, width)
    read = []
    run = launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, size, given, options: (
        read.append({tensor.data_ptr() for tensor in given if isinstance(tensor, torch.Tensor)}),
        run(kernel, size, given, options)))
    bias = normal(1, 2, 6, 6, seed=4).float()
    output = SharedBiasAttention.apply(*views, bias, None, 0.3)
    assert {tensor.data_ptr() for tensor in grid} <= read[0]
    assert output.permute(0, 3, 1, 2, 4).is_contiguous()  # laid out as the grid is


@INTERPRETED
@pytest.mark.thorough
def test_second_derivatives_of_the_kernels_are_refused():
    tensors, _ = problem((1, 2, 1, 3, 4, 2, 2))
    asked = [tensor.requires_grad_() for tensor in tensors]
    with pytest.raises(ValueError, match="create_graph"):
        torch.autograd.grad(SharedBiasAttention.apply(*asked, None, 0.3).sum(), asked, create_graph=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_compiled_kernels(dtype, masked, width):
    shape = (2, 6, 2, 150, 131, width, width)
    tensors, above = problem(shape, dtype, "cuda")
    assert_near(SharedBiasAttention.apply, tensors, above, flags(shape).cuda() if masked else None, width ** -0.5)
