"""What cannot be kept is not kept: compiled code, a CUDA graph, torch.func, the second pass of a checkpoint."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import regard
from regard.inspection.recorder import can_record


class Kernel(nn.Module):
    """A module around a softmax."""

    def forward(self, x):
        return (x @ x.mT).unsqueeze(1).softmax(-1) @ x.unsqueeze(1)


@pytest.mark.parametrize(("device", "recording", "expected"), [
    ("cpu", True, True), ("cuda", False, True), ("cuda", True, False)])
def test_nothing_is_kept_while_a_graph_is_recorded(device, recording, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    assert can_record(SimpleNamespace(is_cuda=device == "cuda")) is expected


def test_nothing_is_kept_in_a_backward_pass():
    found = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: found.append(can_record(gradient)))
    y.sum().backward()
    assert found == [False]
    assert can_record(x)


@pytest.mark.parametrize("model", [regard.Attention(4, heads=2), nn.MultiheadAttention(4, 2), Kernel()],
                         ids=lambda model: type(model).__name__)
def test_what_runs_inside_of_torch_func_runs_as_it_does(model):
    x = torch.randn(2, 3, 4)

    def loss(x):
        return (model(x, x, x)[0] if isinstance(model, nn.MultiheadAttention) else model(x)).sum()

    plain = torch.func.grad(loss)(x)
    with regard.watch(model) as seen:
        assert torch.equal(torch.func.grad(loss)(x), plain)
    assert seen.names() == []


def test_nothing_is_kept_while_something_is_compiled(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not can_record(torch.ones(1))
