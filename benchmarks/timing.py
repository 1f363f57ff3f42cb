"""How the benchmarks measure and print: interleaved repeats, medians, device events on a GPU, the machine's name.

Machines are noisy, so contestants run in turns inside one process and only the ratio of their medians is compared. It
knows nothing of what is measured.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

Work = Callable[[], object]


def hardware(device: str) -> str:
    """The date, the device and the versions, as a row of RESULTS.md names them."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        name = f"{_processor()}, {torch.get_num_threads()} threads"
    return f"{date.today()}, {name}, torch {torch.__version__}, Python {platform.python_version()}"


def medians(works: dict[str, Work], *, device: str, repeats: int = 21,
            clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """The median milliseconds of each work; they run in turns, after a warm-up of each.

    Args:
        clock: on a CPU. `time.thread_time` does not count what other processes take, but other threads of this one
            neither.
    """
    times = rounds(works, device=device, repeats=repeats, clock=clock)
    return {name: statistics.median(taken) for name, taken in times.items()}


def rounds(works: dict[str, Work], *, device: str, repeats: int,
           clock: Callable[[], float] = time.perf_counter) -> dict[str, list[float]]:
    """The milliseconds of each work in each round.

    Each round begins with another one: whoever comes first was up to 3 % slower on a GPU.
    """
    for work in works.values():
        for _ in range(3 if device == "cuda" else 1):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(repeats):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            times[name].append(_milliseconds(works[name], device, clock))
    return times


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
                     for line in lines)


def main(parts: dict[str, Callable[[], str]], about: str | None, file: str, device: str) -> None:
    """Print the parts that the command line names (all, where it names none), under the machine and the command."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; all where none is named")
    asked = parser.parse_args().parts
    unknown = [part for part in asked if part not in parts]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(parts)}")
    torch.manual_seed(0)
    command = " ".join(["python", f"benchmarks/{Path(file).name}", *asked])
    print(f"{hardware(device)}\n`{command}`")
    for name, part in parts.items():
        if not asked or name in asked:
            print(f"\n{part()}", flush=True)


def _milliseconds(work: Work, device: str, clock: Callable[[], float]) -> float:
    if device != "cuda":
        start = clock()
        work()
        return (clock() - start) * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
