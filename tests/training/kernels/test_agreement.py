"""The loss of two passes by the kernel: torch's in float64, gradients in the place of the logits, labels ignored."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")
from regard.kernels import loss as agreement
from regard.tokens import IGNORED_LABEL

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(2, 1, 1), (2, 1, 9), (2, 7, 33), (2, 5, 100), pytest.param((2, 500, 50_257), marks=pytest.mark.gpu)]


def problem(shape, dtype):
    logits = torch.randn(shape, device=DEVICE)
    logits[1] = logits[0] + 0.5 * logits[1] + 2.0
    labels = torch.randint(shape[2], shape[1:2], device=DEVICE)
    labels[1::3] = IGNORED_LABEL
    return logits.to(dtype), labels


def plain(logits, labels, smoothing, weight):
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
def _small_blocks(monkeypatch):
    """On a CPU several blocks a token, without a large vocabulary."""
    if DEVICE == "cpu":
        monkeypatch.setattr(agreement, "BLOCK", 16)


@pytest.mark.parametrize("weight", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_torchs_in_float64(shape, dtype, smoothing, weight):
    logits, labels = problem(shape, dtype)
    own, loss, gradient = plain(logits.double(), labels, smoothing, weight)
    got = logits.clone()
    mine, spread, divergence = agreement.rdrop(got, labels, IGNORED_LABEL, smoothing, weight, gradients=True)
    torch.testing.assert_close(mine.double(), own, rtol=1e-5, atol=1e-5)
    total = (1 - smoothing) * mine + smoothing * spread + 0.5 * weight * divergence
    torch.testing.assert_close(total.double(), loss, rtol=1e-5, atol=2e-5)
    assert (got.double() - gradient).abs().max() <= 2 * torch.finfo(dtype).eps * max(1.0, gradient.abs().max().item())
    assert (got[:, labels == IGNORED_LABEL] == 0).all()


def test_without_gradients_the_logits_stay():
    logits, labels = problem((2, 7, 33), torch.float32)
    before = logits.clone()
    alone = agreement.rdrop(logits, labels, IGNORED_LABEL, 0.1, 5.0, gradients=False)
    assert torch.equal(logits, before)
    assert all(map(torch.equal, alone, agreement.rdrop(logits, labels, IGNORED_LABEL, 0.1, 5.0, gradients=True)))


def test_where_all_is_ignored_all_is_zero_even_of_nan():
    logits = torch.full((2, 3, 40), float("nan"), device=DEVICE)
    labels = torch.full((3,), IGNORED_LABEL, device=DEVICE)
    assert not any(part.any() for part in agreement.rdrop(logits, labels, IGNORED_LABEL, 0.1, 5.0, gradients=True))
    assert not logits.any()


@pytest.mark.parametrize("label", [-1, 9, 1 << 40])
def test_a_label_that_names_no_token_makes_the_loss_nan(label):
    own, _, _ = agreement.rdrop(torch.randn(2, 1, 9, device=DEVICE), torch.tensor([label], device=DEVICE), IGNORED_LABEL,
                                 0.1, 5.0, gradients=False)
    assert own.isnan().all()
