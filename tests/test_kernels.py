"""Where kernels of our own can run, and that nothing is launched for nothing."""

import importlib.util

import torch

from regard import kernels

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_kernels_are_for_gpus_or_for_the_interpreter(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "for GPUs" in kernels.why_not(CPU)
    assert kernels.why_not(GPU) is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.why_not(CPU) is None


def test_without_triton_there_are_none(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "not installed" in kernels.why_not(GPU)


def test_an_empty_grid_launches_nothing(monkeypatch):
    launched = []
    monkeypatch.setattr(kernels, "_run", lambda *given: launched.append(given))
    kernels.launch("kernel", (3, 0), 1)
    assert launched == []
    kernels.launch("kernel", (3, 2), 1, SIZE=4)
    assert launched == [("kernel", (3, 2), (1,), {"SIZE": 4})]


def test_sizes_are_powers_of_two():
    assert [kernels.padded(count) for count in (1, 2, 3, 5, 64, 65)] == [1, 2, 4, 8, 64, 128]
