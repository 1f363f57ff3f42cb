"""The kernels of cross entropy and R-Drop equal autograd in float64."""

import pytest
import torch
from torch.nn import functional as F

from regard.kernels import loss as kernels
from regard.tokens import IGNORED_LABEL

pytestmark = pytest.mark.thorough

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(1, 1), (1, 9), (7, 33), (5, 100), pytest.param((1000, 50_257), marks=pytest.mark.gpu),
          pytest.param((64, 256_001), marks=pytest.mark.gpu)]


def problem(shape, dtype):
    logits = (3 * torch.randn(shape, device=DEVICE)).to(dtype)
    labels = torch.randint(shape[1], shape[:1], device=DEVICE)
    labels[1::3] = IGNORED_LABEL
    return logits, labels


def plain(logits, labels, smoothing):
    """own and the loss of each token, and the gradient of all losses."""
    logits = logits.detach().requires_grad_()
    options = {"ignore_index": IGNORED_LABEL, "reduction": "none"}
    loss = F.cross_entropy(logits, labels, label_smoothing=smoothing, **options)
    return F.cross_entropy(logits, labels, **options), loss, torch.autograd.grad(loss.sum(), logits)[0]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """On a CPU several blocks a token, without a large vocabulary."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "BLOCK", 16)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_torchs_in_float64(shape, dtype, smoothing):
    logits, labels = problem(shape, dtype)
    own, loss, gradient = plain(logits.double(), labels, smoothing)
    got = logits.clone()
    mine, spread = kernels.cross_entropy(got, labels, IGNORED_LABEL, smoothing, gradients=True)
    torch.testing.assert_close(mine.double(), own, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(((1 - smoothing) * mine + smoothing * spread).double(), loss, rtol=1e-5, atol=1e-5)
    assert got.dtype == dtype
    assert (got.double() - gradient).abs().max() <= 2 * torch.finfo(dtype).eps  # of numbers up to 1
    assert (got[labels == IGNORED_LABEL] == 0).all()


def test_without_gradients_the_logits_stay():
    logits, labels = problem((7, 33), torch.float32)
    before = logits.clone()
    alone = kernels.cross_entropy(logits, labels, IGNORED_LABEL, 0.1, gradients=False)
    assert torch.equal(logits, before)
    assert all(map(torch.equal, alone, kernels.cross_entropy(logits, labels, IGNORED_LABEL, 0.1, gradients=True)))


def test_where_all_is_ignored_all_is_zero_even_of_nan():
    logits = torch.full((3, 40), float("nan"), device=DEVICE)
    own, spread = kernels.cross_entropy(logits, torch.full((3,), IGNORED_LABEL, device=DEVICE), IGNORED_LABEL, 0.1,
                                        gradients=True)
    assert not own.any()
    assert not spread.any()
    assert not logits.any()


def test_huge_logits_and_logits_of_minus_infinity():
    logits = torch.tensor([[1e30, -1e30, 0.0], [float("-inf"), 2.0, 2.0]], device=DEVICE).repeat(1, 11)
    labels = torch.tensor([0, 1], device=DEVICE)
    own, _, gradient = plain(logits.double(), labels, 0.0)
    mine, _ = kernels.cross_entropy(logits, labels, IGNORED_LABEL, 0.0, gradients=True)
    torch.testing.assert_close(mine.double(), own)
    torch.testing.assert_close(logits.double(), gradient)


def test_a_block_that_is_all_minus_infinity():
    logits = torch.full((1, 40), float("-inf"), device=DEVICE)
    logits[0, 30:] = 1.0
    own, _ = kernels.cross_entropy(logits, torch.tensor([35], device=DEVICE), IGNORED_LABEL, 0.0, gradients=True)
    assert own.item() == pytest.approx(torch.tensor(10.0).log().item(), rel=1e-5)
    assert logits.isfinite().all()


@pytest.mark.parametrize("label", [-1, 9, 1 << 40])
def test_a_label_that_names_no_token_makes_the_loss_nan(label):
    logits = torch.randn(1, 9, device=DEVICE)
    own, _ = kernels.cross_entropy(logits, torch.tensor([label], device=DEVICE), IGNORED_LABEL, 0.1, gradients=False)
    assert own.isnan().all()


pytest.importorskip("triton")

RDROP_SHAPES = [(2, 1, 1), (2, 1, 9), (2, 7, 33), (2, 5, 100), pytest.param((2, 500, 50_257), marks=pytest.mark.gpu)]


def rdrop_problem(shape, dtype):
    logits = torch.randn(shape, device=DEVICE)
    logits[1] = logits[0] + 0.5 * logits[1] + 2.0
    labels = torch.randint(shape[2], shape[1:2], device=DEVICE)
    labels[1::3] = IGNORED_LABEL
    return logits.to(dtype), labels


def plain_rdrop(logits, labels, smoothing, weight):
    """own and the loss of each token, and the gradient of all losses."""
    logits = logits.detach().requires_grad_()
    options = {"ignore_index": IGNORED_LABEL, "reduction": "none"}
    own = sum(F.cross_entropy(one, labels, **options) for one in logits) / 2
    smooth = sum(F.cross_entropy(one, labels, label_smoothing=smoothing, **options) for one in logits) / 2
    p, q = logits.log_softmax(-1)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1).masked_fill(labels == IGNORED_LABEL, 0.0)  # in both directions
    loss = smooth + weight * divergence / 4
    return own, loss, torch.autograd.grad(loss.sum(), logits)[0]


@pytest.fixture(autouse=True)
def _small_rdrop_blocks(monkeypatch):
    """On a CPU several blocks a token, without a large vocabulary."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "BLOCK", 16)


@pytest.mark.parametrize("weight", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", RDROP_SHAPES, ids=str)
def test_it_is_torchs_in_float64_of_rdrop(shape, dtype, smoothing, weight):
    logits, labels = rdrop_problem(shape, dtype)
    own, loss, gradient = plain_rdrop(logits.double(), labels, smoothing, weight)
    got = logits.clone()
    mine, spread, divergence = kernels.rdrop(got, labels, IGNORED_LABEL, smoothing, weight, gradients=True)
    torch.testing.assert_close(mine.double(), own, rtol=1e-5, atol=1e-5)
    total = (1 - smoothing) * mine + smoothing * spread + 0.5 * weight * divergence
    torch.testing.assert_close(total.double(), loss, rtol=1e-5, atol=2e-5)
    assert (got.double() - gradient).abs().max() <= 2 * torch.finfo(dtype).eps * max(1.0, gradient.abs().max().item())
    assert (got[:, labels == IGNORED_LABEL] == 0).all()


def test_without_gradients_the_logits_stay_of_rdrop():
    logits, labels = rdrop_problem((2, 7, 33), torch.float32)
    before = logits.clone()
    alone = kernels.rdrop(logits, labels, IGNORED_LABEL, 0.1, 5.0, gradients=False)
    assert torch.equal(logits, before)
    assert all(map(torch.equal, alone, kernels.rdrop(logits, labels, IGNORED_LABEL, 0.1, 5.0, gradients=True)))


def test_where_all_is_ignored_all_is_zero_even_of_nan_of_rdrop():
    logits = torch.full((2, 3, 40), float("nan"), device=DEVICE)
    labels = torch.full((3,), IGNORED_LABEL, device=DEVICE)
    assert not any(part.any() for part in kernels.rdrop(logits, labels, IGNORED_LABEL, 0.1, 5.0, gradients=True))
    assert not logits.any()


@pytest.mark.parametrize("label", [-1, 9, 1 << 40])
def test_a_label_that_names_no_token_makes_the_loss_nan_of_rdrop(label):
    own, _, _ = kernels.rdrop(torch.randn(2, 1, 9, device=DEVICE), torch.tensor([label], device=DEVICE),
                                IGNORED_LABEL,
                                 0.1, 5.0, gradients=False)
    assert own.isnan().all()
