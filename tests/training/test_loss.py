"""The loss of the output layer: torch's own, chunk by chunk, with its gradients, and what counts nothing."""

import pytest
import torch
from torch import nn

from regard.tokens import IGNORED_LABEL
from regard.training import loss as module
from regard.training.loss import logits_loss, token_loss


def problem(count=11, bias=True, dtype=torch.double, ignored=True):
    torch.manual_seed(2)
    output = nn.Linear(5, 7, bias).to(dtype)
    labels = torch.randint(7, (count,))
    if ignored:
        labels[::3] = IGNORED_LABEL
    return torch.randn(count, 5, dtype=dtype, requires_grad=True), output, labels


def with_gradients(loss, states, output):
    wanted = [states, *output.parameters()]
    return [loss.total, loss.nll, *torch.autograd.grad(loss.total * 0.3, wanted)]


@pytest.mark.parametrize("fewest", [1, 4, 256])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_torchs_own(fewest, smoothing, bias, monkeypatch):
    monkeypatch.setattr(module, "MIN_CHUNK", fewest)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels = problem(bias=bias)
    loss = token_loss(states, output, labels, smoothing)
    want = torch.nn.functional.cross_entropy(output(states), labels, ignore_index=IGNORED_LABEL, reduction="sum",
                                             label_smoothing=smoothing)
    assert loss.tokens == (labels != IGNORED_LABEL).sum()
    got, expected = with_gradients(loss, states, output), with_gradients(
        loss._replace(total=want, nll=torch.nn.functional.cross_entropy(
            output(states), labels, ignore_index=IGNORED_LABEL, reduction="sum")), states, output)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_weights_that_are_laid_out_give_the_same(smoothing, bias, monkeypatch):
    if not module.onednn_usable(torch.ones(1)):
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(module, "MIN_CHUNK", 3)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels = problem(11, bias=bias, dtype=torch.float32, ignored=False)  # three chunks of 3, and 2
    product, asked = module.onednn_linear, []
    monkeypatch.setattr(module, "onednn_linear", lambda *given: asked.append(len(given[0])) or product(*given))
    mine = with_gradients(token_loss(states, output, labels, smoothing), states, output)
    assert asked == [3] * 6
    monkeypatch.setattr(module, "onednn_usable", lambda *tensors: False)
    for one, other in zip(mine, with_gradients(token_loss(states, output, labels, smoothing), states, output),
                          strict=True):
        torch.testing.assert_close(one, other)
    assert asked == [3] * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
def test_labels_that_no_probability_is_left_for(dtype):
    output = nn.Linear(2, 3, bias=False).to(dtype)
    with torch.no_grad():
        output.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]))
    states = torch.tensor([[5000.0, 0.0], [1.0, 2.0], [-300.0, 7.0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([2, 0, 1])
    mine, want = token_loss(states, output, labels, 0.1), logits_loss(output(states), labels, 0.1)
    assert want.nll > 10_000
    for one, other in zip(with_gradients(mine, states, output), with_gradients(want, states, output), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_from_logits_it_is_the_same(smoothing):
    states, output, labels = problem(dtype=torch.float32)
    mine, other = token_loss(states, output, labels, smoothing), logits_loss(output(states), labels, smoothing)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_gives_the_same(smoothing, bias, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "MIN_CHUNK", 4)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels = problem(bias=bias, dtype=torch.float32)
    loss = token_loss(states, output, labels, smoothing)
    want = with_gradients(loss, states, output)
    monkeypatch.setattr(module, "_losses_and_gradient", None)  # whoever calls it fails
    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    loss = token_loss(states, output, labels, smoothing)
    for mine, theirs in zip(with_gradients(loss, states, output), want, strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.testing.assert_close(token_loss(states, output, labels, smoothing).total, want[0])


@pytest.mark.parametrize("count", [0, 4])
def test_nothing_that_counts_is_zero_and_no_nan(count):
    states, output, _ = problem(count)
    labels = torch.full((count,), IGNORED_LABEL)
    loss = token_loss(states, output, labels, 0.1)
    loss.total.backward()
    assert (loss.total.item(), loss.nll.item(), loss.tokens.item()) == (0.0, 0.0, 0)
    assert (states.grad == 0).all()
    assert (output.weight.grad == 0).all()


def test_rows_of_tokens_and_no_gradients():
    states, output, labels = problem(12)
    with torch.no_grad():
        alone = token_loss(states, output, labels)
        assert torch.equal(token_loss(states.view(3, 4, 5), output, labels.view(3, 4)).total, alone.total)
    assert not alone.total.requires_grad


def test_huge_logits_do_not_overflow():
    states, output, labels = problem(dtype=torch.float32)
    loss = token_loss(states * 1e30, output, labels, 0.1)
    assert loss.total.isfinite()
    loss.total.backward()
    assert output.weight.grad.isfinite().all()


def test_low_precision_is_wide_where_it_matters():
    states, output, labels = problem(200, dtype=torch.float32, ignored=False)
    want = with_gradients(token_loss(states.double(), output.double(), labels, 0.1), states, output)
    output.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = token_loss(states, output, labels, 0.1)
        assert loss.total.dtype == torch.float32
    got = with_gradients(loss, states, output)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).abs().max() < 0.02 * theirs.abs().max()


@pytest.mark.parametrize(("labels", "message"), [
    (torch.full((2, 3), -1), "`labels` must be from 0 to 6, or -100 to be ignored, but is -1"),
    (torch.full((2, 3), 7), "`labels` must be from 0 to 6, or -100 to be ignored, but is 7"),
    (torch.zeros(2, 3), "`labels` must be integers"),
    (torch.zeros(3, 2).long(), r"`labels` must be of shape \(2, 3\), one for each state, but is of shape \(3, 2\)"),
    (torch.zeros(1, 3).long(), r"`labels` must be of shape \(2, 3\)"),
])
def test_labels_that_are_none(labels, message):
    with pytest.raises(ValueError, match=message):
        token_loss(torch.randn(2, 3, 5), nn.Linear(5, 7), labels)


def test_smoothing_is_a_probability():
    with pytest.raises(ValueError, match="`label_smoothing` must be a probability"):
        token_loss(torch.randn(2, 5), nn.Linear(5, 7), torch.zeros(2).long(), 1.5)


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch):
    states, output, labels = problem()
    written, walk = [], module._token_chunks
    wanted = ("of_states", "of_weight", "of_bias")
    monkeypatch.setattr(module, "_token_chunks", lambda *given, **named: (
        written.append(tuple(named[name] for name in wanted)) or walk(*given, **named)))
    with torch.no_grad():
        token_loss(states, output, labels)
    assert written == [(None, None, None)]


def test_a_second_derivative_is_refused_and_not_wrong():
    states, output, labels = problem()
    with pytest.raises(ValueError, match="`create_graph` must be False"):
        torch.autograd.grad(token_loss(states, output, labels).total, states, create_graph=True)


def test_float64_stays_under_autocast_as_in_the_layer():
    states, output, labels = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert output(states).dtype == torch.double
        torch.testing.assert_close(token_loss(states, output, labels).total, logits_loss(output(states), labels).total)
