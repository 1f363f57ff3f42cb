"""What the parts of `gpu.py` share: a row with its share of the physical limit, tables of rows, and how rows are made.

The limits are those of one H200, measured with bfloat16: matrix products of 787 TFLOP/s, copies of 4.27 TB/s, and
4.13·10^12 special functions (tanh, exp) a second. A piece of work can take no less than the longest of the three takes;
the share is that time over the measured one. It is of the work as it is defined, not of what some kernel computes: one
that finds a way around a tanh may go beyond 100 %.

It knows nothing of what is measured.
"""

import importlib
import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch
from timing import Work, medians, table

PRODUCTS, BYTES, SPECIAL = 787e12, 4.27e12, 4.13e12
"""Of a second: operations in matrix products, bytes to and from memory, special functions."""
GIB = 2**30


@dataclass(frozen=True)
class Setting:
    """How all parts run."""

    device: torch.device
    tiny: bool
    """Sizes so small that a CPU computes them: to see that everything runs, not to measure."""
    data: str | None = None
    """A folder with train.LANGUAGE.gz of two languages, for training; the phrasebook where there is none."""
    languages: str = "en-de"
    compiled: bool = False
    """Whether torch.compile is a peer, too."""
    windows: int = 7
    """Of many steps each, that every loop of training is timed over."""

    @property
    def dtype(self) -> torch.dtype:
        """Of most parts. Triton's interpreter has no bfloat16."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Random numbers that gradients are asked of."""
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype).requires_grad_()


@dataclass(frozen=True)
class Cost:
    """What a piece of work takes at least."""

    products: float = 0.0
    """Operations in matrix products: two for each number that is multiplied and added."""
    bytes: float = 0.0
    special: float = 0.0

    def least(self) -> tuple[float, str]:
        """The milliseconds that it takes at the limit, and which limit that is."""
        parts = {"products": self.products / PRODUCTS, "bytes": self.bytes / BYTES, "tanh, exp": self.special / SPECIAL}
        name = max(parts, key=lambda part: parts[part])
        return parts[name] * 1e3, name


@dataclass(frozen=True)
class Row:
    """One contestant at one piece of work."""

    work: str
    who: str
    ms: float | None = None
    against: float | None = None
    """Its time over that of the contestant that all are compared with."""
    rate: str = ""
    gib: float | None = None
    """The most memory that torch held, beyond what it held before."""
    share: float | None = None
    limit: str = ""
    goal: str = ""
    note: str = ""

    def cells(self) -> list[str]:
        """As they are printed."""
        share = "" if self.share is None else f"{self.share:.1%} ({self.limit})"
        return [self.work, self.who, _number(self.ms), "" if self.against is None else f"{self.against:.2f}", self.rate,
                "" if self.gib is None else f"{self.gib:.2f}", share, self.goal, self.note]


@dataclass(frozen=True)
class Table:
    """Rows under a title. `base` is the contestant that the others are compared with."""

    title: str
    base: str
    rows: list[Row]

    def __str__(self) -> str:
        header = ["work", "by", "ms", f"time against {self.base}", "rate", "GiB beyond the inputs", "of the limit",
                  "goal", "note"]
        lines = [row.cells() for row in self.rows]
        used = [at for at in range(len(header)) if any(line[at] for line in lines)]
        return f"{self.title}\n\n" + table([header[at] for at in used], [[line[at] for at in used] for line in lines])

    def json(self, part: str) -> str:
        """One line, numbers as they were measured."""
        rows = [asdict(row) for row in self.rows]
        return json.dumps({"part": part, "title": self.title, "base": self.base, "rows": rows})


def measured(work: str, contestants: dict[str, Work], setting: Setting, *, base: str,
             cost: Cost | Mapping[str, Cost] | None = None, repeats: int = 9, goal: str = "") -> list[Row]:
    """A row for each contestant: those that can run take turns, and the others say why they cannot.

    The cost is that of all, or of each by its name. The goal stands in the first row.
    """
    notes, held = dict[str, str](), dict[str, float | None]()
    for name, run in contestants.items():
        try:
            held[name] = peak(run, setting)
        except failures() as error:
            notes[name] = failed(f"{work}, {name}", error)
    taken = medians({name: contestants[name] for name in held}, device=setting.device.type,
                    repeats=1 if setting.tiny else repeats)
    costs = cost if isinstance(cost, Mapping) else dict.fromkeys(contestants, cost)
    rows = [row(work, name, taken.get(name), setting, cost=costs[name], gib=held.get(name), note=notes.get(name, ""))
            for name in contestants]
    rows[0] = replace(rows[0], goal=goal)
    return compared(rows, base)


def row(work: str, who: str, ms: float | None, setting: Setting, *, cost: Cost | None = None, rate: str = "",
        gib: float | None = None, goal: str = "", note: str = "") -> Row:
    """A row with its share of the limit, which is told at once."""
    share, limit = None, ""
    if ms is not None and cost is not None and setting.on_gpu:
        least, limit = cost.least()
        share = least / ms
    made = Row(work, who, ms, None, rate, gib, share, limit if share is not None else "", goal, note)
    say(", ".join(cell for cell in made.cells() if cell))
    return made


def compared(rows: list[Row], base: str) -> list[Row]:
    """The rows of one piece of work, with their time over that of `base`."""
    times = {row.who: row.ms for row in rows}
    own = times.get(base)
    if own is None:
        return rows
    return [row if row.ms is None else replace(row, against=row.ms / own) for row in rows]


def peak(run: Work, setting: Setting) -> float | None:
    """The most memory in GiB that a run takes, after one that warms it up; None where nobody counts."""
    run()
    if not setting.on_gpu:
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / GIB


def failures() -> tuple[type[Exception], ...]:
    """What a contestant that cannot do the work raises: out of memory, refused, not compiled, not installed."""
    found: list[type[Exception]] = [RuntimeError, ValueError, ImportError, TimeoutError]
    if importlib.util.find_spec("triton") is not None:
        found.append(importlib.import_module("triton.errors").TritonError)
    return tuple(found)


def failed(what: str, error: Exception) -> str:
    """The failure in a few words; the whole of it goes to the error stream."""
    say(f"{what} failed")
    where = "".join(traceback.format_tb(error.__traceback__, limit=-3))
    print(f"{where}{type(error).__name__}: {error}"[:2000], file=sys.stderr, flush=True)
    first = f"{type(error).__name__}: {error}".splitlines()[0]
    return first if len(first) <= 90 else first[:87] + "..."


def say(text: str) -> None:
    """To the error stream, with the seconds since the start: what is already known where a run is cut."""
    print(f"[{time.monotonic() - _START:6.1f} s] {text}", file=sys.stderr, flush=True)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


_START = time.monotonic()
