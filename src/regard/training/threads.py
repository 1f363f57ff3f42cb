"""CPU threads of torch: a training uses as many as cores are free, and the same number when it is resumed.

    with torch_threads(2):                    torch uses two threads inside the block
        ...
    with thread_count(stored, report):        as many as this training should use
        ...
    free_cores()                              1.3: the cores that are free now, within the limits of this process

The threads of a matrix product wait for the slowest one. If other programs use the cores too, that one is often not
running, and several threads are many times slower than one. So a training starts with as many threads as cores are
free. It keeps them to the end, and a checkpoint has their number, since sums depend on it in their last bits.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from regard import checks
from regard.training.logging import EventHandler, Note

CHOSEN_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with which a user chooses the number of threads."""
SAMPLE_SECONDS = 0.3
"""The load of the machine is measured for this long."""
TOLERATED_LOAD = 0.75
"""A core less is used if the other programs use more than this fraction of it."""
STAT_FILE, CGROUP_FOLDER = Path("/proc/stat"), Path("/sys/fs/cgroup")
IDLE_FIELDS = slice(3, 5)
"""Idle time and time waiting for disks, among the times of a core in /proc/stat."""
ALL_FIELDS = slice(0, 8)
"""All times of a core; the fields after them are counted twice."""


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use this many threads inside the block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def thread_count(stored: int | None, report: EventHandler, *, resumed: bool = False,
                 adapt: bool = True) -> Iterator[None]:
    """Let torch use as many threads as cores are free, or as many as the resumed training had.

    A number that the user has chosen in the environment is kept. So is the present one if a resumed training has none
    stored, or one that is larger than the number of cores.

    Args:
        stored: the number of threads in the checkpoint.
        report: receives a note if not all cores are used.
        resumed: whether there is a checkpoint.
        adapt: whether a new training uses the free cores only.
    """
    before = torch.get_num_threads()
    chosen = before
    if not any(os.environ.get(name) for name in CHOSEN_BY):
        if stored is not None and stored <= len(_own_cores()):
            chosen = stored
        elif adapt and not resumed and before > 1:
            chosen = _fitting_threads(before, report)
    with torch_threads(chosen):
        yield


def _fitting_threads(most: int, report: EventHandler) -> int:
    """As many threads as cores are free, at least one; a note says so if that is not all."""
    free = free_cores()
    threads = max(1, min(most, math.floor(free + TOLERATED_LOAD)))
    if threads < most:
        found = "No CPU core is free" if free < 0.1 else f"Only {free:.1f} of {most} CPU cores are free"
        report(Note(f"{found}, so training uses {checks.plural(threads, 'thread')} instead of {most}. Set "
                    f"OMP_NUM_THREADS to choose another number."))
    return threads


def free_cores() -> float:
    """The cores that this process may use and that are idle now; all of them if the system does not tell its load."""
    cores = _own_cores()
    before = _core_times(cores)
    time.sleep(SAMPLE_SECONDS)
    after = _core_times(cores)
    free = 0.0
    for core in cores:
        spent = [late - early for early, late in zip(before.get(core, ()), after.get(core, ()), strict=False)]
        total = sum(spent[ALL_FIELDS])
        free += sum(spent[IDLE_FIELDS]) / total if total > 0 else 1.0
    return min(free, _cgroup_quota())


def _own_cores() -> set[int]:
    """The numbers of the cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_times(cores: set[int]) -> dict[int, list[int]]:
    """The times that these cores have spent in each state; empty if this is not Linux."""
    try:
        lines = STAT_FILE.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    found = {}
    for name, *times in (line.split() for line in lines if line.startswith("cpu")):
        number = name.removeprefix("cpu")
        if number.isdecimal() and int(number) in cores:
            found[int(number)] = [int(spent) for spent in times]
    return found


def _cgroup_quota() -> float:
    """The cores that a container may use, from cgroup version 2 or 1; infinite if there is no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            text = " ".join((CGROUP_FOLDER / name).read_text(encoding="ascii") for name in names)
            quota, period = (float(number) for number in text.split())
        except (OSError, ValueError):  # no such file; or "max", which is no limit
            continue
        if quota > 0 and period > 0:
            return quota / period
    return math.inf
