"""What all tests share: one seed, torch left as it was, Hypothesis profiles, and skips for what a machine lacks.

Torch is not imported here, so a test that does not use it does not pay for it.
"""

import importlib.util
import os
import shutil
import signal
import sys
import threading

import pytest
from hypothesis import settings

# Some virtual machines announce AMX and cannot run it: a bfloat16 matrix product then ends the process with an illegal
# instruction. This keeps oneDNN, which torch calls, below AMX. It is read when torch is first imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Without a GPU its kernels run in Triton's interpreter, which is chosen when triton is first imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The problems of the tests are tiny and many, and workers share the cores: threads would mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs (`nohup make test &`) with SIGINT ignored, and children inherit that. Tests interrupt
# themselves and their children, so the handler is restored here; a child then starts with the default one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline anywhere: the first call of a torch operator is slow, and so is a shared machine.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25, database=None, print_blob=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=5, database=None, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("REGARD_HYPOTHESIS") or ("ci" if os.environ.get("CI") else "dev"))

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "there is no Chromium, or no playwright"


def pytest_collection_modifyitems(items):
    """Put files with slow tests first, for several processes; skip what this machine cannot run, and say why."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    browser = [item for item in items if item.get_closest_marker("browser")]
    if gpu and not _has_cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    if browser and not _has_browser():
        for item in browser:
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


def pytest_terminal_summary(terminalreporter):
    """Say in the last lines how many tests were skipped for want of a browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_BROWSER in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"Skipped {count} tests of the page: {NO_BROWSER}. `make browser` installs it.")


def _has_cuda():
    import torch

    return torch.cuda.is_available()


def _has_browser():
    return importlib.util.find_spec("playwright") is not None and any(map(shutil.which, CHROMIUM))


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    """Start each test from seed 0, and give back the default dtype and the random state that were there."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.set_rng_state(state)
