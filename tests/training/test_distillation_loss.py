"""The loss with the probabilities of a teacher: the literal formula, autograd's gradients, chunks, what is ignored."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.reference import loss as reference
from regard.tokens import IGNORED_LABEL
from regard.training import loss as module
from regard.training.loss import SoftTargets, rdrop_loss, token_loss


def problem(passes=None, count=11, dtype=torch.double, share=0.7, bias=True):
    torch.manual_seed(2)
    output, teacher = nn.Linear(5, 7, bias).to(dtype), nn.Linear(4, 7, bias).to(dtype)
    labels = torch.randint(7, (count,))
    labels[::3] = IGNORED_LABEL
    shape = (count, 5) if passes is None else (passes, count, 5)
    states = torch.randn(shape, dtype=dtype, requires_grad=True)
    return states, output, labels, SoftTargets(3 * torch.randn(count, 4, dtype=dtype), teacher, share)


def plain(states, output, labels, smoothing, soft, rdrop=0.0):
    """The same with torch's own functions and autograd, with all logits at once."""
    counted, options = labels != IGNORED_LABEL, {"reduction": "sum"}
    target = soft.output(soft.states[counted]).log_softmax(-1).detach()
    passes = output(states[..., counted, :]).reshape(-1, int(counted.sum()), output.out_features)
    logs = [one.log_softmax(-1) for one in passes]
    total = sum((1 - soft.share) * F.cross_entropy(one, labels[counted], label_smoothing=smoothing, **options)
                + soft.share * F.kl_div(log, target, log_target=True, **options)
                for one, log in zip(passes, logs, strict=True)) / len(logs)
    if len(logs) == 2:
        total = total + rdrop * sum(F.kl_div(logs[1 - index], logs[index], log_target=True, **options)
                                    for index in (0, 1)) / 4
    return total, sum(F.nll_loss(log, labels[counted], **options) for log in logs) / len(logs)


def with_gradients(total, nll, states, output):
    return [total, nll, *torch.autograd.grad(total * 0.3, [states, *output.parameters()])]


def computed(states, output, labels, smoothing, soft, rdrop=0.0):
    loss = (token_loss(states, output, labels, smoothing, soft) if states.dim() == 2 else
            rdrop_loss(states, output, labels, smoothing, rdrop, soft))
    return with_gradients(loss.total, loss.nll, states, output)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_it_is_the_sum_of_the_reference(smoothing, share):
    states, output, labels, soft = problem(share=share)
    logits, taught = output(states).detach().numpy(), soft.output(soft.states).detach().numpy()
    want = sum(reference.distillation_loss(z, teacher, int(label), smoothing, share)
               for z, teacher, label in zip(logits, taught, labels, strict=True) if label != IGNORED_LABEL)
    assert token_loss(states, output, labels, smoothing, soft).total.item() == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("passes", [None, 2])
@pytest.mark.parametrize("rows", [1, 4, 256])
@pytest.mark.parametrize(("smoothing", "bias"), [(0.0, True), (0.1, True), (0.1, False)])
def test_it_has_autograds_gradients(passes, rows, smoothing, bias, monkeypatch):
    monkeypatch.setattr(module, "MIN_CHUNK", rows)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels, soft = problem(passes, bias=bias)
    got = computed(states, output, labels, smoothing, soft, 5.0)
    want = with_gradients(*plain(states, output, labels, smoothing, soft, 5.0), states, output)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert soft.output.weight.grad is None


@pytest.mark.parametrize("passes", [None, 2])
def test_a_share_of_zero_changes_nothing(passes):
    states, output, labels, soft = problem(passes, share=0.0)
    for mine, theirs in zip(computed(states, output, labels, 0.1, soft, 5.0),
                            computed(states, output, labels, 0.1, None, 5.0), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_a_student_that_equals_its_teacher_learns_nothing():
    states, output, labels, soft = problem(share=1.0)
    loss, _, *gradients = computed(states, output, labels, 0.1, SoftTargets(states, output, 1.0))
    assert abs(loss.item()) < 1e-12
    assert max(gradient.abs().max().item() for gradient in gradients) < 1e-12
    assert computed(states, output, labels, 0.1, soft)[0].item() > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("passes", [None, 2])
def test_the_kernels_give_the_same(passes, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "MIN_CHUNK", 4)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)
    given = problem(passes, dtype=torch.float32)
    states, output, labels, soft = given
    want = computed(states, output, labels, 0.1, soft, 5.0)
    monkeypatch.setattr(module, "usable", lambda *tensors: True)
    for name in ("_losses_and_gradient", "_rdrop_losses_and_gradient"):
        monkeypatch.setattr(module, name, None)  # a call would fail
    for mine, theirs in zip(computed(states, output, labels, 0.1, soft, 5.0), want, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("passes", [None, 2])
def test_no_matrix_of_all_tokens_is_ever_held(passes, monkeypatch):
    """No tensor that an operation makes has all tokens and the whole vocabulary."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor) and made.shape[-1:] == (7,):
                self.rows = max(self.rows, made.numel() // 7)
            return made

    monkeypatch.setattr(module, "MIN_CHUNK", 8)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)
    states, output, labels, soft = problem(passes, count=60)
    with Largest() as largest:
        computed(states, output, labels, 0.1, soft, 5.0)
    assert largest.rows == 8 * (passes or 1)  # of 40 that count


@pytest.mark.parametrize(("change", "name"), [
    ({"share": 1.5}, "share"), ({"states": torch.zeros(3, 4)}, "states"), ({"output": nn.Linear(4, 9)}, "output")])
def test_targets_that_do_not_fit_are_refused(change, name):
    states, output, labels, soft = problem()
    with pytest.raises(ValueError, match=name):
        token_loss(states, output, labels, 0.1, soft._replace(**change))
