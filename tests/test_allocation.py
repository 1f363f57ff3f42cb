"""Memory: estimates before anything is allocated, and errors of allocations that failed."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import regard
from regard import allocation

GIB = 2**30
CUDA_MESSAGE = ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which "
                "5.20 GiB is free. Process 1 has 134 GiB memory in use.")


@pytest.mark.parametrize("allocate", [
    lambda: torch.empty(2**47), lambda: np.empty(2**45), lambda: torch.zeros(2**40, 2**40), lambda: bytearray(2**60),
])
def test_real_failures_are_recognised(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate()
    assert allocation.is_out_of_memory(error.value)


@pytest.mark.parametrize(("error", "size"), [
    (torch.OutOfMemoryError(CUDA_MESSAGE), 20 * GIB), (MemoryError(), None),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                  "to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"), 40_000_000_000),
    (MemoryError("Unable to allocate 74.5 GiB for an array with shape (10000000000,)"), int(74.5 * GIB)),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
    (RuntimeError("std::bad_alloc"), None), (OSError(12, "Cannot allocate memory"), None),
])
def test_what_was_requested(error, size):
    assert allocation.is_out_of_memory(error)
    assert allocation.requested_bytes(error) == size
    message = allocation.describe(error, "Do this.")
    assert message.endswith(" Do this.")
    if size is not None:
        assert allocation.format_bytes(size) in message


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), OSError(28, "No space left on device"),
                                   ValueError("out of memory"), RuntimeError("memory format of a tensor")])
def test_other_errors_are_not_about_memory(error):
    assert not allocation.is_out_of_memory(error)


def test_the_numbers_of_a_gpu_are_in_the_message():
    message = allocation.describe(torch.OutOfMemoryError(CUDA_MESSAGE), "")
    assert "5.20 GiB of 139.81 GiB" in message


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (3 * GIB // 2, "1.5 GiB"),
                                             (2**60, "1.0 EiB"), (10**30, "867,361,737,988.4 EiB")])
def test_bytes_have_units(count, text):
    assert allocation.format_bytes(count) == text


def test_what_is_there(monkeypatch, tmp_path):
    assert 0 < allocation.available_memory() <= allocation.machine_memory()
    for name, content in (("max", str(5 * GIB)), ("current", str(2 * GIB))):
        (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(allocation, "CGROUPS", ((str(tmp_path / "max"), str(tmp_path / "current")),))
    assert allocation.machine_memory() == min(5 * GIB, allocation.machine_memory())
    assert allocation.available_memory() <= 3 * GIB
    (tmp_path / "max").write_text("max\n")
    assert allocation.machine_memory() > 0


def test_a_limit_of_the_shell_counts():
    program = ("import resource\nfrom regard import allocation\n"
               "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\nprint(allocation.available_memory())")
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 0 < int(shown) < GIB


def test_too_much_is_refused_and_the_check_can_be_turned_off(monkeypatch):
    allocation.check_fits("The model", 5, "Less.", room=5)
    with pytest.raises(ValueError, match=r"^The model needs about 3\.0 GiB .* this machine has 2\.0 GiB free\. Less\."):
        allocation.check_fits("The model", 3 * GIB, "Less.", room=2 * GIB)
    monkeypatch.setenv(allocation.SWITCH, "0")
    allocation.check_fits("The model", 3 * GIB, "Less.", room=2 * GIB)


@pytest.mark.parametrize("changes", [{"width": 2**20, "vocab_size": 100}, {"vocab_size": 10**9},
                                     {"vocab_size": 100, "stack.layers": 10**7}])
def test_an_absurd_model_is_refused_before_it_is_built(changes):
    with pytest.raises(ValueError, match=r"parameters and needs about .*iB of memory"):
        regard.build("gpt-tiny", **changes)


HEAP = """
import os, sys
from regard import allocation
if sys.argv[1] == "small":
    allocation.keep_heap_small()
memory = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
large = bytearray(30 << 20)
del large                                       # from here on glibc takes blocks of this size from the heap
before = memory()
large = bytearray(20 << 20)
after_it = [bytearray(5000) for _ in range(100)]  # so the end of the heap stays where it is
del large
kept = memory() - before
allocation.return_free_memory()
print(kept, memory() - before)
"""


@pytest.mark.skipif(allocation._glibc() is None or not sys.platform.startswith("linux"), reason="glibc")
def test_large_blocks_are_returned_when_they_are_freed():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    kept, returned = {}, {}
    for kind in ("large", "small"):
        found = subprocess.run([sys.executable, "-c", HEAP, kind], capture_output=True, text=True, check=True,
                               env=environment, timeout=60)
        kept[kind], returned[kind] = map(int, found.stdout.split())
    assert kept["large"] > 15 << 20
    assert kept["small"] < 3 << 20
    assert returned["large"] < 3 << 20
