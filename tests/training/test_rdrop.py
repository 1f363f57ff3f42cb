"""The R-Drop loss."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.reference import loss as reference
from regard.tokens import IGNORED_LABEL
from regard.training import loss as module
from regard.training import loss as one_pass
from regard.training.loss import rdrop_loss, token_loss


def problem(count=11, bias=True, dtype=torch.double, ignored=True):
    torch.manual_seed(2)
    output = nn.Linear(5, 7, bias).to(dtype)
    labels = torch.randint(7, (count,))
    if ignored:
        labels[::3] = IGNORED_LABEL
    return torch.randn(2, count, 5, dtype=dtype, requires_grad=True), output, labels


def plain(states, output, labels, smoothing, weight):
    """The same with torch's own functions and autograd: total, and nll."""
    counted = labels != IGNORED_LABEL
    first, second = output(states[:, counted])
    options = {"reduction": "sum"}
    entropies = [F.cross_entropy(one, labels[counted], label_smoothing=smoothing, **options) for one in (first, second)]
    logs = [one.log_softmax(-1) for one in (first, second)]
    divergences = [F.kl_div(logs[1 - index], logs[index], log_target=True, **options) for index in (0, 1)]
    nll = sum(F.cross_entropy(one, labels[counted], **options) for one in (first, second)) / 2
    return sum(entropies) / 2 + weight * sum(divergences) / 4, nll


def with_gradients(total, nll, states, output):
    return [total, nll, *torch.autograd.grad(total * 0.3, [states, *output.parameters()])]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_it_is_the_oracles(smoothing, weight):
    states, output, labels = problem()
    first, second = output(states).detach().numpy()
    want = sum(reference.rdrop_loss(one, other, int(label), smoothing, weight)
               for one, other, label in zip(first, second, labels, strict=True) if label != IGNORED_LABEL)
    loss = rdrop_loss(states, output, labels, smoothing, weight)
    assert loss.total.item() == pytest.approx(want, rel=1e-13)
    assert loss.tokens == (labels != IGNORED_LABEL).sum()


@pytest.mark.parametrize("fewest", [1, 4, 7, 256])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_it_has_autograds_gradients(fewest, smoothing, bias, monkeypatch):
    monkeypatch.setattr(module, "MIN_CHUNK", fewest)
    monkeypatch.setitem(one_pass.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels = problem(bias=bias)
    loss = rdrop_loss(states, output, labels, smoothing, 5.0)
    got = with_gradients(loss.total, loss.nll, states, output)
    expected = with_gradients(*plain(states, output, labels, smoothing, 5.0), states, output)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_without_weight_it_is_the_mean_of_two_passes(smoothing):
    states, output, labels = problem()
    loss = rdrop_loss(states, output, labels, smoothing, 0.0)
    halves = [token_loss(one, output, labels, smoothing) for one in states]
    got = with_gradients(loss.total, loss.nll, states, output)
    want = with_gradients(sum(half.total for half in halves) / 2, sum(half.nll for half in halves) / 2, states, output)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_passes_that_agree_cost_what_one_costs():
    states, output, labels = problem()
    both = states[:1].expand(2, -1, -1)
    loss, alone = rdrop_loss(both, output, labels, 0.1, 5.0), token_loss(states[0], output, labels, 0.1)
    for mine, theirs in zip(loss, alone, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_gives_the_same(smoothing, bias, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "MIN_CHUNK", 4)
    monkeypatch.setitem(one_pass.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels = problem(bias=bias, dtype=torch.float32)
    loss = rdrop_loss(states, output, labels, smoothing, 5.0)
    want = with_gradients(loss.total, loss.nll, states, output)
    monkeypatch.setattr(module, "_rdrop_losses_and_gradient", None)  # whoever calls it fails
    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    monkeypatch.setattr(one_pass, "usable", lambda *tensors: True)
    loss = rdrop_loss(states, output, labels, smoothing, 5.0)
    for mine, theirs in zip(with_gradients(loss.total, loss.nll, states, output), want, strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.testing.assert_close(rdrop_loss(states, output, labels, smoothing, 5.0).total, want[0])


@pytest.mark.parametrize("count", [0, 4])
def test_nothing_that_counts_is_zero_and_no_nan(count):
    states, output, _ = problem(count)
    loss = rdrop_loss(states, output, torch.full((count,), IGNORED_LABEL), 0.1, 5.0)
    loss.total.backward()
    assert (loss.total.item(), loss.nll.item(), loss.tokens.item()) == (0.0, 0.0, 0)
    assert (states.grad == 0).all()
    assert (output.weight.grad == 0).all()


def test_rows_of_tokens_and_no_gradients(monkeypatch):
    states, output, labels = problem(12)
    written, walk = [], module._rdrop_chunks
    wanted = ("of_states", "of_weight", "of_bias")
    monkeypatch.setattr(module, "_rdrop_chunks", lambda *given, **named: (
        written.append(tuple(named[name] for name in wanted)) or walk(*given, **named)))
    with torch.no_grad():
        alone = rdrop_loss(states, output, labels, 0.1, 5.0)
        rows = rdrop_loss(states.view(2, 3, 4, 5), output, labels.view(3, 4), 0.1, 5.0)
    assert torch.equal(rows.total, alone.total)
    assert not alone.total.requires_grad
    assert written == [(None, None, None)] * 2


def test_huge_logits_do_not_overflow():
    states, output, labels = problem(dtype=torch.float32)
    loss = rdrop_loss(states * 1e30, output, labels, 0.1, 5.0)
    assert loss.total.isfinite()
    loss.total.backward()
    assert output.weight.grad.isfinite().all()
    assert states.grad.isfinite().all()


def test_low_precision_is_wide_where_it_matters():
    states, output, labels = problem(200, dtype=torch.float32, ignored=False)
    exact = rdrop_loss(states.double(), output.double(), labels, 0.1, 5.0)
    want = with_gradients(exact.total, exact.nll, states, output)
    output.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = rdrop_loss(states, output, labels, 0.1, 5.0)
        assert loss.total.dtype == torch.float32
    for mine, theirs in zip(with_gradients(loss.total, loss.nll, states, output), want, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_float64_stays_under_autocast():
    states, output, labels = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = rdrop_loss(states, output, labels, 0.1, 5.0)
    assert torch.equal(inside.total, rdrop_loss(states, output, labels, 0.1, 5.0).total)


def test_a_second_derivative_is_refused_and_not_wrong():
    states, output, labels = problem()
    total = rdrop_loss(states, output, labels, 0.1, 5.0).total
    with pytest.raises(ValueError, match="`create_graph` must be False"):
        torch.autograd.grad(total, states, create_graph=True)


@contextmanager
def waiting_forbidden():
    """Whatever waits for the GPU is an error. Torch warns that this mode is new, which is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_same_and_waits_for_nothing():
    states, output, labels = problem(40)
    want = rdrop_loss(states, output, labels, 0.1, 5.0)
    want = with_gradients(want.total, want.nll, states, output)
    there = states.detach().cuda().requires_grad_(True)
    output.cuda()
    labels = labels.cuda()
    with waiting_forbidden():
        loss = rdrop_loss(there, output, labels, 0.1, 5.0)
        got = with_gradients(loss.total, loss.nll, there, output)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("change", "message"), [
    ({"labels": torch.full((3,), 7)}, "`labels` must be from 0 to 6, or -100 to be ignored, but is 7"),
    ({"labels": torch.zeros(3)}, "`labels` must be integers"),
    ({"labels": torch.zeros(4).long()},
     r"`states` must be of shape \(2, 4, 5\), two for each label, but is of shape \(2, 3, 5\)"),
    ({"states": torch.randn(3, 5)}, r"`states` must be of shape \(2, 3, 5\)"),
    ({"label_smoothing": 1.5}, "`label_smoothing` must be a probability"),
    ({"weight": -1.0}, "`weight` must be at least 0, and finite, but is -1.0"),
    ({"weight": float("nan")}, "`weight` must be at least 0"),
])
def test_what_is_refused(change, message):
    given = {"states": torch.randn(2, 3, 5), "labels": torch.zeros(3).long(), "label_smoothing": 0.1,
             "weight": 1.0} | change
    with pytest.raises(ValueError, match=message):
        rdrop_loss(output=nn.Linear(5, 7), **given)
