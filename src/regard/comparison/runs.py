"""Every model of a comparison, trained as often as asked, tested and measured; what is finished is not done again.

    compared(setting, place, files)     ─► {name: [Measured of each seed]}

Trainings go through `regard.training.run`, and are told of to loggers as any other. It does not know what is said of
the results, nor how they are shown.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.comparison.measures import Measured, measured
from regard.comparison.place import STEPS, Place
from regard.comparison.road import Step
from regard.comparison.setting import Setting
from regard.comparison.split import Files, pairs_of
from regard.comparison.trial import Allowed, request, steps_for
from regard.training.checkpoints import Checkpoints
from regard.training.reports import Logger
from regard.training.run import CHECKPOINTS, train

Results = dict[str, list[Measured]]
THREADS = 4
"""Of a quick comparison, at most."""


class InterruptedTraining(Exception):  # noqa: N818 (somebody asked for it: no error)
    """Somebody asked a training to end. The same comparison, asked for again, goes on."""


class Told(NamedTuple):
    """Who is told what."""

    note: Callable[[str], None]
    """Takes a line for people."""
    loggers: Callable[[], Sequence[Logger]]
    """Makes those that are told of one training."""


def compared(setting: Setting, place: Place, files: Files, told: Told) -> Results:
    """Train and measure what is not finished yet."""
    with _few_threads(setting):
        return _compared(setting, place, files, told)


def _compared(setting: Setting, place: Place, files: Files, told: Told) -> Results:
    todo = [(step, seed) for step in setting.steps for seed in range(1, setting.seeds + 1)]
    tested = pairs_of(files.test)
    allowed: dict[str, Allowed] = {}
    if any(place.finished(step.name, seed) is None for step, seed in todo):
        allowed = _allowed(setting, place, files)
    results: Results = {step.name: [] for step in setting.steps}
    for number, (step, seed) in enumerate(todo, 1):
        known = place.finished(step.name, seed)
        if known is None:
            told.note(f"{number} of {len(todo)}: {step.name}, seed {seed}, {allowed[step.name].steps:,} steps")
            peak = _trained(setting, step, seed, place, files, allowed[step.name], told)
            found = measured(place.model(step.name, seed), tested, beams=setting.beams,
                             device=_device(setting), peak=peak)
            place.finish(step.name, seed, found.plain())
        else:
            told.note(f"{number} of {len(todo)}: {step.name}, seed {seed}: finished before")
            found = Measured.of_plain(known)
        results[step.name].append(found)
    return results


@contextmanager
def _few_threads(setting: Setting) -> Iterator[None]:
    """Inside, small models have few threads: more of them would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(THREADS, before) if setting.small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _allowed(setting: Setting, place: Place, files: Files) -> dict[str, Allowed]:
    """The steps of each model: as found out before, so that a comparison goes on as it began, or found out now."""
    kept = place.folder / STEPS
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    missing = tuple(step for step in setting.steps if step.name not in known)
    if missing:
        found = steps_for(replace(setting, steps=missing), files, place.folder / "trial")
        known |= {name: one._asdict() for name, one in found.items()}
        place.write(kept.name, json.dumps(known, indent=1) + "\n")
    return {name: Allowed(**one) for name, one in known.items()}


def _trained(setting: Setting, step: Step, seed: int, place: Place, files: Files, allowed: Allowed,
             told: Told) -> int | None:
    """Train one model to its end; what a GPU held at most."""
    folder = place.model(step.name, seed)
    begun = _begun(folder)
    if not begun and folder.exists():
        shutil.rmtree(folder)  # killed before there was anything to go on with; the folder is ours
    asked = request(setting, step, files, folder, allowed.changes, steps=allowed.steps, seed=seed,
                    resume=begun)
    cuda = _device(setting).startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    outcome = train(asked, told.loggers())
    if not outcome.finished:
        raise InterruptedTraining(f"{folder}: The training was interrupted. The same command goes on with it.")
    return torch.cuda.max_memory_allocated() if cuda else None


def _begun(folder: Path) -> bool:
    """Whether there is a training to go on with."""
    return folder.is_dir() and bool(Checkpoints(folder / CHECKPOINTS, keep=1).steps())


def _device(setting: Setting) -> str:
    if setting.device != "auto":
        return setting.device
    return "cuda" if torch.cuda.is_available() else "cpu"
