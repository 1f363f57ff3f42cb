"""All ways on one task, at all lengths, with several seeds: what is compared, and what comes of it.

    results = run("copy", ways=("lstm", "convolution", "attention"), lengths=(10, 100), seeds=1)
    print(report.table(results))

`QUICK` is for two cores and some minutes, `LONG` for a GPU and lengths to 1,024, with smaller steps: at 1,024 tokens
convolution did not learn to copy with twice the rate that it learned it with. Every way gets the same sequences, the
same number of steps and about the same number of parameters. How one is trained is in `training`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from regard import checks
from regard.comparison.memory.tasks import TASKS
from regard.comparison.memory.tasks import task as made
from regard.comparison.memory.training import Budget, Result, learn
from regard.comparison.memory.ways import WAYS

DEFAULT_WAYS = ("rnn", "lstm", "gru", "convolution", "attention")


@dataclass(frozen=True)
class Scale:
    """How much is done where nothing else is said: the lengths of each task, and the budget of each training."""

    lengths: Mapping[str, tuple[int, ...]]
    budget: Budget


QUICK = Scale({"copy": (5, 20, 80), "recall": (16, 32, 64), "adding": (10, 40, 160)}, Budget())
LONG = Scale({name: (64, 256, 1024) for name in TASKS},
             Budget(steps=3000, rows=64, parameters=100_000, every=100, rate=0.4))
SCALES = {"quick": QUICK, "long": LONG}


def run(task: str, ways: Sequence[str] = DEFAULT_WAYS, lengths: Sequence[int] | None = None,
        budget: Budget | None = None, seeds: int = 1, device: str | torch.device = "cpu", scale: str = "quick",
        told: Callable[[str, int, int, int, float], None] | None = None,
        done: Callable[[Result], None] | None = None) -> list[Result]:
    """Train every way at every length with every seed.

    Args:
        task: "copy", "recall" or "adding".
        ways: names from `WAYS`.
        lengths: those of the scale where not given.
        budget: of each training; that of the scale where not given.
        seeds: how many, from 0.
        scale: "quick" or "long": what is done where lengths or budget are not given.
        told: called with way, length, seed, step and held-out loss, whenever one is judged.
        done: called with each result.
    """
    chosen = checks.pick("scale", scale, SCALES)
    checks.pick("task", task, TASKS)
    for way in ways:
        checks.pick("ways", way, WAYS)
    if not ways:
        raise checks.wrong("ways", "at least one", "none", f"There are {', '.join(WAYS)}.")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise checks.wrong("seeds", "a whole number, at least 1", repr(seeds))
    tasks = [made(task, length) for length in dict.fromkeys(chosen.lengths[task] if lengths is None else lengths)]
    if not tasks:
        raise checks.wrong("lengths", "at least one", "none")
    budget = chosen.budget if budget is None else budget
    results = []
    for one in tasks:
        for way in dict.fromkeys(ways):
            for seed in range(seeds):
                tell = None if told is None else _naming(told, way, one.length, seed)
                results.append(learn(one, way, budget, seed, device, tell))
                if done is not None:
                    done(results[-1])
    return results


def _naming(told: Callable[[str, int, int, int, float], None], way: str, length: int,
            seed: int) -> Callable[[int, float], None]:
    return lambda step, loss: told(way, length, seed, step, loss)
