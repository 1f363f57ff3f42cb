"""What cannot be kept is not kept: compiled code, the recording of a CUDA graph, the second pass of a checkpoint."""

from types import SimpleNamespace

import pytest
import torch

from regard.inspection.watching_taps import watchable


@pytest.mark.parametrize(("device", "recording", "expected"), [
    ("cpu", True, True), ("cuda", False, True), ("cuda", True, False)])
def test_nothing_is_kept_while_a_graph_is_recorded(device, recording, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    assert watchable(SimpleNamespace(is_cuda=device == "cuda")) is expected


def test_nothing_is_kept_in_a_backward_pass():
    found = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: found.append(watchable(gradient)))
    y.sum().backward()
    assert found == [False]
    assert watchable(x)


def test_nothing_is_kept_while_something_is_compiled(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not watchable(torch.ones(1))
