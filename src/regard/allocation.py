"""Memory: what this machine has, whether something fits into it, and errors of allocations that failed.

    available_memory()                 bytes that this process can still take
    check_fits("The model", 10**12)    a ValueError before anything is allocated
    is_out_of_memory(error)            whether an error of Python, NumPy, PyTorch or CUDA is a failed allocation
    describe(error, remedy)            one message for all of them: what was requested, what there is, what helps
    keep_heap_small()                  large blocks go back to the system when they are freed
    return_free_memory()               what is free goes back to the system now

Linux promises more memory than it has, and kills a process that uses what it was promised. So what is known to be too
large is refused before. If the estimate is wrong, the environment variable REGARD_CHECK_MEMORY=0 turns the check off.
This module knows nothing of models. torch is not imported: an error of torch exists only where it is.
"""

import ctypes
import os
import re
import sys
from pathlib import Path

SWITCH = "REGARD_CHECK_MEMORY"
"""The environment variable that turns the check off, if it is 0."""
MEMINFO = Path("/proc/meminfo")
CGROUPS = (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
           ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"))
"""The limit of a container and what it uses, of both versions of cgroups."""
UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}
LARGE_BLOCK = 4 << 20
"""Bytes of a block that is not taken from the heap, after `keep_heap_small`."""
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_REQUESTED = re.compile(r"(?:allocate|requested) (?:about )?([0-9.,]+) ?(bytes|[KMGTPE]?i?B)\b")
_MESSAGES = re.compile(r"can't allocate memory|out of memory|not enough memory|std::bad_alloc|ALLOC_FAILED"
                       r"|Unable to allocate|Cannot allocate memory|Storage size calculation overflowed", re.IGNORECASE)


def machine_memory() -> int:
    """The memory of this machine, or of its container if that has less, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += [limit for limit, _ in _container_limits()]
    return min(limits)


def available_memory() -> int:
    """The bytes that this process can still take: without swapping, and within the limits of container and shell."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        table = dict(re.findall(r"^(\w+): +(\d+) kB$", MEMINFO.read_text(encoding="ascii"), re.MULTILINE))
        found.append(1024 * (int(table["MemAvailable"]) + int(table.get("SwapFree", 0))))
    except (OSError, KeyError):
        pass  # not Linux
    found += [max(0, limit - used) for limit, used in _container_limits()]
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            found.append(max(0, soft - _address_space()))
    return min(found)


def check_fits(what: str, needed: int, remedy: str, *, room: int | None = None,
               place: str = "this machine") -> None:
    """Refuse what needs more bytes than there are.

    Args:
        what: the beginning of a sentence: "The model", or "Training 3,000 parameters".
        room: bytes of a device; by default those that this process can still take.
        place: the device.
    """
    room = available_memory() if room is None else room
    if needed <= room or os.environ.get(SWITCH) == "0":
        return
    raise ValueError(f"{what} needs about {format_bytes(needed)} of memory, but {place} has {format_bytes(room)} free. "
                     f"{remedy} If this estimate is wrong, set {SWITCH}=0.")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory could not be allocated."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and _MESSAGES.search(str(error)) is not None


def requested_bytes(error: BaseException) -> int | None:
    """The size of the allocation that failed; None if the error does not tell."""
    found = _REQUESTED.search(str(error))
    if found is None or found[2] not in UNITS:
        return None
    return int(float(found[1].replace(",", "")) * UNITS[found[2]])


def describe(error: BaseException, remedy: str) -> str:
    """What was requested, what there is, and what helps, of an error for which `is_out_of_memory` holds."""
    requested, text = requested_bytes(error), str(error)
    asked = "" if requested is None else f": {format_bytes(requested)} were requested"
    gpu = re.search(r"total capacity of ([0-9.]+ [KMGT]iB) of which ([0-9.]+ [KMGT]iB) is free", text)
    if gpu is not None:
        there = f"the GPU has {gpu[2]} of {gpu[1]} free"
    elif "CUDA" in text:
        there = "the memory of the GPU is used up"
    else:
        there = f"this machine has {format_bytes(available_memory())} of {format_bytes(machine_memory())} free"
    return f"Not enough memory{asked}{', and ' if asked else ': '}{there}. {remedy}"


def format_bytes(count: int) -> str:
    """A number of bytes with a unit: "512 bytes", "3.2 GiB"."""
    for unit, size in reversed(UNITS.items()):
        if size > 1 and count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def _container_limits() -> list[tuple[int, int]]:
    """The limits of the container and what it uses, as far as there are any."""
    limits = []
    for limit, used in CGROUPS:
        try:
            limits.append((int(Path(limit).read_text()), int(Path(used).read_text())))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return limits


def _address_space() -> int:
    """The bytes of address space that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def keep_heap_small() -> None:
    """Let glibc return every large block to the system when it is freed, for the rest of the process.

    glibc takes large blocks from the system, but after the first ones were freed it takes blocks of up to 32 MiB from
    the heap. Batches of changing sizes then leave gaps in it, and a process that runs for long takes more and more
    memory. Elsewhere, and where the environment sets the threshold, nothing is changed.
    """
    libc = _glibc()
    if libc is not None and not {"MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & {*os.environ}:
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)


def return_free_memory() -> None:
    """Return what is free in the heap to the system, if the C library is glibc. It takes some milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if os.name != "posix":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
