"""Which program has which part of a scan: all of it is somebody's, and those that wait fit on the device."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
layout = pytest.importorskip("regard.recurrence.kernels.triton_scan")

CUDA = torch.device("cuda")


@pytest.fixture
def _h200(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


@pytest.mark.usefixtures("_h200")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 20, 512, 1000, 4096])
@pytest.mark.parametrize("rows", [1, 5, 64, 65, 256, 4000])
def test_every_row_and_feature_is_covered_and_those_that_wait_fit(rows, width, dtype):
    made = layout.Layout.of(rows, width, dtype, CUDA)
    blocks, groups = made.grid
    assert blocks * made.block_width >= width > (blocks - 1) * made.block_width
    assert groups * made.block_rows >= rows > (groups - 1) * made.block_rows
    assert not made.resident or blocks * groups <= 132


@pytest.mark.usefixtures("_h200")
def test_what_is_resident():
    assert layout.Layout.of(64, 512, torch.bfloat16, CUDA).resident
    assert layout.Layout.of(256, 1024, torch.float32, CUDA).resident
    assert not layout.Layout.of(4000, 1024, torch.float32, CUDA).resident
    assert not layout.Layout.of(64, 512, torch.float32, torch.device("cpu")).resident


def test_the_launches():
    """One that does all steps, or one for each phase of each step, in the order that is given."""
    calls = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **constants: calls.append((grid, given[-3:], constants.get("PHASE")))

    made = layout.Layout(5, 20, False, 16, 16, 16)
    tensor = torch.zeros(1)
    made.launch(Kernel(), [tensor], range(2, -1, -1), 1)
    assert calls == [((2, 1), (t, t + 1, 5), None) for t in (2, 1, 0)]
    calls.clear()
    made.launch(Kernel(), [tensor], range(2), 2)
    assert calls == [((2, 1), (t, t + 1, 5), phase) for t in (0, 1) for phase in (1, 2)]


def test_the_precision_of_products():
    before = torch.get_float32_matmul_precision()
    try:
        for asked, given in (("highest", "tf32x3"), ("high", "tf32")):
            torch.set_float32_matmul_precision(asked)
            assert layout.precision(torch.float32) == given
            assert layout.precision(torch.bfloat16) == "tf32"  # which triton asks for, and does not use
    finally:
        torch.set_float32_matmul_precision(before)
