"""The kernels for training blocks: torch's norms and activations, their gradients, and dropout drawn again."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")
from regard.blocks.feed_forward import ACTIVATIONS
from regard.kernels import blocks, column_sums
from regard.kernels.blocks import NormParameters, activate_dropout

pytestmark = pytest.mark.thorough

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NORMS = ["layer", "layer without parameters", "rms", "rms without gain"]
LAYER = NormParameters(True, None, None, 1e-5)


def form(name, width):
    gain, shift = torch.randn(2, width, device=DEVICE)
    return {"layer": NormParameters(True, gain.requires_grad_(), shift.requires_grad_(), 1e-5),
            "layer without parameters": LAYER,
            "rms": NormParameters(False, gain.requires_grad_(), None, 1e-3),
            "rms without gain": NormParameters(False, None, None, 1e-3)}[name]


def plain(s, norm, dtype):
    gain, shift = (None if part is None else part.to(dtype) for part in (norm.gain, norm.shift))
    if norm.centred:
        return F.layer_norm(s, s.shape[-1:], gain, shift, norm.epsilon)
    return F.rms_norm(s, s.shape[-1:], gain, norm.epsilon)


def leaves(*shape, dtype=torch.float32):
    return [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for _ in range(2)]


def assert_near_torch(shape, name, dtypes=(torch.float32, torch.float32)):
    """Result and gradients of the kernels against float64; the error of torch in the same dtype is the measure."""
    x, part = (leaf.detach().to(dtype).requires_grad_()
               for leaf, dtype in zip(leaves(*shape), dtypes, strict=True))
    norm, out = form(name, shape[-1]), torch.promote_types(*dtypes)
    wanted = [t for t in (x, part, norm.gain, norm.shift) if t is not None]
    g = torch.randn(shape, device=DEVICE).to(out)
    y = blocks.add_dropout_norm(x, part, 0.0, norm, out)
    exact, low = plain(x.double() + part.double(), norm, torch.double), plain(x + part, norm, out)
    assert y.dtype == out
    assert y.shape == x.shape
    results = [[y, *torch.autograd.grad(y, wanted, g)], [low, *torch.autograd.grad(low, wanted, g)],
               [exact, *torch.autograd.grad(exact, wanted, g.double())]]
    for mine, theirs, right in zip(*results, strict=True):
        right = right.double()
        bound = 2 * (theirs.double() - right).abs().max() + 8 * torch.finfo(mine.dtype).eps * right.abs().max()
        assert (mine.double() - right).abs().max() <= bound


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(1, 7), (5, 1), (2, 3, 33), (9, 128), (1, 600)], ids=str)
def test_without_dropout_it_is_torchs_norm_of_the_sum(name, shape):
    assert_near_torch(shape, name)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
                                    (torch.float32, torch.bfloat16)], ids=str)
def test_in_low_precision_it_errs_no_more_than_torch(name, dtypes):
    assert_near_torch((40, 36), name, dtypes)


def test_sums_of_many_programs(monkeypatch):
    monkeypatch.setattr(blocks, "NORM_BACKWARD_PROGRAMS", 3)
    monkeypatch.setattr(blocks, "NORM_TILE_ELEMENTS", 32)
    assert_near_torch((29, 10), "layer")


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_share_that_is_kept_and_its_scale(probability):
    x, part = torch.zeros(256, 96, device=DEVICE), torch.ones(256, 96, device=DEVICE)
    y = blocks.add_dropout(x, part, probability)
    kept = (y != 0).double()
    assert abs(kept.mean().item() - (1 - probability)) < 0.02
    assert y.max().item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    for dim in (0, 1):  # no row and no column is special
        assert (kept.mean(dim) - (1 - probability)).abs().max() < 0.3
    flat = kept.flatten() - (1 - probability)
    for distance in (1, 2, 3, 7, 8, 16, 96):  # neighbours do not know of each other
        assert abs((flat[distance:] * flat[:-distance]).mean().item()) < 0.01


def test_each_call_draws_anew_and_follows_the_random_state():
    x, part = torch.zeros(20, 40, device=DEVICE), torch.ones(20, 40, device=DEVICE)
    torch.manual_seed(3)
    first, second = blocks.add_dropout(x, part, 0.5), blocks.add_dropout(x, part, 0.5)
    torch.manual_seed(3)
    assert not torch.equal(first, second)
    assert torch.equal(blocks.add_dropout(x, part, 0.5), first)


@pytest.mark.parametrize("width", [1, 9, 40, 300])
def test_the_sum_is_linear_and_its_gradient_has_the_same_mask(width):
    x, part = leaves(11, width)
    y = blocks.add_dropout(x, part, 0.375)
    g = torch.randn_like(x)
    of_x, of_part = torch.autograd.grad(y, [x, part], g)
    mask = torch.where((y - x).abs() > 1e-12, 1 / 0.625, 0.0).float()  # of y = x + mask · part
    torch.testing.assert_close(y, x + mask * part, rtol=1e-4, atol=1e-5)
    assert torch.equal(of_x, g)
    torch.testing.assert_close(of_part, mask * g, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(6, 9), (7, 64)], ids=str)
def test_with_dropout_the_norm_and_its_gradients_have_one_mask(name, shape):
    x, part = leaves(*shape)
    torch.manual_seed(5)
    mask = blocks.add_dropout(torch.zeros_like(x), torch.ones_like(x), 0.3).detach()  # the first seed of this state
    norm = form(name, shape[-1])
    torch.manual_seed(5)
    y = blocks.add_dropout_norm(x, part, 0.3, norm, torch.float32)
    exact = plain((x + mask * part).double(), norm, torch.double)
    wanted = [t for t in (x, part, norm.gain, norm.shift) if t is not None]
    g = torch.randn_like(x)
    assert 0 < (mask == 0).sum() < mask.numel()
    for mine, right in zip([y, *torch.autograd.grad(y, wanted, g)],
                           [exact, *torch.autograd.grad(exact, wanted, g.double())], strict=True):
        torch.testing.assert_close(mine.double(), right.double(), rtol=1e-4, atol=1e-5)


def test_numbers_that_are_not_in_order_in_memory():
    x, part = (leaf.transpose(0, 1) for leaf in leaves(9, 5))
    y = blocks.add_dropout_norm(x, part, 0.0, LAYER, torch.float32)
    (gradient,) = torch.autograd.grad(y.sum(), part)  # an expanded number
    torch.testing.assert_close(y, F.layer_norm(x + part, (9,)))
    assert gradient.abs().max() < 1e-5


def test_a_second_derivative_is_refused_and_not_wrong():
    x, part = leaves(3, 5)
    for y in (blocks.add_dropout_norm(x, part, 0.0, LAYER, torch.float32), blocks.add_dropout(x, part, 0.0)):
        with pytest.raises(ValueError, match="`create_graph` must be False"):
            torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(35_000, 512), (3_001, 257), (100, 8_192)], ids=str)
def test_large_ones_on_a_gpu(name, shape):
    assert_near_torch(shape, name)
    assert_near_torch(shape, name, (torch.bfloat16, torch.bfloat16))


@pytest.mark.gpu
def test_gradients_are_the_same_every_time():
    x, part = leaves(20_000, 512, dtype=torch.bfloat16)
    norm, g = form("layer", 512), torch.randn_like(x)
    every = [torch.autograd.grad(blocks.add_dropout_norm(x, part, 0.0, norm, x.dtype), [x, norm.gain, norm.shift], g)
             for _ in range(3)]
    for again in every[1:]:
        assert all(map(torch.equal, every[0], again))


@pytest.mark.gpu
def test_each_replay_of_a_graph_has_another_mask_and_gradients_that_fit_it():
    x, part = torch.zeros(64, 48, device="cuda"), torch.ones(64, 48, device="cuda", requires_grad=True)
    y, gradient = torch.empty_like(x), torch.empty_like(x)

    def work():
        out = blocks.add_dropout(x, part, 0.5)
        y.copy_(out.detach())
        gradient.copy_(torch.autograd.grad(out.sum(), part)[0])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    seen = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, gradient)
        seen.append(y.clone())
    assert not torch.equal(*seen)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_the_sum_of_the_gradient_of_the_part_is_noted(name, dtype, dropout, monkeypatch):
    monkeypatch.setattr(blocks, "NORM_BACKWARD_PROGRAMS", 3)
    x, part = leaves(7, 33, dtype=dtype)
    y = blocks.add_dropout_norm(x, part, dropout, form(name, 33), dtype)
    seen = []
    y.grad_fn.register_hook(lambda gradients, upstream: seen.append(gradients[1]))
    y.backward(torch.randn_like(y))
    sums = vars(seen[0])[column_sums.NOTE][1]
    torch.testing.assert_close(sums.float(), seen[0].float().sum(0), rtol=2e-2 if dtype == torch.bfloat16 else 1e-4,
                               atol=0.1 if dtype == torch.bfloat16 else 1e-5)


pytest.importorskip("triton")

SHAPES = [(1,), (3, 7), (2, 3, 700), (5, 1048), (2, 5, 40), pytest.param((5000, 2048), marks=pytest.mark.gpu)]


def both_ways(y, x, g):
    return [y, *torch.autograd.grad(y, x, g)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_without_dropout_it_is_torchs(name, shape, dtype):
    x = (3 * torch.randn(shape, device=DEVICE)).to(dtype).requires_grad_()
    g, plain = torch.randn_like(x), ACTIVATIONS[name]
    every = zip(both_ways(activate_dropout(x, name, 0.0), x, g), both_ways(plain(x), x, g),
                both_ways(plain(x.double()), x, g.double()), strict=True)
    for mine, theirs, right in every:
        assert (mine.dtype, mine.shape) == (dtype, x.shape)
        right = right.double()
        largest = right.abs().max() + g.abs().max()  # a slope near 0 is a difference of larger numbers
        bound = 2 * (theirs.double() - right).abs().max() + 4 * torch.finfo(dtype).eps * largest
        assert (mine.double() - right).abs().max() <= bound


@pytest.mark.parametrize("shape", [(2, 9), (4, 700), (3, 1048), (40, 24), (5, 16)], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_with_dropout_the_gradient_has_the_same_mask(name, shape):
    x = (torch.rand(shape, device=DEVICE) + 0.1).requires_grad_()  # above 0, where no activation is 0
    y, g = activate_dropout(x, name, 0.25), torch.randn_like(x)
    (gradient,) = torch.autograd.grad(y, x, g)
    plain = ACTIVATIONS[name](x)
    (slope,) = torch.autograd.grad(plain, x, g)
    mask = (y != 0).float() / 0.75
    assert 0 < (mask == 0).sum() < 0.6 * mask.numel()
    torch.testing.assert_close(y, mask * plain)
    torch.testing.assert_close(gradient, mask * slope)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_large_numbers_do_not_overflow_and_nan_is_not_hidden(name):
    x = torch.tensor([-1e4, -50.0, 50.0, 1e4, float("nan")], device=DEVICE, requires_grad=True)
    y = activate_dropout(x, name, 0.0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, ACTIVATIONS[name](x), equal_nan=True)
    assert gradient[:4].tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=1e-6)


def test_each_call_draws_anew_and_the_share_is_right():
    x = torch.ones(100, 300, device=DEVICE)
    first, second = activate_dropout(x, "relu", 0.1), activate_dropout(x, "relu", 0.1)
    assert not torch.equal(first, second)
    assert abs((first == 0).double().mean().item() - 0.1) < 0.01


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("shape", [(3, 8), (70, 24), (9, 1048), (2, 30, 1024)], ids=str)
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_sum_of_the_gradient_is_noted(name, shape, dropout, monkeypatch):
    monkeypatch.setattr(blocks, "ACTIVATION_BACKWARD_PROGRAMS", 4)
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    seen = []
    y = activate_dropout(x.view_as(x), name, dropout)  # the gradient as it comes out of the kernel is that of the view
    y.grad_fn.register_hook(lambda gradients, upstream: seen.append(gradients[0]))
    y.backward(torch.randn_like(x))
    sums = vars(seen[0])[column_sums.NOTE][1]
    torch.testing.assert_close(sums.sum(0), seen[0].flatten(0, -2).sum(0))
    assert len(sums) <= 4
