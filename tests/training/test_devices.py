"""What is known of a device."""

from types import SimpleNamespace

import pytest
import torch

from regard.training.defaults import DeviceProperties
from regard.training.resolution import device_properties


def test_a_cpu():
    found = device_properties(torch.device("cpu"))
    assert found == DeviceProperties("cpu", found.memory, has_bfloat16=False, count=1)
    assert 2**28 < found.memory < 2**50
    assert not found.fast
    assert device_properties(torch.device("cpu"), 3).count == 3


@pytest.mark.parametrize("lowered", [True, False])
def test_a_gpu(monkeypatch, lowered):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda device: asked.append(device) or SimpleNamespace(total_memory=7 * 2**30))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported",
                        lambda including_emulation: lowered and not including_emulation)
    found = device_properties(torch.device("cuda", 1), 2)
    assert found == DeviceProperties("cuda", 7 * 2**30, lowered, 2)
    assert found.fast
    assert asked == [torch.device("cuda", 1)]
